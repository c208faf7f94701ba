//! The shard's time: the calendar, but never earlier than times already written, and never standing
//! still.

use model::Timestamp;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use world::{Instant, World};

/// The calendar, as long as it isn't behind the newest time of this shard; otherwise that time, from
/// which on it advances as fast as the machine's monotonic clock. So an owner whose calendar lags
/// takes over without waiting, times of tables never go back, and a calendar that was wrong once,
/// here or on an earlier owner, can't stop time.
pub(crate) struct Clock {
    world: World,
    begun: Instant,
    /// The shard's time less the time since `begun`, in nanoseconds; only grows.
    base: AtomicI64,
}

impl Clock {
    pub(crate) fn new(world: World, floor: Timestamp) -> Self {
        Self {
            begun: world.now(),
            base: AtomicI64::new(floor.0),
            world,
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        let passed = self.world.now() - self.begun;
        let passed = i64::try_from(passed.as_nanos()).unwrap_or(i64::MAX);
        let calendar = self.world.wall().0.saturating_sub(passed);
        let base = self.base.fetch_max(calendar, Ordering::AcqRel);
        Timestamp(base.max(calendar).saturating_add(passed))
    }

    /// How far the calendar lags behind.
    pub(crate) fn lag(&self) -> Duration {
        let now = self.now().0;
        Duration::from_nanos(u64::try_from(now - self.world.wall().0).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use world::sim::Simulation;

    const YEAR: Duration = Duration::from_secs(365 * 86_400);
    const MINUTE: Duration = Duration::from_secs(60);

    fn later(time: Timestamp, by: Duration) -> Timestamp {
        Timestamp(time.0 + i64::try_from(by.as_nanos()).unwrap())
    }

    #[test]
    fn an_earlier_owner_whose_calendar_was_a_year_ahead_does_not_stop_time() {
        Simulation::new(1)
            .run(|world| async move {
                let written = later(world.wall(), YEAR);
                let clock = Clock::new(world.clone(), written);
                assert_eq!(clock.now(), written);
                assert_eq!(clock.lag(), YEAR);
                world.sleep(MINUTE).await;
                assert_eq!(clock.now(), later(written, MINUTE));
            })
            .finished();
    }

    #[test]
    fn a_calendar_that_is_set_back_does_not_stop_time() {
        let simulation = Simulation::new(2);
        let faults = simulation.faults();
        simulation
            .run(|world| async move {
                let clock = Clock::new(world.clone(), Timestamp(0));
                let before = clock.now();
                assert_eq!(before, world.wall());
                faults.set_clock_back(YEAR);
                assert_eq!(clock.now(), before, "it never goes back");
                world.sleep(MINUTE).await;
                assert_eq!(clock.now(), later(before, MINUTE));
                assert_eq!(clock.lag(), YEAR);
            })
            .finished();
    }
}
