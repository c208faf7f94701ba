//! Which of a client's own changes are under way at the same time. Pure.

use std::hash::Hash;
use world::Map;

/// Own changes under way, by what they concern.
pub(super) struct Changing<K>(Map<K, UnderWay>);

#[derive(Default)]
struct UnderWay {
    count: usize,
    /// Two of them were under way at the same time: nobody knows which of them the owner applied first.
    is_mixed: bool,
}

impl<K> Default for Changing<K> {
    fn default() -> Self {
        Self(Map::default())
    }
}

impl<K: Eq + Hash> Changing<K> {
    /// Whether one is under way.
    pub(super) fn contains(&self, concerned: &K) -> bool {
        self.0.contains_key(concerned)
    }

    /// One begins.
    pub(super) fn begin(&mut self, concerned: K) {
        let under_way = self.0.entry(concerned).or_default();
        under_way.count += 1;
        under_way.is_mixed |= under_way.count > 1;
    }

    /// One has ended. Whether no other one was under way at any time since it began.
    pub(super) fn end(&mut self, concerned: &K) -> bool {
        let Some(under_way) = self.0.get_mut(concerned) else {
            return false;
        };
        under_way.count -= 1;
        let was_alone = !under_way.is_mixed;
        if under_way.count == 0 {
            self.0.remove(concerned);
        }
        was_alone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_was_alone_if_no_other_one_overlapped_it() {
        let mut changing = Changing::default();
        changing.begin(1);
        assert!(changing.contains(&1) && !changing.contains(&2));
        assert!(changing.end(&1) && !changing.contains(&1));
        // The second one overlaps both others, which don't overlap each other.
        changing.begin(1);
        changing.begin(1);
        assert!(!changing.end(&1));
        changing.begin(1);
        assert!(!changing.end(&1) && !changing.end(&1));
        changing.begin(1);
        assert!(changing.end(&1), "nothing is left of that");
    }
}
