//! A holder that dies: how long after the end of its lease the next one in line gets the lock.

use std::time::{Duration, Instant};

use crate::contender::Contender;
use crate::duel::server;
use crate::foreign;
use crate::harness::{args, cmd, grant, send, Kind, Server};

/// The lease a holder takes before it dies, where a client can have one that short.
pub const LEASE_MS: u64 = 300;

/// How late the next grant came.
pub enum Lag {
    /// In us after the end of a lease of so many ms, counted from when the dead holder asked for it.
    Measured { lease_ms: u64, sorted_us: Vec<u64> },
    /// Nobody was granted anything, as long as anybody looked.
    Never,
}

const BATON_LEASES: u64 = 5;

pub fn lag(kind: Kind, contender: Contender, rounds: usize) -> Lag {
    match contender {
        Contender::Lock => lock(&server(kind, contender), rounds),
        Contender::Baton => baton(&server(kind, contender)),
        _ => foreign::orphans(kind, contender, rounds, LEASE_MS),
    }
}

fn lock(server: &Server, rounds: usize) -> Lag {
    let mut waiter = server.client();
    let mut sorted_us: Vec<u64> = (0..rounds)
        .map(|round| {
            let name = format!("orphaned-{round}");
            let mut holder = server.client();
            let asked = Instant::now();
            grant(&cmd!(holder, "LOCK.ACQUIRE", name, "TOKEN", "dies", "PX", LEASE_MS));
            drop(holder);
            grant(&cmd!(waiter, "LOCK.ACQUIRE", name, "TOKEN", "lives", "BLOCK", 0));
            let lag = asked.elapsed().saturating_sub(Duration::from_millis(LEASE_MS));
            u64::try_from(lag.as_micros()).unwrap_or(u64::MAX)
        })
        .collect();
    sorted_us.sort_unstable();
    Lag::Measured { lease_ms: LEASE_MS, sorted_us }
}

fn baton(server: &Server) -> Lag {
    let (mut holder, mut waiter) = (server.client(), server.client());
    holder.pipeline([args!["LPUSH", "orphaned", "baton"], args!["BLPOP", "orphaned", 0]]);
    send!(waiter, "BLPOP", "orphaned", 0);
    drop(holder);
    let next = waiter.try_recv(Duration::from_millis(BATON_LEASES * LEASE_MS));
    assert!(next.is_none(), "a baton came back: {next:?}");
    Lag::Never
}
