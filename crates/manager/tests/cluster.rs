//! Nodes, one of which is the manager, and coordination: everything that can happen to them is a
//! method. After each change [`Cluster::check`] looks at all of them at once.

mod hearing;

use super::judged;
use manager::{
    Action, Event, Manager, Moment, NodeLease, Planted, Reach, Resigned, Roles, Standing, Start,
};
use model::member::{self, Cause, Heartbeat, HeartbeatReply, Membership, Role, Term, Weight};
use model::{NodeId, NodeRun, ShardId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A manager's place in coordination ends when it wasn't kept for this long.
const PLACE: Duration = Duration::from_secs(5);
/// The same by the slowest clock that a manager may have.
const PLACE_BY_ANY_CLOCK: Duration = Duration::from_millis(4_750);
const KEEP_EVERY: Duration = Duration::from_secs(1);
/// The deadline of a heartbeat.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// How long what a killed node listens on stays open.
const LISTENS: Duration = Duration::from_millis(120);
/// How often a node says whom it can't reach.
const TELL_EVERY: Duration = Duration::from_secs(2);

/// A shard's record.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Record {
    pub(crate) assigned: Option<NodeRun>,
    pub(crate) version: u64,
}

/// The facts that all agree on.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Coordination {
    pub(crate) revision: u64,
    pub(crate) membership: Membership,
    pub(crate) version: u64,
    pub(crate) shards: BTreeMap<ShardId, Record>,
    pub(crate) newest: BTreeMap<NodeId, NodeRun>,
    /// The manager's place, and when it ends.
    pub(crate) place: Option<(NodeRun, Duration)>,
    /// The revision that doubted the place; 0 if nobody has since it was kept.
    doubt: u64,
    /// Whoever doubted it has found that most don't hear its holder.
    is_unheard: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Life {
    Running,
    Paused,
    Down,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Node {
    pub(crate) run: NodeRun,
    pub(crate) life: Life,
    /// Connections to it are made until then although it is down.
    listens_until: Duration,
    /// Thousandths by which its clock is fast.
    drift: i32,
    pub(crate) lease: NodeLease,
    /// What it read last of coordination.
    pub(crate) known: Coordination,
    pub(crate) hosts: BTreeSet<ShardId>,
    pub(crate) manager: Option<Manager>,
    /// Tells answers to earlier managers of this run.
    tenure: u64,
    kept: Moment,
    /// The newest doubt of the place that it knows, and since when.
    doubted: Option<(u64, Moment)>,
    /// Coordination has said that it has lost its place: what its own manager answers extends nothing.
    has_lost_place: bool,
    /// When it gave its place up, until another one has it.
    gave_up: Option<Moment>,
    /// The manager that it has asked in vain, and since when.
    silent: Option<(NodeRun, Moment)>,
    asked: Option<Moment>,
    told: Term,
    has_news: bool,
    pub(crate) wants_to_leave: bool,
    /// It reaches coordination, and can't read what is there.
    pub(crate) is_blind: bool,
    reach: Reach,
    /// Whom it said last that it can't reach, and when.
    unreached: (Vec<NodeRun>, Moment),
}

/// Something under way.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Message {
    Heartbeat {
        to: NodeRun,
        from: NodeRun,
        heartbeat: Heartbeat,
        sent: Moment,
    },
    Unreached {
        to: NodeRun,
        from: NodeRun,
        runs: Vec<NodeRun>,
    },
    Reply {
        to: NodeRun,
        from: NodeId,
        reply: HeartbeatReply,
        sent: Moment,
    },
    Store {
        from: NodeRun,
        tenure: u64,
        record: Membership,
        expected: u64,
    },
    Assign {
        from: NodeRun,
        tenure: u64,
        shard: ShardId,
        expected: Option<NodeRun>,
        to: Option<NodeRun>,
        membership: u64,
    },
    /// An answer of coordination, or what came of an attempt.
    Told {
        to: NodeRun,
        tenure: u64,
        event: Event,
    },
    Probe {
        from: NodeRun,
        tenure: u64,
        run: NodeRun,
        not_before: Duration,
        was_heard: bool,
    },
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Cluster {
    pub(crate) now: Duration,
    pub(crate) store: Coordination,
    pub(crate) nodes: Vec<Node>,
    pub(crate) messages: Vec<Message>,
    /// Pairs of nodes that don't hear each other; node 0 is coordination.
    pub(crate) cuts: BTreeSet<(u32, u32)>,
    /// Pairs of nodes of which the second one refuses connections of the first one, and answers over its own.
    pub(crate) refusals: BTreeSet<(u32, u32)>,
    /// Leaders of coordination follow each other so soon that the place never ends by itself.
    pub(crate) place_stays: bool,
    /// What nodes are beside owners.
    pub(crate) roles: Roles,
    /// Each node needs all others, and looks whether it reaches them.
    looks: bool,
    planted: Option<Planted>,
    /// What was wrong first.
    wrong: Option<String>,
    pub(crate) expelled: u32,
    /// Memberships that were stored.
    pub(crate) stored: u32,
}

impl Cluster {
    pub(crate) fn new(drifts: &[i32], shards: u32, planted: Option<Planted>) -> Self {
        let node = |(at, drift): (usize, &i32)| Node::new(at as u32 + 1, 1, *drift, planted);
        let nodes: Vec<_> = drifts.iter().enumerate().map(node).collect();
        let first = nodes[0].run;
        let record = Record {
            assigned: Some(first),
            version: 1,
        };
        let mut store = Coordination {
            revision: 1,
            ..Coordination::default()
        };
        store.shards = (1..=shards).map(|it| (ShardId(it), record)).collect();
        store.newest = nodes.iter().map(|it| (it.run.node, it.run)).collect();
        Self {
            now: Duration::ZERO,
            store,
            nodes,
            messages: Vec::new(),
            cuts: BTreeSet::new(),
            refusals: BTreeSet::new(),
            place_stays: false,
            roles: Roles::default(),
            looks: false,
            planted,
            wrong: None,
            expelled: 0,
            stored: 0,
        }
    }

    /// Each node needs all others.
    pub(crate) fn looking(mut self) -> Self {
        self.looks = true;
        self
    }

    /// Shards are assigned to all nodes in turn, instead of the first one.
    pub(crate) fn spread(mut self) -> Self {
        let nodes = self.nodes.iter().map(|node| node.run).cycle();
        for (record, run) in self.store.shards.values_mut().zip(nodes) {
            record.assigned = Some(run);
        }
        self
    }

    /// All shards are assigned to one run.
    pub(crate) fn give_all_to(&mut self, run: NodeRun) {
        for record in self.store.shards.values_mut() {
            record.assigned = Some(run);
        }
    }

    pub(crate) fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize - 1]
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id.0 as usize - 1]
    }

    fn is_cut(&self, one: u32, other: u32) -> bool {
        self.cuts.contains(&(one.min(other), one.max(other)))
    }

    /// The run runs, and isn't stopped.
    fn acts(&self, run: NodeRun) -> bool {
        let node = self.node(run.node);
        node.run == run && node.life == Life::Running
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.now += time;
        if let (true, Some((_, ends))) = (self.place_stays, &mut self.store.place) {
            *ends = self.now + PLACE;
        }
        if self.store.place.is_some_and(|(_, ends)| ends <= self.now) {
            self.vacate();
        }
    }

    /// The manager's place ends although it was just kept, as etcd before 3.4.31 may do with it when a leader that hung
    /// goes on, and another node takes it.
    pub(crate) fn end_place_early(&mut self, next: usize) {
        self.vacate();
        let now = self.nodes[next].clock(self.now);
        self.campaign(next, now);
    }

    fn vacate(&mut self) {
        self.store.place = None;
        self.store.doubt = 0;
        self.store.is_unheard = false;
        self.store.revision += 1;
    }

    /// The node doubts that whoever has the manager's place keeps it.
    pub(crate) fn doubt(&mut self, at: usize) {
        let node = &self.nodes[at];
        let can = node.life == Life::Running && !node.is_blind && !self.is_cut(0, node.run.node.0);
        let place = self.store.place;
        if can && self.store.doubt == 0 && place.is_some_and(|(holder, _)| holder != node.run) {
            self.store.revision += 1;
            self.store.doubt = self.store.revision;
        }
    }

    pub(crate) fn kill(&mut self, at: usize) {
        self.nodes[at].life = Life::Down;
        let run = self.nodes[at].run;
        // Whoever has a connection to it notices.
        let managers = self.nodes.iter().filter(|node| node.manager.is_some());
        let managers: Vec<_> = managers.map(|node| (node.run, node.tenure)).collect();
        for (to, tenure) in managers {
            if to != run && !self.is_cut(to.node.0, run.node.0) {
                let event = Event::Broke(run);
                self.messages.push(Message::Told { to, tenure, event });
            }
        }
    }

    /// As [`Cluster::kill`], but what it listens on is closed later than its connections.
    pub(crate) fn kill_slowly(&mut self, at: usize) {
        self.kill(at);
        self.nodes[at].listens_until = self.now + LISTENS;
    }

    pub(crate) fn start(&mut self, at: usize) {
        let old = &self.nodes[at];
        let incarnation = old.run.incarnation + 1;
        let mut new = Node::new(at as u32 + 1, incarnation, old.drift, self.planted);
        let before = self.store.membership.members.get(&new.run.node);
        let had_to_go = before
            .is_some_and(|it| matches!(it.standing, member::Standing::Expelled(Cause::Apart(_))));
        new.reach = Reach::begin(had_to_go);
        self.store.newest.insert(new.run.node, new.run);
        self.store.revision += 1;
        self.nodes[at] = new;
    }

    /// A connection breaks although the node is well.
    pub(crate) fn break_connection(&mut self, at: usize) {
        let run = self.nodes[at].run;
        let managers = self.nodes.iter().filter(|node| node.manager.is_some());
        let managers: Vec<_> = managers.map(|node| (node.run, node.tenure)).collect();
        for (to, tenure) in managers {
            let event = Event::Broke(run);
            self.messages.push(Message::Told { to, tenure, event });
        }
    }

    /// The node reads coordination and does what it says.
    pub(crate) fn read(&mut self, at: usize) {
        let number = at as u32 + 1;
        let node = &self.nodes[at];
        if node.life != Life::Running || node.is_blind || self.is_cut(0, number) {
            return;
        }
        let known = self.store.clone();
        let node = &mut self.nodes[at];
        let mut events: Vec<Event> = Vec::new();
        node.lease.learn(&known.membership, node.run);
        for (shard, record) in &known.shards {
            events.push(Event::Shard {
                shard: *shard,
                assigned: record.assigned,
                version: record.version,
            });
        }
        events.extend(known.newest.values().map(|run| Event::Appeared(*run)));
        let seen = node.doubted.filter(|(doubt, _)| *doubt == known.doubt);
        let now = node.clock(self.now);
        node.doubted = seen.or_else(|| (known.doubt > 0).then_some((known.doubt, now)));
        node.known = known;
        for event in events {
            self.event(at, event);
        }
        self.host(at);
    }

    /// The node gives up and takes over shards, as it knows.
    fn host(&mut self, at: usize) {
        let now = self.now;
        let node = &mut self.nodes[at];
        let standing = node.lease.standing(node.clock(now));
        let before = node.hosts.clone();
        for (shard, record) in &node.known.shards {
            if record.assigned != Some(node.run) {
                node.hosts.remove(shard);
            } else if standing == Standing::Serving {
                node.hosts.insert(*shard);
            }
        }
        // Told at once, so that the next owner needn't wait.
        node.has_news |= !before.is_subset(&node.hosts);
    }

    /// The node is down, and the kernel has closed what it listened on.
    fn listens_no_more(&self, node: &Node) -> bool {
        node.life == Life::Down && self.now >= node.listens_until
    }

    /// Everything that a node does by itself.
    pub(crate) fn duties(&mut self, at: usize) {
        let number = at as u32 + 1;
        if self.nodes[at].life != Life::Running {
            return;
        }
        let now = self.nodes[at].clock(self.now);
        match self.nodes[at].lease.standing(now) {
            Standing::Ended => return self.start(at),
            Standing::Left => {
                self.nodes[at].life = Life::Down;
                return;
            }
            Standing::Serving | Standing::Pausing => {}
        }
        let reaches = !self.is_cut(0, number);
        if reaches
            && self.nodes[at].manager.is_some()
            && now.since(self.nodes[at].kept) >= KEEP_EVERY
        {
            self.keep_place(at, now);
        }
        if self.looks {
            self.look(at, now);
        }
        if reaches {
            self.complain(at);
        }
        if reaches && self.nodes[at].manager.is_none() && self.nodes[at].reach.may_join() {
            self.campaign(at, now);
        }
        self.try_to_connect(at);
        self.event(at, Event::Tick);
        self.send_heartbeat(at);
        self.host(at);
    }

    /// The node looks whether it reaches the others, and tells the manager whom it doesn't.
    fn look(&mut self, at: usize, now: Moment) {
        if self.nodes[at].known.version == 0 {
            return;
        }
        let own = self.nodes[at].run;
        let members = self.nodes[at].known.membership.members.values();
        let members = members.filter(|it| it.standing.is_member() && it.run.node != own.node);
        let members: BTreeMap<NodeId, NodeRun> = members.map(|it| (it.run.node, it.run)).collect();
        let needed: BTreeSet<NodeId> = members.keys().copied().collect();
        let comes_back = !self.nodes[at].reach.may_join();
        let answers = |node: NodeId| {
            let is_up = self.node(node).life == Life::Running;
            let is_back = !comes_back || self.calls_reach(node, own.node);
            is_up && is_back && self.calls_reach(own.node, node)
        };
        let answering: BTreeSet<NodeId> =
            needed.iter().copied().filter(|it| answers(*it)).collect();
        let node = &mut self.nodes[at];
        for silent in needed.difference(&answering) {
            node.reach.missed(*silent, now);
        }
        for asked in node.reach.look(&needed, node.known.place.is_some(), now) {
            match answering.contains(&asked) {
                true => node.reach.answered(asked, now),
                false => node.reach.unanswered(asked, now),
            }
        }
        let unreached = node.reach.unreached(now).into_iter();
        let runs: Vec<NodeRun> = unreached.map(|(it, _)| members[&it]).collect();
        let (told, when) = &node.unreached;
        let is_due = *told != runs || (!runs.is_empty() && now >= when.plus(TELL_EVERY));
        let Some((to, _)) = node.known.place.filter(|_| is_due) else {
            return;
        };
        node.unreached = (runs.clone(), now);
        let from = node.run;
        self.messages.push(Message::Unreached { to, from, runs });
    }

    fn keep_place(&mut self, at: usize, now: Moment) {
        self.nodes[at].kept = now;
        let run = self.nodes[at].run;
        let is_own = self.store.place.is_some_and(|(holder, _)| holder == run);
        if is_own && self.store.is_unheard {
            return self.event(at, Event::Unheard);
        }
        let ends = self.now + PLACE;
        match &mut self.store.place {
            Some((holder, end)) if *holder == run => {
                *end = ends;
                if std::mem::take(&mut self.store.doubt) > 0 {
                    self.store.revision += 1;
                }
            }
            _ => {
                let node = &mut self.nodes[at];
                node.has_lost_place = true;
                node.lease.void();
                return self.event(at, Event::PlaceLost);
            }
        }
        self.event(at, Event::OwnLease(now.plus(PLACE_BY_ANY_CLOCK)));
    }

    /// Takes the manager's place if it is free, or its holder is surely dead or surely doesn't keep it.
    fn campaign(&mut self, at: usize, now: Moment) {
        let own = self.nodes[at].run;
        if self.leaves_it_to_others(at, now) {
            return;
        }
        let mut dead = None;
        let mut former_kept = PLACE_BY_ANY_CLOCK;
        if let Some((holder, _)) = self.store.place {
            let node = self.node(holder.node);
            let is_silent = self.is_cut(own.node.0, holder.node.0);
            let is_dead = self.listens_no_more(node) && !is_silent;
            let doubted = self.nodes[at].doubted;
            let doubted = doubted.filter(|(doubt, _)| *doubt == self.store.doubt);
            let unkept = doubted.map(|(_, since)| now.since(since));
            let unkept = unkept.filter(|unkept| *unkept >= PLACE);
            if !is_dead && node.run <= holder && holder != own && unkept.is_none() {
                return;
            }
            former_kept = former_kept.max(unkept.unwrap_or_default());
            // Nobody listens there any more; a newer run that does proves as much in another way.
            dead = (is_dead && holder != own && node.run == holder).then_some(holder);
        }
        self.store.revision += 1;
        self.store.place = Some((own, self.now + PLACE));
        self.store.doubt = 0;
        self.store.is_unheard = false;
        let store = &self.store;
        let shards = store.shards.iter();
        let start = Start {
            own,
            own_until: now.plus(PLACE_BY_ANY_CLOCK),
            former_kept,
            record: store.membership.clone(),
            version: store.version,
            shards: shards
                .map(|(it, record)| (*it, record.assigned, record.version))
                .collect(),
            newest: store.newest.values().copied().collect(),
            roles: self.roles.clone(),
            dead,
        };
        let (manager, actions) = Manager::begin_planted(start, now, self.planted);
        let node = &mut self.nodes[at];
        node.manager = Some(manager);
        node.tenure += 1;
        node.kept = now;
        node.has_lost_place = false;
        let tenure = node.tenure;
        self.perform(at, actions);
        // A new manager connects to all members, and finds who is dead.
        let dead = self.nodes.iter().filter(|node| node.life == Life::Down);
        let dead: Vec<_> = dead.map(|node| node.run).collect();
        for run in dead {
            let event = Event::Unconnected(run);
            self.messages.push(Message::Told {
                to: own,
                tenure,
                event,
            });
        }
    }

    fn send_heartbeat(&mut self, at: usize) {
        let now = self.now;
        let node = &mut self.nodes[at];
        let clock = node.clock(now);
        let term = node.known.membership.term;
        let is_due = clock >= node.lease.next_heartbeat() || term > node.told || node.has_news;
        let is_asking = node.asked.is_some_and(|sent| clock < sent.plus(ANSWER_MAX));
        let Some((to, _)) = node.known.place else {
            return;
        };
        if !is_due || is_asking || !node.reach.may_join() {
            return;
        }
        node.lease.sent(clock);
        node.asked = Some(clock);
        let silent = node.silent.filter(|(run, _)| *run == to);
        node.silent = silent.or(Some((to, clock)));
        node.told = term;
        node.has_news = false;
        let heartbeat = Heartbeat {
            role: Role::Owner,
            is_leaving: node.wants_to_leave,
            knows: node.known.revision,
            hosts: node.hosts.iter().map(|it| (*it, Weight::ONE)).collect(),
        };
        self.messages.push(Message::Heartbeat {
            to,
            from: node.run,
            heartbeat,
            sent: clock,
        });
    }

    /// Gives an event to the node's manager, if it is one.
    fn event(&mut self, at: usize, event: Event) {
        let now = self.nodes[at].clock(self.now);
        if let Some(manager) = &mut self.nodes[at].manager {
            let actions = manager.on(event, now);
            self.perform(at, actions);
        }
    }

    fn perform(&mut self, at: usize, actions: Vec<Action>) {
        let (from, tenure) = (self.nodes[at].run, self.nodes[at].tenure);
        for action in actions {
            match action {
                Action::Answer { to, reply } => {
                    self.messages.push(Message::Reply {
                        to,
                        from: from.node,
                        reply,
                        // Whoever delivered the heartbeat knows it.
                        sent: Moment::default(),
                    });
                }
                Action::Decline(_) => {}
                Action::Probe {
                    run,
                    after,
                    was_heard,
                } => self.messages.push(Message::Probe {
                    from,
                    tenure,
                    run,
                    not_before: self.now + after,
                    was_heard,
                }),
                Action::Store { record, expected } => self.messages.push(Message::Store {
                    from,
                    tenure,
                    record,
                    expected,
                }),
                Action::Assign {
                    shard,
                    from: expected,
                    to,
                    membership,
                } => self.messages.push(Message::Assign {
                    from,
                    tenure,
                    shard,
                    expected,
                    to,
                    membership,
                }),
                Action::Resign(why) => {
                    self.nodes[at].manager = None;
                    if matches!(why, Resigned::Unheard | Resigned::Apart) {
                        self.give_up(at);
                    }
                }
            }
        }
    }

    /// Whether a message can arrive now.
    pub(crate) fn can_arrive(&self, at: usize) -> bool {
        match &self.messages[at] {
            Message::Heartbeat { to, from, .. } | Message::Unreached { to, from, .. } => {
                self.calls_reach(from.node, to.node)
            }
            Message::Reply { to, from, .. } => !self.is_cut(to.node.0, from.0),
            Message::Store { from, .. } | Message::Assign { from, .. } => {
                !self.is_cut(0, from.node.0)
            }
            Message::Told { .. } => true,
            Message::Probe { not_before, .. } => self.now >= *not_before,
        }
    }

    /// Of requests to coordination: the request is lost, or will come later.
    pub(crate) fn lose(&mut self, at: usize, comes_later: bool) {
        let mut lost = self.messages.remove(at);
        let unknown = match &lost {
            Message::Store { from, tenure, .. } => Some((*from, *tenure, Event::StoreUnknown)),
            Message::Assign {
                from,
                tenure,
                shard,
                ..
            } => Some((*from, *tenure, Event::AssignUnknown(*shard))),
            Message::Told { to, tenure, event } => match event {
                Event::Stored(_) | Event::Outdated | Event::StoreUnknown => {
                    Some((*to, *tenure, Event::StoreUnknown))
                }
                Event::Assigned { shard, .. } | Event::AssignUnknown(shard) => {
                    Some((*to, *tenure, Event::AssignUnknown(*shard)))
                }
                // A connection that broke stays so until somebody sees it.
                _ => return self.messages.push(lost),
            },
            // An attempt comes to nothing.
            Message::Probe {
                from, tenure, run, ..
            } => {
                let event = Event::Probed {
                    run: *run,
                    is_refused: false,
                };
                Some((*from, *tenure, event))
            }
            Message::Heartbeat { .. } | Message::Unreached { .. } | Message::Reply { .. } => None,
        };
        if let Some((to, tenure, event)) = unknown {
            self.messages.push(Message::Told { to, tenure, event });
            // Nobody waits for its answer any more.
            match &mut lost {
                Message::Store { tenure, .. } | Message::Assign { tenure, .. } if comes_later => {
                    *tenure = u64::MAX;
                    self.messages.push(lost);
                }
                _ => {}
            }
        }
    }

    pub(crate) fn deliver(&mut self, at: usize) {
        let message = self.messages.remove(at);
        match message {
            Message::Heartbeat {
                to,
                from,
                heartbeat,
                sent,
            } => {
                let is_there = self.node(to.node).run == to;
                match self.node(to.node).life {
                    Life::Running if is_there => {
                        let at = to.node.0 as usize - 1;
                        let before = self.messages.len();
                        self.event(at, Event::Heartbeat { from, heartbeat });
                        let mut is_declined = true;
                        for reply in &mut self.messages[before..] {
                            if let Message::Reply { sent: of, .. } = reply {
                                *of = sent;
                                is_declined = false;
                            }
                        }
                        if is_declined {
                            self.node_mut(from.node).silent = None;
                        }
                    }
                    // It waits in the buffers of the machine.
                    Life::Paused if is_there => self.messages.push(Message::Heartbeat {
                        to,
                        from,
                        heartbeat,
                        sent,
                    }),
                    _ => {}
                }
            }
            Message::Unreached { to, from, runs } => {
                if self.acts(to) {
                    self.event(to.node.0 as usize - 1, Event::Unreached { from, runs });
                }
            }
            Message::Reply {
                to,
                reply,
                sent,
                from,
            } => {
                if self.node(to.node).run != to || self.node(to.node).life == Life::Down {
                    return;
                }
                if self.node(to.node).life == Life::Paused {
                    return self.messages.push(Message::Reply {
                        to,
                        from,
                        reply,
                        sent,
                    });
                }
                let now = self.now;
                let node = self.node_mut(to.node);
                let clock = node.clock(now);
                // That a manager hears itself says nothing.
                let counted = match from == to.node {
                    true => sent.min(node.kept),
                    false => sent,
                };
                // Later ones are dropped by who asked.
                let is_void = from == to.node && node.has_lost_place;
                if !is_void && clock.since(sent) < Duration::from_secs(5) {
                    node.lease.answered(reply, counted, clock);
                }
                if node.asked == Some(sent) {
                    node.asked = None;
                }
                node.silent = node.silent.filter(|(run, _)| run.node != from);
            }
            Message::Store {
                from,
                tenure,
                record,
                expected,
            } => self.store(from, tenure, record, expected),
            Message::Assign {
                from,
                tenure,
                shard,
                expected,
                to,
                membership,
            } => self.assign(from, tenure, shard, (expected, to), membership),
            Message::Told { to, tenure, event } => {
                let node = self.node(to.node);
                if self.acts(to) && node.tenure == tenure {
                    self.event(to.node.0 as usize - 1, event);
                } else if node.run == to && node.life == Life::Paused {
                    self.messages.push(Message::Told { to, tenure, event });
                }
            }
            Message::Probe {
                from,
                tenure,
                run,
                was_heard,
                ..
            } => {
                let is_refused = self.refuses(from.node, run.node)
                    && !(was_heard && self.all_refuse_but(from, run));
                let event = Event::Probed { run, is_refused };
                self.messages.push(Message::Told {
                    to: from,
                    tenure,
                    event,
                });
            }
        }
    }

    fn store(&mut self, from: NodeRun, tenure: u64, record: Membership, expected: u64) {
        let event = if self.store.version == expected {
            if let Err(why) = judged::change(self, &record) {
                self.wrong.get_or_insert(why);
            }
            let known = &self.store.membership;
            let ended = record.members.values().filter(|it| {
                let is_over = record.has_ended(it.run) && known.is_member(it.run);
                is_over && self.acts(it.run) && !self.node(it.run.node).wants_to_leave
            });
            self.expelled += ended.count() as u32;
            self.stored += 1;
            self.store.revision += 1;
            self.store.version = self.store.revision;
            self.store.membership = record;
            Event::Stored(self.store.version)
        } else if self.store.membership == record {
            Event::Stored(self.store.version)
        } else {
            Event::Outdated
        };
        self.messages.push(Message::Told {
            to: from,
            tenure,
            event,
        });
    }

    fn assign(
        &mut self,
        from: NodeRun,
        tenure: u64,
        shard: ShardId,
        (expected, to): (Option<NodeRun>, Option<NodeRun>),
        membership: u64,
    ) {
        let known = self.store.shards[&shard];
        let mut event = Event::Assigned {
            shard,
            assigned: known.assigned,
            version: known.version,
        };
        if membership != self.store.version {
            event = Event::Outdated;
        } else if known.assigned == expected {
            if let Err(why) = judged::assignment(self, shard, expected, to) {
                self.wrong.get_or_insert(why);
            }
            self.store.revision += 1;
            let version = self.store.revision;
            let record = Record {
                assigned: to,
                version,
            };
            self.store.shards.insert(shard, record);
            event = Event::Assigned {
                shard,
                assigned: to,
                version,
            };
        }
        self.messages.push(Message::Told {
            to: from,
            tenure,
            event,
        });
    }

    /// Whether the node serves the shard now.
    pub(crate) fn serves(&self, node: &Node, shard: ShardId) -> bool {
        node.life == Life::Running
            && node.hosts.contains(&shard)
            && node.lease.standing(node.clock(self.now)) == Standing::Serving
    }

    /// What must be true at every moment; the reason why it isn't.
    pub(crate) fn check(&self) -> Result<(), String> {
        match &self.wrong {
            Some(why) => Err(why.clone()),
            None => judged::moment(self),
        }
    }

    /// All faults end, everything that is down starts; then all must be well.
    pub(crate) fn come_to_rest(&mut self) -> Result<(), String> {
        self.cuts.clear();
        self.refusals.clear();
        self.place_stays = false;
        for at in 0..self.nodes.len() {
            match self.nodes[at].life {
                Life::Running => {}
                Life::Paused => self.nodes[at].life = Life::Running,
                Life::Down => self.start(at),
            }
        }
        for _ in 0..1_600 {
            self.calm_tick();
            self.check()?;
            // Nothing more is needed than that it was well once.
            if judged::rest(self).is_ok() {
                return Ok(());
            }
        }
        judged::rest(self)
    }

    /// So long in which nothing goes wrong.
    ///
    /// # Panics
    /// If a promise is broken at any moment of it.
    pub(crate) fn calm(&mut self, time: Duration) {
        let begun = self.now;
        while self.now - begun < time {
            self.calm_tick();
            self.check().expect("right at every moment");
        }
    }

    /// 50 ms in which nothing goes wrong.
    pub(crate) fn calm_tick(&mut self) {
        self.pass(Duration::from_millis(50));
        for at in 0..self.nodes.len() {
            self.read(at);
            self.duties(at);
        }
        // What arrives now; what it causes comes next time.
        let mut at = 0;
        for _ in 0..self.messages.len() {
            if self.can_arrive(at) {
                self.deliver(at);
            } else {
                at += 1;
            }
        }
    }
}

impl Node {
    fn new(number: u32, incarnation: u64, drift: i32, planted: Option<Planted>) -> Self {
        let mut lease = NodeLease::default();
        planted.into_iter().for_each(|fault| lease.plant(fault));
        Self {
            run: NodeRun {
                node: NodeId(number),
                incarnation,
            },
            life: Life::Running,
            listens_until: Duration::ZERO,
            drift,
            lease,
            known: Coordination::default(),
            hosts: BTreeSet::new(),
            manager: None,
            tenure: 0,
            kept: Moment::default(),
            doubted: None,
            has_lost_place: false,
            gave_up: None,
            silent: None,
            asked: None,
            told: Term(0),
            has_news: false,
            wants_to_leave: false,
            is_blind: false,
            reach: Reach::default(),
            unreached: (Vec::new(), Moment::default()),
        }
    }

    /// Its own clock.
    pub(crate) fn clock(&self, now: Duration) -> Moment {
        let nanoseconds = now.as_nanos() as i128;
        let shown = nanoseconds + nanoseconds * i128::from(self.drift) / 1_000;
        Moment(Duration::from_nanos(shown as u64))
    }
}
