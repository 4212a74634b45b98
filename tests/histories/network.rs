//! The network of a history: each server has a link to its peers, and one to the clients of either side. Links are cut,
//! swallow what goes one way, are slow, or end, and are mended after a while.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::dice::Dice;
use super::harness::{cmd, eventually, grant, let_pass, Kind, Proxy, Server, Way};

/// Of a server.
pub struct Links {
    /// For replicas and Sentinels: the port that it announces.
    pub peers: Proxy,
    /// For clients.
    pub sides: [Proxy; 2],
}

impl Links {
    pub fn of(server: &Server) -> Self {
        let port = server.port();
        Self { peers: Proxy::to(port), sides: [Proxy::to(port), Proxy::to(port)] }
    }

    /// The server is known to others by its link for peers, also after a restart.
    pub fn announce(&self, server: &Server) {
        let mut client = server.client();
        cmd!(client, "CONFIG", "SET", "replica-announce-port", self.peers.port()).ok();
        cmd!(client, "CONFIG", "REWRITE").ok();
    }

    /// Something happens to one of these links, for a while.
    pub fn disturb_clients(&self, dice: &mut Dice) {
        disturb(&self.sides[dice.within(0..2) as usize], dice);
    }

    pub fn disturb_peers(&self, dice: &mut Dice) {
        disturb(&self.peers, dice);
    }
}

/// How clients reach these servers, by the ports that they are known by.
pub fn routes<'a>(servers: impl IntoIterator<Item = (u16, &'a Links)>) -> HashMap<u16, [u16; 2]> {
    let route = |(port, links): (u16, &Links)| (port, [links.sides[0].port(), links.sides[1].port()]);
    servers.into_iter().map(route).collect()
}

/// Something happens to a link, for a while.
pub fn disturb(link: &Proxy, dice: &mut Dice) {
    match dice.within(0..5) {
        0 => link.cut(),
        1 => link.swallow(Way::There),
        2 => link.swallow(Way::Back),
        3 => link.delay(Duration::from_millis(dice.within(1..60))),
        _ => link.sever(),
    }
    let_pass(Duration::from_millis(dice.within(20..600)));
    link.mend();
}

/// What these tests rest on: a link does what it is told.
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(300);
    const LONG: Duration = Duration::from_secs(20);
    const LONG_MS: u64 = 600_000;

    #[test]
    fn a_link_that_is_cut_passes_nothing_and_later_everything() {
        let server = Server::start(Kind::Redis70);
        let link = Proxy::to(server.port());
        let mut client = super::super::harness::Client::connect(link.port());
        link.cut();
        client.send(&["LOCK.ACQUIRE", "k", "TOKEN", "t", "PX", "600000"]);
        assert_eq!(client.try_recv(SHORT), None);
        assert!(cmd!(server.client(), "LOCK.INFO", "k").is_null(), "it arrived");
        link.mend();
        grant(&client.try_recv(LONG).expect("a late reply"));
    }

    #[test]
    fn a_link_that_swallows_replies_leaves_the_request_done_and_the_connection_open() {
        let server = Server::start(Kind::Redis70);
        let link = Proxy::to(server.port());
        let mut client = super::super::harness::Client::connect(link.port());
        link.swallow(Way::Back);
        client.send(&["LOCK.ACQUIRE", "k", "TOKEN", "t", "PX", "600000"]);
        eventually(LONG, || match cmd!(server.client(), "LOCK.CHECK", "k", "t").int() {
            0 => Err("not yet"),
            _ => Ok(()),
        });
        assert_eq!(client.try_recv(SHORT), None);
        assert!(!client.is_closed());
        link.mend();
        eventually(LONG, || client.is_closed().then_some(()).ok_or("open"));
        let mut again = super::super::harness::Client::connect(link.port());
        assert_eq!(grant(&cmd!(again, "LOCK.ACQUIRE", "k", "TOKEN", "t", "PX", LONG_MS)).new, 0, "one hold");
        // And requests, the other way.
        link.swallow(Way::There);
        again.send(&["LOCK.RELEASE", "k", "t"]);
        assert_eq!(again.try_recv(SHORT), None);
        assert!(cmd!(server.client(), "LOCK.CHECK", "k", "t").int() > 0);
    }

    #[test]
    fn a_slow_link_is_slow_and_one_that_ends_ends_its_connections() {
        let server = Server::start(Kind::Redis70);
        let link = Proxy::to(server.port());
        let mut client = super::super::harness::Client::connect(link.port());
        link.delay(SHORT);
        let sent = Instant::now();
        assert!(cmd!(client, "PING").is("PONG"));
        assert!(sent.elapsed() >= 2 * SHORT, "{:?}", sent.elapsed());
        link.sever();
        eventually(LONG, || client.is_closed().then_some(()).ok_or("open"));
        assert!(cmd!(super::super::harness::Client::connect(link.port()), "PING").is("PONG"), "it takes new ones");
    }
}
