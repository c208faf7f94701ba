//! Brings records that an operation misses from the tree into the hot records.

use crate::Shard;
use crate::records::successor;
use crate::rows::{Damaged, behind, decoded};
use futures::future::try_join_all;
use model::{InodeId, Result};
use namespace::{Key, Need, Record};
use std::collections::BTreeMap;

/// Point reads of one fetch that run at the same time.
const READS_AT_ONCE_MAX: usize = 32;
/// A run of inodes is read by range when at least this many of it are wanted ...
const INODE_RUN_MIN: usize = 8;
/// ... and at most this many numbers are passed for each of them.
const INODE_RUN_STRETCH: u64 = 4;

/// Keeps what a fetch may have missed in memory until the operation has used it.
pub(crate) struct Pinned<'a> {
    shard: &'a Shard,
    pin: u64,
}

impl<'a> Pinned<'a> {
    pub(crate) fn new(shard: &'a Shard) -> Self {
        let pin = shard.state.lock().records.pin();
        Self { shard, pin }
    }

    /// Fetches all of these. What the hot records know already stays as it is.
    pub(crate) async fn fetch(&self, needs: Vec<Need>) -> Result<()> {
        let mut keys = Vec::new();
        for need in needs {
            match need {
                Need::Key(key) => keys.push(key),
                Need::Range { from, to, limit } => self.fetch_range(&from, &to, limit).await?,
            }
        }
        let keys = self.fetch_inode_runs(keys).await?;
        for chunk in keys.chunks(READS_AT_ONCE_MAX) {
            let found = try_join_all(chunk.iter().map(|key| self.read(key))).await?;
            let mut state = self.shard.state.lock();
            for (key, value) in chunk.iter().zip(found) {
                state.records.offer(key.clone(), value);
            }
        }
        Ok(())
    }

    /// The first `limit` records that *are* in the range: the tree is asked for as many more as it
    /// may still have although they were removed.
    async fn fetch_range(&self, from: &Key, to: &Key, limit: usize) -> Result<()> {
        let (begin, mut removed, frozen) = {
            let state = self.shard.state.lock();
            let begin = state.records.begin_of_walk(from);
            let removed = state.records.removals_in(&begin, to);
            let frozen = state.frozen.as_ref().map(|frozen| frozen.rows.clone());
            (begin, removed, frozen)
        };
        if let Some(rows) = frozen {
            let is_removal =
                |key: &Key, value: &Option<Record>| value.is_none() && begin <= *key && *key < *to;
            let removals = rows.iter().filter(|(key, value)| is_removal(key, value));
            removed += removals.count();
        }
        let limit = limit.max(1) + removed;
        let rows = self.shard.tree_rows(&begin, to, limit).await?;
        let end = match rows.last() {
            Some((last, _)) if rows.len() == limit => successor(last),
            _ => to.clone(),
        };
        let mut state = self.shard.state.lock();
        for (key, value) in rows {
            state.records.offer(key, Some(value));
        }
        state.records.offered_all(self.pin, (from.clone(), end));
        Ok(())
    }

    /// A directory's inodes are neighbours: reads dense runs of them by range. Answers the
    /// keys that are left.
    async fn fetch_inode_runs(&self, keys: Vec<Key>) -> Result<Vec<Key>> {
        let (inodes, mut rest): (Vec<Key>, Vec<Key>) = keys
            .into_iter()
            .partition(|key| matches!(key, Key::Inode(_)));
        let mut inodes: Vec<u64> = inodes
            .iter()
            .map(|key| {
                if let Key::Inode(inode) = key {
                    inode.0
                } else {
                    0
                }
            })
            .collect();
        inodes.sort_unstable();
        let mut from = 0;
        while from < inodes.len() {
            let mut to = from + 1;
            while to < inodes.len() && inodes[to] - inodes[to - 1] <= INODE_RUN_STRETCH {
                to += 1;
            }
            let run = &inodes[from..to];
            if run.len() < INODE_RUN_MIN {
                rest.extend(run.iter().map(|inode| Key::Inode(InodeId(*inode))));
            } else {
                self.fetch_inode_run(run).await?;
            }
            from = to;
        }
        Ok(rest)
    }

    async fn fetch_inode_run(&self, wanted: &[u64]) -> Result<()> {
        let first = Key::Inode(InodeId(wanted[0]));
        let end = Key::Inode(InodeId(wanted[wanted.len() - 1] + 1));
        let rows = self.shard.tree_rows(&first, &end, usize::MAX).await?;
        let mut state = self.shard.state.lock();
        for (key, value) in rows {
            state.records.offer(key, Some(value));
        }
        for inode in wanted {
            state.records.offer(Key::Inode(InodeId(*inode)), None);
        }
        Ok(())
    }

    async fn read(&self, key: &Key) -> Result<Option<Record>> {
        let bytes = self
            .shard
            .tree
            .get(&key.to_bytes(self.shard.family))
            .await?;
        bytes.map(|bytes| Record::decode(key, &bytes)).transpose()
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        self.shard.state.lock().records.unpin(self.pin);
    }
}

impl Shard {
    /// Decoded rows of the tree, as they are there now.
    async fn tree_rows(&self, from: &Key, to: &Key, limit: usize) -> Result<Vec<(Key, Record)>> {
        let (first, end) = (from.to_bytes(self.family), to.to_bytes(self.family));
        let rows = self.tree.scan(&first, &end, limit).await?;
        let decode = |row| decoded(self.family, row).map_err(|damaged| damaged.error);
        rows.iter().map(decode).collect()
    }

    /// The records from `from` (inclusive) to `to` (exclusive), at most `limit`, in key order:
    /// committed ones with all changes since. For background work and checks; nothing stays in
    /// the cache for it. Go on from [`successor`] of the last key.
    ///
    /// # Errors
    /// `Unavailable` when the shard was given up or the tree can't be read; `Corrupt` when a
    /// record can't be decoded.
    pub async fn scan(&self, from: &Key, to: &Key, limit: usize) -> Result<Vec<(Key, Record)>> {
        self.scan_or(from, to, limit, |damaged| Err(damaged.error))
            .await
    }

    /// As [`Shard::scan`], without those that can't be decoded: for those who say what they know,
    /// not for those who remove what they don't find. A check tells of the damage.
    ///
    /// # Errors
    /// `Unavailable` when the shard was given up or the tree can't be read.
    pub async fn scan_readable(
        &self,
        from: &Key,
        to: &Key,
        limit: usize,
    ) -> Result<Vec<(Key, Record)>> {
        self.scan_or(from, to, limit, |damaged| {
            tracing::debug!(error = %damaged.error, "a record is passed over");
            Ok(())
        })
        .await
    }

    async fn scan_or(
        &self,
        from: &Key,
        to: &Key,
        limit: usize,
        otherwise: impl Fn(Damaged) -> Result<()>,
    ) -> Result<Vec<(Key, Record)>> {
        self.check_alive()?;
        let _pinned = Pinned::new(self);
        let mut out = Vec::new();
        let mut from = from.clone();
        // Where the tree's rows go on; keys that can't be decoded are passed there only.
        let (mut next, stop) = (from.to_bytes(self.family), to.to_bytes(self.family));
        while out.len() < limit && from < *to {
            let wanted = limit - out.len();
            let rows = self.tree.scan(&next, &stop, wanted).await?;
            let mut merged = BTreeMap::new();
            let mut last = None;
            for row in &rows {
                match decoded(self.family, row) {
                    Ok((key, record)) => {
                        last = Some(key.clone());
                        merged.insert(key, record);
                    }
                    Err(damaged) => {
                        last = damaged.key.clone().or(last);
                        otherwise(damaged)?;
                    }
                }
            }
            let end = match rows.last() {
                Some((row, _)) if rows.len() == wanted => {
                    next = behind(row);
                    last.as_ref().map_or_else(|| from.clone(), successor)
                }
                _ => to.clone(),
            };
            let state = self.state.lock();
            for (key, value) in state.records.known_in(&from, &end) {
                match value {
                    Some(value) => merged.insert(key.clone(), value.clone()),
                    None => merged.remove(key),
                };
            }
            out.extend(merged);
            from = end;
        }
        out.truncate(limit);
        Ok(out)
    }
}
