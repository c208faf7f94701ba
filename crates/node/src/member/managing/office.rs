//! Where others find the manager, if it is here: heartbeats, which it answers at once, and whoever keeps its place, who
//! sees whether it does anything. Both are on the urgent thread, the manager's loop isn't.

use super::place;
use crate::member::lease::RunLease;
use coordination::LeaseId;
use manager::{Action, Event, Manager, Moment};
use model::member::{Heartbeat, HeartbeatReply, Term, Unreached};
use model::{NodeId, NodeRun};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::sync::watch;
use world::Instant;

/// Where others find the manager, if it is here.
#[derive(Default)]
pub(in crate::member) struct Office {
    /// Locked before anything of a lease.
    seat: Mutex<Option<Seat>>,
    /// The lease of the place that was given up last because most don't hear this run. Locked after the seat.
    given_up: Mutex<Option<LeaseId>>,
    /// This run isn't to be the manager any more, and never again.
    is_retired: watch::Sender<bool>,
}

/// The manager that is here.
struct Seat {
    manager: Manager,
    /// The lease of its place; `None`: that is lost, or given up.
    lease: Option<LeaseId>,
    /// When its loop looked last what there is to do.
    looked: Moment,
}

/// The manager that has its place under this lease.
fn under(seat: &mut Option<Seat>, lease: LeaseId) -> Option<&mut Seat> {
    seat.as_mut().filter(|seat| seat.lease == Some(lease))
}

/// Closes the office whatever ends its manager.
pub(super) struct Open<'a>(&'a Office);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        *self.0.seat.lock() = None;
    }
}

impl Office {
    /// The manager is here until what is returned is dropped. It has its place under this lease.
    pub(super) fn open(&self, manager: Manager, lease: LeaseId, now: Moment) -> Open<'_> {
        *self.seat.lock() = Some(Seat {
            manager,
            lease: Some(lease),
            looked: now,
        });
        Open(self)
    }

    /// The manager's answer; `None` if it isn't here, or must not answer.
    pub(in crate::member) fn heartbeat(
        &self,
        from: NodeRun,
        heartbeat: Heartbeat,
        now: Moment,
    ) -> Option<HeartbeatReply> {
        let mut seat = self.seat.lock();
        let event = Event::Heartbeat { from, heartbeat };
        let actions = seat.as_mut()?.manager.on(event, now);
        actions.into_iter().find_map(|action| match action {
            Action::Answer { reply, .. } => Some(reply),
            _ => None,
        })
    }

    /// This run isn't the manager any more, and never will be.
    pub(in crate::member) fn retire(&self) {
        self.is_retired.send_replace(true);
    }

    /// Whether it was told so.
    pub(in crate::member) fn is_retired(&self) -> bool {
        *self.is_retired.borrow()
    }

    /// Returns when it is.
    pub(super) async fn retired(&self) {
        // The sender is here.
        let _ = self.is_retired.subscribe().wait_for(|it| *it).await;
    }

    /// The manager hears whom a run can't reach; false if it isn't here.
    pub(in crate::member) fn hear_unreached(
        &self,
        from: NodeRun,
        unreached: Unreached,
        now: Moment,
    ) -> bool {
        let mut seat = self.seat.lock();
        let Some(seat) = seat.as_mut() else {
            return false;
        };
        let runs = unreached.runs;
        let actions = seat.manager.on(Event::Unreached { from, runs }, now);
        assert!(actions.is_empty(), "what follows is found at the next tick");
        true
    }

    /// A manager is here that has its place, as far as is known.
    pub(in crate::member) fn is_open(&self) -> bool {
        let seat = self.seat.lock();
        seat.as_ref().is_some_and(|seat| seat.lease.is_some())
    }

    /// Whether the manager that is here, and has its place, has heard so many since then that most can't say that they don't hear
    /// it.
    pub(in crate::member) fn was_heard_since(
        &self,
        quorum: &BTreeSet<NodeId>,
        since: Moment,
    ) -> bool {
        let seat = self.seat.lock();
        let in_place = seat.as_ref().filter(|seat| seat.lease.is_some());
        in_place.is_some_and(|seat| seat.manager.has_heard_most(quorum, since))
    }

    /// Term and members of the manager that is here, with the membership's version, once its term is stored.
    pub(in crate::member) fn established(&self) -> Option<(Term, BTreeSet<NodeRun>, u64)> {
        let seat = self.seat.lock();
        let (membership, version) = seat.as_ref()?.manager.established()?;
        let members = membership.members.values();
        let members = members.filter(|it| it.standing.is_member());
        Some((membership.term, members.map(|it| it.run).collect(), version))
    }

    /// How long the lease of each member lasts still, by every clock; nothing if the manager isn't here.
    pub(in crate::member) fn lease_rests(&self, now: Moment) -> Vec<(NodeId, Duration)> {
        let seat = self.seat.lock();
        let ends = seat.iter().flat_map(|seat| seat.manager.lease_ends());
        ends.map(|(run, end)| (run.node, end.since(now))).collect()
    }

    /// Tells the manager of an event, and says what it wants done.
    pub(super) fn on(&self, event: Event, now: Moment) -> Vec<Action> {
        let mut seat = self.seat.lock();
        let seat = seat.as_mut();
        seat.map_or_else(Vec::new, |seat| seat.manager.on(event, now))
    }

    /// The manager's loop looks what there is to do. Returns the runs to which a connection should be kept.
    pub(super) fn look(&self, now: Moment) -> Vec<NodeRun> {
        let mut seat = self.seat.lock();
        let Some(seat) = seat.as_mut() else {
            return Vec::new();
        };
        seat.looked = now;
        seat.manager.attended().collect()
    }

    /// For how long the manager that has its place under this lease hasn't looked; `None`: it isn't here, or has lost it.
    pub(super) fn idle(&self, lease: LeaseId, now: Moment) -> Option<Duration> {
        let mut seat = self.seat.lock();
        let seat = under(&mut seat, lease)?;
        Some(now.since(seat.looked))
    }

    /// The place was kept under this lease, as was asked at `asked`: that counts for what the manager answers, and for
    /// this run's own lease. Nothing if that manager isn't here any more, or has lost its place since.
    pub(super) fn kept_place(&self, own: &RunLease, lease: LeaseId, asked: Instant) {
        let mut seat = self.seat.lock();
        let Some(seat) = under(&mut seat, lease) else {
            return;
        };
        own.kept_place(asked);
        let until = Event::OwnLease(own.moment(asked + place::LASTS));
        let actions = seat.manager.on(until, own.moment(asked));
        assert!(actions.is_empty(), "what follows is found at the next tick");
    }

    /// The place isn't this run's any more that it had under this lease: its manager answers nothing from now on, and
    /// nothing counts that it has answered to this run. Returns whether that is news.
    pub(super) fn lost_place(&self, own: &RunLease, lease: LeaseId, now: Moment) -> bool {
        let mut seat = self.seat.lock();
        let Some(seat) = under(&mut seat, lease) else {
            return false;
        };
        seat.end(own, Event::PlaceLost, now);
        true
    }

    /// Most don't hear this run: it doesn't want the place any more that it has under this lease, and all is as if that were
    /// lost. Returns whether that is news.
    pub(super) fn give_place_up(&self, own: &RunLease, lease: LeaseId, now: Moment) -> bool {
        let mut seat = self.seat.lock();
        let Some(seat) = under(&mut seat, lease) else {
            return false;
        };
        seat.end(own, Event::Unheard, now);
        *self.given_up.lock() = Some(lease);
        true
    }

    /// The place that this run had under this lease was given up, so that another one has it, however long the manager's loop
    /// hears nothing of that.
    pub(super) fn is_given_up(&self, lease: LeaseId) -> bool {
        *self.given_up.lock() == Some(lease)
    }
}

impl Seat {
    /// The manager has its place no longer.
    fn end(&mut self, own: &RunLease, why: Event, now: Moment) {
        self.lease = None;
        own.lost_place();
        // Its loop ends all that is under way when it hears of it.
        self.manager.on(why, now);
    }
}
