//! Formatting and opening a region.

use crate::area::Area;
use crate::core::Core;
use crate::ends::Ends;
use crate::index::{CACHE_BYTES, Changes, Index, Snapshot};
use crate::journal::{Ring, RingImage};
use crate::key::Key;
use crate::ledger::Ledger;
use crate::proof::is_whole;
use crate::record::Record;
use crate::space::RegionSpace;
use crate::state::CoreState;
use crate::superblock::{self, FLAG_INDEX_LOST, Layout, Superblock};
use crate::wanted::IndexPart;
use crate::{FormatOptions, NsdIdentity, entry};
use bytes::Bytes;
use model::{Error, ErrorKind, Result};
use std::collections::BTreeMap;
use std::sync::Arc;
use world::{AlignedBuffer, Disk, World};

/// Bytes of zeros written at a time.
const ZEROS: u64 = 1 << 20;

pub(crate) fn disk_error(attempt: &str, disk: &Disk, error: &std::io::Error) -> Error {
    let text = format!("{attempt} on {disk:?}: {error}");
    Error::new(ErrorKind::Unavailable, text)
}

/// See [`crate::Nsd::format_with`].
pub(crate) async fn format(
    world: &World,
    disk: &Disk,
    identity: NsdIdentity,
    options: FormatOptions,
) -> Result<()> {
    let failed = |error: std::io::Error| disk_error("formatting an NSD", disk, &error);
    let layout = Layout::plan(disk.bytes(), options)?;
    if let Some(found) = superblock::load(disk).await? {
        let found = found.identity;
        let text = format!(
            "{disk:?} is already NSD {} of cluster {:x}",
            found.nsd, found.cluster
        );
        return Err(Error::new(ErrorKind::Exists, text));
    }
    let region = (u128::from(world.random_u64()) << 64) | u128::from(world.random_u64());
    let zeros: Bytes = AlignedBuffer::zeroed(ZEROS as usize).freeze();
    let mut at = 0;
    while at < layout.journal_bytes {
        let length = ZEROS.min(layout.journal_bytes - at);
        let chunk = zeros.slice(..length as usize);
        disk.write(layout.journal_start + at, chunk)
            .await
            .map_err(failed)?;
        at += length;
    }
    let area_disk = disk.clone();
    let made = move || {
        let area = Area::create(&area_disk, region, layout.index_start, layout.index_bytes);
        let area = area.map_err(|error| disk_error("formatting an NSD", &area_disk, &error))?;
        Index::open(area)?
            .commit(&Changes::new(), &Ledger::default())
            .map(drop)
    };
    world.blocking(made).await?;
    disk.flush().await.map_err(failed)?;
    let mut superblock = Superblock {
        sequence: 0,
        region,
        identity,
        flags: 0,
        incarnation: 0,
        layout,
        seals: BTreeMap::new(),
    };
    superblock.store(disk).await.map_err(failed)
}

/// Loads the superblock of a region that must have one.
pub(crate) async fn load_superblock(disk: &Disk) -> Result<Superblock> {
    superblock::load(disk).await?.ok_or_else(|| {
        let text = format!(
            "{disk:?} carries no NSD superblock: it is another file or was erased; bring the \
             region back, or remove the NSD with `shale nsd remove`"
        );
        Error::new(ErrorKind::InvalidArgument, text)
    })
}

/// See [`crate::Nsd::open`].
pub(crate) async fn open(world: &World, disk: Disk) -> Result<Arc<Core>> {
    open_with(world, disk, CACHE_BYTES).await
}

/// As [`open`], with so many bytes of the index's pages in memory.
pub(crate) async fn open_with(world: &World, disk: Disk, cache_bytes: usize) -> Result<Arc<Core>> {
    let mut superblock = load_superblock(&disk).await?;
    if superblock.flags & FLAG_INDEX_LOST != 0 {
        let text = format!("the index of {disk:?} is lost; rebuild it");
        return Err(Error::new(ErrorKind::Corrupt, text));
    }
    superblock.incarnation += 1;
    let stored = superblock.store(&disk).await;
    stored.map_err(|error| disk_error("opening an NSD", &disk, &error))?;
    let opened = {
        let disk = disk.clone();
        let (region, layout) = (superblock.region, superblock.layout);
        move || open_index(&disk, region, &layout, cache_bytes)
    };
    let (index, snapshot, ledger, (space, ends)) = world.blocking(opened).await?;
    let incarnation = superblock.incarnation;
    let mut state = CoreState::new(snapshot, space, ledger, incarnation, ends);
    let unproven = replay(world, &disk, &superblock, &mut state).await?;
    for (shard, epoch) in &superblock.seals {
        state.ledger.raise_seal(*shard, *epoch);
    }
    tracing::info!(
        nsd = superblock.identity.nsd.0,
        blobs = state.ledger.blobs,
        log_entries = state.ledger.log_entries,
        replayed = state.groups.len(),
        "NSD opened"
    );
    let core = Core::new(world, disk, superblock, index, state);
    if unproven > 0 {
        tracing::warn!(
            nsd = core.identity.nsd.0,
            unproven,
            "puts of the journal's last group are left out, as their data isn't whole: the NSD's end interrupted them before \
                they were answered, or its disk has lost the data since"
        );
        // Their records must not be replayed once groups have followed, which would pass for their proof.
        core.checkpoint().await?;
    }
    core.checkpoint_if_due();
    Ok(core)
}

type OpenedIndex = (Index, Snapshot, Ledger, (RegionSpace, Ends));

fn open_index(
    disk: &Disk,
    region: u128,
    layout: &Layout,
    cache_bytes: usize,
) -> Result<OpenedIndex> {
    let failed = |error: std::io::Error| {
        let kind = match error.kind() {
            std::io::ErrorKind::InvalidData => ErrorKind::Corrupt,
            _ => ErrorKind::Unavailable,
        };
        Error::new(kind, format!("opening the index of {disk:?}: {error}"))
    };
    let area = Area::open(disk, region, layout.index_start, layout.index_bytes);
    let area = area.map_err(failed)?;
    area.warm();
    let index = Index::open_with(area, cache_bytes)?;
    let ledger = index.ledger()?;
    let snapshot = index.snapshot()?;
    let learnt = learn(&snapshot, layout.data_units)?;
    Ok((index, snapshot, ledger, learnt))
}

/// Free space and the ends of logs and sessions, computed from all entries of the index.
fn learn(snapshot: &Snapshot, units: u64) -> Result<(RegionSpace, Ends)> {
    let mut runs = Vec::new();
    let mut promised = 0;
    let mut ends = Ends::default();
    snapshot.scan(&Key::lowest(), &Key::highest(), |key, entry| {
        ends.note(&key);
        match &entry.place {
            entry::Place::Runs(found) => runs.extend_from_slice(found),
            entry::Place::Journal(_) => promised += entry.extent_units(),
        }
        true
    })?;
    let space = RegionSpace::with_used(units, runs, promised)
        .ok_or_else(|| Error::new(ErrorKind::Corrupt, "two blobs in the index overlap"))?;
    Ok((space, ends))
}

/// Applies the journal records that are newer than the index. Returns how many puts of the last group were left out because
/// their data isn't whole.
async fn replay(
    world: &World,
    disk: &Disk,
    superblock: &Superblock,
    state: &mut CoreState,
) -> Result<usize> {
    let failed = |error: std::io::Error| disk_error("replaying the journal", disk, &error);
    let ring = Ring::new(&superblock.layout);
    let image = RingImage::load(disk, ring, superblock.region).await;
    let mut left_out = Vec::new();
    let mut next = image.next(state.head);
    while let Some(group) = next {
        next = image.next(group.end);
        let wanted = state.wanted(group.records.iter(), IndexPart::default());
        let part = match wanted.is_known() {
            true => wanted.read()?,
            false => world.blocking(move || wanted.read()).await?,
        };
        for record in &group.records {
            if let Record::Put { key, entry, .. } = record {
                // Before the proof, which may write a header there: what is another entry's stays that.
                if !state.adopt(entry) {
                    let text = format!("the journal places {key} over another entry");
                    return Err(Error::new(ErrorKind::Corrupt, text));
                }
                if next.is_none() && !is_whole(disk, superblock, key, entry).await {
                    left_out.push(entry.clone());
                    continue;
                }
            }
            state.apply(record, &part);
        }
        state.groups.push_back((group.position, group.length));
        state.head = group.end;
    }
    // Groups are written one at a time: a group after a gap proves that the gap held a group.
    if let Some((position, _)) = image.all_from(state.head).pop_first() {
        let text = format!(
            "the journal of {disk:?} is damaged between {} and {position}; rebuild the index",
            state.head
        );
        return Err(Error::new(ErrorKind::Corrupt, text));
    }
    if !state.groups.is_empty() {
        // An NSD that was killed may not have flushed the last group. The next one will pass for a proof that it was.
        disk.flush().await.map_err(failed)?;
    }
    // Not before the group's end: whatever it says, no unit is read twice.
    for entry in &left_out {
        state.space.release(entry.runs().unwrap_or_default());
    }
    Ok(left_out.len())
}

#[cfg(test)]
mod tests;
