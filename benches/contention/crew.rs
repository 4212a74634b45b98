//! Clients of one server in one thread, each with a connection: it takes the lock, gives it back at once, and does so
//! again, never with two commands under way.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use crate::cost::Cost;
use crate::epoll::Epoll;
use crate::harness::Server;
use crate::native::Protocol;
use crate::tally::{Grant, Slice};
use crate::wire::reply_len;

/// A hand-over that takes this long is none.
const PATIENCE: Duration = Duration::from_secs(10);
const READ_BYTES: usize = 4096;

pub struct Crew {
    protocol: Protocol,
    meter: crate::harness::Client,
    epoll: Epoll,
    members: Vec<Member>,
}

struct Member {
    stream: TcpStream,
    received: Vec<u8>,
    state: State,
    turn: u64,
    asked: Instant,
}

#[derive(Clone, Copy)]
enum State {
    Idle,
    Waiting,
    Releasing,
}

impl Crew {
    pub fn connect(server: &Server, protocol: Protocol, clients: usize) -> Self {
        let mut meter = server.client();
        protocol.set_up(&mut meter);
        let epoll = Epoll::new();
        let members = (0..clients).map(|number| {
            let member = Member::connect(server.port());
            epoll.add(&member.stream, number);
            member
        });
        let members = members.collect();
        Self { protocol, meter, epoll, members }
    }

    /// Contends for so long, and then until everybody who waits has had the lock.
    pub fn run(&mut self, span: Duration) -> Slice {
        let before = Cost::so_far(&mut self.meter);
        let start = Instant::now();
        let mut grants = Vec::new();
        for (number, member) in self.members.iter_mut().enumerate() {
            member.ask(self.protocol, number);
        }
        let mut busy = self.members.len();
        let mut ready = Vec::new();
        while busy > 0 {
            self.epoll.wait(PATIENCE, &mut ready);
            assert!(!ready.is_empty(), "no reply within {PATIENCE:?}: {busy} clients wait for the lock");
            for &number in &ready {
                let member = &mut self.members[number];
                member.read();
                while let Some(reply) = member.take_reply() {
                    match member.state {
                        State::Waiting => {
                            assert!(self.protocol.is_grant(&reply), "no grant: {}", reply.escape_ascii());
                            let waited_us = micros(member.asked.elapsed());
                            grants.push(Grant { client: number, waited_us });
                            member.release(self.protocol, number);
                        }
                        State::Releasing => {
                            assert!(self.protocol.is_release(&reply), "no release: {}", reply.escape_ascii());
                            if start.elapsed() < span {
                                member.ask(self.protocol, number);
                            } else {
                                member.state = State::Idle;
                                busy -= 1;
                            }
                        }
                        State::Idle => panic!("nobody asked for this: {}", reply.escape_ascii()),
                    }
                }
            }
        }
        let span_us = micros(start.elapsed());
        let cost = Cost::so_far(&mut self.meter).since(before);
        Slice { span_us, grants, cut_us: Vec::new(), cost }
    }
}

impl Member {
    fn connect(port: u16) -> Self {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("connect");
        stream.set_nodelay(true).expect("send at once");
        stream.set_nonblocking(true).expect("never block");
        Self { stream, received: Vec::new(), state: State::Idle, turn: 0, asked: Instant::now() }
    }

    fn ask(&mut self, protocol: Protocol, number: usize) {
        self.turn += 1;
        let mut wire = Vec::new();
        protocol.acquire(number, self.turn, &mut wire);
        self.state = State::Waiting;
        self.asked = Instant::now();
        self.stream.write_all(&wire).expect("send");
    }

    fn release(&mut self, protocol: Protocol, number: usize) {
        let mut wire = Vec::new();
        protocol.release(number, self.turn, &mut wire);
        self.state = State::Releasing;
        self.stream.write_all(&wire).expect("send");
    }

    fn read(&mut self) {
        let mut chunk = [0; READ_BYTES];
        match self.stream.read(&mut chunk) {
            Ok(0) => panic!("the server closed a connection"),
            Ok(len) => self.received.extend_from_slice(&chunk[..len]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("receive: {error}"),
        }
    }

    fn take_reply(&mut self) -> Option<Vec<u8>> {
        let len = reply_len(&self.received)?;
        Some(self.received.drain(..len).collect())
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
