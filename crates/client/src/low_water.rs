//! Up to which segment everything this session wrote is published or given up.
//!
//! The owner may delete what it doesn't know below that mark. Batches that begin in one time
//! share a [`Mark`]; when the last of them is gone, all segments numbered until the end of that
//! time are settled.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

/// Held by everything that may still write or publish segments.
pub(crate) type Mark = Arc<()>;

/// The times that aren't settled yet, oldest first, each with the last counter of its end.
#[derive(Default)]
pub(crate) struct LowWater {
    times: Mutex<Times>,
}

#[derive(Default)]
struct Times {
    now: Mark,
    ended: VecDeque<(Mark, u64)>,
}

impl LowWater {
    /// The mark of a batch that begins now.
    pub(crate) fn mark(&self) -> Mark {
        self.times.lock().now.clone()
    }

    /// Ends the running time; `last_counter` was given out last. Returns up to which counter
    /// all is settled, if that is more than before.
    pub(crate) fn advance(&self, last_counter: u64) -> Option<u64> {
        let mut times = self.times.lock();
        let ended = std::mem::take(&mut times.now);
        times.ended.push_back((ended, last_counter));
        let mut settled = None;
        while let Some((mark, counter)) = times.ended.front() {
            if Arc::strong_count(mark) > 1 {
                break;
            }
            settled = Some(*counter);
            times.ended.pop_front();
        }
        // A time that nothing holds any more needs no place behind one that is held: the next
        // advance covers it. Held times keep their own counters, so the list is as long as
        // there are moments whose batches are still on their way.
        times.ended.retain(|(mark, _)| Arc::strong_count(mark) > 1);
        settled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_slow_batches_each_hold_the_mark() {
        let marks = LowWater::default();
        let first = marks.mark();
        marks.advance(10);
        let second = marks.mark();
        marks.advance(20);
        let third = marks.mark();
        for counter in 30..40 {
            assert_eq!(marks.advance(counter), None);
        }
        drop(first);
        // Segments 11 and up may be of the second batch.
        assert!(marks.advance(40).is_none_or(|settled| settled <= 10));
        drop(second);
        assert!(marks.advance(50).is_none_or(|settled| settled <= 20));
        drop(third);
        assert_eq!(marks.advance(60), Some(60));
    }

    #[test]
    fn the_mark_stays_below_everything_that_is_still_on_its_way() {
        let marks = LowWater::default();
        let slow = marks.mark();
        assert_eq!(marks.advance(10), None);
        let quick = marks.mark();
        assert_eq!(marks.advance(20), None);
        drop(quick);
        for counter in 30..40 {
            assert_eq!(marks.advance(counter), None);
        }
        let late = marks.mark();
        drop(slow);
        let settled = marks.advance(50).unwrap_or_default();
        assert!((10..50).contains(&settled), "{settled}");
        drop(late);
        assert_eq!(marks.advance(60), Some(60));
    }
}
