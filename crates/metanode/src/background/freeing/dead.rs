//! Deletes the blobs of segments that nothing points at any more.

use crate::background::Pace;
use crate::background::counts::count;
use crate::background::freeing::Freeing;
use model::{Operation, Result, SegmentId, SegmentPlace};
use std::time::Duration;

/// How long blobs of a dead segment are kept for reads that began before it died.
const GRACE: Duration = Duration::from_secs(2);
/// Most dead segments deleted per step.
const DELETED_MAX: usize = 8192;
/// Most segments forgotten by one operation.
const FORGOTTEN_MAX: usize = 1024;

/// Result of a step.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Deleted {
    /// Segments whose blobs were deleted.
    pub(super) segments: u64,
    /// Records that were removed.
    pub(super) records: u64,
}

impl Freeing {
    /// Deletes the blobs of dead segments, then their records. The order: the commit that killed
    /// them is durable, the blobs are deleted, then the record, once no writer can publish part of
    /// the segment any more. A pack may die with the first of its files while others are still to
    /// be published, and the record refuses them.
    ///
    /// The caller holds `freeing`.
    pub(super) async fn delete_dead(&self, pace: Pace) -> Result<Deleted> {
        let shard = self.look_at_backlog().await?;
        let is_anything_left = !self.backlog.lock().deaths.is_empty();
        if is_anything_left && pace == Pace::Drain {
            self.host.sync().await?;
        }
        let durable = shard.durable();
        let now = self.host.world().now();
        let due: Vec<(SegmentId, SegmentPlace)> = {
            let backlog = self.backlog.lock();
            let due = backlog.deaths.iter().filter(|(_, death)| {
                let is_unread = pace == Pace::Drain || now - death.since >= GRACE;
                death.dead.died <= durable && is_unread
            });
            due.map(|(segment, death)| (*segment, death.dead.place))
                .take(DELETED_MAX)
                .collect()
        };
        if !due.is_empty() {
            let places: Vec<SegmentPlace> = due.iter().map(|(_, place)| *place).collect();
            self.host.pool().delete(&places).await?;
            let mut backlog = self.backlog.lock();
            for (segment, _) in &due {
                backlog.note_deleted(*segment);
            }
        }
        let done = Deleted {
            segments: due.len() as u64,
            records: self.forget_deleted().await?,
        };
        count(&self.counts.segments_deleted, done.segments);
        Ok(done)
    }

    /// Removes the records of segments whose blobs are deleted and that no writer can publish.
    async fn forget_deleted(&self) -> Result<u64> {
        if self.backlog.lock().deleted.is_empty() {
            return Ok(0);
        }
        let decided = self.judging.decided().await?;
        let settled: Vec<SegmentId> = {
            let backlog = self.backlog.lock();
            let deleted = backlog.deleted.iter().copied();
            let settled = deleted.filter(|segment| decided.covers(*segment));
            settled.take(DELETED_MAX).collect()
        };
        for part in settled.chunks(FORGOTTEN_MAX) {
            let segments = part.to_vec();
            self.host
                .run_own(&Operation::ForgetDead { segments })
                .await?;
            let mut backlog = self.backlog.lock();
            for segment in part {
                backlog.deleted.remove(segment);
            }
        }
        Ok(settled.len() as u64)
    }
}
