//! Ids that are never used twice: of sessions, taken in blocks, and of NSDs.

use crate::Coordination;
use model::{Error, ErrorKind, NodeId, NsdId, Result, SessionId};
use std::time::Duration;

const SESSIONS: &str = "sessions/next";
const NSDS: &str = "nsds/next";
const NODES: &str = "nodes_next";
/// Sessions that a process takes at once.
const SESSIONS_PER_BLOCK: u64 = 64;
/// Attempts to take ids while other processes do too.
const ATTEMPTS_MAX: u64 = 64;
/// The longest pause after the first attempt; after the second it is twice as long, and so on.
const PAUSE: Duration = Duration::from_millis(2);

/// The ids that this process has taken from coordination and not yet given out. They are lost with
/// the process.
#[derive(Default)]
pub(crate) struct Ids {
    /// Held while a block is taken, so that it is taken once.
    sessions: tokio::sync::Mutex<Block>,
}

/// The ids from `next` up to before `end`.
#[derive(Clone, Copy, Default)]
struct Block {
    next: u64,
    end: u64,
}

impl Block {
    fn take(&mut self) -> Option<u64> {
        let id = self.next;
        (id < self.end).then(|| {
            self.next += 1;
            id
        })
    }
}

impl Coordination {
    /// A session id that was never used and will never be used again. Asks the store once in 64
    /// calls.
    ///
    /// # Errors
    /// `Unavailable` and `Busy`: ask again. Ids that were taken without this process learning of it
    /// are never given out.
    pub async fn next_session(&self) -> Result<SessionId> {
        let mut block = self.ids.sessions.lock().await;
        if let Some(id) = block.take() {
            return Ok(SessionId(id));
        }
        let first = self.take_ids(SESSIONS, 1, SESSIONS_PER_BLOCK).await;
        let first = first.map_err(|error| error.while_doing("taking session ids"))?;
        *block = Block {
            next: first + 1,
            end: first + SESSIONS_PER_BLOCK,
        };
        Ok(SessionId(first))
    }

    /// No process has a session at or above this one now. Those below were given out, or may yet be
    /// by the process that took their block, or were lost with it.
    ///
    /// # Errors
    /// `Unavailable`: ask again.
    pub async fn sessions_taken_below(&self) -> Result<SessionId> {
        let next = self.fact::<u64>(SESSIONS).await?;
        Ok(SessionId(next.map_or(1, |fact| fact.value)))
    }

    /// An NSD id above `highest` that was never used and will never be used again. NSDs are added
    /// rarely and people see their numbers, so they are taken one by one.
    ///
    /// # Errors
    /// As for [`Coordination::next_session`]; `NoSpace` if there are no more.
    pub async fn next_nsd(&self, highest: NsdId) -> Result<NsdId> {
        let id = self.take_ids(NSDS, u64::from(highest.0) + 1, 1).await;
        let id = id.map_err(|error| error.while_doing("taking an NSD's id"))?;
        match u32::try_from(id) {
            Ok(id) if id < NsdId::NONE.0 => Ok(NsdId(id)),
            _ => Err(Error::new(
                ErrorKind::NoSpace,
                "all numbers of NSDs were used",
            )),
        }
    }

    /// A node's number that was never used and will never be used again. A cluster's first node is number 1.
    ///
    /// # Errors
    /// As for [`Coordination::next_nsd`].
    pub(crate) async fn next_node(&self) -> Result<NodeId> {
        let id = self.take_ids(NODES, 2, 1).await;
        let id = id.map_err(|error| error.while_doing("taking a node's number"))?;
        u32::try_from(id).map(NodeId).map_err(|_| {
            let text = "all numbers of nodes were used: make another cluster";
            Error::new(ErrorKind::NoSpace, text)
        })
    }

    /// Takes `count` ids from a counter, none below `at_least`; returns the first. After an unknown
    /// outcome they count as taken by nobody.
    async fn take_ids(&self, counter: &str, at_least: u64, count: u64) -> Result<u64> {
        for attempt in 1..=ATTEMPTS_MAX {
            let (next, version) = self
                .fact::<u64>(counter)
                .await?
                .map_or((0, 0), |fact| (fact.value, fact.version));
            let first = next.max(at_least);
            // A fact that was damaged may be any number.
            let Some(after) = first.checked_add(count) else {
                let text =
                    format!("the fact {counter:?} says that all numbers up to {first} were used");
                return Err(Error::new(ErrorKind::NoSpace, text));
            };
            match self.set_fact(counter, version, &after).await {
                Ok(_) => return Ok(first),
                Err(error) if error.kind() == ErrorKind::Changed => {}
                Err(error) => return Err(error),
            }
            // Many processes that start together would be in each other's way for long.
            let longest = PAUSE.as_nanos() as u64 * attempt;
            let pause = self.world().random_u64() % longest;
            self.world().sleep(Duration::from_nanos(pause)).await;
        }
        Err(Error::new(
            ErrorKind::Busy,
            format!("other processes took ids at the same time, {ATTEMPTS_MAX} times"),
        ))
    }
}
