//! Listings that are asked for a part ahead.
//!
//! A program that goes through a directory with attributes looks at one part while the next one comes. It comes to what is known
//! of names, where the program finds it; who arrives too early waits for it. One part of a directory is under way at a time, and
//! the one behind it is asked for when a program has come to that.

use model::InodeId;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::Notify;

/// Most directories of which something is noted.
const AHEAD_MAX: usize = 64;

/// The parts that are under way, or have come and weren't looked at.
#[derive(Default)]
pub(super) struct Ahead(Arc<All>);

#[derive(Default)]
struct All {
    parts: Mutex<BTreeMap<InodeId, Part>>,
    /// Signals that one has come.
    came: Notify,
}

/// The part of a directory behind this position.
struct Part {
    after: u64,
    state: State,
}

enum State {
    UnderWay,
    /// It has come, and the next one begins here; `None`: there is none, or it can't be kept.
    Here(Option<u64>),
}

/// A part that is under way, until this is dropped.
pub(super) struct Coming {
    all: Arc<All>,
    directory: InodeId,
    next: Option<u64>,
}

impl Ahead {
    /// A part is asked for. `None` if another one of the directory is under way, or as many as may be.
    pub(super) fn begin(&self, directory: InodeId, after: u64) -> Option<Coming> {
        let mut parts = self.0.parts.lock();
        let is_under_way = |part: &Part| matches!(part.state, State::UnderWay);
        if parts.len() >= AHEAD_MAX {
            parts.retain(|_, part| is_under_way(part));
        }
        if parts.len() >= AHEAD_MAX || parts.get(&directory).is_some_and(is_under_way) {
            return None;
        }
        let state = State::UnderWay;
        parts.insert(directory, Part { after, state });
        Some(Coming {
            all: self.0.clone(),
            directory,
            next: None,
        })
    }

    /// Waits until this part has come, if it is under way. Returns whether it was.
    pub(super) async fn until_here(&self, directory: InodeId, after: u64) -> bool {
        let mut was_under_way = false;
        loop {
            // First: a part that comes then isn't missed.
            let came = self.0.came.notified();
            let is_under_way = {
                let parts = self.0.parts.lock();
                parts.get(&directory).is_some_and(|part| {
                    part.after == after && matches!(part.state, State::UnderWay)
                })
            };
            if !is_under_way {
                return was_under_way;
            }
            was_under_way = true;
            came.await;
        }
    }

    /// A program has come to this position. Where the next part begins, if it is the first one that has come into a part that
    /// was asked for ahead, or past it: kernels ask for so many entries as they have room for.
    pub(super) fn enter(&self, directory: InodeId, after: u64) -> Option<u64> {
        let mut parts = self.0.parts.lock();
        let part = parts.get(&directory).filter(|part| part.after <= after)?;
        let State::Here(next) = part.state else {
            return None;
        };
        parts.remove(&directory);
        next
    }
}

impl Coming {
    /// It has come. `next`: where the one behind it begins.
    pub(super) fn end(mut self, next: Option<u64>) {
        self.next = next;
    }
}

impl Drop for Coming {
    fn drop(&mut self) {
        let mut parts = self.all.parts.lock();
        if let Some(part) = parts.get_mut(&self.directory) {
            part.state = State::Here(self.next);
        }
        drop(parts);
        self.all.came.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use std::pin::pin;

    const DIRECTORY: InodeId = InodeId(7);

    #[test]
    fn who_comes_to_a_part_that_is_under_way_waits_for_it_and_begins_the_next() {
        let ahead = Ahead::default();
        assert_eq!(ahead.until_here(DIRECTORY, 5).now_or_never(), Some(false));
        let coming = ahead.begin(DIRECTORY, 5).expect("nothing is under way");
        assert!(ahead.begin(DIRECTORY, 9).is_none(), "one at a time");
        assert_eq!(ahead.until_here(DIRECTORY, 4).now_or_never(), Some(false));
        assert_eq!(ahead.enter(DIRECTORY, 5), None);
        let mut waiting = pin!(ahead.until_here(DIRECTORY, 5));
        assert_eq!(waiting.as_mut().now_or_never(), None);
        coming.end(Some(9));
        assert_eq!(waiting.now_or_never(), Some(true));
        assert_eq!(ahead.enter(DIRECTORY, 4), None);
        assert_eq!(ahead.enter(DIRECTORY, 6), Some(9));
        assert_eq!(ahead.enter(DIRECTORY, 6), None, "the first one only");
    }

    #[test]
    fn a_part_that_does_not_come_keeps_nobody_waiting() {
        let ahead = Ahead::default();
        let coming = ahead.begin(DIRECTORY, 5);
        let mut waiting = pin!(ahead.until_here(DIRECTORY, 5));
        assert_eq!(waiting.as_mut().now_or_never(), None);
        drop(coming);
        assert_eq!(waiting.now_or_never(), Some(true));
        assert_eq!(ahead.enter(DIRECTORY, 5), None);
        assert!(ahead.begin(DIRECTORY, 5).is_some());
    }

    #[test]
    fn parts_that_nobody_has_come_to_make_room_for_others() {
        let ahead = Ahead::default();
        let begin = |number| ahead.begin(InodeId(number), 0);
        let coming: Vec<_> = (0..200).filter_map(begin).collect();
        assert_eq!(coming.len(), AHEAD_MAX);
        drop(coming);
        let coming: Vec<_> = (200..400).filter_map(begin).collect();
        assert_eq!(coming.len(), AHEAD_MAX);
        assert_eq!(ahead.0.parts.lock().len(), AHEAD_MAX);
    }
}
