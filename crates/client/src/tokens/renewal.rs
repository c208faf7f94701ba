//! The next session: what a client does whose session the owner has ended.
//!
//! 1. *Lost* is all that the tokens allowed: what was cached, and what was written and isn't published.
//!    What belongs to the old session names it, and the owner refuses it for ever. If its owner, in this process, has
//!    answered what is lost with it (`owner/near.rs`), all programs that have files open hear of it, and the next that syncs.
//! 2. A session is opened, for as long as it takes. One that doesn't get all of 3 is ended before the next
//!    is opened.
//! 3. It gets the doors of the one before, and holds every open inode as often. Programs that have a file
//!    open hear of it (`Inner::check_lost`) if written data was lost, if they had locks on it, or if it
//!    lost its last name and with the session its last holder.
//! 4. It becomes the client's: what waited for it goes on.

use super::Tokens;
use crate::inode::InodeRef;
use crate::session::Losses;
use futures::stream::{self, TryStreamExt};
use model::operation::{Stamp, Turn};
use model::owner::{LockCall, OwnerRequest};
use model::{Error, ErrorKind, InodeId, Operation, Result, SessionId, TokenObject, TokenRange};
use std::time::Duration;
use world::Point;

/// First and longest pause before it is tried again.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Inodes that are held at the same time.
const AT_ONCE: usize = 16;
/// The cause by which waits for the owner are listed that has yet to open the next session.
const OPENED_WAIT: &str = "the owner of the metadata, which opens a session";

impl Tokens {
    /// The session has ended, which had everything or not: begins the next one. False if the client is closed first.
    pub(super) async fn begin_next_session(&self, had_all: bool) -> bool {
        let ended = self.session.id();
        let before = self.session.losses();
        self.lose_all(self.state.lock());
        let has_lost_answers = self.session.owner().has_lost_answers().await;
        if has_lost_answers {
            self.session.note_lost_answers();
        }
        if self.session.check_open().is_err() {
            return false;
        }
        self.pages.each_inode(|state| {
            if had_all && state.lock().is_open() && !self.kernels.are_none() {
                // There are no tokens that are lost, and no account.
                state.lock().kernel_pages().set_unknown(true);
                self.lose_pages(state, &[TokenRange::ALL]);
            }
            self.lose_inode(state);
            if has_lost_answers {
                // Which files that was is not known.
                state.lock().note_lost();
            }
        });
        // Others may still be dropping what their answers said is lost: what is written in the next session isn't that.
        drop(self.losing.write());
        // Also between two attempts: what waits for the session is shown to wait for this.
        let listed = self.session.list_for_owner(OPENED_WAIT);
        let mut pause = PAUSE_MIN;
        let begun = loop {
            if self.session.check_open().is_err() {
                return false;
            }
            match self.open_next().await {
                Ok(begun) => break begun,
                Err(error) => {
                    tracing::warn!(%ended, %error, "this client's session has ended, and it can't begin another one yet");
                    self.session.world().sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        };
        drop(listed);
        self.lose_locks(begun);
        self.session.note_losses(Losses {
            sessions: 1,
            ..Losses::default()
        });
        {
            let mut state = self.state.lock();
            // If the owner has answered that one at all: its successor goes on with its numbers.
            if let Some(holder) = state.holder.take() {
                state.former = Some(holder);
            }
            state.is_over = false;
            self.session.begin_next(begun);
        }
        // Opens that had been answered and weren't noted yet.
        if let Err(error) = self.hold_opened(begun).await {
            tracing::debug!(%error, "the next session has ended too");
        }
        let lost = self.session.losses();
        tracing::error!(
            event = "session_lost",
            %ended,
            %begun,
            answers_are_lost = has_lost_answers,
            files_with_data = lost.files_with_data - before.files_with_data,
            files_with_locks = lost.files_with_locks - before.files_with_locks,
            files_without_names = lost.files_without_names - before.files_without_names,
            "this client lost its session, because the owner didn't hear from it in time, it gave nothing back, or its owner on this node was replaced; it goes on in a new one"
        );
        true
    }

    fn lose_inode(&self, state: &InodeRef) {
        self.lose_written(state);
        let inode = state.id();
        for object in [TokenObject::Inode(inode), TokenObject::Bytes(inode)] {
            self.forget(state, object, &[TokenRange::ALL], None);
        }
    }

    /// Opens a session and gives it what outlasts the one before.
    async fn open_next(&self) -> Result<SessionId> {
        let owner = self.session.owner();
        let begun = owner.open_session(self.session.world()).await?;
        self.session.world().at(Point::SessionRenewed).await;
        match self.give_all(begun).await {
            Ok(()) => Ok(begun),
            Err(error) => {
                self.end_unwanted(begun).await;
                Err(error)
            }
        }
    }

    async fn give_all(&self, begun: SessionId) -> Result<()> {
        for door in self.session.doors().of(begun) {
            let begin = OwnerRequest::Lock(LockCall::BeginDoor(door));
            self.session.ask(&begin).await?;
        }
        self.hold_opened(begun).await
    }

    /// Ends a session that can't become the client's. Nobody else would end it: the owner doesn't miss
    /// one that holds no tokens. Another one couldn't be opened meanwhile, so it waits for the owner.
    async fn end_unwanted(&self, begun: SessionId) {
        let end = OwnerRequest::CloseSession { session: begun };
        while let Err(error) = self.session.ask(&end).await {
            let is_over = error.kind() == ErrorKind::SessionEnded;
            if is_over || self.session.check_open().is_err() {
                return;
            }
            tracing::debug!(%begun, %error, "a session that isn't wanted can't be ended yet");
            self.session.world().sleep(PAUSE_MAX).await;
        }
    }

    /// Lets a session hold all inodes that programs have open.
    async fn hold_opened(&self, session: SessionId) -> Result<()> {
        let mut opened = Vec::new();
        self.pages.each_inode(|state| {
            let inner = state.lock();
            if inner.is_open() && inner.holder() != session {
                opened.push(state.clone());
            }
        });
        let holding = stream::iter(opened.into_iter().map(Ok::<_, Error>));
        holding
            .try_for_each_concurrent(AT_ONCE, |state| self.hold(session, state))
            .await
    }

    /// Lets a session hold an inode as often as it is open, and looks whether it still exists.
    async fn hold(&self, session: SessionId, state: InodeRef) -> Result<()> {
        let inode = state.id();
        let mut holds = 0;
        // Programs open and close it meanwhile.
        while let Some(is_more) = self.next_hold(session, &state, holds) {
            match is_more {
                true => {
                    self.session.hold(session, inode).await?;
                    holds += 1;
                }
                false => {
                    self.session.unhold(session, inode).await?;
                    holds -= 1;
                }
            }
        }
        if !self.exists(session, inode).await? {
            {
                let mut inner = state.lock();
                if !inner.is_open() {
                    return Ok(());
                }
                inner.note_lost();
            }
            tracing::error!(%inode, "an open file without names is lost with the session that held it");
            self.session.note_losses(Losses {
                files_without_names: 1,
                ..Losses::default()
            });
        }
        Ok(())
    }

    /// Whether a session that holds an inode so often has to hold it once more (or less); `None` if that is how often
    /// it is open. The inode is the session's from then on.
    fn next_hold(&self, session: SessionId, state: &InodeRef, holds: u32) -> Option<bool> {
        let mut inner = state.lock();
        // All have closed it, and one that has opened it since holds it itself.
        let wanted = match inner.holder() == session {
            true => 0,
            false => inner.opens(),
        };
        if holds == wanted {
            inner.set_holder(session);
            return None;
        }
        Some(holds < wanted)
    }

    async fn exists(&self, session: SessionId, inode: InodeId) -> Result<bool> {
        let stamp = Stamp {
            turn: Turn::Read,
            ..Stamp::own(self.session.wall(), session)
        };
        let operation = Operation::GetAttributes { inode };
        match self
            .session
            .ask(&OwnerRequest::Execute { operation, stamp })
            .await
        {
            Ok(_) => Ok(true),
            Err(error) if matches!(error.kind(), ErrorKind::Stale | ErrorKind::NotFound) => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Programs that had locks hear of it.
    fn lose_locks(&self, begun: SessionId) {
        for inode in self.session.doors().follow(begun) {
            tracing::error!(%inode, "file locks are lost with the session that held them");
            self.session.note_losses(Losses {
                files_with_locks: 1,
                ..Losses::default()
            });
            if let Some(state) = self.pages.find_inode(inode) {
                state.lock().note_lost();
            }
        }
    }
}
