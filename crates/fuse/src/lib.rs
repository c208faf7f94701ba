//! Translates FUSE requests to client calls.
//!
//! A thin layer of our own over /dev/fuse: [`Mount`] serves a [`FileSystem`], and [`Door`] is the
//! file system of a [`client::Client`]. Which requests the kernel sends, which of its caches are
//! used and why that is safe: `docs/protocols/fuse.md`.
//!
//! Inside: a transport delivers requests as header, fixed arguments and data; `serving` turns each
//! into a reply. There are two transports: /dev/fuse (`device`, `crew`: threads with cloned
//! descriptors) and FUSE over io_uring (`rings`, `ring_crew`, `shift`, `thread_ring`, `ring_entry`:
//! threads with a ring each, which run several requests at once).

#![allow(
    clippy::disallowed_methods,
    reason = "this crate is the door to the kernel: it opens /dev/fuse, /proc and /sys"
)]

#[cfg(test)]
extern crate self as fuse;

mod abi;
mod connection;
mod copies;
mod cpus;
mod crew;
mod dead;
mod device;
mod door;
mod extended;
mod file_system;
mod fusermount;
mod gate;
mod init;
mod judging;
mod kernel_cache;
mod killed;
mod listed;
mod listing;
mod locks;
mod made;
mod mapped;
#[cfg(test)]
#[path = "../../testkit/src/memory.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "the file system of the tests, as one of this build of the crate"
)]
mod memory;
mod mount;
mod mounting;
mod notifier;
mod opens;
mod options;
mod programs;
mod pulse;
mod refusing;
mod replacing;
mod reply;
mod request;
mod ring_crew;
mod ring_entry;
mod rings;
mod serving;
mod shift;
mod siblings;
mod signals;
mod specials;
mod table;
mod thread_ring;
mod transport;
mod umount_table;
mod unmounted;
mod verbs;
mod waiting;

pub use connection::AbortFile;
pub use cpus::run_on_all_cpus;
pub use dead::DeadMount;
pub use door::{Door, DoorSettings};
pub use extended::node_has_selinux;
pub use file_system::FileSystem;
pub use gate::Held;
pub use listing::Listing;
pub use locks::{Interrupted, LockScope};
pub use mount::{HeldBack, Mount};
pub use mounting::{detach, detach_all, remount, unmount_bind, unmount_foreign};
pub use notifier::{Notice, Notifier};
pub use options::{KernelFlags, MountOptions, Unmount};
pub use siblings::Siblings;
pub use table::{MountedShale, mounted_below, mounted_shales, shale_on};
pub use transport::{Transport, TransportChoice};
pub use umount_table::{forget_ended, is_told, tell_umount};
pub use verbs::{
    Caller, CopyRange, Create, Fallocate, FileSystemSpace, Found, InodeEntry, Lock, LockConflict,
    Make, Open, OpenMode, Opened, Read, Release, SetXattr, Shown, Validity, Write,
};
pub use waiting::WaitingRequest;
