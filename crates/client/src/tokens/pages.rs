//! Pages of kernels: which tokens they need, and how they go before bytes are given back.
//!
//! *A kernel asks for pages* ([`Tokens::begin_fill`]): whole ones, for which this client needs tokens, also behind the
//! file's end; exclusive ones if programs may change them. *A recall* of bytes waits until kernels have dropped their
//! pages of them ([`Tokens::drop_pages_first`]). The holder hears of it only then: what a kernel writes back
//! meanwhile, and whoever it still answers, does that under the tokens that are to go. What is being answered by then
//! ends before the holder flushes, and its pages go there.
//!
//! *A failure*: dropping may wait for a page whose reader waits for another client that waits for this one, and a
//! kernel writes nothing back of a file whose size one of its programs is just setting. So it is given up after
//! [`DROP_MAX`], and the token goes back without it: a mapping may then show old bytes for a while, and nobody hangs.

use super::{State, Tokens};
use crate::inode::{Inner, InodeRef, PAGE_BYTES, Span, Step, pages_of};
use crate::kernels::Expired;
use model::token::TokenRecall;
use model::{Error, ErrorKind, InodeId, Result, TokenMode, TokenObject, TokenRange};
use parking_lot::MutexGuard;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use world::Planted;

/// How long kernels may take to drop pages, with what they write back, for which a request may have to be sent again. An
/// owner waits for a holder far longer than for this, again for what a recall asks for meanwhile, and for what is left
/// when the holder flushes.
const DROP_MAX: Duration = Duration::from_secs(4);
/// The cause by which waits for kernels are listed.
const DROP_WAIT: &str = "kernels that drop mapped pages";
/// How often a recall may ask for more while pages go.
const ROUNDS_MAX: usize = 2;

/// A kernel's request for pages that is under way.
pub(crate) struct Filling {
    state: InodeRef,
    number: u64,
    pages: Span,
    mode: TokenMode,
}

/// What a read may use.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Right {
    /// Tokens must be claimed.
    None,
    /// The bytes. What is known of the size may be too little: it must be asked for.
    Bytes,
    /// The bytes, and where the file ends.
    Full,
}

impl Filling {
    /// The bytes that it needs, and how.
    pub(crate) fn wants(&self) -> (u64, u64, TokenMode) {
        (self.pages.0, self.pages.1, self.mode)
    }

    /// Whether it may be answered. `is_held`: what it needs was claimed.
    pub(crate) fn right(&self, inner: &mut Inner, is_held: bool) -> Right {
        let right = if is_held || inner.may_fill(self.pages, self.mode) {
            Right::Full
        } else if inner.may_fill_again(self.pages, self.mode) {
            Right::Bytes
        } else {
            Right::None
        };
        match right {
            Right::None => self.waits(inner),
            _ => inner.kernel_pages().note_fill(self.number, true),
        }
        right
    }

    /// It waits for something.
    pub(crate) fn waits(&self, inner: &mut Inner) {
        inner.kernel_pages().note_fill(self.number, false);
        // A drop needn't wait for it.
        self.state.signal();
    }

    /// It must wait for tokens. Who has asked for several pages of which some are being dropped must not: others
    /// that want these may wait for the pages that it has locked, and what it waits for may come after them.
    ///
    /// # Errors
    /// `Busy`: the kernel must ask for one page alone, which is dropped or isn't.
    pub(crate) fn check_patience(&self) -> Result<()> {
        let held = self.state.lock().kernel_pages().held_until(self.pages);
        match held.is_some() && self.pages.1 - self.pages.0 > PAGE_BYTES {
            true => Err(Error::new(
                ErrorKind::Busy,
                "some of these pages are being dropped",
            )),
            false => Ok(()),
        }
    }

    /// It is about to be answered.
    pub(crate) fn filled(&self, inner: &mut Inner) {
        inner.filled(self.number, self.mode);
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        self.state.lock().kernel_pages().end_fill(self.number);
        self.state.signal();
    }
}

/// Pages that kernels have dropped. Until this is dropped, too, requests for them wait a little.
pub(super) struct Dropped {
    going: Option<(InodeRef, u64)>,
    in_time: bool,
}

impl Drop for Dropped {
    fn drop(&mut self) {
        if let Some((state, number)) = self.going.take() {
            state.lock().kernel_pages().end_drop(number);
            state.signal();
        }
    }
}

impl Tokens {
    /// A kernel asks for these bytes, which are whole pages, and keeps them. Waits a little while such pages are being
    /// dropped.
    pub(crate) async fn begin_fill(
        &self,
        state: &InodeRef,
        offset: u64,
        length: usize,
        mode: TokenMode,
    ) -> Filling {
        let pages = pages_of(offset, offset.saturating_add(length as u64));
        let mode = match self.session.world().has_planted(Planted::FillShared) {
            true => TokenMode::Shared,
            false => mode,
        };
        loop {
            let changed = state.changed();
            let now = self.session.standing().now();
            let held = {
                let mut inner = state.lock();
                let held = inner.kernel_pages().held_until(pages);
                match held.map(|until| until.since(now)) {
                    None | Some(Duration::ZERO) => {
                        let is_only = !self.kernels.are_several();
                        let number = inner.kernel_pages().begin_fill(pages, is_only);
                        return Filling {
                            state: state.clone(),
                            number,
                            pages,
                            mode,
                        };
                    }
                    Some(held) => held,
                }
            };
            let _ = self.session.world().timeout(held, changed).await;
        }
    }

    /// A recall; `None` if the kernels have to drop pages first. Files for which that has to begin are added to `begin`.
    pub(super) fn after_pages(
        &self,
        waiting: &mut BTreeMap<InodeId, TokenRecall>,
        recall: TokenRecall,
        begin: &mut Vec<InodeId>,
    ) -> Option<TokenRecall> {
        let TokenObject::Bytes(inode) = recall.object else {
            return Some(recall);
        };
        if let Some(newest) = waiting.get_mut(&inode) {
            *newest = recall;
            return None;
        }
        if !self.must_drop(inode, &recall.ranges, recall.keep) {
            return Some(recall);
        }
        waiting.insert(inode, recall);
        begin.push(inode);
        None
    }

    /// Whether kernels may have pages of these bytes, of a file that is open here. What they have of others they drop
    /// when these are opened.
    fn must_drop(&self, inode: InodeId, ranges: &[TokenRange], keep: Option<TokenMode>) -> bool {
        let is_planted = self.session.world().has_planted(Planted::KeepPages);
        let state = self.pages.find_inode(inode);
        state.is_some_and(|state| state.lock().kernel_pages().must_drop(ranges, keep))
            && !is_planted
            && !self.kernels.are_none()
    }

    /// Kernels drop the pages of what is recalled of a file; then the holder hears of the recall.
    pub(super) fn drop_pages_first(&self, inode: InodeId) {
        let Some(it) = self.me.upgrade() else { return };
        let session = self.session.clone();
        session.spawn("drops pages that others want", it.recall_later(inode));
    }

    async fn recall_later(self: Arc<Self>, inode: InodeId) {
        for round in 1.. {
            let recall = self.state.lock().dropping.get(&inode).cloned();
            let Some(recall) = recall else { return };
            let dropped = self.drop_pages(inode, &recall.ranges, recall.keep).await;
            let state = self.state.lock();
            let asks_more = state.dropping.get(&inode) != Some(&recall);
            if asks_more && dropped.in_time && round < ROUNDS_MAX {
                continue;
            }
            // Nobody asks for these pages again until the tokens are on their way.
            self.recall_now(state, inode);
            return;
        }
    }

    fn recall_now(&self, mut state: MutexGuard<'_, State>, inode: InodeId) {
        let recall = state.dropping.remove(&inode);
        let now = self.session.standing().now();
        if let (Some(recall), Some(holder)) = (recall, &mut state.holder)
            && let Err(error) = holder.recalled(recall, now)
        {
            tracing::error!(%error, "the owner's recall makes no sense");
        }
        self.act(state);
    }

    /// Kernels drop their pages of these bytes, and write back what was changed in them.
    pub(super) async fn drop_pages(
        &self,
        inode: InodeId,
        ranges: &[TokenRange],
        keep: Option<TokenMode>,
    ) -> Dropped {
        if !self.must_drop(inode, ranges, keep) {
            return Dropped {
                going: None,
                in_time: true,
            };
        }
        let state = self.pages.inode(inode);
        let standing = self.session.standing();
        let number = (state.lock().kernel_pages()).begin_drop(ranges, standing.now());
        let mut dropped = Dropped {
            going: Some((state.clone(), number)),
            in_time: true,
        };
        let _listed = self
            .session
            .list(DROP_WAIT, Some(inode), self.session.now());
        let dropping = async {
            loop {
                let changed = state.changed();
                let step = state.lock().kernel_pages().step(number, standing.now());
                match step {
                    Step::Done => return,
                    Step::Tell((from, to)) => {
                        let pages = Expired::Bytes { inode, from, to };
                        self.kernels.expire(pages).await;
                    }
                    Step::Wait => changed.await,
                }
            }
        };
        dropped.in_time = (self.session.world().timeout(DROP_MAX, dropping).await).is_ok();
        if !dropped.in_time {
            tracing::warn!(%inode, "a kernel doesn't drop mapped pages that another client wants: mappings may show old bytes for a while");
        }
        dropped
    }
}
