//! The client's side of its shard's owner: function calls while the owner is in this process, messages while it is on
//! another node. Nothing else in the client knows which of them it is.
//!
//! It must not know what the requests are for: files, pages and times are its callers' matter.

mod book;
mod calls;
mod concern;
mod near;
mod numbers;
mod owners;
mod remote;
mod slots;
mod stream;
mod undecided;
mod under_way;

pub(crate) use book::Book;
pub(crate) use calls::Reclaims;
pub use owners::{NearOwner, OwnerWay, Owners};
pub use remote::RemoteOwner;
pub(crate) use stream::Made;
pub(crate) use undecided::Late;

use crate::known_names::{KnownNames, Making};
use crate::patience::HoldUp;
use futures::future::BoxFuture;
use model::lock::{HeldLock, LockOwner};
use model::operation::{NewInode, Stamp};
use model::owner::{GIVE_UP_MAX, LockCall, OwnerReply, OwnerRequest, Usage};
use model::{Attributes, FileName, InodeId, Result, SegmentPlace, SessionId, ShardId};
use std::sync::{Arc, Weak};
use world::call::{Asked, Local};
use world::{Instant, Waiter, World};

/// The owner of the client's shard.
#[derive(Clone)]
pub enum Owner {
    /// In this process, which is the whole cluster. Answers on the thread that asks, before its changes are durable.
    Here(Arc<dyn Local<OwnerRequest, Result<OwnerReply>>>),
    /// Wherever the map says, now and later; in this process as well, as if it were `Here` (`owner/near.rs`).
    There(Arc<RemoteOwner>),
}

impl Owner {
    /// The shard, if another node may own it as well.
    pub(crate) fn shard(&self) -> Option<ShardId> {
        match self {
            Self::Here(_) => None,
            Self::There(remote) => Some(remote.shard()),
        }
    }

    /// Until when this node may use what owners promise; `None`: as long as they say.
    pub(crate) fn usable_until(&self) -> Option<Instant> {
        match self {
            Self::Here(_) => None,
            Self::There(remote) => remote.usable_until(),
        }
    }

    /// How the node was held up since then (`patience.rs`); `None`: it wasn't, or nothing waits for that.
    pub(crate) fn held_up_since(&self, since: Instant) -> Option<HoldUp> {
        match self {
            Self::Here(_) => None,
            Self::There(remote) => remote.held_up_since(since),
        }
    }

    /// The client is about to be closed: from now on no wait lasts longer than its patience.
    pub(crate) fn begin_close(&self) {
        if let Self::There(remote) = self {
            remote.begin_close();
        }
    }

    /// Opens a session, which is the client's from now on. Its id is never reused, nor are segment ids,
    /// which begin with it.
    ///
    /// # Errors
    /// `Unavailable` or `Unknown` if the owner or coordination doesn't answer: then no session stays
    /// open, unless the owner doesn't answer for [`END_TRIES`](calls::END_TRIES) times as long.
    pub async fn open_session(&self, world: &World) -> Result<SessionId> {
        let remote = match self {
            Self::Here(_) => None,
            Self::There(remote) => Some((remote, remote.begin())),
        };
        let ask = async |request: OwnerRequest| match (self, &remote) {
            (_, Some((_, calls))) => calls.ask(&request).await,
            (owner, None) => owner.ask(&request).answer().await,
        };
        let session = match ask(OwnerRequest::NewSession).await? {
            OwnerReply::NewSession(session) => session,
            other => unexpected(&other),
        };
        let tenure = match ask(OwnerRequest::OpenSession { session }).await {
            Ok(OwnerReply::Session(tenure)) => tenure,
            Ok(other) => unexpected(&other),
            Err(error) => {
                // The request may still be on its way: after the end it opens nothing.
                let end = OwnerRequest::CloseSession { session };
                match remote {
                    None => self.ask_later(world, end, ()),
                    Some((_, calls)) => calls.end_later(session),
                }
                return Err(error);
            }
        };
        if let Some((remote, calls)) = remote {
            calls.set_session(session, tenure);
            remote.follow(calls);
        }
        Ok(session)
    }

    /// Goes on with a session that another client of this process has left: the next owner is told that it holds this.
    pub(crate) fn go_on(&self, session: SessionId, book: Book) {
        match self {
            Self::Here(_) => {
                unreachable!("an owner that is the whole cluster forgets what it doesn't end")
            }
            Self::There(remote) => remote.go_on(session, book),
        }
    }

    /// Ends a session with its locks and opens. If the owner doesn't answer, it is asked again in the background.
    pub(crate) async fn close_session(&self, session: SessionId) -> Result<()> {
        let closed = self
            .ask(&OwnerRequest::CloseSession { session })
            .answer()
            .await;
        if let Self::There(remote) = self {
            match &closed {
                Err(error) if calls::may_be_open(error) => remote.end_later(session),
                _ => remote.close(),
            }
        }
        closed.map(drop)
    }

    /// What is known of names; `None` if it is a function call to ask for them.
    pub(crate) fn names(&self) -> Option<&Arc<KnownNames>> {
        match self {
            Self::Here(_) => None,
            Self::There(remote) => Some(remote.names()),
        }
    }

    /// New owners are told of the session's tokens; the one of this process ends with it.
    pub(crate) fn tell_new_owners(&self, tokens: Weak<dyn Reclaims>) {
        if let Self::There(remote) = self {
            remote.tell_new_owners(tokens);
        }
    }

    /// Whether it is in this process now, and knows the session.
    pub(crate) fn is_near(&self) -> bool {
        match self {
            Self::Here(_) => true,
            Self::There(remote) => remote.is_near(),
        }
    }

    /// Asks. The answer is ready at once if the owner is here and misses nothing.
    pub(crate) fn ask<'a>(&'a self, request: &'a OwnerRequest) -> Asked<'a, Result<OwnerReply>> {
        match self {
            Self::Here(owner) => owner.ask(request),
            Self::There(owner) => match owner.ask_near(request) {
                Some(asked) => asked,
                None => Asked::Waits(Box::pin(owner.ask(request))),
            },
        }
    }

    /// Asks for what is only done or refused.
    async fn ask_to(&self, request: &OwnerRequest) -> Result<()> {
        // Not by `answer`, which would move the answer twice: opens and closes come this way.
        match self.ask(request) {
            Asked::Ready(Ok(_)) => Ok(()),
            Asked::Ready(Err(error)) => Err(error),
            Asked::Waits(rest) => rest.await.map(drop),
        }
    }

    /// Until it is known what became of such requests of an inode for which nobody waits any more; `None` if there are none.
    pub(crate) fn undecided(
        &self,
        inode: InodeId,
        kinds: &'static [Late],
    ) -> Option<BoxFuture<'static, ()>> {
        match self {
            // Nothing that isn't driven is done.
            Self::Here(_) => None,
            Self::There(owner) => owner.undecided(inode, kinds),
        }
    }

    /// Whether a process may have locks of a file's bytes, as far as is known here.
    pub(crate) fn may_have_locks(&self, inode: InodeId, owner: LockOwner) -> bool {
        match self {
            Self::Here(_) => true,
            Self::There(remote) => remote.may_have_locks(inode, owner),
        }
    }

    /// Asks without waiting: a task does if the answer isn't ready. Nobody hears of an error. `until` is
    /// dropped when it is over.
    pub(crate) fn ask_later(
        &self,
        world: &World,
        request: OwnerRequest,
        until: impl Send + 'static,
    ) {
        let asked = match self {
            Self::Here(owner) => match owner.ask(&request) {
                Asked::Ready(_) => return,
                // Nothing that isn't driven is done.
                Asked::Waits(_) => None,
            },
            Self::There(owner) => match owner.ask_near(&request) {
                Some(Asked::Ready(_)) => return,
                asked => asked,
            },
        };
        let owner = self.clone();
        let asking = async move {
            let answer = match asked {
                Some(asked) => asked.answer().await,
                None => owner.ask(&request).answer().await,
            };
            if let Err(error) = answer {
                tracing::debug!(?request, %error, "the owner didn't do what it was asked");
            }
            drop(until);
        };
        world.spawn("a request to the owner", asking).detach();
    }

    /// The session has ended. Whether something is lost with its owner that it had answered.
    pub(crate) async fn has_lost_answers(&self) -> bool {
        match self {
            Self::Here(_) => false,
            Self::There(owner) => owner.has_lost_answers().await,
        }
    }

    /// Makes a regular file in a directory that is delegated to the session, and holds it if its program `opens` it: the
    /// owner hears of it later. Also says which session that is.
    pub(crate) fn make_here(
        &self,
        directory: InodeId,
        name: &FileName,
        new: &NewInode,
        opens: bool,
    ) -> Making<(Made, SessionId)> {
        match self {
            Self::Here(_) => Making::Not,
            Self::There(owner) => owner.make_here(directory, name, new, opens),
        }
    }

    /// Waits for what is in the way of making a file here and goes by: those changes of the directory that are under way now,
    /// and as many unanswered operations as there may be. No lock is held meanwhile.
    pub(crate) async fn until_quiet(&self, directory: InodeId) {
        match self {
            Self::Here(_) => {}
            Self::There(owner) => owner.until_quiet(directory).await,
        }
    }

    /// Reserves numbers for files in a directory that is delegated, or is about to be.
    pub(crate) async fn reserve_numbers(&self, directory: InodeId) -> Result<()> {
        match self {
            Self::Here(_) => Ok(()),
            Self::There(owner) => owner.reserve_numbers(directory).await,
        }
    }

    /// Gives numbers back that weren't used since this was asked last.
    pub(crate) async fn give_numbers_back(&self) {
        match self {
            Self::Here(_) => {}
            Self::There(owner) => owner.give_numbers_back().await,
        }
    }

    /// Waits until the owner has made durable what was made here with a file or directory, or in one whose name is in it, until
    /// now, or the session has ended.
    ///
    /// # Errors
    /// `SessionEnded`: then what it hadn't heard of is lost.
    pub(crate) async fn streamed(&self, inode: InodeId) -> Result<()> {
        match self {
            Self::Here(_) => Ok(()),
            Self::There(owner) => owner.streamed(inode).await,
        }
    }

    /// As [`Owner::streamed`], up to the number of an operation of that session. `SessionEnded` also if another session has
    /// followed.
    pub(crate) async fn until_streamed(&self, session: SessionId, number: u64) -> Result<()> {
        match self {
            Self::Here(_) => Ok(()),
            Self::There(owner) => owner.until_streamed(session, number).await,
        }
    }

    /// Whether the owner has yet to hear of something that was made here.
    pub(crate) fn is_streaming(&self) -> bool {
        match self {
            Self::Here(_) => false,
            Self::There(owner) => owner.is_streaming(),
        }
    }

    /// Whether the owner has yet to hear of something that was done here with a file.
    pub(crate) fn is_untold(&self, inode: InodeId) -> bool {
        match self {
            Self::Here(_) => false,
            Self::There(owner) => owner.is_untold(inode),
        }
    }

    /// A program is about to use a file that was made here and of which the owner hasn't heard. Its attributes, if the
    /// operation that makes it brings the tokens for it, of its attributes and all bytes; once.
    pub(crate) fn ask_for_tokens(&self, inode: InodeId) -> Option<Attributes> {
        match self {
            Self::Here(_) => None,
            Self::There(owner) => owner.ask_for_tokens(inode),
        }
    }

    /// Whether the owner has refused what a program was told is done, since this was last asked.
    pub(crate) fn take_refused(&self) -> bool {
        match self {
            Self::Here(_) => false,
            Self::There(owner) => owner.take_refused(),
        }
    }

    /// What was made here last, by its session and number; `None` if the owner has answered all of it.
    pub(crate) fn newest_streamed(&self) -> Option<(SessionId, u64)> {
        match self {
            Self::Here(_) => None,
            Self::There(owner) => owner.newest_streamed(),
        }
    }

    /// Makes everything answered so far durable, and what was made here up to the `newest` ([`Owner::newest_streamed`]).
    pub(crate) async fn sync(&self, newest: Option<(SessionId, u64)>) -> Result<()> {
        match self {
            Self::Here(_) => self.ask_to(&OwnerRequest::Sync).await,
            Self::There(owner) => owner.sync(newest).await,
        }
    }

    /// Adds a use of an inode, which then survives losing its last name.
    pub(crate) async fn hold(&self, session: SessionId, inode: InodeId) -> Result<()> {
        let hold = OwnerRequest::Hold { session, inode };
        self.ask_to(&hold).await
    }

    /// Adds a use of an inode that the session made without a name. In a cluster the owner has added it with the operation.
    pub(crate) async fn hold_made(&self, session: SessionId, inode: InodeId) -> Result<()> {
        match self {
            Self::Here(_) => self.hold(session, inode).await,
            Self::There(_) => Ok(()),
        }
    }

    /// Removes a use of the stamp's session. If the owner can't be told in time, it is told later.
    pub(crate) async fn unhold(&self, inode: InodeId, stamp: Stamp) -> Result<()> {
        let unhold = OwnerRequest::Unhold { inode, stamp };
        self.ask_to(&unhold).await
    }

    /// Removes a use of a file that was made here, soon: nobody waits for it. False if the owner must be told now.
    pub(crate) fn unhold_later(&self, session: SessionId, inode: InodeId) -> bool {
        match self {
            Self::Here(_) => false,
            Self::There(owner) => owner.unhold_later(session, inode),
        }
    }

    /// Whether a file was closed, and the owner is to be told soon.
    pub(crate) fn is_close_untold(&self, inode: InodeId) -> bool {
        match self {
            Self::Here(_) => false,
            Self::There(owner) => owner.is_close_untold(inode),
        }
    }

    /// A file's name is about to be removed: the owner is told of its closes now.
    pub(crate) async fn tell_close(&self, inode: InodeId) -> Result<()> {
        match self {
            Self::Here(_) => Ok(()),
            Self::There(owner) => owner.tell_close(inode).await,
        }
    }

    /// The lock that conflicts with one that would be taken.
    pub(crate) async fn conflict(&self, test: LockCall) -> Result<Option<HeldLock>> {
        match self.ask(&OwnerRequest::Lock(test)).answer().await? {
            OwnerReply::Conflict(held) => Ok(held),
            other => unexpected(&other),
        }
    }

    /// Space and inodes. An owner tells them without a session, too.
    ///
    /// # Errors
    /// `SessionEnded`: the session has ended, or there is none and the owner's build tells only sessions; `Unavailable` if no
    /// owner answers.
    pub async fn usage(&self) -> Result<Usage> {
        match self.ask(&OwnerRequest::GetUsage).answer().await? {
            OwnerReply::Usage(usage) => Ok(usage),
            other => unexpected(&other),
        }
    }

    /// These segments won't be published.
    pub(crate) async fn give_up(&self, places: &[SegmentPlace]) -> Result<()> {
        for places in places.chunks(GIVE_UP_MAX) {
            let places = places.to_vec();
            self.ask(&OwnerRequest::GiveUp { places }).answer().await?;
        }
        Ok(())
    }

    /// Frees space that removed data holds. False if there was none to free.
    pub(crate) async fn make_room(&self) -> Result<bool> {
        match self.ask(&OwnerRequest::MakeRoom).answer().await? {
            OwnerReply::Freed(any) => Ok(any),
            other => unexpected(&other),
        }
    }

    /// Waits for an owner that doesn't answer, and how many more than are listed.
    pub(crate) fn waits(&self, world: &World) -> (Vec<Waiter>, usize) {
        match self {
            Self::Here(_) => (Vec::new(), 0),
            Self::There(owner) => owner.waits(world.now()),
        }
    }
}

/// Panics: an owner in this process never gives this reply to the request. What another node gives was looked at before
/// (`calls/understood.rs`).
pub(crate) fn unexpected(reply: &OwnerReply) -> ! {
    panic!("unexpected reply from the owner in this process: {reply:?}")
}
