//! How long the steps around the opening of a shard may take, and the sum of all
//! (`docs/protocols/take-over.md`). A step that exceeds its budget ends the attempt.

use shard::OPEN_MAX;
use std::time::Duration;

/// A look at the shard's record in coordination, and its creation if it isn't there.
pub(super) const LOOK_BUDGET: Duration = Duration::from_secs(10);
/// The metanode's own session: an id from coordination, and a commit, which may take as long as the
/// log allows its only NSD.
pub(super) const OWN_SESSION_BUDGET: Duration = Duration::from_secs(70);
/// The records of sessions of earlier runs of this node: each takes three reads of the tree.
pub(crate) const FORMER_RUNS_BUDGET: Duration = Duration::from_secs(60);
/// Inodes without names, if nobody may hold them. The background releases what is left: the file
/// system needn't stay closed for it.
pub(crate) const RELEASE_BUDGET: Duration = Duration::from_secs(30);

/// Longest attempt to take a shard over, from the moment when this process learns that the shard's
/// record names it until clients are served: the sum of the budgets of all steps.
pub const TAKE_OVER_MAX: Duration = OPEN_MAX
    .saturating_add(LOOK_BUDGET)
    .saturating_add(OWN_SESSION_BUDGET)
    .saturating_add(FORMER_RUNS_BUDGET)
    .saturating_add(RELEASE_BUDGET);
