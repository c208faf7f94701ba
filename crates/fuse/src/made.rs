//! Files that were just made: the answer to CREATE answers the GETATTR of the same open(2), too.
//!
//! When CREATE (or TMPFILE) is answered, the kernel looks whether the caller may open the file. If the attributes in
//! that answer aren't valid for any time, it asks for them: at once, from the same thread, and with the file's number
//! in no request before. It uses the answer inside that open(2) only, so what was true as the file was made is as right
//! as what another node may have made of it since. Asking the owner on another node would cost a program as much as the
//! creation itself.
//!
//! Any other request about the file ends that: it may change the file, or show it to somebody.

use crate::verbs::{Caller, InodeEntry, Shown};
use model::{Attributes, InodeId};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use world::{Instant, Map};

/// How long an answer is kept. The kernel asks within microseconds, or later if the thread has to wait for a processor.
const FRESH: Duration = Duration::from_millis(100);
/// Most files that are remembered: about as many as threads that make one. The kernel closes each file at some time,
/// but for those whose program was killed before the answer.
const FILES_MAX: usize = 1024;

/// The files that a mount has just made.
#[derive(Default)]
pub(crate) struct Made {
    /// How many there are: most requests look at this only.
    count: AtomicUsize,
    files: Mutex<Map<InodeId, MadeFile>>,
}

/// A file that a thread has just made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MadeFile {
    thread: u32,
    attributes: Attributes,
    at: Instant,
}

impl Made {
    /// CREATE is about to be answered. Notes that if the kernel must ask for the attributes.
    pub(crate) fn note(&self, caller: &Caller, entry: &InodeEntry, now: Instant) {
        // 0 is the kernel itself, and whoever can't be told apart.
        if !entry.valid.attributes.is_zero() || caller.pid == 0 {
            return;
        }
        let file = MadeFile {
            thread: caller.pid,
            attributes: entry.attributes,
            at: now,
        };
        let mut files = self.files.lock();
        if files.len() >= FILES_MAX {
            files.retain(|_, file| now - file.at <= FRESH);
        }
        if files.len() < FILES_MAX {
            files.insert(entry.attributes.inode, file);
        }
        self.count.store(files.len(), Ordering::Release);
    }

    /// A request about this inode has come. Returns the file if it was just made and this is the first one.
    pub(crate) fn take(&self, inode: InodeId) -> Option<MadeFile> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut files = self.files.lock();
        let file = files.remove(&inode);
        self.count.store(files.len(), Ordering::Release);
        file
    }
}

impl MadeFile {
    /// The answer to a request for its attributes, if it comes from the open(2) that has made it.
    pub(crate) fn shown_to(&self, caller: &Caller, now: Instant) -> Option<Shown> {
        let is_same = caller.pid == self.thread && now - self.at <= FRESH;
        is_same.then_some(Shown {
            attributes: self.attributes,
            valid: Duration::ZERO,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::Validity;
    use model::FileKind;
    use testkit::inodes::attributes;

    fn entry(inode: u64, valid: Duration) -> InodeEntry {
        InodeEntry {
            attributes: attributes(InodeId(inode), FileKind::File),
            valid: Validity {
                entry: Duration::ZERO,
                attributes: valid,
            },
        }
    }

    fn caller(pid: u32) -> Caller {
        Caller {
            pid,
            ..Caller::default()
        }
    }

    fn now() -> Instant {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(async { world::World::real() }).now()
    }

    #[test]
    fn the_first_request_of_the_thread_that_made_a_file_is_answered_from_that() {
        let (made, now, inode) = (Made::default(), now(), InodeId(7));
        let file = entry(7, Duration::ZERO);
        made.note(&caller(3), &file, now);
        assert!(made.take(InodeId(8)).is_none());
        let taken = made.take(inode).expect("it was made");
        let shown = taken.shown_to(&caller(3), now + FRESH).expect("in time");
        assert_eq!(
            (shown.attributes, shown.valid),
            (file.attributes, Duration::ZERO)
        );
        assert!(made.take(inode).is_none(), "the next one asks");
        assert!(taken.shown_to(&caller(4), now).is_none(), "another thread");
        let late = now + FRESH + Duration::from_millis(1);
        assert!(taken.shown_to(&caller(3), late).is_none());
    }

    #[test]
    fn what_the_kernel_may_keep_or_nobody_made_is_not_noted() {
        let (made, now) = (Made::default(), now());
        made.note(&caller(3), &entry(7, FRESH), now);
        made.note(&caller(0), &entry(8, Duration::ZERO), now);
        assert!(made.take(InodeId(7)).is_none() && made.take(InodeId(8)).is_none());
    }

    #[test]
    fn files_that_nobody_asks_for_make_room() {
        let (made, now) = (Made::default(), now());
        for inode in 0..FILES_MAX as u64 {
            made.note(&caller(3), &entry(inode, Duration::ZERO), now);
        }
        let next = InodeId(FILES_MAX as u64);
        made.note(&caller(3), &entry(next.0, Duration::ZERO), now);
        assert!(made.take(next).is_none(), "all others are fresh");
        made.note(&caller(3), &entry(next.0, Duration::ZERO), now + 2 * FRESH);
        assert!(made.take(next).is_some());
        assert!(made.files.lock().is_empty());
    }
}
