//! One server: whatever happens to it, to its clock and to the network before it, clients are promised everything.

use super::harness::{on_every_server, Clock, Kind, Server};
use super::network::{routes, Links};
use super::scene::{assert_kept, record, rewrite, stall, step, Safety, Scene, SECONDS};
use super::witness::Witness;

fn again(server: &mut Server) {
    server.kill9();
    server.restart();
}

on_every_server! {
    /// Its own file says so too.
    fn one_server_keeps_every_promise_over_stalls_clock_steps_and_kill9(kind: Kind) {
        let clock = Clock::new();
        // No rewrite: the file has all that ever happened.
        let builder = Server::builder(kind).append_only("always").arg("auto-aof-rewrite-percentage", 0);
        let mut server = builder.arg("aof-use-rdb-preamble", "no").clock(&clock).start();
        let links = Links::of(&server);
        let mut scene = Scene::of(server.port(), Safety::Told);
        scene.routes = routes([(server.port(), &links)]);
        let history = record(&scene, SECONDS, |dice| match dice.within(0..5) {
            0 => again(&mut server),
            1 => stall(&server, dice),
            2 => links.disturb_clients(dice),
            _ => step(&clock, dice),
        });
        assert_kept(&history);
        server.kill9();
        Witness::read(&server.dir()).confirm(&history);
    }

    fn one_server_keeps_every_promise_while_it_rewrites_and_saves(kind: Kind) {
        let clock = Clock::new();
        let mut server = Server::builder(kind).append_only("always").clock(&clock).start();
        let scene = Scene::of(server.port(), Safety::Told);
        let history = record(&scene, SECONDS, |dice| match dice.within(0..4) {
            // A file that Redis 7.0 wrote anew tells no fences of free locks: they can fall over starts within seconds.
            0 if kind != Kind::Redis70 => again(&mut server),
            1 => step(&clock, dice),
            _ => rewrite(&server, dice),
        });
        assert_kept(&history);
    }
}
