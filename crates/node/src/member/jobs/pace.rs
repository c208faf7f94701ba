//! Keeps a job below its part of a node's bandwidth.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use world::{Instant, Planted, World};

/// So often a job that waits looks whether it may go faster now.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// A job's pace. What it reads or writes is paid before: a job that has just begun has nothing saved.
pub(super) struct Pace {
    bytes_per_second: AtomicU64,
    /// What is still to be paid, in billionths of a byte, and since when it is.
    owed: Mutex<(u128, Instant)>,
}

impl Pace {
    pub(super) fn new(world: &World, bytes_per_second: u64) -> Self {
        Self {
            bytes_per_second: AtomicU64::new(bytes_per_second),
            owed: Mutex::new((0, world.now())),
        }
    }

    /// From now on.
    pub(super) fn set(&self, bytes_per_second: u64) {
        self.bytes_per_second
            .store(bytes_per_second, Ordering::Relaxed);
    }

    /// Waits until these bytes may be read or written, with those before.
    pub(super) async fn take(&self, world: &World, bytes: u64) {
        if world.has_planted(Planted::IgnorePace) {
            return;
        }
        {
            let mut owed = self.owed.lock();
            if owed.0 == 0 {
                owed.1 = world.now();
            }
            owed.0 += u128::from(bytes) * 1_000_000_000;
        }
        loop {
            let rest = self.pay(world.now());
            if rest.is_zero() {
                return;
            }
            world.sleep(rest.min(LOOK_EVERY)).await;
        }
    }

    /// Time has passed. Returns how long the rest takes at the present pace.
    fn pay(&self, now: Instant) -> Duration {
        let pace = u128::from(self.bytes_per_second.load(Ordering::Relaxed).max(1));
        let mut owed = self.owed.lock();
        let paid = now.since(owed.1).as_nanos() * pace;
        *owed = (owed.0.saturating_sub(paid), now);
        let nanos = u64::try_from(owed.0.div_ceil(pace)).unwrap_or(u64::MAX);
        Duration::from_nanos(nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use world::sim::Simulation;

    #[test]
    fn a_job_keeps_its_pace_also_when_it_changes() {
        let simulation = Simulation::new(1);
        let ran = simulation.run(async |world: World| {
            let pace = Arc::new(Pace::new(&world, 1_000));
            let began = world.now();
            world.sleep(Duration::from_secs(10)).await;
            // Nothing was saved meanwhile.
            pace.take(&world, 2_000).await;
            assert_eq!((world.now() - began).as_secs(), 12);
            let (faster, in_time) = (pace.clone(), world.clone());
            let change = world.spawn("changes the pace", async move {
                in_time.sleep(Duration::from_secs(1)).await;
                faster.set(10_000);
            });
            pace.take(&world, 100_000).await;
            let took = world.now() - began;
            assert!((22..=23).contains(&took.as_secs()), "{took:?}");
            drop(change);
        });
        ran.finished();
    }
}
