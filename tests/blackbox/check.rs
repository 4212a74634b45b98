//! `LOCK.CHECK`: the ms left if the token holds the lock, else 0. It only looks.

use std::time::Duration;

use crate::harness::{assert_left, cmd, eventually, grant, on_every_server, Kind, Server};

const SOON: Duration = Duration::from_secs(5);

on_every_server! {
    fn the_holder_sees_the_ms_left(kind: Kind) {
        let server = Server::start(kind);
        for mut client in [server.client(), server.resp3_client()] {
            grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 60_000));
            let first = cmd!(client, "LOCK.CHECK", "k", "a").int();
            assert_left(first, 60_000);
            assert!(cmd!(client, "BLPOP", "nothing", "0.03").is_null());
            // Rounded down, so 20 ms later it is at least 20 less, whatever fraction was cut off.
            let second = cmd!(client, "LOCK.CHECK", "k", "a").int();
            assert!(second <= first - 20, "{first} ms left, 20 ms later {second}");
        }
    }

    fn everybody_else_sees_zero(kind: Kind) {
        let server = Server::start(kind);
        for mut client in [server.client(), server.resp3_client()] {
            assert_eq!(cmd!(client, "LOCK.CHECK", "free", "a").int(), 0);
            grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a"));
            for other in [&b"b"[..], b"A", b"aa", b"a\0"] {
                assert_eq!(cmd!(client, "LOCK.CHECK", "k", other).int(), 0, "{other:?}");
            }
        }
    }

    fn zero_once_the_lease_ended(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 30));
        let mut last = 30;
        eventually(SOON, || match cmd!(client, "LOCK.CHECK", "k", "a").int() {
            0 => Ok(()),
            left_ms => {
                assert!(left_ms <= last, "{last} ms left, then {left_ms}");
                last = left_ms;
                Err(left_ms)
            }
        });
        assert_eq!(cmd!(client, "LOCK.CHECK", "k", "a").int(), 0);
    }
}
