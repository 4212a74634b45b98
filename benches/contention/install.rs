//! Gets the clients of other languages from their registries, in the versions that `clients/` pins, into the target
//! directory. What is there already is left alone, so a second run needs no network.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::contender::Contender;

/// A language with its package client.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Language {
    Python,
    Node,
    Rust,
}

impl Language {
    fn of(contender: Contender) -> Self {
        match contender {
            Contender::RedisPy | Contender::PythonRedisLock => Self::Python,
            Contender::RedisSemaphore | Contender::Redlock => Self::Node,
            Contender::Rslock => Self::Rust,
            Contender::Lock | Contender::Baton => panic!("{} needs no driver", contender.name()),
        }
    }

    /// Its directory, below `clients/` and below the target directory.
    fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Node => "node",
            Self::Rust => "rslock",
        }
    }

    /// Its files: the one that pins versions first, the driver second.
    fn files(self) -> [&'static str; 2] {
        match self {
            Self::Python => ["requirements.txt", "locks.py"],
            Self::Node => ["package.json", "locks.js"],
            Self::Rust => ["Cargo.toml", "main.rs"],
        }
    }

    /// What it takes: commands that must work, and what Debian calls what brings them.
    fn needs(self) -> &'static [(&'static [&'static str], &'static str)] {
        match self {
            Self::Python => &[(&["python3", "-c", "import venv, ensurepip"], "python3 with venv (python3-venv)")],
            Self::Node => &[(&["node", "--version"], "node (nodejs)"), (&["npm", "--version"], "npm (npm)")],
            Self::Rust => &[(&["cargo", "--version"], "cargo")],
        }
    }

    fn dir(self) -> PathBuf {
        Path::new(env!("CARGO_TARGET_TMPDIR")).join("contention").join(self.name())
    }

    fn install(self, dir: &Path) -> Result<(), String> {
        match self {
            Self::Python => {
                run(Command::new("python3").args(["-m", "venv", "venv"]).current_dir(dir))?;
                run(Command::new(dir.join("venv/bin/python"))
                    .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
                    .args(["-r", "requirements.txt"])
                    .current_dir(dir))
            }
            Self::Node => run(Command::new("npm")
                .args(["install", "--silent", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts"])
                .current_dir(dir)),
            Self::Rust => run(Command::new("cargo")
                .args(["build", "--release", "--quiet", "--target-dir", "target"])
                .current_dir(dir)),
        }
    }
}

/// Installs what these contenders need.
///
/// # Errors
/// In words: what is missing on this machine, or what could not be installed.
pub fn clients(contenders: &[Contender]) -> Result<(), String> {
    let mut languages: Vec<Language> = contenders.iter().map(|&contender| Language::of(contender)).collect();
    languages.dedup();
    let needs = languages.iter().flat_map(|language| language.needs());
    let missing: Vec<&str> = needs.filter(|(command, _)| !works(command)).map(|&(_, what)| what).collect();
    if !missing.is_empty() {
        return Err(format!("missing on this machine: {}", missing.join(", ")));
    }
    languages.into_iter().try_for_each(prepare)
}

/// The command that drives a contender, its order still to be added.
pub fn driver(contender: Contender) -> Command {
    let language = Language::of(contender);
    let (dir, [_, script]) = (language.dir(), language.files());
    match language {
        Language::Python => {
            let mut command = Command::new(dir.join("venv/bin/python"));
            command.arg(dir.join(script));
            command
        }
        Language::Node => {
            let mut command = Command::new("node");
            command.arg(dir.join(script));
            command
        }
        Language::Rust => Command::new(dir.join("target/release/contention-rslock")),
    }
}

/// Lays a language's files into the target directory, where its packages are found and its lock file may go.
fn prepare(language: Language) -> Result<(), String> {
    let (dir, files) = (language.dir(), language.files());
    let [pins, script] = files.map(|file| {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/contention/clients");
        fs::read(from.join(language.name()).join(file)).unwrap_or_else(|error| panic!("read {file}: {error}"))
    });
    let is = |file: &str, content: &[u8]| fs::read(dir.join(file)).is_ok_and(|found| found == content);
    let done = "installed";
    let compiled = language == Language::Rust;
    if is(done, &pins) && (!compiled || is(files[1], &script)) {
        return write(&dir.join(files[1]), &script);
    }
    println!("contention: installing the clients for {}", language.name());
    if !is(done, &pins) {
        let _ = fs::remove_dir_all(&dir);
    }
    fs::create_dir_all(&dir).map_err(|error| format!("make {}: {error}", dir.display()))?;
    let _ = fs::remove_file(dir.join(done));
    write(&dir.join(files[0]), &pins)?;
    write(&dir.join(files[1]), &script)?;
    language.install(&dir).map_err(|error| format!("the clients for {}: {error}", language.name()))?;
    write(&dir.join(done), &pins)
}

fn write(path: &Path, content: &[u8]) -> Result<(), String> {
    fs::write(path, content).map_err(|error| format!("write {}: {error}", path.display()))
}

fn works(command: &[&str]) -> bool {
    let quiet = Command::new(command[0]).args(&command[1..]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    quiet.is_ok_and(|status| status.success())
}

fn run(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?} ended with {status}; its reason is above")),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}
