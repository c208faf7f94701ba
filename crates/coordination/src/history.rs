//! The newest changes, kept for watches. Pure.

use crate::STATE_BYTES_MAX;
use bytes::Bytes;
use std::collections::VecDeque;

/// Most changes of keys that are kept ...
const EVENTS_MAX: usize = 1024;
/// ... and most bytes of their keys and values.
const BYTES_MAX: usize = 2 * STATE_BYTES_MAX;

/// A key that was changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// The key.
    pub key: String,
    /// Its new value; `None` if it was removed.
    pub value: Option<Bytes>,
}

/// The changes of one revision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Batch {
    pub(crate) revision: u64,
    pub(crate) events: Vec<Event>,
}

impl Batch {
    fn bytes(&self) -> usize {
        let of =
            |event: &Event| event.key.len() + event.value.as_ref().map_or(0, bytes::Bytes::len);
        self.events.iter().map(of).sum()
    }
}

/// All changes after a revision, the oldest of which are forgotten when they become too many.
pub(crate) struct History {
    /// The changes after this revision are known.
    since: u64,
    batches: VecDeque<Batch>,
    events: usize,
    bytes: usize,
}

/// The next change that a watch hasn't told.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// Changes after the watch's revision were forgotten.
    Forgotten,
    /// Nothing more, up to this revision.
    Nothing(u64),
    /// The changes of its keys in one revision.
    Batch(Batch),
}

impl History {
    /// Knows all changes after `revision`, of which there are none yet.
    pub(crate) fn new(revision: u64) -> Self {
        Self {
            since: revision,
            batches: VecDeque::new(),
            events: 0,
            bytes: 0,
        }
    }

    pub(crate) fn push(&mut self, batch: Batch) {
        if batch.events.is_empty() {
            return;
        }
        self.events += batch.events.len();
        self.bytes += batch.bytes();
        self.batches.push_back(batch);
        while self.events > EVENTS_MAX || self.bytes > BYTES_MAX {
            self.forget_oldest();
        }
    }

    /// Forgets the changes up to this revision.
    pub(crate) fn compact(&mut self, revision: u64) {
        while (self.batches.front()).is_some_and(|batch| batch.revision <= revision) {
            self.forget_oldest();
        }
        self.since = self.since.max(revision);
    }

    /// The changes after `after` to keys that begin with `prefix`.
    pub(crate) fn next(&self, prefix: &str, after: u64) -> Next {
        if after < self.since {
            return Next::Forgotten;
        }
        let first = self
            .batches
            .partition_point(|batch| batch.revision <= after);
        for batch in self.batches.range(first..) {
            let events = batch.events.iter();
            let events: Vec<Event> = events
                .filter(|event| event.key.starts_with(prefix))
                .cloned()
                .collect();
            if !events.is_empty() {
                let revision = batch.revision;
                return Next::Batch(Batch { revision, events });
            }
        }
        Next::Nothing(after.max(self.batches.back().map_or(0, |batch| batch.revision)))
    }

    fn forget_oldest(&mut self) {
        let oldest = self.batches.pop_front().expect("there is more than none");
        self.since = oldest.revision;
        self.events -= oldest.events.len();
        self.bytes -= oldest.bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn batch(revision: u64, keys: &[&str]) -> Batch {
        let event = |key: &&str| Event {
            key: (*key).to_owned(),
            value: Some(Bytes::from_static(b"value")),
        };
        Batch {
            revision,
            events: keys.iter().map(event).collect(),
        }
    }

    #[test]
    fn a_watch_gets_its_keys_in_order_and_passes_over_others() {
        let mut history = History::new(10);
        history.push(batch(11, &["a/1", "b/1"]));
        history.push(batch(14, &["b/2"]));
        history.push(batch(15, &["a/2"]));
        assert_eq!(history.next("a/", 10), Next::Batch(batch(11, &["a/1"])));
        assert_eq!(history.next("a/", 11), Next::Batch(batch(15, &["a/2"])));
        assert_eq!(history.next("a/", 15), Next::Nothing(15));
        assert_eq!(history.next("c/", 10), Next::Nothing(15));
        assert_eq!(history.next("a/", 20), Next::Nothing(20));
        assert_eq!(history.next("a/", 9), Next::Forgotten);
    }

    #[test]
    fn too_many_changes_are_forgotten_and_watches_are_told() {
        let mut history = History::new(0);
        for revision in 1..=2 * EVENTS_MAX as u64 {
            history.push(batch(revision, &["key"]));
        }
        assert_eq!(history.batches.len(), EVENTS_MAX);
        let since = EVENTS_MAX as u64;
        assert_eq!(history.next("", since - 1), Next::Forgotten);
        assert!(matches!(history.next("", since), Next::Batch(_)));
        history.compact(since + 7);
        assert_eq!(history.next("", since + 6), Next::Forgotten);
        assert!(matches!(history.next("", since + 7), Next::Batch(_)));
        assert_eq!(history.bytes, history.batches.len() * 8);
    }
}
