//! Deletes the blobs of segments that nothing points at any more.

use crate::background::{GRACE, Pace, count};
use crate::metanode::Metanode;
use model::{Operation, Result, SegmentId, SegmentPlace};

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

impl Metanode {
    /// Deletes the blobs of dead segments, then their records. The order: the commit that killed
    /// them is durable, the blobs are deleted, then the record, once no writer can publish part of
    /// the segment any more. A pack may die with the first of its files while others are still to
    /// be published, and the record refuses them.
    ///
    /// The caller holds `freeing`.
    pub(super) async fn delete_dead(&self, pace: Pace) -> Result<Deleted> {
        let shard = self.look_at_backlog().await?;
        let is_anything_left = !self.background.memory.lock().backlog.deaths.is_empty();
        if is_anything_left && pace == Pace::Drain {
            self.sync().await?;
        }
        let durable = shard.durable();
        let now = self.world.now();
        let due: Vec<(SegmentId, SegmentPlace)> = {
            let memory = self.background.memory.lock();
            let due = memory.backlog.deaths.iter().filter(|(_, death)| {
                let is_unread = pace == Pace::Drain || now - death.since >= GRACE;
                death.dead.died <= durable && is_unread
            });
            due.map(|(segment, death)| (*segment, death.dead.place))
                .take(DELETED_MAX)
                .collect()
        };
        if !due.is_empty() {
            let places: Vec<SegmentPlace> = due.iter().map(|(_, place)| *place).collect();
            self.pool.delete(&places).await?;
            let mut memory = self.background.memory.lock();
            for (segment, _) in &due {
                memory.backlog.note_deleted(*segment);
            }
        }
        let done = Deleted {
            segments: due.len() as u64,
            records: self.forget_deleted().await?,
        };
        count(&self.background.counts.segments_deleted, done.segments);
        Ok(done)
    }

    /// Removes the records of segments whose blobs are deleted and that no writer can publish.
    async fn forget_deleted(&self) -> Result<u64> {
        if self.background.memory.lock().backlog.deleted.is_empty() {
            return Ok(0);
        }
        let decided = self.decided().await?;
        let settled: Vec<SegmentId> = {
            let memory = self.background.memory.lock();
            let deleted = memory.backlog.deleted.iter().copied();
            let settled = deleted.filter(|segment| decided.covers(*segment));
            settled.take(DELETED_MAX).collect()
        };
        for part in settled.chunks(FORGOTTEN_MAX) {
            let segments = part.to_vec();
            self.execute(&Operation::ForgetDead { segments }, &self.stamp())
                .await?;
            let mut memory = self.background.memory.lock();
            for segment in part {
                memory.backlog.deleted.remove(segment);
            }
        }
        Ok(settled.len() as u64)
    }
}
