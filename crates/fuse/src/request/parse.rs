//! Parses the bytes of a request into its type.

use super::{
    AttributeRequest, DataRequest, FileRequest, Incoming, Malformed, NameRequest, Request,
};
use crate::abi::{self, opcode};
use crate::verbs::Lock;
use model::{InodeId, LockKind, LockRange};
use zerocopy::FromBytes;

impl<'a> Incoming<'a> {
    /// Parses the request.
    pub(crate) fn parse(&self) -> Result<Request<'a>, Malformed> {
        Ok(match self.header.opcode {
            opcode::READ => Request::Data(DataRequest::Read(self.fixed()?)),
            opcode::WRITE => Request::Data(self.write()?),

            opcode::LOOKUP => Request::Name(NameRequest::Lookup {
                name: self.only_name()?,
            }),
            opcode::SYMLINK => {
                let (name, target) = self.two_names()?;
                Request::Name(NameRequest::Symlink { name, target })
            }
            opcode::MKNOD => Request::Name(NameRequest::Mknod {
                args: self.fixed()?,
                name: self.only_name()?,
            }),
            opcode::MKDIR => Request::Name(NameRequest::Mkdir {
                args: self.fixed()?,
                name: self.only_name()?,
            }),
            opcode::UNLINK => Request::Name(NameRequest::Unlink {
                name: self.only_name()?,
            }),
            opcode::RMDIR => Request::Name(NameRequest::Rmdir {
                name: self.only_name()?,
            }),
            opcode::RENAME => {
                let args: abi::RenameIn = self.fixed()?;
                Request::Name(self.rename(args.newdir, 0)?)
            }
            opcode::RENAME2 => {
                let args: abi::Rename2In = self.fixed()?;
                Request::Name(self.rename(args.newdir, args.flags)?)
            }
            opcode::LINK => Request::Name(NameRequest::Link {
                inode: InodeId(self.fixed::<abi::LinkIn>()?.oldnodeid),
                name: self.only_name()?,
            }),

            opcode::GETATTR => Request::Attribute(AttributeRequest::Getattr),
            opcode::SETATTR => Request::Attribute(AttributeRequest::Setattr(self.fixed()?)),
            opcode::STATX => Request::Attribute(AttributeRequest::Statx),
            opcode::READLINK => Request::Attribute(AttributeRequest::Readlink),
            opcode::STATFS => Request::Attribute(AttributeRequest::Statfs),
            opcode::SETXATTR => Request::Attribute(self.setxattr()?),
            opcode::GETXATTR => Request::Attribute(AttributeRequest::Getxattr {
                size: self.fixed::<abi::GetxattrIn>()?.size,
                name: self.only_name()?,
            }),
            opcode::LISTXATTR => Request::Attribute(AttributeRequest::Listxattr {
                size: self.fixed::<abi::GetxattrIn>()?.size,
            }),
            opcode::REMOVEXATTR => Request::Attribute(AttributeRequest::Removexattr {
                name: self.only_name()?,
            }),

            opcode::OPEN => Request::File(FileRequest::Open(self.fixed()?)),
            opcode::CREATE => Request::File(FileRequest::Create {
                args: self.fixed()?,
                name: self.only_name()?,
            }),
            opcode::TMPFILE => Request::File(FileRequest::Tmpfile(self.fixed()?)),
            opcode::FLUSH => Request::File(FileRequest::Flush(self.fixed()?)),
            opcode::RELEASE => Request::File(FileRequest::Release(self.fixed()?)),
            opcode::FSYNC | opcode::FSYNCDIR => {
                let args: abi::FsyncIn = self.fixed()?;
                let data_only = args.fsync_flags & abi::FSYNC_FDATASYNC != 0;
                Request::File(FileRequest::Fsync { data_only })
            }
            opcode::OPENDIR => Request::File(FileRequest::Opendir),
            code @ (opcode::READDIR | opcode::READDIRPLUS) => Request::File(FileRequest::Readdir {
                args: self.fixed()?,
                plus: code == opcode::READDIRPLUS,
            }),
            opcode::RELEASEDIR => Request::File(FileRequest::Releasedir {
                handle: self.fixed::<abi::ReleaseIn>()?.fh,
            }),
            opcode::SYNCFS => Request::File(FileRequest::Syncfs),
            opcode::FALLOCATE => Request::File(FileRequest::Fallocate(self.fixed()?)),
            opcode::LSEEK => Request::File(FileRequest::Lseek(self.fixed()?)),
            code @ (opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64) => {
                Request::File(FileRequest::CopyRange {
                    args: self.fixed()?,
                    wide: code == opcode::COPY_FILE_RANGE_64,
                })
            }

            opcode::FORGET => Request::Forget {
                lookups: self.fixed::<abi::ForgetIn>()?.nlookup,
            },
            opcode::BATCH_FORGET => Request::BatchForget {
                count: self.fixed::<abi::BatchForgetIn>()?.count as usize,
                ones: self.rest,
            },
            opcode::GETLK => Request::Getlk(self.lock()?),
            code @ (opcode::SETLK | opcode::SETLKW) => Request::Setlk {
                lock: self.lock()?,
                wait: code == opcode::SETLKW,
            },
            opcode::ACCESS => Request::Access,
            opcode::INTERRUPT => Request::Interrupt {
                unique: self.fixed::<abi::InterruptIn>()?.unique,
            },
            opcode::INIT => {
                let mut whole = [0; size_of::<abi::InitIn>()];
                whole[..self.fixed.len()].copy_from_slice(self.fixed);
                Request::Init(zerocopy::transmute!(whole))
            }
            opcode::DESTROY => Request::Destroy,
            opcode::NOTIFY_REPLY => Request::NotifyReply,
            _ => return Err(Malformed::Unknown),
        })
    }

    fn write(&self) -> Result<DataRequest<'a>, Malformed> {
        let args: abi::WriteIn = self.fixed()?;
        let data = self.rest.get(..args.size as usize);
        Ok(DataRequest::Write {
            args,
            data: data.ok_or(Malformed::Short)?,
        })
    }

    fn rename(&self, to: u64, flags: u32) -> Result<NameRequest<'a>, Malformed> {
        let (from_name, to_name) = self.two_names()?;
        Ok(NameRequest::Rename {
            to: InodeId(to),
            flags,
            from_name,
            to_name,
        })
    }

    fn setxattr(&self) -> Result<AttributeRequest<'a>, Malformed> {
        // The long structure begins like the short one.
        let args: abi::SetxattrInOld = self.fixed()?;
        let more = self.fixed.get(size_of::<abi::SetxattrInOld>()..);
        let more = more.and_then(|more| u32::read_from_prefix(more).ok());
        let more = more.map_or(0, |(flags, _)| flags);
        let (name, value) = split_name(self.rest)?;
        let value = value.get(..args.size as usize).ok_or(Malformed::Short)?;
        Ok(AttributeRequest::Setxattr {
            flags: args.flags,
            drop_setgid: more & abi::SETXATTR_ACL_KILL_SGID != 0,
            name,
            value,
        })
    }

    fn lock(&self) -> Result<Lock, Malformed> {
        let args: abi::LkIn = self.fixed()?;
        let kind = match i32::try_from(args.lk.kind) {
            Ok(libc::F_RDLCK) => Some(LockKind::Shared),
            Ok(libc::F_WRLCK) => Some(LockKind::Exclusive),
            _ => None,
        };
        Ok(Lock {
            inode: self.inode(),
            handle: args.fh,
            owner: args.owner,
            range: LockRange {
                start: args.lk.start,
                end: args.lk.end,
            },
            kind,
            pid: args.lk.pid,
            flock: args.lk_flags & abi::LK_FLOCK != 0,
        })
    }

    fn fixed<T: FromBytes>(&self) -> Result<T, Malformed> {
        T::read_from_prefix(self.fixed)
            .map(|(value, _)| value)
            .map_err(|_| Malformed::Short)
    }

    fn only_name(&self) -> Result<&'a [u8], Malformed> {
        Ok(split_name(self.rest)?.0)
    }

    fn two_names(&self) -> Result<(&'a [u8], &'a [u8]), Malformed> {
        let (first, rest) = split_name(self.rest)?;
        Ok((first, split_name(rest)?.0))
    }
}

/// Splits a name that ends with NUL from the bytes after it.
fn split_name(bytes: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    let end = bytes
        .iter()
        .position(|byte| *byte == 0)
        .ok_or(Malformed::Short)?;
    Ok((&bytes[..end], &bytes[end + 1..]))
}
