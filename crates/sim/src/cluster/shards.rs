//! Two shards on the same nodes, each with a family, an owner that moves and one client at a time of
//! its own.
//!
//! Their clients work beside each other. The script moves the owners separately, brings them together
//! on one node, kills that node, and cuts the network. At the end each shard must be as its model is,
//! deep checks find nothing, and neither deletes what is the other's.

use super::ClusterScenario;
use super::faults::run_of;
use super::machines::{Machine, Machines};
use super::script;
use super::turn::{Known, Shared, lock};
use crate::action::Draw;
use futures::future::{join, join_all, select};
use model::{BlobName, FamilyId, GroupId, NsdId, ShardId};
use node::{Member, ROOT_FAMILY, ROOT_SHARD};
use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use world::World;
use world::sim::{Cluster, Judge};

/// The shards with their families.
const SHARDS: [(ShardId, FamilyId); 2] = [(ROOT_SHARD, ROOT_FAMILY), (ShardId(1), FamilyId(1))];
/// How often each run has both owners on one node, at least.
pub const TOGETHER_MIN: usize = 3;
/// How long a step of the script may take.
const STEP_MAX: Duration = Duration::from_secs(120);
/// Longest time for which something is broken: less than clients wait.
const BROKEN_MAX: u64 = 8_000;
/// Pause between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How often it is looked whether a shard leaves the other's blobs alone, and how long after the last time.
const LOOKS_MAX: usize = 10;
const LOOK_PAUSE: Duration = Duration::from_secs(10);
/// Segments listed at once.
const LISTED: usize = 1000;

/// What the script does, spread over the clients' work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Act {
    /// Both shards go to one node, and are served there.
    Together,
    /// The node that has both is killed, and each goes to any other node.
    KillBoth,
    /// Each shard goes to a node of its own.
    Part,
    /// One shard goes to another node; the other one stays.
    MoveOne,
    /// A node loses all links, also that to coordination; the shards that it has may go elsewhere.
    Isolate,
    /// Messages from one node to another are lost.
    CutOneWay,
}

const ACTS: [Act; 11] = [
    Act::Together,
    Act::KillBoth,
    Act::Part,
    Act::Isolate,
    Act::Together,
    Act::CutOneWay,
    Act::MoveOne,
    Act::Together,
    Act::KillBoth,
    Act::Isolate,
    Act::MoveOne,
];

/// What a run with two shards was like.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SeveralShards {
    /// Hash of everything that happened.
    pub trace: u64,
    /// Actions that were answered, of both shards' clients.
    pub steps: usize,
    /// How often both owners were seen on one node.
    pub together: usize,
    /// How often a node was killed that had both.
    pub killed_with_both: usize,
    /// Simulated time.
    pub time: Duration,
}

/// Runs two shards on the nodes of a scenario, each with its actions; the scenario's faults are
/// replaced by the script's.
///
/// # Panics
/// If a promise is broken.
pub fn run_shards(seed: u64, scenario: &ClusterScenario) -> SeveralShards {
    let cluster = Arc::new(Cluster::new(seed));
    let scenario = *scenario;
    let machines = Machines::new(&cluster, seed, &scenario);
    let mut report = cluster.run(|judge| async move {
        machines.found(&judge, &scenario).await;
        let running = async {
            let run = Run {
                machines: &machines,
                judge: &judge,
                known: SHARDS.map(|(shard, family)| Known::new(seed, shard, family)),
                seed,
            };
            run.create_second().await;
            let works = run.known.iter();
            let works = works.map(|known| script::work(&machines, &judge, known, &scenario, seed));
            let mut report = SeveralShards::default();
            let both = join(join_all(works), run.act(&scenario, &mut report));
            select(pin!(both), pin!(script::clock(&judge))).await;
            run.end().await;
            report.steps = run.steps();
            report.time = judge.now();
            report
        };
        machines.keep_up(&judge, running).await
    });
    report.trace = cluster.trace_hash();
    report
}

struct Run<'a> {
    machines: &'a Machines,
    judge: &'a Judge,
    known: [Shared; 2],
    seed: u64,
}

impl Run<'_> {
    /// The second shard begins on the second node, while the first one is elsewhere. Its family is its
    /// own from then on.
    async fn create_second(&self) {
        let (shard, family) = SHARDS[1];
        let second = &self.machines.nodes[1];
        let made = second.run("creates a shard", move |_, member| async move {
            member.create_shard_of(shard, family).await.expect("made");
            let again = member.create_shard_of(shard, family).await;
            again.expect("the same again changes nothing");
            for (taken, _) in SHARDS {
                let other = FamilyId(7);
                let refused = member.create_shard_of(taken, other).await;
                assert_eq!(
                    refused.expect_err("it exists").kind(),
                    model::ErrorKind::Exists
                );
            }
            let refused = member.create_shard_of(ShardId(2), family).await;
            refused.expect_err("the family is taken")
        });
        let refused = self.judge.within("made", STEP_MAX, made.done()).await;
        assert_eq!(refused.kind(), model::ErrorKind::Exists, "{refused}");
        let serves = || hosts(second, shard);
        self.judge.until("it serves", STEP_MAX, serves).await;
    }

    fn steps(&self) -> usize {
        self.known.iter().map(|known| lock(known).steps).sum()
    }

    /// Does all acts, one after the other, while the clients work.
    async fn act(&self, scenario: &ClusterScenario, report: &mut SeveralShards) {
        let mut draw = Draw::new(self.seed ^ 0x5AAD);
        let share = scenario.steps * SHARDS.len() / (ACTS.len() + 1);
        for (number, act) in ACTS.into_iter().enumerate() {
            let at = share * number + share / 4 + draw.below(share as u64) as usize;
            while self.steps() < at {
                self.judge.sleep(Duration::from_millis(1)).await;
            }
            tracing::info!(?act, "act");
            self.perform(&mut draw, act, report).await;
        }
    }

    async fn perform(&self, draw: &mut Draw, act: Act, report: &mut SeveralShards) {
        let (machines, judge) = (self.machines, self.judge);
        let time = Duration::from_millis(100 + draw.below(BROKEN_MAX));
        match act {
            Act::Together => drop(self.bring_together(draw, report).await),
            Act::KillBoth => {
                let both = machines.nodes.iter().find(|it| has_both(it));
                let both = match both {
                    Some(both) => both,
                    None => self.bring_together(draw, report).await,
                };
                both.kill();
                report.killed_with_both += 1;
                for (shard, _) in SHARDS {
                    let to = machines.another(draw, both);
                    self.give(shard, to).await;
                }
                judge.sleep(Duration::from_millis(draw.below(3_000))).await;
                both.start();
                both.is_up(judge).await;
            }
            Act::Part => {
                let first = machines.any(draw);
                self.give(SHARDS[0].0, first).await;
                self.give(SHARDS[1].0, machines.another(draw, first)).await;
            }
            Act::MoveOne => {
                let (shard, _) = *draw.one_of(&SHARDS).expect("there are two");
                let owner = script::owner_of(machines, judge, shard).await;
                self.give(shard, machines.another(draw, owner)).await;
            }
            Act::Isolate => {
                let (shard, _) = *draw.one_of(&SHARDS).expect("there are two");
                let victim = script::owner_of(machines, judge, shard).await;
                machines.isolate(victim);
                judge.sleep(time / 4).await;
                if draw.below(2) == 0 {
                    self.give(shard, machines.another(draw, victim)).await;
                }
                judge.sleep(time).await;
                machines.reconnect(victim);
            }
            Act::CutOneWay => {
                let from = machines.any(draw);
                let to = machines.another(draw, from);
                machines.cluster.wires().cut_one_way(&from.node, &to.node);
                judge.sleep(time).await;
                machines.cluster.wires().heal_all();
            }
        }
    }

    /// Gives both shards to one node, and waits until it serves both.
    async fn bring_together(&self, draw: &mut Draw, report: &mut SeveralShards) -> &Machine {
        let to = self.machines.any(draw);
        // The machine's run may have been expelled and not know it yet: the manager takes back what
        // such a run was given, so its next run is named again.
        let serving = async {
            while !has_both(to) {
                for (shard, _) in SHARDS {
                    self.give(shard, to).await;
                }
                let given = run_of(to);
                while !has_both(to) && run_of(to) == given {
                    self.judge.sleep(Duration::from_millis(1)).await;
                }
            }
        };
        let what = "one node serves both shards";
        self.judge.within(what, STEP_MAX, serving).await;
        report.together += 1;
        to
    }

    /// Names the daemon of a machine for a shard.
    async fn give(&self, shard: ShardId, to: &Machine) {
        to.is_up(self.judge).await;
        if let Some(run) = run_of(to) {
            self.machines.assign_of(self.judge, shard, run).await;
        }
    }

    /// Everything must be as the models have it, and each shard sound, whatever the other one does.
    async fn end(&self) {
        let (machines, judge, seed) = (self.machines, self.judge, self.seed);
        script::come_back(machines, judge, &SHARDS.map(|(shard, _)| shard)).await;
        for machine in &machines.nodes {
            let reached = machine.run("reaches all NSDs", reach_all);
            let reached = reached.done();
            judge.within("all NSDs answer", STEP_MAX, reached).await;
        }
        for known in &self.known {
            script::compare(machines, judge, known, seed).await;
        }
        for (shard, _) in SHARDS {
            script::check(machines, judge, shard, seed).await;
        }
        for (one, (its, other)) in [(SHARDS[0].0, SHARDS[1]), (SHARDS[1].0, SHARDS[0])] {
            let mut gone = Vec::new();
            for _ in 0..LOOKS_MAX {
                let before = self.blobs_of(other).await;
                assert!(!before.is_empty(), "seed {seed}: family {other} has blobs");
                script::check(machines, judge, one, seed).await;
                self.scrub(one).await;
                let after = self.blobs_of(other).await;
                gone = before.difference(&after).cloned().collect();
                // Its own owner may have swept garbage just now: then it misses nothing.
                script::check(machines, judge, its, seed).await;
                if gone.is_empty() {
                    break;
                }
                judge.sleep(LOOK_PAUSE).await;
            }
            assert!(
                gone.is_empty(),
                "seed {seed}: shard {one} deletes blobs of family {other}: {gone:?}"
            );
        }
        // Neither had anything to repair of what the other one did.
        for (shard, _) in SHARDS {
            script::check(machines, judge, shard, seed).await;
        }
        script::close(machines, judge, seed).await;
    }

    /// A scrub of all NSDs by one shard's owner finds no damage.
    async fn scrub(&self, shard: ShardId) {
        let seed = self.seed;
        let owner = script::owner_of(self.machines, self.judge, shard).await;
        let scrubbed = owner.run("scrubs", move |_, member| async move {
            let metanode = member.hosted_of(shard).expect("the shard is here");
            let outcomes = metanode.scrub(None).await.expect("scrubbed");
            for outcome in outcomes {
                let damaged = &outcome.report.damaged;
                assert!(damaged.is_empty(), "seed {seed}: {damaged:?}");
            }
        });
        let scrubbed = scrubbed.done();
        self.judge.within("scrubbed", STEP_MAX, scrubbed).await;
    }

    /// The blobs of a family on all NSDs.
    async fn blobs_of(&self, family: FamilyId) -> BTreeSet<(BlobName, NsdId)> {
        let first = &self.machines.nodes[0];
        let listed = first.run("lists blobs", move |_, member| list(member, family));
        let listed = listed.done();
        self.judge
            .within("blobs are listed", STEP_MAX, listed)
            .await
    }
}

async fn list(member: Arc<Member>, family: FamilyId) -> BTreeSet<(BlobName, NsdId)> {
    let pool = member.pool();
    let mut found = BTreeSet::new();
    for group in pool.map().all_groups() {
        let mut after = None;
        loop {
            let survey = pool.survey(group, after, LISTED).await.expect("listed");
            assert_eq!(survey.unreachable, [], "all NSDs answer");
            let all = survey.segments.into_iter();
            let own = all.filter(|segment| segment.owner.family == family);
            found.extend(own.flat_map(|segment| segment.present));
            after = survey.resume;
            if after.is_none() {
                break;
            }
        }
    }
    found
}

/// Waits until all NSDs answer the node: connections that were cut come back after a pause.
async fn reach_all(world: World, member: Arc<Member>) {
    let pool = member.pool();
    for state in pool.nsd_states() {
        let nsd = state.entry.nsd;
        while pool.list(nsd, GroupId(0), None, 1).await.is_err() {
            world.sleep(LOOK_EVERY).await;
        }
    }
}

fn hosts(machine: &Machine, shard: ShardId) -> bool {
    let member = machine.member();
    member.is_some_and(|member| member.hosted_of(shard).is_some())
}

fn has_both(machine: &Machine) -> bool {
    SHARDS.iter().all(|(shard, _)| hosts(machine, *shard))
}
