//! docs/guard.md tells the truth: a worker that is paused past its lease cannot write, every refusal in the table is one
//! that the server gives, and the user in it has the rights that are needed.

use crate::harness::{args, cmd, grant, on_every_server, Kind, Reply, Server};
use crate::transcript;

const GUIDE: &str = include_str!("../../docs/guard.md");

/// A command for each error in the table of what is refused.
const REFUSED: [(&str, &str); 7] = [
    ("PING", "names no keys"),
    ("WATCH d", "forbids it in scripts"),
    ("LOCK.GUARD k t GET d", "does not nest"),
    ("LOCK.RELEASE k t", "runs no LOCK commands"),
    ("FOREIGN.SET d 1", "other modules"),
    ("NOSUCH d", "unknown command"),
    ("GET d e", "wrong number of arguments"),
];

on_every_server! {
    fn a_worker_paused_past_its_lease_cannot_write(kind: Kind) {
        transcript::assert_true(&Server::start(kind), GUIDE);
    }

    fn the_refusals_are_those_of_the_server(kind: Kind) {
        let server = Server::builder(kind).with_foreign_module().start();
        let mut client = server.client();
        grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "t"));
        for (command, part) in REFUSED {
            let words = command.split(' ').map(|word| word.as_bytes().to_vec()).collect();
            let reply = client.cmd(&[args!["LOCK.GUARD", "k", "t"], words].concat());
            let Reply::Error(text) = reply else { panic!("{command}: {reply:?}") };
            assert!(text.contains(part) && GUIDE.contains(&format!("`{text}`")), "{command}: {text}");
        }
    }

    fn the_user_can_do_what_it_is_for(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let rule = GUIDE.lines().find_map(|line| line.trim().strip_prefix("ACL SETUSER ")).expect("a rule");
        let rule = rule.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        client.cmd(&[args!["ACL", "SETUSER"], rule].concat()).ok();
        grant(&cmd!(client, "LOCK.ACQUIRE", "stock:lock", "TOKEN", "t"));
        let mut clerk = server.client();
        cmd!(clerk, "AUTH", "clerk", "secret").ok();
        cmd!(clerk, "LOCK.GUARD", "stock:lock", "t", "SET", "stock:apples", 1).ok();
        assert_eq!(cmd!(clerk, "LOCK.GUARD", "stock:lock", "t", "GET", "stock:apples").text(), "1");
        for denied in [args!["DEL", "stock:apples"], args!["GET", "stock:pears"], args!["SET", "stock:lock", 1]] {
            let reply = clerk.cmd(&[args!["LOCK.GUARD", "stock:lock", "t"], denied].concat());
            assert!(reply.err().starts_with("NOPERM "), "{reply:?}");
        }
        assert!(cmd!(clerk, "LOCK.RELEASE", "stock:lock", "t").err().starts_with("NOPERM "));
    }
}
