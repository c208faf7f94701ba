//! Deletes the blobs of segments that nothing points at any more.

use crate::background::{GRACE, Pace, count};
use crate::metanode::{Metanode, SCAN_PAGE};
use model::{Operation, Result, SegmentId, SegmentPlace};
use namespace::{Key, Record, Table};
use shard::successor;

/// Dead segments that one round looks at.
const PAGES_MAX: usize = 8;

impl Metanode {
    /// Deletes the blobs of dead segments, then their records. In this order: first the commit
    /// that killed them is durable, then the blobs go, then the record that remembers them.
    pub(super) async fn delete_dead(&self, pace: Pace) -> Result<u64> {
        if pace == Pace::Drain {
            self.sync().await?;
        }
        let shard = self.shard();
        let (mut from, to) = Table::Deads.range();
        let mut deleted = 0;
        for _ in 0..PAGES_MAX {
            let page = shard.scan(&from, &to, SCAN_PAGE).await?;
            let Some((last, _)) = page.last() else { break };
            from = successor(last);
            let durable = shard.durable();
            let gone: Vec<(SegmentId, SegmentPlace)> = page
                .iter()
                .filter_map(|(key, record)| match (key, record) {
                    (Key::Dead(segment), Record::Dead(dead)) if dead.died <= durable => {
                        Some((*segment, dead.place))
                    }
                    _ => None,
                })
                .filter(|(segment, _)| pace == Pace::Drain || self.has_passed_grace(*segment))
                .collect();
            if gone.is_empty() {
                continue;
            }
            let places: Vec<SegmentPlace> = gone.iter().map(|(_, place)| *place).collect();
            self.pool.delete(&places).await?;
            let segments: Vec<SegmentId> = gone.iter().map(|(segment, _)| *segment).collect();
            {
                let mut memory = self.background.memory.lock();
                for segment in &segments {
                    memory.dead_since.remove(segment);
                }
            }
            deleted += segments.len() as u64;
            self.execute(&Operation::ForgetDead { segments }, &self.stamp())
                .await?;
        }
        count(&self.background.counts.segments_deleted, deleted);
        Ok(deleted)
    }

    /// Whether readers that knew the segment alive have had their time.
    fn has_passed_grace(&self, segment: SegmentId) -> bool {
        let now = self.world.now();
        let since = *self
            .background
            .memory
            .lock()
            .dead_since
            .entry(segment)
            .or_insert(now);
        now - since >= GRACE
    }
}
