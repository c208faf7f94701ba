//! Access times: relatime, recorded in batches.

use crate::client::Client;
use crate::inode::{Inner, InodeRef};
use model::{InodeId, Operation, Timestamp};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tracing::debug;

/// A read moves atime at least this often.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Most access times waiting to be recorded; beyond that, only a later read counts.
const WAITING_MAX: usize = 16_384;

/// Access times waiting to be recorded.
#[derive(Default)]
pub(crate) struct Accesses {
    waiting: Mutex<BTreeMap<InodeId, Timestamp>>,
    /// A task is recording them.
    recording: AtomicBool,
}

impl Client {
    /// Notes a read, and decides from the known attributes whether it moves atime. The caller holds
    /// the inode's lock.
    pub(crate) fn note_access(&self, state: &InodeRef, inner: &mut Inner) {
        let Some(known) = inner.known.as_mut().filter(|_| self.settings.relatime) else {
            return;
        };
        let is_young = known.atime > known.mtime && known.atime > known.ctime;
        // The clock is read only if the other rules don't decide.
        let now = self.session.wall();
        if is_young && known.atime.plus(DAY) > now {
            return;
        }
        let mut waiting = self.accesses.waiting.lock();
        if waiting.len() < WAITING_MAX {
            known.atime = now.max(known.atime);
            waiting.insert(state.id, known.atime);
        }
    }

    /// The unrecorded access time of an inode.
    pub(crate) fn unrecorded_access(&self, inode: InodeId) -> Option<Timestamp> {
        self.accesses.waiting.lock().get(&inode).copied()
    }

    /// Whether any access time is unrecorded.
    pub(crate) fn has_accesses(&self) -> bool {
        !self.accesses.waiting.lock().is_empty()
    }

    /// utimes set the time itself: earlier reads don't count.
    pub(crate) fn forget_access(&self, inode: InodeId) {
        self.accesses.waiting.lock().remove(&inode);
    }

    /// Records all waiting access times. stat shows each of them until the owner has it.
    pub(crate) async fn record_atimes(&self) {
        let mut next = Bound::Unbounded;
        loop {
            let first = {
                let waiting = self.accesses.waiting.lock();
                let mut rest = waiting.range((next, Bound::Unbounded));
                rest.next().map(|(inode, at)| (*inode, *at))
            };
            let Some((inode, at)) = first else { return };
            next = Bound::Excluded(inode);
            let operation = Operation::NoteAccess { inode, at };
            if let Err(error) = self.session.execute(operation).await {
                // The inode is gone or the owner unavailable: not worth a retry.
                debug!(%inode, %error, "an access time wasn't recorded");
            }
            let mut waiting = self.accesses.waiting.lock();
            if waiting.get(&inode) == Some(&at) {
                waiting.remove(&inode);
            }
        }
    }

    /// Records access times in a separate task: these thousands of operations may each have to
    /// wait, and written data must not wait for them.
    pub(crate) fn spawn_record_atimes(&self) {
        if self.accesses.recording.swap(true, Ordering::AcqRel) {
            return;
        }
        let client = self.shared();
        let work = async move {
            client.record_atimes().await;
            client.accesses.recording.store(false, Ordering::Release);
        };
        self.session.spawn("record access times", work);
    }
}
