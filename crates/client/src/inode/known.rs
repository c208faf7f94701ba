//! What is known of an inode's attributes. Pure.

use model::{Attributes, FileKind, Timestamp};

/// The owner's latest attributes of an inode, updated with this client's own changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) kind: FileKind,
    pub(crate) size: u64,
    pub(crate) generation: u32,
    pub(crate) atime: Timestamp,
    pub(crate) mtime: Timestamp,
    pub(crate) ctime: Timestamp,
}

impl From<&Attributes> for Known {
    fn from(attributes: &Attributes) -> Self {
        Self {
            kind: attributes.kind,
            size: attributes.size,
            generation: attributes.generation,
            atime: attributes.atime,
            mtime: attributes.mtime,
            ctime: attributes.ctime,
        }
    }
}

impl Known {
    /// What is known after the owner's answer to an operation of this client. Answers may arrive out
    /// of order: an older one changes nothing.
    pub(super) fn after(before: Option<Self>, answer: &Attributes) -> Self {
        let mut new = Self::from(answer);
        let Some(known) = before else { return new };
        // Generations wrap around.
        let is_older = known.generation.wrapping_sub(new.generation) as i32 > 0;
        let is_same = known.generation == new.generation;
        if is_older || (is_same && new.ctime < known.ctime) {
            return known;
        }
        if is_same {
            // Within a generation files only grow.
            new.size = new.size.max(known.size);
        }
        new
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use model::InodeId;

    pub(crate) fn attributes(generation: u32, ctime: i64, size: u64) -> Attributes {
        Attributes {
            size,
            allocated: size,
            mtime: Timestamp(ctime),
            ctime: Timestamp(ctime),
            generation,
            ..testkit::inodes::attributes(InodeId::ROOT, FileKind::File)
        }
    }

    #[test]
    fn a_late_answer_takes_nothing_back() {
        let mut known = None;
        let mut tell = |generation, ctime, size| {
            let after = Known::after(known, &attributes(generation, ctime, size));
            known = Some(after);
            (after.generation, after.ctime.0, after.size)
        };
        assert_eq!(tell(1, 10, 100), (1, 10, 100));
        // utimes, then the answer of a publish that ran before it.
        assert_eq!(tell(2, 20, 100), (2, 20, 100));
        assert_eq!(tell(1, 15, 200), (2, 20, 100));
        // A chmod, then an answer from before it.
        assert_eq!(tell(2, 30, 300), (2, 30, 300));
        assert_eq!(tell(2, 25, 200), (2, 30, 300));
        // A truncate.
        assert_eq!(tell(3, 40, 7), (3, 40, 7));
        // Generations wrap around.
        assert_eq!(tell(u32::MAX / 2, 50, 7), (u32::MAX / 2, 50, 7));
        assert_eq!(tell(u32::MAX - 5, 60, 8), (u32::MAX - 5, 60, 8));
        assert_eq!(tell(1, 70, 9), (1, 70, 9));
    }
}
