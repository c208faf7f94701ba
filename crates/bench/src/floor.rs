//! The floor under everything that goes through a mount: the same transport with a file
//! system in memory behind it.

use fuse::memory::{MemoryFileSystem, MemorySettings};
use fuse::{Mount, MountOptions, TransportChoice};
use std::path::Path;
use std::sync::Arc;
use world::{Disk, World};

/// Mounts the floor file system in `directory`, with the door's open modes and validity.
/// `discard`: data goes nowhere and reads give zeros, so that streams measure the transport
/// and the kernel only; without it files keep their bytes. Dropping the mount ends it.
///
/// # Errors
/// What mounting says.
pub(crate) fn mount(
    world: &World,
    directory: &Path,
    discard: bool,
    transport: TransportChoice,
) -> model::Result<Mount> {
    let options = MountOptions {
        transport,
        ..MountOptions::new(directory)
    };
    Mount::start(world, Arc::new(in_memory(world, discard)), &options)
}

/// As [`mount`] with `discard`, but data is on `disk`: transport and disk in one, with nothing
/// between them.
///
/// # Errors
/// What mounting says.
pub(crate) fn mount_on(world: &World, directory: &Path, disk: &Disk) -> model::Result<Mount> {
    let fs = in_memory(world, true).on_disk(disk.clone());
    Mount::start(world, Arc::new(fs), &MountOptions::new(directory))
}

fn in_memory(world: &World, discard: bool) -> MemoryFileSystem {
    let settings = MemorySettings {
        discard,
        ..MemorySettings::default()
    };
    MemoryFileSystem::new(world, settings)
}
