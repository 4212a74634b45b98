//! Small libraries in C that servers are given, each compiled once in each test run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::scratch::Scratch;

/// A compiled library, for as long as it is kept.
#[derive(Debug)]
pub struct Library {
    path: PathBuf,
    _dir: Scratch,
}

impl Library {
    /// Compiles `source`. What the compiler says is an error.
    pub fn compile(name: &str, source: &str) -> Self {
        let dir = Scratch::new(name);
        let (file, path) = (dir.join(format!("{name}.c")), dir.join(format!("{name}.so")));
        fs::write(&file, source).unwrap_or_else(|error| panic!("write {name}.c: {error}"));
        let done = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"])
            .args([&path, &file])
            .arg("-ldl")
            .output()
            .unwrap_or_else(|error| panic!("no C compiler, install gcc or clang: {error}"));
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "compile {name}.c: {said}");
        Self { path, _dir: dir }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}
