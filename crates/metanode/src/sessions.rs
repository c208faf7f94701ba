//! Which segments are decided: published or given up. The shard's records say which sessions are open;
//! how far those have decided theirs is in memory, and forgotten by a new owner: until a session
//! says it again, nothing of it counts as decided.

use model::{SegmentId, SessionId};
use namespace::sessions::{Sessions, Standing};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// What this owner knows of open sessions besides their records.
#[derive(Default)]
pub(crate) struct ClientSessions {
    /// For each: the counter up to which its segments are decided.
    marks: Mutex<BTreeMap<SessionId, u64>>,
    /// How many have ended.
    ends: AtomicU64,
}

impl ClientSessions {
    /// A session was opened.
    pub(crate) fn begin(&self, session: SessionId) {
        self.marks.lock().entry(session).or_insert(0);
    }

    /// A session has ended.
    pub(crate) fn end(&self, session: SessionId) {
        self.marks.lock().remove(&session);
        self.ends.fetch_add(1, Ordering::SeqCst);
    }

    /// Changes when any session ends. Who has seen one open, and finds this as it was before that, has done what it did
    /// in between while the session was open: what ends with a session ends after this has changed.
    pub(crate) fn ends(&self) -> u64 {
        self.ends.load(Ordering::SeqCst)
    }

    /// Whether a session was opened under this owner, or has said something to it, and is open.
    pub(crate) fn is_open(&self, session: SessionId) -> bool {
        self.marks.lock().contains_key(&session)
    }

    /// The session's segments up to this counter are decided. Never goes back. False if the session
    /// is unknown here.
    #[must_use]
    pub(crate) fn settle(&self, session: SessionId, counter: u64) -> bool {
        let mut marks = self.marks.lock();
        let mark = marks.get_mut(&session);
        mark.map(|mark| *mark = counter.max(*mark)).is_some()
    }

    /// The marks now.
    pub(crate) fn marks(&self) -> BTreeMap<SessionId, u64> {
        self.marks.lock().clone()
    }
}

/// The segments decided at one moment: those of them that nothing points at are garbage forever.
#[derive(Clone, Debug)]
pub(crate) struct Decided {
    /// No process had taken a session at or above this.
    below: SessionId,
    /// What the shard's records said.
    sessions: Sessions,
    /// For each session that was open and had said so: the counter up to which its segments were
    /// decided.
    marks: BTreeMap<SessionId, u64>,
}

impl Decided {
    pub(crate) fn new(
        below: SessionId,
        sessions: Sessions,
        marks: BTreeMap<SessionId, u64>,
    ) -> Self {
        Self {
            below,
            sessions,
            marks,
        }
    }

    /// Whether the segment was decided. A session that no record names may belong to a client that
    /// another process serves.
    pub(crate) fn covers(&self, segment: SegmentId) -> bool {
        match self.sessions.standing(segment.session) {
            Standing::Ended => true,
            Standing::Open => {
                let mark = self.marks.get(&segment.session);
                mark.is_some_and(|mark| segment.counter <= *mark)
            }
            Standing::Unknown => false,
        }
    }

    /// Whether the session may have begun, on any node.
    pub(crate) fn may_have_begun(&self, session: SessionId) -> bool {
        session < self.below
    }

    /// Whether the session (of a mount or a take-over) began after this and before `later`.
    pub(crate) fn began_until(&self, later: &Self, session: SessionId) -> bool {
        !self.may_have_begun(session) && later.may_have_begun(session)
    }

    /// Sets the counter of a session that isn't a client's.
    pub(crate) fn up_to(&mut self, session: SessionId, counter: u64) {
        self.marks.insert(session, counter);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{NodeId, NodeRun};

    const RUN: NodeRun = NodeRun {
        node: NodeId(1),
        incarnation: 1,
    };

    fn decided(below: u64) -> Decided {
        Decided::new(SessionId(below), Sessions::default(), BTreeMap::new())
    }

    fn segment(session: u64, counter: u64) -> SegmentId {
        SegmentId {
            session: SessionId(session),
            counter,
        }
    }

    #[test]
    fn sessions_that_begin_during_a_look_are_told_from_unknown_ones() {
        let (then, now) = (decided(5), decided(7));
        let began: Vec<u64> = (0..10)
            .filter(|session| then.began_until(&now, SessionId(*session)))
            .collect();
        assert_eq!(began, [5, 6]);
    }

    #[test]
    fn only_a_record_or_its_own_word_decides_the_segments_of_a_session() {
        let mut sessions = Sessions::default();
        for id in [1, 2, 3] {
            sessions.open(SessionId(id), RUN).unwrap();
        }
        sessions.end(SessionId(1), RUN);
        let marks = ClientSessions::default();
        marks.begin(SessionId(2));
        assert!(marks.settle(SessionId(2), 10) && marks.settle(SessionId(2), 7));
        // 3 was opened under an owner before this one and hasn't said anything yet; 4 is unknown.
        assert!(!marks.settle(SessionId(4), 10));
        let decided = Decided::new(SessionId(100), sessions, marks.marks());
        assert!(decided.covers(segment(1, 99)));
        assert!(decided.covers(segment(2, 10)) && !decided.covers(segment(2, 11)));
        assert!(!decided.covers(segment(3, 1)));
        assert!(!decided.covers(segment(4, 1)));
    }
}
