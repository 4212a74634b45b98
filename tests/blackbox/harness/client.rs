//! A raw connection. Sending and receiving are separate, so a test can pipeline, leave a command blocked, or watch for
//! what must not arrive. Every wait has a deadline; one that runs out says which commands are unanswered.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use super::reply::Reply;
use super::resp;

const PATIENCE: Duration = Duration::from_secs(10);
const READ_BYTES: usize = 64 * 1024;
/// How much of an argument a failure shows.
const SHOWN_BYTES: usize = 60;

/// One connection to a server on this machine.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    received: Vec<u8>,
    replies: VecDeque<Reply>,
    /// Push messages of RESP3, oldest first. They never count as replies.
    pub pushes: VecDeque<Reply>,
    unanswered: VecDeque<String>,
    closed: bool,
}

impl Client {
    /// Connects, or says why not.
    pub fn try_connect(port: u16) -> io::Result<Self> {
        Self::try_connect_to(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
    }

    /// Connects by IPv6, or says why not: not every machine has it.
    pub fn try_connect_v6(port: u16) -> io::Result<Self> {
        Self::try_connect_to(SocketAddr::from((Ipv6Addr::LOCALHOST, port)))
    }

    fn try_connect_to(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self {
            stream,
            received: Vec::new(),
            replies: VecDeque::new(),
            pushes: VecDeque::new(),
            unanswered: VecDeque::new(),
            closed: false,
        })
    }

    #[track_caller]
    pub fn connect(port: u16) -> Self {
        Self::try_connect(port).unwrap_or_else(|error| panic!("connect to port {port}: {error}"))
    }

    /// Switches this connection to RESP3.
    #[track_caller]
    pub fn resp3(mut self) -> Self {
        let reply = self.cmd(&["HELLO", "3"]);
        assert_eq!(reply.get("proto").int(), 3);
        self
    }

    /// Sends one command and waits for its reply.
    #[track_caller]
    pub fn cmd<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Reply {
        self.send(args);
        self.recv()
    }

    /// Sends all commands in one write and waits for all replies.
    #[track_caller]
    pub fn pipeline<C, A>(&mut self, commands: impl IntoIterator<Item = C>) -> Vec<Reply>
    where
        C: AsRef<[A]>,
        A: AsRef<[u8]>,
    {
        let mut wire = Vec::new();
        let mut count = 0;
        for command in commands {
            self.unanswered.push_back(shown(command.as_ref()));
            resp::encode(command.as_ref(), &mut wire);
            count += 1;
        }
        self.write(&wire);
        (0..count).map(|_| self.recv()).collect()
    }

    /// Sends one command and does not wait.
    #[track_caller]
    pub fn send<A: AsRef<[u8]>>(&mut self, args: &[A]) {
        if let Err(error) = self.try_send(args) {
            panic!("send failed: {error}; {}", self.state());
        }
    }

    /// Sends one command, or says why not.
    pub fn try_send<A: AsRef<[u8]>>(&mut self, args: &[A]) -> io::Result<()> {
        let mut wire = Vec::new();
        resp::encode(args, &mut wire);
        self.unanswered.push_back(shown(args));
        self.stream.write_all(&wire)
    }

    /// Sends bytes as they are: half a command, or none.
    #[track_caller]
    pub fn write(&mut self, wire: &[u8]) {
        if let Err(error) = self.stream.write_all(wire) {
            panic!("send failed: {error}; {}", self.state());
        }
    }

    /// The next reply.
    #[track_caller]
    pub fn recv(&mut self) -> Reply {
        self.try_recv(PATIENCE).unwrap_or_else(|| panic!("no reply, waited up to {PATIENCE:?}; {}", self.state()))
    }

    /// The next reply, or `None` if none came in time. `Duration::ZERO` takes only what is here already.
    pub fn try_recv(&mut self, patience: Duration) -> Option<Reply> {
        self.read_until(patience, |client| !client.replies.is_empty());
        let reply = self.replies.pop_front()?;
        self.unanswered.pop_front();
        Some(reply)
    }

    /// The next push message.
    #[track_caller]
    pub fn recv_push(&mut self) -> Reply {
        self.try_recv_push(PATIENCE).unwrap_or_else(|| panic!("no push, waited up to {PATIENCE:?}; {}", self.state()))
    }

    /// The next push message, or `None` if none came in time.
    pub fn try_recv_push(&mut self, patience: Duration) -> Option<Reply> {
        self.read_until(patience, |client| !client.pushes.is_empty());
        self.pushes.pop_front()
    }

    /// Ends the connection as a process that is killed amid unread data does: reset, without a goodbye.
    pub fn reset(self) {
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        let length = libc::socklen_t::try_from(size_of_val(&linger)).expect("a few bytes");
        let option = (&raw const linger).cast();
        // SAFETY: the descriptor is open, and the option is read only during the call.
        let result =
            unsafe { libc::setsockopt(self.stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, option, length) };
        assert_eq!(result, 0, "linger: {}", io::Error::last_os_error());
    }

    /// True if the server closed this connection.
    pub fn is_closed(&mut self) -> bool {
        self.read_until(Duration::ZERO, |_| false);
        self.closed
    }

    /// The id the server knows this connection by.
    #[track_caller]
    pub fn id(&mut self) -> i64 {
        self.cmd(&["CLIENT", "ID"]).int()
    }

    /// Reads what comes until `enough`, the deadline or the end of the connection.
    fn read_until(&mut self, patience: Duration, enough: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + patience;
        while !enough(self) && !self.closed {
            let left = deadline.saturating_duration_since(Instant::now());
            if !self.read_once(left) && left.is_zero() {
                return;
            }
        }
    }

    /// One read of at most `wait`; false if nothing came.
    fn read_once(&mut self, wait: Duration) -> bool {
        let mut chunk = [0; READ_BYTES];
        let outcome = if wait.is_zero() {
            self.read_now(&mut chunk)
        } else {
            self.stream.set_read_timeout(Some(wait)).and_then(|()| self.stream.read(&mut chunk))
        };
        match outcome {
            Ok(0) => self.closed = true,
            Ok(length) => self.take(&chunk[..length]),
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => return false,
                ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => self.closed = true,
                _ => panic!("receive failed: {error}; {}", self.state()),
            },
        }
        true
    }

    /// A read that does not wait.
    fn read_now(&mut self, chunk: &mut [u8]) -> io::Result<usize> {
        self.stream.set_nonblocking(true)?;
        let outcome = self.stream.read(chunk);
        self.stream.set_nonblocking(false)?;
        outcome
    }

    fn take(&mut self, chunk: &[u8]) {
        self.received.extend_from_slice(chunk);
        let mut used = 0;
        while let Some((reply, length)) = resp::decode(&self.received[used..]) {
            used += length;
            match reply {
                Reply::Push(_) => self.pushes.push_back(reply),
                _ => self.replies.push_back(reply),
            }
        }
        self.received.drain(..used);
    }

    fn state(&self) -> String {
        let end = if self.closed { "closed" } else { "open" };
        let first: Vec<&String> = self.unanswered.iter().take(3).collect();
        format!(
            "connection {end}, {} unanswered {first:?}, {} push messages, rest \"{}\"",
            self.unanswered.len(),
            self.pushes.len(),
            self.received.escape_ascii()
        )
    }
}

fn shown<A: AsRef<[u8]>>(args: &[A]) -> String {
    let words: Vec<String> = args
        .iter()
        .map(|arg| {
            let arg = arg.as_ref();
            let more = if arg.len() > SHOWN_BYTES { "..." } else { "" };
            let head = &arg[..arg.len().min(SHOWN_BYTES)];
            format!("{}{more}", head.escape_ascii())
        })
        .collect();
    words.join(" ")
}
