//! Rebuilds the index from the region itself: headers in the data area, and the journal.

use crate::area::Area;
use crate::checksum::UNIT;
use crate::core::Core;
use crate::entry::{IndexEntry, Place, header_units};
use crate::extent::{claimed_units, placed, read_header, writes_of};
use crate::index::{Changes, Index};
use crate::journal::{Ring, RingImage};
use crate::key::Key;
use crate::ledger::Ledger;
use crate::open::{disk_error, load_superblock, open};
use crate::proof::{Proof, is_whole, prove};
use crate::record::Record;
use crate::space::{Purpose, RegionSpace};
use crate::superblock::{FLAG_INDEX_LOST, FLAG_UNCONFIRMED, Layout, Superblock};
use bytes::Bytes;
use model::{EntryNumber, Error, ErrorKind, Result, ShardId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use world::{Disk, World};

/// Bytes of the data area read at once.
const CHUNK: u64 = 4 << 20;
/// Most entries in one commit.
const COMMIT_ENTRIES: usize = 20_000;

/// See [`crate::Nsd::rebuild_index`].
pub(crate) async fn rebuild(world: &World, disk: Disk) -> Result<Arc<Core>> {
    let failed = |error: std::io::Error| disk_error("rebuilding an index", &disk, &error);
    let mut superblock = load_superblock(&disk).await?;
    superblock.flags |= FLAG_INDEX_LOST | FLAG_UNCONFIRMED;
    superblock.store(&disk).await.map_err(failed)?;
    let mut found = Findings::new(&superblock);
    found.scan_data(&disk, &superblock).await?;
    let image = RingImage::load(&disk, Ring::new(&superblock.layout), superblock.region).await;
    found.add_journal(&image, &disk, &superblock).await;
    found.move_payloads(&disk, &superblock, &image).await?;
    disk.flush().await.map_err(failed)?;
    let (entries, ledger) = found.into_index();
    tracing::warn!(
        nsd = superblock.identity.nsd.0,
        entries = entries.len(),
        "index rebuilt from the region"
    );
    let write = {
        let disk = disk.clone();
        let (region, layout) = (superblock.region, superblock.layout);
        move || write_index(&disk, region, &layout, entries, &ledger)
    };
    world.blocking(write).await?;
    superblock.flags &= !FLAG_INDEX_LOST;
    superblock.store(&disk).await.map_err(failed)?;
    open(world, disk).await
}

fn write_index(
    disk: &Disk,
    region: u128,
    layout: &Layout,
    entries: Changes,
    ledger: &Ledger,
) -> Result<()> {
    let area = Area::create(disk, region, layout.index_start, layout.index_bytes);
    let area = area.map_err(|error| disk_error("rebuilding an index", disk, &error))?;
    let index = Index::open(area)?;
    let mut part = Changes::new();
    for (key, slot) in entries {
        part.insert(key, slot);
        if part.len() == COMMIT_ENTRIES {
            index.commit(&part, ledger)?;
            part.clear();
        }
    }
    index.commit(&part, ledger).map(drop)
}

/// An extent whose header was found in the data area.
struct Extent {
    key: Key,
    entry: IndexEntry,
    /// Whether its payload is there, too. Only read if it is [`contested`].
    proof: Proof,
}

/// Which of these can't all be there, because they share units or a name with another one.
fn contested(extents: &[Extent]) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    let mut names = BTreeMap::new();
    let mut runs = Vec::with_capacity(extents.len());
    for (index, extent) in extents.iter().enumerate() {
        if let Some(other) = names.insert(extent.key, index) {
            found.extend([other, index]);
        }
        for run in extent.entry.runs().unwrap_or_default() {
            runs.push((run.unit, run.unit + u64::from(run.count), index));
        }
    }
    runs.sort_unstable();
    // Of the runs so far, the one that ends last: whatever overlaps any of them overlaps that one.
    let (mut last_end, mut last) = (0, 0);
    for (start, end, index) in runs {
        if start < last_end {
            found.extend([last, index]);
        }
        if end > last_end {
            (last_end, last) = (end, index);
        }
    }
    found
}

/// The results so far.
struct Findings {
    entries: BTreeMap<Key, Arc<IndexEntry>>,
    space: RegionSpace,
    ledger: Ledger,
}

impl Findings {
    fn new(superblock: &Superblock) -> Self {
        Self {
            entries: BTreeMap::new(),
            space: RegionSpace::new(superblock.layout.data_units),
            ledger: Ledger {
                seals: superblock.seals.clone(),
                ..Ledger::default()
            },
        }
    }

    /// Collects headers. Of extents that overlap, or have one name, those win whose payload is there: a header outlives its
    /// extent for as long as nothing is written over it, and a power cut may leave one without the payload. Births don't tell:
    /// what a checkpoint has moved out of the journal is younger in its place than its birth. Among whole ones, which can only
    /// share units of equal content, the newest wins, and among the others: mostly, the older one was deleted before.
    async fn scan_data(&mut self, disk: &Disk, superblock: &Superblock) -> Result<()> {
        let mut extents = Vec::new();
        let layout = &superblock.layout;
        let mut unit = 0;
        while unit < layout.data_units {
            let count = (CHUNK / UNIT as u64).min(layout.data_units - unit);
            let blocks = read_blocks(disk, layout, unit, count).await;
            for (at, block) in (unit..).zip(blocks.chunks(UNIT)) {
                let Some(units) = claimed_units(block, superblock.region, at) else {
                    continue;
                };
                let whole = read_blocks(disk, layout, at, u64::from(units)).await;
                if let Some(header) = read_header(&whole, superblock.region, at) {
                    extents.push(Extent {
                        key: header.key,
                        entry: header.entry,
                        proof: Proof::Whole,
                    });
                }
            }
            unit += count;
        }
        for index in contested(&extents) {
            let Extent { key, entry, .. } = &extents[index];
            extents[index].proof = prove(disk, superblock, key, entry).await;
        }
        extents.sort_by_key(|it| (it.proof, Reverse(it.entry.birth), it.key));
        for Extent { key, entry, .. } in extents {
            let runs = entry.runs().unwrap_or_default();
            let free = runs.iter().all(|run| self.space.is_free(*run));
            if free && !self.entries.contains_key(&key) && self.space.take(runs) {
                self.entries.insert(key, Arc::new(entry));
            }
        }
        Ok(())
    }

    /// Applies the groups of the ring's last round, oldest first.
    async fn add_journal(&mut self, image: &RingImage, disk: &Disk, superblock: &Superblock) {
        let ring = image.ring().bytes();
        let groups = image.all_from(0);
        let end = groups.last_key_value().map_or(0, |(_, group)| group.end);
        // Groups that don't fit before the ring's end skip it, so groups left there may be from any
        // earlier round. The groups that followed them, such as a later put of a name that they
        // delete, are gone.
        for (_, group) in groups.range(end.saturating_sub(ring)..) {
            for record in &group.records {
                if let Record::Put { key, entry, .. } = record
                    && let Some(newer) = self.in_the_way_of(key, entry)
                    && prove(disk, superblock, key, &newer).await == Proof::Torn
                {
                    self.remove(key);
                }
                // As when the NSD is opened. What else isn't whole is damaged, and must be found to be; so is, then, what an
                // opening has left out before groups that followed.
                let is_last = group.end == end;
                let is_proven = match record {
                    Record::Put { key, entry, .. } if is_last && self.takes(key, entry) => {
                        is_whole(disk, superblock, key, entry).await
                    }
                    _ => true,
                };
                if is_proven {
                    self.add_record(record);
                }
            }
        }
        self.ledger.applied = end;
        // New groups start after everything that the ring may still contain.
        self.ledger.applied = self.ledger.applied.next_multiple_of(ring);
    }

    fn add_record(&mut self, record: &Record) {
        match record {
            Record::Put { key, entry, .. } => self.add_put(key, entry),
            Record::Delete(keys) => keys.iter().for_each(|key| self.remove(key)),
            Record::Trim(shard, below) => {
                self.ledger.raise_floor(*shard, *below);
                self.remove_log(*shard, 0..below.0);
            }
            Record::Discard(shard, above) => {
                self.remove_log(*shard, above.0.saturating_add(1)..u64::MAX)
            }
            Record::Seal(shard, epoch) => self.ledger.raise_seal(*shard, *epoch),
            Record::Learn(group, version) => self.ledger.raise_version(*group, *version),
        }
    }

    /// What was put later under the name of a put whose payload is in the journal. Unless it is whole, a power cut may have
    /// interrupted it: nobody was answered, and what it would have replaced still counts.
    fn in_the_way_of(&self, key: &Key, entry: &IndexEntry) -> Option<Arc<IndexEntry>> {
        let found = self.entries.get(key)?;
        let is_later = found.birth > entry.birth && found.runs().is_some();
        (is_later && entry.runs().is_none()).then(|| found.clone())
    }

    /// Whether a put of the journal is newer than what has been found.
    fn takes(&self, key: &Key, entry: &IndexEntry) -> bool {
        if let Some(old) = self.entries.get(key) {
            // A put moved out of the journal has an extent as well, but a power cut may have left
            // that extent without its payload. The record is proven.
            let is_moved = old.birth == entry.birth && entry.runs().is_none();
            if old.birth >= entry.birth && !is_moved {
                return false;
            }
        }
        let runs = entry.runs().unwrap_or_default();
        runs.iter().all(|run| self.space.is_free(*run))
    }

    fn add_put(&mut self, key: &Key, entry: &Arc<IndexEntry>) {
        if !self.takes(key, entry) {
            return;
        }
        self.remove(key);
        if self.space.take(entry.runs().unwrap_or_default()) {
            self.entries.insert(*key, entry.clone());
        }
    }

    fn remove(&mut self, key: &Key) {
        if let Some(entry) = self.entries.remove(key) {
            self.space.release(entry.runs().unwrap_or_default());
        }
    }

    fn remove_log(&mut self, shard: ShardId, numbers: std::ops::Range<u64>) {
        let from = Key::log(shard, EntryNumber(numbers.start));
        let to = Key::log(shard, EntryNumber(numbers.end));
        let gone: Vec<Key> = self.entries.range(from..to).map(|(key, _)| *key).collect();
        gone.iter().for_each(|key| self.remove(key));
    }

    /// Moves payloads that are only in the journal to extents, because the journal will be cleared.
    async fn move_payloads(
        &mut self,
        disk: &Disk,
        superblock: &Superblock,
        image: &RingImage,
    ) -> Result<()> {
        for (key, slot) in &mut self.entries {
            let Place::Journal(position) = slot.place else {
                continue;
            };
            let payload = Bytes::copy_from_slice(image.payload(position, slot.length));
            let head = header_units(slot.units());
            let runs = self
                .space
                .allocate(slot.extent_units(), head, Purpose::Promised);
            let runs = runs.ok_or_else(|| {
                let text = format!("no space to move {key} out of the journal");
                Error::new(ErrorKind::NoSpace, text)
            })?;
            let entry = placed(slot, runs);
            let table = entry.checksums.clone().unwrap_or_default();
            for write in writes_of(superblock.region, key, &entry, &table, &payload) {
                let offset = superblock.layout.data_start + write.unit * UNIT as u64;
                let written = disk.write(offset, write.bytes).await;
                written.map_err(|error| disk_error("rebuilding an index", disk, &error))?;
            }
            *slot = Arc::new(entry);
        }
        Ok(())
    }

    fn into_index(mut self) -> (Changes, Ledger) {
        let mut changes = Changes::new();
        for (key, entry) in self.entries {
            self.ledger.count(&key, &entry);
            changes.insert(key, Some(entry));
        }
        (changes, self.ledger)
    }
}

/// Units of the data area; unreadable units and those outside read as zeros.
async fn read_blocks(disk: &Disk, layout: &Layout, unit: u64, count: u64) -> Bytes {
    let offset = layout.data_start + unit * UNIT as u64;
    let length = count as usize * UNIT;
    if let Ok(bytes) = disk.read(offset, length).await {
        return bytes;
    }
    let mut blocks = vec![0; length];
    for (index, block) in blocks.chunks_mut(UNIT).enumerate() {
        if let Ok(bytes) = disk.read(offset + (index * UNIT) as u64, UNIT).await {
            block.copy_from_slice(&bytes);
        }
    }
    blocks.into()
}
