//! A bounded cache with two generations: recently used values stay, the others are dropped
//! together.

use std::collections::HashMap;
use std::hash::Hash;
use world::Map;

/// Maps keys to values with a weight (bytes). Keeps at most the budget.
pub(crate) struct Cache<K, V> {
    young: Map<K, (V, usize)>,
    old: Map<K, (V, usize)>,
    young_weight: usize,
    budget: usize,
}

impl<K: Eq + Hash + Copy, V: Clone> Cache<K, V> {
    pub(crate) fn new(budget: usize) -> Self {
        Self {
            young: HashMap::default(),
            old: HashMap::default(),
            young_weight: 0,
            budget,
        }
    }

    /// The value, which moves to the young generation.
    pub(crate) fn get(&mut self, key: &K) -> Option<V> {
        if let Some((value, _)) = self.young.get(key) {
            return Some(value.clone());
        }
        let (value, weight) = self.old.remove(key)?;
        self.insert(*key, value.clone(), weight);
        Some(value)
    }

    /// Stores a value.
    pub(crate) fn insert(&mut self, key: K, value: V, weight: usize) {
        if self.young_weight + weight > self.budget / 2 {
            self.old = std::mem::take(&mut self.young);
            self.young_weight = 0;
        }
        self.young_weight += weight;
        if let Some((_, replaced)) = self.young.insert(key, (value, weight)) {
            self.young_weight -= replaced;
        }
    }

    /// Forgets a value.
    pub(crate) fn remove(&mut self, key: &K) {
        if let Some((_, weight)) = self.young.remove(key) {
            self.young_weight -= weight;
        }
        self.old.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_values_stay_and_the_budget_holds() {
        let mut cache = Cache::new(100);
        for number in 0..1000 {
            cache.insert(number, number, 10);
            assert_eq!(cache.get(&0), Some(0));
            assert!((cache.young.len() + cache.old.len()) <= 11);
        }
        assert_eq!(cache.get(&500), None);
        cache.remove(&0);
        assert_eq!(cache.get(&0), None);
    }
}
