//! The label of a holder that gave none: where it comes from, and that a command without a connection has none.

use crate::harness::{cmd, grant, on_every_server, Client, Kind, Server};

fn holder(client: &mut Client, key: &str) -> (String, i64) {
    let info = cmd!(client, "LOCK.INFO", key);
    let holder = &info.get("holders").array()[0];
    (holder.get("label").text(), holder.get("client").int())
}

on_every_server! {
    fn a_connection_is_told_by_its_name_or_else_its_address(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let id = client.id();
        let listed = cmd!(client, "CLIENT", "LIST", "ID", id).text();
        let address = listed.split_once("addr=").and_then(|(_, rest)| rest.split_once(' ')).expect("an address").0;

        grant(&cmd!(client, "LOCK.ACQUIRE", "nameless"));
        assert_eq!(holder(&mut client, "nameless"), (address.to_owned(), id));
        cmd!(client, "MULTI").ok();
        assert!(cmd!(client, "LOCK.ACQUIRE", "queued").is("QUEUED"));
        grant(&cmd!(client, "EXEC").array()[0]);
        assert_eq!(holder(&mut client, "queued"), (address.to_owned(), id));

        cmd!(client, "CLIENT", "SETNAME", "worker-7").ok();
        grant(&cmd!(client, "LOCK.ACQUIRE", "named"));
        assert_eq!(holder(&mut client, "named"), ("worker-7".to_owned(), id));
    }

    // Valkey 9.1 dies of the question where a script's client is connected from.
    fn a_script_and_a_function_have_no_connection(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        cmd!(client, "CLIENT", "SETNAME", "worker-7").ok();
        grant(&cmd!(client, "EVAL", "return redis.call('LOCK.ACQUIRE', KEYS[1])", 1, "by-script"));
        assert_eq!(holder(&mut client, "by-script"), (String::new(), 0));

        let library = "#!lua name=jobs\n\
            redis.register_function('take', function(keys) return redis.call('LOCK.ACQUIRE', keys[1]) end)";
        cmd!(client, "FUNCTION", "LOAD", library).text();
        grant(&cmd!(client, "FCALL", "take", 1, "by-function"));
        assert_eq!(holder(&mut client, "by-function"), (String::new(), 0));
    }
}
