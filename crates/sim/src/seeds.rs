//! Many seeds of every kind of run, on all cores, with a summary; what `make sim` does.

use crate::{
    cluster::{self, ClusterScenario, Coverage, CrowdReport, CrowdScenario, run_crowd},
    scenario::{self, Report, Scenario},
    storm,
};
use rustix::time::{ClockId, clock_gettime};
use std::{
    collections::BTreeMap,
    fmt,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    str::FromStr,
    sync::Mutex,
    time::Duration,
};

/// A kind of run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// One node, 10,000 actions, five faults.
    Storm,
    /// One node and one power cut.
    Cut,
    /// One node on an erasure-coded pool, and one power cut.
    Erasure,
    /// Several nodes, 10,000 actions, five faults.
    Nodes,
    /// Many programs on five nodes, and no faults.
    Calm,
    /// Many programs on five nodes, and faults that must not disturb them.
    Within,
    /// Many programs on five nodes, and two faults at a time.
    Beyond,
    /// Many programs on five nodes, of which NSDs come and go.
    Changing,
    /// Many programs of two shards on five nodes.
    Shards,
}

impl Kind {
    /// All of them.
    pub const ALL: &[Self] = &[
        Self::Storm,
        Self::Cut,
        Self::Erasure,
        Self::Nodes,
        Self::Calm,
        Self::Within,
        Self::Beyond,
        Self::Changing,
        Self::Shards,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Storm => "storm",
            Self::Cut => "cut",
            Self::Erasure => "erasure",
            Self::Nodes => "nodes",
            Self::Calm => "calm",
            Self::Within => "within",
            Self::Beyond => "beyond",
            Self::Changing => "changing",
            Self::Shards => "shards",
        }
    }

    /// Runs a seed.
    ///
    /// # Panics
    /// If a promise is broken.
    #[must_use]
    pub fn run(self, seed: u64) -> Ran {
        match self {
            Self::Storm => storm::run(seed, &Scenario::STORM).into(),
            Self::Cut => scenario::crash(seed, &Scenario::CUT).into(),
            Self::Erasure => scenario::crash(seed, &Scenario::ERASURE).into(),
            Self::Nodes => cluster::run(seed, &ClusterScenario::USUAL).into(),
            Self::Calm | Self::Within | Self::Beyond | Self::Changing | Self::Shards => {
                let scenario = self.crowd().expect("it is one");
                run_crowd(seed, &scenario).into()
            }
        }
    }

    /// The scenario of many programs.
    #[must_use]
    pub const fn crowd(self) -> Option<CrowdScenario> {
        match self {
            Self::Storm | Self::Cut | Self::Erasure | Self::Nodes => None,
            Self::Calm => Some(CrowdScenario::CALM),
            Self::Within => Some(CrowdScenario::WITHIN),
            Self::Beyond => Some(CrowdScenario::BEYOND),
            Self::Changing => Some(CrowdScenario::CHANGING),
            Self::Shards => Some(CrowdScenario::TWO_SHARDS),
        }
    }
}

/// What a run of any kind was like.
#[derive(Debug)]
pub struct Ran {
    /// Hash of everything that happened.
    pub trace: u64,
    /// Operations that were answered.
    steps: usize,
    /// Simulated time.
    time: Duration,
    faults: BTreeMap<String, usize>,
    /// Of a crowd.
    coverage: Option<Coverage>,
}

fn names<K: fmt::Debug>(faults: &BTreeMap<K, usize>) -> BTreeMap<String, usize> {
    let faults = faults.iter();
    faults.map(|(kind, n)| (format!("{kind:?}"), *n)).collect()
}

impl From<Report> for Ran {
    fn from(report: Report) -> Self {
        Self {
            trace: report.trace,
            steps: report.steps,
            time: report.time,
            faults: report.faults,
            coverage: None,
        }
    }
}

impl From<cluster::Report> for Ran {
    fn from(report: cluster::Report) -> Self {
        Self {
            trace: report.trace,
            steps: report.steps,
            time: report.time,
            faults: names(&report.faults),
            coverage: None,
        }
    }
}

impl From<CrowdReport> for Ran {
    fn from(report: CrowdReport) -> Self {
        Self {
            trace: report.trace,
            steps: report.steps,
            time: report.time,
            faults: names(&report.faults),
            coverage: Some(report.coverage),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.iter().find(|kind| kind.name() == text);
        known.copied().ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|kind| kind.name()).collect();
            format!("{text} is no kind of run; there are {}", names.join(", "))
        })
    }
}

/// The runs of one kind together.
#[derive(Default, Debug)]
struct Sum {
    seeds: u64,
    steps: usize,
    time: Duration,
    cpu: Duration,
    /// The most expensive seed and its CPU time.
    worst: (Duration, u64),
    faults: BTreeMap<String, usize>,
    coverage: Option<Coverage>,
}

/// The runs of all kinds, and those that failed.
#[derive(Default, Debug)]
pub struct Summary {
    sums: BTreeMap<Kind, Sum>,
    failed: Vec<(u64, Kind)>,
}

/// Runs all seeds in all kinds, also after one has failed.
#[must_use]
pub fn run_all(kinds: &[Kind], seeds: Range<u64>) -> Summary {
    let summary = Mutex::new(Summary::default());
    let count = kinds.len() as u64;
    let runs = seeds.start * count..seeds.end * count;
    crate::each_seed(runs, |number| {
        let (seed, kind) = (number / count, kinds[(number % count) as usize]);
        let begun = cpu_time();
        let ran = catch_unwind(AssertUnwindSafe(|| kind.run(seed)));
        let cpu = cpu_time().saturating_sub(begun);
        let mut summary = summary
            .lock()
            .expect("no thread panics while it holds this");
        match ran {
            Ok(report) => summary.add(kind, seed, cpu, report),
            Err(_) => summary.failed.push((seed, kind)),
        }
    });
    summary
        .into_inner()
        .expect("no thread panics while it holds this")
}

/// CPU time of this thread; a simulation runs on one.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

impl Summary {
    fn add(&mut self, kind: Kind, seed: u64, cpu: Duration, report: Ran) {
        let sum = self.sums.entry(kind).or_default();
        sum.seeds += 1;
        sum.steps += report.steps;
        sum.time += report.time;
        sum.cpu += cpu;
        sum.worst = sum.worst.max((cpu, seed));
        for (fault, count) in report.faults {
            *sum.faults.entry(fault).or_default() += count;
        }
        if let Some(coverage) = report.coverage {
            sum.coverage.get_or_insert_default().add(&coverage);
        }
    }

    /// What all crowds together covered.
    #[must_use]
    pub fn coverage(&self) -> Coverage {
        let mut all = Coverage::default();
        for coverage in self.sums.values().filter_map(|sum| sum.coverage.as_ref()) {
            all.add(coverage);
        }
        all
    }

    /// The runs that failed.
    #[must_use]
    pub fn failed(&self) -> &[(u64, Kind)] {
        &self.failed
    }

    /// For each run that failed, the command that repeats it.
    #[must_use]
    pub fn replays(&self) -> Vec<String> {
        let failed = self.failed.iter();
        let replay =
            |(seed, kind): &(u64, Kind)| format!("make sim SEEDS=1 START={seed} KINDS={kind}");
        failed.map(replay).collect()
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (kind, sum) in &self.sums {
            let (worst, seed) = sum.worst;
            writeln!(
                formatter,
                "{kind}: {} seeds, {:.2} simulated hours, {} operations; CPU per seed {:.2} s, at most {:.2} s (seed {seed}); faults: {:?}",
                sum.seeds,
                sum.time.as_secs_f64() / 3600.0,
                sum.steps,
                sum.cpu.as_secs_f64() / sum.seeds as f64,
                worst.as_secs_f64(),
                sum.faults,
            )?;
        }
        let crowds = self.sums.values().filter(|sum| sum.coverage.is_some());
        if crowds.count() > 0 {
            writeln!(formatter, "{}", self.coverage())?;
        }
        write!(formatter, "{} runs failed", self.failed.len())
    }
}
