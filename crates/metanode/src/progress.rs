//! Progress of a check or scrub, for users who wait for it.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Updated by the work; may be read at any time.
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

/// The current progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stage {
    /// What is being done, such as `reading segments`.
    pub phase: &'static str,
    /// What `done` and `total` count, such as `bytes`.
    pub unit: &'static str,
    /// How much of this phase is done.
    pub done: u64,
    /// The whole of this phase, if known.
    pub total: Option<u64>,
}

impl Progress {
    /// The current progress.
    #[must_use]
    pub fn stage(&self) -> Stage {
        let phase = *self.phase.lock();
        let done = self.done.load(Ordering::Relaxed);
        Stage {
            phase: phase.name,
            unit: phase.unit,
            // Totals are estimates: users may write meanwhile.
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

    /// The count of `done`, for layers that don't know phases.
    pub(crate) fn counter(&self) -> &Arc<AtomicU64> {
        &self.done
    }
}
