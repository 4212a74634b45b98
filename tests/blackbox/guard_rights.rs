//! Whose rights a guarded command has: those of the user who sends the guard, for the command and for every key, also in
//! MULTI, in scripts and in another module's call. The keys are known before anything runs.

use crate::harness::{args, cmd, grant, on_every_server, Client, Kind, Reply, Server};

const EVERY_KEY: [&str; 5] = ["rw:a", "ro:a", "wo:a", "other", "lock:k"];

/// A server where `t` holds `lock:k` and where each kind of key has a value.
fn server(kind: Kind) -> (Server, Client) {
    let server = Server::builder(kind).with_foreign_module().start();
    let mut client = server.client();
    grant(&cmd!(client, "LOCK.ACQUIRE", "lock:k", "TOKEN", "t", "EX", 600));
    for key in ["rw:a", "ro:a", "wo:a", "other"] {
        cmd!(client, "SET", key, 1).ok();
    }
    (server, client)
}

/// A connection of a user with these rules.
fn user(server: &Server, name: &str, rules: &str) -> Client {
    let rules: Vec<Vec<u8>> = rules.split(' ').map(|rule| rule.as_bytes().to_vec()).collect();
    server.client().cmd(&[args!["ACL", "SETUSER", name, "reset", "on", "nopass"], rules].concat()).ok();
    let mut client = server.client();
    cmd!(client, "AUTH", name, "any").ok();
    client
}

const WORKER: &str = "+lock.guard +set +get +incr +mget +copy +multi +exec %R~lock:* ~rw:* %R~ro:* %W~wo:*";

fn guard(client: &mut Client, command: Vec<Vec<u8>>) -> Reply {
    client.cmd(&[args!["LOCK.GUARD", "lock:k", "t"], command].concat())
}

#[track_caller]
fn assert_denied(reply: &Reply) {
    assert!(reply.err().starts_with("NOPERM "), "{reply:?}");
}

fn sorted(keys: &[Reply]) -> Vec<String> {
    let mut names: Vec<String> = keys.iter().map(Reply::text).collect();
    names.sort();
    names
}

/// What no test here may change: every value is as it was.
#[track_caller]
fn assert_untouched(admin: &mut Client) {
    let values = admin.cmd(&[args!["MGET"], args!["rw:a", "ro:a", "wo:a", "other"]].concat());
    assert!(values.array().iter().all(|value| value.text() == "1"), "{values:?}");
    assert_eq!(cmd!(admin, "DBSIZE").int(), EVERY_KEY.len() as i64);
}

on_every_server! {
    fn every_right_of_the_caller_is_needed_and_enough(kind: Kind) {
        let (server, mut admin) = server(kind);
        let mut worker = user(&server, "worker", WORKER);
        for denied in [
            args!["SET", "ro:a", 2], args!["INCR", "ro:a"], args!["SET", "ro:b", 2], args!["SET", "ro:a", 2, "GET"],
            args!["GET", "wo:a"], args!["INCR", "wo:a"], args!["SET", "wo:a", 2, "GET"], args!["MGET", "rw:a", "wo:a"],
            args!["GET", "other"], args!["SET", "other", 2], args!["MGET", "rw:a", "other"],
            args!["COPY", "rw:a", "ro:b"], args!["COPY", "wo:a", "rw:b"], args!["SET", "lock:k", 2],
            // Commands that the user may not run by themselves, on keys that it may use.
            args!["APPEND", "rw:a", 2], args!["DEL", "rw:a"], args!["STRLEN", "rw:a"],
        ] {
            assert_denied(&guard(&mut worker, denied));
        }
        assert_untouched(&mut admin);
        guard(&mut worker, args!["SET", "rw:a", 2]).ok();
        guard(&mut worker, args!["SET", "wo:a", 2]).ok();
        assert_eq!(guard(&mut worker, args!["GET", "ro:a"]).text(), "1");
        assert_eq!(guard(&mut worker, args!["COPY", "ro:a", "rw:b"]).int(), 1);
        assert_eq!(guard(&mut worker, args!["MGET", "rw:a", "ro:a"]).array().len(), 2);
    }

    fn the_guard_itself_and_the_lock_need_rights_too(kind: Kind) {
        let (server, mut admin) = server(kind);
        let mut unguarded = user(&server, "unguarded", "+set ~*");
        assert_denied(&guard(&mut unguarded, args!["SET", "rw:a", 2]));
        let mut lockless = user(&server, "lockless", "+lock.guard +set ~rw:*");
        assert_denied(&guard(&mut lockless, args!["SET", "rw:a", 2]));
        let mut blind = user(&server, "blind", "+lock.guard +set ~rw:* %W~lock:*");
        assert_denied(&guard(&mut blind, args!["SET", "rw:a", 2]));
        assert_untouched(&mut admin);
        let mut all = user(&server, "all", "+@all ~*");
        guard(&mut all, args!["SET", "rw:a", 2]).ok();
    }

    fn subcommands_selectors_and_patterns_count_as_they_do_by_themselves(kind: Kind) {
        let (server, mut admin) = server(kind);
        let mut creator = user(&server, "creator", "+lock.guard +xgroup|create ~*");
        assert_denied(&guard(&mut creator, args!["XGROUP", "DESTROY", "s", "g"]));
        assert!(guard(&mut creator, args!["XGROUP", "CREATE", "absent", "g", "$"]).err().starts_with("ERR"));

        let mut selected = user(&server, "selected", "(+lock.guard +set %R~lock:* ~rw:*) +get ~other");
        assert_denied(&guard(&mut selected, args!["GET", "rw:a"]));
        assert_denied(&guard(&mut selected, args!["SET", "other", 2]));
        assert_denied(&guard(&mut selected, args!["GET", "other"]));

        // SORT reads keys that only their pattern names.
        cmd!(admin, "RPUSH", "rw:list", 1).int();
        let mut sorter = user(&server, "sorter", "+lock.guard +sort %R~lock:* ~rw:*");
        let sort = args!["SORT", "rw:list", "BY", "nosort", "GET", "other"];
        let reply = guard(&mut sorter, sort);
        assert!(reply.is_error(), "{reply:?}");
        assert_eq!(cmd!(admin, "DEL", "rw:list").int(), 1);
        assert_untouched(&mut admin);
        guard(&mut selected, args!["SET", "rw:a", 2]).ok();
    }

    fn in_multi_the_rights_are_those_of_the_caller(kind: Kind) {
        let (server, mut admin) = server(kind);
        let mut worker = user(&server, "worker", WORKER);
        for denied in [args!["SET", "ro:a", 2], args!["APPEND", "rw:a", 2], args!["INCR", "wo:a"], args!["GET", "other"]] {
            cmd!(worker, "MULTI").ok();
            guard(&mut worker, denied);
            match cmd!(worker, "EXEC") {
                Reply::Array(replies) => assert_denied(&replies[0]),
                reply => assert!(reply.err().starts_with("EXECABORT"), "{reply:?}"),
            }
        }
        assert_untouched(&mut admin);
        // Rights lost between MULTI and EXEC are gone.
        cmd!(worker, "MULTI").ok();
        assert!(guard(&mut worker, args!["SET", "rw:a", 2]).is("QUEUED"));
        cmd!(admin, "ACL", "SETUSER", "worker", "-set").ok();
        assert_denied(&cmd!(worker, "EXEC").array()[0]);
        assert_untouched(&mut admin);
    }

    fn in_scripts_the_rights_are_those_of_the_caller(kind: Kind) {
        let (server, mut admin) = server(kind);
        let library = "#!lua name=lib\nredis.register_function('run', function(keys, args)
            return redis.call('LOCK.GUARD', 'lock:k', 't', unpack(args)) end)";
        assert_eq!(cmd!(admin, "FUNCTION", "LOAD", library).text(), "lib");
        let mut worker = user(&server, "worker", &format!("{WORKER} +eval +fcall"));
        // Keys given to a script need all rights, whatever it does with them.
        let script = "return redis.call('LOCK.GUARD', 'lock:k', 't', unpack(ARGV))";
        for call in [args!["EVAL", script, 0], args!["FCALL", "run", 0]] {
            for denied in [
                args!["SET", "ro:a", 2], args!["APPEND", "rw:a", 2], args!["INCR", "wo:a"], args!["GET", "other"],
            ] {
                let reply = worker.cmd(&[call.clone(), denied].concat());
                assert!(reply.is_error(), "{reply:?}");
            }
            assert_untouched(&mut admin);
            assert_eq!(worker.cmd(&[call, args!["GET", "ro:a"]].concat()).text(), "1");
        }
    }

    fn a_call_of_another_module_has_the_rights_it_is_given(kind: Kind) {
        let (server, mut admin) = server(kind);
        let mut worker = user(&server, "worker", &format!("{WORKER} +foreign.wrap ~lock:*"));
        let wrapped = |command: Vec<Vec<u8>>| [args!["FOREIGN.WRAP", "LOCK.GUARD", "lock:k", "t"], command].concat();
        for denied in [args!["SET", "ro:a", 2], args!["APPEND", "rw:a", 2], args!["GET", "other"]] {
            assert!(worker.cmd(&wrapped(denied)).is_error());
        }
        assert_untouched(&mut admin);
        assert_eq!(worker.cmd(&wrapped(args!["GET", "rw:a"])).text(), "1");
        // A call without a user may do anything, as all that modules call; it cannot be made to wait either.
        cmd!(admin, "FOREIGN.CALL", "LOCK.GUARD", "lock:k", "t", "SET", "rw:a", 2).ok();
        assert_eq!(cmd!(admin, "GET", "rw:a").text(), "2");
        let reply = cmd!(admin, "FOREIGN.CALL", "LOCK.GUARD", "lock:k", "u", "SET", "rw:a", 3);
        assert!(reply.err().starts_with("NOTHELD"), "{reply:?}");
        assert!(cmd!(admin, "FOREIGN.CALL", "LOCK.GUARD", "lock:k", "t", "XREAD", "BLOCK", 0, "STREAMS", "s", "$").is_null());
    }

    fn what_is_denied_is_in_the_log_of_the_server(kind: Kind) {
        let (server, mut admin) = server(kind);
        let mut worker = user(&server, "worker", WORKER);
        cmd!(admin, "ACL", "LOG", "RESET").ok();
        assert_denied(&guard(&mut worker, args!["APPEND", "rw:a", 2]));
        assert_denied(&guard(&mut worker, args!["SET", "ro:a", 2]));
        let log = cmd!(admin, "ACL", "LOG");
        let entries: Vec<_> = log.array().iter().map(|entry| (entry.get("reason").text(), entry.get("object").text())).collect();
        let entry = |reason: &str, object: &str| (reason.to_owned(), object.to_owned());
        assert_eq!(entries, [entry("key", "ro:a"), entry("command", "append")]);
        assert!(log.array().iter().all(|entry| entry.get("username").text() == "worker"));
        let verdict = |command: &str| {
            let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
            [args!["ACL", "DRYRUN", "worker"], words.into_iter().map(String::into_bytes).collect()].concat()
        };
        admin.cmd(&verdict("LOCK.GUARD lock:k t SET rw:a 2")).ok();
        assert!(admin.cmd(&verdict("LOCK.GUARD lock:k t SET ro:a 2")).text().contains("ro:a"));
    }

    fn the_keys_are_those_of_the_lock_and_of_the_command(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        for command in [
            args!["SET", "a", 1], args!["GET", "a"], args!["MSET", "a", 1, "b", 2], args!["DEL", "a", "b", "c"],
            args!["EVAL", "x", 2, "a", "b", "c"], args!["BLPOP", "a", "b", 0], args!["ZUNIONSTORE", "d", 2, "a", "b"],
            args!["SINTERCARD", 2, "a", "b"], args!["LMPOP", 2, "a", "b", "LEFT"], args!["SORT", "a", "STORE", "b"],
            args!["GEORADIUS", "a", 1, 1, 1, "km", "STORE", "b"], args!["XREAD", "COUNT", 1, "STREAMS", "a", "b", 0, 0],
            args!["XREADGROUP", "GROUP", "g", "c", "STREAMS", "a", ">"], args!["XGROUP", "CREATE", "a", "g", "$"],
            args!["XINFO", "STREAM", "a"], args!["OBJECT", "ENCODING", "a"], args!["MEMORY", "USAGE", "a"],
            args!["MIGRATE", "h", 1, "", 0, 1, "KEYS", "a", "b"], args!["RENAME", "a", "b"], args!["COPY", "a", "b"],
            args!["BITOP", "AND", "a", "b", "c"], args!["PFMERGE", "a", "b"], args!["LCS", "a", "b"], args!["WATCH", "a", "b"],
            args!["BITFIELD", "a", "GET", "u8", 0], args!["SMOVE", "a", "b", "m"], args!["RPOPLPUSH", "a", "b"],
        ] {
            let bare = client.cmd(&[args!["COMMAND", "GETKEYS"], command.clone()].concat());
            let guarded = client.cmd(&[args!["COMMAND", "GETKEYS", "LOCK.GUARD", "k", "t"], command].concat());
            let (lock, guarded) = guarded.array().split_first().expect("the lock's key at least");
            assert_eq!(lock.text(), "k");
            assert_eq!(sorted(guarded), sorted(bare.array()));
        }
        let many: Vec<Vec<u8>> = (0..5_000).map(|n| format!("key{n}").into_bytes()).collect();
        let guarded = client.cmd(&[args!["COMMAND", "GETKEYS", "LOCK.GUARD", "k", "t", "DEL"], many].concat());
        assert_eq!(guarded.array().len(), 5_001);
        for none in [args!["PING"], args!["NOSUCH", "a"], args!["GET", "a", "b"], args!["LOCK.CHECK", "a", "t"]] {
            assert!(client.cmd(&[args!["COMMAND", "GETKEYS", "LOCK.GUARD", "k", "t"], none].concat()).is_error());
        }
        let flags = cmd!(client, "COMMAND", "GETKEYSANDFLAGS", "LOCK.GUARD", "k", "t", "SET", "a", 1);
        let flags: Vec<Vec<String>> = flags.array().iter().map(|key| {
            key.array()[1].array().iter().map(Reply::text).collect()
        }).collect();
        assert_eq!(flags, [["RO", "access"], ["OW", "update"]]);
    }

    fn io_threads_are_asked_for_no_keys_and_guards_run_all_the_same(kind: Kind) {
        let server = Server::builder(kind).arg("io-threads", 3).start();
        let mut client = server.client();
        grant(&cmd!(client, "LOCK.ACQUIRE", "lock:k", "TOKEN", "t", "EX", 600));
        let keys = cmd!(client, "COMMAND", "GETKEYS", "LOCK.GUARD", "lock:k", "t", "SET", "a", 1);
        // Valkey asks on its I/O threads in a cluster only.
        assert_eq!(keys.array().len(), if kind.is_valkey() { 2 } else { 1 });
        let mut worker = user(&server, "worker", WORKER);
        guard(&mut worker, args!["SET", "rw:a", 2]).ok();
        assert_denied(&guard(&mut worker, args!["SET", "ro:a", 2]));
        assert_denied(&guard(&mut worker, args!["SET", "other", 2]));
        cmd!(worker, "MULTI").ok();
        assert!(guard(&mut worker, args!["SET", "rw:a", 3]).is("QUEUED"));
        guard(&mut worker, args!["GET", "wo:a"]);
        let end = cmd!(worker, "EXEC");
        assert!(end.is_error() || end.array()[1].is_error(), "{end:?}");
        assert_eq!(cmd!(client, "EXISTS", "ro:a", "other").int(), 0);
    }
}
