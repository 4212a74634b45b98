//! docs/benchmarks.md: each benchmark keeps its own section, all from its heading to the next one of its rank.

use std::fs;
use std::path::{Path, PathBuf};

const TITLE: &str = "# Benchmarks\n";

/// Where results are kept.
pub fn dir() -> PathBuf {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    fs::create_dir_all(&docs).expect("make the directory of the documentation");
    docs
}

/// Replaces the section of this heading, or adds it.
pub fn keep(heading: &str, section: &str) {
    let path = dir().join("benchmarks.md");
    let before = fs::read_to_string(&path).unwrap_or_else(|_| TITLE.to_owned());
    fs::write(&path, replaced(&before, heading, section)).expect("write the results");
}

fn replaced(page: &str, heading: &str, section: &str) -> String {
    let Some(start) = page.find(heading) else {
        return format!("{}\n\n{}\n", page.trim_end(), section.trim_end());
    };
    let rest = &page[start + heading.len()..];
    let end = rest.find("\n## ").map_or("", |end| &rest[end..]);
    format!("{}{}\n{end}", &page[..start], section.trim_end())
}
