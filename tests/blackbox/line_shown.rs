//! What people see of a line: `queue` and `waiters` of LOCK.INFO, and the counts in INFO `lock`.

use std::time::Duration;

use crate::harness::line::{
    count, queue, release, send_acquire, stand_in_line, stand_with, take, take_for, until_count, waiters,
};
use crate::harness::{args, cmd, eventually, grant, info, on_every_server, Kind, Server};

const SOON: Duration = Duration::from_secs(5);

on_every_server! {
    fn lock_info_shows_the_first_ten_in_line(kind: Kind) {
        let server = Server::start(kind);
        let (mut client, mut resp3) = (server.client(), server.resp3_client());
        take(&mut client, "k", "the-secret-of-a");
        let labels: Vec<String> = (0..12).map(|n| format!("worker {n}")).collect();
        let stand = |label: &String| {
            stand_with(&server, "k", &format!("the-secret-of-{label}"), &["BLOCK", "0", "LABEL", label])
        };
        let _waiting: Vec<_> = labels.iter().map(stand).collect();
        for client in [&mut client, &mut resp3] {
            let seen = cmd!(client, "LOCK.INFO", "k");
            assert_eq!((seen.get("held").int(), seen.get("waiters").int()), (1, 12));
            assert_eq!(queue(client, "k"), labels[..10]);
            let first = &seen.get("queue").array()[0];
            assert_eq!(first.fields(), ["label", "mode", "waiting-ms"]);
            assert_eq!(first.get("mode").text(), "exclusive");
            let waited: Vec<i64> = seen.get("queue").array().iter().map(|q| q.get("waiting-ms").int()).collect();
            assert!(waited.windows(2).all(|pair| pair[0] >= pair[1]), "who came first waited longest: {waited:?}");
            assert!(!format!("{seen:?}").contains("secret"), "{seen:?}");
        }
    }

    fn waiting_ms_grows_and_a_resend_does_not_reset_it(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "a");
        let mut old = stand_in_line(&server, "k", "b");
        let mut waited = |at_least: i64| {
            eventually(SOON, || {
                let seen = cmd!(client, "LOCK.INFO", "k").get("queue").array()[0].get("waiting-ms").int();
                if seen >= at_least { Ok(seen) } else { Err(seen) }
            })
        };
        let before = waited(50);
        let mut new = server.client();
        send_acquire(&mut new, "k", "b", &["BLOCK", "0"]);
        assert!(old.recv().err().starts_with("ERR superseded"));
        assert!(waited(0) >= before);
    }

    fn a_waiter_without_label_shows_its_connection(kind: Kind) {
        let server = Server::start(kind);
        let (mut client, mut named) = (server.client(), server.client());
        take(&mut client, "k", "a");
        cmd!(named, "CLIENT", "SETNAME", "billing").ok();
        send_acquire(&mut named, "k", "b", &["BLOCK", "0"]);
        until_count(&mut client, "waiting", 1);
        let _unnamed = stand_in_line(&server, "k", "c");
        let shown = queue(&mut client, "k");
        assert!(shown[0] == "billing" || kind == Kind::Redis70, "{shown:?}");
        assert!(shown[1].starts_with("127.0.0.1:"), "{shown:?}");
        // The label goes along to the hold.
        release(&mut client, "k", "a");
        assert_eq!(grant(&named.recv()).token, b"b");
        let seen = cmd!(client, "LOCK.INFO", "k");
        assert_eq!(seen.get("holders").array()[0].get("label").text(), shown[0]);
        assert_eq!(seen.get("holders").array()[0].get("client").int(), named.id());
    }

    fn info_counts_every_way_through_a_line(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let before = info(&mut client, "lock");
        take(&mut client, "k", "a");
        // One is served by a release, one by the end of a lease.
        let mut served = stand_with(&server, "k", "b", &["PX", "60", "BLOCK", "0"]);
        let mut heir = stand_in_line(&server, "k", "c");
        assert!(cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "try").is_null());
        release(&mut client, "k", "a");
        assert_eq!((grant(&served.recv()).new, grant(&heir.recv()).new), (1, 1));
        // One runs out, one withdraws, one is refused, one is killed with its grant on the way.
        assert!(cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "d", "BLOCK", 10).is_null());
        let mut withdrawn = stand_in_line(&server, "k", "e");
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "e").int(), -1);
        assert!(withdrawn.recv().is_null());
        take(&mut client, "l", "f");
        let mut circle = stand_in_line(&server, "l", "c");
        let told = cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "f", "BLOCK", 0);
        assert!(told.err().starts_with("DEADLOCK"), "{told:?}");
        let mut killed = server.client();
        let id = killed.id();
        send_acquire(&mut killed, "k", "g", &["BLOCK", "0"]);
        until_count(&mut client, "waiting", 2);
        client.pipeline([args!["LOCK.RELEASE", "k", "c"], args!["CLIENT", "KILL", "ID", id]]);
        until_count(&mut client, "held", 1);
        assert!(cmd!(client, "LOCK.ACQUIRE", "l", "TOKEN", "p", "POLL", 10_000).is_null());
        let after = info(&mut client, "lock");
        let moved: Vec<(&str, i64)> = [
            "held", "waiting", "polling", "granted", "repeated", "refused", "released", "leases_ended",
            "late_releases_free", "late_releases_taken", "waited", "waits_ended_empty", "handed_over", "withdrawn",
            "deadlocks", "grants_taken_back",
        ]
        .map(|name| (name, after.int(&format!("lock_{name}")) - before.int(&format!("lock_{name}"))))
        .into();
        let expected = [
            ("held", 1), ("waiting", 1), ("polling", 1), ("granted", 5), ("repeated", 0), ("refused", 2),
            ("released", 2), ("leases_ended", 1), ("late_releases_free", 0), ("late_releases_taken", 0), ("waited", 7),
            ("waits_ended_empty", 1), ("handed_over", 3), ("withdrawn", 1), ("deadlocks", 1), ("grants_taken_back", 1),
        ];
        assert_eq!(moved, expected);
        release(&mut client, "l", "f");
        assert_eq!(grant(&circle.recv()).token, b"c");
    }

    fn info_sums_up_how_long_waits_took(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let mut sum = 0;
        let mut longest = 0;
        for lease_ms in [60, 200, 20] {
            let mut waiter = server.client();
            take_for(&mut client, "k", "a", lease_ms);
            send_acquire(&mut waiter, "k", "b", &["BLOCK", "0"]);
            let waited = grant(&waiter.recv()).waited;
            sum += waited;
            longest = longest.max(waited);
            release(&mut client, "k", "b");
        }
        // A wait that ends empty is none of it.
        take(&mut client, "k", "a");
        assert!(cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "b", "BLOCK", 300).is_null());
        assert_eq!((count(&mut client, "wait_ms_sum"), count(&mut client, "wait_ms_max")), (sum, longest));
        assert_eq!(waiters(&mut client, "k"), 0);
    }
}
