//! One shard: log, catalog, tree, records, commits, take-over.
//!
//! A metanode uses [`Shard`]: it runs operations on hot records and makes them durable in commits.
//! Below it are the [`Log`] (durability), the [`Tree`] (stores records) and the [`Catalog`]
//! (locates the tree's tables). It knows neither clients nor kernels.

mod ahead;
mod catalog;
mod commit;
mod families;
mod fetch;
#[cfg(test)]
mod forged;
mod frame;
mod log;
mod memory;
mod notes;
mod numbers;
mod records;
mod reserved;
#[cfg(test)]
mod rig;
mod rows;
mod shard;
mod shrink;
mod snapshot;
mod state;
mod store;
mod takeover;
mod touch;
mod tree;

pub use catalog::{Catalog, CatalogUsage};
pub use frame::{CommitFrame, OperationNote};
pub use log::Log;
pub use memory::{HOT_RECORDS_BYTES_DEFAULT, MemoryUse, ShardMemory};
pub use records::{NewWork, successor};
pub use rows::Damaged;
pub use shard::Unflushed;
pub use snapshot::{Page, Snapshot, Walk};
pub use state::{Holders, Shard};
pub use takeover::budgets::{OPEN_MAX, within};
pub use takeover::{Opened, Opening};
pub use touch::{Contact, Touch, Whole};
pub use tree::Tree;
