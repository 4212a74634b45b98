//! Free loopback ports. They are taken below the range the kernel uses for outgoing connections, so that a server which
//! restarts on its old port does not find one of the tests' own connections sitting there.

use std::net::{Ipv4Addr, TcpListener};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::OnceLock;

const FIRST: u32 = 10_000;
const COUNT: u32 = 22_000;

/// A port nobody listens on now. Another process may still win the race for it: the caller tries again.
pub fn free_port() -> u16 {
    static NEXT: OnceLock<AtomicU32> = OnceLock::new();
    // Test processes that run at once start far apart.
    let next = NEXT.get_or_init(|| AtomicU32::new(process::id().wrapping_mul(7919)));
    for _ in 0..COUNT {
        let candidate = FIRST + next.fetch_add(1, Ordering::Relaxed) % COUNT;
        let port = u16::try_from(candidate).expect("ports end below 65536");
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
    panic!("all {COUNT} ports from {FIRST} are taken");
}
