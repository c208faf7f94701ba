//! The keys of the records: typed and small, with encodings that sort as the keys do.

use model::{DataId, Error, ErrorKind, FamilyId, FilesetId, InodeId, Result, SegmentId, SessionId};

/// Names one record of a shard. Within a family, the order of keys is the order of their encoded
/// bytes, so a directory's names, a file's extents and a fileset's inodes are neighbours; a table's keys
/// of several families are found by [`crate::spans`].
///
/// Clones are cheap: only [`Key::Xattr`] owns memory.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Key {
    /// Constant facts of a fileset. → `Record::Fileset`
    Fileset(FilesetId),
    /// Counters of a fileset. → `Record::Counters`
    Counters(FilesetId),
    /// An inode. → `Record::Inode`
    Inode(InodeId),
    /// A directory entry. → `Record::Name`
    Name {
        /// The directory.
        directory: InodeId,
        /// 55-bit hash and 8-bit ordinal: the cookie of listings.
        position: u64,
    },
    /// A byte range of a file. → `Record::Extent`
    ///
    /// Named by its *end*: the extents that touch `a..b` are then those from end `a + 1` up to the
    /// first that starts at `b` or later, without a backward search.
    Extent {
        /// The fileset.
        fileset: FilesetId,
        /// The data id that the file's extents are stored under.
        data: DataId,
        /// First byte after the extent.
        end: u64,
    },
    /// An extended attribute. → `Record::Xattr`
    Xattr {
        /// The inode.
        inode: InodeId,
        /// With its namespace, as "user.x".
        name: Box<[u8]>,
    },
    /// Accounting of a live segment. → `Record::Segment`
    Segment(SegmentId),
    /// A segment that no extent points at any more; its blobs are to be deleted, then
    /// `Operation::ForgetDead`. → `Record::Dead`
    Dead(SegmentId),
    /// An inode without names that a session held. → `Record::Orphan`
    Orphan(InodeId),
    /// A data id whose records are to be removed: `Operation::Reclaim` until none is left.
    /// → `Record::Reclaim`
    Reclaim {
        /// The fileset.
        fileset: FilesetId,
        /// The data id.
        data: DataId,
    },
    /// A file with inline extents that are to be moved into a segment. → `Record::Mark`
    Fold(InodeId),
    /// An unfinished truncate: `Operation::ContinueCut` until it is finished. → `Record::Mark`
    Cut(InodeId),
    /// The last operation of a session's slot and its reply. → `Record::Slot`
    Slot {
        /// The session.
        session: SessionId,
        /// The slot.
        slot: u8,
    },
    /// How many delegated operations of a session are committed; written by the host.
    /// → `Record::Stream`
    Stream(SessionId),
    /// A session that this shard knows, open or ended. → `Record::Session`
    Session(SessionId),
    /// The numbers of a fileset that a session has reserved and not used. → `Record::Reserved`
    Reserved {
        /// The session.
        session: SessionId,
        /// The fileset.
        fileset: FilesetId,
    },
}

/// A kind of record; all records of one table are neighbours.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Table {
    /// [`Key::Fileset`]
    Filesets,
    /// [`Key::Counters`]
    Counters,
    /// [`Key::Inode`]
    Inodes,
    /// [`Key::Name`]
    Names,
    /// [`Key::Extent`]
    Extents,
    /// [`Key::Xattr`]
    Xattrs,
    /// [`Key::Segment`]
    Segments,
    /// [`Key::Dead`]
    Deads,
    /// [`Key::Orphan`]
    Orphans,
    /// [`Key::Reclaim`]
    Reclaims,
    /// [`Key::Fold`]
    Folds,
    /// [`Key::Cut`]
    Cuts,
    /// [`Key::Slot`]
    Slots,
    /// [`Key::Stream`]
    Streams,
    /// [`Key::Session`]
    Sessions,
    /// [`Key::Reserved`]
    Reserved,
}

/// Stands in encoded keys where others have their family: segments and sessions are the shard's.
const OF_SHARD: u32 = u32::MAX;

const NO_SEGMENT: SegmentId = SegmentId {
    session: SessionId(0),
    counter: 0,
};

impl Table {
    /// All tables in key order.
    pub const ALL: [Table; 16] = [
        Self::Filesets,
        Self::Counters,
        Self::Inodes,
        Self::Names,
        Self::Extents,
        Self::Xattrs,
        Self::Segments,
        Self::Deads,
        Self::Orphans,
        Self::Reclaims,
        Self::Folds,
        Self::Cuts,
        Self::Slots,
        Self::Streams,
        Self::Sessions,
        Self::Reserved,
    ];

    /// The tag byte of the table's keys.
    #[must_use]
    pub fn tag(self) -> u8 {
        match self {
            Self::Filesets => 0x01,
            Self::Counters => 0x02,
            Self::Inodes => 0x10,
            Self::Names => 0x20,
            Self::Extents => 0x30,
            Self::Xattrs => 0x40,
            Self::Segments => 0x50,
            Self::Deads => 0x51,
            Self::Orphans => 0x60,
            Self::Reclaims => 0x61,
            Self::Folds => 0x62,
            Self::Cuts => 0x63,
            Self::Slots => 0x70,
            Self::Streams => 0x71,
            Self::Sessions => 0x72,
            Self::Reserved => 0x73,
        }
    }

    /// The lowest key of the table.
    #[must_use]
    pub fn first(self) -> Key {
        let fileset = FilesetId(0);
        let inode = InodeId(0);
        match self {
            Self::Filesets => Key::Fileset(fileset),
            Self::Counters => Key::Counters(fileset),
            Self::Inodes => Key::Inode(inode),
            Self::Names => Key::Name {
                directory: inode,
                position: 0,
            },
            Self::Extents => Key::Extent {
                fileset,
                data: DataId(0),
                end: 0,
            },
            Self::Xattrs => Key::Xattr {
                inode,
                name: Box::default(),
            },
            Self::Segments => Key::Segment(NO_SEGMENT),
            Self::Deads => Key::Dead(NO_SEGMENT),
            Self::Orphans => Key::Orphan(inode),
            Self::Reclaims => Key::Reclaim {
                fileset,
                data: DataId(0),
            },
            Self::Folds => Key::Fold(inode),
            Self::Cuts => Key::Cut(inode),
            Self::Slots => Key::Slot {
                session: SessionId(0),
                slot: 0,
            },
            Self::Streams => Key::Stream(SessionId(0)),
            Self::Sessions => Key::Session(SessionId(0)),
            Self::Reserved => Key::Reserved {
                session: SessionId(0),
                fileset,
            },
        }
    }

    /// The keys of the table as a range for scans: from (inclusive), to (exclusive).
    #[must_use]
    pub fn range(self) -> (Key, Key) {
        let next = Self::ALL
            .iter()
            .position(|table| *table == self)
            .and_then(|at| Self::ALL.get(at + 1));
        // No table follows the last one: session ids never reach the maximum.
        let end = Key::Reserved {
            session: SessionId(u64::MAX),
            fileset: FilesetId(0),
        };
        (self.first(), next.map_or(end, |table| table.first()))
    }
}

impl Key {
    /// Most bytes of an encoded key.
    pub const ENCODED_BYTES_MAX: usize = 5 + 8 + model::limits::XATTR_NAME_BYTES_MAX;

    /// The table that the key belongs to.
    #[must_use]
    pub fn table(&self) -> Table {
        match self {
            Self::Fileset(_) => Table::Filesets,
            Self::Counters(_) => Table::Counters,
            Self::Inode(_) => Table::Inodes,
            Self::Name { .. } => Table::Names,
            Self::Extent { .. } => Table::Extents,
            Self::Xattr { .. } => Table::Xattrs,
            Self::Segment(_) => Table::Segments,
            Self::Dead(_) => Table::Deads,
            Self::Orphan(_) => Table::Orphans,
            Self::Reclaim { .. } => Table::Reclaims,
            Self::Fold(_) => Table::Folds,
            Self::Cut(_) => Table::Cuts,
            Self::Slot { .. } => Table::Slots,
            Self::Stream(_) => Table::Streams,
            Self::Session(_) => Table::Sessions,
            Self::Reserved { .. } => Table::Reserved,
        }
    }

    /// The family that takes the record along when it moves to another shard; `None` for the shard's
    /// own. Segments are among those: the inode in their record says whose they are.
    #[must_use]
    pub fn family(&self) -> Option<FamilyId> {
        let fileset = match self {
            Self::Fileset(fileset)
            | Self::Counters(fileset)
            | Self::Extent { fileset, .. }
            | Self::Reclaim { fileset, .. } => *fileset,
            Self::Inode(inode)
            | Self::Name {
                directory: inode, ..
            }
            | Self::Xattr { inode, .. }
            | Self::Orphan(inode)
            | Self::Fold(inode)
            | Self::Cut(inode) => inode.fileset(),
            Self::Segment(_)
            | Self::Dead(_)
            | Self::Slot { .. }
            | Self::Stream(_)
            | Self::Session(_)
            | Self::Reserved { .. } => return None,
        };
        Some(fileset.family())
    }

    /// Appends the key's bytes: family, tag, fields, all big-endian.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&prefix(self.family()));
        out.push(self.table().tag());
        match self {
            Self::Fileset(fileset) | Self::Counters(fileset) => put_fileset(out, *fileset),
            Self::Inode(inode) | Self::Orphan(inode) | Self::Fold(inode) | Self::Cut(inode) => {
                out.extend_from_slice(&inode.0.to_be_bytes());
            }
            Self::Name {
                directory,
                position,
            } => {
                out.extend_from_slice(&directory.0.to_be_bytes());
                out.extend_from_slice(&position.to_be_bytes());
            }
            Self::Extent { fileset, data, end } => {
                put_fileset(out, *fileset);
                out.extend_from_slice(&data.0.to_be_bytes());
                out.extend_from_slice(&end.to_be_bytes());
            }
            Self::Xattr { inode, name } => {
                out.extend_from_slice(&inode.0.to_be_bytes());
                out.extend_from_slice(name);
            }
            Self::Segment(segment) | Self::Dead(segment) => {
                out.extend_from_slice(&segment.session.0.to_be_bytes());
                out.extend_from_slice(&segment.counter.to_be_bytes());
            }
            Self::Reclaim { fileset, data } => {
                put_fileset(out, *fileset);
                out.extend_from_slice(&data.0.to_be_bytes());
            }
            Self::Slot { session, slot } => {
                out.extend_from_slice(&session.0.to_be_bytes());
                out.push(*slot);
            }
            Self::Stream(session) | Self::Session(session) => {
                out.extend_from_slice(&session.0.to_be_bytes());
            }
            Self::Reserved { session, fileset } => {
                out.extend_from_slice(&session.0.to_be_bytes());
                put_fileset(out, *fileset);
            }
        }
    }

    /// The key's bytes as a new vector.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32);
        self.encode(&mut out);
        out
    }

    /// Decodes what [`Key::encode`] wrote.
    ///
    /// # Errors
    /// `Corrupt` if the bytes aren't a key.
    pub fn decode(bytes: &[u8]) -> Result<Key> {
        let mut fields = Fields(bytes);
        let family = fields.take::<4>()?;
        let tag = fields.u8()?;
        let table = Table::ALL
            .into_iter()
            .find(|table| table.tag() == tag)
            .ok_or_else(wrong)?;
        let key = match table {
            Table::Filesets => Self::Fileset(fields.fileset()?),
            Table::Counters => Self::Counters(fields.fileset()?),
            Table::Inodes => Self::Inode(InodeId(fields.u64()?)),
            Table::Names => Self::Name {
                directory: InodeId(fields.u64()?),
                position: fields.u64()?,
            },
            Table::Extents => Self::Extent {
                fileset: fields.fileset()?,
                data: DataId(fields.u64()?),
                end: fields.u64()?,
            },
            Table::Xattrs => Self::Xattr {
                inode: InodeId(fields.u64()?),
                name: fields.rest(),
            },
            Table::Segments => Self::Segment(fields.segment()?),
            Table::Deads => Self::Dead(fields.segment()?),
            Table::Orphans => Self::Orphan(InodeId(fields.u64()?)),
            Table::Reclaims => Self::Reclaim {
                fileset: fields.fileset()?,
                data: DataId(fields.u64()?),
            },
            Table::Folds => Self::Fold(InodeId(fields.u64()?)),
            Table::Cuts => Self::Cut(InodeId(fields.u64()?)),
            Table::Slots => Self::Slot {
                session: SessionId(fields.u64()?),
                slot: fields.u8()?,
            },
            Table::Streams => Self::Stream(SessionId(fields.u64()?)),
            Table::Sessions => Self::Session(SessionId(fields.u64()?)),
            Table::Reserved => Self::Reserved {
                session: SessionId(fields.u64()?),
                fileset: fields.fileset()?,
            },
        };
        if fields.0.is_empty() && family == prefix(key.family()) {
            Ok(key)
        } else {
            Err(wrong())
        }
    }
}

/// What encoded keys begin with.
pub(crate) fn prefix(family: Option<FamilyId>) -> [u8; 4] {
    family.map_or(OF_SHARD, |family| family.0).to_be_bytes()
}

fn put_fileset(out: &mut Vec<u8>, fileset: FilesetId) {
    debug_assert!(fileset.0 < 1 << FilesetId::BITS, "fileset ids have 24 bits");
    out.extend_from_slice(&fileset.0.to_be_bytes()[1..]);
}

fn wrong() -> Error {
    Error::new(ErrorKind::Corrupt, "the bytes aren't the key of a record")
}

/// The bytes still to be decoded.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or_else(wrong)?;
        self.0 = rest;
        Ok(*head)
    }

    fn u8(&mut self) -> Result<u8> {
        Ok(self.take::<1>()?[0])
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_be_bytes(self.take()?))
    }

    fn fileset(&mut self) -> Result<FilesetId> {
        let [a, b, c] = self.take::<3>()?;
        Ok(FilesetId(u32::from_be_bytes([0, a, b, c])))
    }

    fn segment(&mut self) -> Result<SegmentId> {
        Ok(SegmentId {
            session: SessionId(self.u64()?),
            counter: self.u64()?,
        })
    }

    fn rest(&mut self) -> Box<[u8]> {
        std::mem::take(&mut self.0).into()
    }
}
