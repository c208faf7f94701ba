//! An NSD's current state: the index, and the journal's changes on top of it.

use crate::cache::Cache;
use crate::ends::Ends;
use crate::entry::{IndexEntry, Place, Run};
use crate::index::{Changes, Found, Snapshot};
use crate::key::Key;
use crate::ledger::Ledger;
use crate::record::Record;
use crate::space::RegionSpace;
use crate::wanted::{IndexPart, Wanted};
use model::{EntryNumber, Result, ShardId};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Bytes of decoded entries kept in memory.
const ENTRIES_CACHE_BYTES: usize = 32 << 20;
/// Bytes of large blobs' checksum tables kept in memory.
const TABLES_CACHE_BYTES: usize = 96 << 20;

/// Weight of the knowledge that there is no entry: about what its key takes in the cache.
const ABSENT_BYTES: usize = 64;

/// An open NSD's state, guarded by one lock that is held only briefly: nothing here reads the index. What is needed of it
/// is read before, without the lock ([`Wanted`]).
pub(crate) struct CoreState {
    /// Changes since the last checkpoint began.
    pub(crate) overlay: Changes,
    pub(crate) overlay_bytes: usize,
    /// Changes that a running checkpoint is writing to the index.
    pub(crate) frozen: Arc<Changes>,
    pub(crate) snapshot: Arc<Snapshot>,
    /// What the index has, also that it has no entry of a key; never of keys that have changed since.
    cache: Cache<Key, Option<Arc<IndexEntry>>>,
    tables: Cache<(Key, u64), Arc<[u32]>>,
    /// Counts checkpoints. What was read of the index before one isn't cached.
    checkpoints: u64,
    ends: Ends,
    pub(crate) space: RegionSpace,
    pub(crate) ledger: Ledger,
    /// Entries that the running checkpoint moves out of the journal.
    pub(crate) moving: BTreeMap<Key, Move>,
    /// First units of extents that scrub is writing to; freed runs wait here until it is done.
    pins: BTreeMap<u64, Vec<Run>>,
    /// Runs freed since the running checkpoint began; `None` if none runs. The index that it writes still has entries there,
    /// so what it moves must go elsewhere: the next opening would find two entries in one place.
    freed: Option<Vec<Run>>,
    /// How many units these have.
    freed_units: u64,
    /// Position after the last group.
    pub(crate) head: u64,
    /// Groups below this position are in the index.
    pub(crate) tail: u64,
    /// Live groups: position, length without padding.
    pub(crate) groups: VecDeque<(u64, u32)>,
    next_birth: u64,
}

/// The new place of an entry that is leaving the journal.
pub(crate) struct Move {
    pub(crate) birth: u64,
    pub(crate) runs: Vec<Run>,
    /// Deleted in the meantime.
    pub(crate) gone: bool,
}

impl CoreState {
    pub(crate) fn new(
        snapshot: Snapshot,
        space: RegionSpace,
        ledger: Ledger,
        incarnation: u64,
        ends: Ends,
    ) -> Self {
        Self {
            overlay: BTreeMap::new(),
            overlay_bytes: 0,
            frozen: Arc::default(),
            snapshot: Arc::new(snapshot),
            cache: Cache::new(ENTRIES_CACHE_BYTES),
            tables: Cache::new(TABLES_CACHE_BYTES),
            checkpoints: 0,
            ends,
            space,
            head: ledger.applied,
            tail: ledger.applied,
            ledger,
            moving: BTreeMap::new(),
            pins: BTreeMap::new(),
            freed: None,
            freed_units: 0,
            groups: VecDeque::new(),
            next_birth: incarnation << 40,
        }
    }

    pub(crate) fn next_birth(&mut self) -> u64 {
        self.next_birth += 1;
        self.next_birth
    }

    /// Looks a key up without reading the index. `None`: unknown; `Some(None)`: there is no entry.
    pub(crate) fn peek(&mut self, key: &Key) -> Option<Option<Arc<IndexEntry>>> {
        let changed = self.overlay.get(key).or_else(|| self.frozen.get(key));
        if let Some(slot) = changed {
            return Some(slot.clone());
        }
        self.peek_below(key)
    }

    /// As [`CoreState::peek`], of a key without changes.
    fn peek_below(&mut self, key: &Key) -> Option<Option<Arc<IndexEntry>>> {
        if let Some(known) = self.cache.get(key) {
            return Some(known);
        }
        // So what is appended to a log, and new segments, aren't looked for.
        self.ends.is_absent(key).then_some(None)
    }

    fn has_changed(&self, key: &Key) -> bool {
        self.overlay.contains_key(key) || self.frozen.contains_key(key)
    }

    /// A mark for [`CoreState::remember`].
    pub(crate) fn mark(&self) -> u64 {
        self.checkpoints
    }

    /// Caches what was read from the index after `mark`, unless that isn't what holds by now.
    pub(crate) fn remember(&mut self, mark: u64, key: Key, found: Option<&Arc<IndexEntry>>) {
        if mark == self.checkpoints && !self.has_changed(&key) {
            let weight = found.map_or(ABSENT_BYTES, |entry| entry.weight());
            self.cache.insert(key, found.cloned(), weight);
        }
    }

    /// Caches the checksum table of an entry.
    pub(crate) fn remember_table(&mut self, key: Key, birth: u64, table: &Arc<[u32]>) {
        let weight = 64 + table.len() * 4;
        self.tables.insert((key, birth), table.clone(), weight);
    }

    /// The checksum table of an entry, if it is in memory.
    pub(crate) fn table(&mut self, key: Key, entry: &IndexEntry) -> Option<Arc<[u32]>> {
        if let Some(table) = &entry.checksums {
            return Some(table.clone());
        }
        self.tables.get(&(key, entry.birth))
    }

    /// The entry of a key, which was wanted.
    fn find(&self, key: &Key, part: &IndexPart) -> Option<Arc<IndexEntry>> {
        match self.overlay.get(key).or_else(|| self.frozen.get(key)) {
            Some(slot) => slot.clone(),
            None => part.entry(key),
        }
    }

    /// What must be read of the index before these records can be applied, besides `part`.
    pub(crate) fn wanted<'a>(
        &mut self,
        records: impl Iterator<Item = &'a Record>,
        part: IndexPart,
    ) -> Wanted {
        let mut wanted = Wanted::new(self.checkpoints, &self.snapshot, part);
        for record in records {
            match record {
                Record::Put { key, .. } => self.want(key, &mut wanted),
                Record::Delete(keys) => keys.iter().for_each(|key| self.want(key, &mut wanted)),
                _ => {
                    if let Some((from, to)) = removed_of_log(record) {
                        wanted.want_range(from, to);
                    }
                }
            }
        }
        wanted
    }

    /// As [`CoreState::wanted`], for looking up keys.
    pub(crate) fn wanted_keys(&mut self, keys: &[Key], part: IndexPart) -> Wanted {
        let mut wanted = Wanted::new(self.checkpoints, &self.snapshot, part);
        keys.iter().for_each(|key| self.want(key, &mut wanted));
        wanted
    }

    fn want(&mut self, key: &Key, wanted: &mut Wanted) {
        if self.has_changed(key) || wanted.has(key) {
            return;
        }
        match self.peek_below(key) {
            Some(known) => wanted.know(*key, known),
            None => wanted.want(*key),
        }
    }

    /// The overlay and frozen changes in a range.
    pub(crate) fn changed_in(&self, from: &Key, to: &Key) -> Changes {
        let mut part = Changes::new();
        if from > to {
            return part;
        }
        for changes in [&*self.frozen, &self.overlay] {
            for (key, slot) in changes.range(*from..=*to) {
                part.insert(*key, slot.clone());
            }
        }
        part
    }

    /// Applies a record that is durable in the journal. `part` has what it wants of the index.
    pub(crate) fn apply(&mut self, record: &Record, part: &IndexPart) {
        assert_eq!(
            part.mark(),
            self.checkpoints,
            "what was read of the index still holds"
        );
        match record {
            Record::Put { key, entry, .. } => {
                if let Some(old) = self.find(key, part) {
                    self.forget(key, &old);
                }
                self.ledger.count(key, entry);
                self.cache.remove(key);
                self.ends.note(key);
                self.change(*key, Some(entry.clone()));
            }
            Record::Delete(keys) => {
                for key in keys {
                    if let Some(old) = self.find(key, part) {
                        self.forget(key, &old);
                        self.change(*key, None);
                    }
                }
            }
            Record::Trim(shard, below) => {
                self.ledger.raise_floor(*shard, *below);
                self.remove_of_log(record, part);
            }
            Record::Discard(..) => self.remove_of_log(record, part),
            Record::Seal(shard, epoch) => self.ledger.raise_seal(*shard, *epoch),
            Record::Learn(group, version) => self.ledger.raise_version(*group, *version),
        }
    }

    fn remove_of_log(&mut self, record: &Record, part: &IndexPart) {
        let Some((from, to)) = removed_of_log(record) else {
            return;
        };
        let below = part.range(from, to).iter();
        let mut gone: Changes = below
            .map(|(key, entry)| (*key, Some(entry.clone())))
            .collect();
        gone.extend(self.changed_in(&from, &to));
        for (key, slot) in gone {
            if let Some(entry) = slot {
                self.forget(&key, &entry);
                self.change(key, None);
            }
        }
    }

    fn change(&mut self, key: Key, slot: Option<Arc<IndexEntry>>) {
        self.overlay_bytes += 64 + slot.as_ref().map_or(0, |entry| entry.weight());
        self.overlay.insert(key, slot);
    }

    fn forget(&mut self, key: &Key, entry: &IndexEntry) {
        self.ledger.uncount(key, entry);
        self.cache.remove(key);
        self.tables.remove(&(*key, entry.birth));
        match &entry.place {
            Place::Runs(runs) => self.release(runs),
            Place::Journal(_) => match self.moving.get_mut(key) {
                Some(moving) if moving.birth == entry.birth => moving.gone = true,
                _ => self.space.cancel_promise(entry.extent_units()),
            },
        }
    }

    /// Frees runs, or keeps them until scrub has finished writing to them.
    fn release(&mut self, runs: &[Run]) {
        match self.pins.get_mut(&runs[0].unit) {
            Some(parked) => parked.extend_from_slice(runs),
            None => self.free(runs),
        }
    }

    /// Frees runs, or keeps them until the running checkpoint has ended.
    fn free(&mut self, runs: &[Run]) {
        match &mut self.freed {
            Some(freed) => {
                self.freed_units += runs.iter().map(|run| u64::from(run.count)).sum::<u64>();
                freed.extend_from_slice(runs);
            }
            None => self.space.release(runs),
        }
    }

    /// Frees what was freed while the checkpoint ran that ends now.
    fn free_late(&mut self) {
        let freed = self.freed.take().expect("a checkpoint that ends has begun");
        self.freed_units = 0;
        self.space.release(&freed);
    }

    /// Units that are free as soon as the running checkpoint has ended, for which puts wait.
    pub(crate) fn freed_units(&self) -> u64 {
        self.freed_units
    }

    /// Keeps the runs of `entry` from being reused, if `key`, which was wanted, still has this entry.
    pub(crate) fn pin(&mut self, key: &Key, entry: &IndexEntry, part: &IndexPart) -> bool {
        let found = self.find(key, part);
        let current = found.is_some_and(|found| found.is_same_as(entry));
        if let (true, Some(runs)) = (current, entry.runs()) {
            let other = self.pins.insert(runs[0].unit, Vec::new());
            assert!(
                other.is_none(),
                "one scrub runs at a time and pins one extent"
            );
            return true;
        }
        false
    }

    /// Ends [`CoreState::pin`].
    pub(crate) fn unpin(&mut self, entry: &IndexEntry) {
        let runs = entry.runs().expect("only extents are pinned");
        let parked = self.pins.remove(&runs[0].unit);
        let parked = parked.expect("an extent is unpinned once, by the scrub that pinned it");
        self.free(&parked);
    }

    /// Marks the space of an entry found on opening as used.
    #[must_use]
    pub(crate) fn adopt(&mut self, entry: &IndexEntry) -> bool {
        match &entry.place {
            Place::Runs(runs) => self.space.take(runs),
            Place::Journal(_) => self
                .space
                .promise(entry.extent_units(), crate::space::Purpose::Log),
        }
    }

    /// Begins a checkpoint: freezes all changes applied so far.
    pub(crate) fn freeze(&mut self) -> (Arc<Changes>, Ledger) {
        assert!(self.frozen.is_empty(), "one checkpoint at a time");
        self.freed = Some(Vec::new());
        self.frozen = Arc::new(std::mem::take(&mut self.overlay));
        self.overlay_bytes = 0;
        self.ledger.applied = self.head;
        (self.frozen.clone(), self.ledger.clone())
    }

    /// Ends a checkpoint that is durable up to `applied`.
    pub(crate) fn thaw(&mut self, snapshot: Snapshot, applied: u64) {
        self.snapshot = Arc::new(snapshot);
        self.checkpoints += 1;
        for (key, moved) in std::mem::take(&mut self.moving) {
            self.cache.remove(&key);
            if moved.gone {
                self.space.release(&moved.runs);
            }
        }
        self.free_late();
        self.frozen = Arc::default();
        self.tail = applied;
        while self.groups.front().is_some_and(|group| group.0 < applied) {
            self.groups.pop_front();
        }
    }

    /// Ends a failed checkpoint: its changes return to the overlay.
    pub(crate) fn undo_freeze(&mut self) {
        self.free_late();
        for (_, moved) in std::mem::take(&mut self.moving) {
            self.space.release(&moved.runs);
            if !moved.gone {
                let units: u64 = moved.runs.iter().map(|run| u64::from(run.count)).sum();
                // These units were promised before and are free again.
                let kept = self.space.promise(units, crate::space::Purpose::Log);
                assert!(kept, "units that were just freed can be promised");
            }
        }
        let frozen = std::mem::take(&mut self.frozen);
        for (key, slot) in frozen.iter() {
            if !self.overlay.contains_key(key) {
                self.change(*key, slot.clone());
            }
        }
    }

    /// The number below which a shard's log was trimmed.
    pub(crate) fn floor(&self, shard: ShardId) -> EntryNumber {
        self.ledger.floors.get(&shard).copied().unwrap_or_default()
    }
}

/// The keys of the entries that a record removes from a log, if it is one of those.
fn removed_of_log(record: &Record) -> Option<(Key, Key)> {
    let (shard, first, last) = match record {
        Record::Trim(shard, below) if below.0 > 0 => (*shard, 0, below.0 - 1),
        Record::Discard(shard, above) if above.0 < u64::MAX => (*shard, above.0 + 1, u64::MAX),
        _ => return None,
    };
    let key = |number| Key::log(shard, EntryNumber(number));
    Some((key(first), key(last)))
}

/// Merges changes with the index below them. Blocks for what must be read from the disk.
pub(crate) fn merged(
    changes: &Changes,
    snapshot: &Snapshot,
    from: &Key,
    to: &Key,
    limit: usize,
) -> Result<Found> {
    let mut found = Found::new();
    let mut above = changes.iter().peekable();
    if limit == 0 {
        return Ok(found);
    }
    snapshot.scan(from, to, |key, entry| {
        while let Some((changed, slot)) = above.next_if(|(changed, _)| **changed < key) {
            found.extend(slot.clone().map(|entry| (*changed, entry)));
        }
        match above.next_if(|(changed, _)| **changed == key) {
            Some((_, slot)) => found.extend(slot.clone().map(|entry| (key, entry))),
            None => found.push((key, entry)),
        }
        found.len() < limit
    })?;
    if found.len() < limit {
        for (key, slot) in above {
            found.extend(slot.clone().map(|entry| (*key, entry)));
        }
    }
    found.truncate(limit);
    Ok(found)
}
