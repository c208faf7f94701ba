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

    /// The oldest ones, at most so many. They count as the newest from now on: who asks again gets
    /// others.
    pub(super) fn oldest(&mut self, most: usize) -> Vec<TokenObject> {
        let oldest: Vec<TokenObject> = self.order.values().take(most).copied().collect();
        for object in &oldest {
            self.note(*object, false);
            self.note(*object, true);
        }
        oldest
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
        assert_eq!(kept.oldest(1), [object(3)]);
        assert_eq!(kept.oldest(1), [object(2)]);
        assert_eq!(kept.oldest(9), [object(3), object(2)]);
    }
}
