//! One server process: spawned into its own process group, signalled, waited for, and never left behind, not even when
//! the test process is killed. Nothing here knows what the process does.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{channel, Sender};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use super::patience::eventually;

const EXIT_WAIT: Duration = Duration::from_secs(20);

/// What to run.
#[derive(Clone, Debug)]
pub struct Recipe {
    pub executable: PathBuf,
    pub args: Vec<OsString>,
    pub envs: Vec<(String, OsString)>,
    /// Standard output and error are appended here.
    pub output: PathBuf,
}

/// A child process with its process group.
#[derive(Debug)]
pub struct Process {
    child: Child,
    exited: Option<ExitStatus>,
}

impl Process {
    pub fn spawn(recipe: Recipe) -> Self {
        let what = recipe.executable.display().to_string();
        let (answer, answered) = channel();
        spawner().send((recipe, answer)).expect("the spawner thread lives as long as the process");
        let child = answered
            .recv()
            .expect("the spawner thread answers every order")
            .unwrap_or_else(|error| panic!("start {what}: {error}"));
        Self { child, exited: None }
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a process id is a positive i32")
    }

    /// How the process ended, if it did.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        if self.exited.is_none() {
            self.exited = self.child.try_wait().expect("wait for own child");
            if self.exited.is_some() {
                // A fork that saves or rewrites outlives its parent.
                self.signal_group(libc::SIGKILL);
            }
        }
        self.exited
    }

    pub fn signal(&self, signal: i32) {
        assert!(self.exited.is_none(), "signal {signal} to a dead server");
        // SAFETY: kill takes plain numbers; the child is not reaped, so the id is still its own.
        let result = unsafe { libc::kill(self.pid(), signal) };
        assert_eq!(result, 0, "kill: {}", io::Error::last_os_error());
    }

    /// Ends the whole group now and reaps the server.
    pub fn kill(&mut self) {
        if self.exited().is_none() {
            self.signal_group(libc::SIGKILL);
            self.exited = Some(self.child.wait().expect("wait for own child"));
        }
    }

    /// Waits until the process ends by itself.
    pub fn wait(&mut self) -> ExitStatus {
        eventually(EXIT_WAIT, || self.exited().ok_or("still running"))
    }

    fn signal_group(&self, signal: i32) {
        // SAFETY: kill takes plain numbers; the group was made for this child. It may be empty by now, which is fine.
        unsafe { libc::kill(-self.pid(), signal) };
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// True if the process was ended by a signal or said that it failed.
pub fn is_failure(status: ExitStatus) -> bool {
    status.signal().is_some() || status.code() != Some(0)
}

type Order = (Recipe, Sender<io::Result<Child>>);

/// A parent-death signal is sent when the *thread* that forked ends, so all forks come from one that never does. A
/// server can then be started in one thread and used in another.
fn spawner() -> &'static Sender<Order> {
    static SPAWNER: OnceLock<Sender<Order>> = OnceLock::new();
    SPAWNER.get_or_init(|| {
        let (orders, inbox) = channel::<Order>();
        thread::Builder::new()
            .name("spawner".to_owned())
            .spawn(move || {
                for (recipe, answer) in inbox {
                    // The one who asked may have panicked meanwhile; dropping the child is then left to its death
                    // signal.
                    let _ = answer.send(fork(&recipe));
                }
            })
            .expect("start the spawner thread");
        orders
    })
}

fn fork(recipe: &Recipe) -> io::Result<Child> {
    let output = OpenOptions::new().create(true).append(true).open(&recipe.output)?;
    let mut command = Command::new(&recipe.executable);
    command
        .args(&recipe.args)
        .envs(recipe.envs.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .process_group(0);
    // SAFETY: prctl is async-signal-safe and touches no memory of this process.
    unsafe {
        command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        });
    }
    command.spawn()
}
