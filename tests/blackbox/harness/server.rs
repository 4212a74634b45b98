//! A running server and its life: started, stopped in every way, started again, and judged when it goes. Dropping it
//! ends the process; a crash that the test did not announce fails the test and shows the log.

use std::fs;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::builder::{log_file, Builder};
use super::client::Client;
use super::crash::{crash_line, tail};
use super::kind::Kind;
use super::patience::poll;
use super::port::free_port;
use super::process::{is_failure, Process, Recipe};
use super::reply::Reply;
use super::scratch::Scratch;

const START_WAIT: Duration = Duration::from_secs(30);
const ANSWER_WAIT: Duration = Duration::from_secs(2);
const CRASH_WAIT: Duration = Duration::from_secs(5);
/// Starts that may fail because another process took the port first.
const PORT_TRIES: u32 = 5;

/// One server with its port and directory.
#[derive(Debug)]
pub struct Server {
    kind: Kind,
    port: u16,
    bus_port: Option<u16>,
    state: State,
    frozen: AtomicBool,
    /// Where in the log this run begins.
    log_start: u64,
    process: Process,
    recipe: Recipe,
    dir: Scratch,
}

/// What the test has said about the end of the server.
#[derive(Clone, Copy, Debug)]
enum State {
    /// It is to run until dropped.
    Running,
    /// The test stopped it.
    Stopped,
    /// It may end in any way.
    Excused,
}

impl Server {
    /// A server of this kind with the module loaded and nothing else special.
    #[track_caller]
    pub fn start(kind: Kind) -> Self {
        Self::builder(kind).start()
    }

    pub fn builder(kind: Kind) -> Builder {
        Builder::new(kind)
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn bus_port(&self) -> Option<u16> {
        self.bus_port
    }

    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    /// The server's directory; it outlives the server while a handle is kept.
    pub fn dir(&self) -> Scratch {
        self.dir.clone()
    }

    /// Everything logged and printed so far, over all restarts.
    pub fn log(&self) -> String {
        read_log(&self.dir, 0)
    }

    /// A new connection.
    #[track_caller]
    pub fn client(&self) -> Client {
        Client::connect(self.port)
    }

    /// A new connection that speaks RESP3.
    #[track_caller]
    pub fn resp3_client(&self) -> Client {
        self.client().resp3()
    }

    /// Ends the server and its children at once.
    pub fn kill9(&mut self) {
        // One that is gone already was not ended by the test.
        if self.process.exited().is_none() {
            self.state = State::Stopped;
        }
        self.process.kill();
    }

    /// `SHUTDOWN NOSAVE`, and waits for the end.
    #[track_caller]
    pub fn shutdown_nosave(&mut self) {
        self.shutdown("NOSAVE");
    }

    /// `SHUTDOWN SAVE`, and waits for the end.
    #[track_caller]
    pub fn shutdown_save(&mut self) {
        self.shutdown("SAVE");
    }

    /// Starts a stopped server again with the same directory, port and arguments.
    #[track_caller]
    pub fn restart(&mut self) {
        if let Err(log) = self.try_restart() {
            panic!("{} did not start again:\n{log}", self.kind.name());
        }
    }

    /// Like `restart`; `Err` is the log of a server that ended or hung instead.
    #[track_caller]
    pub fn try_restart(&mut self) -> Result<(), String> {
        assert!(self.process.exited().is_some(), "restart needs a stopped server: kill9 or shutdown first");
        if let Some(fault) = self.fault() {
            panic!("{} {fault}", self.kind.name());
        }
        for attempt in 1.. {
            self.log_start = log_length(&self.dir);
            self.process = Process::spawn(self.recipe.clone());
            self.state = State::Running;
            self.frozen.store(false, Ordering::SeqCst);
            let Err(log) = self.wait_until_serving() else {
                return Ok(());
            };
            self.state = State::Excused;
            if attempt >= PORT_TRIES || !port_was_taken(&log) {
                return Err(log);
            }
        }
        unreachable!("the loop returns");
    }

    /// Stops the process as a stalled machine would: connections stay open, nothing is answered.
    pub fn sigstop(&self) {
        self.frozen.store(true, Ordering::SeqCst);
        self.process.signal(libc::SIGSTOP);
    }

    pub fn sigcont(&self) {
        self.process.signal(libc::SIGCONT);
        self.frozen.store(false, Ordering::SeqCst);
    }

    /// Says that this server is meant to crash or to exit by itself, until its next restart.
    pub fn expect_crash(&mut self) {
        self.state = State::Excused;
    }

    /// Waits until the server ends by itself; how it ended is then the test's business.
    #[track_caller]
    pub fn wait_for_exit(&mut self) -> ExitStatus {
        self.process.wait()
    }

    /// Why this server may not be called healthy.
    pub fn fault(&mut self) -> Option<String> {
        let exited = self.process.exited();
        match self.state {
            State::Excused => None,
            State::Stopped => self.crash(),
            State::Running => self.crash().or_else(|| {
                let status = exited.filter(|&status| is_failure(status))?;
                Some(format!("ended by itself: {status}"))
            }),
        }
    }

    /// The first start, on a port of its own. `Err` is the log of this start.
    pub(super) fn launch(builder: &Builder, dir: &Scratch) -> Result<Self, String> {
        for attempt in 1.. {
            let port = free_port();
            let bus_port = builder.is_cluster().then(free_port);
            builder.write_config(dir, port, bus_port);
            let recipe = builder.recipe(dir);
            let mut server = Self {
                kind: builder.kind(),
                port,
                bus_port,
                state: State::Running,
                frozen: AtomicBool::new(false),
                log_start: log_length(dir),
                process: Process::spawn(recipe.clone()),
                recipe,
                dir: dir.clone(),
            };
            let Err(log) = server.wait_until_serving() else {
                return Ok(server);
            };
            // Whoever asked gets the log and judges it.
            server.state = State::Excused;
            if attempt >= PORT_TRIES || !port_was_taken(&log) {
                return Err(log);
            }
        }
        unreachable!("the loop returns");
    }

    /// Waits until this process, not another that has the port, serves commands. `Err` is the log of this start.
    fn wait_until_serving(&mut self) -> Result<(), String> {
        let (port, pid) = (self.port, self.pid());
        let outcome = poll(START_WAIT, || match self.process.exited() {
            Some(status) => Ok(Err(status)),
            None => serves(port, pid).map(Ok),
        });
        let log = read_log(&self.dir, self.log_start);
        match outcome {
            Ok(Ok(())) => Ok(()),
            Ok(Err(status)) => Err(format!("{log}\nended: {status}")),
            Err(last) => Err(format!("{log}\nnot serving after {START_WAIT:?}: {last}")),
        }
    }

    /// Lets a server that is about to crash do so: the end of the test must not outrun what its last command did.
    fn await_last_breath(&mut self) {
        let watched = matches!(self.state, State::Running) && !self.frozen.load(Ordering::SeqCst);
        if !watched || serves(self.port, self.pid()).is_ok() {
            return;
        }
        // To its end: a crash report that is cut off lacks the stack.
        let _ = poll(CRASH_WAIT, || self.process.exited().ok_or(()));
    }

    fn crash(&self) -> Option<String> {
        let log = read_log(&self.dir, self.log_start);
        crash_line(&log).map(|line| format!("crashed: {line}"))
    }

    #[track_caller]
    fn shutdown(&mut self, how: &str) {
        let mut client = self.client();
        self.state = State::Stopped;
        client.send(&["SHUTDOWN", how]);
        if let Some(refusal) = client.try_recv(START_WAIT) {
            panic!("SHUTDOWN {how}: {refusal:?}");
        }
        let status = self.process.wait();
        assert!(!is_failure(status), "SHUTDOWN {how}: {status}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.await_last_breath();
        let fault = self.fault();
        self.process.kill();
        let name = format!("{} on port {}", self.kind.name(), self.port);
        if thread::panicking() {
            let fault = fault.unwrap_or_default();
            eprintln!("--- log of {name} {fault}\n{}\n---", tail(&self.log()));
        } else if let Some(fault) = fault {
            panic!("{name} {fault}\n{}", tail(&self.log()));
        }
    }
}

/// `Err` says why the server with this process id does not answer commands on this port yet.
fn serves(port: u16, pid: i32) -> Result<(), String> {
    let mut client = Client::try_connect(port).map_err(|error| error.to_string())?;
    let mut ask = |command: &[&str]| {
        client.try_send(command).map_err(|error| error.to_string())?;
        let reply = client.try_recv(ANSWER_WAIT);
        reply.ok_or_else(|| format!("no answer to {command:?}"))
    };
    match ask(&["PING"])? {
        reply if reply.is("PONG") => {}
        Reply::Error(text) if !text.starts_with("LOADING") => {}
        other => return Err(format!("{other:?}")),
    }
    match ask(&["INFO", "server"])? {
        reply if reply.is_error() => Ok(()),
        reply if reply.text().contains(&format!("process_id:{pid}\r\n")) => Ok(()),
        _ => Err("another server answers on this port".to_owned()),
    }
}

fn port_was_taken(log: &str) -> bool {
    log.contains("Address already in use") || log.contains("another server answers")
}

fn log_length(dir: &Scratch) -> u64 {
    fs::metadata(log_file(dir)).map_or(0, |found| found.len())
}

fn read_log(dir: &Scratch, start: u64) -> String {
    let bytes = fs::read(log_file(dir)).unwrap_or_default();
    let start = usize::try_from(start).expect("a log fits in memory");
    String::from_utf8_lossy(bytes.get(start..).unwrap_or_default()).into_owned()
}
