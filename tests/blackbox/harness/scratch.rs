//! A directory of its own for each server, below the target directory. It is removed when the last handle goes, and
//! what a killed run left behind is removed by the next one; `REDIS_LOCK_KEEP=1` keeps everything for a look.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Once};
use std::{env, fs, process};

use super::kind::target_dir;

/// A shared handle of a temporary directory.
#[derive(Clone, Debug)]
pub struct Scratch(Arc<Owned>);

#[derive(Debug)]
struct Owned(PathBuf);

impl Scratch {
    /// A fresh, empty directory whose name starts with `label`.
    pub fn new(label: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        static SWEEP: Once = Once::new();
        let all = target_dir().join("blackbox");
        SWEEP.call_once(|| remove_leftovers(&all));
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = all.join(format!("{label}-{}-{count}", process::id()));
        fs::create_dir_all(&path).unwrap_or_else(|error| panic!("create {}: {error}", path.display()));
        Self(Arc::new(Owned(path)))
    }
}

impl Deref for Scratch {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0 .0
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if env::var_os("REDIS_LOCK_KEEP").is_some() {
            eprintln!("kept {}", self.0.display());
        } else {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

/// Removes the directories of test processes that are gone, or that had this one's id before.
fn remove_leftovers(all: &Path) {
    if env::var_os("REDIS_LOCK_KEEP").is_some() {
        return;
    }
    for entry in fs::read_dir(all).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.rsplit('-').nth(1));
        let Some(owner) = owner.and_then(|owner| owner.parse::<u32>().ok()) else {
            continue;
        };
        if owner == process::id() || !Path::new(&format!("/proc/{owner}")).exists() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
