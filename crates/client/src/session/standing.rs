//! How the session stands with the owner: whether it has everything, and until when its tokens may be
//! used. Read before each use of something cached.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokens::Moment;
use world::{Instant, World};

/// How the session stands with the owner.
pub(crate) struct Standing {
    world: World,
    began: Instant,
    /// It has everything: no token is needed.
    has_all: AtomicBool,
    /// Until when tokens may be used, in nanoseconds since it began.
    until: AtomicU64,
    /// Counts the changes of `has_all`.
    changes: AtomicU64,
}

impl Standing {
    /// A session that has nothing.
    pub(crate) fn new(world: World) -> Arc<Self> {
        Arc::new(Self {
            began: world.now(),
            world,
            has_all: AtomicBool::new(false),
            until: AtomicU64::new(0),
            changes: AtomicU64::new(0),
        })
    }

    /// The time, as tokens count it.
    pub(crate) fn now(&self) -> Moment {
        self.moment(self.world.now())
    }

    pub(crate) fn moment(&self, time: Instant) -> Moment {
        Moment(time.since(self.began))
    }

    /// Whether no token is needed.
    pub(crate) fn has_all(&self) -> bool {
        self.has_all.load(Ordering::Acquire)
    }

    pub(crate) fn set_has_all(&self, has_all: bool) {
        self.changes.fetch_add(1, Ordering::AcqRel);
        self.has_all.store(has_all, Ordering::Release);
    }

    /// Tokens may be used until then.
    pub(crate) fn set_usable_until(&self, until: Moment) {
        let nanos = u64::try_from(until.0.as_nanos()).unwrap_or(u64::MAX);
        self.until.store(nanos, Ordering::Release);
    }

    /// How often `has_all` has changed.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Whether tokens may be used at all.
    pub(crate) fn is_current(&self) -> bool {
        let until = Duration::from_nanos(self.until.load(Ordering::Acquire));
        self.now() < Moment(until)
    }
}
