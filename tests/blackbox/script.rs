//! Locks in transactions, scripts, functions and pipelines, and the internal command, which no client may send in any
//! of them.

use crate::harness::{args, cmd, grant, info_int, on_every_server, Client, Kind, Reply, Server};

const ACQUIRE: &str = "return redis.call('LOCK.ACQUIRE', KEYS[1], 'TOKEN', ARGV[1], 'PX', 60000)";
const LIBRARY: &str = "#!lua name=locks\n\
    redis.register_function('take', function(keys, argv) \
        return redis.call('LOCK.ACQUIRE', keys[1], 'TOKEN', argv[1]) end)\n\
    redis.register_function{function_name='left', flags={'no-writes'}, callback=function(keys, argv) \
        return redis.call('LOCK.CHECK', keys[1], argv[1]) end}\n\
    redis.register_function('forge', function(keys, argv) \
        return redis.call('LOCK._SET', keys[1], argv[1]) end)";

/// Runs the commands in one transaction; the results are those of EXEC.
#[track_caller]
fn transaction(client: &mut Client, commands: Vec<Vec<Vec<u8>>>) -> Vec<Reply> {
    let count = commands.len();
    let all = [vec![args!["MULTI"]], commands, vec![args!["EXEC"]]].concat();
    let mut replies = client.pipeline(all);
    let results = replies.pop().expect("EXEC is answered");
    assert!(replies[1..].iter().all(|reply| reply.is("QUEUED")), "{replies:?}");
    assert_eq!(results.array().len(), count, "{results:?}");
    results.array().to_vec()
}

/// A holder in the bytes that the server sends itself: version 1, exclusive, fence, lease, token `t`, no label.
fn holder(fence: u64) -> Vec<u8> {
    let mut bytes = vec![1, 1];
    bytes.extend(fence.to_le_bytes());
    bytes.extend(60_000_u64.to_le_bytes());
    bytes.extend([1, b't', 0]);
    bytes
}

on_every_server! {
    fn a_transaction_takes_and_gives_back(kind: Kind) {
        let server = Server::start(kind);
        for mut client in [server.client(), server.resp3_client()] {
            let results = transaction(&mut client, vec![
                args!["LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 60_000],
                args!["LOCK.ACQUIRE", "k", "TOKEN", "b"],
                args!["LOCK.CHECK", "k", "a"],
                args!["LOCK.INFO", "k"],
                args!["LOCK.EXTEND", "k", "a", "PX", 90_000],
                args!["LOCK.RELEASE", "k", "a"],
                args!["LOCK.ACQUIRE", "k", "TOKEN", "b"],
                args!["LOCK.RELEASE", "k", "a"],
            ]);
            let first = grant(&results[0]);
            assert!(results[1].is_null());
            assert!((1..=60_000).contains(&results[2].int()));
            assert_eq!(results[3].get("fence").int(), first.fence);
            assert_eq!((results[4].int(), results[5].int()), (90_000, 1));
            assert!(grant(&results[6]).fence > first.fence);
            assert_eq!(results[7].int(), -1);
            assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "b").int(), 1);
        }
    }

    fn an_error_in_a_transaction_is_its_own_result_only(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let results = transaction(&mut client, vec![
            args!["LOCK.ACQUIRE", "k", "PX", 0],
            args!["LOCK.ACQUIRE", "k", "TOKEN", "a"],
        ]);
        assert_eq!(results[0].err(), "ERR lease of 0 ms is not above 0");
        assert_eq!(grant(&results[1]).new, 1);
        // What the server itself can see is wrong ends the whole, before anything ran.
        cmd!(client, "MULTI").ok();
        assert!(cmd!(client, "LOCK.RELEASE", "k").is_error());
        assert!(cmd!(client, "LOCK.RELEASE", "k", "a").is("QUEUED"));
        assert!(cmd!(client, "EXEC").err().starts_with("EXECABORT"));
        assert!(cmd!(client, "LOCK.CHECK", "k", "a").int() > 0);
    }

    fn a_discarded_transaction_did_nothing(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        cmd!(client, "MULTI").ok();
        assert!(cmd!(client, "LOCK.ACQUIRE", "k").is("QUEUED"));
        cmd!(client, "DISCARD").ok();
        assert_eq!(cmd!(client, "DBSIZE").int(), 0);
        assert_eq!(info_int(&mut client, "lock", "lock_granted"), 0);
    }

    fn a_script_gets_the_replies_in_luas_words(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let granted = grant(&cmd!(client, "EVAL", ACQUIRE, 1, "k", "a"));
        assert_eq!((&granted.token[..], granted.ttl, granted.new), (&b"a"[..], 60_000, 1));
        assert!(cmd!(client, "EVAL", ACQUIRE, 1, "k", "b").is_null());
        let script = "return {type(redis.call('LOCK.ACQUIRE', KEYS[1], 'TOKEN', 'b')), \
            redis.call('LOCK.RELEASE', KEYS[1], 'b'), redis.call('LOCK.EXTEND', KEYS[1], 'b'), \
            redis.call('LOCK.CHECK', KEYS[1], 'a') > 0, redis.call('LOCK.INFO', KEYS[1])[2], \
            redis.call('LOCK.RELEASE', KEYS[1], 'a'), redis.call('LOCK.INFO', KEYS[1]) == false}";
        let results = cmd!(client, "EVAL", script, 1, "k").array().to_vec();
        // A null is false in Lua, true is 1 on its way back.
        assert_eq!(results[0].text(), "boolean");
        assert_eq!((results[1].int(), results[2].int(), results[3].int()), (-1, 0, 1));
        assert_eq!(results[4].text(), "exclusive");
        assert_eq!((results[5].int(), results[6].int()), (1, 1));
    }

    fn a_script_in_resp3_gets_maps_and_nulls(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.resp3_client();
        let script = "redis.setresp(3); redis.call('LOCK.ACQUIRE', KEYS[1], 'TOKEN', 'a', 'LABEL', 'by script'); \
            return {redis.call('LOCK.INFO', KEYS[1]).map['holders'][1].map['label'], \
            redis.call('LOCK.ACQUIRE', KEYS[1], 'TOKEN', 'b') == nil, \
            redis.call('LOCK.INFO', 'free' .. KEYS[1]) == nil}";
        let results = cmd!(client, "EVAL", script, 1, "k");
        assert_eq!(results.array()[0].text(), "by script");
        assert_eq!((&results.array()[1], &results.array()[2]), (&Reply::Bool(true), &Reply::Bool(true)), "{results:?}");
    }

    fn an_error_raises_and_can_be_caught(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let raised = cmd!(client, "EVAL", "redis.call('LOCK.ACQUIRE', KEYS[1], 'NX'); return 1", 1, "k");
        assert!(raised.err().contains("NX is implied, leave it out"), "{raised:?}");
        let script = "local e = redis.pcall('LOCK.ACQUIRE', KEYS[1], 'NX'); return e['err']";
        assert!(cmd!(client, "EVAL", script, 1, "k").text().contains("NX is implied"));
        assert_eq!(cmd!(client, "DBSIZE").int(), 0);
    }

    fn a_script_that_may_not_write_can_look(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a"));
        let check = "return redis.call('LOCK.CHECK', KEYS[1], 'a')";
        assert!(cmd!(client, "EVAL_RO", check, 1, "k").int() > 0);
        assert!(!cmd!(client, "EVAL_RO", "return redis.call('LOCK.INFO', KEYS[1])", 1, "k").is_null());
        for (name, token) in [("LOCK.ACQUIRE", "'TOKEN', 'b'"), ("LOCK.RELEASE", "'a'"), ("LOCK.EXTEND", "'a'")] {
            let script = format!("return redis.call('{name}', KEYS[1], {token})");
            assert!(cmd!(client, "EVAL_RO", script, 1, "k").is_error(), "{name}");
        }
        assert!(cmd!(client, "LOCK.CHECK", "k", "a").int() > 0);
    }

    fn a_lease_runs_while_a_script_does(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        // The server's own clock stands still in a script; a lease must not.
        let script = "redis.call('LOCK.ACQUIRE', KEYS[1], 'TOKEN', 'a', 'PX', 10); \
            for _ = 1, 10000000 do if redis.call('LOCK.CHECK', KEYS[1], 'a') == 0 then \
                return redis.call('LOCK.EXTEND', KEYS[1], 'a') end end; \
            return 'the lease never ends'";
        assert_eq!(cmd!(client, "EVAL", script, 1, "k"), Reply::Int(0));
    }

    fn functions_take_and_look(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        cmd!(client, "FUNCTION", "LOAD", LIBRARY).text();
        assert_eq!(grant(&cmd!(client, "FCALL", "take", 1, "k", "a")).new, 1);
        assert_eq!(grant(&cmd!(client, "FCALL", "take", 1, "k", "a")).new, 0);
        assert!(cmd!(client, "FCALL", "take", 1, "k", "b").is_null());
        assert!(cmd!(client, "FCALL_RO", "left", 1, "k", "a").int() > 0);
        assert!(cmd!(client, "FCALL_RO", "take", 1, "k", "a").is_error());
    }

    fn a_pipeline_is_answered_in_order(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let commands = (0..2_000).flat_map(|n| {
            let key = format!("k{}", n % 7);
            let token = format!("t{n}");
            [
                args!["LOCK.ACQUIRE", key, "TOKEN", token],
                args!["LOCK.CHECK", key, "another"],
                args!["LOCK.RELEASE", key, token],
                args!["LOCK.ACQUIRE", key, "NX"],
            ]
        });
        for (n, replies) in client.pipeline(commands).chunks(4).enumerate() {
            assert_eq!(grant(&replies[0]).token, format!("t{n}").into_bytes());
            assert_eq!((replies[1].int(), replies[2].int()), (0, 1));
            assert!(replies[3].is_error());
        }
    }

    fn the_internal_command_is_refused_to_clients_everywhere(kind: Kind) {
        let server = Server::builder(kind).arg("appendonly", "yes").start();
        let mut client = server.client();
        cmd!(client, "FUNCTION", "LOAD", LIBRARY).text();
        let held = grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 60_000));
        let forged = holder(u64::try_from(held.fence).expect("not negative") + 1_000_000_000);
        let digest = cmd!(client, "DEBUG", "DIGEST").text();
        let internal = "ERR this command is internal: only a primary or the append-only file sends it";
        for key in ["k", "free"] {
            assert_eq!(cmd!(client, "LOCK._SET", key, forged).err(), internal);
            assert_eq!(cmd!(client, "lock._set", key, forged).err(), internal);
            assert_eq!(transaction(&mut client, vec![args!["LOCK._SET", key, forged]])[0].err(), internal);
            for call in ["redis.call", "redis.pcall"] {
                let script = format!("return {call}('LOCK._SET', KEYS[1], ARGV[1])");
                assert!(cmd!(client, "EVAL", script, 1, key, forged).is_error());
            }
            assert!(cmd!(client, "FCALL", "forge", 1, key, forged).is_error());
        }
        assert_eq!(cmd!(client, "DEBUG", "DIGEST").text(), digest);
        assert_eq!(info_int(&mut client, "lock", "lock_fence"), held.fence);
        assert!(cmd!(client, "LOCK.CHECK", "k", "a").int() > 0);
        assert_eq!(cmd!(client, "LOCK.CHECK", "free", "t").int(), 0);
        let next = grant(&cmd!(client, "LOCK.ACQUIRE", "free", "TOKEN", "b"));
        assert!(next.fence - held.fence < 1_000_000_000, "{held:?} then {next:?}");
    }
}
