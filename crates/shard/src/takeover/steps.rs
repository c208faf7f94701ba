//! How long the steps of a take-over took, for the node's log: programs wait for them.

use std::time::Duration;
use world::{Instant, World};

/// Milliseconds of the steps, in their order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Steps {
    pub(super) raise: u64,
    pub(super) seal: u64,
    pub(super) read: u64,
    pub(super) copy: u64,
    pub(super) record: u64,
}

/// Measures one step after the other.
pub(super) struct Watch {
    world: World,
    since: Instant,
}

impl Watch {
    /// The first step begins.
    pub(super) fn new(world: &World) -> Self {
        Self {
            world: world.clone(),
            since: world.now(),
        }
    }

    /// Milliseconds of the step that ends now. The next one begins.
    pub(super) fn step(&mut self) -> u64 {
        let now = self.world.now();
        let took: Duration = now - self.since;
        self.since = now;
        u64::try_from(took.as_millis()).unwrap_or(u64::MAX)
    }
}
