//! All records as of one commit, for those who look at everything: operations and commits go on
//! meanwhile.

use crate::Shard;
use crate::fetch::decode_row;
use model::{Error, ErrorKind, FamilyId, Result};
use namespace::{Key, Record};
use parking_lot::Mutex;
use std::time::Duration;
use tokio::sync::oneshot;

/// How long a snapshot waits for the moment between two commits.
const SNAPSHOT_DEADLINE: Duration = Duration::from_secs(120);

/// The records of a shard as they were at one commit. Holds nothing but old versions in the
/// tables; drop it soon all the same.
pub struct Snapshot {
    family: FamilyId,
    tree: crate::tree::TreeSnapshot,
}

/// Those who wait for the end of the running commit.
#[derive(Default)]
pub(crate) struct Wanted {
    waiting: Mutex<Vec<oneshot::Sender<Result<crate::tree::TreeSnapshot>>>>,
}

impl Shard {
    /// A snapshot that shows at least everything answered so far.
    ///
    /// # Errors
    /// `Unavailable` when the shard was given up, or commits take too long.
    pub async fn snapshot(&self) -> Result<Snapshot> {
        self.sync().await?;
        let late = |_| {
            let text = format!("no commit ended within {SNAPSHOT_DEADLINE:?}");
            Error::new(ErrorKind::Unavailable, text)
        };
        let tree = self
            .world
            .timeout(SNAPSHOT_DEADLINE, self.tree_between_commits())
            .await
            .map_err(late)??;
        self.check_alive()?;
        Ok(Snapshot {
            family: self.family,
            tree,
        })
    }

    async fn tree_between_commits(&self) -> Result<crate::tree::TreeSnapshot> {
        loop {
            let (answer, mut taken) = oneshot::channel();
            let running = {
                let running = self.running.lock();
                let Some(commit) = running.as_ref() else {
                    // No commit is on its way: the tree has all up to the newest one.
                    return self.tree.snapshot();
                };
                self.wanted.waiting.lock().push(answer);
                commit.clone()
            };
            let _ = running.wait().await;
            if let Ok(snapshot) = taken.try_recv() {
                return snapshot;
            }
            self.check_alive()?;
        }
    }

    /// A commit is in the tree, and the next one hasn't begun.
    pub(crate) fn give_snapshots(&self) {
        for answer in std::mem::take(&mut *self.wanted.waiting.lock()) {
            // Who has gone away needs none.
            let _ = answer.send(self.tree.snapshot());
        }
    }
}

impl Snapshot {
    /// The records from `from` (inclusive) to `to` (exclusive), at most `limit`, in key order. Go on
    /// from [`crate::successor`] of the last key.
    ///
    /// # Errors
    /// `Unavailable` when the tree can't be read; `Corrupt` when a record can't be decoded.
    pub async fn scan(&self, from: &Key, to: &Key, limit: usize) -> Result<Vec<(Key, Record)>> {
        let (first, end) = (from.to_bytes(self.family), to.to_bytes(self.family));
        let rows = self.tree.scan(&first, &end, limit).await?;
        rows.into_iter()
            .map(|row| decode_row(self.family, row))
            .collect()
    }
}
