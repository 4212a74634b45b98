//! What a lock costs beside what people use today, on one server in one run.
//!
//! `make bench` measures it all, prints it and rewrites its section of docs/benchmarks.md and docs/pairs.svg, in less than
//! ten minutes. `make bench-check` measures for a shorter time and fails if a ratio has fallen behind its target. By hand:
//! `cargo bench --bench pairs -- [--quick] [--check] [--expiry] [SERVER ...]` with servers such as `valkey-8.1`; `--expiry`
//! measures only leases that end together, and what is not a whole run only prints. Contenders take turns, so that whatever
//! else the machine does hits all of them.

// A benchmark stops at the first surprise, and the tests' harness signals processes.
#![allow(unsafe_code, clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unwrap_used)]

mod contender;
#[path = "../shared/docs.rs"]
mod docs;
mod expiry;
mod finding;
#[path = "../../tests/blackbox/harness/mod.rs"]
mod harness;
mod idle;
mod latency;
#[path = "../shared/machine.rs"]
mod machine;
mod memory;
mod pipe;
mod plot;
mod readers;
mod report;
mod rounds;
#[path = "../shared/wire.rs"]
mod wire;

use contender::{Contender, FAILED_MODULE, FAILED_STRING, MODES, MODULE, PAIR_TARGETS};
use finding::{compare, Finding};
use harness::{Builder, Kind, Server};
use rounds::Plan;

/// The servers that are measured unless others are named: the oldest and the newest.
const KINDS: [Kind; 2] = [Kind::Redis70, Kind::Valkey91];
const CONNECTIONS: usize = 8;
/// What the other kinds of hold may cost by an exclusive one, and a failed try by a failed SET NX.
const MODE_TARGET: f64 = 1.15;
const FAILED_TARGET: f64 = 1.3;

/// How much is done.
#[derive(Clone, Copy)]
struct Effort {
    plan: Plan,
    /// Locks held for their memory, and while others are taken.
    locks: usize,
    /// Leases that end in one second.
    ending: usize,
    /// Pairs that are not pipelined.
    unpipelined: usize,
    waiters: usize,
}

const FULL: Effort = Effort {
    plan: Plan { connections: 1, rounds: 80, keys: 2_560 },
    locks: 100_000,
    ending: 1_000_000,
    unpipelined: 10_000,
    waiters: 500,
};
const QUICK: Effort = Effort {
    plan: Plan { connections: 1, rounds: 10, keys: 1_280 },
    locks: 20_000,
    ending: 100_000,
    unpipelined: 1_000,
    waiters: 100,
};

/// Everything found on one kind of server.
struct Results {
    kind: Kind,
    findings: Vec<Finding>,
}

fn main() {
    // Cargo says --bench by itself.
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let asked = |name: &str| words.iter().any(|word| word == name);
    let (quick, check, only_expiry) = (asked("--quick") || asked("--check"), asked("--check"), asked("--expiry"));
    let named: Vec<Kind> = words.iter().filter(|word| !word.starts_with("--")).map(|word| kind(word)).collect();
    let whole = !quick && !only_expiry && named.is_empty();
    let load = machine::load();
    println!("{}; load before the start {load}", machine::facts());
    let kinds = if named.is_empty() { KINDS.to_vec() } else { named };
    let effort = if quick { QUICK } else { FULL };
    let results: Vec<Results> = kinds.into_iter().map(|kind| measure(kind, effort, only_expiry)).collect();
    if whole {
        plot::write(&results);
        report::write(&results, &load);
    }
    let behind: Vec<String> = results.iter().flat_map(report::behind).collect();
    println!("\n{} of the ratios have fallen behind their targets by more than a tenth", behind.len());
    behind.iter().for_each(|line| println!("{line}"));
    if check && !behind.is_empty() {
        std::process::exit(1);
    }
}

fn kind(name: &str) -> Kind {
    let known = || Kind::ALL.map(Kind::name).join(", ");
    Kind::ALL.into_iter().find(|kind| kind.name() == name).unwrap_or_else(|| panic!("{name} is none of {}", known()))
}

fn measure(kind: Kind, effort: Effort, only_expiry: bool) -> Results {
    let mut results = Results { kind, findings: Vec::new() };
    println!("\n{}\n\n{}", kind.name(), finding::HEAD);
    let mut found = |findings: Vec<Finding>| {
        findings.iter().for_each(|finding| println!("{}", finding.row()));
        results.findings.extend(findings);
    };
    if only_expiry {
        found(expiry::run(kind, effort.ending));
        return results;
    }
    let server = Server::start(kind);
    found(pairs(&server, "a pair, pipelined", effort.plan, true));
    found(pairs(&server, "a pair, 8 connections", Plan { connections: CONNECTIONS, ..effort.plan }, true));
    found(modes(&server, effort.plan));
    found(failed_tries(&server, effort.plan));
    found(readers::cpu(&server, effort.plan));
    let contenders = contender::pairs(&mut server.client());
    found(latency::run(&server, &contenders, MODULE, PAIR_TARGETS[0].0, effort.unpipelined));
    memory::hold(&server, memory::Store::Module, effort.locks);
    found(pairs(&server, &format!("a pair, {} locks held", effort.locks), effort.plan, false));
    drop(server);

    let (server, replica) = (with_aof(kind).start(), Server::start(kind));
    replica.replica_of(&server);
    let followed = pairs(&server, "a pair, AOF everysec and a replica", effort.plan, true);
    found(followed.into_iter().map(Finding::unchecked).collect());
    drop((server, replica));

    found(vec![readers::replicated(kind), idle::run(kind, effort.plan)]);
    found(memory::of_locks(kind, effort.locks));
    found(memory::of_waiters(kind, effort.waiters));
    found(expiry::run(kind, effort.ending));
    results
}

fn pairs(server: &Server, title: &str, plan: Plan, with_targets: bool) -> Vec<Finding> {
    let contenders = contender::pairs(&mut server.client());
    let readings = rounds::run(server, &contenders, plan);
    let others = contenders.iter().filter(|one| one.name != MODULE);
    let target =
        |other: &Contender| PAIR_TARGETS.iter().find(|(name, _)| *name == other.name).map(|(_, target)| *target);
    let target = |other| target(other).filter(|_| with_targets);
    others.map(|other| compare(title, &readings, MODULE, other.name, target(other))).collect()
}

fn modes(server: &Server, plan: Plan) -> Vec<Finding> {
    let contenders = contender::modes(&mut server.client());
    let readings = rounds::run(server, &contenders, plan);
    MODES
        .iter()
        .map(|(name, ..)| compare(&format!("a pair with {name}"), &readings, name, MODULE, Some(MODE_TARGET)))
        .collect()
}

fn failed_tries(server: &Server, plan: Plan) -> Vec<Finding> {
    let contenders = contender::failed_tries(&mut server.client());
    let readings = rounds::run(server, &contenders, plan);
    vec![compare("a try that fails", &readings, FAILED_MODULE, FAILED_STRING, Some(FAILED_TARGET))]
}

fn with_aof(kind: Kind) -> Builder {
    // A rewrite would fork in the middle of a round.
    Server::builder(kind).arg("appendonly", "yes").arg("appendfsync", "everysec").arg("auto-aof-rewrite-percentage", 0)
}
