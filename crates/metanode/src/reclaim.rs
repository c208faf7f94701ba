//! What a new owner doesn't know: which inodes the open sessions hold, and which locks. Until each of
//! them has said it (or has ended, or [`GRACE`] is over), inodes without names stay: one of them may be
//! open there. New locks wait as well: they may conflict with one that wasn't said yet.
//!
//! A session that comes later than that still says what it holds before anything else. What nobody
//! else has taken meanwhile it has back.
//!
//! NFS servers call this time the grace period (RFC 8881, section 8.4.2.1).

use crate::metanode::Metanode;
use model::owner::{OwnerReply, Reclaimed, Tenure};
use model::{Error, ErrorKind, Result, SessionId, ShardEpoch};
use namespace::sessions::{Sessions, Standing};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;
use world::Instant;

/// How long inodes without names and new locks wait for sessions. A client that lives notices the
/// new owner at its next request or renewal, within the six seconds that its tokens last, and asks
/// again within a few.
pub(crate) const GRACE: Duration = Duration::from_secs(15);

/// The sessions that haven't said yet what they hold.
#[derive(Debug)]
pub(crate) struct Reclaim {
    owing: BTreeSet<SessionId>,
    until: Instant,
}

impl Reclaim {
    /// For an owner that begins now, before it opens any session.
    pub(crate) fn begin(sessions: &Sessions, now: Instant) -> Self {
        Self {
            owing: sessions.of_clients().map(|(session, _)| session).collect(),
            until: now + GRACE,
        }
    }

    /// The session has said what it holds, or has ended.
    fn is_told(&mut self, session: SessionId) {
        self.owing.remove(&session);
    }

    /// Whether the session has yet to say what it holds.
    fn owes(&self, session: SessionId) -> bool {
        self.owing.contains(&session)
    }

    /// Whether inodes without names and new locks needn't wait any more.
    fn is_over(&self, now: Instant) -> bool {
        self.owing.is_empty() || now >= self.until
    }
}

impl Metanode {
    /// The time during which this owner remembers opens and locks.
    #[must_use]
    pub fn tenure(&self) -> Tenure {
        self.tenure
    }

    /// A session says what it holds, in one or several parts. After the last one its operations are
    /// served; copies that come later change nothing.
    ///
    /// # Errors
    /// `SessionEnded`: its opens and locks are lost.
    pub async fn reclaim(
        &self,
        session: SessionId,
        part: &Reclaimed,
        is_last: bool,
    ) -> Result<OwnerReply> {
        if self.shard().session_standing(session) != Standing::Open {
            return Err(namespace::sessions::ended(session));
        }
        let mut lost = 0;
        {
            let mut reclaim = self.reclaim.lock();
            if reclaim.owes(session) {
                for (inode, count) in &part.holds {
                    self.holders.reclaim(session, *inode, *count);
                }
                lost = self.locks().reclaim(session, part);
                if is_last {
                    reclaim.is_told(session);
                    self.note_owing(&reclaim);
                }
            }
        }
        if is_last {
            self.end_grace_if_over().await?;
        }
        Ok(OwnerReply::Reclaimed {
            tenure: self.tenure,
            lost,
        })
    }

    /// Whether a client on another node may ask with this session.
    pub(crate) fn check_open(&self, session: SessionId) -> Result<()> {
        match self.shard().session_standing(session) {
            Standing::Open => self.check_reclaimed(session),
            Standing::Ended | Standing::Unknown => Err(namespace::sessions::ended(session)),
        }
    }

    /// Refuses a session that has yet to say what it holds.
    pub(crate) fn check_reclaimed(&self, session: SessionId) -> Result<()> {
        let owes = self.is_owed.load(Ordering::Relaxed) && self.reclaim.lock().owes(session);
        match owes {
            true => Err(ErrorKind::ReclaimFirst.into()),
            false => Ok(()),
        }
    }

    /// Refuses a client that knows a later owner: this one would answer with what was.
    pub(crate) fn check_owner(&self, known: Tenure) -> Result<()> {
        if known <= self.tenure {
            return Ok(());
        }
        let text = "the client knows a later owner";
        Err(Error::new(ErrorKind::OldEpoch, text))
    }

    /// Makes sure that this is the owner now, for an answer that nobody takes back.
    ///
    /// # Errors
    /// `OldEpoch` if it isn't; those of coordination.
    pub(crate) async fn confirm_ownership(&self) -> Result<()> {
        let shard = self.shard();
        let record = self.coordination.shard(shard.id()).await?;
        match record {
            Some(record) if record.value.epoch == shard.epoch() => Ok(()),
            _ => {
                let text = "the shard has had another owner since";
                let error = Error::new(ErrorKind::OldEpoch, text);
                shard.resign(&error);
                Err(error)
            }
        }
    }

    /// The shard's record has this epoch. A higher one than this owner's is another owner's, which
    /// it would otherwise meet at its next append.
    pub async fn meet(&self, epoch: ShardEpoch) {
        let shard = self.shard();
        if epoch > shard.epoch() && shard.check_alive().is_ok() {
            let error = Error::new(ErrorKind::OldEpoch, "the shard has had another owner since");
            shard.resign(&error);
        }
        if shard.check_alive().is_err() {
            let again = self.take_over_again(&shard).await;
            again.unwrap_or_else(|error| tracing::debug!(%error, "the shard stays dropped"));
        }
    }

    /// Refuses a new lock while one that it conflicts with may not have been said yet.
    pub(crate) fn check_grace(&self) -> Result<()> {
        match self.in_grace.load(Ordering::SeqCst) {
            true => Err(ErrorKind::InGrace.into()),
            false => Ok(()),
        }
    }

    /// A session has ended: it owes nothing any more.
    pub(crate) fn owes_nothing(&self, session: SessionId) {
        let mut reclaim = self.reclaim.lock();
        reclaim.is_told(session);
        self.note_owing(&reclaim);
    }

    fn note_owing(&self, reclaim: &Reclaim) {
        let is_owed = !reclaim.owing.is_empty();
        self.is_owed.store(is_owed, Ordering::SeqCst);
    }

    /// Begins with the sessions that are open.
    pub(crate) fn begin_grace(&self) {
        let mut reclaim = self.reclaim.lock();
        *reclaim = Reclaim::begin(&self.shard().sessions(), self.world.now());
        self.note_owing(&reclaim);
    }

    /// Releases inodes that nobody holds once all sessions have said what they hold, or their time
    /// is over. Returns whether it did.
    pub(crate) async fn end_grace_if_over(&self) -> Result<u64> {
        let is_over =
            self.in_grace.load(Ordering::SeqCst) && self.reclaim.lock().is_over(self.world.now());
        if !is_over {
            return Ok(0);
        }
        self.in_grace.store(false, Ordering::SeqCst);
        let shard = self.shard();
        let released = self.release_orphans(&shard).await;
        if released.is_err() {
            // Unless the inodes are in use, the next call releases the rest.
            self.in_grace.store(true, Ordering::SeqCst);
        }
        released.map(|()| 1)
    }
}
