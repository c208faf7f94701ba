//! Where heartbeats find the manager, if it is here.

use manager::{Action, Event, Manager, Moment};
use model::member::{Heartbeat, HeartbeatReply, Term, Unreached};
use model::{NodeId, NodeRun};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::sync::watch;

/// Where heartbeats find the manager, if it is here.
#[derive(Default)]
pub(in crate::member) struct Office {
    manager: Mutex<Option<Manager>>,
    /// This run isn't to be the manager any more, and never again.
    is_retired: watch::Sender<bool>,
}

/// Closes the office whatever ends its manager.
pub(super) struct Open<'a>(&'a Office);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        *self.0.manager.lock() = None;
    }
}

impl Office {
    /// The manager is here until what is returned is dropped.
    pub(super) fn open(&self, manager: Manager) -> Open<'_> {
        *self.manager.lock() = Some(manager);
        Open(self)
    }

    /// The manager's answer; `None` if it isn't here, or must not answer.
    pub(in crate::member) fn heartbeat(
        &self,
        from: NodeRun,
        heartbeat: Heartbeat,
        now: Moment,
    ) -> Option<HeartbeatReply> {
        let mut manager = self.manager.lock();
        let event = Event::Heartbeat { from, heartbeat };
        let actions = manager.as_mut()?.on(event, now);
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
        let mut manager = self.manager.lock();
        let Some(manager) = manager.as_mut() else {
            return false;
        };
        let runs = unreached.runs;
        let actions = manager.on(Event::Unreached { from, runs }, now);
        assert!(actions.is_empty(), "what follows is found at the next tick");
        true
    }

    /// A manager is here.
    pub(in crate::member) fn is_open(&self) -> bool {
        self.manager.lock().is_some()
    }

    /// Term and members of the manager that is here, with the membership's version, once its term is stored.
    pub(in crate::member) fn established(&self) -> Option<(Term, BTreeSet<NodeRun>, u64)> {
        let manager = self.manager.lock();
        let (membership, version) = manager.as_ref()?.established()?;
        let members = membership.members.values();
        let members = members.filter(|it| it.standing.is_member());
        Some((membership.term, members.map(|it| it.run).collect(), version))
    }

    /// How long the lease of each member lasts still, by every clock; nothing if the manager isn't here.
    pub(in crate::member) fn lease_rests(&self, now: Moment) -> Vec<(NodeId, Duration)> {
        let manager = self.manager.lock();
        let ends = manager.iter().flat_map(Manager::lease_ends);
        ends.map(|(run, end)| (run.node, end.since(now))).collect()
    }

    /// Tells the manager of an event, and says what it wants done.
    pub(super) fn on(&self, event: Event, now: Moment) -> Vec<Action> {
        let mut manager = self.manager.lock();
        let manager = manager.as_mut();
        manager.map_or_else(Vec::new, |manager| manager.on(event, now))
    }

    /// The runs to which a connection should be kept.
    pub(super) fn attended(&self) -> Vec<NodeRun> {
        let manager = self.manager.lock();
        let manager = manager.as_ref();
        manager.map_or_else(Vec::new, |manager| manager.attended().collect())
    }
}
