//! Which inodes' data was published lately: attributes that the owner answered before a publish, and
//! that are looked at here after it, lack what was written, and it isn't unpublished any more either.
//!
//! *A look* ([`Published::now`]) begins before the owner is asked. *A publish* notes its inode before its
//! data stops being unpublished. *The answer* is complete if the inode has unpublished data, which is
//! then added, or if its data wasn't published since the look began.

use model::InodeId;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

/// Publishes that are remembered: more than there are while an owner is asked, most likely. Of what
/// came before nothing is known.
const REMEMBERED_MAX: usize = 1024;

/// When a look began: a count of publishes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look(u64);

/// The inodes of the last publishes.
#[derive(Default)]
pub(super) struct Published {
    count: AtomicU64,
    last: Mutex<VecDeque<InodeId>>,
}

impl Published {
    /// A look begins.
    pub(super) fn now(&self) -> Look {
        Look(self.count.load(Ordering::Acquire))
    }

    /// Data of an inode is about to be unpublished no more.
    pub(super) fn note(&self, inode: InodeId) {
        let mut last = self.last.lock();
        if last.len() == REMEMBERED_MAX {
            last.pop_front();
        }
        last.push_back(inode);
        self.count.fetch_add(1, Ordering::Release);
    }

    /// Whether data of the inode may have been published since.
    pub(super) fn may_have_since(&self, inode: InodeId, look: Look) -> bool {
        if self.count.load(Ordering::Acquire) == look.0 {
            return false;
        }
        let last = self.last.lock();
        let since = self.count.load(Ordering::Acquire) - look.0;
        let since = usize::try_from(since).unwrap_or(usize::MAX);
        since > last.len() || last.iter().rev().take(since).any(|it| *it == inode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_publish_counts_for_looks_that_began_before_it() {
        let published = Published::default();
        let before = published.now();
        assert!(!published.may_have_since(InodeId(1), before));
        published.note(InodeId(1));
        let between = published.now();
        published.note(InodeId(2));
        assert!(published.may_have_since(InodeId(1), before));
        assert!(!published.may_have_since(InodeId(1), between));
        assert!(published.may_have_since(InodeId(2), between));
        assert!(!published.may_have_since(InodeId(3), before));
        assert!(!published.may_have_since(InodeId(2), published.now()));
    }

    #[test]
    fn what_is_forgotten_counts_as_published() {
        let published = Published::default();
        let before = published.now();
        published.note(InodeId(1));
        for _ in 0..REMEMBERED_MAX {
            published.note(InodeId(2));
        }
        assert!(published.may_have_since(InodeId(1), before));
        assert!(published.may_have_since(InodeId(3), before));
        assert_eq!(published.last.lock().len(), REMEMBERED_MAX);
    }
}
