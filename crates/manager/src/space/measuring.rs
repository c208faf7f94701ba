//! How a ledger learns what is really in its pool, while holders go on writing and deleting.
//!
//! What is in use is a *base*, plus what holders wrote, less what they deleted. The base doesn't change
//! while no holder ends, but nobody knows it. A measuring bounds it from above: what NSDs count, less
//! what holders had said before that they wrote, plus what they say after it that they may have deleted.
//! Bounds only shrink it; with holders that rest it is exact.

use super::Round;
use model::NodeRun;
use std::collections::BTreeSet;

/// One measuring under way.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Measuring {
    pub(super) round: Round,
    /// What all holders had said to have written when it began.
    pub(super) consumed_before: i128,
    /// What the NSDs count, once they have said so.
    pub(super) counted: Option<u64>,
    /// Holders that haven't said anything since then.
    pub(super) missing: BTreeSet<NodeRun>,
}

impl Measuring {
    pub(super) fn begin(round: Round, consumed_before: i128) -> Self {
        Self {
            round,
            consumed_before,
            counted: None,
            missing: BTreeSet::new(),
        }
    }

    /// The upper bound of the base, once all have spoken; `deleted_after` is what they may have
    /// deleted by then.
    pub(super) fn bound(&self, deleted_after: i128) -> i128 {
        let counted = self.counted.expect("the NSDs have answered");
        assert!(self.missing.is_empty(), "all have spoken");
        i128::from(counted) - self.consumed_before + deleted_after
    }
}
