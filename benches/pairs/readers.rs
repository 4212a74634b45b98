//! A lock that many share: what the release of one reader costs among ten and among a thousand, and the same for the
//! sequence of calls that a widely used Java client's read lock makes there, which looks at every reader.

use crate::contender::Contender;
use crate::finding::{compare, Finding};
use crate::harness::{cmd, info_int, wait_in_sync, Client, Kind, Reply, Server};
use crate::pipe::{line, Pipe};
use crate::rounds::{self, Plan};

const FEW: usize = 10;
const MANY: usize = 1_000;
const TARGET: f64 = 1.2;
const FEW_NAME: &str = "a reader among 10";
const MANY_NAME: &str = "a reader among 1000";
const SCRIPT_NAME: &str = "a script that asks for each of 1000";

/// Takes a reader in: a field that counts its holds, a key with its lease.
const ENTER: &str = "redis.call('hincrby', KEYS[1], ARGV[2], 1); \
    redis.call('set', KEYS[1] .. ':' .. ARGV[2], 1, 'PX', ARGV[1]); \
    if redis.call('pttl', KEYS[1]) < tonumber(ARGV[1]) then redis.call('pexpire', KEYS[1], ARGV[1]) end return nil";

/// Lets a reader go: the lock's own lease becomes the longest of those that stay, so it asks for the holds and the lease
/// of each.
const LEAVE: &str = "if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then return nil end \
    if redis.call('hincrby', KEYS[1], ARGV[1], -1) == 0 then redis.call('hdel', KEYS[1], ARGV[1]) end \
    redis.call('del', KEYS[1] .. ':' .. ARGV[1]); local longest = 0 \
    for _, reader in ipairs(redis.call('hkeys', KEYS[1])) do \
      if tonumber(redis.call('hget', KEYS[1], reader)) then \
        longest = math.max(longest, redis.call('pttl', KEYS[1] .. ':' .. reader)) end end \
    if longest > 0 then redis.call('pexpire', KEYS[1], longest) return 1 end redis.call('del', KEYS[1]) return 1";

/// CPU time of a reader's coming and going.
pub fn cpu(server: &Server, plan: Plan) -> Vec<Finding> {
    let mut client = server.client();
    let (enter, leave) = (script(&mut client, ENTER), script(&mut client, LEAVE));
    for (lock, readers) in [("few", FEW), ("many", MANY)] {
        fill(&mut client, lock, readers);
    }
    for reader in 1..MANY {
        cmd!(client, "EVALSHA", enter, 1, "fields", 80_000_000, format!("reader:{reader}"));
    }
    let released = |replies: &[Reply]| replies.last() == Some(&Reply::Int(1));
    let pair = |name, lock| {
        let take = format!("LOCK.ACQUIRE {lock} TOKEN token PX 30000 SHARED");
        Contender::new(name, &[&take, &format!("LOCK.RELEASE {lock} token")])
    };
    let scripts = [format!("EVALSHA {enter} 1 fields 30000 token"), format!("EVALSHA {leave} 1 fields token")];
    let script = Contender::new(SCRIPT_NAME, &[&scripts[0], &scripts[1]]);
    let all = [pair(FEW_NAME, "few"), pair(MANY_NAME, "many"), script];
    let all: Vec<Contender> = all.into_iter().map(|one| one.tried(&mut client, released)).collect();
    // The script takes a thousand times as long.
    let plan = Plan { keys: (plan.keys / 20).max(64), ..plan };
    let readings = rounds::run(server, &all, plan);
    vec![
        compare("comes and goes: a reader among 1000", &readings, MANY_NAME, FEW_NAME, Some(TARGET)),
        compare("comes and goes: a reader among 1000", &readings, MANY_NAME, SCRIPT_NAME, None),
    ]
}

/// Bytes that a replica is sent for it.
pub fn replicated(kind: Kind) -> Finding {
    const RELEASES: usize = 100;
    let (server, replica) = (Server::start(kind), Server::start(kind));
    replica.replica_of(&server);
    let mut client = server.client();
    let [few, many] = [("few", FEW), ("many", MANY)].map(|(lock, readers)| {
        fill(&mut client, lock, readers);
        wait_in_sync(&server, &replica);
        let offset = |client: &mut Client| info_int(client, "replication", "master_repl_offset");
        let before = offset(&mut client);
        let mut pipe = Pipe::connect(server.port());
        for _ in 0..RELEASES {
            pipe.ask(&line(&format!("LOCK.ACQUIRE {lock} TOKEN one-more PX 30000 SHARED")));
            pipe.ask(&line(&format!("LOCK.RELEASE {lock} one-more")));
        }
        (offset(&mut client) - before) as f64 / RELEASES as f64
    });
    Finding::of(format!("replicated: {MANY_NAME} / {FEW_NAME}"), "bytes", many, few, Some(TARGET))
}

fn fill(client: &mut Client, lock: &str, readers: usize) {
    for reader in 1..readers {
        cmd!(client, "LOCK.ACQUIRE", lock, "TOKEN", format!("reader:{reader}"), "PX", 80_000_000, "SHARED");
    }
}

fn script(client: &mut Client, text: &str) -> String {
    cmd!(client, "SCRIPT", "LOAD", text).text()
}
