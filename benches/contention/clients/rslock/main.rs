//! Drives `rslock` for the contention benchmark: a task and a connection per client, on one thread. What is said to it
//! and what it prints is described in ../../foreign.rs.

use std::cell::RefCell;
use std::io::{stdin, Write};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rslock::LockManager;

const LONG_LEASE: Duration = Duration::from_secs(10);

/// What the clients saw, in us since `clock`.
struct Seen {
    clock: Instant,
    grants: Vec<(usize, u128, u128)>,
    waits_since: Vec<Option<u128>>,
}

impl Seen {
    fn now_us(&self) -> u128 {
        self.clock.elapsed().as_micros()
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [_name, port, mode, count, span] = words.as_slice() else {
        panic!("expected: NAME PORT MODE COUNT SPAN");
    };
    let (count, span): (usize, f64) = (number(count), number(span));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let tasks = tokio::task::LocalSet::new();
    match mode.as_str() {
        "contend" => tasks.block_on(&runtime, contend(port, count, Duration::from_secs_f64(span))),
        _ => tasks.block_on(&runtime, orphan(port, count, Duration::from_secs_f64(span / 1000.0))),
    }
    // The tasks wait for a lock that nobody will release.
    std::process::exit(0);
}

fn number<T: std::str::FromStr>(word: &str) -> T {
    word.parse().unwrap_or_else(|_| panic!("not a number: {word}"))
}

fn manager(port: &str) -> LockManager {
    LockManager::new(vec![format!("redis://127.0.0.1:{port}")])
}

async fn connected(port: &str) -> LockManager {
    let manager = manager(port);
    manager.query_redis_for_key_value(b"contended").await.expect("connect");
    manager
}

async fn contend(port: &str, clients: usize, span: Duration) {
    let seen = Seen { clock: Instant::now(), grants: Vec::new(), waits_since: vec![None; clients] };
    let seen = Rc::new(RefCell::new(seen));
    let mut managers = Vec::new();
    for _ in 0..clients {
        managers.push(connected(port).await);
    }
    println!("ready");
    stdin().read_line(&mut String::new()).expect("a line");
    let start = seen.borrow().now_us();
    for (client, manager) in managers.into_iter().enumerate() {
        tokio::task::spawn_local(work(client, manager, Rc::clone(&seen)));
    }
    tokio::time::sleep(span).await;
    let seen = seen.borrow();
    println!("done {start} {}", seen.now_us());
    let mut out = std::io::stdout().lock();
    for (client, since) in seen.waits_since.iter().enumerate() {
        if let Some(since) = since {
            writeln!(out, "cut {client} {since}").expect("print");
        }
    }
    for (client, asked, granted) in &seen.grants {
        writeln!(out, "grant {client} {asked} {granted}").expect("print");
    }
    writeln!(out, "end").expect("print");
}

async fn work(client: usize, manager: LockManager, seen: Rc<RefCell<Seen>>) {
    loop {
        let asked = seen.borrow().now_us();
        seen.borrow_mut().waits_since[client] = Some(asked);
        let guard = manager.acquire("contended", LONG_LEASE).await.expect("a grant");
        {
            let mut seen = seen.borrow_mut();
            let granted = seen.now_us();
            seen.grants.push((client, asked, granted));
            seen.waits_since[client] = None;
        }
        guard.release().await;
    }
}

async fn orphan(port: &str, rounds: usize, lease: Duration) {
    let waiter = connected(port).await;
    for turn in 0..rounds {
        let name = format!("orphaned-{turn}");
        let holder = connected(port).await;
        let asked = Instant::now();
        drop(holder.acquire(name.as_str(), lease).await.expect("a grant"));
        drop(holder);
        // Those that poll get every phase of their sleep against the end of the lease.
        tokio::time::sleep(lease.mul_f64(turn as f64 / rounds as f64)).await;
        let guard = waiter.acquire(name.as_str(), lease).await.expect("a grant");
        let lag = asked.elapsed().as_micros() as i128 - lease.as_micros() as i128;
        println!("lag {} {lag}", lease.as_millis());
        guard.release().await;
    }
    println!("end");
}
