//! All records as of one commit, for scans of the whole shard while operations and commits
//! continue.

use crate::rows::{Damaged, Rest, decoded};
use crate::state::Shard;
use crate::tree::TreeSnapshot;
use model::{Error, ErrorKind, FamilyId, Result};
use namespace::{Key, Record};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// Longest wait for the moment between two commits.
const SNAPSHOT_DEADLINE: Duration = Duration::from_secs(120);

/// The records of a shard as of one commit. Keeps old versions in the tables alive, so drop it
/// soon.
pub struct Snapshot {
    families: Arc<[FamilyId]>,
    tree: TreeSnapshot,
}

impl Shard {
    /// A snapshot that includes everything answered so far.
    ///
    /// # Errors
    /// `Unavailable` if the shard was given up, or commits take too long.
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
            families: self.families(),
            tree,
        })
    }

    async fn tree_between_commits(&self) -> Result<TreeSnapshot> {
        loop {
            let (answer, mut taken) = oneshot::channel();
            let running = {
                let running = self.running.lock();
                let Some(commit) = running.as_ref() else {
                    // No commit is running: the tree has everything up to the newest one.
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

    /// Called when a commit is in the tree and the next one hasn't begun.
    pub(crate) fn give_snapshots(&self) {
        for answer in std::mem::take(&mut *self.wanted.waiting.lock()) {
            // The receiver may be gone.
            let _ = answer.send(self.tree.snapshot());
        }
    }
}

/// A walk through a range of a snapshot's records.
pub struct Walk(Rest);

/// One page of a walk.
#[derive(Default)]
pub struct Page {
    /// The records, in key order.
    pub records: Vec<(Key, Record)>,
    /// Rows of the same range that can't be decoded.
    pub damaged: Vec<Damaged>,
}

impl Walk {
    /// Whether the walk has passed everything.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.0.is_empty()
    }
}

impl Snapshot {
    /// Begins a walk through the records of one table from `from` (inclusive) to `to` (exclusive).
    #[must_use]
    pub fn walk(&self, from: &Key, to: &Key) -> Walk {
        Walk(Rest::of(from, to, &self.families))
    }

    /// The next records of a walk, at most `limit`. An undecodable record doesn't stop it.
    ///
    /// # Errors
    /// `Unavailable` if the tree can't be read.
    pub async fn next(&self, walk: &mut Walk, limit: usize) -> Result<Page> {
        let rows = walk.0.read(&self.tree, limit).await?;
        let mut page = Page::default();
        for row in rows {
            match decoded(&row) {
                Ok(record) => page.records.push(record),
                Err(damaged) => page.damaged.push(damaged),
            }
        }
        Ok(page)
    }
}
