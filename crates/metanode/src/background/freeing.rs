//! Frees the space of removed and overwritten data: gently, faster when the pool runs short, and at
//! once for writers that would otherwise be refused.

mod backlog;
mod dead;
mod reclaim;
mod sparse;

use crate::background::Pace;
use crate::background::counts::{Counts, count};
use crate::background::freeing::backlog::Backlog;
use crate::background::freeing::sparse::{Cleaned, STEP_PARTS, Sparse};
use crate::background::live::LiveParts;
use crate::background::rewrite::Rewriter;
use crate::background::width::Width;
use crate::host::Host;
use crate::judging::{Judging, recorded};
use crate::room::Room;
use model::{ErrorKind, Result, SegmentId, SegmentPlace};
use namespace::{Key, Record, Segment};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use world::Point;

pub(super) use sparse::{Need, STEP_BYTES, frees, units};

/// Most steps of reclaim and delete until one frees something.
const STEPS_MAX: usize = 64;

/// Frees space in steps, one at a time.
pub(super) struct Freeing {
    host: Arc<Host>,
    judging: Judging,
    rewriter: Rewriter,
    live: LiveParts,
    room: Arc<Room>,
    counts: Arc<Counts>,
    /// Held by one step at a time, briefly, never for a whole round: writers wait for it.
    step: tokio::sync::Mutex<()>,
    /// Steps that freed something.
    frees: AtomicU64,
    /// Bytes in use that nothing points at, as of the last round.
    unfreed: AtomicU64,
    backlog: Mutex<Backlog>,
    sparse: Mutex<Sparse>,
}

impl Freeing {
    pub(super) fn new(
        host: Arc<Host>,
        judging: Judging,
        rewriter: Rewriter,
        room: Arc<Room>,
        counts: Arc<Counts>,
    ) -> Self {
        Self {
            live: LiveParts::new(host.clone()),
            host,
            judging,
            rewriter,
            room,
            counts,
            step: tokio::sync::Mutex::default(),
            frees: AtomicU64::new(0),
            unfreed: AtomicU64::new(0),
            backlog: Mutex::default(),
            sparse: Mutex::default(),
        }
    }

    /// Notes a segment that can't be cleaned until more of it dies or NSDs change.
    pub(super) fn note_stubborn(&self, id: SegmentId, segment: &Segment, width: Width) {
        self.sparse.lock().note_stubborn(id, segment, width);
    }

    /// Whether it was noted so, and nothing has changed since.
    pub(super) fn is_stubborn(&self, id: SegmentId, segment: &Segment, width: Width) -> bool {
        self.sparse.lock().is_stubborn(id, segment, width)
    }

    /// Condemns segments that their writer will never publish and that nothing points at, then
    /// deletes them.
    pub(super) async fn give_up(&self, places: Vec<SegmentPlace>) -> Result<()> {
        let shard = self.host.shard();
        let mut garbage = Vec::with_capacity(places.len());
        for place in places {
            if recorded(&shard, place.segment).await?.is_none() {
                garbage.push(place);
            }
        }
        self.host.condemn(garbage.clone()).await?;
        self.host.sync().await?;
        self.host.world().at(Point::GarbageCondemned).await;
        // One that was published meanwhile isn't condemned.
        let shard = self.host.shard();
        let mut condemned = Vec::with_capacity(garbage.len());
        for place in garbage {
            match shard.record(&Key::Dead(place.segment)).await? {
                Some(Record::Dead(dead)) if dead.place == place => condemned.push(place),
                _ => {}
            }
        }
        // Nobody reads what was never published: it needs no time to be forgotten.
        count(&self.counts.segments_given_up, condemned.len() as u64);
        self.host.pool().delete(&condemned).await
    }

    /// Frees some space of removed and overwritten data, without the usual grace for readers (a
    /// reader that misses a segment looks up the data's place again). For writers that would be
    /// refused: they try again as long as this returns that something was freed, by them or by
    /// another caller meanwhile, or that the search isn't finished. One bounded step; concurrent
    /// callers share it.
    ///
    /// # Errors
    /// The error that stopped it.
    pub(super) async fn make_room(&self) -> Result<bool> {
        let seen = self.frees.load(Ordering::Acquire);
        let _freeing = self.step.lock().await;
        if self.frees.load(Ordering::Acquire) != seen {
            return Ok(true);
        }
        self.free_step(Need::Now).await
    }

    /// Bytes in use, before redundancy, that nothing points at: they wait to be freed.
    pub(super) fn unfreed(&self) -> u64 {
        self.unfreed.load(Ordering::Relaxed)
    }

    /// Updates how much waits to be freed: space used for neither files nor metadata. Returns 0,
    /// since that isn't work.
    pub(super) async fn note_unfreed(&self) -> Result<u64> {
        let usage = self.host.usage().await?;
        let shard = self.host.shard();
        let metadata = shard.catalog().usage().bytes + shard.tree().log().bytes();
        let pointed_at = u64::try_from(usage.allocated).unwrap_or(u64::MAX);
        let unfreed = usage
            .used
            .saturating_sub(pointed_at.saturating_add(metadata));
        self.unfreed.store(unfreed, Ordering::Relaxed);
        Ok(0)
    }

    /// Frees what is due; more if the pool runs short. Returns the amount of work done.
    pub(super) async fn free_some(&self, pace: Pace) -> Result<u64> {
        let _freeing = self.step.lock().await;
        if pace == Pace::Gentle && self.room.is_short() {
            return Ok(u64::from(self.free_step(Need::Soon).await?));
        }
        self.look_at_backlog().await?;
        let now = self.host.world().now();
        let is_recovering = self.backlog.lock().is_recovering(now);
        let mut steps = 0;
        for _ in 0..STEPS_MAX {
            let reclaimed = self.reclaim_some().await?;
            // Data removed before the shard was opened has no readers, and `df` counts it.
            let pace = if is_recovering { Pace::Drain } else { pace };
            let deleted = self.delete_dead(pace).await?;
            steps += reclaimed + deleted.segments + deleted.records;
            let mut backlog = self.backlog.lock();
            if is_recovering && backlog.is_done() {
                backlog.end_recovery();
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
            count(&self.frees, 1);
        }
        Ok(freed > 0)
    }
}
