//! The one error type that crosses parts, processes and doors.
//!
//! A kind exists only if some caller acts on it; its advice says how. Crates that deal with the
//! machine may have small errors of their own, translated to this type at their public interface.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The result of every fallible operation.
pub type Result<T> = std::result::Result<T, Error>;

/// What a caller should do about an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// The same request may succeed at once or a little later.
    Retry,
    /// The caller's map is old: fetch the newer one, then ask again.
    RefreshMap,
    /// Something must be repaired, freed or come back first.
    Wait,
    /// The request doesn't fit the current state: change it before asking again.
    FixRequest,
    /// Asking again will not help.
    GiveUp,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident => $advice:ident, $errno:expr, $name:literal;)*) => {
        /// What went wrong, in as much detail as a caller can act on.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
        pub enum ErrorKind { $($(#[$doc])* $kind,)* }

        impl ErrorKind {
            /// What a caller should do.
            #[must_use]
            pub fn advice(self) -> Advice { match self { $(Self::$kind => Advice::$advice,)* } }
            /// The errno (Linux numbers) that a POSIX door answers with.
            #[must_use]
            pub fn errno(self) -> i32 { match self { $(Self::$kind => $errno,)* } }
            /// Stable name for logs and JSON.
            #[must_use]
            pub fn name(self) -> &'static str { match self { $(Self::$kind => $name,)* } }
        }
    };
}

// Some kinds have no maker today. They stay: a slot's record stores an error by its kind's number.
kinds! {
    /// EPERM.
    NotPermitted => FixRequest, 1, "not_permitted";
    /// ENOENT.
    NotFound => FixRequest, 2, "not_found";
    /// EINTR.
    Interrupted => Retry, 4, "interrupted";
    /// EIO: data or metadata can't be had now; `shale health` says more.
    Unavailable => Wait, 5, "unavailable";
    /// EIO: bytes don't match their checksum and can't be rebuilt.
    Corrupt => GiveUp, 5, "corrupt";
    /// ENXIO.
    NoSuchDeviceOrAddress => FixRequest, 6, "no_such_device_or_address";
    /// EBADF.
    BadHandle => FixRequest, 9, "bad_handle";
    /// EAGAIN: a lock is held by another.
    WouldBlock => Retry, 11, "would_block";
    /// EACCES.
    AccessDenied => FixRequest, 13, "access_denied";
    /// EBUSY.
    Busy => Retry, 16, "busy";
    /// EEXIST.
    Exists => FixRequest, 17, "exists";
    /// EXDEV: renames and links do not cross filesets.
    OtherFileset => FixRequest, 18, "other_fileset";
    /// ENOTDIR.
    NotDirectory => FixRequest, 20, "not_directory";
    /// EISDIR.
    IsDirectory => FixRequest, 21, "is_directory";
    /// EINVAL.
    InvalidArgument => FixRequest, 22, "invalid_argument";
    /// ETXTBSY: the file is being executed.
    BeingExecuted => Retry, 26, "being_executed";
    /// EFBIG.
    FileTooLarge => FixRequest, 27, "file_too_large";
    /// ENOSPC.
    NoSpace => Wait, 28, "no_space";
    /// EROFS.
    ReadOnly => GiveUp, 30, "read_only";
    /// EMLINK.
    TooManyLinks => FixRequest, 31, "too_many_links";
    /// ERANGE: the caller's buffer is too small.
    BufferTooSmall => FixRequest, 34, "buffer_too_small";
    /// EDEADLK.
    WouldDeadlock => FixRequest, 35, "would_deadlock";
    /// ENAMETOOLONG.
    NameTooLong => FixRequest, 36, "name_too_long";
    /// ENOSYS.
    NotImplemented => GiveUp, 38, "not_implemented";
    /// ENOTEMPTY.
    NotEmpty => FixRequest, 39, "not_empty";
    /// ELOOP.
    TooManySymlinks => FixRequest, 40, "too_many_symlinks";
    /// ENODATA: no such extended attribute.
    NoSuchAttribute => FixRequest, 61, "no_such_attribute";
    /// EOVERFLOW.
    Overflow => FixRequest, 75, "overflow";
    /// EOPNOTSUPP.
    NotSupported => GiveUp, 95, "not_supported";
    /// ENOTCONN: the daemon or file system is going down.
    ShuttingDown => GiveUp, 107, "shutting_down";
    /// EIO: a deadline passed; whether the request took effect is unknown.
    Unknown => Retry, 5, "unknown";
    /// ESTALE: a handle names something that is gone.
    Stale => GiveUp, 116, "stale";
    /// EDQUOT.
    QuotaExceeded => Wait, 122, "quota_exceeded";
    /// A newer owner, map or session exists; this process must stop using its own.
    OldEpoch => RefreshMap, 116, "old_epoch";
    /// ENOLCK: more file locks than may be held or waited for.
    TooManyLocks => Retry, 37, "too_many_locks";
    /// A conditional publish found the file changed; nothing was done.
    Changed => GiveUp, 11, "changed";
    /// The owner is new and doesn't know what the session holds: say that first, then ask again.
    ReclaimFirst => Retry, 11, "reclaim_first";
    /// EIO: the session has ended. What it held is lost, and what it hadn't published.
    SessionEnded => GiveUp, 5, "session_ended";
    /// Another process has owned the shard since: this one must forget what it had in memory.
    Superseded => RefreshMap, 116, "superseded";
    /// The owner is new and doesn't know all locks yet: ask again a little later.
    InGrace => Retry, 11, "in_grace";
    /// ENFILE: more files in use at the same time than a node may have.
    TooManyOpens => Retry, 23, "too_many_opens";
}

/// An error: its kind, what was attempted on what, and why it failed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Error {
    kind: ErrorKind,
    /// Outermost attempt first; the last one is the cause.
    story: Vec<String>,
}

impl Error {
    /// A new error. `cause`: lower case, no full stop, states what was found.
    #[must_use]
    pub fn new(kind: ErrorKind, cause: impl Into<String>) -> Self {
        Self {
            kind,
            story: vec![cause.into()],
        }
    }

    /// Adds what was being attempted, and on what, as the outermost step.
    #[must_use]
    pub fn while_doing(mut self, attempt: impl Into<String>) -> Self {
        self.story.insert(0, attempt.into());
        self
    }

    /// What went wrong.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What to do.
    #[must_use]
    pub fn advice(&self) -> Advice {
        self.kind.advice()
    }

    /// For POSIX doors.
    #[must_use]
    pub fn errno(&self) -> i32 {
        self.kind.errno()
    }
}

impl From<ErrorKind> for Error {
    /// An error whose kind says it all, like most POSIX refusals; allocates nothing.
    fn from(kind: ErrorKind) -> Self {
        Self {
            kind,
            story: Vec::new(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.story.is_empty() {
            return f.write_str(self.kind.name());
        }
        f.write_str(&self.story.join(": "))
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({self})", self.kind.name())
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would be broken if a program got a number for which nobody looks: of a file, ETIMEDOUT for instance.
    #[test]
    fn what_programs_lose_without_a_fault_of_theirs_is_eio() {
        const EIO: i32 = 5;
        let lost = [
            ErrorKind::Unavailable,
            ErrorKind::Unknown,
            ErrorKind::SessionEnded,
            ErrorKind::Corrupt,
        ];
        for kind in lost {
            assert_eq!(Error::from(kind).errno(), EIO, "{}", kind.name());
        }
    }
}
