//! What a new owner doesn't know: which inodes the open sessions hold. Until each of them has said it
//! (or has ended, or [`GRACE`] is over), inodes without names stay: one of them may be open there.
//!
//! NFS servers call this time the grace period (RFC 8881, section 8.4.2.1).

use model::{NodeRun, SessionId};
use namespace::sessions::Sessions;
use std::collections::BTreeSet;
use std::time::Duration;
use world::Instant;

/// How long sessions have to say what they hold. A client that lives notices the new owner at its
/// next request or renewal, within the six seconds that its tokens last, and asks again within a
/// few; one that is silent for longer has lost its right to what only it held.
pub(crate) const GRACE: Duration = Duration::from_secs(15);

/// The sessions that haven't said yet what they hold.
#[derive(Debug)]
pub(crate) struct Reclaim {
    waiting: BTreeSet<SessionId>,
    until: Instant,
}

impl Reclaim {
    /// For an owner that begins now: sessions of its own run hold nothing yet.
    pub(crate) fn begin(sessions: &Sessions, own: NodeRun, now: Instant) -> Self {
        let others = sessions.of_clients().filter(|(_, run)| *run != own);
        Self {
            waiting: others.map(|(session, _)| session).collect(),
            until: now + GRACE,
        }
    }

    /// The session has said what it holds, or has ended.
    pub(crate) fn is_told(&mut self, session: SessionId) {
        self.waiting.remove(&session);
    }

    /// Whether the session has yet to say what it holds.
    pub(crate) fn awaits(&self, session: SessionId) -> bool {
        self.waiting.contains(&session)
    }

    /// Whether all is known that will ever be.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.waiting.is_empty() || now >= self.until
    }
}
