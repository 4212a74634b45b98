//! The section of docs/benchmarks.md that this benchmark keeps.

use std::fmt::Write as _;

use crate::finding::HEAD;
use crate::{docs, machine, Results};

const HEADING: &str = "## One lock: what it costs\n";

const INTRODUCTION: &str = "\
Each line sets a number of this module beside another one; below 1 the module is cheaper. CPU is that of the server's main
thread, for taking a lock and giving it back. Each of many short rounds measures all contenders in turn; the numbers and
their ratio are medians of the quietest quarter of the rounds, beside the quartiles of the ratios of all. Tokens are UUIDs of 36 bytes, given by the client; every lock has a name that was not used
before, and 64 commands are under way unless said otherwise. Where the other number is what is allowed, it says so.

With an append-only file and a replica both sides also pay for writing each change to both, which costs as much for a lock as
for a string; a module's change has to be named, so the server looks the command up and builds its arguments anew each
time, while the arguments of a SET are there already. So the ratio is nearer to 1 there than the targets, which are those
of a server alone.

The scripts are those that client libraries send: compare and delete; SET in a script as well; counted holds in a hash with
a message to those who wait. The native commands are ahead where all that is wanted is a string that is set and deleted: a
module's command costs the server a context, a lookup of its own for each key that it opens, and a reply built call by
call, and a lock keeps what a string does not: a fence, a label, its holder's connection, a place among the deadlines. That
also is where its bytes go: the server keeps the module's value behind two blocks of its own, and the module keeps the key
once more, to find it when the lease ends. It keeps a UUID as 16 bytes, and the usual label, an IPv4
address and a port, as 6: with 36 other characters as its token a lock takes some 20 bytes more than these.
";

/// Writes the section.
pub fn write(results: &[Results], load: &str) {
    docs::keep(HEADING, &section(results, load).expect("write to a string"));
    println!("\nwritten: docs/benchmarks.md, docs/pairs.svg");
}

fn section(results: &[Results], load: &str) -> Result<String, std::fmt::Error> {
    let mut text = format!("{HEADING}\n");
    writeln!(text, "Made by `make bench`: {}; load before the start {load}.\n", machine::facts())?;
    writeln!(text, "{INTRODUCTION}\n![Ratios and their targets](pairs.svg)\n")?;
    for results in results {
        writeln!(text, "### {}\n\n{HEAD}", results.kind.name())?;
        results.findings.iter().try_for_each(|finding| writeln!(text, "{}", finding.row()))?;
        text.push('\n');
    }
    Ok(text)
}

/// What has fallen behind its target, in words.
pub fn behind(results: &Results) -> Vec<String> {
    let behind = results.findings.iter().filter(|finding| finding.is_behind());
    behind.map(|finding| format!("{}: {}", results.kind.name(), finding.row())).collect()
}
