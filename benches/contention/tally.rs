//! What was seen in a stretch of time, and the figures that follow from it.

use crate::cost::Cost;

/// One grant, as its client saw it.
pub struct Grant {
    pub client: usize,
    /// From sending the command to reading the grant.
    pub waited_us: u64,
}

/// A stretch of time in which all clients contended.
pub struct Slice {
    pub span_us: u64,
    /// In the order in which they were granted.
    pub grants: Vec<Grant>,
    /// How long the waits had lasted that were still going on at the end.
    pub cut_us: Vec<u64>,
    pub cost: Cost,
}

/// Everything seen of one contender with so many clients.
pub struct Tally {
    sections_of: Vec<u64>,
    handovers: u64,
    waits_us: Vec<u64>,
    span_us: u64,
    cost: Cost,
}

impl Tally {
    pub fn new(clients: usize) -> Self {
        Self { sections_of: vec![0; clients], handovers: 0, waits_us: Vec::new(), span_us: 0, cost: Cost::default() }
    }

    pub fn add(&mut self, slice: &Slice) {
        let mut last = None;
        for grant in &slice.grants {
            self.sections_of[grant.client] += 1;
            self.handovers += u64::from(last.is_some_and(|last| last != grant.client));
            last = Some(grant.client);
            self.waits_us.push(grant.waited_us);
        }
        self.waits_us.extend(&slice.cut_us);
        self.span_us += slice.span_us;
        self.cost = self.cost + slice.cost;
    }

    pub fn figures(mut self) -> Figures {
        self.waits_us.sort_unstable();
        let sections: u64 = self.sections_of.iter().sum();
        let seconds = self.span_us as f64 / 1e6;
        let most = self.sections_of.iter().max().copied().unwrap_or(0);
        let least = self.sections_of.iter().min().copied().unwrap_or(0);
        Figures {
            sections_per_s: sections as f64 / seconds,
            handovers_per_s: self.handovers as f64 / seconds,
            wait_p50_ms: share(&self.waits_us, 0.5),
            wait_p99_ms: share(&self.waits_us, 0.99),
            wait_max_ms: share(&self.waits_us, 1.0),
            most_to_least: (least > 0).then(|| most as f64 / least as f64),
            cpu_us: self.cost.cpu_us as f64 / sections as f64,
            commands: self.cost.commands as f64 / sections as f64,
        }
    }
}

/// The figures of one line.
pub struct Figures {
    pub sections_per_s: f64,
    /// Grants to another client than the last.
    pub handovers_per_s: f64,
    pub wait_p50_ms: f64,
    pub wait_p99_ms: f64,
    /// A wait that was still going on at the end counts as long as it had lasted.
    pub wait_max_ms: f64,
    /// Most grants of a client to fewest; none if a client had no grant at all.
    pub most_to_least: Option<f64>,
    /// The server's CPU time for each section.
    pub cpu_us: f64,
    /// Commands the server ran for each section, those inside scripts included.
    pub commands: f64,
}

/// The value in ms that this share of the sorted values does not exceed.
pub fn share(sorted_us: &[u64], share: f64) -> f64 {
    let rank = (sorted_us.len() as f64 * share).ceil() as usize;
    sorted_us.get(rank.saturating_sub(1)).map_or(f64::NAN, |&us| us as f64 / 1e3)
}
