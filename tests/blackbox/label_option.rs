//! `LABEL`: what people see of a holder when it says so itself, and the edges of what it gets otherwise. The defaults
//! of a connection, a script and a function are in `label`.

use crate::harness::{cmd, grant, on_every_server, Client, Kind, Server};

fn label(client: &mut Client, key: &str) -> Vec<u8> {
    cmd!(client, "LOCK.INFO", key).get("holders").array()[0].get("label").bulk().to_vec()
}

/// The address as the server shows it elsewhere.
fn address(client: &mut Client) -> String {
    let about = cmd!(client, "CLIENT", "INFO").text();
    let field = about.split(' ').find_map(|field| field.strip_prefix("addr="));
    field.expect("CLIENT INFO has an address").to_owned()
}

on_every_server! {
    fn a_label_wins_over_name_and_address_even_when_empty(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        cmd!(client, "CLIENT", "SETNAME", "worker-7").ok();
        grant(&cmd!(client, "LOCK.ACQUIRE", "given", "LABEL", "nightly report"));
        assert_eq!(label(&mut client, "given"), b"nightly report");
        grant(&cmd!(client, "LOCK.ACQUIRE", "empty", "LABEL", ""));
        assert_eq!(label(&mut client, "empty"), b"");
    }

    fn a_name_taken_away_leaves_the_address(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        cmd!(client, "CLIENT", "SETNAME", "worker-7").ok();
        cmd!(client, "CLIENT", "SETNAME", "").ok();
        grant(&cmd!(client, "LOCK.ACQUIRE", "k"));
        assert_eq!(label(&mut client, "k"), address(&mut client).as_bytes());
    }

    fn a_name_too_long_for_a_label_is_cut(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let name: String = ('!'..='~').cycle().take(300).collect();
        cmd!(client, "CLIENT", "SETNAME", name).ok();
        grant(&cmd!(client, "LOCK.ACQUIRE", "k"));
        assert_eq!(label(&mut client, "k"), &name.as_bytes()[..128]);
    }

    // The module remembers addresses of connections by their ids, in fewer places than there are ids here.
    fn each_connection_has_its_own_address(kind: Kind) {
        let server = Server::start(kind);
        let mut lasting = server.client();
        for n in 0..300 {
            let mut client = server.client();
            let key = format!("k{n}");
            grant(&cmd!(client, "LOCK.ACQUIRE", key));
            assert_eq!(label(&mut client, &key), address(&mut client).as_bytes(), "connection {n}");
        }
        grant(&cmd!(lasting, "LOCK.ACQUIRE", "first"));
        grant(&cmd!(lasting, "LOCK.ACQUIRE", "second"));
        let own = address(&mut lasting).into_bytes();
        assert_eq!([label(&mut lasting, "first"), label(&mut lasting, "second")], [own.clone(), own]);
    }

    fn addresses_of_ipv6_have_brackets(kind: Kind) {
        let server = Server::builder(kind).arg("bind", "127.0.0.1 -::1").start();
        // A machine without IPv6 has nothing to show here.
        let Ok(mut client) = Client::try_connect_v6(server.port()) else { return };
        grant(&cmd!(client, "LOCK.ACQUIRE", "k"));
        let shown = label(&mut client, "k");
        assert!(shown.starts_with(b"[::1]:"), "{}", shown.escape_ascii());
        assert_eq!(shown, address(&mut client).as_bytes());
    }

    fn a_label_is_shown_and_never_compared(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "LABEL", "one"));
        assert!(cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "b", "LABEL", "one").is_null());
        assert_eq!(grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "LABEL", "two")).new, 0);
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "one").int(), -1);
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "a").int(), 1);
    }
}
