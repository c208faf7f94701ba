//! Folds inline extents (small synced writes stored in the log) into packed segments.

use crate::background::count;
use crate::background::rewrite::Part;
use crate::metanode::Metanode;
use model::{Extent, ExtentKind, Result};
use namespace::{Key, Table};

/// Most files per round.
const FILES_MAX: usize = 1024;
/// Most bytes per round.
const BYTES_MAX: u64 = 64 * 1024 * 1024;

impl Metanode {
    /// Folds the inline extents of some files. Returns the number of extents folded.
    pub(super) async fn fold_some(&self) -> Result<u64> {
        let shard = self.shard();
        let (from, to) = Table::Folds.range();
        let mut parts = Vec::new();
        let mut bytes = 0;
        for (key, _) in shard.scan(&from, &to, FILES_MAX).await? {
            let Key::Fold(inode) = key else { continue };
            let Some(record) = self.inode_record(inode).await? else {
                continue;
            };
            let mut left = record.inline_extents;
            let mut extents: Vec<Extent> = Vec::new();
            self.each_extent(inode, record.data, 0, |extent| {
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
        let done = self.rewrite(parts).await?;
        count(&self.background.counts.extents_folded, done.replaced);
        Ok(done.replaced)
    }
}
