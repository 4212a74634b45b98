//! One lock over five servers that know nothing of each other, by the clients of `examples/`: any two may die or stand
//! still, never are there two owners, fences rise from holder to holder, and a server that forgot sits out.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Output};
use std::thread;
use std::time::Duration;

use crate::harness::hold::{acquire, take};
use crate::harness::{cmd, eventually, on_every_server, Kind, Server};
use crate::redlock::{self, now, take_turn, token, Failure, Held, Quorum, Resource, Turn};

/// Far longer than a stall of this machine, as the deadline is.
const LEASE: Duration = Duration::from_secs(30);
const PATIENCE: Duration = Duration::from_secs(2);
/// Where servers stand still, every question takes so long; a stall of this machine only costs another try.
const BRIEF: Duration = Duration::from_millis(200);
const WAIT: Duration = Duration::from_secs(60);
const LONG_MS: u64 = 600_000;
const GRACE_MS: i64 = 600_000;
const SOON: Duration = Duration::from_secs(10);
const NO_WAIT: Duration = Duration::ZERO;
const SERVERS: usize = 5;

fn five(kind: Kind) -> Vec<Server> {
    (0..SERVERS).map(|_| Server::start(kind)).collect()
}

fn addresses(servers: &[Server]) -> Vec<SocketAddr> {
    servers.iter().map(|server| SocketAddr::from((Ipv4Addr::LOCALHOST, server.port()))).collect()
}

fn quorum(servers: &[Server]) -> Quorum {
    Quorum::new(&addresses(servers), LEASE, PATIENCE, 2 * LEASE)
}

#[track_caller]
fn lock(quorum: &Quorum, key: &str) -> Held {
    quorum.lock(key, &token(), WAIT).unwrap_or_else(|failure| panic!("{key}: {failure:?}"))
}

/// The fence of a held lock on each of these servers; 0 where it is free.
fn fences(servers: &[Server], key: &str) -> Vec<u64> {
    let fence = |server: &Server| match cmd!(server.client(), "LOCK.INFO", key) {
        seen if seen.is_null() => 0,
        seen => u64::try_from(seen.get("fence").int()).expect("a fence"),
    };
    servers.iter().map(fence).collect()
}

/// Clients that take turns until each had as many; meanwhile something happens to the servers.
fn contend(servers: &[SocketAddr], rounds: usize, meanwhile: impl FnOnce()) -> Vec<Turn> {
    let resource = Resource::default();
    thread::scope(|scope| {
        let client = |_| {
            let resource = &resource;
            scope.spawn(move || {
                let quorum = Quorum::new(servers, LEASE, BRIEF, 2 * LEASE);
                let turn = |_| take_turn(&quorum, "k", resource, WAIT).expect("a turn");
                (0..rounds).map(turn).collect::<Vec<_>>()
            })
        };
        let started: Vec<_> = (0..3).map(client).collect();
        meanwhile();
        started.into_iter().flat_map(|client| client.join().expect("a client")).collect()
    })
}

/// A server that answers every ACQUIRE with one reply and everything else with another, until the test process ends.
fn scripted(acquire: &'static str, other: &'static str) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let address = listener.local_addr().expect("its address");
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut command = [0; 1024];
                // Clients wait for each reply, so a command comes alone.
                while let Ok(1..) = stream.read(&mut command) {
                    let asks = command.windows(7).any(|word| word == b"ACQUIRE");
                    if stream.write_all(if asks { acquire } else { other }.as_bytes()).is_err() {
                        break;
                    }
                    command.fill(0);
                }
            });
        }
    });
    address
}

/// Runs the client in Python to its end.
fn python(servers: &[SocketAddr], options: &[&str]) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/redlock.py");
    let servers = servers.iter().map(ToString::to_string);
    let mut python = Command::new("python3");
    python.arg(script).args(servers).args(options).output().unwrap_or_else(|error| panic!("python3: {error}"))
}

#[track_caller]
fn summary(output: &Output) -> String {
    let (said, failed) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}{failed}");
    said.lines().last().unwrap_or_default().to_owned()
}

on_every_server! {
    fn a_majority_has_the_highest_fence_before_the_lock_is_held(kind: Kind) {
        let mut servers = five(kind);
        // One server is hours ahead of the others.
        let mut ahead = servers[2].client();
        let high = take(&mut ahead, "other", "t", LONG_MS).fence + 360_000_000;
        assert!(cmd!(ahead, "LOCK.EXTEND", "other", "t", "FENCE", high).int() > 0);
        let first = lock(&quorum(&servers), "k");
        assert!(first.fence > high as u64, "{first:?}");
        assert_eq!(fences(&servers, "k"), [first.fence; SERVERS]);
        quorum(&servers).release("k", &first.token);
        assert_eq!(fences(&servers, "k"), [0; SERVERS]);
        // The next majority is without the server whose fence that was, and one more.
        servers[2].kill9();
        servers[4].kill9();
        let next = lock(&quorum(&servers), "k");
        assert!(next.fence > first.fence, "{next:?} after {first:?}");
    }

    fn two_of_five_may_die_and_three_may_not(kind: Kind) {
        let mut servers = five(kind);
        let clients = quorum(&servers);
        let mut held = lock(&clients, "k");
        let mut fence = held.fence;
        for dead in [1, 3] {
            servers[dead].kill9();
            clients.renew(&mut held).expect("a majority is left");
            assert!(held.until > now());
            assert_eq!(clients.lock("k", &token(), NO_WAIT).expect_err("it is held"), Failure::Held);
            clients.release("k", &held.token);
            held = lock(&clients, "k");
            assert!(held.fence > fence, "{held:?} after {fence}");
            fence = held.fence;
        }
        servers[0].kill9();
        assert_eq!(clients.renew(&mut held), Err(Failure::Lost));
        clients.release("k", &held.token);
        assert_eq!(clients.lock("k", &token(), NO_WAIT).expect_err("too few"), Failure::NoMajority);
        let alive = [servers.remove(4), servers.remove(2)];
        assert_eq!(fences(&alive, "k"), [0, 0], "nothing is left of a try that failed");
    }

    fn two_of_five_may_stand_still_and_three_may_not(kind: Kind) {
        let servers = five(kind);
        // A deadline that is over before the harness loses patience, and still beyond a stall.
        let clients = Quorum::new(&addresses(&servers), LEASE, PATIENCE / 2, 2 * LEASE);
        servers[0].sigstop();
        servers[1].sigstop();
        let mut held = clients.lock("k", &token(), WAIT).expect("a majority");
        clients.renew(&mut held).expect("a majority");
        servers[2].sigstop();
        assert_eq!(clients.renew(&mut held), Err(Failure::Lost));
        assert_eq!(clients.lock("k2", &token(), NO_WAIT).expect_err("too few"), Failure::NoMajority);
        servers[..3].iter().for_each(Server::sigcont);
        clients.release("k", &held.token);
        // What a stopped server had been sent is done by now, or its lease bounds it: another name is free for sure.
        let next = clients.lock("k3", &token(), WAIT).expect("all are back");
        assert!(next.fence > held.fence);
    }

    fn clients_that_contend_are_never_two_owners(kind: Kind) {
        let mut servers = five(kind);
        let ports = addresses(&servers);
        let mut turns = contend(&ports, 4, || {
            servers[0].kill9();
            servers[1].sigstop();
        });
        assert_eq!(turns.len(), 12);
        redlock::check(&mut turns).unwrap_or_else(|reason| panic!("{reason}"));
        servers[1].sigcont();
    }

    /// Three servers hold a lock and a fourth try of the same token finds them: its own, not another's.
    fn a_lost_reply_costs_nothing(kind: Kind) {
        let servers = five(kind);
        let (clients, token) = (quorum(&servers), token());
        for server in &servers[..3] {
            take(&mut server.client(), "k", &token, LONG_MS);
        }
        let held = clients.lock("k", &token, NO_WAIT).expect("it is this token's");
        assert_eq!(fences(&servers, "k"), [held.fence; SERVERS]);
    }

    fn who_waits_gets_it_when_it_is_given_back(kind: Kind) {
        let servers = five(kind);
        let clients = quorum(&servers);
        let held = lock(&clients, "k");
        thread::scope(|scope| {
            let next = scope.spawn(|| lock(&quorum(&servers), "k"));
            let refused = || servers.iter().all(|server| crate::harness::line::count(&mut server.client(), "refused") > 0);
            eventually(SOON, || refused().then_some(()).ok_or("not asked yet"));
            clients.release("k", &held.token);
            assert!(next.join().expect("the next").fence > held.fence);
        });
    }

    fn a_lock_that_a_majority_lost_is_lost(kind: Kind) {
        let servers = five(kind);
        let clients = quorum(&servers);
        let mut held = lock(&clients, "k");
        for server in &servers[..2] {
            assert_eq!(cmd!(server.client(), "DEL", "k").int(), 1);
        }
        clients.renew(&mut held).expect("three have it");
        // Those two have it again, and from the next renewal on with its fence.
        clients.renew(&mut held).expect("five have it");
        assert!(fences(&servers, "k").iter().all(|&fence| fence >= held.fence));
        for server in &servers[1..4] {
            assert_eq!(cmd!(server.client(), "DEL", "k").int(), 1);
        }
        assert_eq!(clients.renew(&mut held), Err(Failure::Lost));
    }

    fn renewals_end_with_the_longest_hold(kind: Kind) {
        let servers = five(kind);
        let clients = Quorum::new(&addresses(&servers), LEASE, PATIENCE, LEASE);
        let mut held = lock(&clients, "k");
        let until = held.until;
        assert_eq!(clients.renew(&mut held), Err(Failure::MaxHold));
        assert_eq!(held.until, until, "held until then all the same");
        // And no server would go beyond: the cap is theirs.
        for server in &servers {
            let left = cmd!(server.client(), "LOCK.EXTEND", "k", &held.token, "PX", LONG_MS).int();
            assert!((1..=LEASE.as_millis() as i64).contains(&left), "{left}");
        }
    }

    /// A majority has a lock, and one of it restarts empty. If that one gives locks out, a second majority gets it too.
    fn a_server_that_forgot_sits_out_with_grace(kind: Kind) {
        for (grace_ms, expected) in [(GRACE_MS, Err(Failure::NoMajority)), (0, Ok(()))] {
            let mut servers = five(kind);
            for server in &mut servers[..2] {
                server.kill9();
            }
            let mut client = servers[2].client();
            cmd!(client, "CONFIG", "SET", "lock.grace", grace_ms).ok();
            cmd!(client, "CONFIG", "REWRITE").ok();
            cmd!(client, "CONFIG", "SET", "lock.grace", 0).ok();
            let held = lock(&quorum(&servers), "k");
            servers[..2].iter_mut().for_each(Server::restart);
            servers[2].kill9();
            servers[2].restart();
            let second = quorum(&servers).lock("k", &token(), NO_WAIT);
            assert_eq!(second.map(|_| ()), expected, "{held:?} with a grace of {grace_ms} ms");
            let tried = acquire(&mut servers[2].client(), "other", "t", LONG_MS);
            assert_eq!(tried.is_error(), grace_ms > 0, "{tried:?}");
        }
    }

    fn both_examples_run_as_they_say(kind: Kind) {
        let mut servers = five(kind);
        let said = "turns, one owner at a time, every fence higher than the last";
        let args = |servers: &[Server]| addresses(servers).iter().map(ToString::to_string).collect::<Vec<_>>();
        let options = ["clients=2", "rounds=3", "lease=30000", "deadline=200"];
        let words = |servers: &[Server]| [args(servers), options.map(str::to_owned).to_vec()].concat();
        assert_eq!(redlock::run(&words(&servers)), Ok(format!("6 {said}")));
        assert_eq!(summary(&python(&addresses(&servers), &options)), format!("6 {said}"));
        servers[0].kill9();
        servers[3].sigstop();
        assert_eq!(redlock::run(&words(&servers)), Ok(format!("6 {said}")));
        assert_eq!(summary(&python(&addresses(&servers), &options)), format!("6 {said}"));
        servers[1].kill9();
        let few = [&options[..], &["lease=1000", "deadline=300"]].concat();
        let failed = python(&addresses(&servers), &few);
        assert!(!failed.status.success() && String::from_utf8_lossy(&failed.stderr).contains("NotHeld"), "{failed:?}");
        let few = [args(&servers), vec!["lease=1000".to_owned(), "deadline=300".to_owned()]].concat();
        assert!(redlock::run(&few).expect_err("too few").contains("NoMajority"));
        servers[3].sigcont();
    }
}

#[test]
fn a_history_with_two_owners_or_a_fence_that_falls_is_rejected() {
    let turn = |fence, from, to| Turn { fence, from: Duration::from_millis(from), to: Duration::from_millis(to) };
    assert_eq!(redlock::check(&mut [turn(2, 5, 6), turn(1, 1, 5)]), Ok(()));
    assert!(redlock::check(&mut [turn(1, 1, 5), turn(2, 4, 6)]).is_err());
    assert!(redlock::check(&mut [turn(2, 1, 5), turn(2, 5, 6)]).is_err());
    let resource = Resource::default();
    assert!(resource.write(2) && resource.write(2) && resource.write(3) && !resource.write(2));
}

/// Such a server may have granted after its client gave up waiting, under a fence higher than the one written back.
#[test]
fn a_server_whose_grant_was_not_looked_at_confirms_nothing() {
    const GRANT: &str = "*5\r\n$1\r\nt\r\n:7\r\n:30000\r\n:0\r\n:1\r\n";
    const LEFT: &str = ":30000\r\n";
    let (sound, loses, late) = (scripted(GRANT, LEFT), scripted(GRANT, ":0\r\n"), scripted("-LOADING x\r\n", LEFT));
    let lock = |servers: &[SocketAddr]| Quorum::new(servers, LEASE, PATIENCE, LEASE).lock("k", &token(), NO_WAIT);
    assert_eq!(lock(&[sound, loses, late]).expect_err("one confirmed"), Failure::NoMajority);
    assert_eq!(lock(&[sound, sound, late]).expect("two confirmed").fence, 7);
    let options = ["clients=1", "rounds=1", "lease=1000", "deadline=500"];
    let failed = python(&[sound, loses, late], &options);
    assert!(String::from_utf8_lossy(&failed.stderr).contains("NotHeld"), "{failed:?}");
    assert!(summary(&python(&[sound, sound, late], &options)).starts_with("1 turns"));
}
