//! Whatever the server's own commands do to a lock, nobody who waits for it is left hanging: the next in line is
//! granted, or all keep waiting for the lock that stands there now, or all get an error because no lock does. Every way
//! is tried as plain commands read at once, in MULTI, and in a script.

use std::time::Duration;

use crate::harness::line::{
    count, holds, queue, release, send_acquire, stand_in_line, stand_with, still_waits, take, take_for, until_count,
};
use crate::harness::{cmd, eventually, grant, on_every_server, Client, Kind, Reply, Server};

const SOON: Duration = Duration::from_secs(5);
/// Some turns of the pump: a wake-up that must not come would be here.
const A_MOMENT: Duration = Duration::from_millis(15);

/// What becomes of those who wait for `k`.
#[derive(Clone, Copy, Debug)]
enum Then {
    /// The first of them has the lock.
    Granted,
    /// They wait for this token now.
    WaitFor(&'static str),
    /// All of them are told that no lock stands there.
    WrongType,
}

/// Commands on `k`, which `a` holds. `prepared` ran before anybody waited.
#[derive(Clone, Copy, Debug)]
struct Way {
    prepared: &'static [&'static str],
    commands: &'static [&'static str],
    then: Then,
}

const fn granted(commands: &'static [&'static str]) -> Way {
    Way { prepared: &[], commands, then: Then::Granted }
}

const fn way(prepared: &'static [&'static str], commands: &'static [&'static str], then: Then) -> Way {
    Way { prepared, commands, then }
}

const OTHER_LOCK: &str = "LOCK.ACQUIRE l TOKEN h PX 60000";
/// In the other database, under the same name.
const TWIN_LOCK: &[&str] = &["SELECT 1", "LOCK.ACQUIRE k TOKEN h PX 60000", "SELECT 0"];

/// `$LOCK` and `$STRING` stand for payloads: a lock that `h` holds, and a string.
const WAYS: &[Way] = &[
    granted(&["LOCK.RELEASE k a"]),
    granted(&["DEL k"]),
    granted(&["UNLINK k"]),
    granted(&["FLUSHALL SYNC"]),
    granted(&["FLUSHALL ASYNC"]),
    granted(&["FLUSHDB SYNC"]),
    granted(&["FLUSHDB ASYNC"]),
    granted(&["RENAME k m"]),
    granted(&["RENAMENX k m"]),
    granted(&["MOVE k 1"]),
    granted(&["SWAPDB 0 1"]),
    granted(&["SWAPDB 1 0"]),
    granted(&["EXPIRE k -1"]),
    granted(&["PEXPIREAT k 1"]),
    granted(&["SORT none STORE k"]),
    granted(&["SUNIONSTORE k none"]),
    granted(&["SET k v", "DEL k"]),
    granted(&["DEL k", "LOCK.ACQUIRE k TOKEN x"]),
    granted(&["FLUSHALL", "LOCK.ACQUIRE k TOKEN x"]),
    granted(&["RENAME k m", "LOCK.ACQUIRE k TOKEN x"]),
    granted(&["SWAPDB 0 1", "LOCK.ACQUIRE k TOKEN x"]),
    granted(&["SET k v", "DEL k", "LOCK.EXTEND k x"]),
    granted(&["DEL k", "LOCK.RELEASE k x"]),
    way(&[OTHER_LOCK], &["RENAME l k", "LOCK.RELEASE k h"], Then::Granted),
    way(&[OTHER_LOCK], &["RENAME l k"], Then::WaitFor("h")),
    way(&[OTHER_LOCK], &["DEL k", "RENAME l k"], Then::WaitFor("h")),
    way(&[OTHER_LOCK], &["COPY l k REPLACE"], Then::WaitFor("a")),
    way(TWIN_LOCK, &["SWAPDB 0 1"], Then::WaitFor("h")),
    way(TWIN_LOCK, &["DEL k", "SELECT 1", "MOVE k 0", "SELECT 0"], Then::WaitFor("h")),
    way(&[], &["RESTORE k 0 $LOCK REPLACE"], Then::WaitFor("h")),
    way(&[], &["SET k v", "RESTORE k 0 $LOCK REPLACE"], Then::WaitFor("h")),
    way(&[], &["RENAME k m", "RENAME m k"], Then::WaitFor("a")),
    way(&[], &["MOVE k 1", "SELECT 1", "MOVE k 0", "SELECT 0"], Then::WaitFor("a")),
    way(&[], &["SWAPDB 0 1", "SWAPDB 0 1"], Then::WaitFor("a")),
    way(&[], &["EXPIRE k 100"], Then::WaitFor("a")),
    way(&[], &["SET k v PX 60000"], Then::WaitFor("v")),
    way(&["SET s v PX 60000"], &["RENAME s k"], Then::WaitFor("v")),
    way(&[], &["SET k v PX 60000", "PERSIST k"], Then::WrongType),
    way(&[], &["SET k v"], Then::WrongType),
    way(&[], &["DEL k", "HSET k f v"], Then::WrongType),
    way(&["SET s v"], &["RENAME s k"], Then::WrongType),
    way(&["SET s v"], &["COPY s k REPLACE"], Then::WrongType),
    way(&["SET s v"], &["BITOP NOT k s"], Then::WrongType),
    way(&["RPUSH list 2 1"], &["SORT list STORE k"], Then::WrongType),
    way(&["SADD set a b"], &["SUNIONSTORE k set"], Then::WrongType),
    way(&[], &["RESTORE k 0 $STRING REPLACE"], Then::WrongType),
    way(&["SELECT 1", "SET k v", "SELECT 0"], &["SWAPDB 0 1"], Then::WrongType),
    way(&["SELECT 1", "SET k v", "SELECT 0"], &["DEL k", "SELECT 1", "MOVE k 0", "SELECT 0"], Then::WrongType),
];

/// How the commands reach the server.
#[derive(Clone, Copy, Debug)]
enum Mode {
    Pipeline,
    Multi,
    Script,
}

/// Calls the commands it is given, each as a count and that many words.
const RUN_ALL: &str = "local at = 1 \
    while at <= #ARGV do \
        local words = tonumber(ARGV[at]) \
        redis.pcall(unpack(ARGV, at + 1, at + words)) \
        at = at + words + 1 \
    end";

struct Payloads {
    lock: Vec<u8>,
    string: Vec<u8>,
}

impl Payloads {
    fn make(client: &mut Client) -> Self {
        take(client, "lock", "h");
        cmd!(client, "SET", "string", "v").ok();
        let mut dump = |key: &str| cmd!(client, "DUMP", key).bulk().to_vec();
        Self { lock: dump("lock"), string: dump("string") }
    }

    fn words(&self, command: &str) -> Vec<Vec<u8>> {
        let word = |word: &str| match word {
            "$LOCK" => self.lock.clone(),
            "$STRING" => self.string.clone(),
            other => other.into(),
        };
        command.split(' ').map(word).collect()
    }
}

fn run(client: &mut Client, mode: Mode, commands: Vec<Vec<Vec<u8>>>) {
    match mode {
        Mode::Pipeline => {
            client.pipeline(commands);
        }
        Mode::Multi => {
            let (begin, end) = (vec![b"MULTI".to_vec()], vec![b"EXEC".to_vec()]);
            let replies = client.pipeline([vec![begin], commands, vec![end]].concat());
            assert!(matches!(replies.last(), Some(Reply::Array(_))), "{replies:?}");
        }
        Mode::Script => {
            let mut words = vec![b"EVAL".to_vec(), RUN_ALL.into(), b"0".to_vec()];
            for command in commands {
                words.push(command.len().to_string().into_bytes());
                words.extend(command);
            }
            assert!(client.cmd(&words).is_null());
        }
    }
}

fn try_way(server: &Server, client: &mut Client, payloads: &Payloads, mode: Mode, way: &Way) {
    // The last line of a failed test's output: a reply that never comes does not say what it is missed for.
    let what = format!("{mode:?} {way:?}");
    eprintln!("{what}");
    take(client, "k", "a");
    for command in way.prepared {
        assert!(!client.cmd(&payloads.words(command)).is_error());
    }
    let mut line = ["first", "second"].map(|token| stand_in_line(server, "k", token));
    run(client, mode, way.commands.iter().map(|command| payloads.words(command)).collect());
    match way.then {
        Then::Granted => serve_both(client, &mut line, &what),
        Then::WaitFor(holder) => {
            assert!(holds(client, "k", holder), "{what}");
            assert_eq!(line[0].try_recv(A_MOMENT), None, "{what}");
            release(client, "k", holder);
            serve_both(client, &mut line, &what);
        }
        Then::WrongType => {
            for waiter in &mut line {
                assert!(waiter.recv().err().starts_with("WRONGTYPE"), "{what}");
                assert!(cmd!(waiter, "PING").is("PONG"), "{what}");
            }
        }
    }
    assert_eq!(count(client, "waiting"), 0, "{what}");
    cmd!(client, "FLUSHALL").ok();
}

fn serve_both(client: &mut Client, line: &mut [Client; 2], what: &str) {
    let [first, second] = line;
    assert_eq!(grant(&first.recv()).token, b"first", "{what}");
    assert!(holds(client, "k", "first"), "{what}");
    assert_eq!(second.try_recv(Duration::ZERO), None, "{what}");
    release(client, "k", "first");
    assert_eq!(grant(&second.recv()).token, b"second", "{what}");
}

fn try_all(kind: Kind, mode: Mode) {
    let server = Server::start(kind);
    let mut client = server.client();
    let payloads = Payloads::make(&mut client);
    cmd!(client, "FLUSHALL").ok();
    for way in WAYS {
        try_way(&server, &mut client, &payloads, mode, way);
    }
    assert_eq!(cmd!(client, "DBSIZE").int(), 0);
}

on_every_server! {
    fn no_plain_command_leaves_a_waiter_hanging(kind: Kind) {
        try_all(kind, Mode::Pipeline);
    }

    fn no_transaction_leaves_a_waiter_hanging(kind: Kind) {
        try_all(kind, Mode::Multi);
    }

    fn no_script_leaves_a_waiter_hanging(kind: Kind) {
        try_all(kind, Mode::Script);
    }

    fn waiters_wait_on_through_a_reload(kind: Kind) {
        let server = Server::builder(kind).arg("appendonly", "yes").start();
        let mut client = server.client();
        let fence = take(&mut client, "k", "a").fence;
        let waiting = ["b", "c", "d"].map(|token| stand_with(&server, "k", token, &["BLOCK", "0", "LABEL", token]));
        for (reload, mut waiter, next) in [("RELOAD", "b"), ("LOADAOF", "c"), ("RELOAD", "d")]
            .into_iter()
            .zip(waiting)
            .map(|((reload, next), waiter)| (reload, waiter, next))
        {
            // The file is to hold all that was done so far.
            cmd!(client, "DEBUG", reload).ok();
            assert_eq!(queue(&mut client, "k").first().map(String::as_str), Some(next));
            assert_eq!(waiter.try_recv(A_MOMENT), None);
            let holder = ["a", "b", "c"].into_iter().find(|token| holds(&mut client, "k", token));
            release(&mut client, "k", holder.expect("the holder was loaded again"));
            let granted = grant(&waiter.recv());
            assert_eq!(granted.token, next.as_bytes());
            assert!(granted.fence > fence);
        }
    }

    fn a_reload_that_finds_no_lock_serves_the_line(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        cmd!(client, "SAVE").ok();
        take(&mut client, "k", "a");
        let mut waiter = stand_in_line(&server, "k", "b");
        cmd!(client, "DEBUG", "RELOAD", "NOSAVE").ok();
        assert_eq!(grant(&waiter.recv()).token, b"b");
    }

    fn a_lock_that_migrates_away_leaves_its_name_to_the_line(kind: Kind) {
        let (server, other) = (Server::start(kind), Server::start(kind));
        let mut client = server.client();
        take(&mut client, "k", "a");
        let mut waiter = stand_in_line(&server, "k", "b");
        cmd!(client, "MIGRATE", "127.0.0.1", other.port(), "k", 0, 5000).ok();
        assert_eq!(grant(&waiter.recv()).token, b"b");
        assert!(holds(&mut other.client(), "k", "a"));
    }

    fn a_line_of_a_renamed_lock_stays_with_the_name(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "a");
        let mut waiter = stand_in_line(&server, "k", "b");
        cmd!(client, "RENAME", "k", "m").ok();
        assert_eq!(grant(&waiter.recv()).token, b"b");
        assert!(holds(&mut client, "m", "a"), "its holder kept it under the new name");
        let mut behind = stand_in_line(&server, "m", "c");
        release(&mut client, "m", "a");
        assert_eq!(grant(&behind.recv()).token, b"c");
    }

    fn an_evicted_lock_is_put_back_and_its_line_stays(kind: Kind) {
        let server = Server::builder(kind).arg("maxmemory-policy", "allkeys-random").start();
        let mut client = server.client();
        let fence = take(&mut client, "k", "a").fence;
        let mut waiter = stand_in_line(&server, "k", "b");
        // The lock is the only key there is, so it is the one that goes.
        cmd!(client, "CONFIG", "SET", "maxmemory", 1).ok();
        cmd!(client, "PING");
        eventually(SOON, || match count(&mut client, "evictions_undone") {
            0 => Err(cmd!(client, "GET", "none")),
            _ => Ok(()),
        });
        cmd!(client, "CONFIG", "SET", "maxmemory", 0).ok();
        still_waits(&server, &mut waiter);
        assert_eq!(cmd!(client, "LOCK.INFO", "k").get("fence").int(), fence);
        release(&mut client, "k", "a");
        assert_eq!(grant(&waiter.recv()).token, b"b");
    }

    fn a_full_memory_stops_no_hand_over(kind: Kind) {
        let server = Server::builder(kind).arg("maxmemory-policy", "noeviction").start();
        let mut client = server.client();
        take_for(&mut client, "k", "a", 800);
        let mut at_lease_end = stand_in_line(&server, "k", "b");
        let mut at_release = stand_in_line(&server, "k", "c");
        cmd!(client, "CONFIG", "SET", "maxmemory", 1).ok();
        assert!(cmd!(client, "LOCK.ACQUIRE", "l").err().starts_with("OOM"));
        assert_eq!(grant(&at_lease_end.recv()).token, b"b");
        release(&mut client, "k", "b");
        assert_eq!(grant(&at_release.recv()).token, b"c");
        release(&mut client, "k", "c");
    }

    fn waits_on_a_name_that_became_data_leave_nothing_behind(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        take(&mut client, "k", "a");
        let mut waiter = stand_in_line(&server, "k", "b");
        let mut poller = server.client();
        send_acquire(&mut poller, "k", "c", &["POLL", "10000"]);
        assert!(poller.recv().is_null());
        cmd!(client, "SET", "k", "v").ok();
        assert!(waiter.recv().err().starts_with("WRONGTYPE"));
        until_count(&mut client, "polling", 0);
        send_acquire(&mut waiter, "k", "b", &["BLOCK", "0"]);
        assert!(waiter.recv().err().starts_with("WRONGTYPE"));
        cmd!(client, "DEL", "k").int();
        take(&mut client, "k", "d");
    }
}
