//! The section of docs/benchmarks.md that this benchmark keeps: all from its heading to the next one of its rank.

use std::fmt::Write as _;

use crate::options::Options;
use crate::{crowd, docs, machine, tables, Results};

const HEADING: &str = "## Contention: many clients, one lock\n";

const INTRODUCTION: &str = "\
Every client takes the lock, gives it back at once and asks again. A section is one turn of that; a hand-over is a grant
to another client than the last. This module's clients send `LOCK.ACQUIRE ... BLOCK 0` and `LOCK.RELEASE` with a new token
each time; the baton's send `BLPOP` and `LPUSH` of a list's one element, the fastest that plain commands can do, without
lease, token, fence or a way back from a dead holder. Both use the same client: one thread with a connection for each
client, one command under way on each. They run in turns of a fifth of the time. The others are real clients as they come
from their registries, with their own defaults, a process each with a connection for each client; their figures include
what their language costs. Each contender has a server of its own; only this module's has the module loaded. CPU is the
server's, commands are those it ran, the ones inside scripts included. A wait counts from the request to the grant as the
client saw it.
";

const LAG_INTRODUCTION: &str = "\
A holder takes a lease and dies without a release while another client waits. Counted from the request of the holder plus
its lease. The shortest lease of python-redis-lock is a second.
";

const CROWD_INTRODUCTION: &str = "\
The same with a short and a long line of waiting clients (`lock.max-waiters` raised), in turns.
";

pub fn write(results: &[Results], options: &Options, verdict: &str, load: &str) {
    docs::keep(HEADING, &section(results, options, verdict, load).expect("write to a string"));
    println!("\nwritten: docs/benchmarks.md, docs/contention.svg");
}

fn section(results: &[Results], options: &Options, verdict: &str, load: &str) -> Result<String, std::fmt::Error> {
    let mut text = format!("{HEADING}\n");
    writeln!(text, "Made by `make bench-contention`: {}; load before the start {load}.\n", machine::facts())?;
    writeln!(text, "{INTRODUCTION}")?;
    writeln!(text, "![Hand-overs and longest waits by number of clients](contention.svg)\n")?;
    writeln!(text, "Expected, and found in this run:\n\n{verdict}")?;
    for results in results {
        let seconds = options.span.as_secs();
        writeln!(text, "### {}, {seconds} s for each line\n\n{}", results.kind.name(), tables::contention_head())?;
        for (clients, contender, figures) in &results.contention {
            writeln!(text, "{}", tables::contention_line(*clients, *contender, figures))?;
        }
        writeln!(text, "\n{LAG_INTRODUCTION}\n{}", tables::lag_head())?;
        for (contender, lag) in &results.lags {
            writeln!(text, "{}", tables::lag_line(*contender, lag))?;
        }
        writeln!(text, "\n{CROWD_INTRODUCTION}\n{}", tables::crowd_head())?;
        results.crowds.iter().try_for_each(|crowd: &crowd::Crowd| writeln!(text, "{}", tables::crowd_line(crowd)))?;
        text.push('\n');
    }
    Ok(text)
}
