//! How a file system is mounted, and how a mount is ended.

use crate::locks::LockScope;
use crate::transport::TransportChoice;
use rustix::mount::{MountAttrFlags, MountFlags};
use rustix::process::geteuid;
use std::path::PathBuf;

/// How a file system is mounted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountOptions {
    /// An existing directory.
    pub mountpoint: PathBuf,
    /// Shown by `mount` and `df` as the device.
    pub name: String,
    /// Flags that the kernel enforces. nosuid and nodev always apply unless root mounts.
    pub flags: KernelFlags,
    /// Users other than the mounting one may use it. Needs `user_allow_other` in /etc/fuse.conf
    /// unless root mounts.
    pub allow_other: bool,
    /// Bytes that the kernel reads ahead of files that it caches. More than 128 KiB takes effect
    /// only if root mounts.
    pub read_ahead_bytes: u32,
    /// The path of requests from the kernel.
    pub transport: TransportChoice,
    /// Who manages file locks.
    pub locks: LockScope,
    /// The kernel neither asks for access control lists nor obeys them.
    pub no_acl: bool,
    /// The kernel's id of a dead mount of ours, if this one is only wanted in its place: none is made if somebody has taken that
    /// away ([`Mount::comes_too_late`](crate::Mount::comes_too_late)).
    pub replaces: Option<u64>,
    /// Threads that read requests from /dev/fuse at all times, if that is the transport.
    pub threads: usize,
    /// Most operations that wait at once, for a disk or another node. From /dev/fuse each holds a thread. With io_uring the
    /// entries of each CPU's first threads come on top where these are more, and a wait for a lock counts, too: at most
    /// three quarters of these may, further ones get ENOLCK.
    pub threads_max: usize,
}

impl MountOptions {
    /// The defaults for a directory: for all users if root mounts, otherwise for the mounting user.
    #[must_use]
    pub fn new(mountpoint: impl Into<PathBuf>) -> Self {
        Self {
            mountpoint: mountpoint.into(),
            name: "shale".to_owned(),
            flags: KernelFlags::default(),
            allow_other: is_root(),
            read_ahead_bytes: 1024 * 1024,
            transport: TransportChoice::Auto,
            locks: LockScope::Cluster,
            no_acl: false,
            replaces: None,
            threads: std::thread::available_parallelism().map_or(2, |cpus| cpus.get().clamp(2, 8)),
            threads_max: THREADS_MAX,
        }
    }
}

/// Default limit of a mount's waiting operations. Enough for a disk queue of 64 on each of a few disks, and
/// for some hundred lock waits.
const THREADS_MAX: usize = 256;

/// How a mount is ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unmount {
    /// Only if no program uses it; `Busy` otherwise.
    IfIdle,
    /// It disappears from the tree of files at once; its users continue until the last descriptor
    /// is closed.
    Lazy,
    /// It ends now: running and later requests fail. Never waits for users.
    Forced,
}

/// Flags that the kernel enforces on any mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KernelFlags {
    /// ro.
    pub read_only: bool,
    /// noatime.
    pub no_atime: bool,
    /// nosuid.
    pub no_suid: bool,
    /// nodev.
    pub no_dev: bool,
    /// noexec.
    pub no_exec: bool,
}

impl KernelFlags {
    pub(crate) fn bits(self) -> MountFlags {
        [
            (self.read_only, MountFlags::RDONLY),
            (self.no_atime, MountFlags::NOATIME),
            (self.no_suid, MountFlags::NOSUID),
            (self.no_dev, MountFlags::NODEV),
            (self.no_exec, MountFlags::NOEXEC),
        ]
        .into_iter()
        .filter_map(|(wanted, bit)| wanted.then_some(bit))
        .collect()
    }

    /// The same for fsmount(2).
    pub(crate) fn attributes(self) -> MountAttrFlags {
        [
            (self.read_only, MountAttrFlags::MOUNT_ATTR_RDONLY),
            (self.no_atime, MountAttrFlags::MOUNT_ATTR_NOATIME),
            (self.no_suid, MountAttrFlags::MOUNT_ATTR_NOSUID),
            (self.no_dev, MountAttrFlags::MOUNT_ATTR_NODEV),
            (self.no_exec, MountAttrFlags::MOUNT_ATTR_NOEXEC),
        ]
        .into_iter()
        .filter_map(|(wanted, bit)| wanted.then_some(bit))
        .collect()
    }
}

pub(crate) fn is_root() -> bool {
    geteuid().is_root()
}

/// The user as whom this process mounts.
pub(crate) fn effective_user() -> u32 {
    geteuid().as_raw()
}
