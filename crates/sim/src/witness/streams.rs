//! What became of creates under delegations: each must have come to its owner, unless its client was lost before.
//!
//! *A client sends what it has made in the order in which it made it.* So all of that is sent which was answered before
//! something began that proves it: an fsync of the client that succeeded, or a create of which the owner has said where it
//! was applied, or that another client has seen.

use super::gone::{Gone, is_synced};
use super::{ClientNumber, Event, History, Tick};
use model::InodeId;
use model::operation::Rank;
use std::collections::{BTreeMap, BTreeSet};

pub(super) struct Streams<'a> {
    history: &'a History,
    /// The earliest place in the order where another client than its maker has seen or changed what was made.
    first_seen: BTreeMap<InodeId, Rank>,
    /// What another client has seen for certain.
    seen: BTreeSet<InodeId>,
    /// When each client began the last thing that proves what it had sent before.
    sent: BTreeMap<ClientNumber, Tick>,
    /// When each client began the first create that may be gone.
    unsent: BTreeMap<ClientNumber, Tick>,
}

impl<'a> Streams<'a> {
    /// # Errors
    /// A create that never came to its owner although its client wasn't lost, or that another client has seen before.
    pub(super) fn of(history: &'a History, gone: &Gone<'_>) -> Result<Self, String> {
        let mut streams = Self {
            history,
            first_seen: BTreeMap::new(),
            seen: BTreeSet::new(),
            sent: BTreeMap::new(),
            unsent: BTreeMap::new(),
        };
        let delegated = || history.events.iter().filter(|event| event.is_delegated);
        let makers = delegated().filter_map(|event| Some((event.made()?, event.client)));
        let makers: BTreeMap<InodeId, ClientNumber> = makers.collect();
        for event in &history.events {
            for inode in event.shows() {
                let maker = makers.get(&inode);
                if maker.is_some_and(|maker| *maker != event.client) {
                    streams.note_seen(inode, event, gone);
                }
            }
        }
        for event in &history.events {
            let is_proof = is_synced(event) || event.is_delegated && streams.is_proven(event);
            if is_proof {
                let sent = streams.sent.entry(event.client).or_default();
                *sent = event.begun.max(*sent);
            }
        }
        for event in delegated() {
            streams.check(event)?;
            if streams.may_be_gone(event) {
                let unsent = streams.unsent.entry(event.client).or_insert(event.begun);
                *unsent = event.begun.min(*unsent);
            }
        }
        Ok(streams)
    }

    fn note_seen(&mut self, inode: InodeId, by: &Event, gone: &Gone<'_>) {
        if let Some(rank) = by.rank {
            let first = self.first_seen.entry(inode).or_insert(rank);
            *first = rank.min(*first);
        }
        if !gone.may_be(by) {
            self.seen.insert(inode);
        }
    }

    fn is_proven(&self, create: &Event) -> bool {
        create.rank.is_some()
            || create
                .made()
                .is_some_and(|inode| self.seen.contains(&inode))
    }

    fn check(&self, create: &Event) -> Result<(), String> {
        let is_lost = self.history.lost.contains(&create.client);
        match (create.rank, self.first_seen(create)) {
            (None, _) if !is_lost => Err(format!("it never reached its owner: {create:?}")),
            (Some(applied), Some(seen)) if seen < applied => Err(format!(
                "another client has seen it at {seen:?}, before its owner had it: {create:?}"
            )),
            _ => Ok(()),
        }
    }

    /// Where another client has seen first what was made, or has changed it.
    pub(super) fn first_seen(&self, create: &Event) -> Option<Rank> {
        self.first_seen.get(&create.made()?).copied()
    }

    /// Whether a create under a delegation may be gone with its client. If it is, all are that the client made later.
    pub(super) fn may_be_gone(&self, create: &Event) -> bool {
        let sent = self.sent.get(&create.client);
        let was_sent = sent.is_some_and(|sent| create.ended < *sent);
        let is_lost = self.history.lost.contains(&create.client);
        is_lost && !was_sent && !self.is_proven(create)
    }

    /// Whether an answer that its client gave itself may have shown a create that is gone.
    pub(super) fn may_show_gone(&self, event: &Event) -> bool {
        let unsent = self.unsent.get(&event.client);
        event.rank.is_none() && unsent.is_some_and(|unsent| *unsent < event.ended)
    }
}
