//! Whom this node can't reach of those that it needs: told to the manager, and reached again before this run joins if
//! the one before had to go for that.
//!
//! *A call of a client or of the pool to another node has no answer* ([`Needed`]): the node is asked something that it
//! answers at once, over the connection for leases, until it does (`manager::Reach` has the rules). *For seconds it
//! doesn't*: the manager is told, again and again, and with it that all is well again. The manager counts the other
//! node as alive, so one of both goes. *This one had to go*: its next run asks all nodes that it needs until each has
//! answered for a while, and has reached it, too; before that it neither asks to join nor takes the manager's place.
//!
//! All of it is on the urgent thread: threads that wait for a slow disk make no node unreachable.

use super::Parts;
use super::lease::RunLease;
use coordination::Roster;
use futures::StreamExt;
use futures::future::{BoxFuture, FutureExt};
use futures::stream::FuturesUnordered;
use manager::Moment;
use model::call::{Answer, Call, Class, NoAnswer};
use model::map::NsdState;
use model::member::{
    Cause, REACHES_BACK, Standing, UNREACHED, UNREACHED_MAX, Unreached, WHO_MANAGES,
};
use model::{ErrorKind, NodeId, NodeRun};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use world::call::Remote;
use world::{Deadline, World};

/// How long an answer is waited for that costs a node nothing.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// How often the manager is told, and how long it may take to hear it.
const TELL_EVERY: Duration = Duration::from_secs(2);
const TELL_MAX: Duration = Duration::from_secs(2);

/// What this run knows of the ways to others.
pub(super) struct Reach {
    world: World,
    lease: Arc<RunLease>,
    state: Mutex<manager::Reach>,
    /// A call had no answer.
    news: Notify,
    may_join: watch::Sender<bool>,
}

impl Reach {
    /// `roster` says why the run before was expelled, if it was.
    pub(super) fn new(
        world: &World,
        lease: &Arc<RunLease>,
        roster: &Roster,
        run: NodeRun,
    ) -> Arc<Self> {
        let had_to_go = apart_from(roster, run.node).is_some();
        if had_to_go {
            tracing::warn!(%run, "the run before couldn't reach another node: this one joins when it reaches all");
        }
        Arc::new(Self {
            world: world.clone(),
            lease: lease.clone(),
            state: Mutex::new(manager::Reach::begin(had_to_go)),
            news: Notify::new(),
            may_join: watch::Sender::new(!had_to_go),
        })
    }

    /// A call to a node that is needed had no answer.
    fn missed(&self, node: NodeId) {
        if self.state.lock().missed(node, self.moment()) {
            self.news.notify_one();
        }
    }

    /// This run may ask to join, and be the manager.
    pub(super) fn may_join(&self) -> bool {
        *self.may_join.borrow()
    }

    /// Returns when it may.
    pub(super) async fn joins(&self) {
        let mut may_join = self.may_join.subscribe();
        // The sender is here.
        let _ = may_join.wait_for(|may_join| *may_join).await;
    }

    /// The nodes that aren't reached, and for how long.
    pub(super) fn unreached(&self) -> Vec<(NodeId, Duration)> {
        self.state.lock().unreached(self.moment())
    }

    fn moment(&self) -> Moment {
        self.lease.moment(self.world.now())
    }
}

/// The way to a node for those who need it: who isn't answered there makes this node look whether it reaches it.
pub(super) struct Needed {
    node: NodeId,
    way: Arc<dyn Remote>,
    reach: Arc<Reach>,
}

impl Needed {
    pub(super) fn new(node: NodeId, way: Arc<dyn Remote>, reach: &Arc<Reach>) -> Arc<Self> {
        let reach = reach.clone();
        Arc::new(Self { node, way, reach })
    }
}

impl Remote for Needed {
    fn call(&self, call: Call, deadline: Deadline) -> BoxFuture<'_, Result<Answer, NoAnswer>> {
        let answer = self.way.call(call, deadline);
        Box::pin(async move {
            let answer = answer.await;
            if answer.is_err() {
                self.reach.missed(self.node);
            }
            answer
        })
    }
}

/// Something under way has ended.
enum Done {
    /// A node was asked; whether it answered.
    Asked(NodeId, bool),
    /// The manager was told, or doesn't answer.
    Told,
}

/// The task that looks, until the run has ended. One of the urgent thread.
pub(super) async fn look(parts: Arc<Parts>) {
    let (parts, reach) = (&*parts, &parts.reach);
    let world = parts.world.urgent();
    let mut work = FuturesUnordered::<BoxFuture<'_, Done>>::new();
    // What the manager was told last, and when it is told again.
    let mut told: Vec<NodeRun> = Vec::new();
    let (mut tell_at, mut is_telling) = (Moment::default(), false);
    while !parts.lease.has_ended() {
        let roster = parts.roster.borrow().clone();
        let members = needed(&roster, parts.run.node);
        let needed: BTreeSet<NodeId> = members.keys().copied().collect();
        let now = reach.moment();
        let (due, unreached, next, may_join) = {
            let mut state = reach.state.lock();
            let due = state.look(&needed, roster.manager.is_some(), now);
            let unreached = state.unreached(now);
            (due, unreached, state.next(now), state.may_join())
        };
        for node in due {
            match may_join {
                true => work.push(ask(parts, node).boxed()),
                false => work.push(ask_back(parts, node).boxed()),
            }
        }
        if may_join && !reach.may_join.send_replace(true) {
            tracing::info!(run = %parts.run, "the nodes that this one needs are reached: it joins");
        }
        let runs = unreached.into_iter().map(|(node, _)| members[&node]);
        let runs: Vec<NodeRun> = runs.take(UNREACHED_MAX).collect();
        let is_news = runs != told;
        let is_again = !runs.is_empty() && now >= tell_at;
        // Before it has joined, nobody counts on this run.
        if may_join && !is_telling && (is_news || is_again) {
            match runs.is_empty() {
                true => tracing::info!("this node reaches all members again that it needs"),
                false if is_news => tracing::warn!(?runs, "this node can't reach these members"),
                false => {}
            }
            work.push(tell(parts, runs.clone()).boxed());
            (told, tell_at, is_telling) = (runs, now.plus(TELL_EVERY), true);
        }
        let again = (!told.is_empty() && !is_telling).then_some(tell_at);
        let until = next.into_iter().chain(again).min();
        let pause = async {
            match until {
                Some(until) => world.sleep(until.since(now)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(done) = work.next() => match done {
                Done::Asked(node, true) => reach.state.lock().answered(node, reach.moment()),
                Done::Asked(node, false) => reach.state.lock().unanswered(node, reach.moment()),
                Done::Told => is_telling = false,
            },
            () = reach.news.notified() => {}
            () = pause => {}
        }
    }
}

/// Asks a node something that it answers at once, whatever its threads wait for.
async fn ask(parts: &Parts, node: NodeId) -> Done {
    let call = Call::new(WHO_MANAGES, Class::Lease, &());
    let deadline = Deadline::after(&parts.world, ANSWER_MAX);
    let answer = parts.peers.to(node).call(call, deadline).await;
    Done::Asked(node, answer.is_ok())
}

/// Asks a node whether it reaches this one: calls of each may reach the other one, and those of the other one may not.
async fn ask_back(parts: &Parts, node: NodeId) -> Done {
    let call = Call::new(REACHES_BACK, Class::Lease, &());
    let deadline = Deadline::after(&parts.world, ANSWER_MAX);
    let answer = parts.peers.to(node).call(call, deadline).await;
    let reaches = answer.is_ok_and(|answer| match answer.reply.decode::<bool>() {
        Ok(reaches) => reaches,
        // One that can't say, because it is older, has answered at least.
        Err(error) => error.kind() == ErrorKind::NotImplemented,
    });
    Done::Asked(node, reaches)
}

/// Tells the manager whom this node can't reach.
async fn tell(parts: &Parts, runs: Vec<NodeRun>) -> Done {
    if let Some(manager) = parts.lease.known_manager() {
        let call = Call::new(UNREACHED, Class::Lease, &Unreached { runs });
        let deadline = Deadline::after(&parts.world, TELL_MAX);
        let answer = parts.way_to(manager.run).call(call, deadline).await;
        if let Err(none) = answer {
            // It is told again, or forgets by itself what it was told.
            tracing::debug!(%none, "the manager wasn't told whom this node can't reach");
        }
    }
    Done::Told
}

/// The other node, if the last run of a node was expelled because both couldn't reach each other.
fn apart_from(roster: &Roster, node: NodeId) -> Option<NodeId> {
    let members = &roster.membership.as_ref()?.value.members;
    match members.get(&node)?.standing {
        Standing::Expelled(Cause::Apart(other)) => Some(other),
        _ => None,
    }
}

/// The members that own shards or serve NSDs in use, and the one for which the last run of this node had to go.
fn needed(roster: &Roster, own: NodeId) -> BTreeMap<NodeId, NodeRun> {
    let Some(membership) = &roster.membership else {
        return BTreeMap::new();
    };
    let owners = roster.shards.values().filter_map(|it| it.value.assigned);
    let nsds = roster.pools.values().flat_map(|map| &map.nsds);
    let nsds = nsds.filter(|it| it.state != NsdState::Lost);
    let servers = nsds.filter_map(|it| roster.homes.get(&it.nsd).copied());
    let nodes = owners.map(|run| run.node).chain(servers);
    let nodes = nodes.chain(apart_from(roster, own));
    let members = &membership.value.members;
    let members = nodes.filter(|node| *node != own).filter_map(|node| {
        let member = members.get(&node)?;
        member.standing.is_member().then_some((node, member.run))
    });
    members.collect()
}

#[cfg(test)]
mod tests;
