//! The protocol, one event at a time: a client asks every server, takes the highest fence of those that granted, writes
//! it back to them, and holds the lock once a majority confirmed within the lease. Any message can be late or lost, any
//! client can stop: an event that is possible need not come. A server's answer is there when it answers: one that comes
//! later only makes the client's claim weaker.

/// How many servers there are.
pub const SERVERS: usize = 3;
/// Any two majorities share a server.
const MAJORITY: usize = SERVERS / 2 + 1;
const CLIENTS: usize = 2;
/// A lease, in ticks of the one clock that everybody's runs as fast as.
const LEASE_TICKS: u8 = 2;
/// The highest number a server may know at first.
const FIRST_HIGHEST: u8 = 1;

/// Which rules are kept. Left out, each of them breaks something.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// The highest fence is written back before the lock counts as held.
    pub write_back: bool,
    /// A server confirms a fence to its holder only.
    pub owner_checked: bool,
    /// Only servers whose grants were looked at for the highest fence count as confirming it.
    pub only_counted: bool,
    /// One server may forget all it knows, once.
    pub forgets: bool,
    /// A server that forgot grants nothing for a lease.
    pub grace: bool,
}

impl Rules {
    pub const ALL: Self =
        Self { write_back: true, owner_checked: true, only_counted: true, forgets: false, grace: true };
}

/// When leases end on the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leases {
    /// At any moment: no clock can be relied on.
    Anytime,
    /// When they are over.
    Timed,
}

#[derive(Clone, Debug)]
pub struct Quorum {
    pub rules: Rules,
    pub leases: Leases,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub servers: [Server; SERVERS],
    pub clients: [Client; CLIENTS],
    /// The highest fence anybody held so far.
    highest_held: u8,
    /// Whether a server forgot already.
    forgot: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Server {
    /// H.
    highest: u8,
    holder: Option<Hold>,
    /// Ticks until it grants again.
    silent: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Hold {
    client: usize,
    fence: u8,
    /// Ticks left of the lease.
    left: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Client {
    pub phase: Phase,
    /// The fence under which it held the lock.
    pub held: Option<u8>,
    /// The highest fence that anybody had held when it began to ask.
    pub floor: u8,
    /// Ticks left of a lease that began when it asked last.
    left: u8,
    legs: [Leg; SERVERS],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    Idle,
    Asks,
    /// It writes this fence back.
    Writes(u8),
    Holds,
    /// It let go, or gave up.
    Done,
}

/// What is between a client and a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Leg {
    Nothing,
    /// An ACQUIRE is on its way.
    Asked,
    /// The server granted the lock, under this fence.
    Granted(u8),
    /// An EXTEND with this floor is on its way.
    Written(u8),
    /// The server keeps the client's fence.
    Confirmed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    Tick,
    /// The client asks every server, for the first time or again.
    Ask(usize),
    /// The client writes the highest fence back.
    Write(usize),
    /// The client lets go, or gives up.
    Stop(usize),
    /// What is on its way between them arrives.
    Arrive {
        client: usize,
        server: usize,
    },
    /// The server's hold ends.
    End(usize),
    /// The server starts with nothing.
    Forget(usize),
}

impl Quorum {
    pub fn new(rules: Rules, leases: Leases) -> Self {
        Self { rules, leases }
    }

    /// Servers that know of different pasts; which is which makes no difference.
    pub fn starts(&self) -> Vec<State> {
        let client = Client { phase: Phase::Idle, held: None, floor: 0, left: 0, legs: [Leg::Nothing; SERVERS] };
        let server = |highest| Server { highest, holder: None, silent: 0 };
        let numbers = |from| from..=if self.leases == Leases::Timed { from } else { FIRST_HIGHEST };
        let mut starts = Vec::new();
        for first in numbers(0) {
            for second in numbers(first) {
                for third in numbers(second) {
                    let servers = [first, second, third].map(server);
                    let clients = [client; CLIENTS];
                    starts.push(State { servers, clients, highest_held: 0, forgot: false });
                }
            }
        }
        starts
    }

    /// Whether the client's lease still runs, by its own clock since it asked.
    pub fn is_valid(&self, client: &Client) -> bool {
        self.leases == Leases::Anytime || client.left > 0
    }

    pub fn events(&self, state: &State, events: &mut Vec<Event>) {
        let timed = self.leases == Leases::Timed;
        if timed && state.time_matters() {
            events.push(Event::Tick);
        }
        for (index, client) in state.clients.iter().enumerate() {
            match client.phase {
                Phase::Idle => events.push(Event::Ask(index)),
                Phase::Asks => {
                    // Asking again is a matter of time only.
                    if timed {
                        events.push(Event::Ask(index));
                    }
                    if client.fences().count() >= MAJORITY {
                        events.push(Event::Write(index));
                    }
                }
                Phase::Holds => events.push(Event::Stop(index)),
                Phase::Writes(_) | Phase::Done => {}
            }
            let arriving = |leg: &Leg| !matches!(leg, Leg::Nothing | Leg::Granted(_) | Leg::Confirmed);
            for (server, _) in client.legs.iter().enumerate().filter(|(_, leg)| arriving(leg)) {
                events.push(Event::Arrive { client: index, server });
            }
        }
        for (index, server) in state.servers.iter().enumerate() {
            let ends = |hold: Hold| {
                let released = state.clients[hold.client].phase == Phase::Done;
                !timed || released || hold.left == 0
            };
            if server.holder.is_some_and(ends) {
                events.push(Event::End(index));
            }
            if self.rules.forgets && !state.forgot {
                events.push(Event::Forget(index));
            }
        }
    }

    pub fn after(&self, state: &State, event: Event) -> Option<State> {
        let mut state = *state;
        match event {
            Event::Tick => state.tick(),
            Event::Ask(client) => {
                let highest_held = state.highest_held;
                let client = &mut state.clients[client];
                if client.phase == Phase::Idle {
                    client.floor = highest_held;
                }
                client.phase = Phase::Asks;
                client.left = self.lease();
                client.legs = [Leg::Asked; SERVERS];
            }
            Event::Write(client) => self.write(&mut state, client),
            Event::Stop(client) => {
                state.clients[client].phase = Phase::Done;
                state.clients[client].left = 0;
            }
            Event::Arrive { client, server } => self.arrive(&mut state, client, server),
            Event::End(server) => state.servers[server].holder = None,
            Event::Forget(server) => {
                let silent = if self.rules.grace { LEASE_TICKS } else { 0 };
                state.servers[server] = Server { highest: 0, holder: None, silent };
                state.forgot = true;
            }
        }
        state.sort();
        Some(state)
    }

    fn write(&self, state: &mut State, index: usize) {
        let client = &mut state.clients[index];
        let fence = client.fences().max().unwrap_or(0);
        if !self.rules.write_back {
            return self.hold(state, index, fence);
        }
        client.phase = Phase::Writes(fence);
        for leg in &mut client.legs {
            if let Leg::Granted(_) = leg {
                *leg = Leg::Written(fence);
            }
        }
    }

    fn arrive(&self, state: &mut State, client: usize, server: usize) {
        let leg = state.clients[client].legs[server];
        let arrived = match leg {
            Leg::Asked => match (self.grant(state, client, server), state.clients[client].phase) {
                (granted, Phase::Asks) => granted,
                (Leg::Granted(_), Phase::Writes(fence)) if !self.rules.only_counted => Leg::Written(fence),
                // It holds the lock there until its lease is over, and makes no use of it.
                _ => Leg::Nothing,
            },
            Leg::Written(fence) => self.confirm(state, client, server, fence),
            leg => leg,
        };
        state.clients[client].legs[server] = arrived;
        if let Phase::Writes(fence) = state.clients[client].phase {
            let confirmed = state.clients[client].legs.iter().filter(|&&leg| leg == Leg::Confirmed).count();
            if confirmed >= MAJORITY {
                self.hold(state, client, fence);
            }
        }
    }

    /// LOCK.ACQUIRE on a server: a token that holds the lock already gets its grant again.
    fn grant(&self, state: &mut State, client: usize, server: usize) -> Leg {
        let server = &mut state.servers[server];
        let fence = match server.holder {
            Some(hold) if hold.client == client => hold.fence,
            Some(_) => return Leg::Nothing,
            None if server.silent > 0 => return Leg::Nothing,
            // Where it is about time, numbers would only multiply the states.
            None if self.leases == Leases::Timed => 0,
            None => {
                server.highest += 1;
                server.highest
            }
        };
        server.holder = Some(Hold { client, fence, left: self.lease() });
        Leg::Granted(fence)
    }

    /// LOCK.EXTEND with a floor.
    fn confirm(&self, state: &mut State, client: usize, server: usize, floor: u8) -> Leg {
        let server = &mut state.servers[server];
        match &mut server.holder {
            Some(hold) if hold.client == client => {
                hold.fence = hold.fence.max(floor);
                hold.left = self.lease();
            }
            _ if self.rules.owner_checked => return Leg::Nothing,
            _ => {}
        }
        server.highest = server.highest.max(floor);
        Leg::Confirmed
    }

    /// The client counts the lock as its own, if its lease still runs.
    fn hold(&self, state: &mut State, index: usize, fence: u8) {
        let client = &mut state.clients[index];
        for leg in &mut client.legs {
            // An ACQUIRE on its way still arrives.
            *leg = if *leg == Leg::Asked { Leg::Asked } else { Leg::Nothing };
        }
        if !self.is_valid(client) {
            client.phase = Phase::Done;
            client.left = 0;
            return;
        }
        client.phase = Phase::Holds;
        client.held = Some(fence);
        state.highest_held = state.highest_held.max(fence);
    }

    /// Where no clock counts, states that differ by times only are the same.
    fn lease(&self) -> u8 {
        if self.leases == Leases::Timed {
            LEASE_TICKS
        } else {
            0
        }
    }
}

impl State {
    /// Whether anything is left to run out.
    fn time_matters(&self) -> bool {
        let runs = |server: &Server| server.silent > 0 || server.holder.is_some_and(|hold| hold.left > 0);
        self.clients.iter().any(|client| client.left > 0) || self.servers.iter().any(runs)
    }

    fn tick(&mut self) {
        for client in &mut self.clients {
            client.left = client.left.saturating_sub(1);
        }
        for server in &mut self.servers {
            server.silent = server.silent.saturating_sub(1);
            if let Some(hold) = &mut server.holder {
                hold.left = hold.left.saturating_sub(1);
            }
        }
    }

    /// Which server is which makes no difference.
    fn sort(&mut self) {
        let [first, second] = &self.clients;
        let mut columns: [_; SERVERS] = std::array::from_fn(|at| (self.servers[at], first.legs[at], second.legs[at]));
        columns.sort();
        for (at, (server, first, second)) in columns.into_iter().enumerate() {
            self.servers[at] = server;
            self.clients[0].legs[at] = first;
            self.clients[1].legs[at] = second;
        }
    }
}

impl Client {
    /// The fences that the servers gave it.
    fn fences(&self) -> impl Iterator<Item = u8> + '_ {
        self.legs.iter().filter_map(|leg| if let Leg::Granted(fence) = leg { Some(*fence) } else { None })
    }
}
