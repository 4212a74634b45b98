//! One command after the other on one connection, each answered before the next is sent: what a client sees.

use std::time::Instant;

use crate::contender::Contender;
use crate::finding::{at, sorted, Finding};
use crate::harness::Server;
use crate::pipe::Pipe;

/// Pairs taken by one contender before the next has its turn.
const TURN: usize = 50;

/// Half of the pairs, and all but a hundredth, take no longer than this.
pub fn run(server: &Server, contenders: &[Contender], ours: &str, theirs: &str, pairs: usize) -> Vec<Finding> {
    let mut pipe = Pipe::connect(server.port());
    let named = |name| contenders.iter().find(|one| one.name == name).unwrap_or_else(|| panic!("no {name}"));
    let both = [named(ours), named(theirs)];
    let mut all = [Vec::with_capacity(pairs), Vec::with_capacity(pairs)];
    for turn in 0..=pairs / TURN {
        for (contender, micros) in both.iter().zip(&mut all) {
            for number in turn * TURN..(turn + 1) * TURN {
                let commands = contender.commands(number);
                let start = Instant::now();
                commands.iter().for_each(|command| pipe.ask(command));
                // The first turn fills caches.
                if turn > 0 {
                    micros.push(start.elapsed().as_nanos() as f64 / 1_000.0);
                }
            }
        }
    }
    let [mine, other] = all.map(sorted);
    let finding = |name: &str, part| {
        let what = format!("a pair, not pipelined, {name} / {theirs}");
        Finding::of(what, "us", at(&mine, part), at(&other, part), None)
    };
    vec![finding("p50", 0.5), finding("p99", 0.99)]
}
