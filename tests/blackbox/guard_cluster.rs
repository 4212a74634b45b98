//! LOCK.GUARD in a cluster: the slots of all its keys are looked at before anything runs, whether the server knows them
//! or only the first one, and a slot on the move is told from a wrong one.

use std::thread;
use std::time::{Duration, Instant};

use crate::harness::{args, cmd, grant, info_int, on_every_server, Builder, Client, Cluster, Kind, Reply, Server};

const LOCK: &str = "{order:7}lock";
const DATA: &str = "{order:7}total";

fn hold(client: &mut Client, key: &str) {
    grant(&cmd!(client, "LOCK.ACQUIRE", key, "TOKEN", "t", "EX", 600));
}

fn guard(client: &mut Client, command: Vec<Vec<u8>>) -> Reply {
    client.cmd(&[args!["LOCK.GUARD", LOCK, "t"], command].concat())
}

/// One node that has all slots.
fn single_node(kind: Kind, setup: impl Fn(Builder) -> Builder) -> Cluster {
    Cluster::start_with(kind, 1, setup)
}

/// Guards and other writes from many connections at once, each counting its own guards.
fn storm(server: &Server, time: Duration) -> u64 {
    const CONNECTIONS: usize = 24;
    const AT_ONCE: usize = 8;
    let end = Instant::now() + time;
    let count = |number: usize| {
        let (lock, data) = (format!("{{s{number}}}lock"), format!("{{s{number}}}data"));
        let mut client = server.client();
        hold(&mut client, &lock);
        let commands = |_| [args!["LOCK.GUARD", lock, "t", "INCR", data], args!["INCR", format!("{data}2")]];
        let mut ran = 0;
        while Instant::now() < end {
            for reply in client.pipeline((0..AT_ONCE).flat_map(commands)) {
                reply.int();
            }
            ran += AT_ONCE as u64;
            assert_eq!(cmd!(client, "GET", data).text(), ran.to_string());
        }
        ran
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..CONNECTIONS).map(|number| scope.spawn(move || count(number))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a connection that was served")).sum()
    })
}

on_every_server! {
    // node-redlock#64, redisson#1098, #7116, #1886, #2437: several keys in one command, and some of it done before the
    // cluster refused the rest.
    fn c66_all_keys_have_to_be_in_the_slot_of_the_lock(kind: Kind) {
        let cluster = single_node(kind, |builder| builder);
        let mut client = cluster.client(0);
        hold(&mut client, LOCK);
        for crossing in [
            args!["SET", "elsewhere", 1], args!["MSET", DATA, 1, "elsewhere", 1], args!["GET", "elsewhere"],
            args!["RENAME", DATA, "elsewhere"], args!["DEL", "elsewhere"],
        ] {
            assert!(guard(&mut client, crossing.clone()).err().starts_with("CROSSSLOT "));
            cmd!(client, "MULTI").ok();
            guard(&mut client, crossing);
            match cmd!(client, "EXEC") {
                Reply::Array(replies) => assert!(replies[0].err().starts_with("CROSSSLOT "), "{replies:?}"),
                reply => assert!(reply.err().starts_with("EXECABORT"), "{reply:?}"),
            }
        }
        let script = "return redis.call('LOCK.GUARD', KEYS[1], 't', 'SET', 'elsewhere', 1)";
        assert!(cmd!(client, "EVAL", script, 1, LOCK).is_error());
        assert_eq!(cmd!(client, "DBSIZE").int(), 1);
        guard(&mut client, args!["MSET", DATA, 1, "a{order:7}", 2]).ok();
        let within = "return redis.call('LOCK.GUARD', KEYS[1], 't', 'INCR', KEYS[2])";
        assert_eq!(cmd!(client, "EVAL", within, 2, LOCK, DATA).int(), 2);
        // Also where nobody holds the lock: what is wrong with the command comes first.
        assert!(cmd!(client, "LOCK.GUARD", LOCK, "u", "SET", "elsewhere", 1).err().starts_with("CROSSSLOT "));
    }

    fn a_guard_for_another_node_is_sent_there(kind: Kind) {
        let mut cluster = Cluster::start(kind, 2);
        let replica = cluster.add_replica(cluster.owner(LOCK));
        let (here, there) = (cluster.owner(LOCK), 1 - cluster.owner(LOCK));
        hold(&mut cluster.client(here), LOCK);
        let mut wrong = cluster.client(there);
        assert!(guard(&mut wrong, args!["SET", DATA, 1]).err().starts_with("MOVED "));
        let mut below = cluster.client(replica);
        cmd!(below, "READONLY").ok();
        assert!(guard(&mut below, args!["GET", DATA]).err().starts_with("MOVED "));
        assert_eq!(cmd!(cluster.client(here), "EXISTS", DATA).int(), 0);
        guard(&mut cluster.client(here), args!["SET", DATA, 1]).ok();
        assert_eq!(cmd!(cluster.client(here), "GET", DATA).text(), "1");
    }

    fn while_a_slot_moves_nothing_runs_on_half_of_its_keys(kind: Kind) {
        let mut cluster = Cluster::start(kind, 2);
        let slot = cluster.slot(LOCK);
        let (source, target) = (cluster.owner(LOCK), 1 - cluster.owner(LOCK));
        let (mut from, mut to) = (cluster.client(source), cluster.client(target));
        hold(&mut from, LOCK);
        guard(&mut from, args!["SET", DATA, 1]).ok();
        cluster.open_slot(slot, target);
        assert_eq!(guard(&mut from, args!["INCR", DATA]).int(), 2);
        // The data goes first: the lock is here and its data there.
        let port = cluster.nodes[target].port();
        cmd!(from, "MIGRATE", "127.0.0.1", port, DATA, 0, 5_000).ok();
        let reply = guard(&mut from, args!["INCR", DATA]);
        assert!(reply.err().starts_with("TRYAGAIN "), "{reply:?}");
        cmd!(to, "ASKING").ok();
        assert!(guard(&mut to, args!["INCR", DATA]).is_error());
        cmd!(from, "MIGRATE", "127.0.0.1", port, LOCK, 0, 5_000).ok();
        assert!(guard(&mut from, args!["INCR", DATA]).err().starts_with("ASK "));
        cmd!(to, "ASKING").ok();
        assert_eq!(guard(&mut to, args!["INCR", DATA]).int(), 3);
        cluster.assign_slot(slot, target);
        assert_eq!(guard(&mut to, args!["INCR", DATA]).int(), 4);
        assert!(guard(&mut from, args!["INCR", DATA]).err().starts_with("MOVED "));
    }

    fn io_threads_and_guards_get_along(kind: Kind) {
        // Each server's own way to have its I/O threads at work however small the load is.
        let busy = |builder: Builder| match kind {
            Kind::Redis70 => builder.arg("io-threads-do-reads", "yes"),
            Kind::Redis80 => builder,
            Kind::Valkey81 => builder.arg("events-per-io-thread", 0),
            Kind::Valkey91 => builder.arg("io-threads-always-active", "yes"),
        };
        let threaded = |builder: Builder| busy(builder.arg("io-threads", 4)).arg("appendonly", "yes");
        let time = Duration::from_secs(3);
        let cluster = single_node(kind, threaded);
        assert!(storm(&cluster.nodes[0], time) > 0);
        let keys = cmd!(cluster.client(0), "COMMAND", "GETKEYS", "LOCK.GUARD", LOCK, "t", "SET", DATA, 1);
        assert_eq!(keys.array().len(), 1, "the server asks on I/O threads, which it does not survive");

        let alone = threaded(Server::builder(kind)).start();
        assert!(storm(&alone, time) > 0);
        assert!(info_int(&mut alone.client(), "stats", "io_threaded_reads_processed") > 0);
    }
}
