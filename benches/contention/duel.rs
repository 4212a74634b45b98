//! The contenders with this benchmark's own kind of client, in turns: a machine that gets slower meanwhile slows all.

use std::time::Duration;

use crate::contender::Contender;
use crate::crew::Crew;
use crate::harness::{Kind, Server};
use crate::native::Protocol;
use crate::tally::{Figures, Tally};

const TURNS: u32 = 5;

/// A plain server for whoever needs no module, so that nobody carries its weight.
pub fn server(kind: Kind, contender: Contender) -> Server {
    let server = Server::builder(kind);
    match contender {
        Contender::Lock => server.start(),
        _ => server.without_module().start(),
    }
}

pub fn run(kind: Kind, contenders: &[Contender], clients: usize, span: Duration) -> Vec<(Contender, Figures)> {
    let servers: Vec<Server> = contenders.iter().map(|&contender| server(kind, contender)).collect();
    let crews = servers.iter().zip(contenders);
    let mut crews: Vec<Crew> =
        crews.map(|(server, &contender)| Crew::connect(server, Protocol::of(contender), clients)).collect();
    let mut tallies: Vec<Tally> = contenders.iter().map(|_| Tally::new(clients)).collect();
    for _ in 0..TURNS {
        for (crew, tally) in crews.iter_mut().zip(&mut tallies) {
            tally.add(&crew.run(span / TURNS));
        }
    }
    contenders.iter().copied().zip(tallies.into_iter().map(Tally::figures)).collect()
}
