//! How much of what was read ahead is used, and how far read-ahead may therefore go.

use parking_lot::Mutex;

/// Bytes read ahead that were used, and that weren't; halved now and then.
#[derive(Default)]
pub(super) struct Ahead(Mutex<(u64, u64)>);

impl Ahead {
    /// Counts read-ahead bytes that were used or evicted unused.
    pub(super) fn note(&self, used: u64, wasted: u64) {
        if used + wasted == 0 {
            return;
        }
        let mut ahead = self.0.lock();
        ahead.0 += used;
        ahead.1 += wasted;
        if ahead.0 + ahead.1 > 1 << 30 {
            *ahead = (ahead.0 / 2, ahead.1 / 2);
        }
    }

    /// Limits read-ahead by how much of it was used lately.
    pub(super) fn most(&self, wanted: u64) -> u64 {
        let (used, wasted) = *self.0.lock();
        if wasted < 16 << 20 || used > wasted * 3 {
            wanted
        } else if used > wasted {
            wanted / 2
        } else {
            wanted / 8
        }
    }
}
