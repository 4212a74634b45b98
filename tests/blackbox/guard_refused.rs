//! What LOCK.GUARD does not run, whoever holds the lock: each kind is refused with its own error, nothing runs, and no
//! nesting of any depth reaches the server's stack.

use crate::harness::{args, cmd, foreign_module, grant, info_int, on_every_server, Client, Kind, Reply, Server};

const DEPTH: usize = 20_000;

const NESTED: &str = "ERR LOCK.GUARD does not nest: guard each command by itself";
const LOCK: &str = "ERR LOCK.GUARD runs no LOCK commands: send them by themselves";
const FOREIGN: &str = "ERR LOCK.GUARD runs no commands of other modules, only the server's own";
const NO_KEYS: &str = "ERR the guarded command names no keys: only commands on keys can be guarded";
const SCRIPT: &str = "ERR LOCK.GUARD cannot run this command: the server forbids it in scripts";
const UNKNOWN: &str = "ERR unknown command at argument 3: LOCK.GUARD takes key, token, then the command";
const ARITY: &str = "ERR wrong number of arguments for the guarded command";

fn holder(server: &Server) -> Client {
    let mut client = server.client();
    grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "t"));
    client
}

fn guarded(command: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    [args!["LOCK.GUARD", "k", "t"], command].concat()
}

/// The same words over and over, then a command that would show.
fn deep(unit: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let words = unit.iter().cycle().take(unit.len() * DEPTH).cloned();
    words.chain(args!["SET", "d", 1]).collect()
}

on_every_server! {
    fn each_kind_of_command_that_cannot_be_guarded_says_so(kind: Kind) {
        let server = Server::builder(kind).with_foreign_module().start();
        let mut client = holder(&server);
        let cases = [
            (args!["LOCK.GUARD", "k", "t", "SET", "d", 1], NESTED),
            (args!["lock.Guard", "k", "t"], NESTED),
            (args!["LOCK.ACQUIRE", "d"], LOCK), (args!["lock.acquire", "d", "TOKEN", "t", "BLOCK", 0], LOCK),
            (args!["LOCK.RELEASE", "k", "t"], LOCK), (args!["LOCK.EXTEND", "k", "t"], LOCK),
            (args!["LOCK.CHECK", "k", "t"], LOCK), (args!["LOCK.INFO", "k"], LOCK), (args!["LOCK._SET", "d", "x"], LOCK),
            (args!["FOREIGN.SET", "d", 1], FOREIGN), (args!["foreign.set", "d", 1], FOREIGN),
            (args!["FOREIGN.WRAP", "SET", "d", 1], FOREIGN), (args!["FOREIGN.CALL", "SET", "d", 1], NO_KEYS),
            (args!["PING"], NO_KEYS), (args!["FLUSHALL"], NO_KEYS), (args!["PUBLISH", "c", "m"], NO_KEYS),
            (args!["SPUBLISH", "c", "m"], NO_KEYS), (args!["SUBSCRIBE", "c"], NO_KEYS), (args!["MULTI"], NO_KEYS),
            (args!["EXEC"], NO_KEYS), (args!["SELECT", 1], NO_KEYS), (args!["SWAPDB", 0, 1], NO_KEYS),
            (args!["CONFIG", "SET", "maxmemory", 1], NO_KEYS), (args!["AUTH", "x"], NO_KEYS),
            (args!["SCRIPT", "FLUSH"], NO_KEYS), (args!["WAIT", 1, 0], NO_KEYS), (args!["SCAN", 0], NO_KEYS),
            (args!["SHUTDOWN", "NOSAVE"], NO_KEYS), (args!["REPLICAOF", "NO", "ONE"], NO_KEYS),
            (args!["EVAL", "return redis.call('SET', KEYS[1], 1)", 0], NO_KEYS), (args!["XGROUP"], NO_KEYS),
            (args!["ZUNIONSTORE", "d", 9, "z"], NO_KEYS), (args!["SINTERCARD", "x", "d"], NO_KEYS),
            (args!["EVAL", "return redis.call('SET', KEYS[1], 1)", 1, "d"], SCRIPT),
            (args!["EVALSHA", "0".repeat(40), 1, "d"], SCRIPT), (args!["FCALL", "f", 1, "d"], SCRIPT),
            (args!["WATCH", "d"], SCRIPT),
            (args!["NOSUCH", "d"], UNKNOWN), (args!["XGROUP", "NOSUCH", "d"], UNKNOWN), (args!["", "d"], UNKNOWN),
            (args!["xgroup|create", "d", "g", "$"], UNKNOWN), (args![b"\xff\xfe", "d"], UNKNOWN),
            (args!["%s%n%s%n", "d"], UNKNOWN), (args!["x".repeat(100_000), "d"], UNKNOWN),
            (args!["SET", "d"], ARITY), (args!["GET", "d", "e"], ARITY), (args!["XGROUP", "CREATE", "d"], ARITY),
        ];
        for (command, error) in cases {
            let errors = info_int(&mut client, "stats", "total_error_replies");
            assert_eq!(client.cmd(&guarded(command)).err(), error);
            assert_eq!(info_int(&mut client, "stats", "total_error_replies"), errors + 1, "{error}");
        }
        // The lock and the data are as they were, and the connection too.
        assert_eq!(cmd!(client, "KEYS", "*").array().len(), 1);
        assert!(cmd!(client, "LOCK.CHECK", "k", "t").int() > 0);
        assert_eq!(info_int(&mut client, "lock", "lock_guard_refused"), 0);
        cmd!(client, "LOCK.GUARD", "k", "t", "SET", "d", 1).ok();
    }

    fn its_own_arguments_are_checked_first(kind: Kind) {
        let server = Server::start(kind);
        let mut client = holder(&server);
        for short in [args!["LOCK.GUARD"], args!["LOCK.GUARD", "k"], args!["LOCK.GUARD", "k", "t"]] {
            assert!(client.cmd(&short).err().starts_with("ERR wrong number of arguments"));
        }
        for token in [String::new(), "t".repeat(129)] {
            let reply = cmd!(client, "LOCK.GUARD", "k", token, "SET", "d", 1);
            assert_eq!(reply.err(), "ERR token at argument 2 must have 1 to 128 bytes");
        }
        cmd!(client, "SET", "data", 1).ok();
        let reply = cmd!(client, "LOCK.GUARD", "data", "t", "SET", "d", 1);
        assert_eq!(reply.err(), "WRONGTYPE key holds data, not a lock: use another name");
        assert_eq!(cmd!(client, "EXISTS", "d").int(), 0);
    }

    fn thousands_of_guards_in_one_command_are_an_error(kind: Kind) {
        let server = Server::builder(kind).with_foreign_module().start();
        let mut client = holder(&server);
        // A user with key patterns makes the server look for keys before it runs anything.
        cmd!(client, "ACL", "SETUSER", "u", "on", "nopass", "+@all", "~k", "~d").ok();
        let mut user = server.client();
        cmd!(user, "AUTH", "u", "any").ok();
        let in_both = deep(args!["FOREIGN.WRAP", "LOCK.GUARD", "k", "t"]);
        for command in [
            deep(args!["LOCK.GUARD", "k", "t"]),
            guarded(in_both.clone()),
            in_both,
        ] {
            for client in [&mut client, &mut user] {
                assert!(client.cmd(&command).is_error());
                assert!(client.cmd(&[args!["COMMAND", "GETKEYS"], command.clone()].concat()).is_error());
                cmd!(client, "MULTI").ok();
                client.cmd(&command);
                match cmd!(client, "EXEC") {
                    Reply::Array(replies) => assert!(replies.iter().all(Reply::is_error), "{replies:?}"),
                    reply => assert!(reply.err().starts_with("EXECABORT"), "{reply:?}"),
                }
            }
        }
        assert_eq!(cmd!(client, "EXISTS", "d").int(), 0);
    }

    fn a_name_with_a_nul_in_it_is_no_command(kind: Kind) {
        let server = Server::start(kind);
        let mut client = holder(&server);
        // The servers compare names up to the NUL within a bucket of their table: of so many, some get there.
        let tries: Vec<_> = (0..4_000).map(|n| format!("lock.guard\0{n}")).collect();
        let nested = |name: &String| guarded(args![name, "k", "t", "SET", "d", 1]);
        for reply in client.pipeline(tries.iter().map(nested)) {
            assert_eq!(reply.err(), UNKNOWN);
        }
        let keys = |name: &String| [args!["COMMAND", "GETKEYS"], nested(name)].concat();
        assert!(client.pipeline(tries.iter().map(keys)).iter().all(|reply| reply.is_error()));
        let plain: Vec<_> = (0..4_000).map(|n| guarded(args![format!("set\0{n}"), "d", 1])).collect();
        assert!(client.pipeline(plain).iter().all(|reply| reply.err() == UNKNOWN));
        assert_eq!(cmd!(client, "EXISTS", "d").int(), 0);
    }

    fn a_server_that_hides_its_commands_refuses_rather_than_guesses(kind: Kind) {
        let server = Server::builder(kind).arg("rename-command", "COMMAND \"\"").start();
        let mut client = holder(&server);
        let reply = cmd!(client, "LOCK.GUARD", "k", "t", "SET", "d", 1);
        assert_eq!(reply.err(), "ERR LOCK.GUARD needs the server's COMMAND, which is renamed or disabled here");
        assert_eq!(cmd!(client, "EXISTS", "d").int(), 0);
    }

    fn a_module_that_comes_later_is_known_for_what_it_is(kind: Kind) {
        let server = Server::start(kind);
        let mut client = holder(&server);
        assert_eq!(cmd!(client, "LOCK.GUARD", "k", "t", "FOREIGN.SET", "d", 1).err(), UNKNOWN);
        let path = foreign_module().display().to_string();
        cmd!(client, "MODULE", "LOAD", path).ok();
        assert_eq!(cmd!(client, "LOCK.GUARD", "k", "t", "FOREIGN.SET", "d", 1).err(), FOREIGN);
        cmd!(client, "MODULE", "UNLOAD", "foreign").ok();
        assert_eq!(cmd!(client, "LOCK.GUARD", "k", "t", "FOREIGN.SET", "d", 1).err(), UNKNOWN);
    }
}
