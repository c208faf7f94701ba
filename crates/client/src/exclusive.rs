//! The exclusive use of an inode, which truncates, allocations and copies need.
//!
//! *Nobody knows what became of one* whose owner didn't answer in time, or whose program didn't wait: it may still run, and
//! would cut what was written meanwhile, even if that was synced. So the exclusive use lasts until that is decided, and who
//! writes, truncates or reads what it changes waits, for as long as programs do. It holds no token: other clients get what
//! they want meanwhile.

use crate::inode::{Inner, InodeRef, InodeState};
use crate::owner::Late;
use crate::page_pool::PagePool;
use crate::session::Session;
use model::Result;
use std::sync::Arc;
use tokio::sync::{RwLockReadGuard, RwLockWriteGuard};

/// No write to an inode begins while this lives, nor later until what was asked of the owner meanwhile is decided.
pub(crate) struct Exclusive<'a> {
    state: &'a InodeRef,
    session: &'a Session,
    pages: &'a Arc<PagePool>,
    _gate: RwLockWriteGuard<'a, ()>,
}

impl InodeRef {
    /// Waits for its turn, then excludes writers.
    pub(crate) async fn exclude_writers<'a>(
        &'a self,
        session: &'a Session,
        pages: &'a Arc<PagePool>,
    ) -> Result<Exclusive<'a>> {
        let free = self.gate().try_write().ok();
        let gate = match free.filter(|_| !self.lock().is_exclusive()) {
            Some(gate) => gate,
            None => {
                let turn = async {
                    let gate = self.gate().write().await;
                    self.until_decided().await;
                    gate
                };
                session
                    .wait_for_change("a truncate of the same file", self.id(), turn)
                    .await?
            }
        };
        self.lock().begin_exclusive();
        Ok(Exclusive {
            state: self,
            session,
            pages,
            _gate: gate,
        })
    }
}

/// No truncate or the like begins while this lives.
pub(crate) struct Turn<'a> {
    _gate: RwLockReadGuard<'a, ()>,
}

impl InodeState {
    /// Waits until what runs, or waits before, has ended. In their order, so that a program that changes a file all
    /// the time doesn't keep readers waiting for ever. Readers that follow each other go on together. Who has a turn
    /// must give it up before it waits for another one.
    pub(crate) async fn turn(&self) -> Turn<'_> {
        let gate = self.gate().read().await;
        self.until_decided().await;
        Turn { _gate: gate }
    }

    /// Waits until a write isn't kept from beginning any more by this exclusive use of the inode, or hears of a loss.
    pub(crate) async fn until_not_excluded(&self, by: u64, is_kernels: bool) {
        let goes_on = |inner: &Inner| inner.excluded_by(is_kernels) == Some(by);
        self.while_it(|inner| goes_on(inner) && inner.check_lost().is_ok())
            .await;
    }

    /// Who has passed the gate waits until what was begun before is decided.
    async fn until_decided(&self) {
        self.while_it(Inner::is_exclusive).await;
    }

    async fn while_it(&self, is_so: impl Fn(&Inner) -> bool) {
        loop {
            // First: an end that follows isn't missed.
            let changed = self.changed();
            if !is_so(&self.lock()) {
                return;
            }
            changed.await;
        }
    }
}

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        // Whoever was asking is gone by now: what it leaves undecided is listed.
        let owner = self.session.owner();
        let Some(decided) = owner.undecided(self.state.id(), &[Late::Bytes]) else {
            end(self.state, self.pages);
            return;
        };
        let (state, pages) = (self.state.clone(), self.pages.clone());
        let waiting = async move {
            decided.await;
            end(&state, &pages);
        };
        self.session.spawn("an undecided change of a file", waiting);
    }
}

/// The exclusive use ends.
fn end(state: &InodeRef, pages: &PagePool) {
    {
        let mut inner = state.lock();
        // It may have been done all the same.
        if let Some((from, to)) = inner.end_exclusive() {
            pages.uncache(state.id(), &mut inner, from, to);
            inner.forget_extents(from, to);
            inner.void_known();
        }
    }
    state.signal();
}
