//! The interface that a mounted file system implements. The transport turns errors into errno numbers.

use crate::listing::Listing;
use crate::locks::Interrupted;
use crate::notifier::Notifier;
use crate::verbs::{
    Caller, CopyRange, Create, Fallocate, FileSystemSpace, Found, InodeEntry, Lock, LockConflict,
    Make, Open, Opened, Read, Release, SetXattr, Shown, Write,
};
use bytes::Bytes;
use model::operation::RenameMode;
use model::{ErrorKind, FileName, InodeId, Result, SetAttributes};
use std::future::Future;

fn not_implemented<T: Send>() -> impl Future<Output = Result<T>> + Send {
    std::future::ready(Err(ErrorKind::NotImplemented.into()))
}

/// A file system that a mount serves.
///
/// A method runs on the thread that read the request and should answer without waiting if it can;
/// while it waits, other requests run, over io_uring on the same thread: it must not block that.
/// `NotImplemented` makes the kernel stop sending some requests; the default methods return it.
pub trait FileSystem: Send + Sync + 'static {
    /// Finds a name.
    fn lookup(
        &self,
        caller: &Caller,
        directory: InodeId,
        name: &FileName,
    ) -> impl Future<Output = Result<Found>> + Send;
    /// Finds the parent of a directory; the root is its own parent.
    fn lookup_parent(
        &self,
        caller: &Caller,
        directory: InodeId,
    ) -> impl Future<Output = Result<InodeEntry>> + Send;
    /// The kernel dropped this many references to an inode, which it got from lookups.
    fn forget(&self, _inode: InodeId, _lookups: u64) {}
    /// Reads attributes.
    fn get_attributes(
        &self,
        caller: &Caller,
        inode: InodeId,
    ) -> impl Future<Output = Result<Shown>> + Send;
    /// Changes attributes.
    fn set_attributes(
        &self,
        caller: &Caller,
        inode: InodeId,
        set: SetAttributes,
    ) -> impl Future<Output = Result<Shown>> + Send;
    /// Reads a symbolic link.
    fn read_link(
        &self,
        _caller: &Caller,
        _inode: InodeId,
    ) -> impl Future<Output = Result<Bytes>> + Send {
        not_implemented()
    }
    /// Makes a file (unless it exists and O_EXCL isn't set) and opens it.
    fn create(
        &self,
        caller: &Caller,
        directory: InodeId,
        name: &FileName,
        create: Create,
    ) -> impl Future<Output = Result<(InodeEntry, Opened)>> + Send;
    /// Makes and opens a file without a name (O_TMPFILE).
    fn create_unnamed(
        &self,
        _caller: &Caller,
        _directory: InodeId,
        _create: Create,
    ) -> impl Future<Output = Result<(InodeEntry, Opened)>> + Send {
        std::future::ready(Err(ErrorKind::NotSupported.into()))
    }
    /// Makes a directory, link or special file.
    fn make(
        &self,
        caller: &Caller,
        directory: InodeId,
        name: &FileName,
        make: Make<'_>,
    ) -> impl Future<Output = Result<InodeEntry>> + Send;
    /// Gives an inode one more name.
    fn link(
        &self,
        _caller: &Caller,
        _inode: InodeId,
        _directory: InodeId,
        _name: &FileName,
    ) -> impl Future<Output = Result<InodeEntry>> + Send {
        not_implemented()
    }
    /// Removes a name.
    fn unlink(
        &self,
        caller: &Caller,
        directory: InodeId,
        name: &FileName,
    ) -> impl Future<Output = Result<()>> + Send;
    /// Removes an empty directory.
    fn remove_directory(
        &self,
        caller: &Caller,
        directory: InodeId,
        name: &FileName,
    ) -> impl Future<Output = Result<()>> + Send;
    /// Moves a name.
    fn rename(
        &self,
        caller: &Caller,
        from: (InodeId, &FileName),
        to: (InodeId, &FileName),
        mode: RenameMode,
    ) -> impl Future<Output = Result<()>> + Send;
    /// Opens a file.
    fn open(
        &self,
        caller: &Caller,
        inode: InodeId,
        open: Open,
    ) -> impl Future<Output = Result<Opened>> + Send;
    /// Reads; the pieces are contiguous.
    fn read(&self, caller: &Caller, read: Read) -> impl Future<Output = Result<Vec<Bytes>>> + Send;
    /// Writes; returns the number of bytes written.
    fn write(&self, caller: &Caller, write: Write<'_>) -> impl Future<Output = Result<u32>> + Send;
    /// `owner` closed a descriptor, which ends its POSIX locks on the inode.
    fn flush(
        &self,
        _caller: &Caller,
        _inode: InodeId,
        _handle: u64,
        _owner: u64,
    ) -> impl Future<Output = Result<()>> + Send {
        std::future::ready(Ok(()))
    }
    /// The last descriptor of an open is gone. The kernel ignores the reply.
    fn release(
        &self,
        _caller: &Caller,
        _release: Release,
    ) -> impl Future<Output = Result<()>> + Send {
        std::future::ready(Ok(()))
    }
    /// Makes a file or directory durable.
    fn fsync(
        &self,
        _caller: &Caller,
        _inode: InodeId,
        _data_only: bool,
    ) -> impl Future<Output = Result<()>> + Send {
        std::future::ready(Ok(()))
    }
    /// Makes everything durable (syncfs; stock kernels don't send it for /dev/fuse).
    fn sync_all(&self, _caller: &Caller) -> impl Future<Output = Result<()>> + Send {
        not_implemented()
    }
    /// Opens a directory.
    fn open_directory(
        &self,
        _caller: &Caller,
        _inode: InodeId,
    ) -> impl Future<Output = Result<Opened>> + Send {
        std::future::ready(Ok(Opened::default()))
    }
    /// Adds the entries after `listing.offset()` until `listing` is full or the directory ends.
    fn read_directory(
        &self,
        caller: &Caller,
        inode: InodeId,
        handle: u64,
        listing: &mut Listing,
    ) -> impl Future<Output = Result<()>> + Send;
    /// The last descriptor of an open directory is gone.
    fn release_directory(
        &self,
        _caller: &Caller,
        _inode: InodeId,
        _handle: u64,
    ) -> impl Future<Output = Result<()>> + Send {
        std::future::ready(Ok(()))
    }
    /// Space and inodes.
    fn space(
        &self,
        caller: &Caller,
        inode: InodeId,
    ) -> impl Future<Output = Result<FileSystemSpace>> + Send;
    /// Sets an extended attribute.
    fn set_xattr(
        &self,
        _caller: &Caller,
        _inode: InodeId,
        _set: SetXattr<'_>,
    ) -> impl Future<Output = Result<()>> + Send {
        std::future::ready(Err(ErrorKind::NotSupported.into()))
    }
    /// Reads an extended attribute.
    fn get_xattr(
        &self,
        _caller: &Caller,
        _inode: InodeId,
        _name: &[u8],
    ) -> impl Future<Output = Result<Bytes>> + Send {
        std::future::ready(Err(ErrorKind::NotSupported.into()))
    }
    /// Lists the names of extended attributes.
    fn list_xattrs(
        &self,
        _caller: &Caller,
        _inode: InodeId,
    ) -> impl Future<Output = Result<Vec<Bytes>>> + Send {
        std::future::ready(Err(ErrorKind::NotSupported.into()))
    }
    /// Removes an extended attribute.
    fn remove_xattr(
        &self,
        _caller: &Caller,
        _inode: InodeId,
        _name: &[u8],
    ) -> impl Future<Output = Result<()>> + Send {
        std::future::ready(Err(ErrorKind::NotSupported.into()))
    }
    /// The first lock that conflicts with `lock`, if any.
    fn get_lock(
        &self,
        _caller: &Caller,
        _lock: Lock,
    ) -> impl Future<Output = Result<Option<LockConflict>>> + Send {
        not_implemented()
    }
    /// Takes or drops a lock. On conflict: with `wait`, waits until the lock is granted, or
    /// `Interrupted` if `wait` completes first; without, returns `WouldBlock`.
    fn set_lock(
        &self,
        _caller: &Caller,
        _lock: Lock,
        _wait: Option<Interrupted>,
    ) -> impl Future<Output = Result<()>> + Send {
        not_implemented()
    }
    /// Reserves, punches or zeroes a range.
    fn fallocate(
        &self,
        _caller: &Caller,
        _request: Fallocate,
    ) -> impl Future<Output = Result<()>> + Send {
        std::future::ready(Err(ErrorKind::NotSupported.into()))
    }
    /// SEEK_DATA or SEEK_HOLE (`whence`) from `offset`.
    fn seek(
        &self,
        _caller: &Caller,
        _inode: InodeId,
        _offset: u64,
        _whence: i32,
    ) -> impl Future<Output = Result<u64>> + Send {
        not_implemented()
    }
    /// Copies a range inside the file system; returns the number of bytes copied.
    fn copy_range(
        &self,
        _caller: &Caller,
        _request: CopyRange,
    ) -> impl Future<Output = Result<u64>> + Send {
        std::future::ready(Err(ErrorKind::NotSupported.into()))
    }
    /// What programs have open, or mapped, by the kernel's numbers: it may have pages of that.
    fn open_inodes(&self) -> Vec<InodeId> {
        Vec::new()
    }
    /// It is mounted: this is how to notify its kernel. Requests may have come before.
    fn mounted(&self, _notifier: &Notifier) {}
    /// The mount has ended: no more requests come.
    fn unmounted(&self) {}
    /// After [`FileSystem::unmounted`], of a mount that stays and refuses all requests: what answered them isn't needed any more.
    fn deserted(&self) {}
}
