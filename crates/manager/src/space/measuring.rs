//! How a ledger learns what is really in its pool, while holders go on writing and deleting.
//!
//! What is in use is a *base*, plus what holders said that they wrote. Nobody knows the base: deletes lower
//! it, and what was written and not said raises it. A measuring bounds it from above: what NSDs count, less
//! what holders had said before. With holders that rest the bound is exact. It takes the place of the one
//! before, so that no error lasts.

use super::{Counted, Round};

/// One measuring under way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Measuring {
    pub(super) round: Round,
    /// What all holders had said to have written when it began.
    pub(super) consumed_before: i128,
}

impl Measuring {
    /// The upper bound of the base. What was written since the beginning is in what was counted, or it isn't
    /// yet; what was deleted lowers the base whether it was counted or not.
    pub(super) fn bound(&self, counted: &Counted) -> i128 {
        i128::from(counted.used) - self.consumed_before
    }
}
