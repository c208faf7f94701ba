//! Requests of the kernel, typed: parsed from bytes without copying names or data.
//!
//! A transport hands over the header, the fixed arguments and the rest (names, data)
//! separately: /dev/fuse delivers them in one piece, FUSE over io_uring in separate buffers.

use crate::abi::{self, InHeader, RingHeader, opcode};
use crate::file_system::{Caller, Lock, LockKind};
use model::InodeId;
use zerocopy::FromBytes;

/// A request as a transport delivers it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Incoming<'a> {
    pub(crate) header: InHeader,
    /// The opcode's own structure; empty for opcodes that have none.
    pub(crate) fixed: &'a [u8],
    /// Names and data after it. The data of a WRITE is page aligned.
    pub(crate) rest: &'a [u8],
}

/// Why a request can't be parsed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Malformed {
    /// Shorter than its own structures.
    Short,
    /// An opcode that this crate doesn't know, or doesn't serve.
    Unknown,
}

/// A parsed request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Request<'a> {
    Lookup {
        name: &'a [u8],
    },
    Forget {
        lookups: u64,
    },
    BatchForget {
        count: usize,
        ones: &'a [u8],
    },
    Getattr,
    Setattr(abi::SetattrIn),
    Statx,
    Readlink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    Mknod {
        args: abi::MknodIn,
        name: &'a [u8],
    },
    Mkdir {
        args: abi::MkdirIn,
        name: &'a [u8],
    },
    Unlink {
        name: &'a [u8],
    },
    Rmdir {
        name: &'a [u8],
    },
    Rename {
        to: InodeId,
        flags: u32,
        from_name: &'a [u8],
        to_name: &'a [u8],
    },
    Link {
        inode: InodeId,
        name: &'a [u8],
    },
    Open(abi::OpenIn),
    Create {
        args: abi::CreateIn,
        name: &'a [u8],
    },
    Tmpfile(abi::CreateIn),
    Read(abi::ReadIn),
    Write {
        args: abi::WriteIn,
        data: &'a [u8],
    },
    Flush(abi::FlushIn),
    Release(abi::ReleaseIn),
    Fsync {
        data_only: bool,
    },
    Opendir,
    Readdir {
        args: abi::ReadIn,
        plus: bool,
    },
    Releasedir {
        handle: u64,
    },
    Statfs,
    Syncfs,
    Setxattr {
        flags: u32,
        drop_setgid: bool,
        name: &'a [u8],
        value: &'a [u8],
    },
    Getxattr {
        size: u32,
        name: &'a [u8],
    },
    Listxattr {
        size: u32,
    },
    Removexattr {
        name: &'a [u8],
    },
    Getlk(Lock),
    Setlk {
        lock: Lock,
        wait: bool,
    },
    Access,
    Interrupt {
        unique: u64,
    },
    Fallocate(abi::FallocateIn),
    Lseek(abi::LseekIn),
    CopyRange {
        args: abi::CopyFileRangeIn,
        wide: bool,
    },
    Init(abi::InitIn),
    Destroy,
    /// The answer to RETRIEVE.
    NotifyReply,
}

/// Bytes of the fixed arguments of an opcode; 0 for unknown ones. `long_setxattr`: INIT agreed on
/// SETXATTR_EXT.
fn fixed_bytes(code: u32, long_setxattr: bool) -> usize {
    match code {
        opcode::SETXATTR if long_setxattr => size_of::<abi::SetxattrIn>(),
        opcode::FORGET => size_of::<abi::ForgetIn>(),
        opcode::BATCH_FORGET => size_of::<abi::BatchForgetIn>(),
        opcode::GETATTR => size_of::<abi::GetattrIn>(),
        opcode::SETATTR => size_of::<abi::SetattrIn>(),
        opcode::STATX => size_of::<abi::StatxIn>(),
        opcode::MKNOD => size_of::<abi::MknodIn>(),
        opcode::MKDIR => size_of::<abi::MkdirIn>(),
        opcode::RENAME => size_of::<abi::RenameIn>(),
        opcode::RENAME2 => size_of::<abi::Rename2In>(),
        opcode::LINK => size_of::<abi::LinkIn>(),
        opcode::OPEN | opcode::OPENDIR => size_of::<abi::OpenIn>(),
        opcode::CREATE | opcode::TMPFILE => size_of::<abi::CreateIn>(),
        opcode::READ | opcode::READDIR | opcode::READDIRPLUS => size_of::<abi::ReadIn>(),
        opcode::WRITE => size_of::<abi::WriteIn>(),
        opcode::FLUSH => size_of::<abi::FlushIn>(),
        opcode::RELEASE | opcode::RELEASEDIR => size_of::<abi::ReleaseIn>(),
        opcode::FSYNC | opcode::FSYNCDIR => size_of::<abi::FsyncIn>(),
        opcode::SYNCFS => size_of::<abi::SyncfsIn>(),
        opcode::SETXATTR => size_of::<abi::SetxattrInOld>(),
        opcode::GETXATTR | opcode::LISTXATTR => size_of::<abi::GetxattrIn>(),
        opcode::GETLK | opcode::SETLK | opcode::SETLKW => size_of::<abi::LkIn>(),
        opcode::ACCESS => size_of::<abi::AccessIn>(),
        opcode::INTERRUPT => size_of::<abi::InterruptIn>(),
        opcode::FALLOCATE => size_of::<abi::FallocateIn>(),
        opcode::LSEEK => size_of::<abi::LseekIn>(),
        opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => size_of::<abi::CopyFileRangeIn>(),
        opcode::INIT => size_of::<abi::InitIn>(),
        _ => 0,
    }
}

impl<'a> Incoming<'a> {
    /// Splits the result of one read of /dev/fuse. `long_setxattr`: INIT agreed on SETXATTR_EXT.
    pub(crate) fn from_device(bytes: &'a [u8], long_setxattr: bool) -> Result<Self, Malformed> {
        let (header, body) = InHeader::read_from_prefix(bytes).map_err(|_| Malformed::Short)?;
        // Extensions (security context, groups) are at the end; we negotiate none.
        let body_bytes = (header.len as usize)
            .checked_sub(size_of::<InHeader>() + 8 * usize::from(header.total_extlen))
            .filter(|length| *length <= body.len())
            .ok_or(Malformed::Short)?;
        let body = &body[..body_bytes];
        let fixed_bytes = fixed_bytes(header.opcode, long_setxattr);
        // INIT is shorter on kernels before 5.17 (no second half of the flags).
        let (fixed, rest) = body.split_at(fixed_bytes.min(body.len()));
        Ok(Self {
            header,
            fixed,
            rest,
        })
    }

    /// Splits a request of FUSE over io_uring: the kernel has put the first argument, a structure,
    /// into `op_in` and the others one after another into `payload`. Opcodes that have only names
    /// leave the first one empty. Bytes in `op_in` after that structure are left over from an
    /// earlier request and ignored.
    pub(crate) fn from_ring(
        ring: &'a RingHeader,
        payload: &'a [u8],
        long_setxattr: bool,
    ) -> Result<Self, Malformed> {
        let (header, _) = InHeader::read_from_prefix(&ring.in_out).map_err(|_| Malformed::Short)?;
        let rest = (ring.payload_sz as usize)
            .checked_sub(8 * usize::from(header.total_extlen))
            .and_then(|length| payload.get(..length))
            .ok_or(Malformed::Short)?;
        Ok(Self {
            header,
            fixed: &ring.op_in[..fixed_bytes(header.opcode, long_setxattr)],
            rest,
        })
    }

    pub(crate) fn caller(&self) -> Caller {
        let InHeader {
            uid,
            gid,
            pid,
            unique,
            ..
        } = self.header;
        Caller {
            uid,
            gid,
            pid,
            unique,
        }
    }

    pub(crate) fn inode(&self) -> InodeId {
        InodeId(self.header.nodeid)
    }

    /// The typed request.
    pub(crate) fn parse(&self) -> Result<Request<'a>, Malformed> {
        let names = |names| self.name_request(names);
        Ok(match self.header.opcode {
            opcode::LOOKUP
            | opcode::UNLINK
            | opcode::RMDIR
            | opcode::REMOVEXATTR
            | opcode::SYMLINK => names(0)?,
            opcode::MKNOD | opcode::MKDIR | opcode::CREATE | opcode::LINK => names(1)?,
            opcode::RENAME | opcode::RENAME2 => names(2)?,
            opcode::FORGET => Request::Forget {
                lookups: self.fixed::<abi::ForgetIn>()?.nlookup,
            },
            opcode::BATCH_FORGET => {
                let count = self.fixed::<abi::BatchForgetIn>()?.count as usize;
                Request::BatchForget {
                    count,
                    ones: self.rest,
                }
            }
            opcode::GETATTR => Request::Getattr,
            opcode::STATX => Request::Statx,
            opcode::SETATTR => Request::Setattr(self.fixed()?),
            opcode::READLINK => Request::Readlink,
            opcode::OPEN => Request::Open(self.fixed()?),
            opcode::TMPFILE => Request::Tmpfile(self.fixed()?),
            opcode::READ => Request::Read(self.fixed()?),
            opcode::WRITE => {
                let args: abi::WriteIn = self.fixed()?;
                Request::Write {
                    args,
                    data: self
                        .rest
                        .get(..args.size as usize)
                        .ok_or(Malformed::Short)?,
                }
            }
            opcode::FLUSH => Request::Flush(self.fixed()?),
            opcode::RELEASE => Request::Release(self.fixed()?),
            opcode::FSYNC | opcode::FSYNCDIR => {
                let args: abi::FsyncIn = self.fixed()?;
                Request::Fsync {
                    data_only: args.fsync_flags & abi::FSYNC_FDATASYNC != 0,
                }
            }
            opcode::OPENDIR => Request::Opendir,
            opcode::READDIR => Request::Readdir {
                args: self.fixed()?,
                plus: false,
            },
            opcode::READDIRPLUS => Request::Readdir {
                args: self.fixed()?,
                plus: true,
            },
            opcode::RELEASEDIR => Request::Releasedir {
                handle: self.fixed::<abi::ReleaseIn>()?.fh,
            },
            opcode::STATFS => Request::Statfs,
            opcode::SYNCFS => Request::Syncfs,
            opcode::SETXATTR => self.setxattr()?,
            opcode::GETXATTR => Request::Getxattr {
                size: self.fixed::<abi::GetxattrIn>()?.size,
                name: name(self.rest)?.0,
            },
            opcode::LISTXATTR => Request::Listxattr {
                size: self.fixed::<abi::GetxattrIn>()?.size,
            },
            opcode::GETLK => Request::Getlk(self.lock()?),
            opcode::SETLK => Request::Setlk {
                lock: self.lock()?,
                wait: false,
            },
            opcode::SETLKW => Request::Setlk {
                lock: self.lock()?,
                wait: true,
            },
            opcode::ACCESS => Request::Access,
            opcode::INTERRUPT => Request::Interrupt {
                unique: self.fixed::<abi::InterruptIn>()?.unique,
            },
            opcode::FALLOCATE => Request::Fallocate(self.fixed()?),
            opcode::LSEEK => Request::Lseek(self.fixed()?),
            opcode::COPY_FILE_RANGE => Request::CopyRange {
                args: self.fixed()?,
                wide: false,
            },
            opcode::COPY_FILE_RANGE_64 => Request::CopyRange {
                args: self.fixed()?,
                wide: true,
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

    /// Requests with names: `kind` 0 names only, 1 arguments and a name, 2 a rename.
    fn name_request(&self, kind: u8) -> Result<Request<'a>, Malformed> {
        let (first, behind) = name(self.rest)?;
        Ok(match (kind, self.header.opcode) {
            (0, opcode::LOOKUP) => Request::Lookup { name: first },
            (0, opcode::UNLINK) => Request::Unlink { name: first },
            (0, opcode::RMDIR) => Request::Rmdir { name: first },
            (0, opcode::REMOVEXATTR) => Request::Removexattr { name: first },
            (0, _) => Request::Symlink {
                name: first,
                target: name(behind)?.0,
            },
            (1, opcode::MKNOD) => Request::Mknod {
                args: self.fixed()?,
                name: first,
            },
            (1, opcode::MKDIR) => Request::Mkdir {
                args: self.fixed()?,
                name: first,
            },
            (1, opcode::CREATE) => Request::Create {
                args: self.fixed()?,
                name: first,
            },
            (1, _) => Request::Link {
                inode: InodeId(self.fixed::<abi::LinkIn>()?.oldnodeid),
                name: first,
            },
            (_, opcode::RENAME) => {
                let to = InodeId(self.fixed::<abi::RenameIn>()?.newdir);
                Request::Rename {
                    to,
                    flags: 0,
                    from_name: first,
                    to_name: name(behind)?.0,
                }
            }
            (_, _) => {
                let args: abi::Rename2In = self.fixed()?;
                let to = InodeId(args.newdir);
                Request::Rename {
                    to,
                    flags: args.flags,
                    from_name: first,
                    to_name: name(behind)?.0,
                }
            }
        })
    }

    fn setxattr(&self) -> Result<Request<'a>, Malformed> {
        // The long structure begins like the short one.
        let args: abi::SetxattrInOld = self.fixed()?;
        let more = self.fixed.get(size_of::<abi::SetxattrInOld>()..);
        let more = more.and_then(|more| u32::read_from_prefix(more).ok());
        let more = more.map_or(0, |(flags, _)| flags);
        let (name, value) = name(self.rest)?;
        let value = value.get(..args.size as usize).ok_or(Malformed::Short)?;
        Ok(Request::Setxattr {
            flags: args.flags,
            drop_setgid: more & abi::SETXATTR_ACL_KILL_SGID != 0,
            name,
            value,
        })
    }

    fn lock(&self) -> Result<Lock, Malformed> {
        let args: abi::LkIn = self.fixed()?;
        let kind = match i32::try_from(args.lk.kind) {
            Ok(libc::F_RDLCK) => LockKind::Shared,
            Ok(libc::F_WRLCK) => LockKind::Exclusive,
            _ => LockKind::Unlock,
        };
        Ok(Lock {
            inode: self.inode(),
            handle: args.fh,
            owner: args.owner,
            start: args.lk.start,
            end: args.lk.end,
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
}

/// Splits a name that ends with NUL from the bytes after it.
fn name(bytes: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    let end = bytes
        .iter()
        .position(|byte| *byte == 0)
        .ok_or(Malformed::Short)?;
    Ok((&bytes[..end], &bytes[end + 1..]))
}

/// The inodes and counts of a BATCH_FORGET.
pub(crate) fn forgets(count: usize, ones: &[u8]) -> impl Iterator<Item = (InodeId, u64)> + '_ {
    ones.chunks_exact(size_of::<abi::ForgetOne>())
        .take(count)
        .filter_map(|chunk| {
            let (one, _) = abi::ForgetOne::read_from_prefix(chunk).ok()?;
            Some((InodeId(one.nodeid), one.nlookup))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::{FromZeros, IntoBytes};

    fn bytes(code: u32, body: &[u8]) -> Vec<u8> {
        let len = u32::try_from(40 + body.len()).expect("short");
        let header = InHeader {
            len,
            opcode: code,
            unique: 2,
            nodeid: 9,
            ..InHeader::default()
        };
        [header.as_bytes(), body].concat()
    }

    #[test]
    fn a_rename_carries_both_names() {
        let args = abi::Rename2In {
            newdir: 5,
            flags: 1,
            padding: 0,
        };
        let whole = bytes(opcode::RENAME2, &[args.as_bytes(), b"old\0new\0"].concat());
        let request = Incoming::from_device(&whole, true)
            .expect("well formed")
            .parse()
            .expect("well formed");
        assert!(matches!(
            request,
            Request::Rename {
                to: InodeId(5),
                flags: 1,
                from_name: b"old",
                to_name: b"new"
            }
        ));
    }

    #[test]
    fn setxattr_is_understood_in_both_lengths() {
        let short = abi::SetxattrInOld { size: 3, flags: 0 };
        let long = abi::SetxattrIn {
            size: 3,
            setxattr_flags: abi::SETXATTR_ACL_KILL_SGID,
            ..Default::default()
        };
        for (is_long, head) in [(false, short.as_bytes()), (true, long.as_bytes())] {
            let whole = bytes(opcode::SETXATTR, &[head, b"user.a\0xyz"].concat());
            let request = Incoming::from_device(&whole, is_long)
                .expect("well formed")
                .parse()
                .expect("well formed");
            assert!(matches!(
                request,
                Request::Setxattr {
                    name: b"user.a",
                    value: b"xyz",
                    drop_setgid,
                    ..
                } if drop_setgid == is_long
            ));
        }
    }

    #[test]
    fn truncated_requests_are_refused_not_read_beyond_their_end() {
        // Bytes of the first argument, from the kernel's fuse.h.
        let fixed = [
            (opcode::FORGET, 8),
            (opcode::SETATTR, 88),
            (opcode::MKNOD, 16),
            (opcode::MKDIR, 8),
            (opcode::RENAME, 8),
            (opcode::LINK, 8),
            (opcode::OPEN, 8),
            (opcode::READ, 40),
            (opcode::WRITE, 40),
            (opcode::RELEASE, 24),
            (opcode::FSYNC, 16),
            (opcode::SETXATTR, 16),
            (opcode::GETXATTR, 8),
            (opcode::LISTXATTR, 8),
            (opcode::FLUSH, 24),
            (opcode::READDIR, 40),
            (opcode::RELEASEDIR, 24),
            (opcode::FSYNCDIR, 16),
            (opcode::GETLK, 48),
            (opcode::SETLK, 48),
            (opcode::SETLKW, 48),
            (opcode::CREATE, 16),
            (opcode::INTERRUPT, 8),
            (opcode::BATCH_FORGET, 8),
            (opcode::FALLOCATE, 32),
            (opcode::READDIRPLUS, 40),
            (opcode::RENAME2, 16),
            (opcode::LSEEK, 24),
            (opcode::COPY_FILE_RANGE, 56),
        ];
        for (code, needed) in fixed {
            for length in 0..needed {
                let whole = bytes(code, &vec![0; length]);
                let incoming = Incoming::from_device(&whole, true).expect("its length is right");
                assert!(incoming.parse().is_err(), "{length} bytes of opcode {code}");
            }
        }
        // Names end with a zero, and data is as long as it says.
        for code in [
            opcode::LOOKUP,
            opcode::UNLINK,
            opcode::RMDIR,
            opcode::SYMLINK,
        ] {
            let whole = bytes(code, b"name without an end");
            let incoming = Incoming::from_device(&whole, true).expect("its length is right");
            assert!(incoming.parse().is_err(), "a cut name of opcode {code}");
        }
        let one_name = [&[0; 16][..], b"old\0"].concat();
        let whole = bytes(opcode::RENAME2, &one_name);
        let incoming = Incoming::from_device(&whole, true).expect("its length is right");
        assert!(incoming.parse().is_err(), "a rename to nothing");
        let write = abi::WriteIn {
            size: 10,
            ..Default::default()
        };
        for (length, is_whole) in [(9, false), (10, true)] {
            let whole = bytes(
                opcode::WRITE,
                &[write.as_bytes(), &vec![7; length]].concat(),
            );
            let incoming = Incoming::from_device(&whole, true).expect("its length is right");
            assert_eq!(incoming.parse().is_ok(), is_whole, "{length} of 10 bytes");
        }
        let mut whole = bytes(opcode::LOOKUP, b"x\0");
        whole[0] = 200;
        assert_eq!(
            Incoming::from_device(&whole, true).err(),
            Some(Malformed::Short)
        );
        whole[0] = 3;
        assert_eq!(
            Incoming::from_device(&whole, true).err(),
            Some(Malformed::Short)
        );
    }

    #[test]
    fn a_ring_delivers_the_same_requests_in_two_parts() {
        let ring = |code, first: &[u8], payload_sz: usize, total_extlen| {
            let header = InHeader {
                opcode: code,
                total_extlen,
                ..InHeader::default()
            };
            let mut ring = RingHeader::new_zeroed();
            ring.in_out[..40].copy_from_slice(header.as_bytes());
            ring.op_in[..first.len()].copy_from_slice(first);
            ring.payload_sz = u32::try_from(payload_sz).expect("short");
            ring
        };
        let rename = abi::Rename2In {
            newdir: 5,
            ..Default::default()
        };
        // Bytes after the payload, left over from an earlier request, aren't part of this one.
        let payload = b"old\0new\0garbage";
        let two_names = ring(opcode::RENAME2, rename.as_bytes(), 8, 0);
        let parsed =
            Incoming::from_ring(&two_names, payload, true).map(|incoming| incoming.parse());
        assert!(matches!(
            parsed,
            Ok(Ok(Request::Rename {
                from_name: b"old",
                to_name: b"new",
                ..
            }))
        ));
        let names_only = ring(opcode::SYMLINK, &[], 8, 0);
        let parsed =
            Incoming::from_ring(&names_only, payload, true).map(|incoming| incoming.parse());
        assert!(matches!(
            parsed,
            Ok(Ok(Request::Symlink {
                name: b"old",
                target: b"new"
            }))
        ));
        let long = abi::SetxattrIn {
            size: 3,
            flags: libc::XATTR_REPLACE as u32,
            setxattr_flags: abi::SETXATTR_ACL_KILL_SGID,
            padding: 0,
        };
        let xattr = ring(opcode::SETXATTR, long.as_bytes(), 7, 0);
        for is_long in [true, false] {
            let parsed = Incoming::from_ring(&xattr, payload, is_long);
            // Without the extension the second half is left over from an earlier request.
            assert!(matches!(
                parsed.map(|incoming| incoming.parse()),
                Ok(Ok(Request::Setxattr {
                    name: b"old",
                    value: b"new",
                    flags: 2,
                    drop_setgid,
                })) if drop_setgid == is_long
            ));
        }
        let extended = ring(opcode::MKDIR, &[0; 8], 12, 1);
        let parsed = Incoming::from_ring(&extended, payload, true).map(|incoming| incoming.rest);
        assert_eq!(parsed.ok(), Some(&b"old\0"[..]), "the extension is cut off");
        for wrong in [
            ring(opcode::LOOKUP, &[], 99, 0),
            ring(opcode::LOOKUP, &[], 4, 1),
        ] {
            let parsed = Incoming::from_ring(&wrong, payload, true);
            assert_eq!(parsed.err(), Some(Malformed::Short));
        }
    }
}
