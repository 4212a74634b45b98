//! A second module, compiled from `foreign.c`: what belongs to others, and what calls the module under test from inside
//! the server.

use std::path::Path;
use std::sync::OnceLock;

use super::builder::Builder;
use super::library::Library;

impl Builder {
    /// Loads the other module too: `FOREIGN.SET key value`, `FOREIGN.CALL command ...`, `FOREIGN.WRAP command ...`.
    pub fn with_foreign_module(self) -> Self {
        self.arg("loadmodule", format!("\"{}\"", foreign_module().display()))
    }
}

/// The compiled module.
pub fn foreign_module() -> &'static Path {
    static MODULE: OnceLock<Library> = OnceLock::new();
    MODULE.get_or_init(|| Library::compile("foreign", include_str!("foreign.c"))).path()
}
