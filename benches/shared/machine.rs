//! What a reader needs to know of the machine, and nothing that names it.

use std::fs;
use std::process::Command;

/// Date, processor, memory and system, in one line.
pub fn facts() -> String {
    let processor = field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown processor".to_owned());
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let memory_kb = field("/proc/meminfo", "MemTotal").and_then(|size| size.split(' ').next()?.parse::<u64>().ok());
    let memory_gb = memory_kb.unwrap_or(0) / 1_000_000;
    let system = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let system = system.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")).unwrap_or("Linux").trim_matches('"');
    let date = said_by(Command::new("date").args(["-u", "+%Y-%m-%d"]));
    let kernel = said_by(Command::new("uname").args(["-s", "-m"]));
    format!("{date}, {cores} cores of {processor}, {memory_gb} GB, {system}, {kernel}")
}

/// How many processes wanted a core in the last minute: others that did made the figures worse.
pub fn load() -> String {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split(' ').next().unwrap_or_default().to_owned()
}

fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn said_by(command: &mut Command) -> String {
    let output = command.output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output).trim().to_owned()
}
