//! FIFOs, sockets and devices that the kernel knows: programs open them without telling us, so
//! they are held from the kernel's first lookup to its last FORGET.

use model::{FileKind, InodeId};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use world::Map;

/// So many are held; further ones end with their last name.
const SPECIALS_MAX: usize = 65_536;

/// Lookups that the kernel hasn't forgotten, by inode.
#[derive(Default)]
pub(crate) struct Specials {
    /// How many inodes: FORGETs look here first.
    count: AtomicUsize,
    lookups: Mutex<Map<InodeId, u64>>,
}

/// What a lookup asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lookup {
    /// The inode is held already.
    Counted,
    /// It must be held first.
    HoldFirst,
    /// There are too many.
    Ignored,
}

/// Whether the kernel opens such an inode by itself.
pub(crate) fn is_special(kind: FileKind) -> bool {
    matches!(
        kind,
        FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice
    )
}

impl Specials {
    /// The kernel is about to be told of the inode.
    pub(crate) fn look_up(&self, inode: InodeId) -> Lookup {
        let mut lookups = self.lookups.lock();
        let is_full = lookups.len() >= SPECIALS_MAX;
        match lookups.get_mut(&inode) {
            Some(count) => {
                *count += 1;
                Lookup::Counted
            }
            None if is_full => Lookup::Ignored,
            None => Lookup::HoldFirst,
        }
    }

    /// The inode is held, and the kernel is about to be told of it. False if somebody else was
    /// faster: then it is held once too often.
    pub(crate) fn held(&self, inode: InodeId) -> bool {
        let mut lookups = self.lookups.lock();
        let count = lookups.entry(inode).or_default();
        *count += 1;
        let is_first = *count == 1;
        self.count.store(lookups.len(), Ordering::Release);
        is_first
    }

    /// The kernel forgets so many lookups. True if these were the last: nothing holds the inode
    /// for the kernel any longer.
    pub(crate) fn forget(&self, inode: InodeId, forgotten: u64) -> bool {
        if self.count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut lookups = self.lookups.lock();
        let Some(count) = lookups.get_mut(&inode) else {
            return false;
        };
        // More only if it was looked up while there were too many.
        *count = count.saturating_sub(forgotten);
        let is_last = *count == 0;
        if is_last {
            lookups.remove(&inode);
            self.count.store(lookups.len(), Ordering::Release);
        }
        is_last
    }

    /// The kernel is gone.
    pub(crate) fn take_all(&self) -> Vec<InodeId> {
        let mut lookups = self.lookups.lock();
        self.count.store(0, Ordering::Release);
        lookups.drain().map(|(inode, _)| inode).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_is_held_from_the_first_lookup_to_the_last_forget() {
        let specials = Specials::default();
        let fifo = InodeId(7);
        assert!(!specials.forget(fifo, 1));
        assert_eq!(specials.look_up(fifo), Lookup::HoldFirst);
        assert!(specials.held(fifo));
        assert!(!specials.held(fifo), "another thread was faster");
        assert_eq!(specials.look_up(fifo), Lookup::Counted);
        assert!(!specials.forget(InodeId(8), 1));
        assert!(!specials.forget(fifo, 2));
        assert!(specials.forget(fifo, 1));
        assert_eq!(specials.look_up(fifo), Lookup::HoldFirst);
        assert!(specials.held(fifo));
        assert_eq!(specials.take_all(), [fifo]);
    }
}
