//! What may be gone with clients that were lost and that their owner had answered in its own process, before that was
//! durable: their newest changes, and what their looks showed of others' newest changes.
//!
//! *An epoch's changes are durable up to a place in their order.* This place isn't before anything that a client has seen that
//! wasn't lost, or that was answered by an owner on another node, or that was answered before an fsync of its client began
//! that succeeded. What was made under a delegation was durable when its owner said where it was applied.

use super::{Answer, Call, ClientNumber, Event, History, Tick};
use model::ShardEpoch;
use model::operation::Rank;
use std::collections::BTreeMap;

pub(super) struct Gone<'a> {
    history: &'a History,
    /// Up to where each epoch's changes are durable, at least.
    durable: BTreeMap<ShardEpoch, Rank>,
    /// When each client that was lost began the last thing that proves what it had seen before.
    certain: BTreeMap<ClientNumber, Tick>,
    /// When each client began what it was answered first by an owner in its own process.
    near_since: BTreeMap<ClientNumber, Tick>,
    /// The last epoch in which it was.
    near_in: BTreeMap<ClientNumber, ShardEpoch>,
}

impl<'a> Gone<'a> {
    pub(super) fn of(history: &'a History) -> Self {
        let mut gone = Self {
            history,
            durable: BTreeMap::new(),
            certain: BTreeMap::new(),
            near_since: BTreeMap::new(),
            near_in: BTreeMap::new(),
        };
        for event in &history.events {
            if event.is_near {
                let since = gone.near_since.entry(event.client).or_insert(event.begun);
                *since = event.begun.min(*since);
                if let Some(rank) = event.rank {
                    let near_in = gone.near_in.entry(event.client).or_insert(rank.epoch);
                    *near_in = rank.epoch.max(*near_in);
                }
            }
            if is_synced(event) {
                gone.note_certain(event);
            }
        }
        for event in &history.events {
            let is_durable = event.is_delegated
                || !gone.is_of_lost(event)
                || !event.is_near
                || gone.was_before_certain(event);
            if let Some(rank) = event.rank.filter(|_| is_durable) {
                let durable = gone.durable.entry(rank.epoch).or_insert(rank);
                *durable = rank.max(*durable);
            }
        }
        // What a later owner did for a client that was lost may have been done in the session that followed.
        let proofs = history.events.iter();
        let proofs = proofs.filter(|event| {
            let is_durable = |rank: Rank| {
                let near = gone.near_in.get(&event.client);
                let is_later = near.is_some_and(|near| *near < rank.epoch);
                gone.is_durable(rank) && !(is_later && gone.is_of_lost(event))
            };
            event.rank.is_some_and(is_durable)
        });
        let proofs: Vec<&Event> = proofs.collect();
        proofs
            .into_iter()
            .for_each(|event| gone.note_certain(event));
        gone
    }

    fn note_certain(&mut self, event: &Event) {
        let certain = self.certain.entry(event.client).or_default();
        *certain = event.begun.max(*certain);
    }

    /// Whether its client was lost after it had been near its owner.
    fn is_of_lost(&self, event: &Event) -> bool {
        let near_since = self.near_since.get(&event.client);
        let was_near = near_since.is_some_and(|since| *since <= event.ended);
        was_near && self.history.lost.contains(&event.client)
    }

    fn was_before_certain(&self, event: &Event) -> bool {
        let certain = self.certain.get(&event.client);
        certain.is_some_and(|certain| event.ended < *certain)
    }

    fn is_durable(&self, rank: Rank) -> bool {
        let durable = self.durable.get(&rank.epoch);
        durable.is_some_and(|durable| rank <= *durable)
    }

    /// Whether a change that was answered may be gone, or a look have shown such a change. Not of what was made under a
    /// delegation (`streams.rs`).
    pub(super) fn may_be(&self, event: &Event) -> bool {
        if !self.is_of_lost(event) {
            return false;
        }
        match event.rank {
            Some(rank) => event.is_near && !self.is_durable(rank),
            None => !self.was_before_certain(event),
        }
    }
}

/// There is one log: an fsync makes all durable that its client had been answered before.
pub(super) fn is_synced(event: &Event) -> bool {
    matches!(
        (&event.call, &event.answer),
        (Call::Fsync { .. }, Answer::Done)
    )
}
