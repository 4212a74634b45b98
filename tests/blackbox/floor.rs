//! `LOCK.EXTEND ... FENCE floor`: a client that holds one lock on several independent servers writes the highest of
//! their fences back, so that whoever is next, on any majority, gets a higher one. A floor never lowers anything, needs
//! the lock, and cannot be so high that it would use up the numbers.

use crate::harness::line::{gain, release, take, until_held};
use crate::harness::{assert_left, cmd, on_every_server, wait_in_sync, Client, Clock, Kind, Server, DAY_US, HOUR_US};
use crate::replication::agree;

const HOUR_TICKS: i64 = HOUR_US / 10;
const DAY_TICKS: i64 = DAY_US / 10;
const AHEAD: &str = "ERR the floor is more than a day ahead of the clock";

#[track_caller]
fn raise(client: &mut Client, token: &str, floor: i64) -> i64 {
    cmd!(client, "LOCK.EXTEND", "k", token, "FENCE", floor).int()
}

#[track_caller]
fn fence(client: &mut Client) -> i64 {
    cmd!(client, "LOCK.INFO", "k").get("fence").int()
}

on_every_server! {
    fn it_raises_the_fence_and_whatever_comes_after(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let held = take(&mut client, "k", "a").fence;
        for floor in [1, held - 1, held] {
            assert_left(raise(&mut client, "a", floor), 60_000);
            assert_eq!(fence(&mut client), held, "floor {floor} below {held}");
        }
        let floor = held + HOUR_TICKS;
        assert_left(raise(&mut client, "a", floor), 60_000);
        assert_eq!(fence(&mut client), floor);
        assert_eq!(gain(&mut client, "k", "a", &[]).fence, floor, "it is the fence of the hold from now on");
        raise(&mut client, "a", floor - 5);
        assert_eq!(fence(&mut client), floor);
        // Every later grant on this server is above it, of other locks too.
        let other = take(&mut client, "other", "b").fence;
        assert!(other > floor);
        release(&mut client, "k", "a");
        assert!(take(&mut client, "k", "c").fence > other);
    }

    fn without_the_lock_nothing_is_raised(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let held = take(&mut client, "k", "a").fence;
        assert_eq!(raise(&mut client, "b", held + HOUR_TICKS), 0);
        release(&mut client, "k", "a");
        assert_eq!(raise(&mut client, "a", held + HOUR_TICKS), 0);
        let next = take(&mut client, "k", "c").fence;
        assert!(next < held + HOUR_TICKS, "{next} after {held}");
    }

    fn one_that_is_too_far_ahead_is_refused_and_changes_nothing(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let held = gain(&mut client, "k", "a", &["PX", "20000"]).fence;
        for floor in [held + DAY_TICKS + HOUR_TICKS, 9_007_199_254_740_991] {
            let told = cmd!(client, "LOCK.EXTEND", "k", "a", "PX", 90_000, "FENCE", floor);
            assert_eq!(told.err(), AHEAD);
        }
        assert_eq!(fence(&mut client), held);
        assert_left(cmd!(client, "LOCK.CHECK", "k", "a").int(), 20_000);
        // Up to a day ahead of the clock it may be, and up to what was issued or raised already.
        let highest = held + DAY_TICKS - HOUR_TICKS;
        assert!(raise(&mut client, "a", highest) > 0);
        take(&mut client, "other", "b");
        assert!(raise(&mut client, "a", highest + 1) > 0, "another lock has it");
        assert_eq!(raise(&mut client, "a", highest + 1), raise(&mut client, "a", highest + 1));
        assert_eq!(cmd!(client, "LOCK.EXTEND", "k", "a", "FENCE", highest + 2 * HOUR_TICKS).err(), AHEAD);
    }

    fn it_reaches_replicas_files_and_the_next_primary(kind: Kind) {
        let mut primary = Server::builder(kind).append_only("always").start();
        let replica = Server::start(kind);
        replica.replica_of(&primary);
        let mut client = primary.client();
        let floor = take(&mut client, "k", "a").fence + HOUR_TICKS;
        raise(&mut client, "a", floor);
        agree(&primary, &replica);
        assert_eq!(fence(&mut replica.client()), floor);
        primary.kill9();
        primary.restart();
        assert_eq!(fence(&mut primary.client()), floor);
        assert!(take(&mut primary.client(), "other", "b").fence > floor);
        replica.promote();
        let mut below = replica.client();
        assert!(take(&mut below, "other", "b").fence > floor);
        release(&mut below, "k", "a");
        assert!(take(&mut below, "k", "b").fence > floor);
    }

    fn of_those_who_share_it_raises_one(kind: Kind) {
        let (server, replica) = (Server::start(kind), Server::start(kind));
        replica.replica_of(&server);
        let mut client = server.client();
        gain(&mut client, "k", "a", &["SHARED"]);
        let b = gain(&mut client, "k", "b", &["SHARED", "PX", "90000"]).fence;
        // The same fence for both: they still are two.
        assert!(raise(&mut client, "a", b) > 0);
        let info = cmd!(client, "LOCK.INFO", "k");
        let fences: Vec<i64> = info.get("holders").array().iter().map(|holder| holder.get("fence").int()).collect();
        assert_eq!(fences, [b, b]);
        wait_in_sync(&server, &replica);
        agree(&server, &replica);
        assert!(raise(&mut client, "a", b + HOUR_TICKS) > 0);
        release(&mut client, "k", "b");
        agree(&server, &replica);
        until_held(&mut replica.client(), "k", 1);
        assert_eq!(fence(&mut replica.client()), b + HOUR_TICKS);
    }

    /// What the floor is for. Each of three servers has a clock of its own, and nobody else knows what the others issued.
    fn on_three_servers_every_next_holder_has_a_higher_fence(kind: Kind) {
        let clocks = [0, 2, -1].map(|hours: i64| {
            let clock = Clock::new();
            clock.step(hours * HOUR_US);
            clock
        });
        let servers = clocks.each_ref().map(|clock| Server::builder(kind).clock(clock).start());
        let mut clients = servers.each_ref().map(Server::client);
        let mut last = 0;
        for round in 0..12 {
            let token = format!("t{round}");
            // Every majority comes after every other one.
            let majority = [[0, 1], [0, 2], [1, 2], [2, 0]][round % 4];
            let highest = majority.map(|n| take(&mut clients[n], "k", &token).fence).into_iter().max().expect("two");
            for n in majority {
                assert!(raise(&mut clients[n], &token, highest) > 0);
                assert_eq!(fence(&mut clients[n]), highest);
            }
            assert!(highest > last, "round {round}: {highest} after {last}");
            last = highest;
            majority.iter().for_each(|&n| release(&mut clients[n], "k", &token));
        }
    }
}
