//! The command line: what to measure, on which servers, for how long.

use std::process::exit;
use std::time::Duration;

use crate::contender::Contender;
use crate::harness::Kind;

const USAGE: &str = "options:
  --quick           1 s for each line instead of 5, and no files written
  --server KIND     redis-7.0, redis-8.0, valkey-8.1 or valkey-9.1; may be repeated (default: redis-7.0 and valkey-9.1)
  --clients N       may be repeated (default: 2, 8, 32, 100)
  --only NAME       lock, baton, redis-py, python-redis-lock, redis-semaphore, redlock or rslock; may be repeated";

const FULL_SPAN: Duration = Duration::from_secs(5);
const QUICK_SPAN: Duration = Duration::from_secs(1);
const FULL_ROUNDS: usize = 20;
const QUICK_ROUNDS: usize = 5;

/// What was asked for.
pub struct Options {
    pub kinds: Vec<Kind>,
    pub clients: Vec<usize>,
    pub contenders: Vec<Contender>,
    /// Time for each line of the first table.
    pub span: Duration,
    /// How many holders die.
    pub rounds: usize,
    /// Whether every contender is measured with every number of clients, and for the full time.
    whole: bool,
}

impl Options {
    pub fn from_args() -> Self {
        let (mut kinds, mut clients, mut contenders, mut quick) = (Vec::new(), Vec::new(), Vec::new(), false);
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let mut value = || words.next().unwrap_or_default();
            match word.as_str() {
                // Cargo says this to every benchmark.
                "--bench" => {}
                "--quick" => quick = true,
                "--server" => kinds.push(one_of(&Kind::ALL, Kind::name, &value())),
                "--only" => contenders.push(one_of(&Contender::ALL, Contender::name, &value())),
                "--clients" => clients.push(value().parse().unwrap_or_else(|_| usage())),
                _ => usage(),
            }
        }
        let whole = !quick && clients.is_empty() && contenders.is_empty();
        Self {
            kinds: or(kinds, &[Kind::Redis70, Kind::Valkey91]),
            clients: or(clients, &[2, 8, 32, 100]),
            contenders: or(contenders, &Contender::ALL),
            span: if quick { QUICK_SPAN } else { FULL_SPAN },
            rounds: if quick { QUICK_ROUNDS } else { FULL_ROUNDS },
            whole,
        }
    }

    /// Only a whole run replaces what is kept.
    pub fn writes_page(&self) -> bool {
        self.whole
    }
}

fn or<T: Copy>(given: Vec<T>, default: &[T]) -> Vec<T> {
    if given.is_empty() {
        default.to_vec()
    } else {
        given
    }
}

fn one_of<T: Copy>(all: &[T], name: fn(T) -> &'static str, wanted: &str) -> T {
    all.iter().copied().find(|&one| name(one) == wanted).unwrap_or_else(|| usage())
}

fn usage() -> ! {
    eprintln!("{USAGE}");
    exit(2)
}
