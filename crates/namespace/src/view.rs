//! What an operation sees of the records, and what it answers.

use crate::{Key, Record};
use model::{Error, InodeId, Reply};

/// The records at one moment. All answers between two effects must come from one state.
pub trait View {
    /// The record under a key, or nothing if it is known that there is none.
    ///
    /// # Errors
    /// `Missing`: not known here; must be fetched.
    fn get(&self, key: &Key) -> Result<Option<Record>, Missing>;

    /// The first `limit` records from `from` (inclusive) to `to` (exclusive), in key order.
    ///
    /// # Errors
    /// `Missing`: it isn't known that these are all; must be fetched.
    fn range(&self, from: &Key, to: &Key, limit: usize) -> Result<Vec<(Key, Record)>, Missing>;

    /// Whether anybody holds the inode open, so that it must outlive its last name.
    fn is_held(&self, inode: InodeId) -> bool;
}

/// The view can't answer without fetching.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Missing;

/// What must be fetched before the operation can start again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Need {
    /// One record, or the knowledge that there is none.
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

/// Why an operation wasn't applied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stop {
    /// Fetch all of these, then start again on one consistent view. At most four rounds, but
    /// for the rename of a directory to another parent, which asks for the ancestors of the
    /// new parent one after the other (whoever looked the path up has them).
    Missing(Vec<Need>),
    /// Refused; nothing changes.
    Refused(Error),
    /// Refused, and the slot remembers it: the effects (one record) are committed, then the
    /// error is the answer.
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

/// New values of records; `None` removes one. Each key is there once.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Effects(pub Vec<(Key, Option<Record>)>);

/// What an operation did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The records that change; empty for reads.
    pub effects: Effects,
    /// The answer.
    pub reply: Reply,
}
