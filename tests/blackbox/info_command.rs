//! `LOCK.INFO`: who holds a lock and since when, without ever showing a token.

use std::time::Duration;

use crate::harness::{assert_left, cmd, eventually, grant, on_every_server, Kind, Reply, Server};

const SOON: Duration = Duration::from_secs(5);
const FIELDS: [&str; 9] = ["mode", "fence", "ttl-ms", "held", "limit", "holders", "waiters", "queue", "role"];
const HOLDER_FIELDS: [&str; 7] = ["label", "fence", "ttl-ms", "age-ms", "holds", "ephemeral", "client"];

on_every_server! {
    fn a_free_lock_is_null(kind: Kind) {
        let server = Server::start(kind);
        assert_eq!(cmd!(server.client(), "LOCK.INFO", "k"), Reply::NullArray);
        assert_eq!(cmd!(server.resp3_client(), "LOCK.INFO", "k"), Reply::Null);
    }

    fn a_held_lock_is_a_map_and_flat_in_resp2(kind: Kind) {
        let server = Server::start(kind);
        let mut holder = server.client();
        let held = grant(&cmd!(holder, "LOCK.ACQUIRE", "k", "TOKEN", "secret", "PX", 60_000, "LABEL", "nightly"));
        let flat = cmd!(server.client(), "LOCK.INFO", "k");
        assert_eq!(flat.array().len(), 2 * FIELDS.len());
        let map = cmd!(server.resp3_client(), "LOCK.INFO", "k");
        assert!(matches!(map, Reply::Map(_)), "{map:?}");
        for info in [flat, map] {
            assert_eq!(info.fields(), FIELDS);
            assert_eq!(info.get("mode").bulk(), b"exclusive");
            assert_eq!(info.get("fence").int(), held.fence);
            assert_left(info.get("ttl-ms").int(), 60_000);
            assert_eq!((info.get("held").int(), info.get("limit").int()), (1, 1));
            assert_eq!((info.get("waiters").int(), info.get("queue").array().len()), (0, 0));
            assert_eq!(info.get("role").bulk(), b"primary");
            let [one] = info.get("holders").array() else { panic!("one holder: {info:?}") };
            assert_eq!(one.fields(), HOLDER_FIELDS);
            assert_eq!(one.get("label").bulk(), b"nightly");
            assert_eq!(one.get("fence").int(), held.fence);
            assert_eq!(one.get("ttl-ms").int(), info.get("ttl-ms").int());
            assert!((0..5_000).contains(&one.get("age-ms").int()), "{info:?}");
            assert_eq!((one.get("holds").int(), one.get("ephemeral").int()), (1, 0));
            assert_eq!(one.get("client").int(), holder.id());
        }
    }

    fn a_token_is_never_shown(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "s3cr3t-t0ken"));
        let made = grant(&cmd!(client, "LOCK.ACQUIRE", "made")).token;
        for key in ["k", "made"] {
            let shown = format!("{:?}", cmd!(client, "LOCK.INFO", key));
            assert!(!shown.contains("s3cr3t-t0ken"), "{shown}");
            assert!(!shown.contains(&made.escape_ascii().to_string()), "{shown}");
        }
    }

    fn the_age_goes_on_through_repeats_and_extensions(kind: Kind) {
        let server = Server::start(kind);
        let (mut first, mut second) = (server.client(), server.client());
        grant(&cmd!(first, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 60_000));
        assert!(cmd!(first, "BLPOP", "nothing", "0.06").is_null());
        assert_eq!(grant(&cmd!(second, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 70_000)).new, 0);
        assert_eq!(cmd!(second, "LOCK.EXTEND", "k", "a", "PX", 80_000).int(), 80_000);
        let info = cmd!(first, "LOCK.INFO", "k");
        let one = &info.get("holders").array()[0];
        assert!(one.get("age-ms").int() >= 50, "{info:?}");
        // The connection is the one that acquired last.
        assert_eq!(one.get("client").int(), second.id());
    }

    fn null_once_the_lease_ended(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        grant(&cmd!(client, "LOCK.ACQUIRE", "k", "PX", 20));
        eventually(SOON, || match cmd!(client, "LOCK.INFO", "k") {
            gone if gone.is_null() => Ok(()),
            info => {
                assert!((1..=20).contains(&info.get("ttl-ms").int()), "{info:?}");
                Err(info)
            }
        });
    }
}
