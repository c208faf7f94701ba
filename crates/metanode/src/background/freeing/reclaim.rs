//! Removes the records under queued data ids, and continues interrupted truncates.

use crate::background::counts::count;
use crate::background::freeing::Freeing;
use model::{ErrorKind, Operation, Reply, Result};
use namespace::Key;

/// Most steps per call; each removes up to about a thousand extents.
const STEPS_MAX: u64 = 64;

impl Freeing {
    /// Makes a bounded number of reclaim steps. Returns how many.
    ///
    /// The caller holds `freeing`.
    pub(super) async fn reclaim_some(&self) -> Result<u64> {
        self.look_at_backlog().await?;
        let removals: Vec<Key> = {
            let backlog = self.backlog.lock();
            let removals = backlog.removals.iter();
            removals.take(STEPS_MAX as usize).cloned().collect()
        };
        let mut steps = 0;
        for key in removals {
            let mut more = true;
            while more && steps < STEPS_MAX {
                steps += 1;
                more = match self.remove_more(&key).await {
                    Err(error) if error.kind() == ErrorKind::Corrupt => {
                        tracing::error!(?key, %error, "removed data can't be freed: run `shale fs check`");
                        self.backlog.lock().set_aside(&key);
                        false
                    }
                    more => more?,
                };
            }
            if !more {
                self.backlog.lock().removals.remove(&key);
            }
        }
        count(&self.counts.reclaim_steps, steps);
        Ok(steps)
    }

    /// Makes one step; returns whether more are needed.
    async fn remove_more(&self, key: &Key) -> Result<bool> {
        let operation = match *key {
            Key::Cut(inode) => Operation::ContinueCut { inode },
            Key::Reclaim { fileset, data } => Operation::Reclaim { fileset, data },
            _ => unreachable!("only these are noted as removals"),
        };
        // Not `execute`, which runs a truncate to its end.
        match self.host.run(&operation, &self.host.stamp()).await {
            Ok(Reply::Progress { more }) => Ok(more),
            Ok(Reply::Attributes { unfinished, .. }) => Ok(unfinished),
            Ok(_) => Ok(false),
            // The inode was removed, and its truncate with it.
            Err(error) if error.kind() == ErrorKind::Stale => Ok(false),
            Err(error) => Err(error),
        }
    }
}
