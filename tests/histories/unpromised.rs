//! What is not promised does happen, and the checker sees it. If these failed, the runs that find nothing would prove
//! nothing.

use std::fs::{self, OpenOptions};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use super::harness::{args, cmd, grant, let_pass, on_every_server, Client, Kind, Reply, Server};
use super::history::{History, Hold, Promise};

const LONG_MS: u64 = 60_000;
const LEASE_MS: u64 = 30;
const WRITERS: usize = 6;
const WRITES: usize = 40;

/// Takes a lock for long.
fn take(server: &Server, token: &str, safe: bool) -> Hold {
    let invoked = Instant::now();
    let given = grant(&cmd!(server.client(), "LOCK.ACQUIRE", "job", "TOKEN", token, "PX", LONG_MS));
    let until = invoked + Duration::from_millis((given.waited + given.ttl).unsigned_abs());
    let (key, token) = ("job".to_owned(), token.to_owned());
    Hold { key, token, fence: given.fence, invoked, returned: Instant::now(), until, safe }
}

/// The checker sees two owners, and that nobody promised there would not be.
fn assert_two_owners(first: Hold, second: Hold) {
    let history = History { holds: vec![first, second], ..History::default() };
    let found = history.check();
    let [violation] = found.as_slice() else { panic!("{found:#?}") };
    assert_eq!((violation.promise, violation.promised), (Promise::Exclusion, false));
}

/// A resource that takes whatever comes, and one that takes no fence lower than the last.
#[derive(Default)]
struct Resource {
    unfenced: u64,
    fenced: u64,
    fence: i64,
    /// Writes that the fenced one took.
    taken: u64,
}

/// Reads under the lock, is paused now and then, writes one more. What it wrote to each.
fn write_on(server: &Server, resource: &Mutex<Resource>, number: usize) -> u64 {
    let mut client = server.client();
    let mut wrote = 0;
    for n in 0..WRITES {
        let token = format!("{number}-{n}");
        let words = args!["LOCK.ACQUIRE", "job", "TOKEN", token, "PX", LEASE_MS, "BLOCK", 5_000];
        let reply = client.cmd(&words);
        if !matches!(reply, Reply::Array(_)) {
            continue;
        }
        let fence = grant(&reply).fence;
        let (unfenced, fenced) = {
            let mut resource = resource.lock().expect("no writer failed");
            // A read shows the fence too: from here on nobody older writes.
            let is_old = resource.fence > fence;
            resource.fence = resource.fence.max(fence);
            (resource.unfenced, (!is_old).then_some(resource.fenced))
        };
        if n % 4 == number % 4 {
            let_pass(Duration::from_millis(2 * LEASE_MS));
        }
        let mut resource = resource.lock().expect("no writer failed");
        resource.unfenced = unfenced + 1;
        wrote += 1;
        if let Some(read) = fenced.filter(|_| resource.fence <= fence) {
            resource.fenced = read + 1;
            resource.taken += 1;
        }
        drop(resource);
        release(&mut client, &token);
    }
    wrote
}

fn release(client: &mut Client, token: &str) {
    cmd!(client, "LOCK.RELEASE", "job", token).int();
}

on_every_server! {
    /// appendfsync no: what the kernel had not written when the power went is gone.
    fn power_loss_without_fsync_gives_a_lock_away_that_is_held(kind: Kind) {
        let mut server = Server::builder(kind).arg("appendonly", "yes").arg("appendfsync", "no").start();
        cmd!(server.client(), "SET", "on", "disk").ok();
        let dir = server.dir().join("appendonlydir");
        let parts = fs::read_dir(dir).expect("an append-only directory").map(|part| part.expect("a file").path());
        let part = parts.filter(|path| path.to_string_lossy().ends_with(".incr.aof")).max().expect("a part");
        let written = fs::metadata(&part).expect("the file").len();
        let first = take(&server, "first", false);
        server.kill9();
        let file = OpenOptions::new().write(true).open(&part).expect("open the file");
        file.set_len(written).expect("cut the file");
        server.restart();
        let second = take(&server, "second", true);
        assert!(second.fence > first.fence, "fences rise even so");
        assert_two_owners(first, second);
    }

    /// Without WAIT a replica may not have it.
    fn a_failover_that_lost_a_grant_gives_it_to_another(kind: Kind) {
        let mut primary = Server::start(kind);
        let replica = Server::start(kind);
        replica.replica_of(&primary);
        // It stands still and its link is cut: what comes now, it never gets.
        replica.sigstop();
        let mut client = primary.client();
        assert_eq!(cmd!(client, "CLIENT", "KILL", "TYPE", "replica").int(), 1);
        let first = take(&primary, "first", false);
        primary.kill9();
        replica.sigcont();
        replica.promote();
        let second = take(&replica, "second", true);
        assert!(second.fence > first.fence, "fences rise even so");
        assert_two_owners(first, second);
    }

    fn paused_writers_lose_unfenced_writes_and_never_fenced_ones(kind: Kind) {
        let server = Server::start(kind);
        let resource = Mutex::new(Resource::default());
        let wrote: u64 = thread::scope(|scope| {
            let (server, resource) = (&server, &resource);
            let writers: Vec<_> =
                (0..WRITERS).map(|number| scope.spawn(move || write_on(server, resource, number))).collect();
            writers.into_iter().map(|writer| writer.join().expect("a writer")).sum()
        });
        let resource = resource.into_inner().expect("no writer failed");
        assert!(resource.unfenced < wrote, "no unfenced write was lost, of {wrote}");
        assert_eq!(resource.fenced, resource.taken, "a fenced write was lost");
        assert!(resource.taken > 0 && resource.taken < wrote, "{} of {wrote}", resource.taken);
    }
}
