//! Clients in other languages, and what is said between them and this benchmark, in lines of words. A driver is called
//! `DRIVER NAME PORT contend CLIENTS SECONDS` or `DRIVER NAME PORT orphan ROUNDS LEASE_MS`; all its times are in us on a
//! clock of its own.
//!
//! contend: it connects, prints `ready`, waits for a line, lets all clients contend for so long, prints
//! `done START END`, then `grant CLIENT ASKED GRANTED` for each grant and `cut CLIENT ASKED` for each wait that was going on,
//! then `end`. orphan: for each holder that died `lag LEASE_MS LAG`, then `end`.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

use crate::contender::Contender;
use crate::cost::Cost;
use crate::duel::server;
use crate::harness::Kind;
use crate::install;
use crate::orphan::Lag;
use crate::tally::{Figures, Grant, Slice, Tally};

pub fn contend(kind: Kind, contender: Contender, clients: usize, span: Duration) -> Figures {
    let server = server(kind, contender);
    let mut meter = server.client();
    let mut driver =
        Driver::start(contender, server.port(), ["contend", &clients.to_string(), &span.as_secs_f64().to_string()]);
    driver.expect("ready");
    let before = Cost::so_far(&mut meter);
    driver.go();
    let times = driver.expect("done");
    let cost = Cost::so_far(&mut meter).since(before);
    let [start, end] = times[..] else { panic!("done {times:?}") };
    let (mut granted, mut cut_us) = (Vec::new(), Vec::new());
    loop {
        let (word, numbers) = driver.next();
        match (word.as_str(), &numbers[..]) {
            ("grant", &[client, asked, at]) => {
                granted.push((at, Grant { client: client as usize, waited_us: (at - asked) as u64 }));
            }
            ("cut", &[_, asked]) => cut_us.push((end - asked) as u64),
            ("end", []) => break,
            _ => panic!("{word} {numbers:?}"),
        }
    }
    granted.sort_by_key(|&(at, _)| at);
    let grants = granted.into_iter().map(|(_, grant)| grant).collect();
    let mut tally = Tally::new(clients);
    tally.add(&Slice { span_us: (end - start) as u64, grants, cut_us, cost });
    tally.figures()
}

pub fn orphans(kind: Kind, contender: Contender, rounds: usize, wanted_ms: u64) -> Lag {
    let server = server(kind, contender);
    let mut driver = Driver::start(contender, server.port(), ["orphan", &rounds.to_string(), &wanted_ms.to_string()]);
    let (mut lease_ms, mut sorted_us) = (wanted_ms, Vec::new());
    loop {
        let (word, numbers) = driver.next();
        match (word.as_str(), &numbers[..]) {
            ("lag", &[lease, lag]) => {
                lease_ms = lease as u64;
                sorted_us.push(lag.max(0) as u64);
            }
            ("end", []) => break,
            _ => panic!("{word} {numbers:?}"),
        }
    }
    sorted_us.sort_unstable();
    Lag::Measured { lease_ms, sorted_us }
}

struct Driver {
    name: &'static str,
    child: Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Driver {
    fn start(contender: Contender, port: u16, order: [&str; 3]) -> Self {
        let mut command = install::driver(contender);
        command.arg(contender.name()).arg(port.to_string()).args(order).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("start {command:?}: {error}"));
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (input, output) = (input.expect("a piped input"), output.expect("a piped output"));
        Self { name: contender.name(), child, input, lines: BufReader::new(output).lines() }
    }

    fn go(&mut self) {
        self.input.write_all(b"go\n").expect("tell the driver to begin");
    }

    fn next(&mut self) -> (String, Vec<i64>) {
        let line = self.lines.next().unwrap_or_else(|| panic!("{} ended: its reason is above", self.name));
        let line = line.expect("read from the driver");
        let mut words = line.split(' ').map(str::to_owned);
        let word = words.next().unwrap_or_default();
        let numbers = words.map(|number| number.parse().unwrap_or_else(|_| panic!("{}: {line}", self.name)));
        (word, numbers.collect())
    }

    fn expect(&mut self, wanted: &str) -> Vec<i64> {
        let (word, numbers) = self.next();
        assert_eq!(word, wanted, "from {}", self.name);
        numbers
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // One that is through may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
