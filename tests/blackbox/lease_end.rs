//! The end of a lease: never early, within milliseconds, by itself, whatever else the server does. What a clock that is
//! set, a restart or a failover do to a lease is elsewhere.

use std::time::{Duration, Instant};

use crate::harness::{
    args, busily, cmd, eventually, grant, on_every_server, send, Client, Clock, Kind, Server, YEAR_US,
};

const SOON: Duration = Duration::from_secs(10);
/// How late the median lease may end on a machine busy with other tests. The server's own cron comes every 100 ms.
const LATE_MS: u128 = 40;

/// A connection that hears `lock.expired` of database 0.
fn listener(server: &Server) -> Client {
    let mut client = server.resp3_client();
    send!(client, "SUBSCRIBE", "__keyevent@0__:lock.expired");
    assert_eq!(client.recv_push().array()[0].text(), "subscribe");
    client
}

fn server_with_events(kind: Kind) -> Server {
    Server::builder(kind).arg("notify-keyspace-events", "Ed").start()
}

/// How late each of `rounds` leases ended that nobody touched. One that ends early fails the test.
#[track_caller]
fn lateness_ms(server: &Server, rounds: u32, lease: Duration) -> Vec<u128> {
    lateness_ms_with(server, rounds, lease, |_| ())
}

/// The same where `meanwhile` is done early in each lease.
#[track_caller]
fn lateness_ms_with(server: &Server, rounds: u32, lease: Duration, meanwhile: impl Fn(u32)) -> Vec<u128> {
    let (mut client, mut ear) = (server.client(), listener(server));
    let mut late = Vec::new();
    for round in 0..rounds {
        let key = format!("k{round}");
        let sent = Instant::now();
        grant(&cmd!(client, "LOCK.ACQUIRE", key, "PX", lease.as_millis()));
        let answered = Instant::now();
        meanwhile(round);
        assert_eq!(ear.recv_push().array()[2].text(), key);
        // The lease began after the command was sent and before it was answered.
        assert!(sent.elapsed() >= lease, "a lease of {lease:?} ended {:?} after it was asked for", sent.elapsed());
        late.push(answered.elapsed().saturating_sub(lease).as_millis());
        assert_eq!(cmd!(client, "EXISTS", key).int(), 0);
    }
    late.sort_unstable();
    late
}

#[track_caller]
fn assert_on_time(late: &[u128]) {
    let median = late[late.len() / 2];
    assert!(median <= LATE_MS, "late by {late:?} ms");
}

on_every_server! {
    fn nobody_gets_a_lock_early(kind: Kind) {
        let server = Server::start(kind);
        let (mut first, mut second) = (server.client(), server.client());
        for lease_ms in 1..=40 {
            let lease = Duration::from_millis(lease_ms);
            let sent = Instant::now();
            let held = grant(&cmd!(first, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", lease_ms));
            // Tried as fast as one connection can, so that a lock which is free a moment early is seen to be.
            let taken = busily(SOON, || match cmd!(second, "LOCK.ACQUIRE", "k", "TOKEN", "b", "PX", 60_000) {
                refused if refused.is_null() => Err(refused),
                granted => Ok(grant(&granted)),
            });
            assert!(sent.elapsed() >= lease, "{lease:?} ended after {:?}", sent.elapsed());
            assert!(taken.fence > held.fence && taken.new == 1, "{held:?} then {taken:?}");
            assert_eq!(cmd!(second, "LOCK.RELEASE", "k", "b").int(), 1);
        }
    }

    fn a_lock_is_its_holders_for_as_long_as_its_own_clock_says(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        for _ in 0..20 {
            let sent = Instant::now();
            let held = grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 30));
            let promised = Duration::from_millis(u64::try_from(held.waited + held.ttl).expect("not negative"));
            busily(SOON, || match cmd!(client, "LOCK.CHECK", "k", "a").int() {
                0 => Ok(()),
                left_ms => Err(left_ms),
            });
            // Less than 1 ms may be left, which CHECK rounds down to 0.
            assert!(sent.elapsed() + Duration::from_millis(1) > promised, "{:?} of {promised:?}", sent.elapsed());
            busily(SOON, || match cmd!(client, "EXISTS", "k").int() {
                0 => Ok(()),
                there => Err(there),
            });
            assert!(sent.elapsed() >= promised, "{:?} of {promised:?}", sent.elapsed());
        }
    }

    fn a_lease_ends_on_time_though_nobody_asks(kind: Kind) {
        let server = server_with_events(kind);
        assert_on_time(&lateness_ms(&server, 15, Duration::from_millis(60)));
    }

    fn an_extension_moves_the_end(kind: Kind) {
        let server = server_with_events(kind);
        let (mut client, mut ear) = (server.client(), listener(&server));
        grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 1_000));
        grant(&cmd!(client, "LOCK.ACQUIRE", "later", "TOKEN", "a", "PX", 1_100));
        let sent = Instant::now();
        assert_eq!(cmd!(client, "LOCK.EXTEND", "k", "a", "PX", 1_500).int(), 1_500);
        assert_eq!(ear.recv_push().array()[2].text(), "later");
        assert_eq!(ear.recv_push().array()[2].text(), "k");
        assert!(sent.elapsed() >= Duration::from_millis(1_500), "after {:?}", sent.elapsed());
    }

    fn leases_end_in_the_order_of_their_ends(kind: Kind) {
        let server = server_with_events(kind);
        let (mut client, mut ear) = (server.client(), listener(&server));
        // In one write, so that the leases begin together.
        let order: [u32; 8] = [350, 200, 500, 250, 400, 300, 550, 450];
        let granted = client.pipeline(order.map(|ms| args!["LOCK.ACQUIRE", ms.to_string(), "PX", ms]));
        granted.iter().for_each(|reply| assert_eq!(grant(reply).new, 1));
        let ended: Vec<String> = order.iter().map(|_| ear.recv_push().array()[2].text()).collect();
        assert_eq!(ended, ["200", "250", "300", "350", "400", "450", "500", "550"]);
    }

    fn leases_that_end_close_together_end_one_by_one(kind: Kind) {
        let server = server_with_events(kind);
        let (mut client, mut ear) = (server.client(), listener(&server));
        let lease = Duration::from_millis(500);
        let mut sent = Vec::new();
        for n in 0..200 {
            sent.push(Instant::now());
            grant(&cmd!(client, "LOCK.ACQUIRE", n, "PX", lease.as_millis()));
        }
        // The run of the timer that ends one must not take along the next, which has a fraction of a millisecond left.
        for (n, sent) in sent.into_iter().enumerate() {
            assert_eq!(ear.recv_push().array()[2].text(), n.to_string());
            assert!(sent.elapsed() >= lease, "the {n}th ended after {:?}", sent.elapsed());
        }
    }

    fn thousands_of_leases_end_together(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let (locks, lease) = (5_000, Duration::from_millis(1_500));
        let sent = Instant::now();
        let granted = client.pipeline((0..locks).map(|n| args!["LOCK.ACQUIRE", format!("k{n}"), "PX", 1_500]));
        let answered = Instant::now();
        assert!(granted.iter().all(|reply| grant(reply).new == 1));
        let size = |client: &mut Client| cmd!(client, "DBSIZE").int();
        busily(SOON, || match size(&mut client) {
            all if all == locks => Err(all),
            _ => Ok(()),
        });
        assert!(sent.elapsed() >= lease, "the first ended after {:?}", sent.elapsed());
        eventually(SOON, || match size(&mut client) {
            0 => Ok(()),
            left => Err(left),
        });
        let late = answered.elapsed().saturating_sub(lease);
        assert!(late < Duration::from_millis(1_500), "the last was late by {late:?}");
    }

    fn a_command_sees_the_end_before_the_timer_does(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        // While a transaction runs no timer can: each command has to look at the clock itself.
        let mut keys = (0..).map(|n| format!("k{n}"));
        let mut after_the_end = |command: &str, rest: &[&str]| {
            let key = keys.next().expect("endless");
            let probe = [&[command, &key], rest].concat();
            let commands = [
                args!["MULTI"],
                args!["LOCK.ACQUIRE", key, "TOKEN", "a", "PX", 5],
                args!["DEBUG", "SLEEP", "0.02"],
                probe.iter().map(|arg| arg.as_bytes().to_vec()).collect(),
                args!["EXEC"],
            ];
            let replies = client.pipeline(commands);
            let results = replies.last().expect("EXEC is answered").array();
            assert_eq!(grant(&results[0]).new, 1);
            results[2].clone()
        };
        assert_eq!(after_the_end("LOCK.CHECK", &["a"]).int(), 0);
        assert!(after_the_end("LOCK.INFO", &[]).is_null());
        assert_eq!(after_the_end("LOCK.EXTEND", &["a", "PX", "60000"]).int(), 0);
        assert_eq!(after_the_end("LOCK.EXTEND", &["b"]).int(), 0);
        assert_eq!(after_the_end("LOCK.RELEASE", &["a"]).int(), 0);
        assert_eq!(after_the_end("LOCK.RELEASE", &["b"]).int(), 0);
        assert_eq!(grant(&after_the_end("LOCK.ACQUIRE", &["TOKEN", "a"])).new, 1);
        assert_eq!(grant(&after_the_end("LOCK.ACQUIRE", &["TOKEN", "b"])).new, 1);
    }

    fn a_busy_server_ends_leases_once_it_is_free(kind: Kind) {
        let server = server_with_events(kind);
        let (mut client, mut ear) = (server.client(), listener(&server));
        let replies = client.pipeline([args!["LOCK.ACQUIRE", "k", "PX", 50], args!["DEBUG", "SLEEP", "0.3"]]);
        assert_eq!(grant(&replies[0]).new, 1);
        let free = Instant::now();
        assert_eq!(ear.recv_push().array()[2].text(), "k");
        assert!(free.elapsed() < Duration::from_secs(1), "heard {:?} later", free.elapsed());
    }

    fn while_writes_are_paused_a_lease_ends_without_a_write(kind: Kind) {
        // With an append-only file, a write during the pause would be a failed assertion of the server.
        let server = Server::builder(kind).arg("appendonly", "yes").start();
        let mut client = server.client();
        grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 500));
        cmd!(client, "CLIENT", "PAUSE", 10_000, "WRITE").ok();
        eventually(SOON, || match cmd!(client, "LOCK.CHECK", "k", "a").int() {
            0 => Ok(()),
            left_ms => Err(left_ms),
        });
        assert!(cmd!(client, "LOCK.INFO", "k").is_null());
        cmd!(client, "CLIENT", "UNPAUSE").ok();
        eventually(SOON, || match cmd!(client, "DBSIZE").int() {
            0 => Ok(()),
            keys => Err(keys),
        });
    }

    /// Right after a step, not only once the server's cron has found out about it.
    fn a_lease_ends_on_time_though_the_clock_is_set(kind: Kind) {
        let clock = Clock::new();
        let server = Server::builder(kind).clock(&clock).arg("notify-keyspace-events", "Ed").arg("hz", 1).start();
        let set = |round| clock.step(if round % 2 == 0 { -YEAR_US } else { YEAR_US });
        assert_on_time(&lateness_ms_with(&server, 7, Duration::from_millis(200), set));
    }

    // C13. redis#7413, valkey#4384, redis PR#15620: with many volatile keys the server notices an expired one minutes
    // late, since it looks at samples.
    fn c13_a_lease_ends_on_time_among_a_hundred_thousand_volatile_keys(kind: Kind) {
        let server = server_with_events(kind);
        let fill = "for i = ARGV[1] * 1000, ARGV[1] * 1000 + 999 do \
            redis.call('SET', 'volatile:' .. i, i, 'PX', 400 + (i * 7919) % 60000) end";
        let mut client = server.client();
        for thousand in 0..100 {
            assert!(cmd!(client, "EVAL", fill, 0, thousand).is_null());
        }
        assert_on_time(&lateness_ms(&server, 7, Duration::from_millis(200)));
    }
}
