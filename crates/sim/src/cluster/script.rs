//! What happens in a run: faults and turns beside each other, then quiet, then the judgement.

use super::ClusterScenario;
use super::faults::FaultKind;
use super::machines::{Machine, Machines};
use super::turn::{self, Known, Shared, lock};
use crate::action::Draw;
use crate::log;
use metanode::CheckOptions;
use model::ShardId;
use node::{Member, ROOT_FAMILY, ROOT_SHARD};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use world::Planted;
use world::sim::{Cluster, Judge};

/// How long a turn may take.
const TURN_MAX: Duration = Duration::from_secs(600);
/// How long the end may take: the rest of a fault, then everything looked at.
const END_MAX: Duration = Duration::from_secs(300);
/// For how long after a fault it may still be felt.
const AFTERMATH: Duration = Duration::from_secs(1);
/// How often it is looked whether a shard has an owner again.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How often a check begins anew because its shard went to another node, and the pause before.
const CHECKS_MAX: usize = 10;
const SETTLES: Duration = Duration::from_secs(2);
/// Most rounds of background work that an ended run leaves.
const ROUNDS_MAX: usize = 200;

/// What a run was like.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Hash of everything that happened.
    pub trace: u64,
    /// Actions that were answered.
    pub steps: usize,
    /// Simulated time.
    pub time: Duration,
    /// For each kind of fault: the longest time without an answer while it lasted.
    pub pauses: BTreeMap<FaultKind, Duration>,
    /// The longest time without an answer after another node, which owned the shard, was killed.
    pub owner_killed: Duration,
    /// The longest time without an answer after the shard was given from another node to any.
    pub owner_moved: Duration,
    /// How often each fault was caused.
    pub faults: BTreeMap<FaultKind, usize>,
}

/// Runs a scenario.
///
/// # Panics
/// If a promise is broken.
pub fn run(seed: u64, scenario: &ClusterScenario) -> Report {
    run_with(seed, scenario, None)
}

/// As [`run`], with a fault planted in all daemons.
///
/// # Panics
/// If a promise is broken: it should be.
pub fn run_with(seed: u64, scenario: &ClusterScenario, planted: Option<Planted>) -> Report {
    let cluster = Arc::new(Cluster::new(seed));
    cluster.plant(planted);
    let scenario = *scenario;
    let machines = Machines::new(&cluster, seed, &scenario);
    let mut report = cluster.run(|judge| async move {
        machines.found(&judge, &scenario).await;
        let running = async {
            let known = Known::new(seed, ROOT_SHARD, ROOT_FAMILY);
            let mut draw = Draw::new(seed ^ 0xFA_017);
            let mut work = std::pin::pin!(work(&machines, &judge, &known, &scenario, seed));
            let mut report = Report::default();
            let faults = faults(&machines, &judge, &known, &scenario, &mut draw, &mut report);
            let both = futures::future::join(&mut work, faults);
            futures::future::select(std::pin::pin!(both), std::pin::pin!(clock(&judge))).await;
            come_back(&machines, &judge, &[ROOT_SHARD]).await;
            compare(&machines, &judge, &known, seed).await;
            end(&machines, &judge, seed).await;
            report.steps = lock(&known).steps;
            report.time = judge.now();
            report
        };
        machines.keep_up(&judge, running).await
    });
    report.trace = cluster.trace_hash();
    report
}

/// Tells the log the time, for ever.
pub(super) async fn clock(judge: &Judge) {
    if !log::is_on() {
        std::future::pending::<()>().await;
    }
    loop {
        log::set_time(judge.now());
        judge.sleep(Duration::from_millis(1)).await;
    }
}

/// Gives the clients of a shard their turns until all actions are done.
pub(super) async fn work(
    machines: &Machines,
    judge: &Judge,
    known: &Shared,
    scenario: &ClusterScenario,
    seed: u64,
) {
    let shard = lock(known).shard;
    let mut draw = Draw::new(seed ^ 0x7019 ^ u64::from(shard.0) << 48);
    let mut crashed: Option<Machine> = None;
    let mut number = 0;
    while lock(known).steps < scenario.steps {
        number += 1;
        // After a crash the same node is next: its new daemon's session ends those of its old one.
        let machine = crashed.take().unwrap_or_else(|| {
            // Programs start on nodes that are up.
            let all = &machines.nodes;
            let up: Vec<_> = all.iter().filter(|it| it.member().is_some()).collect();
            let machine = draw.one_of(&up).copied().or_else(|| all.first());
            machine.expect("a cluster has nodes").clone()
        });
        machine.is_up(judge).await;
        lock(known).client_on = machine.id;
        let left = (scenario.steps - lock(known).steps) as u64;
        let steps = 1 + draw.below(scenario.turn_steps).min(left);
        let what = format!(
            "seed {seed}, shard {shard}, turn {number} on {}",
            machine.node.name()
        );
        let (known, scenario) = (known.clone(), *scenario);
        let turn = machine.run("a client's turn", |world, member| {
            turn::turn(world, member, known, scenario, steps, what)
        });
        let ended = judge.within("a turn ends", TURN_MAX, turn).await;
        if ended.is_none() {
            crashed = Some(machine);
        }
    }
}

/// Causes the faults one after the other.
async fn faults(
    machines: &Machines,
    judge: &Judge,
    known: &Shared,
    scenario: &ClusterScenario,
    draw: &mut Draw,
    report: &mut Report,
) {
    for fault in 0..scenario.faults {
        // Spread over the work, so that each of them meets some.
        let share = scenario.steps / (scenario.faults + 1);
        let at = share * fault + share / 4 + draw.below(share as u64) as usize;
        while lock(known).steps < at {
            judge.sleep(Duration::from_millis(1)).await;
        }
        let kind = scenario.mix.draw(draw);
        *report.faults.entry(kind).or_default() += 1;
        // What a client sees whose own node isn't the one that is killed, or that loses the shard unasked.
        let owner = machines.owner().map(|machine| machine.id);
        let is_elsewhere = owner != Some(lock(known).client_on);
        let is_over = Cell::new(false);
        tracing::info!(?kind, "fault");
        let caused = async {
            machines.cause(judge, draw, kind).await;
            judge.sleep(AFTERMATH).await;
            is_over.set(true);
        };
        let pause = longest_pause(judge, known, scenario, &is_over);
        let (pause, ()) = futures::future::join(pause, caused).await;
        let longest = report.pauses.entry(kind).or_default();
        *longest = pause.max(*longest);
        let felt = match kind {
            FaultKind::KillOwner => &mut report.owner_killed,
            FaultKind::Move => &mut report.owner_moved,
            _ => continue,
        };
        if is_elsewhere {
            *felt = pause.max(*felt);
        }
    }
}

/// The longest time without an answer until `is_over`, and until the next answer then.
async fn longest_pause(
    judge: &Judge,
    known: &Shared,
    scenario: &ClusterScenario,
    is_over: &Cell<bool>,
) -> Duration {
    let (mut steps, mut since) = (lock(known).steps, judge.now());
    let mut longest = Duration::ZERO;
    while steps < scenario.steps {
        judge.sleep(Duration::from_millis(1)).await;
        let now = lock(known).steps;
        if now != steps {
            longest = longest.max(judge.now() - since);
            (steps, since) = (now, judge.now());
            if is_over.get() {
                break;
            }
        }
    }
    longest
}

/// All faults end, all daemons run, and each of the shards has one of them for its owner.
pub(super) async fn come_back(machines: &Machines, judge: &Judge, shards: &[ShardId]) {
    machines.cluster.wires().heal_all();
    machines.store.heal();
    for machine in &machines.nodes {
        machine.is_up(judge).await;
    }
    machines.settled(judge).await;
    // The manager sees to it.
    for shard in shards {
        owner_of(machines, judge, *shard).await;
    }
}

/// Everything must be as the model has it.
pub(super) async fn compare(machines: &Machines, judge: &Judge, known: &Shared, seed: u64) {
    let mut draw = Draw::new(seed ^ 0xE0D);
    let last = draw.one_of(&machines.nodes).expect("a cluster has nodes");
    let (what, known) = (format!("seed {seed}, at the end"), known.clone());
    let compared = last.run("compares", |world, member| {
        turn::compare(world, member, known, what)
    });
    judge
        .within("all is compared", END_MAX, compared.done())
        .await;
}

/// Background work ends, a deep check of each shard finds nothing, and all nodes close.
pub(super) async fn end(machines: &Machines, judge: &Judge, seed: u64) {
    come_back(machines, judge, &[ROOT_SHARD]).await;
    for shard in shards(machines, judge).await {
        check(machines, judge, shard, seed).await;
    }
    close(machines, judge, seed).await;
}

/// The shards that coordination knows.
async fn shards(machines: &Machines, judge: &Judge) -> Vec<ShardId> {
    let began = judge.now();
    while judge.now() - began < END_MAX {
        let listed = machines.ask(|coordination| async move { coordination.shards().await });
        let listed = judge.within("coordination answers", END_MAX, listed.done());
        if let Ok(records) = listed.await {
            return records.iter().map(|record| record.shard).collect();
        }
        judge.sleep(LOOK_EVERY).await;
    }
    panic!("coordination doesn't say which shards there are");
}

/// The background work of a shard ends, and a deep check finds nothing.
pub(super) async fn check(machines: &Machines, judge: &Judge, shard: ShardId, seed: u64) {
    for _ in 0..CHECKS_MAX {
        let owner = owner_of(machines, judge, shard).await;
        let checked = owner.run("checks", move |_, member| check_here(member, shard, seed));
        let checked = judge.within("the check ends", END_MAX, checked.done());
        if checked.await {
            return;
        }
        judge.sleep(SETTLES).await;
    }
    panic!("seed {seed}: shard {shard} goes from one node to the next");
}

/// The machine that a shard's record names.
pub(super) async fn owner_of<'a>(
    machines: &'a Machines,
    judge: &Judge,
    shard: ShardId,
) -> &'a Machine {
    let owner = machines.owner_of(judge, shard);
    judge.within("the shard has an owner", END_MAX, owner).await
}

/// All nodes close.
pub(super) async fn close(machines: &Machines, judge: &Judge, seed: u64) {
    for machine in &machines.nodes {
        let closed = machine.run("closes", |_, member| async move { member.close().await });
        let closed = judge.within("a node closes", END_MAX, closed.done()).await;
        closed.unwrap_or_else(|error| panic!("seed {seed}: a node doesn't close: {error}"));
        machine.kill();
    }
}

/// False if the manager gave the shard to another node meanwhile, so that all have as much to do.
async fn check_here(member: Arc<Member>, shard: ShardId, seed: u64) -> bool {
    let Some(metanode) = member.hosted_of(shard) else {
        return false;
    };
    let is_gone = || {
        let hosted = member.hosted_of(shard);
        hosted.is_none_or(|hosted| !Arc::ptr_eq(&hosted, &metanode))
    };
    for round in 0.. {
        let done = metanode.run_background_once().await;
        if done.is_err() && is_gone() {
            return false;
        }
        if done.expect("background work succeeds").steps == 0 {
            break;
        }
        assert!(
            round < ROUNDS_MAX,
            "seed {seed}: background work of shard {shard} never ends"
        );
    }
    let report = metanode.check(CheckOptions { deep: true }).await;
    if report.is_err() && is_gone() {
        return false;
    }
    let report = report.expect("the check runs");
    assert!(
        report.is_clean(),
        "seed {seed}, shard {shard}: {:?}",
        report.faults
    );
    true
}
