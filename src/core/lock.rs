//! One held lock: who holds it, under which fence, and when its lease is over.

use super::fence::Fence;
use super::name::{Label, Place, Token};
use super::time::{Instant, Lease};

/// What a holder is granted, as it is asked for, saved and replicated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder<'a> {
    /// The secret that proves the hold.
    pub token: Token<'a>,
    /// The number that orders this hold among all holds of this lock.
    pub fence: Fence,
    /// Length of the lease: that of the last grant or extension that moved its end.
    pub lease: Lease,
    /// Description for people.
    pub label: Label<'a>,
}

/// A held lock. Key, token and label stand in one allocation.
#[derive(Clone)]
pub struct Lock {
    text: Box<[u8]>,
    key_len: u32,
    token_len: u8,
    db: i32,
    fence: Fence,
    lease: Lease,
    end: Instant,
    granted: Instant,
    client: u64,
    linked: bool,
    may_expire: bool,
}

impl Lock {
    /// A lock at `place` whose lease starts now.
    pub fn new(place: Place<'_>, holder: &Holder<'_>, client: u64, now: Instant) -> Self {
        Self {
            text: join(place.key, holder.token.bytes(), holder.label.bytes()),
            key_len: place.key.len() as u32,
            token_len: holder.token.bytes().len() as u8,
            db: place.db,
            fence: holder.fence,
            lease: holder.lease,
            end: now.after(holder.lease),
            granted: now,
            client,
            linked: true,
            may_expire: false,
        }
    }

    /// Where the lock was last seen.
    pub fn place(&self) -> Place<'_> {
        Place { db: self.db, key: self.text.get(..self.key_len as usize).unwrap_or_default() }
    }

    /// Follows the lock to where RENAME, MOVE or RESTORE put it.
    pub fn set_place(&mut self, place: Place<'_>) {
        if self.place() != place {
            let text = join(place.key, self.token(), self.label());
            self.text = text;
            self.key_len = place.key.len() as u32;
            self.db = place.db;
        }
    }

    /// Follows the lock to another database, as SWAPDB does.
    pub fn set_db(&mut self, db: i32) {
        self.db = db;
    }

    /// The holder's token.
    pub fn token(&self) -> &[u8] {
        let start = self.key_len as usize;
        self.text.get(start..start + self.token_len as usize).unwrap_or_default()
    }

    /// The holder's label.
    pub fn label(&self) -> &[u8] {
        self.text.get(self.key_len as usize + self.token_len as usize..).unwrap_or_default()
    }

    /// The holder as it is saved and replicated; `None` only for a lock that was never valid.
    pub fn holder(&self) -> Option<Holder<'_>> {
        let token = Token::new(self.token())?;
        Some(Holder { token, fence: self.fence, lease: self.lease, label: Label::cut(self.label()) })
    }

    /// The holder's fence.
    pub const fn fence(&self) -> Fence {
        self.fence
    }

    /// Gives the holder a new fence.
    pub fn set_fence(&mut self, fence: Fence) {
        self.fence = fence;
    }

    /// Length of the lease.
    pub const fn lease(&self) -> Lease {
        self.lease
    }

    /// When the lease is over, as far as this lock knows by itself: a node that began to serve later counts from then.
    pub const fn end(&self) -> Instant {
        self.end
    }

    /// Moves the end of the lease.
    pub fn set_end(&mut self, end: Instant) {
        self.end = end;
    }

    /// Starts the lease anew with this length.
    pub fn restart(&mut self, lease: Lease, now: Instant) {
        self.lease = lease;
        self.end = now.after(lease);
    }

    /// When this node granted, loaded or received the lock.
    pub const fn granted(&self) -> Instant {
        self.granted
    }

    /// Keeps an earlier grant's time: the holder stayed the same.
    pub fn set_granted(&mut self, granted: Instant) {
        self.granted = granted;
    }

    /// Id of the connection that last acquired the lock here; 0 if there was none.
    pub const fn client(&self) -> u64 {
        self.client
    }

    /// Notes the connection that acquired the lock.
    pub fn set_client(&mut self, client: u64) {
        self.client = client;
    }

    /// Whether the lock stands in the keyspace, as far as is known.
    pub const fn linked(&self) -> bool {
        self.linked
    }

    /// Notes that the lock went into the keyspace or out of it.
    pub fn set_linked(&mut self, linked: bool) {
        self.linked = linked;
    }

    /// Whether the lock's key may have a time to live, which none of this module's doing is.
    pub const fn may_expire(&self) -> bool {
        self.may_expire
    }

    /// Notes that the lock's key may have a time to live, or has none.
    pub fn set_may_expire(&mut self, may_expire: bool) {
        self.may_expire = may_expire;
    }

    /// Bytes of the allocation beside the lock's own size.
    pub fn text_bytes(&self) -> usize {
        self.text.len()
    }
}

fn join(key: &[u8], token: &[u8], label: &[u8]) -> Box<[u8]> {
    let mut text = Vec::with_capacity(key.len() + token.len() + label.len());
    text.extend_from_slice(key);
    text.extend_from_slice(token);
    text.extend_from_slice(label);
    text.into_boxed_slice()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_back_as_they_went_in() {
        let holder = Holder {
            token: Token::new(b"\0tok\xff").unwrap(),
            fence: Fence::new(7).unwrap(),
            lease: Lease::from_ms(5).unwrap(),
            label: Label::new(b"web 3").unwrap(),
        };
        let place = Place { db: 4, key: b"a key" };
        let mut lock = Lock::new(place, &holder, 9, Instant::from_micros(100));
        assert_eq!(lock.holder(), Some(holder));
        assert_eq!(lock.place(), place);
        assert_eq!(lock.end(), Instant::from_micros(5_100));

        let moved = Place { db: 1, key: b"" };
        lock.set_place(moved);
        assert_eq!(lock.place(), moved);
        assert_eq!(lock.holder(), Some(holder));
    }
}
