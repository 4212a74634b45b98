//! Keyspace events of class `d`: a holder set and a holder gone, each exactly once, nothing for tries and repeats.

use std::time::Duration;

use crate::harness::{cmd, eventually, grant, on_every_server, send, Client, Kind, Server};

const SOON: Duration = Duration::from_secs(5);

/// A connection that hears every key event of this server's databases.
fn listener(server: &Server) -> Client {
    let mut client = server.resp3_client();
    send!(client, "PSUBSCRIBE", "__keyevent@*__:*");
    assert_eq!(client.recv_push().array()[0].text(), "psubscribe");
    client
}

/// The events heard so far, each as `db event key`. The server writes them before it answers the PING.
#[track_caller]
fn heard(listener: &mut Client) -> Vec<String> {
    assert!(cmd!(listener, "PING").is("PONG"));
    let events = listener.pushes.drain(..).map(|push| {
        let [_, _, channel, key] = push.array() else { panic!("{push:?}") };
        let channel = channel.text();
        let (db, event) = channel.trim_start_matches("__keyevent@").split_once("__:").expect("a key event");
        format!("{db} {event} {}", key.text())
    });
    events.collect()
}

fn server_with_events(kind: Kind, classes: &str) -> Server {
    Server::builder(kind).arg("notify-keyspace-events", classes).start()
}

on_every_server! {
    fn acquired_released_and_expired_are_heard_once_each(kind: Kind) {
        let server = server_with_events(kind, "Ed");
        let (mut client, mut ear) = (server.client(), listener(&server));
        grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a"));
        assert_eq!(heard(&mut ear), ["0 lock.acquired k"]);
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "a").int(), 1);
        assert_eq!(heard(&mut ear), ["0 lock.released k"]);
        cmd!(client, "SELECT", 3).ok();
        grant(&cmd!(client, "LOCK.ACQUIRE", "k3", "PX", 20));
        let mut all = heard(&mut ear);
        eventually(SOON, || {
            all.append(&mut heard(&mut ear));
            if all.len() >= 2 { Ok(()) } else { Err(all.clone()) }
        });
        assert_eq!(all, ["3 lock.acquired k3", "3 lock.expired k3"]);
    }

    fn tries_repeats_extensions_and_errors_are_silent(kind: Kind) {
        let server = server_with_events(kind, "KEA");
        let mut client = server.client();
        grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a"));
        cmd!(client, "SET", "data", 1).ok();
        let mut ear = listener(&server);
        assert!(cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "b").is_null());
        grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 70_000));
        assert_eq!(cmd!(client, "LOCK.EXTEND", "k", "a", "PX", 80_000).int(), 80_000);
        assert_eq!(cmd!(client, "LOCK.EXTEND", "k", "b").int(), 0);
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "b").int(), -1);
        assert_eq!(cmd!(client, "LOCK.RELEASE", "free", "b").int(), 0);
        assert!(cmd!(client, "LOCK.CHECK", "k", "a").int() > 0);
        assert!(!cmd!(client, "LOCK.INFO", "k").is_null());
        assert!(cmd!(client, "LOCK.ACQUIRE", "k", "PX", 0).is_error());
        assert!(cmd!(client, "LOCK.ACQUIRE", "data").is_error());
        assert!(cmd!(client, "LOCK._SET", "k", "x").is_error());
        assert_eq!(heard(&mut ear), [""; 0]);
    }

    fn they_are_of_class_d_and_a_too(kind: Kind) {
        for (classes, expected) in [("Ed", true), ("EA", true), ("Eg$lshzxetm", false), ("Kd", false)] {
            let server = server_with_events(kind, classes);
            let (mut client, mut ear) = (server.client(), listener(&server));
            grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a"));
            let names = heard(&mut ear);
            assert_eq!(names.iter().any(|name| name == "0 lock.acquired k"), expected, "{classes}: {names:?}");
        }
    }

    fn a_forced_unlock_is_the_servers_own_event(kind: Kind) {
        let server = server_with_events(kind, "EA");
        let mut client = server.client();
        grant(&cmd!(client, "LOCK.ACQUIRE", "k"));
        let mut ear = listener(&server);
        assert_eq!(cmd!(client, "DEL", "k").int(), 1);
        assert_eq!(heard(&mut ear), ["0 del k"]);
    }

    fn a_key_that_is_bytes_is_named_in_full(kind: Kind) {
        let server = server_with_events(kind, "Kd");
        let mut client = server.client();
        let mut ear = server.resp3_client();
        send!(ear, "PSUBSCRIBE", "__keyspace@0__:*");
        ear.recv_push();
        let key = b"a\0%n\xff";
        grant(&cmd!(client, "LOCK.ACQUIRE", key));
        let push = ear.recv_push();
        let expected = [&b"__keyspace@0__:"[..], key].concat();
        assert_eq!((push.array()[2].bulk(), push.array()[3].bulk()), (&expected[..], &b"lock.acquired"[..]));
    }
}
