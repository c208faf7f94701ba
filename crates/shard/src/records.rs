//! The hot records: decoded, in memory, in front of the tree.
//!
//! Every change of an operation goes here first and stays until its commit is in the tree. Apart
//! from that it is a cache: records read from the tree are kept within a budget, and ranges known
//! to be *complete* (a directory made here, a fresh data id) answer "not found" without the tree.

mod absent;
mod known;
mod order;
mod slots;
mod table;
#[cfg(test)]
mod tests;
mod work;

pub(crate) use slots::Records;
pub use slots::successor;
pub use work::NewWork;
