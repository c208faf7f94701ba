//! Requests of the kernel, typed: parsed from bytes without copying names or data.
//!
//! A transport hands over the header, the fixed arguments and the rest (names, data)
//! separately: /dev/fuse delivers them in one piece, FUSE over io_uring in separate buffers.

use crate::abi::{self, InHeader, RingHeader, opcode};
use crate::verbs::{Caller, Lock};
use model::InodeId;
use zerocopy::FromBytes;

mod parse;

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

/// A parsed request. Each module of `serving` has its own type of requests, so the compiler
/// checks that it answers all of them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Request<'a> {
    Data(DataRequest<'a>),
    Name(NameRequest<'a>),
    Attribute(AttributeRequest<'a>),
    File(FileRequest<'a>),
    Forget {
        lookups: u64,
    },
    BatchForget {
        count: usize,
        ones: &'a [u8],
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
    Init(abi::InitIn),
    Destroy,
    /// The answer to RETRIEVE.
    NotifyReply,
}

/// Requests that move the bytes of files.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DataRequest<'a> {
    Read(abi::ReadIn),
    Write { args: abi::WriteIn, data: &'a [u8] },
}

/// Requests about names in a directory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NameRequest<'a> {
    Lookup {
        name: &'a [u8],
    },
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
}

/// Requests about attributes of inodes and of the file system.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AttributeRequest<'a> {
    Getattr,
    Setattr(abi::SetattrIn),
    Statx,
    Readlink,
    Statfs,
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
}

/// Requests about open files and directories.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FileRequest<'a> {
    Open(abi::OpenIn),
    Create {
        args: abi::CreateIn,
        name: &'a [u8],
    },
    Tmpfile(abi::CreateIn),
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
    Syncfs,
    Fallocate(abi::FallocateIn),
    Lseek(abi::LseekIn),
    CopyRange {
        args: abi::CopyFileRangeIn,
        wide: bool,
    },
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
mod tests;
