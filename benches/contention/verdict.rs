//! What is expected of this module, and whether it was met in this run.

use std::fmt::Write as _;

use crate::contender::Contender;
use crate::orphan::Lag;
use crate::tally::{share, Figures};
use crate::Results;

const OF_BATON_MIN: f64 = 0.8;
const COMMANDS: f64 = 2.0;
const WAIT_CLIENTS: usize = 32;
const WAIT_MAX_MS: f64 = 10.0;
const MOST_TO_LEAST_MAX: f64 = 1.05;
const LAG_MAX_MS: f64 = 2.0;
const LONG_LINE_MAX: f64 = 1.5;

/// One line for each expectation and server, in Markdown.
pub fn lines(results: &[Results]) -> String {
    let mut text = String::new();
    for results in results {
        for (what, met) in judge(results) {
            let sign = if met { "met" } else { "MISSED" };
            writeln!(text, "* {}, {sign}: {what}", results.kind.name()).expect("write to a string");
        }
    }
    text
}

fn judge(results: &Results) -> Vec<(String, bool)> {
    let mut lines = Vec::new();
    for (clients, contender, figures) in &results.contention {
        if *contender != Contender::Lock {
            continue;
        }
        if let Some(baton) = find(results, *clients, Contender::Baton) {
            let ratio = figures.handovers_per_s / baton.handovers_per_s;
            let what = format!("{clients} clients: {ratio:.2} of the baton's hand-overs/s (at least {OF_BATON_MIN})");
            lines.push((what, ratio >= OF_BATON_MIN));
        }
        let ratio = figures.most_to_least.unwrap_or(f64::INFINITY);
        let what = format!("{clients} clients: max/min grants {ratio:.3} (at most {MOST_TO_LEAST_MAX})");
        lines.push((what, ratio <= MOST_TO_LEAST_MAX));
        let commands = figures.commands;
        let what = format!("{clients} clients: {commands:.2} commands per section ({COMMANDS})");
        lines.push((what, (commands - COMMANDS).abs() < 0.01));
        if *clients == WAIT_CLIENTS {
            let max = figures.wait_max_ms;
            let what = format!("{clients} clients: longest wait {max:.1} ms (under {WAIT_MAX_MS} ms)");
            lines.push((what, max < WAIT_MAX_MS));
        }
    }
    for (contender, lag) in &results.lags {
        if let (Contender::Lock, Lag::Measured { sorted_us, .. }) = (contender, lag) {
            let max = share(sorted_us, 1.0);
            let what = format!("a dead holder's successor came {max:.2} ms after the lease (at most {LAG_MAX_MS} ms)");
            lines.push((what, max <= LAG_MAX_MS));
        }
    }
    let of = |long| {
        let mut crowds = results.crowds.iter().filter(|crowd| crowd.contender == Contender::Lock);
        crowds.find(|crowd| crowd.is_long() == long)
    };
    if let (Some(short), Some(long)) = (of(false), of(true)) {
        let ratio = short.figures.handovers_per_s / long.figures.handovers_per_s;
        let (short, long) = (short.clients, long.clients);
        let what = format!(
            "a hand-over with {long} waiting takes {ratio:.2} times that with {short} (at most {LONG_LINE_MAX})"
        );
        lines.push((what, ratio <= LONG_LINE_MAX));
    }
    lines
}

fn find(results: &Results, clients: usize, contender: Contender) -> Option<&Figures> {
    let mut lines = results.contention.iter();
    let line = lines.find(|(among, who, _)| (*among, *who) == (clients, contender));
    line.map(|(_, _, figures)| figures)
}
