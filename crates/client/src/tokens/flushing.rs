//! Giving back: publish what was changed, drop what was cached. Also when a token is lost.

use super::Tokens;
use crate::inode::InodeRef;
use crate::kernels::Expired;
use crate::session::Losses;
use futures::future::{Either, join_all, select};
use model::token::TokenRecall;
use model::{ErrorKind, TokenMode, TokenObject, TokenRange};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokens::Holder;
use tokens::holder::FlushNumber;
use world::{Planted, Point};

/// Pause after written data couldn't be published, or tokens haven't been granted. It is tried again until the owner ends the
/// session.
const PAUSE: Duration = Duration::from_millis(100);

impl Tokens {
    /// A recall of bytes, with what goes back beside them.
    pub(super) fn widened(&self, holder: &Holder, recall: TokenRecall) -> TokenRecall {
        let state = match recall.object {
            TokenObject::Bytes(inode) => self.pages.find_inode(inode),
            TokenObject::Inode(_) | TokenObject::Directory(_) => None,
        };
        let now = self.session.now();
        let in_use = holder.in_use(recall.object, recall.keep);
        let ranges = state.map(|state| state.lock().widen(&recall, in_use, now));
        TokenRecall {
            ranges: ranges.unwrap_or_else(|| recall.ranges.clone()),
            ..recall
        }
    }

    /// Carries a recall out.
    pub(super) async fn flush(
        self: Arc<Self>,
        flush: FlushNumber,
        object: TokenObject,
        ranges: Vec<TokenRange>,
        keep: Option<TokenMode>,
    ) {
        // Most have gone before the recall began; some may have been on their way to a kernel. It writes back what was
        // changed, so that comes first.
        if let TokenObject::Bytes(inode) = object {
            self.drop_rest(inode, &ranges, keep).await;
        }
        // Made under a delegation, which this may be, or which rests on this. Not all: what is stuck in another directory isn't
        // what the recall is about, and the session ends if it lasts.
        let world = self.session.world();
        if let TokenObject::Inode(inode) | TokenObject::Directory(inode) = object
            && !world.has_planted(Planted::ReturnUnstreamed)
        {
            // If the session has ended, nothing goes back.
            let _ended = self.session.owner().streamed(inode).await;
            if matches!(object, TokenObject::Directory(_)) {
                self.until_granted().await;
            }
        }
        if let TokenObject::Inode(inode) | TokenObject::Bytes(inode) = object
            && let Some(state) = self.pages.find_inode(inode)
        {
            if !self.session.world().has_planted(Planted::ReturnUnflushed) {
                self.publish(&state).await;
            }
            self.session.world().at(Point::FlushPublished).await;
            self.forget(&state, object, &ranges, keep);
        }
        self.expire_in_kernels(object, keep).await;
        self.session.world().at(Point::FlushForgotten).await;
        let now = self.session.standing().now();
        let mut locked = self.state.lock();
        if let Some(holder) = &mut locked.holder {
            holder.flushed(flush, now);
        }
        self.act(locked);
    }

    /// No kernel keeps names or attributes that an object's token allowed. Nothing new is answered under it, but for
    /// what is kept: it is taken away first.
    async fn expire_in_kernels(&self, object: TokenObject, keep: Option<TokenMode>) {
        let names = self.session.known_names();
        let below = match (object, names) {
            (TokenObject::Directory(inode), Some(names)) => names.shown_in(inode),
            _ => Vec::new(),
        };
        let expired: Vec<Expired> = match object {
            // It may still be looked at.
            TokenObject::Directory(_) if keep.is_some() => return,
            // With its names change the attributes of a directory; and of those with names in it, if others move or
            // remove them.
            TokenObject::Directory(inode) => {
                let changed = below.iter().copied().chain([inode]);
                let changed = changed.map(Expired::Attributes);
                changed.chain([Expired::Names]).collect()
            }
            // With each notice of attributes a kernel forgets all names, and asks for each again.
            TokenObject::Inode(inode) if names.is_some_and(|names| !names.is_shown(inode)) => {
                return;
            }
            TokenObject::Inode(inode) => vec![Expired::Attributes(inode)],
            TokenObject::Bytes(_) => return,
        };
        let world = self.session.world();
        if !world.has_planted(Planted::KeepInKernels) {
            let expired = expired.into_iter();
            join_all(expired.map(|what| self.kernels.expire_soon(world, what))).await;
        }
        // Only now: neither does the directory's token go back before kernels have heard of an inode's, nor that before they
        // have heard of the directory's.
        match (object, keep, names) {
            (TokenObject::Inode(inode), None, Some(names)) => names.hide(inode),
            (TokenObject::Directory(inode), None, Some(names)) => names.hide_in(inode, &below),
            _ => {}
        }
    }

    /// Waits until the owner has granted the tokens of all files that were made here and that it knows. It does as soon as it
    /// grants anything, since nobody else can find them. In whatever directory they were made: they may have been moved.
    async fn until_granted(&self) {
        loop {
            let waits = {
                let state = self.state.lock();
                let holder = state.holder.as_ref().filter(|_| !state.is_over);
                holder.is_some_and(Holder::has_ungranted)
            };
            if !waits {
                return;
            }
            self.session.world().sleep(PAUSE).await;
        }
    }

    /// Publishes an inode's written data, as long as the session lasts.
    pub(super) async fn publish(&self, state: &InodeRef) {
        let _hurry = self.write_behind.hurry(state.id());
        loop {
            let publishing = pin!(self.write_behind.publish(state));
            let error = match select(publishing, pin!(self.until_over())).await {
                Either::Left((Ok(()), _)) | Either::Right(((), _)) => return,
                Either::Left((Err(error), _)) => error,
            };
            if error.kind() == ErrorKind::SessionEnded {
                return;
            }
            tracing::warn!(inode = %state.id(), %error, "another client waits for data that can't be published yet");
            self.session.world().sleep(PAUSE).await;
        }
    }

    /// Returns once the session has ended.
    pub(super) async fn until_over(&self) {
        loop {
            let is_over = self.state.lock().is_over;
            if is_over {
                return;
            }
            self.session.world().sleep(PAUSE).await;
        }
    }

    pub(super) fn forget(
        &self,
        state: &InodeRef,
        object: TokenObject,
        ranges: &[TokenRange],
        keep: Option<TokenMode>,
    ) {
        let planted = self.session.world().planted();
        let mut inner = state.lock();
        match object {
            TokenObject::Inode(_) if planted == Some(Planted::KeepAttributes) => {}
            TokenObject::Inode(_) => inner.forget_attributes(),
            _ if planted == Some(Planted::KeepBytes) => {}
            _ if keep.is_none() => {
                for range in ranges {
                    let end = range.end - u64::from(planted == Some(Planted::KeepOneByte));
                    self.pages.uncache(state.id(), &mut inner, range.start, end);
                    inner.forget_extents(range.start, range.end);
                }
            }
            _ => {}
        }
    }

    /// Drops what was cached and changed of something that others may have changed since.
    pub(super) fn lose(&self, object: TokenObject, ranges: &[TokenRange]) {
        match (object, self.session.known_names()) {
            (TokenObject::Inode(inode), Some(names)) => names.hide(inode),
            (TokenObject::Directory(inode), Some(names)) => drop(names.take_shown(inode)),
            _ => {}
        }
        let (TokenObject::Inode(inode) | TokenObject::Bytes(inode)) = object else {
            return;
        };
        let Some(state) = self.pages.find_inode(inode) else {
            return;
        };
        // What programs have stored in mappings and kernels haven't written back is lost as well.
        if matches!(object, TokenObject::Bytes(_)) {
            self.lose_pages(&state, ranges);
        }
        self.lose_written(&state);
        self.forget(&state, object, ranges, None);
    }

    /// Drops what was written to an inode and isn't published.
    pub(super) fn lose_written(&self, state: &InodeRef) {
        state.lock().note_loss();
        if self.write_behind.lose(state) {
            let inode = state.id();
            tracing::error!(%inode, "written data is lost: the owner didn't hear from this client in time");
            self.session.note_losses(Losses {
                files_with_data: 1,
                ..Losses::default()
            });
        }
    }
}
