//! A file system in memory: shows the cost of FUSE itself, and serves tests.
//!
//! Deliberately simple: nothing is stored, one lock, no quotas, no holes.

#[path = "memory/behind.rs"]
mod behind;

use behind::Behind;
use bytes::Bytes;
use fuse::{
    Caller, Create, FileSystem, FileSystemSpace, Found, InodeEntry, Interrupted, Listing, Lock,
    LockConflict, Make, Open, OpenMode, Opened, Read, Release, SetXattr, Shown, Validity, Write,
};
use model::operation::{RenameMode, XattrMode};
use model::{
    Attributes, ErrorKind, FileKind, FileName, InodeId, LockKind, LockRange, Result, SetAttributes,
    TimeChange, Timestamp,
};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use world::{Disk, Map, World};

/// More than the kernel reads at once.
const READ_BYTES_MAX: usize = 4 << 20;

/// How a [`MemoryFileSystem`] behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemorySettings {
    /// Writes only move the end of the file, and reads return zeros: measures the transport without
    /// this file system's copies.
    pub discard: bool,
    /// How long the kernel may cache names and attributes.
    pub valid: Duration,
    /// Files opened for writing bypass the kernel's page cache, and no FLUSH is sent, as with the
    /// door. Otherwise everything goes through the page cache.
    pub direct: bool,
}

impl Default for MemorySettings {
    fn default() -> Self {
        Self {
            discard: false,
            valid: Duration::from_secs(6),
            direct: true,
        }
    }
}

/// A file system in memory.
pub struct MemoryFileSystem {
    world: World,
    settings: MemorySettings,
    state: Mutex<MemoryState>,
    unlocked: Notify,
    zeros: Bytes,
    disk: Option<Behind>,
    next_handle: AtomicU64,
}

struct MemoryState {
    nodes: Map<InodeId, Node>,
    next: InodeId,
    locks: Vec<Lock>,
}

struct Node {
    attributes: Attributes,
    content: Content,
    xattrs: BTreeMap<Vec<u8>, Bytes>,
    opens: u32,
}

enum Content {
    File(Vec<u8>),
    Directory {
        parent: InodeId,
        names: Map<FileName, (u64, InodeId)>,
        order: BTreeMap<u64, FileName>,
        next: u64,
    },
    Other(Bytes),
}

impl MemoryFileSystem {
    /// An empty file system.
    #[must_use]
    pub fn new(world: &World, settings: MemorySettings) -> Self {
        let mut nodes = Map::default();
        nodes.insert(
            InodeId::ROOT,
            Node::new(
                InodeId::ROOT,
                FileKind::Directory,
                0o755,
                (0, 0),
                world.wall(),
            ),
        );
        let state = MemoryState {
            nodes,
            next: InodeId(2),
            locks: Vec::new(),
        };
        let zeros = Bytes::from(vec![0; READ_BYTES_MAX]);
        Self {
            world: world.clone(),
            settings,
            state: Mutex::new(state),
            unlocked: Notify::new(),
            zeros,
            disk: None,
            next_handle: AtomicU64::new(1),
        }
    }

    /// With `discard`, data now goes to this disk and comes from it, at its offset in the file:
    /// measures the transport and the disk together. Writes are answered once copied and written
    /// later; fsync waits for them, and fails if they weren't one stream of whole blocks.
    #[must_use]
    pub fn on_disk(self, disk: Disk) -> Self {
        Self {
            disk: Some(Behind::new(disk)),
            ..self
        }
    }

    /// Number of inodes, including the root.
    #[must_use]
    pub fn inodes(&self) -> usize {
        self.state.lock().nodes.len()
    }

    fn entry(&self, attributes: Attributes) -> InodeEntry {
        InodeEntry {
            attributes,
            valid: Validity {
                entry: self.settings.valid,
                attributes: self.settings.valid,
            },
        }
    }

    fn opened(&self, flags: i32) -> Opened {
        let direct = self.settings.direct && flags & libc::O_ACCMODE != libc::O_RDONLY;
        let no_flush = self.settings.direct;
        Opened {
            handle: self.next_handle.fetch_add(1, Ordering::Relaxed),
            mode: OpenMode {
                direct,
                keep_cache: true,
                no_flush,
                cache_directory: false,
            },
        }
    }
}

impl Node {
    fn new(inode: InodeId, kind: FileKind, mode: u32, owner: (u32, u32), now: Timestamp) -> Self {
        let directory = kind == FileKind::Directory;
        let attributes = Attributes {
            inode,
            kind,
            mode,
            uid: owner.0,
            gid: owner.1,
            links: if directory { 2 } else { 1 },
            size: 0,
            allocated: 0,
            rdev: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            generation: 0,
        };
        let content = match kind {
            FileKind::Directory => {
                let (names, order) = (Map::default(), BTreeMap::new());
                Content::Directory {
                    parent: inode,
                    names,
                    order,
                    next: 3,
                }
            }
            FileKind::File => Content::File(Vec::new()),
            _ => Content::Other(Bytes::new()),
        };
        Self {
            attributes,
            content,
            xattrs: BTreeMap::new(),
            opens: 0,
        }
    }

    fn resize(&mut self, size: u64, discard: bool) {
        if let (Content::File(bytes), false) = (&mut self.content, discard) {
            bytes.resize(usize::try_from(size).expect("64 bit"), 0);
        }
        self.attributes.size = size;
        self.attributes.allocated = size;
    }
}

impl MemoryState {
    fn node(&mut self, inode: InodeId) -> Result<&mut Node> {
        self.nodes
            .get_mut(&inode)
            .ok_or_else(|| ErrorKind::NotFound.into())
    }

    fn find(&mut self, directory: InodeId, name: &FileName) -> Result<InodeId> {
        match &self.node(directory)?.content {
            Content::Directory { names, .. } => names
                .get(name)
                .map(|(_, inode)| *inode)
                .ok_or_else(|| ErrorKind::NotFound.into()),
            _ => Err(ErrorKind::NotDirectory.into()),
        }
    }

    fn insert(
        &mut self,
        directory: InodeId,
        name: &FileName,
        inode: InodeId,
        now: Timestamp,
    ) -> Result<()> {
        let is_directory = matches!(self.node(inode)?.content, Content::Directory { .. });
        if let Content::Directory { parent, .. } = &mut self.node(inode)?.content {
            *parent = directory;
        }
        let node = self.node(directory)?;
        let Content::Directory {
            names, order, next, ..
        } = &mut node.content
        else {
            return Err(ErrorKind::NotDirectory.into());
        };
        if names.contains_key(name) {
            return Err(ErrorKind::Exists.into());
        }
        names.insert(name.clone(), (*next, inode));
        order.insert(*next, name.clone());
        *next += 1;
        node.attributes.links += u32::from(is_directory);
        node.attributes.mtime = now.after(node.attributes.ctime);
        node.attributes.ctime = node.attributes.mtime;
        Ok(())
    }

    /// Removes a name without changing the inode.
    fn take(&mut self, directory: InodeId, name: &FileName, now: Timestamp) -> Result<InodeId> {
        let inode = self.find(directory, name)?;
        let is_directory = matches!(self.node(inode)?.content, Content::Directory { .. });
        let node = self.node(directory)?;
        if let Content::Directory { names, order, .. } = &mut node.content
            && let Some((cookie, _)) = names.remove(name)
        {
            order.remove(&cookie);
        }
        node.attributes.links -= u32::from(is_directory);
        node.attributes.mtime = now.after(node.attributes.ctime);
        node.attributes.ctime = node.attributes.mtime;
        Ok(inode)
    }

    fn make(
        &mut self,
        caller: &Caller,
        directory: InodeId,
        name: &FileName,
        make: Make<'_>,
        now: Timestamp,
    ) -> Result<Attributes> {
        let inode = self.next;
        self.next = InodeId(inode.0 + 1);
        let mut node = Node::new(
            inode,
            make.kind,
            make.mode & !make.umask,
            (caller.uid, caller.gid),
            now,
        );
        node.attributes.rdev = make.rdev;
        if make.kind == FileKind::Symlink {
            node.attributes.size = make.target.len() as u64;
            node.content = Content::Other(Bytes::copy_from_slice(make.target));
        }
        let attributes = node.attributes;
        self.nodes.insert(inode, node);
        let inserted = self.insert(directory, name, inode, now);
        if inserted.is_err() {
            self.nodes.remove(&inode);
        }
        inserted.map(|()| attributes)
    }

    fn drop_link(&mut self, inode: InodeId, now: Timestamp) -> Result<()> {
        let node = self.node(inode)?;
        let directory = matches!(node.content, Content::Directory { .. });
        node.attributes.links -= if directory { node.attributes.links } else { 1 };
        node.attributes.ctime = now;
        self.drop_unused(inode);
        Ok(())
    }

    fn drop_unused(&mut self, inode: InodeId) {
        if self
            .nodes
            .get(&inode)
            .is_some_and(|node| node.attributes.links == 0 && node.opens == 0)
        {
            self.nodes.remove(&inode);
        }
    }

    fn is_empty(&mut self, inode: InodeId) -> Result<bool> {
        match &self.node(inode)?.content {
            Content::Directory { names, .. } => Ok(names.is_empty()),
            _ => Err(ErrorKind::NotDirectory.into()),
        }
    }

    fn in_the_way(&self, lock: &Lock) -> Option<LockConflict> {
        let conflict = |held: &Lock| {
            let is_other = held.inode == lock.inode
                && held.flock == lock.flock
                && held.owner != lock.owner
                && held.range.overlaps(lock.range);
            let kind = held.kind.filter(|_| is_other)?;
            [kind, lock.kind?]
                .contains(&LockKind::Exclusive)
                .then_some(LockConflict {
                    range: held.range,
                    kind,
                    pid: held.pid,
                })
        };
        self.locks.iter().find_map(conflict)
    }

    /// Drops the owner's locks inside a range, splitting those that extend beyond it.
    fn unlock(&mut self, lock: &Lock) {
        let mut kept = Vec::new();
        for held in std::mem::take(&mut self.locks) {
            let same =
                held.inode == lock.inode && held.owner == lock.owner && held.flock == lock.flock;
            if !same || !held.range.overlaps(lock.range) {
                kept.push(held);
                continue;
            }
            let (start, end) = (held.range.start, held.range.end);
            if start < lock.range.start {
                let end = lock.range.start - 1;
                let range = LockRange { start, end };
                kept.push(Lock { range, ..held });
            }
            if lock.range.end < end {
                let start = lock.range.end + 1;
                let range = LockRange { start, end };
                kept.push(Lock { range, ..held });
            }
        }
        self.locks = kept;
    }
}

impl FileSystem for MemoryFileSystem {
    async fn lookup(&self, _caller: &Caller, directory: InodeId, name: &FileName) -> Result<Found> {
        let mut state = self.state.lock();
        match state.find(directory, name) {
            Ok(inode) => Ok(Found::Entry(self.entry(state.node(inode)?.attributes))),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Ok(Found::Absent(self.settings.valid))
            }
            Err(error) => Err(error),
        }
    }

    async fn lookup_parent(&self, _caller: &Caller, directory: InodeId) -> Result<InodeEntry> {
        let mut state = self.state.lock();
        let Content::Directory { parent, .. } = state.node(directory)?.content else {
            return Err(ErrorKind::NotDirectory.into());
        };
        Ok(self.entry(state.node(parent)?.attributes))
    }

    async fn get_attributes(&self, _caller: &Caller, inode: InodeId) -> Result<Shown> {
        let attributes = self.state.lock().node(inode)?.attributes;
        Ok(Shown {
            attributes,
            valid: self.settings.valid,
        })
    }

    async fn set_attributes(
        &self,
        _caller: &Caller,
        inode: InodeId,
        set: SetAttributes,
    ) -> Result<Shown> {
        let now = self.world.wall();
        let mut state = self.state.lock();
        let node = state.node(inode)?;
        if let Some(size) = set.size {
            node.resize(size, self.settings.discard);
            node.attributes.mtime = now;
        }
        let time = |change| match change {
            TimeChange::Now => now,
            TimeChange::At(at) => at,
        };
        let a = &mut node.attributes;
        a.mode = set.mode.unwrap_or(a.mode);
        a.uid = set.uid.unwrap_or(a.uid);
        a.gid = set.gid.unwrap_or(a.gid);
        a.atime = set.atime.map_or(a.atime, time);
        a.mtime = set.mtime.map_or(a.mtime, time);
        a.ctime = now.after(a.ctime);
        Ok(Shown {
            attributes: *a,
            valid: self.settings.valid,
        })
    }

    async fn read_link(&self, _caller: &Caller, inode: InodeId) -> Result<Bytes> {
        match &self.state.lock().node(inode)?.content {
            Content::Other(target) => Ok(target.clone()),
            _ => Err(ErrorKind::InvalidArgument.into()),
        }
    }

    async fn create(
        &self,
        caller: &Caller,
        directory: InodeId,
        name: &FileName,
        create: Create,
    ) -> Result<(InodeEntry, Opened)> {
        let make = Make {
            kind: FileKind::File,
            mode: create.mode,
            umask: create.umask,
            rdev: 0,
            target: &[],
        };
        let mut state = self.state.lock();
        let attributes = match state.make(caller, directory, name, make, self.world.wall()) {
            Err(error) if error.kind() == ErrorKind::Exists && create.flags & libc::O_EXCL == 0 => {
                let inode = state.find(directory, name)?;
                state.node(inode)?.attributes
            }
            made => made?,
        };
        state.node(attributes.inode)?.opens += 1;
        Ok((self.entry(attributes), self.opened(create.flags)))
    }

    async fn create_unnamed(
        &self,
        caller: &Caller,
        _directory: InodeId,
        create: Create,
    ) -> Result<(InodeEntry, Opened)> {
        let mut state = self.state.lock();
        let inode = state.next;
        state.next = InodeId(inode.0 + 1);
        let owner = (caller.uid, caller.gid);
        let mut node = Node::new(
            inode,
            FileKind::File,
            create.mode & !create.umask,
            owner,
            self.world.wall(),
        );
        node.attributes.links = 0;
        node.opens = 1;
        let entry = self.entry(node.attributes);
        state.nodes.insert(inode, node);
        Ok((entry, self.opened(create.flags)))
    }

    async fn make(
        &self,
        caller: &Caller,
        directory: InodeId,
        name: &FileName,
        make: Make<'_>,
    ) -> Result<InodeEntry> {
        let attributes =
            self.state
                .lock()
                .make(caller, directory, name, make, self.world.wall())?;
        Ok(self.entry(attributes))
    }

    async fn link(
        &self,
        _caller: &Caller,
        inode: InodeId,
        directory: InodeId,
        name: &FileName,
    ) -> Result<InodeEntry> {
        let mut state = self.state.lock();
        state.insert(directory, name, inode, self.world.wall())?;
        let node = state.node(inode)?;
        node.attributes.links += 1;
        Ok(self.entry(node.attributes))
    }

    async fn unlink(&self, _caller: &Caller, directory: InodeId, name: &FileName) -> Result<()> {
        let now = self.world.wall();
        let mut state = self.state.lock();
        let inode = state.take(directory, name, now)?;
        state.drop_link(inode, now)
    }

    async fn remove_directory(
        &self,
        _caller: &Caller,
        directory: InodeId,
        name: &FileName,
    ) -> Result<()> {
        let now = self.world.wall();
        let mut state = self.state.lock();
        let inode = state.find(directory, name)?;
        if !state.is_empty(inode)? {
            return Err(ErrorKind::NotEmpty.into());
        }
        state.take(directory, name, now)?;
        state.drop_link(inode, now)
    }

    async fn rename(
        &self,
        _caller: &Caller,
        from: (InodeId, &FileName),
        to: (InodeId, &FileName),
        mode: RenameMode,
    ) -> Result<()> {
        let now = self.world.wall();
        let mut state = self.state.lock();
        let moved = state.find(from.0, from.1)?;
        let target = state.find(to.0, to.1).ok();
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(ErrorKind::Exists.into()),
            (RenameMode::Exchange, None) => return Err(ErrorKind::NotFound.into()),
            (RenameMode::Replace, Some(target)) => {
                if target == moved {
                    return Ok(());
                }
                if matches!(state.is_empty(target), Ok(false)) {
                    return Err(ErrorKind::NotEmpty.into());
                }
            }
            _ => {}
        }
        state.take(from.0, from.1, now)?;
        if let Some(target) = target {
            state.take(to.0, to.1, now)?;
            if mode == RenameMode::Exchange {
                state.insert(from.0, from.1, target, now)?;
            } else {
                state.drop_link(target, now)?;
            }
        }
        state.insert(to.0, to.1, moved, now)
    }

    async fn open(&self, _caller: &Caller, inode: InodeId, open: Open) -> Result<Opened> {
        let now = self.world.wall();
        let mut state = self.state.lock();
        let node = state.node(inode)?;
        node.opens += 1;
        if open.flags & libc::O_TRUNC != 0 {
            node.resize(0, self.settings.discard);
            node.attributes.mtime = now;
        }
        Ok(self.opened(open.flags))
    }

    async fn read(&self, _caller: &Caller, read: Read) -> Result<Vec<Bytes>> {
        let (from, bytes) = {
            let mut state = self.state.lock();
            let node = state.node(read.inode)?;
            let from = read.offset.min(node.attributes.size);
            let to = (read.offset + u64::from(read.length)).min(node.attributes.size);
            let length = usize::try_from(to - from).expect("at most 1 MiB");
            let bytes = match &node.content {
                _ if self.settings.discard => self.zeros.slice(..length),
                Content::File(bytes) => Bytes::copy_from_slice(&bytes[from as usize..to as usize]),
                _ => return Err(ErrorKind::InvalidArgument.into()),
            };
            (from, bytes)
        };
        match &self.disk {
            Some(behind) => Ok(vec![behind.read(from, bytes.len()).await?]),
            None => Ok(vec![bytes]),
        }
    }

    async fn write(&self, _caller: &Caller, write: Write<'_>) -> Result<u32> {
        let now = self.world.wall();
        let offset = {
            let mut state = self.state.lock();
            let node = state.node(write.inode)?;
            let append = write.flags & libc::O_APPEND != 0 && !write.from_cache;
            let offset = if append {
                node.attributes.size
            } else {
                write.offset
            };
            let end = offset + write.data.len() as u64;
            if end > node.attributes.size {
                node.resize(end, self.settings.discard);
            }
            if let (Content::File(bytes), false) = (&mut node.content, self.settings.discard) {
                bytes[offset as usize..end as usize].copy_from_slice(write.data);
            }
            node.attributes.mtime = now.after(node.attributes.mtime);
            node.attributes.ctime = now.after(node.attributes.ctime);
            offset
        };
        if let Some(behind) = &self.disk {
            behind.write(&self.world, offset, write.data).await;
        }
        Ok(u32::try_from(write.data.len()).expect("at most 1 MiB"))
    }

    async fn fsync(&self, _caller: &Caller, _inode: InodeId, _data_only: bool) -> Result<()> {
        match &self.disk {
            Some(behind) => behind.flush(&self.world).await,
            None => Ok(()),
        }
    }

    async fn flush(&self, _caller: &Caller, inode: InodeId, handle: u64, owner: u64) -> Result<()> {
        let all = Lock {
            inode,
            handle,
            owner,
            range: LockRange::ALL,
            kind: None,
            pid: 0,
            flock: false,
        };
        self.state.lock().unlock(&all);
        self.unlocked.notify_waiters();
        Ok(())
    }

    async fn release(&self, _caller: &Caller, release: Release) -> Result<()> {
        let mut state = self.state.lock();
        // Only this open's locks: the owner may have locked through another open since.
        let is_its = |held: &Lock| (held.inode, held.handle) == (release.inode, release.handle);
        state.locks.retain(|held| !is_its(held));
        self.unlocked.notify_waiters();
        state.node(release.inode)?.opens -= 1;
        state.drop_unused(release.inode);
        Ok(())
    }

    async fn read_directory(
        &self,
        _caller: &Caller,
        inode: InodeId,
        _handle: u64,
        listing: &mut Listing,
    ) -> Result<()> {
        let mut state = self.state.lock();
        let Content::Directory {
            parent,
            names,
            order,
            ..
        } = &state.node(inode)?.content
        else {
            return Err(ErrorKind::NotDirectory.into());
        };
        if listing.offset() < 1 && !listing.add(inode, FileKind::Directory, b".", 1) {
            return Ok(());
        }
        if listing.offset() < 2 && !listing.add(*parent, FileKind::Directory, b"..", 2) {
            return Ok(());
        }
        let room = listing.room();
        let next: Vec<(u64, FileName, InodeId)> = order
            .range(listing.offset() + 1..)
            .take(room)
            .map(|(cookie, name)| (*cookie, name.clone(), names[name].1))
            .collect();
        for (cookie, name, child) in next {
            let attributes = state.node(child)?.attributes;
            let added = if listing.with_attributes() {
                listing.add_with(&self.entry(attributes), name.as_bytes(), cookie)
            } else {
                listing.add(child, attributes.kind, name.as_bytes(), cookie)
            };
            if !added {
                break;
            }
        }
        Ok(())
    }

    async fn space(&self, _caller: &Caller, _inode: InodeId) -> Result<FileSystemSpace> {
        let files = self.inodes() as u64 + 1_000_000;
        let blocks = 1 << 30;
        Ok(FileSystemSpace {
            block_bytes: 4096,
            blocks,
            free: blocks,
            available: blocks,
            files,
            files_free: 1_000_000,
        })
    }

    async fn set_xattr(&self, _caller: &Caller, inode: InodeId, set: SetXattr<'_>) -> Result<()> {
        let SetXattr {
            name, value, mode, ..
        } = set;
        let mut state = self.state.lock();
        let xattrs = &mut state.node(inode)?.xattrs;
        match (mode, xattrs.contains_key(name)) {
            (XattrMode::Create, true) => return Err(ErrorKind::Exists.into()),
            (XattrMode::Replace, false) => return Err(ErrorKind::NoSuchAttribute.into()),
            _ => xattrs.insert(name.to_vec(), Bytes::copy_from_slice(value)),
        };
        Ok(())
    }

    async fn get_xattr(&self, _caller: &Caller, inode: InodeId, name: &[u8]) -> Result<Bytes> {
        let mut state = self.state.lock();
        state
            .node(inode)?
            .xattrs
            .get(name)
            .cloned()
            .ok_or_else(|| ErrorKind::NoSuchAttribute.into())
    }

    async fn list_xattrs(&self, _caller: &Caller, inode: InodeId) -> Result<Vec<Bytes>> {
        let mut state = self.state.lock();
        Ok(state
            .node(inode)?
            .xattrs
            .keys()
            .cloned()
            .map(Bytes::from)
            .collect())
    }

    async fn remove_xattr(&self, _caller: &Caller, inode: InodeId, name: &[u8]) -> Result<()> {
        let mut state = self.state.lock();
        state
            .node(inode)?
            .xattrs
            .remove(name)
            .map(drop)
            .ok_or_else(|| ErrorKind::NoSuchAttribute.into())
    }

    async fn get_lock(&self, _caller: &Caller, lock: Lock) -> Result<Option<LockConflict>> {
        Ok(self.state.lock().in_the_way(&lock))
    }

    async fn set_lock(
        &self,
        _caller: &Caller,
        lock: Lock,
        mut wait: Option<Interrupted>,
    ) -> Result<()> {
        loop {
            let mut unlocked = std::pin::pin!(self.unlocked.notified());
            unlocked.as_mut().enable();
            {
                let mut state = self.state.lock();
                if state.in_the_way(&lock).is_none() {
                    state.unlock(&lock);
                    if lock.kind.is_some() {
                        state.locks.push(lock);
                    }
                    // A downgrade also lets waiters in.
                    self.unlocked.notify_waiters();
                    return Ok(());
                }
            }
            let Some(interrupted) = &mut wait else {
                return Err(ErrorKind::WouldBlock.into());
            };
            tokio::select! {
                () = unlocked => {}
                () = interrupted => return Err(ErrorKind::Interrupted.into()),
            }
        }
    }

    fn open_inodes(&self) -> Vec<InodeId> {
        let state = self.state.lock();
        let open = state.nodes.iter().filter(|(_, node)| node.opens > 0);
        open.map(|(inode, _)| *inode).collect()
    }

    /// As a door: nobody closes any more what programs had open.
    fn unmounted(&self) {
        let mut state = self.state.lock();
        state.nodes.values_mut().for_each(|node| node.opens = 0);
    }
}
