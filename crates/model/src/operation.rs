//! File system operations on a shard, and their replies.
//!
//! The same types are function arguments on one node and messages between nodes. An operation
//! brings its own time and identity: the code that applies it has neither a clock nor random
//! numbers.

use crate::{
    Attributes, CommitNumber, DataId, Extent, FileKind, FileName, InodeId, InodeNumber, SessionId,
    SetAttributes, ShardEpoch, Timestamp,
};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// One file system operation. Reads and changes are one type, so that the shard runs them in one
/// order.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Operation {
    /// Finds a name. → `Entry`
    Lookup {
        /// The directory.
        directory: InodeId,
        /// The name.
        name: FileName,
    },
    /// Finds the directory that contains a directory (".."); the root contains itself. → `Entry`
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
    /// Continues a truncate that didn't fit into one step. → `Attributes`
    ContinueCut {
        /// The inode.
        inode: InodeId,
    },
    /// A file was read: atime becomes at least `at`, ctime stays. Clients send it by the rules of
    /// relatime, and its failure fails no read. → `Done`
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
        /// Its type, owner and permissions.
        new: NewInode,
    },
    /// Makes a file without a name (O_TMPFILE); it is an orphan held by the caller until it is
    /// linked or released. A caller on another node holds it with this operation, on its own node it
    /// asks for that next. → `Entry`
    CreateUnnamed {
        /// The directory whose fileset, group and default ACL it gets.
        directory: InodeId,
        /// Its type, owner and permissions.
        new: NewInode,
    },
    /// Gives an inode one more name. → `Entry`
    Link {
        /// The inode; not a directory.
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
        /// The source directory.
        from_directory: InodeId,
        /// The name in it.
        from_name: FileName,
        /// The target directory.
        to_directory: InodeId,
        /// The new name.
        to_name: FileName,
        /// What happens to an existing target.
        mode: RenameMode,
    },
    /// Lists a directory in position order, without "." and "..". → `Listing`
    ReadDirectory {
        /// The directory.
        directory: InodeId,
        /// Only entries after this position; 0 lists from the start.
        after: u64,
        /// At most this many entries (and never more than `limits::LISTING_ENTRIES_MAX`).
        limit: u32,
        /// Whether each entry comes with its attributes.
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
        /// The name with its namespace, like "user.x".
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
        /// The name with its namespace.
        name: Bytes,
        /// The value, at most 64 KiB with all others.
        value: Bytes,
        /// Whether it must or must not exist.
        mode: XattrMode,
        /// Whether to clear setgid as well: the caller set an access ACL and isn't in the inode's
        /// group.
        drop_setgid: bool,
    },
    /// Removes an extended attribute. → `Attributes`
    RemoveXattr {
        /// The inode.
        inode: InodeId,
        /// The name with its namespace.
        name: Bytes,
    },
    /// Reads where a range's bytes are stored. → `Extents`
    ReadExtents {
        /// The inode.
        inode: InodeId,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        length: u64,
        /// At most this many extents.
        limit: u32,
    },
    /// Puts extents into a file, replacing the previous content of their ranges. → `Attributes`
    Publish(Publish),
    /// Changes a range without data. → `RangeChanged`; repeat from `next` until it is `None`.
    ChangeRange {
        /// The inode.
        inode: InodeId,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        length: u64,
        /// The kind of change.
        change: RangeChange,
        /// Whether the size stays the same even if the range ends after it.
        keep_size: bool,
    },
    /// Lets one file share another's extents (copy_file_range). → `RangeChanged`, whose `next` is a
    /// position in the source: all bytes before it are shared. `next` equal to `from_offset` means
    /// that nothing could be shared, because the source ends there.
    Share {
        /// Source.
        from: InodeId,
        /// First byte in the source.
        from_offset: u64,
        /// Destination.
        to: InodeId,
        /// First byte in the destination.
        to_offset: u64,
        /// Number of bytes; the range is cut at the source's size.
        length: u64,
    },
    /// The last holder released an inode without names. No effect if it has names. → `Done`;
    /// `Progress` with more if a client holds the inode again and must release it.
    Release {
        /// The inode.
        inode: InodeId,
    },
    /// Counters of a fileset. → `Usage`
    GetUsage {
        /// An inode of the fileset.
        inode: InodeId,
    },
    /// Reserves numbers for the session, which then names them in operations that it applies before
    /// the owner does ([`Fresh`]). The session's end drops those that are left. With none of both kinds, inode numbers are
    /// given back that the session won't use. → `Reserved`
    Reserve {
        /// An inode of the fileset; of those that are given back the first one: with it all later ones of its run go.
        inode: InodeId,
        /// How many inode numbers; at most `limits::RESERVED_MAX`.
        inodes: u32,
        /// How many data ids; at most `limits::RESERVED_MAX`.
        data: u32,
    },
    /// Background: removes the next records of a queued data id. → `Progress`
    Reclaim {
        /// The fileset.
        fileset: crate::FilesetId,
        /// The data id.
        data: DataId,
    },
    /// Background: puts segments on the dead list that no record points at and none ever will. One
    /// that is live or on the list already is left alone. Their blobs are deleted once the commit
    /// is durable. → `Done`
    Condemn {
        /// The segments.
        places: Vec<crate::SegmentPlace>,
    },
    /// Background: drops segments from the dead list once their blobs are deleted everywhere. →
    /// `Done`
    ForgetDead {
        /// The segments.
        segments: Vec<crate::SegmentId>,
    },
    /// As [`Operation::Create`], for a program that opens what it makes: the caller's session holds the
    /// inode from the moment when it is made, so that it outlives its name whoever removes that. → `Entry`
    CreateHeld {
        /// The directory.
        directory: InodeId,
        /// The name.
        name: FileName,
        /// Its type, owner and permissions.
        new: NewInode,
    },
}

impl Operation {
    /// Makes an inode under a new name; held by the session if its program `opens` it.
    #[must_use]
    pub fn create(directory: InodeId, name: FileName, new: NewInode, opens: bool) -> Self {
        match opens {
            true => Self::CreateHeld {
                directory,
                name,
                new,
            },
            false => Self::Create {
                directory,
                name,
                new,
            },
        }
    }

    /// Whether the operation changes no records.
    #[must_use]
    pub fn is_read(&self) -> bool {
        matches!(
            self,
            Self::Lookup { .. }
                | Self::LookupParent { .. }
                | Self::GetAttributes { .. }
                | Self::ReadDirectory { .. }
                | Self::ReadLink { .. }
                | Self::GetXattr { .. }
                | Self::ListXattrs { .. }
                | Self::ReadExtents { .. }
                | Self::GetUsage { .. }
        )
    }

    /// Whether the answer can have many hundred KiB. That of extended attributes can't: an inode has few of them.
    #[must_use]
    pub fn answers_much(&self) -> bool {
        match self {
            Self::ReadDirectory { .. } => true,
            // One extent alone is small. Whoever asks for that wants to write or publish, and others may wait for it.
            Self::ReadExtents { limit, .. } => *limit > 1,
            _ => false,
        }
    }

    /// Whether a session on another node than the owner holds what the operation makes, without asking for it.
    #[must_use]
    pub fn makes_held(&self) -> bool {
        matches!(self, Self::CreateUnnamed { .. } | Self::CreateHeld { .. })
    }
}

/// A new inode.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NewInode {
    /// Its type.
    pub kind: FileKind,
    /// Permission bits, umask not applied.
    pub mode: u32,
    /// Permission bits that the caller doesn't want (umask). A default ACL of the directory
    /// replaces it.
    pub umask: u32,
    /// Owner.
    pub uid: u32,
    /// Group, unless the directory passes on its own (setgid). Of what [`NewInode::lends_group`], the directory's if the
    /// caller may give that group's rights away.
    pub gid: u32,
    /// Device number of device files.
    pub rdev: u32,
    /// Target of a symbolic link; empty otherwise.
    pub target: Bytes,
}

impl NewInode {
    /// Whether everybody who runs it is to get its group's rights. The umask doesn't count, as in Linux.
    #[must_use]
    pub fn lends_group(&self) -> bool {
        const LENDING: u32 = SETGID | GROUP_EXECUTE;
        self.kind != FileKind::Directory && self.mode & LENDING == LENDING
    }

    /// Permission bits and group of an inode that is made in a directory with these, unless that has a default ACL.
    /// Before 6.0 Linux leaves it to us that nobody gets the rights of a directory's group by making a program there.
    #[must_use]
    pub fn inherited(&self, directory_mode: u32, directory_gid: u32) -> (u32, u32) {
        let mode = self.mode & 0o7777 & !(self.umask & 0o777);
        match directory_mode & SETGID {
            0 => (mode, self.gid),
            passed_on if self.kind == FileKind::Directory => (mode | passed_on, directory_gid),
            _ if self.lends_group() && self.uid != 0 && self.gid != directory_gid => {
                (mode & !SETGID, directory_gid)
            }
            _ => (mode, directory_gid),
        }
    }

    /// The attributes of a regular file that is made at this time in a directory without a default ACL, and the
    /// directory's afterwards: what the records say once the operation is applied.
    #[must_use]
    pub fn make_in(
        &self,
        directory: &Attributes,
        number: InodeNumber,
        now: Timestamp,
    ) -> (Attributes, Attributes) {
        let time = now.after(directory.ctime);
        let (mode, gid) = self.inherited(directory.mode, directory.gid);
        let made = Attributes {
            inode: InodeId::new(directory.inode.fileset(), number),
            kind: FileKind::File,
            mode,
            uid: self.uid,
            gid,
            links: 1,
            size: 0,
            allocated: 0,
            rdev: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            generation: 0,
        };
        let directory = Attributes {
            mtime: time,
            ctime: time,
            ..*directory
        };
        (made, directory)
    }
}

/// In a directory's mode: what is made in it gets its group. In a program's: who runs it gets its group's rights.
const SETGID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o010;

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

/// Extents to commit. Their pieces are durable (or named missing) before this is sent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Publish {
    /// The inode.
    pub inode: InodeId,
    /// Sorted, not overlapping, at most `limits::PUBLISH_EXTENTS_MAX`. `Inline` extents that
    /// cover a whole file of at most `limits::INLINE_FILE_BYTES_MAX` go into the inode.
    pub extents: Vec<Extent>,
    /// Minimum size of the file afterwards.
    pub size_at_least: u64,
    /// Time of the last write, with the attribute generation in which it was made; ignored if the
    /// generation has changed since.
    pub written: Option<(Timestamp, u32)>,
    /// For a publish by anyone but the writer (fold, clean, repair): the extents that it replaces,
    /// sorted. Those of `extents` whose ranges don't hold exactly these now are left out, the others
    /// joined where they are neighbours; if none is left, the answer is `Changed`. Times and size stay as they are.
    pub replaces: Option<Vec<Extent>>,
}

/// When and for whom an operation runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Stamp {
    /// The client's clock.
    pub now: Timestamp,
    /// No change is dated later: the owner's clock and [`CLOCK_AHEAD_MAX`].
    pub latest: Timestamp,
    /// The client's session.
    pub session: SessionId,
    /// What makes it happen once.
    pub turn: Turn,
}

/// How far a client's clock may be ahead of the owner's. Changes of one object are dated one after
/// the other, so a clock far ahead would otherwise date all later changes.
pub const CLOCK_AHEAD_MAX: Duration = Duration::from_secs(1);

/// The numbers that a client has given to what an operation makes, out of those
/// [reserved](Operation::Reserve) for its session. The owner takes the same ones: client and owner
/// come to the same records. Numbers of one run are used in ascending order; those left out are lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Fresh {
    /// Of the inode that is made.
    pub inode: Option<InodeNumber>,
    /// Under which the next content of a file is stored that is emptied and had extents.
    pub data: Option<DataId>,
}

/// How an operation counts among those of its session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Turn {
    /// It changes nothing, so it isn't counted. A change that comes as a read is refused.
    Read,
    /// A change that was sent to the owner, and may be sent again until it is answered: its slot
    /// remembers the last number with its answer.
    Slot {
        /// Below `limits::SESSION_SLOTS`.
        slot: u8,
        /// Grows with each operation of the slot, from 1.
        number: u64,
    },
    /// A change that its client has applied and answered already. The session's stream is in order
    /// and without gaps, and remembers the last number only.
    Stream {
        /// Counted by the client, from 1.
        number: u64,
        /// The numbers that the client has given to what the operation makes.
        fresh: Fresh,
    },
    /// Of the owner's own process, or a step of an operation that is counted: never sent, so never
    /// sent again. A read may be asked so, too.
    Own,
}

impl Stamp {
    /// For an operation of the process whose clock this is.
    #[must_use]
    pub fn own(now: Timestamp, session: SessionId) -> Self {
        Self {
            now,
            latest: now.plus(CLOCK_AHEAD_MAX),
            session,
            turn: Turn::Own,
        }
    }

    /// As the owner takes it from another node: the client's clock counts only as far as the owner's
    /// own allows.
    #[must_use]
    pub fn received(self, owner_now: Timestamp) -> Self {
        let latest = owner_now.plus(CLOCK_AHEAD_MAX);
        Self {
            now: self.now.min(latest),
            latest,
            ..self
        }
    }
}

/// Where an operation stands in the history of its shard. Operations that are ordered by their ranks
/// explain each other's answers; whoever was answered before another one asked has the earlier rank.
///
/// Places grow also when another owner follows: its epoch is larger. Changes that a former owner
/// applied and that are lost leave gaps, as do refusals and what an owner does of its own accord.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct Rank {
    /// The owner that applied it. First, because a new owner may use numbers of commits again that the
    /// one before never made durable.
    pub epoch: ShardEpoch,
    /// The commit that it belongs to.
    pub commit: CommitNumber,
    /// Counts the operations of the commit that changed something, from 1. One that changed nothing
    /// has the rank of the newest change before it, 0 if the commit has none yet.
    pub index: u32,
}

impl Rank {
    /// The rank of the next change in the same commit.
    #[must_use]
    pub fn next(self) -> Self {
        Self {
            index: self.index + 1,
            ..self
        }
    }
}

/// An owner's answer to an operation, and where it was applied. A repeated operation has the rank
/// where it was applied first. A truncate in steps has the rank of its first one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Ranked {
    /// The answer.
    pub reply: Reply,
    /// Where.
    pub rank: Rank,
}

impl Ranked {
    /// The same rank with another answer.
    #[must_use]
    pub fn with(self, reply: Reply) -> Self {
        Self { reply, ..self }
    }
}

/// The answer to an operation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// An inode found or made under a name.
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
        /// Whether the truncate needs more steps.
        unfinished: bool,
    },
    /// A name was removed.
    Removed {
        /// The inode as it is now (links may be 0).
        attributes: Attributes,
        /// The directory.
        directory: Attributes,
        /// It lost its last name while a client held it: `Release` it after the last close.
        orphaned: bool,
    },
    /// A name was moved.
    Renamed {
        /// The inode that moved.
        moved: Attributes,
        /// The inode that was replaced or exchanged, as it is now.
        target: Option<Attributes>,
        /// The target lost its last name while a client held it.
        orphaned: bool,
    },
    /// A part of a directory.
    Listing {
        /// Entries in position order.
        entries: Vec<DirectoryEntry>,
        /// Whether these are the last entries.
        end: bool,
    },
    /// Target of a symbolic link.
    Target(Bytes),
    /// Value of an extended attribute.
    Value(Bytes),
    /// Names of extended attributes.
    Names(Vec<Bytes>),
    /// Extents of a range; gaps are holes.
    Extents {
        /// In order, clipped to the requested range.
        extents: Vec<Extent>,
        /// The answer covers the range up to here: extents, and holes between them.
        known_to: u64,
        /// Attributes at the same moment.
        attributes: Attributes,
    },
    /// A range was changed.
    RangeChanged {
        /// The (destination) inode now.
        attributes: Attributes,
        /// Where to continue; `None` when the whole range is done.
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
    /// A background step was done.
    Progress {
        /// Whether more steps are needed.
        more: bool,
    },
    /// Success without a result.
    Done,
    /// Numbers that are the session's now.
    Reserved {
        /// The first inode number of the run.
        inode: InodeNumber,
        /// Length of that run.
        inodes: u32,
        /// The first data id of the run.
        first_data: DataId,
        /// Length of that run.
        data: u32,
    },
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
