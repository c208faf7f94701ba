//! Many nodes that are only leases, purses and workers, beside the real manager, ledger, planner and
//! pool map: what a manager has to do for them. Heartbeats come evenly; messages take 100 ms.

use manager::jobs::{self, GroupFact, NsdFact, Outcome, Planner, Settings, Slot, Worker};
use manager::space::{Ledger, Purse, Round, Say};
use manager::{Action, Event, Manager, Moment, NodeLease, Roles, Standing, Start};
use model::map::{NsdEntry, NsdState, PoolMap};
use model::member::{HEARTBEAT_EVERY, Heartbeat, Membership, Role, Term, Weight};
use model::{FailureGroupId, NodeId, NodeRun, NsdId, Scheme, ShardId};
use placement::{Groups, finish_moves, mark_lost, new_pool};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const STEP: Duration = Duration::from_millis(100);
/// Nodes of a rack: a failure group.
pub(crate) const RACK: u32 = 40;
const NSD_BYTES: u64 = 1 << 40;
/// What a node writes between two heartbeats.
const WRITTEN: u64 = 24 << 20;
/// A job that finds nothing missing.
const LOOK_BYTES: u64 = 1 << 20;
/// What one that moves a slot copies.
const MOVE_BYTES: u64 = 64 << 20;
const SETTINGS: Settings = Settings {
    sweep_every: Duration::from_secs(3_600),
    scrub_every: Duration::from_secs(14 * 86_400),
    node_bytes_per_second: 200 << 20,
};

/// What the manager's node received, sent and stored.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Counted {
    pub(crate) seconds: u64,
    pub(crate) received: u64,
    pub(crate) sent: u64,
    pub(crate) bytes: u64,
    pub(crate) stored: u64,
    /// Of the largest record of the members.
    pub(crate) record_bytes: u64,
    pub(crate) assigned: u64,
}

impl Counted {
    /// What happened since.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            seconds: self.seconds - before.seconds,
            received: self.received - before.received,
            sent: self.sent - before.sent,
            bytes: self.bytes - before.bytes,
            stored: self.stored - before.stored,
            record_bytes: self.record_bytes,
            assigned: self.assigned - before.assigned,
        }
    }
}

struct Stub {
    run: NodeRun,
    is_up: bool,
    lease: NodeLease,
    shards: BTreeSet<ShardId>,
    purse: Purse,
    worker: Worker,
}

/// The parts of a manager's node.
#[derive(Clone)]
pub(crate) struct Brain {
    pub(crate) manager: Manager,
    pub(crate) ledger: Ledger,
    pub(crate) planner: Planner,
}

pub(crate) struct Crowd {
    pub(crate) now: Duration,
    steps: u64,
    stubs: Vec<Stub>,
    pub(crate) brain: Brain,
    term: u64,
    own: NodeRun,
    map: PoolMap,
    /// Groups of which slots moved when the map was last changed.
    moving: BTreeSet<u32>,
    membership: Membership,
    version: u64,
    revision: u64,
    shards: BTreeMap<ShardId, (Option<NodeRun>, u64)>,
    newest: Vec<NodeRun>,
    /// Come next time.
    events: Vec<Event>,
    measures: Vec<Round>,
    pub(crate) counted: Counted,
}

fn run(node: u32) -> NodeRun {
    NodeRun {
        node: NodeId(node),
        incarnation: 1,
    }
}

/// As in a message.
fn bytes_of<T: serde::Serialize>(value: &T) -> u64 {
    postcard::to_allocvec(value).expect("it has a form").len() as u64
}

impl Crowd {
    pub(crate) fn new(nodes: u32) -> Self {
        let nsd = |node: u32| NsdEntry {
            nsd: NsdId(node),
            failure_group: FailureGroupId(node / RACK),
            weight: 1_024,
            state: NsdState::Active,
        };
        let wide = (nodes / RACK) as usize >= 11;
        let scheme = match wide {
            true => Scheme::Erasure { k: 8, m: 3 },
            false => Scheme::Replicate(3),
        };
        let map = new_pool(scheme, (1..=nodes).map(nsd).collect(), 7).expect("enough racks");
        let shards: BTreeMap<_, _> = (1..=nodes)
            .map(|it| (ShardId(it), (Some(run(it)), 1)))
            .collect();
        let newest: Vec<_> = (1..=nodes).map(run).collect();
        let start = Self::start_of(run(1), &Membership::default(), 0, &shards, &newest);
        let (manager, actions) = Manager::begin(start, Moment::default());
        let stub = |node: u32| {
            // It is a new run, which was given nothing yet.
            let mut purse = Purse::default();
            purse.begin_term(Term(1));
            Stub {
                run: run(node),
                is_up: true,
                lease: NodeLease::default(),
                shards: BTreeSet::from([ShardId(node)]),
                purse,
                worker: Worker::default(),
            }
        };
        let mut crowd = Self {
            now: Duration::ZERO,
            steps: 0,
            stubs: (1..=nodes).map(stub).collect(),
            brain: Brain {
                manager,
                ledger: Ledger::new(Term(1), []),
                planner: Planner::begin(Term(1), SETTINGS, Moment::default()),
            },
            term: 1,
            own: run(1),
            map,
            moving: BTreeSet::new(),
            membership: Membership::default(),
            version: 0,
            revision: 1,
            shards,
            newest,
            events: Vec::new(),
            measures: Vec::new(),
            counted: Counted::default(),
        };
        crowd.perform(actions);
        for node in 1..=nodes {
            crowd.brain.ledger.begin(run(node));
            crowd.brain.planner.begin_server(run(node));
        }
        let said = crowd.brain.ledger.measure();
        crowd.say(said);
        crowd.learn_map();
        crowd.learn_nsds();
        crowd
    }

    fn start_of(
        own: NodeRun,
        record: &Membership,
        version: u64,
        shards: &BTreeMap<ShardId, (Option<NodeRun>, u64)>,
        newest: &[NodeRun],
    ) -> Start {
        let shards = shards.iter();
        Start {
            own,
            own_until: Moment(Duration::MAX),
            // A stub doesn't turn to another manager before its next heartbeat is due.
            former_kept: Duration::ZERO,
            record: record.clone(),
            version,
            shards: shards
                .map(|(it, (run, version))| (*it, *run, *version))
                .collect(),
            newest: newest.to_vec(),
            roles: Roles::default(),
            dead: None,
        }
    }

    /// Another node is the manager; it knows what coordination knows.
    pub(crate) fn change_manager(&mut self) {
        self.term += 1;
        let up = self.stubs.iter().filter(|stub| stub.is_up);
        let up: Vec<_> = up.map(|stub| stub.run).collect();
        let others = up.iter().copied().filter(|run| *run != self.own);
        self.own = others.min().expect("somebody lives");
        let start = Self::start_of(
            self.own,
            &self.membership,
            self.version,
            &self.shards,
            &self.newest,
        );
        let now = Moment(self.now);
        let (manager, actions) = Manager::begin(start, now);
        let members = self.membership.members.values();
        let members = members.filter(|it| it.standing.is_member());
        let members: Vec<_> = members.map(|it| it.run).collect();
        let term = Term(self.term);
        self.brain = Brain {
            manager,
            ledger: Ledger::new(term, members.iter().copied()),
            planner: Planner::begin(Term(self.term), SETTINGS, now),
        };
        self.events.clear();
        self.measures.clear();
        for run in members {
            self.brain.planner.begin_server(run);
        }
        self.perform(actions);
        self.learn_map();
        self.learn_nsds();
    }

    /// A rack's nodes die at once; connections with them break.
    pub(crate) fn kill_rack(&mut self, rack: u32) {
        for at in 0..self.stubs.len() {
            if (at as u32 + 1) / RACK == rack {
                self.stubs[at].is_up = false;
                self.events.push(Event::Broke(self.stubs[at].run));
            }
        }
        self.learn_nsds();
    }

    /// Its NSDs are given up.
    pub(crate) fn lose_rack(&mut self, rack: u32) {
        let lost: Vec<_> = self
            .map
            .nsds
            .iter()
            .filter(|it| it.failure_group.0 == rack)
            .collect();
        let lost: Vec<_> = lost.into_iter().map(|it| it.nsd).collect();
        for nsd in lost {
            self.map = mark_lost(&self.map, nsd).expect("the pool has it");
        }
        self.learn_map();
    }

    fn learn_map(&mut self) {
        let groups = Groups::new(&self.map);
        self.moving = groups.moving().into_iter().map(|it| it.0.0).collect();
        let fact = |group: model::GroupId| {
            let members = groups.members(group).iter();
            let scheme = groups.scheme_of(group).expect("the map has it");
            GroupFact {
                group,
                version: self.map.version(group),
                tolerance: scheme.tolerance() as u8,
                slots: members
                    .map(|slot| Slot {
                        current: slot.current,
                        next: slot.next,
                    })
                    .collect(),
                bytes: match self.moving.contains(&group.0) {
                    true => MOVE_BYTES,
                    false => LOOK_BYTES,
                },
            }
        };
        let facts = groups.all().map(fact).collect();
        self.brain.planner.learn_map(facts);
    }

    fn learn_nsds(&mut self) {
        let nsds = self.stubs.iter().map(|stub| {
            let fact = NsdFact {
                home: stub.run.node,
                serves: stub.is_up,
                opened: 1,
            };
            (NsdId(stub.run.node.0), fact)
        });
        self.brain.planner.learn_nsds(nsds.collect());
    }

    /// A second passes.
    pub(crate) fn second(&mut self) {
        for _ in 0..10 {
            self.step();
        }
        self.counted.seconds += 1;
        self.brain.planner.tick(Moment(self.now));
        if self.counted.seconds.is_multiple_of(5) {
            self.switch();
        }
        let said = self.brain.ledger.again();
        self.say(said);
    }

    fn switch(&mut self) {
        let arrived: BTreeSet<_> = self.brain.planner.arrived().map(|it| it.0).collect();
        if arrived.is_empty() {
            return;
        }
        let groups = Groups::new(&self.map);
        let moving = groups.moving().into_iter();
        let arrived: Vec<_> = moving
            .filter(|(group, _)| arrived.contains(group))
            .collect();
        self.map = finish_moves(&self.map, &arrived);
        self.learn_map();
    }

    fn step(&mut self) {
        self.now += STEP;
        self.steps += 1;
        let now = Moment(self.now);
        for event in std::mem::take(&mut self.events) {
            let actions = self.brain.manager.on(event, now);
            self.perform(actions);
        }
        let actions = self.brain.manager.on(Event::Tick, now);
        self.perform(actions);
        for round in std::mem::take(&mut self.measures) {
            let up = self.stubs.iter().filter(|stub| stub.is_up).count() as u64;
            let counted = manager::space::Counted {
                used: 0,
                capacity: NSD_BYTES * up,
                reserve: NSD_BYTES * up / 20,
            };
            let said = self.brain.ledger.measured(round, Some(counted));
            self.say(said);
        }
        let turns = HEARTBEAT_EVERY.as_millis() as u64 / STEP.as_millis() as u64;
        for at in 0..self.stubs.len() {
            if self.stubs[at].is_up && (at as u64 + self.steps).is_multiple_of(turns) {
                self.heartbeat(at);
            }
        }
    }

    /// What a node says every two seconds, and the answers.
    fn heartbeat(&mut self, at: usize) {
        let now = Moment(self.now);
        let stub = &mut self.stubs[at];
        let from = stub.run;
        stub.lease.sent(now);
        let heartbeat = Heartbeat {
            role: Role::Owner,
            is_leaving: false,
            knows: self.revision,
            hosts: stub.shards.iter().map(|it| (*it, Weight::ONE)).collect(),
        };
        self.counted.bytes += bytes_of(&heartbeat);
        let event = Event::Heartbeat { from, heartbeat };
        let actions = self.brain.manager.on(event, now);
        self.counted.received += 1;
        for action in &actions {
            if let Action::Answer { reply, .. } = action {
                self.stubs[at].lease.answered(*reply, now, now);
            }
        }
        self.perform(actions);
        if self.stubs[at].lease.standing(now) != Standing::Serving {
            return;
        }
        self.spend(at);
        self.work(at);
    }

    fn spend(&mut self, at: usize) {
        let stub = &mut self.stubs[at];
        stub.purse.begin_term(Term(self.term));
        if stub.purse.take(WRITTEN) {
            stub.purse.written(WRITTEN);
            stub.purse.put_back(WRITTEN);
        }
        let (from, statement) = (stub.run, stub.purse.state());
        // With the heartbeat, in one message.
        self.counted.bytes += std::mem::size_of_val(&statement) as u64;
        let said = self.brain.ledger.hear(from, statement);
        self.say(said);
    }

    fn work(&mut self, at: usize) {
        let now = Moment(self.now);
        let stub = &mut self.stubs[at];
        let running: Vec<_> = stub.worker.jobs().collect();
        for (assignment, cursor) in running {
            let job = assignment.job;
            let is_moving = job.kind == jobs::Kind::Repair && self.moving.contains(&job.group.0);
            let wanted = if is_moving { MOVE_BYTES } else { LOOK_BYTES };
            let bytes = assignment.bytes_per_second * HEARTBEAT_EVERY.as_secs();
            let reached = cursor.0 + u128::from(bytes);
            let attempt = assignment.attempt;
            stub.worker
                .advance(job, attempt, jobs::Cursor(reached), bytes);
            if reached >= u128::from(wanted) {
                stub.worker.end(job, attempt, Outcome::Complete, now);
            }
        }
        let statement = stub.worker.state(now);
        let parts = size_of::<jobs::Running>() * statement.running.len()
            + size_of::<jobs::Finished>() * statement.finished.len();
        self.counted.bytes += parts as u64;
        if let Some(orders) = self.brain.planner.hear(stub.run, &statement, now) {
            let parts = size_of::<jobs::Assignment>() * orders.assignments.len();
            self.counted.bytes += parts as u64;
            self.counted.assigned += orders.assignments.len() as u64;
            stub.worker.ordered(&orders);
        }
    }

    /// Answers of the ledger go with those to heartbeats; all else is a message of its own.
    fn say(&mut self, said: Vec<Say>) {
        let term = self.brain.ledger.term();
        for say in said {
            self.counted.bytes += std::mem::size_of_val(&say) as u64;
            match say {
                Say::Granted { to, total } => {
                    let purse = &mut self.stubs[to.node.0 as usize - 1].purse;
                    purse.granted(term, total);
                }
                Say::Recall { to, number } => {
                    self.counted.sent += 1;
                    let purse = &mut self.stubs[to.node.0 as usize - 1].purse;
                    purse.recalled(term, number);
                }
                Say::Full { to, want } => {
                    self.counted.sent += 1;
                    self.stubs[to.node.0 as usize - 1].purse.full(term, want);
                }
                Say::Measure(round) => {
                    // Each NSD is asked and answers.
                    let up = self.stubs.iter().filter(|stub| stub.is_up).count() as u64;
                    self.counted.sent += up;
                    self.counted.received += up;
                    self.measures.push(round);
                }
            }
        }
    }

    fn perform(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Answer { reply, .. } => {
                    self.counted.sent += 1;
                    self.counted.bytes += bytes_of(&reply);
                }
                Action::Decline(_) => self.counted.sent += 1,
                Action::Probe { run, .. } => {
                    self.counted.sent += 1;
                    let is_refused = !self.stubs[run.node.0 as usize - 1].is_up;
                    self.events.push(Event::Probed { run, is_refused });
                }
                Action::Store { record, expected } => {
                    self.counted.sent += 1;
                    let bytes = bytes_of(&record);
                    self.counted.bytes += bytes;
                    self.counted.record_bytes = self.counted.record_bytes.max(bytes);
                    let event = self.store(record, expected);
                    self.events.push(event);
                }
                Action::Assign {
                    shard,
                    from,
                    to,
                    membership,
                } => {
                    self.counted.sent += 1;
                    let event = self.assign(shard, from, to, membership);
                    self.events.push(event);
                }
                Action::Resign(why) => panic!("nobody else is the manager: {why:?}"),
            }
        }
    }

    fn store(&mut self, record: Membership, expected: u64) -> Event {
        if self.version != expected {
            return Event::Outdated;
        }
        self.counted.stored += 1;
        self.revision += 1;
        self.version = self.revision;
        for stub in &mut self.stubs {
            if stub.is_up {
                stub.lease.learn(&record, stub.run);
            }
            if record.has_ended(stub.run) && !self.membership.has_ended(stub.run) {
                self.brain.ledger.end(stub.run);
                self.brain.planner.end_server(stub.run);
            }
        }
        self.membership = record;
        Event::Stored(self.version)
    }

    fn assign(
        &mut self,
        shard: ShardId,
        from: Option<NodeRun>,
        to: Option<NodeRun>,
        membership: u64,
    ) -> Event {
        if membership != self.version {
            return Event::Outdated;
        }
        let known = self.shards.get_mut(&shard).expect("it exists");
        if known.0 == from {
            self.revision += 1;
            *known = (to, self.revision);
            for stub in &mut self.stubs {
                stub.shards.remove(&shard);
                if Some(stub.run) == to {
                    stub.shards.insert(shard);
                }
            }
        }
        let (assigned, version) = self.shards[&shard];
        Event::Assigned {
            shard,
            assigned,
            version,
        }
    }

    /// All nodes.
    pub(crate) fn serving_max(&self) -> usize {
        self.stubs.len()
    }

    /// Nodes that may serve.
    pub(crate) fn serving(&self) -> usize {
        let now = Moment(self.now);
        let stubs = self.stubs.iter();
        let serving = |stub: &&Stub| stub.is_up && stub.lease.standing(now) == Standing::Serving;
        stubs.filter(serving).count()
    }

    /// Shards that a node serves which lives.
    pub(crate) fn served(&self) -> usize {
        let up = self.stubs.iter().filter(|stub| stub.is_up);
        up.map(|stub| stub.shards.len()).sum()
    }
}
