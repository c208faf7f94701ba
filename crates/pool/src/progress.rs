//! Numbers for `shale repair status`.

use crate::Pool;
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering};

/// Repairs done since this process started, and work known to be waiting.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct RepairProgress {
    /// Slots without an NSD that can hold pieces: redundancy is reduced until an NSD is added.
    pub lost_slots: u64,
    /// Slots that are moving to another NSD.
    pub moving_slots: u64,
    /// Segments known to be incomplete or damaged that wait for examination.
    pub queued: u64,
    /// Such segments that did not fit into the queue; a survey will find them again.
    pub overflowed: u64,
    /// Segments examined.
    pub examined: u64,
    /// Pieces rebuilt or moved.
    pub rebuilt_pieces: u64,
    /// Their bytes.
    pub rebuilt_bytes: u64,
    /// Damaged pieces replaced.
    pub mended_pieces: u64,
    /// Repairs that failed and will be retried.
    pub failed: u64,
    /// Pieces not deleted because their NSD was away; sweeps will find them.
    pub undeleted: u64,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) examined: AtomicU64,
    pub(crate) rebuilt_pieces: AtomicU64,
    pub(crate) rebuilt_bytes: AtomicU64,
    pub(crate) mended_pieces: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) undeleted: AtomicU64,
}

/// Adds to a counter that is only displayed.
pub(crate) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

impl Pool {
    /// Repairs done and waiting.
    #[must_use]
    pub fn repair_progress(&self) -> RepairProgress {
        let groups = self.groups();
        let map = groups.map();
        let is_kept = |nsd| {
            map.nsd(nsd)
                .is_some_and(|entry| entry.state != model::map::NsdState::Lost)
        };
        let slots = groups.all().flat_map(|group| groups.members(group));
        let lost_slots = slots
            .filter(|slot| !slot.in_reading_order().any(is_kept))
            .count() as u64;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RepairProgress {
            lost_slots,
            moving_slots: groups.moving().len() as u64,
            queued: self.suspects.len() as u64,
            overflowed: self.suspects.overflowed(),
            examined: read(&self.progress.examined),
            rebuilt_pieces: read(&self.progress.rebuilt_pieces),
            rebuilt_bytes: read(&self.progress.rebuilt_bytes),
            mended_pieces: read(&self.progress.mended_pieces),
            failed: read(&self.progress.failed),
            undeleted: read(&self.progress.undeleted),
        }
    }
}
