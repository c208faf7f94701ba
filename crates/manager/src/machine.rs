//! The manager as a state machine: events and the time in, actions out.
//!
//! It owns the leases, what nodes said, and proofs of death; the membership is coordination's, and
//! each of its changes is a compare-and-set against the version that this manager wrote or read last.

use crate::apart::{Apart, Roles, View};
use crate::changes::{Assignment, Doing, Situation, is_behind};
use crate::facts::Facts;
use crate::leases::{LEASE_BY_ANY_CLOCK, Leases};
use crate::planted::Planted;
use crate::unheard::{Poll, jury};
use model::limits::SHARDS_OF_PROCESS_MAX;
use model::member::{
    Cause, Change, HEARTBEAT_EVERY, Heartbeat, HeartbeatReply, Membership, NODE_LEASE, NODES_MAX,
    Role, Standing, Term, Verdict,
};
use model::{Moment, NodeId, NodeRun, ShardId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Pause before something is asked of coordination again whose outcome is unknown.
const AGAIN_AFTER: Duration = Duration::from_millis(200);
/// Attempts that must be refused to prove that nobody listens.
const REFUSED_MIN: u8 = 2;
/// Time between two such attempts.
const PROBE_AFTER: Duration = Duration::from_millis(300);
/// Time after an attempt that wasn't refused although the connection had broken.
const OPEN_AFTER: Duration = Duration::from_millis(100);
/// How long the manager before has to be heard once this one's term is stored, however long that took.
const FORMER_HEARD: Duration = Duration::from_millis(1_500);
/// Most records of shards that are being changed at the same time.
const ASSIGNING_MAX: usize = 64;
/// Who was heard has more than this left of its lease until a heartbeat is missing.
const HEARD_REST: Duration = LEASE_BY_ANY_CLOCK.saturating_sub(HEARTBEAT_EVERY.saturating_mul(2));
/// How long those who live may take to find that they don't hear this manager, once leases have ended of most members.
const FOUND_MAX: Duration = Duration::from_secs(5);

/// What a manager begins with: all read after the manager's place in coordination was won.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Start {
    /// The run that is the manager now.
    pub own: NodeRun,
    /// Until when its place lasts by this machine's clock, whatever the clock of coordination does.
    pub own_until: Moment,
    /// How long ago the manager before has kept its place, at least, by this machine's clock. Its own lease counts from
    /// then.
    pub former_kept: Duration,
    /// The membership, and its version in coordination; 0 if there is none.
    pub record: Membership,
    /// That version.
    pub version: u64,
    /// The shards: who is assigned, and the version of the record.
    pub shards: Vec<(ShardId, Option<NodeRun>, u64)>,
    /// The newest runs of nodes that coordination knows.
    pub newest: Vec<NodeRun>,
    /// What nodes are beside owners.
    pub roles: Roles,
    /// The run whose place this one took because it is dead: two attempts in a row were refused at all its addresses. The
    /// same proof expels it.
    pub dead: Option<NodeRun>,
}

/// What happens.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Event {
    /// A heartbeat arrived.
    Heartbeat {
        /// Of this run.
        from: NodeRun,
        /// What it says.
        heartbeat: Heartbeat,
    },
    /// A run says which members it needs and can't reach: all of them.
    Unreached {
        /// The run.
        from: NodeRun,
        /// The members.
        runs: Vec<NodeRun>,
    },
    /// What nodes are beside owners has changed.
    Roles(Roles),
    /// An established connection with the run broke off.
    Broke(NodeRun),
    /// No connection with it could be made. It may be that it reaches this run, and this run doesn't reach it.
    Unconnected(NodeRun),
    /// An attempt ended that [`Action::Probe`] asked for.
    Probed {
        /// The run that was meant.
        run: NodeRun,
        /// All addresses refused it, which proves something ([`Action::Probe`]). An attempt without an answer wasn't refused.
        is_refused: bool,
    },
    /// Coordination knows this run of its node.
    Appeared(NodeRun),
    /// A shard's record.
    Shard {
        /// The shard.
        shard: ShardId,
        /// The run that it names.
        assigned: Option<NodeRun>,
        /// Its version.
        version: u64,
    },
    /// The membership was stored, with this version.
    Stored(u64),
    /// It wasn't: coordination has another one.
    Outdated,
    /// It may have been stored, or may be later.
    StoreUnknown,
    /// A shard's record after an attempt to change it.
    Assigned {
        /// The shard.
        shard: ShardId,
        /// The run that it names now.
        assigned: Option<NodeRun>,
        /// Its version.
        version: u64,
    },
    /// A shard's record may have been changed, or may be later.
    AssignUnknown(ShardId),
    /// The manager's place in coordination lasts until then, by this machine's clock. Nothing is to be done then.
    OwnLease(Moment),
    /// Coordination says that this run doesn't have the manager's place any more.
    PlaceLost,
    /// Others have found that most of them don't hear this run.
    Unheard,
    /// Time has passed. Wanted every 100 ms.
    Tick,
}

/// What is to be done.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// Answer the run's heartbeat.
    Answer {
        /// The run.
        to: NodeRun,
        /// The answer.
        reply: HeartbeatReply,
    },
    /// Say that this isn't the manager, or not yet.
    Decline(NodeRun),
    /// Try to connect to the run's node after a time, and say what came of it.
    Probe {
        /// The run.
        run: NodeRun,
        /// The time.
        after: Duration,
        /// It said something a moment ago. That it is refused then proves nothing if all other members are refused, too: a
        /// filter of packets stands before this machine.
        was_heard: bool,
    },
    /// Store the membership if its version is `expected`. An attempt that finds it stored says so.
    Store {
        /// The membership.
        record: Membership,
        /// The version.
        expected: u64,
    },
    /// Change a shard's record if it names `from` and the membership has the version `membership`.
    Assign {
        /// The shard.
        shard: ShardId,
        /// The run that it must name.
        from: Option<NodeRun>,
        /// The run that it shall name.
        to: Option<NodeRun>,
        /// Fences managers of earlier terms.
        membership: u64,
    },
    /// This run isn't the manager any more: nothing that it does counts.
    Resign(Resigned),
}

/// Why a manager gives up.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Resigned {
    /// Another one has written the membership. If the place is still this run's, it begins anew.
    Outdated,
    /// Its place in coordination may be another's, or is.
    LeaseOver,
    /// The membership says that its own run has ended.
    Ended,
    /// Most of the others don't hear it. It gives its place up, for one whom they hear.
    Unheard,
    /// Of members that can't reach each other it is the one that goes. It gives its place up, for one that can expel it.
    Apart,
}

/// The manager of a cluster.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Manager {
    own: NodeRun,
    own_until: Moment,
    record: Membership,
    version: u64,
    /// The membership that is being stored, and when to try again if that isn't under way.
    storing: Option<(Membership, Option<Moment>)>,
    /// Shards whose records are being changed, and when to try again if that isn't under way.
    assigning: BTreeMap<ShardId, Option<Moment>>,
    /// From when runs that were never heard are counted.
    began: Moment,
    /// The manager before, and how long its lease may still last from then on.
    former: Option<(NodeRun, Duration)>,
    /// When its term was stored; heartbeats are answered from then on.
    since: Option<Moment>,
    last_move: Moment,
    /// Since when leases have ended and most members aren't heard.
    alone: Option<Moment>,
    roles: Roles,
    leases: Leases,
    facts: Facts,
    has_resigned: bool,
    planted: Option<Planted>,
}

impl Manager {
    /// A manager that has just won its place, and its first actions.
    #[must_use]
    pub fn begin(start: Start, now: Moment) -> (Self, Vec<Action>) {
        Self::begin_planted(start, now, None)
    }

    /// [`Manager::begin`] with a fault, for tests.
    #[must_use]
    pub fn begin_planted(
        start: Start,
        now: Moment,
        planted: Option<Planted>,
    ) -> (Self, Vec<Action>) {
        let mut facts = Facts {
            apart: Apart::begin(&start.record, now),
            ..Facts::default()
        };
        for (shard, assigned, version) in start.shards {
            facts.learn_shard(shard, assigned, version, now);
        }
        for run in start.newest {
            facts.newest.insert(run.node, run);
        }
        let began = match planted {
            Some(Planted::CountEarly) => Moment(now.0.saturating_sub(NODE_LEASE)),
            _ => now,
        };
        let former = start.record.manager.filter(|run| *run != start.own);
        let rest = LEASE_BY_ANY_CLOCK.saturating_sub(start.former_kept);
        let mut manager = Self {
            own: start.own,
            own_until: start.own_until,
            record: start.record,
            version: start.version,
            storing: None,
            assigning: BTreeMap::new(),
            began,
            former: former.map(|run| (run, rest)),
            since: None,
            last_move: now,
            alone: None,
            roles: start.roles,
            leases: Leases::default(),
            facts,
            has_resigned: false,
            planted,
        };
        if let Some(dead) = start.dead.filter(|dead| manager.is_of_interest(*dead)) {
            manager.condemn(dead, Cause::Refused);
        }
        let mut first = manager.record.clone();
        first.term = Term(first.term.0 + 1);
        first.manager = Some(manager.own);
        if manager.has(Planted::ForgetPlan) {
            first.plan = None;
        }
        let mut actions = Vec::new();
        manager.store(first, &mut actions);
        (manager, actions)
    }

    /// What coordination says of the members, as far as this manager knows.
    #[must_use]
    pub fn membership(&self) -> &Membership {
        &self.record
    }

    /// The same with its version, once this manager has written its term into it.
    #[must_use]
    pub fn established(&self) -> Option<(&Membership, u64)> {
        self.since.map(|_| (&self.record, self.version))
    }

    /// Runs with a lease, clients included.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.leases.len()
    }

    /// Runs to which a connection should be kept, so that its end is noticed.
    pub fn attended(&self) -> impl Iterator<Item = NodeRun> {
        let members = self.record.members.values();
        let members = members.filter(|member| member.standing.is_member());
        members.map(|member| member.run)
    }

    /// When the leases of the members end by every clock, unless they are heard before.
    pub fn lease_ends(&self) -> impl Iterator<Item = (NodeRun, Moment)> {
        self.attended()
            .filter_map(move |run| Some((run, self.leases.end(run)?)))
    }

    /// Whether this manager has heard so many of a jury since then that most of it can't say that they don't hear this run
    /// ([`Poll`]). One that has resigned hears nobody.
    #[must_use]
    pub fn has_heard_most(&self, quorum: &BTreeSet<NodeId>, since: Moment) -> bool {
        if self.since.is_none() || self.has_resigned {
            return false;
        }
        let jury = jury(&self.record, quorum);
        let mut poll = Poll::of(&jury);
        let renewed = since.plus(self.lease());
        for run in jury {
            let end = self.leases.end(run);
            let is_heard =
                self.facts.heard.contains_key(&run) && end.is_some_and(|end| end >= renewed);
            poll.says(run != self.own && !is_heard);
        }
        poll.outcome() == Some(false)
    }

    /// Takes an event and says what is to be done.
    pub fn on(&mut self, event: Event, now: Moment) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.has_resigned {
            if let Event::Heartbeat { from, .. } = event {
                actions.push(Action::Decline(from));
            }
            return actions;
        }
        match event {
            Event::Heartbeat { from, heartbeat } => {
                actions.push(self.heartbeat(from, heartbeat, now));
                // All else waits for the next tick: heartbeats are many.
                return actions;
            }
            Event::Unreached { from, runs } => {
                if self.since.is_some() && self.record.is_member(from) {
                    self.facts.apart.hear(from, runs, now);
                }
                // Judged at the next tick.
                return actions;
            }
            Event::Roles(roles) => self.learn_roles(roles),
            Event::Broke(run) => self.broke(run, now, &mut actions),
            Event::Unconnected(run) => {
                // Whoever is heard lives, whatever refuses connections to it.
                if !self.is_heard(run, now) && !self.facts.apart.is_going(run) {
                    self.broke(run, now, &mut actions);
                }
            }
            Event::Probed { run, is_refused } => self.probed(run, is_refused, now, &mut actions),
            Event::Appeared(run) => self.appeared(run),
            Event::Shard {
                shard,
                assigned,
                version,
            } => self.facts.learn_shard(shard, assigned, version, now),
            Event::Stored(version) => self.stored(version, now),
            Event::Outdated => self.resign(Resigned::Outdated, &mut actions),
            Event::StoreUnknown => {
                if let Some((_, again)) = &mut self.storing {
                    *again = Some(now.plus(AGAIN_AFTER));
                }
            }
            Event::Assigned {
                shard,
                assigned,
                version,
            } => {
                self.assigning.remove(&shard);
                self.facts.learn_shard(shard, assigned, version, now);
            }
            Event::AssignUnknown(shard) => {
                let again = now.plus(AGAIN_AFTER);
                self.assigning.insert(shard, Some(again));
            }
            Event::OwnLease(until) => {
                self.own_until = self.own_until.max(until);
                // Whoever keeps the place does nothing else: what is due waits for the next tick.
                return actions;
            }
            Event::PlaceLost => self.resign(Resigned::LeaseOver, &mut actions),
            Event::Unheard => self.resign(Resigned::Unheard, &mut actions),
            Event::Tick => {}
        }
        self.advance(now, &mut actions);
        actions
    }

    fn heartbeat(&mut self, from: NodeRun, heartbeat: Heartbeat, now: Moment) -> Action {
        let is_new = !self.leases.has(from);
        if self.since.is_none()
            || self.is_lease_over(now)
            || heartbeat.hosts.len() > SHARDS_OF_PROCESS_MAX
            || (is_new && self.leases.len() >= NODES_MAX)
        {
            return Action::Decline(from);
        }
        let mut verdict = self.verdict(from, &heartbeat);
        if matches!(verdict, Verdict::Renewed | Verdict::Wait) {
            self.appeared(from);
            self.facts.proofs.remove(&from);
            if let Some(was_heard_since) = self.facts.probing.get_mut(&from) {
                *was_heard_since = true;
            }
            let is_behind = self.record.is_member(from)
                && is_behind(&self.record, &self.facts, (from, &heartbeat), now)
                && !self.has(Planted::GiveToTwo);
            if is_behind {
                verdict = Verdict::Wait;
            } else if !self.facts.condemned.contains_key(&from) && !self.facts.apart.is_going(from)
            {
                self.leases.renew(from, now, self.lease());
            }
            self.facts.heard.insert(from, heartbeat);
        }
        let reply = HeartbeatReply {
            term: self.record.term,
            verdict,
        };
        Action::Answer { to: from, reply }
    }

    fn verdict(&self, from: NodeRun, heartbeat: &Heartbeat) -> Verdict {
        let known = self.record.members.get(&from.node);
        let own = known.filter(|member| member.run == from);
        if own.is_some_and(|member| member.standing == Standing::Left) {
            return Verdict::Left;
        }
        let newest = self.facts.newest.get(&from.node);
        let admits_any = self.has(Planted::AdmitExpelled);
        let is_ended = self.has_ended(from) && !admits_any;
        if is_ended || newest.is_some_and(|newest| from < *newest) {
            return Verdict::Ended;
        }
        // It is being expelled: its lease must not begin again before that is stored.
        if self.facts.condemned.contains_key(&from) && !self.has(Planted::RenewCondemned) {
            return Verdict::Wait;
        }
        // It is expelled when its lease has ended, unless it reaches the others again before.
        if self.facts.apart.is_going(from) {
            return Verdict::Wait;
        }
        if self.record.is_member(from) || heartbeat.role == Role::Client {
            return Verdict::Renewed;
        }
        Verdict::Wait
    }

    fn broke(&mut self, run: NodeRun, now: Moment, actions: &mut Vec<Action>) {
        let is_judged = self.facts.condemned.contains_key(&run);
        if self.is_of_interest(run) && !is_judged && !self.facts.proofs.contains_key(&run) {
            self.facts.proofs.insert(run, Default::default());
            self.probe(run, Duration::ZERO, now, actions);
        }
    }

    /// Wants an attempt, unless one is under way: the time between two must pass although a heartbeat ended a proof meanwhile,
    /// and another one has begun.
    fn probe(&mut self, run: NodeRun, after: Duration, now: Moment, actions: &mut Vec<Action>) {
        if self.facts.probing.contains_key(&run) {
            return;
        }
        self.facts.probing.insert(run, false);
        actions.push(Action::Probe {
            run,
            after,
            was_heard: self.is_heard(run, now),
        });
    }

    fn probed(&mut self, run: NodeRun, is_refused: bool, now: Moment, actions: &mut Vec<Action>) {
        let was_heard_since = self.facts.probing.remove(&run) == Some(true);
        let needed = match self.planted {
            Some(Planted::ExpelUnproven) => 1,
            _ => REFUSED_MIN,
        };
        // That no connection can be made proves nothing of a run that is heard: the proof began when one broke.
        let has_broken = self.is_heard(run, now) && !self.facts.condemned.contains_key(&run);
        let Some(proof) = self.facts.proofs.get_mut(&run) else {
            return;
        };
        if was_heard_since && needed > 1 {
            // The proof began after the heartbeat, and this attempt before it.
            let after = match is_refused {
                true => Duration::ZERO,
                false => OPEN_AFTER,
            };
            return self.probe(run, after, now, actions);
        }
        if !is_refused && needed > 1 {
            if has_broken {
                // Of a process that dies the kernel may close the connections long before what it listens on. One that
                // lives says something soon, which ends this.
                proof.refused = 0;
                self.probe(run, OPEN_AFTER, now, actions);
            } else {
                self.facts.proofs.remove(&run);
            }
            return;
        }
        proof.refused += 1;
        if proof.refused < needed {
            self.probe(run, PROBE_AFTER, now, actions);
            return;
        }
        self.facts.proofs.remove(&run);
        if self.is_of_interest(run) {
            self.condemn(run, Cause::Refused);
        }
    }

    fn appeared(&mut self, run: NodeRun) {
        let newest = self.facts.newest.entry(run.node).or_insert(run);
        *newest = (*newest).max(run);
    }

    fn stored(&mut self, version: u64, now: Moment) {
        let (record, _) = self.storing.take().expect("one store is answered once");
        self.version = version;
        let before = std::mem::replace(&mut self.record, record);
        if self.since.is_none() {
            self.since = Some(now);
        }
        let plan = self.record.plan.as_ref();
        if plan.is_some_and(|plan| plan.change == Change::Balance) {
            self.last_move = now;
        }
        for member in self.record.members.values() {
            let run = member.run;
            // From now on the membership says so.
            if self.record.has_ended(run) {
                self.facts.condemned.remove(&run);
                self.facts.heard.remove(&run);
                self.leases.forget(run);
            } else if !before.is_member(run) && self.record.is_member(run) {
                // It is answered with its first lease from now on.
                self.leases.renew(run, now, self.lease());
            }
        }
    }

    fn resign(&mut self, why: Resigned, actions: &mut Vec<Action>) {
        self.has_resigned = true;
        actions.push(Action::Resign(why));
    }

    /// Does what is due.
    fn advance(&mut self, now: Moment, actions: &mut Vec<Action>) {
        if self.has_resigned {
            return;
        }
        if self.is_lease_over(now) {
            return self.resign(Resigned::LeaseOver, actions);
        }
        if self.record.has_ended(self.own) {
            return self.resign(Resigned::Ended, actions);
        }
        if let Some((record, again)) = &mut self.storing {
            if again.is_some_and(|at| at <= now) {
                *again = None;
                actions.push(Action::Store {
                    record: record.clone(),
                    expected: self.version,
                });
            }
            return;
        }
        let Some(since) = self.since else {
            return;
        };
        self.find_ended(now);
        if self.part(now) {
            return self.resign(Resigned::Apart, actions);
        }
        let situation = Situation {
            record: &self.record,
            facts: &self.facts,
            roles: &self.roles,
            leases: &self.leases,
            since,
            last_move: self.last_move,
            now,
            planted: self.planted,
        };
        match situation.next() {
            Doing::Nothing => {}
            Doing::Store(record) => self.store(record, actions),
            Doing::Assign(assignments) => self.assign(&assignments, now, actions),
        }
        if self.has(Planted::AssignUnfenced) {
            self.assign_unfenced(now, actions);
        }
    }

    /// Looks for runs that have ended by their leases or because newer ones are there.
    fn find_ended(&mut self, now: Moment) {
        let members = self.attended();
        let assigned = self.facts.shards.values().filter_map(|fact| fact.assigned);
        let assigned = assigned.filter(|run| !self.has_ended(*run));
        let of_interest: Vec<_> = members.chain(assigned).collect();
        let lease = self.lease();
        for run in of_interest {
            match self.former.filter(|former| former.0 == run) {
                Some(_) if self.has(Planted::ForgetFormer) => {
                    self.leases.expect_first(run, self.began, Duration::ZERO);
                }
                // It can be heard only once the term is stored.
                Some((_, rest)) => {
                    let heard = self.since.unwrap_or(self.began).plus(FORMER_HEARD);
                    let until = self.began.plus(rest).max(heard);
                    self.leases.expect_first(run, until, Duration::ZERO);
                }
                None => self.leases.expect_first(run, self.began, lease),
            }
            let newest = self.facts.newest.get(&run.node);
            if newest.is_some_and(|newest| run < *newest) {
                self.condemn(run, Cause::NewerRun);
            }
        }
        let may_be_unheard = self.may_be_unheard(now);
        let over: Vec<_> = self.leases.over(now).collect();
        for run in over {
            if !self.is_of_interest(run) {
                self.leases.forget(run);
                self.facts.heard.remove(&run);
            } else if !may_be_unheard {
                self.condemn(run, self.facts.apart.cause_of(run));
            }
        }
    }

    /// Most members fall silent at about the same time. They may not be dead: perhaps it is this run that they don't hear,
    /// which they find out. Nobody's silence counts until then.
    fn may_be_unheard(&mut self, now: Moment) -> bool {
        let others = self
            .attended()
            .filter(|run| *run != self.own && !self.facts.condemned.contains_key(run));
        // The first lease ends up to a heartbeat before those of all others that fell silent with it.
        let (heard, silent): (Vec<NodeRun>, Vec<NodeRun>) =
            others.partition(|run| self.has_rest(*run, now));
        let is_any_over = silent.iter().any(|run| self.leases.is_over(*run, now));
        // This run hears itself.
        if !is_any_over || silent.len() <= heard.len() + 1 {
            self.alone = None;
            return false;
        }
        let since = *self.alone.get_or_insert(now);
        now < since.plus(FOUND_MAX)
    }

    /// No heartbeat is missing of the run, as far as its lease shows.
    fn has_rest(&self, run: NodeRun, now: Moment) -> bool {
        let end = self.leases.end(run);
        end.is_some_and(|end| end > now.plus(HEARD_REST))
    }

    /// The run said something to this manager a moment ago.
    fn is_heard(&self, run: NodeRun, now: Moment) -> bool {
        self.facts.heard.contains_key(&run) && self.has_rest(run, now)
    }

    /// Decides who goes of members that can't reach each other. Returns whether it is this run.
    fn part(&mut self, now: Moment) -> bool {
        if self.facts.apart.is_calm() {
            return false;
        }
        let mut apart = std::mem::take(&mut self.facts.apart);
        let members = self.attended();
        let living = members.filter(|run| {
            !self.facts.condemned.contains_key(run) && !self.leases.is_over(*run, now)
        });
        let shards = self.facts.shards.values();
        let view = View {
            own: self.own,
            record: &self.record,
            roles: &self.roles,
            living: living.map(|run| (run.node, run)).collect(),
            owners: shards.filter_map(|fact| fact.assigned).collect(),
        };
        let is_own = apart.advance(&view, now);
        self.facts.apart = apart;
        let is_early = self.has(Planted::PartEarly);
        if let Some(going) = self.facts.apart.going().filter(|_| is_early) {
            self.condemn(going, self.facts.apart.cause_of(going));
        }
        is_own
    }

    fn condemn(&mut self, run: NodeRun, cause: Cause) {
        self.facts.condemned.entry(run).or_insert(cause);
    }

    /// A member, or one that is assigned a shard and may become one.
    fn is_of_interest(&self, run: NodeRun) -> bool {
        let is_assigned = || {
            let mut shards = self.facts.shards.values();
            shards.any(|fact| fact.assigned == Some(run))
        };
        !self.has_ended(run) && (self.record.is_member(run) || is_assigned())
    }

    fn has_ended(&self, run: NodeRun) -> bool {
        self.roles.has_ended(&self.record, run)
    }

    /// What is told may be older than what this manager began with. Whatever it says, a node that was removed stays so: the
    /// membership may have forgotten that its runs have ended.
    fn learn_roles(&mut self, mut roles: Roles) {
        roles.removed.append(&mut self.roles.removed);
        self.roles = roles;
    }

    fn store(&mut self, record: Membership, actions: &mut Vec<Action>) {
        assert!(self.storing.is_none(), "one change at a time");
        actions.push(Action::Store {
            record: record.clone(),
            expected: self.version,
        });
        self.storing = Some((record, None));
    }

    fn assign(&mut self, assignments: &[Assignment], now: Moment, actions: &mut Vec<Action>) {
        for it in assignments {
            let again = self.assigning.get(&it.shard);
            let is_due = again.is_none_or(|again| again.is_some_and(|at| at <= now));
            let has_room = again.is_some() || self.assigning.len() < ASSIGNING_MAX;
            if is_due && has_room {
                self.assigning.insert(it.shard, None);
                actions.push(Action::Assign {
                    shard: it.shard,
                    from: it.from,
                    to: it.to,
                    membership: self.version,
                });
            }
        }
    }

    /// The planted fault.
    fn assign_unfenced(&mut self, now: Moment, actions: &mut Vec<Action>) {
        let owners = self.record.members.values();
        let to = owners.map(|member| member.run).find(|run| *run != self.own);
        let of_broken = self.facts.shards.iter().filter_map(|(shard, fact)| {
            let from = fact.assigned?;
            self.facts
                .proofs
                .contains_key(&from)
                .then_some((*shard, from))
        });
        let moved: Vec<_> = of_broken
            .filter(|(_, from)| to.is_some_and(|to| to != *from))
            .map(|(shard, from)| Assignment {
                shard,
                from: Some(from),
                to,
            })
            .collect();
        self.assign(&moved, now, actions);
    }

    fn is_lease_over(&self, now: Moment) -> bool {
        now >= self.own_until && !self.has(Planted::RuleOn)
    }

    fn lease(&self) -> Duration {
        match self.planted {
            Some(Planted::NoMargin) => NODE_LEASE,
            _ => LEASE_BY_ANY_CLOCK,
        }
    }

    fn has(&self, fault: Planted) -> bool {
        self.planted == Some(fault)
    }
}
