//! Room in a pool that several nodes write to: each writes to what it was given, so that what was accepted
//! always fits.
//!
//! A node alone knows what it holds, and compares that with what its NSDs have free (`space.rs`). With a
//! [`Room`], a [`Reservation`](crate::Reservation) takes from that instead, in raw bytes; every piece that is
//! put is said to it, whoever put it; and whoever gives room learns with [`Pool::count`] what the NSDs have.

use crate::Pool;
use crate::members::kept_free;
use crate::space::{Shared, fillable, reserve};
use futures::future::join_all;
use model::FailureGroupId;
use model::map::NsdState;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use world::call::Deadline;

/// Bytes that a log entry takes on its NSD beside its own.
const LOG_ENTRY_BYTES: u64 = 4 << 10;
/// Of a pool, so much is kept for the logs of its shards beside the usual reserve, and at most so many bytes.
const LOG_PART: u64 = 32;
const LOG_MAX: u64 = 256 << 20;

/// What came of a wish for room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    /// It is taken.
    Yes,
    /// There isn't enough here; it was asked for, and [`Pool::room`] tells when that was answered.
    Asked,
    /// There isn't enough in the whole pool.
    Full,
}

/// What a node may write to a pool. All bytes are raw: with redundancy. Nothing here waits.
pub trait Room: Send + Sync {
    /// Takes room if it is there, and asks for nothing.
    fn take_if_there(&self, bytes: u64) -> bool;
    /// Takes room, or asks for it.
    fn take(&self, bytes: u64) -> Taken;
    /// Room that was taken isn't needed any more: what it was for is in the pool, or never will be.
    fn put_back(&self, bytes: u64);
    /// A piece is in the pool.
    fn written(&self, bytes: u64);
    /// Something was freed: what didn't fit may fit now.
    fn ask_anew(&self);
    /// Tells all that wait when a wish was answered.
    fn answered(&self) -> &Notify;
}

/// What the NSDs of a pool have, by their own words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Count {
    /// Bytes in use.
    pub used: u64,
    /// The same, and what segments can still fill.
    pub capacity: u64,
    /// Of that, what log, compaction and deletes need.
    pub reserve: u64,
}

impl Pool {
    /// From now on space is reserved from this room only. For a pool that other nodes write to; at most once.
    /// Clients write blocks of this size, unless the pool's map names another one.
    pub fn share(&self, room: Arc<dyn Room>, block_bytes: u32) {
        let shared = Shared { room, block_bytes };
        let is_first = self.space.shared.set(shared).is_ok();
        assert!(is_first, "a pool's room is set once");
    }

    /// Completes when a wish for room was answered after this call; never in a pool that isn't shared.
    pub fn room(&self) -> Notified<'_> {
        let shared = self.space.shared.get();
        let shared = shared.map(|shared| shared.room.answered());
        shared.unwrap_or(&self.space.never).notified()
    }

    /// Asks all NSDs that can be reached, each once, what they have. Those that don't answer by the deadline
    /// count as away, with what is on them. `None` if none answers.
    pub async fn count(&self, deadline: Deadline) -> Option<Count> {
        let map = self.map();
        let entries = map.nsds.iter();
        let entries = entries.filter(|entry| entry.state != NsdState::Lost);
        let asked = entries.filter_map(|entry| {
            let member = self.member(entry.nsd)?;
            Some(async move { (entry, member.nsd.ask_usage(deadline).await) })
        });
        let answers = join_all(asked).await;
        let (mut used, mut log, mut answered) = (0, 0, false);
        let mut free: BTreeMap<FailureGroupId, u64> = BTreeMap::new();
        for (entry, usage) in answers {
            let Ok(usage) = usage else { continue };
            answered = true;
            used += usage.used;
            log += usage.log_entries * LOG_ENTRY_BYTES + usage.log_bytes;
            // A draining NSD's free space takes no new pieces.
            if entry.state == NsdState::Active {
                let fillable = usage.available.saturating_sub(kept_free(&usage));
                *free.entry(entry.failure_group).or_default() += fillable;
            }
        }
        let free = fillable(self.scheme_of_large(), free.into_values().collect());
        let capacity = used + free;
        // Nobody asks for room for the log, which may grow until the next measuring.
        let for_log = (capacity / LOG_PART).min(LOG_MAX).saturating_sub(log);
        answered.then(|| Count {
            used,
            capacity,
            reserve: reserve(capacity) + for_log,
        })
    }

    /// Raw bytes that the shards of this process need for log and tables beyond a pool's usual reserve.
    #[must_use]
    pub fn kept_beyond_reserve(&self) -> u64 {
        let usual = reserve(self.raw_usable());
        self.metadata_reserve().saturating_sub(usual)
    }
}
