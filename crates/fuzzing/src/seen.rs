//! What a target has seen, so that one which sees nothing of what it is for fails.

use crate::engine::has_all_inputs;
use std::sync::atomic::{AtomicU64, Ordering};

/// How often something came up in a target.
#[derive(Default, Debug)]
pub struct Seen(AtomicU64);

impl Seen {
    /// Once more.
    pub fn note(&self) {
        self.add(1);
    }

    /// So many times more.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// How often until now.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Call it after [`fuzz!`](crate::fuzz). Says nothing if the number of inputs was chosen: few of
    /// them prove nothing.
    ///
    /// # Panics
    /// If it came up fewer than `least` times.
    pub fn check(&self, least: u64, what: &str) {
        let count = self.count();
        assert!(
            count >= least || !has_all_inputs(),
            "{what}: {count} times, less than {least}; the target sees too little"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_that_sees_too_little_fails() {
        let seen = Seen::default();
        seen.note();
        seen.check(1, "rows are read");
        if !has_all_inputs() {
            return;
        }
        let failed = std::panic::catch_unwind(|| seen.check(2, "rows are read"));
        let text = failed.unwrap_err();
        let text = text.downcast_ref::<String>().unwrap();
        assert!(text.starts_with("rows are read: 1 times"), "{text}");
    }
}
