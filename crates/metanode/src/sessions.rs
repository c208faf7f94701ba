//! The open sessions, and which of their segments are decided: published or given up.

use coordination::Coordination;
use model::{Result, SegmentId, SessionId};
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// The sessions open in this metanode.
#[derive(Default)]
pub(crate) struct Sessions {
    /// For each session: the counter up to which its segments are decided.
    open: Mutex<BTreeMap<SessionId, u64>>,
    /// The nonces of those that were opened with one.
    nonces: Mutex<BTreeMap<u64, SessionId>>,
    /// Held from taking a session's number until it is listed; otherwise the session would seem to
    /// have ended.
    opening: tokio::sync::Mutex<()>,
}

impl Sessions {
    /// Opens a new session, unless one is open that was opened with this nonce.
    pub(crate) async fn begin(
        &self,
        coordination: &Coordination,
        nonce: Option<u64>,
    ) -> Result<SessionId> {
        let _opening = self.opening.lock().await;
        let known = nonce.and_then(|nonce| self.nonces.lock().get(&nonce).copied());
        if let Some(session) = known {
            return Ok(session);
        }
        let session = coordination.next_session().await?;
        self.open.lock().insert(session, 0);
        if let Some(nonce) = nonce {
            self.nonces.lock().insert(nonce, session);
        }
        Ok(session)
    }

    /// Whether the session is open.
    pub(crate) fn is_open(&self, session: SessionId) -> bool {
        self.open.lock().contains_key(&session)
    }

    /// Ends a session: its writer is gone, and all its segments are decided.
    pub(crate) fn end(&self, session: SessionId) {
        self.open.lock().remove(&session);
        self.nonces.lock().retain(|_, other| *other != session);
    }

    /// The session's segments up to this counter are decided. Never goes back.
    pub(crate) fn settle(&self, session: SessionId, counter: u64) {
        if let Some(mark) = self.open.lock().get_mut(&session) {
            *mark = counter.max(*mark);
        }
    }

    /// The segments decided now.
    pub(crate) async fn decided(&self, coordination: &Coordination) -> Result<Decided> {
        let _opening = self.opening.lock().await;
        Ok(Decided {
            below: coordination.sessions_below().await?,
            marks: self.open.lock().clone(),
        })
    }
}

/// The segments decided at one moment: those of them that nothing points at are garbage forever.
#[derive(Clone, Debug)]
pub(crate) struct Decided {
    /// All sessions below this had been given out.
    below: SessionId,
    /// For each session that was open: the counter up to which its segments were decided.
    marks: BTreeMap<SessionId, u64>,
}

impl Decided {
    /// Whether the segment was decided.
    pub(crate) fn covers(&self, segment: SegmentId) -> bool {
        let mark = self.marks.get(&segment.session);
        self.was_given_out(segment.session) && mark.is_none_or(|mark| segment.counter <= *mark)
    }

    /// Whether the session had begun.
    pub(crate) fn was_given_out(&self, session: SessionId) -> bool {
        session < self.below
    }

    /// Whether the session (of a mount or a take-over) began after this and before `later`.
    pub(crate) fn began_until(&self, later: &Self, session: SessionId) -> bool {
        !self.was_given_out(session) && later.was_given_out(session)
    }

    /// Sets the counter of a session that isn't a client's.
    pub(crate) fn up_to(&mut self, session: SessionId, counter: u64) {
        self.marks.insert(session, counter);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decided(below: u64) -> Decided {
        Decided {
            below: SessionId(below),
            marks: BTreeMap::new(),
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
}
