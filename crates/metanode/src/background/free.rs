//! Frees the space of removed and overwritten data: gently, faster when the pool runs short, and at
//! once for writers that would otherwise be refused.

use crate::background::sparse::{Cleaned, Need, STEP_PARTS};
use crate::background::{Pace, count};
use crate::metanode::Metanode;
use model::{ErrorKind, Result};
use std::sync::atomic::Ordering;

/// Most steps of reclaim and delete until one frees something.
const STEPS_MAX: usize = 64;

impl Metanode {
    /// Frees some space of removed and overwritten data, without the usual grace for readers (a
    /// reader that misses a segment looks up the data's place again). For writers that would be
    /// refused: they try again as long as this returns that something was freed, by them or by
    /// another caller meanwhile, or that the search isn't finished. One bounded step; concurrent
    /// callers share it.
    ///
    /// # Errors
    /// The error that stopped it.
    pub async fn make_room(&self) -> Result<bool> {
        let seen = self.background.frees.load(Ordering::Acquire);
        let _freeing = self.background.freeing.lock().await;
        if self.background.frees.load(Ordering::Acquire) != seen {
            return Ok(true);
        }
        self.free_step(Need::Now).await
    }

    /// Bytes in use, before redundancy, that nothing points at: they wait to be freed.
    #[must_use]
    pub fn unfreed(&self) -> u64 {
        self.background.unfreed.load(Ordering::Relaxed)
    }

    /// Updates how much waits to be freed: space used for neither files nor metadata. Returns 0,
    /// since that isn't work.
    pub(super) async fn note_unfreed(&self) -> Result<u64> {
        let usage = self.usage().await?;
        let shard = self.shard();
        let metadata = shard.catalog().usage().bytes + shard.tree().log().bytes();
        let pointed_at = u64::try_from(usage.allocated).unwrap_or(u64::MAX);
        let unfreed = usage
            .used
            .saturating_sub(pointed_at.saturating_add(metadata));
        self.background.unfreed.store(unfreed, Ordering::Relaxed);
        Ok(0)
    }

    /// Frees what is due; more if the pool runs short. Returns the amount of work done.
    pub(super) async fn free_some(&self, pace: Pace) -> Result<u64> {
        let _freeing = self.background.freeing.lock().await;
        if pace == Pace::Gentle && self.is_short() {
            return Ok(u64::from(self.free_step(Need::Soon).await?));
        }
        self.look_at_backlog().await?;
        let now = self.world.now();
        let is_recovering = self.background.memory.lock().backlog.is_recovering(now);
        let mut steps = 0;
        for _ in 0..STEPS_MAX {
            let reclaimed = self.reclaim_some().await?;
            // Data removed before the shard was opened has no readers, and `df` counts it.
            let pace = if is_recovering { Pace::Drain } else { pace };
            let deleted = self.delete_dead(pace).await?;
            steps += reclaimed + deleted.segments + deleted.records;
            let mut memory = self.background.memory.lock();
            if is_recovering && memory.backlog.is_done() {
                memory.backlog.end_recovery();
            }
            if !is_recovering || reclaimed + deleted.segments == 0 {
                break;
            }
        }
        Ok(steps)
    }

    /// Frees something if possible. False if another step couldn't free anything.
    ///
    /// The caller holds `freeing`.
    async fn free_step(&self, need: Need) -> Result<bool> {
        let mut freed = 0;
        for _ in 0..STEPS_MAX {
            let reclaimed = self.reclaim_some().await?;
            freed += self.delete_dead(Pace::Drain).await?.segments;
            if freed > 0 || reclaimed == 0 {
                break;
            }
        }
        for part in STEP_PARTS {
            if freed > 0 {
                break;
            }
            let is_last = match self.clean_sparse(need, part).await {
                Ok(Cleaned::Nothing) => true,
                Ok(Cleaned::NotYet) => return Ok(true),
                Ok(Cleaned::Some) => false,
                // Other writers have taken the space that cleaning needs.
                Err(error) if error.kind() == ErrorKind::NoSpace => false,
                Err(error) => return Err(error),
            };
            // Also without success: segments may have died while they were searched.
            freed += self.delete_dead(Pace::Drain).await?.segments;
            if is_last {
                break;
            }
        }
        if freed > 0 {
            count(&self.background.frees, 1);
        }
        Ok(freed > 0)
    }
}
