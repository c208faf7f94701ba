//! The verbs. (Bodies arrive file by file; the signatures are settled.)

use crate::types::{
    Allocate, FileLock, FileSystemUsage, Listing, LockOwner, OpenFlags, Seek, Waiter,
};
use bytes::Bytes;
use model::operation::{NewInode, RenameMode, XattrMode};
use model::{Attributes, ErrorKind, FileName, InodeId, Result, SetAttributes};

/// A POSIX file system as a library; one per mounted file system and process. Used as
/// `Arc<Client>`; every method may be called from any thread.
///
/// Made by `Client::new(world: World, metanode: Arc<Metanode>, pool: Arc<Pool>, settings:
/// ClientSettings) -> Arc<Client>`.
pub struct Client {
    _private: (),
}

macro_rules! unfinished {
    ($($used:expr),*) => {{ $(let _ = &$used;)* Err(ErrorKind::NotImplemented.into()) }};
}

#[expect(clippy::unused_async, reason = "the bodies are on their way")]
impl Client {
    /// Finds a name. Attributes include what is written but not yet published.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`.
    pub async fn lookup(&self, directory: InodeId, name: FileName) -> Result<Attributes> {
        unfinished!(directory, name)
    }

    /// The directory that contains a directory (".."); the root is its own parent.
    pub async fn lookup_parent(&self, directory: InodeId) -> Result<Attributes> {
        unfinished!(directory)
    }

    /// stat.
    pub async fn get_attributes(&self, inode: InodeId) -> Result<Attributes> {
        unfinished!(inode)
    }

    /// chmod, chown, utimes, truncate, in any combination, at once.
    pub async fn set_attributes(&self, inode: InodeId, set: SetAttributes) -> Result<Attributes> {
        unfinished!(inode, set)
    }

    /// Makes anything under a new name: file, directory (mkdir), symlink, device. Doesn't
    /// open it.
    ///
    /// # Errors
    /// `Exists` if the name is taken.
    pub async fn create(
        &self,
        directory: InodeId,
        name: FileName,
        new: NewInode,
    ) -> Result<Attributes> {
        unfinished!(directory, name, new)
    }

    /// Makes a file and opens it (O_CREAT): as `create`, then `open`, without a gap.
    pub async fn create_and_open(
        &self,
        directory: InodeId,
        name: FileName,
        new: NewInode,
    ) -> Result<Attributes> {
        unfinished!(directory, name, new)
    }

    /// O_TMPFILE: makes a file without a name and opens it. `link` gives it a name; the last
    /// `release` without one removes it.
    pub async fn create_unnamed(&self, directory: InodeId, new: NewInode) -> Result<Attributes> {
        unfinished!(directory, new)
    }

    /// One more name for an inode.
    pub async fn link(
        &self,
        inode: InodeId,
        directory: InodeId,
        name: FileName,
    ) -> Result<Attributes> {
        unfinished!(inode, directory, name)
    }

    /// Removes a name of something that isn't a directory. An open file lives on until its
    /// last `release`.
    pub async fn unlink(&self, directory: InodeId, name: FileName) -> Result<()> {
        unfinished!(directory, name)
    }

    /// Removes an empty directory.
    pub async fn remove_directory(&self, directory: InodeId, name: FileName) -> Result<()> {
        unfinished!(directory, name)
    }

    /// Moves a name; data of the moved inode is published first.
    pub async fn rename(
        &self,
        from_directory: InodeId,
        from_name: FileName,
        to_directory: InodeId,
        to_name: FileName,
        mode: RenameMode,
    ) -> Result<()> {
        unfinished!(from_directory, from_name, to_directory, to_name, mode)
    }

    /// Target of a symbolic link.
    pub async fn read_link(&self, inode: InodeId) -> Result<Bytes> {
        unfinished!(inode)
    }

    /// A piece of a directory: entries behind position `after` (0: from the start), at most
    /// `limit`. Without "." and ".." (see [`Listing`]); with attributes if asked.
    pub async fn read_directory(
        &self,
        directory: InodeId,
        after: u64,
        limit: u32,
        with_attributes: bool,
    ) -> Result<Listing> {
        unfinished!(directory, after, limit, with_attributes)
    }

    /// Opens an inode of any kind: counts a holder, so that it survives unlink. Every success
    /// needs one `release`. Handles are stateless: the inode is the handle.
    pub async fn open(&self, inode: InodeId, flags: OpenFlags) -> Result<Attributes> {
        unfinished!(inode, flags)
    }

    /// The last close of one open. Never fails; an inode without names and holders goes.
    pub async fn release(&self, inode: InodeId) {
        let _ = inode;
    }

    /// Reads; shorter than asked only at the end of the file. Pieces in order, not copied
    /// where the page pool has them.
    ///
    /// # Errors
    /// `Unavailable` or `Corrupt` (both EIO) if data can't be had or proven.
    pub async fn read(&self, inode: InodeId, offset: u64, length: usize) -> Result<Vec<Bytes>> {
        unfinished!(inode, offset, length)
    }

    /// Writes all of `data` into the page pool.
    ///
    /// # Errors
    /// `NoSpace` now, never later; `FileTooLarge`.
    pub async fn write(&self, inode: InodeId, offset: u64, data: &[u8]) -> Result<()> {
        unfinished!(inode, offset, data)
    }

    /// O_APPEND: writes at the end, which it finds atomically; returns where that was.
    pub async fn append(&self, inode: InodeId, data: &[u8]) -> Result<u64> {
        unfinished!(inode, data)
    }

    /// close(2) of one descriptor: tells an earlier write error once, publishes small files.
    /// Doesn't make anything durable.
    pub async fn flush(&self, inode: InodeId) -> Result<()> {
        unfinished!(inode)
    }

    /// Data and attributes of the inode, and its name if it is new, are durable afterwards.
    /// Also for directories. `data_only` is fdatasync.
    pub async fn fsync(&self, inode: InodeId, data_only: bool) -> Result<()> {
        unfinished!(inode, data_only)
    }

    /// Everything answered so far is durable afterwards (`shale fs sync`).
    pub async fn sync_all(&self) -> Result<()> {
        unfinished!()
    }

    /// As `sync_all`, then stops the client's tasks. Later calls fail with `ShuttingDown`.
    pub async fn close(&self) -> Result<()> {
        unfinished!()
    }

    /// fallocate.
    pub async fn allocate(
        &self,
        inode: InodeId,
        how: Allocate,
        offset: u64,
        length: u64,
    ) -> Result<()> {
        unfinished!(inode, how, offset, length)
    }

    /// SEEK_DATA and SEEK_HOLE.
    ///
    /// # Errors
    /// `NoSuchDeviceOrAddress` (ENXIO) at or behind the end, or if no data follows.
    pub async fn seek(&self, inode: InodeId, offset: u64, what: Seek) -> Result<u64> {
        unfinished!(inode, offset, what)
    }

    /// copy_file_range: shares extents inside a fileset, copies across filesets. Returns the
    /// bytes done, 0 at the end of the source.
    pub async fn copy_range(
        &self,
        from: InodeId,
        from_offset: u64,
        to: InodeId,
        to_offset: u64,
        length: u64,
    ) -> Result<u64> {
        unfinished!(from, from_offset, to, to_offset, length)
    }

    /// Value of an extended attribute.
    ///
    /// # Errors
    /// `NoSuchAttribute`; `NotSupported` for a name outside user., trusted., security.,
    /// system.
    pub async fn get_xattr(&self, inode: InodeId, name: &[u8]) -> Result<Bytes> {
        unfinished!(inode, name)
    }

    /// Names of the extended attributes.
    pub async fn list_xattrs(&self, inode: InodeId) -> Result<Vec<Bytes>> {
        unfinished!(inode)
    }

    /// Sets an extended attribute.
    pub async fn set_xattr(
        &self,
        inode: InodeId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        unfinished!(inode, name, value, mode)
    }

    /// Removes an extended attribute.
    pub async fn remove_xattr(&self, inode: InodeId, name: &[u8]) -> Result<()> {
        unfinished!(inode, name)
    }

    /// statfs.
    pub async fn usage(&self, inode: InodeId) -> Result<FileSystemUsage> {
        unfinished!(inode)
    }

    /// F_GETLK: the first lock that is in the way of `lock`, or `lock` with kind `Unlock`.
    pub async fn get_lock(
        &self,
        inode: InodeId,
        owner: LockOwner,
        lock: FileLock,
    ) -> Result<FileLock> {
        unfinished!(inode, owner, lock)
    }

    /// F_SETLK, and F_SETLKW with `wait`. Dropping the future cancels the wait.
    ///
    /// # Errors
    /// `WouldBlock` without `wait`, `WouldDeadlock`.
    pub async fn set_lock(
        &self,
        inode: InodeId,
        owner: LockOwner,
        lock: FileLock,
        wait: bool,
    ) -> Result<()> {
        unfinished!(inode, owner, lock, wait)
    }

    /// flock(2): whole-file locks, a space of their own beside POSIX locks.
    pub async fn flock(
        &self,
        inode: InodeId,
        owner: LockOwner,
        kind: crate::LockKind,
        wait: bool,
    ) -> Result<()> {
        unfinished!(inode, owner, kind, wait)
    }

    /// Drops the POSIX locks of an owner on an inode (FLUSH) or its flock (RELEASE of the
    /// descriptor that took it).
    pub async fn release_locks(&self, inode: InodeId, owner: LockOwner, flock: bool) {
        let _ = (inode, owner, flock);
    }

    /// What waits now, longest first; at most 1,024.
    pub fn waiters(&self) -> Vec<Waiter> {
        Vec::new()
    }
}
