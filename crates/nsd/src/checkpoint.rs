//! Checkpoints: what the journal has added goes into the index, payloads that live in the
//! journal move to extents, and the ring is free again.

use crate::checksum::UNIT;
use crate::core::Core;
use crate::entry::{Entry, Place, Run, header_units};
use crate::extent::{placed, write_header};
use crate::index::Changes;
use crate::key::Key;
use crate::space::Asker;
use crate::state::Move;
use model::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use world::AlignedBuffer;

/// Entries that one write to the data area packs together, in units (1 MiB).
const PACK_UNITS: u64 = 256;
/// Changes since the last checkpoint that may be kept in memory.
const OVERLAY_BYTES_MAX: usize = 32 << 20;

/// An entry on its way out of the journal.
struct Moving {
    key: Key,
    entry: Arc<Entry>,
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

    /// Starts a checkpoint in the background, unless one is about to run.
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

    /// Brings the index up to everything that is applied now.
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
            return Err(self.fail("checkpoints", &"the disk failed before"));
        }
        let (frozen, ledger) = self.state.lock().freeze();
        let applied = ledger.applied;
        let moved = match self.move_out(&frozen).await {
            Ok(moved) => moved,
            Err(error) => {
                self.state.lock().thaw_undone();
                return Err(error);
            }
        };
        let core = self.clone();
        let commit = move || core.index.commit(&moved, &ledger);
        let snapshot = self.world.blocking(commit).await;
        let snapshot = snapshot.map_err(|error| self.fail("commits its index", &error))?;
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
        stored.map_err(|error| self.fail("writes its superblock", &error))
    }

    /// Moves payloads out of the journal; returns the changes with their new places.
    async fn move_out(&self, frozen: &Arc<Changes>) -> Result<Changes> {
        let mut changes = Changes::clone(frozen);
        let mut pack: Vec<Moving> = Vec::new();
        let mut units = 0;
        for (key, slot) in frozen.iter() {
            let Some(entry) = slot else { continue };
            if !matches!(entry.place, Place::Journal(_)) {
                continue;
            }
            if units + entry.extent_units() > PACK_UNITS && !pack.is_empty() {
                self.move_pack(std::mem::take(&mut pack), &mut changes)
                    .await?;
                units = 0;
            }
            units += entry.extent_units();
            let entry = entry.clone();
            pack.push(Moving { key: *key, entry });
        }
        self.move_pack(pack, &mut changes).await?;
        Ok(changes)
    }

    /// Moves some entries with one write if the space allows it.
    async fn move_pack(&self, pack: Vec<Moving>, changes: &mut Changes) -> Result<()> {
        let moves = self.place_pack(pack)?;
        let mut buffers: Vec<(Run, AlignedBuffer)> = Vec::new();
        for (moving, runs) in moves {
            let entry = placed(&moving.entry, runs);
            let mut extent = AlignedBuffer::zeroed(entry.extent_units() as usize * UNIT);
            let head = header_units(entry.units()) as usize * UNIT;
            let table = moving.entry.checksums.clone();
            let table = table.expect("entries in the journal carry their checksums");
            write_header(
                &mut extent[..head],
                self.stamp.region,
                &moving.key,
                &entry,
                &table,
            );
            // What can't be read moves as zeros: its checksums tell.
            match self.read_payload_bytes(&moving.entry).await {
                Ok(payload) => extent[head..head + payload.len()].copy_from_slice(&payload),
                Err(error) => {
                    tracing::error!(key = %moving.key, %error, "journal payload can't be read");
                }
            }
            let mut at = 0;
            for run in entry.runs().expect("just placed") {
                let length = run.count as usize * UNIT;
                buffers.push((*run, AlignedBuffer::copy_of(&extent[at..at + length])));
                at += length;
            }
            changes.insert(moving.key, Some(Arc::new(entry)));
        }
        for (run, bytes) in joined(buffers) {
            let offset = self.unit_offset(run.unit);
            let written = self.disk.write(offset, bytes.freeze()).await;
            written.map_err(|error| self.fail("moves payloads out of its journal", &error))?;
        }
        Ok(())
    }

    /// Finds places for the entries that are still alive.
    fn place_pack(&self, pack: Vec<Moving>) -> Result<Vec<(Moving, Vec<Run>)>> {
        let mut state = self.state.lock();
        let mut moves = Vec::with_capacity(pack.len());
        for moving in pack {
            // Deleted or replaced since: the index gets it as it is, and the journal record
            // that ended it is replayed after it.
            if state.overlay.contains_key(&moving.key) {
                continue;
            }
            let units = moving.entry.extent_units();
            let head = header_units(moving.entry.units());
            let Some(runs) = state.space.allocate(units, head, Asker::Promised) else {
                let text = format!(
                    "NSD {} has no {units} units in at most eight pieces to empty its journal",
                    self.identity.nsd
                );
                return Err(Error::new(ErrorKind::NoSpace, text));
            };
            state.space.unpromise(units);
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

/// Joins buffers whose runs are neighbours.
fn joined(mut buffers: Vec<(Run, AlignedBuffer)>) -> Vec<(Run, AlignedBuffer)> {
    buffers.sort_by_key(|(run, _)| run.unit);
    let mut groups: Vec<Vec<(Run, AlignedBuffer)>> = Vec::new();
    for (run, bytes) in buffers {
        let follows = groups.last().and_then(|group| group.last());
        let follows =
            follows.is_some_and(|(last, _)| last.unit + u64::from(last.count) == run.unit);
        match groups.last_mut() {
            Some(group) if follows => group.push((run, bytes)),
            _ => groups.push(vec![(run, bytes)]),
        }
    }
    groups
        .into_iter()
        .map(|group| {
            let unit = group[0].0.unit;
            let total: usize = group.iter().map(|(_, bytes)| bytes.len()).sum();
            let mut whole = AlignedBuffer::with_any_content(total);
            let mut at = 0;
            for (_, bytes) in &group {
                whole[at..at + bytes.len()].copy_from_slice(bytes);
                at += bytes.len();
            }
            let count = u32::try_from(total / UNIT).expect("a pack is small");
            (Run { unit, count }, whole)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_become_one_write() {
        let buffer = |unit: u64, count: u32| {
            let mut bytes = AlignedBuffer::zeroed(count as usize * UNIT);
            bytes.fill(unit as u8);
            (Run { unit, count }, bytes)
        };
        let writes = joined(vec![buffer(7, 1), buffer(2, 2), buffer(4, 3), buffer(9, 1)]);
        let runs: Vec<Run> = writes.iter().map(|write| write.0).collect();
        let expected = [(2, 6), (9, 1)].map(|(unit, count)| Run { unit, count });
        assert_eq!(runs, expected);
        assert_eq!(writes[0].1[0], 2);
        assert_eq!(writes[0].1[2 * UNIT], 4);
        assert_eq!(writes[0].1[5 * UNIT], 7);
    }
}
