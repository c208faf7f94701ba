//! Removes what hangs under queued data ids, and goes on with truncates that were cut short.

use crate::background::count;
use crate::metanode::{Metanode, SCAN_PAGE};
use model::{Operation, Reply, Result};
use namespace::{Key, Table};

/// Steps of one round; each removes up to about a thousand extents.
const STEPS_MAX: u64 = 64;

impl Metanode {
    /// A bounded number of reclaim steps. Answers how many were done.
    pub(super) async fn reclaim_some(&self) -> Result<u64> {
        let shard = self.shard();
        let mut steps = 0;
        let (from, to) = Table::Cuts.range();
        for (key, _) in shard.scan(&from, &to, STEPS_MAX as usize).await? {
            let Key::Cut(inode) = key else { continue };
            self.execute(&Operation::ContinueCut { inode }, &self.stamp())
                .await?;
            steps += 1;
        }
        let (from, to) = Table::Reclaims.range();
        for (key, _) in shard.scan(&from, &to, SCAN_PAGE).await? {
            let Key::Reclaim { fileset, data } = key else {
                continue;
            };
            while steps < STEPS_MAX {
                let reply = self
                    .execute(&Operation::Reclaim { fileset, data }, &self.stamp())
                    .await?;
                steps += 1;
                if reply != (Reply::Progress { more: true }) {
                    break;
                }
            }
            if steps >= STEPS_MAX {
                break;
            }
        }
        count(&self.background.counts.reclaim_steps, steps);
        Ok(steps)
    }
}
