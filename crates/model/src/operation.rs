//! File system operations on a shard, and their replies.
//!
//! The same types are function arguments on one node and messages between nodes. An operation
//! brings its own time and identity: the code that applies it has neither clock nor chance.

use crate::{
    Attributes, DataId, Extent, FileKind, FileName, InodeId, SegmentPlace, SessionId,
    SetAttributes, Timestamp,
};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// One file system operation. Reads and changes are one type, so that the order between them
/// is the order in which the shard runs them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Operation {
    /// Finds a name. → `Entry`
    Lookup {
        /// The directory.
        directory: InodeId,
        /// The name.
        name: FileName,
    },
    /// Finds the directory that contains a directory (".."); the root is its own. → `Entry`
    LookupParent {
        /// The directory.
        directory: InodeId,
    },
    /// Reads attributes. → `Attributes`
    GetAttributes {
        /// The inode.
        inode: InodeId,
    },
    /// Changes attributes; `size` truncates. → `Attributes`, with `unfinished` set while
    /// extents beyond the new size remain: ask [`Operation::ContinueCut`] until it isn't.
    SetAttributes {
        /// The inode.
        inode: InodeId,
        /// The changes.
        set: SetAttributes,
    },
    /// Goes on with a truncate that didn't fit into one step. → `Attributes`
    ContinueCut {
        /// The inode.
        inode: InodeId,
    },
    /// A file was read: atime becomes at least `at`. ctime stays, and nothing is refused for
    /// it: whoever reads asks for this at most once a day. → `Done`
    NoteAccess {
        /// The inode.
        inode: InodeId,
        /// When.
        at: Timestamp,
    },
    /// Makes a new inode under a name. `Exists` if the name is taken. → `Entry`
    Create {
        /// The directory.
        directory: InodeId,
        /// The name.
        name: FileName,
        /// What and whose.
        new: NewInode,
    },
    /// Makes a file without a name (O_TMPFILE); it is an orphan held by the caller until
    /// linked or released. → `Entry`
    CreateUnnamed {
        /// Whose fileset, group and default rights it gets.
        directory: InodeId,
        /// What and whose.
        new: NewInode,
    },
    /// Gives an inode one more name. → `Entry`
    Link {
        /// The inode; no directory.
        inode: InodeId,
        /// The directory of the new name.
        directory: InodeId,
        /// The new name.
        name: FileName,
    },
    /// Removes a name of something that isn't a directory. → `Removed`
    Unlink {
        /// The directory.
        directory: InodeId,
        /// The name.
        name: FileName,
    },
    /// Removes an empty directory. → `Removed`
    RemoveDirectory {
        /// The parent.
        directory: InodeId,
        /// The name.
        name: FileName,
    },
    /// Moves a name. → `Renamed`
    Rename {
        /// From where.
        from_directory: InodeId,
        /// Which.
        from_name: FileName,
        /// To where.
        to_directory: InodeId,
        /// As what.
        to_name: FileName,
        /// What happens to an existing target.
        mode: RenameMode,
    },
    /// Lists a directory in position order, without "." and "..". → `Listing`
    ReadDirectory {
        /// The directory.
        directory: InodeId,
        /// Entries behind this position; 0 from the start.
        after: u64,
        /// At most this many entries (and never more than `limits::LISTING_ENTRIES_MAX`).
        limit: u32,
        /// With the attributes of each entry.
        with_attributes: bool,
    },
    /// Reads a symbolic link. → `Target`
    ReadLink {
        /// The link.
        inode: InodeId,
    },
    /// Reads an extended attribute. → `Value`
    GetXattr {
        /// The inode.
        inode: InodeId,
        /// With its namespace, as "user.x".
        name: Bytes,
    },
    /// Lists the names of extended attributes. → `Names`
    ListXattrs {
        /// The inode.
        inode: InodeId,
    },
    /// Sets an extended attribute. → `Attributes`
    SetXattr {
        /// The inode.
        inode: InodeId,
        /// With its namespace.
        name: Bytes,
        /// The value, at most 64 KiB with all others.
        value: Bytes,
        /// Whether it must or must not exist.
        mode: XattrMode,
        /// Whether the setgid bit goes with it: an access ACL set by somebody outside of the
        /// inode's group.
        drop_setgid: bool,
    },
    /// Removes an extended attribute. → `Attributes`
    RemoveXattr {
        /// The inode.
        inode: InodeId,
        /// With its namespace.
        name: Bytes,
    },
    /// Reads where bytes are. → `Extents`
    ReadExtents {
        /// The inode.
        inode: InodeId,
        /// From this byte.
        offset: u64,
        /// This many bytes.
        length: u64,
        /// At most this many extents.
        limit: u32,
    },
    /// Puts extents into a file, over what was there. → `Attributes`
    Publish(Publish),
    /// Changes a range without data. → `RangeChanged`; ask again from `next` until it is none.
    ChangeRange {
        /// The inode.
        inode: InodeId,
        /// From this byte.
        offset: u64,
        /// This many bytes.
        length: u64,
        /// How.
        change: RangeChange,
        /// Whether the size stays even if the range ends behind it.
        keep_size: bool,
    },
    /// Lets one file share the extents of another (copy_file_range). → `RangeChanged`, where
    /// `next` is a byte of the source: all before it is shared. Nothing could be shared if that is
    /// `from_offset`, because the source ends there.
    Share {
        /// Source.
        from: InodeId,
        /// From this byte of the source.
        from_offset: u64,
        /// Destination.
        to: InodeId,
        /// To this byte.
        to_offset: u64,
        /// This many bytes; ends at the source's size.
        length: u64,
    },
    /// The last holder let go of an inode without names. Nothing happens if it has names.
    /// → `Done`; `Progress` with more if somebody holds it again and has to release it
    Release {
        /// The inode.
        inode: InodeId,
    },
    /// Counters of a fileset. → `Usage`
    GetUsage {
        /// An inode of the fileset.
        inode: InodeId,
    },
    /// Background: removes the next records of a queued data id. → `Progress`
    Reclaim {
        /// The fileset.
        fileset: crate::FilesetId,
        /// The data id.
        data: DataId,
    },
    /// Background: segments whose blobs are deleted everywhere leave the dead list. → `Done`
    ForgetDead {
        /// The segments.
        segments: Vec<crate::SegmentId>,
    },
}

/// A new inode.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NewInode {
    /// Its type.
    pub kind: FileKind,
    /// Permission bits, umask not applied.
    pub mode: u32,
    /// Permission bits that the caller doesn't want (umask). A default ACL of the directory
    /// takes its place.
    pub umask: u32,
    /// Owner.
    pub uid: u32,
    /// Group, unless the directory passes on its own (setgid).
    pub gid: u32,
    /// Device number of device files.
    pub rdev: u32,
    /// Target of a symbolic link; empty otherwise.
    pub target: Bytes,
}

/// What a rename does with an existing target.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RenameMode {
    /// Replaces it.
    Replace,
    /// RENAME_NOREPLACE: refuses.
    NoReplace,
    /// RENAME_EXCHANGE: swaps both; the target must exist.
    Exchange,
}

/// Whether an extended attribute must or must not exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum XattrMode {
    /// Either.
    Set,
    /// XATTR_CREATE.
    Create,
    /// XATTR_REPLACE.
    Replace,
}

/// How a range without data changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RangeChange {
    /// FALLOC_FL_PUNCH_HOLE: becomes a hole.
    Punch,
    /// FALLOC_FL_ZERO_RANGE: reads as zeros, space stays reserved.
    Zero,
    /// fallocate: holes become reserved, data stays.
    Reserve,
}

/// Extents to commit. Its pieces are durable (or named missing) before it is sent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Publish {
    /// The inode.
    pub inode: InodeId,
    /// Sorted, not overlapping, at most `limits::PUBLISH_EXTENTS_MAX`. `Inline` extents that
    /// cover a whole file of at most `limits::INLINE_FILE_BYTES_MAX` go into the inode.
    pub extents: Vec<Extent>,
    /// The file is at least this long afterwards.
    pub size_at_least: u64,
    /// Time of the last write, with the attribute generation that it was made in; ignored if
    /// the generation has changed since.
    pub written: Option<(Timestamp, u32)>,
    /// For a publish by anyone but the writer (fold, clean, repair): what it replaces. If the
    /// ranges of `extents` don't hold exactly these now, the answer is `Changed` and nothing
    /// happens. Times and size stay as they are.
    pub replaces: Option<Vec<Extent>>,
}

/// When and for whom an operation runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Stamp {
    /// The client's clock.
    pub now: Timestamp,
    /// The client's session.
    pub session: SessionId,
    /// For shipped operations: the slot and number that make it exactly once. Delegated
    /// operations have none; their stream is counted per commit.
    pub slot: Option<(u8, u64)>,
}

/// The answer to an operation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// An inode under a name.
    Entry {
        /// Its attributes.
        attributes: Attributes,
        /// The directory's attributes after the operation.
        directory: Option<Attributes>,
    },
    /// Attributes after the operation.
    Attributes {
        /// The attributes.
        attributes: Attributes,
        /// A truncate needs more steps.
        unfinished: bool,
    },
    /// A name is gone.
    Removed {
        /// The inode as it is now (links may be 0).
        attributes: Attributes,
        /// The directory.
        directory: Attributes,
        /// It had no names left and was held by somebody: `Release` it after the last close.
        orphaned: bool,
    },
    /// A name has moved.
    Renamed {
        /// What moved.
        moved: Attributes,
        /// What was replaced or exchanged, as it is now.
        target: Option<Attributes>,
        /// The target had no names left and was held.
        orphaned: bool,
    },
    /// A piece of a directory.
    Listing {
        /// Entries in position order.
        entries: Vec<DirectoryEntry>,
        /// Whether nothing comes behind them.
        end: bool,
    },
    /// Target of a symbolic link.
    Target(Bytes),
    /// Value of an extended attribute.
    Value(Bytes),
    /// Names of extended attributes.
    Names(Vec<Bytes>),
    /// Where bytes are; gaps are holes.
    Extents {
        /// In order, clipped to the asked range.
        extents: Vec<Extent>,
        /// What is valid of the answer: extents and holes up to here.
        known_to: u64,
        /// Attributes at the same moment.
        attributes: Attributes,
    },
    /// A range was changed.
    RangeChanged {
        /// The (destination) inode now.
        attributes: Attributes,
        /// Go on here.
        next: Option<u64>,
    },
    /// Counters of a fileset.
    Usage {
        /// Inodes.
        inodes: u64,
        /// Sum of the sizes of regular files.
        logical: u128,
        /// Sum of the allocated bytes.
        allocated: u128,
    },
    /// A background step is done.
    Progress {
        /// There is more.
        more: bool,
    },
    /// Nothing to say.
    Done,
}

/// An entry of a listing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DirectoryEntry {
    /// The cookie: unique in the directory, at least 3, stable while the name exists.
    pub position: u64,
    /// The name.
    pub name: FileName,
    /// The inode.
    pub inode: InodeId,
    /// Its type.
    pub kind: FileKind,
    /// Its attributes, if asked for.
    pub attributes: Option<Attributes>,
}

/// A segment that nothing points at any more, told by the owner to the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeadSegment {
    /// Where it is.
    pub place: SegmentPlace,
}
