//! Drops setuid, setgid and file capabilities when a file's bytes change, so that a program's
//! rights never apply to bytes written by another user.
//!
//! Hardly any file has privileges, but every write must check. So an inode's state remembers that
//! it has none, from the first write or its creation until its mode or its extended attributes
//! change.

use crate::inode::{Inner, InodeRef, Plain};
use crate::page_pool::PagePool;
use crate::session::Session;
use bytes::Bytes;
use futures::future::join;
use model::{Attributes, Error, ErrorKind, InodeId, Operation, Privileges, Result, SetAttributes};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use world::Map;

const CAPABILITIES: &[u8] = b"security.capability";
/// Pause before capabilities are dropped that couldn't be.
const PAUSE: Duration = Duration::from_secs(1);

/// The privileges of files, as far as they are known here.
pub(crate) struct Rights {
    session: Arc<Session>,
    pages: Arc<PagePool>,
    /// Counts changes that may give an inode of this client privileges. An answer requested before
    /// such a change must not be remembered after it.
    grants: AtomicU64,
    /// Inodes that a task takes the capabilities from; true: once more, because bytes have changed since it began.
    losing: Mutex<Map<InodeId, bool>>,
}

/// A change that may give an inode privileges, until it is answered. Without an answer it may have been done all the same,
/// and a program that gives it up doesn't hear of one: so the end of this counts, however it comes.
pub(crate) struct Granting<'a> {
    rights: &'a Rights,
    inode: InodeId,
}

impl Drop for Granting<'_> {
    fn drop(&mut self) {
        self.rights.note_grant(self.inode);
    }
}

impl Rights {
    pub(crate) fn new(session: Arc<Session>, pages: Arc<PagePool>) -> Arc<Self> {
        Arc::new(Self {
            session,
            pages,
            grants: AtomicU64::new(0),
            losing: Mutex::default(),
        })
    }

    /// The number of changes so far that may have given an inode privileges.
    pub(crate) fn grants(&self) -> u64 {
        self.grants.load(Ordering::SeqCst)
    }

    /// Drops the privileges that a change of the inode's bytes must not leave, before that change.
    /// True if the mode may have changed.
    pub(crate) async fn drop_from(&self, inode: InodeId, privileges: Privileges) -> Result<bool> {
        let state = self.pages.inode(inode);
        if state.lock().loses_nothing_to(privileges) {
            return Ok(false);
        }
        self.drop_unless_plain(&state, privileges).await
    }

    /// Bytes of the inode have changed by a write that mustn't wait for other clients: drops its capabilities soon, in a task.
    pub(crate) fn drop_capabilities_later(self: &Arc<Self>, inode: InodeId) {
        let state = self.pages.inode(inode);
        if state.lock().loses_nothing_to(Privileges::DropCapabilities) {
            return;
        }
        {
            let mut losing = self.losing.lock();
            if let Some(again) = losing.get_mut(&inode) {
                *again = true;
                return;
            }
            losing.insert(inode, false);
        }
        let rights = self.clone();
        let losing = async move { rights.lose_capabilities(inode).await };
        self.session.spawn("drops a file's capabilities", losing);
    }

    async fn lose_capabilities(&self, inode: InodeId) {
        let is_away = |error: Error| {
            let kind = error.kind();
            matches!(kind, ErrorKind::Unavailable | ErrorKind::Unknown)
        };
        loop {
            let dropped = self.drop_from(inode, Privileges::DropCapabilities).await;
            if dropped.is_err_and(is_away) && self.session.check_open().is_ok() {
                self.session.world().sleep(PAUSE).await;
                continue;
            }
            let goes_on = {
                let mut losing = self.losing.lock();
                let again = losing.insert(inode, false) == Some(true);
                if !again {
                    losing.remove(&inode);
                }
                again
            };
            if !goes_on {
                return;
            }
        }
    }

    /// As `drop_from`, for an inode that isn't known to have none.
    pub(crate) async fn drop_unless_plain(
        &self,
        state: &InodeRef,
        privileges: Privileges,
    ) -> Result<bool> {
        // What may still come of a chmod isn't seen before.
        self.session.until_decided(state.id()).await?;
        let grants = self.grants();
        let asked = state.lock().held_state();
        let plain = self.ask(state.id(), privileges).await?;
        {
            let mut inner = state.lock();
            if self.grants() == grants {
                inner.learn_plain(plain, asked);
            }
        }
        if plain.loses_nothing_to(privileges) {
            return Ok(false);
        }
        let set = SetAttributes {
            privileges,
            ..SetAttributes::default()
        };
        // Unlike other attribute changes, this doesn't publish dirty data first: a crash that loses
        // the last writes but keeps this change is safe, the reverse isn't.
        let inode = state.id();
        self.session
            .attributes_after(Operation::SetAttributes { inode, set })
            .await?;
        Ok(matches!(privileges, Privileges::Drop { .. }))
    }

    /// Asks which of these privileges an inode hasn't: for all of them at the same time, because a program waits for it.
    async fn ask(&self, inode: InodeId, privileges: Privileges) -> Result<Plain> {
        let has_capabilities = self.has_capabilities(inode);
        if privileges == Privileges::DropCapabilities {
            return Ok(Plain::of_any_mode(has_capabilities.await?));
        }
        let now = self.session.attributes(inode);
        let (now, has_capabilities) = join(now, has_capabilities).await;
        Ok(Plain::of(&now?, has_capabilities?))
    }

    async fn has_capabilities(&self, inode: InodeId) -> Result<bool> {
        let name = Bytes::from_static(CAPABILITIES);
        let value = self.session.execute(Operation::GetXattr { inode, name });
        match value.await {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NoSuchAttribute => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Remembers what a file that was just made has. `grants` were counted before: a new file has no
    /// capabilities, and its mode is known.
    pub(crate) fn note_made(&self, made: &Attributes, inner: &mut Inner, grants: u64) {
        if self.grants() == grants {
            let held = inner.held_state();
            inner.learn_plain(Plain::of(made, false), held);
        }
    }

    /// A change is about to be asked for that may give the inode privileges. The result must be dropped before the answer is
    /// passed on, and after what is left undecided is listed.
    pub(crate) fn begin_grant(&self, inode: InodeId) -> Granting<'_> {
        Granting {
            rights: self,
            inode,
        }
    }

    fn note_grant(&self, inode: InodeId) {
        // In this order: a task that asked before the change either sees the new count, or has
        // already stored its result, which is cleared here.
        self.grants.fetch_add(1, Ordering::SeqCst);
        if let Some(state) = self.pages.find_inode(inode) {
            state.lock().forget_plain();
        }
    }
}
