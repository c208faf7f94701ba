//! The segments that the metanode itself writes, under a session of its own.

use model::SessionId;
use parking_lot::Mutex;
use pool::SegmentSource;

/// Numbers the metanode's own segments and tracks which of them may still be published: those
/// numbered after the start of the oldest running rewrite.
pub(crate) struct OwnSegments {
    source: SegmentSource,
    /// The last counter given out before each running rewrite.
    begun: Mutex<Vec<u64>>,
}

/// While it exists, no segment numbered after its beginning counts as given up.
pub(crate) struct Unpublished<'a> {
    of: &'a OwnSegments,
    after: u64,
}

impl OwnSegments {
    pub(crate) fn new(session: SessionId) -> Self {
        Self {
            source: SegmentSource::new(session),
            begun: Mutex::default(),
        }
    }

    pub(crate) fn session(&self) -> SessionId {
        self.source.session()
    }

    pub(crate) fn source(&self) -> &SegmentSource {
        &self.source
    }

    /// Segments may be written and published from now on.
    pub(crate) fn begin(&self) -> Unpublished<'_> {
        let mut begun = self.begun.lock();
        let after = self.source.last_counter();
        begun.push(after);
        Unpublished { of: self, after }
    }

    /// The counter up to which all segments are published or given up.
    pub(crate) fn settled(&self) -> u64 {
        let begun = self.begun.lock();
        let oldest = begun.iter().min().copied();
        oldest.unwrap_or_else(|| self.source.last_counter())
    }
}

impl Drop for Unpublished<'_> {
    fn drop(&mut self) {
        let mut begun = self.of.begun.lock();
        let own = begun.iter().position(|after| *after == self.after);
        begun.swap_remove(own.expect("it was noted when it began"));
    }
}
