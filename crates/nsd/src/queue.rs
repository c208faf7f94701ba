//! Records that wait for the journal, and the fences that new ones must pass.

use crate::ledger::{KnownMax, Ledger};
use crate::record::Record;
use model::{GroupId, GroupVersion, Result, ShardEpoch, ShardId};
use std::collections::{BTreeMap, VecDeque};
use tokio::sync::oneshot;

/// Records waiting for the journal, and the fences as they will be once all of these are applied.
pub(crate) struct Queue {
    pub(crate) waiting: VecDeque<Item>,
    pub(crate) led: bool,
    pub(crate) fences: Fences,
}

/// Lowest epochs and versions that are still accepted.
pub(crate) struct Fences {
    pub(crate) epochs: BTreeMap<ShardId, ShardEpoch>,
    pub(crate) versions: BTreeMap<GroupId, GroupVersion>,
    /// As many of each may become known.
    pub(crate) most: KnownMax,
}

pub(crate) struct Item {
    pub(crate) record: Record,
    pub(crate) bytes: usize,
    pub(crate) turn: oneshot::Sender<Turn>,
}

/// What a waiting caller is told to do.
pub(crate) enum Turn {
    Done(Result<()>),
    /// Write the next group; the receiver gets the outcome of the caller's own record.
    Lead(oneshot::Receiver<Turn>),
}

impl Item {
    /// Has the caller write the next group; false if nobody waits for this.
    pub(crate) fn take_over(&mut self) -> bool {
        let (sender, receiver) = oneshot::channel();
        let turn = std::mem::replace(&mut self.turn, sender);
        turn.send(Turn::Lead(receiver)).is_ok()
    }
}

impl Queue {
    pub(crate) fn new(ledger: &Ledger, most: KnownMax) -> Self {
        Self {
            waiting: VecDeque::new(),
            led: false,
            fences: Fences::of(ledger, most),
        }
    }

    /// Whether no record is waiting or being written.
    pub(crate) fn is_idle(&self) -> bool {
        !self.led
    }

    pub(crate) fn fences(&self) -> &Fences {
        &self.fences
    }

    /// Takes all that waits behind a group that wasn't written: it may count on a fence that the group was to make durable,
    /// and has no record of it. What these would have taught is forgotten: the fences are again those of the journal.
    pub(crate) fn give_up(&mut self, written: &Ledger) -> VecDeque<Item> {
        self.fences = Fences::of(written, self.fences.most);
        std::mem::take(&mut self.waiting)
    }

    pub(crate) fn take_group(&mut self, bytes_max: usize) -> Vec<Item> {
        let mut group = Vec::new();
        let mut bytes = 0;
        while let Some(item) = self.waiting.front() {
            if !group.is_empty() && bytes + item.bytes > bytes_max {
                break;
            }
            bytes += item.bytes;
            group.extend(self.waiting.pop_front());
        }
        group
    }
}

impl Fences {
    /// Those that are in the journal, or in the index.
    fn of(written: &Ledger, most: KnownMax) -> Self {
        Self {
            epochs: written.seals.clone(),
            versions: written.versions.clone(),
            most,
        }
    }
}
