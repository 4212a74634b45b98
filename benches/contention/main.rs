//! Many clients on one lock: this module beside the fastest that plain commands can do and beside real clients.
//! `make bench-contention` measures all of it in some ten minutes, prints tables and rewrites its section of
//! docs/benchmarks.md and docs/contention.svg; `make bench-contention ARGS=--quick` only prints, after two minutes.

// The harness and this benchmark end with a message when something is wrong, and call the system directly.
#![allow(unsafe_code, clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unwrap_used)]

mod contender;
mod cost;
mod crew;
mod crowd;
#[path = "../shared/docs.rs"]
mod docs;
mod duel;
mod epoll;
mod foreign;
#[path = "../../tests/blackbox/harness/mod.rs"]
mod harness;
mod install;
#[path = "../shared/machine.rs"]
mod machine;
mod native;
mod options;
mod orphan;
mod page;
mod plot;
mod tables;
mod tally;
mod verdict;
#[path = "../shared/wire.rs"]
mod wire;

use contender::Contender;
use crowd::Crowd;
use harness::Kind;
use options::Options;
use orphan::Lag;
use tally::Figures;

/// Everything measured on one kind of server.
struct Results {
    kind: Kind,
    /// One entry for each number of clients and each contender.
    contention: Vec<(usize, Contender, Figures)>,
    lags: Vec<(Contender, Lag)>,
    crowds: Vec<Crowd>,
}

fn main() {
    let options = Options::from_args();
    let foreign: Vec<Contender> = options.contenders.iter().copied().filter(|one| one.is_foreign()).collect();
    if let Err(missing) = install::clients(&foreign) {
        eprintln!("contention: {missing}\nTo leave clients out: --only lock --only baton");
        std::process::exit(1);
    }
    let load = machine::load();
    let results: Vec<Results> = options.kinds.iter().map(|&kind| measure(kind, &options)).collect();
    let verdict = verdict::lines(&results);
    println!("\n{verdict}");
    if options.writes_page() {
        plot::write(&results);
        page::write(&results, &options, &verdict, &load);
    }
}

fn measure(kind: Kind, options: &Options) -> Results {
    let mut results = Results { kind, contention: Vec::new(), lags: Vec::new(), crowds: Vec::new() };
    let (foreign, native): (Vec<Contender>, Vec<Contender>) =
        options.contenders.iter().copied().partition(|one| one.is_foreign());
    println!("\n{}, {} s for each line\n", kind.name(), options.span.as_secs_f32());
    println!("{}", tables::contention_head());
    for &clients in &options.clients {
        let mut figures = duel::run(kind, &native, clients, options.span);
        figures.extend(foreign.iter().map(|&one| (one, foreign::contend(kind, one, clients, options.span))));
        for (contender, figures) in figures {
            println!("{}", tables::contention_line(clients, contender, &figures));
            results.contention.push((clients, contender, figures));
        }
    }
    println!("\n{}", tables::lag_head());
    for &contender in &options.contenders {
        let lag = orphan::lag(kind, contender, options.rounds);
        println!("{}", tables::lag_line(contender, &lag));
        results.lags.push((contender, lag));
    }
    println!("\n{}", tables::crowd_head());
    for crowd in crowd::measure(kind, &native, options.span) {
        println!("{}", tables::crowd_line(&crowd));
        results.crowds.push(crowd);
    }
    results
}
