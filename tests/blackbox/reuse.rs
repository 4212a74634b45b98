//! A name that held a lock and then holds something else: nothing of the old lock comes back.

use std::time::Duration;

use crate::harness::{cmd, eventually, grant, on_every_server, Kind, Server};

on_every_server! {
    fn a_deleted_lock_stays_deleted_when_its_successor_expires(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        for round in 0..20 {
            let key = format!("job {round}");
            grant(&cmd!(client, "LOCK.ACQUIRE", key, "TOKEN", "ann", "PX", 60_000));
            assert_eq!(cmd!(client, "DEL", key).int(), 1);
            cmd!(client, "SET", key, "bob", "NX", "PX", 1).ok();
            eventually(Duration::from_secs(5), || match cmd!(client, "GET", key) {
                reply if reply.is_null() => Ok(()),
                reply => Err(reply),
            });
            assert_eq!(cmd!(client, "LOCK.CHECK", key, "ann").int(), 0, "round {round}");
            grant(&cmd!(client, "LOCK.ACQUIRE", key, "TOKEN", "cyd", "PX", 60_000));
        }
    }
}
