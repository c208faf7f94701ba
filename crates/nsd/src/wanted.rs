//! What must be read of the index, which may block, before something is done under the lock of the state.

use crate::entry::IndexEntry;
use crate::index::{Changes, Found, Snapshot};
use crate::key::Key;
use model::Result;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A part of the index as of one checkpoint.
#[derive(Default)]
pub(crate) struct IndexPart {
    /// The number of checkpoints by then.
    mark: u64,
    /// `None`: there is no entry.
    entries: Changes,
    ranges: BTreeMap<(Key, Key), Found>,
}

/// A part that is known, and what is to be read in addition.
pub(crate) struct Wanted {
    snapshot: Arc<Snapshot>,
    part: IndexPart,
    keys: Vec<Key>,
    ranges: Vec<(Key, Key)>,
}

impl IndexPart {
    pub(crate) fn mark(&self) -> u64 {
        self.mark
    }

    /// The entry of a key that was wanted.
    pub(crate) fn entry(&self, key: &Key) -> Option<Arc<IndexEntry>> {
        let entry = self.entries.get(key);
        entry.expect("what is looked up was wanted").clone()
    }

    /// The entries of a range that was wanted.
    pub(crate) fn range(&self, from: Key, to: Key) -> &Found {
        let found = self.ranges.get(&(from, to));
        found.expect("what is looked up was wanted")
    }

    /// All keys that it has, with their entries.
    pub(crate) fn entries(&self) -> &Changes {
        &self.entries
    }
}

impl Wanted {
    /// Nothing yet. `part` doesn't count if it is of another checkpoint.
    pub(crate) fn new(mark: u64, snapshot: &Arc<Snapshot>, part: IndexPart) -> Self {
        let part = match part.mark == mark {
            true => part,
            false => IndexPart {
                mark,
                ..IndexPart::default()
            },
        };
        Self {
            snapshot: snapshot.clone(),
            part,
            keys: Vec::new(),
            ranges: Vec::new(),
        }
    }

    /// Whether a key's entry is known.
    pub(crate) fn has(&self, key: &Key) -> bool {
        self.part.entries.contains_key(key)
    }

    pub(crate) fn know(&mut self, key: Key, entry: Option<Arc<IndexEntry>>) {
        self.part.entries.insert(key, entry);
    }

    pub(crate) fn want(&mut self, key: Key) {
        self.keys.push(key);
    }

    pub(crate) fn want_range(&mut self, from: Key, to: Key) {
        if !self.part.ranges.contains_key(&(from, to)) {
            self.ranges.push((from, to));
        }
    }

    /// Whether all is known.
    pub(crate) fn is_known(&self) -> bool {
        self.keys.is_empty() && self.ranges.is_empty()
    }

    /// What is known.
    pub(crate) fn known(&self) -> &IndexPart {
        &self.part
    }

    /// Reads what isn't known. Blocks.
    pub(crate) fn read(self) -> Result<IndexPart> {
        let Self {
            snapshot,
            mut part,
            keys,
            ranges,
        } = self;
        for key in keys {
            let entry = snapshot.get(&key)?;
            part.entries.insert(key, entry);
        }
        for (from, to) in ranges {
            let mut found = Found::new();
            snapshot.scan(&from, &to, |key, entry| {
                found.push((key, entry));
                true
            })?;
            part.ranges.insert((from, to), found);
        }
        Ok(part)
    }
}
