//! Sort keys of the index: blob names and log entries as 22 bytes.

use model::{BlobName, EntryNumber, GroupId, SegmentId, SessionId, ShardId};
use std::fmt;

const BLOB: u8 = 0;
const LOG: u8 = 1;

/// Name of a blob or number of a log entry; ordered by its bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key([u8; Key::BYTES]);

/// What a key names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Named {
    /// A blob.
    Blob(BlobName),
    /// An entry of a shard's log.
    Log(ShardId, EntryNumber),
}

impl Key {
    /// Bytes of a key.
    pub(crate) const BYTES: usize = 1 + BlobName::ENCODED_BYTES;

    pub(crate) fn blob(name: BlobName) -> Self {
        let mut bytes = [0; Self::BYTES];
        bytes[0] = BLOB;
        bytes[1..].copy_from_slice(&name.encode());
        Self(bytes)
    }

    pub(crate) fn log(shard: ShardId, number: EntryNumber) -> Self {
        let mut bytes = [0; Self::BYTES];
        bytes[0] = LOG;
        bytes[1..5].copy_from_slice(&shard.0.to_be_bytes());
        bytes[5..13].copy_from_slice(&number.0.to_be_bytes());
        Self(bytes)
    }

    /// First and last possible key of a group's blobs.
    pub(crate) fn group_range(group: GroupId) -> (Self, Self) {
        let name = |number: u64, piece| BlobName {
            group,
            segment: SegmentId {
                session: SessionId(number),
                counter: number,
            },
            piece,
        };
        (Self::blob(name(0, 0)), Self::blob(name(u64::MAX, u8::MAX)))
    }

    /// The lowest key.
    pub(crate) fn lowest() -> Self {
        Self([0; Self::BYTES])
    }

    /// A key after all others.
    pub(crate) fn highest() -> Self {
        Self([0xff; Self::BYTES])
    }

    /// The next key in order.
    pub(crate) fn following(self) -> Self {
        let mut bytes = self.0;
        for byte in bytes.iter_mut().rev() {
            let (next, wrapped) = byte.overflowing_add(1);
            *byte = next;
            if !wrapped {
                break;
            }
        }
        Self(bytes)
    }

    pub(crate) fn bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }

    /// Decodes a key; `None` if the bytes aren't one.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: [u8; Self::BYTES] = bytes.try_into().ok()?;
        let known = bytes[0] == BLOB || (bytes[0] == LOG && bytes[13..].iter().all(|b| *b == 0));
        known.then_some(Self(bytes))
    }

    pub(crate) fn named(&self) -> Named {
        if self.0[0] == BLOB {
            let name: &[u8; BlobName::ENCODED_BYTES] =
                self.0[1..].try_into().expect("a key is a byte and a name");
            return Named::Blob(BlobName::decode(name));
        }
        let shard = u32::from_be_bytes(self.0[1..5].try_into().expect("four bytes"));
        let number = u64::from_be_bytes(self.0[5..13].try_into().expect("eight bytes"));
        Named::Log(ShardId(shard), EntryNumber(number))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.named() {
            Named::Blob(name) => write!(f, "blob {name}"),
            Named::Log(shard, number) => write!(f, "entry {number} of shard {shard}'s log"),
        }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_as_their_names_and_read_back() {
        let blob = |group, counter, piece| {
            Key::blob(BlobName {
                group: GroupId(group),
                segment: SegmentId {
                    session: SessionId(1),
                    counter,
                },
                piece,
            })
        };
        let log = |shard, number| Key::log(ShardId(shard), EntryNumber(number));
        let sorted = [
            blob(1, 1, 0),
            blob(1, 1, 1),
            blob(1, 256, 0),
            blob(2, 1, 0),
            log(0, 300),
            log(1, 2),
        ];
        assert!(sorted.is_sorted());
        for key in sorted {
            assert_eq!(Key::parse(key.bytes()), Some(key));
            assert!(key.following() > key);
        }
        assert_eq!(log(3, 9).named(), Named::Log(ShardId(3), EntryNumber(9)));
        let (first, last) = Key::group_range(GroupId(1));
        assert!(first < blob(1, 1, 0) && last > blob(1, 256, 0) && last < blob(2, 1, 0));
    }
}
