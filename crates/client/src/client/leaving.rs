//! A client goes, and another one of its process and run goes on in its session: with what programs have open, and with their
//! locks. So its node can reach the shard in another way, as the member of a cluster, while its mounts stay.
//!
//! *Nothing is lost with it*: all is durable before it goes. *The session stays open*, and its owner ends. Whoever owns the shard
//! next keeps files without names until the session has said what it holds, as after any end of an owner ([`Book`]). *What
//! kernels have* of files was allowed by the client before, and nobody has kept account of it.

use super::Client;
use crate::inode::InodeRef;
use crate::kernels::Kernels;
use crate::owner::{Book, Owner};
use crate::settings::ClientSettings;
use model::{Error, ErrorKind, InodeId, Result, SessionId};
use pool::Pool;
use std::sync::Arc;
use world::World;

/// What a client leaves to the one that goes on in its session. If nobody does, the session ends with the node's run.
pub struct Legacy {
    session: SessionId,
    /// The newest segment that was begun in it.
    last_segment: u64,
    /// What it holds at its owner.
    book: Book,
    opens: Vec<LeftOpen>,
    kernels: Kernels,
}

impl Legacy {
    /// Whose it is.
    #[must_use]
    pub fn session(&self) -> SessionId {
        self.session
    }
}

/// An inode that programs have open.
struct LeftOpen {
    inode: InodeId,
    opens: u32,
    is_open_to_write: bool,
    is_orphan: bool,
}

impl LeftOpen {
    fn of(state: &InodeRef) -> Option<Self> {
        let inner = state.lock();
        inner.is_open().then(|| Self {
            inode: state.id(),
            opens: inner.opens(),
            is_open_to_write: inner.is_open_to_write(),
            is_orphan: inner.is_orphan(),
        })
    }

    /// Notes it in the state of a client that goes on. False if its session isn't that one any more.
    fn note_in(&self, state: &InodeRef, session: SessionId) -> bool {
        let mut inner = state.lock();
        let are_noted = (0..self.opens).all(|_| inner.note_open(session));
        if self.is_open_to_write {
            inner.note_open_to_write();
        }
        inner.set_orphan(self.is_orphan);
        inner.kernel_pages().set_unknown(true);
        are_noted
    }
}

impl Client {
    /// Makes everything durable and stops, so that another client can go on in the session ([`Client::go_on`]). Nobody may
    /// use this one meanwhile, or afterwards, and its owner must end before the other one asks the next owner.
    ///
    /// # Errors
    /// What couldn't be made durable: the client goes on then.
    pub async fn leave(&self) -> Result<Legacy> {
        self.sync_all().await?;
        self.session.close();
        self.background.stop().await;
        self.write_behind.drain().await;
        self.tokens.stop().await;
        let mut opens = Vec::new();
        self.pages
            .each_inode(|state| opens.extend(LeftOpen::of(state)));
        let mut book = self.session.doors().book();
        for open in &opens {
            book.hold(open.inode, u64::from(open.opens));
        }
        Ok(Legacy {
            session: self.session.id(),
            last_segment: self.session.last_segment(),
            book,
            opens,
            kernels: self.tokens.kernels().list(),
        })
    }

    /// As [`Client::new`], in the session of a client that has left; the owner is one that hears what it holds before it answers
    /// anything ([`Owner::There`]). Kernels must be told soon to drop what they have: of names and attributes they have it for
    /// [`VALID_MAX`](crate::VALID_MAX) at most.
    ///
    /// # Errors
    /// `SessionEnded`: what programs have open is lost. Close the client then.
    pub fn go_on(
        world: World,
        owner: Owner,
        pool: Arc<Pool>,
        legacy: Legacy,
        settings: ClientSettings,
    ) -> Result<Arc<Self>> {
        let session = legacy.session;
        // Before anything is asked.
        owner.go_on(session, legacy.book.clone());
        let client = Self::new(world, owner, pool, session, settings);
        client.session.go_on(session, legacy.last_segment);
        client.locks.go_on(legacy.book);
        client.tokens.kernels().go_on(legacy.kernels);
        let mut are_noted = true;
        for open in &legacy.opens {
            are_noted &= open.note_in(&client.pages.inode(open.inode), session);
        }
        if are_noted {
            return Ok(client);
        }
        let text = format!("session {session} has ended before another client went on in it");
        Err(Error::new(ErrorKind::SessionEnded, text))
    }
}
