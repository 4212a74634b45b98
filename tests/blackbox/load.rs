//! Loading the module: with arguments, with wrong ones, twice. A refused load says why in one line of the log and
//! leaves the server as it was.

use crate::harness::{cmd, grant, module, on_every_server, wait_until_free, Client, Kind, Reply, Server};

const REFUSED: &str = "lock: not loaded: ";

/// Arguments of loadmodule and why they are refused.
const WRONG_ARGUMENTS: &[(&[&str], &str)] = &[
    (&["foo", "1"], "argument 1 of loadmodule is none of default-ttl, max-ttl, grace, max-waiters"),
    (&["default-ttl", "5", "foo", "1"], "argument 3 of loadmodule is none of default-ttl, max-ttl, grace, max-waiters"),
    (&["30000"], "argument 1 of loadmodule is none of default-ttl, max-ttl, grace, max-waiters"),
    (&["max-ttl"], "max-ttl takes a number from 1 to 315360000000 (argument 2 of loadmodule)"),
    (&["max-ttl", "0"], "max-ttl takes a number from 1 to 315360000000 (argument 2 of loadmodule)"),
    (&["max-ttl", "-1"], "max-ttl takes a number from 1 to 315360000000 (argument 2 of loadmodule)"),
    (&["max-ttl", "1h"], "max-ttl takes a number from 1 to 315360000000 (argument 2 of loadmodule)"),
    (&["max-ttl", "315360000001"], "max-ttl takes a number from 1 to 315360000000 (argument 2 of loadmodule)"),
    (&["grace", "-1"], "grace takes a number from 0 to 315360000000 (argument 2 of loadmodule)"),
    (&["max-waiters", "-1"], "max-waiters takes a number from 0 to 1000000 (argument 2 of loadmodule)"),
    (&["max-waiters", "1000001"], "max-waiters takes a number from 0 to 1000000 (argument 2 of loadmodule)"),
    (
        &["max-ttl", "7", "lock.default-ttl", "x"],
        "default-ttl takes a number from 1 to 315360000000 (argument 4 of loadmodule)",
    ),
];

/// Lines of the configuration that are refused, and the bounds.
const WRONG_LINES: &[(&str, &str, &str)] = &[
    ("lock.default-ttl", "abc", "1 to 315360000000"),
    ("lock.max-ttl", "0", "1 to 315360000000"),
    ("lock.max-ttl", "315360000001", "1 to 315360000000"),
    ("lock.grace", "-1", "0 to 315360000000"),
    ("lock.max-waiters", "-1", "0 to 1000000"),
    ("lock.max-waiters", "many", "0 to 1000000"),
];

#[track_caller]
fn load(client: &mut Client, args: &[&str]) -> Reply {
    let path = module().to_str().expect("the module's path is text");
    client.cmd(&[&["MODULE", "LOAD", path], args].concat())
}

/// The reasons of refused loads, one for each line.
fn reasons(log: &str) -> Vec<&str> {
    log.lines().filter_map(|line| line.split_once(REFUSED)).map(|(_, reason)| reason).collect()
}

/// Lets the server open no more descriptors than this. How many it could open before.
fn descriptors_up_to(server: &Server, most: Option<u64>) -> u64 {
    let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both structs are valid for the call; a null pointer sets nothing.
    let got = unsafe { libc::prlimit(server.pid(), libc::RLIMIT_NOFILE, std::ptr::null(), &mut before) };
    assert_eq!(got, 0, "read the limit of descriptors");
    if let Some(most) = most {
        let limit = libc::rlimit { rlim_cur: most, ..before };
        // SAFETY: as above.
        let set = unsafe { libc::prlimit(server.pid(), libc::RLIMIT_NOFILE, &limit, std::ptr::null_mut()) };
        assert_eq!(set, 0, "set the limit of descriptors");
    }
    before.rlim_cur
}

/// A turn of the server's cron and one of everything else that modules are told of.
#[track_caller]
fn let_the_server_live(client: &mut Client) {
    let cron_runs = |client: &mut Client| cmd!(client, "BLPOP", "nothing", "0.25");
    assert!(cron_runs(client).is_null());
    cmd!(client, "SET", "k", 1).ok();
    cmd!(client, "SWAPDB", 0, 1).ok();
    cmd!(client, "FLUSHALL").ok();
    cmd!(client, "CONFIG", "SET", "maxmemory-policy", "volatile-lru").ok();
    cmd!(client, "CONFIG", "SET", "maxmemory-policy", "noeviction").ok();
    cmd!(client, "DEBUG", "RELOAD").ok();
    cmd!(client, "INFO", "everything").text();
    assert!(cron_runs(client).is_null());
}

on_every_server! {
    fn arguments_set_the_configs(kind: Kind) {
        let args = ["LOCK.Default-TTL", "7000", "max-ttl", "9000", "max-waiters", "0"];
        let server = Server::builder(kind).module_args(&args).start();
        let mut client = server.client();
        assert_eq!(grant(&cmd!(client, "LOCK.ACQUIRE", "k")).ttl, 7_000);
        assert_eq!(cmd!(client, "LOCK.ACQUIRE", "k2", "PX", 9_001).err(),
            "ERR lease of 9001 ms is above lock.max-ttl 9000");
        let configs = cmd!(client, "CONFIG", "GET", "lock.*");
        assert_eq!((configs.get("lock.default-ttl").text(), configs.get("lock.max-ttl").text()),
            ("7000".to_owned(), "9000".to_owned()));
        let refused = cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "BLOCK", 5_000);
        assert!(refused.err().starts_with("MAXWAITERS "), "{refused:?}");
    }

    fn wrong_arguments_end_the_start_with_one_line(kind: Kind) {
        for (args, reason) in WRONG_ARGUMENTS {
            let log = Server::builder(kind).module_args(args).try_start().expect_err("the start is refused");
            assert_eq!(reasons(&log), [*reason], "{args:?}:\n{log}");
        }
    }

    fn a_wrong_line_of_the_configuration_ends_the_start_with_one_line(kind: Kind) {
        for (name, value, bounds) in WRONG_LINES {
            // The right lines around it, one of which says what is so anyway, are not blamed.
            let others = [("lock.default-ttl", "30000"), ("lock.max-ttl", "70000"), ("lock.max-waiters", "5")];
            let others = others.iter().filter(|(other, _)| other != name);
            let server = others.fold(Server::builder(kind), |server, (other, value)| server.arg(other, value));
            let log = server.arg(name, value).try_start().expect_err("the start is refused");
            let expected = format!("{name} takes a number from {bounds} (a line of the configuration)");
            assert_eq!(reasons(&log), [expected], "{name} {value}:\n{log}");
        }
    }

    // On Redis 7.0 a load refused after the module had subscribed to events crashed the server at its next cron.
    fn a_load_refused_at_run_time_leaves_the_server_sound(kind: Kind) {
        let server = Server::builder(kind).without_module().start();
        let mut client = server.client();
        let path = module().to_str().expect("the module's path is text");
        let refused = cmd!(client, "MODULE", "LOADEX", path, "CONFIG", "lock.max-ttl", 0);
        assert!(refused.is_error(), "{refused:?}");
        let_the_server_live(&mut client);
        for (args, _) in WRONG_ARGUMENTS {
            let refused = load(&mut client, args);
            assert!(refused.is_error(), "{refused:?}");
        }
        let_the_server_live(&mut client);
        let expected: Vec<&str> = ["lock.max-ttl takes a number from 1 to 315360000000 (a line of the configuration)"]
            .into_iter()
            .chain(WRONG_ARGUMENTS.iter().map(|(_, reason)| *reason))
            .collect();
        assert_eq!(reasons(&server.log()), expected);
        assert!(cmd!(client, "LOCK.ACQUIRE", "k").err().starts_with("ERR unknown command"));

        // Nothing of the refused loads is left: neither their values nor anything in the way of a right one.
        load(&mut client, &["max-ttl", "60000"]).ok();
        let_the_server_live(&mut client);
        assert_eq!(grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a")).ttl, 30_000);
        assert_eq!(grant(&cmd!(client, "LOCK.ACQUIRE", "short", "PX", 20)).new, 1);
        wait_until_free(&mut client, "short");
    }

    fn a_load_refused_for_want_of_descriptors_says_so(kind: Kind) {
        let server = Server::builder(kind).without_module().start();
        let mut client = server.client();
        assert!(cmd!(client, "PING").is("PONG"), "the connection has its descriptor");
        let whole = descriptors_up_to(&server, None);
        // One by one until there are enough for the server to read the module's file: not for both of the module's own.
        let said = (4..100).find_map(|most| {
            descriptors_up_to(&server, Some(most));
            let loaded = !load(&mut client, &[]).is_error();
            let said = if loaded { "loaded".to_owned() } else { reasons(&server.log()).join("; ") };
            (!said.is_empty()).then_some(said)
        });
        descriptors_up_to(&server, Some(whole));
        assert_eq!(said.as_deref(), Some("no timer: Too many open files (os error 24)"));
        let_the_server_live(&mut client);
        load(&mut client, &[]).ok();
        assert_eq!(grant(&cmd!(client, "LOCK.ACQUIRE", "short", "PX", 20)).new, 1);
        wait_until_free(&mut client, "short");
    }

    fn a_second_load_is_refused_and_the_first_goes_on(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let held = grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 60_000));
        for args in [&[][..], &["max-ttl", "5"], &["foo", "1"]] {
            let refused = load(&mut client, args);
            assert!(refused.is_error(), "{refused:?}");
        }
        assert_eq!(reasons(&server.log()), ["another module of the name lock is loaded"; 3]);
        let_the_server_live(&mut client);
        let next = grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 60_000));
        assert!(next.fence > held.fence && next.ttl == 60_000, "{held:?} then {next:?}");
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "a").int(), 1);
    }

    fn a_module_with_a_type_of_its_own_stays_loaded(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", "a", "PX", 60_000));
        assert!(cmd!(client, "MODULE", "UNLOAD", "lock").is_error());
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", "a").int(), 1);
    }

    fn module_list_shows_it(kind: Kind) {
        let server = Server::start(kind);
        let list = cmd!(server.client(), "MODULE", "LIST");
        let own = list.array().iter().find(|module| module.get("name").text() == "lock");
        assert_eq!(own.unwrap_or_else(|| panic!("{list:?}")).get("ver").int(), 100);
    }
}
