//! Keys, tokens and labels are bytes: nothing is decoded, folded, cut or taken for a format, and lengths are checked to
//! the byte.

use crate::harness::{cmd, grant, on_every_server, Client, Kind, Server};

const TOKEN_BYTES_MAX: usize = 128;
const LABEL_BYTES_MAX: usize = 128;

/// What breaks software that takes bytes for text.
fn awkward() -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = [
        &b"\0"[..],
        b"\0\0",
        b"a\0b",
        b"\r\n",
        b"*1\r\n$4\r\nPING\r\n",
        b"%n",
        b"%s%s%s%n%n%n",
        b"%1000000d",
        b"\xff",
        b"\xc3\x28",
        b"\xed\xa0\x80",
        "l\u{f6}ck \u{1f512}".as_bytes(),
        b" a ",
        b"\"a\"",
        b"'; DROP TABLE locks; --",
        b"${jndi:ldap://x}",
        b"../../etc/passwd",
        b"-1",
        b"0",
    ]
    .map(<[u8]>::to_vec)
    .to_vec();
    all.push((0..=127).collect());
    all.push((128..=255).collect());
    all.push(vec![0; TOKEN_BYTES_MAX]);
    all.push(vec![0xff; TOKEN_BYTES_MAX]);
    all
}

/// Takes and releases one lock with these bytes in every command.
#[track_caller]
fn walk(client: &mut Client, key: &[u8], token: &[u8], label: &[u8]) {
    let granted = grant(&cmd!(client, "LOCK.ACQUIRE", key, "TOKEN", token, "LABEL", label, "PX", 60_000));
    assert_eq!((&granted.token[..], granted.new), (token, 1));
    let info = cmd!(client, "LOCK.INFO", key);
    assert_eq!(info.get("holders").array()[0].get("label").bulk(), label);
    assert!(cmd!(client, "LOCK.CHECK", key, token).int() > 0);
    assert_eq!(cmd!(client, "LOCK.EXTEND", key, token, "PX", 90_000).int(), 90_000);
    let longer = [token, b"x"].concat();
    if longer.len() <= TOKEN_BYTES_MAX {
        assert_eq!(cmd!(client, "LOCK.CHECK", key, longer).int(), 0);
    }
    assert_eq!(cmd!(client, "LOCK.RELEASE", key, token).int(), 1);
    assert_eq!(cmd!(client, "EXISTS", key).int(), 0);
}

on_every_server! {
    fn any_bytes_are_a_token_a_key_and_a_label(kind: Kind) {
        let server = Server::start(kind);
        for mut client in [server.client(), server.resp3_client()] {
            for bytes in awkward() {
                walk(&mut client, b"k", &bytes, b"");
                walk(&mut client, b"k", b"a", &bytes);
                walk(&mut client, &bytes, &bytes, &bytes);
            }
            walk(&mut client, b"", b"a", b"");
        }
        // Not one of them was taken for the format of a log line.
        assert!(cmd!(server.client(), "PING").is("PONG"));
    }

    fn tokens_that_differ_in_one_byte_are_strangers(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let token: Vec<u8> = (0..=127).collect();
        grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", token));
        for at in 0..token.len() {
            let mut other = token.clone();
            other[at] ^= 0x80;
            assert_eq!(cmd!(client, "LOCK.RELEASE", "k", other).int(), -1, "byte {at}");
        }
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", token[..127]).int(), -1);
        assert_eq!(cmd!(client, "LOCK.RELEASE", "k", token).int(), 1);
    }

    /// Some of these are kept in less than they have: each comes back as it was, and is no other.
    fn tokens_and_labels_that_look_alike_stay_apart(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        let alike = [
            "550e8400-e29b-41d4-a716-446655440000", "550E8400-E29B-41D4-A716-446655440000",
            "550e8400e29b41d4a716446655440000", "550e8400e29b41d4a71644665544000", "550e8400-e29b-41d4-a716-44665544000g",
            "550e8400-e29b-41d4-a716-446655440001", "550e8400+e29b-41d4-a716-446655440000", "127.0.0.1:6379",
            "127.0.0.1:06379", "127.0.0.01:6379", "127.0.0.1:6380", "127.0.0.1:71915", "127.0.0.1:", "127.0.0.256:1",
        ];
        for token in alike {
            grant(&cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", token, "LABEL", token, "PX", 600_000));
            for reload in [false, true] {
                if reload {
                    cmd!(client, "DEBUG", "RELOAD").ok();
                }
                let info = cmd!(client, "LOCK.INFO", "k");
                assert_eq!(info.get("holders").array()[0].get("label").bulk(), token.as_bytes());
                for other in alike.into_iter().filter(|&other| other != token) {
                    assert_eq!(cmd!(client, "LOCK.CHECK", "k", other).int(), 0, "{other} for {token}");
                    assert_eq!(cmd!(client, "LOCK.RELEASE", "k", other).int(), -1, "{other} for {token}");
                }
            }
            assert_eq!(cmd!(client, "LOCK.RELEASE", "k", token).int(), 1);
        }
    }

    fn a_token_has_1_to_128_bytes(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        for length in [1, 2, TOKEN_BYTES_MAX - 1, TOKEN_BYTES_MAX] {
            walk(&mut client, b"k", &vec![b't'; length], b"");
        }
        for length in [0, TOKEN_BYTES_MAX + 1, 256, 384, 65_537] {
            let token = vec![b't'; length];
            let at = |position| format!("ERR token at argument {position} must have 1 to 128 bytes");
            assert_eq!(cmd!(client, "LOCK.ACQUIRE", "k", "TOKEN", token).err(), at(3));
            assert_eq!(cmd!(client, "LOCK.RELEASE", "k", token).err(), at(2));
            assert_eq!(cmd!(client, "LOCK.EXTEND", "k", token).err(), at(2));
            assert_eq!(cmd!(client, "LOCK.CHECK", "k", token).err(), at(2));
        }
        assert_eq!(cmd!(client, "DBSIZE").int(), 0);
    }

    fn a_label_has_at_most_128_bytes(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        for length in [0, 1, LABEL_BYTES_MAX - 1, LABEL_BYTES_MAX] {
            walk(&mut client, b"k", b"a", &vec![b'l'; length]);
        }
        for length in [LABEL_BYTES_MAX + 1, 256, 65_537] {
            let reply = cmd!(client, "LOCK.ACQUIRE", "k", "LABEL", vec![b'l'; length]);
            assert_eq!(reply.err(), "ERR label at argument 3 must have at most 128 bytes");
        }
        assert_eq!(cmd!(client, "DBSIZE").int(), 0);
    }

    fn a_key_may_be_long(kind: Kind) {
        let server = Server::start(kind);
        let mut client = server.client();
        for length in [255, 256, 65_535, 65_536, 1 << 20] {
            walk(&mut client, &vec![b'k'; length], &[b't'; 128], &[b'l'; 128]);
        }
    }
}
