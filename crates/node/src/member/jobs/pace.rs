//! Keeps a job below its part of a node's bandwidth.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use world::{Debt, Instant, Planted, World};

/// So often a job that waits looks whether it may go faster now.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// A job's pace. What it reads or writes is paid before: a job that has just begun has nothing saved.
pub(super) struct Pace {
    bytes_per_second: AtomicU64,
    /// What is still to be paid.
    debt: Mutex<Debt>,
}

impl Pace {
    pub(super) fn new(bytes_per_second: u64) -> Self {
        Self {
            bytes_per_second: AtomicU64::new(bytes_per_second),
            debt: Mutex::default(),
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
        self.pay(world.now(), bytes);
        loop {
            let rest = self.pay(world.now(), 0);
            if rest.is_zero() {
                return;
            }
            world.sleep(rest.min(LOOK_EVERY)).await;
        }
    }

    /// Time has passed, and `more` bytes are owed. Returns how long the rest takes at the present pace.
    fn pay(&self, now: Instant, more: u64) -> Duration {
        let pace = self.bytes_per_second.load(Ordering::Relaxed).max(1);
        let mut debt = self.debt.lock();
        debt.pay(now, pace);
        debt.owe(more);
        debt.rest(pace)
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
            let pace = Arc::new(Pace::new(1_000));
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
