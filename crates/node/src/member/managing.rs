//! The cluster's manager, while this run is it: `manager::Manager` driven by what happens.
//!
//! *The place is free*, or its holder is surely dead (two attempts in a row were refused, or a newer run of
//! its node is known) or surely doesn't keep it: this node takes it under a lease (`place`), reads the roster, and
//! begins a manager, whose first act is to write its term. *A heartbeat* is answered by the manager under its lock, at
//! once ([`Office::heartbeat`]). *Its place* is kept by a task of the urgent thread ([`place::keep`]), as long as the loop here
//! comes round. All else that it wants done is a future here, of which each ends within
//! [`STEP_MAX`], and whose outcome is its next event: stores, assignments, probes, and a call to each member
//! that lasts until its connection breaks. *It resigns*, because another one has written the membership or its
//! place has ended: all of that is dropped, and the node looks for a free place again. *It resigns for others*, because
//! they don't hear it, or because it is the one that goes of two that can't reach each other: it gives the place up, and
//! leaves it to them. That they don't hear it is found by whoever keeps the place, who gives it up at once, whatever the loop
//! does. *It retires*, because the whole cluster stops: it gives the place up, and never looks for it again.

mod office;
mod place;
mod roles;

pub(super) use office::Office;

use super::{Parts, spaces};
use coordination::{PLACE_LEASE, Roster};
use futures::StreamExt;
use futures::future::{BoxFuture, FutureExt};
use futures::stream::FuturesUnordered;
use manager::{Action, Event, Manager, Resigned, Roles, Start};
use model::call::{Call, Class, NoAnswer};
use model::member::{ATTEND, ATTEND_MAX, Attend, Membership};
use model::{ErrorKind, NodeRun, ShardId};
use place::{Suspicion, Won};
use roles::roles_of;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use world::{Deadline, Point};

/// How often a manager learns that time passes.
const TICK: Duration = Duration::from_millis(100);
/// How long an answer of coordination, or a connection, is waited for.
const STEP_MAX: Duration = Duration::from_secs(1);
/// The place isn't kept of a manager whose loop hasn't looked for so long what there is to do. Longer than the place lasts,
/// so that threads which all wait for a slow disk cost nobody the manager; so short that another one follows within
/// 17 s after a manager has hung.
pub(super) const IDLE_MAX: Duration = Duration::from_secs(10);
const _: () = assert!(
    IDLE_MAX.as_millis() > PLACE_LEASE.as_millis(),
    "what lasts shorter than the place costs no manager"
);
/// How much longer than [`ATTEND_MAX`] the manager waits for an answer: a member that is silent is found by its lease.
const ATTEND_LATE: Duration = Duration::from_secs(5);
/// Pause before a member is attended to again whose connection broke.
const ATTEND_AGAIN: Duration = Duration::from_millis(500);

/// The outcome of something under way.
enum Done {
    /// Something happened.
    Event(Event),
    /// A call to a member ended.
    Attended(NodeRun, Attended),
}

/// How a call to a member ended.
enum Attended {
    Answered,
    /// Its connection broke, or another run answered.
    Broke,
    /// No connection could be made.
    Unconnected,
}

/// How it ended that this run was the manager.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ruled {
    /// It never was: coordination couldn't be read.
    Never,
    /// Its place may be another's, or lasts for a while.
    Ended,
    /// Others are to have its place at once.
    GivesUp,
}

impl From<Resigned> for Ruled {
    fn from(why: Resigned) -> Self {
        match why {
            Resigned::Unheard | Resigned::Apart => Self::GivesUp,
            Resigned::Outdated | Resigned::LeaseOver | Resigned::Ended => Self::Ended,
        }
    }
}

type Work<'a> = FuturesUnordered<BoxFuture<'a, Done>>;

/// Records of shards, runs and roles that the manager was told of.
#[derive(Default)]
struct Told {
    shards: BTreeMap<ShardId, u64>,
    runs: BTreeSet<NodeRun>,
    roles: Roles,
}

/// The task that makes this run the manager whenever nobody else is.
pub(super) async fn manage(parts: Arc<Parts>) {
    // One that can't reach others would have to expel them.
    tokio::select! {
        () = parts.reach.joins() => {}
        () = parts.lease.ended() => return,
    }
    let (office, mut suspicion) = (&parts.office, Suspicion::default());
    while !parts.lease.has_ended() && !office.is_retired() {
        let won = tokio::select! {
            biased;
            () = office.retired() => None,
            won = place::win(&parts, &mut suspicion) => won,
        };
        if let Some(won) = won {
            let lease = won.lease;
            let ruling = async {
                tokio::select! {
                    ruled = rule(&parts, won, suspicion.dead) => ruled,
                    () = spaces::lend(&parts) => Ruled::Ended,
                }
            };
            let ruled = tokio::select! {
                biased;
                () = office.retired() => Ruled::GivesUp,
                ruled = ruling => ruled,
            };
            // However it heard of its end: whoever keeps the place may have given it up before.
            let is_given_up = office.is_given_up(lease);
            let gives_up = ruled == Ruled::GivesUp || is_given_up || office.is_retired();
            if gives_up {
                // What this manager has answered to its own node counts no longer than the place.
                parts.lease.lost_place();
                suspicion.gives_up(parts.world.now());
            }
            // The next manager waits for this run's lease no longer than for one that lost its place by time.
            if ruled == Ruled::Never || gives_up || parts.lease.has_ended() {
                place::give_up(&parts, lease).await;
            }
        }
    }
}

/// Is the manager until it resigns. `dead`: a run that was found to be dead.
async fn rule(parts: &Arc<Parts>, won: Won, dead: Option<NodeRun>) -> Ruled {
    let Ok(Ok(roster)) = parts
        .world
        .timeout(STEP_MAX, Roster::read(&parts.coordination))
        .await
    else {
        return Ruled::Never;
    };
    if roster.manager.as_ref().map(|it| it.value.run) != Some(parts.run) {
        // It has ended already.
        parts.lease.lost_place();
        return Ruled::Ended;
    }
    let office = &parts.office;
    let start = start(parts, &won, &roster, dead);
    let (manager, first) = Manager::begin(start, parts.moment());
    let _open = office.open(manager, won.lease, parts.moment());
    tracing::info!(run = %parts.run, "the node is the cluster's manager");
    let mut told = Told::default();
    told.news(&roster);
    let mut work = Work::new();
    let mut attending = BTreeSet::new();
    let mut broken = BTreeSet::new();
    let mut known = parts.roster.subscribe();
    // Ends when the place is lost, or given up.
    let keeping = place::keep(parts.clone(), won.lease);
    let urgent = parts.world.urgent();
    let mut keeping = urgent.spawn("keeps the manager's place", keeping);
    if let Some(why) = perform(parts, first, &mut work) {
        return why.into();
    }
    let mut next_tick = parts.world.now();
    loop {
        let attended = office.look(parts.moment()).into_iter();
        for run in attended.filter(|run| *run != parts.run) {
            if attending.insert(run) {
                let pause = match broken.remove(&run) {
                    true => ATTEND_AGAIN,
                    false => Duration::ZERO,
                };
                work.push(attend(parts, run, pause));
            }
        }
        let mut events = tokio::select! {
            () = &mut keeping => return Ruled::Ended,
            Some(done) = work.next() => match done {
                Done::Event(event) => vec![event],
                Done::Attended(run, attended) => {
                    attending.remove(&run);
                    let event = match attended {
                        Attended::Answered => None,
                        Attended::Broke => Some(Event::Broke(run)),
                        Attended::Unconnected => Some(Event::Unconnected(run)),
                    };
                    if event.is_some() {
                        broken.insert(run);
                    }
                    event.into_iter().collect()
                }
            },
            changed = known.changed() => match changed {
                Ok(()) => {
                    let known = known.borrow_and_update().clone();
                    let holder = known.manager.as_ref().map(|it| it.value.run);
                    // Newer than what showed that it was this run's.
                    if known.revision > roster.revision && holder != Some(parts.run) {
                        place::lost(parts, won.lease);
                        return Ruled::Ended;
                    }
                    told.news(&known)
                }
                Err(_) => return Ruled::Ended,
            },
            () = parts.world.sleep(next_tick - parts.world.now()) => Vec::new(),
        };
        // However much else happens.
        if next_tick <= parts.world.now() {
            next_tick = parts.world.now() + TICK;
            events.push(Event::Tick);
        }
        for event in events {
            let actions = office.on(event, parts.moment());
            parts.world.at(Point::ManagerDecided).await;
            if let Some(why) = perform(parts, actions, &mut work) {
                return why.into();
            }
        }
        if parts.lease.has_ended() {
            return Ruled::Ended;
        }
    }
}

fn start(parts: &Parts, won: &Won, roster: &Roster, dead: Option<NodeRun>) -> Start {
    let members = roster.membership.as_ref();
    let shards = roster.shards.iter();
    let unkept = won.unkept_since.map(|since| parts.world.now() - since);
    Start {
        own: parts.run,
        own_until: won.until,
        former_kept: unkept.unwrap_or_default().max(place::LASTS),
        record: members.map_or_else(Membership::default, |it| it.value.clone()),
        version: members.map_or(0, |it| it.version),
        shards: shards
            .map(|(shard, record)| (*shard, record.value.assigned, record.version))
            .collect(),
        newest: roster.addresses.values().map(|it| it.run).collect(),
        roles: roles_of(roster),
        dead,
    }
}

impl Told {
    /// What the roster says beyond what was told.
    fn news(&mut self, roster: &Roster) -> Vec<Event> {
        let mut events = Vec::new();
        for (shard, record) in &roster.shards {
            if self.shards.insert(*shard, record.version) != Some(record.version) {
                events.push(Event::Shard {
                    shard: *shard,
                    assigned: record.value.assigned,
                    version: record.version,
                });
            }
        }
        let runs: BTreeSet<_> = roster.addresses.values().map(|it| it.run).collect();
        events.extend(runs.difference(&self.runs).map(|run| Event::Appeared(*run)));
        self.runs = runs;
        let roles = roles_of(roster);
        if self.roles != roles {
            events.push(Event::Roles(roles.clone()));
            self.roles = roles;
        }
        events
    }
}

/// Begins what the manager wants done. Why it has resigned, if it has.
fn perform<'a>(parts: &'a Parts, actions: Vec<Action>, work: &mut Work<'a>) -> Option<Resigned> {
    for action in actions {
        match action {
            // Heartbeats are answered where they arrive.
            Action::Answer { .. } | Action::Decline(_) => {}
            Action::Probe {
                run,
                after,
                was_heard,
            } => work.push(probe(parts, run, after, was_heard)),
            Action::Store { record, expected } => work.push(store(parts, record, expected)),
            Action::Assign {
                shard,
                from,
                to,
                membership,
            } => work.push(assign(parts, shard, (from, to), membership)),
            Action::Resign(why) => {
                tracing::warn!(run = %parts.run, ?why, "the node isn't the manager any more");
                return Some(why);
            }
        }
    }
    None
}

fn probe(parts: &Parts, run: NodeRun, after: Duration, was_heard: bool) -> BoxFuture<'_, Done> {
    async move {
        parts.world.sleep(after).await;
        let mut is_refused = parts.is_refused(run).await;
        if is_refused && was_heard {
            is_refused = !parts.is_refused_by_all_but(run).await;
        }
        Done::Event(Event::Probed { run, is_refused })
    }
    .boxed()
}

fn store(parts: &Parts, record: Membership, expected: u64) -> BoxFuture<'_, Done> {
    async move {
        let plan = record.plan.as_ref().map(|plan| plan.change.clone());
        let stored = parts.coordination.store_membership(expected, &record);
        Done::Event(match parts.world.timeout(STEP_MAX, stored).await {
            Ok(Ok(version)) => {
                tracing::info!(term = record.term.0, ?plan, "the membership has changed");
                Event::Stored(version)
            }
            Ok(Err(error)) if error.kind() == ErrorKind::Changed => Event::Outdated,
            Ok(Err(_)) | Err(_) => Event::StoreUnknown,
        })
    }
    .boxed()
}

fn assign(
    parts: &Parts,
    shard: ShardId,
    (from, to): (Option<NodeRun>, Option<NodeRun>),
    membership: u64,
) -> BoxFuture<'_, Done> {
    async move {
        let facts = &parts.coordination;
        let assigned = facts.assign_shard_as_manager(shard, from, to, membership);
        let record = match parts.world.timeout(STEP_MAX, assigned).await {
            Ok(Ok(record)) => {
                tracing::info!(%shard, ?from, ?to, "the manager has assigned a shard");
                Some(record)
            }
            // It names another run; whatever that is, the manager decides anew.
            Ok(Err(error)) if error.kind() == ErrorKind::Changed => {
                let read = parts.world.timeout(STEP_MAX, facts.shard(shard)).await;
                read.ok().and_then(Result::ok).flatten()
            }
            Ok(Err(_)) | Err(_) => None,
        };
        Done::Event(match record {
            Some(record) => Event::Assigned {
                shard,
                assigned: record.value.assigned,
                version: record.version,
            },
            None => Event::AssignUnknown(shard),
        })
    }
    .boxed()
}

/// Calls a member and waits as long as the call lasts, so that the end of its connection is noticed.
fn attend(parts: &Parts, run: NodeRun, pause: Duration) -> BoxFuture<'_, Done> {
    async move {
        parts.world.sleep(pause).await;
        let wanted = Attend {
            answer_after_ms: ATTEND_MAX.as_millis() as u32,
        };
        let call = Call::new(ATTEND, Class::Lease, &wanted);
        let deadline = Deadline::after(&parts.world, ATTEND_MAX + ATTEND_LATE);
        let answer = parts.way_to(run).call(call, deadline).await;
        let attended = match answer {
            Ok(answer) if answer.from == run => Attended::Answered,
            Ok(_) | Err(NoAnswer::Unknown(_)) => Attended::Broke,
            Err(NoAnswer::NotRun(_)) => Attended::Unconnected,
        };
        Done::Attended(run, attended)
    }
    .boxed()
}
