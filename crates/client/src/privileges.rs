//! Drops setuid, setgid and file capabilities when a file's bytes change, so that a program's
//! rights never apply to bytes written by another user.
//!
//! Hardly any file has privileges, but every write must check. So an inode's state remembers that
//! it has none, from the first write or its creation until its mode or its extended attributes
//! change.

use crate::client::Client;
use crate::inode::{Inner, InodeRef};
use model::{Attributes, ErrorKind, InodeId, Operation, Privileges, Result, SetAttributes};
use std::sync::atomic::{AtomicU64, Ordering};

const SETUID_OR_SETGID: u32 = 0o6000;
const CAPABILITIES: &[u8] = b"security.capability";

/// Privileges that an inode is known not to have. All false: unknown.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Plain {
    /// Neither setuid nor setgid.
    bits: bool,
    /// No file capabilities.
    capabilities: bool,
}

impl Plain {
    fn loses_nothing_to(self, privileges: Privileges) -> bool {
        match privileges {
            Privileges::Keep => true,
            Privileges::DropCapabilities => self.capabilities,
            Privileges::Drop { .. } => self.capabilities && self.bits,
        }
    }
}

/// Counts changes that may give an inode of this client privileges. An answer requested before such
/// a change must not be remembered after it.
#[derive(Default)]
pub(crate) struct Grants(AtomicU64);

impl Grants {
    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

impl Inner {
    /// Whether a change of bytes has nothing to drop.
    pub(crate) fn loses_nothing_to(&self, privileges: Privileges) -> bool {
        self.plain.loses_nothing_to(privileges)
    }

    /// A new file has no capabilities, and its mode is known.
    pub(crate) fn learn_new_rights(&mut self, made: &Attributes) {
        self.plain = Plain {
            bits: made.mode & SETUID_OR_SETGID == 0,
            capabilities: true,
        };
    }
}

impl Client {
    /// Drops the privileges that a change of the inode's bytes must not leave, before that change.
    /// True if the mode may have changed: cached modes must be dropped.
    ///
    /// # Errors
    /// `Stale` if the inode is gone; then nothing may be changed.
    pub async fn drop_privileges(&self, inode: InodeId, privileges: Privileges) -> Result<bool> {
        let state = self.inodes.get(inode);
        if state.lock().loses_nothing_to(privileges) {
            return Ok(false);
        }
        self.drop_privileges_of(&state, privileges).await
    }

    pub(crate) async fn drop_privileges_of(
        &self,
        state: &InodeRef,
        privileges: Privileges,
    ) -> Result<bool> {
        let grants = self.grants.count();
        let now = self.session.attributes(state.id).await?;
        let capabilities = match self.get_xattr(state.id, CAPABILITIES).await {
            Ok(_) => true,
            Err(error) if error.kind() == ErrorKind::NoSuchAttribute => false,
            Err(error) => return Err(error),
        };
        let plain = Plain {
            bits: now.mode & SETUID_OR_SETGID == 0,
            capabilities: !capabilities,
        };
        {
            let mut inner = state.lock();
            if self.grants.count() == grants {
                inner.plain = plain;
            }
        }
        if plain.loses_nothing_to(privileges) {
            return Ok(false);
        }
        let set = SetAttributes {
            privileges,
            ..SetAttributes::default()
        };
        // Unlike other attribute changes, this doesn't publish dirty data first: a crash that loses
        // the last writes but keeps this change is safe, the reverse isn't.
        self.session
            .attributes_after(Operation::SetAttributes {
                inode: state.id,
                set,
            })
            .await?;
        Ok(matches!(privileges, Privileges::Drop { .. }))
    }

    /// An answered change may have given the inode privileges. Must be called before the answer is
    /// passed on.
    pub(crate) fn note_grant(&self, inode: InodeId) {
        // In this order: a task that asked before the change either sees the new count, or has
        // already stored its result, which is cleared here.
        self.grants.0.fetch_add(1, Ordering::SeqCst);
        if let Some(state) = self.inodes.find(inode) {
            state.lock().plain = Plain::default();
        }
    }
}
