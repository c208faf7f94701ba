//! The vocabulary: identifiers, sizes, limits, errors with advice, settings, and every message that
//! crosses a process boundary.
//!
//! No I/O, no async, no clock. Everything here can be sent, stored or printed; nothing here makes
//! decisions. See `docs/glossary.md` for what each word means.

pub mod acl;
pub mod attributes;
pub mod call;
pub mod checksum;
pub mod error;
pub mod extent;
pub mod file_system;
pub mod id;
pub mod jobs;
pub mod join;
pub mod limits;
pub mod lock;
pub mod map;
pub mod member;
pub mod name;
pub mod nsd;
pub mod operation;
pub mod owner;
pub mod scheme;
pub mod segment;
pub mod space;
pub mod time;
pub mod token;

pub use attributes::{Attributes, FileKind, Privileges, SetAttributes, TimeChange};
pub use checksum::Payload;
pub use error::{Advice, Error, ErrorKind, Result};
pub use extent::{Extent, ExtentKind};
pub use file_system::FileSystemName;
pub use id::{
    CommitNumber, DataId, EntryNumber, FailureGroupId, FamilyId, FileSystemId, FilesetId, GroupId,
    GroupVersion, InodeId, InodeNumber, MapEpoch, NodeId, NodeRun, NsdId, SessionId, ShardEpoch,
    ShardId,
};
pub use lock::{LockKind, LockRange};
pub use name::FileName;
pub use operation::{Operation, Reply};
pub use scheme::Scheme;
pub use segment::{BlobName, SegmentId, SegmentPlace};
pub use time::{Moment, Timestamp};
pub use token::{TokenMode, TokenObject, TokenRange};
