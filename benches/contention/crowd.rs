//! Whether a hand-over costs more when many wait: a short line and a long one, in turns, for the lock and for the baton.

use std::time::Duration;

use crate::contender::Contender;
use crate::crew::Crew;
use crate::duel::server;
use crate::harness::{cmd, Kind};
use crate::native::Protocol;
use crate::tally::{Figures, Tally};

const SHORT: usize = 20;
const LONG: usize = 2000;
const TURNS: u32 = 5;

/// One contender with a line of one length.
pub struct Crowd {
    pub contender: Contender,
    pub clients: usize,
    pub figures: Figures,
}

impl Crowd {
    pub fn is_long(&self) -> bool {
        self.clients == LONG
    }
}

pub fn measure(kind: Kind, contenders: &[Contender], span: Duration) -> Vec<Crowd> {
    contenders.iter().flat_map(|&contender| compare(kind, contender, span)).collect()
}

fn compare(kind: Kind, contender: Contender, span: Duration) -> Vec<Crowd> {
    let lines = [SHORT, LONG].map(|clients| (clients, server(kind, contender), Tally::new(clients)));
    let mut lines = lines.map(|(clients, server, tally)| {
        if contender == Contender::Lock {
            cmd!(server.client(), "CONFIG", "SET", "lock.max-waiters", 2 * LONG).ok();
        }
        let crew = Crew::connect(&server, Protocol::of(contender), clients);
        (server, clients, crew, tally)
    });
    for _ in 0..TURNS {
        for (_, _, crew, tally) in &mut lines {
            tally.add(&crew.run(span / TURNS));
        }
    }
    let crowds = lines.map(|(_server, clients, _, tally)| Crowd { contender, clients, figures: tally.figures() });
    crowds.into_iter().collect()
}
