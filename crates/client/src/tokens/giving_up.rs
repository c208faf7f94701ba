//! Giving up everything: the session uses tokens from then on, as others do.
//!
//! *Most of it takes a moment*: what was written is published, kernels drop their pages, what is cached is forgotten.
//! *What takes longer than [`BELIEVED_MAX`]*, because it is much or disks are slow, is kept under ordinary tokens, which the
//! owner grants at once: nobody else has anything. Then the session can go on with another owner, which is told of these. So
//! an owner that gives its shard up needn't wait for slow disks, and nothing is lost by that.
//! *A second client* would want back soon what is left: the owner lets it in when all is published (`polling.rs`).
//! *A failure*: if the owner ends before the tokens are there, the session ends.

use super::{Tokens, attributes, bytes};
use crate::inode::{InodeRef, Why};
use crate::kernels::BELIEVED_MAX;
use futures::StreamExt;
use futures::future::{Either, join, select};
use futures::stream;
use model::{TokenMode, TokenObject, TokenRange};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use world::Task;

/// Files of which pages are dropped, or for which tokens are asked, at the same time.
const AT_ONCE_MAX: usize = 64;
/// How long kernels may take to drop all pages, with what they write back: less than the minute for which a client waits that
/// wants to be the second one. What they have then goes when its tokens are recalled.
const ALL_DROPPED_MAX: Duration = Duration::from_secs(20);
/// Most files that are kept under tokens. These are two for each, so half of what an owner lets a session hold.
const KEPT_MAX: usize = 65_536;

impl Tokens {
    /// The session has everything no longer. Returns when all that is left of it hangs under tokens: until then the session
    /// can't go on with another owner, which may let others have what is left. The task publishes that; the owner hears that
    /// the session hasn't everything when it has ended. Dropped, it stops.
    pub(super) async fn give_up_all(self: &Arc<Self>) -> Task<()> {
        {
            let mut state = self.state.lock();
            state.gives_all_up = true;
            self.set_has_all(false);
        }
        let mut states = Vec::new();
        self.pages.each_inode(|state| states.push(state.clone()));
        let has_kernels = !self.kernels.are_none();
        // Not all may be dropped in time.
        if has_kernels {
            for state in &states {
                state.lock().kernel_pages().set_unknown(true);
            }
        }
        let world = self.session.world();
        let emptying = self.clone().empty(states.clone());
        let mut emptying = world.spawn("publishes what a client had alone", emptying);
        // Nobody knows which names and attributes kernels have. Nothing new is answered to them since the beginning, so
        // their time runs meanwhile.
        let believed = async {
            if has_kernels {
                world.sleep(BELIEVED_MAX).await;
            }
        };
        let emptied = world.timeout(BELIEVED_MAX, &mut emptying);
        let (_in_time, ()) = join(emptied, believed).await;
        self.forget_or_keep(&states, &mut emptying).await;
        self.state.lock().gives_all_up = false;
        emptying
    }

    /// Publishes everything, and lets kernels drop their pages; as long as the session lasts.
    async fn empty(self: Arc<Self>, states: Vec<InodeRef>) {
        let emptied = async {
            join(self.drop_all_pages(&states), self.publish_all_of(&states)).await;
            // With what kernels have written back.
            for state in &states {
                self.publish(state).await;
            }
        };
        select(pin!(emptied), pin!(self.until_over())).await;
    }

    async fn publish_all_of(&self, states: &[InodeRef]) {
        // Together first, so that small data is packed.
        if let Err(error) = self.write_behind.publish_all().await {
            tracing::debug!(%error, "not all data can be published at once");
        }
        for state in states {
            self.publish(state).await;
        }
    }

    async fn drop_all_pages(&self, states: &[InodeRef]) {
        if self.kernels.are_none() {
            return;
        }
        let dropping = states.iter().cloned().map(|state| self.drop_all(state));
        let dropping = stream::iter(dropping)
            .buffer_unordered(AT_ONCE_MAX)
            .collect();
        let dropped: Result<(), _> = self
            .session
            .world()
            .timeout(ALL_DROPPED_MAX, dropping)
            .await;
        if dropped.is_err() {
            tracing::warn!("kernels haven't dropped all mapped pages in time");
        }
    }

    /// Kernels drop all pages of a file.
    async fn drop_all(&self, state: InodeRef) {
        let (all, most) = ([TokenRange::ALL], ALL_DROPPED_MAX);
        let dropped = (self.drop_now(state.id(), &all, Why::Recalled, most)).await;
        if dropped.in_time {
            state.lock().kernel_pages().set_unknown(false);
        }
    }

    /// Forgets what there is of these inodes, but for those with something that isn't published or dropped: they are kept
    /// under tokens. For one that gets none that is waited for.
    async fn forget_or_keep(&self, states: &[InodeRef], emptying: &mut Task<()>) {
        let mut kept = Vec::new();
        for state in states {
            match self.must_keep(state) {
                Some(mode) => kept.push((state.clone(), mode)),
                None => self.forget_inode(state),
            }
        }
        let others = kept.split_off(kept.len().min(KEPT_MAX));
        let mut without: Vec<InodeRef> = others.into_iter().map(|(state, _)| state).collect();
        let keeping = kept.into_iter().map(|(state, mode)| self.keep(state, mode));
        let keeping = stream::iter(keeping).buffer_unordered(AT_ONCE_MAX);
        let refused: Vec<Option<InodeRef>> = keeping.collect().await;
        without.extend(refused.into_iter().flatten());
        if without.is_empty() {
            return;
        }
        if !emptying.is_finished() {
            emptying.await;
        }
        for state in &without {
            if self.has_unknown_pages(state) {
                self.lose_pages(state, &[TokenRange::ALL]);
            }
            self.forget_inode(state);
        }
    }

    /// In which mode an inode's bytes must be held because something of it is left; `None` if nothing is.
    fn must_keep(&self, state: &InodeRef) -> Option<TokenMode> {
        let has_pages = self.has_unknown_pages(state);
        let inner = state.lock();
        if !inner.is_published() || (has_pages && inner.is_open_to_write()) {
            return Some(TokenMode::Exclusive);
        }
        has_pages.then_some(TokenMode::Shared)
    }

    /// Whether kernels may have pages of an open file of which nobody keeps account. What they have of others they drop when
    /// these are opened.
    fn has_unknown_pages(&self, state: &InodeRef) -> bool {
        let mut inner = state.lock();
        inner.is_open() && inner.kernel_pages().is_unknown() && !self.kernels.are_none()
    }

    /// Gets the tokens of an inode, with its bytes in this mode. Returns it if it gets none.
    async fn keep(&self, state: InodeRef, mode: TokenMode) -> Option<InodeRef> {
        let of_attributes = match mode {
            TokenMode::Exclusive => TokenMode::SharedWrite,
            mode => mode,
        };
        let wants = [
            Some(attributes(state.id(), of_attributes)),
            bytes(state.id(), mode, Some(TokenRange::ALL)),
        ];
        let is_kept = {
            let claiming = pin!(self.claim(&state, wants));
            let over = pin!(self.until_over());
            let claimed = select(claiming, over).await;
            if let Either::Left((Err(error), _)) = &claimed {
                tracing::debug!(inode = %state.id(), %error, "no tokens for what is left");
            }
            matches!(claimed, Either::Left((Ok(_), _)))
        };
        (!is_kept).then_some(state)
    }

    fn forget_inode(&self, state: &InodeRef) {
        let inode = state.id();
        for object in [TokenObject::Inode(inode), TokenObject::Bytes(inode)] {
            self.forget(state, object, &[TokenRange::ALL], None);
        }
    }
}
