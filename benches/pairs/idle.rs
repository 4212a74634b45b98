//! What the module costs those who do not use it: the server's own commands with the module loaded and without.

use crate::contender::plain_commands;
use crate::finding::{compare, Finding};
use crate::harness::{Kind, Server};
use crate::rounds::{self, Plan, Readings};

const WITH: &str = "with the module";
const WITHOUT: &str = "without it";
/// What is taken for noise.
const TARGET: f64 = 1.02;
/// Turns of the two servers.
const TURNS: usize = 5;

pub fn run(kind: Kind, plan: Plan) -> Finding {
    let servers = [(WITH, Server::start(kind)), (WITHOUT, Server::builder(kind).without_module().start())];
    let mut all = servers.each_ref().map(|(name, _)| Readings { name, ns: Vec::new() });
    let plan = Plan { rounds: (plan.rounds / TURNS).max(1), ..plan };
    for _ in 0..TURNS {
        for ((_, server), readings) in servers.iter().zip(&mut all) {
            let turn = rounds::run(server, &plain_commands(), plan);
            readings.ns.extend(turn.into_iter().flat_map(|one| one.ns));
        }
    }
    compare("SET, GET, EXPIRE, DEL with the module", &all, WITH, WITHOUT, Some(TARGET))
}
