//! Sessions of `redis-cli` in the documentation: read from the Markdown, run on a server, and held against what is
//! written there. Only what differs from run to run may differ, and that not freely: fences keep their order, times
//! stay below the lease they count down from, ports stay ports.

use std::collections::BTreeMap;

use crate::harness::{Client, Reply};

/// Every fence of these years has thirteen digits; no other number in the documentation is as long.
const FENCE_MIN: i64 = 1_000_000_000_000;
/// What a slow machine may take from a grant to the reply that tells what is left of it.
const SLACK_MS: i64 = 10_000;
const SECOND_MS: i64 = 1_000;

/// One command and the reply that is written beside or below it.
#[derive(Clone, Debug)]
pub struct Step {
    /// Line of the file, from 1.
    pub line: usize,
    pub words: Vec<String>,
    pub expected: String,
    /// `| xargs`: what redis-cli prints where no terminal is, on one line.
    piped: bool,
}

/// The steps of every session, one list for each block that has any.
pub fn sessions(markdown: &str) -> Vec<Vec<Step>> {
    let mut blocks = Vec::new();
    let mut block: Option<Vec<Step>> = None;
    for (index, line) in markdown.lines().enumerate() {
        match (&mut block, line) {
            (None, "```sh") => block = Some(Vec::new()),
            (Some(_), "```") => blocks.extend(block.take().filter(|steps| !steps.is_empty())),
            (Some(steps), _) => read_line(steps, index + 1, line),
            (None, _) => {}
        }
    }
    let all = blocks.iter().flatten();
    all.for_each(|step: &Step| assert!(!step.expected.is_empty(), "line {}: no reply is written", step.line));
    blocks
}

fn read_line(steps: &mut Vec<Step>, line: usize, text: &str) {
    if let Some(command) = text.strip_prefix("redis-cli ") {
        let (command, remark) = command.split_once('#').unwrap_or((command, ""));
        let (command, piped) = match command.trim_end().strip_suffix("| xargs") {
            Some(command) => (command, true),
            None => (command, false),
        };
        let reply = remark.split(": ").next().unwrap_or_default();
        steps.push(Step { line, words: words(command), expected: collapse(reply), piped });
    } else if let (Some(below), Some(step)) = (text.strip_prefix("# "), steps.last_mut()) {
        // Indented further are the names of the positions.
        if below.starts_with(' ') {
            return;
        }
        if step.line + 1 == line {
            // What stands behind a command whose reply is below is a remark.
            step.expected.clear();
        }
        step.expected = collapse(&format!("{} {below}", step.expected));
    }
}

/// The words of a command line, with `"..."` kept together.
pub fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (index, part) in line.split('"').enumerate() {
        if index % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    words
}

fn collapse(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Runs the steps; the replies as redis-cli shows them.
pub fn run(client: &mut Client, steps: &[Step]) -> Vec<String> {
    steps.iter().map(|step| shown(&client.cmd(&step.words), step.piped)).collect()
}

/// As redis-cli shows a reply, an array on one line.
pub fn shown(reply: &Reply, piped: bool) -> String {
    match (reply, piped) {
        (Reply::Array(items), true) => {
            collapse(&items.iter().map(|item| shown(item, piped)).collect::<Vec<_>>().join(" "))
        }
        (Reply::Array(items), false) if items.is_empty() => "(empty array)".to_owned(),
        (Reply::Array(items), false) => {
            let numbered =
                items.iter().enumerate().map(|(index, item)| format!("{}) {}", index + 1, shown(item, piped)));
            numbered.collect::<Vec<_>>().join(" ")
        }
        (Reply::Bulk(bytes), true) => String::from_utf8_lossy(bytes).into_owned(),
        (Reply::Bulk(bytes), false) => format!("\"{}\"", bytes.escape_ascii()),
        (Reply::Int(number), true) => number.to_string(),
        (Reply::Int(number), false) => format!("(integer) {number}"),
        (Reply::Null | Reply::NullBulk | Reply::NullArray, true) => String::new(),
        (Reply::Null | Reply::NullBulk | Reply::NullArray, false) => "(nil)".to_owned(),
        (Reply::Simple(text), _) => String::from_utf8_lossy(text).into_owned(),
        (Reply::Error(text), _) => format!("(error) {text}"),
        (other, _) => panic!("redis-cli shows no {other:?} in RESP2"),
    }
}

/// Compares what is written with what came. It remembers which fence of the text is which fence of the run.
#[derive(Debug, Default)]
pub struct Judge {
    fences: BTreeMap<i64, i64>,
}

impl Judge {
    /// `Err` says which word is wrong.
    pub fn compare(&mut self, expected: &str, actual: &str) -> Result<(), String> {
        let (written, seen): (Vec<&str>, Vec<&str>) = (expected.split(' ').collect(), actual.split(' ').collect());
        let mut field = "";
        for (written, seen) in written.iter().zip(&seen) {
            if !self.same(field, written, seen) {
                return Err(format!("written: {written}, seen: {seen} in\n  {expected}\n  {actual}"));
            }
            if !is_decoration(written) {
                field = written.trim_matches('"');
            }
        }
        if written.len() != seen.len() {
            return Err(format!("written: {} words, seen: {}\n  {expected}\n  {actual}", written.len(), seen.len()));
        }
        Ok(())
    }

    fn same(&mut self, field: &str, written: &str, seen: &str) -> bool {
        match (written.parse::<i64>(), seen.parse::<i64>()) {
            (Ok(written), Ok(seen)) => self.same_number(field, written, seen),
            _ => written == seen || (is_address(written) && is_address(seen)) || (is_uuid(written) && is_uuid(seen)),
        }
    }

    fn same_number(&mut self, field: &str, written: i64, seen: i64) -> bool {
        if written >= FENCE_MIN {
            return seen >= FENCE_MIN && self.same_fence(written, seen);
        }
        match field {
            "age-ms" => [written, seen].iter().all(|ms| (0..SLACK_MS).contains(ms)),
            "client" if written > 0 => seen > 0,
            // A whole lease is told exactly; what is left of one is a little less.
            _ if written > SECOND_MS && written % SECOND_MS != 0 => {
                let lease = (written / SECOND_MS + 1) * SECOND_MS;
                (lease - SLACK_MS..=lease).contains(&seen)
            }
            _ => written == seen,
        }
    }

    /// The same fence in the text is the same in the run, and a higher one is higher.
    fn same_fence(&mut self, written: i64, seen: i64) -> bool {
        let below = self.fences.range(..written).next_back().is_none_or(|(_, &fence)| fence < seen);
        let above = self.fences.range(written + 1..).next().is_none_or(|(_, &fence)| fence > seen);
        below && above && *self.fences.entry(written).or_insert(seen) == seen
    }
}

/// `(integer)` and the number of an element.
fn is_decoration(word: &str) -> bool {
    word == "(integer)" || word.strip_suffix(')').is_some_and(|number| number.parse::<u32>().is_ok())
}

fn is_address(word: &str) -> bool {
    word.trim_matches('"').strip_prefix("127.0.0.1:").is_some_and(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
}

fn is_uuid(word: &str) -> bool {
    let word = word.trim_matches('"');
    let lengths: Vec<usize> = word.split('-').map(str::len).collect();
    lengths == [8, 4, 4, 4, 12] && word.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
}

/// Runs every session of a text on one server, and fails at the first word that is not true.
#[track_caller]
pub fn assert_true(client: &mut Client, markdown: &str) {
    let mut judge = Judge::default();
    let sessions = sessions(markdown);
    assert!(!sessions.is_empty(), "no session is written");
    for steps in sessions {
        for (step, reply) in steps.iter().zip(run(client, &steps)) {
            if let Err(difference) = judge.compare(&step.expected, &reply) {
                panic!("line {}, {}: {difference}", step.line, step.words.join(" "));
            }
        }
    }
}
