//! What is not promised does happen, and the checker sees it. If these failed, the runs that find nothing would prove
//! nothing.

use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use super::harness::{
    args, cmd, eventually, grant, let_pass, on_every_server, send, Client, Kind, Proxy, Reply, Server,
};
use super::history::{History, Hold, Promise};

const LONG_MS: u64 = 60_000;
/// Ends within a test, and outlasts a stall of the machine.
const SHORT_MS: u64 = 3_000;
const LEASE_MS: u64 = 30;
const SOON: Duration = Duration::from_secs(30);
const WRITERS: usize = 6;
const WRITES: usize = 40;

/// Takes the lock for long.
fn take(server: &Server, token: &str, safe: bool) -> Hold {
    let hold = try_take(&mut server.client(), token, LONG_MS).expect("it is free");
    Hold { safe, known: safe, ..hold }
}

/// Takes the lock if nobody has it.
fn try_take(client: &mut Client, token: &str, lease_ms: u64) -> Option<Hold> {
    let invoked = Instant::now();
    let reply = cmd!(client, "LOCK.ACQUIRE", "job", "TOKEN", token, "PX", lease_ms);
    if reply.is_null() {
        return None;
    }
    let (given, returned) = (grant(&reply), Instant::now());
    let until = invoked + Duration::from_millis((given.waited + given.ttl).unsigned_abs());
    let (key, token) = ("job".to_owned(), token.to_owned());
    Some(Hold { key, token, fence: given.fence, invoked, returned, until, safe: true, known: true })
}

/// The checker sees two owners, and that nobody promised there would not be.
fn assert_two_owners(first: Hold, second: Hold) {
    let history = History { holds: vec![first, second], ..History::default() };
    let found = history.check();
    assert!(found.iter().any(|found| found.promise == Promise::Exclusion), "{found:?}");
    assert!(found.iter().all(|found| !found.promised), "{found:?}");
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

    /// A primary that is cut off does not know of its successor, and extends what that gives to another. An extension
    /// that does not change the length of a lease is not replicated, so WAIT behind it tells nothing.
    fn a_primary_that_is_cut_off_extends_a_lock_that_is_anothers(kind: Kind) {
        let (primary, replica) = (Server::start(kind), Server::start(kind));
        let link = Proxy::to(primary.port());
        replica.replica_by(link.port(), &primary);
        let mut client = primary.client();
        let mut first = try_take(&mut client, "first", SHORT_MS).expect("it is free");
        assert_eq!(cmd!(client, "WAIT", 1, 10_000).int(), 1);
        link.cut();
        replica.promote();
        // It is held there, as long as it was said to be, and then another's.
        let mut other = replica.client();
        let (end, mut counted) = (Instant::now() + SOON, false);
        let second = loop {
            assert!(Instant::now() < end, "still held");
            let sent = Instant::now();
            let left = cmd!(client, "LOCK.EXTEND", "job", "first", "PX", SHORT_MS).int();
            assert!(left > 0, "this machine stood still for {SHORT_MS} ms");
            counted |= cmd!(client, "WAIT", 1, 1).int() == 1;
            first.until = sent + Duration::from_millis(left.unsigned_abs());
            if let Some(second) = try_take(&mut other, "second", LONG_MS) {
                break second;
            }
            let_pass(Duration::from_millis(50));
        };
        // Redis 7.0 waits for all that there is to replicate, whoever wrote it.
        assert!(counted || kind == Kind::Redis70, "WAIT counts what was there before");
        assert!(second.fence > first.fence, "fences rise even so");
        first.safe = false;
        assert_two_owners(first, second);
    }

    /// However long that was: a grace of the new primary may be over. `min-replicas-to-write` goes by what it knows.
    fn a_primary_that_stood_still_grants_before_it_learns_of_its_successor(kind: Kind) {
        let (primary, replica) = (Server::start(kind), Server::start(kind));
        let mut client = primary.client();
        cmd!(client, "CONFIG", "SET", "min-replicas-to-write", 1, "min-replicas-max-lag", 1).ok();
        // What it hears of first is chance, but for what came first as it stood still.
        eventually(SOON, || {
            replica.replica_of(&primary);
            eventually(SOON, || match cmd!(client, "DEL", "job") {
                reply if reply.is_error() => Err(reply),
                _ => Ok(()),
            });
            primary.sigstop();
            let invoked = Instant::now();
            send!(client, "LOCK.ACQUIRE", "job", "TOKEN", "first", "PX", LONG_MS);
            replica.promote();
            let second = take(&replica, "second", true);
            primary.sigcont();
            let reply = client.recv();
            if reply.is_error() {
                return Err(reply);
            }
            let given = grant(&reply);
            let until = invoked + Duration::from_millis(given.ttl.unsigned_abs());
            let token = "first".to_owned();
            let first = Hold { token, fence: given.fence, invoked, until, safe: false, known: false, ..second.clone() };
            assert_two_owners(second, Hold { returned: Instant::now(), ..first });
            Ok(())
        });
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
