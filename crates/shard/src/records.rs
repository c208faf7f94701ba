//! The hot records: decoded, in memory, in front of the tree.
//!
//! Every change of an operation lands here first and stays until its commit is in the tree.
//! Around that it is a cache: what was read is kept within a budget, and what is known to be
//! *all* (a directory made here, a fresh data id) answers "not there" without the tree.

mod absent;
mod order;
mod slots;
mod table;
#[cfg(test)]
mod tests;
mod work;

pub(crate) use slots::Records;
pub use slots::successor;
pub use work::NewWork;
