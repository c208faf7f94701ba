//! What a change of a file's bytes takes away: setuid, setgid and file capabilities, so that
//! nobody gives a program's rights to bytes of his own.
//!
//! Almost no file has any of them, and every write must know. So an inode's state remembers
//! that there is nothing to take away, from the first write or the making of the file until
//! somebody changes its mode or its extended attributes.

use crate::client::Client;
use crate::inode::{Inner, InodeRef};
use model::{Attributes, ErrorKind, InodeId, Operation, Privileges, Result, SetAttributes};
use std::sync::atomic::{AtomicU64, Ordering};

const SETUID_OR_SETGID: u32 = 0o6000;
const CAPABILITIES: &[u8] = b"security.capability";

/// What an inode is known not to have. All false: not known.
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

/// Counts the changes that may give an inode of this client something to lose. What was asked
/// for before one must not be remembered after it.
#[derive(Default)]
pub(crate) struct Grants(AtomicU64);

impl Grants {
    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

impl Inner {
    /// Whether a change of the bytes has nothing to take away.
    pub(crate) fn loses_nothing_to(&self, privileges: Privileges) -> bool {
        self.plain.loses_nothing_to(privileges)
    }

    /// A file that was just made has no capabilities, and its mode is known.
    pub(crate) fn learn_new_rights(&mut self, made: &Attributes) {
        self.plain = Plain {
            bits: made.mode & SETUID_OR_SETGID == 0,
            capabilities: true,
        };
    }
}

impl Client {
    /// Takes away what a change of the inode's bytes must not leave, before that change. True if
    /// the mode may have changed: whoever remembers it must forget.
    ///
    /// # Errors
    /// `Stale` if the inode is gone. Nothing may be changed then.
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
        let now = self.attributes_of_owner(state.id).await?;
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
        // Not published first, as for other changes of attributes: a crash that takes the last
        // writes and leaves this is safe, the other way round it isn't.
        self.attributes_after(&Operation::SetAttributes {
            inode: state.id,
            set,
        })
        .await?;
        Ok(matches!(privileges, Privileges::Drop { .. }))
    }

    /// An answered change may have given the inode something to lose. To be called before the
    /// answer goes on.
    pub(crate) fn note_grant(&self, inode: InodeId) {
        // In this order: whoever asked before the change either sees the count moved or has put
        // down what it found where it is cleared now.
        self.grants.0.fetch_add(1, Ordering::SeqCst);
        if let Some(state) = self.inodes.find(inode) {
            state.lock().plain = Plain::default();
        }
    }
}
