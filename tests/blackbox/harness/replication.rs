//! Primaries and replicas: attach, wait until they agree, promote.

use std::time::Duration;

use super::client::Client;
use super::info::info;
use super::patience::eventually;
use super::server::Server;

const SYNC_WAIT: Duration = Duration::from_secs(30);

impl Server {
    /// Makes this server a replica and waits until it has caught up.
    #[track_caller]
    pub fn replica_of(&self, primary: &Self) {
        self.replica_by(primary.port(), primary);
    }

    /// The same where the primary is reached by another port than its own.
    #[track_caller]
    pub fn replica_by(&self, port: u16, primary: &Self) {
        // Asked again it says that it is connected already.
        let reply = self.client().cmd(&["REPLICAOF", "127.0.0.1", &port.to_string()]);
        assert!(!reply.is_error(), "{reply:?}");
        wait_in_sync(primary, self);
    }

    /// Makes this server a primary.
    #[track_caller]
    pub fn promote(&self) {
        self.client().cmd(&["REPLICAOF", "NO", "ONE"]).ok();
    }
}

/// `Err` is what the server is instead.
pub fn is_primary(server: &Server) -> Result<(), String> {
    match server.client().cmd(&["ROLE"]).array()[0].text() {
        role if role == "master" => Ok(()),
        other => Err(other),
    }
}

/// Waits until two servers have changed places, and agree.
#[track_caller]
pub fn until_failed_over(primary: &Server, replica: &Server) {
    for (server, role) in [(primary, "slave"), (replica, "master")] {
        let mut client = server.client();
        eventually(SYNC_WAIT, || match info(&mut client, "replication").text("role") {
            seen if seen == role => Ok(()),
            seen => Err(seen.to_owned()),
        });
    }
    wait_in_sync(replica, primary);
}

/// Waits until the primary hears back from a replica at once: a new one first answers after a second.
#[track_caller]
pub fn wait_until_heard(primary: &Server) {
    let mut client = primary.client();
    eventually(SYNC_WAIT, || {
        let replica = info(&mut client, "replication").find("slave0").map(str::to_owned);
        match replica {
            Some(state) if state.contains("state=online") => Ok(()),
            other => Err(other),
        }
    });
}

/// Waits until the replica's link is up and it has applied all that the primary had written when this was called.
#[track_caller]
pub fn wait_in_sync(primary: &Server, replica: &Server) {
    let (mut above, mut below) = (primary.client(), replica.client());
    eventually(SYNC_WAIT, || in_sync(&mut above, &mut below));
}

/// `Err` says how far the replica is.
pub fn in_sync(primary: &mut Client, replica: &mut Client) -> Result<(), String> {
    // The primary goes first: its stream may grow between the two questions, by a ping of its own.
    let above = info(primary, "replication");
    let below = info(replica, "replication");
    let written = above.int("master_repl_offset");
    let link = below.find("master_link_status").unwrap_or("not a replica");
    let applied = below.find("slave_repl_offset").unwrap_or("-1");
    // An offset means something only within one history.
    let one_history = above.text("master_replid") == below.text("master_replid");
    let caught_up = applied.parse().is_ok_and(|applied: i64| applied >= written);
    if link == "up" && one_history && caught_up {
        return Ok(());
    }
    Err(format!("link {link}, same history {one_history}, applied {applied} of {written}"))
}
