//! Presents the world's time as SlateDB's clock.

use crate::log::Clock;
use crate::store::date;
use chrono::{DateTime, Utc};
use slatedb_common::clock::{SystemClock, SystemClockTicker};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use world::World;

pub(super) struct TreeClock {
    pub(super) world: World,
    pub(super) clock: Arc<Clock>,
}

impl fmt::Debug for TreeClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TreeClock")
    }
}

impl SystemClock for TreeClock {
    fn now(&self) -> DateTime<Utc> {
        date(self.clock.now())
    }

    fn sleep<'a>(&'a self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(self.world.sleep(duration))
    }

    fn ticker<'a>(&'a self, duration: Duration) -> SystemClockTicker<'a> {
        SystemClockTicker::new(self, duration)
    }
}
