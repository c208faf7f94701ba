//! The open sessions, and which of their segments are decided.

use coordination::Coordination;
use model::{Result, SegmentId, SessionId};
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// The sessions that are open here.
#[derive(Default)]
pub(crate) struct Sessions {
    /// Up to which counter the segments of each are published or given up.
    open: Mutex<BTreeMap<SessionId, u64>>,
    /// Held from taking a session's number until it is listed: in between it would look as if
    /// it had ended.
    opening: tokio::sync::Mutex<()>,
}

impl Sessions {
    /// A new one.
    pub(crate) async fn begin(&self, coordination: &Coordination) -> Result<SessionId> {
        let _opening = self.opening.lock().await;
        let session = coordination.next_session().await?;
        self.open.lock().insert(session, 0);
        Ok(session)
    }

    /// Its writer is gone: all its segments are decided.
    pub(crate) fn end(&self, session: SessionId) {
        self.open.lock().remove(&session);
    }

    /// Its segments up to this counter are decided. Never goes back.
    pub(crate) fn settle(&self, session: SessionId, counter: u64) {
        if let Some(mark) = self.open.lock().get_mut(&session) {
            *mark = counter.max(*mark);
        }
    }

    /// What is decided now.
    pub(crate) async fn decided(&self, coordination: &Coordination) -> Result<Decided> {
        let _opening = self.opening.lock().await;
        Ok(Decided {
            below: coordination.sessions_below().await?,
            marks: self.open.lock().clone(),
        })
    }
}

/// Which segments were published or given up at one moment: those of them that nothing points
/// at are garbage for ever.
#[derive(Clone, Debug)]
pub(crate) struct Decided {
    /// Sessions below had been given out.
    below: SessionId,
    /// Of the sessions that were open: up to which counter.
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

    /// Whether the session began after this and before `later`: a mount, or a take-over.
    pub(crate) fn began_until(&self, later: &Self, session: SessionId) -> bool {
        !self.was_given_out(session) && later.was_given_out(session)
    }

    /// Also a session that isn't a client's is decided only so far.
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
    fn sessions_that_begin_during_a_look_are_told_from_those_that_nobody_began() {
        let (then, now) = (decided(5), decided(7));
        let began: Vec<u64> = (0..10)
            .filter(|session| then.began_until(&now, SessionId(*session)))
            .collect();
        assert_eq!(began, [5, 6]);
    }
}
