//! Where a connection may not be blocked, BLOCK answers at once, as the server's own blocking commands do: in MULTI, in
//! scripts and functions, and when another module calls. It leaves no place in line behind.

use std::process::Command;

use crate::harness::line::{count, release, take, waiters};
use crate::harness::{args, cmd, grant, on_every_server, Client, Kind, Reply, Scratch, Server};

const FUNCTION: &str = "#!lua name=locks\n\
    redis.register_function('try', function(keys, args) \
        return redis.call('LOCK.ACQUIRE', keys[1], 'TOKEN', args[1], 'BLOCK', args[2]) \
    end)";
const SCRIPT: &str = "return redis.call('LOCK.ACQUIRE', KEYS[1], 'TOKEN', ARGV[1], 'BLOCK', ARGV[2])";

/// Asks for `k` by a way on which nothing can wait, first while another token holds it, then while it is free.
fn answers_at_once(client: &mut Client, mut ask: impl FnMut(&mut Client, &str, &str) -> Reply) {
    for block_ms in ["0", "60000"] {
        take(client, "k", "a");
        assert!(ask(client, "b", block_ms).is_null());
        assert_eq!((waiters(client, "k"), count(client, "waiting")), (0, 0));
        assert!(cmd!(client, "PING").is("PONG"));
        release(client, "k", "a");
        let granted = ask(client, "b", block_ms);
        let granted = grant(&granted);
        assert_eq!((granted.token.as_slice(), granted.waited, granted.new), (b"b".as_slice(), 0, 1));
        release(client, "k", "b");
    }
    assert_eq!((count(client, "waited"), count(client, "held")), (0, 0));
}

/// The compiled module, and the directory it is in.
fn caller() -> (String, Scratch) {
    let dir = Scratch::new("caller");
    let (source, library) = (dir.join("caller.c"), dir.join("caller.so"));
    std::fs::write(&source, include_str!("caller.c")).expect("write the source");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"]).args([&library, &source]);
    let done = compiler.output().unwrap_or_else(|error| panic!("no C compiler, install gcc or clang: {error}"));
    assert!(done.status.success(), "compile: {}", String::from_utf8_lossy(&done.stderr));
    (library.to_string_lossy().into_owned(), dir)
}

on_every_server! {
    fn block_in_multi_answers_at_once(kind: Kind) {
        let server = Server::start(kind);
        answers_at_once(&mut server.client(), |client, token, ms| {
            cmd!(client, "MULTI").ok();
            assert!(cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", token, "BLOCK", ms).is("QUEUED"));
            cmd!(client, "EXEC").array()[0].clone()
        });
    }

    fn block_in_a_script_answers_at_once(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        answers_at_once(&mut client, |client, token, ms| cmd!(client, "EVAL", SCRIPT, 1, "k", token, ms));
        // Also where the script is part of a transaction.
        take(&mut client, "k", "a");
        cmd!(client, "MULTI").ok();
        assert!(cmd!(client, "EVAL", SCRIPT, 1, "k", "b", 0).is("QUEUED"));
        assert!(cmd!(client, "EXEC").array()[0].is_null());
    }

    fn block_in_a_function_answers_at_once(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        assert_eq!(cmd!(client, "FUNCTION", "LOAD", FUNCTION).text(), "locks");
        answers_at_once(&mut client, |client, token, ms| cmd!(client, "FCALL", "try", 1, "k", token, ms));
    }

    fn block_in_another_modules_call_answers_at_once(kind: Kind) {
        let (library, _dir) = caller();
        let server = Server::builder(kind).arg("loadmodule", format!("\"{library}\"")).start();
        let mut client = server.client();
        answers_at_once(&mut client, |client, token, ms| {
            cmd!(client, "CALLER.CALL", "LOCK.ACQUIRE", "k", "TOKEN", token, "BLOCK", ms)
        });
        // A release by such a call hands over like any other.
        take(&mut client, "k", "a");
        let mut waiter = crate::harness::line::stand_in_line(&server, "k", "b");
        let replies = client.pipeline([
            args!["CALLER.CALL", "LOCK.RELEASE", "k", "a"],
            args!["CALLER.CALL", "LOCK.ACQUIRE", "k", "TOKEN", "c", "BLOCK", 0],
        ]);
        assert_eq!(replies[0].int(), 1);
        assert!(replies[1].is_null(), "{replies:?}");
        assert_eq!(grant(&waiter.recv()).token, b"b");
    }
}
