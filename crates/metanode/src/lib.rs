//! Hosts shards for clients: sessions, locks, reclaim, fold, clean, repair, check.
//!
//! Clients talk to [`Metanode`]: it runs operations on the shard, tracks open inodes, owns the lock
//! tables, and does the background work that operations leave (queued data ids, dead segments,
//! inline extents, mostly dead segments, lost pieces). It knows no page pools and no kernels.
//!
//! # Parts
//!
//! Each is a struct with private fields and uses only parts above it.
//!
//! | part | owns | must not know |
//! | --- | --- | --- |
//! | `host::Host` | the shard, its take-overs, the metanode's own session and segments | clients, opens, locks, background work |
//! | `judging::Judging` | nothing: reads records and what sessions have decided | who deletes or repairs |
//! | `files::FileNames` | nothing: reads records | who asks |
//! | `room::Room` | the last measurement of space, the waits for it | how space is freed: it is given that |
//! | `background::Background` | the jobs with their progress, the order of a round | when rounds come; sessions' opens, locks and requests |
//! | `lease::OwnerLease` | until when answers may leave | who extends it |
//! | `tokens::Tokens` | the granter of tokens, who has everything, what has to be said to clients | operations, sessions' records |
//! | `check::Check` | nothing: lives for one check | clients |
//! | [`Metanode`] | the parts; opens, [`Locks`], grace time, replays, streams; the task that drives rounds | how the others do it |
//!
//! The jobs of `background`: `Freeing` (removed data: backlog, dead segments, sparse ones), `Fold`,
//! `Clean`, `Blocks` (all three through `Rewriter`), `Unreadable` (remembers, repairs one segment),
//! `Survey`, `Repair`, `Scrub` (all three through `Unreadable`), `Slots` (what moves and leaves),
//! `TreeTidying`.
//!
//! # Paths
//!
//! *A read* asks for extents or attributes: `Metanode::ask` (`metanode/serving.rs`) →
//! `Metanode::begin` → `Shard::execute_now`, answered on the caller's thread if the records are in
//! memory; otherwise `Host::run_as` reads them from the tree.
//!
//! *A create* goes the same way; before it `Room::measure` says from one atomic that there is plenty.
//! If there isn't, `Room::check` waits with steps of `Background::make_room`.
//!
//! *A write* stores its segments without the metanode and arrives as `Operation::Publish`. Of what it
//! overwrites, the shard notes dead segments for `Freeing`; inline extents wait for `Fold`. An answer
//! that leaves a truncate unfinished is continued by `Host::finish_cuts`.
//!
//! *A failure*: the shard refuses an operation because it was given up. `Host::run_as` takes it over
//! again (`host/reopening.rs`) and asks the new one, for clients and jobs alike. If the shard's record
//! names another process, the operation fails with `OldEpoch`; if another owner has begun,
//! [`Metanode::superseded`] says so to the process, which drops the metanode.

mod locks;
pub mod report;

mod assignment;
mod background;
mod check;
mod files;
mod holders;
mod host;
mod in_use;
mod judging;
mod lease;
mod metanode;
mod progress;
mod room;
mod sessions;
mod tokens;

pub use crate::assignment::begin_alone;
pub use crate::background::{Servers, Surveys, switch_slots};
pub use crate::host::{DATA_POOL, TAKE_OVER_MAX};
pub use crate::lease::OwnerLease;
pub use crate::locks::Locks;
pub use crate::metanode::{Metanode, Opening};
pub use crate::progress::{Progress, Stage};
pub use crate::report::{
    BackgroundReport, CheckOptions, CheckReport, Counters, Fault, FaultKind, InUse, Moves,
    RepairStatus, ScrubOutcome, ShardStatus, UnreadableData,
};
pub use shard::{Contact, MemoryUse, ShardMemory, Touch, Whole};
