//! The shard's time: the calendar, but never earlier than times already written.

use model::Timestamp;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use world::World;

/// max(the machine's calendar, the newest time of this shard): an owner whose clock lags takes over
/// without waiting, and table times never go back.
pub(crate) struct Clock {
    world: World,
    floor: AtomicI64,
}

impl Clock {
    pub(crate) fn new(world: World, floor: Timestamp) -> Self {
        Self {
            world,
            floor: AtomicI64::new(floor.0),
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        let now = self.world.wall().0;
        Timestamp(self.floor.fetch_max(now, Ordering::AcqRel).max(now))
    }

    /// How far the calendar lags behind.
    pub(crate) fn lag(&self) -> Duration {
        let lag = self.floor.load(Ordering::Acquire) - self.world.wall().0;
        Duration::from_nanos(u64::try_from(lag).unwrap_or(0))
    }
}
