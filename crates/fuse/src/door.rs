//! Serves a [`client::Client`] to the kernel: each request becomes a call of the client.
//!
//! The client knows no FUSE. This file adds "." and "..", the page cache's open modes, how long the
//! kernel may cache answers, and the end of POSIX locks.

mod going_on;

use crate::extended;
use crate::file_system::FileSystem;
use crate::judging::{choose_group, is_for_owners, lost_to, new_inode};
use crate::kernel_cache::{KernelCache, Number};
use crate::listed::{Listed, ListedPage};
use crate::listing::Listing;
use crate::locks::{Interrupted, LockScope};
use crate::notifier::Notifier;
use crate::opens::Opens;
use crate::programs::Programs;
use crate::siblings::{Sibling, Siblings};
use crate::specials::{Lookup, Specials, is_special};
use crate::verbs::{
    Caller, CopyRange, Create, Fallocate, FileSystemSpace, Found, InodeEntry, Lock, LockConflict,
    Make, Open, OpenMode, Opened, Read, Release, SetXattr, Shown, Validity, Write, is_writing,
};
use arc_swap::ArcSwapOption;
use bytes::Bytes;
use client::{
    Allocate, Asked, Client, LockDoor, LockOwner, LockTaker, OpenFlags, ReadTraces, Seek,
};
use model::limits::LISTING_ENTRIES_MAX;
use model::operation::{NewInode, RenameMode};
use model::{
    Attributes, Error, ErrorKind, FileKind, FileName, InodeId, Privileges, Result, SetAttributes,
};
use parking_lot::Mutex;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::watch;

/// Unit of statfs in bytes.
const SPACE_UNIT_BYTES: u32 = 4096;

/// How long the kernel may cache answers of a [`Door`]. Must not exceed the token time (6 s): a
/// daemon that can't run must not leave stale answers valid for longer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DoorSettings {
    /// Names and attributes that exist.
    pub valid: Duration,
    /// Names that don't.
    pub absent_valid: Duration,
    /// Files opened for writing bypass the kernel's page cache.
    pub direct_writes: bool,
    /// Reads never change atime; otherwise they do as relatime says.
    pub no_atime: bool,
    /// Whether the file system or the kernel manages file locks; must match the mount's options.
    pub locks: LockScope,
    /// No access control lists on this mount; must match the mount's options.
    pub no_acl: bool,
    /// The node's kernel labels files ([`crate::node_has_selinux`]).
    pub selinux: bool,
}

impl Default for DoorSettings {
    fn default() -> Self {
        let valid = Duration::from_secs(6);
        Self {
            valid,
            absent_valid: valid,
            direct_writes: true,
            no_atime: false,
            locks: LockScope::Cluster,
            no_acl: false,
            selinux: true,
        }
    }
}

/// The file system of a client.
pub struct Door {
    /// Loaded by every request. None once the door is deserted.
    client: ArcSwapOption<Client>,
    settings: DoorSettings,
    /// The directory that is the root of the mount. There its node id and inode number are 1, as
    /// the kernel demands; no other inode below it can have that number.
    root: InodeId,
    /// None once the mount has ended.
    sibling: Mutex<Option<Arc<Sibling>>>,
    siblings: Arc<Siblings>,
    /// Sends notifications to this door's own kernel, once it is mounted.
    kernel: OnceLock<Notifier>,
    /// What that kernel keeps of the client's answers.
    cached: OnceLock<Arc<KernelCache>>,
    number: Number,
    opens: Opens,
    listed: Listed,
    specials: Specials,
    lock_door: LockDoor,
    programs: Programs,
    /// How many releases are under way in the background.
    releasing: Arc<watch::Sender<usize>>,
}

impl Door {
    /// A door to all of `client`, the only door in this process.
    ///
    /// # Errors
    /// If the owner can't be reached.
    pub async fn new(client: Arc<Client>, settings: DoorSettings) -> Result<Self> {
        Self::of(client, settings, InodeId::ROOT, &Arc::default()).await
    }

    /// A door to the directory at `path` below `base`, the root of the client's file system, and everything below it. All doors of a
    /// client in this process must share `siblings`. Dropping the future leaves nothing open.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `InvalidArgument`, naming the path and the part that is wrong.
    pub async fn to_directory(
        client: Arc<Client>,
        base: InodeId,
        settings: DoorSettings,
        path: &Path,
        siblings: &Arc<Siblings>,
    ) -> Result<Self> {
        let root = find_directory(&client, base, path)
            .await
            .map_err(|error| error.while_doing(format!("finding subdir={}", path.display())))?;
        let (world, siblings) = (client.world().clone(), Arc::clone(siblings));
        let beginning = async move {
            // Held open, so that the root of the mount outlives its last name.
            if root != InodeId::ROOT {
                client.open(root, OpenFlags::default()).await?;
            }
            let door = Self::of(client.clone(), settings, root, &siblings).await;
            if door.is_err() && root != InodeId::ROOT {
                client.release(root).await;
            }
            door
        };
        crate::unmounted::begin(&world, beginning).await
    }

    async fn of(
        client: Arc<Client>,
        settings: DoorSettings,
        root: InodeId,
        siblings: &Arc<Siblings>,
    ) -> Result<Self> {
        let lock_door = client.begin_lock_door().await?;
        let sibling = siblings.join(root, client.world().now(), settings.valid);
        Ok(Self {
            client: ArcSwapOption::new(Some(client)),
            settings,
            root,
            sibling: Mutex::new(Some(Arc::new(sibling))),
            siblings: Arc::clone(siblings),
            kernel: OnceLock::new(),
            cached: OnceLock::new(),
            number: Number::default(),
            opens: Opens::default(),
            listed: Listed::new(settings.valid),
            specials: Specials::default(),
            lock_door,
            programs: Programs::default(),
            releasing: Arc::default(),
        })
    }

    /// Waits until no kernel trusts answers cached while its door was the only one. Must be called
    /// before the door is mounted; takes time only for the second of two doors.
    pub async fn wait_for_siblings(&self) {
        let client = self.client();
        let world = client.world();
        let believed = self.sibling().map(|me| me.believed_for(world.now()));
        if let Some(time) = believed.filter(|time| !time.is_zero()) {
            world.sleep(time).await;
        }
    }

    fn sibling(&self) -> Option<Arc<Sibling>> {
        self.sibling.lock().clone()
    }

    /// The client's inode for a node id of the kernel.
    fn inside(&self, node: InodeId) -> InodeId {
        if node == InodeId::ROOT {
            self.root
        } else {
            node
        }
    }

    /// The kernel's node id for an inode of the client.
    fn outside(&self, inode: InodeId) -> InodeId {
        if inode == self.root {
            InodeId::ROOT
        } else {
            inode
        }
    }

    /// Whether all changes of the file system go through this door's kernel.
    fn is_alone(&self) -> bool {
        !self.siblings.are_several() && self.client().asked().is_alone()
    }

    /// How long the kernel may cache something that the client calls valid for so long: not at all if
    /// other kernels of this client change the same files.
    fn valid(&self, valid: Duration) -> Duration {
        if self.siblings.are_several() {
            Duration::ZERO
        } else {
            valid.min(self.settings.valid)
        }
    }

    /// As [`Door::valid`], of a name.
    fn name_valid(&self, valid: Duration) -> Duration {
        match self.cached.get() {
            Some(cached) if cached.expires_names() => self.valid(valid),
            _ if self.client().asked().is_alone() => self.valid(valid),
            _ => Duration::ZERO,
        }
    }

    /// An answer to what was asked then.
    fn shown(&self, mut attributes: Attributes, asked: Asked) -> Shown {
        attributes.inode = self.outside(attributes.inode);
        Shown {
            attributes,
            valid: self.valid(self.client().valid_since(asked)),
        }
    }

    /// An answer to what was asked then.
    fn entry(&self, attributes: Attributes, asked: Asked) -> InodeEntry {
        let valid = self.client().valid_since(asked);
        let valid = client::Validity {
            name: valid,
            attributes: valid,
        };
        self.entry_for(attributes, valid)
    }

    fn entry_for(&self, mut attributes: Attributes, valid: client::Validity) -> InodeEntry {
        attributes.inode = self.outside(attributes.inode);
        InodeEntry {
            attributes,
            valid: Validity {
                entry: self.name_valid(valid.name),
                attributes: self.valid(valid.attributes),
            },
        }
    }

    /// Bytes of a file or names of a directory changed: makes other kernels drop their pages, which
    /// may be mapped, or be a copy of the names.
    fn note_change(&self, inode: InodeId) {
        if !self.siblings.are_several() {
            return;
        }
        let Some(me) = self.sibling() else { return };
        me.tell_others(inode);
    }

    fn opened(&self, inode: InodeId, flags: i32) -> Opened {
        self.programs.opened(inode, flags);
        // With several kernels none caches pages: a write that leaves mtime unchanged (because the clock hasn't moved
        // since the write before) would not be noticed.
        let direct = (self.settings.direct_writes && is_writing(flags))
            || flags & libc::O_DIRECT != 0
            || !self.is_alone();
        // Cached pages stay valid: the kernel drops those that this mount writes, and notices
        // writes elsewhere by the changed mtime (AUTO_INVAL_DATA). With other clients it drops what it had before this
        // open: the client keeps account only of files that are open, and pages that others read as well are no longer
        // good enough once a program may change them.
        let mode = OpenMode {
            direct,
            keep_cache: self.is_alone(),
            // Any close by a process ends its POSIX locks on the inode, including those it takes
            // later through another open. So every open must report its closes.
            no_flush: self.settings.locks == LockScope::Local,
            cache_directory: false,
        };
        Opened {
            handle: self.opens.add(inode, is_writing(flags)),
            mode,
        }
    }

    fn lock_owner(&self, id: u64) -> LockOwner {
        LockOwner {
            door: self.lock_door,
            id,
        }
    }

    /// An entry that the kernel will remember until FORGET.
    async fn remembered(&self, attributes: Attributes, asked: Asked) -> InodeEntry {
        self.remember(&attributes).await;
        self.entry(attributes, asked)
    }

    async fn remember(&self, attributes: &Attributes) {
        if is_special(attributes.kind) {
            // Boxed because it is rare: otherwise its state would enlarge every lookup's future.
            Box::pin(self.hold_special(attributes.inode, attributes.uid)).await;
        }
    }

    /// The kernel opens FIFOs, sockets and devices without telling us. So they are held as long as
    /// it knows them; otherwise they would vanish with their last name while programs use them.
    async fn hold_special(&self, inode: InodeId, owner: u32) {
        if self.specials.look_up(inode, owner) != Lookup::HoldFirst {
            return;
        }
        // Fails if the inode was just removed.
        let held = self.client().open(inode, OpenFlags::default()).await;
        if held.is_ok() && !self.specials.held(inode, owner) {
            self.client().release(inode).await;
        }
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
        let opened = self
            .client()
            .open(
                inode,
                OpenFlags {
                    write: is_writing(flags),
                    truncate,
                    privileges: lost_to(caller, kill),
                },
            )
            .await?;
        if truncate {
            self.note_change(inode);
        }
        if opened.mode_changed {
            self.forget_mode(inode);
        }
        Ok(opened.attributes)
    }

    /// The mode of an inode that a request holds open has changed, and the reply can't carry it:
    /// makes this door's kernel drop its cached mode before the reply. Otherwise a program executed
    /// meanwhile could still get the setuid bit. Sibling doors' kernels cache nothing.
    fn forget_mode(&self, inode: InodeId) {
        if let Some(kernel) = self.kernel.get() {
            kernel.forget_attributes(self.outside(inode));
        }
    }

    /// Adds entries as far as they fit, a part that the client has in one piece; returns whether the directory has ended.
    async fn list(&self, inode: InodeId, listing: &mut Listing) -> Result<bool> {
        let shown = self.outside(inode);
        if listing.offset() < 1 && !listing.add(shown, FileKind::Directory, b".", 1) {
            return Ok(false);
        }
        if listing.offset() < 2 {
            // The root's parent is invisible, and a directory that was removed while open has none.
            let parent = if inode == self.root {
                shown
            } else {
                let parent = self.client().lookup_parent(inode).await;
                parent.map_or(shown, |parent| self.outside(parent.inode))
            };
            if !listing.add(parent, FileKind::Directory, b"..", 2) {
                return Ok(false);
            }
        }
        let with_attributes = listing.with_attributes();
        // Those two have no position in the directory.
        let after = Some(listing.offset()).filter(|at| *at > 2).unwrap_or(0);
        let limit = listing.room().min(LISTING_ENTRIES_MAX) as u32;
        // One part in each answer: the kernel counts from its end how long it may keep an entry, and the next part may
        // have to wait for the owner, longer than the tokens of the first one last.
        let page = self
            .client()
            .read_directory(inode, after, limit, with_attributes)
            .await?;
        for (entry, valid) in page.entries.iter().zip(&page.valid) {
            let name = entry.name.as_bytes();
            let added = match entry.attributes {
                Some(attributes) if with_attributes => {
                    listing.add_with(&self.entry_for(attributes, *valid), name, entry.position)
                }
                _ => listing.add(entry.inode, entry.kind, name, entry.position),
            };
            if !added {
                return Ok(false);
            }
            if let Some(attributes) = entry.attributes
                && with_attributes
                && is_special(entry.kind)
            {
                Box::pin(self.hold_special(entry.inode, attributes.uid)).await;
            }
        }
        Ok(page.end || page.entries.is_empty())
    }

    /// Whether this door's kernel may have an outdated owner or group of the inode.
    fn may_be_old(&self, inode: InodeId) -> bool {
        self.siblings.may_be_old(inode) || !self.client().asked().is_alone()
    }

    /// Only the owner may change access control lists. The kernel has checked that; checks again if
    /// the kernel may have used an outdated owner.
    async fn judge_list(&self, caller: &Caller, inode: InodeId, name: &[u8]) -> Result<()> {
        if name.starts_with(b"system.")
            && caller.uid != 0
            && self.may_be_old(inode)
            && self.client().get_attributes(inode).await?.uid != caller.uid
            && !crate::judging::may_as_owner(caller)
        {
            return Err(ErrorKind::NotPermitted.into());
        }
        Ok(())
    }

    /// FALLOCATE and COPY_FILE_RANGE change bytes as a write does. The kernel leaves dropping
    /// setuid to the file system (HANDLE_KILLPRIV_V2) and doesn't say who may keep it: root may.
    async fn drop_privileges(&self, caller: &Caller, inode: InodeId) -> Result<()> {
        let privileges = lost_to(caller, caller.uid != 0);
        if self.client().drop_privileges(inode, privileges).await? {
            self.forget_mode(inode);
        }
        Ok(())
    }
}

/// Walks from the root of the file system; symbolic links are not followed, since they may point outside.
async fn find_directory(client: &Client, base: InodeId, path: &Path) -> Result<InodeId> {
    let mut found = base;
    for part in path.components() {
        let name = match part {
            Component::RootDir | Component::CurDir => continue,
            Component::Normal(name) => FileName::new(name.as_bytes())?,
            _ => {
                return Err(Error::new(
                    ErrorKind::InvalidArgument,
                    "it may not contain \"..\"; write the path from the root of the file system",
                ));
            }
        };
        let shown = String::from_utf8_lossy(name.as_bytes()).into_owned();
        let attributes = client.lookup(found, name).await.map_err(|error| {
            if error.kind() == ErrorKind::NotFound {
                let text = format!(
                    "there is no {shown:?} in the file system; mount all of it and make it with \
                     `mkdir -p`"
                );
                Error::new(ErrorKind::NotFound, text)
            } else {
                error
            }
        })?;
        if attributes.kind != FileKind::Directory {
            let text = format!("{shown:?} isn't a directory (symbolic links aren't followed)");
            return Err(Error::new(ErrorKind::NotDirectory, text));
        }
        found = attributes.inode;
    }
    Ok(found)
}

impl FileSystem for Door {
    async fn lookup(&self, _caller: &Caller, directory: InodeId, name: &FileName) -> Result<Found> {
        let directory = self.inside(directory);
        match self
            .client()
            .lookup_to_keep(directory, name.clone())
            .await?
        {
            client::Found::Entry(attributes, valid) => {
                self.remember(&attributes).await;
                Ok(Found::Entry(self.entry_for(attributes, valid)))
            }
            client::Found::Missing(valid) => Ok(Found::Absent(
                self.settings.absent_valid.min(self.name_valid(valid)),
            )),
        }
    }

    async fn lookup_parent(&self, _caller: &Caller, directory: InodeId) -> Result<InodeEntry> {
        let directory = self.inside(directory);
        let asked = self.client().asked();
        // The root of the mount is its own parent: directories above it are invisible.
        let parent = if directory == self.root {
            self.client().get_attributes(directory).await?
        } else {
            self.client().lookup_parent(directory).await?
        };
        Ok(self.entry(parent, asked))
    }

    async fn get_attributes(&self, _caller: &Caller, inode: InodeId) -> Result<Shown> {
        let inode = self.inside(inode);
        let (mut attributes, valid) = self.client().get_attributes_to_keep(inode).await?;
        attributes.inode = self.outside(attributes.inode);
        Ok(Shown {
            attributes,
            valid: self.valid(valid),
        })
    }

    async fn set_attributes(
        &self,
        caller: &Caller,
        inode: InodeId,
        mut set: SetAttributes,
    ) -> Result<Shown> {
        // HANDLE_KILLPRIV_V2: a chown drops setuid and setgid here, whoever calls; for truncates
        // the kernel tells us when to.
        if (set.uid.is_some() || set.gid.is_some()) && set.mode.is_none() {
            let group = (caller.uid != 0).then_some(caller.gid);
            set.privileges = Privileges::Drop { group };
        }
        let (inode, asked) = (self.inside(inode), self.client().asked());
        if set.uid.is_some() || set.gid.is_some() {
            self.siblings.note_owner(inode);
        }
        if is_for_owners(&set) && caller.uid != 0 && self.may_be_old(inode) {
            let client = self.client();
            let judged = crate::judging::judged(&client, caller, inode, &set);
            set.only_for = Some(judged.await?);
        }
        let attributes = crate::judging::set_attributes(&self.client(), caller, inode, set).await?;
        if set.size.is_some() {
            self.note_change(inode);
        }
        Ok(self.shown(attributes, asked))
    }

    async fn read_link(&self, _caller: &Caller, inode: InodeId) -> Result<Bytes> {
        self.client().read_link(inode).await
    }

    async fn create(
        &self,
        caller: &Caller,
        directory: InodeId,
        name: &FileName,
        create: Create,
    ) -> Result<(InodeEntry, Opened)> {
        let (directory, asked) = (self.inside(directory), self.client().asked());
        let mut new = new_inode(caller, FileKind::File, create.mode, create.umask);
        choose_group(&self.client(), caller, directory, &mut new).await?;
        let attributes = match self
            .client()
            .create_and_open(directory, name.clone(), new)
            .await
        {
            // The kernel's cached answer said that the name was free; another mount created it
            // first. This kernel hasn't checked permissions on that file. On ESTALE it looks the
            // name up again, checks, and opens it like any other file.
            Err(error) if error.kind() == ErrorKind::Exists && create.flags & libc::O_EXCL == 0 => {
                return Err(ErrorKind::Stale.into());
            }
            made => made?,
        };
        self.note_change(directory);
        Ok((
            self.entry(attributes, asked),
            self.opened(attributes.inode, create.flags),
        ))
    }

    async fn create_unnamed(
        &self,
        caller: &Caller,
        directory: InodeId,
        create: Create,
    ) -> Result<(InodeEntry, Opened)> {
        let (directory, asked) = (self.inside(directory), self.client().asked());
        let mut new = new_inode(caller, FileKind::File, create.mode, create.umask);
        choose_group(&self.client(), caller, directory, &mut new).await?;
        let attributes = self.client().create_unnamed(directory, new).await?;
        Ok((
            self.entry(attributes, asked),
            self.opened(attributes.inode, create.flags),
        ))
    }

    async fn make(
        &self,
        caller: &Caller,
        directory: InodeId,
        name: &FileName,
        make: Make<'_>,
    ) -> Result<InodeEntry> {
        let (directory, asked) = (self.inside(directory), self.client().asked());
        let target = Bytes::copy_from_slice(make.target);
        let mut new = NewInode {
            rdev: make.rdev,
            target,
            ..new_inode(caller, make.kind, make.mode, make.umask)
        };
        choose_group(&self.client(), caller, directory, &mut new).await?;
        let made = self.client().create(directory, name.clone(), new).await?;
        self.note_change(directory);
        Ok(self.remembered(made, asked).await)
    }

    async fn link(
        &self,
        _caller: &Caller,
        inode: InodeId,
        directory: InodeId,
        name: &FileName,
    ) -> Result<InodeEntry> {
        let (directory, asked) = (self.inside(directory), self.client().asked());
        let linked = self.client().link(inode, directory, name.clone()).await?;
        self.note_change(directory);
        Ok(self.remembered(linked, asked).await)
    }

    async fn unlink(&self, _caller: &Caller, directory: InodeId, name: &FileName) -> Result<()> {
        let directory = self.inside(directory);
        self.client().unlink(directory, name.clone()).await?;
        self.note_change(directory);
        Ok(())
    }

    async fn remove_directory(
        &self,
        _caller: &Caller,
        directory: InodeId,
        name: &FileName,
    ) -> Result<()> {
        let directory = self.inside(directory);
        self.client()
            .remove_directory(directory, name.clone())
            .await?;
        self.note_change(directory);
        Ok(())
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
        self.client()
            .rename(from_directory, from_name, to_directory, to_name, mode)
            .await?;
        self.note_change(from_directory);
        if to_directory != from_directory {
            self.note_change(to_directory);
            // The kernel's copies contain "..", and a move leaves a directory's mtime alone. Which
            // inodes were moved isn't known here.
            self.listed.forget_all();
        }
        Ok(())
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
            kept: self.number.keeps(self.client().world(), read.kept).await?,
        };
        self.client()
            .read_leaving(inode, offset, length, traces)
            .await
    }

    async fn write(&self, caller: &Caller, write: Write<'_>) -> Result<u32> {
        let inode = write.inode;
        let appends = write.flags & libc::O_APPEND != 0;
        let at = (!appends).then_some(write.offset);
        // The kernel writes mapped pages back at any time and for no particular user. As on other
        // file systems, that leaves the mode alone, which may have been set after the pages were
        // changed.
        if write.from_cache {
            let client = self.client();
            let written = client.write_stored(inode, write.offset, write.data);
            written.await?;
            self.note_change(inode);
            return Ok(u32::try_from(write.data.len()).expect("requests have at most 1 MiB"));
        }
        let privileges = lost_to(caller, write.kill_privileges);
        let written = self
            .client()
            .write_by(inode, at, write.data, privileges)
            .await?;
        if written.mode_changed {
            self.forget_mode(inode);
        }
        self.note_change(inode);
        // The kernel sends no FSYNC after a write that bypasses its page cache. O_SYNC contains
        // O_DSYNC.
        if write.flags & libc::O_DSYNC != 0 {
            self.client()
                .fsync(inode, write.flags & libc::O_SYNC != libc::O_SYNC)
                .await?;
        }
        Ok(u32::try_from(write.data.len()).expect("requests have at most 1 MiB"))
    }

    async fn flush(&self, _caller: &Caller, inode: InodeId, handle: u64, owner: u64) -> Result<()> {
        // Must be cheap: a program waits for it at each close.
        if self.opens.may_be_locked(inode) {
            let owner = self.lock_owner(owner);
            self.client().release_process_locks(inode, owner).await;
        }
        if !self.opens.is_writing(handle) {
            return Ok(());
        }
        self.client().write_failure(inode).map_or(Ok(()), Err)
    }

    async fn release(&self, _caller: &Caller, release: Release) -> Result<()> {
        let (inode, handle) = (release.inode, release.handle);
        let Some(open) = self.opens.remove(handle) else {
            tracing::error!(%inode, handle, "the kernel released an open that there isn't");
            return Ok(());
        };
        if open.may_have_locks {
            self.client()
                .release_open_locks(self.lock_door, handle)
                .await;
        }
        let flushed = match is_writing(release.flags) {
            true => self.client().flush(inode).await,
            false => Ok(()),
        };
        self.programs.released(inode, release.flags);
        self.client().release(inode).await;
        // The kernel ignores the reply to RELEASE.
        if let Err(error) = flushed {
            tracing::error!(%inode, %error, "data that a program wrote before closing the file could not be stored");
        }
        Ok(())
    }

    async fn fsync(&self, _caller: &Caller, inode: InodeId, data_only: bool) -> Result<()> {
        self.client().fsync(self.inside(inode), data_only).await
    }

    async fn sync_all(&self, _caller: &Caller) -> Result<()> {
        self.client().sync_all().await
    }

    async fn open_directory(&self, _caller: &Caller, inode: InodeId) -> Result<Opened> {
        let inode = self.inside(inode);
        self.client().open(inode, OpenFlags::default()).await?;
        let now = self.client().world().now();
        let is_copied = self.is_alone() && self.listed.is_fresh(inode, now);
        Ok(Opened {
            handle: self.opens.add(inode, false),
            mode: OpenMode {
                cache_directory: is_copied,
                keep_cache: is_copied,
                ..OpenMode::default()
            },
        })
    }

    async fn read_directory(
        &self,
        _caller: &Caller,
        inode: InodeId,
        handle: u64,
        listing: &mut Listing,
    ) -> Result<()> {
        let inode = self.inside(inode);
        let (at, offset) = (self.client().world().now(), listing.offset());
        let ended = self.list(inode, listing).await?;
        if self.is_alone() {
            let page = ListedPage {
                handle,
                offset,
                with_attributes: listing.with_attributes(),
                ended,
                at,
            };
            self.listed.page(inode, page);
        }
        Ok(())
    }

    async fn release_directory(&self, _caller: &Caller, inode: InodeId, handle: u64) -> Result<()> {
        match self.opens.remove(handle) {
            Some(open) => self.client().release(open.inode).await,
            None => tracing::error!(%inode, handle, "the kernel released an open that there isn't"),
        }
        Ok(())
    }

    async fn space(&self, _caller: &Caller, inode: InodeId) -> Result<FileSystemSpace> {
        let usage = self.client().usage(self.inside(inode)).await?;
        let unit = u64::from(SPACE_UNIT_BYTES);
        // Only space limits the number of inodes: each takes about a unit.
        let files_free = usage.available / unit;
        Ok(FileSystemSpace {
            block_bytes: SPACE_UNIT_BYTES,
            blocks: usage.capacity / unit,
            free: usage.free / unit,
            available: usage.available / unit,
            files: usage.inodes + files_free,
            files_free,
        })
    }

    async fn set_xattr(&self, caller: &Caller, inode: InodeId, set: SetXattr<'_>) -> Result<()> {
        extended::check(self.settings.no_acl, set.name)?;
        let inode = self.inside(inode);
        self.judge_list(caller, inode, set.name).await?;
        self.client()
            .set_xattr_and_bits(inode, set.name, set.value, set.mode, set.drop_setgid)
            .await
    }

    async fn get_xattr(&self, _caller: &Caller, inode: InodeId, name: &[u8]) -> Result<Bytes> {
        extended::check(self.settings.no_acl, name)?;
        let value = self.client().get_xattr(self.inside(inode), name).await;
        value.map_err(|error| extended::absent(self.settings.selinux, name, error))
    }

    async fn list_xattrs(&self, caller: &Caller, inode: InodeId) -> Result<Vec<Bytes>> {
        let mut names = self.client().list_xattrs(self.inside(inode)).await?;
        if caller.uid != 0 {
            // The kernel restricts reading and writing them, but not listing them.
            names.retain(|name| !name.starts_with(b"trusted."));
        }
        if self.settings.no_acl {
            names.retain(|name| !model::acl::is_list(name));
        }
        Ok(names)
    }

    async fn remove_xattr(&self, caller: &Caller, inode: InodeId, name: &[u8]) -> Result<()> {
        extended::check(self.settings.no_acl, name)?;
        let inode = self.inside(inode);
        self.judge_list(caller, inode, name).await?;
        self.client().remove_xattr(inode, name).await
    }

    async fn get_lock(&self, _caller: &Caller, lock: Lock) -> Result<Option<LockConflict>> {
        let Some(kind) = lock.kind else {
            return Ok(None);
        };
        let owner = self.lock_owner(lock.owner);
        let client = self.client();
        let held = client.get_lock(lock.inode, owner, lock.range, kind);
        Ok(held.await?.map(|held| LockConflict {
            range: held.range,
            kind: held.kind,
            pid: held.pid,
        }))
    }

    async fn set_lock(&self, caller: &Caller, lock: Lock, wait: Option<Interrupted>) -> Result<()> {
        let (inode, owner, kind) = (lock.inode, self.lock_owner(lock.owner), lock.kind);
        let taker = LockTaker {
            open: lock.handle,
            pid: lock.pid,
            user: caller.uid,
        };
        if kind.is_some() {
            self.opens.note_lock(&lock);
        }
        if lock.flock {
            return self.client().flock(inode, owner, kind, taker, wait).await;
        }
        self.client()
            .set_lock(inode, owner, lock.range, kind, taker, wait)
            .await
    }

    async fn fallocate(&self, caller: &Caller, request: Fallocate) -> Result<()> {
        let keep_size = request.mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let how = match request.mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 => Allocate::Reserve { keep_size },
            libc::FALLOC_FL_PUNCH_HOLE if keep_size => Allocate::Punch,
            libc::FALLOC_FL_ZERO_RANGE => Allocate::Zero { keep_size },
            _ => return Err(ErrorKind::NotSupported.into()),
        };
        self.drop_privileges(caller, request.inode).await?;
        let allocated = self
            .client()
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
        self.client().seek(inode, offset, what).await
    }

    async fn copy_range(&self, caller: &Caller, request: CopyRange) -> Result<u64> {
        let CopyRange {
            from,
            from_offset,
            to,
            to_offset,
            length,
        } = request;
        self.drop_privileges(caller, to).await?;
        let copied = self
            .client()
            .copy_range(from, from_offset, to, to_offset, length)
            .await;
        self.note_change(to);
        copied
    }

    fn forget(&self, inode: InodeId, lookups: u64) {
        if self.specials.forget(inode, lookups) {
            self.let_go(vec![inode]);
        }
    }

    fn open_inodes(&self) -> Vec<InodeId> {
        let open = self.opens.inodes().into_iter();
        open.map(|inode| self.outside(inode)).collect()
    }

    /// Its siblings learn it, too; and answers that the kernel keeps wait for it.
    fn mounted(&self, notifier: &Notifier) {
        // A door is mounted only once.
        let _ = self.kernel.set(notifier.clone());
        let client = self.client();
        let cached = KernelCache::begin(client.world(), notifier.clone(), self.root);
        let kernel: Arc<dyn client::Kernel> = self.cached.get_or_init(|| cached).clone();
        let number = client.add_kernel(Arc::downgrade(&kernel));
        self.number.set(number);
        if let Some(me) = self.sibling() {
            me.reach_by(notifier.clone());
        }
    }

    /// A kernel that unmounts normally has closed everything first. One that was forced to give up
    /// (`umount -f`) closes nothing.
    fn unmounted(&self) {
        if self.sibling.lock().take().is_none() {
            return;
        }
        self.client().end_lock_door(self.lock_door);
        let mut held = self.opens.take_all();
        held.extend(self.specials.take_all());
        if self.root != InodeId::ROOT {
            held.push(self.root);
        }
        self.let_go(held);
    }

    /// The client's memory is needed for another one.
    fn deserted(&self) {
        self.client.store(None);
    }
}
