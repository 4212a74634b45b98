//! LOCK.GUARD: a command runs only if its token holds the lock at this instant, and replies what it would reply by
//! itself. In MULTI and in scripts each guard asks for itself.

use std::time::Duration;

use crate::harness::{
    args, cmd, eventually, grant, info, info_int, on_every_server, send, wait_until_free, within_ms, Client, Kind,
    Reply, Server,
};

const SOON: Duration = Duration::from_secs(10);
const MINUTE_MS: i64 = 60_000;

/// A connection whose token `t` holds the lock `k` for a minute.
fn holder(server: &Server) -> Client {
    let mut client = server.client();
    hold(&mut client);
    client
}

fn hold(client: &mut Client) {
    assert_eq!(grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "t", "PX", MINUTE_MS)).new, 1);
}

/// Waits until less than this is left of the token's lease.
#[track_caller]
fn left_below(client: &mut Client, token: &str, ms: i64) {
    eventually(SOON, || {
        let left_ms = cmd!(client, "LOCK.CHECK", "k", token).int();
        if (1..ms).contains(&left_ms) {
            Ok(())
        } else {
            Err(left_ms)
        }
    });
}

#[track_caller]
fn assert_not_held(reply: &Reply) {
    assert_eq!(reply.err(), "NOTHELD this token does not hold the lock: the command was not run");
}

on_every_server! {
    fn the_holder_runs_a_command_and_gets_its_reply(kind: Kind) {
        let server = Server::start(kind);
        let mut client = holder(&server);
        cmd!(client, "LOCK.GUARD", "k", "t", "SET", "stock", 5).ok();
        assert_eq!(cmd!(client, "lock.guard", "k", "t", "decrBY", "stock", 2).int(), 3);
        assert_eq!(cmd!(client, "LOCK.GUARD", "k", "t", "GET", "stock").bulk(), b"3");
        assert!(cmd!(client, "LOCK.GUARD", "k", "t", "GET", "absent").is_null());
        cmd!(client, "LOCK.GUARD", "k", "t", "XGROUP", "CREATE", "stream", "group", "$", "MKSTREAM").ok();
        assert_eq!(cmd!(client, "TYPE", "stream").text(), "stream");
        assert_eq!(info_int(&mut client, "lock", "lock_guard_refused"), 0);
    }

    fn nothing_runs_for_a_token_that_does_not_hold_the_lock(kind: Kind) {
        let server = Server::start(kind);
        let mut client = holder(&server);
        let mut waiter = server.client();
        send!(waiter, "LOCK.ACQUIRE", "k", "TOKEN", "next", "BLOCK", 0);
        let waiting = |client: &mut Client| info_int(client, "lock", "lock_waiting");
        eventually(SOON, || if waiting(&mut client) == 1 { Ok(()) } else { Err("not in line") });
        for (key, token) in [("k", "other"), ("k", "T"), ("k", "next"), ("free", "t")] {
            assert_not_held(&cmd!(client, "LOCK.GUARD", key, token, "SET", "stock", 1));
        }
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "t").int(), 1);
        assert_eq!(grant(&waiter.recv()).token, b"next");
        assert_not_held(&cmd!(client, "LOCK.GUARD", "k", "t", "SET", "stock", 1));
        assert_eq!(cmd!(client, "EXISTS", "stock").int(), 0);
        assert_eq!(info_int(&mut client, "lock", "lock_guard_refused"), 5);
        cmd!(client, "LOCK.GUARD", "k", "next", "SET", "stock", 1).ok();
        assert_eq!(cmd!(client, "DEL", "k").int(), 1);
        assert_not_held(&cmd!(client, "LOCK.GUARD", "k", "next", "SET", "stock", 2));
    }

    fn bytes_are_bytes(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let (key, token, value) = (b"\0k\xff\r\n", b"\xfe\0t", b"v\0\xff\r\n");
        grant(&cmd!(client, "LOCK.ACQUIRE", key, "TOKEN", token));
        cmd!(client, "LOCK.GUARD", key, token, "SET", b"d\xff\0", value).ok();
        assert_eq!(cmd!(client, "LOCK.GUARD", key, token, "GET", b"d\xff\0").bulk(), value);
        assert_not_held(&cmd!(client, "LOCK.GUARD", key, b"\xfe\0u", "SET", "d", 1));
    }

    fn a_guard_does_not_extend_the_lease(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        within_ms(1_990..=9_000, || {
            grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "t", "PX", 2_000));
            eventually(SOON, || {
                let reply = cmd!(client, "LOCK.GUARD", "k", "t", "INCR", "n");
                if !reply.is_error() {
                    return Err(reply);
                }
                assert_not_held(&reply);
                Ok(())
            });
        });
        let ran = cmd!(client, "GET", "n").text();
        // Another worker takes the lock, and the first one stays out.
        wait_until_free(&mut client, "k");
        grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "u"));
        assert_not_held(&cmd!(client, "LOCK.GUARD", "k", "t", "INCR", "n"));
        assert_eq!(cmd!(client, "GET", "n").text(), ran);
    }

    fn a_grant_that_waits_for_its_poll_is_fetched_by_a_guard(kind: Kind) {
        let server = Server::start(kind);
        let mut client = holder(&server);
        let (lease_ms, poll_ms) = (4_000, 2_000);
        // A lease counts from the server's start at the earliest, so the server must be older than it.
        left_below(&mut client, "t", MINUTE_MS - lease_ms);
        let polled = cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "p", "PX", lease_ms, "POLL", poll_ms);
        assert!(polled.is_null());
        assert_not_held(&cmd!(client, "LOCK.GUARD", "k", "p", "SET", "d", 1));
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "t").int(), 1);
        cmd!(client, "LOCK.GUARD", "k", "p", "SET", "d", 1).ok();
        let left_ms = cmd!(client, "LOCK.CHECK", "k", "p").int();
        assert!((poll_ms + 1..=lease_ms).contains(&left_ms), "{left_ms}");
        // After the end of the poll it still is not taken back, and its token learns that it has it already.
        left_below(&mut client, "p", lease_ms - poll_ms - 200);
        cmd!(client, "LOCK.GUARD", "k", "p", "SET", "d", 2).ok();
        assert_eq!(grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "p")).new, 0);
        assert_eq!(info_int(&mut client, "lock", "lock_grants_taken_back"), 0);
    }

    fn replies_of_every_kind_are_passed_on_unchanged(kind: Kind) {
        let server = Server::start(kind);
        let mut setup = holder(&server);
        let big = vec![b'x'; 1 << 20];
        cmd!(setup, "SET", "s", big).ok();
        cmd!(setup, "HSET", "h", "a", 1, "b", 2).int();
        cmd!(setup, "SADD", "set", "a", "b", "c").int();
        cmd!(setup, "ZADD", "z", "1.5", "a", 2, "b").int();
        cmd!(setup, "RPUSH", "l", 1, 2, 3).int();
        cmd!(setup, "XADD", "x", "1-1", "f", "v").bulk();
        cmd!(setup, "GEOADD", "geo", "13.36", "38.11", "p").int();
        let commands = [
            args!["GET", "s"], args!["GET", "absent"], args!["STRLEN", "s"], args!["TYPE", "h"],
            args!["HGETALL", "h"], args!["HGETALL", "absent"], args!["HMGET", "h", "a", "none"],
            args!["SMEMBERS", "set"], args!["SMISMEMBER", "set", "a", "z"], args!["ZSCORE", "z", "a"],
            args!["ZRANGE", "z", 0, -1, "WITHSCORES"], args!["ZINCRBY", "z", 0, "a"], args!["LRANGE", "l", 0, -1],
            args!["LPOP", "absent"], args!["LPOP", "absent", 2], args!["LPOS", "l", 2, "COUNT", 0],
            args!["MGET", "s", "absent", "h"], args!["XRANGE", "x", "-", "+"], args!["XREAD", "STREAMS", "x", 0],
            args!["XREAD", "STREAMS", "x", "$"], args!["XINFO", "STREAM", "x", "FULL"],
            args!["GEOPOS", "geo", "p", "absent"], args!["GEODIST", "geo", "p", "p"],
            args!["OBJECT", "ENCODING", "l"], args!["LCS", "none", "none", "IDX"], args!["EXPIRE", "absent", 1],
            args!["LPUSH", "s", 1], args!["INCR", "s"], args!["SET", "s", 1, "NOSUCH"], args!["HINCRBY", "h", "a", "x"],
            args!["XGROUP", "CREATE", "absent", "g", "$"], args!["EXPIRE", "s", "x"], args!["ZADD", "z", "NX", 1],
        ];
        for mut client in [server.client(), server.resp3_client()] {
            for command in &commands {
                let bare = client.cmd(command);
                let guarded = client.cmd(&[&args!["LOCK.GUARD", "k", "t"][..], command].concat());
                assert!(guarded == bare, "{:?}: {guarded:?}", command.first().map(|name| name.escape_ascii().to_string()));
            }
            // What a command before it was told about the protocol has no part in this.
            assert!(cmd!(client, "PING").is("PONG"));
        }
    }

    /// On Valkey GETDEL and GETSET lose their WRONGTYPE, and the next guard, anybody's, got it as its reply.
    fn a_key_of_the_wrong_type_is_one_error_of_one_guard(kind: Kind) {
        let server = Server::start(kind);
        let (mut client, mut other) = (holder(&server), server.client());
        cmd!(client, "RPUSH", "list", "x");
        cmd!(client, "SET", "string", "x").ok();
        for words in [&["GETDEL", "list"][..], &["getset", "list", "v"], &["GETDEL", "k"], &["GETSET", "k", "v"]] {
            let guard = [&["LOCK.GUARD", "k", "t"], words].concat();
            client.send(&guard);
            client.send(&["PING"]);
            assert!(client.recv().err().starts_with("WRONGTYPE"), "{words:?}");
            assert!(client.recv().is("PONG"), "{words:?}");
            cmd!(client, "MULTI").ok();
            client.cmd(&guard);
            cmd!(client, "INCR", "count");
            let replies = cmd!(client, "EXEC");
            assert!(replies.array()[0].is_error() && replies.array()[1].int() > 0, "{words:?}: {replies:?}");
            let before = cmd!(other, "LOCK.GUARD", "k", "t", "INCR", "count").int();
            assert_eq!(cmd!(other, "GET", "count").bulk(), before.to_string().as_bytes());
        }
        assert_eq!(cmd!(client, "LOCK.GUARD", "k", "t", "GETSET", "string", "y").bulk(), b"x");
        assert_eq!(cmd!(client, "LOCK.GUARD", "k", "t", "GETDEL", "string").bulk(), b"y");
        assert!(cmd!(client, "LOCK.GUARD", "k", "t", "GETDEL", "string").is_null());
        assert_eq!(cmd!(client, "LLEN", "list").int(), 1);
    }

    fn an_error_of_the_command_is_counted_once(kind: Kind) {
        let server = Server::start(kind);
        let mut client = holder(&server);
        cmd!(client, "SET", "s", "text").ok();
        cmd!(client, "CONFIG", "RESETSTAT").ok();
        assert!(cmd!(client, "LOCK.GUARD", "k", "t", "LPUSH", "s", 1).err().starts_with("WRONGTYPE"));
        assert_eq!(info(&mut client, "errorstats").text("errorstat_WRONGTYPE"), "count=1");
        assert_eq!(info_int(&mut client, "stats", "total_error_replies"), 1);
        let ran = info(&mut client, "commandstats");
        let push = ran.text("cmdstat_lpush");
        assert!(push.contains("calls=1,") && push.ends_with("failed_calls=1"), "{push}");
        assert_not_held(&cmd!(client, "LOCK.GUARD", "k", "u", "LPUSH", "s", 1));
        assert_eq!(info(&mut client, "errorstats").text("errorstat_NOTHELD"), "count=1");
        assert_eq!(info_int(&mut client, "stats", "total_error_replies"), 2);
        assert!(info(&mut client, "commandstats").text("cmdstat_lpush").contains("calls=1,"));
    }

    fn in_multi_each_guard_asks_for_itself(kind: Kind) {
        let server = Server::start(kind);
        let mut client = holder(&server);
        cmd!(client, "MULTI").ok();
        for command in [
            args!["LOCK.GUARD", "k", "t", "SET", "d", 1],
            args!["LOCK.GUARD", "k", "u", "SET", "d", 2],
            args!["LOCK.RELEASE", "k", "t"],
            args!["LOCK.GUARD", "k", "t", "SET", "d", 3],
            args!["INCRBY", "d", 10],
            args!["LOCK.ACQUIRE", "k", "TOKEN", "u"],
            args!["LOCK.GUARD", "k", "u", "INCR", "d"],
        ] {
            assert!(client.cmd(&command).is("QUEUED"));
        }
        let replies = cmd!(client, "EXEC");
        let [first, other, released, late, plain, granted, second] = replies.array() else { panic!("{replies:?}") };
        first.ok();
        assert_not_held(other);
        assert_eq!(released.int(), 1);
        assert_not_held(late);
        assert_eq!(plain.int(), 11);
        grant(granted);
        assert_eq!(second.int(), 12);
    }

    fn stored_values_are_not_those_of_the_command(kind: Kind) {
        let server = Server::start(kind);
        let mut client = holder(&server);
        // The arguments of a queued command live until the end of EXEC, and its value would if it were the same.
        for size in [5, 60, 100_000] {
            let text = "x".repeat(size);
            cmd!(client, "MULTI").ok();
            for command in [
                args!["SET", "d", text], args!["SET", "copy", text], args!["APPEND", "d", "end"],
                args!["SETRANGE", "d", 0, "S"], args!["SETBIT", "copy", 0, 1], args!["GET", "d"],
            ] {
                assert!(client.cmd(&[args!["LOCK.GUARD", "k", "t"], command].concat()).is("QUEUED"));
            }
            let replies = cmd!(client, "EXEC");
            let expected = format!("S{}end", "x".repeat(size - 1));
            assert_eq!(replies.array()[5].text(), expected);
            assert_eq!(cmd!(client, "GET", "d").text(), expected);
        }
    }

    fn in_a_script_a_refused_guard_stops_it(kind: Kind) {
        let server = Server::start(kind);
        let mut client = holder(&server);
        let script = "local n = redis.call('LOCK.GUARD', KEYS[1], ARGV[1], 'INCR', KEYS[2])
                      redis.call('SET', KEYS[3], 'reached')
                      return n";
        let run = |client: &mut Client, token: &str| cmd!(client, "EVAL", script, 3, "k", "n", "after", token);
        let stopped = run(&mut client, "u");
        assert!(stopped.err().contains("NOTHELD"), "{stopped:?}");
        assert_eq!(cmd!(client, "EXISTS", "n", "after").int(), 0);
        assert_eq!(run(&mut client, "t").int(), 1);
        assert_eq!(cmd!(client, "GET", "after").text(), "reached");

        let caught = "return redis.pcall('LOCK.GUARD', KEYS[1], 'u', 'INCR', KEYS[2]).err";
        assert!(cmd!(client, "EVAL", caught, 2, "k", "n").text().contains("NOTHELD"));
        let library = "#!lua name=lib\nredis.register_function('guarded', function(keys, args)
            return redis.call('LOCK.GUARD', keys[1], args[1], 'INCR', keys[2]) end)";
        assert_eq!(cmd!(client, "FUNCTION", "LOAD", library).text(), "lib");
        assert_eq!(cmd!(client, "FCALL", "guarded", 2, "k", "n", "t").int(), 2);
        let stopped = cmd!(client, "FCALL", "guarded", 2, "k", "n", "u");
        assert!(stopped.err().contains("NOTHELD"), "{stopped:?}");
        assert_eq!(cmd!(client, "GET", "n").text(), "2");
        // It counts as a write, whatever it runs.
        let reading = "#!lua flags=no-writes\nreturn redis.call('LOCK.GUARD', KEYS[1], 't', 'GET', KEYS[2])";
        assert!(cmd!(client, "EVAL", reading, 2, "k", "n").err().contains("Write commands are not allowed"));
    }

    fn commands_that_block_act_as_in_a_script(kind: Kind) {
        let server = Server::start(kind);
        let mut client = holder(&server);
        cmd!(client, "XGROUP", "CREATE", "x", "g", "$", "MKSTREAM").ok();
        for command in [
            args!["BLPOP", "l", 0], args!["BRPOP", "l", "m", 0], args!["BRPOPLPUSH", "l", "m", 0],
            args!["BLMOVE", "l", "m", "LEFT", "RIGHT", 0], args!["BLMPOP", 0, 1, "l", "LEFT"],
            args!["BZPOPMIN", "z", 0], args!["BZMPOP", 0, 1, "z", "MAX"], args!["XREAD", "BLOCK", 0, "STREAMS", "x", "$"],
            args!["XREADGROUP", "GROUP", "g", "c", "BLOCK", 0, "STREAMS", "x", ">"],
        ] {
            let reply = client.cmd(&[&args!["LOCK.GUARD", "k", "t"][..], &command].concat());
            // Redis 7.0 forbids some of them in scripts.
            let refused = kind == Kind::Redis70
                && reply == Reply::Error(
                    "ERR LOCK.GUARD cannot run this command: the server forbids it in scripts".to_owned());
            assert!(reply.is_null() || refused, "{reply:?}");
        }
        cmd!(client, "RPUSH", "l", "item").int();
        assert_eq!(cmd!(client, "LOCK.GUARD", "k", "t", "LMPOP", 1, "l", "LEFT").array().len(), 2);
        assert_eq!(info_int(&mut client, "clients", "blocked_clients"), 0);
    }

    fn the_database_is_that_of_the_connection(kind: Kind) {
        let server = Server::start(kind);
        let mut client = holder(&server);
        cmd!(client, "SELECT", 3).ok();
        assert_not_held(&cmd!(client, "LOCK.GUARD", "k", "t", "SET", "d", 3));
        hold(&mut client);
        cmd!(client, "LOCK.GUARD", "k", "t", "SET", "d", 3).ok();
        assert_eq!(cmd!(client, "GET", "d").text(), "3");
        cmd!(client, "SELECT", 0).ok();
        assert_eq!(cmd!(client, "EXISTS", "d").int(), 0);
    }
}
