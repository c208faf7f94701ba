//! The manager's place in coordination: won when it is free, its holder is dead, or nobody keeps it; kept while this run
//! is the manager and does its work.
//!
//! That nobody keeps it is known in two ways. *Its lease ends*: but each new leader of coordination gives that its full
//! time again. *It is doubted* by who hears nothing of its holder, and whoever keeps it answers that first
//! ([`Coordination::keep_place`](coordination::Coordination::keep_place)). So whatever the holder has kept, it asked for
//! before the doubt was there, and all of that is over when this node saw the doubt [`PLACE_LEASE`] ago and the place is
//! unchanged.
//!
//! *Its holder keeps it, and can't be reached*: other members are asked what they hear of it. If most of a jury hear nothing
//! (`manager::Poll`), the doubt says so, and whoever keeps the place for the holder gives it up. The holder leaves it to others
//! then, until one has it.
//! Refused attempts prove nothing if another member has a connection with the holder, or if all other members refuse this node,
//! too: then it is this one whose connections a filter of packets refuses, and it would take the place of a manager that all
//! others hear.

use super::{IDLE_MAX, STEP_MAX};
use crate::member::Parts;
use coordination::{Doubt, Kept, LeaseId, PLACE_LEASE, Place, Roster, Versioned};
use futures::StreamExt;
use futures::future::{BoxFuture, FutureExt, join, pending};
use futures::stream::FuturesUnordered;
use manager::{Moment, Poll, jury};
use model::call::{Call, Class};
use model::member::{HEARD, Heard};
use model::{ErrorKind, NodeRun};
use std::io;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use world::{Deadline, Instant};

/// The place lasts so long by the slowest clock that a manager may have, from when it was asked for.
pub(super) const LASTS: Duration = Duration::from_millis(PLACE_LEASE.as_millis() as u64 * 19 / 20);
/// How often it is kept.
const KEEP_EVERY: Duration = Duration::from_secs(1);
/// Pause after an attempt to win it that failed.
const AGAIN_AFTER: Duration = Duration::from_millis(200);
/// How long a read may take by which it is found out whether coordination has a leader, and the pause until the next.
const READ_MAX: Duration = Duration::from_millis(250);
const READ_AFTER: Duration = Duration::from_millis(50);
/// After so many of them in vain coordination is slow, or away for long: they may take as long as any other step.
const SHORT_READS: u32 = 8;
/// Attempts that must be refused to prove that nobody listens, and the time between them.
const ATTEMPTS: usize = 2;
const ATTEMPT_AFTER: Duration = Duration::from_millis(300);
/// So many attempts that weren't refused show that somebody listens, and the pause after one. Of a process that dies the kernel
/// may close the connections before what it listens on.
const OPEN_MAX: usize = 3;
const OPEN_AFTER: Duration = Duration::from_millis(100);
/// A machine that is there refuses sooner. The place is doubted meanwhile if this one doesn't.
const REFUSED_SOON: Duration = Duration::from_millis(600);
/// Attempts to doubt the place; whoever still hears nothing later doubts it again.
const DOUBTS: u32 = 3;
/// How long another member may take to say what it hears of the holder.
const HEARD_MAX: Duration = Duration::from_millis(300);
/// How long a run that isn't a member, and that the last manager hasn't answered, leaves the place to members.
const MEMBERS_FIRST: Duration = Duration::from_millis(1_500);
/// How long a run that gave the place up leaves it to others.
const LEFT_TO_OTHERS: Duration = Duration::from_secs(10);

/// What this node has found out of those who have, or had, the place.
#[derive(Default)]
pub(super) struct Suspicion {
    /// A run that was found to be dead, which it stays.
    pub(super) dead: Option<NodeRun>,
    /// The version of the place that was doubted last, and since when this node knows it.
    doubted: Option<(u64, Instant)>,
    /// When this run gave the place up, so that another one has it; `None` once one has.
    gave_up: Option<Instant>,
}

/// The place was won.
pub(super) struct Won {
    pub(super) lease: LeaseId,
    /// Until when it lasts at least, by this machine's clock.
    pub(super) until: Moment,
    /// Whoever had it before hasn't kept it since then; `None`: it was free, or that run is dead.
    pub(super) unkept_since: Option<Instant>,
}

/// The place can be taken.
struct Vacancy {
    /// Its version, 0 if nobody has it.
    version: u64,
    /// The lease that its holder doesn't keep, and since when; `None`: nobody has the place, or somebody who is dead.
    unkept: Option<(LeaseId, Instant)>,
}

impl Vacancy {
    /// Nobody has the place of this version, or somebody who is dead.
    fn of(version: u64) -> Self {
        Self {
            version,
            unkept: None,
        }
    }
}

/// Waits until the place can be taken, and tries once.
pub(super) async fn win(parts: &Parts, suspicion: &mut Suspicion) -> Option<Won> {
    let vacancy = vacancy(parts, suspicion).await?;
    if is_outside(parts) {
        parts.world.sleep(MEMBERS_FIRST).await;
        if version_of(&parts.roster.borrow()) != vacancy.version {
            return None;
        }
    }
    let won = take(parts, vacancy).await;
    if won.is_none() {
        parts.world.sleep(AGAIN_AFTER).await;
    }
    won
}

/// This run isn't a member, and perhaps that is because it reaches nobody: as the manager it would have to give the place up again.
fn is_outside(parts: &Parts) -> bool {
    let roster = parts.roster.borrow();
    let members = roster.membership.as_ref();
    let is_member = members.is_none_or(|it| it.value.is_member(parts.run));
    !is_member && parts.lease.unheard().is_some()
}

/// Waits until the place is free, its holder is surely dead, or surely doesn't keep it; `None` if this node ends.
async fn vacancy(parts: &Parts, suspicion: &mut Suspicion) -> Option<Vacancy> {
    let mut roster = parts.roster.subscribe();
    loop {
        let known = roster.borrow_and_update().clone();
        let holder = known.manager.as_ref().map(|place| place.value.run);
        let is_others = holder.is_some_and(|holder| holder != parts.run);
        if let Some(rest) = suspicion.left_to_others(is_others, parts.world.now()) {
            tokio::select! {
                changed = roster.changed() => if changed.is_err() {
                    return None;
                },
                () = parts.lease.ended() => return None,
                () = parts.world.sleep(rest) => {}
            }
            continue;
        }
        let Some(place) = &known.manager else {
            return Some(Vacancy::of(0));
        };
        let holder = place.value.run;
        if holder == parts.run || is_over(&known, holder) || suspicion.dead == Some(holder) {
            return Some(Vacancy::of(place.version));
        }
        let now = parts.world.now();
        let since = suspicion.doubted_since(place, now);
        let rest = since.map(|since| PLACE_LEASE.saturating_sub(now - since));
        if rest == Some(Duration::ZERO) {
            return Some(Vacancy {
                version: place.version,
                unkept: since.map(|since| (place.value.lease(), since)),
            });
        }
        let over = async {
            match rest {
                Some(rest) => parts.world.sleep(rest).await,
                None => pending().await,
            }
        };
        let suspected = async {
            parts.lease.doubted().await;
            is_dead_or_doubted(parts, place).await
        };
        // Nothing else that changes ends a proof that is under way.
        let is_news = |now: &Arc<Roster>| version_of(now) != place.version || is_over(now, holder);
        let news = async { roster.wait_for(is_news).await.is_ok() };
        tokio::select! {
            is_news = news => if !is_news {
                return None;
            },
            () = parts.lease.ended() => return None,
            () = over => {}
            is_dead = suspected => if is_dead {
                suspicion.dead = Some(holder);
            },
        }
    }
}

/// The version of the place, 0 if nobody has it.
fn version_of(roster: &Roster) -> u64 {
    roster.manager.as_ref().map_or(0, |place| place.version)
}

/// A newer run of its node is known.
fn is_over(roster: &Roster, run: NodeRun) -> bool {
    let newest = roster.addresses.get(&run.node);
    newest.is_some_and(|newest| newest.run > run)
}

impl Suspicion {
    /// This run gives the place up, for another one to have it.
    pub(super) fn gives_up(&mut self, now: Instant) {
        self.gave_up = Some(now);
    }

    /// How long this run leaves the place to others still, if it does. `is_others`: one of them has it.
    fn left_to_others(&mut self, is_others: bool, now: Instant) -> Option<Duration> {
        let since = self.gave_up.filter(|_| !is_others);
        let rest = since.map(|since| LEFT_TO_OTHERS.saturating_sub(now - since));
        let rest = rest.filter(|rest| !rest.is_zero());
        self.gave_up = since.filter(|_| rest.is_some());
        rest
    }

    /// Since when this node knows that the place is doubted; `None` if it isn't.
    fn doubted_since(&mut self, place: &Versioned<Place>, now: Instant) -> Option<Instant> {
        let known = self
            .doubted
            .filter(|(version, _)| *version == place.version);
        let doubted = || place.value.is_doubted().then_some((place.version, now));
        self.doubted = known.or_else(doubted);
        self.doubted.map(|(_, since)| since)
    }
}

/// The holder of the place doesn't answer this node. Whether it is dead; otherwise its place is doubted.
async fn is_dead_or_doubted(parts: &Parts, place: &Versioned<Place>) -> bool {
    let mut proof = pin!(is_dead(parts, place.value.run));
    let soon = parts.world.timeout(REFUSED_SOON, proof.as_mut()).await;
    match soon {
        Ok(true) => true,
        Ok(false) => {
            doubt(parts, place).await;
            false
        }
        // A machine that is silent is waited for. One that is slow to refuse may be doubted for nothing.
        Err(_) => join(proof, doubt(parts, place)).await.0,
    }
}

/// Doubts the place, unless another one does, or it isn't the same any more.
async fn doubt(parts: &Parts, place: &Versioned<Place>) {
    let holder = place.value.run;
    for _ in 0..DOUBTS {
        if place.value.is_doubted() {
            return;
        }
        let led = until_led(parts, place.version);
        let (led, doubt) = join(led, doubt_of(parts, holder)).await;
        if led.is_none() {
            return;
        }
        let doubted = parts.coordination.doubt_place(place, doubt);
        match parts.world.timeout(STEP_MAX, doubted).await {
            Ok(Ok(())) => {
                match doubt {
                    Doubt::OfOne => {
                        tracing::warn!(%holder, "the manager doesn't answer: it keeps its place soon, or another one follows")
                    }
                    Doubt::OfMost => {
                        tracing::warn!(%holder, "the manager doesn't answer most nodes: another one follows")
                    }
                }
                return;
            }
            Ok(Err(error)) if error.kind() != ErrorKind::Unavailable => return,
            Ok(Err(_)) | Err(_) => {}
        }
    }
}

async fn is_dead(parts: &Parts, holder: NodeRun) -> bool {
    let mut attempts = Attempts::default();
    loop {
        let begun = parts.world.now();
        let is_refused = parts.is_refused(holder).await;
        match attempts.ended(is_refused, parts.world.now() - begun) {
            ControlFlow::Continue(pause) => parts.world.sleep(pause).await,
            ControlFlow::Break(true) => break,
            ControlFlow::Break(false) => return false,
        }
    }
    // A firewall refuses, too: one of this node, ...
    if parts.is_refused_by_all_but(holder).await {
        return false;
    }
    // ... or one of the holder.
    let mut asked = ask_others(parts, &jury_of(parts), holder);
    while let Some(heard) = asked.next().await {
        if heard.is_attended {
            return false;
        }
    }
    true
}

/// Attempts to connect to a run of which a connection has broken, or which answers nothing.
#[derive(Default)]
struct Attempts {
    /// So many in a row were refused.
    refused: usize,
    /// So many in all weren't.
    open: usize,
}

impl Attempts {
    /// One has ended, after so long. Whether nobody listens, or the pause until the next one.
    fn ended(&mut self, is_refused: bool, took: Duration) -> ControlFlow<bool, Duration> {
        if is_refused {
            self.refused += 1;
            return match self.refused {
                ATTEMPTS => ControlFlow::Break(true),
                _ => ControlFlow::Continue(ATTEMPT_AFTER),
            };
        }
        self.refused = 0;
        self.open += 1;
        // A machine that is silent isn't one that is closing what was open.
        match self.open == OPEN_MAX || took >= ATTEMPT_AFTER {
            true => ControlFlow::Break(false),
            false => ControlFlow::Continue(OPEN_AFTER),
        }
    }
}

/// Whether most of a jury hear nothing of the holder, as this node.
async fn doubt_of(parts: &Parts, holder: NodeRun) -> Doubt {
    if !parts.lease.heard(holder).is_unheard {
        return Doubt::OfOne;
    }
    let jury = jury_of(parts);
    let mut poll = Poll::of(&jury);
    for (run, is_unheard) in [(parts.run, true), (holder, false)] {
        if jury.contains(&run) {
            poll.says(is_unheard);
        }
    }
    let mut asked = ask_others(parts, &jury, holder);
    loop {
        match poll.outcome() {
            Some(true) => return Doubt::OfMost,
            Some(false) => return Doubt::OfOne,
            None => {}
        }
        let heard = asked.next().await;
        poll.says(heard.is_some_and(|heard| heard.is_unheard));
    }
}

/// The members that are asked about the manager.
fn jury_of(parts: &Parts) -> Vec<NodeRun> {
    let roster = parts.roster.borrow().clone();
    let members = roster.membership.as_ref();
    members.map_or_else(Vec::new, |members| jury(&members.value, &roster.quorum))
}

/// What those of a jury hear of the holder that are neither that nor this run. Who doesn't answer says that it hears it,
/// and that it has no connection with it: nothing follows from that.
fn ask_others(
    parts: &Parts,
    jury: &[NodeRun],
    holder: NodeRun,
) -> FuturesUnordered<BoxFuture<'static, Heard>> {
    let others = jury.iter().copied();
    let others = others.filter(|run| *run != parts.run && *run != holder);
    let ask = |run: NodeRun| {
        let call = Call::new(HEARD, Class::Lease, &holder);
        let deadline = Deadline::after(&parts.world, HEARD_MAX);
        let way = parts.way_to(run);
        async move {
            let answer = way.call(call, deadline).await;
            let answer = answer.ok().filter(|answer| answer.from == run);
            let heard = answer.and_then(|answer| answer.reply.decode::<Heard>().ok());
            heard.unwrap_or_default()
        }
        .boxed()
    };
    others.map(ask).collect()
}

/// Waits until coordination has a leader, as long as the place is what it was. What is sent to a member whose leader has
/// died, before another one is elected, is never answered, and nobody could say whether it was done; a read shows that
/// there is a leader, and can be given up and asked again.
async fn until_led(parts: &Parts, expected: u64) -> Option<()> {
    let roster = parts.roster.subscribe();
    for attempt in 0.. {
        if parts.lease.has_ended() {
            return None;
        }
        let patience = match attempt < SHORT_READS {
            true => READ_MAX,
            false => STEP_MAX,
        };
        let read = parts.world.timeout(patience, parts.coordination.revision());
        if matches!(read.await, Ok(Ok(_))) {
            return Some(());
        }
        parts.world.sleep(READ_AFTER).await;
        // Somebody else may have been told first.
        if version_of(&roster.borrow()) != expected {
            return None;
        }
    }
    None
}

async fn take(parts: &Parts, vacancy: Vacancy) -> Option<Won> {
    until_led(parts, vacancy.version).await?;
    let asked = parts.world.now();
    let facts = &parts.coordination;
    let granted = parts.world.timeout(STEP_MAX, facts.grant_place()).await;
    let lease = granted.ok()?.ok()?.id;
    let taken = facts.take_place(parts.run, vacancy.version, lease);
    match parts.world.timeout(STEP_MAX, taken).await {
        Ok(Ok(())) => {
            if let Some((unkept, _)) = vacancy.unkept {
                // Whoever had it can't keep it now, not even if what it reads is old.
                give_up(parts, unkept).await;
            }
            parts.lease.kept_place(asked);
            Some(Won {
                lease,
                until: parts.lease.moment(asked + LASTS),
                unkept_since: vacancy.unkept.map(|(_, since)| since),
            })
        }
        // Nobody is the manager under a lease that nobody keeps.
        Ok(Err(_)) | Err(_) => {
            give_up(parts, lease).await;
            None
        }
    }
}

/// Gives the place up at once if coordination answers; otherwise it ends by itself.
pub(super) async fn give_up(parts: &Parts, lease: LeaseId) {
    let revoked = parts.coordination.revoke(lease);
    // All other threads may block.
    let _ = parts.world.urgent().timeout(STEP_MAX, revoked).await;
}

/// The task that keeps the place while this run is the manager, until that is lost or given up. One of the urgent thread, and what
/// it asks of coordination goes over connections of that thread (`coordination::etcd`): all other threads may block.
///
/// A manager whose loop hangs would then keep its place for ever, answer heartbeats, and do nothing: nobody would be
/// expelled and no shard get another owner. So the place isn't kept while the loop hasn't looked for [`IDLE_MAX`]. It
/// ends by its time then, unless the loop goes on before.
///
/// Without an answer it asks again. If the place has ended all the same, as some versions of etcd may do with it, what
/// this run's own manager has answered to it counts no longer: a successor doesn't wait for that.
///
/// If most don't hear the manager it gives the place up, and doesn't wait for the loop either.
pub(super) async fn keep(parts: Arc<Parts>, lease: LeaseId) {
    let world = parts.world.urgent();
    let mut was_idle = false;
    loop {
        world.sleep(KEEP_EVERY).await;
        let Some(idle) = parts.office.idle(lease, parts.moment()) else {
            return;
        };
        let is_idle = idle >= IDLE_MAX;
        if is_idle && !was_idle {
            tracing::warn!(
                run = %parts.run,
                seconds = idle.as_secs(),
                "the manager here doesn't get to its work: its place isn't kept, so that another one follows"
            );
        }
        was_idle = is_idle;
        if is_idle {
            continue;
        }
        let asked = world.now();
        let kept = parts.coordination.keep_place(parts.run, lease);
        match world.timeout(STEP_MAX, kept).await {
            Ok(Ok(Kept::Longer)) => parts.office.kept_place(&parts.lease, lease, asked),
            Ok(Ok(Kept::Unheard)) => return unheard(&parts, lease).await,
            Ok(Err(error)) if error.kind() == ErrorKind::NotFound => {
                return lost(&parts, lease);
            }
            Ok(Err(_)) | Err(_) => {}
        }
    }
}

/// Coordination says that this run hasn't the place any more that it had under this lease.
pub(super) fn lost(parts: &Parts, lease: LeaseId) {
    let office = &parts.office;
    if office.lost_place(&parts.lease, lease, parts.moment()) {
        tracing::warn!(run = %parts.run, "coordination says that this run isn't the manager any more");
    }
}

/// Most don't hear this run, which has the place under this lease: it gives the place up, for one whom they hear.
async fn unheard(parts: &Parts, lease: LeaseId) {
    // Nothing is answered any more under the place before another one can have it.
    let office = &parts.office;
    if office.give_place_up(&parts.lease, lease, parts.moment()) {
        tracing::warn!(run = %parts.run, "most nodes don't hear the manager here: it gives its place up");
        // As the loop does when it hears of that: it may be hanging.
        give_up(parts, lease).await;
    }
}

impl Parts {
    /// Nobody listens where the run listened, or a newer run of its node does. An attempt without an answer
    /// proves nothing.
    pub(in crate::member) async fn is_refused(&self, run: NodeRun) -> bool {
        let known = self.roster.borrow().addresses.get(&run.node).copied();
        match known {
            Some(known) if known.run > run => true,
            Some(known) if known.run == run => self.refuses(known.address).await,
            _ => false,
        }
    }

    /// Whether all other members of the jury refuse connections as `run` does, if there are any: it is this node that is refused
    /// then, and that proves nothing of `run`.
    pub(in crate::member) async fn is_refused_by_all_but(&self, run: NodeRun) -> bool {
        let others = jury_of(self).into_iter();
        let others = others.filter(|other| *other != self.run && *other != run);
        let roster = self.roster.borrow().clone();
        let known = others.filter_map(|other| roster.addresses.get(&other.node));
        let mut asked: FuturesUnordered<_> =
            known.map(|known| self.refuses(known.address)).collect();
        let is_any = !asked.is_empty();
        // One that doesn't is enough, and most say so at once.
        while let Some(refuses) = asked.next().await {
            if !refuses {
                return false;
            }
        }
        is_any
    }

    async fn refuses(&self, address: SocketAddr) -> bool {
        let deadline = Deadline::after(&self.world, STEP_MAX);
        let connected = self.world.connect(address, deadline).await;
        connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(1);

    /// Would be broken if a dead manager were taken for alive because the kernel hadn't closed everything at the first attempt.
    #[test]
    fn two_refused_attempts_in_a_row_prove_that_nobody_listens_also_after_one_that_was_not() {
        let mut attempts = Attempts::default();
        let open = ControlFlow::Continue(OPEN_AFTER);
        let refused = ControlFlow::Continue(ATTEMPT_AFTER);
        assert_eq!(attempts.ended(false, SOON), open);
        assert_eq!(attempts.ended(true, SOON), refused);
        assert_eq!(attempts.ended(false, SOON), open);
        assert_eq!(attempts.ended(true, SOON), refused);
        assert_eq!(attempts.ended(true, SOON), ControlFlow::Break(true));
    }

    /// Would be broken if the place of a manager that hangs, or whose machine is silent, were doubted later than it must be.
    #[test]
    fn a_few_attempts_that_are_not_refused_end_it_and_one_without_an_answer() {
        let mut attempts = Attempts::default();
        for _ in 1..OPEN_MAX {
            let open = ControlFlow::Continue(OPEN_AFTER);
            assert_eq!(attempts.ended(false, SOON), open);
        }
        assert_eq!(attempts.ended(false, SOON), ControlFlow::Break(false));
        let mut attempts = Attempts::default();
        let silent = attempts.ended(false, STEP_MAX);
        assert_eq!(silent, ControlFlow::Break(false));
    }
}
