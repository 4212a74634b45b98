//! `HOLD id`: named holds of one token, for code whose caller may have the lock already. Both taking and giving back can
//! be sent again, neither makes a lease shorter, and one release without a name ends them all.

use std::collections::BTreeSet;

use crate::harness::line::{
    ask, gain, holds, release, served, stand_in_line, stand_with, still_waits, take, until_count, waiters,
};
use crate::harness::{args, assert_left, cmd, grant, on_every_server, Client, Kind, Server};

#[track_caller]
fn give_back(client: &mut Client, token: &str, name: &str) -> i64 {
    cmd!(client, "LOCK.RELEASE", "k", token, "HOLD", name).int()
}

/// How many holds LOCK.INFO shows for the first holder.
#[track_caller]
fn shown(client: &mut Client) -> i64 {
    cmd!(client, "LOCK.INFO", "k").get("holders").array()[0].get("holds").int()
}

on_every_server! {
    fn the_lock_is_free_when_the_last_one_is_given_back(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let outer = gain(&mut client, "k", "a", &["HOLD", "outer"]);
        let inner = gain(&mut client, "k", "a", &["HOLD", "inner"]);
        assert_eq!((outer.new, inner.new, inner.fence), (1, 1, outer.fence));
        let mut next = stand_in_line(&server, "k", "b");
        assert_eq!(give_back(&mut client, "a", "outer"), 1, "in any order");
        assert!(holds(&mut client, "k", "a"));
        still_waits(&server, &mut next);
        assert_eq!(give_back(&mut client, "a", "inner"), 1);
        served(&mut next, "b");
        assert_eq!(give_back(&mut client, "a", "inner"), -1, "another token has it");
    }

    fn both_ways_can_be_sent_again(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let names = ["n0", "n1", "n2", "n3"];
        let mut model: BTreeSet<&str> = BTreeSet::new();
        let mut seed = 7_usize;
        for step in 0..300 {
            seed = (seed * 1_103_515_245 + 12_345) % (1 << 31);
            let (name, take_it) = (names[(seed >> 8) % 4], (seed >> 16) & 1 == 0);
            let empty = model.is_empty();
            // Each command goes out up to three times, as when replies get lost.
            for again in 0..=(seed >> 20) % 3 {
                if take_it {
                    let new = model.insert(name);
                    let granted = gain(&mut client, "k", "a", &["HOLD", name]);
                    assert_eq!(granted.new, i64::from(new), "step {step}, {again} times before");
                } else {
                    assert_eq!(give_back(&mut client, "a", name), i64::from(model.remove(name)), "step {step}");
                }
            }
            match model.len() {
                0 => assert_eq!(cmd!(client, "EXISTS", "k").int(), 0, "step {step}, empty before: {empty}"),
                count => assert_eq!(shown(&mut client), count as i64, "step {step}"),
            }
        }
    }

    fn none_of_it_makes_a_lease_shorter(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        gain(&mut client, "k", "a", &["HOLD", "outer", "PX", "60000"]);
        assert_left(gain(&mut client, "k", "a", &["HOLD", "inner", "PX", "1000"]).ttl, 60_000);
        assert_eq!(give_back(&mut client, "a", "inner"), 1);
        assert_left(cmd!(client, "LOCK.CHECK", "k", "a").int(), 60_000);
        // A longer one makes it longer, and it stays so when it is given back.
        assert_eq!(gain(&mut client, "k", "a", &["HOLD", "inner", "PX", "90000"]).ttl, 90_000);
        assert_eq!(give_back(&mut client, "a", "inner"), 1);
        assert_left(cmd!(client, "LOCK.CHECK", "k", "a").int(), 90_000);
        assert_eq!(cmd!(client, "LOCK.EXTEND", "k", "a").int(), 90_000);
    }

    fn one_release_without_a_name_ends_them_all(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        for name in ["x", "y", "z"] {
            gain(&mut client, "k", "a", &["HOLD", name]);
        }
        assert_eq!(gain(&mut client, "k", "a", &[]).new, 1, "the hold without a name is one more");
        assert_eq!(shown(&mut client), 4);
        let mut next = stand_in_line(&server, "k", "b");
        release(&mut client, "k", "a");
        served(&mut next, "b");
    }

    fn the_hold_without_a_name_is_one_among_them(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "a");
        assert_eq!(give_back(&mut client, "a", "x"), 0, "it has no such hold");
        assert!(holds(&mut client, "k", "a"));
        gain(&mut client, "k", "a", &["HOLD", "x"]);
        assert_eq!((shown(&mut client), gain(&mut client, "k", "a", &[]).new), (2, 0));
        assert_eq!(give_back(&mut client, "a", "x"), 1);
        assert_eq!(give_back(&mut client, "a", "x"), 0);
        assert_eq!(shown(&mut client), 1);
        release(&mut client, "k", "a");
        assert_eq!(give_back(&mut client, "a", "x"), 0, "nobody holds it");
    }

    fn they_belong_to_the_token_not_to_the_lock(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        gain(&mut client, "k", "a", &["SHARED", "HOLD", "x"]);
        gain(&mut client, "k", "a", &["SHARED", "HOLD", "y"]);
        gain(&mut client, "k", "b", &["SHARED", "HOLD", "x"]);
        assert_eq!(give_back(&mut client, "b", "y"), 0);
        assert_eq!(give_back(&mut client, "b", "x"), 1);
        assert!(holds(&mut client, "k", "a") && !holds(&mut client, "k", "b"));
        assert_eq!(give_back(&mut client, "c", "x"), -1);
        assert_eq!((give_back(&mut client, "a", "x"), give_back(&mut client, "a", "y")), (1, 1));
        assert_eq!(cmd!(client, "EXISTS", "k").int(), 0);
    }

    fn they_come_with_a_grant_after_a_wait(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "a");
        let mut next = stand_with(&server, "k", "b", &["HOLD", "x", "BLOCK", "0"]);
        // Another name is not what waits; this one is.
        assert_eq!(give_back(&mut client, "b", "y"), -1);
        still_waits(&server, &mut next);
        assert_eq!(give_back(&mut client, "b", "x"), -1);
        assert!(next.recv().is_null());
        assert_eq!(waiters(&mut client, "k"), 0);
        let mut next = stand_with(&server, "k", "b", &["HOLD", "x", "BLOCK", "0"]);
        release(&mut client, "k", "a");
        served(&mut next, "b");
        assert_eq!(gain(&mut client, "k", "b", &["HOLD", "x"]).new, 0, "the resend of a reply that got lost");
        // A holder's further holds wait for nobody.
        let _line = stand_in_line(&server, "k", "c");
        assert_eq!(gain(&mut client, "k", "b", &["HOLD", "y", "BLOCK", "0"]).new, 1);
        assert_eq!((give_back(&mut client, "b", "x"), give_back(&mut client, "b", "y")), (1, 1));
        until_count(&mut client, "waiting", 0);
        assert!(ask(&mut client, "k", "d", &[]).is_null(), "c has it");
    }

    fn a_name_is_bytes(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let names: [&[u8]; 4] = [b"\0", b"\xff\xfe%n\r\n", b"HOLD", &[b'h'; 64]];
        for name in names {
            assert_eq!(grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "HOLD", name)).new, 1);
        }
        let replies = client.pipeline(names.map(|name| args!["LOCK.RELEASE", "k", "a", "HOLD", name]));
        assert!(replies.iter().all(|reply| reply.int() == 1), "{replies:?}");
        assert_eq!(cmd!(client, "EXISTS", "k").int(), 0);
    }

    fn all_of_them_end_with_the_lease(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        for name in ["x", "y"] {
            gain(&mut client, "k", "a", &["HOLD", name, "PX", "2000"]);
        }
        let mut next = stand_in_line(&server, "k", "b");
        served(&mut next, "b");
        assert_eq!(give_back(&mut client, "a", "x"), -1);
        release(&mut client, "k", "b");
        let anew = gain(&mut client, "k", "a", &["HOLD", "z"]);
        assert_eq!((anew.new, shown(&mut client)), (1, 1), "none of the old ones is back");
    }
}
