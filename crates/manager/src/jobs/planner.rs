//! The manager's half: which server does which job, and what has been done.

use super::groups::{Group, GroupFact, Groups, NsdFact};
use super::waiting::{Done, DoneJobs, Settings, Urgency, in_order, is_wanted};
use super::{
    Assignment, Attempt, Cursor, Finished, HEAR_FIRST, IDLE_MAX, JobId, Kind, LED_MAX, Orders,
    Outcome, RUNNING_MAX, Running, SHARED_MAX, Stamp, Statement,
};
use crate::planted::Planted;
use model::member::Term;
use model::{GroupId, Moment, NodeId, NodeRun, NsdId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// So many jobs are found to have no room before the rest waits for the next time: with many groups
/// almost none of the others would find any.
const REFUSED_MAX: usize = 4_096;
/// So many samples of what was done are kept, one for each second, to tell the end from.
const SAMPLES_MAX: usize = 60;
/// Time between two of them.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);

/// A job that was assigned.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Assigned {
    leader: NodeRun,
    attempt: Attempt,
    stamp: Stamp,
    at: Cursor,
    bytes: u64,
    nodes: BTreeSet<NodeId>,
}

/// A run that serves NSDs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct Server {
    /// Its newest statement.
    number: u64,
    /// It has said everything that it knows, to this manager.
    is_heard: bool,
    led: usize,
}

/// How a pool is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Status {
    /// Groups that can't lose anything more without losing data.
    pub critical: usize,
    /// Groups that have lost more than they survive, until an NSD comes back.
    pub unreadable: usize,
    /// Groups that lack a slot: their next NSD hasn't everything, or one is away.
    pub degraded: usize,
    /// Repairs that wait or run, looks at groups that have just changed included.
    pub repairs: usize,
    /// Jobs of all kinds that run.
    pub running: usize,
    /// Sweeps among them.
    pub sweeps: usize,
    /// Scrubs among them.
    pub scrubs: usize,
    /// Bytes that repairs still have to look at, about.
    pub bytes_left: u64,
    /// Those of groups that can't lose anything more, among them.
    pub bytes_critical: u64,
    /// Bytes that repairs looked at in the last minute, or since the first of those that are left was wanted, for
    /// each second of it.
    pub bytes_per_second: u64,
    /// When all repairs will be done, if it goes on like this. `None` while nobody knows.
    pub done_in: Option<Duration>,
}

/// What a node has to do with the jobs that run now.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Share {
    /// Jobs that it leads.
    pub led: usize,
    /// Jobs that one of its NSDs takes part in.
    pub taking_part: usize,
    /// What these may read or write there together, per second.
    pub bytes_per_second: u64,
}

/// The jobs of one pool.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Planner {
    term: Term,
    settings: Settings,
    began: Moment,
    groups: Groups,
    servers: BTreeMap<NodeRun, Server>,
    running: BTreeMap<JobId, Assigned>,
    done: DoneJobs,
    /// Where jobs go on whose servers died, or that others had to wait for.
    cursors: BTreeMap<JobId, (Stamp, Cursor)>,
    /// Jobs that each node takes part in: all, and those that aren't repairs.
    shared: BTreeMap<NodeId, (usize, usize)>,
    attempts: u64,
    orders: u64,
    /// That repairs have looked at.
    bytes: u64,
    samples: VecDeque<(Moment, u64)>,
    planted: Option<Planted>,
}

impl Planner {
    /// The planner of a manager that begins now.
    #[must_use]
    pub fn begin(term: Term, settings: Settings, now: Moment) -> Self {
        Self {
            term,
            settings,
            began: now,
            groups: Groups::default(),
            servers: BTreeMap::new(),
            running: BTreeMap::new(),
            done: BTreeMap::new(),
            cursors: BTreeMap::new(),
            shared: BTreeMap::new(),
            attempts: 0,
            orders: 0,
            bytes: 0,
            samples: VecDeque::new(),
            planted: None,
        }
    }

    /// A fault for a test.
    pub fn plant(&mut self, fault: Planted) {
        self.planted = Some(fault);
    }

    /// How often and how fast from now on. Servers hear of it with their next orders.
    pub fn use_settings(&mut self, settings: Settings) {
        self.settings = settings;
    }

    /// The pool's map has changed.
    pub fn learn_map(&mut self, groups: Vec<GroupFact>) {
        self.groups.learn_map(groups);
        self.forget_outdated();
    }

    /// NSDs were added, or answer or not.
    pub fn learn_nsds(&mut self, nsds: BTreeMap<NsdId, NsdFact>) {
        self.groups.learn_nsds(nsds);
        self.forget_outdated();
    }

    /// A run became a member: from now on it is heard.
    pub fn begin_server(&mut self, run: NodeRun) {
        self.servers.entry(run).or_default();
    }

    /// A run has ended: others do its jobs.
    pub fn end_server(&mut self, run: NodeRun) {
        self.servers.remove(&run);
        let led = self.running.iter().filter(|(_, it)| it.leader == run);
        let led: Vec<_> = led.map(|(job, _)| *job).collect();
        led.into_iter().for_each(|job| self.stop(job));
    }

    /// Takes a server's statement, and answers it. One of a run that isn't a server isn't answered, nor
    /// one that a newer one has overtaken.
    pub fn hear(&mut self, from: NodeRun, statement: &Statement, now: Moment) -> Option<Orders> {
        let server = self.servers.get_mut(&from)?;
        if statement.number <= server.number {
            return None;
        }
        server.number = statement.number;
        // It says everything when it knows of this manager.
        server.is_heard |= statement.term == self.term && !statement.has_more;
        for finished in &statement.finished {
            self.finished(from, finished, now);
        }
        for running in &statement.running {
            self.runs(from, running, now);
        }
        self.orders += 1;
        let own = self.running.iter().filter(|(_, it)| it.leader == from);
        let assignments = own.map(|(job, it)| Assignment {
            job: *job,
            stamp: it.stamp,
            attempt: it.attempt,
            from: it.at,
            bytes_per_second: self.share(it),
        });
        Some(Orders {
            term: self.term,
            number: self.orders,
            heard: statement.number,
            assignments: assignments.collect(),
        })
    }

    fn finished(&mut self, from: NodeRun, finished: &Finished, now: Moment) {
        let job = finished.job;
        let assigned = self.running.get(&job);
        let its = assigned.filter(|it| it.leader == from && it.attempt == finished.attempt);
        if let Some(assigned) = its {
            let group = self.groups.known.get(&job.group);
            // What it has looked at since it said so last: short jobs never said anything.
            let rest = group.map_or(0, |it| it.bytes.saturating_sub(assigned.bytes));
            if job.kind == Kind::Repair && finished.outcome == Outcome::Complete {
                self.bytes = self.bytes.saturating_add(rest);
            }
            self.stop(job);
        }
        let Some(group) = self.groups.known.get(&job.group) else {
            return;
        };
        let takes_any = self.planted == Some(Planted::TakeAnyStamp);
        let stamp = match takes_any {
            true => group.stamp,
            false => finished.stamp,
        };
        // What was done to another state of the group doesn't say that nothing is missing now.
        if job.kind == Kind::Repair && stamp != group.stamp {
            return;
        }
        let done = Done {
            stamp,
            outcome: finished.outcome,
            at: Moment(now.0.saturating_sub(finished.ago)),
        };
        let known = self.done.get(&job);
        let is_other = |known: &Done| job.kind == Kind::Repair && known.stamp != stamp;
        if known.is_none_or(|known| known.at <= done.at || is_other(known)) {
            self.done.insert(job, done);
        }
        self.cursors.remove(&job);
    }

    fn runs(&mut self, from: NodeRun, running: &Running, now: Moment) {
        let job = running.job;
        if let Some(assigned) = self.running.get_mut(&job) {
            if assigned.leader == from && assigned.attempt == running.attempt {
                let more = running.bytes.saturating_sub(assigned.bytes);
                if job.kind == Kind::Repair {
                    self.bytes = self.bytes.saturating_add(more);
                }
                assigned.bytes = running.bytes;
                assigned.at = assigned.at.max(running.at);
            }
            return;
        }
        // It was assigned by an earlier manager. This one's own were taken from it since.
        let Some(group) = self.groups.known.get(&job.group) else {
            return;
        };
        let is_adopted = running.attempt.term < self.term
            && self.servers[&from].led < LED_MAX
            && running.stamp == group.stamp
            && is_wanted(job, group, self.done.get(&job), &self.settings, now)
            && self.has_room(job, group, &BTreeMap::new());
        if is_adopted {
            let assigned = Assigned {
                leader: from,
                attempt: running.attempt,
                stamp: running.stamp,
                at: running.at,
                bytes: running.bytes,
                nodes: group.nodes.clone(),
            };
            self.start(job, assigned);
        }
    }

    /// Time has passed: assigns what is wanted and has room. Wanted every second.
    pub fn tick(&mut self, now: Moment) {
        if !self.has_repairs() {
            // The next ones aren't slower because nothing was done before.
            self.samples.clear();
        }
        let last = self.samples.back();
        if last.is_none_or(|(at, _)| now.since(*at) >= SAMPLE_EVERY) {
            self.samples.push_back((now, self.bytes));
            if self.samples.len() > SAMPLES_MAX {
                self.samples.pop_front();
            }
        }
        self.plan(now);
    }

    /// Jobs of groups whose state has changed begin anew.
    fn forget_outdated(&mut self) {
        let groups = &self.groups.known;
        let is_blind = self.planted == Some(Planted::KeepCursor);
        let is_now = |job: &JobId, stamp: Stamp| {
            let group = groups.get(&job.group);
            group.is_some_and(|group| group.stamp == stamp || is_blind)
        };
        self.cursors.retain(|job, (stamp, _)| is_now(job, *stamp));
        self.done.retain(|job, _| groups.contains_key(&job.group));
        let running = self.running.iter();
        let outdated = running.filter(|(job, it)| {
            let group = groups.get(&job.group);
            // Another node takes part now, or one less.
            !is_now(job, it.stamp) || group.is_none_or(|group| group.nodes != it.nodes)
        });
        let outdated: Vec<_> = outdated.map(|(job, _)| *job).collect();
        outdated.into_iter().for_each(|job| self.stop(job));
    }

    /// Assigns what is wanted, as far as there is room.
    fn plan(&mut self, now: Moment) {
        let servers = self.groups.servers();
        let mut heard = self
            .servers
            .iter()
            .filter(|(run, _)| servers.contains(&run.node));
        let is_hasty = self.planted == Some(Planted::AssignUnheard);
        let all_heard = heard.all(|(_, server)| server.is_heard);
        if !all_heard && now.since(self.began) < HEAR_FIRST && !is_hasty {
            return;
        }
        let order = in_order(&self.groups, &self.done, &self.settings, now, self.planted);
        let mut reserved: BTreeMap<NodeId, usize> = BTreeMap::new();
        let mut refused: VecDeque<(Urgency, JobId)> = VecDeque::new();
        let mut refusals = 0;
        for (urgency, job) in order {
            if self.running.contains_key(&job) {
                continue;
            }
            if self.running.len() >= RUNNING_MAX && job.kind != Kind::Repair {
                break;
            }
            // Room that more urgent ones wait for isn't given to others.
            while let Some((earlier, waiting)) = refused.front().copied() {
                if earlier == urgency {
                    break;
                }
                refused.pop_front();
                for node in &self.groups.known[&waiting.group].nodes {
                    *reserved.entry(*node).or_default() += 1;
                }
            }
            if !self.begin_job(job, &reserved) {
                refused.push_back((urgency, job));
                refusals += 1;
                if refusals >= REFUSED_MAX {
                    break;
                }
            }
        }
    }

    /// False if there is no room.
    fn begin_job(&mut self, job: JobId, reserved: &BTreeMap<NodeId, usize>) -> bool {
        let group = &self.groups.known[&job.group];
        let Some(leader) = self.leader(group) else {
            return false;
        };
        if !self.has_room(job, group, reserved) {
            let group = group.clone();
            if job.kind != Kind::Repair || !self.make_room(job, &group, reserved) {
                return false;
            }
        }
        let group = self.groups.known[&job.group].clone();
        self.attempts += 1;
        let cursor = self.cursors.remove(&job);
        let is_blind = self.planted == Some(Planted::KeepCursor);
        let cursor = cursor.filter(|(stamp, _)| *stamp == group.stamp || is_blind);
        let assigned = Assigned {
            leader,
            attempt: Attempt {
                term: self.term,
                number: self.attempts,
            },
            stamp: group.stamp,
            at: cursor.map_or(Cursor::default(), |(_, at)| at),
            bytes: 0,
            nodes: group.nodes,
        };
        self.start(job, assigned);
        true
    }

    /// The server of the group that leads the fewest jobs, if one may lead another.
    fn leader(&self, group: &Group) -> Option<NodeRun> {
        let of_node = |node: &NodeId| {
            let [first, last] = [0, u64::MAX].map(|incarnation| NodeRun {
                node: *node,
                incarnation,
            });
            self.servers.range(first..=last)
        };
        let servers = group.nodes.iter().flat_map(of_node);
        let may_lead = servers.filter(|(_, server)| server.is_heard && server.led < LED_MAX);
        let least = may_lead.min_by_key(|(run, server)| (server.led, **run));
        least.map(|(run, _)| *run)
    }

    /// All nodes of the group can take part in one more job.
    fn has_room(&self, job: JobId, group: &Group, reserved: &BTreeMap<NodeId, usize>) -> bool {
        let has_room = |node: &NodeId| {
            let (all, idle) = self.shared.get(node).copied().unwrap_or_default();
            let all = all + reserved.get(node).copied().unwrap_or(0);
            all < SHARED_MAX && (job.kind == Kind::Repair || idle < IDLE_MAX)
        };
        let is_careless = self.planted == Some(Planted::Overload);
        self.running.len() < RUNNING_MAX && (is_careless || group.nodes.iter().all(has_room))
    }

    /// Stops sweeps and scrubs that a repair waits for, if that is enough.
    fn make_room(&mut self, job: JobId, group: &Group, reserved: &BTreeMap<NodeId, usize>) -> bool {
        let would_do = |node: &NodeId| {
            let (all, idle) = self.shared.get(node).copied().unwrap_or_default();
            all - idle + reserved.get(node).copied().unwrap_or(0) < SHARED_MAX
        };
        if !group.nodes.iter().all(would_do) {
            return false;
        }
        let idle = self.running.iter().filter(|(other, it)| {
            other.kind != Kind::Repair && !it.nodes.is_disjoint(&group.nodes)
        });
        let idle: Vec<_> = idle.map(|(other, _)| *other).collect();
        for other in idle {
            self.stop(other);
            if self.has_room(job, group, reserved) {
                return true;
            }
        }
        false
    }

    fn start(&mut self, job: JobId, assigned: Assigned) {
        for node in &assigned.nodes {
            let (all, idle) = self.shared.entry(*node).or_default();
            *all += 1;
            *idle += usize::from(job.kind != Kind::Repair);
        }
        if let Some(server) = self.servers.get_mut(&assigned.leader) {
            server.led += 1;
        }
        self.running.insert(job, assigned);
    }

    /// The job isn't under way any more; it goes on from where it was, unless it was done.
    fn stop(&mut self, job: JobId) {
        let Some(assigned) = self.running.remove(&job) else {
            return;
        };
        for node in &assigned.nodes {
            let (all, idle) = self.shared.get_mut(node).expect("it takes part");
            *all -= 1;
            *idle -= usize::from(job.kind != Kind::Repair);
        }
        if let Some(server) = self.servers.get_mut(&assigned.leader) {
            server.led -= 1;
        }
        self.cursors.insert(job, (assigned.stamp, assigned.at));
    }

    /// What a job may read or write at each of its nodes: all of a node's jobs together no more than
    /// the node may.
    fn share(&self, assigned: &Assigned) -> u64 {
        let jobs = assigned.nodes.iter().map(|node| self.shared[node].0);
        let most = jobs.max().unwrap_or(1).max(1);
        self.settings.node_bytes_per_second / most as u64
    }

    /// Groups with moving slots whose next NSDs have everything: their slots may be switched, if the
    /// stamp is still that by the map and by what the NSDs themselves say. One that was away since may
    /// have missed something.
    pub fn arrived(&self) -> impl Iterator<Item = (GroupId, Stamp)> {
        let moving = self
            .groups
            .known
            .iter()
            .filter(|(_, group)| group.is_moving);
        let arrived = moving.filter(|(id, group)| self.is_whole(**id, group));
        arrived.map(|(id, group)| (*id, group.stamp))
    }

    /// Those of [`Planner::arrived`] that can't lose more than others whose next NSDs get something now, or
    /// soon: groups that can lose the least are whole first.
    pub fn to_switch(&self) -> impl Iterator<Item = (GroupId, Stamp)> {
        let moves = self.groups.known.iter().filter(|(id, group)| {
            let kind = Kind::Repair;
            let job = JobId { kind, group: **id };
            let done = self.done.get(&job);
            let was_tried = done.is_some_and(|done| done.stamp == group.stamp);
            let is_under_way = self.running.contains_key(&job) || !was_tried;
            group.is_moving && group.left >= 0 && !group.nodes.is_empty() && is_under_way
        });
        let most_urgent = moves.map(|(_, group)| group.left).min();
        let may_be_next = move |id: &GroupId| {
            let left = self.groups.known.get(id).map(|group| group.left);
            most_urgent.is_none_or(|most| left <= Some(most))
        };
        self.arrived().filter(move |(id, _)| may_be_next(id))
    }

    /// No repair runs, and none that could be done waits for its first try: what is left couldn't be done.
    #[must_use]
    pub fn is_calm(&self) -> bool {
        let mut groups = self.groups.known.iter();
        groups.all(|(id, group)| {
            let kind = Kind::Repair;
            let job = JobId { kind, group: *id };
            let done = self.done.get(&job);
            let was_tried = done.is_some_and(|done| done.stamp == group.stamp);
            let is_possible = group.left >= 0 && !group.nodes.is_empty();
            !self.running.contains_key(&job) && (was_tried || !is_possible)
        })
    }

    /// A group was repaired since it last changed, and all its NSDs serve: what other NSDs hold of it
    /// isn't needed.
    #[must_use]
    pub fn is_sound(&self, group: GroupId) -> bool {
        let known = self.groups.known.get(&group);
        known.is_some_and(|known| known.missing == 0 && self.is_whole(group, known))
    }

    /// A repair has found nothing missing, or has rebuilt it, since the group last changed.
    #[must_use]
    pub fn is_repaired(&self, group: GroupId) -> bool {
        let known = self.groups.known.get(&group);
        known.is_some_and(|known| self.is_whole(group, known))
    }

    fn is_whole(&self, id: GroupId, group: &Group) -> bool {
        let kind = Kind::Repair;
        let done = self.done.get(&JobId { kind, group: id });
        done.is_some_and(|done| done.stamp == group.stamp && done.outcome == Outcome::Complete)
    }

    /// A repair that can be done isn't done.
    fn has_repairs(&self) -> bool {
        let mut groups = self.groups.known.iter();
        groups.any(|(id, group)| group.left >= 0 && !self.is_whole(*id, group))
    }

    /// The job is to be done, and nobody does it.
    #[must_use]
    pub fn is_waiting(&self, job: JobId, now: Moment) -> bool {
        let group = self.groups.known.get(&job.group);
        let done = self.done.get(&job);
        let is_wanted = |group| is_wanted(job, group, done, &self.settings, now);
        !self.running.contains_key(&job) && group.is_some_and(is_wanted)
    }

    /// How the pool is now.
    #[must_use]
    pub fn status(&self) -> Status {
        let mut status = Status {
            running: self.running.len(),
            ..Status::default()
        };
        for job in self.running.keys() {
            match job.kind {
                Kind::Repair => {}
                Kind::Sweep => status.sweeps += 1,
                Kind::Scrub => status.scrubs += 1,
            }
        }
        for (id, group) in &self.groups.known {
            status.unreadable += usize::from(group.left < 0);
            status.degraded += usize::from(group.missing > 0);
            if group.left < 0 || self.is_whole(*id, group) {
                continue;
            }
            let kind = Kind::Repair;
            let running = self.running.get(&JobId { kind, group: *id });
            let done = running.map_or(0, |it| it.bytes);
            let left = group.bytes.saturating_sub(done);
            status.repairs += 1;
            status.bytes_left += left;
            if group.left == 0 {
                status.critical += 1;
                status.bytes_critical += left;
            }
        }
        if let (Some((first, before)), Some((last, after))) =
            (self.samples.front(), self.samples.back())
        {
            let millis = last.since(*first).as_millis() as u64;
            let bytes = (after - before).saturating_mul(1_000);
            status.bytes_per_second = bytes.checked_div(millis).unwrap_or(0);
        }
        let seconds = status.bytes_left.checked_div(status.bytes_per_second);
        status.done_in = match status.repairs {
            0 => Some(Duration::ZERO),
            _ => seconds.map(Duration::from_secs),
        };
        status
    }

    /// What each node has to do with the jobs that run now. Nodes that have nothing to do with any aren't in it.
    #[must_use]
    pub fn shares(&self) -> BTreeMap<NodeId, Share> {
        let mut shares: BTreeMap<NodeId, Share> = BTreeMap::new();
        for (_, leader, nodes, bytes) in self.running() {
            shares.entry(leader.node).or_default().led += 1;
            for node in nodes {
                let share = shares.entry(*node).or_default();
                share.taking_part += 1;
                share.bytes_per_second += bytes;
            }
        }
        shares
    }

    /// What runs now: job, leader, nodes that take part, and bytes per second at each of them.
    pub fn running(&self) -> impl Iterator<Item = (JobId, NodeRun, &BTreeSet<NodeId>, u64)> {
        let running = self.running.iter();
        running.map(|(job, it)| (*job, it.leader, &it.nodes, self.share(it)))
    }
}
