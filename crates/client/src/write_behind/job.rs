//! A batch whose bytes are to be stored.

use crate::inode::{Batch, Inner, InodeRef};
use crate::pages::dirty::Frozen;
use crate::session::Mark;
use model::{FamilyId, InodeId};

/// A batch whose bytes are to be stored.
pub(super) struct Job {
    state: InodeRef,
    number: u64,
    runs: Vec<Frozen>,
    /// Keeps the session's low-water mark below this job's segments.
    mark: Mark,
}

impl Job {
    pub(super) fn of(state: &InodeRef, batch: &Batch) -> Self {
        Self {
            state: state.clone(),
            number: batch.number(),
            runs: batch.runs().to_vec(),
            mark: batch.mark().clone(),
        }
    }

    /// Starts failed batches of an inode again. Returns those that must be stored.
    pub(super) fn again(state: &InodeRef, inner: &mut Inner) -> Vec<Self> {
        let batches = inner.batches_mut().retry();
        batches.map(|batch| Self::of(state, batch)).collect()
    }

    /// Of the session whose segments it makes.
    pub(super) fn mark(&self) -> &Mark {
        &self.mark
    }

    pub(super) fn state(&self) -> &InodeRef {
        &self.state
    }

    pub(super) fn inode(&self) -> InodeId {
        self.state.id()
    }

    /// The number of its batch.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn runs(&self) -> &[Frozen] {
        &self.runs
    }

    pub(super) fn family(&self) -> FamilyId {
        self.state.id().fileset().family()
    }
}
