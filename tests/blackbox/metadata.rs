//! The records that the documentation and these tests read, against what a live server knows of each command. And no
//! command without a record.

use std::collections::BTreeSet;

use redis_lock::metadata::{Arg, ArgKind, KeyUse, Record, COMMANDS};

use crate::harness::{cmd, on_every_server, Client, Kind, Reply, Server};

type Names = BTreeSet<String>;

fn names(reply: &Reply) -> Names {
    reply.array().iter().map(Reply::text).collect()
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(' ')
}

/// One entry of COMMAND INFO.
#[track_caller]
fn command_info(client: &mut Client, record: &Record) -> Vec<Reply> {
    let reply = cmd!(client, "COMMAND", "INFO", record.name);
    let [entry] = reply.array() else { panic!("{}: {reply:?}", record.name) };
    entry.array().to_vec()
}

/// The flags the server shows: it spells some in its own way, and marks commands of modules.
const GUARD: &str = "LOCK.GUARD";

fn expected_flags(record: &Record) -> Names {
    let shown = words(record.flags).map(|flag| match flag {
        "deny-oom" => "denyoom",
        "deny-script" => "noscript",
        other => other,
    });
    // Its keys depend on the command it runs.
    let movable = (record.name == GUARD).then_some("movablekeys");
    shown.chain(["module"]).chain(movable).map(str::to_owned).collect()
}

fn expected_categories(record: &Record, kind: Kind) -> Names {
    // Redis 7.0 lets a module put its commands in no category.
    if kind == Kind::Redis70 {
        return Names::new();
    }
    words(record.categories).chain(["lock"]).map(|name| format!("@{name}")).collect()
}

fn expected_key_flags(record: &Record) -> Names {
    let flags: &[&str] = match record.key {
        KeyUse::Read => &["RO", "access"],
        KeyUse::Set => &["RW", "access", "update"],
        KeyUse::Remove => &["RW", "access", "delete"],
    };
    flags.iter().map(|&flag| flag.to_owned()).collect()
}

/// An argument in COMMAND DOCS, and those inside it.
#[track_caller]
fn assert_argument(shown: &Reply, arg: &Arg) {
    assert_eq!(shown.get("name").text(), arg.name, "{shown:?}");
    let kind = match arg.kind {
        ArgKind::Key => "key",
        ArgKind::Text | ArgKind::Texts => "string",
        ArgKind::Integer => "integer",
        ArgKind::Flag => "pure-token",
        ArgKind::OneOf(_) => "oneof",
    };
    assert_eq!(shown.get("type").text(), kind, "{shown:?}");
    assert_eq!(shown.find("token").map(Reply::text).as_deref(), arg.token, "{shown:?}");
    let flags = shown.find("flags").map(names).unwrap_or_default();
    assert_eq!(flags.contains("optional"), arg.optional, "{shown:?}");
    let multiple = matches!(arg.kind, ArgKind::Texts);
    assert_eq!(flags.contains("multiple"), multiple, "{shown:?}");
    assert_eq!(flags.len(), usize::from(arg.optional) + usize::from(multiple), "{shown:?}");
    let is_key = matches!(arg.kind, ArgKind::Key);
    assert_eq!(shown.find("key_spec_index").map(Reply::int), is_key.then_some(0), "{shown:?}");
    let inner: &[Arg] = if let ArgKind::OneOf(choices) = arg.kind { choices } else { &[] };
    assert_arguments(shown.find("arguments").map_or(&[], Reply::array), inner);
}

#[track_caller]
fn assert_arguments(shown: &[Reply], args: &[Arg]) {
    assert_eq!(shown.len(), args.len(), "{shown:?}");
    for (shown, arg) in shown.iter().zip(args) {
        assert_argument(shown, arg);
    }
}

on_every_server! {
    fn command_info_is_the_record(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.resp3_client();
        for record in COMMANDS {
            let entry = command_info(&mut client, record);
            assert_eq!(entry[0].text(), record.name);
            assert_eq!(entry[1].int(), i64::from(record.arity), "{}", record.name);
            assert_eq!(names(&entry[2]), expected_flags(record), "{}", record.name);
            let key_range: Vec<i64> = entry[3..6].iter().map(Reply::int).collect();
            assert_eq!(key_range, [1, 1, 1], "{}", record.name);
            assert_eq!(names(&entry[6]), expected_categories(record, kind), "{}", record.name);
            assert_eq!(entry[9].array(), [], "{}: no subcommands", record.name);
        }
    }

    fn the_key_is_argument_1_with_its_rights(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.resp3_client();
        for record in COMMANDS {
            let entry = command_info(&mut client, record);
            let [spec, more @ ..] = entry[8].array() else { panic!("{}: {entry:?}", record.name) };
            // The keys of the command that a guard runs are told by asking.
            let flags: Vec<Names> = more.iter().map(|spec| names(spec.get("flags"))).collect();
            let incomplete = ["RW", "access", "update", "incomplete"].map(str::to_owned).into_iter().collect();
            assert_eq!(flags, if record.name == GUARD { vec![incomplete] } else { vec![] }, "{}", record.name);
            assert_eq!(names(spec.get("flags")), expected_key_flags(record), "{}", record.name);
            let search = spec.get("begin_search");
            assert_eq!((search.get("type").text(), search.get("spec").get("index").int()), ("index".to_owned(), 1));
            let find = spec.get("find_keys");
            assert_eq!(find.get("type").text(), "range");
            let range = ["lastkey", "keystep", "limit"].map(|field| find.get("spec").get(field).int());
            assert_eq!(range, [0, 1, 0], "{}", record.name);
        }
    }

    fn command_docs_are_the_record(kind: Kind) {
        let server = Server::start(kind);
        for mut client in [server.client(), server.resp3_client()] {
            for record in COMMANDS {
                let docs = cmd!(client, "COMMAND", "DOCS", record.name);
                let doc = docs.get(record.name);
                assert_eq!(doc.get("summary").text(), record.summary);
                assert_eq!(doc.get("complexity").text(), record.complexity);
                assert_eq!(doc.get("since").text(), record.since);
                assert_eq!((doc.get("group").text(), doc.get("module").text()), ("module".into(), "lock".into()));
                assert_arguments(doc.get("arguments").array(), record.args);
            }
        }
    }

    fn no_command_is_without_a_record(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let recorded: Names = COMMANDS.iter().map(|record| record.name.to_owned()).collect();
        let upper = |reply: &Reply| -> Names { names(reply).iter().map(|name| name.to_uppercase()).collect() };
        assert_eq!(upper(&cmd!(client, "COMMAND", "LIST", "FILTERBY", "MODULE", "lock")), recorded);
        assert_eq!(upper(&cmd!(client, "COMMAND", "LIST", "FILTERBY", "PATTERN", "lock*")), recorded);
    }

    fn the_category_lists_exactly_the_commands(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let listed = cmd!(client, "ACL", "CAT", "lock");
        if kind == Kind::Redis70 {
            assert!(listed.err().contains("Unknown category"), "{listed:?}");
            return;
        }
        let recorded: Names = COMMANDS.iter().map(|record| record.name.to_lowercase()).collect();
        let listed: Names = names(&listed).iter().map(|name| name.to_lowercase()).collect();
        assert_eq!(listed, recorded);
    }
}

/// What is documented as new in a version must not be newer than this one.
#[test]
fn no_record_is_from_the_future() {
    let version = |text: &str| -> Vec<u32> { text.split('.').map(|part| part.parse().expect("a number")).collect() };
    for record in COMMANDS {
        assert!(version(record.since) <= version(env!("CARGO_PKG_VERSION")), "{}", record.name);
    }
}
