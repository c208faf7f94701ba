//! How far logs and sessions have got here: most of what is put is newer, and needs no look into the index, which may
//! have to read the disk.

use crate::key::{Key, Named};
use model::{EntryNumber, SessionId, ShardId};
use std::collections::{BTreeMap, BTreeSet};

/// Sessions whose segments are known; one takes at most about 2 KiB. Those that were opened last are: who writes is mostly
/// one of them.
const SESSIONS_MAX: usize = 4096;
/// Segments of a session that are known one by one. More than a client has on the way, so that those which come before
/// older ones don't hide these.
const SEGMENTS_MAX: usize = 64;

/// What entries there have been since the region was opened, or were then, as far as that tells what there can't be.
#[derive(Default)]
pub(crate) struct Ends {
    /// The highest number that an entry of each log has had.
    logs: BTreeMap<ShardId, EntryNumber>,
    sessions: BTreeMap<SessionId, Segments>,
    /// Of this session and those before it nothing is known.
    forgotten: Option<SessionId>,
}

/// The segments of a session of which there were blobs.
#[derive(Default)]
struct Segments {
    /// Of segments up to this one nothing is known.
    unknown: u64,
    /// All others.
    known: BTreeSet<u64>,
}

impl Ends {
    /// There is an entry of a key.
    pub(crate) fn note(&mut self, key: &Key) {
        match key.named() {
            Named::Log(shard, number) => {
                let end = self.logs.entry(shard).or_insert(number);
                *end = (*end).max(number);
            }
            Named::Blob(name) => self.note_segment(name.segment.session, name.segment.counter),
        }
    }

    fn note_segment(&mut self, session: SessionId, counter: u64) {
        if self.is_forgotten(session) {
            return;
        }
        self.sessions.entry(session).or_default().note(counter);
        if self.sessions.len() > SESSIONS_MAX {
            let oldest = self.sessions.pop_first();
            self.forgotten = oldest.map(|(session, _)| session);
        }
    }

    /// Whether there is surely no entry of a key. Its changes since the last checkpoint must have been looked through.
    pub(crate) fn is_absent(&self, key: &Key) -> bool {
        match key.named() {
            Named::Log(shard, number) => self.logs.get(&shard).is_none_or(|end| number > *end),
            Named::Blob(name) => {
                let segments = self.sessions.get(&name.segment.session);
                !self.is_forgotten(name.segment.session)
                    && segments.is_none_or(|them| them.lacks(name.segment.counter))
            }
        }
    }

    fn is_forgotten(&self, session: SessionId) -> bool {
        self.forgotten.is_some_and(|newest| session <= newest)
    }
}

impl Segments {
    fn note(&mut self, counter: u64) {
        if counter <= self.unknown {
            return;
        }
        self.known.insert(counter);
        if self.known.len() > SEGMENTS_MAX {
            self.unknown = self.known.pop_first().expect("there are many");
        }
    }

    fn lacks(&self, counter: u64) -> bool {
        counter > self.unknown && !self.known.contains(&counter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{BlobName, GroupId, SegmentId};
    use proptest::prelude::*;

    fn blob(session: u64, counter: u64) -> Key {
        Key::blob(BlobName {
            group: GroupId(1),
            segment: SegmentId {
                session: SessionId(session),
                counter,
            },
            piece: 0,
        })
    }

    proptest! {
        #[test]
        fn what_was_noted_is_never_absent(
            noted in prop::collection::vec((0..4_u64, 0..400_u64), 0..600),
            forgotten in 0..3_u64,
        ) {
            let mut ends = Ends { forgotten: Some(SessionId(forgotten)), ..Ends::default() };
            for (session, counter) in &noted {
                ends.note(&blob(*session, *counter));
            }
            for (session, counter) in noted {
                prop_assert!(!ends.is_absent(&blob(session, counter)));
            }
        }
    }

    #[test]
    fn segments_that_come_before_older_ones_do_not_hide_these() {
        let mut ends = Ends::default();
        assert!(ends.is_absent(&blob(1, 1)));
        let window = SEGMENTS_MAX as u64;
        for counter in 1..=10 * window {
            // Every second one comes late.
            if counter % 2 == 0 {
                assert!(ends.is_absent(&blob(1, counter - 1)));
                ends.note(&blob(1, counter));
                ends.note(&blob(1, counter - 1));
            }
        }
        assert!(ends.is_absent(&blob(1, 10 * window + 1)));
        let kept = &ends.sessions[&SessionId(1)].known;
        assert_eq!(kept.len(), SEGMENTS_MAX);
        // What isn't known one by one has to be looked up.
        assert!(!ends.is_absent(&blob(1, 1)));
    }

    #[test]
    fn so_many_sessions_are_known_and_of_older_ones_nothing_is() {
        let mut ends = Ends::default();
        for session in 1..=SESSIONS_MAX as u64 + 3 {
            ends.note(&blob(session, 5));
        }
        assert_eq!(ends.sessions.len(), SESSIONS_MAX);
        assert!(!ends.is_absent(&blob(3, 6)));
        assert!(ends.is_absent(&blob(4, 6)));
        // One that is forgotten stays that.
        ends.note(&blob(2, 7));
        assert!(!ends.is_absent(&blob(2, 8)));
        assert_eq!(ends.sessions.len(), SESSIONS_MAX);
    }
}
