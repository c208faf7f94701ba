//! Hosts shards for clients: sessions, locks, reclaim, fold, clean, repair, check.
//!
//! Clients talk to [`Metanode`]: it runs operations on the shard, tracks open inodes, owns the lock
//! tables, and does the background work that operations leave (queued data ids, dead segments,
//! inline extents, mostly dead segments, lost pieces). It knows no page pools and no kernels.

mod locks;
pub mod report;

mod assignment;
mod background;
mod check;
mod files;
mod holders;
mod metanode;
mod progress;
mod reclaim;
mod reopening;
mod room;
mod serving;
mod sessions;

pub use crate::assignment::begin_alone;
pub use crate::locks::Locks;
pub use crate::metanode::{DATA_POOL, Metanode, Opening};
pub use crate::progress::{Progress, Stage};
pub use crate::report::{
    BackgroundReport, CheckOptions, CheckReport, Counters, Fault, FaultKind, RepairStatus,
    ScrubOutcome, ShardStatus, UnreadableData,
};
