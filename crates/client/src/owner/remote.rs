//! The owner wherever it is: on another node, or in this process now and elsewhere later. Each session of the client asks
//! it through its own [`Calls`].

use super::book::Book;
use super::calls::{Calls, Reclaims};
use super::owners::Owners;
use super::stream::Made;
use super::undecided::Late;
use crate::known_names::{KnownNames, Making};
use crate::patience::HoldUp;
use arc_swap::ArcSwap;
use futures::future::BoxFuture;
use model::lock::LockOwner;
use model::operation::NewInode;
use model::owner::{OwnerReply, OwnerRequest};
use model::{Attributes, FileName, InodeId, Result, SessionId, ShardId};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use world::call::Asked;
use world::{Instant, Waiter, World};

/// An owner that is reached through messages, or by function calls while it is in this process.
pub struct RemoteOwner {
    /// The client's tokens.
    tokens: Arc<OnceLock<Weak<dyn Reclaims>>>,
    names: Arc<KnownNames>,
    /// The client is about to be closed.
    is_closing: Arc<AtomicBool>,
    /// What the client's session asks. Loaded by every operation.
    calls: ArcSwap<Calls>,
}

impl RemoteOwner {
    pub(super) fn shard(&self) -> ShardId {
        self.calls.load().shard()
    }

    pub(super) fn usable_until(&self) -> Option<Instant> {
        self.calls.load().usable_until()
    }

    /// The owner of a shard, as `owners` names it. A request is asked for `patience` before its program
    /// gets an error.
    #[must_use]
    pub fn new(
        world: World,
        shard: ShardId,
        owners: Arc<dyn Owners>,
        patience: Duration,
    ) -> Arc<Self> {
        let tokens = Arc::<OnceLock<_>>::default();
        let names = KnownNames::new();
        let is_closing = Arc::<AtomicBool>::default();
        let shared = (tokens.clone(), names.clone(), is_closing.clone());
        let calls = Calls::new(world, shard, owners, patience, shared);
        Arc::new(Self {
            tokens,
            names,
            is_closing,
            calls: ArcSwap::new(calls),
        })
    }

    /// As [`Calls::held_up_since`].
    pub(super) fn held_up_since(&self, since: Instant) -> Option<HoldUp> {
        self.calls.load().held_up_since(since)
    }

    /// The client is about to be closed: from now on no wait lasts longer than its patience.
    pub(super) fn begin_close(&self) {
        self.is_closing.store(true, Ordering::Release);
    }

    /// What is known of names under the session's tokens.
    pub(super) fn names(&self) -> &Arc<KnownNames> {
        &self.names
    }

    /// What a session asks that is about to be opened.
    pub(super) fn begin(&self) -> Arc<Calls> {
        self.calls.load().next()
    }

    /// The session that asks this is the client's from now on; the one before is over.
    pub(super) fn follow(&self, calls: Arc<Calls>) {
        let before = self.calls.swap(calls.clone());
        before.close();
        if before.take_refused() {
            calls.note_refused();
        }
    }

    /// As [`Calls::go_on`].
    pub(super) fn go_on(&self, session: SessionId, book: Book) {
        self.calls.load().go_on(session, book);
    }

    /// As [`Calls::is_near`].
    pub(super) fn is_near(&self) -> bool {
        self.calls.load().is_near()
    }

    /// Asks an owner in this process, on this thread; `None` if there is none, or it would have to wait: then nothing was
    /// done.
    pub(super) fn ask_near(
        &self,
        request: &OwnerRequest,
    ) -> Option<Asked<'static, Result<OwnerReply>>> {
        self.calls.load().ask_near(request)
    }

    /// Asks until there is an answer, or patience ends.
    ///
    /// # Errors
    /// As [`Calls::ask`].
    pub(super) async fn ask(&self, request: &OwnerRequest) -> Result<OwnerReply> {
        let calls = self.calls.load_full();
        match request {
            OwnerRequest::Unhold { .. } => calls.unhold(request).await,
            _ => calls.ask(request).await,
        }
    }

    /// As [`Calls::undecided`]: what a session before has asked isn't done any more.
    pub(super) fn undecided(
        &self,
        inode: InodeId,
        kinds: &'static [Late],
    ) -> Option<BoxFuture<'static, ()>> {
        self.calls.load().undecided(inode, kinds)
    }

    /// As [`Calls::may_have_locks`].
    pub(super) fn may_have_locks(&self, inode: InodeId, owner: LockOwner) -> bool {
        self.calls.load().may_have_locks(inode, owner)
    }

    /// New owners are told of these tokens.
    pub(super) fn tell_new_owners(&self, tokens: Weak<dyn Reclaims>) {
        let first = self.tokens.set(tokens);
        assert!(first.is_ok(), "a client's tokens are in one place");
    }

    /// The session has ended. Whether something is lost that an owner in this process had answered.
    pub(super) async fn has_lost_answers(&self) -> bool {
        let calls = self.calls.load_full();
        calls.has_lost_answers().await
    }

    /// As [`Calls::make_here`].
    pub(super) fn make_here(
        &self,
        directory: InodeId,
        name: &FileName,
        new: &NewInode,
        opens: bool,
    ) -> Making<(Made, SessionId)> {
        self.calls.load().make_here(directory, name, new, opens)
    }

    /// As [`Calls::until_quiet`].
    pub(super) async fn until_quiet(&self, directory: InodeId) {
        let calls = self.calls.load_full();
        calls.until_quiet(directory).await;
    }

    /// As [`Calls::unhold_later`].
    pub(super) fn unhold_later(&self, session: SessionId, inode: InodeId) -> bool {
        self.calls.load().unhold_later(session, inode)
    }

    /// As [`Calls::is_close_untold`].
    pub(super) fn is_close_untold(&self, inode: InodeId) -> bool {
        self.calls.load().is_close_untold(inode)
    }

    /// As [`Calls::tell_close`].
    pub(super) async fn tell_close(&self, inode: InodeId) -> Result<()> {
        let calls = self.calls.load_full();
        calls.tell_close(inode).await
    }

    /// Reserves numbers for files in a directory.
    pub(super) async fn reserve_numbers(&self, directory: InodeId) -> Result<()> {
        let calls = self.calls.load_full();
        calls.reserve_numbers(directory).await
    }

    /// As [`Calls::give_numbers_back`].
    pub(super) async fn give_numbers_back(&self) {
        let calls = self.calls.load_full();
        calls.give_numbers_back().await;
    }

    /// Waits until the owner has made durable what was done here with a file or directory, or in one whose name is in it, until
    /// now, or the session has ended.
    pub(super) async fn streamed(&self, inode: InodeId) -> Result<()> {
        let calls = self.calls.load_full();
        calls.streamed(inode).await
    }

    /// As [`RemoteOwner::streamed`], up to a number of a session's.
    pub(super) async fn until_streamed(&self, session: SessionId, number: u64) -> Result<()> {
        let calls = self.calls.load_full();
        calls.until_streamed_of(session, number).await
    }

    /// Whether the owner has yet to hear of something that was made here.
    pub(super) fn is_streaming(&self) -> bool {
        self.calls.load().is_streaming()
    }

    /// As [`Calls::is_untold`].
    pub(super) fn is_untold(&self, inode: InodeId) -> bool {
        self.calls.load().is_untold(inode)
    }

    /// As [`Calls::newest_streamed`].
    pub(super) fn newest_streamed(&self) -> Option<(SessionId, u64)> {
        self.calls.load().newest_streamed()
    }

    /// As [`Calls::sync`].
    pub(super) async fn sync(&self, newest: Option<(SessionId, u64)>) -> Result<()> {
        let calls = self.calls.load_full();
        calls.sync(newest).await
    }

    /// A program is about to use a file that was made here: its attributes, if its operation brings the tokens for it.
    pub(super) fn ask_for_tokens(&self, inode: InodeId) -> Option<Attributes> {
        self.calls.load().ask_for_tokens(inode)
    }

    /// Whether the owner has refused what a program was told is done.
    pub(super) fn take_refused(&self) -> bool {
        self.calls.load().take_refused()
    }

    /// The client's last session is over, and the owner hasn't heard of it yet.
    pub(super) fn end_later(&self, session: SessionId) {
        self.calls.load().end_later(session);
    }

    /// The client's last session has ended.
    pub(super) fn close(&self) {
        self.calls.load().close();
    }

    pub(super) fn waits(&self, now: Instant) -> (Vec<Waiter>, usize) {
        self.calls.load().waits(now)
    }
}
