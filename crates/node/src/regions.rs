//! Makes, opens and removes regions, with a remedy in each error.

use super::{IN_USE_PATIENCE, IN_USE_PAUSE};
use model::{Error, ErrorKind, Result};
use std::path::Path;
use world::World;
use world::host::{self, AtPath};

/// Makes a region; never overwrites an existing file.
pub(super) fn make_disk(world: &World, path: &Path, bytes: u64) -> Result<world::Disk> {
    world
        .create_disk(path, bytes)
        .map_err(|error| disk_error(&error, "creating", path, Some(bytes)))
}

/// Opens a region. Waits a little if it is in use: the kernel releases a region of a process that
/// just ended only after its ring's last I/O.
pub(super) async fn open_disk(world: &World, path: &Path) -> Result<world::Disk> {
    let begun = world.now();
    loop {
        match world.open_disk(path) {
            Ok(disk) => return Ok(disk),
            Err(error)
                if error.kind() == std::io::ErrorKind::WouldBlock
                    && world.now() - begun < IN_USE_PATIENCE =>
            {
                world.sleep(IN_USE_PAUSE).await;
            }
            Err(error) => return Err(disk_error(&error, "opening", path, None)),
        }
    }
}

/// Removes a region that holds nothing; fine if it doesn't exist.
pub(super) fn remove_region(path: &Path) -> Result<()> {
    host::remove_file(path).map_err(|error| {
        Error::new(ErrorKind::Unavailable, error.to_string())
            .while_doing(format!("removing {}", path.display()))
    })
}

/// Adds a remedy to the error of a region that can't be made or opened.
fn disk_error(error: &std::io::Error, doing: &str, path: &Path, bytes: Option<u64>) -> Error {
    use std::io::ErrorKind as Io;
    let (kind, hint) = match error.kind() {
        Io::NotFound => (ErrorKind::NotFound, "bring it back and try again"),
        Io::AlreadyExists => (
            ErrorKind::Exists,
            "it is never overwritten: use another path, or remove it if nothing in it is needed",
        ),
        Io::PermissionDenied => (
            ErrorKind::AccessDenied,
            "run as its owner, or change its rights (`ls -l`, `lsattr`)",
        ),
        Io::ReadOnlyFilesystem => (
            ErrorKind::ReadOnly,
            "it can only be read; make it writable (`mount -o remount,rw`, `blockdev --setrw`) \
             and look at the kernel's log for the reason",
        ),
        Io::StorageFull => (
            ErrorKind::NoSpace,
            "free space there, or choose a smaller --nsd-size or another --dir",
        ),
        Io::WouldBlock | Io::ResourceBusy => (ErrorKind::Busy, "another process uses it"),
        Io::IsADirectory => (
            ErrorKind::InvalidArgument,
            "a region is a file or a block device",
        ),
        Io::InvalidInput if host::at_path(path) == AtPath::EmptyFile => (
            ErrorKind::InvalidArgument,
            "the region was emptied; bring it back from where it went",
        ),
        Io::InvalidInput => (
            ErrorKind::InvalidArgument,
            "the file system below must support O_DIRECT (ext4, XFS, block devices)",
        ),
        _ => (
            ErrorKind::Unavailable,
            "look at the disk (`dmesg`, `smartctl -a`)",
        ),
    };
    let size = bytes.map_or(String::new(), |bytes| format!(" ({bytes} bytes)"));
    Error::new(kind, format!("{error}; {hint}"))
        .while_doing(format!("{doing} {}{size}", path.display()))
}
