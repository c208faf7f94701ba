//! A POSIX file system as a library: page pool, write-behind, read-ahead, one method per verb.
//!
//! Doors (FUSE and others) call only [`Client`]. A method returns `Ready` on its first poll
//! unless something is really missing: a record, a disk read, durability, or memory for more
//! dirty bytes. What each method promises is in `docs/semantics.md`.

mod client;
mod settings;
mod types;

pub use client::Client;
pub use settings::ClientSettings;
pub use types::{
    Allocate, FileLock, FileSystemUsage, Listing, LockKind, LockOwner, LockRange, OpenFlags, Seek,
    Waiter,
};
