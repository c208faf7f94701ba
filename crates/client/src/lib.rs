//! A POSIX file system as a library: page pool, write-behind, read-ahead, one method per verb.
//!
//! Doors (FUSE and others) call only [`Client`]. A method returns `Ready` on its first poll unless
//! something is missing: a record, a disk read, durability, or memory for more dirty bytes. The
//! promises of each method are in `docs/semantics.md`; which parts there are, and in which order they
//! use each other, begins `client.rs`.

mod atime;
mod attributes;
mod background;
mod client;
mod content;
mod exclusive;
mod inode;
mod kernels;
mod known_names;
mod locks;
mod names;
mod opens;
mod owner;
mod page_pool;
mod pages;
mod patience;
mod privileges;
mod reader;
mod session;
mod settings;
mod tokens;
mod types;
mod write_behind;
mod writer;

pub use client::{Client, Legacy};
pub use kernels::{
    Asked, BELIEVED_MAX, Expired, Found, KeptPages, Kernel, KernelNumber, VALID_MAX, Validity,
};
pub use model::lock::{HeldLock, LockDoor, LockOwner, LockTaker};
pub use owner::{NearOwner, Owner, OwnerWay, Owners, RemoteOwner};
pub use patience::HoldUp;
pub use session::Losses;
pub use settings::ClientSettings;
pub use types::{Allocate, FileSystemUsage, Listing, OpenFlags, Opened, ReadTraces, Seek, Written};
pub use world::Waiter;
