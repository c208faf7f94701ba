//! Folds inline extents (small synced writes stored in the log) into packed segments.

use crate::background::Pace;
use crate::background::counts::{Counts, count};
use crate::background::rewrite::{Part, Rewriter};
use crate::host::Host;
use model::{Extent, ExtentKind, Result};
use namespace::{Key, Table};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use world::Instant;

/// How long inline extents wait to be folded together with others.
const EVERY: Duration = Duration::from_secs(5);
/// Most files per round.
const FILES_MAX: usize = 1024;
/// Most bytes per round.
const BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Folds at most every [`EVERY`].
pub(super) struct Fold {
    host: Arc<Host>,
    rewriter: Rewriter,
    counts: Arc<Counts>,
    last: Mutex<Option<Instant>>,
}

impl Fold {
    pub(super) fn new(host: Arc<Host>, rewriter: Rewriter, counts: Arc<Counts>) -> Self {
        Self {
            host,
            rewriter,
            counts,
            last: Mutex::default(),
        }
    }

    /// Folds if it is time. Returns the number of extents folded.
    pub(super) async fn fold_if_due(&self, pace: Pace) -> Result<u64> {
        let now = self.host.world().now();
        {
            let mut last = self.last.lock();
            let is_due = last.is_none_or(|last| now - last >= EVERY);
            if pace == Pace::Gentle && !is_due {
                return Ok(0);
            }
            *last = Some(now);
        }
        self.fold_some().await
    }

    /// Folds the inline extents of some files. Returns the number of extents folded.
    async fn fold_some(&self) -> Result<u64> {
        let shard = self.host.shard();
        let (from, to) = Table::Folds.range();
        let mut parts = Vec::new();
        let mut bytes = 0;
        for (key, _) in shard.scan(&from, &to, FILES_MAX).await? {
            let Key::Fold(inode) = key else { continue };
            let Some(record) = self.host.inode_record(inode).await? else {
                continue;
            };
            let mut left = record.inline_extents;
            let mut extents: Vec<Extent> = Vec::new();
            self.host
                .each_extent(inode, record.data, 0, |extent| {
                    if matches!(extent.kind, ExtentKind::Inline(_)) {
                        extents.push(extent.clone());
                        bytes += extent.length;
                        left = left.saturating_sub(1);
                    }
                    left > 0 && bytes < BYTES_MAX
                })
                .await?;
            for run in extents.chunk_by(|a, b| a.end() == b.offset) {
                parts.push(Part {
                    inode,
                    data: record.data,
                    extents: run.to_vec(),
                    bytes: None,
                });
            }
            if bytes >= BYTES_MAX {
                break;
            }
        }
        if parts.is_empty() {
            return Ok(0);
        }
        let done = self.rewriter.rewrite(parts).await?;
        count(&self.counts.extents_folded, done.replaced);
        Ok(done.replaced)
    }
}
