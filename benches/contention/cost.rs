//! What a server spent between two looks: CPU time and commands.

use std::ops::Add;

use crate::harness::{info, Client};

#[derive(Clone, Copy, Default)]
pub struct Cost {
    pub cpu_us: u64,
    pub commands: u64,
}

impl Cost {
    /// What was spent since the server's start. Asking costs a tenth of a millisecond, and is not counted as a command.
    pub fn so_far(client: &mut Client) -> Self {
        let cpu = info(client, "cpu");
        let seconds = |name: &str| cpu.text(name).parse::<f64>().expect("seconds");
        let stats = info(client, "commandstats");
        let others = stats.names().filter(|&name| name != "cmdstat_info");
        let calls = others.map(|name| {
            let calls = stats.text(name).strip_prefix("calls=").and_then(|rest| rest.split(',').next());
            calls.and_then(|calls| calls.parse::<u64>().ok()).expect("a number of calls")
        });
        Self { cpu_us: ((seconds("used_cpu_user") + seconds("used_cpu_sys")) * 1e6) as u64, commands: calls.sum() }
    }

    pub fn since(self, before: Self) -> Self {
        Self { cpu_us: self.cpu_us - before.cpu_us, commands: self.commands - before.commands }
    }
}

impl Add for Cost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { cpu_us: self.cpu_us + other.cpu_us, commands: self.commands + other.commands }
    }
}
