//! The power goes: what of the append-only file was not flushed is gone. What is promised of each way to flush it, and
//! that what is not promised is lost.

use std::time::{Duration, Instant};

use super::dice::Dice;
use super::harness::{cmd, eventually, grant, let_pass, on_every_server, Client, Disk, Kind, Server};
use super::history::{History, Hold, Promise};
use super::scene::{assert_kept, record, rewrite, Safety, Scene, SECONDS};

const LONG_MS: u64 = 600_000;
/// What `everysec` may lose, by its documentation.
const LOST_AT_MOST: Duration = Duration::from_secs(2);
const ROUNDS: u64 = 2;
const SOON: Duration = Duration::from_secs(60);

/// Takes locks, each by its own name, for so long. The longest time between two of them is how long the machine or the
/// server stood still.
fn take_many(client: &mut Client, round: u64, time: Duration) -> (Vec<Hold>, Duration) {
    let (start, mut holds, mut longest) = (Instant::now(), Vec::new(), Duration::ZERO);
    while start.elapsed() < time {
        let (key, invoked) = (format!("{round} {}", holds.len()), Instant::now());
        let given = grant(&cmd!(client, "LOCK.ACQUIRE", key, "TOKEN", "first", "PX", LONG_MS));
        let returned = Instant::now();
        let until = invoked + Duration::from_millis(given.ttl.unsigned_abs());
        let (token, fence) = ("first".to_owned(), given.fence);
        holds.push(Hold { key, token, fence, invoked, returned, until, safe: false, known: false });
        let_pass(Duration::from_millis(1));
        longest = longest.max(invoked.elapsed());
    }
    (holds, longest)
}

/// Another asks for the lock: none if it is still held.
fn second(client: &mut Client, hold: &Hold) -> Option<Hold> {
    let invoked = Instant::now();
    let reply = cmd!(client, "LOCK.ACQUIRE", &hold.key, "TOKEN", "second", "PX", LONG_MS);
    if reply.is_null() {
        return None;
    }
    let given = grant(&reply);
    let (token, returned) = ("second".to_owned(), Instant::now());
    let until = invoked + Duration::from_millis(given.ttl.unsigned_abs());
    Some(Hold { token, fence: given.fence, invoked, returned, until, ..hold.clone() })
}

/// How many of these a loss of power lost. Each of them has two owners then, which the checker sees.
fn lost(client: &mut Client, holds: &[Hold], lose: impl Fn(&Hold) -> bool) -> usize {
    let mut lost = 0;
    for hold in holds {
        let Some(second) = second(client, hold) else { continue };
        assert!(lose(hold), "it was told too long ago to be lost: {hold:?}");
        let history = History { holds: vec![hold.clone(), second], ..History::default() };
        let found = history.check();
        assert!(found.iter().any(|found| found.promise == Promise::Exclusion), "{found:?}");
        assert!(found.iter().all(|found| found.promise == Promise::Exclusion && !found.promised), "{found:?}");
        lost += 1;
    }
    lost
}

on_every_server! {
    /// What it acknowledged was flushed before.
    fn a_server_that_flushes_always_keeps_every_promise_over_losses_of_power(kind: Kind) {
        let disk = Disk::new();
        let mut server = Server::builder(kind).append_only("always").disk(&disk).start();
        let scene = Scene::of(server.port(), Safety::Told);
        let history = record(&scene, SECONDS, |dice: &mut Dice| {
            // A file that Redis 7.0 wrote anew tells no fences of free locks: they can fall over starts within seconds.
            if dice.percent(30) && kind != Kind::Redis70 {
                return rewrite(&server, dice);
            }
            disk.lose_power(&mut server);
            server.restart();
        });
        assert_kept(&history);
    }

    /// Grants of the last two seconds are lost, earlier ones are not, and fences rise all the same.
    fn a_server_that_flushes_every_second_loses_two_seconds_at_most(kind: Kind) {
        let disk = Disk::new();
        let mut server = Server::builder(kind).append_only("everysec").disk(&disk).start();
        let mut all = 0;
        for round in 0..ROUNDS {
            // The power does not go right after a flush each time.
            let time = LOST_AT_MOST + Duration::from_millis(600 + 350 * round);
            let (holds, still) = take_many(&mut server.client(), round, time);
            let (off, cut) = (Instant::now(), disk.lose_power(&mut server));
            server.restart();
            let late = |hold: &Hold| off.duration_since(hold.returned) < LOST_AT_MOST + still;
            let gone = lost(&mut server.client(), &holds, late);
            assert_eq!(gone > 0, cut > 0, "{gone} grants lost with {cut} bytes");
            assert!(gone < holds.len(), "all {gone} are lost");
            all += gone;
        }
        assert!(all > 0, "no loss of power lost anything");
    }

    /// What the kernel had not written by itself.
    fn a_server_that_leaves_flushing_to_the_kernel_loses_everything(kind: Kind) {
        let disk = Disk::new();
        let mut server = Server::builder(kind).append_only("no").disk(&disk).start();
        let (holds, _) = take_many(&mut server.client(), 0, Duration::from_millis(300));
        disk.lose_power(&mut server);
        server.restart();
        assert_eq!(lost(&mut server.client(), &holds, |_| true), holds.len());
    }

    /// WAITAOF tells which grants a loss of power leaves. Valkey answers it before the flush of `everysec`, to a SET too.
    fn what_waitaof_counted_is_kept(kind: Kind) {
        let disk = Disk::new();
        let fsync = if kind.is_valkey() { "always" } else { "everysec" };
        let mut server = Server::builder(kind).append_only(fsync).disk(&disk).start();
        let mut client = server.client();
        if kind == Kind::Redis70 {
            assert!(cmd!(client, "WAITAOF", 1, 0, 5_000).is_error(), "it came with 7.2");
            return;
        }
        let (early, _) = take_many(&mut client, 0, Duration::from_millis(200));
        eventually(SOON, || match cmd!(client, "WAITAOF", 1, 0, 5_000).array()[0].int() {
            1 => Ok(()),
            other => Err(other),
        });
        take_many(&mut client, 1, Duration::from_millis(200));
        disk.lose_power(&mut server);
        server.restart();
        assert_eq!(lost(&mut server.client(), &early, |_| false), 0);
    }
}
