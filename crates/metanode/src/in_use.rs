//! What the shard asks of inodes in use, and hears of those that are made in use.

use crate::holders::Holders;
use model::{InodeId, SessionId};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The inodes that sessions hold; all of them during the grace time, because others may hold what they
/// haven't said yet.
pub(crate) struct InodesInUse {
    holders: Arc<Holders>,
    in_grace: Arc<AtomicBool>,
}

impl InodesInUse {
    /// `in_grace`: set as long as all inodes count as held.
    pub(crate) fn new(holders: Arc<Holders>, in_grace: Arc<AtomicBool>) -> Self {
        Self { holders, in_grace }
    }
}

impl shard::Holders for InodesInUse {
    fn is_held(&self, inode: InodeId) -> bool {
        self.in_grace.load(Ordering::Relaxed) || self.holders.is_held(inode)
    }

    fn made(&self, session: SessionId, inode: InodeId) {
        self.holders.hold(session, inode);
    }
}
