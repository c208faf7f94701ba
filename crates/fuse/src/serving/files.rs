//! Answers requests about open files and directories.

use super::Serving;
use crate::abi::{self, CreateOut, EntryOut, OpenOut};
use crate::file_system::FileSystem;
use crate::listing::Listing;
use crate::reply::Reply;
use crate::request::FileRequest;
use crate::verbs::{Caller, CopyRange, Create, Fallocate, Open, Opened, Release};
use model::{FileName, InodeId, Result};

impl<F: FileSystem> Serving<F> {
    pub(super) async fn files(
        &self,
        caller: &Caller,
        inode: InodeId,
        request: FileRequest<'_>,
    ) -> Result<Reply> {
        match request {
            FileRequest::Open(args) => {
                let kill_privileges = args.open_flags & abi::OPEN_KILL_SUIDGID != 0;
                let open = Open {
                    flags: args.flags as i32,
                    kill_privileges,
                };
                let opened = self.fs.open(caller, inode, open).await?;
                return Ok(Reply::fixed(&self.opened(inode, open.flags, &opened)));
            }
            FileRequest::Create { args, name } => {
                return self.create(caller, inode, args, Some(name)).await;
            }
            FileRequest::Tmpfile(args) => return self.create(caller, inode, args, None).await,
            FileRequest::Opendir => {
                let opened = self.fs.open_directory(caller, inode).await?;
                return Ok(Reply::fixed(&OpenOut::of(&opened, self.agreement.flags)));
            }
            FileRequest::Readdir { args, plus } => {
                let room = args.size.min(self.agreement.data_bytes) as usize;
                let mut listing = Listing::new(room, args.offset, plus);
                self.fs
                    .read_directory(caller, inode, args.fh, &mut listing)
                    .await?;
                return Ok(Reply::Buffer(listing.into_bytes()));
            }
            FileRequest::Flush(args) => {
                self.fs
                    .flush(caller, inode, args.fh, args.lock_owner)
                    .await?
            }
            FileRequest::Release(args) => {
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
            FileRequest::Releasedir { handle } => {
                self.fs.release_directory(caller, inode, handle).await?
            }
            FileRequest::Fsync { data_only } => self.fs.fsync(caller, inode, data_only).await?,
            FileRequest::Syncfs => self.fs.sync_all(caller).await?,
            FileRequest::Fallocate(args) => {
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
            FileRequest::Lseek(args) => {
                let offset = self
                    .fs
                    .seek(caller, inode, args.offset, args.whence as i32)
                    .await?;
                return Ok(Reply::fixed(&abi::LseekOut { offset }));
            }
            FileRequest::CopyRange { args, wide } => {
                return self.copy_range(caller, inode, &args, wide).await;
            }
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

    pub(super) async fn create(
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
        self.made.note(caller, &entry, self.world.now());
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
}
