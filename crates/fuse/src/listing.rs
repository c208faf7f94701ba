//! One part of a directory listing: the reply to READDIR and READDIRPLUS.

use crate::abi::{Dirent, EntryOut};
use crate::verbs::InodeEntry;
use model::{Attributes, FileKind, InodeId};
use zerocopy::IntoBytes;

/// The reply to one READDIR(PLUS): entries are added until it is full.
#[derive(Debug)]
pub struct Listing {
    buffer: Vec<u8>,
    capacity: usize,
    offset: u64,
    with_attributes: bool,
}

impl Listing {
    /// An empty reply of at most `capacity` bytes for entries after the cookie `offset`.
    #[must_use]
    pub fn new(capacity: usize, offset: u64, with_attributes: bool) -> Self {
        Self {
            buffer: Vec::with_capacity(capacity),
            capacity,
            offset,
            with_attributes,
        }
    }

    /// The cookie of the last entry that the reader has seen; 0 at the start. "." is 1 and ".." 2.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Whether entries come with attributes (READDIRPLUS).
    #[must_use]
    pub fn with_attributes(&self) -> bool {
        self.with_attributes
    }

    /// Estimates how many more entries with names of ordinary length fit; never 0.
    #[must_use]
    pub fn room(&self) -> usize {
        let each = if self.with_attributes {
            size_of::<EntryOut>()
        } else {
            0
        } + size_of::<Dirent>()
            + 16;
        self.capacity.saturating_sub(self.buffer.len()) / each + 1
    }

    /// Adds an entry without attributes. In a READDIRPLUS reply the kernel looks it up when it
    /// needs them. Returns false and adds nothing if it doesn't fit.
    #[must_use]
    pub fn add(&mut self, inode: InodeId, kind: FileKind, name: &[u8], cookie: u64) -> bool {
        self.append(None, inode, kind, name, cookie)
    }

    /// Adds an entry with its attributes; each counts as one lookup until FORGET. Returns false and
    /// adds nothing if it doesn't fit. Only for listings with attributes.
    #[must_use]
    pub fn add_with(&mut self, entry: &InodeEntry, name: &[u8], cookie: u64) -> bool {
        assert!(
            self.with_attributes,
            "attributes belong into READDIRPLUS replies only"
        );
        let Attributes { inode, kind, .. } = entry.attributes;
        self.append(Some(EntryOut::of(entry)), inode, kind, name, cookie)
    }

    fn append(
        &mut self,
        plus: Option<EntryOut>,
        inode: InodeId,
        kind: FileKind,
        name: &[u8],
        cookie: u64,
    ) -> bool {
        let plus_bytes = if self.with_attributes {
            size_of::<EntryOut>()
        } else {
            0
        };
        let length = plus_bytes + (size_of::<Dirent>() + name.len()).next_multiple_of(8);
        if self.buffer.len() + length > self.capacity {
            return false;
        }
        let end = self.buffer.len() + length;
        if self.with_attributes {
            // Node 0 means "no attributes": the kernel keeps only name and type.
            self.buffer
                .extend_from_slice(plus.unwrap_or_default().as_bytes());
        }
        let namelen = u32::try_from(name.len()).expect("names have at most 255 bytes");
        let dirent = Dirent {
            ino: inode.0,
            off: cookie,
            namelen,
            kind: u32::from(kind.d_type()),
        };
        self.buffer.extend_from_slice(dirent.as_bytes());
        self.buffer.extend_from_slice(name);
        self.buffer.resize(end, 0);
        self.offset = cookie;
        true
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.buffer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_a_full_listing_takes_no_more() {
        let mut listing = Listing::new(96, 0, false);
        assert!(listing.add(InodeId(7), FileKind::File, b"abc", 3));
        assert!(listing.add(InodeId(8), FileKind::Directory, b"12345678", 4));
        assert_eq!(listing.offset(), 4);
        assert!(!listing.add(
            InodeId(9),
            FileKind::File,
            b"a name that is too long for it",
            5
        ));
        assert_eq!(
            listing.offset(),
            4,
            "a refused entry leaves the cookie alone"
        );
        let bytes = listing.into_bytes();
        assert_eq!(bytes.len(), 64);
        assert_eq!(&bytes[24..27], b"abc");
        assert_eq!(bytes[20], 8, "DT_REG");
    }
}
