//! Raw connections that send prepared bytes and count replies. They keep up with the server on one core, which a client
//! that builds values from replies does not.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use crate::wire;

const PATIENCE: Duration = Duration::from_secs(30);
const READ_BYTES: usize = 64 * 1024;

/// One connection.
pub struct Pipe {
    stream: TcpStream,
    received: Vec<u8>,
    chunk: Vec<u8>,
}

impl Pipe {
    pub fn connect(port: u16) -> Self {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("connect to the server");
        stream.set_nodelay(true).expect("set TCP_NODELAY");
        stream.set_read_timeout(Some(PATIENCE)).expect("set the patience");
        Self { stream, received: Vec::with_capacity(2 * READ_BYTES), chunk: vec![0; READ_BYTES] }
    }

    pub fn send(&mut self, wire: &[u8]) {
        self.stream.write_all(wire).expect("send commands");
    }

    /// Waits for this many replies. An error among them ends the benchmark.
    pub fn receive(&mut self, replies: usize) {
        let (mut seen, mut at) = (0, 0);
        self.received.clear();
        while seen < replies {
            let length = self.stream.read(&mut self.chunk).expect("receive replies");
            assert!(length > 0, "the server closed the connection");
            self.received.extend_from_slice(&self.chunk[..length]);
            while let Some(length) = self.received.get(at..).filter(|rest| !rest.is_empty()).and_then(wire::reply_len) {
                assert!(self.received[at] != b'-', "{}", self.received[at..at + length].escape_ascii());
                (seen, at) = (seen + 1, at + length);
            }
        }
        assert_eq!((seen, at), (replies, self.received.len()), "replies to commands nobody sent");
    }

    /// Sends one command and waits for its reply.
    pub fn ask(&mut self, wire: &[u8]) {
        self.send(wire);
        self.receive(1);
    }
}

/// Appends a command in the form of a request.
pub fn encode(words: &[String], out: &mut Vec<u8>) {
    let words: Vec<&[u8]> = words.iter().map(String::as_bytes).collect();
    wire::command(&words, out);
}

/// A command in the form of a request, its words separated by spaces.
pub fn line(line: &str) -> Vec<u8> {
    let mut wire = Vec::new();
    encode(&line.split(' ').map(str::to_owned).collect::<Vec<String>>(), &mut wire);
    wire
}
