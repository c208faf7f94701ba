//! Reads records that an operation is missing from the tree into the hot records.

mod extents;
mod listing;
#[cfg(test)]
mod tests;

use crate::ahead::{Part, Stretch};
use crate::records::successor;
use crate::rows::{Rest, decoded};
use crate::state::Shard;
use bytes::Bytes;
use futures::future::try_join_all;
use model::{Error, InodeId, Operation, Result};
use namespace::{Key, Need, Record};
use std::collections::BTreeMap;
use std::time::Duration;

/// Most concurrent point reads of one fetch.
const READS_AT_ONCE_MAX: usize = 32;
/// A run of inodes is read by range if at least this many of them are wanted ...
const INODE_RUN_MIN: usize = 8;
/// ... and the range spans at most this many numbers per wanted inode.
const INODE_RUN_STRETCH: u64 = 4;
/// Longest time that an operation waits for records read ahead.
const AHEAD_TIME_MAX: Duration = Duration::from_secs(1);

/// While it lives, records that its fetch could read stale from the tree stay in memory.
pub(crate) struct Pinned<'a> {
    shard: &'a Shard,
    pin: u64,
    /// The operation lists names with attributes: the kernel then has both and won't look the names
    /// up.
    lists_in_passing: bool,
}

impl<'a> Pinned<'a> {
    pub(crate) fn new(shard: &'a Shard) -> Self {
        let pin = shard.state.lock().records.pin();
        Self {
            shard,
            pin,
            lists_in_passing: false,
        }
    }

    pub(crate) fn of(shard: &'a Shard, operation: &Operation) -> Self {
        let lists_in_passing = matches!(
            operation,
            Operation::ReadDirectory {
                with_attributes: true,
                ..
            }
        );
        let mut pinned = Self::new(shard);
        pinned.lists_in_passing = lists_in_passing;
        pinned
    }

    /// Fetches all of these. Records that are already hot stay unchanged.
    pub(crate) async fn fetch(&self, needs: Vec<Need>) -> Result<()> {
        let mut keys = Vec::new();
        let mut of_files = Vec::new();
        for need in needs {
            match need {
                Need::Key(key) => keys.push(key),
                Need::Range { from, to, limit } if extents::is_of_one_file(&from, &to) => {
                    of_files.push((from, to, limit));
                }
                Need::Range { from, to, limit } => self.fetch_range(&from, &to, limit).await?,
            }
        }
        self.fetch_extents(of_files).await?;
        let keys = self.fetch_inode_runs(keys).await?;
        for chunk in keys.chunks(READS_AT_ONCE_MAX) {
            let found = try_join_all(chunk.iter().map(|key| self.read(key))).await?;
            let stretches: Vec<_> = {
                let mut state = self.shard.state.lock();
                let mut stretches = Vec::new();
                for (key, value) in chunk.iter().zip(found) {
                    if value.is_some() {
                        stretches.extend(state.ahead.got(key));
                    }
                    state.records.offer(key.clone(), value);
                }
                let begin = |stretch| Reading::new(self.shard, stretch);
                stretches.into_iter().map(begin).collect()
            };
            if stretches.is_empty() {
                continue;
            }
            let ahead = async {
                for (reading, stretch) in stretches {
                    self.fetch_ahead(reading, stretch).await;
                }
            };
            // The operation has its records: it doesn't wait long for what it didn't ask for.
            let _ = self.shard.world.timeout(AHEAD_TIME_MAX, ahead).await;
        }
        Ok(())
    }

    /// Reads records that the next operations are likely to miss. Errors are only logged:
    /// operations that need these records report them.
    async fn fetch_ahead(&self, mut reading: Reading<'_>, stretch: Stretch) {
        let Stretch {
            part,
            from,
            to,
            rows: limit,
        } = stretch;
        let mut rest = self.shard.rest(&from, &to);
        // One damaged row doesn't keep its neighbours out.
        let read = rest.read(&*self.shard.tree, limit).await;
        let read = read.and_then(|rows| Ok((rows.len(), readable(&rows, skipped)?)));
        let (count, (records, last)) = match read {
            Ok(read) => read,
            Err(error) => {
                tracing::debug!(%error, ?part, "nothing is read ahead");
                return;
            }
        };
        reading.next = last.filter(|_| count == limit).as_ref().map(successor);
        let mut state = self.shard.state.lock();
        for (key, record) in records {
            state.records.offer_ahead(key, record);
        }
    }

    /// Fetches the first `limit` records that *exist* in the range. Asks the tree for more, because
    /// it may still return records that were removed in memory.
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
            if self.lists_in_passing && matches!(key, Key::Name { .. }) {
                state.records.offer_ahead(key, value);
            } else {
                state.records.offer(key, Some(value));
            }
        }
        state.records.offered_all(self.pin, (from.clone(), end));
        Ok(())
    }

    /// A directory's inodes have neighbouring numbers: reads dense runs by range. Returns the keys
    /// still to be read.
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
        let bytes = self.shard.tree.get(&key.to_bytes()).await?;
        bytes.map(|bytes| Record::decode(key, &bytes)).transpose()
    }
}

/// A stretch to be read ahead, and where the next one begins. Reports the end when dropped, also if
/// the operation is abandoned before.
struct Reading<'a> {
    shard: &'a Shard,
    part: Part,
    next: Option<Key>,
}

impl<'a> Reading<'a> {
    fn new(shard: &'a Shard, stretch: Stretch) -> (Self, Stretch) {
        let (part, next) = (stretch.part, Some(stretch.from.clone()));
        (Self { shard, part, next }, stretch)
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let next = self.next.take();
        self.shard.state.lock().ahead.done(self.part, next);
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        let mut state = self.shard.state.lock();
        if self.lists_in_passing {
            state.records.forget_listed(self.pin);
        }
        state.records.unpin(self.pin);
    }
}

impl Shard {
    /// Decoded rows of the tree, without newer changes in memory.
    async fn tree_rows(&self, from: &Key, to: &Key, limit: usize) -> Result<Vec<(Key, Record)>> {
        let rows = self.rest(from, to).read(&*self.tree, limit).await?;
        Ok(readable(&rows, refused)?.0)
    }

    /// A range of keys as it is in the tree.
    fn rest(&self, from: &Key, to: &Key) -> Rest {
        Rest::of(from, to, &self.families())
    }

    /// The records from `from` (inclusive) to `to` (exclusive), at most `limit`, in key order,
    /// including changes that aren't committed yet; of one table. For background work and checks: caches nothing.
    /// To continue, start at [`successor`] of the last key.
    ///
    /// # Errors
    /// `Unavailable` if the shard was given up or the tree can't be read; `Corrupt` if a record
    /// can't be decoded.
    pub async fn scan(&self, from: &Key, to: &Key, limit: usize) -> Result<Vec<(Key, Record)>> {
        self.scan_or(from, to, limit, refused).await
    }

    /// As [`Shard::scan`], but skips records that can't be decoded: for callers that report what
    /// they find, not for those that remove what they don't find. Checks report the damage.
    ///
    /// # Errors
    /// `Unavailable` if the shard was given up or the tree can't be read.
    pub async fn scan_readable(
        &self,
        from: &Key,
        to: &Key,
        limit: usize,
    ) -> Result<Vec<(Key, Record)>> {
        self.scan_or(from, to, limit, skipped).await
    }

    async fn scan_or(
        &self,
        from: &Key,
        to: &Key,
        limit: usize,
        otherwise: fn(Error) -> Result<()>,
    ) -> Result<Vec<(Key, Record)>> {
        self.check_alive()?;
        let _pinned = Pinned::new(self);
        let mut out = Vec::new();
        let mut from = from.clone();
        // Where the tree's rows continue. Keys that can't be decoded can be passed only in encoded
        // form.
        let mut rest = self.rest(&from, to);
        while out.len() < limit && from < *to {
            let wanted = limit - out.len();
            let known = self.state.lock().records.all_from(&from, to, wanted);
            if let Some((records, end)) = known {
                out.extend(records);
                rest = self.rest(&end, to);
                from = end;
                continue;
            }
            let rows = rest.read(&*self.tree, wanted).await?;
            let (records, last) = readable(&rows, otherwise)?;
            let mut merged = BTreeMap::from_iter(records);
            let end = match rows.last() {
                Some(_) if rows.len() == wanted => {
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

/// The records of some rows, and the last key that could be decoded, also of a row whose record
/// couldn't.
type Readable = (Vec<(Key, Record)>, Option<Key>);

/// Decodes rows. `otherwise` says what becomes of an error.
fn readable(rows: &[(Bytes, Bytes)], otherwise: fn(Error) -> Result<()>) -> Result<Readable> {
    let mut records = Vec::with_capacity(rows.len());
    let mut last_damaged = None;
    for row in rows {
        match decoded(row) {
            Ok(record) => records.push(record),
            Err(damaged) => {
                last_damaged = damaged.key.or(last_damaged);
                otherwise(damaged.error)?;
            }
        }
    }
    // Rows come in the order of their keys.
    let last = records.last().map(|(key, _)| key.clone());
    let last = last.max(last_damaged);
    Ok((records, last))
}

fn refused(error: Error) -> Result<()> {
    Err(error)
}

fn skipped(error: Error) -> Result<()> {
    tracing::debug!(%error, "skipping a record that can't be decoded");
    Ok(())
}
