//! Requests for locks that were queued and whose waits haven't ended: how many they are, and whose.

use model::SessionId;
use std::collections::BTreeMap;
use world::Map;

/// Most of them: those that wait, and as many that were granted meanwhile.
pub(super) const QUEUED_MAX: usize = 2 * super::charges::WAITS_MAX;

/// By session and number; `W` is what is known of each.
pub(super) struct Queued<W> {
    /// None is empty.
    sessions: Map<SessionId, BTreeMap<u64, W>>,
    count: usize,
}

impl<W> Default for Queued<W> {
    fn default() -> Self {
        Self {
            sessions: Map::default(),
            count: 0,
        }
    }
}

impl<W> Queued<W> {
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Whether a session may have one more: never more than half of what the others leave, so that one that ends none
    /// leaves some to all.
    pub(super) fn has_room(&self, session: SessionId) -> bool {
        let own = self.sessions.get(&session).map_or(0, BTreeMap::len);
        own < QUEUED_MAX.saturating_sub(self.count - own) / 2
    }

    pub(super) fn get(&self, session: SessionId, number: u64) -> Option<&W> {
        self.sessions.get(&session)?.get(&number)
    }

    pub(super) fn get_mut(&mut self, session: SessionId, number: u64) -> Option<&mut W> {
        self.sessions.get_mut(&session)?.get_mut(&number)
    }

    /// Adds one, under a number that the session hasn't used.
    pub(super) fn insert(&mut self, session: SessionId, number: u64, wait: W) {
        let of_session = self.sessions.entry(session).or_default();
        let old = of_session.insert(number, wait);
        assert!(old.is_none(), "each wait has a number of its own");
        self.count += 1;
    }

    pub(super) fn remove(&mut self, session: SessionId, number: u64) -> Option<W> {
        let of_session = self.sessions.get_mut(&session)?;
        let wait = of_session.remove(&number)?;
        if of_session.is_empty() {
            self.sessions.remove(&session);
        }
        self.count -= 1;
        Some(wait)
    }

    /// Removes all of a session.
    pub(super) fn end_session(&mut self, session: SessionId) -> impl Iterator<Item = W> + use<W> {
        let ended = self.sessions.remove(&session).unwrap_or_default();
        self.count -= ended.len();
        ended.into_values()
    }

    /// All of them, in no order.
    pub(super) fn values(&self) -> impl Iterator<Item = &W> {
        self.sessions.values().flat_map(BTreeMap::values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would be broken if a session that ends no wait left nobody else one.
    #[test]
    fn no_session_can_take_all_waits_and_the_end_of_one_gives_them_back() {
        let mut queued = Queued::default();
        let fill = |queued: &mut Queued<u64>, session| {
            let mut taken = 0;
            while queued.has_room(session) {
                queued.insert(session, taken, taken);
                taken += 1;
            }
            taken
        };
        assert_eq!(fill(&mut queued, SessionId(1)), QUEUED_MAX as u64 / 2);
        for session in 2..9 {
            assert!(
                fill(&mut queued, SessionId(session)) > 0,
                "session {session}"
            );
        }
        assert!(queued.count() < QUEUED_MAX);
        assert_eq!(queued.remove(SessionId(1), 7), Some(7));
        assert_eq!(queued.get(SessionId(1), 7), None);
        for session in 1..9 {
            assert!(queued.end_session(SessionId(session)).count() > 0);
        }
        assert_eq!(queued.count(), 0);
    }
}
