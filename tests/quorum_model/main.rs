//! A lock over several independent servers, as `docs/` describes it and `examples/redlock.rs` does it: every order of
//! events on three servers and a few clients is tried, not a sample. What the protocol promises holds; each of its steps
//! left out is found out.
//!
//! * [`protocol`]: clients, servers and the messages between them, one event at a time
//! * this file: what must hold of it, and what must not hold without each rule

// Tests assert by panicking.
#![allow(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unwrap_used)]

mod protocol;

use protocol::{Leases, Phase, Quorum, Rules, State};
use stateright::{Checker, HasDiscoveries, Model, Property};
use std::collections::BTreeSet;

/// Two holders have fences of their own.
const UNIQUE: &str = "no fence is held twice";
/// Whoever asks after another held the lock gets a higher fence.
const ORDERED: &str = "fences rise in the order of time";
/// No two clients are within a lease at once.
const EXCLUSIVE: &str = "two clients are never sure of the lock at once";
/// A model in which nobody gets the lock proves nothing.
const POSSIBLE: &str = "every client can have the lock";

impl Model for Quorum {
    type State = State;
    type Action = protocol::Event;

    fn init_states(&self) -> Vec<State> {
        self.starts()
    }

    fn actions(&self, state: &State, events: &mut Vec<protocol::Event>) {
        self.events(state, events);
    }

    fn next_state(&self, state: &State, event: protocol::Event) -> Option<State> {
        self.after(state, event)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(UNIQUE, |_, state: &State| {
                let fences: Vec<u8> = state.clients.iter().filter_map(|client| client.held).collect();
                fences.iter().enumerate().all(|(at, fence)| !fences[..at].contains(fence))
            }),
            Property::always(ORDERED, |_, state: &State| {
                state.clients.iter().all(|client| client.held.is_none_or(|fence| fence > client.floor))
            }),
            Property::always(EXCLUSIVE, |model: &Self, state: &State| {
                let sure = |client: &&protocol::Client| client.phase == Phase::Holds && model.is_valid(client);
                model.leases == Leases::Anytime || state.clients.iter().filter(sure).count() < 2
            }),
            Property::sometimes(POSSIBLE, |_, state: &State| state.clients.iter().all(|client| client.held.is_some())),
        ]
    }
}

/// Looks at every state, or until this is found.
fn explore(model: Quorum, until: HasDiscoveries) -> impl Checker<Quorum> {
    let checker = model.checker().threads(2).finish_when(until).spawn_bfs().join();
    eprintln!("{} states", checker.unique_state_count());
    checker
}

/// Looks until this is found broken, and prints what led there.
fn assert_broken(model: Quorum, property: &'static str) {
    let checker = explore(model, HasDiscoveries::AnyOf(BTreeSet::from([property])));
    let path = checker.discovery(property).unwrap_or_else(|| panic!("holds, though it cannot: {property}"));
    eprintln!("{path}");
}

#[test]
fn fences_are_unique_and_rise_whenever_leases_end() {
    let checker = explore(Quorum::new(Rules::ALL, Leases::Anytime), HasDiscoveries::All);
    checker.assert_no_discovery(UNIQUE);
    checker.assert_no_discovery(ORDERED);
    checker.assert_any_discovery(POSSIBLE);
}

#[test]
fn two_clients_are_never_sure_at_once() {
    let checker = explore(Quorum::new(Rules::ALL, Leases::Timed), HasDiscoveries::All);
    checker.assert_no_discovery(EXCLUSIVE);
    checker.assert_any_discovery(POSSIBLE);
}

#[test]
fn a_server_that_forgot_and_sits_a_lease_out_breaks_nothing() {
    let rules = Rules { forgets: true, ..Rules::ALL };
    let checker = explore(Quorum::new(rules, Leases::Timed), HasDiscoveries::All);
    checker.assert_no_discovery(EXCLUSIVE);
    checker.assert_any_discovery(POSSIBLE);
}

#[test]
fn a_server_that_forgets_without_grace_breaks_the_lock() {
    let rules = Rules { forgets: true, grace: false, ..Rules::ALL };
    assert_broken(Quorum::new(rules, Leases::Timed), EXCLUSIVE);
}

#[test]
fn without_the_write_back_fences_fall() {
    let rules = Rules { write_back: false, ..Rules::ALL };
    assert_broken(Quorum::new(rules, Leases::Anytime), ORDERED);
}

#[test]
fn a_write_back_by_those_who_do_not_hold_gives_a_fence_twice() {
    let rules = Rules { owner_checked: false, ..Rules::ALL };
    assert_broken(Quorum::new(rules, Leases::Anytime), UNIQUE);
}

/// The highest fence must be that of all who confirm it: a server whose grant came later may know a higher one.
#[test]
fn a_confirmation_of_a_server_that_was_not_counted_gives_a_fence_twice() {
    let rules = Rules { only_counted: false, ..Rules::ALL };
    assert_broken(Quorum::new(rules, Leases::Anytime), UNIQUE);
}
