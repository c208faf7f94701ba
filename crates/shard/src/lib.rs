//! One shard: log, catalog, tree, records, commits, take-over.

mod catalog;
mod frame;
mod log;
mod store;
mod takeover;
mod tree;

pub use catalog::Catalog;
pub use frame::{CommitFrame, OperationNote};
pub use log::Log;
pub use takeover::{Opened, Opening};
pub use tree::{Tree, TreeCache};
