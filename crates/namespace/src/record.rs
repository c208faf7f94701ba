//! The records: the values stored under the keys.

pub(crate) mod sound;

use crate::{Key, Table};
use bytes::Bytes;
use model::operation::Rank;
use model::{
    Attributes, CommitNumber, DataId, Error, ErrorKind, Extent, FileKind, FileName, InodeId,
    InodeNumber, NodeRun, Reply, Result, SegmentPlace, Timestamp,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::sync::Arc;

/// A decoded record. Clones are cheap (a reference is counted).
#[derive(PartialEq, Eq, Debug)]
pub enum Record {
    /// Under [`Key::Fileset`].
    Fileset(Arc<Fileset>),
    /// Under [`Key::Counters`].
    Counters(Arc<Counters>),
    /// Under [`Key::Inode`].
    Inode(Arc<Inode>),
    /// Under [`Key::Name`].
    Name(Arc<Name>),
    /// Under [`Key::Extent`]; `end()` is the key's.
    Extent(Arc<Extent>),
    /// Under [`Key::Xattr`]: the value.
    Xattr(Arc<Bytes>),
    /// Under [`Key::Segment`].
    Segment(Arc<Segment>),
    /// Under [`Key::Dead`].
    Dead(Arc<Dead>),
    /// Under [`Key::Orphan`].
    Orphan(Orphan),
    /// Under [`Key::Reclaim`].
    Reclaim(Reclaim),
    /// Under [`Key::Fold`] and [`Key::Cut`]: only its presence matters.
    Mark,
    /// Under [`Key::Slot`].
    Slot(Arc<Slot>),
    /// Under [`Key::Stream`]: the number of the last operation of the session's stream.
    Stream(u64),
    /// Under [`Key::Session`].
    Session(Arc<Session>),
    /// Under [`Key::Reserved`].
    Reserved(Arc<Reserved>),
}

// The hot records of a shard are hundreds of thousands, and an operation moves dozens.
const _: () = assert!(size_of::<Option<Record>>() == 16);

impl Clone for Record {
    // The derived one isn't inlined, and every operation clones a dozen records.
    #[inline(always)]
    fn clone(&self) -> Self {
        match self {
            Self::Fileset(record) => Self::Fileset(record.clone()),
            Self::Counters(record) => Self::Counters(record.clone()),
            Self::Inode(record) => Self::Inode(record.clone()),
            Self::Name(record) => Self::Name(record.clone()),
            Self::Extent(record) => Self::Extent(record.clone()),
            Self::Xattr(record) => Self::Xattr(record.clone()),
            Self::Segment(record) => Self::Segment(record.clone()),
            Self::Dead(record) => Self::Dead(record.clone()),
            Self::Orphan(record) => Self::Orphan(*record),
            Self::Reclaim(record) => Self::Reclaim(*record),
            Self::Mark => Self::Mark,
            Self::Slot(record) => Self::Slot(record.clone()),
            Self::Stream(number) => Self::Stream(*number),
            Self::Session(record) => Self::Session(record.clone()),
            Self::Reserved(record) => Self::Reserved(record.clone()),
        }
    }
}

/// Constant facts of a fileset.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Fileset {
    /// Time of creation.
    pub created: Timestamp,
}

/// Counters and sums of a fileset; the sums equal those over its inodes in every state.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Counters {
    /// Inode numbers from here on were never handed out.
    pub next_inode: u64,
    /// Data ids from here on are unused (without their top bit).
    pub next_data: u64,
    /// Inodes, orphans included.
    pub inodes: u64,
    /// Sum of the sizes of regular files, in bytes. Three files of 8 EiB are more than 64 bits.
    pub logical: u128,
    /// Sum of the bytes that inodes have allocated; shared bytes count for each.
    pub allocated: u128,
}

/// An inode.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Inode {
    /// Its type.
    pub kind: FileKind,
    /// Permission bits (0o7777).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of names; for directories 2 + subdirectories. 0: an orphan.
    pub links: u32,
    /// Device number of device files.
    pub rdev: u32,
    /// Logical bytes; for a symlink the target's length.
    pub size: u64,
    /// Sum of the lengths of all extents, inline content included.
    pub allocated: u64,
    /// Last read.
    pub atime: Timestamp,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change.
    pub ctime: Timestamp,
    /// Time of creation.
    pub btime: Timestamp,
    /// Attribute generation.
    pub generation: u32,
    /// The data id that the extents are stored under.
    pub data: DataId,
    /// Extent records under `data`.
    pub extents: u64,
    /// How many of them are inline: if any, there is a Fold mark.
    pub inline_extents: u64,
    /// No extent record ends after this byte.
    pub extents_end: u64,
    /// A truncate is removing the extents after this byte in steps; there is a Cut mark.
    pub cutting_from: Option<u64>,
    /// Content of `0..content.len()` of a small file without extent records, or the target of
    /// a symlink.
    pub content: Bytes,
    /// The commit that made `content`.
    pub content_birth: CommitNumber,
    /// Bytes of all extended attributes' names and values. 0: there are none.
    pub xattr_bytes: u32,
    /// Directories: the parent; the root is its own. Others: 0.
    pub parent: InodeNumber,
    /// Directories: names in it.
    pub entries: u64,
    /// Directories: the next number for a child, if below `run_end`.
    pub run_next: u64,
    /// Directories: end of the run of numbers.
    pub run_end: u64,
    /// Directories: length of the run, doubled for the next one.
    pub run_length: u32,
}

/// One position in a directory: an entry and, for ordinal 0, the highest ordinal in use.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Name {
    /// The entry; `None` in the vacant head of names that share its hash.
    pub entry: Option<NameEntry>,
    /// In the head (ordinal 0): the highest ordinal in use. Elsewhere 0.
    pub highest: u8,
}

/// A directory entry.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NameEntry {
    /// The name.
    pub name: FileName,
    /// The inode, in the directory's fileset.
    pub inode: InodeNumber,
    /// Its type.
    pub kind: FileKind,
}

/// A live segment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Segment {
    /// Its place, as last published.
    pub place: SegmentPlace,
    /// Sum of the lengths of the extents that point at it; never 0. Shared bytes count twice.
    pub live: u64,
    /// The commit that published it.
    pub birth: CommitNumber,
    /// The inode that it was first published for: a cleaner starts searching there.
    pub inode: InodeId,
    /// That inode's data id at that time.
    pub data: DataId,
    /// The byte of the file that it was published at.
    pub file_offset: u64,
}

/// A segment whose blobs are to be deleted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Dead {
    /// Its place.
    pub place: SegmentPlace,
    /// The commit that made it dead: must be durable before a blob is deleted.
    pub died: CommitNumber,
}

/// An inode without names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Orphan {
    /// Whether it never had a name (O_TMPFILE) and may be given one.
    pub linkable: bool,
}

/// Records under a data id that no inode uses any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Reclaim {
    /// The inode that used them.
    pub inode: InodeNumber,
    /// Whether to remove the extended attributes too, because the inode is gone.
    pub xattrs: bool,
}

/// A session's standing with the shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Session {
    /// The run of the daemon that opened it.
    pub run: NodeRun,
    /// Whether an owner of the shard opened it for its own work: it ends with the owner, and holds
    /// nothing.
    pub of_owner: bool,
    /// Whether it has ended: none of its operations is applied any more, and what it wrote and
    /// didn't publish is garbage.
    pub ended: bool,
}

/// Numbers of a fileset that a session has reserved and not used.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Reserved {
    /// Inode numbers.
    pub inodes: Vec<Run>,
    /// Data ids, without the top bit of fresh ones.
    pub data: Vec<Run>,
}

/// Numbers that were not used yet; never empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Run {
    /// The lowest number that may be used.
    pub next: u64,
    /// The first number after them.
    pub end: u64,
}

/// The last operation of a slot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Slot {
    /// Its number.
    pub number: u64,
    /// Where it was applied.
    pub rank: Rank,
    /// Its answer.
    pub answer: std::result::Result<Reply, Error>,
}

impl Inode {
    /// The attributes that `stat` shows.
    #[must_use]
    pub fn attributes(&self, inode: InodeId) -> Attributes {
        Attributes {
            inode,
            kind: self.kind,
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            links: self.links,
            size: self.size,
            allocated: self.allocated,
            rdev: self.rdev,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            btime: self.btime,
            generation: self.generation,
        }
    }
}

/// The version byte of every value.
const VERSION: u8 = 1;

impl Record {
    /// Appends the record's bytes: the version, then postcard.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(VERSION);
        match self {
            Self::Fileset(record) => put(out, &**record),
            Self::Counters(record) => put(out, &**record),
            Self::Inode(record) => put(out, &**record),
            Self::Name(record) => put(out, &**record),
            Self::Extent(record) => put(out, &**record),
            Self::Xattr(record) => put(out, &**record),
            Self::Segment(record) => put(out, &**record),
            Self::Dead(record) => put(out, &**record),
            Self::Orphan(record) => put(out, record),
            Self::Reclaim(record) => put(out, record),
            Self::Mark => {}
            Self::Slot(record) => put(out, &**record),
            Self::Stream(record) => put(out, record),
            Self::Session(record) => put(out, &**record),
            Self::Reserved(record) => put(out, &**record),
        }
    }

    /// The record's bytes as a new vector.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        self.encode(&mut out);
        out
    }

    /// Decodes what [`Record::encode`] wrote under `key`.
    ///
    /// # Errors
    /// `Corrupt` if the bytes aren't such a record, or are one that no operation leaves behind.
    pub fn decode(key: &Key, bytes: &[u8]) -> Result<Record> {
        let corrupt = |why: String| {
            Error::new(ErrorKind::Corrupt, why)
                .while_doing(format!("reading the record under {key:?}"))
        };
        let (version, body) = bytes
            .split_first()
            .ok_or_else(|| corrupt("it is empty".into()))?;
        if *version > VERSION {
            let why = format!(
                "it was written by a newer Shale (version {version}, this program knows {VERSION}); upgrade this node"
            );
            return Err(Error::new(ErrorKind::NotSupported, why)
                .while_doing(format!("reading the record under {key:?}")));
        }
        if *version != VERSION {
            return Err(corrupt(format!("version {version} is unknown")));
        }
        let wrong =
            |error: postcard::Error| corrupt(format!("its bytes can't be decoded: {error}"));
        let record = match key.table() {
            Table::Filesets => Self::Fileset(Arc::new(read(body).map_err(wrong)?)),
            Table::Counters => Self::Counters(Arc::new(read(body).map_err(wrong)?)),
            Table::Inodes => Self::Inode(Arc::new(read(body).map_err(wrong)?)),
            Table::Names => Self::Name(Arc::new(read(body).map_err(wrong)?)),
            Table::Extents => Self::Extent(Arc::new(read(body).map_err(wrong)?)),
            Table::Xattrs => Self::Xattr(Arc::new(read(body).map_err(wrong)?)),
            Table::Segments => Self::Segment(Arc::new(read(body).map_err(wrong)?)),
            Table::Deads => Self::Dead(Arc::new(read(body).map_err(wrong)?)),
            Table::Orphans => Self::Orphan(read(body).map_err(wrong)?),
            Table::Reclaims => Self::Reclaim(read(body).map_err(wrong)?),
            Table::Folds | Table::Cuts => Self::Mark,
            Table::Slots => Self::Slot(Arc::new(read(body).map_err(wrong)?)),
            Table::Streams => Self::Stream(read(body).map_err(wrong)?),
            Table::Sessions => Self::Session(Arc::new(read(body).map_err(wrong)?)),
            Table::Reserved => Self::Reserved(Arc::new(read(body).map_err(wrong)?)),
        };
        match sound::fault(key, &record) {
            None => Ok(record),
            Some(why) => Err(corrupt(why.into())),
        }
    }

    /// Approximate memory of the record in bytes, for budgets.
    #[must_use]
    pub fn weight(&self) -> usize {
        let inside = match self {
            Self::Inode(inode) => size_of::<Inode>() + inode.content.len(),
            Self::Name(name) => {
                size_of::<Name>()
                    + name
                        .entry
                        .as_ref()
                        .map_or(0, |entry| entry.name.as_bytes().len())
            }
            Self::Extent(extent) => {
                let inline = match &extent.kind {
                    model::ExtentKind::Inline(bytes) => bytes.len(),
                    _ => 0,
                };
                size_of::<Extent>() + inline
            }
            Self::Xattr(value) => size_of::<Bytes>() + value.len(),
            Self::Segment(_) => size_of::<Segment>(),
            Self::Dead(_) => size_of::<Dead>(),
            Self::Counters(_) => size_of::<Counters>(),
            Self::Fileset(_) => size_of::<Fileset>(),
            // Replies are mostly attributes; a listing in a slot is rare and short-lived.
            Self::Reserved(reserved) => {
                let runs = reserved.inodes.len() + reserved.data.len();
                size_of::<Reserved>() + runs * size_of::<Run>()
            }
            Self::Slot(_) => 512,
            Self::Session(_) => size_of::<Session>(),
            Self::Orphan(_) | Self::Reclaim(_) | Self::Mark | Self::Stream(_) => 0,
        };
        size_of::<Record>() + inside
    }
}

fn put<T: Serialize>(out: &mut Vec<u8>, value: &T) {
    let buffer = std::mem::take(out);
    *out = postcard::to_extend(value, buffer)
        .expect("records are plain data, which can always be encoded");
}

fn read<T: DeserializeOwned>(body: &[u8]) -> std::result::Result<T, postcard::Error> {
    let (value, rest) = postcard::take_from_bytes(body)?;
    if rest.is_empty() {
        Ok(value)
    } else {
        Err(postcard::Error::SerdeDeCustom)
    }
}
