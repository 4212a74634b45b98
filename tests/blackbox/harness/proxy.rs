//! A link that fails as networks do: it passes nothing for a while, loses what goes one way while the connection stays
//! open, is slow, or ends. Whoever is to be reached over it connects to the proxy's port.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::patience::let_pass;

const CONNECT_WAIT: Duration = Duration::from_secs(5);
const CHUNK_BYTES: usize = 16 * 1024;

/// A direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From whoever connected.
    There,
    /// To whoever connected.
    Back,
}

/// What becomes of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Fate {
    #[default]
    Passes,
    /// Sent later, as TCP does when a short partition is over.
    Waits,
    /// Gone, and nobody learns of it.
    IsLost,
}

#[derive(Debug, Default)]
struct State {
    there: Fate,
    back: Fate,
    delay: Duration,
    open: Vec<Arc<Connection>>,
    closed: bool,
}

#[derive(Debug)]
struct Connection {
    near: TcpStream,
    far: TcpStream,
    /// Bytes of it are missing: it cannot go on once the link is whole.
    is_torn: AtomicBool,
}

impl Connection {
    fn end(&self) {
        // Whoever has gone already is told nothing.
        let _ = self.near.shutdown(Shutdown::Both);
        let _ = self.far.shutdown(Shutdown::Both);
    }
}

#[derive(Debug)]
struct Link {
    target: SocketAddr,
    state: Mutex<State>,
    changed: Condvar,
}

impl Link {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.notify_all();
    }

    /// Waits until bytes that came at this time have a fate that is not to wait; none if the proxy is gone.
    fn fate(&self, way: Way, came: Instant) -> Option<Fate> {
        let due = came + self.state().delay;
        let_pass(due.saturating_duration_since(Instant::now()));
        let fate = |state: &State| if way == Way::There { state.there } else { state.back };
        let waits = |state: &mut State| fate(state) == Fate::Waits && !state.closed;
        let state = self.changed.wait_while(self.state(), waits).unwrap_or_else(PoisonError::into_inner);
        (!state.closed).then(|| fate(&state))
    }
}

/// A link to a server on this machine. Dropping it ends its connections.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    link: Arc<Link>,
}

impl Proxy {
    pub fn to(port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let own = listener.local_addr().expect("its address").port();
        let target = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let link = Arc::new(Link { target, state: Mutex::default(), changed: Condvar::new() });
        let accepting = Arc::clone(&link);
        thread::spawn(move || {
            for near in listener.incoming().flatten() {
                if accepting.state().closed {
                    return;
                }
                let link = Arc::clone(&accepting);
                thread::spawn(move || connect(&link, near));
            }
        });
        Self { port: own, link }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Nothing gets through. What is sent arrives once the link is mended.
    pub fn cut(&self) {
        self.link.change(|state| (state.there, state.back) = (Fate::Waits, Fate::Waits));
    }

    /// What goes this way is lost; the other way all is well, and connections stay open.
    pub fn swallow(&self, way: Way) {
        self.link.change(|state| match way {
            Way::There => state.there = Fate::IsLost,
            Way::Back => state.back = Fate::IsLost,
        });
    }

    /// Everything takes so much longer, each way.
    pub fn delay(&self, delay: Duration) {
        self.link.change(|state| state.delay = delay);
    }

    /// Ends every connection.
    pub fn sever(&self) {
        self.link.change(|state| state.open.drain(..).for_each(|connection| connection.end()));
    }

    /// All is well again. Connections that lost something end.
    pub fn mend(&self) {
        self.link.change(|state| {
            (state.there, state.back, state.delay) = (Fate::Passes, Fate::Passes, Duration::ZERO);
            let torn = |connection: &&Arc<Connection>| connection.is_torn.load(Ordering::SeqCst);
            state.open.iter().filter(torn).for_each(|connection| connection.end());
        });
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.link.change(|state| {
            state.closed = true;
            state.open.drain(..).for_each(|connection| connection.end());
        });
        // Wakes whoever accepts.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
}

/// Carries one connection, both ways.
fn connect(link: &Arc<Link>, near: TcpStream) {
    // What would ask for a connection is lost, too, and comes again.
    if link.fate(Way::There, Instant::now()).is_none() {
        return;
    }
    let Ok(far) = TcpStream::connect_timeout(&link.target, CONNECT_WAIT) else { return };
    let streams = (near.try_clone(), far.try_clone());
    let (Ok(to_near), Ok(to_far)) = streams else { return };
    if near.set_nodelay(true).and(far.set_nodelay(true)).is_err() {
        return;
    }
    let connection = Arc::new(Connection { near: to_near, far: to_far, is_torn: AtomicBool::new(false) });
    {
        let mut state = link.state();
        state.open.retain(|other| Arc::strong_count(other) > 1);
        if state.closed {
            return;
        }
        state.open.push(Arc::clone(&connection));
    }
    let (back, its) = (Arc::clone(link), Arc::clone(&connection));
    let answers = thread::spawn(move || carry(&back, Way::Back, &its, &its.far, &its.near));
    carry(link, Way::There, &connection, &connection.near, &connection.far);
    let _ = answers.join();
}

/// Carries bytes one way until their end.
fn carry(link: &Link, way: Way, connection: &Connection, mut from: &TcpStream, mut to: &TcpStream) {
    let mut chunk = [0; CHUNK_BYTES];
    loop {
        let length = from.read(&mut chunk).unwrap_or(0);
        match link.fate(way, Instant::now()) {
            None => return connection.end(),
            Some(Fate::IsLost) => {
                connection.is_torn.store(true, Ordering::SeqCst);
                // Its goodbye is lost, too.
                if length == 0 {
                    return;
                }
            }
            Some(_) if length == 0 => {
                let _ = to.shutdown(Shutdown::Write);
                return;
            }
            Some(_) if to.write_all(&chunk[..length]).is_err() => return connection.end(),
            Some(_) => {}
        }
    }
}
