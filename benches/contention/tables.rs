//! The tables, as they stand in the terminal and in docs/benchmarks.md.

use crate::contender::Contender;
use crate::crowd::Crowd;
use crate::orphan::Lag;
use crate::tally::{share, Figures};

pub fn contention_head() -> &'static str {
    "\
| clients | contender         | sections/s | hand-overs/s | wait p50 ms |  p99 ms |  max ms | max/min grants | server CPU us/section | commands/section |
|--------:|-------------------|-----------:|-------------:|------------:|--------:|--------:|---------------:|----------------------:|-----------------:|"
}

pub fn contention_line(clients: usize, contender: Contender, figures: &Figures) -> String {
    let fairness = figures.most_to_least.map_or("some had none".to_owned(), |ratio| format!("{ratio:.2}"));
    format!(
        "| {clients:>7} | {:<17} | {:>10.0} | {:>12.0} | {:>11.2} | {:>7.2} | {:>7.2} | {fairness:>14} | {:>21.1} | {:>16.2} |",
        contender.title(),
        figures.sections_per_s,
        figures.handovers_per_s,
        figures.wait_p50_ms,
        figures.wait_p99_ms,
        figures.wait_max_ms,
        figures.cpu_us,
        figures.commands
    )
}

pub fn lag_head() -> &'static str {
    "\
| contender         | lease of the dead holder | next grant late by: median ms |  max ms |
|-------------------|-------------------------:|------------------------------:|--------:|"
}

pub fn lag_line(contender: Contender, lag: &Lag) -> String {
    let (lease, median, max) = match lag {
        Lag::Measured { lease_ms, sorted_us } => {
            let ms = |part| format!("{:.2}", share(sorted_us, part));
            (format!("{lease_ms} ms"), ms(0.5), ms(1.0))
        }
        Lag::Never => ("none".to_owned(), "never".to_owned(), "never".to_owned()),
    };
    format!("| {:<17} | {lease:>24} | {median:>29} | {max:>7} |", contender.title())
}

pub fn crowd_head() -> &'static str {
    "\
| waiting | contender         | hand-overs/s | server CPU us/section |
|--------:|-------------------|-------------:|----------------------:|"
}

pub fn crowd_line(crowd: &Crowd) -> String {
    format!(
        "| {:>7} | {:<17} | {:>12.0} | {:>21.1} |",
        crowd.clients,
        crowd.contender.title(),
        crowd.figures.handovers_per_s,
        crowd.figures.cpu_us
    )
}
