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
    let settings = MemorySettings {
        discard,
        ..MemorySettings::default()
    };
    let options = MountOptions {
        transport,
        ..MountOptions::new(directory)
    };
    Mount::start(
        world,
        Arc::new(MemoryFileSystem::new(world, settings)),
        &options,
    )
}

/// As [`mount`] with `discard`, but reads come from `disk`: transport and disk in one, with
/// nothing between them.
///
/// # Errors
/// What mounting says.
pub(crate) fn mount_on(world: &World, directory: &Path, disk: &Disk) -> model::Result<Mount> {
    let settings = MemorySettings {
        discard: true,
        ..MemorySettings::default()
    };
    let fs = MemoryFileSystem::new(world, settings).reading_from(disk.clone());
    Mount::start(world, Arc::new(fs), &MountOptions::new(directory))
}
