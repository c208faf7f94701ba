//! Tracks up to which segment everything this session wrote is published or given up.
//!
//! Below that mark the owner may delete segments that it doesn't know. Batches that begin in the
//! same period share a [`Period`]; when the last of them is gone, all segments numbered up to the end
//! of the period are settled.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

/// Held by everything that may still write or publish segments that began in it.
pub(super) type Period = Arc<()>;

/// The unsettled periods, oldest first, each with the last counter given out in it.
#[derive(Default)]
pub(super) struct LowWater {
    times: Mutex<Times>,
}

#[derive(Default)]
struct Times {
    now: Period,
    ended: VecDeque<(Period, u64)>,
}

impl LowWater {
    /// The period of a batch that begins now.
    pub(super) fn period(&self) -> Period {
        self.times.lock().now.clone()
    }

    /// Ends the current period; `last_counter` is the last one given out. Returns up to which
    /// counter all segments are settled, if that has grown.
    pub(super) fn advance(&self, last_counter: u64) -> Option<u64> {
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
        // A period without batches that comes after one with batches needs no entry: the next
        // advance covers it. So the list has one entry per period with batches in flight.
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
        let first = marks.period();
        marks.advance(10);
        let second = marks.period();
        marks.advance(20);
        let third = marks.period();
        for counter in 30..40 {
            assert_eq!(marks.advance(counter), None);
        }
        drop(first);
        // Segments 11 and up may belong to the second batch.
        assert!(marks.advance(40).is_none_or(|settled| settled <= 10));
        drop(second);
        assert!(marks.advance(50).is_none_or(|settled| settled <= 20));
        drop(third);
        assert_eq!(marks.advance(60), Some(60));
    }

    #[test]
    fn the_mark_stays_below_everything_that_is_still_on_its_way() {
        let marks = LowWater::default();
        let slow = marks.period();
        assert_eq!(marks.advance(10), None);
        let quick = marks.period();
        assert_eq!(marks.advance(20), None);
        drop(quick);
        for counter in 30..40 {
            assert_eq!(marks.advance(counter), None);
        }
        let late = marks.period();
        drop(slow);
        let settled = marks.advance(50).unwrap_or_default();
        assert!((10..50).contains(&settled), "{settled}");
        drop(late);
        assert_eq!(marks.advance(60), Some(60));
    }
}
