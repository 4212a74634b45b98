//! Real clients of other libraries and of this module on the same names, against each other: never two holders, in both
//! directions, and whoever waits here is woken by what they do. What each of them sees is what docs/legacy.md says.
//!
//! A [`Partner`] is a program of `tests/interop` that drives one library. It gets an order a line and answers a line:
//!
//! * `contend NAME WORKERS ROUNDS`: each worker takes the lock so often, in a section that two cannot be in at once
//!   without being found out; `done`
//! * `acquire NAME LEASE_MS WAIT_MS`: a try if the wait is 0; `True`, or `False` if the library says so
//! * `release NAME`, `extend NAME LEASE_MS`, `owned NAME` of what was acquired last under that name
//!
//! What the library throws is answered as its type, a colon, and its first line.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use crate::harness::line::{gain, holds, release, served, stand_in_line, still_waits, take};
use crate::harness::{assert_left, cmd, eventually, let_pass, on_every_server, Client, Kind, Reply, Server};
use crate::markdown::rows;

const LEGACY: &str = include_str!("../../docs/legacy.md");
const PATIENCE: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_secs(10);
const THEIR_WORKERS: usize = 3;
const THEIR_ROUNDS: usize = 12;
const OUR_WORKERS: usize = 3;
/// Between two rounds of ours: with all of us in line all the time, one that only tries would never get it.
const PAUSE: Duration = Duration::from_millis(10);

/// A library under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Library {
    RedisPy,
    PythonRedisLock,
    Redlock,
    Redlock5,
}

impl Library {
    const fn name(self) -> &'static str {
        match self {
            Self::RedisPy => "redis-py",
            Self::PythonRedisLock => "python-redis-lock",
            Self::Redlock => "redlock",
            Self::Redlock5 => "redlock-5",
        }
    }

    /// The key that a name becomes.
    fn key(self, name: &str) -> String {
        if self == Self::PythonRedisLock {
            format!("lock:{name}")
        } else {
            name.to_owned()
        }
    }

    /// The program that drives it. What is missing is a failure that says how to get it.
    fn driver(self) -> Command {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop");
        let clients = std::env::var_os("REDIS_LOCK_CLIENTS");
        let clients = clients.map_or_else(|| crate::harness::target_dir().join("interop"), PathBuf::from);
        let installed = |language: &str, pins: &str| {
            let language_dir = clients.join(language);
            let wanted = std::fs::read(from.join(language).join(pins)).expect("the file that pins versions");
            let found = std::fs::read(language_dir.join("installed"));
            let there = found.is_ok_and(|found| found == wanted);
            assert!(there, "no clients of {language} at {}: run `make clients`", language_dir.display());
            language_dir
        };
        match self {
            Self::RedisPy | Self::PythonRedisLock => {
                let mut command = Command::new(installed("python", "requirements.txt").join("venv/bin/python"));
                command.arg(from.join("python/locks.py"));
                command
            }
            Self::Redlock | Self::Redlock5 => {
                let mut command = Command::new("node");
                command.env("NODE_PATH", installed("node", "package.json").join("node_modules"));
                command.arg(from.join("node/locks.js"));
                command
            }
        }
    }
}

/// A client of a library, in a process of its own.
struct Partner {
    library: Library,
    child: Child,
    input: ChildStdin,
    answers: Receiver<String>,
}

impl Partner {
    fn start(library: Library, server: &Server) -> Self {
        let mut command = library.driver();
        command.arg(library.name()).arg(server.port().to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("start {command:?}: {error}"));
        let (input, output) = (child.stdin.take().expect("an input"), child.stdout.take().expect("an output"));
        let (say, answers) = channel();
        // It ends with the output of the process, at the latest when that is killed.
        thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            lines.take_while(|line| say.send(line.clone()).is_ok()).for_each(drop);
        });
        Self { library, child, input, answers }
    }

    fn order(&mut self, order: &str) {
        writeln!(self.input, "{order}").unwrap_or_else(|error| panic!("{}, {order}: {error}", self.library.name()));
    }

    /// The answer to an order, if it comes within this time.
    #[track_caller]
    fn answer_within(&mut self, patience: Duration) -> Option<String> {
        match self.answers.recv_timeout(patience) {
            Ok(answer) => Some(answer),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => panic!("{} ended: its reason is above", self.library.name()),
        }
    }

    #[track_caller]
    fn answer(&mut self) -> String {
        let answer = self.answer_within(PATIENCE);
        answer.unwrap_or_else(|| panic!("no answer of {} within {PATIENCE:?}", self.library.name()))
    }

    #[track_caller]
    fn ask(&mut self, order: &str) -> String {
        self.order(order);
        self.answer()
    }

    #[track_caller]
    fn takes(&mut self, name: &str, lease_ms: u64) {
        assert_eq!(self.ask(&format!("acquire {name} {lease_ms} 0")), "True");
    }

    /// Ends the process at once, as a crash does.
    fn kill(&mut self) {
        // One that is through may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Partner {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What only one may be in at a time, as the partners have it.
#[track_caller]
fn section(client: &mut Client, name: &str) {
    let inside = cmd!(client, "INCR", format!("{name}:inside")).int();
    assert_eq!(inside, 1, "{inside} hold {name} at once");
    let count = match cmd!(client, "GET", format!("{name}:count")) {
        none if none.is_null() => 0,
        count => count.text().parse::<u64>().expect("a number"),
    };
    cmd!(client, "SET", format!("{name}:count"), count + 1).ok();
    cmd!(client, "RPUSH", format!("{name}:history"), "ours").int();
    cmd!(client, "DECR", format!("{name}:inside")).int();
}

/// Workers of both sides on one name, until the others are through.
fn contend(kind: Kind, library: Library) {
    let server = Server::start(kind);
    let mut partner = Partner::start(library, &server);
    let through = AtomicBool::new(false);
    let ours: u64 = thread::scope(|scope| {
        let workers: Vec<_> = (0..OUR_WORKERS)
            .map(|worker| {
                let (mut client, through) = (server.client(), &through);
                scope.spawn(move || {
                    let mut rounds = 0_u64;
                    while !through.load(Ordering::SeqCst) {
                        let token = format!("{worker}-{rounds}");
                        gain(&mut client, "k", &token, &["BLOCK", "0"]);
                        section(&mut client, "k");
                        release(&mut client, "k", &token);
                        rounds += 1;
                        let_pass(PAUSE);
                    }
                    rounds
                })
            })
            .collect();
        partner.order(&format!("contend k {THEIR_WORKERS} {THEIR_ROUNDS}"));
        let answer = partner.answer_within(PATIENCE);
        // Whatever it is: a scope waits for its threads.
        through.store(true, Ordering::SeqCst);
        assert_eq!(answer.as_deref(), Some("done"), "{}", library.name());
        workers.into_iter().map(|worker| worker.join().expect("a worker that was never beside another")).sum()
    });
    let mut client = server.client();
    let theirs = (THEIR_WORKERS * THEIR_ROUNDS) as u64;
    assert_eq!(cmd!(client, "GET", "k:count").text(), (ours + theirs).to_string(), "a step was lost");
    let history: Vec<String> =
        cmd!(client, "LRANGE", "k:history", 0, -1).array().iter().map(|side| side.text()).collect();
    let changes = |from: &str, to: &str| history.windows(2).filter(|pair| pair[0] == from && pair[1] == to).count();
    let (to_them, to_us) = (changes("ours", "theirs"), changes("theirs", "ours"));
    assert!(to_them >= 3 && to_us >= 3, "it went over only {to_them} and {to_us} times: {history:?}");
    assert_eq!(cmd!(client, "EXISTS", "k").int(), 0);
}

/// What they do to their lock wakes who waits for it here.
fn wakes_us(kind: Kind, library: Library) {
    let server = Server::start(kind);
    let mut client = server.client();
    let mut partner = Partner::start(library, &server);
    let key = library.key("k");
    for way in ["release", "DEL", "UNLINK", "expiry"] {
        partner.takes("k", if way == "expiry" { 1_500 } else { 60_000 });
        assert_eq!(cmd!(client, "LOCK.INFO", &key).get("mode").text(), "legacy");
        let mut waiter = stand_in_line(&server, &key, "ours");
        still_waits(&server, &mut waiter);
        match way {
            "release" => assert_eq!(partner.ask("release k"), "True"),
            "expiry" => partner.kill(),
            way => assert_eq!(cmd!(client, way, &key).int(), 1),
        }
        served(&mut waiter, "ours");
        release(&mut client, &key, "ours");
    }
}

/// While a lock of the module is held they do not get it, and then they do.
fn waits_for_us(kind: Kind, library: Library, refusal: &str) {
    let server = Server::start(kind);
    let mut client = server.client();
    let mut partner = Partner::start(library, &server);
    for options in [&[][..], &["SHARED"], &["EPHEMERAL"]] {
        gain(&mut client, "k", "ours", options);
        let told = partner.ask("acquire k 60000 0");
        assert!(told.starts_with(refusal), "{}: {told:?}", library.name());
        partner.order("acquire k 60000 30000");
        assert_eq!(partner.answer_within(Duration::from_millis(150)), None, "{options:?}");
        assert!(holds(&mut client, "k", "ours"));
        release(&mut client, "k", "ours");
        assert_eq!(partner.answer(), "True", "{options:?}");
        assert!(cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "ours").is_null());
        assert_eq!(partner.ask("release k"), "True");
    }
    // One that died frees it with its lease.
    gain(&mut client, "k", "ours", &["PX", "700"]);
    assert_eq!(partner.ask("acquire k 60000 30000"), "True");
    // And theirs can be extended and released by its token here, and by itself there.
    let token = cmd!(client, "GET", "k").bulk().to_vec();
    assert_eq!(cmd!(client, "LOCK.EXTEND", "k", &token, "PX", 90_000).int(), 90_000);
    assert_eq!(partner.ask("extend k 120000"), "True");
    assert!(cmd!(client, "LOCK.CHECK", "k", &token).int() > 90_000);
    let mut waiter = stand_in_line(&server, "k", "ours");
    assert_eq!(cmd!(client, "LOCK.RELEASE", "k", token).int(), 1);
    served(&mut waiter, "ours");
}

/// They come late: their lease is over, and the name is locked here. They are told what docs/legacy.md says, and change
/// nothing.
fn comes_late(kind: Kind, library: Library) {
    let server = Server::start(kind);
    let mut client = server.client();
    let mut partner = Partner::start(library, &server);
    let key = library.key("k");
    let orders: &[&str] = match library {
        Library::RedisPy => &["extend k 60000", "owned k", "release k"],
        Library::PythonRedisLock => &["extend k 60000", "owned k", "release k"],
        Library::Redlock | Library::Redlock5 => &["extend k 60000", "release k"],
    };
    let row = documented(library);
    partner.takes("k", 1_000);
    let mut waiter = stand_in_line(&server, &key, "ours");
    let granted = served(&mut waiter, "ours");
    for order in orders {
        let told = partner.ask(order);
        let (error, _) = told.split_once(": ").unwrap_or_else(|| panic!("{order}: {told}"));
        assert!(row.iter().any(|cell| cell.contains(error)), "{order}: {told} is not in {row:?}");
        assert_eq!(cmd!(client, "LOCK.INFO", &key).get("fence").int(), granted.fence, "{order}");
        assert_left(cmd!(client, "LOCK.CHECK", &key, "ours").int(), 60_000);
    }
}

/// The row of a library in the table of docs/legacy.md.
#[track_caller]
fn documented(library: Library) -> Vec<String> {
    let name = match library {
        Library::RedisPy => "redis-py",
        Library::PythonRedisLock => "python-redis-lock",
        Library::Redlock | Library::Redlock5 => "redlock",
    };
    let rows = rows(LEGACY, "Library | Takes it with");
    let row = rows.iter().find(|row| row[0].contains(name));
    row.unwrap_or_else(|| panic!("no row of {name} in {rows:?}")).clone()
}

on_every_server! {
    fn redis_py_and_the_module_are_never_in_together(kind: Kind) {
        contend(kind, Library::RedisPy);
    }

    fn redlock_and_the_module_are_never_in_together(kind: Kind) {
        contend(kind, Library::Redlock);
    }

    fn redlock_5_and_the_module_are_never_in_together(kind: Kind) {
        contend(kind, Library::Redlock5);
    }

    fn redis_py_wakes_who_waits_here(kind: Kind) {
        wakes_us(kind, Library::RedisPy);
    }

    fn python_redis_lock_wakes_who_waits_here(kind: Kind) {
        wakes_us(kind, Library::PythonRedisLock);
    }

    fn redlock_wakes_who_waits_here(kind: Kind) {
        wakes_us(kind, Library::Redlock);
    }

    fn redlock_5_wakes_who_waits_here(kind: Kind) {
        wakes_us(kind, Library::Redlock5);
    }

    fn redis_py_waits_for_the_module(kind: Kind) {
        waits_for_us(kind, Library::RedisPy, "False");
    }

    fn redlock_waits_for_the_module(kind: Kind) {
        waits_for_us(kind, Library::Redlock, "LockError: ");
    }

    fn redlock_5_waits_for_the_module(kind: Kind) {
        waits_for_us(kind, Library::Redlock5, "ExecutionError: ");
    }

    fn redis_py_that_comes_late_changes_nothing(kind: Kind) {
        comes_late(kind, Library::RedisPy);
    }

    fn python_redis_lock_that_comes_late_changes_nothing(kind: Kind) {
        comes_late(kind, Library::PythonRedisLock);
    }

    fn redlock_that_comes_late_changes_nothing(kind: Kind) {
        comes_late(kind, Library::Redlock);
    }

    fn redlock_5_that_comes_late_changes_nothing(kind: Kind) {
        comes_late(kind, Library::Redlock5);
    }

    /// It reads the key before it tries, so it can share names with the module in one direction only.
    fn python_redis_lock_cannot_try_a_name_that_is_locked_here(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let mut partner = Partner::start(Library::PythonRedisLock, &server);
        take(&mut client, "lock:k", "ours");
        for wait_ms in [0, 5_000] {
            let told = partner.ask(&format!("acquire k 60000 {wait_ms}"));
            assert!(told.starts_with("ResponseError: WRONGTYPE "), "{told}");
        }
        release(&mut client, "lock:k", "ours");
        partner.takes("k", 60_000);
    }

    /// What has no time to live cannot be told from data.
    fn a_lock_without_a_time_to_live_is_data(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        cmd!(client, "SET", "k", "theirs", "NX").ok();
        let told = cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "ours");
        assert!(told.err().starts_with("WRONGTYPE "), "{told:?}");
        // redlock extends by a SET with a new time to live: whoever waits goes on waiting, for that one.
        cmd!(client, "SET", "k", "theirs", "PX", 700).ok();
        let mut waiter = stand_in_line(&server, "k", "ours");
        cmd!(client, "SET", "k", "theirs", "PX", 60_000).ok();
        assert_eq!(waiter.try_recv(Duration::from_millis(1_000)), None);
        assert_eq!(cmd!(client, "DEL", "k"), Reply::Int(1));
        served(&mut waiter, "ours");
        eventually(SOON, || if holds(&mut client, "k", "ours") { Ok(()) } else { Err("not held") });
    }
}
