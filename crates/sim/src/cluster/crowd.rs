//! Many programs at the same time on few names: two on each of five nodes, under faults.
//!
//! Each program asks for random operations on a handful of directories, names and files, so that nearly
//! all of them meet others on the same target, its parent, its child, an ancestor or another name of it
//! (`coverage`). Everything that programs saw goes to the witness (`crate::witness`), with the ranks that
//! owners gave (`listening`). Afterwards every node must see the same tree, which the witness explains
//! too; background work ends, and a deep check finds nothing.
//!
//! Half of the faults stop a daemon, or one of its tasks, at a point between two of its steps
//! (`world::Point`).
//!
//! In some runs clients have directories of their own as well, in which they make files under delegations (`filling`).
//!
//! *Within what the cluster survives*, no program sees an error besides the refusals of its own
//! operation; only if its node was hit, its client may have lost its session. *Beyond it* two things break
//! at a time and programs wait for a moment only: then errors are allowed, lies never.

mod coverage;
mod filling;
mod known;
mod listening;
mod locking;
mod locks;
mod mapping;
mod own;
mod performing;
mod program;
mod programs;
mod standing;
mod storage;

pub use coverage::{Coverage, Relation};

use super::ClusterScenario;
use super::faults::{FaultKind, Mix};
use super::machines::{Machine, Machines};
use super::script;
use crate::action::Draw;
use crate::witness::{self, Explained};
use futures::future::{join, join_all, select};
use known::{Known, Shared, lock};
use metanode::InUse;
use model::{FamilyId, ShardId};
use node::{ROOT_FAMILY, ROOT_SHARD};
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use world::sim::{Cluster, Judge, Link};
use world::{Planted, Point};

/// How long the programs of a node may take.
const PROGRAMS_MAX: Duration = Duration::from_secs(900);
/// How long owners may have something of clients that are gone: no longer than a session lasts.
const SESSIONS_MAX: Duration = Duration::from_secs(120);
/// How long it may take until they have seen everything at the end.
const SURVEY_MAX: Duration = Duration::from_secs(300);

/// The network of each third seed: more is under way at a time, and comes late.
const SLOW: Link = Link {
    latency_min: Duration::from_micros(50),
    latency_max: Duration::from_millis(20),
    bytes_per_second: 125_000_000,
};

/// The one shard of most runs, with its family.
const ONE: &[(ShardId, FamilyId)] = &[(ROOT_SHARD, ROOT_FAMILY)];
/// Those of a run with two: the second one begins on the second node.
const TWO: &[(ShardId, FamilyId)] = &[(ROOT_SHARD, ROOT_FAMILY), (ShardId(1), FamilyId(1))];

/// Faults that may happen beside another one.
const BESIDE: Mix = Mix(&[
    FaultKind::Isolate,
    FaultKind::CutOneWay,
    FaultKind::SlowDisk,
    FaultKind::HangDisk,
    FaultKind::Move,
    FaultKind::LoseQuorum,
    FaultKind::CutOffCoordination,
    FaultKind::SilenceWatches,
    FaultKind::JumpClock,
    FaultKind::Drift,
]);

/// A run of many programs.
#[derive(Clone, Copy, Debug)]
pub struct CrowdScenario {
    /// The machines.
    pub cluster: ClusterScenario,
    /// The shards: programs of each meet only each other.
    pub shards: &'static [(ShardId, FamilyId)],
    /// Programs of each node's client of a shard.
    pub programs: usize,
    /// Operations of each program, at least.
    pub steps: usize,
    /// Faults at the same time.
    pub together: usize,
    /// How long a program waits for an answer.
    pub patience: Duration,
    /// Bytes of a cell: no part of a page, so that neighbours share pages. Each second seed has five
    /// times as many: its files are stored in segments, the others' travel in the log.
    pub cell_bytes: usize,
    /// Whether programs of some nodes map files.
    pub maps: bool,
    /// Whether NSDs come and go.
    pub storage_changes: bool,
    /// The points at which daemons are interrupted.
    pub points: &'static [Point],
}

impl CrowdScenario {
    /// Five nodes, ten programs, two faults one after the other: everything must succeed in the end.
    pub const WITHIN: Self = Self {
        cluster: ClusterScenario {
            nodes: 5,
            faults: 2,
            mix: Mix::ALL,
            ..ClusterScenario::USUAL
        },
        shards: ONE,
        programs: 2,
        steps: 40,
        together: 1,
        patience: Duration::from_secs(120),
        cell_bytes: 1_000,
        maps: true,
        storage_changes: false,
        points: Point::ALL,
    };

    /// Two faults at a time, and programs that soon give up.
    pub const BEYOND: Self = Self {
        together: 2,
        patience: Duration::from_secs(4),
        ..Self::WITHIN
    };

    /// As [`CrowdScenario::WITHIN`], while a node joins, two NSDs are added and one is emptied.
    pub const CHANGING: Self = Self {
        cluster: ClusterScenario {
            late_nodes: 1,
            first_nsds: storage::FIRST,
            ..Self::WITHIN.cluster
        },
        storage_changes: true,
        ..Self::WITHIN
    };

    /// As [`CrowdScenario::WITHIN`], with two shards on the same nodes and ten programs of each.
    pub const TWO_SHARDS: Self = Self {
        shards: TWO,
        ..Self::WITHIN
    };

    /// No faults.
    pub const CALM: Self = Self {
        cluster: ClusterScenario {
            faults: 0,
            ..Self::WITHIN.cluster
        },
        ..Self::WITHIN
    };

    /// One program on each node, and no faults.
    pub const ALONE: Self = Self {
        programs: 1,
        ..Self::CALM
    };

    fn may_fail(&self) -> bool {
        self.together > 1
    }
}

/// What a run was like.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CrowdReport {
    /// Hash of everything that happened.
    pub trace: u64,
    /// Operations that were answered.
    pub steps: usize,
    /// Simulated time.
    pub time: Duration,
    /// Clients that were lost.
    pub lost: usize,
    /// What the witness looked at.
    pub explained: Explained,
    /// How often each fault was caused.
    pub faults: BTreeMap<FaultKind, usize>,
    /// Which operations met, and which points of the program were passed.
    pub coverage: Coverage,
}

/// Runs a scenario.
///
/// # Panics
/// If a promise is broken.
pub fn run_crowd(seed: u64, scenario: &CrowdScenario) -> CrowdReport {
    run_crowd_with(seed, scenario, None)
}

/// As [`run_crowd`], with a fault planted in all daemons.
///
/// # Panics
/// If a promise is broken: it should be.
pub fn run_crowd_with(
    seed: u64,
    scenario: &CrowdScenario,
    planted: Option<Planted>,
) -> CrowdReport {
    let cluster = Arc::new(Cluster::new(seed));
    cluster.plant(planted);
    let mut scenario = *scenario;
    scenario.cell_bytes *= [1, 5][(seed % 2) as usize];
    if seed % 3 == 2 {
        cluster.wires().usual(SLOW);
    }
    let machines = Machines::new(&cluster, seed, &scenario.cluster);
    let mut report = cluster.run(|judge| async move {
        machines.found(&judge, &scenario.cluster).await;
        let running = async {
            let shards = scenario.shards.iter();
            let known = shards.map(|(shard, family)| Known::new(seed, &scenario, *shard, *family));
            let crowd = Crowd {
                machines: &machines,
                judge: &judge,
                known: known.collect(),
                scenario: &scenario,
                seed,
            };
            let mut report = CrowdReport::default();
            crowd.make_shards().await;
            crowd.prepare().await;
            let trouble = async {
                crowd.add_storage().await;
                join(crowd.faults(&mut report), crowd.empty_storage()).await;
                for known in &crowd.known {
                    lock(known).faults_are_over = true;
                }
            };
            let work = join(crowd.work(), trouble);
            let beside = join(script::clock(&judge), crowd.watch());
            select(pin!(work), pin!(beside)).await;
            let shards: Vec<_> = scenario.shards.iter().map(|it| it.0).collect();
            script::come_back(&machines, &judge, &shards).await;
            crowd.survey().await;
            crowd.pieces_are_there().await;
            crowd.nothing_is_in_use().await;
            crowd.judge(&mut report);
            for shard in shards {
                script::check(&machines, &judge, shard, seed).await;
            }
            script::close(&machines, &judge, seed).await;
            report.time = judge.now();
            report
        };
        machines.keep_up(&judge, running).await
    });
    report.trace = cluster.trace_hash();
    report.coverage.passed(cluster.points());
    report
}

/// What was caused.
enum Caused {
    Fault(FaultKind),
    /// Where a daemon was interrupted, if one came there.
    Interruption(Option<Point>),
}

struct Crowd<'a> {
    machines: &'a Machines,
    judge: &'a Judge,
    /// One for each shard.
    known: Vec<Shared>,
    scenario: &'a CrowdScenario,
    seed: u64,
}

impl Crowd<'_> {
    /// Makes the shards beside the first, each on a node of its own.
    async fn make_shards(&self) {
        for (at, (shard, family)) in self.scenario.shards.iter().copied().enumerate().skip(1) {
            let machine = &self.machines.nodes[at];
            let made = machine.run("makes a shard", move |_, member| async move {
                member.create_shard_of(shard, family).await.expect("made");
            });
            self.judge.within("made", SURVEY_MAX, made.done()).await;
        }
    }

    /// Makes the directories that programs meet in.
    async fn prepare(&self) {
        for known in &self.known {
            let known = known.clone();
            let scenario = *self.scenario;
            let first = &self.machines.nodes[0];
            let made = first.run("makes directories", move |_, member| {
                program::prepare(member, known, scenario)
            });
            let made = made.done();
            self.judge.within("it begins", SURVEY_MAX, made).await;
        }
    }

    /// The programs of all nodes, until all have done their steps and the faults are over.
    async fn work(&self) {
        let nodes = self.machines.nodes.iter();
        let all = nodes.flat_map(|machine| self.known.iter().map(move |known| (machine, known)));
        join_all(all.map(|(machine, known)| self.work_on(machine, known))).await;
    }

    async fn work_on(&self, machine: &Machine, shared: &Shared) {
        let node = machine.id;
        loop {
            machine.is_up(self.judge).await;
            let (known, scenario) = (shared.clone(), *self.scenario);
            let programs = machine.run("programs", move |world, member| {
                program::programs(world, member, known, scenario)
            });
            let programs = self.judge.within("programs end", PROGRAMS_MAX, programs);
            let ended = programs.await;
            if ended.is_some() {
                return;
            }
            lock(shared).lose(node);
        }
    }

    /// Causes the faults, some at the same time.
    async fn faults(&self, report: &mut CrowdReport) {
        let mut draw = Draw::new(self.seed ^ 0xC203);
        for _ in 0..self.scenario.cluster.faults {
            let pause = Duration::from_millis(draw.below(1_500));
            self.judge.sleep(pause).await;
            // No two of them start one machine's daemon.
            let first = self.cause(draw.bits(), self.scenario.cluster.mix, true);
            let beside = (1..self.scenario.together).map(|_| draw.bits());
            let beside = join_all(beside.map(|bits| self.cause(bits, BESIDE, false)));
            let (first, beside) = join(first, beside).await;
            for caused in std::iter::once(first).chain(beside) {
                match caused {
                    Caused::Fault(kind) => *report.faults.entry(kind).or_default() += 1,
                    Caused::Interruption(Some(point)) => {
                        report.coverage.interrupted(point);
                    }
                    Caused::Interruption(None) => {}
                }
            }
        }
    }

    /// Causes one fault, or an interruption.
    async fn cause(&self, bits: u64, mix: Mix, may_interrupt: bool) -> Caused {
        let mut draw = Draw::new(bits);
        if may_interrupt && draw.below(2) == 0 && !self.scenario.points.is_empty() {
            tracing::info!("an interruption");
            // The shard may be taken from its owner, too.
            let owner = self.machines.owner().map(|machine| machine.id);
            for known in &self.known {
                lock(known).is_interrupted(owner);
            }
            return Caused::Interruption(
                self.machines
                    .interrupt(self.judge, &mut draw, self.scenario.points)
                    .await,
            );
        }
        let kind = mix.draw(&mut draw);
        tracing::info!(?kind, "fault");
        let cut_off = self.machines.cut_off_by(draw.clone(), kind);
        for known in &self.known {
            lock(known).hit(kind, cut_off.clone());
        }
        self.machines.cause(self.judge, &mut draw, kind).await;
        Caused::Fault(kind)
    }

    /// Every node looks at everything.
    async fn survey(&self) {
        for known in &self.known {
            lock(known).all_is_well();
        }
        let nodes = self.machines.nodes.iter();
        for (machine, known) in nodes.flat_map(|it| self.known.iter().map(move |known| (it, known)))
        {
            machine.is_up(self.judge).await;
            let (known, cell_bytes) = (known.clone(), self.scenario.cell_bytes);
            let looked = machine.run("looks at everything", move |_, member| {
                program::survey(member, known, cell_bytes)
            });
            let looked = looked.done();
            self.judge.within("it is seen", SURVEY_MAX, looked).await;
        }
        // No program and no client is left.
        for machine in &self.machines.nodes {
            machine.is_up(self.judge).await;
            let left = machine.run("looks at what is left", |_, member| async move {
                (member.pool().usage().held, member.waiters().len())
            });
            let left = self.judge.within("it is seen", SURVEY_MAX, left.done());
            let (held, waiters) = left.await;
            if (held, waiters) != (0, 0) {
                let what = format!(
                    "node {} keeps {held} bytes of space, {waiters} wait",
                    machine.id
                );
                lock(&self.known[0]).breaks(what);
            }
        }
    }

    /// Owners have nothing of clients any more: all have ended.
    async fn nothing_is_in_use(&self) {
        for known in &self.known {
            let shard = lock(known).shard();
            let began = self.judge.now();
            loop {
                let owner = script::owner_of(self.machines, self.judge, shard).await;
                let metanode = owner.member().and_then(|it| it.hosted_of(shard));
                let in_use = metanode.map(|it| it.in_use());
                if in_use == Some(InUse::default()) {
                    break;
                }
                if self.judge.now() - began > SESSIONS_MAX {
                    let what = format!("of clients that have ended the owner has {in_use:?}");
                    lock(known).breaks(what);
                    break;
                }
                self.judge.sleep(Duration::from_millis(100)).await;
            }
        }
    }

    /// Asks the witness.
    fn judge(&self, report: &mut CrowdReport) {
        for known in &self.known {
            self.judge_one(&lock(known), report);
        }
    }

    fn judge_one(&self, known: &Known, report: &mut CrowdReport) {
        let (seed, history) = (self.seed, known.history());
        for event in &history.events {
            tracing::debug!(?event, "seen");
        }
        if let Some(broken) = known.broken() {
            panic!("seed {seed}: {broken}");
        }
        match witness::explain(&history) {
            Ok(explained) => report.explained.add(&explained),
            Err(why) => panic!("seed {seed}: {why}"),
        }
        report.steps += known.answered();
        report.lost += history.lost.len();
        report.coverage.add(&Coverage::of(&history));
        report.coverage.locked(known.locks.counts());
    }
}
