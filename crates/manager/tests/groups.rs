//! Groups of units on NSDs, servers that repair them, and the managers that plan it.

use super::chance::Chance;
use manager::jobs::{
    Attempt, Cursor, GroupFact, IDLE_MAX, JobId, Kind, LED_MAX, NsdFact, Orders, Outcome, Planner,
    SHARED_MAX, Settings, Slot, Stamp, Statement, Status, Worker,
};
use manager::{Moment, Planted};
use model::member::Term;
use model::{GroupId, GroupVersion, NodeId, NodeRun, NsdId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Of each group.
pub(crate) const UNITS: u64 = 12;
pub(crate) const UNIT_BYTES: u64 = 1_000;
const ALL: u64 = (1 << UNITS) - 1;
const COPIES: u32 = 3;
const STEP: Duration = Duration::from_millis(100);
const BUDGET: u64 = 1_000_000;

#[derive(Clone)]
pub(crate) enum Message {
    /// To the manager of this term.
    Statement(NodeRun, Term, Statement),
    Orders(NodeRun, Orders),
}

struct Server {
    run: NodeRun,
    is_up: bool,
    worker: Worker,
    /// Attempts during which an NSD of the group didn't answer.
    partial: BTreeSet<Attempt>,
}

pub(crate) struct Pool {
    pub(crate) now: Duration,
    servers: Vec<Server>,
    planners: Vec<Planner>,
    pub(crate) messages: Vec<Message>,
    groups: Vec<GroupFact>,
    nsds: BTreeMap<NsdId, NsdFact>,
    /// The units that an NSD has of a group.
    has: BTreeMap<(GroupId, NsdId), u64>,
    /// What the newest manager was told.
    told: (Vec<GroupFact>, BTreeMap<NsdId, NsdFact>),
    planted: Option<Planted>,
    pub(crate) units: u64,
}

fn settings() -> Settings {
    Settings {
        sweep_every: Duration::from_secs(200),
        scrub_every: Duration::from_secs(300),
        node_bytes_per_second: BUDGET,
    }
}

impl Pool {
    pub(crate) fn new(nodes: u32, groups: u32, planted: Option<Planted>) -> Self {
        let nsd = |node: u32| {
            let fact = NsdFact {
                home: NodeId(node),
                serves: true,
                opened: 1,
            };
            (NsdId(node), fact)
        };
        let group = |group: u32| {
            let [second, third] = [[1, 2], [2, 3], [1, 3]][group as usize % 3];
            let places = [0, second, third].map(|it| NsdId(1 + (group * 5 + it) % nodes));
            let slots = places.map(|current| Slot {
                current,
                next: None,
            });
            let slots = slots.to_vec();
            GroupFact {
                group: GroupId(group),
                version: GroupVersion(1),
                tolerance: COPIES as u8 - 1,
                slots,
                bytes: UNITS * UNIT_BYTES,
            }
        };
        let groups: Vec<_> = (0..groups).map(group).collect();
        let places = groups
            .iter()
            .flat_map(|it| it.slots.iter().map(|slot| (it.group, slot.current)));
        let mut pool = Self {
            now: Duration::ZERO,
            servers: Vec::new(),
            planners: Vec::new(),
            messages: Vec::new(),
            has: places.map(|place| (place, ALL)).collect(),
            groups,
            nsds: (1..=nodes).map(nsd).collect(),
            told: Default::default(),
            planted,
            units: 0,
        };
        pool.servers = (1..=nodes).map(|node| pool.server(node, 1)).collect();
        pool.change_manager();
        pool
    }

    fn server(&self, node: u32, incarnation: u64) -> Server {
        let mut worker = Worker::default();
        self.planted
            .into_iter()
            .for_each(|fault| worker.plant(fault));
        Server {
            run: NodeRun {
                node: NodeId(node),
                incarnation,
            },
            is_up: true,
            worker,
            partial: BTreeSet::new(),
        }
    }

    fn newest(&mut self) -> &mut Planner {
        self.planners.last_mut().expect("there is one")
    }

    fn planner(&self) -> &Planner {
        self.planners.last().expect("there is one")
    }

    fn clock(&self) -> Moment {
        Moment(self.now)
    }

    pub(crate) fn change_manager(&mut self) {
        let term = Term(self.planners.len() as u64 + 1);
        let mut planner = Planner::begin(term, settings(), self.clock());
        self.planted
            .into_iter()
            .for_each(|fault| planner.plant(fault));
        let up = self.servers.iter().filter(|server| server.is_up);
        up.for_each(|server| planner.begin_server(server.run));
        self.planners.push(planner);
        self.learn();
    }

    /// The newest manager learns the map and which NSDs serve.
    pub(crate) fn learn(&mut self) {
        let (groups, nsds) = (self.groups.clone(), self.nsds.clone());
        self.newest().learn_map(groups.clone());
        self.newest().learn_nsds(nsds.clone());
        self.told = (groups, nsds);
    }

    pub(crate) fn kill(&mut self, at: usize) {
        // No data is lost for good: one server at a time.
        if self.servers.iter().all(|server| server.is_up) {
            self.kill_quietly(at);
        }
    }

    pub(crate) fn kill_quietly(&mut self, at: usize) {
        let server = &mut self.servers[at];
        server.is_up = false;
        let run = server.run;
        self.nsds
            .get_mut(&NsdId(run.node.0))
            .expect("one each")
            .serves = false;
        self.newest().end_server(run);
    }

    pub(crate) fn start(&mut self, at: usize) {
        if self.servers[at].is_up {
            return;
        }
        let run = self.servers[at].run;
        self.servers[at] = self.server(run.node.0, run.incarnation + 1);
        let run = self.servers[at].run;
        let nsd = self.nsds.get_mut(&NsdId(run.node.0)).expect("one each");
        (nsd.serves, nsd.opened) = (true, nsd.opened + 1);
        self.newest().begin_server(run);
    }

    /// An NSD is given up: its slots move to others. How many do.
    pub(crate) fn lose(&mut self, at: usize) -> u64 {
        let lost = NsdId(at as u32 + 1);
        let is_whole = (0..self.groups.len()).all(|it| self.is_whole(it) && !self.is_moving(it));
        if !is_whole || self.servers.len() <= COPIES as usize {
            return 0;
        }
        let nsds: Vec<_> = self.nsds.keys().copied().collect();
        let mut moved = 0;
        for fact in &mut self.groups {
            let is_free = |nsd: &NsdId| fact.slots.iter().all(|slot| slot.current != *nsd);
            let others = nsds
                .iter()
                .cycle()
                .skip(fact.group.0 as usize)
                .take(nsds.len());
            let free = others.copied().find(|nsd| is_free(nsd));
            let slot = fact.slots.iter_mut().find(|slot| slot.current == lost);
            let (Some(next), Some(slot)) = (free, slot) else {
                continue;
            };
            slot.next = Some(next);
            fact.version = GroupVersion(fact.version.0 + 1);
            self.has.insert((fact.group, next), 0);
            // Nothing of it can be read.
            self.has.insert((fact.group, lost), 0);
            moved += 1;
        }
        moved
    }

    /// Something is written: NSDs that are away miss it.
    pub(crate) fn write(&mut self, chance: &mut Chance) {
        let group = chance.below(self.groups.len() as u64) as usize;
        let unit = 1 << chance.below(UNITS);
        for nsd in self.nsds_of(group) {
            let has = self.has.entry((GroupId(group as u32), nsd)).or_default();
            match self.nsds[&nsd].serves {
                true => *has |= unit,
                false => *has &= !unit,
            }
        }
    }

    fn nsds_of(&self, group: usize) -> Vec<NsdId> {
        let slots = self.groups[group].slots.iter();
        let nsds = slots.flat_map(|slot| [Some(slot.current), slot.next]);
        nsds.flatten().collect()
    }

    fn is_moving(&self, group: usize) -> bool {
        self.groups[group].slots.iter().any(|it| it.next.is_some())
    }

    /// All serving NSDs of the group have everything that they shall have.
    fn is_whole(&self, group: usize) -> bool {
        let id = GroupId(group as u32);
        let slots = self.groups[group].slots.iter();
        let targets = slots.map(|slot| slot.next.unwrap_or(slot.current));
        let mut serving = targets.filter(|nsd| self.nsds[nsd].serves);
        serving.all(|nsd| self.has.get(&(id, nsd)) == Some(&ALL))
    }

    /// A server does one unit of each of its jobs.
    pub(crate) fn work(&mut self, at: usize) {
        if !self.servers[at].is_up {
            return;
        }
        let jobs: Vec<_> = self.servers[at].worker.jobs().collect();
        for (assignment, cursor) in jobs {
            let (job, attempt) = (assignment.job, assignment.attempt);
            if cursor.0 < u128::from(UNITS) {
                let unit = cursor.0 as u64;
                let answers = job.kind != Kind::Repair || self.repair(job.group, unit);
                self.units += u64::from(job.kind == Kind::Repair);
                let server = &mut self.servers[at];
                if !answers {
                    server.partial.insert(attempt);
                }
                let next = Cursor(cursor.0 + 1);
                server.worker.advance(job, attempt, next, UNIT_BYTES);
                continue;
            }
            let now = self.clock();
            let server = &mut self.servers[at];
            let outcome = match server.partial.contains(&attempt) {
                true => Outcome::Partial,
                false => Outcome::Complete,
            };
            server.worker.end(job, attempt, outcome, now);
        }
    }

    /// True if all NSDs of the group answered.
    fn repair(&mut self, group: GroupId, unit: u64) -> bool {
        let nsds = self.nsds_of(group.0 as usize);
        let serving = nsds.iter().filter(|nsd| self.nsds[nsd].serves);
        let serving: Vec<_> = serving.copied().collect();
        let bit = 1 << unit;
        let is_there = |nsd: &&NsdId| {
            self.has
                .get(&(group, **nsd))
                .is_some_and(|it| it & bit != 0)
        };
        if !serving.iter().any(|nsd| is_there(&nsd)) {
            return false;
        }
        for nsd in &serving {
            *self.has.entry((group, *nsd)).or_default() |= bit;
        }
        let slots = self.groups[group.0 as usize].slots.iter();
        let mut targets = slots.map(|slot| slot.next.unwrap_or(slot.current));
        targets.all(|nsd| self.nsds[&nsd].serves)
    }

    pub(crate) fn say(&mut self, at: usize, to_earlier: bool) {
        let now = self.clock();
        let newest = self.planners.len() as u64;
        let term = Term(if to_earlier {
            newest.max(2) - 1
        } else {
            newest
        });
        let server = &mut self.servers[at];
        if server.is_up {
            let statement = server.worker.state(now);
            let message = Message::Statement(server.run, term, statement);
            self.messages.push(message);
        }
    }

    pub(crate) fn deliver(&mut self, at: usize) {
        let now = self.clock();
        match self.messages.remove(at) {
            Message::Statement(from, term, statement) => {
                let planner = &mut self.planners[term.0 as usize - 1];
                let orders = planner.hear(from, &statement, now);
                let answer = orders.map(|orders| Message::Orders(from, orders));
                self.messages.extend(answer);
            }
            Message::Orders(to, orders) => {
                let server = self.servers.iter_mut().find(|it| it.run == to && it.is_up);
                if let Some(server) = server {
                    server.worker.ordered(&orders);
                }
            }
        }
    }

    /// Time passes, and the manager plans: what it begins is looked at.
    pub(crate) fn tick(&mut self) -> Result<(), String> {
        self.now += STEP;
        let now = self.clock();
        let before: BTreeSet<_> = self.planner().running().map(|it| it.0).collect();
        self.newest().tick(now);
        self.look_at_order(&before)?;
        self.switch()
    }

    /// Slots of which the next NSDs have everything are switched, if the map is still that one.
    fn switch(&mut self) -> Result<(), String> {
        let arrived: Vec<_> = self.planner().arrived().collect();
        for (group, stamp) in arrived {
            if self.stamp(group) != stamp {
                continue;
            }
            let fact = &mut self.groups[group.0 as usize];
            for slot in &mut fact.slots {
                let Some(next) = slot.next.take() else {
                    continue;
                };
                if self.has[&(group, next)] != ALL && self.nsds[&next].serves {
                    return Err(format!("{group} is switched, and {next} hasn't everything"));
                }
                slot.current = next;
            }
            fact.version = GroupVersion(fact.version.0 + 1);
        }
        Ok(())
    }

    /// By the map and the NSDs themselves, whatever the manager knows.
    fn stamp(&self, group: GroupId) -> Stamp {
        let nsds = self.nsds_of(group.0 as usize);
        Stamp {
            version: self.groups[group.0 as usize].version,
            opened: nsds.iter().map(|nsd| self.nsds[nsd].opened).sum(),
        }
    }

    fn left(&self, job: JobId) -> i32 {
        let fact = &self.told.0[job.group.0 as usize];
        let away = fact
            .slots
            .iter()
            .filter(|it| !self.told.1[&it.current].serves);
        i32::from(fact.tolerance) - away.count() as i32
    }

    fn nodes_of(&self, group: GroupId) -> BTreeSet<NodeId> {
        let slots = self.told.0[group.0 as usize].slots.iter();
        let nsds = slots.flat_map(|slot| [Some(slot.current), slot.next]);
        let facts = nsds.flatten().map(|nsd| self.told.1[&nsd]);
        facts.filter(|it| it.serves).map(|it| it.home).collect()
    }

    fn shared(&self) -> BTreeMap<NodeId, usize> {
        let mut shared = BTreeMap::new();
        for (_, _, nodes, _) in self.planner().running() {
            for node in nodes {
                *shared.entry(*node).or_default() += 1;
            }
        }
        shared
    }

    /// No job was begun that takes what a more urgent one waits for.
    fn look_at_order(&self, before: &BTreeSet<JobId>) -> Result<(), String> {
        let running: BTreeSet<_> = self.planner().running().map(|it| it.0).collect();
        let shared = self.shared();
        let is_full = |node: &NodeId| shared.get(node).is_some_and(|all| *all >= SHARED_MAX);
        for group in &self.told.0 {
            let waiting = JobId {
                kind: Kind::Repair,
                group: group.group,
            };
            let left = self.left(waiting);
            if !self.planner().is_waiting(waiting, self.clock()) {
                continue;
            }
            let nodes = self.nodes_of(group.group);
            for begun in running.difference(before) {
                let is_less = begun.kind != Kind::Repair || self.left(*begun) > left;
                let others = self.nodes_of(begun.group);
                if is_less && nodes.intersection(&others).any(is_full) {
                    return Err(format!("{begun:?} was begun before {waiting:?} ({left})"));
                }
            }
        }
        Ok(())
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        let mut jobs: BTreeMap<NodeId, (usize, usize, u64)> = BTreeMap::new();
        let mut led: BTreeMap<NodeRun, usize> = BTreeMap::new();
        for (job, leader, nodes, share) in self.planner().running() {
            *led.entry(leader).or_default() += 1;
            for node in nodes {
                let (all, idle, bytes) = jobs.entry(*node).or_default();
                *all += 1;
                *idle += usize::from(job.kind != Kind::Repair);
                *bytes += share;
            }
        }
        let shares = self.planner().shares();
        let told: usize = shares.values().map(|it| it.led).sum();
        let is_told = |(node, (all, _, bytes)): (&NodeId, &(usize, usize, u64))| {
            let share = shares.get(node).copied().unwrap_or_default();
            (share.taking_part, share.bytes_per_second) == (*all, *bytes)
        };
        if told != led.values().sum::<usize>() || !jobs.iter().all(is_told) {
            return Err(format!("{shares:?} is told of {jobs:?}, led: {led:?}"));
        }
        for (node, (all, idle, bytes)) in jobs {
            if all > SHARED_MAX || idle > IDLE_MAX || bytes > BUDGET {
                return Err(format!(
                    "{node} has {all} jobs, {idle} idle ones, {bytes} B/s"
                ));
            }
        }
        if let Some((run, led)) = led.into_iter().find(|(_, led)| *led > LED_MAX) {
            return Err(format!("{run} leads {led} jobs"));
        }
        if self.told.0 == self.groups && self.told.1 == self.nsds {
            let mut groups = (0..self.groups.len()).filter(|at| !self.is_whole(*at));
            let wrong = groups.find(|at| self.planner().is_repaired(GroupId(*at as u32)));
            if let Some(group) = wrong {
                return Err(format!("group {group} is taken for repaired"));
            }
        }
        Ok(())
    }

    pub(crate) fn is_at_rest(&self) -> bool {
        let is_done = |at: usize| {
            let is_known = self.planner().is_repaired(GroupId(at as u32));
            is_known && self.is_whole(at) && !self.is_moving(at)
        };
        (0..self.groups.len()).all(is_done)
    }

    /// Messages arrive at once.
    pub(crate) fn calm_say(&mut self) {
        (0..self.servers.len()).for_each(|at| self.say(at, false));
        while !self.messages.is_empty() {
            self.deliver(0);
        }
    }

    /// A second in which nothing goes wrong.
    pub(crate) fn calm_round(&mut self) -> Result<(), String> {
        self.now += Duration::from_millis(900);
        self.learn();
        self.tick()?;
        self.calm_say();
        (0..self.servers.len()).for_each(|at| self.work(at));
        self.check()
    }

    /// All servers are there, and nothing goes wrong any more.
    pub(crate) fn come_to_rest(&mut self) -> Result<(), String> {
        (0..self.servers.len()).for_each(|at| self.start(at));
        for _ in 0..3_000 {
            self.calm_round()?;
            if self.is_at_rest() {
                return Ok(());
            }
        }
        let status = self.status();
        let left = (0..self.groups.len()).filter(|at| !self.is_whole(*at));
        let left: Vec<_> = left.map(|at| &self.groups[at]).collect();
        Err(format!("not everything is repaired: {status:?} {left:?}"))
    }

    pub(crate) fn status(&self) -> Status {
        self.planner().status()
    }

    /// Places of the servers that lead jobs of the kind.
    pub(crate) fn leaders(&self, kind: Kind) -> Vec<usize> {
        let running = self.planner().running().filter(|it| it.0.kind == kind);
        running.map(|it| it.1.node.0 as usize - 1).collect()
    }

    /// Where the first job of the kind that a server does began or is.
    pub(crate) fn begun_at(&mut self, kind: Kind) -> u64 {
        self.calm_say();
        let up = self.servers.iter().filter(|server| server.is_up);
        let mut jobs = up.flat_map(|server| server.worker.jobs());
        let job = jobs.find(|(assignment, _)| assignment.job.kind == kind);
        job.map_or(0, |(assignment, _)| assignment.from.0 as u64)
    }

    pub(crate) fn home_of_first(&self) -> usize {
        self.groups[0].slots[0].current.0 as usize - 1
    }
}
