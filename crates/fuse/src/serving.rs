//! Turns each request into a call of the file system, and its result into a reply.

use crate::abi::{self, AttrOut, CreateOut, EntryOut, OpenOut, StatfsOut, StatxOut, fattr};
use crate::device::Device;
use crate::file_system::{
    Caller, CopyRange, Create, Fallocate, FileSystem, Found, Lock, Make, Open, Opened, Read,
    Release, SetXattr, Validity, Write,
};
use crate::init::Agreement;
use crate::listing::Listing;
use crate::locks::LockWaits;
use crate::mapped::{Mapped, Writing};
use crate::notifier::{Notice, Notifier};
use crate::reply::Reply;
use crate::request::{Incoming, Malformed, Request, forgets};
use crate::waiting::{Waiting, WithWaitHook};
use bytes::Bytes;
use model::operation::{RenameMode, XattrMode};
use model::{
    Error, ErrorKind, FileKind, FileName, InodeId, Privileges, Result, SetAttributes, TimeChange,
    Timestamp,
};
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::watch;
use world::World;

/// How a lock request that must wait is answered.
pub(crate) enum ReplyTo<'a> {
    /// By the task that gets the lock, through the descriptor that the request came from.
    Device(&'a Arc<Device>),
    /// By the thread that has the request: only its ring entry can reply.
    Place(&'a dyn Place),
}

/// A thread's place where requests arrive.
pub(crate) trait Place {
    /// The calling thread will wait, perhaps for long. False if no other thread can serve
    /// meanwhile.
    fn leave_for_long(&self) -> bool;
    /// Most concurrent lock waits of the mount.
    fn lock_waits_max(&self) -> usize;
}

/// Answers the requests of one mount with a file system.
pub(crate) struct Serving<F> {
    pub(crate) fs: Arc<F>,
    pub(crate) world: World,
    pub(crate) agreement: Agreement,
    pub(crate) locks: LockWaits,
    pub(crate) waiting: Waiting,
    mapped: Mapped,
    /// Sends notifications, once the mount has a connection.
    notifier: OnceLock<Notifier>,
}

/// Each thread of a mount holds it; the last one to end reports the mount's end.
pub(crate) struct Ending<F: FileSystem> {
    pub(crate) serving: Arc<Serving<F>>,
    pub(crate) ended: watch::Sender<bool>,
}

impl<F: FileSystem> Drop for Ending<F> {
    fn drop(&mut self) {
        self.serving.fs.unmounted();
        self.ended.send_replace(true);
    }
}

impl<F: FileSystem> Serving<F> {
    pub(crate) fn new(world: World, fs: Arc<F>, agreement: Agreement) -> Self {
        Self {
            fs,
            world,
            agreement,
            locks: LockWaits::default(),
            waiting: Waiting::default(),
            mapped: Mapped::default(),
            notifier: OnceLock::new(),
        }
    }

    /// Sets how the kernel is notified.
    pub(crate) fn reach_by(&self, notifier: &Notifier) {
        // A mount has only one notifier.
        let _ = self.notifier.set(notifier.clone());
    }

    /// Runs a request to its answer on the calling thread. `on_wait` is called if it must wait.
    pub(crate) fn run(
        self: &Arc<Self>,
        incoming: &Incoming<'_>,
        reply_to: &ReplyTo<'_>,
        on_wait: impl FnOnce() + Unpin,
    ) -> Reply {
        let mut waited = false;
        let operation = pin!(self.answer(incoming, reply_to));
        let on_wait = || {
            waited = true;
            self.waiting.begin(incoming, self.world.now());
            on_wait();
        };
        let reply = self.world.block_on(WithWaitHook {
            operation,
            on_wait: Some(on_wait),
        });
        if waited {
            self.waiting.end(incoming.header.unique, self.world.now());
        }
        reply
    }

    async fn answer(self: &Arc<Self>, incoming: &Incoming<'_>, reply_to: &ReplyTo<'_>) -> Reply {
        let request = match incoming.parse() {
            Ok(request) => request,
            Err(Malformed::Unknown) => return Reply::Errno(libc::ENOSYS),
            Err(Malformed::Short) => {
                tracing::error!(
                    opcode = incoming.header.opcode,
                    "a request of the kernel is too short"
                );
                return Reply::Errno(libc::EIO);
            }
        };
        let caller = incoming.caller();
        let inode = incoming.inode();
        let result = match request {
            Request::Read(_) | Request::Write { .. } => self.data(&caller, inode, request).await,
            Request::Lookup { .. }
            | Request::Symlink { .. }
            | Request::Mknod { .. }
            | Request::Mkdir { .. }
            | Request::Unlink { .. }
            | Request::Rmdir { .. }
            | Request::Rename { .. }
            | Request::Link { .. } => self.names(&caller, inode, request).await,
            Request::Getattr
            | Request::Setattr(_)
            | Request::Statx
            | Request::Readlink
            | Request::Statfs
            | Request::Setxattr { .. }
            | Request::Getxattr { .. }
            | Request::Listxattr { .. }
            | Request::Removexattr { .. } => self.attributes(&caller, inode, request).await,
            Request::Getlk(lock) => self.get_lock(&caller, lock).await,
            Request::Setlk { lock, wait } => self.set_lock(&caller, lock, wait, reply_to).await,
            Request::Forget { lookups } => {
                self.fs.forget(inode, lookups);
                Ok(Reply::None)
            }
            Request::BatchForget { count, ones } => {
                forgets(count, ones).for_each(|(inode, lookups)| self.fs.forget(inode, lookups));
                Ok(Reply::None)
            }
            Request::Interrupt { unique } => {
                self.locks.interrupt(unique);
                Ok(Reply::None)
            }
            // The kernel checks permissions itself (default_permissions); after ENOSYS it stops
            // asking.
            Request::Access => Ok(Reply::Errno(libc::ENOSYS)),
            Request::Destroy | Request::NotifyReply => Ok(Reply::Empty),
            // A connection has only one INIT.
            Request::Init(_) => Ok(Reply::Errno(libc::EIO)),
            _ => self.files(&caller, inode, request).await,
        };
        result.unwrap_or_else(|error| refusal(&error, incoming))
    }

    async fn data(&self, caller: &Caller, inode: InodeId, request: Request<'_>) -> Result<Reply> {
        match request {
            Request::Read(args) => {
                let length = args.size.min(self.agreement.data_bytes);
                if args.read_flags & abi::READ_LOCKOWNER == 0 {
                    // Read by the page cache: a read(2) that bypasses it sends its lock owner.
                    self.mapped.filled(inode, args.offset, length.into());
                }
                let read = Read {
                    inode,
                    handle: args.fh,
                    offset: args.offset,
                    length,
                    flags: args.flags as i32,
                };
                let mut pieces = self.fs.read(caller, read).await?;
                cut(&mut pieces, length as usize);
                Ok(Reply::Data(pieces))
            }
            Request::Write { args, data } => {
                let write = Write {
                    inode,
                    handle: args.fh,
                    offset: args.offset,
                    data,
                    flags: args.flags as i32,
                    from_cache: args.write_flags & abi::WRITE_CACHE != 0,
                    kill_privileges: args.write_flags & abi::WRITE_KILL_SUIDGID != 0,
                };
                let size = if write.from_cache {
                    self.store(caller, write).await?
                } else {
                    self.write(caller, write).await?
                };
                Ok(Reply::fixed(&abi::WriteOut { size, padding: 0 }))
            }
            _ => unreachable!("only reads and writes come here"),
        }
    }

    /// A write(2).
    async fn write(&self, caller: &Caller, write: Write<'_>) -> Result<u32> {
        let (inode, offset, length) = (write.inode, write.offset, write.data.len() as u64);
        let writing = self.mapped.write(inode, offset, length).await;
        let size = self.fs.write(caller, write).await?;
        if writing.is_some_and(Writing::finish) {
            self.forget_pages(inode, offset, length);
        }
        Ok(size)
    }

    /// Writes mapped pages back, except for ranges that were written past the page cache since.
    async fn store(&self, caller: &Caller, write: Write<'_>) -> Result<u32> {
        let (offset, length) = (write.offset, write.data.len());
        let storing = self.mapped.store(write.inode, offset, length as u64).await;
        if storing.is_cut {
            // Otherwise stores into those ranges would be skipped for as long as the kernel has the
            // page.
            self.forget_pages(write.inode, offset, length as u64);
        }
        for range in &storing.ranges {
            let within = |at: u64| usize::try_from(at - offset).expect("it is part of the data");
            let data = &write.data[within(range.start)..within(range.end)];
            let offset = range.start;
            let part = Write {
                offset,
                data,
                ..write
            };
            self.fs.write(caller, part).await?;
        }
        Ok(u32::try_from(length).expect("requests have at most 1 MiB"))
    }

    /// Older kernels keep pages that were read during a direct write. This doesn't wait: the kernel
    /// may hold one of the pages until another request is answered.
    fn forget_pages(&self, inode: InodeId, offset: u64, length: u64) {
        let range = i64::try_from(offset).ok().zip(i64::try_from(length).ok());
        if let (Some(notifier), Some((offset, length))) = (self.notifier.get(), range) {
            notifier.post(Notice::Inode {
                inode,
                offset,
                length,
            });
        }
    }

    async fn names(&self, caller: &Caller, inode: InodeId, request: Request<'_>) -> Result<Reply> {
        let entry = match request {
            Request::Lookup { name } => return self.lookup(caller, inode, name).await,
            Request::Symlink { name, target } => {
                let make = Make {
                    kind: FileKind::Symlink,
                    mode: 0o777,
                    umask: 0,
                    rdev: 0,
                    target,
                };
                self.fs
                    .make(caller, inode, &FileName::new(name)?, make)
                    .await?
            }
            Request::Mknod { args, name } => {
                let kind = FileKind::from_mode(args.mode).ok_or(ErrorKind::InvalidArgument)?;
                let make = Make {
                    kind,
                    mode: args.mode & 0o7777,
                    umask: args.umask,
                    rdev: args.rdev,
                    target: &[],
                };
                self.fs
                    .make(caller, inode, &FileName::new(name)?, make)
                    .await?
            }
            Request::Mkdir { args, name } => {
                let make = Make {
                    kind: FileKind::Directory,
                    mode: args.mode & 0o7777,
                    umask: args.umask,
                    rdev: 0,
                    target: &[],
                };
                self.fs
                    .make(caller, inode, &FileName::new(name)?, make)
                    .await?
            }
            Request::Link {
                inode: linked,
                name,
            } => {
                self.fs
                    .link(caller, linked, inode, &FileName::new(name)?)
                    .await?
            }
            Request::Unlink { name } => {
                self.fs.unlink(caller, inode, &FileName::new(name)?).await?;
                return Ok(Reply::Empty);
            }
            Request::Rmdir { name } => {
                self.fs
                    .remove_directory(caller, inode, &FileName::new(name)?)
                    .await?;
                return Ok(Reply::Empty);
            }
            Request::Rename {
                to,
                flags,
                from_name,
                to_name,
            } => {
                let mode = match flags {
                    0 => RenameMode::Replace,
                    libc::RENAME_NOREPLACE => RenameMode::NoReplace,
                    libc::RENAME_EXCHANGE => RenameMode::Exchange,
                    // RENAME_WHITEOUT is for overlayfs, which falls back to character devices.
                    _ => return Err(ErrorKind::InvalidArgument.into()),
                };
                let (from_name, to_name) = (FileName::new(from_name)?, FileName::new(to_name)?);
                self.fs
                    .rename(caller, (inode, &from_name), (to, &to_name), mode)
                    .await?;
                return Ok(Reply::Empty);
            }
            _ => unreachable!("only requests about names come here"),
        };
        Ok(Reply::fixed(&EntryOut::of(&entry)))
    }

    async fn lookup(&self, caller: &Caller, directory: InodeId, name: &[u8]) -> Result<Reply> {
        let entry = match name {
            // NFS servers and open_by_handle_at find inodes this way.
            b"." => {
                let shown = self.fs.get_attributes(caller, directory).await?;
                let valid = Validity {
                    entry: Duration::ZERO,
                    attributes: shown.valid,
                };
                crate::file_system::Entry {
                    attributes: shown.attributes,
                    valid,
                }
            }
            b".." => self.fs.lookup_parent(caller, directory).await?,
            name => match self
                .fs
                .lookup(caller, directory, &FileName::new(name)?)
                .await?
            {
                Found::Entry(entry) => entry,
                Found::Absent(valid) if valid.is_zero() => return Ok(Reply::Errno(libc::ENOENT)),
                Found::Absent(valid) => return Ok(Reply::fixed(&EntryOut::absent(valid))),
            },
        };
        Ok(Reply::fixed(&EntryOut::of(&entry)))
    }

    async fn attributes(
        &self,
        caller: &Caller,
        inode: InodeId,
        request: Request<'_>,
    ) -> Result<Reply> {
        match request {
            Request::Getattr => Ok(Reply::fixed(&AttrOut::of(
                &self.fs.get_attributes(caller, inode).await?,
            ))),
            Request::Statx => Ok(Reply::fixed(&StatxOut::of(
                &self.fs.get_attributes(caller, inode).await?,
            ))),
            Request::Setattr(args) => {
                let shown = self
                    .fs
                    .set_attributes(caller, inode, changes(&args, caller))
                    .await?;
                Ok(Reply::fixed(&AttrOut::of(&shown)))
            }
            Request::Readlink => Ok(Reply::Data(vec![self.fs.read_link(caller, inode).await?])),
            Request::Statfs => Ok(Reply::fixed(&StatfsOut::of(
                &self.fs.space(caller, inode).await?,
            ))),
            Request::Setxattr {
                flags,
                drop_setgid,
                name,
                value,
            } => {
                let mode = match i32::try_from(flags) {
                    Ok(libc::XATTR_CREATE) => XattrMode::Create,
                    Ok(libc::XATTR_REPLACE) => XattrMode::Replace,
                    _ => XattrMode::Set,
                };
                let set = SetXattr {
                    name,
                    value,
                    mode,
                    drop_setgid,
                };
                self.fs.set_xattr(caller, inode, set).await?;
                Ok(Reply::Empty)
            }
            Request::Getxattr { size, name } => {
                let value = self.fs.get_xattr(caller, inode, name).await?;
                attribute_bytes(size, value.len(), || vec![value])
            }
            Request::Listxattr { size } => {
                let names = self.fs.list_xattrs(caller, inode).await?;
                let length = names.iter().map(|name| name.len() + 1).sum();
                attribute_bytes(size, length, || {
                    names
                        .into_iter()
                        .flat_map(|name| [name, Bytes::from_static(b"\0")])
                        .collect()
                })
            }
            Request::Removexattr { name } => {
                self.fs.remove_xattr(caller, inode, name).await?;
                Ok(Reply::Empty)
            }
            _ => unreachable!("only requests about attributes come here"),
        }
    }

    async fn files(&self, caller: &Caller, inode: InodeId, request: Request<'_>) -> Result<Reply> {
        match request {
            Request::Open(args) => {
                let kill_privileges = args.open_flags & abi::OPEN_KILL_SUIDGID != 0;
                let open = Open {
                    flags: args.flags as i32,
                    kill_privileges,
                };
                let opened = self.fs.open(caller, inode, open).await?;
                return Ok(Reply::fixed(&self.opened(inode, open.flags, &opened)));
            }
            Request::Create { args, name } => {
                return self.create(caller, inode, args, Some(name)).await;
            }
            Request::Tmpfile(args) => return self.create(caller, inode, args, None).await,
            Request::Opendir => {
                let opened = self.fs.open_directory(caller, inode).await?;
                return Ok(Reply::fixed(&OpenOut::of(&opened, self.agreement.flags)));
            }
            Request::Readdir { args, plus } => {
                let room = args.size.min(self.agreement.data_bytes) as usize;
                let mut listing = Listing::new(room, args.offset, plus);
                self.fs
                    .read_directory(caller, inode, args.fh, &mut listing)
                    .await?;
                return Ok(Reply::Buffer(listing.into_bytes()));
            }
            Request::Flush(args) => {
                self.fs
                    .flush(caller, inode, args.fh, args.lock_owner)
                    .await?
            }
            Request::Release(args) => {
                let unlocks = args.release_flags & abi::RELEASE_FLOCK_UNLOCK != 0;
                let unlock_flock = unlocks.then_some(args.lock_owner);
                self.mapped.released(inode, args.flags as i32);
                let release = Release {
                    inode,
                    handle: args.fh,
                    flags: args.flags as i32,
                    unlock_flock,
                };
                self.fs.release(caller, release).await?;
            }
            Request::Releasedir { handle } => {
                self.fs.release_directory(caller, inode, handle).await?
            }
            Request::Fsync { data_only } => self.fs.fsync(caller, inode, data_only).await?,
            Request::Syncfs => self.fs.sync_all(caller).await?,
            Request::Fallocate(args) => {
                let abi::FallocateIn {
                    offset,
                    length,
                    mode,
                    ..
                } = args;
                self.fs
                    .fallocate(
                        caller,
                        Fallocate {
                            inode,
                            offset,
                            length,
                            mode: mode as i32,
                        },
                    )
                    .await?;
            }
            Request::Lseek(args) => {
                let offset = self
                    .fs
                    .seek(caller, inode, args.offset, args.whence as i32)
                    .await?;
                return Ok(Reply::fixed(&abi::LseekOut { offset }));
            }
            Request::CopyRange { args, wide } => {
                return self.copy_range(caller, inode, &args, wide).await;
            }
            _ => unreachable!("the other requests are answered elsewhere"),
        }
        Ok(Reply::Empty)
    }

    fn opened(&self, inode: InodeId, flags: i32, opened: &Opened) -> OpenOut {
        let out = OpenOut::of(opened, self.agreement.flags);
        if out.is_direct() {
            self.mapped.opened(inode, flags);
        }
        out
    }

    async fn create(
        &self,
        caller: &Caller,
        directory: InodeId,
        args: abi::CreateIn,
        name: Option<&[u8]>,
    ) -> Result<Reply> {
        let kill_privileges = args.open_flags & abi::OPEN_KILL_SUIDGID != 0;
        let create = Create {
            mode: args.mode & 0o7777,
            umask: args.umask,
            flags: args.flags as i32,
            kill_privileges,
        };
        let (entry, opened) = match name {
            Some(name) => {
                self.fs
                    .create(caller, directory, &FileName::new(name)?, create)
                    .await?
            }
            None => self.fs.create_unnamed(caller, directory, create).await?,
        };
        let open = self.opened(entry.attributes.inode, create.flags, &opened);
        Ok(Reply::fixed(&CreateOut {
            entry: EntryOut::of(&entry),
            open,
        }))
    }

    async fn copy_range(
        &self,
        caller: &Caller,
        inode: InodeId,
        args: &abi::CopyFileRangeIn,
        wide: bool,
    ) -> Result<Reply> {
        // The narrow answer has 32 bits; stay page aligned below that.
        let length = if wide {
            args.len
        } else {
            args.len.min(0xffff_f000)
        };
        let request = CopyRange {
            from: inode,
            from_offset: args.off_in,
            to: InodeId(args.nodeid_out),
            to_offset: args.off_out,
            length,
        };
        let bytes_copied = self.fs.copy_range(caller, request).await?;
        Ok(if wide {
            Reply::fixed(&abi::CopyFileRangeOut { bytes_copied })
        } else {
            let size = u32::try_from(bytes_copied).expect("no more is copied than was asked for");
            Reply::fixed(&abi::WriteOut { size, padding: 0 })
        })
    }

    async fn get_lock(&self, caller: &Caller, lock: Lock) -> Result<Reply> {
        let lk = match self.fs.get_lock(caller, lock).await? {
            Some(held) => abi::FileLock {
                start: held.start,
                end: held.end,
                kind: crate::locks::number_of(held.kind),
                pid: held.pid,
            },
            None => abi::FileLock {
                start: lock.start,
                end: lock.end,
                kind: libc::F_UNLCK as u32,
                pid: 0,
            },
        };
        Ok(Reply::fixed(&abi::LkOut { lk }))
    }
}

/// The changes that SETATTR requests.
fn changes(args: &abi::SetattrIn, caller: &Caller) -> SetAttributes {
    let has = |bit| args.valid & bit != 0;
    let time = |now, given, seconds, nanoseconds| {
        if has(now) {
            Some(TimeChange::Now)
        } else {
            has(given).then(|| TimeChange::At(Timestamp::from_timespec(seconds, nanoseconds)))
        }
    };
    SetAttributes {
        mode: has(fattr::MODE).then_some(args.mode & 0o7777),
        uid: has(fattr::UID).then_some(args.uid),
        gid: has(fattr::GID).then_some(args.gid),
        size: has(fattr::SIZE).then_some(args.size),
        atime: time(fattr::ATIME_NOW, fattr::ATIME, args.atime, args.atimensec),
        mtime: time(fattr::MTIME_NOW, fattr::MTIME, args.mtime, args.mtimensec),
        privileges: if has(fattr::KILL_SUIDGID) {
            Privileges::Drop {
                group: Some(caller.gid),
            }
        } else {
            Privileges::Keep
        },
        only_for: None,
    }
}

/// The answer to a request for attribute bytes: their length, or the bytes.
fn attribute_bytes(room: u32, length: usize, bytes: impl FnOnce() -> Vec<Bytes>) -> Result<Reply> {
    if room == 0 {
        let size = u32::try_from(length).map_err(|_| Error::from(ErrorKind::Overflow))?;
        return Ok(Reply::fixed(&abi::GetxattrOut { size, padding: 0 }));
    }
    if length > room as usize {
        return Err(ErrorKind::BufferTooSmall.into());
    }
    Ok(Reply::Data(bytes()))
}

/// Cuts pieces to at most `length` bytes: the kernel rejects longer replies.
fn cut(pieces: &mut Vec<Bytes>, length: usize) {
    let mut left = length;
    for piece in pieces.iter_mut() {
        piece.truncate(left);
        left -= piece.len();
    }
    pieces.retain(|piece| !piece.is_empty());
}

fn refusal(error: &Error, incoming: &Incoming<'_>) -> Reply {
    use ErrorKind::{Corrupt, OldEpoch, Unavailable, Unknown};
    if matches!(error.kind(), Corrupt | OldEpoch | Unavailable | Unknown) {
        let request = abi::opcode::name(incoming.header.opcode);
        tracing::warn!(request, inode = %incoming.inode(), %error, "a request failed");
    }
    Reply::Errno(error.errno())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::NotifyInvalInodeOut;
    use crate::memory::{MemoryFileSystem, MemorySettings};
    use std::io::Read as _;
    use std::os::unix::net::UnixStream;
    use zerocopy::FromBytes;

    #[test]
    fn the_kernel_is_told_to_drop_a_page_whose_old_bytes_were_left_out() {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let world = runtime.block_on(async { World::real() });
        let fs = Arc::new(MemoryFileSystem::new(&world, MemorySettings::default()));
        let agreement = Agreement {
            flags: abi::init::DIRECT_IO_ALLOW_MMAP,
            minor: 36,
            data_bytes: 1 << 20,
        };
        let serving = Serving::new(world.clone(), fs, agreement);
        let caller = Caller::default();
        let create = abi::CreateIn {
            flags: libc::O_RDWR as u32,
            ..Default::default()
        };
        let made = serving.create(&caller, InodeId::ROOT, create, Some(b"f"));
        runtime.block_on(made).expect("a file");
        let bytes = |data, from_cache| Write {
            inode: InodeId(2),
            handle: 0,
            offset: 0,
            data,
            flags: libc::O_RDWR,
            from_cache,
            kill_privileges: false,
        };
        serving.mapped.filled(InodeId(2), 0, 4096);
        // The notice of this write is lost: there is no notifier yet.
        let write = serving.write(&caller, bytes(b"new", false));
        runtime.block_on(write).expect("written");
        let (ours, mut kernel) = UnixStream::pair().expect("sockets");
        let notifier = Notifier::start(&world, Arc::new(Device::from_fd(ours.into())));
        let notifier = notifier.expect("a thread");
        serving.reach_by(&notifier);
        let store = serving.store(&caller, bytes(b"old, stored", true));
        assert_eq!(runtime.block_on(store).expect("stored"), 11);
        // Far more than a busy machine needs: without the notice the test fails instead of hanging.
        let patience = Some(Duration::from_secs(60));
        kernel.set_read_timeout(patience).expect("a socket");
        let mut told = [0; size_of::<abi::OutHeader>() + size_of::<NotifyInvalInodeOut>()];
        kernel.read_exact(&mut told).expect("it is told");
        let told = &told[size_of::<abi::OutHeader>()..];
        let told = NotifyInvalInodeOut::read_from_bytes(told).expect("a notice");
        assert_eq!((told.ino, told.off, told.len), (2, 0, 11));
        notifier.close();
        let read = Read {
            inode: InodeId(2),
            handle: 0,
            offset: 0,
            length: 100,
            flags: 0,
        };
        let read = runtime.block_on(serving.fs.read(&caller, read));
        assert_eq!(read.expect("bytes").concat(), b"new, stored");
    }

    #[test]
    fn data_replies_are_never_longer_than_asked() {
        let mut pieces = vec![
            Bytes::from_static(b"abc"),
            Bytes::from_static(b"def"),
            Bytes::from_static(b"ghi"),
        ];
        cut(&mut pieces, 4);
        assert_eq!(
            pieces,
            [Bytes::from_static(b"abc"), Bytes::from_static(b"d")]
        );
    }

    #[test]
    fn setattr_distinguishes_now_from_a_given_time() {
        let args = abi::SetattrIn {
            valid: fattr::ATIME | fattr::ATIME_NOW | fattr::MTIME | fattr::SIZE,
            mtime: -1,
            mtimensec: 5,
            size: 7,
            ..Default::default()
        };
        let set = changes(&args, &Caller::default());
        assert_eq!(set.atime, Some(TimeChange::Now));
        assert_eq!(set.mtime, Some(TimeChange::At(Timestamp(-999_999_995))));
        assert_eq!((set.size, set.mode), (Some(7), None));
    }
}
