//! `LOCK.RELEASE`: an integer always. 1 is "this call released it", 0 "nobody holds it", -1 "another token holds it".

use crate::harness::{cmd, grant, on_every_server, wait_until_free, Kind, Server};

on_every_server! {
    fn the_holder_releases_once(kind: Kind) {
        let server = Server::start(kind);
        for mut client in [server.client(), server.resp3_client()] {
            grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a"));
            assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "a").int(), 1);
            assert_eq!(cmd!(client, "EXISTS", "k").int(), 0);
            assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "a").int(), 0);
        }
    }

    fn any_connection_may_release_with_the_token(kind: Kind) {
        let server = Server::start(kind);
        grant(&cmd!(server.client(), "LOCK.ACQUIRE", "k", "TOKEN", "a"));
        assert_eq!(cmd!(server.client(), "LOCK.RELEASE", "k", "a").int(), 1);
    }

    fn a_lock_never_taken_is_free(kind: Kind) {
        let server = Server::start(kind);
        assert_eq!(cmd!(server.client(), "LOCK.RELEASE", "k", "a").int(), 0);
        assert_eq!(cmd!(server.client(), "DBSIZE").int(), 0);
    }

    fn another_tokens_lock_is_told_apart_and_kept(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let held = grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 60_000));
        // A prefix, a longer token and another case are other tokens.
        for other in [&b"b"[..], b"A", b"aa", b"a\0", b"a ", b"\0a"] {
            assert_eq!(cmd!(client, "LOCK.RELEASE", "k", other).int(), -1, "{other:?}");
        }
        assert_eq!(cmd!(client, "LOCK.INFO", "k").get("fence").int(), held.fence);
        assert!(cmd!(client, "LOCK.CHECK", "k", "a").int() > 0);
    }

    fn a_lease_that_ended_leaves_nothing_to_release(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 20));
        wait_until_free(&mut client, "k");
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "a").int(), 0);
        grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "b"));
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "a").int(), -1);
    }

    fn a_released_lock_is_free_in_the_next_command(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let mut commands = Vec::new();
        for n in 0..200 {
            let token = n.to_string();
            commands.push(vec!["LOCK.ACQUIRE".to_owned(), "k".to_owned(), "TOKEN".to_owned(), token.clone()]);
            commands.push(vec!["LOCK.RELEASE".to_owned(), "k".to_owned(), token]);
        }
        for pair in client.pipeline(commands).chunks(2) {
            assert_eq!((grant(&pair[0]).new, pair[1].int()), (1, 1));
        }
    }
}
