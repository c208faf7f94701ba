//! What the NSDs of a pool have, for whoever gives room in it (`room.rs`).

use crate::Pool;
use crate::members::kept_free;
use crate::room::Room;
use crate::space::{fillable, reserve};
use futures::future::join_all;
use model::map::NsdState;
use model::{FailureGroupId, NsdId};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::futures::Notified;
use world::call::Deadline;

/// Bytes that a log entry takes on its NSD beside its own.
const LOG_ENTRY_BYTES: u64 = 4 << 10;
/// Of a pool, so much is kept for the logs of its shards beside the usual reserve, and at most so many bytes.
const LOG_PART: u64 = 32;
const LOG_MAX: u64 = 256 << 20;

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
        self.sharing.begin(room, block_bytes);
    }

    /// Completes when a wish for room was answered after this call; never in a pool that isn't shared.
    pub fn room(&self) -> Notified<'_> {
        self.sharing.answered()
    }

    /// Asks all NSDs that can be reached, each once, what they have. Those that don't answer by the deadline
    /// count as away, with what is on them, and so do those that `is_away` names, which aren't waited for. `None` if none
    /// answers.
    pub async fn count(
        &self,
        deadline: Deadline,
        is_away: impl Fn(NsdId) -> bool,
    ) -> Option<Count> {
        let map = self.map();
        let entries = map.nsds.iter();
        let entries = entries.filter(|entry| entry.state != NsdState::Lost && !is_away(entry.nsd));
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
