//! How far a check or scrub is, for those who wait for it.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Filled in by the work, read by others at any time.
#[derive(Default, Debug)]
pub struct Progress {
    phase: Mutex<Phase>,
    done: Arc<AtomicU64>,
}

#[derive(Clone, Copy, Default, Debug)]
struct Phase {
    name: &'static str,
    unit: &'static str,
    total: Option<u64>,
}

/// Where the work is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stage {
    /// What is being done, such as `reading segments`.
    pub phase: &'static str,
    /// What `done` and `total` count, such as `bytes`.
    pub unit: &'static str,
    /// How much of this phase is done.
    pub done: u64,
    /// All that the phase will do, where that is known.
    pub total: Option<u64>,
}

impl Progress {
    /// Where the work is now.
    #[must_use]
    pub fn stage(&self) -> Stage {
        let phase = *self.phase.lock();
        let done = self.done.load(Ordering::Relaxed);
        Stage {
            phase: phase.name,
            unit: phase.unit,
            // Totals are estimates where users write meanwhile.
            done: phase.total.map_or(done, |total| done.min(total)),
            total: phase.total,
        }
    }

    pub(crate) fn begin(&self, name: &'static str, unit: &'static str, total: Option<u64>) {
        let mut phase = self.phase.lock();
        *phase = Phase { name, unit, total };
        self.done.store(0, Ordering::Relaxed);
    }

    pub(crate) fn add(&self, done: u64) {
        self.done.fetch_add(done, Ordering::Relaxed);
    }

    /// The count of what is done, for a layer that knows nothing of phases.
    pub(crate) fn counter(&self) -> &Arc<AtomicU64> {
        &self.done
    }
}
