//! What stands between core and the server: the one table of locks, how a command reaches it, and how its effects are
//! carried out. No borrow of the table is held while the server is called, since the server can call back.
//!
//! * [`pump`]: ends leases and waits on time, hands locks over
//! * [`undo`]: takes evictions and foreign EXPIREs back. [`patrol`]: slots of a cluster that come and go
//! * [`legacy`]: when locks of other libraries end that somebody waits for
//! * [`seats`]: blocked connections and what they are to be told
//! * [`hooks`]: loading, saving, role changes and keyspace events
//! * [`label`], [`settings`], [`grace`], [`metrics`]: one small thing each

mod grace;
mod hooks;
pub mod label;
mod legacy;
mod metrics;
mod patrol;
mod pump;
pub mod seats;
pub mod settings;
mod undo;

use crate::core::codec::{self, Change};
use crate::core::fence::Fence;
use crate::core::name::{Place, Token};
use crate::core::slab::Handle;
use crate::core::table::{Effect, Ended, Legacy, Site, Table};
use crate::core::time::{Instant, Now};
use crate::seeded::bug;
use crate::server::args::Args;
use crate::server::cell::MainThread;
use crate::server::clock;
use crate::server::context::Context;
use crate::server::key::{Content, Key};
use crate::server::value::SET_COMMAND;

pub use grace::left_ms as grace_left_ms;
pub use hooks::{start, watch_clients, Engine};

/// Why a command was turned away before core was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// The key holds something that is not a lock.
    WrongType,
    /// This node is no serving primary.
    ReadOnly,
}

/// All there is: core's table, and what the pump still has to do.
struct State {
    table: Table,
    seats: seats::Seats,
    agenda: pump::Agenda,
    /// Grants nobody was told of.
    take_backs: Vec<seats::TakeBack>,
    /// Holds of connections that closed.
    closed: Vec<pump::Closed>,
    /// Whether closing connections are watched.
    watching_clients: bool,
    /// Keys of locks that somebody gave a time to live.
    expires: Vec<pump::Spot>,
    /// Keys of locks that lost such a time to live for a save: replicas still have it.
    expires_unsaved: Vec<pump::Spot>,
    /// Whether keyspace notifications are subscribed.
    watching_keys: bool,
}

static STATE: MainThread<Option<State>> = MainThread::new(None);

fn with<R>(body: impl FnOnce(&mut State) -> R) -> R {
    STATE.with(|state| {
        body(match state {
            Some(state) => state,
            None => State::begin(state),
        })
    })
}

impl State {
    /// Out of line: it happens once, and would else stand in everything that looks at the state.
    #[cold]
    #[inline(never)]
    fn begin(state: &mut Option<Self>) -> &mut Self {
        state.insert(Self {
            table: Table::default(),
            seats: seats::Seats::default(),
            agenda: pump::Agenda::default(),
            take_backs: Vec::new(),
            closed: Vec::new(),
            watching_clients: false,
            expires: Vec::new(),
            expires_unsaved: Vec::new(),
            watching_keys: false,
        })
    }
}

/// Lets a command that writes ask core about the lock at its key, and carries out what follows.
///
/// # Errors
/// On a replica, and for a key that holds something else.
pub fn write<R>(
    context: &Context,
    args: Args<'_>,
    ask: impl FnOnce(&mut Table, Site<'_>, Now) -> R,
) -> Result<R, Denied> {
    let visit = Visit::begin(context, args)?;
    let answer = visit.ask(ask);
    visit.end();
    Ok(answer)
}

/// A command that writes at its key, from when that is opened until all is carried out.
pub struct Visit<'a> {
    context: &'a Context,
    key: Key<'a>,
    place: Place<'a>,
    stands: Stands,
    now: Now,
}

impl<'a> Visit<'a> {
    /// Opens the key.
    ///
    /// # Errors
    /// On a replica, and for a key that holds something else.
    pub fn begin(context: &'a Context, args: Args<'a>) -> Result<Self, Denied> {
        hooks::bury();
        if !with(|state| state.table.is_serving()) {
            return Err(Denied::ReadOnly);
        }
        let key = context.open_arg(args, 1).ok_or(Denied::WrongType)?;
        let place = key.place();
        let mut stands = Stands::at(context, &key)?;
        if let Stands::Nothing = stands {
            if let Some(evicted) = undo::put_back_at(context, &key, place) {
                stands = Stands::Lock(evicted);
            }
        }
        let now = clock::now();
        if let Stands::Lock(handle) = stands {
            let is_news = with(|state| {
                let is_news = state.table.linked(handle, place);
                patrol::hold_back_if_arriving(state, handle, now.instant);
                is_news
            });
            if is_news {
                pump::arm(context, now.instant);
            }
        }
        Ok(Self { context, key, place, stands, now })
    }

    /// Asks core.
    pub fn ask<R>(&self, ask: impl FnOnce(&mut Table, Site<'_>, Now) -> R) -> R {
        with(|state| ask(&mut state.table, self.stands.site(self.place), self.now))
    }

    /// Carries out what follows. Not needed where core says that nothing does.
    pub fn end(self) {
        carry_out(self.context, &self.key, true);
        if let Stands::Legacy { ttl_ms, .. } = self.stands {
            pump::watch_legacy(self.context, self.place, self.now.instant, ttl_ms);
        }
        pump::arm_for_news(self.context, self.now.instant);
    }
}

/// Lets a command that only looks ask core about the lock at its key.
///
/// # Errors
/// For a key that holds something else.
pub fn read<R>(
    context: &Context,
    args: Args<'_>,
    ask: impl FnOnce(&mut Table, Site<'_>, Instant) -> R,
) -> Result<R, Denied> {
    hooks::bury();
    let key = context.read_arg(args, 1).ok_or(Denied::WrongType)?;
    let stands = Stands::at(context, &key)?;
    let place = key.place();
    let now = clock::instant();
    Ok(with(|state| {
        let mut site = stands.site(place);
        if let Stands::Nothing = stands {
            site.lock = state.table.find_evicted(place);
        }
        if let Some(handle) = site.lock {
            patrol::hold_back_if_arriving(state, handle, now);
        }
        ask(&mut state.table, site, now)
    }))
}

/// Lets the internal command change the lock at its key, on a replica or while loading: the effects stay here, the
/// command itself is passed on.
///
/// # Errors
/// For a key that holds something else.
pub fn follow<R>(
    context: &Context,
    args: Args<'_>,
    change: impl FnOnce(&mut Table, Site<'_>, Now) -> R,
) -> Result<R, Denied> {
    hooks::bury();
    let key = context.open_arg(args, 1).ok_or(Denied::WrongType)?;
    let place = key.place();
    let site = Site { place, lock: lock_in(&key)?, legacy: None };
    let now = clock::now();
    let answer = with(|state| change(&mut state.table, site, now));
    carry_out(context, &key, false);
    context.replicate_verbatim();
    // On a primary this is a slot import.
    if let Ok(Some(handle)) = lock_in(&key) {
        if with(|state| state.table.is_serving()) {
            patrol::arrived(context, handle);
        }
    }
    Ok(answer)
}

/// What stands at a key, as far as locks are concerned.
enum Stands {
    Nothing,
    Lock(Handle),
    Legacy { value: Vec<u8>, ttl_ms: u64 },
}

impl Stands {
    fn at(context: &Context, key: &Key<'_>) -> Result<Self, Denied> {
        match key.content() {
            Content::Empty => Ok(Self::Nothing),
            Content::Lock(handle) => Ok(Self::Lock(handle)),
            Content::Legacy => {
                let value = context.string_value(key).ok_or(Denied::WrongType)?;
                Ok(Self::Legacy { value, ttl_ms: key.ttl_ms().unwrap_or(0) })
            }
            Content::Other => Err(Denied::WrongType),
        }
    }

    fn site<'a>(&'a self, place: Place<'a>) -> Site<'a> {
        match self {
            Self::Nothing => Site { place, lock: None, legacy: None },
            Self::Lock(handle) => Site { place, lock: Some(*handle), legacy: None },
            Self::Legacy { value, ttl_ms } => {
                Site { place, lock: None, legacy: Some(Legacy { value, ttl_ms: *ttl_ms }) }
            }
        }
    }
}

fn lock_in(key: &Key<'_>) -> Result<Option<Handle>, Denied> {
    match key.content() {
        Content::Empty => Ok(None),
        Content::Lock(handle) => Ok(Some(handle)),
        Content::Legacy | Content::Other => Err(Denied::WrongType),
    }
}

/// Carries out the effects of one question to core, all of which concern this key.
fn carry_out(context: &Context, key: &Key<'_>, replicate: bool) {
    if !with(|state| state.table.has_effects()) {
        return;
    }
    // Whoever hears of one effect, as other modules do, can undo what the next one tells.
    let (effects, upheavals) = with(|state| (state.table.take_effects(), state.table.upheavals()));
    let unheard = replicate && context.is_unheard();
    let tell = |send: &dyn Fn()| match (replicate, unheard) {
        (true, false) => send(),
        (true, true) => context.count_change(),
        (false, _) => {}
    };
    for effect in &effects {
        match *effect {
            Effect::Created(handle) => {
                hooks::watch_keys(context);
                key.store(handle);
            }
            Effect::Set { lock, fence, alone, signal } => {
                tell(&|| set_bytes(lock, fence, alone, |bytes| context.replicate(SET_COMMAND, key, Some(bytes))));
                if signal {
                    context.signal_modified(key);
                }
            }
            Effect::Unset(ref token) => {
                tell(&|| {
                    if let Some(bytes) = unset_bytes(token) {
                        context.replicate(SET_COMMAND, key, Some(&bytes));
                    }
                });
                context.signal_modified(key);
            }
            Effect::Removed => {
                key.delete();
                if !bug("release-not-replicated") {
                    tell(&|| context.replicate(c"DEL", key, None));
                }
                context.signal_modified(key);
            }
            Effect::LegacyRemoved => {
                key.delete();
                context.replicate(c"DEL", key, None);
                context.signal_modified(key);
            }
            Effect::LegacyExtended(ttl_ms) => {
                key.set_ttl_ms(ttl_ms);
                let end = clock::unix_ms().saturating_add(ttl_ms);
                context.replicate_expiry(key, i64::try_from(end).unwrap_or(i64::MAX));
                context.signal_modified(key);
            }
            Effect::Acquired => context.notify(c"lock.acquired", key),
            Effect::Ended(Ended::Released | Ended::TakenBack) => context.notify(c"lock.released", key),
            Effect::Ended(Ended::LeaseEnded) => context.notify(c"lock.expired", key),
            Effect::Answer(seat, ref answer) => seats::answer(seat, answer.clone(), upheavals),
        }
    }
    with(|state| state.table.reuse_effects(effects));
}

/// Passes on the bytes that tell of the holders with this fence; nothing if they are gone again.
fn set_bytes(lock: Handle, fence: Fence, alone: bool, mut tell: impl FnMut(&[u8])) {
    let now = clock::instant();
    let found = |index| {
        with(|state| {
            let mut found = state.table.get(lock)?.holders_with(fence).skip(index);
            let seen = found.next()?;
            let bytes = encoded(&Change::Set { holder: seen.holder(now)?, alone });
            Some((bytes, found.next().is_some()))
        })
    };
    for index in 0.. {
        let Some((bytes, more)) = found(index) else { return };
        tell(&bytes);
        if !more {
            return;
        }
    }
}

fn unset_bytes(token: &[u8]) -> Option<Vec<u8>> {
    Some(encoded(&Change::Removed(Token::new(token)?)))
}

fn encoded(change: &Change<'_>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(CHANGE_BYTES);
    codec::encode(change, &mut bytes);
    bytes
}

/// Room for a usual change: a UUID as token, an address as label.
const CHANGE_BYTES: usize = 96;

/// The changes that make up a lock: what RDB and an AOF rewrite keep, and what a replica is told of a lock that comes
/// back. Without caps they are the same on every node at any time.
fn saved(handle: Handle, with_caps: bool) -> Vec<Vec<u8>> {
    let now = clock::instant();
    with(|state| {
        let Some(lock) = state.table.get(handle) else { return Vec::new() };
        let changes = lock.holders().enumerate().filter_map(|(index, seen)| {
            let mut holder = seen.holder(now)?;
            if !with_caps {
                holder.cap_ms = None;
            }
            Some(encoded(&Change::Set { holder, alone: index == 0 }))
        });
        changes.collect()
    })
}
