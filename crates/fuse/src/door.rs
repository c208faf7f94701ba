//! The file system of a client: what the kernel asks becomes calls of [`client::Client`].
//!
//! The client knows no FUSE: here are "." and "..", open modes of the kernel's page cache,
//! how long the kernel may believe answers, and when POSIX locks end.

use crate::file_system::{
    Caller, CopyRange, Create, Entry, Fallocate, FileSystem, Found, Lock, LockKind, Make, Open,
    OpenMode, Opened, Read, Release, SetXattr, Shown, Space, Validity, Write,
};
use crate::listing::Listing;
use crate::notifier::{Notice, Notifier};
use crate::programs::Programs;
use crate::siblings::{Sibling, Siblings};
use bytes::Bytes;
use client::{Allocate, Client, FileLock, LockOwner, LockRange, OpenFlags, ReadTraces, Seek};
use model::limits::LISTING_ENTRIES_MAX;
use model::operation::{NewInode, RenameMode};
use model::{Attributes, Error, ErrorKind, FileKind, FileName, InodeId, Result, SetAttributes};
use parking_lot::{Mutex, MutexGuard};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use world::{Map, Set};

/// Inodes remembered as "somebody locked it once"; beyond, every close is asked about.
const LOCKED_MAX: usize = 65_536;
/// setuid and setgid.
const PRIVILEGE_BITS: u32 = 0o6000;
/// Unit of statfs in bytes.
const SPACE_UNIT_BYTES: u32 = 4096;

/// How long the kernel may believe a [`Door`]. More than the token time (6 s) is never right:
/// a daemon that can't run must not serve old answers for longer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DoorSettings {
    /// Names and attributes that exist.
    pub valid: Duration,
    /// Names that don't.
    pub absent_valid: Duration,
    /// Files opened for writing bypass the kernel's page cache.
    pub direct_writes: bool,
    /// Reads never move atime; else they do as relatime says.
    pub no_atime: bool,
    /// A close asks the file system only where locks were taken. False: always, so that
    /// close(2) tells write errors, at the price of one request per close.
    pub quiet_close: bool,
}

impl Default for DoorSettings {
    fn default() -> Self {
        let valid = Duration::from_secs(6);
        Self {
            valid,
            absent_valid: valid,
            direct_writes: true,
            no_atime: false,
            quiet_close: true,
        }
    }
}

/// The file system of a client.
pub struct Door {
    client: Arc<Client>,
    settings: DoorSettings,
    /// The directory that is the root of the mount. Its node id and inode number are 1 there,
    /// as the kernel demands; nothing else inside can have that number.
    root: InodeId,
    /// Gone when the mount has ended.
    sibling: Mutex<Option<Arc<Sibling>>>,
    siblings: Arc<Siblings>,
    next_handle: AtomicU64,
    /// A POSIX lock was taken through this mount. Every open and close looks here first, on all
    /// CPUs: where nobody locks, none of them waits for another.
    any_lock: AtomicBool,
    locks: Mutex<LocksSeen>,
    programs: Programs,
}

#[derive(Default)]
struct LocksSeen {
    /// Inodes on which a POSIX lock was ever taken through this mount.
    inodes: Set<InodeId>,
    /// `inodes` is full: take every inode for locked.
    everywhere: bool,
    /// Owners of POSIX locks by the open through which they took them: an open that was made
    /// before the first lock sends no FLUSH, so its RELEASE ends them.
    owners: Map<u64, Vec<u64>>,
}

impl Door {
    /// A door to all of `client`, its only one in this process.
    #[must_use]
    pub fn new(client: Arc<Client>, settings: DoorSettings) -> Self {
        let siblings = Arc::new(Siblings::default());
        Self::of(client, settings, InodeId::ROOT, &siblings)
    }

    /// A door to the directory at `path` inside `client` and what is below it. All doors of a
    /// client in this process must be `siblings`.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `InvalidArgument`: the path, and which part of it.
    pub async fn to_directory(
        client: Arc<Client>,
        settings: DoorSettings,
        path: &Path,
        siblings: &Arc<Siblings>,
    ) -> Result<Self> {
        let root = find_directory(&client, path)
            .await
            .map_err(|error| error.while_doing(format!("finding subdir={}", path.display())))?;
        // Held, so that the root of the mount outlives its last name.
        if root != InodeId::ROOT {
            client.open(root, OpenFlags::default()).await?;
        }
        Ok(Self::of(client, settings, root, siblings))
    }

    fn of(
        client: Arc<Client>,
        settings: DoorSettings,
        root: InodeId,
        siblings: &Arc<Siblings>,
    ) -> Self {
        let sibling = siblings.join(client.world().now(), settings.valid);
        Self {
            client,
            settings,
            root,
            sibling: Mutex::new(Some(Arc::new(sibling))),
            siblings: Arc::clone(siblings),
            next_handle: AtomicU64::new(1),
            any_lock: AtomicBool::new(false),
            locks: Mutex::default(),
            programs: Programs::default(),
        }
    }

    /// Waits until no kernel believes what it was told while its door was the only one. To be
    /// called before the door is mounted; takes time only for the second of two doors.
    pub async fn wait_for_siblings(&self) {
        let world = self.client.world();
        let believed = self.sibling().map(|me| me.believed_for(world.now()));
        match believed {
            Some(time) if !time.is_zero() => world.sleep(time).await,
            _ => {}
        }
    }

    /// The door is mounted: how its siblings reach its kernel.
    pub fn reach_by(&self, notifier: &Notifier) {
        if let Some(me) = self.sibling() {
            me.reach_by(notifier.clone());
        }
    }

    fn sibling(&self) -> Option<Arc<Sibling>> {
        self.sibling.lock().clone()
    }

    /// The inode behind a node of the kernel.
    fn inside(&self, node: InodeId) -> InodeId {
        if node == InodeId::ROOT {
            self.root
        } else {
            node
        }
    }

    /// How the kernel knows an inode.
    fn outside(&self, inode: InodeId) -> InodeId {
        if inode == self.root {
            InodeId::ROOT
        } else {
            inode
        }
    }

    /// How long the kernel may believe what it is told; nothing while another kernel's changes
    /// come past it.
    fn valid(&self) -> Duration {
        if self.siblings.are_several() {
            Duration::ZERO
        } else {
            self.settings.valid
        }
    }

    fn shown(&self, mut attributes: Attributes) -> Shown {
        attributes.inode = self.outside(attributes.inode);
        Shown {
            attributes,
            valid: self.valid(),
        }
    }

    fn entry(&self, mut attributes: Attributes) -> Entry {
        attributes.inode = self.outside(attributes.inode);
        let valid = self.valid();
        Entry {
            attributes,
            valid: Validity {
                entry: valid,
                attributes: valid,
            },
        }
    }

    /// Bytes of a file changed: pages that other kernels have mapped are old.
    fn note_change(&self, inode: InodeId) {
        if !self.siblings.are_several() {
            return;
        }
        let Some(me) = self.sibling() else { return };
        me.tell_others(&Notice::Inode {
            inode,
            offset: 0,
            length: 0,
        });
    }

    fn opened(&self, inode: InodeId, flags: i32) -> Opened {
        self.programs.opened(inode, flags);
        // With several kernels none keeps pages: a write that leaves mtime where it is (utimes
        // has set it into the future) would not show.
        let direct = (self.settings.direct_writes && is_writing(flags))
            || flags & libc::O_DIRECT != 0
            || self.siblings.are_several();
        let no_flush = self.settings.quiet_close && !self.is_lock_seen(inode);
        // Pages stay: what this mount writes the kernel itself drops, what others write shows
        // as a new mtime (AUTO_INVAL_DATA).
        let mode = OpenMode {
            direct,
            keep_cache: true,
            no_flush,
            cache_directory: false,
        };
        Opened {
            handle: self.next_handle.fetch_add(1, Ordering::Relaxed),
            mode,
        }
    }

    /// What was locked, unless nothing ever was.
    fn locks_seen(&self) -> Option<MutexGuard<'_, LocksSeen>> {
        let any = self.any_lock.load(Ordering::Acquire);
        any.then(|| self.locks.lock())
    }

    fn is_lock_seen(&self, inode: InodeId) -> bool {
        self.locks_seen()
            .is_some_and(|seen| seen.everywhere || seen.inodes.contains(&inode))
    }

    fn note_lock(&self, lock: &Lock) {
        self.any_lock.store(true, Ordering::Release);
        let mut seen = self.locks.lock();
        if seen.inodes.len() < LOCKED_MAX {
            seen.inodes.insert(lock.inode);
        } else if !seen.inodes.contains(&lock.inode) {
            seen.everywhere = true;
        }
        let owners = seen.owners.entry(lock.handle).or_default();
        if !owners.contains(&lock.owner) {
            owners.push(lock.owner);
        }
    }

    /// Who took POSIX locks through an open that ends.
    fn take_lock_owners(&self, handle: u64) -> Vec<u64> {
        self.locks_seen()
            .and_then(|mut seen| seen.owners.remove(&handle))
            .unwrap_or_default()
    }

    async fn open_existing(
        &self,
        caller: &Caller,
        inode: InodeId,
        flags: i32,
        kill: bool,
    ) -> Result<Attributes> {
        if self.programs.would_be_cut(inode, flags) {
            return Err(ErrorKind::BeingExecuted.into());
        }
        let truncate = flags & libc::O_TRUNC != 0;
        let attributes = self
            .client
            .open(
                inode,
                OpenFlags {
                    write: is_writing(flags),
                    truncate,
                },
            )
            .await?;
        if truncate {
            self.note_change(inode);
        }
        if truncate && kill {
            self.kill_privileges(caller, inode, &attributes).await?;
        }
        Ok(attributes)
    }

    /// A write or truncate by somebody who may not keep setuid and setgid.
    async fn kill_privileges(
        &self,
        _caller: &Caller,
        inode: InodeId,
        now: &Attributes,
    ) -> Result<()> {
        if now.mode & PRIVILEGE_BITS != 0 {
            let set = SetAttributes {
                kill_privileges: true,
                ..SetAttributes::default()
            };
            self.client.set_attributes(inode, set).await?;
        }
        Ok(())
    }
}

/// Walks from the root; symbolic links are not followed, since they may lead out.
async fn find_directory(client: &Client, path: &Path) -> Result<InodeId> {
    let mut found = InodeId::ROOT;
    for part in path.components() {
        let name = match part {
            Component::RootDir | Component::CurDir => continue,
            Component::Normal(name) => FileName::new(name.as_bytes())?,
            _ => {
                return Err(Error::new(
                    ErrorKind::InvalidArgument,
                    "\"..\" may not be in it; write the path from the root of the file system",
                ));
            }
        };
        let shown = String::from_utf8_lossy(name.as_bytes()).into_owned();
        let attributes = client.lookup(found, name).await.map_err(|error| {
            if error.kind() == ErrorKind::NotFound {
                let text = format!(
                    "there is no {shown:?} in the file system; mount the whole of it and make it with `mkdir -p`"
                );
                Error::new(ErrorKind::NotFound, text)
            } else {
                error
            }
        })?;
        if attributes.kind != FileKind::Directory {
            let text = format!("{shown:?} is no directory (symbolic links aren't followed)");
            return Err(Error::new(ErrorKind::NotDirectory, text));
        }
        found = attributes.inode;
    }
    Ok(found)
}

fn is_writing(flags: i32) -> bool {
    flags & libc::O_ACCMODE != libc::O_RDONLY
}

fn new_inode(caller: &Caller, kind: FileKind, mode: u32, umask: u32) -> NewInode {
    NewInode {
        kind,
        mode,
        umask,
        uid: caller.uid,
        gid: caller.gid,
        rdev: 0,
        target: Bytes::new(),
    }
}

fn file_lock(lock: &Lock) -> FileLock {
    let kind = match lock.kind {
        LockKind::Shared => client::LockKind::Shared,
        LockKind::Exclusive => client::LockKind::Exclusive,
        LockKind::Unlock => client::LockKind::Unlock,
    };
    FileLock {
        range: LockRange {
            start: lock.start,
            end: lock.end,
        },
        kind,
        pid: lock.pid,
    }
}

impl FileSystem for Door {
    async fn lookup(&self, _caller: &Caller, directory: InodeId, name: &FileName) -> Result<Found> {
        let directory = self.inside(directory);
        match self.client.lookup(directory, name.clone()).await {
            Ok(attributes) => Ok(Found::Entry(self.entry(attributes))),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Ok(Found::Absent(self.settings.absent_valid.min(self.valid())))
            }
            Err(error) => Err(error),
        }
    }

    async fn lookup_parent(&self, _caller: &Caller, directory: InodeId) -> Result<Entry> {
        let directory = self.inside(directory);
        // The root of the mount is its own parent: nothing above it is to be seen.
        let parent = if directory == self.root {
            self.client.get_attributes(directory).await?
        } else {
            self.client.lookup_parent(directory).await?
        };
        Ok(self.entry(parent))
    }

    async fn get_attributes(&self, _caller: &Caller, inode: InodeId) -> Result<Shown> {
        let inode = self.inside(inode);
        Ok(self.shown(self.client.get_attributes(inode).await?))
    }

    async fn set_attributes(
        &self,
        _caller: &Caller,
        inode: InodeId,
        mut set: SetAttributes,
    ) -> Result<Shown> {
        // HANDLE_KILLPRIV_V2: a chown drops setuid and setgid here, whoever calls; for
        // writes and truncates the kernel says when.
        set.kill_privileges |= (set.uid.is_some() || set.gid.is_some()) && set.mode.is_none();
        let inode = self.inside(inode);
        let attributes = self.client.set_attributes(inode, set).await?;
        if set.size.is_some() {
            self.note_change(inode);
        }
        Ok(self.shown(attributes))
    }

    async fn read_link(&self, _caller: &Caller, inode: InodeId) -> Result<Bytes> {
        self.client.read_link(inode).await
    }

    async fn create(
        &self,
        caller: &Caller,
        directory: InodeId,
        name: &FileName,
        create: Create,
    ) -> Result<(Entry, Opened)> {
        let directory = self.inside(directory);
        let new = new_inode(caller, FileKind::File, create.mode, create.umask);
        let attributes = match self
            .client
            .create_and_open(directory, name.clone(), new)
            .await
        {
            // The kernel believed that the name is free; somebody was faster.
            Err(error) if error.kind() == ErrorKind::Exists && create.flags & libc::O_EXCL == 0 => {
                let found = self.client.lookup(directory, name.clone()).await?;
                if found.kind != FileKind::File {
                    return Err(error);
                }
                self.open_existing(caller, found.inode, create.flags, create.kill_privileges)
                    .await?
            }
            made => made?,
        };
        Ok((
            self.entry(attributes),
            self.opened(attributes.inode, create.flags),
        ))
    }

    async fn create_unnamed(
        &self,
        caller: &Caller,
        directory: InodeId,
        create: Create,
    ) -> Result<(Entry, Opened)> {
        let directory = self.inside(directory);
        let new = new_inode(caller, FileKind::File, create.mode, create.umask);
        let attributes = self.client.create_unnamed(directory, new).await?;
        Ok((
            self.entry(attributes),
            self.opened(attributes.inode, create.flags),
        ))
    }

    async fn make(
        &self,
        caller: &Caller,
        directory: InodeId,
        name: &FileName,
        make: Make<'_>,
    ) -> Result<Entry> {
        let directory = self.inside(directory);
        let target = Bytes::copy_from_slice(make.target);
        let new = NewInode {
            rdev: make.rdev,
            target,
            ..new_inode(caller, make.kind, make.mode, make.umask)
        };
        Ok(self.entry(self.client.create(directory, name.clone(), new).await?))
    }

    async fn link(
        &self,
        _caller: &Caller,
        inode: InodeId,
        directory: InodeId,
        name: &FileName,
    ) -> Result<Entry> {
        let directory = self.inside(directory);
        Ok(self.entry(self.client.link(inode, directory, name.clone()).await?))
    }

    async fn unlink(&self, _caller: &Caller, directory: InodeId, name: &FileName) -> Result<()> {
        let directory = self.inside(directory);
        self.client.unlink(directory, name.clone()).await
    }

    async fn remove_directory(
        &self,
        _caller: &Caller,
        directory: InodeId,
        name: &FileName,
    ) -> Result<()> {
        let directory = self.inside(directory);
        self.client.remove_directory(directory, name.clone()).await
    }

    async fn rename(
        &self,
        _caller: &Caller,
        from: (InodeId, &FileName),
        to: (InodeId, &FileName),
        mode: RenameMode,
    ) -> Result<()> {
        let (from_directory, to_directory) = (self.inside(from.0), self.inside(to.0));
        let (from_name, to_name) = (from.1.clone(), to.1.clone());
        self.client
            .rename(from_directory, from_name, to_directory, to_name, mode)
            .await
    }

    async fn open(&self, caller: &Caller, inode: InodeId, open: Open) -> Result<Opened> {
        self.open_existing(caller, inode, open.flags, open.kill_privileges)
            .await?;
        Ok(self.opened(inode, open.flags))
    }

    async fn read(&self, _caller: &Caller, read: Read) -> Result<Vec<Bytes>> {
        let (inode, offset, length) = (read.inode, read.offset, read.length as usize);
        let traces = ReadTraces {
            atime: !self.settings.no_atime && read.flags & libc::O_NOATIME == 0,
            cached: read.flags & libc::O_DIRECT == 0,
        };
        self.client
            .read_leaving(inode, offset, length, traces)
            .await
    }

    async fn write(&self, caller: &Caller, write: Write<'_>) -> Result<u32> {
        let inode = write.inode;
        if write.kill_privileges {
            // Set on every write of a user who isn't root, so look before changing anything.
            let now = self.client.get_attributes(inode).await?;
            self.kill_privileges(caller, inode, &now).await?;
        }
        if write.flags & libc::O_APPEND != 0 && !write.from_cache {
            self.client.append(inode, write.data).await?;
        } else {
            self.client.write(inode, write.offset, write.data).await?;
        }
        self.note_change(inode);
        // The kernel sends no FSYNC after a write that bypasses its page cache; O_SYNC
        // contains O_DSYNC.
        if write.flags & libc::O_DSYNC != 0 && !write.from_cache {
            self.client
                .fsync(inode, write.flags & libc::O_SYNC != libc::O_SYNC)
                .await?;
        }
        Ok(u32::try_from(write.data.len()).expect("requests have at most 1 MiB"))
    }

    async fn flush(
        &self,
        _caller: &Caller,
        inode: InodeId,
        _handle: u64,
        owner: u64,
    ) -> Result<()> {
        if self.is_lock_seen(inode) {
            self.client
                .release_locks(inode, LockOwner(owner), false)
                .await;
        }
        self.client.flush(inode).await
    }

    async fn release(&self, _caller: &Caller, release: Release) -> Result<()> {
        let inode = release.inode;
        for owner in self.take_lock_owners(release.handle) {
            self.client
                .release_locks(inode, LockOwner(owner), false)
                .await;
        }
        if let Some(owner) = release.unlock_flock {
            self.client
                .release_locks(inode, LockOwner(owner), true)
                .await;
        }
        let flushed = if is_writing(release.flags) {
            self.client.flush(inode).await
        } else {
            Ok(())
        };
        self.programs.released(inode, release.flags);
        self.client.release(inode).await;
        // Nobody hears the answer of a RELEASE.
        if let Err(error) = flushed {
            tracing::error!(%inode, %error, "what a program wrote before it closed the file could not be stored");
        }
        Ok(())
    }

    async fn fsync(&self, _caller: &Caller, inode: InodeId, data_only: bool) -> Result<()> {
        self.client.fsync(self.inside(inode), data_only).await
    }

    async fn sync_all(&self, _caller: &Caller) -> Result<()> {
        self.client.sync_all().await
    }

    async fn open_directory(&self, _caller: &Caller, inode: InodeId) -> Result<Opened> {
        let inode = self.inside(inode);
        self.client.open(inode, OpenFlags::default()).await?;
        Ok(Opened::default())
    }

    async fn read_directory(
        &self,
        _caller: &Caller,
        inode: InodeId,
        _handle: u64,
        listing: &mut Listing,
    ) -> Result<()> {
        let inode = self.inside(inode);
        let shown = self.outside(inode);
        if listing.offset() < 1 && !listing.add(shown, FileKind::Directory, b".", 1) {
            return Ok(());
        }
        if listing.offset() < 2 {
            // The root has no parent to be seen, and a directory that was removed while open has
            // none any more.
            let parent = if inode == self.root {
                shown
            } else {
                let parent = self.client.lookup_parent(inode).await;
                parent.map_or(shown, |parent| self.outside(parent.inode))
            };
            if !listing.add(parent, FileKind::Directory, b"..", 2) {
                return Ok(());
            }
        }
        let with_attributes = listing.with_attributes();
        loop {
            let after = if listing.offset() <= 2 {
                0
            } else {
                listing.offset()
            };
            let limit = listing.room().min(LISTING_ENTRIES_MAX) as u32;
            let page = self
                .client
                .read_directory(inode, after, limit, with_attributes)
                .await?;
            for entry in &page.entries {
                let name = entry.name.as_bytes();
                let added = match entry.attributes {
                    Some(attributes) if with_attributes => {
                        listing.add_with(&self.entry(attributes), name, entry.position)
                    }
                    _ => listing.add(entry.inode, entry.kind, name, entry.position),
                };
                if !added {
                    return Ok(());
                }
            }
            if page.end || page.entries.is_empty() {
                return Ok(());
            }
        }
    }

    async fn release_directory(
        &self,
        _caller: &Caller,
        inode: InodeId,
        _handle: u64,
    ) -> Result<()> {
        self.client.release(self.inside(inode)).await;
        Ok(())
    }

    async fn space(&self, _caller: &Caller, inode: InodeId) -> Result<Space> {
        let usage = self.client.usage(self.inside(inode)).await?;
        let unit = u64::from(SPACE_UNIT_BYTES);
        // Inodes are limited by space only: each takes about a unit.
        let files_free = usage.available / unit;
        Ok(Space {
            block_bytes: SPACE_UNIT_BYTES,
            blocks: usage.capacity / unit,
            free: usage.free / unit,
            available: usage.available / unit,
            files: usage.inodes + files_free,
            files_free,
        })
    }

    async fn set_xattr(&self, _caller: &Caller, inode: InodeId, set: SetXattr<'_>) -> Result<()> {
        let inode = self.inside(inode);
        self.client
            .set_xattr_and_bits(inode, set.name, set.value, set.mode, set.drop_setgid)
            .await
    }

    async fn get_xattr(&self, _caller: &Caller, inode: InodeId, name: &[u8]) -> Result<Bytes> {
        self.client.get_xattr(self.inside(inode), name).await
    }

    async fn list_xattrs(&self, caller: &Caller, inode: InodeId) -> Result<Vec<Bytes>> {
        let mut names = self.client.list_xattrs(self.inside(inode)).await?;
        if caller.uid != 0 {
            // The kernel guards reading and writing them, not that they are listed.
            names.retain(|name| !name.starts_with(b"trusted."));
        }
        Ok(names)
    }

    async fn remove_xattr(&self, _caller: &Caller, inode: InodeId, name: &[u8]) -> Result<()> {
        self.client.remove_xattr(self.inside(inode), name).await
    }

    async fn get_lock(&self, _caller: &Caller, lock: Lock) -> Result<Option<Lock>> {
        let held = self
            .client
            .get_lock(lock.inode, LockOwner(lock.owner), file_lock(&lock))
            .await?;
        let kind = match held.kind {
            client::LockKind::Shared => LockKind::Shared,
            client::LockKind::Exclusive => LockKind::Exclusive,
            client::LockKind::Unlock => return Ok(None),
        };
        Ok(Some(Lock {
            start: held.range.start,
            end: held.range.end,
            kind,
            pid: held.pid,
            ..lock
        }))
    }

    async fn set_lock(&self, _caller: &Caller, lock: Lock, wait: bool) -> Result<()> {
        let owner = LockOwner(lock.owner);
        let wanted = file_lock(&lock);
        if lock.flock {
            // Ends with RELEASE, which the kernel marks for it.
            return self
                .client
                .flock(lock.inode, owner, wanted.kind, wait)
                .await;
        }
        if lock.kind != LockKind::Unlock {
            // Before it is granted: a close may come right behind the grant.
            self.note_lock(&lock);
        }
        self.client.set_lock(lock.inode, owner, wanted, wait).await
    }

    async fn fallocate(&self, _caller: &Caller, request: Fallocate) -> Result<()> {
        let keep_size = request.mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let how = match request.mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 => Allocate::Reserve { keep_size },
            libc::FALLOC_FL_PUNCH_HOLE if keep_size => Allocate::Punch,
            libc::FALLOC_FL_ZERO_RANGE => Allocate::Zero { keep_size },
            _ => return Err(ErrorKind::NotSupported.into()),
        };
        let allocated = self
            .client
            .allocate(request.inode, how, request.offset, request.length)
            .await;
        self.note_change(request.inode);
        allocated
    }

    async fn seek(
        &self,
        _caller: &Caller,
        inode: InodeId,
        offset: u64,
        whence: i32,
    ) -> Result<u64> {
        let what = match whence {
            libc::SEEK_DATA => Seek::Data,
            libc::SEEK_HOLE => Seek::Hole,
            _ => return Err(Error::from(ErrorKind::InvalidArgument)),
        };
        self.client.seek(inode, offset, what).await
    }

    async fn copy_range(&self, _caller: &Caller, request: CopyRange) -> Result<u64> {
        let CopyRange {
            from,
            from_offset,
            to,
            to_offset,
            length,
        } = request;
        let copied = self
            .client
            .copy_range(from, from_offset, to, to_offset, length)
            .await;
        self.note_change(to);
        copied
    }

    fn unmounted(&self) {
        if self.sibling.lock().take().is_some() && self.root != InodeId::ROOT {
            let (client, root) = (Arc::clone(&self.client), self.root);
            let world = client.world().clone();
            world
                .spawn("end of a mount", async move { client.release(root).await })
                .detach();
        }
    }
}
