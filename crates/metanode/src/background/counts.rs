//! Statistics of background work, read only by people and tests.

use std::sync::atomic::{AtomicU64, Ordering};

/// Totals since start.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) reclaim_steps: AtomicU64,
    pub(super) segments_deleted: AtomicU64,
    pub(super) extents_folded: AtomicU64,
    pub(super) segments_cleaned: AtomicU64,
    pub(super) publishes_void: AtomicU64,
    pub(super) garbage_deleted: AtomicU64,
    pub(super) segments_given_up: AtomicU64,
}

pub(super) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}
