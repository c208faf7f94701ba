//! Which sessions a shard knows: who may still operate, and whose unpublished segments are garbage.
//!
//! A session is *open* from the commit that opened it until the commit that ended it. Only a record
//! ends one: the silence of a client, a new owner or a session id that nobody here has heard of
//! prove nothing. Ended sessions stay as tombstones, so that a late message can't open one again;
//! of those only the newest [`TOMBSTONES_MAX`] are kept, and then ids below the oldest kept one
//! can't be opened any more: a client that was given such an id takes another.
//!
//! The host keeps one [`Sessions`] per shard in memory, commits the effects of each change, and
//! acts on a change once that commit is durable.

use crate::{Effects, Key, Record, Session};
use model::{Error, ErrorKind, NodeRun, Result, SessionId};
use std::{collections::BTreeMap, sync::Arc};

/// Most ended sessions that are remembered.
pub const TOMBSTONES_MAX: usize = 1024;
/// Most sessions open at once: mounts of a whole cluster.
pub const OPEN_MAX: usize = 65_536;
/// Most sessions of clients that a node has open at once. A daemon needs one, and for a moment the next
/// one beside it.
pub const SESSIONS_PER_NODE_MAX: usize = 64;

/// The sessions of a shard.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Sessions {
    known: BTreeMap<SessionId, Session>,
    ended: usize,
}

/// What a shard knows of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// Its operations are applied, its unpublished segments are its own business.
    Open,
    /// A committed record ended it.
    Ended,
    /// It was never opened here, as far as is known: nothing may be concluded.
    Unknown,
}

impl Sessions {
    /// The sessions that the records name.
    #[must_use]
    pub fn of(records: impl IntoIterator<Item = (SessionId, Session)>) -> Self {
        let known: BTreeMap<_, _> = records.into_iter().collect();
        let ended = known.values().filter(|session| session.ended).count();
        Self { known, ended }
    }

    /// The standing of a session.
    #[must_use]
    pub fn standing(&self, session: SessionId) -> Standing {
        match self.known.get(&session) {
            Some(session) if session.ended => Standing::Ended,
            Some(_) => Standing::Open,
            None if session < self.floor() => Standing::Ended,
            None => Standing::Unknown,
        }
    }

    /// The run that opened a session, if it is open.
    #[must_use]
    pub fn run_of(&self, session: SessionId) -> Option<NodeRun> {
        let known = self.known.get(&session);
        known
            .filter(|session| !session.ended)
            .map(|session| session.run)
    }

    /// Ids below this that aren't open have ended or can never be opened.
    #[must_use]
    pub fn floor(&self) -> SessionId {
        if self.ended < TOMBSTONES_MAX {
            return SessionId(0);
        }
        let mut ended = self.known.iter().filter(|(_, session)| session.ended);
        ended.next().map_or(SessionId(0), |(id, _)| *id)
    }

    /// Opens a session for a run of a daemon. The same request again changes nothing.
    ///
    /// # Errors
    /// `SessionEnded` if it has ended, its id is too old, or a later run of the node is known: take a new
    /// id. `Exists` if another run has opened it. `Busy` if too many are open, of all nodes or of this one.
    pub fn open(&mut self, session: SessionId, run: NodeRun) -> Result<Effects> {
        self.begin(session, run, false)
    }

    /// As [`Sessions::open`], for the shard's owner itself.
    ///
    /// # Errors
    /// As [`Sessions::open`].
    pub fn open_own(&mut self, session: SessionId, run: NodeRun) -> Result<Effects> {
        self.begin(session, run, true)
    }

    fn begin(&mut self, session: SessionId, run: NodeRun, of_owner: bool) -> Result<Effects> {
        match self.standing(session) {
            Standing::Open if self.known[&session].run == run => return Ok(Effects::default()),
            Standing::Open => {
                let text = format!("session {session} is of run {}", self.known[&session].run);
                return Err(Error::new(ErrorKind::Exists, text));
            }
            Standing::Ended => return Err(ended(session)),
            Standing::Unknown => {}
        }
        // The message comes from a daemon that is dead, and nobody else would end the session.
        let is_later =
            |known: &Session| known.run.node == run.node && known.run.incarnation > run.incarnation;
        if self.known.values().any(is_later) {
            return Err(ended(session));
        }
        if self.known.len() - self.ended >= OPEN_MAX {
            let text = format!("{OPEN_MAX} sessions are open");
            return Err(Error::new(ErrorKind::Busy, text));
        }
        if !of_owner {
            self.check_room_of(run)?;
        }
        let record = Session {
            run,
            of_owner,
            ended: false,
        };
        self.known.insert(session, record);
        Ok(Effects(vec![(
            Key::Session(session),
            Some(Record::Session(Arc::new(record))),
        )]))
    }

    /// Refuses another session of a node that has too many.
    ///
    /// # Errors
    /// `Busy`: some of them must be ended first.
    pub fn check_room_of(&self, run: NodeRun) -> Result<()> {
        let node = run.node;
        let open = self.of_clients().filter(|(_, other)| other.node == node);
        if open.count() < SESSIONS_PER_NODE_MAX {
            return Ok(());
        }
        let text = format!(
            "node {node} has {SESSIONS_PER_NODE_MAX} sessions open, the most that one may have; \
             restart its daemon, which ends them"
        );
        Err(Error::new(ErrorKind::Busy, text))
    }

    /// Ends a session. One that isn't known gets a tombstone too, so that it can't be opened by a
    /// late message. The same request again changes nothing.
    pub fn end(&mut self, session: SessionId, by: NodeRun) -> Effects {
        let mut effects = Effects::default();
        if self.standing(session) == Standing::Ended {
            return effects;
        }
        let known = self.known.get(&session);
        let record = Session {
            run: known.map_or(by, |known| known.run),
            of_owner: known.is_some_and(|known| known.of_owner),
            ended: true,
        };
        self.known.insert(session, record);
        self.ended += 1;
        let change = (
            Key::Session(session),
            Some(Record::Session(Arc::new(record))),
        );
        effects.0.push(change);
        while self.ended > TOMBSTONES_MAX {
            let oldest = self.floor();
            self.known.remove(&oldest);
            self.ended -= 1;
            // One record changes at most once in a commit: this one may be the new tombstone.
            effects.0.retain(|(key, _)| *key != Key::Session(oldest));
            effects.0.push((Key::Session(oldest), None));
        }
        effects
    }

    /// The open sessions of earlier runs of the run's node: that daemon has proven them dead by
    /// starting again.
    #[must_use]
    pub fn of_former_runs(&self, run: NodeRun) -> Vec<SessionId> {
        let former = |session: &Session| {
            !session.ended
                && session.run.node == run.node
                && session.run.incarnation < run.incarnation
        };
        let all = self.known.iter();
        all.filter(|(_, session)| former(session))
            .map(|(id, _)| *id)
            .collect()
    }

    /// The open sessions of owners in other runs: those owners can't commit anything any more.
    #[must_use]
    pub fn of_former_owners(&self, run: NodeRun) -> Vec<SessionId> {
        let former = |session: &Session| !session.ended && session.of_owner && session.run != run;
        let all = self.known.iter();
        all.filter(|(_, session)| former(session))
            .map(|(id, _)| *id)
            .collect()
    }

    /// The open sessions of clients.
    pub fn of_clients(&self) -> impl Iterator<Item = (SessionId, NodeRun)> + '_ {
        let open = |session: &Session| !session.ended && !session.of_owner;
        let all = self.known.iter();
        all.filter(move |(_, session)| open(session))
            .map(|(id, session)| (*id, session.run))
    }
}

/// The answer to an operation of a session that has ended.
#[must_use]
pub fn ended(session: SessionId) -> Error {
    let text = format!("session {session} has ended; open a new one");
    Error::new(ErrorKind::SessionEnded, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::NodeId;
    use proptest::prelude::*;

    fn run(node: u32, incarnation: u64) -> NodeRun {
        NodeRun {
            node: NodeId(node),
            incarnation,
        }
    }

    /// Applies effects to records as a host does.
    fn commit(records: &mut BTreeMap<SessionId, Session>, effects: Effects) {
        for (key, value) in effects.0 {
            let Key::Session(id) = key else {
                panic!("{key:?} is no session")
            };
            match value {
                Some(Record::Session(session)) => records.insert(id, *session),
                None => records.remove(&id),
                Some(other) => panic!("{other:?} is no session"),
            };
        }
    }

    #[test]
    fn a_session_that_has_ended_is_never_opened_again() {
        let mut sessions = Sessions::default();
        sessions.open(SessionId(5), run(1, 1)).unwrap();
        sessions.end(SessionId(5), run(1, 1));
        let again = sessions.open(SessionId(5), run(1, 1)).unwrap_err();
        assert_eq!(again.kind(), ErrorKind::SessionEnded);
        // The message that opens 4 comes after the one that ended it.
        sessions.end(SessionId(4), run(1, 1));
        assert!(sessions.open(SessionId(4), run(1, 1)).is_err());
    }

    #[test]
    fn tombstones_that_were_dropped_still_keep_their_sessions_ended() {
        let mut sessions = Sessions::default();
        sessions.open(SessionId(3), run(2, 1)).unwrap();
        for id in 10..10 + 2 * TOMBSTONES_MAX as u64 {
            sessions.open(SessionId(id), run(1, 1)).unwrap();
            sessions.end(SessionId(id), run(1, 1));
        }
        assert_eq!(sessions.standing(SessionId(10)), Standing::Ended);
        assert!(sessions.open(SessionId(10), run(1, 1)).is_err());
        assert!(sessions.open(SessionId(4), run(1, 1)).is_err());
        // Open for a long time, and still open.
        assert_eq!(sessions.standing(SessionId(3)), Standing::Open);
        assert_eq!(sessions.known.len(), TOMBSTONES_MAX + 1);
    }

    #[test]
    fn a_daemon_that_has_been_replaced_opens_no_session_any_more() {
        let mut sessions = Sessions::default();
        sessions.open(SessionId(5), run(1, 2)).unwrap();
        sessions.end(SessionId(5), run(1, 2));
        let late = sessions.open(SessionId(6), run(1, 1)).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::SessionEnded);
        sessions.open(SessionId(6), run(2, 1)).unwrap();
    }

    #[test]
    fn a_node_has_a_limited_number_of_sessions_and_takes_none_from_others() {
        let mut sessions = Sessions::default();
        let most = SESSIONS_PER_NODE_MAX as u64;
        for id in 1..=most {
            sessions.open(SessionId(id), run(1, 1)).unwrap();
        }
        let refused = sessions.open(SessionId(most + 1), run(1, 1)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Busy);
        assert!(refused.to_string().contains("node 1"), "{refused}");
        assert_eq!(sessions.standing(SessionId(most + 1)), Standing::Unknown);
        sessions.open(SessionId(1), run(1, 1)).unwrap();
        sessions.open(SessionId(most + 2), run(2, 1)).unwrap();
        sessions.open_own(SessionId(most + 3), run(1, 1)).unwrap();
        sessions.end(SessionId(7), run(1, 1));
        sessions.open(SessionId(most + 4), run(1, 1)).unwrap();
    }

    #[test]
    fn a_new_run_of_a_node_finds_the_sessions_of_its_former_ones() {
        let mut sessions = Sessions::default();
        for (id, by) in [(1, run(1, 1)), (2, run(1, 2)), (3, run(2, 1))] {
            sessions.open(SessionId(id), by).unwrap();
        }
        sessions.end(SessionId(1), run(1, 1));
        assert_eq!(sessions.of_former_runs(run(1, 3)), [SessionId(2)]);
        assert_eq!(sessions.of_former_runs(run(1, 2)), []);
        sessions.open_own(SessionId(4), run(2, 1)).unwrap();
        assert_eq!(sessions.of_former_owners(run(1, 3)), [SessionId(4)]);
        assert_eq!(sessions.of_former_owners(run(2, 1)), []);
        let clients: Vec<_> = sessions.of_clients().map(|(id, _)| id).collect();
        assert_eq!(clients, [SessionId(2), SessionId(3)]);
    }

    proptest! {
        /// What is in memory is what the records say, at every step; nothing that ended is open
        /// again; memory and records are bounded.
        #[test]
        fn memory_and_records_agree_and_ends_are_final(
            steps in prop::collection::vec((0_u8..2, 0_u64..3000, 1_u32..4), 1..4000)
        ) {
            let (mut sessions, mut records) = (Sessions::default(), BTreeMap::new());
            let mut over = std::collections::BTreeSet::new();
            for (what, id, node) in steps {
                let id = SessionId(id);
                if what == 0 {
                    if let Ok(effects) = sessions.open(id, run(node, 1)) {
                        prop_assert!(!over.contains(&id));
                        commit(&mut records, effects);
                    }
                } else {
                    over.insert(id);
                    commit(&mut records, sessions.end(id, run(node, 1)));
                    prop_assert_eq!(sessions.standing(id), Standing::Ended);
                }
                prop_assert!(sessions.ended <= TOMBSTONES_MAX);
            }
            prop_assert_eq!(&Sessions::of(records), &sessions);
        }
    }
}
