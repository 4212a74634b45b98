//! README.md tells the truth: its session runs, and its tables hold every command, config, metric and event, no more.

use redis_lock::metadata::COMMANDS;
use std::time::Duration;

use crate::docs::syntax;
use crate::harness::{cmd, eventually, grant, on_every_server, send, Kind, Reply, Server};
use crate::markdown::{column, rows};
use crate::transcript::{self, Judge};

pub const README: &str = include_str!("../../README.md");

/// What a newcomer sees without scrolling.
const FIRST_SCREEN_LINES: usize = 40;
const SOON: Duration = Duration::from_secs(5);

on_every_server! {
    fn the_session_is_what_a_server_replies(kind: Kind) {
        let server = Server::start(kind);
        transcript::assert_true(&server, README);
    }

    fn the_session_can_be_typed_twice(kind: Kind) {
        let server = Server::start(kind);
        transcript::assert_true(&server, README);
        transcript::assert_true(&server, README);
    }

    fn every_config_is_documented_with_its_default_and_bounds(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let live = cmd!(client, "CONFIG", "GET", "lock.*");
        let mut live: Vec<_> = live.array().chunks(2).map(|pair| (pair[0].text(), pair[1].text())).collect();
        let documented = rows(README, "Name | Default");
        let mut written: Vec<_> = documented.iter().map(|row| (row[0].clone(), row[1].clone())).collect();
        live.sort();
        written.sort();
        assert_eq!(written, live);

        for row in documented {
            let (min, max) = row[2].split_once(", ").expect("two bounds");
            let (min, max): (i64, i64) = (min.parse().expect("a number"), max.parse().expect("a number"));
            for (value, allowed) in [(min - 1, false), (min, true), (max, true), (max + 1, false)] {
                let reply = cmd!(client, "CONFIG", "SET", row[0], value);
                assert_eq!(reply.is("OK"), allowed, "{} {value}: {reply:?}", row[0]);
            }
        }
    }

    fn every_line_of_info_is_documented(kind: Kind) {
        let server = Server::start(kind);
        let text = cmd!(server.client(), "INFO", "lock").text();
        let live: Vec<&str> = text.lines().filter_map(|line| Some(line.split_once(':')?.0)).collect();
        assert_eq!(column(README, "Line | Meaning"), live);
    }

    fn every_event_is_documented(kind: Kind) {
        let server = Server::builder(kind).arg("notify-keyspace-events", "Ed").start();
        let mut listener = server.client();
        send!(listener, "PSUBSCRIBE", "__keyevent@0__:*");
        listener.recv();

        let mut client = server.client();
        let ended = || (cmd!(server.client(), "EXISTS", "short").int() == 0).then_some(()).ok_or("held");
        grant(&cmd!(client, "LOCK.ACQUIRE", "job", "TOKEN", "t"));
        grant(&cmd!(client, "LOCK.ACQUIRE", "job", "TOKEN", "t", "PX", 60_000));
        cmd!(client, "LOCK.EXTEND", "job", "t", "PX", 70_000).int();
        cmd!(client, "LOCK.RELEASE", "job", "t").int();
        grant(&cmd!(client, "LOCK.ACQUIRE", "short", "PX", 1));
        eventually(SOON, ended);

        let seen = [(); 4].map(|()| {
            let message = listener.recv();
            let [_, _, channel, key] = message.array() else { panic!("{message:?}") };
            (channel.text().replace("__keyevent@0__:", ""), key.text())
        });
        let expected = [("acquired", "job"), ("released", "job"), ("acquired", "short"), ("expired", "short")];
        assert_eq!(seen, expected.map(|(event, key)| (format!("lock.{event}"), key.to_owned())));
        assert_eq!(column(README, "Event | When"), ["lock.acquired", "lock.released", "lock.expired"]);
        assert_eq!(listener.try_recv(Duration::ZERO), None);
    }

    fn the_rights_in_the_readme_are_enough_and_no_more(kind: Kind) {
        let server = Server::start(kind);
        let rule = README.lines().find_map(|line| line.trim().strip_prefix("ACL SETUSER ")).expect("a rule");
        let rule: Vec<&str> = rule.split(' ').collect();
        let mut client = server.client();
        client.cmd(&[&["ACL", "SETUSER"], &rule[..]].concat()).ok();
        cmd!(client, "AUTH", "worker", "secret").ok();
        grant(&cmd!(client, "LOCK.ACQUIRE", "lock:job", "TOKEN", "t"));
        for command in ["LOCK.CHECK", "LOCK.EXTEND", "LOCK.RELEASE"] {
            assert!(cmd!(client, command, "lock:job", "t").int() > 0, "{command}");
        }
        assert!(cmd!(client, "LOCK.INFO", "lock:job").is_null());
        assert!(cmd!(client, "LOCK.ACQUIRE", "job").err().starts_with("NOPERM"));
        assert!(cmd!(client, "DEL", "lock:job").err().starts_with("NOPERM"));
    }
}

#[test]
fn the_first_screen_has_what_a_newcomer_needs() {
    let screen: Vec<&str> = README.lines().take(FIRST_SCREEN_LINES).collect();
    let screen = screen.join("\n");
    let session = transcript::sessions(README).into_iter().next().expect("a session");
    assert!(session.last().is_some_and(|step| step.line < FIRST_SCREEN_LINES));
    for needed in ["make run", "make test", "replicas first", "managed service", "`LOCK.INFO key`", "password", "lease"]
    {
        assert!(screen.contains(needed), "{needed} is not in the first {FIRST_SCREEN_LINES} lines");
    }
    let names = screen.lines().find(|line| line.starts_with("#  ")).expect("names of the positions");
    let positions: Vec<_> = ["token", "fence", "ms left", "ms waited", "new"].map(|name| names.find(name)).into();
    assert!(positions.iter().all(Option::is_some) && positions.is_sorted(), "{names}");
}

#[test]
fn the_table_has_every_command_with_its_syntax() {
    let public = COMMANDS.iter().filter(|record| !record.name.starts_with("LOCK._"));
    let short = |record| syntax(record).replace("milliseconds", "ms").replace("seconds", "s");
    let expected: Vec<String> = public.map(|record| short(record)).collect();
    assert_eq!(column(README, "Command ([reference]"), expected);
}

/// A comparison that lets everything pass would prove nothing.
#[test]
fn a_session_with_a_wrong_word_is_found_out() {
    let server = Server::start(Kind::Valkey81);
    let steps = transcript::sessions(README).swap_remove(0);
    let replies = transcript::run(&server, &steps);
    let judged = |wrong: usize, with: &str| {
        let mut judge = Judge::default();
        steps.iter().zip(&replies).enumerate().all(|(index, (step, reply))| {
            let expected = if index == wrong { with } else { &step.expected };
            judge.compare(expected, reply).is_ok()
        })
    };
    assert!(judged(0, &steps[0].expected), "the session as it is");

    let fence =
        |step: usize| steps[step].expected.split(' ').find(|word| word.len() == 13).expect("a fence").to_owned();
    let again = steps.iter().rposition(|step| step.words[0] == "LOCK.ACQUIRE").expect("a second grant");
    let lower = steps[again].expected.replace(&fence(again), &format!("{}", fence(0).parse::<i64>().unwrap() - 1));
    let equal = steps[again].expected.replace(&fence(again), &fence(0));
    assert!(!judged(again, &lower) && !judged(again, &equal), "a fence that does not go up");

    for (index, step) in steps.iter().enumerate() {
        let words: Vec<&str> = step.expected.split(' ').collect();
        for (at, word) in words.iter().enumerate() {
            let mut without = words.clone();
            without.remove(at);
            assert!(!judged(index, &without.join(" ")), "without {word} of {}", step.expected);
            let changed = match word.parse::<i64>() {
                Ok(number) if number < 60 || number % 1_000 == 0 => (number + 90_000).to_string(),
                Ok(number) => (-number).to_string(),
                Err(_) => format!("x{word}"),
            };
            let mut other = words.clone();
            other[at] = &changed;
            let field = at.checked_sub(1).map_or("", |before| words[before]);
            assert!(field == "client" || !judged(index, &other.join(" ")), "{changed} for {word} of {}", step.expected);
        }
    }
}

#[test]
fn the_servers_that_are_tested_are_named() {
    for kind in Kind::ALL {
        let (server, version) = kind.name().split_once('-').expect("a name has a version");
        let found = README.lines().any(|line| line.to_lowercase().contains(server) && line.contains(version));
        assert!(found, "{server} {version}");
    }
}

#[test]
fn replies_are_shown_as_redis_cli_shows_them() {
    let nested =
        Reply::Array(vec![Reply::Bulk(b"a\"b".to_vec()), Reply::Array(vec![Reply::Int(-1), Reply::NullArray])]);
    assert_eq!(transcript::shown(&nested, false), r#"1) "a\"b" 2) 1) (integer) -1 2) (nil)"#);
    assert_eq!(transcript::shown(&nested, true), "a\"b -1");
    assert_eq!(transcript::shown(&Reply::Array(vec![]), false), "(empty array)");
    assert_eq!(transcript::shown(&Reply::Error("ERR no".into()), false), "(error) ERR no");
}
