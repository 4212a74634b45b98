//! The holders of a shared lock. Each is found by its token, by its fence and by the end of its lease, so that what
//! one of a thousand readers does costs the same as among ten.

use super::fence::Fence;
use super::hold::Hold;
use super::time::Instant;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::rc::Rc;

/// One holder of a shared lock.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its description for people.
    pub label: Box<[u8]>,
    /// How many holders it accepts, itself included.
    pub limit: Option<u32>,
    /// Its hold.
    pub hold: Hold,
}

/// The holders of a shared lock. Two of them can have one fence: a floor raises it to whatever a client asks for.
#[derive(Clone, Default)]
pub struct Crowd {
    members: HashMap<Rc<[u8]>, Member>,
    by_fence: BTreeSet<(Fence, Rc<[u8]>)>,
    ends: BTreeSet<(Instant, Rc<[u8]>)>,
    /// How many members have each limit.
    limits: BTreeMap<u32, usize>,
}

impl Crowd {
    /// Number of holders.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether nobody holds the lock.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The holder with this token, and the token as it is kept.
    pub fn get(&self, token: &[u8]) -> Option<(&Rc<[u8]>, &Member)> {
        self.members.get_key_value(token)
    }

    /// The holders with this fence, with their tokens.
    pub fn with_fence(&self, fence: Fence) -> impl Iterator<Item = (&[u8], &Member)> {
        // No token is empty, so this is before the first.
        let first: (Fence, Rc<[u8]>) = (fence, Rc::default());
        let found = self.by_fence.range((Bound::Excluded(first), Bound::Unbounded));
        let found = found.take_while(move |(theirs, _)| *theirs == fence);
        found.filter_map(|(_, token)| Some((&**token, self.members.get(token)?)))
    }

    /// The smallest limit of any holder.
    pub fn smallest_limit(&self) -> Option<u32> {
        self.limits.first_key_value().map(|(&limit, _)| limit)
    }

    /// The holder whose lease ends first, as far as the holds know by themselves, with its token.
    pub fn first_to_end(&self) -> Option<(&Rc<[u8]>, &Member)> {
        let (_, token) = self.ends.first()?;
        self.members.get_key_value(token)
    }

    /// Takes a holder in, in the stead of what its token had.
    pub fn insert(&mut self, token: &[u8], member: Member) {
        self.remove(token);
        let token: Rc<[u8]> = token.into();
        self.by_fence.insert((member.hold.fence, token.clone()));
        self.ends.insert((member.hold.end, token.clone()));
        if let Some(limit) = member.limit {
            *self.limits.entry(limit).or_default() += 1;
        }
        self.members.insert(token, member);
    }

    /// Takes a holder out.
    pub fn remove(&mut self, token: &[u8]) -> Option<Member> {
        let (token, member) = self.members.remove_entry(token)?;
        self.by_fence.remove(&(member.hold.fence, token.clone()));
        self.ends.remove(&(member.hold.end, token));
        if let Some(limit) = member.limit {
            if let Some(count) = self.limits.get_mut(&limit) {
                *count -= 1;
                if *count == 0 {
                    self.limits.remove(&limit);
                }
            }
        }
        Some(member)
    }

    /// Changes a hold under its fence and end.
    pub fn update(&mut self, token: &[u8], change: impl FnOnce(&mut Hold)) {
        let Some((token, member)) = self.members.get_key_value(token) else { return };
        let (token, end, fence) = (token.clone(), member.hold.end, member.hold.fence);
        let Some(member) = self.members.get_mut(&token) else { return };
        change(&mut member.hold);
        if end != member.hold.end {
            self.ends.remove(&(end, token.clone()));
            self.ends.insert((member.hold.end, token.clone()));
        }
        if fence != member.hold.fence {
            self.by_fence.remove(&(fence, token.clone()));
            self.by_fence.insert((member.hold.fence, token));
        }
    }

    /// Every holder with its token, in the order of fences.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &Member)> {
        self.by_fence.iter().filter_map(|(_, token)| Some((&**token, self.members.get(token)?)))
    }

    /// Bytes the holders occupy, about.
    pub fn bytes(&self) -> usize {
        // Per holder: its entry in the map, two tree entries, token and label.
        let entry = size_of::<(Rc<[u8]>, Member)>() + 2 * size_of::<(Instant, Rc<[u8]>)>() + 64;
        self.iter().map(|(token, member)| entry + token.len() + member.label.len() + member.hold.heap_bytes()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::super::hold::{Holder, Mode};
    use super::super::name::{Label, Token};
    use super::super::names::NameList;
    use super::super::time::Lease;
    use super::*;

    fn member(fence: u64, limit: Option<u32>) -> Member {
        let holder = Holder {
            token: Token::new(b"t").unwrap(),
            fence: Fence::new(fence).unwrap(),
            lease: Lease::from_ms(fence).unwrap(),
            label: Label::new(b"").unwrap(),
            mode: Mode::Shared(limit),
            unnamed: true,
            names: NameList::Many(Vec::new()),
            cap_ms: None,
        };
        Member { label: Box::default(), limit, hold: Hold::new(&holder, 0, Instant::from_micros(0)) }
    }

    #[test]
    fn limits_come_and_go_with_their_holders() {
        let mut crowd = Crowd::default();
        crowd.insert(b"a", member(1, Some(5)));
        crowd.insert(b"b", member(2, Some(3)));
        crowd.insert(b"c", member(3, None));
        crowd.insert(b"d", member(4, Some(3)));
        assert_eq!(crowd.smallest_limit(), Some(3));
        crowd.remove(b"b");
        assert_eq!(crowd.smallest_limit(), Some(3));
        crowd.remove(b"d");
        assert_eq!(crowd.smallest_limit(), Some(5));
        crowd.remove(b"a");
        assert_eq!((crowd.smallest_limit(), crowd.len()), (None, 1));
    }

    fn first_end(crowd: &Crowd) -> Option<(&[u8], u64)> {
        crowd.first_to_end().map(|(token, member)| (&**token, member.hold.end.micros()))
    }

    fn with_fence(crowd: &Crowd, number: u64) -> Vec<&[u8]> {
        crowd.with_fence(Fence::new(number).unwrap()).map(|(token, _)| token).collect()
    }

    #[test]
    fn ends_and_fences_follow_changes() {
        let mut crowd = Crowd::default();
        crowd.insert(b"a", member(1, None));
        crowd.insert(b"b", member(2, None));
        assert_eq!(first_end(&crowd), Some((&b"a"[..], 1_000)));
        crowd.update(b"a", |hold| {
            hold.end = Instant::from_micros(9_000);
            hold.fence = Fence::new(7).unwrap();
        });
        assert_eq!(first_end(&crowd), Some((&b"b"[..], 2_000)));
        assert_eq!(with_fence(&crowd, 7), [b"a"]);
        assert_eq!(with_fence(&crowd, 1), [b""; 0]);
        let order: Vec<&[u8]> = crowd.iter().map(|(token, _)| token).collect();
        assert_eq!(order, [b"b", b"a"]);
    }

    #[test]
    fn holders_with_one_fence_and_one_end_stay_apart() {
        let mut crowd = Crowd::default();
        for token in [b"b", b"a", b"c"] {
            crowd.insert(token, member(5, None));
        }
        crowd.insert(b"d", member(6, None));
        assert_eq!(with_fence(&crowd, 5), [b"a", b"b", b"c"]);
        crowd.remove(b"a");
        crowd.update(b"b", |hold| hold.fence = Fence::new(6).unwrap());
        assert_eq!((with_fence(&crowd, 5), with_fence(&crowd, 6)), (vec![&b"c"[..]], vec![&b"b"[..], b"d"]));
        let order: Vec<&[u8]> = crowd.iter().map(|(token, _)| token).collect();
        assert_eq!(order, [b"c", b"b", b"d"]);
        assert_eq!(first_end(&crowd), Some((&b"b"[..], 5_000)));
    }
}
