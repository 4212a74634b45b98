//! A disk that loses its power: what a server wrote and never flushed is gone, as after a power cut, which no signal to
//! a process can show. A preloaded library, `disk_shim.c`, notes how long each file was when it was last flushed.
//! That a file was made, renamed or removed counts as flushed at once.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering;
use std::sync::OnceLock;

use super::builder::Builder;
use super::library::Library;
use super::mapped::Mapped;
use super::server::Server;

/// As many as the library has room for.
const FILES: usize = 512;

/// The disk of the server that was built with it.
#[derive(Debug)]
pub struct Disk {
    /// Pairs of inode and length.
    flushed: Mapped,
}

impl Disk {
    pub fn new() -> Self {
        Self { flushed: Mapped::new("disk", 2 * FILES) }
    }

    /// Ends the server and its machine at once. How many bytes of its append-only file that cost.
    pub fn lose_power(&self, server: &mut Server) -> u64 {
        server.kill9();
        let parts = fs::read_dir(server.dir().join("appendonlydir")).expect("an append-only directory");
        let mut lost = 0;
        for part in parts {
            let path = part.expect("a file").path();
            let written = fs::metadata(&path).expect("a file of the server");
            let kept = self.flushed(written.ino()).min(written.len());
            OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(kept)).expect("cut the file");
            lost += written.len() - kept;
        }
        lost
    }

    fn flushed(&self, inode: u64) -> u64 {
        let pairs = self.flushed.numbers().chunks_exact(2);
        let mut lengths = pairs.filter(|pair| pair[0].load(Ordering::SeqCst) == inode);
        lengths.next().map_or(0, |pair| pair[1].load(Ordering::SeqCst))
    }
}

impl Builder {
    /// Runs the server on a disk that can lose its power.
    pub fn disk(self, disk: &Disk) -> Self {
        static SHIM: OnceLock<Library> = OnceLock::new();
        let shim = SHIM.get_or_init(|| Library::compile("disk_shim", include_str!("disk_shim.c")));
        self.preload(shim).env("LOCK_DISK_FLUSHED", disk.flushed.file())
    }
}
