//! The faults of a cluster's script: one at a time, each with its end.

use super::machines::{Machine, Machines};
use crate::action::Draw;
use model::{NodeId, NodeRun, ShardId};
use node::ROOT_SHARD;
use std::time::Duration;
use world::sim::Judge;

/// How long the script's own changes may take.
const ASSIGN_MAX: Duration = Duration::from_secs(60);
/// How often it is looked whether a shard has an owner again.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Longest time for which something is broken: less than clients wait.
const BROKEN_MAX: u64 = 8_000;

/// What goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum FaultKind {
    /// A daemon is killed and starts again later.
    Kill,
    /// The daemon that hosts the shard is killed; another takes over at once.
    KillOwner,
    /// The machine that hosts the shard loses its power, until the manager has given the shard to another node.
    LoseOwner,
    /// A machine loses its power, and unflushed writes.
    CutPower,
    /// All machines lose their power at once.
    CutAllPower,
    /// A daemon stands still for a while.
    Pause,
    /// The machine that hosts the shard stands still; another takes over meanwhile.
    PauseOwner,
    /// A machine loses all links, also that to coordination.
    Isolate,
    /// Messages from one machine to another are lost.
    CutOneWay,
    /// A disk takes longer.
    SlowDisk,
    /// A disk doesn't answer at all.
    HangDisk,
    /// The shard is given to another node.
    Move,
    /// It is given to another node, and its owner hears of it late.
    MoveUnheard,
    /// It is given away and back while the first owner can't hear of it.
    MoveThereAndBack,
    /// Coordination elects another leader.
    ChangeLeader,
    /// Coordination has no quorum for a while.
    LoseQuorum,
    /// A node doesn't reach coordination, and nothing else is wrong.
    CutOffCoordination,
    /// A node hears of changes late.
    SilenceWatches,
    /// A machine's calendar is set.
    JumpClock,
    /// A machine's clock goes too fast or too slowly.
    Drift,
}

/// The faults that a script draws from.
#[derive(Clone, Copy, Debug)]
pub struct Mix(pub &'static [FaultKind]);

impl Mix {
    /// All of them.
    pub const ALL: Self = Self(&[
        FaultKind::Kill,
        FaultKind::KillOwner,
        FaultKind::LoseOwner,
        FaultKind::CutPower,
        FaultKind::CutAllPower,
        FaultKind::Pause,
        FaultKind::PauseOwner,
        FaultKind::Isolate,
        FaultKind::CutOneWay,
        FaultKind::SlowDisk,
        FaultKind::HangDisk,
        FaultKind::Move,
        FaultKind::MoveUnheard,
        FaultKind::MoveThereAndBack,
        FaultKind::ChangeLeader,
        FaultKind::LoseQuorum,
        FaultKind::CutOffCoordination,
        FaultKind::SilenceWatches,
        FaultKind::JumpClock,
        FaultKind::Drift,
    ]);

    pub(super) fn draw(&self, draw: &mut Draw) -> FaultKind {
        *draw.one_of(self.0).expect("a mix has faults")
    }
}

impl Machines {
    /// Causes a fault, waits for its time, and ends it.
    pub(super) async fn cause(self: &Machines, judge: &Judge, draw: &mut Draw, kind: FaultKind) {
        let victim = self.any(draw);
        let time = Duration::from_millis(100 + draw.below(BROKEN_MAX));
        match kind {
            FaultKind::Kill => {
                let owned = self.owns(judge, victim).await;
                victim.kill();
                self.revive(judge, draw, victim, owned).await;
            }
            FaultKind::KillOwner => {
                let victim = self.owner_or(victim);
                let owned = self.owns(judge, victim).await;
                victim.kill();
                self.revive(judge, draw, victim, owned).await;
            }
            FaultKind::LoseOwner => {
                let victim = self.owner_or(victim);
                victim.cut_power();
                // The machine that is off isn't it.
                let given_away = self.owner_of(judge, ROOT_SHARD);
                judge
                    .within("the manager gives it away", ASSIGN_MAX, given_away)
                    .await;
                victim.start();
                victim.is_up(judge).await;
            }
            FaultKind::CutPower => {
                let owned = self.owns(judge, victim).await;
                victim.cut_power();
                self.revive(judge, draw, victim, owned).await;
            }
            FaultKind::CutAllPower => {
                for machine in &self.nodes {
                    machine.cut_power();
                }
                judge.sleep(time / 8).await;
                for machine in &self.nodes {
                    machine.start();
                }
                for machine in &self.nodes {
                    machine.is_up(judge).await;
                }
                if let Some(first) = run_of(victim) {
                    self.assign(judge, first).await;
                }
            }
            FaultKind::Pause => {
                victim.pause();
                judge.sleep(time).await;
                victim.resume();
            }
            FaultKind::PauseOwner => {
                let victim = self.owner_or(victim);
                victim.pause();
                judge.sleep(time / 4).await;
                self.move_from(judge, draw, victim).await;
                judge.sleep(time).await;
                victim.resume();
            }
            FaultKind::Isolate => {
                let owned = self.owns(judge, victim).await;
                self.isolate(victim);
                judge.sleep(time / 4).await;
                if owned && draw.below(2) == 0 {
                    self.move_from(judge, draw, victim).await;
                }
                judge.sleep(time).await;
                self.reconnect(victim);
            }
            FaultKind::CutOneWay => {
                let other = self.another(draw, victim);
                self.cluster.wires().cut_one_way(&victim.node, &other.node);
                judge.sleep(time).await;
                self.cluster.wires().heal_all();
            }
            FaultKind::SlowDisk => {
                let extra = Duration::from_millis(1 + draw.below(300));
                self.cluster.faults().slow(&victim.disk(), extra);
                judge.sleep(time).await;
                self.cluster.faults().heal(&victim.disk());
            }
            FaultKind::HangDisk => {
                self.cluster.faults().hang(&victim.disk());
                judge.sleep(time).await;
                self.cluster.faults().heal(&victim.disk());
            }
            FaultKind::Move => {
                let owner = self.owner_or(victim);
                self.move_from(judge, draw, owner).await;
            }
            FaultKind::MoveUnheard => {
                let owner = self.owner_or(victim);
                self.store.silence_watches(owner.id, time);
                self.move_from(judge, draw, owner).await;
                judge.sleep(time).await;
            }
            FaultKind::MoveThereAndBack => {
                let owner = self.owner_or(victim);
                let (back, other) = (run_of(owner), run_of(self.another(draw, owner)));
                self.store.silence_watches(owner.id, time);
                if let (Some(back), Some(other)) = (back, other) {
                    self.assign(judge, other).await;
                    judge.sleep(time / 8).await;
                    self.assign(judge, back).await;
                }
            }
            FaultKind::ChangeLeader => self.store.change_leader(),
            FaultKind::LoseQuorum => {
                self.store.lose_quorum();
                judge.sleep(time).await;
                self.store.regain_quorum();
            }
            FaultKind::CutOffCoordination => {
                self.store.cut_off(victim.id);
                judge.sleep(time).await;
                self.store.reconnect(victim.id);
            }
            FaultKind::SilenceWatches => self.store.silence_watches(victim.id, time),
            FaultKind::JumpClock => {
                let day = 86_400;
                victim
                    .node
                    .jump_clock(draw.below(2 * day) as i64 - day as i64);
            }
            FaultKind::Drift => victim.node.drift(draw.below(2_000) as i64 - 1_000),
        }
    }

    /// The nodes whose clients may lose their sessions by the fault that [`Machines::cause`] causes with
    /// this draw: those that the owner doesn't hear for longer than their tokens last, and that of an owner that is replaced
    /// before it has made everything durable. An owner that hears nobody ends nobody's session.
    pub(super) fn cut_off_by(&self, mut draw: Draw, kind: FaultKind) -> Vec<NodeId> {
        let victim = self.any(&mut draw);
        let _time = draw.below(BROKEN_MAX);
        match kind {
            FaultKind::Pause | FaultKind::Isolate => vec![victim.id],
            FaultKind::PauseOwner | FaultKind::Move | FaultKind::MoveUnheard => {
                vec![self.owner_or(victim).id]
            }
            FaultKind::MoveThereAndBack => {
                let owner = self.owner_or(victim);
                vec![owner.id, self.another(&mut draw, owner).id]
            }
            // It is given away again when all are back.
            FaultKind::CutAllPower => self.nodes.iter().map(|it| it.id).collect(),
            FaultKind::CutOneWay => vec![victim.id, self.another(&mut draw, victim).id],
            _ => Vec::new(),
        }
    }

    /// After a daemon's end: another node gets the shard if it was there, and the daemon starts
    /// again.
    async fn revive(&self, judge: &Judge, draw: &mut Draw, victim: &Machine, owned: bool) {
        if owned {
            self.move_from(judge, draw, victim).await;
        }
        judge.sleep(Duration::from_millis(draw.below(3_000))).await;
        victim.start();
        victim.is_up(judge).await;
    }

    /// The machine whose daemon a shard's record names; waits while that runs nowhere.
    pub(super) async fn owner_of(&self, judge: &Judge, shard: ShardId) -> &Machine {
        loop {
            let assigned = self.assigned_of(judge, shard).await;
            let owner = self.nodes.iter().find(|it| run_of(it) == assigned);
            if let Some(owner) = owner.filter(|_| assigned.is_some()) {
                return owner;
            }
            // On its way from one node to another.
            judge.sleep(LOOK_EVERY).await;
        }
    }

    /// Whether the shard's record names the machine's daemon.
    async fn owns(&self, judge: &Judge, machine: &Machine) -> bool {
        let run = run_of(machine);
        run.is_some() && self.assigned(judge).await == run
    }

    /// The run that the root shard's record names.
    pub(super) async fn assigned(&self, judge: &Judge) -> Option<NodeRun> {
        self.assigned_of(judge, ROOT_SHARD).await
    }

    /// The run that a shard's record names.
    pub(super) async fn assigned_of(&self, judge: &Judge, shard: ShardId) -> Option<NodeRun> {
        let asked = self.ask(move |coordination| async move {
            loop {
                if let Ok(record) = coordination.shard(shard).await {
                    return record.and_then(|record| record.value.assigned);
                }
            }
        });
        judge
            .within("coordination answers", ASSIGN_MAX, asked.done())
            .await
    }

    /// Gives the shard to a node other than this one.
    pub(super) async fn move_from(&self, judge: &Judge, draw: &mut Draw, from: &Machine) {
        let to = self.another(draw, from);
        to.is_up(judge).await;
        if let Some(to) = run_of(to) {
            self.assign(judge, to).await;
        }
    }

    /// Takes the root shard from its owner. The manager gives it to a node once it has been given up.
    pub(super) async fn release(&self, judge: &Judge) {
        let released = self.ask(|coordination| async move {
            loop {
                let Ok(Some(record)) = coordination.shard(ROOT_SHARD).await else {
                    continue;
                };
                let Ok(Some(members)) = coordination.membership().await else {
                    continue;
                };
                let owner = record.value.assigned;
                let released =
                    coordination.assign_shard_as_manager(ROOT_SHARD, owner, None, members.version);
                if released.await.is_ok() {
                    return;
                }
            }
        });
        judge
            .within("the shard is released", ASSIGN_MAX, released.done())
            .await;
    }

    /// Gives the root shard to a run, whoever has it.
    pub(super) async fn assign(&self, judge: &Judge, to: NodeRun) {
        self.assign_of(judge, ROOT_SHARD, to).await;
    }

    /// Gives a shard to a run, whoever has it.
    pub(super) async fn assign_of(&self, judge: &Judge, shard: ShardId, to: NodeRun) {
        let assigned = self.ask(move |coordination| async move {
            loop {
                let Ok(Some(record)) = coordination.shard(shard).await else {
                    continue;
                };
                let before = record.value.assigned;
                if coordination.assign_shard(shard, before, to).await.is_ok() {
                    return;
                }
            }
        });
        judge
            .within("the shard is assigned", ASSIGN_MAX, assigned.done())
            .await;
    }

    pub(super) fn any(&self, draw: &mut Draw) -> &Machine {
        draw.one_of(&self.nodes).expect("a cluster has nodes")
    }

    /// Any machine but this one.
    pub(super) fn another(&self, draw: &mut Draw, not: &Machine) -> &Machine {
        let others: Vec<_> = self.nodes.iter().filter(|it| it.id != not.id).collect();
        draw.one_of(&others).expect("a cluster has several nodes")
    }

    pub(super) fn owner_or<'a>(&'a self, other: &'a Machine) -> &'a Machine {
        self.owner().unwrap_or(other)
    }
}

/// The run of a machine's daemon.
pub(super) fn run_of(machine: &Machine) -> Option<NodeRun> {
    machine.member().map(|member| member.run())
}
