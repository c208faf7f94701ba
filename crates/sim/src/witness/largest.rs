//! The largest of values that came at moments, by any moment.

use super::Tick;

/// By the time when each came: the largest of those that had come by then.
pub(super) struct Largest<T>(Vec<(Tick, T)>);

impl<T: Ord + Copy> Largest<T> {
    /// Of these, in any order.
    pub(super) fn of(all: impl IntoIterator<Item = (Tick, T)>) -> Self {
        let mut all: Vec<_> = all.into_iter().collect();
        all.sort_unstable();
        let mut largest = None;
        for (_, value) in &mut all {
            let it = largest.map_or(*value, |largest: T| largest.max(*value));
            *value = it;
            largest = Some(it);
        }
        Self(all)
    }

    /// Of those that came before this moment; `None` if none did.
    pub(super) fn before(&self, moment: Tick) -> Option<T> {
        let count = self.0.partition_point(|(came, _)| *came < moment);
        count.checked_sub(1).map(|last| self.0[last].1)
    }
}
