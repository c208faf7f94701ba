//! Who has which inode in use, so that it outlives its last name.

use model::{InodeId, SessionId};
use parking_lot::Mutex;
use world::Map;

/// Counts of uses per inode and session. Asked under the shard's lock: only short locks here.
#[derive(Default)]
pub(crate) struct Holders {
    held: Mutex<Map<InodeId, Vec<(SessionId, u64)>>>,
}

impl Holders {
    /// One use more.
    pub(crate) fn hold(&self, session: SessionId, inode: InodeId) {
        let mut held = self.held.lock();
        let uses = held.entry(inode).or_default();
        match uses.iter_mut().find(|(holder, _)| *holder == session) {
            Some((_, count)) => *count += 1,
            None => uses.push((session, 1)),
        }
    }

    /// One use less. True if it was the last of all.
    pub(crate) fn unhold(&self, session: SessionId, inode: InodeId) -> bool {
        let mut held = self.held.lock();
        let Some(uses) = held.get_mut(&inode) else {
            return true;
        };
        if let Some(at) = uses.iter().position(|(holder, _)| *holder == session) {
            uses[at].1 -= 1;
            if uses[at].1 == 0 {
                uses.swap_remove(at);
            }
        }
        let free = uses.is_empty();
        if free {
            held.remove(&inode);
        }
        free
    }

    /// All uses of a session end. The inodes that nobody uses any more, in order.
    pub(crate) fn end_session(&self, session: SessionId) -> Vec<InodeId> {
        let mut held = self.held.lock();
        let mut free = Vec::new();
        held.retain(|inode, uses| {
            uses.retain(|(holder, _)| *holder != session);
            if uses.is_empty() {
                free.push(*inode);
            }
            !uses.is_empty()
        });
        free.sort_unstable();
        free
    }

    /// Whether anybody uses the inode.
    pub(crate) fn is_held(&self, inode: InodeId) -> bool {
        self.held.lock().contains_key(&inode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_is_free_when_its_last_user_lets_go() {
        let holders = Holders::default();
        let inode = InodeId(7);
        holders.hold(SessionId(1), inode);
        holders.hold(SessionId(1), inode);
        holders.hold(SessionId(2), inode);
        assert!(!holders.unhold(SessionId(1), inode));
        assert!(!holders.unhold(SessionId(1), inode));
        assert!(holders.is_held(inode));
        assert!(holders.unhold(SessionId(2), inode));
        assert!(!holders.is_held(inode));
    }

    #[test]
    fn a_session_that_ends_frees_what_only_it_held() {
        let holders = Holders::default();
        holders.hold(SessionId(1), InodeId(7));
        holders.hold(SessionId(1), InodeId(8));
        holders.hold(SessionId(2), InodeId(8));
        assert_eq!(holders.end_session(SessionId(1)), [InodeId(7)]);
        assert!(holders.is_held(InodeId(8)) && !holders.is_held(InodeId(7)));
    }
}
