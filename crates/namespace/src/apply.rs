//! The one entrance: runs an operation, once per number of a slot.

use crate::{Outcome, Stop, View};
use model::{CommitNumber, ErrorKind, Operation, operation::Stamp};

/// Applies one operation to a view: what changes, and the answer. `commit` is the number of the
/// commit that the effects will belong to; new extents and segments carry it as their birth.
///
/// # Errors
/// `Missing` names what to fetch before the operation starts again; `Refused` is the answer of
/// an operation that changes nothing.
pub fn apply(_operation: &Operation, _stamp: &Stamp, _commit: CommitNumber, _view: &impl View) -> Result<Outcome, Stop> {
    Err(Stop::Refused(ErrorKind::NotImplemented.into()))
}
