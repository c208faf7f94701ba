//! The mounts of a node: one of its own, and those that were added while it runs.

use super::users::who_uses;
use crate::{admin::MountLine, options::Options};
use client::Client;
use fuse::{
    Door, DoorSettings, Mount, MountOptions, Siblings, Transport, TransportChoice, Unmount,
    WaitingRequest,
};
use model::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::sync::watch;
use world::World;

/// Mounts of one node at most.
const MOUNTS_MAX: usize = 64;

/// The mounts of a node.
pub struct Mounts {
    world: World,
    client: Arc<Client>,
    /// What `df` and the mount table show as the device.
    source: PathBuf,
    siblings: Arc<Siblings>,
    list: Mutex<Vec<Arc<OneMount>>>,
    /// One mount is made at a time; none any more once this is true.
    making: tokio::sync::Mutex<bool>,
    /// An attempt to mount failed.
    failed: tokio::sync::Notify,
    /// How many there are, for those who wait for a change.
    count: watch::Sender<usize>,
}

struct OneMount {
    mount: Mount,
    options: Options,
}

impl Mounts {
    /// None yet.
    pub fn new(client: &Arc<Client>, source: PathBuf) -> Arc<Self> {
        Arc::new(Self {
            world: client.world().clone(),
            client: client.clone(),
            source,
            siblings: Arc::default(),
            list: Mutex::default(),
            making: tokio::sync::Mutex::default(),
            failed: tokio::sync::Notify::new(),
            count: watch::Sender::new(0),
        })
    }

    /// Mounts. The second mount of a node waits until the kernel doesn't believe any more what
    /// it was told through the first (6 s).
    ///
    /// # Errors
    /// What is wrong with the mount point or the options, and what to do.
    pub async fn add(self: &Arc<Self>, mountpoint: &Path, options: &Options) -> Result<()> {
        let made = self.make(mountpoint, options).await;
        if made.is_err() {
            self.failed.notify_one();
        }
        made
    }

    async fn make(self: &Arc<Self>, mountpoint: &Path, options: &Options) -> Result<()> {
        let closed = self.making.lock().await;
        if *closed {
            let text = "the node ends, because its last mount is gone";
            return Err(Error::new(ErrorKind::ShuttingDown, text));
        }
        if self.list.lock().len() >= MOUNTS_MAX {
            let text = format!("this node has {MOUNTS_MAX} mounts already; unmount one first");
            return Err(Error::new(ErrorKind::Busy, text));
        }
        let mut how = MountOptions::new(mountpoint);
        how.name = self.source.display().to_string();
        how.flags = options.flags;
        how.allow_other |= options.allow_other;
        how.transport = options.transport;
        let settings = DoorSettings {
            // A mount that may not change anything doesn't change access times either.
            no_atime: options.flags.no_atime || options.flags.read_only,
            ..DoorSettings::default()
        };
        let path = options.subdir.clone().unwrap_or_default();
        let door = Door::to_directory(self.client.clone(), settings, &path, &self.siblings).await?;
        let door = Arc::new(door);
        door.wait_for_siblings().await;
        let (world, served) = (self.world.clone(), door.clone());
        let mount = self
            .world
            .blocking(move || Mount::start(&world, served, &how))
            .await
            .inspect_err(|_| fuse::FileSystem::unmounted(&*door))?;
        door.reach_by(mount.notifier());
        let one = Arc::new(OneMount {
            mount,
            options: options.clone(),
        });
        self.list.lock().push(one.clone());
        self.tell_count();
        let mounts = self.clone();
        let watch = async move { mounts.watch(one).await };
        self.world.spawn("end of a mount", watch).detach();
        Ok(())
    }

    /// Takes a mount from the list when it has ended, by whoever's hand. umount(8) promises
    /// that what was written is safe.
    async fn watch(&self, one: Arc<OneMount>) {
        one.mount.ended().await;
        if let Err(error) = self.client.sync_all().await
            && error.kind() != ErrorKind::ShuttingDown
        {
            tracing::warn!(%error, "what was written through a mount that ended isn't all durable yet");
        }
        self.list.lock().retain(|other| !Arc::ptr_eq(other, &one));
        self.tell_count();
    }

    fn tell_count(&self) {
        self.count.send_replace(self.list.lock().len());
    }

    /// Ends a mount.
    ///
    /// # Errors
    /// `NotFound` if this node has no such mount; `Busy`, with who uses it.
    pub async fn remove(&self, mountpoint: &Path, how: Unmount) -> Result<()> {
        let found = self.find(mountpoint);
        let one = found.ok_or_else(|| {
            let text = format!(
                "this node has no mount at {}; `shale status` lists its mounts",
                mountpoint.display()
            );
            Error::new(ErrorKind::NotFound, text)
        })?;
        self.end(&one, how).await
    }

    async fn end(&self, one: &OneMount, how: Unmount) -> Result<()> {
        let refused = match one.mount.unmount(how).await {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        if refused.kind() != ErrorKind::Busy {
            return Err(refused);
        }
        let mountpoint = one.mount.mountpoint();
        let users = match who_uses(mountpoint) {
            users if users.is_empty() => String::new(),
            users => format!(": {users}"),
        };
        let text = format!(
            "programs still use {}{users}; end them (`fuser -vm {0}` shows them), or use --force",
            mountpoint.display()
        );
        Err(Error::new(ErrorKind::Busy, text))
    }

    /// Ends all mounts, or none if one is in use.
    ///
    /// # Errors
    /// `Busy`, with who uses it.
    pub async fn end_all(self: &Arc<Self>, how: Unmount) -> Result<()> {
        let all: Vec<_> = self.list.lock().iter().rev().cloned().collect();
        let mut ended: Vec<Arc<OneMount>> = Vec::new();
        for one in all {
            if let Err(error) = self.end(&one, how).await {
                for one in ended.iter().rev() {
                    self.add(one.mount.mountpoint(), &one.options).await?;
                }
                return Err(error);
            }
            ended.push(one);
        }
        Ok(())
    }

    /// Whether a mount is to be found at that place.
    pub fn has(&self, mountpoint: &Path) -> bool {
        let real = real_path(mountpoint);
        let list = self.list.lock();
        list.iter()
            .any(|one| one.mount.mountpoint() == real && one.mount.is_attached())
    }

    /// Paths are compared as the kernel knows them; the mount itself isn't asked.
    fn find(&self, mountpoint: &Path) -> Option<Arc<OneMount>> {
        let real = real_path(mountpoint);
        let list = self.list.lock();
        list.iter()
            .rev()
            .find(|one| one.mount.mountpoint() == real && one.mount.is_attached())
            .or_else(|| {
                list.iter()
                    .rev()
                    .find(|one| one.mount.mountpoint() == real && !one.mount.is_ended())
            })
            .cloned()
    }

    /// Waits until there is no mount (any more).
    pub async fn none_left(&self) {
        // The sender lives as long as this, so the wait can't fail.
        let _ = self.count.subscribe().wait_for(|count| *count == 0).await;
    }

    /// Waits until there is a mount, or an attempt to make one has failed.
    pub async fn first_attempt(&self) {
        let mut count = self.count.subscribe();
        tokio::select! {
            _ = count.wait_for(|count| *count > 0) => {}
            () = self.failed.notified() => {}
        }
    }

    /// Makes no mount any more, if there is none.
    pub async fn close_if_none(&self) -> bool {
        let mut closed = self.making.lock().await;
        *closed = self.list.lock().is_empty();
        *closed
    }

    /// Lines of `shale status`.
    pub fn lines(&self) -> Vec<MountLine> {
        let list = self.list.lock().clone();
        let alive = list.iter().filter(|one| !one.mount.is_ended());
        let lines = alive.map(|one| MountLine {
            path: one.mount.mountpoint().display().to_string(),
            options: one.options.to_string(),
            transport: match one.mount.transport() {
                Transport::IoUring => "io_uring".into(),
                Transport::Classic { .. } => "/dev/fuse".into(),
            },
            slower_because: match one.mount.transport() {
                Transport::Classic { why } if one.options.transport == TransportChoice::Auto => {
                    Some(why.clone())
                }
                _ => None,
            },
            state: if one.mount.is_attached() {
                "mounted".into()
            } else {
                "detached".into()
            },
        });
        lines.collect()
    }

    /// Requests of all mounts that wait now.
    pub fn waiting(&self) -> Vec<WaitingRequest> {
        let list = self.list.lock().clone();
        list.iter().flat_map(|one| one.mount.waiting()).collect()
    }
}

/// What the mount table shows as the device of a node's mounts: its directory without symbolic
/// links.
pub fn source_of(dir: &Path) -> PathBuf {
    dir.canonicalize().unwrap_or_else(|_| dir.to_path_buf())
}

/// Where a node is mounted as the mount table says, whoever serves it.
pub fn mount_points_of(dir: &Path) -> Vec<PathBuf> {
    let source = source_of(dir);
    let all = fuse::mounted_shales().into_iter();
    all.filter(|mount| mount.source == source)
        .map(|mount| mount.mountpoint)
        .collect()
}

/// The path as the mount table has it, without symbolic links. Asks no file system that is
/// mounted there: only links are read, and the root of a mount is none.
pub fn real_path(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    absolute.canonicalize().unwrap_or(absolute)
}
