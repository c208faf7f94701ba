//! Access times: relatime, recorded in batches.

use crate::inode::Inner;
use crate::session::Session;
use model::{Attributes, InodeId, Operation, Timestamp};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tracing::debug;

/// A read moves atime at least this often.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Most access times waiting to be recorded; beyond that, only a later read counts.
const WAITING_MAX: usize = 16_384;

/// Access times waiting to be recorded.
pub(crate) struct Accesses {
    session: Arc<Session>,
    /// Whether reads move atime at all.
    relatime: bool,
    waiting: Mutex<BTreeMap<InodeId, Timestamp>>,
    /// A task is recording them.
    recording: AtomicBool,
}

impl Accesses {
    pub(crate) fn new(session: Arc<Session>, relatime: bool) -> Arc<Self> {
        Arc::new(Self {
            session,
            relatime,
            waiting: Mutex::default(),
            recording: AtomicBool::new(false),
        })
    }

    /// Notes a read, and decides from the known attributes whether it moves atime. The caller holds
    /// the inode's lock.
    pub(crate) fn note(&self, inode: InodeId, inner: &mut Inner) {
        let Some(known) = inner.known().filter(|_| self.relatime) else {
            return;
        };
        let is_young = known.atime > known.mtime && known.atime > known.ctime;
        // The clock is read only if the other rules don't decide.
        let now = self.session.wall();
        if is_young && known.atime.plus(DAY) > now {
            return;
        }
        let mut waiting = self.waiting.lock();
        if waiting.len() < WAITING_MAX {
            let at = now.max(known.atime);
            inner.note_access(at);
            waiting.insert(inode, at);
        }
    }

    /// Adds an unrecorded access time to attributes from the owner.
    pub(crate) fn merge_into(&self, attributes: &mut Attributes) {
        if let Some(at) = self.waiting.lock().get(&attributes.inode) {
            attributes.atime = attributes.atime.max(*at);
        }
    }

    /// utimes set the time itself: earlier reads don't count.
    pub(crate) fn forget(&self, inode: InodeId) {
        self.waiting.lock().remove(&inode);
    }

    /// Records all waiting access times. stat shows each of them until the owner has it.
    pub(crate) async fn record(&self) {
        let mut next = Bound::Unbounded;
        loop {
            let first = {
                let waiting = self.waiting.lock();
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
            let mut waiting = self.waiting.lock();
            if waiting.get(&inode) == Some(&at) {
                waiting.remove(&inode);
            }
        }
    }

    /// Records access times in a separate task: these thousands of operations may each have to
    /// wait, and written data must not wait for them.
    pub(crate) fn record_later(self: &Arc<Self>) {
        if self.recording.swap(true, Ordering::AcqRel) {
            return;
        }
        let accesses = self.clone();
        self.session.spawn("record access times", async move {
            accesses.record().await;
            accesses.recording.store(false, Ordering::Release);
        });
    }
}
