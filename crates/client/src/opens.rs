//! Open and release: holds inodes, so that they outlive their last names.

use crate::attributes::InodeAttributes;
use crate::inode::{HeldState, InodeRef};
use crate::page_pool::PagePool;
use crate::privileges::Rights;
use crate::session::Session;
use crate::types::{OpenFlags, Opened};
use model::{Attributes, ErrorKind, FileKind, InodeId, Result, SetAttributes};
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
        self.session.hold(inode).await?;
        let state = self.pages.inode(inode);
        state.lock().note_open();
        let opened = self.open_held(inode, flags).await;
        if opened.is_err() {
            self.let_go(&state).await;
        }
        opened
    }

    async fn open_held(&self, inode: InodeId, flags: OpenFlags) -> Result<Opened> {
        let grants = self.rights.grants();
        let attributes = self.attributes.get(inode).await?;
        if flags.write && attributes.kind == FileKind::Directory {
            return Err(ErrorKind::IsDirectory.into());
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

    /// Holds an inode that was just made: it is empty and fully known, if the session has
    /// everything. `grants` were counted before, as was `held`.
    pub(crate) async fn hold_new(
        &self,
        attributes: &Attributes,
        grants: u64,
        held: HeldState,
    ) -> Result<()> {
        self.session.hold(attributes.inode).await?;
        self.note_new(attributes, grants, held);
        Ok(())
    }

    /// As [`Opens::hold_new`], for an inode that was made without a name.
    pub(crate) async fn hold_unnamed(
        &self,
        attributes: &Attributes,
        grants: u64,
        held: HeldState,
    ) -> Result<()> {
        self.session.hold_made(attributes.inode).await?;
        self.note_new(attributes, grants, held);
        Ok(())
    }

    fn note_new(&self, attributes: &Attributes, grants: u64, held: HeldState) {
        let state = self.pages.inode(attributes.inode);
        let mut inner = state.lock();
        inner.note_open();
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
        {
            let mut inner = state.lock();
            if !inner.note_close() {
                warn!(inode = %state.id(), "released an inode that isn't open");
                return;
            }
            // Under one lock, because the next open may write to it. Other clients may have it open:
            // then they read what was written here, and the last of them deletes it.
            let is_useless = inner.is_orphan() && self.session.standing().has_all();
            if !inner.is_open() && is_useless {
                self.pages.discard(state.id(), &mut inner);
            }
        }
        if let Err(error) = self.session.unhold(state.id()).await {
            warn!(inode = %state.id(), %error, "an inode without names couldn't be released; the owner removes it later");
        }
    }
}
