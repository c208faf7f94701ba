//! Keeps this run's lease: says to the manager what the node does, and stops when it must.
//!
//! *A heartbeat* goes to the run that has the manager's place, one at a time, every two seconds, and at once
//! when there is news: another manager, this run's place in the membership, a shard that was given up. Its
//! answer extends the lease of the owners here ([`OwnerLease`]), counted from when the heartbeat was sent.
//! *The manager that coordination has shown doesn't answer as one*: another member is asked who it is. Coordination
//! may not be reached from here alone, and this node must know its successor then.
//! *The manager's connection breaks*: a heartbeat is due at once, so that its death is found. *No answer*: its place is
//! doubted (`managing/place.rs`), the lease runs out, and the owners here answer nothing until there is one again. *The run
//! has ended*, as the manager or the membership says, or another member that has read the membership (`ending`): nothing here
//! is answered any more, and [`Member::ended`](super::Member::ended) tells the process, which closes the member and starts
//! another run.
//!
//! All of it is on the urgent thread (`World::urgent`), as are the connections that carry heartbeats and those who
//! answer them: threads that wait for a slow disk cost the node its speed, not its lease.

use super::Parts;
use super::hold_ups::HoldUps;
use client::HoldUp;
use coordination::Roster;
use manager::{Moment, NodeLease, Standing, UNHEARD_AFTER};
use metanode::OwnerLease;
use model::call::{Call, Class};
use model::member::{
    HEARTBEAT, HEARTBEAT_EVERY, Heard, Heartbeat, HeartbeatReply, KnownEnd, KnownManager,
    NODE_LEASE, Role, Term, Verdict, WHO_MANAGES, Weight,
};
use model::{NodeRun, ShardId};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use world::{Deadline, Instant, World};

/// How long an answer is waited for.
const ANSWER_MAX: Duration = HEARTBEAT_EVERY;
/// An answer that takes longer than this is so late that the manager may be gone.
const ANSWER_LATE: Duration = Duration::from_secs(1);
/// The manager isn't heard when so long ago this node found that its answer is late. A machine that stood still finds that when
/// it goes on, and may not have read yet what has come meanwhile.
const UNREAD_MAX: Duration = UNHEARD_AFTER.saturating_sub(ANSWER_LATE);
/// How long another member is waited for.
const WHO_MAX: Duration = Duration::from_millis(500);
/// For how long a manager is believed that another member has named and coordination doesn't show: whoever is blind
/// for longer hears neither of shards that it has lost nor of the room that it may use, so it falls silent then, and
/// the manager expels it.
const TOLD_MAX: Duration = Duration::from_secs(10);
/// Pause after a heartbeat that brought no lease.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

/// The lease of this run, and what it says of itself.
pub(super) struct RunLease {
    world: World,
    run: NodeRun,
    began: Instant,
    state: Mutex<NodeLease>,
    /// When there was no lease. Locked after `state`.
    hold_ups: Mutex<HoldUps>,
    /// As coordination has shown it.
    manager: Mutex<Option<KnownManager>>,
    /// When this run asked for the manager's place and got it, and when it asked last and kept it; `None`: it doesn't
    /// have it. Locked after `state`.
    place_kept: Mutex<Option<(Instant, Instant)>>,
    /// The run that was asked as the manager and has answered nothing.
    silent: Mutex<Option<Silence>>,
    /// Runs whose calls to learn when this node ends are under way, and how many.
    attending: Mutex<BTreeMap<NodeRun, u32>>,
    owners: OwnerLease,
    /// When the newest heartbeat was sent by whose answer another run, as the manager, has renewed the lease.
    heard: Mutex<Option<Instant>>,
    /// The shards that are here or being taken over; kept by who hosts them.
    hosts: Mutex<BTreeSet<ShardId>>,
    /// This run wants to leave the cluster.
    is_leaving: AtomicBool,
    /// This node is being closed: nobody sends heartbeats any more.
    is_closing: AtomicBool,
    /// There is something to say at once.
    news: Notify,
    /// The manager doesn't answer, or takes long.
    doubt: Notify,
    /// There is no lease, and whoever keeps it doesn't know why.
    held_up: Notify,
    has_ended: watch::Sender<bool>,
}

/// A run that has answered nothing.
#[derive(Clone, Copy)]
struct Silence {
    run: NodeRun,
    /// When it was asked first.
    since: Instant,
    /// When this node found that its answer is late, or won't come.
    found: Option<Instant>,
}

impl RunLease {
    pub(super) fn new(world: &World, run: NodeRun) -> Self {
        let began = world.now();
        Self {
            world: world.clone(),
            run,
            began,
            state: Mutex::default(),
            hold_ups: Mutex::new(HoldUps::new(began)),
            manager: Mutex::default(),
            place_kept: Mutex::default(),
            silent: Mutex::default(),
            attending: Mutex::default(),
            owners: OwnerLease::not_yet(),
            heard: Mutex::default(),
            hosts: Mutex::default(),
            is_leaving: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            news: Notify::new(),
            doubt: Notify::new(),
            held_up: Notify::new(),
            has_ended: watch::Sender::new(false),
        }
    }

    /// What the owners of this node look at.
    pub(super) fn owners(&self) -> &OwnerLease {
        &self.owners
    }

    /// Until when this node may act, as far as it knows; the past before its first lease.
    pub(super) fn ends(&self) -> Instant {
        let ends = self.state.lock().ends();
        self.began + ends.unwrap_or_default().0
    }

    /// How this node was held up since then: it is up, had no lease, and nobody had said that its run is expelled. Without a
    /// quorum of coordination nobody renews leases, and cut off from all others this node can't know more.
    /// `None`: it wasn't.
    pub(super) fn held_up_since(&self, since: Instant) -> Option<HoldUp> {
        let state = self.state.lock();
        let now = self.world.now();
        let is_held_up = state.standing(self.moment(now)) == Standing::Pausing;
        let hold_ups = self.hold_ups.lock();
        hold_ups.since(since, is_held_up.then_some(now))
    }

    /// Whether it is held up now.
    pub(super) fn is_held_up(&self) -> bool {
        let state = self.state.lock();
        state.standing(self.moment(self.world.now())) == Standing::Pausing
    }

    /// Returns when it is held up, or was since this returned last: more than once while it lasts.
    pub(super) async fn held_up(&self) {
        self.held_up.notified().await;
    }

    /// Whether this run has its lease, from the manager of that term.
    pub(super) fn is_of(&self, term: Term) -> bool {
        let state = self.state.lock();
        let standing = state.standing(self.moment(self.world.now()));
        standing == Standing::Serving && state.term() == term
    }

    /// Another member says that this run has ended. Nothing of it counts while there is a lease, which nobody has who has ended,
    /// or if it is of an earlier manager than coordination has shown here. Returns whether the run has ended.
    pub(super) fn hear_end(&self, end: KnownEnd) -> bool {
        let known = self.known_manager();
        let is_old = known.is_some_and(|known| end.term < known.term);
        let mut state = self.state.lock();
        let standing = state.standing(self.moment(self.world.now()));
        if standing == Standing::Pausing && !is_old {
            state.told(end);
        }
        drop(state);
        self.stop_if_over()
    }

    /// A time of this machine, as the rules count it.
    pub(super) fn moment(&self, time: Instant) -> Moment {
        Moment(time.since(self.began))
    }

    /// The shards that are here or being taken over.
    pub(super) fn hosted(&self) -> BTreeSet<ShardId> {
        self.hosts.lock().clone()
    }

    /// A shard is here, or is being taken over.
    pub(super) fn hosts(&self, shard: ShardId) {
        self.hosts.lock().insert(shard);
        self.news.notify_one();
    }

    /// A shard isn't here any more. Its next owner may be waiting for that.
    pub(super) fn gave_up(&self, shard: ShardId) {
        self.hosts.lock().remove(&shard);
        self.news.notify_one();
    }

    /// This run wants to leave: its shards shall go to others.
    pub(super) fn leave(&self) {
        self.is_leaving.store(true, Ordering::Relaxed);
        self.news.notify_one();
    }

    /// Something is said to the manager at once.
    pub(super) fn speak(&self) {
        self.news.notify_one();
    }

    /// This node is being closed, and hears of nobody from now on.
    pub(super) fn closes(&self) {
        self.is_closing.store(true, Ordering::Relaxed);
    }

    /// Another run, as the manager, has heard this one since then, and its answer has come. A node that is being closed knows no more
    /// than that its lease lasts, and that counts.
    pub(super) fn was_heard_since(&self, moment: Instant) -> bool {
        if self.is_closing.load(Ordering::Relaxed) && self.owners.check(&self.world).is_ok() {
            return true;
        }
        self.heard.lock().is_some_and(|sent| sent >= moment)
    }

    /// Coordination has given this run the manager's place, or kept it, as it asked then.
    pub(super) fn kept_place(&self, asked: Instant) {
        let mut kept = self.place_kept.lock();
        let won = kept.map_or(asked, |(won, _)| won);
        *kept = Some((won, asked));
    }

    /// This run doesn't have the manager's place any more, perhaps earlier than it should have ended: what its own
    /// manager answered counts no longer, also what is still on its way, and the node has no lease until the next
    /// manager answers it. Heard of once more, or so late that all of that is over by itself, it ends nothing: the next
    /// manager may have answered already.
    pub(super) fn lost_place(&self) {
        let mut state = self.state.lock();
        let kept = self.place_kept.lock().take();
        let now = self.world.now();
        if kept.is_some_and(|(_, kept)| now - kept < NODE_LEASE) {
            state.void();
            self.owners.void();
            self.hold_ups.lock().cut(now);
        }
    }

    /// From when the lease counts that `manager` extended when it was asked at `sent`; `None`: it isn't extended. That
    /// this run hears itself says nothing: its own extension counts from when others, those of coordination, answered
    /// it, and not at all if it has lost its place since.
    fn counts_from(&self, manager: NodeRun, sent: Instant) -> Option<Instant> {
        if manager != self.run {
            return Some(sent);
        }
        let (won, kept) = (*self.place_kept.lock())?;
        (sent >= won).then(|| sent.min(kept))
    }

    /// A run calls to learn when this node ends.
    pub(super) fn attended_by(&self, run: NodeRun) {
        *self.attending.lock().entry(run).or_default() += 1;
    }

    /// Such a call is over; perhaps because it broke off. If the run is the manager, it is asked at once then.
    pub(super) fn unattended_by(&self, run: NodeRun, was_answered: bool) {
        let mut attending = self.attending.lock();
        let calls = attending.get_mut(&run).expect("each call ends once");
        *calls -= 1;
        if *calls == 0 {
            attending.remove(&run);
        }
        drop(attending);
        if !was_answered && self.known_manager().is_some_and(|known| known.run == run) {
            self.news.notify_one();
        }
    }

    /// A heartbeat is sent to the run that is the manager.
    fn asked(&self, manager: NodeRun, sent: Instant) {
        let mut silent = self.silent.lock();
        let before = silent.filter(|silence| silence.run == manager);
        *silent = before.or(Some(Silence {
            run: manager,
            since: sent,
            found: None,
        }));
    }

    /// Its answer is late, or won't come.
    fn was_not_answered(&self) {
        if let Some(silence) = &mut *self.silent.lock() {
            silence.found.get_or_insert(self.world.now());
        }
        self.doubt.notify_one();
    }

    /// Whoever was asked as the manager has answered something.
    fn was_answered(&self) {
        *self.silent.lock() = None;
    }

    /// The run that was asked last as the manager, if it has answered nothing for long.
    pub(super) fn unheard(&self) -> Option<NodeRun> {
        let silence = (*self.silent.lock())?;
        let now = self.world.now();
        let is_sure = |found: Instant| now - found >= UNREAD_MAX;
        let is_long = now - silence.since >= UNHEARD_AFTER && silence.found.is_some_and(is_sure);
        is_long.then_some(silence.run)
    }

    /// What this node hears of a run that is the manager.
    pub(super) fn heard(&self, manager: NodeRun) -> Heard {
        Heard {
            is_unheard: self.unheard() == Some(manager),
            is_attended: self.attending.lock().contains_key(&manager),
        }
    }

    /// Returns when the manager doesn't answer, or takes long.
    pub(super) async fn doubted(&self) {
        self.doubt.notified().await;
    }

    /// Returns when the run has ended.
    pub(super) async fn ended(&self) {
        let mut ended = self.has_ended.subscribe();
        // The sender is here.
        let _ = ended.wait_for(|ended| *ended).await;
    }

    pub(super) fn has_ended(&self) -> bool {
        *self.has_ended.borrow()
    }

    /// Who the manager is, as far as coordination has shown.
    pub(super) fn known_manager(&self) -> Option<KnownManager> {
        *self.manager.lock()
    }

    /// What coordination says of the members.
    fn learn(&self, roster: &Roster) {
        if let Some(members) = &roster.membership {
            self.state.lock().learn(&members.value, self.run);
            let term = members.value.term;
            *self.manager.lock() = members.value.manager.map(|run| KnownManager { term, run });
        }
    }

    /// The answer of `manager` to a heartbeat that was sent at `sent`.
    fn answered(&self, manager: NodeRun, reply: HeartbeatReply, sent: Instant) {
        let now = self.moment(self.world.now());
        // Locked to the end: a place that is lost meanwhile ends what this extends.
        let mut state = self.state.lock();
        let Some(from) = self.counts_from(manager, sent) else {
            return;
        };
        let was_serving = state.standing(now) == Standing::Serving;
        let is_renewed = reply.verdict == Verdict::Renewed && reply.term >= state.term();
        if is_renewed && manager != self.run {
            let mut heard = self.heard.lock();
            *heard = (*heard).max(Some(sent));
        }
        state.answered(reply, self.moment(from), now);
        let begins = state.standing(now) == Standing::Serving && !was_serving;
        let mut hold_ups = self.hold_ups.lock();
        if begins {
            hold_ups.end(self.world.now());
        }
        if let Some(ends) = state.ends() {
            self.owners.extend(self.began + ends.0);
            hold_ups.extend(self.began + ends.0);
        }
        drop((hold_ups, state));
        if begins {
            tracing::info!(run = %self.run, term = reply.term.0, "the node has its lease");
        }
    }

    /// Ends everything if the run has ended. Returns whether it has.
    fn stop_if_over(&self) -> bool {
        let now = self.moment(self.world.now());
        let standing = self.state.lock().standing(now);
        let is_over = matches!(standing, Standing::Ended | Standing::Left);
        if is_over {
            self.owners.end();
            if !self.has_ended.send_replace(true) && standing == Standing::Ended {
                tracing::error!(
                    run = %self.run,
                    "the cluster has expelled this run: it answers nothing any more, and starts anew"
                );
            }
        }
        is_over
    }

    /// What the node says. `knows` is read first: what is hosted is at least as new.
    fn heartbeat(&self, roster: &Roster) -> Heartbeat {
        let hosts = self.hosted();
        Heartbeat {
            role: Role::Owner,
            is_leaving: self.is_leaving.load(Ordering::Relaxed),
            knows: roster.revision,
            hosts: hosts
                .into_iter()
                .map(|shard| (shard, Weight::ONE))
                .collect(),
        }
    }
}

/// The task that keeps the lease, until the run has ended. One of the urgent thread.
pub(super) async fn keep(parts: Arc<Parts>) {
    let (world, lease) = (parts.world.urgent(), &parts.lease);
    let mut roster = parts.roster.subscribe();
    let mut told: Option<KnownManager> = None;
    // The newest term that coordination has shown, and since when another member has known a newer one.
    let mut blind: Option<(Term, Instant)> = None;
    loop {
        let known = roster.borrow_and_update().clone();
        blind = blind.filter(|(term, _)| *term == term_of(&known));
        let is_blind = blind.is_some_and(|(_, since)| world.now() - since >= TOLD_MAX);
        told = told.filter(|told| !is_blind && told.term > term_of(&known));
        lease.learn(&known);
        if lease.stop_if_over() {
            return;
        }
        if lease.is_held_up() {
            lease.held_up.notify_one();
        }
        let before = news_of(&known, parts.run);
        // The first heartbeat asks to join.
        let may_join = parts.reach.may_join();
        let mut pause = match may_join {
            true => AGAIN_AFTER,
            false => HEARTBEAT_EVERY,
        };
        let place = told.map(|told| told.run).or_else(|| place_of(&known));
        if let Some(place) = place.filter(|_| may_join) {
            let sent = world.now();
            let moment = lease.moment(sent);
            lease.state.lock().sent(moment);
            lease.asked(place, sent);
            let asked = ask(&parts, place, lease.heartbeat(&known));
            // Who takes its place needn't wait for the answer of one that may be dead.
            let shown = place_of(&known);
            let replaced = roster.wait_for(|roster| place_of(roster) != shown);
            let late = async {
                world.sleep(ANSWER_LATE).await;
                lease.was_not_answered();
                std::future::pending::<Result<HeartbeatReply, NoReply>>().await
            };
            let reply = tokio::select! {
                reply = asked => reply,
                _ = replaced => Err(NoReply::Replaced),
                never = late => never,
            };
            if matches!(reply, Ok(_) | Err(NoReply::Declined)) {
                lease.was_answered();
            }
            match reply {
                // Another member was wrong.
                Ok(reply) if told.is_some_and(|told| told.term != reply.term) => told = None,
                Ok(reply) => {
                    told = told.filter(|_| reply.verdict == Verdict::Renewed);
                    lease.answered(place, reply, sent);
                    if lease.stop_if_over() {
                        return;
                    }
                    if reply.verdict == Verdict::Renewed {
                        pause = HEARTBEAT_EVERY.saturating_sub(world.now() - sent);
                    }
                }
                Err(NoReply::Replaced) => told = None,
                Err(why) => {
                    if why == NoReply::Silence {
                        lease.was_not_answered();
                    }
                    // It isn't the manager yet, or not any more. Whoever was named by another member and doesn't
                    // renew is believed no longer.
                    told = None;
                    if !is_blind {
                        told = ask_who_manages(&parts, &known, place).await;
                    }
                    if told.is_some() {
                        blind.get_or_insert((term_of(&known), world.now()));
                    }
                }
            }
        }
        // Whatever happened while the answer was waited for counts too.
        let changed = roster.wait_for(|roster| news_of(roster, parts.run) != before);
        tokio::select! {
            changed = changed => if changed.is_err() {
                return;
            },
            () = lease.news.notified() => {}
            () = parts.reach.joins(), if !may_join => {}
            () = world.sleep(pause) => {}
        }
    }
}

/// The run that has the manager's place.
fn place_of(roster: &Roster) -> Option<NodeRun> {
    roster.manager.as_ref().map(|place| place.value.run)
}

/// What of the roster is told to the manager, or learned, at once.
fn news_of(roster: &Roster, run: NodeRun) -> (Option<NodeRun>, u64, bool, bool) {
    let members = roster.membership.as_ref().map(|members| &members.value);
    (
        place_of(roster),
        members.map_or(0, |members| members.term.0),
        members.is_some_and(|members| members.is_member(run)),
        members.is_some_and(|members| members.has_ended(run)),
    )
}

/// The newest term that coordination has shown.
fn term_of(roster: &Roster) -> Term {
    let members = roster.membership.as_ref();
    members.map_or(Term::default(), |members| members.value.term)
}

/// Asks a member other than `place` who the manager is. Only a member can be, of a later term than is known.
async fn ask_who_manages(parts: &Parts, known: &Roster, place: NodeRun) -> Option<KnownManager> {
    let members = known.membership.as_ref()?.value.members.values();
    let others = members.filter(|it| it.standing.is_member());
    let others = others
        .map(|it| it.run)
        .filter(|run| *run != parts.run && *run != place);
    let others: Vec<NodeRun> = others.collect();
    let count = u64::try_from(others.len())
        .ok()
        .filter(|count| *count > 0)?;
    let chosen = others[usize::try_from(parts.world.random_u64() % count).ok()?];
    let call = Call::new(WHO_MANAGES, Class::Lease, &());
    let deadline = Deadline::after(&parts.world, WHO_MAX);
    let answer = parts.way_to(chosen).call(call, deadline).await.ok()?;
    let named = answer.reply.decode::<Option<KnownManager>>().ok()??;
    let is_member = known.membership.as_ref()?.value.is_member(named.run);
    (is_member && named.term > term_of(known)).then_some(named)
}

/// Why a heartbeat brought nothing.
#[derive(PartialEq, Eq)]
enum NoReply {
    /// The run doesn't answer.
    Silence,
    /// It says that it isn't the manager.
    Declined,
    /// Coordination shows another one meanwhile.
    Replaced,
}

async fn ask(
    parts: &Parts,
    manager: NodeRun,
    heartbeat: Heartbeat,
) -> Result<HeartbeatReply, NoReply> {
    let call = Call::new(HEARTBEAT, Class::Lease, &heartbeat);
    let deadline = Deadline::after(&parts.world, ANSWER_MAX);
    let to = parts.way_to(manager);
    let answer = to.call(call, deadline).await;
    let answer = answer.map_err(|_| NoReply::Silence)?;
    match answer.reply.decode::<HeartbeatReply>() {
        Ok(reply) if answer.from == manager => Ok(reply),
        _ => Err(NoReply::Declined),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::NodeId;
    use world::sim::Simulation;

    fn run(node: u32) -> NodeRun {
        NodeRun {
            node: NodeId(node),
            incarnation: 1,
        }
    }

    /// What a manager answers a heartbeat.
    fn reply(verdict: Verdict) -> HeartbeatReply {
        HeartbeatReply {
            term: Term(1),
            verdict,
        }
    }

    /// Would be broken if a manager that is cut off from coordination went on extending its own lease, because it
    /// hears itself: its owners would end the sessions of all others.
    #[test]
    fn the_managers_own_lease_counts_from_when_it_kept_its_place() {
        let simulation = Simulation::new(1);
        let ran = simulation.run(async |world: World| {
            let second = Duration::from_secs(1);
            let lease = RunLease::new(&world, run(1));
            let renewed = |manager, sent| {
                lease.answered(manager, reply(Verdict::Renewed), sent);
                lease.ends()
            };
            world.sleep(second * 10).await;
            let kept = world.now();
            lease.kept_place(kept);
            assert_eq!(renewed(run(1), kept), kept + NODE_LEASE);
            // Cut off, it hears nobody but itself.
            for _ in 0..NODE_LEASE.as_secs() {
                world.sleep(second).await;
                assert_eq!(renewed(run(1), world.now()), kept + NODE_LEASE);
            }
            let checked = lease.owners().check(&world);
            assert!(checked.is_err(), "owners here answer nothing any more");
            // A place that is kept while the answer is on its way doesn't make the heartbeat a later one.
            let sent = world.now();
            world.sleep(second).await;
            lease.kept_place(world.now());
            assert_eq!(renewed(run(1), sent), sent + NODE_LEASE);
            // What another manager answers counts from when it was asked, whatever place was kept here.
            world.sleep(second).await;
            let sent = world.now();
            assert_eq!(renewed(run(2), sent), sent + NODE_LEASE);
            // The place ended early: nothing counts that it has answered, nor what is still on its way.
            lease.kept_place(world.now());
            renewed(run(1), world.now());
            let before = world.now();
            lease.lost_place();
            lease.owners().check(&world).unwrap_err();
            renewed(run(1), world.now());
            lease.owners().check(&world).unwrap_err();
            world.sleep(second).await;
            lease.kept_place(world.now());
            renewed(run(1), before);
            lease.owners().check(&world).unwrap_err();
            renewed(run(1), world.now());
            lease.owners().check(&world).unwrap();
            // It hears so late of the end that another manager has answered meanwhile, and that counts.
            world.sleep(NODE_LEASE).await;
            renewed(run(2), world.now());
            lease.lost_place();
            lease.owners().check(&world).unwrap();
            // It hears of it once more when another manager has answered.
            lease.kept_place(world.now());
            lease.lost_place();
            lease.owners().check(&world).unwrap_err();
            renewed(run(2), world.now());
            lease.lost_place();
            lease.owners().check(&world).unwrap();
        });
        ran.finished();
    }

    /// Would be broken if an owner that no other node reaches found that it is heard: by itself, or by what was said before.
    #[test]
    fn another_manager_has_heard_a_node_whose_heartbeat_it_answers_by_when_that_was_sent() {
        let simulation = Simulation::new(4);
        let ran = simulation.run(async |world: World| {
            let second = Duration::from_secs(1);
            let lease = RunLease::new(&world, run(1));
            world.sleep(second).await;
            lease.kept_place(world.now());
            let began = world.now();
            lease.answered(run(1), reply(Verdict::Renewed), began);
            assert!(!lease.was_heard_since(began), "by itself");
            lease.answered(run(2), reply(Verdict::Wait), began);
            assert!(!lease.was_heard_since(began), "not as a member");
            world.sleep(second).await;
            lease.answered(run(2), reply(Verdict::Renewed), began);
            assert!(lease.was_heard_since(began));
            let later = world.now();
            assert!(!lease.was_heard_since(later), "it was sent before");
            lease.closes();
            assert!(lease.was_heard_since(later), "its lease lasts");
            world.sleep(NODE_LEASE).await;
            assert!(!lease.was_heard_since(later));
        });
        ran.finished();
    }

    /// Would be broken if programs got errors while nobody can renew the lease of their node, or got none when its run is
    /// expelled.
    #[test]
    fn a_node_is_held_up_until_its_lease_is_renewed_or_its_run_is_expelled() {
        let simulation = Simulation::new(3);
        let ran = simulation.run(async |world: World| {
            let second = Duration::from_secs(1);
            let lease = RunLease::new(&world, run(1));
            let said = |verdict| {
                lease.answered(run(2), reply(verdict), world.now());
                world.now()
            };
            let held_up = |until, lasted| Some(HoldUp { until, lasted });
            let start = world.now();
            world.sleep(second).await;
            let began = said(Verdict::Renewed);
            world.sleep(second).await;
            said(Verdict::Renewed);
            let has_it = lease.held_up_since(start);
            assert_eq!(has_it, held_up(began, second), "it has its lease");
            assert_eq!(lease.held_up_since(world.now()), None);
            world.sleep(NODE_LEASE * 20).await;
            let away = NODE_LEASE * 19;
            let held = lease.held_up_since(began + second);
            assert_eq!(held, held_up(world.now(), away));
            let regained = said(Verdict::Renewed);
            world.sleep(second).await;
            let all = held_up(regained, away + second);
            assert_eq!(lease.held_up_since(start), all);
            assert_eq!(lease.held_up_since(world.now()), None);
            world.sleep(NODE_LEASE * 20).await;
            let held = lease.held_up_since(regained + second);
            assert_eq!(held, held_up(world.now(), away + second));
            said(Verdict::Ended);
            world.sleep(second).await;
            assert_eq!(lease.held_up_since(start), all, "it is over");
        });
        ran.finished();
    }

    /// Would be broken if programs waited without end on a node that only hears from others that its run is expelled, or if
    /// a run ended for news that can't be right.
    #[test]
    fn a_run_without_a_lease_believes_others_that_it_has_ended_unless_they_know_less() {
        let simulation = Simulation::new(5);
        let ran = simulation.run(async |world: World| {
            let lease = RunLease::new(&world, run(1));
            let end = |term| KnownEnd {
                term: Term(term),
                has_left: false,
            };
            lease.answered(run(2), reply(Verdict::Renewed), world.now());
            assert!(!lease.hear_end(end(9)), "it has its lease");
            assert!(!lease.is_held_up());
            assert!(lease.is_of(Term(1)) && !lease.is_of(Term(2)));
            world.sleep(NODE_LEASE * 20).await;
            assert!(lease.is_held_up() && !lease.is_of(Term(1)));
            assert!(!lease.hear_end(end(0)), "its manager has answered here");
            *lease.manager.lock() = Some(KnownManager {
                term: Term(2),
                run: run(3),
            });
            assert!(!lease.hear_end(end(1)), "a later one is known");
            assert!(lease.held_up_since(world.now()).is_some());
            assert!(lease.hear_end(end(2)));
            assert!(lease.has_ended() && !lease.is_held_up());
            lease.owners().check(&world).unwrap_err();
            world.sleep(NODE_LEASE).await;
            assert_eq!(lease.held_up_since(world.now()), None);
        });
        ran.finished();
    }

    /// Would be broken if time counted in which the lease lasted no more, because its manager had lost the place.
    #[test]
    fn a_manager_that_loses_its_place_is_held_up_from_then() {
        let simulation = Simulation::new(4);
        let ran = simulation.run(async |world: World| {
            let second = Duration::from_secs(1);
            let lease = RunLease::new(&world, run(1));
            lease.kept_place(world.now());
            lease.answered(run(1), reply(Verdict::Renewed), world.now());
            world.sleep(second).await;
            let lost = world.now();
            lease.lost_place();
            world.sleep(second).await;
            let (until, lasted) = (world.now(), second);
            let held_up = lease.held_up_since(lost);
            assert_eq!(held_up, Some(HoldUp { until, lasted }));
        });
        ran.finished();
    }

    /// Would be broken if a machine that stood still bore witness against a manager whose answer it hasn't read yet.
    #[test]
    fn a_manager_is_unheard_when_nothing_came_while_this_machine_ran() {
        let simulation = Simulation::new(2);
        let ran = simulation.run(async |world: World| {
            let lease = RunLease::new(&world, run(1));
            let is_unheard = |manager| lease.heard(manager).is_unheard;
            let moment = Duration::from_millis(100);
            lease.asked(run(2), world.now());
            // Nothing of it runs, and then another node asks it first.
            world.sleep(Duration::from_secs(20)).await;
            assert!(!is_unheard(run(2)));
            lease.was_not_answered();
            world.sleep(UNREAD_MAX - moment).await;
            assert!(!is_unheard(run(2)));
            world.sleep(moment).await;
            assert!(is_unheard(run(2)) && !is_unheard(run(3)));
            // It is asked again.
            lease.asked(run(2), world.now());
            assert!(is_unheard(run(2)));
            lease.was_answered();
            assert!(!is_unheard(run(2)));
            // Refused at once, which isn't for long yet.
            lease.asked(run(2), world.now());
            lease.was_not_answered();
            world.sleep(UNHEARD_AFTER - moment).await;
            assert!(!is_unheard(run(2)));
            world.sleep(moment).await;
            assert!(is_unheard(run(2)));
        });
        ran.finished();
    }
}
