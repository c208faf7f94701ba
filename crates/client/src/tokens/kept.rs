//! Objects of which the session holds something, in the order in which it got it. Pure.

use model::TokenObject;
use std::collections::BTreeMap;

/// The objects. As many as the owner lets a session hold.
#[derive(Default)]
pub(super) struct Kept {
    since: BTreeMap<TokenObject, u64>,
    order: BTreeMap<u64, TokenObject>,
    last: u64,
}

impl Kept {
    /// Something of an object is held, or nothing any more.
    pub(super) fn note(&mut self, object: TokenObject, is_held: bool) {
        if !is_held {
            if let Some(since) = self.since.remove(&object) {
                self.order.remove(&since);
            }
            return;
        }
        if !self.since.contains_key(&object) {
            self.last += 1;
            self.since.insert(object, self.last);
            self.order.insert(self.last, object);
        }
    }

    /// Number of objects.
    pub(super) fn len(&self) -> usize {
        self.since.len()
    }

    /// The oldest one. It counts as the newest from now on: who asks again gets another one.
    pub(super) fn next_oldest(&mut self) -> Option<TokenObject> {
        let (_, object) = self.order.pop_first()?;
        self.since.remove(&object);
        self.note(object, true);
        Some(object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::InodeId;

    #[test]
    fn the_oldest_come_first_and_each_in_its_turn() {
        let mut kept = Kept::default();
        let object = |inode| TokenObject::Inode(InodeId(inode));
        for inode in [3, 1, 2, 3] {
            kept.note(object(inode), true);
        }
        kept.note(object(1), false);
        kept.note(object(9), false);
        assert_eq!(kept.len(), 2);
        let oldest: Vec<_> = (0..4).filter_map(|_| kept.next_oldest()).collect();
        assert_eq!(oldest, [object(3), object(2), object(3), object(2)]);
        assert_eq!(kept.len(), 2);
    }
}
