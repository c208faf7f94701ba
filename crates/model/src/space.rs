//! What a pool's ledger, which the cluster's manager keeps, and the nodes that write to the pool say to each
//! other. `docs/protocols/space.md` tells how it is used.

use crate::call::Method;
use crate::member::Term;
use serde::{Deserialize, Serialize};

/// A node tells the manager a [`Statement`]; the answer is a [`Told`].
pub const SPACE_STATE: Method = Method(0x0310);
/// The manager tells a node a [`Told`]; the answer is a [`Statement`].
pub const SPACE_TELL: Method = Method(0x0311);

/// Counts the recalls of a ledger.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct RecallNumber(pub u64);

/// What a holder says: totals since it knows of the ledger, under a growing number.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct Statement {
    /// Of the manager whose ledger is meant.
    pub term: Term,
    /// Grows with each statement.
    pub number: u64,
    /// Bytes that it held when it began with this ledger: what an earlier one had given.
    pub claim: u64,
    /// Bytes that were written to the pool.
    pub consumed: u64,
    /// Bytes that were given back unused.
    pub returned: u64,
    /// The newest recall that it has obeyed.
    pub obeyed: RecallNumber,
    /// What it lacks, if it does.
    pub want: Option<Want>,
    /// Bytes that it would like to hold because it will soon lack some, with what writes under way have taken: compared
    /// with all that it holds. Nobody waits for them. 0: it has enough.
    pub ahead: u64,
}

/// A wish for room.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Want {
    /// Grows with each want of a holder.
    pub number: u64,
    /// Bytes that it needs, with what writes under way have taken: compared with all that it holds.
    pub bytes: u64,
}

/// What a ledger says to one holder.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct Told {
    /// Of the manager whose ledger it is.
    pub term: Term,
    /// Bytes that it was given since it began, its claim included.
    pub granted: Option<u64>,
    /// It shall give back what no write needs now.
    pub recall: Option<RecallNumber>,
    /// There is no room for the want of this number.
    pub full: Option<u64>,
}
