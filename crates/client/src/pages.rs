//! In-memory data of one inode: dirty bytes, cached bytes, known extents. Pure; no I/O.

pub(crate) mod clean;
pub(crate) mod dirty;
pub(crate) mod extents;
pub(crate) mod memory;
pub(crate) mod ranges;
mod run_memory;
