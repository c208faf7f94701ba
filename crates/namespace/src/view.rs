//! The interface of an operation: the records it reads, its effects and its reply.

use crate::{Key, Record};
use model::operation::Rank;
use model::{Error, FilesetId, InodeId, Reply};

/// The records at one moment. All answers must come from one state until effects are applied.
pub trait View {
    /// The record under a key, or `None` if it is known not to exist.
    ///
    /// # Errors
    /// `Missing`: not known here; must be fetched.
    fn get(&self, key: &Key) -> Result<Option<Record>, Missing>;

    /// The first `limit` records from `from` (inclusive) to `to` (exclusive), in key order.
    ///
    /// # Errors
    /// `Missing`: not all of these are known to be here; must be fetched.
    fn range(&self, from: &Key, to: &Key, limit: usize) -> Result<Vec<(Key, Record)>, Missing>;

    /// Whether a session holds the inode open, so that it must outlive its last name.
    fn is_held(&self, inode: InodeId) -> bool;

    /// The first inode number of a fileset that this owner gives: of those below, an owner before may have given more than
    /// the records say. [`Counters::next_inode`](crate::Counters::next_inode) isn't below it.
    fn first_number(&self, fileset: FilesetId) -> u64;
}

/// The view can't answer without fetching.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Missing;

/// Records to fetch before the operation can be retried.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Need {
    /// One record, or the knowledge that it doesn't exist.
    Key(Key),
    /// The first `limit` records of a range, or the knowledge that there are fewer.
    Range {
        /// Inclusive.
        from: Key,
        /// Exclusive.
        to: Key,
        /// At most this many.
        limit: usize,
    },
}

/// The result of a part of an operation.
pub(crate) type Step<T> = Result<T, Stop>;

/// Why an operation wasn't applied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stop {
    /// Fetch all of these, then retry on one consistent view. At most four rounds, except when a
    /// directory is renamed to another parent, which asks for that parent's ancestors one by one
    /// (after a lookup of the path they are in memory).
    Missing(Vec<Need>),
    /// Refused; nothing changes.
    Refused(Error),
    /// Refused, and the slot records that: commit the effects (one record), then answer with the
    /// error.
    RefusedInSlot(Error, Effects),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

impl From<model::ErrorKind> for Stop {
    fn from(kind: model::ErrorKind) -> Self {
        Self::Refused(kind.into())
    }
}

/// New values of records; `None` removes one. Each key appears once.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Effects(pub Vec<(Key, Option<Record>)>);

/// The result of an applied operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The changed records; empty for reads.
    pub effects: Effects,
    /// The answer.
    pub reply: Reply,
    /// Where it was applied, if that was before: then there are no effects.
    pub before: Option<Rank>,
}
