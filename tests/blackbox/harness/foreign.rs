//! A second module, compiled from `foreign.c`: what belongs to others, and what calls the module under test from inside
//! the server.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use super::builder::Builder;
use super::scratch::Scratch;

impl Builder {
    /// Loads the other module too: `FOREIGN.SET key value`, `FOREIGN.CALL command ...`, `FOREIGN.WRAP command ...`.
    pub fn with_foreign_module(self) -> Self {
        self.arg("loadmodule", format!("\"{}\"", foreign_module().display()))
    }
}

/// The compiled module, made once in each test run.
pub fn foreign_module() -> &'static PathBuf {
    static MODULE: OnceLock<(PathBuf, Scratch)> = OnceLock::new();
    let (library, _dir) = MODULE.get_or_init(|| {
        let dir = Scratch::new("foreign");
        let source = dir.join("foreign.c");
        let library = dir.join("foreign.so");
        fs::write(&source, include_str!("foreign.c")).expect("write the other module");
        let done = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"])
            .args([&library, &source])
            .output()
            .unwrap_or_else(|error| panic!("no C compiler, install gcc or clang: {error}"));
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "compile the other module: {said}");
        (library, dir)
    });
    library
}
