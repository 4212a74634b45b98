//! Compares all there is to see, after each step: the holders, the lines, the replica, and what everybody was promised.

use super::super::{Ended, Turn};
use super::ops::PLACES;
use super::plain::{Event, Holder, Waiter};
use super::play::same;
use super::world::{name_of, place, token_of, Key, World};
use crate::core::hold::{Delivery, Mode};
use crate::core::lock::Seen;
use crate::core::slab::Handle;
use crate::core::time::Instant;

/// A holder in words that both sides can say.
type Row = (u64, usize, u64, Mode, bool, Vec<u8>, Option<u64>, u64, u64, (bool, u64), (Delivery, bool));

impl World {
    pub fn compare(&mut self) -> Result<(), String> {
        self.compare_events()?;
        for at in 0..PLACES {
            self.compare_holders(at)?;
            self.compare_line(at)?;
            self.compare_replica(at)?;
        }
        self.compare_totals()?;
        self.compare_ends()
    }

    fn compare_events(&mut self) -> Result<(), String> {
        let rank = |event: &Event| match event {
            Event::Acquired => (0, 0),
            Event::Ended(why) => (
                1,
                [Ended::Released, Ended::LeaseEnded, Ended::TakenBack].iter().position(|e| e == why).unwrap() as u64,
            ),
            Event::Said(seat, _) => (2, *seat),
        };
        let (mut found, mut expected) = (std::mem::take(&mut self.events), std::mem::take(&mut self.plain.events));
        found.sort_by_key(rank);
        expected.sort_by_key(rank);
        same!("events", found, expected);
        let (found, expected) = (std::mem::take(&mut self.touched), std::mem::take(&mut self.plain.touched));
        same!("whether WATCH fires", found, expected);
        Ok(())
    }

    fn compare_holders(&self, at: usize) -> Result<(), String> {
        let lock = self.lock(at).and_then(|handle| self.table.get(handle));
        if let Some(lock) = lock {
            same!("place", lock.place(), place(at));
            same!("whether an evicted lock is linked", lock.linked(), self.keys[at] != Key::Nothing);
        }
        let since = self.serving_since();
        let found: Vec<Row> = lock.into_iter().flat_map(|lock| lock.holders()).map(|seen| row(seen, since)).collect();
        let mut expected: Vec<Row> = self.plain.holders(at).iter().map(plain_row).collect();
        expected.sort_by_key(|row| (row.0, row.1));
        same!(format!("holders at {at}"), found, expected);
        // What holds for any shared lock, however it came about.
        let modes: Vec<Mode> = self.plain.holders(at).iter().map(|holder| holder.mode).collect();
        let crowded = |mode: &Mode| match mode {
            Mode::Exclusive => modes.len() > 1,
            Mode::Shared(limit) => limit.is_some_and(|limit| modes.len() > limit as usize),
        };
        same!("more hold it than may", modes.iter().any(crowded), false);
        Ok(())
    }

    fn serving_since(&self) -> Instant {
        Instant::from_micros(self.since)
    }

    fn compare_line(&self, at: usize) -> Result<(), String> {
        let line = &self.plain.spots[at].line;
        let found: Vec<_> = self
            .table
            .lines()
            .waiters(place(at))
            .map(|(_, waiter)| {
                let mode = (waiter.mode, waiter.upgrade, waiter.lease.ms(), waiter.cap_ms);
                let seat = waiter.seat.map(|seat| seat.0);
                (token_of(&waiter.token), mode, seat, waiter.until.map(Instant::micros), waiter.asked.micros())
            })
            .collect();
        let expected: Vec<_> = line
            .iter()
            .map(|waiter: &Waiter| {
                let want = &waiter.want;
                let mode = (want.mode, want.turn == Turn::Upgrade, want.lease_ms, want.cap_ms);
                (want.token, mode, waiter.seat, waiter.until, waiter.asked)
            })
            .collect();
        same!(format!("line at {at}"), found, expected);
        Ok(())
    }

    fn compare_replica(&self, at: usize) -> Result<(), String> {
        let said = |handle: Option<Handle>, table: &super::super::Table| {
            let lock = handle.and_then(|handle| table.get(handle));
            let holders = lock.into_iter().flat_map(|lock| lock.holders());
            holders
                .map(|seen| {
                    let mut holder = seen.holder(self.now().instant).unwrap();
                    holder.cap_ms = None;
                    (format!("{holder:?}"), seen.token.to_vec(), seen.hold.cap())
                })
                .collect::<Vec<_>>()
        };
        let lock = if let Key::Lock(handle) = self.keys[at] { Some(handle) } else { None };
        let (found, expected) = (said(self.copies[at], &self.replica), said(lock, &self.table));
        let plain = |rows: &[(String, Vec<u8>, Option<Instant>)]| {
            rows.iter().map(|(holder, token, cap)| (holder.clone(), token.clone(), cap.is_some())).collect::<Vec<_>>()
        };
        same!(format!("the replica's holders at {at}"), plain(&found), plain(&expected));
        for ((_, _, found), (_, _, expected)) in found.iter().zip(&expected) {
            let over = |cap: &Option<Instant>| cap.map_or(0, Instant::micros).max(self.plain.now);
            let (found, expected) = (over(found), over(expected));
            if found.abs_diff(expected) >= 1_000 {
                return Err(format!("the replica's cap at {at}: {found} instead of {expected}"));
            }
        }
        Ok(())
    }

    fn compare_totals(&self) -> Result<(), String> {
        let lines = self.plain.spots.iter().flat_map(|spot| &spot.line);
        let blocked = lines.clone().filter(|waiter| waiter.seat.is_some()).count();
        same!("blocked", self.table.lines().blocked(), blocked);
        same!("seats", self.blocked.len(), blocked);
        same!("polled", self.table.lines().polled(), lines.clone().count() - blocked);
        same!(
            "next end of a wait",
            self.table.lines().next_end().map(Instant::micros),
            lines.filter_map(|w| w.until).min()
        );
        let counts = self.table.counts();
        let ended = counts.waits_ended_empty + counts.handed_over + counts.withdrawn;
        same!("waits that began", counts.waited, ended + self.table.lines().len() as u64);
        same!("highest fence", self.table.fences().highest(), self.plain.highest);
        let locks = (0..PLACES).filter(|&at| !self.plain.holders(at).is_empty()).count();
        if self.graves.is_empty() {
            same!("held", self.table.held(), locks);
            same!("known", self.table.known(), locks);
            same!("known to the replica", self.replica.known(), self.copies.iter().flatten().count());
        }
        let bound = |holder: &Holder| holder.ephemeral || holder.before.as_ref().is_some_and(|before| before.ephemeral);
        let any = (0..PLACES).any(|at| self.plain.holders(at).iter().any(bound));
        if self.graves.is_empty() && self.closed.is_empty() {
            same!("whether a hold is bound", self.table.has_bound(), any);
        }
        Ok(())
    }

    /// Whether the table says when the next lease or wait ends, and the pump is told so.
    fn compare_ends(&mut self) -> Result<(), String> {
        let ends = (0..PLACES).filter(|&at| matches!(self.keys[at], Key::Lock(_)) && !self.refused.contains(&at));
        let ends = ends.flat_map(|at| self.plain.holders(at)).map(|holder| holder.end).min();
        if ends.is_some_and(|end| self.table.next_deadline().is_none_or(|next| next.micros() > end)) {
            return Err(format!("next deadline {:?}, a lease ends at {ends:?}", self.table.next_deadline()));
        }
        let sooner = self.table.take_sooner();
        self.armed = Instant::earliest([self.armed, sooner]);
        let first = ends.into_iter().chain(self.table.lines().next_end().map(Instant::micros)).min();
        if self.table.is_serving() && first.is_some_and(|first| self.armed.is_none_or(|armed| armed.micros() > first)) {
            return Err(format!("the pump is to run at {:?}, something ends at {first:?}", self.armed));
        }
        Ok(())
    }
}

fn row(seen: Seen<'_>, since: Instant) -> Row {
    let hold = seen.hold;
    let extra = hold.extra.as_deref();
    let names = (0..2u8).filter(|&name| extra.is_some_and(|extra| extra.names.contains(name_of(name))));
    let mut names: Vec<u8> = names.collect();
    names.sort_unstable();
    (
        hold.fence.get(),
        token_of(&seen.token),
        hold.end_since(since).micros(),
        seen.mode,
        extra.is_none_or(|extra| !extra.only_named),
        names,
        hold.cap().map(Instant::micros),
        hold.lease.ms(),
        hold.granted.micros(),
        (hold.is_ephemeral(), hold.client),
        (hold.delivery, hold.before_upgrade().is_some()),
    )
}

fn plain_row(holder: &Holder) -> Row {
    (
        holder.fence,
        holder.token,
        holder.end,
        holder.mode,
        holder.unnamed,
        holder.names.clone(),
        holder.cap,
        holder.lease_ms,
        holder.granted,
        (holder.ephemeral, holder.client),
        (holder.delivery, holder.before.is_some()),
    )
}
