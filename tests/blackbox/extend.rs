//! `LOCK.EXTEND`: an integer always, the ms left or 0. It never creates a hold, never revives one, never shortens one.

use std::time::{Duration, Instant};

use crate::harness::{assert_left, cmd, grant, on_every_server, wait_until_free, Kind, Server};

on_every_server! {
    fn the_holder_gets_at_least_the_lease_it_asks_for(kind: Kind) {
        let server = Server::start(kind);
        for mut client in [server.client(), server.resp3_client()] {
            let held = grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 10_000));
            assert_eq!(cmd!(client, "LOCK.EXTEND", "k", "a", "PX", 60_000).int(), 60_000);
            assert_eq!(cmd!(client, "LOCK.EXTEND", "k", "a", "ex", 3_600).int(), 3_600_000);
            assert_left(cmd!(client, "LOCK.CHECK", "k", "a").int(), 3_600_000);
            assert_eq!(cmd!(client, "LOCK.INFO", "k").get("fence").int(), held.fence);
            assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "a").int(), 1);
        }
    }

    fn a_lease_is_never_shortened(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 60_000));
        assert_left(cmd!(client, "LOCK.EXTEND", "k", "a", "PX", 1).int(), 60_000);
        assert_left(cmd!(client, "LOCK.EXTEND", "k", "a", "EX", 1).int(), 60_000);
        assert_left(cmd!(client, "LOCK.CHECK", "k", "a").int(), 60_000);
    }

    fn without_a_lease_it_is_its_own_length_again(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        // Neither the default nor what was asked for last, but the length that last moved the end.
        grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 20_000));
        assert_eq!(cmd!(client, "LOCK.EXTEND", "k", "a").int(), 20_000);
        assert_left(cmd!(client, "LOCK.EXTEND", "k", "a", "PX", 10).int(), 20_000);
        assert_eq!(cmd!(client, "LOCK.EXTEND", "k", "a").int(), 20_000);
        assert_eq!(cmd!(client, "LOCK.EXTEND", "k", "a", "PX", 70_000).int(), 70_000);
        assert_eq!(cmd!(client, "LOCK.EXTEND", "k", "a").int(), 70_000);
        grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 90_000));
        assert_eq!(cmd!(client, "LOCK.EXTEND", "k", "a").int(), 90_000);
    }

    fn it_never_creates_a_hold(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        assert_eq!(cmd!(client, "LOCK.EXTEND", "k", "a", "PX", 60_000).int(), 0);
        assert_eq!(cmd!(client, "LOCK.EXTEND", "k", "a").int(), 0);
        assert_eq!(cmd!(client, "EXISTS", "k").int(), 0);
    }

    fn it_does_nothing_for_another_token(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 20_000));
        assert_eq!(cmd!(client, "LOCK.EXTEND", "k", "b", "PX", 80_000).int(), 0);
        assert_left(cmd!(client, "LOCK.CHECK", "k", "a").int(), 20_000);
    }

    fn a_lease_that_ended_stays_ended(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 20));
        wait_until_free(&mut client, "k");
        assert_eq!(cmd!(client, "LOCK.EXTEND", "k", "a", "PX", 60_000).int(), 0);
        assert_eq!(cmd!(client, "LOCK.CHECK", "k", "a").int(), 0);
        assert_eq!(grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "b")).new, 1);
    }

    fn a_released_lock_stays_released(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a"));
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "a").int(), 1);
        assert_eq!(cmd!(client, "LOCK.EXTEND", "k", "a", "PX", 60_000).int(), 0);
        assert_eq!(cmd!(client, "EXISTS", "k").int(), 0);
    }

    fn extended_in_time_a_short_lease_lasts(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let held = grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 1_000));
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(2_500) {
            // The server lets a moment pass, far less than the lease.
            assert!(cmd!(client, "BLPOP", "nothing", "0.05").is_null());
            assert_eq!(cmd!(client, "LOCK.EXTEND", "k", "a").int(), 1_000);
        }
        assert_eq!(cmd!(client, "LOCK.INFO", "k").get("fence").int(), held.fence);
    }
}
