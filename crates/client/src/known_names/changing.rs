//! Which of a client's own changes are under way at the same time. Pure.

use std::hash::Hash;
use world::Map;

/// Own changes under way, by what they concern.
pub(super) struct Changing<K>(Map<K, UnderWay>);

#[derive(Default)]
struct UnderWay {
    /// When each of them began; some several times.
    begun: Vec<u64>,
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

    /// Whether one is under way that had begun by then.
    pub(super) fn had_begun(&self, concerned: &K, by: u64) -> bool {
        let under_way = self.0.get(concerned);
        under_way.is_some_and(|it| it.begun.iter().any(|begun| *begun <= by))
    }

    /// One begins now.
    pub(super) fn begin(&mut self, concerned: K, now: u64) {
        let under_way = self.0.entry(concerned).or_default();
        under_way.begun.push(now);
        under_way.is_mixed |= under_way.begun.len() > 1;
    }

    /// One has ended that began then. Whether no other one was under way at any time since.
    pub(super) fn end(&mut self, concerned: &K, begun: u64) -> bool {
        let Some(under_way) = self.0.get_mut(concerned) else {
            return false;
        };
        if let Some(at) = under_way.begun.iter().position(|it| *it == begun) {
            under_way.begun.swap_remove(at);
        }
        let was_alone = !under_way.is_mixed;
        if under_way.begun.is_empty() {
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
        changing.begin(1, 10);
        assert!(changing.contains(&1) && !changing.contains(&2));
        assert!(changing.end(&1, 10) && !changing.contains(&1));
        // The second one overlaps both others, which don't overlap each other.
        changing.begin(1, 20);
        changing.begin(1, 30);
        assert!(!changing.end(&1, 20));
        changing.begin(1, 40);
        assert!(!changing.end(&1, 40) && !changing.end(&1, 30));
        changing.begin(1, 50);
        assert!(changing.end(&1, 50), "nothing is left of that");
    }

    #[test]
    fn those_that_had_begun_by_then_are_told_from_later_ones() {
        let mut changing = Changing::default();
        assert!(!changing.had_begun(&1, 100));
        changing.begin(1, 10);
        changing.begin(1, 20);
        assert!(changing.had_begun(&1, 15) && !changing.had_begun(&2, 15));
        changing.end(&1, 10);
        assert!(!changing.had_begun(&1, 15) && changing.had_begun(&1, 20));
    }
}
