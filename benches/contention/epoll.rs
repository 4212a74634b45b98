//! Which of many sockets have something to read.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

const EVENTS_AT_ONCE: usize = 256;

/// A set of sockets, each under a number.
pub struct Epoll {
    fd: OwnedFd,
    ready: Vec<libc::epoll_event>,
}

impl Epoll {
    pub fn new() -> Self {
        // SAFETY: takes a plain flag; the descriptor it gives is owned by nobody else.
        let fd = unsafe {
            let fd = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            assert!(fd >= 0, "epoll: {}", io::Error::last_os_error());
            OwnedFd::from_raw_fd(fd)
        };
        Self { fd, ready: vec![libc::epoll_event { events: 0, u64: 0 }; EVENTS_AT_ONCE] }
    }

    /// Watches a socket until it is closed.
    pub fn add(&self, socket: &impl AsRawFd, number: usize) {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: number as u64 };
        // SAFETY: both descriptors are open and the event is valid.
        let result =
            unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), libc::EPOLL_CTL_ADD, socket.as_raw_fd(), &raw mut event) };
        assert_eq!(result, 0, "epoll: {}", io::Error::last_os_error());
    }

    /// Numbers of sockets to read; none if there were none for so long.
    pub fn wait(&mut self, patience: Duration, numbers: &mut Vec<usize>) {
        let patience_ms = i32::try_from(patience.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: `ready` has room for as many events as is said.
        let count = unsafe {
            libc::epoll_wait(self.fd.as_raw_fd(), self.ready.as_mut_ptr(), EVENTS_AT_ONCE as i32, patience_ms)
        };
        let count = usize::try_from(count).unwrap_or(0);
        numbers.clear();
        numbers.extend(self.ready[..count].iter().map(|event| event.u64 as usize));
    }
}
