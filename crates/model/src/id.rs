//! Identifiers, each its own type so that the compiler refuses one in place of another.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }

        impl $name {
            /// The identifier that follows this one. Panics at the end of the number space, which
            /// no cluster reaches.
            #[must_use]
            pub fn next(self) -> Self {
                Self(self.0.checked_add(1).expect("no cluster uses up its identifiers"))
            }
        }
    };
}

id! {
    /// A network shared disk. Assigned by the cluster when the NSD is added; never reused.
    NsdId(u32)
}

impl NsdId {
    /// Marks a slot of a group that has no NSD yet: the pool had fewer failure groups than the
    /// scheme is wide. Never assigned to an NSD.
    pub const NONE: NsdId = NsdId(u32::MAX);
}

id! {
    /// A machine (or container) that runs the daemon. Assigned when the node joins the cluster;
    /// never reused.
    NodeId(u32)
}

/// One run of the daemon of a node, from its start to its end. Whoever is named by its run is not
/// mistaken for the daemon that ran there before.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct NodeRun {
    /// The node.
    pub node: NodeId,
    /// Counts the starts of the node's daemon; given by coordination, never reused.
    pub incarnation: u64,
}

impl fmt::Display for NodeRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.node, self.incarnation)
    }
}

id! {
    /// NSDs with the same number may fail together.
    FailureGroupId(u32)
}
id! {
    /// A placement group of a storage pool.
    GroupId(u32)
}
id! {
    /// Counts the changes of one placement group's membership; fences data puts.
    GroupVersion(u32)
}

impl GroupVersion {
    /// The version of a group that has never changed.
    pub const FIRST: GroupVersion = GroupVersion(1);
}
id! {
    /// Counts the changes of the map.
    MapEpoch(u64)
}
id! {
    /// One session of one client (or shard owner) with the cluster. Assigned by coordination and
    /// never reused, so the segment ids that begin with it are never reused either.
    SessionId(u64)
}
id! {
    /// A file system of a cluster. Assigned when it is made; never reused. People use its
    /// [name](crate::FileSystemName).
    FileSystemId(u32)
}
id! {
    /// A shard of the metadata.
    ShardId(u32)
}
id! {
    /// Counts the owners of a shard; fences log puts.
    ShardEpoch(u64)
}
id! {
    /// An entry's number in its shard's log. Increases across epochs, never reused.
    EntryNumber(u64)
}
id! {
    /// Counts the commits of a shard.
    CommitNumber(u64)
}
id! {
    /// A fileset: 24 bits, of which the upper 12 are its family. Fileset 0 is the root fileset.
    FilesetId(u32)
}

impl FilesetId {
    /// Bits of a fileset's number.
    pub const BITS: u32 = 24;

    /// The family that the fileset belongs to.
    #[must_use]
    pub fn family(self) -> FamilyId {
        FamilyId(self.0 >> FamilyId::MEMBER_BITS)
    }
}

id! {
    /// A fileset with all its snapshots and clones: 12 bits. The numbers of its filesets begin with
    /// it, so that every inode says to which family it belongs.
    FamilyId(u32)
}

impl FamilyId {
    /// Bits of a fileset's number inside its family.
    pub const MEMBER_BITS: u32 = 12;
    /// The number of families that a cluster can have, all its file systems together.
    pub const COUNT: u32 = 1 << (FilesetId::BITS - Self::MEMBER_BITS);

    /// The family's first fileset, which the others are snapshots and clones of.
    #[must_use]
    pub fn first_fileset(self) -> FilesetId {
        assert!(self.0 < Self::COUNT, "families have 12 bits");
        FilesetId(self.0 << Self::MEMBER_BITS)
    }

    /// The root directory of the family's first fileset.
    #[must_use]
    pub fn root(self) -> InodeId {
        InodeId::new(self.first_fileset(), InodeId::ROOT.number())
    }
}

id! {
    /// An inode inside its fileset: 40 bits. 1 is the fileset's root directory.
    InodeNumber(u64)
}
id! {
    /// The key that groups an inode's extents. Truncate to 0 and unlink replace it instead of
    /// removing the extents one by one.
    DataId(u64)
}

/// An inode in the whole file system: fileset (24 bits) then inode number (40 bits).
///
/// It is `st_ino` and the FUSE node id, so that handles need no state.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct InodeId(pub u64);

impl InodeId {
    /// The root directory of the file system.
    pub const ROOT: InodeId = InodeId(1);
    /// Bits of the inode number.
    pub const NUMBER_BITS: u32 = 40;

    /// Joins a fileset and a number in it.
    #[must_use]
    pub fn new(fileset: FilesetId, number: InodeNumber) -> Self {
        assert!(fileset.0 < 1 << FilesetId::BITS, "fileset ids have 24 bits");
        assert!(
            number.0 < (1 << Self::NUMBER_BITS),
            "inode numbers have 40 bits"
        );
        Self((u64::from(fileset.0) << Self::NUMBER_BITS) | number.0)
    }

    /// The fileset that the inode belongs to.
    #[must_use]
    pub fn fileset(self) -> FilesetId {
        FilesetId((self.0 >> Self::NUMBER_BITS) as u32)
    }

    /// The number inside the fileset.
    #[must_use]
    pub fn number(self) -> InodeNumber {
        InodeNumber(self.0 & ((1 << Self::NUMBER_BITS) - 1))
    }
}

impl fmt::Display for InodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.fileset(), self.number())
    }
}

/// The time during which one owner remembers opens and locks: it has the number of the shard epoch
/// with which it began. An owner that takes the shard over again before another did keeps it.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct Tenure(pub u64);
