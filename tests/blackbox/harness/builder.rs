//! How a server is to be run: its kind, configuration, module, clock and directory. The configuration becomes a file in
//! the server's directory, so `CONFIG REWRITE` works and a restart finds what the server itself saved.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use super::kind::{self, Kind};
use super::library::Library;
use super::process::Recipe;
use super::scratch::Scratch;
use super::server::Server;

/// A server that is not running yet.
#[derive(Debug)]
pub struct Builder {
    kind: Kind,
    directives: Vec<(String, String)>,
    module_args: Option<Vec<String>>,
    envs: Vec<(String, OsString)>,
    preloaded: Vec<&'static Path>,
    dir: Option<Scratch>,
    files: Vec<(String, Vec<u8>)>,
    sentinel: bool,
}

/// Nothing is saved unless a test asks, a full sync starts at once, and tests may use what production locks away.
const DEFAULTS: [(&str, &str); 11] = [
    ("bind", "127.0.0.1"),
    ("daemonize", "no"),
    ("save", ""),
    ("appendonly", "no"),
    ("io-threads", "1"),
    ("tcp-backlog", "128"),
    ("repl-diskless-sync-delay", "0"),
    ("crash-memcheck-enabled", "no"),
    ("enable-debug-command", "yes"),
    ("enable-module-command", "yes"),
    ("enable-protected-configs", "yes"),
];

impl Builder {
    pub(super) fn new(kind: Kind) -> Self {
        Self {
            kind,
            directives: Vec::new(),
            module_args: Some(Vec::new()),
            envs: Vec::new(),
            preloaded: Vec::new(),
            dir: None,
            files: Vec::new(),
            sentinel: false,
        }
    }

    /// One line of configuration, over the defaults. `value` is as in the file: several words stay several.
    pub fn arg(mut self, name: &str, value: impl ToString) -> Self {
        self.directives.push((name.to_owned(), value.to_string()));
        self
    }

    /// A plain server.
    pub fn without_module(mut self) -> Self {
        self.module_args = None;
        self
    }

    /// With an append-only file, flushed `always`, `everysec` or not (`no`).
    pub fn append_only(self, fsync: &str) -> Self {
        self.arg("appendonly", "yes").arg("appendfsync", fsync)
    }

    /// A Sentinel without the module, which watches the primary behind this port and its replicas, and needs so many to
    /// agree with it that the primary is gone.
    pub fn sentinel_of(mut self, primary_port: u16, quorum: usize) -> Self {
        self.sentinel = true;
        self.without_module()
            .arg("sentinel monitor", format!("watched 127.0.0.1 {primary_port} {quorum}"))
            .arg("sentinel down-after-milliseconds", "watched 1000")
            .arg("sentinel failover-timeout", "watched 20000")
    }

    /// Arguments of the module at load.
    pub fn module_args(mut self, args: &[&str]) -> Self {
        self.module_args = Some(args.iter().map(|&arg| arg.to_owned()).collect());
        self
    }

    pub(super) fn preload(mut self, library: &'static Library) -> Self {
        self.preloaded.push(library.path());
        self
    }

    pub(super) fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.envs.push((name.to_owned(), value.into()));
        self
    }

    /// Uses a directory that exists, such as that of a server which is gone: `old.dir()`.
    pub fn dir(mut self, dir: Scratch) -> Self {
        self.dir = Some(dir);
        self
    }

    /// Puts a file, such as `dump.rdb`, into the directory before the start.
    pub fn file(mut self, name: &str, content: &[u8]) -> Self {
        self.files.push((name.to_owned(), content.to_vec()));
        self
    }

    /// Starts the server and waits until it serves; fails the test with the log if it does not.
    #[track_caller]
    pub fn start(self) -> Server {
        let kind = self.kind;
        self.try_start().unwrap_or_else(|log| panic!("{} did not start:\n{log}", kind.name()))
    }

    /// Starts the server and waits until it serves; `Err` is the log of one that ended or hung instead.
    pub fn try_start(mut self) -> Result<Server, String> {
        let dir = self.dir.take().unwrap_or_else(|| Scratch::new(self.kind.name()));
        for (name, content) in &self.files {
            let path = dir.join(name);
            let parent = path.parent().expect("the file is in the directory");
            fs::create_dir_all(parent).expect("make a directory of the server");
            fs::write(path, content).expect("write a file of the server");
        }
        Server::launch(&self, &dir)
    }

    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    pub(super) fn is_cluster(&self) -> bool {
        let asked = |(name, value): &(String, String)| name == "cluster-enabled" && value == "yes";
        self.directives.iter().any(asked)
    }

    /// Writes the configuration for a start on `port`.
    pub(super) fn write_config(&self, dir: &Path, port: u16, bus_port: Option<u16>) {
        let mut text = String::new();
        let mut line = |name: &str, value: &str| {
            let value = if value.is_empty() { "\"\"" } else { value };
            writeln!(text, "{name} {value}").expect("write to a string");
        };
        for (name, value) in DEFAULTS {
            line(name, value);
        }
        line("port", &port.to_string());
        if let Some(bus_port) = bus_port {
            line("cluster-port", &bus_port.to_string());
        }
        line("dir", &quoted(&dir.to_string_lossy()));
        line("logfile", &quoted(&log_file(dir).to_string_lossy()));
        if let Some(args) = &self.module_args {
            let mut words = vec![quoted(&kind::module().to_string_lossy())];
            words.extend(args.iter().map(|arg| quoted(arg)));
            line("loadmodule", &words.join(" "));
        }
        for (name, value) in &self.directives {
            line(name, value);
        }
        fs::write(config_file(dir), text).expect("write the configuration");
    }

    pub(super) fn recipe(&self, dir: &Path) -> Recipe {
        let mut envs = self.envs.clone();
        // A locale that the server's own C library may not have must not stop it.
        envs.push(("LC_ALL".to_owned(), "C".into()));
        if !self.preloaded.is_empty() {
            let libraries: Vec<&OsStr> = self.preloaded.iter().map(|library| library.as_os_str()).collect();
            envs.push(("LD_PRELOAD".to_owned(), libraries.join(OsStr::new(":"))));
        }
        let mut args = vec![config_file(dir).into_os_string()];
        args.extend(self.sentinel.then(|| "--sentinel".into()));
        Recipe { executable: self.kind.executable(), args, envs, output: log_file(dir) }
    }
}

/// The server's log, which also gets what it prints.
pub fn log_file(dir: &Path) -> PathBuf {
    dir.join("server.log")
}

fn config_file(dir: &Path) -> PathBuf {
    dir.join("server.conf")
}

fn quoted(word: &str) -> String {
    format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\""))
}
