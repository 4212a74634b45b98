//! What clients saw, on the one monotonic clock of the machine, and whether it can be: a checker that knows nothing of
//! servers. A violation names the promise that it breaks, so a run can say which ones held.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::Instant;

/// What is promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Promise {
    /// No two clients are sure of one lock at once.
    Exclusion,
    /// No fence of a lock is given to two.
    UniqueFence,
    /// Whoever asks after another was told gets a higher fence.
    FenceOrder,
    /// Only who holds a lock releases it, and once.
    OwnRelease,
    /// A hold lasts until its lease is over.
    Kept,
}

/// A granted lock.
#[derive(Clone, Debug)]
pub struct Hold {
    pub key: String,
    pub token: String,
    pub fence: i64,
    /// The request was sent.
    pub invoked: Instant,
    /// The grant was here: from now on the client is sure.
    pub returned: Instant,
    /// To here, by its own clock, or until it let go.
    pub until: Instant,
    /// Whether it is promised that nobody else has the lock meanwhile.
    pub safe: bool,
    /// Whether it is promised that it outlives what happens: whatever that takes was waited for.
    pub known: bool,
}

/// A release.
#[derive(Clone, Debug)]
pub struct Release {
    pub key: String,
    pub token: String,
    pub returned: Instant,
    pub outcome: i64,
    /// Until when the hold was sure; none if it was not.
    pub sure_until: Option<Instant>,
}

/// All that happened.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub holds: Vec<Hold>,
    pub releases: Vec<Release>,
    /// When each token asked for each lock, answered or not.
    pub asked: Vec<(String, String, Instant)>,
}

/// A promise that was broken.
pub struct Violation {
    pub promise: Promise,
    /// Whether it was promised: everything it rests on was safe.
    pub promised: bool,
    pub story: String,
}

impl fmt::Debug for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let promised = if self.promised { "promised" } else { "not promised" };
        write!(f, "{:?}, {promised}: {}", self.promise, self.story)
    }
}

impl History {
    pub fn merge(histories: Vec<Self>) -> Self {
        let mut all = Self::default();
        for history in histories {
            all.holds.extend(history.holds);
            all.releases.extend(history.releases);
            all.asked.extend(history.asked);
        }
        all
    }

    /// Everything that cannot be.
    pub fn check(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        self.check_fences(&mut found);
        let mut by_key: BTreeMap<&str, Vec<&Hold>> = BTreeMap::new();
        for hold in &self.holds {
            by_key.entry(&hold.key).or_default().push(hold);
        }
        for holds in by_key.values() {
            check_exclusion(holds, &mut found);
            check_order(holds, &mut found);
        }
        self.check_releases(&mut found);
        found
    }

    fn check_fences(&self, found: &mut Vec<Violation>) {
        // Nodes of a cluster number their locks each for itself.
        let mut owners: HashMap<(&str, i64), &Hold> = HashMap::new();
        for hold in &self.holds {
            let owner = owners.entry((&hold.key, hold.fence)).or_insert(hold);
            if owner.token != hold.token {
                found.push(violation(Promise::UniqueFence, owner.known && hold.known, &[*owner, hold]));
            }
        }
    }

    fn check_releases(&self, found: &mut Vec<Violation>) {
        let mut left: HashMap<(&str, &str), usize> = HashMap::new();
        let mut asked: HashMap<(&str, &str), Vec<Instant>> = HashMap::new();
        for (key, token, at) in &self.asked {
            *left.entry((key, token)).or_default() += 1;
            asked.entry((key, token)).or_default().push(*at);
        }
        for release in &self.releases {
            let name = (&*release.key, &*release.token);
            let lost = release.sure_until.is_some_and(|until| release.returned < until);
            match release.outcome {
                1 => {
                    let count = left.entry(name).or_default();
                    let before = asked.get(&name).is_some_and(|all| all.iter().any(|&at| at < release.returned));
                    if *count == 0 || !before {
                        let story = format!("{release:#?}");
                        found.push(Violation { promise: Promise::OwnRelease, promised: true, story });
                    }
                    *count = count.saturating_sub(1);
                }
                _ if lost => {
                    let story = format!("{release:#?}");
                    found.push(Violation { promise: Promise::Kept, promised: true, story });
                }
                _ => {}
            }
        }
    }
}

/// Of holds in the order of their beginnings only the one that lasts longest so far can reach into the next.
fn check_exclusion(holds: &[&Hold], found: &mut Vec<Violation>) {
    let mut sure: Vec<&Hold> = holds.iter().copied().filter(|hold| hold.returned < hold.until).collect();
    sure.sort_by_key(|hold| hold.returned);
    for (at, hold) in sure.iter().enumerate() {
        let others = sure[..at].iter().filter(|before| before.until > hold.returned && before.token != hold.token);
        for before in others {
            found.push(violation(Promise::Exclusion, before.safe && hold.safe, &[*before, *hold]));
        }
    }
}

fn check_order(holds: &[&Hold], found: &mut Vec<Violation>) {
    let mut returned: Vec<&Hold> = holds.to_vec();
    returned.sort_by_key(|hold| hold.returned);
    let mut invoked: Vec<&Hold> = holds.to_vec();
    invoked.sort_by_key(|hold| hold.invoked);
    let mut done = returned.into_iter().peekable();
    let mut highest: Option<&Hold> = None;
    for hold in invoked {
        while let Some(before) = done.next_if(|before| before.returned < hold.invoked) {
            highest = highest.into_iter().chain([before]).max_by_key(|hold| hold.fence);
        }
        // A token that asks again gets its grant again.
        let falls = |before: &&Hold| before.fence >= hold.fence && before.token != hold.token;
        if let Some(before) = highest.filter(falls) {
            found.push(violation(Promise::FenceOrder, before.known && hold.known, &[before, hold]));
        }
    }
}

fn violation(promise: Promise, promised: bool, holds: &[&Hold]) -> Violation {
    Violation { promise, promised, story: format!("{holds:#?}") }
}

/// The checker is wrong if it lets these pass.
mod tests {
    use super::*;
    use std::time::Duration;

    /// Three tokens that hold one lock in turn, another that holds another lock meanwhile.
    fn sound() -> History {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut history = History::default();
        for (n, (key, from, until)) in
            [("a", 0, 10), ("a", 12, 20), ("b", 5, 30), ("a", 21, 40)].into_iter().enumerate()
        {
            let (key, token) = (key.to_owned(), format!("t{n}"));
            history.asked.push((key.clone(), token.clone(), at(from)));
            history.holds.push(Hold {
                key: key.clone(),
                token: token.clone(),
                fence: n as i64 + 1,
                invoked: at(from),
                returned: at(from + 1),
                until: at(until - 1),
                safe: true,
                known: true,
            });
            history.releases.push(Release {
                key,
                token,
                returned: at(until),
                outcome: 1,
                sure_until: Some(at(until + 100)),
            });
        }
        history
    }

    fn assert_finds(promise: Promise, mutate: impl FnOnce(&mut History)) {
        let mut history = sound();
        assert!(history.check().is_empty(), "{:#?}", history.check());
        mutate(&mut history);
        let found = history.check();
        assert!(found.iter().any(|found| found.promise == promise), "{promise:?} is not missed: {found:#?}");
    }

    #[test]
    fn a_hold_that_lasts_into_the_next_is_found() {
        assert_finds(Promise::Exclusion, |history| history.holds[0].until += Duration::from_millis(6));
        assert_finds(Promise::Exclusion, |history| history.holds[0].until += Duration::from_millis(16));
        assert_finds(Promise::Exclusion, |history| history.holds[0].until += Duration::from_millis(90));
        assert_finds(Promise::Exclusion, |history| {
            let mut second = history.holds[3].clone();
            (second.token, second.fence) = ("thief".to_owned(), 9);
            history.holds.push(second);
        });
    }

    #[test]
    fn a_fence_that_comes_again_is_found() {
        assert_finds(Promise::UniqueFence, |history| history.holds[1].fence = 1);
        assert_finds(Promise::UniqueFence, |history| history.holds[3].fence = 2);
    }

    #[test]
    fn a_fence_that_falls_is_found() {
        assert_finds(Promise::FenceOrder, |history| history.holds[0].fence = 7);
        assert_finds(Promise::FenceOrder, |history| {
            let (first, last) = (history.holds[0].fence, history.holds[3].fence);
            (history.holds[0].fence, history.holds[3].fence) = (last, first);
        });
    }

    #[test]
    fn a_release_by_another_or_twice_is_found() {
        assert_finds(Promise::OwnRelease, |history| history.releases[1].token = "nobody".to_owned());
        assert_finds(Promise::OwnRelease, |history| history.releases[1].key = "b".to_owned());
        assert_finds(Promise::OwnRelease, |history| history.releases.push(history.releases[0].clone()));
        assert_finds(Promise::OwnRelease, |history| history.asked[0].2 += Duration::from_millis(50));
    }

    #[test]
    fn a_hold_that_is_lost_is_found() {
        assert_finds(Promise::Kept, |history| history.releases[0].outcome = 0);
        assert_finds(Promise::Kept, |history| history.releases[3].outcome = -1);
    }

    #[test]
    fn what_was_not_safe_is_not_called_promised() {
        let mut history = sound();
        history.holds[0].until += Duration::from_millis(90);
        history.holds[0].safe = false;
        assert!(history.check().iter().all(|found| !found.promised));
        // Nor is the order of fences that may have been lost.
        let mut history = sound();
        history.holds[0].fence = 7;
        history.holds[0].known = false;
        assert!(history.check().iter().all(|found| !found.promised));
    }
}
