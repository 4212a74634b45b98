//! What was found: a number of this module beside one it is compared with, and what is expected of the two.

use crate::rounds::Readings;

/// How far behind its target a ratio may fall before `make bench-check` fails: such runs are short.
const SLACK: f64 = 1.1;

/// One line of the report.
pub struct Finding {
    /// What was measured and compared with what.
    pub what: String,
    pub unit: &'static str,
    pub ours: f64,
    pub theirs: f64,
    /// Ours by theirs: below 1 the module is cheaper.
    pub ratio: f64,
    /// The ratios of single rounds: a quarter of them is below the first, half below the second, a quarter above the third.
    pub rounds: Option<[f64; 3]>,
    /// The most the ratio may be.
    pub target: Option<f64>,
    /// Whether a miss fails `make bench-check`.
    pub is_checked: bool,
}

impl Finding {
    /// A number that is measured once, with the one it is compared with.
    pub fn of(what: impl Into<String>, unit: &'static str, ours: f64, theirs: f64, target: Option<f64>) -> Self {
        Self { what: what.into(), unit, ours, theirs, ratio: ours / theirs, rounds: None, target, is_checked: true }
    }

    /// A target that is known to be missed: shown as such, and not checked.
    pub fn unchecked(mut self) -> Self {
        self.is_checked = false;
        self
    }

    pub fn is_met(&self) -> bool {
        self.target.is_none_or(|target| self.ratio <= target)
    }

    /// Whether the target is missed by more than noise explains.
    pub fn is_behind(&self) -> bool {
        self.is_checked && self.target.is_some_and(|target| self.ratio > target * SLACK)
    }

    /// As a line of a table.
    pub fn row(&self) -> String {
        let rounds =
            self.rounds.map_or(String::new(), |[low, median, high]| format!("{low:.2} .. {median:.2} .. {high:.2}"));
        let target = self.target.map_or(String::new(), |target| format!("{target:.2}"));
        // Beside nothing there is no ratio.
        let ratio = if self.theirs.abs() < 0.5 { String::new() } else { format!("{:.2}", self.ratio) };
        let verdict = match self.target {
            None => "",
            Some(_) if self.is_met() => "met",
            Some(_) => "MISSED",
        };
        format!(
            "| {:<62} | {:<16} | {:>10.1} | {:>10.1} | {ratio:>6} | {rounds:<20} | {target:>6} | {verdict:<6} |",
            self.what, self.unit, self.ours, self.theirs
        )
    }
}

/// The head of a table of findings.
pub const HEAD: &str = "\
| this module, beside what                                       | unit             |       ours |     theirs |  ratio | of single rounds     | target | found  |
|:---------------------------------------------------------------|:-----------------|-----------:|-----------:|-------:|:---------------------|-------:|:-------|";

/// Of all rounds, the quiet ones: as many in a hundred. Whatever else the machine does adds to a round, and not in the same
/// way to all that is compared in it.
const QUIET_PERCENT: usize = 25;

/// One contender beside another, in CPU time: medians of the rounds in which all contenders together took least, and the
/// quartiles of the ratios of all rounds.
pub fn compare(title: &str, all: &[Readings], ours: &str, theirs: &str, target: Option<f64>) -> Finding {
    let of = |name| all.iter().find(|one| one.name == name).unwrap_or_else(|| panic!("{name} was not measured"));
    let (mine, other) = (of(ours), of(theirs));
    let all_took = |round: &usize| all.iter().map(|one| one.ns[*round]).sum::<f64>();
    let mut quiet: Vec<usize> = (0..mine.ns.len()).collect();
    quiet.sort_by(|one, other| all_took(one).total_cmp(&all_took(other)));
    quiet.truncate((quiet.len() * QUIET_PERCENT).div_ceil(100));
    let median = |of: &dyn Fn(usize) -> f64| at(&sorted(quiet.iter().map(|&round| of(round)).collect()), 0.5);
    let ratio = |round: usize| mine.ns[round] / other.ns[round];
    let ratios = sorted((0..mine.ns.len()).map(ratio).collect());
    let (ours, theirs_ns) = (median(&|round| mine.ns[round]), median(&|round| other.ns[round]));
    Finding {
        ratio: median(&ratio),
        rounds: Some([0.25, 0.5, 0.75].map(|part| at(&ratios, part))),
        ..Finding::of(format!("{title} / {theirs}"), "server CPU in ns", ours, theirs_ns, target)
    }
}

pub fn sorted(mut numbers: Vec<f64>) -> Vec<f64> {
    numbers.sort_by(f64::total_cmp);
    numbers
}

/// The number that this part of them is below.
pub fn at(sorted: &[f64], part: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * part).round() as usize]
}
