//! How the client stands with the owner: which session is its own, whether that has everything, and until when its tokens may be
//! used. Read before each use of something cached.

use model::SessionId;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokens::Moment;
use world::{Instant, World};

/// How the session stands with the owner.
pub(crate) struct Standing {
    world: World,
    began: Instant,
    /// The client's session.
    session: AtomicU64,
    /// It has ended, and no other one has begun.
    is_over: AtomicBool,
    /// It has everything: no token is needed.
    has_all: AtomicBool,
    /// Until tokens run out, that is: in a cluster another node may own the shard then.
    is_bounded: bool,
    /// Until when tokens may be used, in nanoseconds since it began.
    until: AtomicU64,
    /// Counts the changes of `has_all`.
    changes: AtomicU64,
}

impl Standing {
    /// A session that has nothing. `is_bounded`: should it get everything, it may use that as long as tokens only.
    pub(crate) fn new(world: World, session: SessionId, is_bounded: bool) -> Arc<Self> {
        Arc::new(Self {
            began: world.now(),
            world,
            session: AtomicU64::new(session.0),
            is_over: AtomicBool::new(false),
            has_all: AtomicBool::new(false),
            is_bounded,
            until: AtomicU64::new(0),
            changes: AtomicU64::new(0),
        })
    }

    /// The client's session; one that has ended until another one has begun.
    pub(crate) fn session(&self) -> SessionId {
        SessionId(self.session.load(Ordering::Acquire))
    }

    /// Whether the session has ended and no other one has begun.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// The session has ended.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    /// The client's session is another one, which has nothing.
    pub(crate) fn begin(&self, session: SessionId) {
        self.session.store(session.0, Ordering::Release);
        self.is_over.store(false, Ordering::Release);
    }

    /// The time, as tokens count it.
    pub(crate) fn now(&self) -> Moment {
        self.moment(self.world.now())
    }

    pub(crate) fn moment(&self, time: Instant) -> Moment {
        Moment(time.since(self.began))
    }

    /// Whether no token is needed now.
    pub(crate) fn has_all(&self) -> bool {
        self.was_given_all() && (!self.is_bounded || self.is_current())
    }

    /// Whether it has everything, if it may use that now.
    pub(crate) fn was_given_all(&self) -> bool {
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

    /// For how long tokens may be used from now on.
    pub(crate) fn rest(&self) -> Duration {
        let until = Duration::from_nanos(self.until.load(Ordering::Acquire));
        until.saturating_sub(self.now().0)
    }

    /// Whether tokens may be used at all.
    pub(crate) fn is_current(&self) -> bool {
        let until = Duration::from_nanos(self.until.load(Ordering::Acquire));
        self.now() < Moment(until)
    }
}
