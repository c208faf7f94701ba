//! The simulated store itself: what is on its way, what is applied when, who leads.
//!
//! Passive: whoever asks first brings it up to the time of its clock, event by event in the order
//! of their times.

use super::chance::{Chance, mix};
use super::{Chances, Recorded};
use crate::{
    Change, Facts, Lease, LeaseId, News, Reading, Versioned,
    history::{Batch, History, Next},
    state::{State, lease_ended},
};
use bytes::Bytes;
use model::{Error, ErrorKind, NodeId, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use world::{Instant, World};

const MILLISECOND: Duration = Duration::from_millis(1);
/// How long a request and its answer travel, each at most.
const TRAVEL_MAX: Duration = Duration::from_millis(3);
/// ... or a slow one.
const SLOW_MAX: Duration = Duration::from_secs(8);
/// How long an election takes.
const ELECTION: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(2));
/// The same if the leader has fallen silent: members wait for 10 to 20 of its heartbeats of 100 ms, of which the last one
/// may have come just before ([`crate::etcd::HEARTBEAT`]).
const SILENT_ELECTION: (Duration, Duration) = (Duration::from_millis(900), ELECTION.1);
/// A new leader gives each lease this time more than its TTL (etcd: its election time).
const PROMOTION: Duration = Duration::from_secs(1);
/// Leases last at least this (etcd: 1.5 times its election time, in whole seconds).
const TTL_MIN: Duration = Duration::from_secs(2);
/// How late a watch is without a fault.
const WATCH_LATE_MAX: Duration = Duration::from_millis(20);
/// How late the store notices that a lease's time is over (etcd looks twice a second).
const END_LATE_MAX: Duration = Duration::from_millis(500);
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Most requests on their way; more are lost.
const REQUESTS_MAX: usize = 4096;
/// Most changes that are recorded for the judge: more means an endless loop.
const RECORD_MAX: usize = 1_000_000;

#[derive(Clone, Debug)]
pub(super) enum Request {
    Get(String),
    List(String),
    Change(Vec<Change>),
    Grant(Duration),
    KeepAlive(LeaseId),
    Revoke(LeaseId),
}

#[derive(Debug)]
pub(super) enum Answer {
    Got(Reading<Option<Versioned<Bytes>>>),
    Listed(Reading<Facts>),
    Changed(u64),
    Granted(Lease),
    Alive(Duration),
    Revoked,
}

#[derive(Debug)]
pub(super) enum Heard {
    Answer(Result<Answer>),
    /// Ask again after this time.
    Nothing(Duration),
}

struct Sent {
    number: u64,
    node: NodeId,
    request: Request,
}

struct Reply {
    /// When it arrives.
    at: Instant,
    node: NodeId,
    answer: Result<Answer>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Leader {
    Leads,
    /// There is one from this time on.
    Elected(Instant),
    NoQuorum,
}

pub(super) struct Server {
    clock: World,
    begun: Instant,
    /// Everything up to this time has happened.
    now: Instant,
    chance: Chance,
    chances: Chances,
    /// Decides how late watches are, without drawing numbers: they poll.
    seed: u64,

    state: State,
    revision: u64,
    history: History,
    /// When each lease ends; without meaning while there is no leader.
    ends: BTreeMap<LeaseId, Instant>,

    leader: Leader,
    /// The nodes that the members of the store run on; none: they are outside of all nodes.
    members: BTreeSet<NodeId>,
    /// Members that the others don't hear.
    down: BTreeSet<NodeId>,
    /// The member that leads, or led.
    leads: Option<NodeId>,
    /// The judge has stopped most members, wherever they are.
    is_stopped: bool,
    cut_off: BTreeSet<NodeId>,
    /// Nodes whose watches say nothing until then.
    silent: BTreeMap<NodeId, Instant>,

    numbers: u64,
    /// Requests by the time of their arrival.
    arriving: BTreeMap<(Instant, u64), Sent>,
    /// Requests that arrived while there was no leader and wait for one.
    waiting: Vec<Sent>,
    /// Requests whose senders still wait.
    awaited: BTreeSet<u64>,
    replies: BTreeMap<u64, Reply>,

    record: Vec<Recorded>,
    trace: u64,
}

impl Server {
    pub(super) fn new(clock: World, seed: u64) -> Self {
        Self {
            begun: clock.now(),
            now: clock.now(),
            clock,
            chance: Chance::new(seed),
            chances: Chances::NONE,
            seed,
            state: State::default(),
            // As an empty etcd.
            revision: 1,
            history: History::new(1),
            ends: BTreeMap::new(),
            leader: Leader::Leads,
            members: BTreeSet::new(),
            down: BTreeSet::new(),
            leads: None,
            is_stopped: false,
            cut_off: BTreeSet::new(),
            silent: BTreeMap::new(),
            numbers: 0,
            arriving: BTreeMap::new(),
            waiting: Vec::new(),
            awaited: BTreeSet::new(),
            replies: BTreeMap::new(),
            record: Vec::new(),
            trace: mix(seed),
        }
    }

    // What the judge does.

    pub(super) fn set_chances(&mut self, chances: Chances) {
        self.advance();
        self.chances = chances;
    }

    pub(super) fn change_leader(&mut self) {
        self.advance();
        if self.leader != Leader::NoQuorum {
            self.elect(ELECTION);
        }
    }

    pub(super) fn lose_quorum(&mut self) {
        self.advance();
        self.is_stopped = true;
        self.leave();
        self.leader = Leader::NoQuorum;
    }

    pub(super) fn regain_quorum(&mut self) {
        self.advance();
        self.is_stopped = false;
        self.elect_if_possible();
    }

    pub(super) fn put_members_on(&mut self, nodes: BTreeSet<NodeId>) {
        self.advance();
        self.leads = nodes.first().copied();
        self.members = nodes;
    }

    pub(super) fn lead_from(&mut self, node: NodeId) {
        self.advance();
        assert!(self.members.contains(&node) && !self.down.contains(&node));
        self.leads = Some(node);
    }

    pub(super) fn stop_member(&mut self, node: NodeId) {
        self.advance();
        if !self.members.contains(&node) || !self.down.insert(node) {
            return;
        }
        if !self.has_quorum() {
            if self.leader != Leader::NoQuorum {
                self.leave();
                self.leader = Leader::NoQuorum;
            }
        } else if self.leads == Some(node) && self.leader == Leader::Leads {
            self.elect(SILENT_ELECTION);
        }
    }

    pub(super) fn start_member(&mut self, node: NodeId) {
        self.advance();
        self.down.remove(&node);
        self.elect_if_possible();
    }

    fn has_quorum(&self) -> bool {
        let up = self.members.difference(&self.down).count();
        !self.is_stopped && (self.members.is_empty() || up * 2 > self.members.len())
    }

    fn elect_if_possible(&mut self) {
        if self.leader == Leader::NoQuorum && self.has_quorum() {
            self.elect(ELECTION);
        }
    }

    pub(super) fn cut_off(&mut self, node: NodeId) {
        self.advance();
        self.cut_off.insert(node);
        self.replies.retain(|_, reply| reply.node != node);
    }

    pub(super) fn reconnect(&mut self, node: NodeId) {
        self.advance();
        self.cut_off.remove(&node);
    }

    pub(super) fn silence_watches(&mut self, node: NodeId, time: Duration) {
        self.advance();
        self.silent.insert(node, self.now + time);
    }

    pub(super) fn end_leases_early(&mut self) {
        self.advance();
        if self.leader != Leader::Leads {
            return;
        }
        let leases: Vec<LeaseId> = self.state.leases.keys().copied().collect();
        for lease in leases {
            self.ends.remove(&lease);
            self.end(lease).expect("it was there just now");
        }
    }

    pub(super) fn compact(&mut self) {
        self.advance();
        self.history.compact(self.revision);
    }

    pub(super) fn heal(&mut self) {
        self.advance();
        self.chances = Chances::NONE;
        self.cut_off.clear();
        self.silent.clear();
        self.down.clear();
        self.is_stopped = false;
        self.elect_if_possible();
    }

    pub(super) fn record(&mut self, revision: u64) -> Vec<Recorded> {
        self.advance();
        let first = self
            .record
            .partition_point(|recorded| recorded.revision <= revision);
        self.record[first..].to_vec()
    }

    pub(super) fn trace_hash(&mut self) -> u64 {
        self.advance();
        self.trace
    }

    // What the handles do.

    /// Sends a request; its number asks for the answer.
    pub(super) fn send(&mut self, node: NodeId, request: Request) -> u64 {
        self.advance();
        self.numbers += 1;
        let number = self.numbers;
        self.awaited.insert(number);
        let is_full = self.arriving.len() + self.waiting.len() >= REQUESTS_MAX;
        let is_lost = self.chance.hits(self.chances.lost_request);
        if !is_full && !is_lost && !self.cut_off.contains(&node) {
            let sent = Sent {
                number,
                node,
                request,
            };
            let at = self.now + self.travel();
            self.arriving.insert((at, number), sent);
        }
        number
    }

    /// What the sender of a request hears now.
    pub(super) fn answer(&mut self, number: u64) -> Heard {
        self.advance();
        match self.replies.remove(&number) {
            Some(reply) if reply.at > self.now => {
                let pause = (reply.at - self.now).max(MILLISECOND);
                self.replies.insert(number, reply);
                Heard::Nothing(pause)
            }
            Some(reply) => Heard::Answer(reply.answer),
            None => Heard::Nothing(TRAVEL_MAX),
        }
    }

    /// The sender doesn't wait any more.
    pub(super) fn forget(&mut self, number: u64) {
        self.awaited.remove(&number);
        self.replies.remove(&number);
    }

    /// What a watch on `node` hears now.
    pub(super) fn news(&mut self, node: NodeId, prefix: &str, after: &mut u64) -> Option<News> {
        self.advance();
        if self.cut_off.contains(&node) || self.silent.contains_key(&node) {
            return None;
        }
        match self.history.next(prefix, *after) {
            Next::Forgotten => Some(News::Lost),
            Next::Nothing(told) => {
                *after = told;
                None
            }
            Next::Batch(batch) => {
                let at = self
                    .record
                    .partition_point(|recorded| recorded.revision < batch.revision);
                let latest = WATCH_LATE_MAX.as_millis() as u64;
                let late = mix(self.seed ^ mix(batch.revision ^ mix(u64::from(node.0)))) % latest;
                if self.record[at].at + Duration::from_millis(late) > self.now {
                    return None;
                }
                *after = batch.revision;
                Some(batch.into())
            }
        }
    }

    // What happens by itself.

    /// Lets everything happen whose time has come.
    fn advance(&mut self) {
        let now = self.clock.now().max(self.now);
        loop {
            let elected = match self.leader {
                Leader::Elected(at) => Some(at),
                Leader::Leads | Leader::NoQuorum => None,
            };
            let ended = match self.leader {
                Leader::Leads => self.ends.iter().map(|(lease, end)| (*end, *lease)).min(),
                Leader::Elected(_) | Leader::NoQuorum => None,
            };
            let arrived = self.arriving.first_key_value().map(|(key, _)| *key);
            let times = [
                elected,
                ended.map(|ended| ended.0),
                arrived.map(|key| key.0),
            ];
            let Some(at) = times.into_iter().flatten().min().filter(|at| *at <= now) else {
                break;
            };
            self.now = at.max(self.now);
            if elected == Some(at) {
                self.lead();
            } else if let Some((_, lease)) = ended.filter(|ended| ended.0 == at) {
                self.ends.remove(&lease);
                self.end(lease).expect("leases with an end exist");
            } else {
                let key = arrived.expect("nothing else happens at this time");
                let sent = self.arriving.remove(&key).expect("it was there just now");
                self.arrive(sent);
            }
        }
        self.now = now;
        self.silent.retain(|_, until| *until > now);
    }

    fn elect(&mut self, (least, most): (Duration, Duration)) {
        self.leave();
        self.leader = Leader::Elected(self.now + self.chance.time(least, most));
    }

    /// The leader is gone: some answers that it gave never arrive.
    fn leave(&mut self) {
        for reply in self.replies.values_mut() {
            if reply.at > self.now && self.chance.coin() {
                reply.answer = Err(unknown("etcd's leader changed"));
            }
        }
        self.note(1, self.revision);
    }

    fn lead(&mut self) {
        self.leader = Leader::Leads;
        let mut able: Vec<NodeId> = self.members.difference(&self.down).copied().collect();
        if !able.is_empty() {
            let chosen = self.chance.number() as usize % able.len();
            self.leads = Some(able.swap_remove(chosen));
        }
        let leases: Vec<(LeaseId, Duration)> = self
            .state
            .leases
            .iter()
            .map(|(lease, ttl)| (*lease, *ttl))
            .collect();
        for (lease, ttl) in leases {
            self.renew(lease, ttl + PROMOTION);
        }
        for sent in std::mem::take(&mut self.waiting) {
            let at = self.now + self.travel();
            self.arriving.insert((at, sent.number), sent);
        }
        self.note(2, self.revision);
    }

    fn arrive(&mut self, sent: Sent) {
        if self.cut_off.contains(&sent.node) {
            return;
        }
        if self.leader == Leader::Leads && self.chance.hits(self.chances.leader_change) {
            self.elect(ELECTION);
        }
        if self.leader != Leader::Leads {
            // It waits for a leader, is refused, or nothing is heard of it any more.
            match self.chance.number() % 3 {
                0 => self.waiting.push(sent),
                1 => self.reply(sent, Err(unknown("etcd has no leader"))),
                _ => {}
            }
            return;
        }
        if self.chance.hits(self.chances.compaction) {
            self.history.compact(self.revision);
        }
        if self.chance.hits(self.chances.silent_watches) {
            let until = self.now + self.chance.time(Duration::ZERO, SILENCE_MAX);
            self.silent.insert(sent.node, until);
        }
        let answer = self.apply(&sent.request);
        let outcome = match &answer {
            Ok(_) => 0,
            Err(error) => error.kind() as u64 + 1,
        };
        self.note(3 + outcome, sent.number);
        if !self.chance.hits(self.chances.lost_reply) {
            self.reply(sent, answer);
        }
    }

    fn reply(&mut self, sent: Sent, answer: Result<Answer>) {
        let at = self.now + self.travel();
        if self.awaited.contains(&sent.number) {
            let node = sent.node;
            self.replies.insert(sent.number, Reply { at, node, answer });
        }
    }

    fn apply(&mut self, request: &Request) -> Result<Answer> {
        match request {
            Request::Get(key) => Ok(Answer::Got(Reading {
                revision: self.revision,
                found: self.state.get(key),
            })),
            Request::List(prefix) => Ok(Answer::Listed(Reading {
                revision: self.revision,
                found: self.state.list(prefix),
            })),
            Request::Change(changes) => {
                self.state.check(changes)?;
                if State::is_changed_by(changes) {
                    let batch = self.state.apply(changes.clone(), self.revision + 1);
                    self.keep(batch);
                }
                Ok(Answer::Changed(self.revision))
            }
            Request::Grant(ttl) => {
                let ttl = (*ttl).max(TTL_MIN);
                // Not 0, and below 2^63, as etcd's.
                let id = LeaseId(self.chance.number() >> 1 | 1);
                self.state.grant(id, ttl)?;
                self.renew(id, ttl);
                Ok(Answer::Granted(Lease { id, ttl }))
            }
            Request::KeepAlive(lease) => {
                let ttl = self.state.leases.get(lease).copied();
                let ttl = ttl.ok_or_else(|| lease_ended(*lease))?;
                self.renew(*lease, ttl);
                Ok(Answer::Alive(ttl))
            }
            Request::Revoke(lease) => {
                self.end(*lease)?;
                self.ends.remove(lease);
                Ok(Answer::Revoked)
            }
        }
    }

    fn renew(&mut self, lease: LeaseId, time: Duration) {
        let late = self.chance.time(Duration::ZERO, END_LATE_MAX);
        self.ends.insert(lease, self.now + time + late);
    }

    /// Ends a lease. Without keys it leaves no revision.
    fn end(&mut self, lease: LeaseId) -> Result<()> {
        let batch = self.state.end(lease, self.revision + 1)?;
        if !batch.events.is_empty() {
            self.keep(batch);
        }
        Ok(())
    }

    fn keep(&mut self, batch: Batch) {
        assert!(self.record.len() < RECORD_MAX, "a run has fewer changes");
        self.revision = batch.revision;
        self.note(0, batch.revision);
        self.record.push(Recorded {
            at: self.now,
            revision: batch.revision,
            events: batch.events.clone(),
        });
        self.history.push(batch);
    }

    fn travel(&mut self) -> Duration {
        let most = match self.chance.hits(self.chances.slow) {
            true => SLOW_MAX,
            false => TRAVEL_MAX,
        };
        self.chance.time(MILLISECOND, most)
    }

    /// Notes in the trace what happened, and when.
    fn note(&mut self, what: u64, number: u64) {
        let elapsed = self.now - self.begun;
        self.trace = mix(self.trace ^ mix(number ^ mix(what ^ mix(elapsed.as_nanos() as u64))));
    }
}

fn unknown(why: &str) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!("{why}: whether the request took effect is unknown"),
    )
}
