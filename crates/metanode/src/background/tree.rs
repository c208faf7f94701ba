//! Frees the tree's space while nothing changes: flushes, so that the log can be trimmed, and
//! compacts after many removals.

use crate::host::Host;
use model::Result;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use world::Instant;

/// After this long without changes, the tree's memory is flushed to tables.
const QUIET: Duration = Duration::from_secs(60);
/// Number of removed records that is worth a compaction.
const REMOVALS_MIN: u64 = 4096;

/// Smaller tables aren't compacted after a start.
const BLOATED_BYTES_MIN: u64 = 8 << 20;
/// More than an inode's records take, unless it has very many extents.
const BLOATED_BYTES_PER_INODE: u64 = 4096;

/// State at the last check.
#[derive(Default)]
struct Progress {
    epoch: u64,
    changes: u64,
    since: Option<Instant>,
    flushed: u64,
    compacted: u64,
    /// Whether the size of the tables must be checked once.
    owed: bool,
}

/// Tidies the tree of the shard hosted now.
pub(super) struct TreeTidying {
    host: Arc<Host>,
    progress: Mutex<Progress>,
}

impl TreeTidying {
    pub(super) fn new(host: Arc<Host>) -> Self {
        Self {
            host,
            progress: Mutex::default(),
        }
    }

    /// Flushes and compacts if it is time.
    pub(super) async fn tidy_tree(&self) -> Result<u64> {
        let shard = self.host.shard();
        let (changes, removals) = (shard.changes(), shard.removals());
        let now = self.host.world().now();
        let (compact, owed) = {
            let mut progress = self.progress.lock();
            if progress.epoch != shard.epoch().0 {
                // Records removed by the previous owner may still be in the tables.
                *progress = Progress {
                    epoch: shard.epoch().0,
                    since: Some(now),
                    flushed: u64::MAX,
                    owed: true,
                    ..Progress::default()
                };
            }
            if progress.changes != changes {
                progress.changes = changes;
                progress.since = Some(now);
            }
            let is_quiet = progress.since.is_some_and(|since| now - since >= QUIET);
            if !is_quiet || progress.flushed == changes {
                return Ok(0);
            }
            let owed = std::mem::take(&mut progress.owed);
            (removals - progress.compacted >= REMOVALS_MIN, owed)
        };
        shard.sync().await?;
        shard.tree().flush().await?;
        let compact = compact || (owed && self.is_tree_bloated().await?);
        if compact {
            shard.tree().compact().await?;
        }
        let mut progress = self.progress.lock();
        progress.flushed = changes;
        if compact {
            progress.compacted = removals;
        }
        Ok(0)
    }

    /// Whether the tables are so large for the number of inodes that they must consist mostly of
    /// removed records.
    async fn is_tree_bloated(&self) -> Result<bool> {
        let bytes = self.host.shard().catalog().usage().bytes;
        let inodes = self.host.usage().await?.inodes;
        Ok(bytes > BLOATED_BYTES_MIN && bytes > inodes.saturating_mul(BLOATED_BYTES_PER_INODE))
    }
}
