//! What the numbers were measured on.

use std::fs;
use std::thread::available_parallelism;

/// One line: processor, cores, kernel, and how busy the machine was before.
pub fn facts() -> String {
    let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = processors.lines().find(|line| line.starts_with(name))?;
        line.split_once(": ").map(|(_, value)| value.to_owned())
    };
    let processor = field("model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    let cores = available_parallelism().map_or(0, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("unknown");
    format!("{processor}, {cores} cores, Linux {}, load {load}", kernel.trim())
}
