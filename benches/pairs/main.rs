//! `make bench`, or `cargo bench --bench pairs -- [--quick] [SERVER ...]` with servers such as `valkey-8.1`.
//!
//! What a lock costs beside what people use today, on one server in one run: CPU time of the server's main thread for
//! an acquire and a release, for a try that fails, the same with an append-only file and with many locks held; and bytes
//! a held lock. The contenders take turns, so that whatever else the machine does hits all of them. `module/this` is the
//! module's cost by the contender's of the same round: below 1 the module is cheaper. Takes some two minutes a server.

// A benchmark stops at the first surprise, and the tests' harness signals processes.
#![allow(unsafe_code, clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unwrap_used)]

mod contender;
#[path = "../../tests/blackbox/harness/mod.rs"]
mod harness;
mod machine;
mod memory;
mod rounds;
mod table;
mod wire;

use harness::{Builder, Kind, Server};
use rounds::Plan;

/// The servers that are measured unless others are named: the oldest and the newest.
const KINDS: [Kind; 2] = [Kind::Redis70, Kind::Valkey91];
const CONNECTIONS: usize = 8;

/// How much is done.
#[derive(Clone, Copy)]
struct Effort {
    plan: Plan,
    locks: usize,
}

const FULL: Effort = Effort { plan: Plan { connections: 1, rounds: 150, keys: 2_560 }, locks: 100_000 };
const QUICK: Effort = Effort { plan: Plan { connections: 1, rounds: 10, keys: 1_280 }, locks: 10_000 };

fn main() {
    // Cargo says --bench by itself.
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let effort = if words.iter().any(|word| word == "--quick") { QUICK } else { FULL };
    let named: Vec<Kind> = words.iter().filter(|word| *word != "--quick").map(|word| kind(word)).collect();
    println!("{}", machine::facts());
    for kind in if named.is_empty() { KINDS.to_vec() } else { named } {
        measure(kind, effort);
    }
}

fn kind(name: &str) -> Kind {
    let known = || Kind::ALL.map(Kind::name).join(", ");
    Kind::ALL.into_iter().find(|kind| kind.name() == name).unwrap_or_else(|| panic!("{name} is none of {}", known()))
}

fn measure(kind: Kind, effort: Effort) {
    let Effort { plan, locks } = effort;
    let many = Plan { connections: CONNECTIONS, ..plan };
    let title = |what: &str| format!("{}: {what}", kind.name());

    let server = Server::start(kind);
    let pairs = contender::pairs(&mut server.client());
    table::print(&title("acquire and release, 1 connection"), &rounds::run(&server, &pairs, plan));
    table::print(&title(&format!("the same, {CONNECTIONS} connections")), &rounds::run(&server, &pairs, many));
    let tries = contender::failed_tries(&mut server.client());
    table::print(&title("a try that fails"), &rounds::run(&server, &tries, plan));
    memory::hold(&server, memory::Store::Module, locks);
    table::print(&title(&format!("acquire and release, {locks} locks held")), &rounds::run(&server, &pairs, plan));
    drop(server);

    let server = with_aof(kind).start();
    let pairs = contender::pairs(&mut server.client());
    table::print(&title("acquire and release, AOF everysec"), &rounds::run(&server, &pairs, plan));
    drop(server);

    memory::print(kind, locks);
}

fn with_aof(kind: Kind) -> Builder {
    // A rewrite would fork in the middle of a round.
    Server::builder(kind).arg("appendonly", "yes").arg("appendfsync", "everysec").arg("auto-aof-rewrite-percentage", 0)
}
