//! The floor of everything that goes through a mount: the same transport with a file system in
//! memory.

use fuse::{Mount, MountOptions, TransportChoice};
use std::path::Path;
use std::sync::Arc;
use testkit::memory::{MemoryFileSystem, MemorySettings};
use world::{Disk, World};

/// Mounts the floor file system in `directory`, with the door's open modes and validity. With
/// `discard`, written data is dropped and reads return zeros, so that streams measure only the
/// transport and the kernel; without it files keep their bytes. Dropping the mount unmounts it.
///
/// # Errors
/// The error of the mount.
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

/// Like [`mount`] with `discard`, but data is on `disk`: transport and disk with nothing between
/// them.
///
/// # Errors
/// The error of the mount.
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
