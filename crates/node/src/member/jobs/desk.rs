//! The manager's side: a planner for the pool while this run is the cluster's manager.
//!
//! A planner must know how the groups are before it hears what was done to them, and only NSDs themselves say
//! how often they were opened. So a new desk first hears from all members, for 5 s at most: their statements
//! aren't answered so long, and what they run goes on.

use super::report::{Countdown, add, parts_of_nodes, sum_of_owners, sum_of_rebuilt};
use super::working::OPENED_BITS;
use super::{Member, Parts, SCRUB_EVERY, SPEED};
use coordination::Roster;
use manager::Moment;
use manager::jobs::{GroupFact, HEAR_FIRST, NsdFact, Planner, Settings, Slot, Statement};
use metanode::DATA_POOL;
use model::jobs::{
    FINISHED_MAX, JobsReply, JobsRequest, OwnersWork, Rebuilt, RepairProgress, RepairReport,
    STATED_MAX, STATED_NSDS_MAX, StatedNsd,
};
use model::map::NsdState;
use model::member::{Membership, Term};
use model::{Error, ErrorKind, GroupId, MapEpoch, NodeId, NodeRun, NsdId, Result};
use parking_lot::Mutex;
use pool::Pool;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// How often time passes for the planner, and how soon after something has ended.
const TICK: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_millis(100);
const MAP_LOOK: Duration = Duration::from_millis(20);
/// How often a node that isn't the manager looks whether it is.
const IDLE_LOOK: Duration = Duration::from_secs(2);
/// How often the settings are read, and how long an answer of coordination is waited for.
const SETTINGS_EVERY: Duration = Duration::from_secs(2);
const READ_MAX: Duration = Duration::from_secs(1);
/// So often the planner learns how much the groups hold.
const BYTES_EVERY: Duration = Duration::from_secs(60);
/// Unless the cluster says otherwise.
const SETTINGS: Settings = Settings {
    sweep_every: Duration::from_secs(300),
    scrub_every: Member::SCRUB_PERIOD,
    node_bytes_per_second: Member::REPAIR_SPEED,
};

/// Where statements find the planner, if it is here.
#[derive(Default)]
pub(super) struct Desk {
    open: Mutex<Option<Open>>,
    /// Something has ended, or a member has spoken for the first time.
    news: Notify,
}

/// What a member said last.
struct Heard {
    nsds: Vec<StatedNsd>,
    rebuilt: Rebuilt,
    owners: OwnersWork,
}

struct Open {
    term: Term,
    since: Moment,
    /// What coordination says.
    members: Membership,
    homes: BTreeMap<NsdId, NodeId>,
    map: MapEpoch,
    /// The NSDs in the map; whether each is lost.
    nsds: BTreeMap<NsdId, bool>,
    slots_moving: u64,
    /// Generations that are being emptied, and the first group of the one that isn't.
    closed: u64,
    newest: GroupId,
    /// How many shards there are.
    shards: u64,
    /// When the planner learned the map.
    mapped: Moment,
    groups: Vec<GroupFact>,
    heard: BTreeMap<NodeRun, Heard>,
    /// How often NSDs were opened, as they said last.
    opened: BTreeMap<NsdId, (NodeRun, u64)>,
    facts: BTreeMap<NsdId, NsdFact>,
    servers: BTreeSet<NodeRun>,
    settings: Settings,
    slots_moved: u64,
    /// What each node has rebuilt since this manager heard it first.
    rebuilt: BTreeMap<NodeId, Rebuilt>,
    rewriting: Countdown,
    /// As of when time passed last.
    is_calm: bool,
    planner: Option<Planner>,
}

/// The task that plans while this run is the manager.
pub(super) async fn keep(parts: Arc<Parts>) {
    let (world, desk) = (&parts.world, &parts.jobs.desk);
    let mut roster = parts.roster.subscribe();
    let mut settings = SETTINGS;
    let mut read = None;
    while !parts.lease.has_ended() {
        let known = roster.borrow_and_update().clone();
        let term = own_term(&parts, &known);
        let pause = match term {
            None => {
                *desk.open.lock() = None;
                read = None;
                IDLE_LOOK
            }
            Some(term) => {
                let is_due = read.is_none_or(|at| world.now() - at >= SETTINGS_EVERY);
                if is_due && read_settings(&parts, &mut settings).await {
                    read = Some(world.now());
                }
                let now = parts.moment();
                desk.keep_open(term, &known, &parts.nsds.pool, settings, now);
                if read.is_some() {
                    desk.plan(now);
                }
                // The pool's map follows the roster's at once.
                let map = known.pools.get(DATA_POOL).map(|map| map.epoch);
                match map > Some(parts.nsds.pool.map().epoch) {
                    true => MAP_LOOK,
                    false => TICK,
                }
            }
        };
        tokio::select! {
            changed = roster.changed() => if changed.is_err() {
                return;
            },
            () = desk.news.notified() => world.sleep(SOON).await,
            () = world.sleep(pause) => {}
            () = parts.lease.ended() => {}
        }
    }
    *desk.open.lock() = None;
}

/// This run's, if it is the manager and coordination says so.
fn own_term(parts: &Parts, roster: &Roster) -> Option<Term> {
    let members = &roster.membership.as_ref()?.value;
    let is_own = members.manager == Some(parts.run) && parts.office.is_open();
    is_own.then_some(members.term)
}

/// False if coordination doesn't answer.
async fn read_settings(parts: &Parts, settings: &mut Settings) -> bool {
    let mut numbers = [None; 2];
    for (number, name) in numbers.iter_mut().zip([SPEED, SCRUB_EVERY]) {
        let read = parts.coordination.config(name);
        let Ok(Ok(known)) = parts.world.timeout(READ_MAX, read).await else {
            return false;
        };
        *number = known.and_then(|known| known.value.parse::<u64>().ok());
    }
    let [speed, scrub_every] = numbers;
    settings.node_bytes_per_second = speed.unwrap_or(SETTINGS.node_bytes_per_second);
    settings.scrub_every = scrub_every.map_or(SETTINGS.scrub_every, Duration::from_secs);
    true
}

impl Desk {
    /// # Errors
    /// `OldEpoch`: the manager isn't here, or a newer statement has overtaken this one. `Unavailable`: not
    /// yet; ask again.
    pub(super) fn answer(
        &self,
        from: NodeRun,
        asked: JobsRequest,
        now: Moment,
    ) -> Result<JobsReply> {
        let mut open = self.open.lock();
        let open = open
            .as_mut()
            .ok_or_else(|| Error::new(ErrorKind::OldEpoch, "this node isn't the manager"))?;
        match asked {
            JobsRequest::Status => Ok(JobsReply::Status(open.report())),
            JobsRequest::State {
                statement,
                nsds,
                rebuilt,
                owners,
            } => {
                let is_bounded = statement.running.len() <= STATED_MAX
                    && statement.finished.len() <= FINISHED_MAX
                    && nsds.len() <= STATED_NSDS_MAX;
                if !is_bounded {
                    let text = "a statement has more parts than allowed";
                    return Err(Error::new(ErrorKind::InvalidArgument, text));
                }
                let said = Heard {
                    nsds,
                    rebuilt,
                    owners,
                };
                if open.hear_nsds(from, said)? || !statement.finished.is_empty() {
                    self.news.notify_one();
                }
                open.orders(from, &statement, now)
            }
        }
    }

    fn keep_open(&self, term: Term, roster: &Roster, pool: &Pool, settings: Settings, now: Moment) {
        let mut open = self.open.lock();
        if open.as_ref().is_none_or(|open| open.term != term) {
            *open = Some(Open::new(term, now));
        }
        if let Some(open) = open.as_mut() {
            open.learn(roster, pool, now);
            if open.settings != settings {
                open.settings = settings;
                if let Some(planner) = &mut open.planner {
                    planner.use_settings(settings);
                }
            }
        }
    }

    /// Time has passed.
    fn plan(&self, now: Moment) {
        let mut open = self.open.lock();
        if let Some(open) = open.as_mut() {
            open.begin_if_heard(now);
            if let Some(planner) = &mut open.planner {
                planner.tick(now);
                open.is_calm = planner.is_calm();
            }
            let left = open.to_rewrite();
            open.rewriting.note(now, left);
        }
    }

    /// Groups whose slots may be switched, if the map is still this one.
    pub(super) fn to_switch(&self, map: MapEpoch) -> Vec<GroupId> {
        let open = self.open.lock();
        let open = open.as_ref().filter(|open| open.map == map);
        let planner = open.and_then(|open| open.planner.as_ref());
        let groups = planner.into_iter().flat_map(Planner::to_switch);
        groups.map(|(group, _)| group).collect()
    }

    /// Whether what NSDs hold of a group of this map without being its members isn't needed any more.
    pub(super) fn is_sound(&self, group: GroupId, map: MapEpoch) -> bool {
        let open = self.open.lock();
        let open = open.as_ref().filter(|open| open.map == map);
        let planner = open.and_then(|open| open.planner.as_ref());
        planner.is_some_and(|planner| planner.is_sound(group))
    }

    /// A planner is here, and knows what runs.
    pub(super) fn is_planning(&self) -> bool {
        let open = self.open.lock();
        open.as_ref().is_some_and(|open| open.planner.is_some())
    }

    /// Slots were switched.
    pub(super) fn note_switched(&self, slots: u64) {
        if let Some(open) = self.open.lock().as_mut() {
            open.slots_moved += slots;
        }
    }
}

impl Open {
    fn new(term: Term, now: Moment) -> Self {
        Self {
            term,
            since: now,
            members: Membership::default(),
            homes: BTreeMap::new(),
            map: MapEpoch(0),
            nsds: BTreeMap::new(),
            slots_moving: 0,
            closed: 0,
            newest: GroupId(0),
            shards: 0,
            mapped: now,
            groups: Vec::new(),
            heard: BTreeMap::new(),
            opened: BTreeMap::new(),
            facts: BTreeMap::new(),
            servers: BTreeSet::new(),
            settings: SETTINGS,
            slots_moved: 0,
            rebuilt: BTreeMap::new(),
            rewriting: Countdown::default(),
            is_calm: false,
            planner: None,
        }
    }

    /// What coordination and the map say now.
    fn learn(&mut self, roster: &Roster, pool: &Pool, now: Moment) {
        if let Some(members) = &roster.membership {
            self.members = members.value.clone();
        }
        self.homes.clone_from(&roster.homes);
        self.shards = roster.shards.len() as u64;
        let groups = pool.groups();
        let map = groups.map();
        let is_changed = self.map != map.epoch;
        if is_changed || now.since(self.mapped) >= BYTES_EVERY {
            self.map = map.epoch;
            self.mapped = now;
            let nsds = map.nsds.iter();
            let lost = nsds.map(|entry| (entry.nsd, entry.state == NsdState::Lost));
            self.nsds = lost.collect();
            self.slots_moving = groups.moving().len() as u64;
            self.closed = map.closed().len() as u64;
            self.newest = map.newest().first_group;
            self.groups = group_facts(pool, &self.nsds);
            if let Some(planner) = &mut self.planner {
                planner.learn_map(self.groups.clone());
            }
        }
        let members = self.members.members.values();
        let members = members.filter(|it| it.standing.is_member());
        let members: BTreeSet<_> = members.map(|it| it.run).collect();
        if members != self.servers {
            self.heard.retain(|run, _| members.contains(run));
            if let Some(planner) = &mut self.planner {
                for ended in self.servers.difference(&members) {
                    planner.end_server(*ended);
                }
                for new in members.difference(&self.servers) {
                    planner.begin_server(*new);
                }
            }
            self.servers = members;
        }
        self.tell_nsds();
    }

    /// The planner learns how NSDs are, if that has changed.
    fn tell_nsds(&mut self) {
        let facts = self.nsds.iter().filter_map(|(nsd, is_lost)| {
            let home = *self.homes.get(nsd)?;
            Some((*nsd, self.fact(*nsd, home, *is_lost)))
        });
        let facts: BTreeMap<_, _> = facts.collect();
        if facts != self.facts {
            self.facts = facts;
            if let Some(planner) = &mut self.planner {
                planner.learn_nsds(self.facts.clone());
            }
        }
    }

    /// How an NSD is. One whose run is over keeps its number, also for a manager that never heard that
    /// run; one whose run hasn't spoken yet has another one than it will have.
    fn fact(&self, nsd: NsdId, home: NodeId, is_lost: bool) -> NsdFact {
        let member = self.members.members.get(&home);
        let run = member.map(|member| member.run);
        let said = run.and_then(|run| self.heard.get(&run));
        let stated = said.and_then(|said| said.nsds.iter().find(|it| it.nsd == nsd));
        if let Some(stated) = stated {
            return NsdFact {
                home,
                serves: stated.serves && !is_lost,
                opened: stated.opened,
            };
        }
        let last = self.opened.get(&nsd).filter(|last| Some(last.0) == run);
        let is_member = member.is_some_and(|member| member.standing.is_member());
        let first = run.map_or(0, |run| run.incarnation << OPENED_BITS);
        let opened = match (is_member, last) {
            (false, Some((_, opened))) => *opened,
            (false, None) => first,
            (true, _) => first.saturating_sub(1),
        };
        NsdFact {
            home,
            serves: false,
            opened,
        }
    }

    /// Takes down how a member's NSDs are, and what it has done. Returns whether the former is news.
    fn hear_nsds(&mut self, from: NodeRun, said: Heard) -> Result<bool> {
        if !self.servers.contains(&from) {
            let text = "this run isn't a member, as far as the manager knows";
            return Err(Error::new(ErrorKind::Unavailable, text));
        }
        // Of its own NSDs it says how they are, and of no others.
        let mut said = said;
        said.nsds
            .retain(|it| self.homes.get(&it.nsd) == Some(&from.node));
        for it in &said.nsds {
            self.opened.insert(it.nsd, (from, it.opened));
        }
        let before = self.heard.insert(from, said);
        let now = &self.heard[&from];
        let sum = self.rebuilt.entry(from.node).or_default();
        // What it did before this manager isn't counted.
        if let Some(before) = &before {
            let (was, is) = (before.rebuilt, now.rebuilt);
            let more = Rebuilt {
                pieces: is.pieces.saturating_sub(was.pieces),
                bytes: is.bytes.saturating_sub(was.bytes),
            };
            add(sum, more);
        }
        let is_news = before.is_none_or(|before| before.nsds != now.nsds);
        if is_news {
            self.tell_nsds();
        }
        Ok(is_news)
    }

    /// Begins to plan when all members have spoken, or had the time to.
    fn begin_if_heard(&mut self, now: Moment) {
        let all = self.servers.iter().all(|run| self.heard.contains_key(run));
        let is_time = now.since(self.since) >= HEAR_FIRST;
        if self.planner.is_some() || self.map == MapEpoch(0) || !(all || is_time) {
            return;
        }
        let mut planner = Planner::begin(self.term, self.settings, now);
        planner.learn_map(self.groups.clone());
        planner.learn_nsds(self.facts.clone());
        for run in &self.servers {
            planner.begin_server(*run);
        }
        self.planner = Some(planner);
    }

    fn orders(&mut self, from: NodeRun, statement: &Statement, now: Moment) -> Result<JobsReply> {
        let planner = self.planner.as_mut().ok_or_else(|| {
            let text = "the manager hears first what all members do";
            Error::new(ErrorKind::Unavailable, text)
        })?;
        let orders = planner
            .hear(from, statement, now)
            .ok_or_else(|| Error::new(ErrorKind::OldEpoch, "a newer statement was heard before"))?;
        let away = self.facts.iter().filter(|(_, fact)| !fact.serves);
        let away = away.map(|(nsd, _)| *nsd).take(STATED_NSDS_MAX);
        Ok(JobsReply::Orders {
            orders,
            away: away.collect(),
            is_calm: self.is_calm,
        })
    }

    fn owners(&self) -> OwnersWork {
        let all = self.heard.values().map(|it| it.owners);
        sum_of_owners(all, self.newest)
    }

    /// Segments that owners still have to rewrite, if all of them have counted.
    fn to_rewrite(&self) -> Option<u64> {
        if self.closed == 0 {
            return Some(0);
        }
        let owners = self.owners();
        (owners.counted >= self.shards).then_some(owners.to_rewrite)
    }

    fn report(&self) -> RepairReport {
        let shares = self.planner.as_ref().map(Planner::shares);
        RepairReport {
            progress: self.progress(),
            nodes: parts_of_nodes(&shares.unwrap_or_default(), &self.rebuilt),
        }
    }

    fn progress(&self) -> RepairProgress {
        let mut progress = RepairProgress {
            term: self.term,
            map: self.map,
            slots_moving: self.slots_moving,
            slots_moved: self.slots_moved,
            rebuilt: sum_of_rebuilt(&self.rebuilt),
            limit: self.settings.node_bytes_per_second,
            closed: self.closed,
            to_rewrite: self.to_rewrite(),
            rewritten_in: self.rewriting.done_in(),
            balancing: self.owners().balancing,
            ..RepairProgress::default()
        };
        let Some(planner) = &self.planner else {
            return progress;
        };
        let status = planner.status();
        let leaders: BTreeSet<_> = planner.running().map(|(_, leader, _, _)| leader).collect();
        progress.is_known = true;
        progress.groups_critical = status.critical as u64;
        progress.groups_unreadable = status.unreadable as u64;
        progress.groups_degraded = status.degraded as u64;
        progress.repairs = status.repairs as u64;
        progress.running = status.running as u64;
        progress.sweeps = status.sweeps as u64;
        progress.scrubs = status.scrubs as u64;
        progress.servers = leaders.len() as u64;
        progress.bytes_left = status.bytes_left;
        progress.bytes_critical = status.bytes_critical;
        progress.bytes_per_second = status.bytes_per_second;
        progress.done_in = status.done_in;
        let left = [status.repairs, status.degraded, status.unreadable];
        progress.is_complete = left.iter().all(|it| *it == 0) && self.slots_moving == 0;
        progress
    }
}

/// The pool's groups, with about as many bytes as each has.
fn group_facts(pool: &Pool, nsds: &BTreeMap<NsdId, bool>) -> Vec<GroupFact> {
    let groups = pool.groups();
    let states = pool.nsd_states();
    let used: u64 = states.iter().map(|state| state.usage.used).sum();
    // Those that are being emptied hold something as well.
    let bytes = used / (groups.all().count() as u64).max(1);
    let fact = |group: GroupId| {
        // A slot that never had an NSD holds nothing, and nothing is missing there.
        let slots = groups.members(group).iter();
        let slots = slots.filter(|slot| slot.current != NsdId::NONE || slot.next.is_some());
        let slots: Vec<_> = slots
            .map(|slot| Slot {
                current: slot.current,
                next: slot.next,
            })
            .collect();
        let is_gone = |slot: &&Slot| nsds.get(&slot.current).is_none_or(|is_lost| *is_lost);
        // What is gone for good isn't waited for: what the rest can give is repaired.
        let gone = slots.iter().filter(is_gone).count();
        let tolerance = groups.scheme_of(group).map_or(0, |it| it.tolerance());
        GroupFact {
            group,
            version: groups.map().version(group),
            tolerance: u8::try_from(tolerance.max(gone)).unwrap_or(u8::MAX),
            slots,
            bytes,
        }
    };
    groups.all().map(fact).collect()
}
