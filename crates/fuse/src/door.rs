//! The file system of a client: what the kernel asks becomes calls of [`client::Client`].
//!
//! The client knows no FUSE: here are "." and "..", open modes of the kernel's page cache,
//! how long the kernel may believe answers, and when POSIX locks end.

use crate::file_system::{
    Caller, CopyRange, Create, Entry, Fallocate, FileSystem, Found, Lock, LockKind, Make, Open,
    OpenMode, Opened, Read, Release, SetXattr, Shown, Space, Validity, Write,
};
use crate::listing::Listing;
use bytes::Bytes;
use client::{Allocate, Client, FileLock, LockOwner, LockRange, OpenFlags, Seek};
use model::limits::LISTING_ENTRIES_MAX;
use model::operation::{NewInode, RenameMode};
use model::{Attributes, Error, ErrorKind, FileKind, FileName, InodeId, Result, SetAttributes};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
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
            quiet_close: true,
        }
    }
}

/// The file system of a client.
pub struct Door {
    client: Arc<Client>,
    settings: DoorSettings,
    next_handle: AtomicU64,
    locks: Mutex<LocksSeen>,
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
    /// A door to `client`.
    #[must_use]
    pub fn new(client: Arc<Client>, settings: DoorSettings) -> Self {
        Self {
            client,
            settings,
            next_handle: AtomicU64::new(1),
            locks: Mutex::default(),
        }
    }

    fn entry(&self, attributes: Attributes) -> Entry {
        Entry {
            attributes,
            valid: Validity {
                entry: self.settings.valid,
                attributes: self.settings.valid,
            },
        }
    }

    fn opened(&self, inode: InodeId, flags: i32) -> Opened {
        let direct =
            (self.settings.direct_writes && is_writing(flags)) || flags & libc::O_DIRECT != 0;
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

    fn is_lock_seen(&self, inode: InodeId) -> bool {
        let seen = self.locks.lock();
        seen.everywhere || seen.inodes.contains(&inode)
    }

    fn note_lock(&self, lock: &Lock) {
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

    async fn open_existing(
        &self,
        caller: &Caller,
        inode: InodeId,
        flags: i32,
        kill: bool,
    ) -> Result<Attributes> {
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
        match self.client.lookup(directory, name.clone()).await {
            Ok(attributes) => Ok(Found::Entry(self.entry(attributes))),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Ok(Found::Absent(self.settings.absent_valid))
            }
            Err(error) => Err(error),
        }
    }

    async fn lookup_parent(&self, _caller: &Caller, directory: InodeId) -> Result<Entry> {
        Ok(self.entry(self.client.lookup_parent(directory).await?))
    }

    async fn get_attributes(&self, _caller: &Caller, inode: InodeId) -> Result<Shown> {
        Ok(Shown {
            attributes: self.client.get_attributes(inode).await?,
            valid: self.settings.valid,
        })
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
        Ok(Shown {
            attributes: self.client.set_attributes(inode, set).await?,
            valid: self.settings.valid,
        })
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
        Ok(self.entry(self.client.link(inode, directory, name.clone()).await?))
    }

    async fn unlink(&self, _caller: &Caller, directory: InodeId, name: &FileName) -> Result<()> {
        self.client.unlink(directory, name.clone()).await
    }

    async fn remove_directory(
        &self,
        _caller: &Caller,
        directory: InodeId,
        name: &FileName,
    ) -> Result<()> {
        self.client.remove_directory(directory, name.clone()).await
    }

    async fn rename(
        &self,
        _caller: &Caller,
        from: (InodeId, &FileName),
        to: (InodeId, &FileName),
        mode: RenameMode,
    ) -> Result<()> {
        self.client
            .rename(from.0, from.1.clone(), to.0, to.1.clone(), mode)
            .await
    }

    async fn open(&self, caller: &Caller, inode: InodeId, open: Open) -> Result<Opened> {
        self.open_existing(caller, inode, open.flags, open.kill_privileges)
            .await?;
        Ok(self.opened(inode, open.flags))
    }

    async fn read(&self, _caller: &Caller, read: Read) -> Result<Vec<Bytes>> {
        self.client
            .read(read.inode, read.offset, read.length as usize)
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
        let owners = self
            .locks
            .lock()
            .owners
            .remove(&release.handle)
            .unwrap_or_default();
        for owner in owners {
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
        self.client.release(inode).await;
        // Nobody hears the answer of a RELEASE.
        if let Err(error) = flushed {
            tracing::error!(%inode, %error, "what a program wrote before it closed the file could not be stored");
        }
        Ok(())
    }

    async fn fsync(&self, _caller: &Caller, inode: InodeId, data_only: bool) -> Result<()> {
        self.client.fsync(inode, data_only).await
    }

    async fn sync_all(&self, _caller: &Caller) -> Result<()> {
        self.client.sync_all().await
    }

    async fn open_directory(&self, _caller: &Caller, inode: InodeId) -> Result<Opened> {
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
        if listing.offset() < 1 && !listing.add(inode, FileKind::Directory, b".", 1) {
            return Ok(());
        }
        if listing.offset() < 2 {
            // A directory that was removed while open has no parent any more.
            let parent = self
                .client
                .lookup_parent(inode)
                .await
                .map_or(inode, |parent| parent.inode);
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
        self.client.release(inode).await;
        Ok(())
    }

    async fn space(&self, _caller: &Caller, inode: InodeId) -> Result<Space> {
        let usage = self.client.usage(inode).await?;
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
        self.client
            .set_xattr_and_bits(inode, set.name, set.value, set.mode, set.drop_setgid)
            .await
    }

    async fn get_xattr(&self, _caller: &Caller, inode: InodeId, name: &[u8]) -> Result<Bytes> {
        self.client.get_xattr(inode, name).await
    }

    async fn list_xattrs(&self, caller: &Caller, inode: InodeId) -> Result<Vec<Bytes>> {
        let mut names = self.client.list_xattrs(inode).await?;
        if caller.uid != 0 {
            // The kernel guards reading and writing them, not that they are listed.
            names.retain(|name| !name.starts_with(b"trusted."));
        }
        Ok(names)
    }

    async fn remove_xattr(&self, _caller: &Caller, inode: InodeId, name: &[u8]) -> Result<()> {
        self.client.remove_xattr(inode, name).await
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
        self.client
            .allocate(request.inode, how, request.offset, request.length)
            .await
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
        self.client
            .copy_range(from, from_offset, to, to_offset, length)
            .await
    }
}
