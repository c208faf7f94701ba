//! A POSIX file system as a library: page pool, write-behind, read-ahead, one method per verb.
//!
//! Doors (FUSE and others) call only [`Client`]. A method returns `Ready` on its first poll unless
//! something is missing: a record, a disk read, durability, or memory for more dirty bytes. The
//! promises of each method are in `docs/semantics.md`.
//!
//! How the parts fit: [`Client`] has one [`inode::InodeState`] per inode that is open, dirty or
//! cached; `write` fills its dirty runs, `publish` freezes them into batches, `store` writes
//! batches as segments, `flusher` decides when, `read` assembles answers from dirty runs, batches,
//! cached bytes and extents, `read_ahead` fetches data before it is requested. All of them speak to
//! the owner through `session`.

mod atime;
mod attributes;
mod client;
mod content;
mod flusher;
mod inode;
mod locks;
mod names;
mod neighbours;
mod opens;
mod owner;
mod pace;
mod page_pool;
mod pages;
mod pattern;
mod privileges;
mod publish;
mod read;
mod read_ahead;
mod session;
mod settings;
mod store;
mod types;
mod unpublished;
mod write;

pub use client::Client;
pub use model::lock::{HeldLock, LockDoor, LockOwner, LockTaker};
pub use owner::{Owner, Owners, RemoteOwner};
pub use settings::ClientSettings;
pub use types::{Allocate, FileSystemUsage, Listing, OpenFlags, Opened, ReadTraces, Seek, Written};
pub use world::Waiter;
