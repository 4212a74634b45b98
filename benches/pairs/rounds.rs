//! Rounds: every contender in turn, with the CPU time of the server's main thread read before and after.

use crate::contender::Contender;
use crate::harness::Server;
use crate::pipe::Pipe;
use std::fs;

/// Commands sent before their replies are awaited, on each connection.
const IN_FLIGHT: usize = 64;

/// How a table is measured.
#[derive(Clone, Copy)]
pub struct Plan {
    pub connections: usize,
    pub rounds: usize,
    /// Locks a round, each of a name that was not used before.
    pub keys: usize,
}

/// What was measured of one contender: ns of CPU for one lock, by round.
pub struct Readings {
    pub name: &'static str,
    pub ns: Vec<f64>,
}

/// Runs all rounds. They are short and many: the machine's other work comes and goes between them, not within.
pub fn run(server: &Server, contenders: &[Contender], plan: Plan) -> Vec<Readings> {
    let mut pipes: Vec<Pipe> = (0..plan.connections).map(|_| Pipe::connect(server.port())).collect();
    let mut all: Vec<Readings> =
        contenders.iter().map(|one| Readings { name: one.name, ns: Vec::with_capacity(plan.rounds) }).collect();
    // The round before the first fills caches and pools.
    for round in 0..=plan.rounds {
        for turn in 0..contenders.len() {
            let index = (round + turn) % contenders.len();
            let batches = batches(&contenders[index], round * plan.keys, plan.keys);
            let spent_ns = cpu_ns(server.pid(), || send_all(&mut pipes, &batches));
            if round > 0 {
                all[index].ns.push(spent_ns as f64 / plan.keys as f64);
            }
        }
    }
    all
}

struct Batch {
    wire: Vec<u8>,
    replies: usize,
}

/// What is sent for `count` locks from number `first` on.
fn batches(contender: &Contender, first: usize, count: usize) -> Vec<Batch> {
    let locks = IN_FLIGHT / contender.count();
    let end = first + count;
    (first..end)
        .step_by(locks)
        .map(|start| {
            let mut wire = Vec::new();
            let numbers = start..end.min(start + locks);
            let replies = numbers.len() * contender.count();
            numbers.for_each(|number| contender.write(number, &mut wire));
            Batch { wire, replies }
        })
        .collect()
}

fn send_all(pipes: &mut [Pipe], batches: &[Batch]) {
    for together in batches.chunks(pipes.len()) {
        for (pipe, batch) in pipes.iter_mut().zip(together) {
            pipe.send(&batch.wire);
        }
        for (pipe, batch) in pipes.iter_mut().zip(together) {
            pipe.receive(batch.replies);
        }
    }
}

/// CPU time in ns that the server's main thread spends while `work` runs. The kernel counts it to the ns.
fn cpu_ns(pid: i32, work: impl FnOnce()) -> u64 {
    let read = || {
        let path = format!("/proc/{pid}/task/{pid}/schedstat");
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        text.split(' ').next().and_then(|number| number.parse::<u64>().ok()).expect("a number of ns")
    };
    let before = read();
    work();
    read() - before
}
