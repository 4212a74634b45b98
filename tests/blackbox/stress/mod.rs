//! Thirty-two clients do everything there is to waiting, at random and for long, while somebody kills and unblocks them.
//! A client believes what the contract lets it believe, by its own clock alone: no two of them may ever believe in the
//! same lock at once. `REDIS_LOCK_STRESS_SECONDS` and `REDIS_LOCK_STRESS_SEED` change length and course.

mod dice;
mod worker;

use std::collections::HashMap;
use std::env;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::harness::line::{count, until_count};
use crate::harness::{args, cmd, eventually, grant, info_int, on_every_server, Client, Kind, Server};
use dice::Dice;
use worker::Worker;

const WORKERS: usize = 32;
const KEYS: u64 = 4;
const SECONDS: u64 = 30;
/// Longer than any wait in line can be: with a dozen ahead, each for at most its lease.
const STARVED: Duration = Duration::from_secs(20);
const LEASE_MS: std::ops::Range<u64> = 2..60;
const SETTLE_WAIT: Duration = Duration::from_secs(20);

/// A time in which a client had every right to believe that the lock was its own.
#[derive(Clone, Debug)]
struct Hold {
    key: u64,
    token: String,
    fence: i64,
    from: Instant,
    until: Instant,
    /// What led to it, for people.
    story: String,
}

/// What all threads know.
struct Scene<'a> {
    server: &'a Server,
    /// The connection of each worker, to be killed or unblocked.
    ids: Vec<AtomicI64>,
    end: Instant,
    /// Whether locks are deleted under their holders: then nobody can be sure of anything.
    deleting: bool,
}

impl Scene<'_> {
    fn is_over(&self) -> bool {
        Instant::now() >= self.end
    }

    fn some_id(&self, dice: &mut Dice) -> i64 {
        self.ids[dice.within(0..WORKERS as u64) as usize].load(Ordering::Relaxed)
    }
}

/// Kills, unblocks and deletes at random.
fn disturb(scene: &Scene<'_>, mut dice: Dice) {
    let mut client = scene.server.client();
    while !scene.is_over() {
        let pause = Duration::from_millis(dice.within(1..40));
        assert_eq!(client.try_recv(pause), None);
        let (id, key) = (scene.some_id(&mut dice), format!("k{}", dice.within(0..KEYS)));
        let commands = match dice.within(0..if scene.deleting { 9 } else { 3 }) {
            0 => vec![args!["CLIENT", "KILL", "ID", id]],
            1 => vec![args!["CLIENT", "UNBLOCK", id]],
            2 => vec![args!["CLIENT", "UNBLOCK", id, "ERROR"]],
            3 => vec![args!["DEL", key]],
            4 => vec![args!["FLUSHALL", "ASYNC"]],
            5 => vec![args!["RENAME", key, format!("k{}", dice.within(0..KEYS))]],
            6 => vec![args!["SET", key, "v", "PX", 5]],
            7 => vec![args!["SWAPDB", 0, 1], args!["SWAPDB", 0, 1]],
            _ => vec![args!["DEL", key], args!["CLIENT", "KILL", "ID", id]],
        };
        client.pipeline(commands);
    }
}

/// No two were sure of one lock at once, and whoever came later has the higher fence.
fn check(holds: &[Hold], deleting: bool) {
    let mut owners: HashMap<i64, &str> = HashMap::new();
    for hold in holds {
        let owner = owners.entry(hold.fence).or_insert(&hold.token);
        assert_eq!(*owner, hold.token, "fence {} was given twice", hold.fence);
    }
    for key in 0..KEYS {
        let mut sure: Vec<&Hold> = holds.iter().filter(|hold| hold.key == key && hold.from < hold.until).collect();
        sure.sort_by_key(|hold| hold.fence);
        let mut longest: Option<&Hold> = None;
        for hold in sure {
            let apart = |before: &Hold| before.until <= hold.from || before.token == hold.token;
            assert!(deleting || longest.is_none_or(apart), "two owners: {longest:#?} and {hold:#?}");
            longest = longest.into_iter().chain([hold]).max_by_key(|hold| hold.until);
        }
    }
}

fn from_env(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

fn stress(kind: Kind, seconds: u64, deleting: bool) {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos() as u64;
    let seed = from_env("REDIS_LOCK_STRESS_SEED", clock);
    let seconds = from_env("REDIS_LOCK_STRESS_SECONDS", seconds);
    eprintln!("seed {seed}");
    let mut server = Server::builder(kind).arg("appendonly", "yes").start();
    let mut client = server.client();
    let used = |client: &mut Client| info_int(client, "memory", "used_memory");
    let memory = used(&mut client);
    let ids = (0..WORKERS).map(|_| AtomicI64::new(0)).collect();
    let scene = Scene { server: &server, ids, end: Instant::now() + Duration::from_secs(seconds), deleting };
    let holds: Vec<Vec<Hold>> = thread::scope(|scope| {
        scope.spawn(|| disturb(&scene, Dice(seed)));
        let start = |number| {
            scope.spawn({
                let scene = &scene;
                move || Worker::new(scene, number, seed).run()
            })
        };
        let workers: Vec<_> = (0..WORKERS).map(start).collect();
        workers.into_iter().map(|worker| worker.join().expect("a worker failed: see above")).collect()
    });
    let fewest = holds.iter().map(Vec::len).min().unwrap_or(0);
    check(&holds.concat(), deleting);
    assert!(fewest as u64 >= seconds / 3, "one client was granted {fewest} locks in {seconds} s");
    // Everything lapses, and nothing is left.
    for name in ["waiting", "polling", "held"] {
        until_count(&mut client, name, 0);
    }
    let gone = |left: i64| if left == 0 { Ok(()) } else { Err(left) };
    eventually(SETTLE_WAIT, || gone(cmd!(client, "DBSIZE").int()));
    if !deleting {
        let ended = ["released", "leases_ended", "grants_taken_back"].map(|name| count(&mut client, name));
        assert_eq!(count(&mut client, "granted"), ended.iter().sum::<i64>(), "ended: {ended:?}");
    }
    assert_eq!(info_int(&mut client, "clients", "blocked_clients"), 0);
    eventually(SETTLE_WAIT, || match used(&mut client) - memory {
        more if more < 2_000_000 => Ok(()),
        more => Err(format!("{more} bytes more")),
    });
    let fence = count(&mut client, "fence");
    eprintln!("{}: {} holds, {fewest} at least each", kind.name(), holds.iter().map(Vec::len).sum::<usize>());
    server.shutdown_nosave();
    server.restart();
    let mut client = server.client();
    assert_eq!((cmd!(client, "DBSIZE").int(), count(&mut client, "held")), (0, 0));
    assert!(grant(&cmd!(client, "LOCK.ACQUIRE", "k0")).fence > fence);
}

on_every_server! {
    fn thirty_two_clients_never_share_a_lock(kind: Kind) {
        stress(kind, SECONDS, false);
    }

    fn thirty_two_clients_survive_deletions_under_them(kind: Kind) {
        stress(kind, SECONDS / 5, true);
    }
}
