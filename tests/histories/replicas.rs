//! A primary with replicas, which are promoted by hand: a grant that both have is kept, whichever takes over.

use super::harness::{cmd, eventually, is_primary, on_every_server, wait_in_sync, Clock, Kind, Server, SECOND_US};
use super::network::{routes, Links};
use super::scene::{assert_kept, record, rewrite, stall, Safety, Scene, SECONDS};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(30);

on_every_server! {
    fn what_replicas_have_is_kept_over_every_failover(kind: Kind) {
        let clocks: Vec<Clock> = (0..3).map(|_| Clock::new()).collect();
        let mut nodes: Vec<Server> = clocks.iter().map(|clock| Server::builder(kind).clock(clock).start()).collect();
        let links: Vec<Links> = nodes.iter().map(Links::of).collect();
        for (node, links) in nodes.iter().zip(&links) {
            links.announce(node);
        }
        let follow = |nodes: &[Server], replica: usize, primary: usize| {
            nodes[replica].replica_by(links[primary].peers.port(), &nodes[primary]);
        };
        follow(&nodes, 1, 0);
        follow(&nodes, 2, 0);
        let mut scene = Scene::of(nodes[0].port(), Safety::Replicated(2));
        scene.routes = routes(nodes.iter().map(Server::port).zip(&links));
        let mut primary = 0;
        let history = record(&scene, SECONDS, |dice| {
            let (next, third) = ((primary + 1) % 3, (primary + 2) % 3);
            match dice.within(0..9) {
                0 => return stall(&nodes[next], dice),
                1 => return stall(&nodes[primary], dice),
                2 => return links[primary].disturb_clients(dice),
                3 => return links[primary].disturb_peers(dice),
                4 => return rewrite(&nodes[primary], dice),
                // Fences count on clocks that are less than ten seconds apart.
                5 => {
                    clocks[next].reset();
                    return clocks[next].step(dice.within(0..4 * SECOND_US as u64) as i64 - 2 * SECOND_US);
                }
                // A replica starts over from a whole copy, in the middle of everything.
                6 => {
                    cmd!(nodes[primary].client(), "DEBUG", "CHANGE-REPL-ID").ok();
                    links[primary].peers.sever();
                    return;
                }
                7 => {
                    wait_in_sync(&nodes[primary], &nodes[next]);
                    // The one that takes over has everything.
                    let port = links[next].peers.port();
                    cmd!(nodes[primary].client(), "FAILOVER", "TO", "127.0.0.1", port).ok();
                    eventually(SOON, || is_primary(&nodes[next]));
                }
                _ => {
                    nodes[primary].kill9();
                    nodes[next].promote();
                    // It comes back as a primary of its own: nobody may take it for the one that counts.
                    scene.lead(nodes[next].port());
                    nodes[primary].restart();
                    follow(&nodes, primary, next);
                }
            }
            scene.lead(nodes[next].port());
            follow(&nodes, third, next);
            wait_in_sync(&nodes[next], &nodes[primary]);
            primary = next;
        });
        assert_kept(&history);
    }
}
