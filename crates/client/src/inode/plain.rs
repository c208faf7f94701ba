//! Privileges that an inode is known not to have. Pure.

use model::{Attributes, Privileges};

const SETUID_OR_SETGID: u32 = 0o6000;

/// Privileges that an inode is known not to have. All false: unknown.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Plain {
    /// Neither setuid nor setgid.
    bits: bool,
    /// No file capabilities.
    capabilities: bool,
}

impl Plain {
    /// Of an inode with these attributes and, maybe, capabilities.
    pub(crate) fn of(attributes: &Attributes, has_capabilities: bool) -> Self {
        Self {
            bits: attributes.mode & SETUID_OR_SETGID == 0,
            capabilities: !has_capabilities,
        }
    }

    /// Of an inode whose mode nobody has asked for.
    pub(crate) fn of_any_mode(has_capabilities: bool) -> Self {
        Self {
            bits: false,
            capabilities: !has_capabilities,
        }
    }

    /// Whether a change of bytes has nothing to drop.
    pub(crate) fn loses_nothing_to(self, privileges: Privileges) -> bool {
        match privileges {
            Privileges::Keep => true,
            Privileges::DropCapabilities => self.capabilities,
            Privileges::Drop { .. } => self.capabilities && self.bits,
        }
    }
}
