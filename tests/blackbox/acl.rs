//! Users with limits: to keys, to reading, to categories, to single commands. What is refused changes nothing, and the
//! server finds the key of every command.

use redis_lock::metadata::COMMANDS;

use crate::harness::{args, cmd, grant, info_int, on_every_server, Client, Kind, Reply, Server};

/// A connection of a user with these rules.
#[track_caller]
fn user(server: &Server, rules: &[&str]) -> Client {
    let mut client = server.client();
    let set = [&["ACL", "SETUSER", "worker", "reset", "on", ">pass"], rules].concat();
    client.cmd(&set).ok();
    cmd!(client, "AUTH", "worker", "pass").ok();
    client
}

/// Each command with arguments that are right for it, the internal one aside.
fn calls(key: &str) -> [Vec<Vec<u8>>; 5] {
    [
        args!["LOCK.ACQUIRE", key, "TOKEN", "a", "PX", 60_000],
        args!["LOCK.EXTEND", key, "a"],
        args!["LOCK.CHECK", key, "a"],
        args!["LOCK.INFO", key],
        args!["LOCK.RELEASE", key, "a"],
    ]
}

/// Which of `calls` are allowed, by the last part of their names.
#[track_caller]
fn allowed(client: &mut Client, key: &str) -> Vec<String> {
    let mut allowed = Vec::new();
    for call in calls(key) {
        let name = String::from_utf8_lossy(&call[0]).replace("LOCK.", "");
        match client.cmd(&call) {
            Reply::Error(text) => assert!(text.starts_with("NOPERM"), "{name}: {text}"),
            _ => allowed.push(name),
        }
    }
    allowed
}

const ALL: [&str; 5] = ["ACQUIRE", "EXTEND", "CHECK", "INFO", "RELEASE"];

/// Redis 7.0 lets a module put its commands in no category.
fn has_categories(kind: Kind) -> bool {
    kind != Kind::Redis70
}

on_every_server! {
    fn keys_of_others_are_out_of_reach(kind: Kind) {
        let server = Server::start(kind);
        let mut admin = server.client();
        grant(&cmd!(admin, "LOCK.ACQUIRE", "theirs:k", "TOKEN", "a", "PX", 60_000));
        let digest = cmd!(admin, "DEBUG", "DIGEST").text();
        let mut worker = user(&server, &["~mine:*", "+@all"]);
        assert_eq!(allowed(&mut worker, "theirs:k"), [""; 0]);
        assert_eq!(allowed(&mut worker, "theirs:free"), [""; 0]);
        // Also where the server looks at keys at another time than for a plain command.
        cmd!(worker, "MULTI").ok();
        assert!(cmd!(worker, "LOCK.RELEASE", "theirs:k", "a").err().starts_with("NOPERM"));
        assert!(cmd!(worker, "EXEC").err().starts_with("EXECABORT"));
        let script = "return redis.call('LOCK.RELEASE', 'theirs:k', 'a')";
        assert!(cmd!(worker, "EVAL", script, 0).is_error());
        assert_eq!(cmd!(admin, "DEBUG", "DIGEST").text(), digest);
        assert_eq!(info_int(&mut admin, "lock", "lock_late_releases_taken"), 0);
        assert_eq!(allowed(&mut worker, "mine:k"), ALL);
    }

    fn a_reader_of_a_key_can_look_and_not_take(kind: Kind) {
        let server = Server::start(kind);
        let mut admin = server.client();
        grant(&cmd!(admin, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 60_000));
        let mut reader = user(&server, &["%R~*", "+@all"]);
        assert_eq!(allowed(&mut reader, "k"), ["CHECK", "INFO"]);
        // Their replies tell who holds the lock, so writing alone is not enough.
        let mut writer = user(&server, &["%W~*", "+@all"]);
        assert_eq!(allowed(&mut writer, "k"), [""; 0]);
        let mut both = user(&server, &["%RW~*", "+@all"]);
        assert_eq!(allowed(&mut both, "k"), ALL);
    }

    fn commands_are_allowed_by_name(kind: Kind) {
        let server = Server::start(kind);
        let rules = ["~*", "-@all", "+lock.acquire", "+LOCK.RELEASE"];
        assert_eq!(allowed(&mut user(&server, &rules), "k"), ["ACQUIRE", "RELEASE"]);
        let rules = ["~*", "+@all", "-lock.release"];
        assert_eq!(allowed(&mut user(&server, &rules), "k"), ["ACQUIRE", "EXTEND", "CHECK", "INFO"]);
        assert_eq!(allowed(&mut user(&server, &["~*", "-@all"]), "k2"), [""; 0]);
    }

    fn commands_are_allowed_by_category_where_modules_can_have_them(kind: Kind) {
        let server = Server::start(kind);
        let in_category = |expected: &[&str]| {
            let named: Vec<String> = expected.iter().map(|&name| name.to_owned()).collect();
            if has_categories(kind) { named } else { Vec::new() }
        };
        let allowed_by = |rule: &str| allowed(&mut user(&server, &["~*", "-@all", rule]), "k");
        assert_eq!(allowed_by("+@write"), in_category(&["ACQUIRE", "EXTEND", "RELEASE"]));
        assert_eq!(allowed_by("+@read"), in_category(&["CHECK", "INFO"]));
        assert_eq!(allowed_by("+@fast"), in_category(&["EXTEND", "CHECK", "RELEASE"]));
        assert_eq!(allowed_by("+@blocking"), in_category(&["ACQUIRE"]));
        assert_eq!(allowed_by("+@slow"), in_category(&["INFO"]));
        for rule in ["+@dangerous", "+@admin", "+@string"] {
            assert_eq!(allowed_by(rule), [""; 0], "{rule}");
        }
        if has_categories(kind) {
            assert_eq!(allowed_by("+@lock"), ALL);
        } else {
            assert!(cmd!(server.client(), "ACL", "SETUSER", "worker", "+@lock").is_error());
        }
    }

    fn a_locker_needs_no_right_to_scripts(kind: Kind) {
        let server = Server::start(kind);
        let mut worker = user(&server, &["~*", "+@all", "-@scripting", "-@dangerous", "-@admin"]);
        assert!(cmd!(worker, "EVAL", "return 1", 0).err().starts_with("NOPERM"));
        assert_eq!(allowed(&mut worker, "k"), ALL);
    }

    fn the_internal_command_needs_its_own_right_and_has_no_use_with_it(kind: Kind) {
        let server = Server::start(kind);
        let mut by_name = user(&server, &["~*", "-@all", "+lock.acquire"]);
        assert!(cmd!(by_name, "LOCK._SET", "k", "x").err().starts_with("NOPERM"));
        if has_categories(kind) {
            let mut careful = user(&server, &["~*", "+@all", "-@dangerous"]);
            assert!(cmd!(careful, "LOCK._SET", "k", "x").err().starts_with("NOPERM"));
        }
        let mut anything = user(&server, &["~*", "+@all"]);
        assert!(cmd!(anything, "LOCK._SET", "k", "x").err().starts_with("ERR this command is internal"));
    }

    fn the_forced_unlock_is_a_right_of_its_own(kind: Kind) {
        let server = Server::start(kind);
        let mut worker = user(&server, &["~*", "-@all", "+lock.acquire", "+lock.release"]);
        grant(&cmd!(worker, "LOCK.ACQUIRE", "k", "TOKEN", "a"));
        assert!(cmd!(worker, "DEL", "k").err().starts_with("NOPERM"));
        assert_eq!(cmd!(worker, "LOCK.RELEASE", "k", "a").int(), 1);
    }

    fn the_server_finds_the_key_of_every_command(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        for call in calls("the key") {
            let asked = [args!["COMMAND", "GETKEYS"], call.clone()].concat();
            assert_eq!(client.cmd(&asked), Reply::Array(vec![Reply::Bulk(b"the key".to_vec())]));
        }
        // Where options stand makes no difference.
        let reply = cmd!(client, "COMMAND", "GETKEYS", "LOCK.ACQUIRE", "k", "LABEL", "x", "TOKEN", "y");
        assert_eq!(reply, Reply::Array(vec![Reply::Bulk(b"k".to_vec())]));
        for record in COMMANDS.iter().filter(|record| record.name != "LOCK.GUARD") {
            let reply = cmd!(client, "COMMAND", "GETKEYS", record.name, "k", "a");
            let keys = if reply.is_error() { cmd!(client, "COMMAND", "GETKEYS", record.name, "k") } else { reply };
            assert_eq!(keys.array(), [Reply::Bulk(b"k".to_vec())], "{}", record.name);
        }
    }

    fn rights_can_be_tried_without_harm(kind: Kind) {
        let server = Server::start(kind);
        let mut admin = server.client();
        cmd!(admin, "ACL", "SETUSER", "worker", "on", "nopass", "~mine:*", "+lock.acquire").ok();
        cmd!(admin, "ACL", "DRYRUN", "worker", "LOCK.ACQUIRE", "mine:k").ok();
        for denied in [["LOCK.ACQUIRE", "k"], ["LOCK.INFO", "mine:k"]] {
            let reply = cmd!(admin, "ACL", "DRYRUN", "worker", denied[0], denied[1]);
            assert!(!reply.is("OK"), "{denied:?}: {reply:?}");
        }
        assert_eq!(cmd!(admin, "DBSIZE").int(), 0);
    }
}
