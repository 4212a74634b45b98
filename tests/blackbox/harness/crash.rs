//! What a server's log says about its end. A crash report, a failed assertion or a Rust panic is a failure even when
//! the test's own replies were all as expected.

/// Lines of a log that a failure shows.
const TAIL_LINES: usize = 60;

/// Where trouble starts: `=== REDIS BUG REPORT START`, Valkey's like it, and what the Rust runtime prints.
const MARKS: [&str; 3] = ["BUG REPORT START", "panicked at", "fatal runtime error"];

/// The line of `log` that says the server broke.
pub fn crash_line(log: &str) -> Option<&str> {
    log.lines().find(|line| is_mark(line))
}

/// The last lines of `log`, or, after a crash, those around its first mark: a crash report is longer than a tail.
pub fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    let crash = lines.iter().position(|line| is_mark(line));
    let first = match crash {
        Some(at) => at.saturating_sub(TAIL_LINES / 2),
        None => lines.len().saturating_sub(TAIL_LINES),
    };
    let shown: Vec<&str> = lines.into_iter().skip(first).take(TAIL_LINES * 2).collect();
    shown.join("\n")
}

fn is_mark(line: &str) -> bool {
    MARKS.iter().any(|mark| line.contains(mark))
}
