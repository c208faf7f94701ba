//! All facts of a store, to be moved to another one; and the marks that make a move safe to repeat.
//!
//! A move has three steps: the embedded store is exported and takes no change from then on, an etcd
//! imports the facts in one transaction, the node's settings name the etcd. Whoever starts and finds an
//! export in the embedded store takes the second step again, which does nothing if it was done. So no
//! crash in between leaves two stores that both go on.

use crate::facts::{decode, encode};
use bytes::Bytes;
use model::{Error, ErrorKind, Result};

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests;

/// The key in an embedded store whose facts were exported.
pub(crate) const EXPORTED: &str = "exported";
/// The key in a store that imported facts.
pub(crate) const IMPORTED: &str = "imported";
/// Most facts of an export: those of the most families with their file systems, and room for more.
pub const EXPORT_FACTS_MAX: usize = 8191;

/// All facts of a store that belong to no lease.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Export {
    /// Names the export: an import of the same one is the same import.
    pub id: u128,
    /// Keys and values, in the order of the keys.
    pub facts: Vec<(String, Bytes)>,
}

/// The id in a mark.
pub(crate) fn id_of(key: &str, mark: &[u8]) -> Result<u128> {
    decode(key, mark)
}

/// A mark with this id.
pub(crate) fn mark(id: u128) -> Bytes {
    encode(&id)
}

/// Whether a key is no fact, but a mark.
pub(crate) fn is_mark(key: &str) -> bool {
    key == EXPORTED || key == IMPORTED
}

/// The answer to changes of a store that was exported.
pub(crate) fn is_moving(id: u128) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!(
            "the facts are moving to an etcd (export {id:x}), and this store takes no changes; finish \
             the move by making the cluster again"
        ),
    )
}

/// The answer to a request that only some stores can do.
pub(crate) fn not_here(what: &str) -> Error {
    Error::new(ErrorKind::NotSupported, what.to_owned())
}
