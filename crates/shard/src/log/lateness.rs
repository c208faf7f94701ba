//! From when on a member of the view is late. Pure.
//!
//! A member that is much slower than others is replaced soon. But NSDs may all be slow: then each
//! replacement is late, too, and if it were replaced, no entry would ever be acknowledged. So each
//! replacement of a late member doubles the time that its successors get, and entries that are written in a
//! small part of it halve it again.

use std::time::Duration;

/// A member that takes longer is late, as long as none has been.
const LATE: Duration = Duration::from_millis(100);
/// Slowest write rate that isn't late: 32 MB/s.
const BYTES_PER_MILLISECOND: u64 = 32 * 1024;
/// Up to 6.4 s: longer than a member is waited for that can't be replaced.
const DOUBLINGS_MAX: u32 = 6;
/// An entry that takes less than this part of the time is written fast.
const FAST_PART: u32 = 4;

/// What the members' lateness has taught.
#[derive(Default)]
pub(super) struct Lateness {
    doublings: u32,
    /// The view whose late member was replaced last.
    replaced_in: Option<u64>,
}

impl Lateness {
    /// Time that a member gets, with so many bytes on the way.
    pub(super) fn limit(&self, bytes_in_flight: u64) -> Duration {
        let base = LATE * 2u32.pow(self.doublings);
        base + Duration::from_millis(bytes_in_flight / BYTES_PER_MILLISECOND)
    }

    /// A member of the view of this generation was late, and there is another view now. Several entries
    /// may find it.
    pub(super) fn note_replaced(&mut self, generation: u64) {
        if self.replaced_in < Some(generation) {
            self.replaced_in = Some(generation);
            self.doublings = (self.doublings + 1).min(DOUBLINGS_MAX);
        }
    }

    /// All members have an entry after this time.
    pub(super) fn note_put(&mut self, took: Duration) {
        if took < LATE * 2u32.pow(self.doublings) / FAST_PART {
            self.doublings = self.doublings.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn each_replacement_doubles_the_time_and_fast_entries_halve_it_again() {
        let mut lateness = Lateness::default();
        assert_eq!(lateness.limit(0), LATE);
        assert_eq!(lateness.limit(64 * BYTES_PER_MILLISECOND), LATE + ms(64));
        lateness.note_replaced(0);
        lateness.note_replaced(0);
        assert_eq!(lateness.limit(0), ms(200), "one view, found by two entries");
        (1..20).for_each(|generation| lateness.note_replaced(generation));
        assert_eq!(lateness.limit(0), ms(6_400));
        // As slow as before: the time stays.
        lateness.note_put(ms(3_000));
        assert_eq!(lateness.limit(0), ms(6_400));
        lateness.note_put(ms(1_000));
        assert_eq!(lateness.limit(0), ms(3_200));
        (0..20).for_each(|_| lateness.note_put(ms(1)));
        assert_eq!(lateness.limit(0), LATE);
    }
}
