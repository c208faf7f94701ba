//! Pages of kernels: which tokens they need, and how they go before bytes are given back.
//!
//! *A kernel asks for pages* ([`Tokens::begin_fill`]): whole ones, for which this client needs tokens, also behind the
//! file's end; exclusive ones if programs may change them. *A recall* of bytes waits until kernels have dropped their
//! pages of them ([`Tokens::drop_pages_first`]). The holder hears of it only then: what a kernel writes back
//! meanwhile, and whoever has begun to be answered, does that under the tokens that are to go. Who asks for such pages
//! then waits until they have gone. What is being answered at the end of that ends before the holder flushes, and its
//! pages go there.
//!
//! *A failure*: a kernel writes nothing back of a file whose size one of its programs is just setting, and that may wait
//! for another client that waits for this one. So dropping is given up if nothing goes on for [`STILL_MAX`], or all of
//! it takes longer than [`DROP_MAX`], and tried again by who flushes. Then the token goes back without it, and nobody hangs: what
//! may have been changed in these pages is lost, of which programs hear, and the kernel goes on being told.

use super::{State, Tokens};
use crate::inode::{Inner, InodeRef, PAGE_BYTES, Span, Step, Why, pages_of};
use crate::kernels::{Expired, KeptPages};
use crate::session::Losses;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use model::token::TokenRecall;
use model::{Error, ErrorKind, InodeId, Result, TokenMode, TokenObject, TokenRange};
use parking_lot::MutexGuard;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use world::{Planted, World};

/// How long a kernel may drop none of its pages and write nothing of them back, for which a request may have to be sent
/// again; and how long all may take. As long as what is written back is published, an owner waits 45 s for a holder: for
/// this, and for what is left when the holder flushes.
const STILL_MAX: Duration = Duration::from_secs(4);
const DROP_MAX: Duration = Duration::from_secs(24);
/// How long the rest may take that is left when the holder flushes.
const REST_MAX: Duration = Duration::from_secs(8);
/// How long a kernel goes on being told of pages that are lost.
const LOST_MAX: Duration = Duration::from_secs(120);
/// How long a notice is waited for although the kernel has asked for one of its pages meanwhile: many times as long as a
/// notice takes, with what is written back, if the page isn't locked.
const LOCKED_MAX: Duration = Duration::from_millis(20);
/// Most requests for several pages that wait here: each has one of the 64 places that a kernel has for what no program
/// asks for, and what it writes back needs one, too.
const WAITING_MAX: usize = 32;
/// Most requests for pages that wait for a drop: a mount has 256 places for requests that wait, and what is written back
/// needs some, too.
const HELD_MAX: usize = 128;
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

impl Filling {
    /// The bytes that it needs, and how.
    pub(crate) fn wants(&self) -> (u64, u64, TokenMode) {
        (self.pages.0, self.pages.1, self.mode)
    }

    /// Whether it may be answered. `is_held`: what it needs was claimed.
    pub(crate) fn may_go(&self, inner: &Inner, is_held: bool) -> bool {
        is_held || inner.may_fill(self.pages, self.mode)
    }

    /// It isn't about to be answered: what was may have been void.
    pub(crate) fn begins_again(&self, inner: &mut Inner) {
        if inner.kernel_pages().waits(self.number) {
            self.state.signal();
        }
    }

    /// It must wait for tokens; the guard is for as long as it does.
    ///
    /// # Errors
    /// `Busy`: too many for several pages wait already. The kernel asks for the one that a program needs alone, which has
    /// no such place.
    pub(crate) fn begin_wait(&self, tokens: &Tokens) -> Result<Option<Counted>> {
        if self.pages.1 - self.pages.0 <= PAGE_BYTES {
            return Ok(None);
        }
        let counted = Counted::of(&tokens.waiting_fills, WAITING_MAX);
        counted
            .map(Some)
            .ok_or_else(|| Error::new(ErrorKind::Busy, "too many requests for several pages wait"))
    }

    /// It is about to be answered.
    pub(crate) fn filled(&self, inner: &mut Inner) {
        inner.filled(self.number, self.mode);
    }
}

/// One of a number of waits that has a limit.
pub(crate) struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn of(number: &Arc<AtomicUsize>, most: usize) -> Option<Self> {
        let counted = Self(number.clone());
        (number.fetch_add(1, Ordering::Relaxed) < most).then_some(counted)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        self.state.lock().kernel_pages().end_fill(self.number);
        self.state.signal();
    }
}

/// Pages that kernels have dropped. Until this is dropped, too, requests for them wait.
pub(super) struct Dropped {
    going: Option<(InodeRef, u64)>,
    pub(super) in_time: bool,
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
    /// A kernel asks for these bytes, which are whole pages, and keeps them. Waits while such pages are being dropped.
    pub(crate) async fn begin_fill(
        &self,
        state: &InodeRef,
        offset: u64,
        length: usize,
        kept: KeptPages,
    ) -> Result<Filling> {
        let pages = pages_of(offset, offset.saturating_add(length as u64));
        let mode = match self.session.world().has_planted(Planted::FillShared) {
            true => TokenMode::Shared,
            false => kept.mode,
        };
        let (number, must_wait) = {
            let mut inner = state.lock();
            // With the inode locked: one that comes next fills its pages after this.
            let is_only = self.kernels.is_only(kept.by);
            let account = inner.kernel_pages();
            let number = account.begin_fill(kept.by, pages, is_only);
            (number, account.must_wait(pages))
        };
        let filling = Filling {
            state: state.clone(),
            number,
            pages,
            mode,
        };
        if must_wait && let Some(_held) = Counted::of(&self.held_fills, HELD_MAX) {
            let _counted = filling.begin_wait(self)?;
            // The kernel may just be waiting for the locks of these pages.
            state.signal();
            let gone = async {
                loop {
                    let changed = state.changed();
                    {
                        let mut inner = state.lock();
                        if inner.check_lost().is_err() || !inner.kernel_pages().must_wait(pages) {
                            return;
                        }
                    }
                    changed.await;
                }
            };
            (self.session.wait(DROP_WAIT, Some(state.id()), gone)).await?;
        }
        Ok(filling)
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
        let began = self.session.now();
        for round in 1.. {
            let recall = self.state.lock().dropping.get(&inode).cloned();
            let Some(recall) = recall else { return };
            let most = DROP_MAX.saturating_sub(self.session.now() - began);
            let dropped = (self.drop_pages(inode, &recall.ranges, recall.keep, most)).await;
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

    /// What kernels still have of bytes that the holder flushes goes, and is written back if it was changed. What isn't
    /// dropped in time is lost.
    pub(super) async fn drop_rest(
        &self,
        inode: InodeId,
        ranges: &[TokenRange],
        keep: Option<TokenMode>,
    ) {
        let dropped = self.drop_pages(inode, ranges, keep, REST_MAX).await;
        if !dropped.in_time {
            drop(dropped);
            self.lose_pages(&self.pages.inode(inode), ranges);
        }
    }

    /// Kernels drop their pages of these bytes, and write back what was changed in them.
    async fn drop_pages(
        &self,
        inode: InodeId,
        ranges: &[TokenRange],
        keep: Option<TokenMode>,
        most: Duration,
    ) -> Dropped {
        match self.must_drop(inode, ranges, keep) {
            true => self.drop_now(inode, ranges, Why::Recalled, most).await,
            false => Dropped {
                going: None,
                in_time: true,
            },
        }
    }

    /// Others get these bytes, or have them, of which kernels may have pages. Nothing of that is written back any more, and
    /// the pages go without anybody waiting for it. If programs may have changed some, the file's open ones hear of it.
    pub(super) fn lose_pages(&self, state: &InodeRef, ranges: &[TokenRange]) {
        let inode = state.id();
        let mut inner = state.lock();
        let may_be_unknown = inner.kernel_pages().is_unknown() && inner.is_open_to_write();
        let is_lost = may_be_unknown || inner.kernel_pages().may_be_changed_in(ranges);
        let ranges = match is_lost {
            true => vec![TokenRange::ALL],
            false => ranges.to_vec(),
        };
        inner.kernel_pages().lose_drops(&ranges);
        let is_new = is_lost && inner.is_open() && inner.check_lost().is_ok();
        if is_lost {
            inner.note_lost_writes();
        }
        drop(inner);
        state.signal();
        if is_new {
            tracing::error!(%inode, "what programs have changed in mapped pages may be lost: others have these bytes before a kernel has dropped them");
            self.session.note_losses(Losses {
                files_with_data: 1,
                ..Losses::default()
            });
        }
        let Some(it) = self.me.upgrade().filter(|it| !it.kernels.are_none()) else {
            return;
        };
        let changes = self.session.standing().changes();
        let dropping = async move {
            let dropped = it.drop_now(inode, &ranges, Why::Lost, LOST_MAX).await;
            let state = it.pages.inode(inode);
            let mut inner = state.lock();
            // Unless the client has had everything since.
            let standing = it.session.standing();
            let is_known = standing.changes() == changes && !standing.was_given_all();
            if dropped.in_time && ranges == [TokenRange::ALL] && is_known {
                inner.kernel_pages().set_unknown(false);
            }
        };
        self.session.spawn("drops pages of lost bytes", dropping);
    }

    pub(super) async fn drop_now(
        &self,
        inode: InodeId,
        ranges: &[TokenRange],
        why: Why,
        most: Duration,
    ) -> Dropped {
        let state = self.pages.inode(inode);
        let number = state.lock().kernel_pages().begin_drop(ranges, why);
        // What a kernel writes back of these pages needn't wait for tokens now.
        state.signal();
        let mut dropped = Dropped {
            going: Some((state.clone(), number)),
            in_time: true,
        };
        let began = self.session.now();
        let _listed = self.session.list(DROP_WAIT, Some(inode), began);
        let _hurry = (why == Why::Recalled).then(|| self.write_behind.hurry(inode));
        let mut passed = FuturesUnordered::new();
        dropped.in_time = 'all: loop {
            let mut part = std::pin::pin!(self.drop_part(&state, number, &mut passed));
            loop {
                let written = state.lock().kernel_pages().written_back();
                let rest = most.saturating_sub(self.session.now() - began);
                let still = match why {
                    Why::Recalled => rest.min(STILL_MAX),
                    Why::Lost => rest,
                };
                match self.session.world().timeout(still, part.as_mut()).await {
                    Ok(true) => break 'all true,
                    Ok(false) => break,
                    Err(_) => {
                        let goes_on = state.lock().kernel_pages().written_back() != written;
                        if !goes_on || still == rest {
                            break 'all false;
                        }
                    }
                }
            }
        };
        if !dropped.in_time {
            tracing::warn!(%inode, ?why, "a kernel doesn't drop mapped pages in time that other clients want or have");
        }
        dropped
    }

    /// A kernel drops a part of them, or is known to have none of it. Returns whether none is left. `passed`: the notices
    /// that aren't waited for.
    async fn drop_part<'a>(
        &'a self,
        state: &InodeRef,
        number: u64,
        passed: &mut FuturesUnordered<BoxFuture<'a, ()>>,
    ) -> bool {
        let (inode, world) = (state.id(), self.session.world());
        loop {
            let changed = state.changed();
            let step = {
                let mut inner = state.lock();
                // Asked for with the lock held: every kernel that has pages in the account is among them.
                let kernels = self.kernels.numbers();
                inner.kernel_pages().step(number, &kernels)
            };
            let (kernel, (from, to)) = match step {
                Step::Done => return true,
                Step::Wait => {
                    changed.await;
                    continue;
                }
                Step::Tell(kernel, pages) => (kernel, pages),
            };
            let begun = self.session.now();
            let pages = Expired::Bytes { inode, from, to };
            let mut told: BoxFuture<'a, ()> = Box::pin(self.kernels.expire_in(kernel, pages));
            loop {
                tokio::select! {
                    biased;
                    () = &mut told => {
                        let was_quick = self.session.now() - begun < LOCKED_MAX;
                        state.lock().kernel_pages().told(number, was_quick);
                        return false;
                    }
                    Some(()) = passed.next() => state.lock().kernel_pages().passed_ended(number),
                    () = locked(world, state, number) => {
                        passed.push(told);
                        return false;
                    }
                }
            }
        }
    }
}

/// Waits until a kernel has locked what it is being told to drop, and has had time to be done with it all the same.
async fn locked(world: &World, state: &InodeRef, number: u64) {
    loop {
        let changed = state.changed();
        if state.lock().kernel_pages().is_locked(number) {
            world.sleep(LOCKED_MAX).await;
            if state.lock().kernel_pages().pass_locked(number) {
                return;
            }
            // Who holds it up needn't wait for the drop now.
            state.signal();
            world.sleep(LOCKED_MAX).await;
            continue;
        }
        changed.await;
    }
}
