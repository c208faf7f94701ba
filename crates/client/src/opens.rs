//! Open and release: holds inodes, so that they outlive their last names.

use crate::client::Client;
use crate::inode::{Inner, InodeRef};
use crate::types::{OpenFlags, Opened};
use model::{Attributes, ErrorKind, FileKind, InodeId, Result, SetAttributes};
use tracing::warn;

impl Client {
    /// Opens an inode of any kind: adds a holder, so that it survives unlink. Every success needs
    /// one `release`. Handles are stateless: the inode is the handle.
    ///
    /// # Errors
    /// `NotFound` if it is gone; `IsDirectory` for writing a directory.
    pub async fn open(&self, inode: InodeId, flags: OpenFlags) -> Result<Opened> {
        // Held first, so that it can't be deleted between the check and the hold.
        self.session.hold(inode).await?;
        let state = self.inodes.get(inode);
        state.lock().opens += 1;
        let opened = self.open_held(inode, flags).await;
        if opened.is_err() {
            self.let_go(&state).await;
        }
        opened
    }

    async fn open_held(&self, inode: InodeId, flags: OpenFlags) -> Result<Opened> {
        let grants = self.grants.count();
        let attributes = self.get_attributes(inode).await?;
        if flags.write && attributes.kind == FileKind::Directory {
            return Err(ErrorKind::IsDirectory.into());
        }
        if flags.truncate && attributes.kind == FileKind::File {
            let set = SetAttributes {
                size: Some(0),
                privileges: flags.privileges,
                ..SetAttributes::default()
            };
            let after = self.set_attributes(inode, set).await?;
            // A chmod in between may have been undone.
            let mode_changed = after.mode != attributes.mode || self.grants.count() != grants;
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

    /// The last close of one open. Never fails; deletes an inode without names and holders.
    pub async fn release(&self, inode: InodeId) {
        let Some(state) = self.inodes.find(inode) else {
            warn!(%inode, "released an inode that isn't open");
            return;
        };
        self.let_go(&state).await;
    }

    async fn let_go(&self, state: &InodeRef) {
        {
            let mut inner = state.lock();
            if inner.opens == 0 {
                warn!(inode = %state.id, "released an inode that isn't open");
                return;
            }
            inner.opens -= 1;
            // Under one lock, because the next open may write to it.
            if inner.opens == 0 && inner.orphan {
                self.discard_locked(state.id, &mut inner);
            }
        }
        if let Err(error) = self.session.unhold(state.id).await {
            warn!(inode = %state.id, %error, "an inode without names couldn't be released; the owner removes it later");
        }
    }

    /// Holds an inode that was just made: it is empty and fully known. `grants` were counted
    /// before.
    pub(crate) async fn hold_new(&self, attributes: &Attributes, grants: u64) -> Result<()> {
        self.session.hold(attributes.inode).await?;
        let state = self.inodes.get(attributes.inode);
        let mut inner = state.lock();
        inner.opens += 1;
        if inner.known.is_none() {
            inner.learn(attributes);
            inner.extents.punch(0, u64::MAX);
            if self.grants.count() == grants {
                inner.learn_new_rights(attributes);
            }
        }
        Ok(())
    }

    /// Discards everything of an inode that can't be reached any more. Batches in flight end on
    /// their own.
    pub(crate) fn discard(&self, state: &InodeRef) {
        self.discard_locked(state.id, &mut state.lock());
    }

    pub(crate) fn discard_locked(&self, inode: InodeId, inner: &mut Inner) {
        inner.orphan = true;
        let dirty = inner.dirty.cut(0, u64::MAX);
        self.pages.release(dirty);
        self.pages.recount_failing(inner);
        self.pages.uncache(inode, inner, 0, u64::MAX);
        inner.extents.forget_all();
        inner.mapping += 1;
        if inner.is_published() {
            inner.pending = None;
        }
    }
}
