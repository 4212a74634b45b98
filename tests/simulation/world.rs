//! Servers, clients and the network between them, driven by one seed. Everything happens at a simulated instant; what is
//! on its way can be late, be lost, or arrive twice.

use super::client::{Client, Reply, Request, What};
use super::dice::Dice;
use super::judge::Judge;
use super::node::{Node, Record, Role, Sitter};
use redis_lock::core::table::Turn;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub const NODES: usize = 3;
const CLIENTS: usize = 6;
pub const MS: u64 = 1_000;
pub const SECOND: u64 = 1_000 * MS;

/// What may go wrong.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Whether each change is on disk before anybody hears of it.
    pub fsync_always: bool,
    /// Whether primaries crash and replicas take over.
    pub failovers: bool,
    /// How far any wall clock may be off, in us.
    pub wall_us: u64,
    /// How often a message is lost, in percent.
    pub loss: u64,
    /// `lock.grace`: 0, or longer than the longest lease and the time that a primary is left behind. Then what a failover
    /// lost is given to nobody else while it lasts.
    pub grace_ms: u64,
}

#[derive(Debug)]
pub enum Event {
    Arrive {
        node: usize,
        request: Request,
    },
    Close {
        node: usize,
        connection: u64,
    },
    Reply {
        client: usize,
        request: u64,
        reply: Reply,
    },
    Act {
        client: usize,
        timer: u64,
    },
    Pump {
        node: usize,
    },
    Pull {
        node: usize,
    },
    Fsync {
        node: usize,
    },
    Fault,
    Restart {
        node: usize,
    },
    /// A primary that was left behind learns of it.
    Depose {
        node: usize,
    },
}

pub struct World {
    pub dice: Dice,
    pub rules: Rules,
    pub now: u64,
    pub steps: u64,
    events: BTreeMap<(u64, u64), Event>,
    scheduled: u64,
    pub nodes: Vec<Node>,
    pub primary: usize,
    pub lineage: u64,
    pub next_id: u64,
    /// Changes of the history that counts, the newest last.
    pub history: VecDeque<Record>,
    pub clients: Vec<Client>,
    requests: u64,
    /// Requests that never arrive.
    cancelled: BTreeSet<u64>,
    pub judge: Judge,
    /// Nobody begins anything.
    pub quiet: bool,
    /// No lineage ends before this.
    pub steady_until: u64,
    /// Whether every event is printed.
    pub is_told: bool,
}

impl World {
    pub fn new(seed: u64, rules: Rules) -> Self {
        let mut dice = Dice(seed);
        let nodes = (0..NODES).map(|_| {
            let wall_us = dice.within(0..2 * rules.wall_us + 1) as i64 - rules.wall_us as i64;
            Node::new(dice.within(0..1_000 * SECOND), wall_us, rules.fsync_always, rules.grace_ms)
        });
        let nodes = nodes.collect();
        let mut world = Self {
            dice,
            rules,
            now: SECOND,
            steps: 0,
            events: BTreeMap::new(),
            scheduled: 0,
            nodes,
            primary: 0,
            lineage: 0,
            next_id: 0,
            history: VecDeque::new(),
            clients: (0..CLIENTS).map(Client::new).collect(),
            requests: 0,
            cancelled: BTreeSet::new(),
            judge: Judge::default(),
            quiet: false,
            steady_until: 0,
            is_told: std::env::var_os("REDIS_LOCK_SIM_STORY").is_some(),
        };
        world.nodes[0].begin_serving(SECOND);
        for node in 0..NODES {
            world.after(0, Event::Pull { node });
            world.after(SECOND, Event::Fsync { node });
        }
        world.after(0, Event::Fault);
        world.wake_clients();
        world
    }

    /// Lets this many events happen, then waits until everything that began is over.
    pub fn run(&mut self, steps: u64) {
        let end = self.steps + steps;
        while self.steps < end {
            self.step();
        }
        self.settle();
    }

    fn settle(&mut self) {
        self.quiet = true;
        let deadline = self.now + 60 * SECOND;
        while self.is_busy() {
            assert!(self.now < deadline, "still not quiet: {:?}", self.events);
            self.step();
        }
        let node = &self.nodes[self.primary];
        assert!(node.keys.is_empty(), "locks outlive all leases");
        assert_eq!(node.table.known(), 0, "locks that nobody can see");
        assert!(node.table.lines().is_empty(), "a waiter is left though every lock is free");
        assert!(node.seats.is_empty(), "a connection is left blocked: {:?}", node.seats);
        assert_eq!(node.table.next_deadline(), None, "nothing is left, and still it is waited for");
        assert!(!node.table.has_bound(), "a hold that is gone is bound to a connection");
        self.quiet = false;
        self.wake_clients();
    }

    /// Whether anything but the clocks of the world itself is still to come.
    fn is_busy(&self) -> bool {
        let works = |event: &Event| !matches!(event, Event::Pull { .. } | Event::Fsync { .. } | Event::Fault);
        let behind = self.nodes.iter().any(|node| node.role == Role::Replica && node.last_id != self.head());
        self.events.values().any(works) || behind
    }

    fn wake_clients(&mut self) {
        for client in 0..CLIENTS {
            let mut dice = Dice(self.dice.within(0..u64::MAX));
            self.clients[client].begin(&mut dice);
            self.pause(client, 5 * MS);
        }
    }

    /// The last change of the history that counts.
    pub fn head(&self) -> u64 {
        self.nodes[self.primary].last_id
    }

    fn step(&mut self) {
        let ((at, _), event) = self.events.pop_first().expect("the world never ends");
        self.now = at;
        self.steps += 1;
        if self.is_told && !matches!(event, Event::Pull { .. }) {
            eprintln!("{at} {event:?}");
        }
        match event {
            Event::Arrive { node, request } => self.arrive(node, request),
            Event::Close { node, connection } => self.close(node, connection),
            Event::Reply { client, request, reply } => self.hear(client, request, reply),
            Event::Act { client, timer } if self.clients[client].timer == timer => self.act(client),
            Event::Act { .. } => {}
            Event::Pump { node } if self.nodes[node].pump_at == Some(at) => self.pump(node),
            Event::Pump { .. } => {}
            Event::Pull { node } => self.pull(node),
            Event::Fsync { node } => {
                self.nodes[node].fsync();
                self.after(SECOND, Event::Fsync { node });
            }
            Event::Fault => self.fault(),
            Event::Restart { node } => self.restart(node),
            Event::Depose { node } => self.depose(node),
        }
    }

    pub fn after(&mut self, micros: u64, event: Event) {
        self.at(self.now + micros, event);
    }

    pub fn at(&mut self, at: u64, event: Event) {
        self.scheduled += 1;
        self.events.insert((at, self.scheduled), event);
    }

    /// How long a message is on its way; hardly ever long.
    fn delay(&mut self) -> u64 {
        match self.dice.within(0..100) {
            0 => self.dice.within(0..300 * MS),
            1..=10 => self.dice.within(0..10 * MS),
            _ => self.dice.within(50..800),
        }
    }

    /// Has the client act in a while.
    fn pause(&mut self, client: usize, at_most_us: u64) {
        let (pause, state) = (self.dice.within(1..at_most_us), &mut self.clients[client]);
        state.timer += 1;
        let timer = state.timer;
        self.after(pause, Event::Act { client, timer });
    }

    /// What a client does when nothing else happens to it.
    fn act(&mut self, index: usize) {
        if self.quiet {
            return self.end_unit(index);
        }
        let client = &mut self.clients[index];
        if let Some(mut request) = client.asked.take() {
            // It heard nothing: the connection counts as dead.
            let (again, node) = (client.tries_again(&mut self.dice), client.target);
            self.after(self.now % (20 * MS), Event::Close { node, connection: request.id });
            let (ephemeral, turns) = match request.what {
                What::Acquire { ephemeral, turn, .. } => (ephemeral, turn != Turn::No),
                _ => (false, false),
            };
            // A hold that may end with a connection is gone with it.
            if !again || ephemeral {
                self.clients[index].asked = Some(request);
                return self.end_unit(index);
            }
            if turns {
                // A change of mode that comes late would undo what came after it.
                self.cancelled.insert(request.id);
            }
            if self.dice.percent(50) {
                self.clients[index].target = self.somewhere();
            }
            request.sent_us = self.now;
            return self.send(index, request);
        }
        let Some((key, what)) = client.next(&mut self.dice) else { return self.end_unit(index) };
        let request = Request { id: 0, client: index, key, token: client.token.clone(), sent_us: self.now, what };
        self.send(index, request);
    }

    /// Where a client may look for the primary.
    fn somewhere(&mut self) -> usize {
        if self.dice.percent(80) {
            self.primary
        } else {
            self.dice.within(0..NODES as u64) as usize
        }
    }

    fn end_unit(&mut self, index: usize) {
        let node = self.clients[index].target;
        if self.clients[index].asked.is_some() || !self.clients[index].open.is_empty() {
            for (key, _) in self.clients[index].held.clone() {
                let token = self.clients[index].token.clone();
                self.judge.gave_up(key, &token);
            }
        }
        let asked = self.clients[index].asked.take().map(|request| request.id);
        let open = std::mem::take(&mut self.clients[index].open);
        for connection in open.into_iter().chain(asked) {
            let delay = self.delay();
            (0..NODES).for_each(|node| self.after(delay, Event::Close { node, connection }));
        }
        self.clients[index].begin(&mut self.dice);
        self.clients[index].target = node;
        if !self.quiet {
            self.pause(index, 20 * MS);
        }
    }

    fn send(&mut self, index: usize, mut request: Request) {
        self.requests += 1;
        request.id = self.requests;
        match request.what {
            What::Release(_) => self.judge.gave_up(request.key, &request.token),
            What::Acquire { turn: Turn::Downgrade, .. } => self.judge.shares(request.key, &request.token),
            _ => {}
        }
        if let What::Acquire { ephemeral: true, .. } = request.what {
            self.clients[index].open.push(request.id);
        }
        let node = self.clients[index].target;
        self.clients[index].asked = Some(request.clone());
        if !self.dice.percent(self.rules.loss) {
            let delay = self.delay();
            self.after(delay, Event::Arrive { node, request });
        }
        self.pause(index, 400 * MS);
    }

    fn hear(&mut self, index: usize, request: u64, reply: Reply) {
        let client = &mut self.clients[index];
        let Some(asked) = client.asked.take_if(|asked| asked.id == request) else { return };
        client.hear(&asked, reply);
        match reply {
            Reply::Yes => self.judge.learned(request, self.now),
            // Who is told that the lock is not its own believes it, whoever says so.
            Reply::No if !matches!(asked.what, What::Acquire { .. }) => self.judge.gave_up(asked.key, &asked.token),
            Reply::No => {}
            Reply::Error => self.clients[index].target = self.somewhere(),
        }
        self.pause(index, 40 * MS);
    }

    pub fn reply(&mut self, client: usize, request: u64, reply: Reply) {
        if !self.dice.percent(self.rules.loss) {
            let delay = self.delay();
            self.after(delay, Event::Reply { client, request, reply });
        }
    }

    fn arrive(&mut self, index: usize, request: Request) {
        if self.cancelled.remove(&request.id) {
            return;
        }
        let node = &self.nodes[index];
        if node.frozen_until > self.now {
            return self.at(node.frozen_until, Event::Arrive { node: index, request });
        }
        match node.role {
            Role::Down => {}
            Role::Replica => self.reply(request.client, request.id, Reply::Error),
            Role::Primary => self.serve(index, &request),
        }
    }

    fn close(&mut self, index: usize, connection: u64) {
        let frozen_until = self.nodes[index].frozen_until;
        if frozen_until > self.now {
            return self.at(frozen_until, Event::Close { node: index, connection });
        }
        let node = &mut self.nodes[index];
        if node.role != Role::Primary {
            return;
        }
        if let Some(Sitter { waiter, .. }) = node.seats.remove(&connection) {
            node.table.leave(waiter);
        }
        let holds = node.table.closed(connection);
        node.closed.extend(holds.into_iter().map(|hold| (connection, hold)));
        self.arm(index);
    }

    /// Sets the pump to whatever comes next.
    pub fn arm(&mut self, index: usize) {
        let node = &self.nodes[index];
        let at = if node.table.is_stirred() || !node.closed.is_empty() {
            Some(self.now)
        } else {
            node.table.next_deadline().map(|at| node.true_us(at).max(self.now))
        };
        let Some(at) = at else { return };
        // Timers are late by less than a ms, or by a stall.
        let late = if self.dice.percent(1) { self.dice.within(0..50 * MS) } else { self.dice.within(0..MS) };
        let at = at + late;
        if node.pump_at.is_none_or(|set| set <= self.now || at < set) {
            self.nodes[index].pump_at = Some(at);
            self.at(at, Event::Pump { node: index });
        }
    }
}
