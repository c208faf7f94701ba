//! Lets the tree give space back when nobody changes anything: flushes, so that the log can be
//! trimmed, and compacts after many removals.

use crate::metanode::Metanode;
use model::Result;
use std::time::Duration;
use world::Instant;

/// Nothing has changed for this long: the tree's memory is written to tables.
const QUIET: Duration = Duration::from_secs(60);
/// Removed records that make a compaction worth its reads and writes.
const REMOVALS_MIN: u64 = 4096;

/// What the last look saw.
#[derive(Default)]
pub(crate) struct Progress {
    epoch: u64,
    changes: u64,
    since: Option<Instant>,
    flushed: u64,
    compacted: u64,
}

impl Metanode {
    /// Flushes and compacts if it is time.
    pub(super) async fn tidy_tree(&self) -> Result<u64> {
        let shard = self.shard();
        let (changes, removals) = (shard.changes(), shard.removals());
        let now = self.world.now();
        let compact = {
            let mut memory = self.background.memory.lock();
            let progress = &mut memory.tree;
            if progress.epoch != shard.epoch().0 {
                *progress = Progress {
                    epoch: shard.epoch().0,
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
            progress.flushed = changes;
            let compact = removals - progress.compacted >= REMOVALS_MIN;
            if compact {
                progress.compacted = removals;
            }
            compact
        };
        shard.sync().await?;
        shard.tree().flush().await?;
        if compact {
            shard.tree().compact().await?;
        }
        Ok(0)
    }
}
