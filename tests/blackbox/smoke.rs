//! The harness itself, on every kind of server and without the module: what these tests prove, the others rely on.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::harness::payload::{with_valid_checksum, Payload};
use crate::harness::{
    cmd, eventually, info, info_int, on_every_server, send, wait_in_sync, within_ms, Builder, Client, Clock, Cluster,
    Kind, Server, SECOND_US, YEAR_US,
};

const SOON: Duration = Duration::from_secs(5);
/// What a busy machine may take between two readings of a clock.
const SLACK_US: i64 = 5 * SECOND_US;

fn plain(kind: Kind) -> Server {
    Server::builder(kind).without_module().start()
}

on_every_server! {
    fn server_is_the_one_it_is_called(kind: Kind) {
        let server = plain(kind);
        let about = info(&mut server.client(), "server");
        let field = if kind.is_valkey() { "valkey_version" } else { "redis_version" };
        let (_, version) = kind.name().split_once('-').expect("a name has a version");
        assert!(about.text(field).starts_with(version), "{about:?}");
        assert_eq!(about.int("process_id"), i64::from(server.pid()));
    }

    fn arguments_of_every_type_reach_the_server(kind: Kind) {
        let server = plain(kind);
        let mut client = server.client();
        let key = b"k\0\xff\r\n";
        cmd!(client, "SET", key, String::from("v"), "PX", 60_000).ok();
        assert_eq!(cmd!(client, "GET", key).bulk(), b"v");
        assert_eq!(cmd!(client, "INCRBY", "n", 42_u64).int(), 42);
        assert!(cmd!(client, "GET", "absent").is_null());
        assert!(cmd!(client, "INCR", key).err().starts_with("ERR value is not"));
    }

    fn replies_keep_the_order_of_pipelined_commands(kind: Kind) {
        let server = plain(kind);
        let mut client = server.client();
        let replies = client.pipeline((0..1000).map(|n| ["ECHO".to_owned(), n.to_string()]));
        let echoed: Vec<String> = replies.iter().map(|reply| reply.text()).collect();
        assert!(echoed.iter().enumerate().all(|(n, text)| *text == n.to_string()));
    }

    fn a_blocked_command_is_seen_to_wait(kind: Kind) {
        let server = plain(kind);
        let mut waiter = server.client();
        send!(waiter, "BLPOP", "list", 0);
        assert_eq!(waiter.try_recv(Duration::from_millis(50)), None);
        server.client().cmd(&["RPUSH", "list", "item"]).int();
        assert_eq!(waiter.recv().array()[1].bulk(), b"item");
        let reply = within_ms(100..=1000, || cmd!(waiter, "BLPOP", "list", "0.1"));
        assert!(reply.is_null());
    }

    fn resp3_has_maps_and_pushes(kind: Kind) {
        let server = plain(kind);
        let mut client = server.resp3_client();
        cmd!(client, "HSET", "h", "a", 1, "b", 2).int();
        let map = cmd!(client, "HGETALL", "h");
        assert_eq!((map.get("a").text(), map.get("b").text()), ("1".into(), "2".into()));
        send!(client, "SUBSCRIBE", "news");
        assert_eq!(client.recv_push().array()[0].text(), "subscribe");
        server.client().cmd(&["PUBLISH", "news", "hello"]).int();
        assert_eq!(client.recv_push().array()[2].text(), "hello");
        assert!(cmd!(client, "PING").is("PONG"));
    }

    fn a_killed_connection_is_seen_as_closed(kind: Kind) {
        let server = plain(kind);
        let mut client = server.client();
        let id = client.id();
        assert!(!client.is_closed());
        assert_eq!(cmd!(server.client(), "CLIENT", "KILL", "ID", id).int(), 1);
        eventually(SOON, || if client.is_closed() { Ok(()) } else { Err("open") });
    }

    fn an_append_only_file_survives_kill_and_restart(kind: Kind) {
        let mut server = Server::builder(kind)
            .without_module()
            .append_only("always")
            .start();
        let (port, pid) = (server.port(), server.pid());
        cmd!(server.client(), "SET", "k", "v").ok();
        server.kill9();
        server.restart();
        assert_eq!(cmd!(server.client(), "GET", "k").bulk(), b"v");
        assert_eq!(server.port(), port);
        assert_ne!(server.pid(), pid);
    }

    fn a_snapshot_moves_to_another_server(kind: Kind) {
        let mut first = plain(kind);
        cmd!(first.client(), "SET", "k", "v").ok();
        first.shutdown_save();
        let second = Server::builder(kind).without_module().dir(first.dir()).start();
        drop(first);
        assert_eq!(cmd!(second.client(), "GET", "k").bulk(), b"v");
    }

    fn a_start_that_fails_gives_its_log(kind: Kind) {
        let plain = || Server::builder(kind).without_module();
        let failed = plain().arg("no-such-directive", "1").try_start();
        let log = failed.expect_err("an unknown directive stops the server");
        assert!(log.contains("no-such-directive"), "{log}");
        let broken = plain().file("dump.rdb", b"not an RDB").try_start();
        broken.expect_err("a broken snapshot stops the server");
    }

    fn a_replica_catches_up_and_is_promoted(kind: Kind) {
        let (primary, replica) = (plain(kind), plain(kind));
        cmd!(primary.client(), "SET", "before", 1).ok();
        replica.replica_of(&primary);
        cmd!(primary.client(), "SET", "after", 2).ok();
        wait_in_sync(&primary, &replica);
        let mut client = replica.client();
        assert_eq!(cmd!(client, "GET", "before").bulk(), b"1");
        assert_eq!(cmd!(client, "GET", "after").bulk(), b"2");
        assert!(cmd!(client, "SET", "k", "v").err().starts_with("READONLY"));
        replica.promote();
        cmd!(client, "SET", "k", "v").ok();
    }

    fn a_stopped_server_answers_when_it_goes_on(kind: Kind) {
        let server = plain(kind);
        let mut client = server.client();
        server.sigstop();
        client.send(&["PING"]);
        assert_eq!(client.try_recv(Duration::from_millis(50)), None);
        server.sigcont();
        assert!(client.recv().is("PONG"));
    }

    fn three_nodes_form_a_cluster_and_move_a_slot(kind: Kind) {
        let mut cluster = Cluster::start_with(kind, 3, |builder| builder.without_module());
        let source = cluster.owner("k");
        let target = (source + 1) % 3;
        cmd!(cluster.client(source), "SET", "k", "v").ok();
        assert!(cmd!(cluster.client(target), "GET", "k").err().starts_with("MOVED"));
        let slot = cluster.slot("k");
        cluster.migrate_slot(slot, target);
        assert_eq!(cluster.owner("k"), target);
        assert_eq!(cmd!(cluster.client(target), "GET", "k").bulk(), b"v");
        assert!(cmd!(cluster.client(source), "GET", "k").err().starts_with("MOVED"));
    }

    fn a_cluster_replica_takes_over(kind: Kind) {
        let mut cluster = Cluster::start_with(kind, 1, |builder| builder.without_module());
        let replica = cluster.add_replica_with(0, |builder| builder.without_module());
        cmd!(cluster.client(0), "SET", "k", "v").ok();
        let mut client = cluster.client(replica);
        cmd!(client, "CLUSTER", "FAILOVER").ok();
        eventually(SOON * 4, || {
            let reply = cmd!(client, "SET", "k", "w");
            if reply.is("OK") { Ok(()) } else { Err(reply) }
        });
    }

    fn the_wall_clock_steps_under_a_running_server(kind: Kind) {
        let clock = Clock::new();
        let server = Server::builder(kind).without_module().clock(&clock).start();
        let mut client = server.client();
        let uptime = info_int(&mut client, "server", "uptime_in_seconds");
        for years in [1, -2, 1] {
            let before = server_time_us(&mut client);
            clock.step(years * YEAR_US);
            eventually(SOON, || {
                let moved = server_time_us(&mut client) - before;
                let off = (moved - years * YEAR_US).abs();
                if off < SLACK_US { Ok(()) } else { Err(format!("TIME moved by {moved} us")) }
            });
            // The monotonic clock drives the event loop, which must not notice.
            within_ms(100..=1000, || cmd!(client, "BLPOP", "list", "0.1"));
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        let off = server_time_us(&mut client) - i64::try_from(now.as_micros()).expect("fits");
        assert!(off.abs() < SLACK_US, "off by {off} us after all steps");
        assert!(info_int(&mut client, "server", "uptime_in_seconds") >= uptime);
    }

    fn a_payload_is_taken_apart_and_put_together(kind: Kind) {
        let server = plain(kind);
        let mut client = server.client();
        cmd!(client, "SET", "k", "value").ok();
        let dump = cmd!(client, "DUMP", "k").bulk().to_vec();
        let payload = Payload::decode(&dump);
        assert_eq!(payload.encode(), dump);

        let mut body = payload.body.clone();
        *body.last_mut().expect("a value") = b'E';
        let changed = with_valid_checksum(&body, payload.rdb_version);
        cmd!(client, "RESTORE", "copy", 0, changed).ok();
        assert_eq!(cmd!(client, "GET", "copy").bulk(), b"valuE");

        let mut broken = dump;
        *broken.last_mut().expect("a checksum") ^= 1;
        let refused = cmd!(client, "RESTORE", "broken", 0, broken);
        assert!(refused.err().contains("checksum"), "{refused:?}");
    }

    fn a_crash_fails_the_test_unless_announced(kind: Kind) {
        let silent = plain(kind);
        let dropped = catch_unwind(AssertUnwindSafe(move || {
            silent.client().send(&["DEBUG", "SEGFAULT"]);
        }));
        let message = dropped.expect_err("a crash fails the test");
        let message = message.downcast_ref::<String>().expect("a formatted message");
        assert!(message.contains("BUG REPORT START"), "{message}");

        let mut announced = plain(kind);
        announced.expect_crash();
        announced.client().send(&["DEBUG", "SEGFAULT"]);
        announced.wait_for_exit();
        announced.restart();
        assert!(cmd!(announced.client(), "PING").is("PONG"));
    }
}

#[test]
fn a_slot_moves_atomically_on_valkey_9() {
    let setup = |builder: Builder| builder.without_module();
    let mut cluster = Cluster::start_with(Kind::Valkey91, 2, setup);
    let source = cluster.owner("k");
    let target = 1 - source;
    cmd!(cluster.client(source), "SET", "k", "v").ok();
    cluster.migrate_slot_atomically(cluster.slot("k"), target);
    assert_eq!(cmd!(cluster.client(target), "GET", "k").bulk(), b"v");
}

fn server_time_us(client: &mut Client) -> i64 {
    let time = cmd!(client, "TIME");
    let part = |index: usize| time.array()[index].text().parse::<i64>().expect("a number");
    part(0) * 1_000_000 + part(1)
}
