//! The time of the last read: relatime, recorded in batches.

use crate::client::Client;
use crate::inode::{Inner, InodeRef};
use model::{InodeId, Operation, Timestamp};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;
use tracing::debug;

/// A read moves atime at least this often.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Access times that wait to be recorded; when it is full, later reads count next time.
const WAITING_MAX: usize = 16_384;

/// Access times that wait to be recorded.
#[derive(Default)]
pub(crate) struct Accesses {
    waiting: Mutex<BTreeMap<InodeId, Timestamp>>,
}

impl Client {
    /// A read: whether it moves atime is decided here, from what is known. The inode's lock is
    /// held by the caller.
    pub(crate) fn note_access(&self, state: &InodeRef, inner: &mut Inner) {
        let Some(known) = inner.known.as_mut().filter(|_| self.settings.relatime) else {
            return;
        };
        let is_young = known.atime > known.mtime && known.atime > known.ctime;
        // The clock is asked only if the other rules leave it open.
        let now = self.world.wall();
        if is_young && known.atime.plus(DAY) > now {
            return;
        }
        let mut waiting = self.accesses.waiting.lock();
        if waiting.len() < WAITING_MAX {
            known.atime = now.max(known.atime);
            waiting.insert(state.id, known.atime);
        }
    }

    /// The access time that waits for an inode.
    pub(crate) fn unrecorded_access(&self, inode: InodeId) -> Option<Timestamp> {
        self.accesses.waiting.lock().get(&inode).copied()
    }

    /// Whether any access time waits.
    pub(crate) fn has_accesses(&self) -> bool {
        !self.accesses.waiting.lock().is_empty()
    }

    /// utimes set the time itself: a read before it doesn't count.
    pub(crate) fn forget_access(&self, inode: InodeId) {
        self.accesses.waiting.lock().remove(&inode);
    }

    /// Sends the access times that wait.
    pub(crate) async fn record_atimes(&self) {
        let waiting = std::mem::take(&mut *self.accesses.waiting.lock());
        for (inode, at) in waiting {
            let operation = Operation::NoteAccess { inode, at };
            if let Err(error) = self.metanode.execute(&operation, &self.stamp()).await {
                // Gone, or away: an access time isn't worth more.
                debug!(%inode, %error, "an access time wasn't recorded");
            }
        }
    }
}
