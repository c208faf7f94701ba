//! The segments of one session: which ids come next, and up to which all are published or given up.

use super::low_water::{LowWater, Period};
use model::SessionId;
use pool::SegmentSource;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The segments of a session.
pub(crate) struct Segments {
    session: SessionId,
    source: SegmentSource,
    low_water: LowWater,
    /// A task reports the low-water mark, and the last mark reported.
    reporting: AtomicBool,
    reported: AtomicU64,
}

/// Held by everything that may still write or publish segments of a session.
#[derive(Clone)]
pub(crate) struct Mark {
    segments: Arc<Segments>,
    _period: Period,
}

impl Segments {
    pub(super) fn new(session: SessionId) -> Arc<Self> {
        Self::after(session, 0)
    }

    /// Of a session that has begun segments before, up to this one.
    pub(super) fn after(session: SessionId, last: u64) -> Arc<Self> {
        Arc::new(Self {
            session,
            source: SegmentSource::after(session, last),
            low_water: LowWater::default(),
            reporting: AtomicBool::new(false),
            reported: AtomicU64::new(0),
        })
    }

    pub(super) fn session(&self) -> SessionId {
        self.session
    }

    /// The newest one that was begun.
    pub(super) fn last_counter(&self) -> u64 {
        self.source.last_counter()
    }

    /// The low-water mark stays below all segments that are begun from now on, until this is dropped.
    pub(super) fn mark(self: &Arc<Self>) -> Mark {
        Mark {
            segments: self.clone(),
            _period: self.low_water.period(),
        }
    }

    /// A new low-water mark to report, unless one is being reported: [`Segments::reported`] must follow.
    pub(super) fn to_report(&self) -> Option<u64> {
        if self.reporting.load(Ordering::Acquire) {
            return None;
        }
        let mark = self.low_water.advance(self.source.last_counter());
        let reported = self.reported.load(Ordering::Relaxed);
        let counter = mark.filter(|mark| *mark > reported)?;
        self.reporting.store(true, Ordering::Release);
        Some(counter)
    }

    /// The report has ended.
    pub(super) fn reported(&self, counter: u64, is_known: bool) {
        if is_known {
            self.reported.store(counter, Ordering::Relaxed);
        }
        self.reporting.store(false, Ordering::Release);
    }
}

impl Mark {
    /// Whose segments they are: no other session may publish them.
    pub(crate) fn session(&self) -> SessionId {
        self.segments.session
    }

    /// Gives out their ids.
    pub(crate) fn source(&self) -> &SegmentSource {
        &self.segments.source
    }

    /// For tests without a session.
    #[cfg(test)]
    pub(crate) fn of_none() -> Self {
        Self::of(SessionId(1))
    }

    /// For tests without sessions.
    #[cfg(test)]
    pub(crate) fn of(session: SessionId) -> Self {
        Segments::new(session).mark()
    }
}

impl std::fmt::Debug for Mark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "mark of session {}", self.segments.session)
    }
}
