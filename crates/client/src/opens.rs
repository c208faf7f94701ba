//! Open and release: holds inodes, so that they outlive their last names.

use crate::attributes::InodeAttributes;
use crate::inode::{HeldState, InodeRef};
use crate::page_pool::PagePool;
use crate::privileges::Rights;
use crate::session::Session;
use crate::types::{OpenFlags, Opened};
use model::{Attributes, ErrorKind, FileKind, InodeId, Result, SessionId, SetAttributes};
use std::sync::Arc;
use tracing::warn;

/// The inodes that programs have open.
pub(crate) struct Opens {
    session: Arc<Session>,
    pages: Arc<PagePool>,
    rights: Arc<Rights>,
    attributes: Arc<InodeAttributes>,
}

impl Opens {
    pub(crate) fn new(
        session: Arc<Session>,
        pages: Arc<PagePool>,
        rights: Arc<Rights>,
        attributes: Arc<InodeAttributes>,
    ) -> Arc<Self> {
        Arc::new(Self {
            session,
            pages,
            rights,
            attributes,
        })
    }

    /// Opens an inode of any kind: adds a holder, so that it survives unlink.
    pub(crate) async fn open(&self, inode: InodeId, flags: OpenFlags) -> Result<Opened> {
        // Held first, so that it can't be deleted between the check and the hold.
        let state = self.hold(inode).await?;
        let opened = self.open_held(inode, flags).await;
        if opened.is_err() {
            self.let_go(&state).await;
        }
        opened
    }

    /// Holds an inode once more, and notes that it is open.
    async fn hold(&self, inode: InodeId) -> Result<InodeRef> {
        loop {
            let session = self.session.current().await?;
            match self.session.hold(session, inode).await {
                Ok(()) => {
                    let state = self.pages.inode(inode);
                    if state.lock().note_open(session) {
                        return Ok(state);
                    }
                    self.session.unhold(session, inode).await?;
                }
                Err(error) if error.kind() == ErrorKind::SessionEnded => {
                    self.session.after(session).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn open_held(&self, inode: InodeId, flags: OpenFlags) -> Result<Opened> {
        let grants = self.rights.grants();
        let attributes = self.attributes.get(inode).await?;
        if flags.write && attributes.kind == FileKind::Directory {
            return Err(ErrorKind::IsDirectory.into());
        }
        if flags.write {
            self.pages.inode(inode).lock().note_open_to_write();
        }
        if flags.truncate && attributes.kind == FileKind::File {
            let set = SetAttributes {
                size: Some(0),
                privileges: flags.privileges,
                ..SetAttributes::default()
            };
            let after = self.attributes.set(inode, set).await?;
            // A chmod in between may have been undone.
            let mode_changed = after.mode != attributes.mode || self.rights.grants() != grants;
            return Ok(Opened {
                attributes: after,
                mode_changed,
            });
        }
        Ok(Opened {
            attributes,
            mode_changed: false,
        })
    }

    /// Notes that an inode is open which a session has just made, and holds with that: it is empty and fully
    /// known, if the session has everything. `grants` were counted before, as was `held`.
    pub(crate) async fn hold_new(
        &self,
        attributes: &Attributes,
        maker: SessionId,
        grants: u64,
        held: HeldState,
    ) -> Result<()> {
        let inode = attributes.inode;
        let mut state = self.pages.inode(inode);
        if !state.lock().note_open(maker) {
            // Another session has followed, which must hold it.
            self.session.unhold(maker, inode).await?;
            state = self.hold(inode).await?;
        }
        self.note_new(&state, attributes, grants, held);
        Ok(())
    }

    /// As [`Opens::hold_new`], for an inode that a session made without a name.
    pub(crate) async fn hold_unnamed(
        &self,
        attributes: &Attributes,
        maker: SessionId,
        grants: u64,
        held: HeldState,
    ) -> Result<()> {
        self.session.hold_made(maker, attributes.inode).await?;
        self.hold_new(attributes, maker, grants, held).await
    }

    /// As [`Opens::hold_new`], for a file that was made here under a delegation.
    pub(crate) async fn hold_made_here(
        &self,
        attributes: &Attributes,
        maker: SessionId,
        grants: u64,
        held: HeldState,
    ) -> Result<()> {
        self.hold_new(attributes, maker, grants, held).await?;
        self.pages.inode(attributes.inode).lock().note_made_here();
        Ok(())
    }

    fn note_new(&self, state: &InodeRef, attributes: &Attributes, grants: u64, held: HeldState) {
        let mut inner = state.lock();
        inner.note_open_to_write();
        if inner.learn_first(attributes, held) {
            inner.learn_empty();
            self.rights.note_made(attributes, &mut inner, grants);
        }
    }

    /// The last close of one open. Never fails; deletes an inode without names and holders.
    pub(crate) async fn release(&self, inode: InodeId) {
        let Some(state) = self.pages.find_inode(inode) else {
            warn!(%inode, "released an inode that isn't open");
            return;
        };
        self.let_go(&state).await;
    }

    async fn let_go(&self, state: &InodeRef) {
        let (holder, may_wait) = {
            let mut inner = state.lock();
            let Some(holder) = inner.note_close() else {
                warn!(inode = %state.id(), "released an inode that isn't open");
                return;
            };
            // Under one lock, because the next open may write to it. Other clients may have it open:
            // then they read what was written here, and the last of them deletes it.
            let is_useless = inner.is_orphan() && self.session.standing().has_all();
            if !inner.is_open() && is_useless {
                self.pages.discard(state.id(), &mut inner);
            }
            (holder, inner.is_made_here() && !inner.is_orphan())
        };
        // Without names it goes with this, as far as is known here, and its space is free then.
        if may_wait && self.session.unhold_later(holder, state.id()) {
            return;
        }
        if let Err(error) = self.session.unhold(holder, state.id()).await {
            warn!(inode = %state.id(), %error, "an inode without names couldn't be released; the owner removes it later");
        }
    }
}
