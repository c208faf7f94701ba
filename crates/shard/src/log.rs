//! The shard's log: entries on every NSD of a view, acknowledged in order.

use crate::frame::{CommitFrame, EntryKind};
use bytes::Bytes;
use model::{EntryNumber, Error, Result};
use std::future::Future;

/// The log of one owner (one epoch) of a shard. Cheap to clone.
#[derive(Clone)]
pub struct Log {}

impl Log {
    /// Appends a commit; durable on every member of the view, with everything before it, when
    /// the future is done. Its place in the order is taken by the call itself (not by the first
    /// poll), so several may be in flight. A dropped future goes on in a task: the order has no
    /// holes. `OldEpoch`: there is a newer owner; this one must end.
    pub fn append_commit(&self, frame: &CommitFrame) -> impl Future<Output = Result<EntryNumber>> + Send + use<> {
        let _ = frame;
        async { unimplemented!("log") }
    }

    /// As [`Log::append_commit`] for any payload; longer ones are cut into parts.
    pub(crate) fn append(&self, kind: EntryKind, payload: Bytes) -> impl Future<Output = Result<EntryNumber>> + Send + use<> {
        let _ = (kind, payload);
        async { unimplemented!("log") }
    }

    /// The newest entry that is durable with all before it.
    pub fn acknowledged(&self) -> EntryNumber {
        unimplemented!("log")
    }

    /// Why this log takes no more entries, if so. For good: the shard must be taken over again.
    pub fn failed(&self) -> Option<Error> {
        unimplemented!("log")
    }
}
