//! Sessions that could change an inode's attributes until a short while ago.
//!
//! An operation looks at the records first and at the tokens afterwards. A session that publishes what its programs have
//! written and returns its token in between would be missed: the answer would show the inode as it was before writes that had
//! ended before the operation began.

use model::{InodeId, SessionId};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most that are remembered. If more have come since an operation began, all inodes count as changed for it.
const FORMER_MAX: usize = 1024;

/// How many there have been. Read by every operation that shows attributes.
#[derive(Default)]
pub(crate) struct WriterCount(AtomicU64);

impl WriterCount {
    pub(crate) fn now(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// The newest of them.
#[derive(Default)]
pub(crate) struct FormerWriters {
    /// Each with its inode; `None` for a session that has ended, whatever it had.
    newest: VecDeque<(SessionId, Option<InodeId>)>,
    /// How many came before those.
    before: u64,
}

impl FormerWriters {
    /// A session can't change the inode any more.
    pub(crate) fn note(&mut self, count: &WriterCount, session: SessionId, inode: Option<InodeId>) {
        if self.newest.len() >= FORMER_MAX {
            self.newest.pop_front();
            self.before += 1;
        }
        self.newest.push_back((session, inode));
        let all = self.before + self.newest.len() as u64;
        count.0.store(all, Ordering::Release);
    }

    /// Whether another session may have been one of them for the inode since there were so many.
    pub(crate) fn has_since(&self, count: u64, session: SessionId, inode: InodeId) -> bool {
        if count < self.before {
            return true;
        }
        let seen = usize::try_from(count - self.before).unwrap_or(usize::MAX);
        let mut since = self.newest.iter().skip(seen);
        since.any(|(former, of)| *former != session && of.is_none_or(|of| of == inode))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_later_writers_of_the_inode_count_as_long_as_they_are_remembered() {
        let (mut writers, count) = (FormerWriters::default(), WriterCount::default());
        let (one, other) = (SessionId(1), SessionId(2));
        let (file, next) = (InodeId(7), InodeId(8));
        writers.note(&count, one, Some(file));
        let seen = count.now();
        let has = |writers: &FormerWriters, inode| writers.has_since(seen, other, inode);
        assert!(!has(&writers, file));
        writers.note(&count, one, Some(next));
        assert!(!has(&writers, file) && has(&writers, next));
        assert!(!writers.has_since(seen, one, next), "its own");
        writers.note(&count, one, None);
        assert!(has(&writers, file));
        for _ in 0..FORMER_MAX {
            writers.note(&count, other, Some(next));
        }
        assert!(has(&writers, file), "it isn't known any more");
        assert!(!writers.has_since(count.now(), other, file));
    }
}
