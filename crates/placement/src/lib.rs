//! Decides where pieces live and how a segment is written, read and repaired; encodes and decodes.
//!
//! Pure: no I/O, no async, no clock, no randomness except from seeds. [`Groups`] turns a
//! [`model::map::PoolMap`] into placement groups and picks one for each new segment; [`layout`] is
//! the arithmetic of pieces; [`codec`] computes parity and lost pieces with ISA-L; [`change`] makes
//! the next map when NSDs are added, drained or lost; [`balance`] chooses the segments that move so
//! that every NSD holds its share. `docs/formats/segment.md` specifies bytes and
//! rules.

pub mod balance;
pub mod change;
pub mod codec;
pub mod groups;
pub mod layout;
mod pick;
mod random;

pub use change::{
    FailsWith, add_nsd, cancel_drain, drain, drain_all, drop_generation, finish_moves, mark_lost,
    new_generation, new_pool, remove_nsd, with_block_bytes, with_failure_groups,
};
pub use groups::{Groups, SlotMembers};
pub use pick::{Availability, NoGroup, Placement};
