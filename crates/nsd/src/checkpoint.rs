//! Checkpoints: the journal's changes go into the index, payloads stored in the journal move to
//! extents, and the ring is free again.

use crate::checksum::UNIT;
use crate::core::Core;
use crate::entry::{IndexEntry, Place, Run, header_units};
use crate::extent::{UnitWrite, placed, writes_of};
use crate::index::Changes;
use crate::key::Key;
use crate::space::Purpose;
use crate::state::Move;
use bytes::Bytes;
use model::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use world::AlignedBuffer;

/// Units of entries that one write to the data area packs together (1 MiB).
const PACK_UNITS: u64 = 256;
/// Largest read of the ring and largest write to the data area.
const SPAN_BYTES_MAX: u64 = 2 << 20;
/// Most bytes of changes since the last checkpoint that are kept in memory.
const OVERLAY_BYTES_MAX: usize = 32 << 20;

/// An entry that is being moved out of the journal.
struct Moving {
    key: Key,
    entry: Arc<IndexEntry>,
    position: u64,
}

impl Core {
    /// Starts a checkpoint if the journal is half full or the overlay is large.
    pub(crate) fn checkpoint_if_due(self: &Arc<Self>) {
        let due = {
            let state = self.state.lock();
            let used = state.head - state.tail;
            used > self.ring.bytes() / 2 || state.overlay_bytes > OVERLAY_BYTES_MAX
        };
        if due {
            self.plan_checkpoint();
        }
    }

    /// Starts a checkpoint in the background, unless one is already planned.
    pub(crate) fn plan_checkpoint(self: &Arc<Self>) {
        if self.checkpoint_planned.swap(true, Ordering::AcqRel) {
            return;
        }
        let core = self.clone();
        self.world
            .spawn("nsd: checkpoint", async move {
                if let Err(error) = core.checkpoint().await {
                    tracing::warn!(nsd = core.identity.nsd.0, %error, "checkpoint failed");
                }
            })
            .detach();
    }

    /// Brings the index up to date with all changes applied so far.
    pub(crate) async fn checkpoint(self: &Arc<Self>) -> Result<()> {
        let running = self.checkpointing.lock().await;
        self.checkpoint_planned.store(false, Ordering::Release);
        let result = self.checkpoint_alone().await;
        drop(running);
        self.checkpointed.notify_waiters();
        result
    }

    async fn checkpoint_alone(self: &Arc<Self>) -> Result<()> {
        if self.has_failed() {
            return Err(self.fail("making a checkpoint", &"the disk has failed already"));
        }
        let (frozen, ledger) = self.state.lock().freeze();
        let applied = ledger.applied;
        let moved = match self.move_out(&frozen).await {
            Ok(moved) => moved,
            Err(error) => {
                self.state.lock().undo_freeze();
                return Err(error);
            }
        };
        let core = self.clone();
        let commit = move || core.index.commit(&moved, &ledger);
        let snapshot = self.world.blocking(commit).await;
        let snapshot = snapshot.map_err(|error| self.fail("committing its index", &error))?;
        self.state.lock().thaw(snapshot, applied);
        self.store_seals().await
    }

    /// Copies the seals to the superblock if they changed.
    async fn store_seals(&self) -> Result<()> {
        let seals = self.state.lock().ledger.seals.clone();
        let mut superblock = self.superblock.lock().await;
        if superblock.seals == seals {
            return Ok(());
        }
        superblock.seals = seals;
        let stored = superblock.store(&self.disk).await;
        stored.map_err(|error| self.fail("writing its superblock", &error))
    }

    /// Moves payloads out of the journal; returns the changes with the new places.
    async fn move_out(&self, frozen: &Arc<Changes>) -> Result<Changes> {
        let mut changes = Changes::clone(frozen);
        let mut leaving: Vec<Moving> = frozen
            .iter()
            .filter_map(|(key, slot)| {
                let entry = slot.clone()?;
                let Place::Journal(position) = entry.place else {
                    return None;
                };
                Some(Moving {
                    key: *key,
                    entry,
                    position,
                })
            })
            .collect();
        // Sorted so that consecutive journal entries are read together.
        leaving.sort_by_key(|moving| moving.position);
        let mut pack = Vec::new();
        let mut units = 0;
        for moving in leaving {
            let more = moving.entry.extent_units();
            if units + more > PACK_UNITS && !pack.is_empty() {
                self.move_pack(std::mem::take(&mut pack), &mut changes)
                    .await?;
                units = 0;
            }
            units += more;
            pack.push(moving);
        }
        self.move_pack(pack, &mut changes).await?;
        Ok(changes)
    }

    /// Moves some entries, with one read and one write if their places allow that.
    async fn move_pack(&self, pack: Vec<Moving>, changes: &mut Changes) -> Result<()> {
        let moves = self.place_pack(pack)?;
        let span = self.read_span(&moves).await;
        let mut writes: Vec<UnitWrite> = Vec::new();
        let mut joined: Option<Joined> = None;
        for (moving, runs) in moves {
            let entry = placed(&moving.entry, runs);
            let table = moving.entry.checksums.clone();
            let table = table.expect("entries in the journal carry their checksums");
            let payload = self.payload_of(&moving, span.as_ref()).await;
            for write in writes_of(self.stamp.region, &moving.key, &entry, &table, &payload) {
                match &mut joined {
                    Some(last) if last.takes(&write) => last.add(&write),
                    _ => {
                        writes.extend(joined.replace(Joined::new(&write)).map(Joined::done));
                    }
                }
            }
            changes.insert(moving.key, Some(Arc::new(entry)));
        }
        writes.extend(joined.map(Joined::done));
        for write in writes {
            let offset = self.unit_offset(write.unit);
            let written = self.disk.write(offset, write.bytes).await;
            written.map_err(|error| self.fail("moving payloads out of its journal", &error))?;
        }
        Ok(())
    }

    /// The part of the ring that holds all these payloads, if it is contiguous and not much larger
    /// than they are.
    async fn read_span(&self, moves: &[(Moving, Vec<Run>)]) -> Option<(u64, Bytes)> {
        let (first, _) = moves.first()?;
        let (last, _) = moves.last()?;
        let unit = UNIT as u64;
        let start = first.position / unit * unit;
        let end = (last.position + u64::from(last.entry.length)).next_multiple_of(unit);
        let whole = end - start <= SPAN_BYTES_MAX
            && start / self.ring.bytes() == (end - 1) / self.ring.bytes();
        if moves.len() < 2 || !whole {
            return None;
        }
        let bytes = self
            .disk
            .read(self.ring.offset(start), (end - start) as usize);
        Some((start, bytes.await.ok()?))
    }

    /// The payload of an entry in the journal. Unreadable bytes are moved as zeros; checksums will
    /// reveal them.
    async fn payload_of(&self, moving: &Moving, span: Option<&(u64, Bytes)>) -> Bytes {
        let length = moving.entry.length as usize;
        if let Some((start, bytes)) = span {
            let at = (moving.position - start) as usize;
            return bytes.slice(at..at + length);
        }
        match self.read_payload_bytes(&moving.entry).await {
            Ok(payload) => payload,
            Err(error) => {
                tracing::error!(key = %moving.key, %error, "a payload in the journal can't be read");
                Bytes::from(vec![0; length])
            }
        }
    }

    /// Allocates places for the entries that still exist, contiguous if possible.
    fn place_pack(&self, pack: Vec<Moving>) -> Result<Vec<(Moving, Vec<Run>)>> {
        let mut state = self.state.lock();
        // Skip entries deleted or replaced since: the index gets them unchanged, and replaying the
        // later journal record removes them.
        let alive: Vec<Moving> = pack
            .into_iter()
            .filter(|moving| !state.overlay.contains_key(&moving.key))
            .collect();
        let mut moves = Vec::with_capacity(alive.len());
        let total: u64 = alive.iter().map(|m| m.entry.extent_units()).sum();
        let whole = u32::try_from(total).expect("a pack is small");
        let mut side_by_side = state
            .space
            .allocate(total, whole, Purpose::Promised)
            .map(|runs| runs[0].unit);
        for moving in alive {
            let units = moving.entry.extent_units();
            let count = u32::try_from(units).expect("an extent is small");
            let runs = match &mut side_by_side {
                Some(unit) => {
                    let run = Run { unit: *unit, count };
                    *unit += units;
                    Some(vec![run])
                }
                None => {
                    let head = header_units(moving.entry.units());
                    state.space.allocate(units, head, Purpose::Promised)
                }
            };
            let Some(runs) = runs else {
                let text = format!(
                    "NSD {} can't empty its journal: no {units} free units in at most eight runs",
                    self.identity.nsd
                );
                return Err(Error::new(ErrorKind::NoSpace, text));
            };
            state.space.cancel_promise(units);
            let moved = Move {
                birth: moving.entry.birth,
                runs: runs.clone(),
                gone: false,
            };
            state.moving.insert(moving.key, moved);
            moves.push((moving, runs));
        }
        Ok(moves)
    }
}

/// Adjacent writes joined into one.
struct Joined {
    unit: u64,
    bytes: Vec<u8>,
}

impl Joined {
    fn new(write: &UnitWrite) -> Self {
        let mut bytes = Vec::with_capacity(PACK_UNITS as usize * UNIT);
        bytes.extend_from_slice(&write.bytes);
        Self {
            unit: write.unit,
            bytes,
        }
    }

    fn takes(&self, write: &UnitWrite) -> bool {
        let end = self.unit + (self.bytes.len() / UNIT) as u64;
        write.unit == end && self.bytes.len() + write.bytes.len() <= SPAN_BYTES_MAX as usize
    }

    fn add(&mut self, write: &UnitWrite) {
        self.bytes.extend_from_slice(&write.bytes);
    }

    fn done(self) -> UnitWrite {
        UnitWrite {
            unit: self.unit,
            bytes: AlignedBuffer::copy_of(&self.bytes).freeze(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_become_one_write() {
        let write = |unit: u64, count: usize| UnitWrite {
            unit,
            bytes: vec![unit as u8; count * UNIT].into(),
        };
        let mut joined = Joined::new(&write(2, 2));
        assert!(!joined.takes(&write(5, 1)) && !joined.takes(&write(3, 1)));
        assert!(joined.takes(&write(4, 3)));
        joined.add(&write(4, 3));
        assert!(joined.takes(&write(7, 1)));
        let whole = joined.done();
        assert_eq!((whole.unit, whole.bytes.len()), (2, 5 * UNIT));
        assert_eq!((whole.bytes[0], whole.bytes[2 * UNIT]), (2, 4));
    }
}
