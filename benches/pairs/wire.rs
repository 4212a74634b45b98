//! Raw connections that send prepared bytes and count replies. They keep up with the server on one core, which a client
//! that builds values from replies does not.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(30);
const READ_BYTES: usize = 64 * 1024;

/// One connection.
pub struct Pipe {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Pipe {
    pub fn connect(port: u16) -> Self {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("connect to the server");
        stream.set_nodelay(true).expect("set TCP_NODELAY");
        stream.set_read_timeout(Some(PATIENCE)).expect("set the patience");
        Self { stream, received: Vec::with_capacity(2 * READ_BYTES) }
    }

    pub fn send(&mut self, wire: &[u8]) {
        self.stream.write_all(wire).expect("send commands");
    }

    /// Waits for this many replies. An error among them ends the benchmark.
    pub fn receive(&mut self, replies: usize) {
        let (mut seen, mut at) = (0, 0);
        let mut chunk = [0; READ_BYTES];
        self.received.clear();
        while seen < replies {
            let length = self.stream.read(&mut chunk).expect("receive replies");
            assert!(length > 0, "the server closed the connection");
            self.received.extend_from_slice(&chunk[..length]);
            while let Some(end) = skip(&self.received, at) {
                assert!(self.received[at] != b'-', "{}", self.received[at..end].escape_ascii());
                (seen, at) = (seen + 1, end);
            }
        }
        assert_eq!((seen, at), (replies, self.received.len()), "replies to commands nobody sent");
    }
}

/// Appends a command in the form of a request.
pub fn encode(words: &[String], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        out.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
}

/// Where the reply that starts at `at` ends, if all of it is there.
fn skip(bytes: &[u8], at: usize) -> Option<usize> {
    let line = bytes.get(at..)?;
    let length = line.windows(2).position(|pair| pair == b"\r\n")?;
    let after = at + length + 2;
    let number = || std::str::from_utf8(&line[1..length]).ok()?.parse::<usize>().ok();
    match line[0] {
        b'$' => match number() {
            Some(blob) => (after + blob + 2 <= bytes.len()).then_some(after + blob + 2),
            None => Some(after),
        },
        b'*' => (0..number().unwrap_or(0)).try_fold(after, |at, _| skip(bytes, at)),
        _ => Some(after),
    }
}
