//! What a new owner doesn't know: which inodes the open sessions hold, and which locks. Until each of
//! them has said it (or has ended, or [`GRACE`] is over), inodes without names stay: one of them may be
//! open there. New locks wait as well: they may conflict with one that wasn't said yet.
//!
//! A session that comes later than that still says what it holds before anything else. What nobody
//! else has taken meanwhile it has back.
//!
//! What a session holds can need several messages. They are the numbered parts of an attempt: an owner
//! that hasn't heard the first ones refuses the later ones, and a new attempt replaces what an earlier
//! one said. Attempts can replace each other until the session asks for something in order: then its
//! client knows the outcome.
//!
//! NFS servers call this time the grace period (RFC 8881, section 8.4.2.1).

use crate::holders::SESSION_USED_MAX;
use crate::host::RELEASE_BUDGET;
use crate::locks::Kept;
use crate::metanode::Metanode;
use model::owner::{OwnerReply, RECLAIM_MAX, Reclaimed, Tenure};
use model::{Error, ErrorKind, InodeId, Reply, Result, SessionId, ShardEpoch};
use namespace::sessions::{Sessions, Standing};
use namespace::{Key, Record};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering as Memory};
use std::time::Duration;
use world::Instant;
use world::Planted;
use world::Point;

/// How long inodes without names and new locks wait for sessions. A client that lives notices the
/// new owner at its next request or renewal, within the six seconds that its tokens last, and asks
/// again within a few.
pub(super) const GRACE: Duration = Duration::from_secs(15);

/// How often new locks of clients in this process look whether they may go on.
const GRACE_PAUSE: Duration = Duration::from_millis(50);

/// What the sessions of an owner before this one have said.
#[derive(Debug)]
pub(super) struct Reclaim {
    sessions: BTreeMap<SessionId, Told>,
    /// How many of them haven't said everything.
    owing: usize,
    until: Instant,
}

/// What a session has said.
#[derive(Debug, Default)]
struct Told {
    /// The newest attempt.
    attempt: Option<u64>,
    /// How many of its parts have come.
    parts: u32,
    is_complete: bool,
    /// What the attempt has named, if an earlier one may have named more.
    named: Option<Named>,
}

/// Most parts of one attempt, of at most [`RECLAIM_MAX`] objects: bounds what is remembered
/// of an attempt that replaces another.
const PARTS_MAX: u32 = 1024;

/// Most doors, locks and tokens that a session has, and more.
const OTHERS_MAX: usize = 1 << 20;

/// Most objects in one attempt.
const SAID_MAX: usize = PARTS_MAX as usize * RECLAIM_MAX;

// All that a session may have fits into an attempt.
const _: () = assert!(SESSION_USED_MAX + OTHERS_MAX <= SAID_MAX);

/// What to do with a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    /// It has come before, or everything is known.
    Known,
    /// Take it in.
    Next,
}

impl Reclaim {
    /// For an owner that begins now, before it opens any session.
    pub(super) fn begin(sessions: &Sessions, now: Instant) -> Self {
        let clients = sessions.of_clients();
        let sessions: BTreeMap<_, _> = clients.map(|(id, _)| (id, Told::default())).collect();
        Self {
            owing: sessions.len(),
            sessions,
            until: now + GRACE,
        }
    }

    /// A part of what a session holds has come.
    ///
    /// # Errors
    /// `Stale` for an attempt that was followed by another; `ReclaimFirst` if parts before this one
    /// haven't come to this owner.
    fn hear(&mut self, session: SessionId, part: &Reclaimed) -> Result<Part> {
        let Some(told) = self.sessions.get_mut(&session) else {
            return Ok(Part::Known);
        };
        match told.attempt.cmp(&Some(part.attempt)) {
            Ordering::Greater => {
                let text = "this reclaim was given up by its session";
                return Err(Error::new(ErrorKind::Stale, text));
            }
            Ordering::Equal if part.at < told.parts => return Ok(Part::Known),
            Ordering::Equal if part.at >= PARTS_MAX => {
                let text = "a session doesn't hold as much as it says";
                return Err(Error::new(ErrorKind::InvalidArgument, text));
            }
            Ordering::Equal if part.at == told.parts && !told.is_complete => {
                told.parts += 1;
                return Ok(Part::Next);
            }
            Ordering::Less if part.at == 0 => {}
            _ => {
                let text = "earlier parts of the reclaim went to another owner";
                return Err(Error::new(ErrorKind::ReclaimFirst, text));
            }
        }
        let is_first = told.attempt.is_none();
        self.owing += usize::from(told.is_complete);
        *told = Told {
            attempt: Some(part.attempt),
            parts: 1,
            is_complete: false,
            named: (!is_first).then(Named::default),
        };
        Ok(Part::Next)
    }

    /// A part was taken in. After the last one: what the attempt has named, if the session may hold
    /// more that an earlier attempt named.
    fn taken_in(&mut self, session: SessionId, part: &Reclaimed, is_last: bool) -> Option<Named> {
        let told = self.sessions.get_mut(&session)?;
        if let Some(named) = &mut told.named {
            named.add(session, part);
        }
        if !is_last || told.is_complete {
            return None;
        }
        told.is_complete = true;
        self.owing -= 1;
        told.named.take()
    }

    /// The session's client knows that this owner knows everything, or the session has ended.
    fn settle(&mut self, session: SessionId) {
        let told = self.sessions.remove(&session);
        self.owing -= usize::from(told.is_some_and(|told| !told.is_complete));
    }

    /// Whether everything is known for good: from then on nothing here changes.
    fn is_settled(&self) -> bool {
        self.sessions.is_empty()
    }

    /// Whether the session has yet to say what it holds.
    fn owes(&self, session: SessionId) -> bool {
        let told = self.sessions.get(&session);
        told.is_some_and(|told| !told.is_complete)
    }

    /// Whether inodes without names and new locks needn't wait any more.
    fn is_over(&self, now: Instant) -> bool {
        self.owing == 0 || now >= self.until
    }
}

/// What an attempt that replaces another has named.
#[derive(Debug, Default)]
struct Named {
    inodes: BTreeSet<InodeId>,
    locks: Kept,
}

impl Named {
    fn add(&mut self, session: SessionId, part: &Reclaimed) {
        let inodes = part.holds.iter().map(|(inode, _)| *inode);
        self.inodes.extend(inodes);
        self.locks.add(session, part);
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
    /// `SessionEnded`: its opens and locks are lost. `Stale` and `ReclaimFirst` for a part that is out
    /// of its place.
    pub async fn reclaim(
        &self,
        session: SessionId,
        part: &Reclaimed,
        is_last: bool,
    ) -> Result<OwnerReply> {
        if self.shard().session_standing(session) != Standing::Open {
            return Err(namespace::sessions::ended(session));
        }
        let made = match is_last {
            true => self.made_by(session, &part.under_way).await?,
            false => Vec::new(),
        };
        let (mut lost, mut freed) = (0, Vec::new());
        {
            let mut reclaim = self.reclaim.lock();
            // A part that was heard counts as taken in.
            self.holders.check_said(session, part.holds.len())?;
            if reclaim.hear(session, part)? == Part::Next {
                for (inode, count) in &part.holds {
                    self.holders.reclaim(session, *inode, *count);
                }
                lost = self.locks().reclaim(session, part);
                let mut named = reclaim.taken_in(session, part, is_last);
                for inode in made {
                    // In its first attempt it has said all that is known of it.
                    let has_said = named.as_mut().is_none_or(|it| !it.inodes.insert(inode));
                    self.holders.reclaim_made(session, inode, has_said);
                }
                // Only now: until then the session may name what it had said before, and others wait
                // for its locks.
                if let Some(named) = named {
                    freed = self.holders.keep_only(session, &named.inodes);
                    self.locks().keep_only(session, &named.locks);
                }
                self.note_owing(&reclaim);
            }
        }
        let stamp = self.host.stamp();
        for inode in freed {
            self.release(inode, &stamp).await?;
        }
        let tokens = self.tokens.reclaim(session, &part.tokens, is_last)?;
        self.world.at(Point::PartReclaimed).await;
        if is_last {
            self.end_grace_if_over().await?;
        }
        Ok(OwnerReply::Reclaimed {
            tenure: self.tenure,
            lost,
            tokens,
        })
    }

    /// What operations of a session have made, of those whose answers it hasn't heard: the records say whether the
    /// owner before has applied them.
    async fn made_by(&self, session: SessionId, under_way: &[(u8, u64)]) -> Result<Vec<InodeId>> {
        let mut made = Vec::new();
        for (slot, number) in under_way {
            let slot = *slot;
            let record = self.host.record(&Key::Slot { session, slot }).await?;
            if let Some(Record::Slot(last)) = record
                && last.number == *number
                && let Ok(Reply::Entry { attributes, .. }) = &last.answer
            {
                made.push(attributes.inode);
            }
        }
        Ok(made)
    }

    /// Refuses a session that has yet to say what it holds.
    pub(super) fn check_reclaimed(&self, session: SessionId) -> Result<()> {
        let owes = self.is_owed.load(Memory::Relaxed) && self.reclaim.lock().owes(session);
        match owes {
            true => Err(ErrorKind::ReclaimFirst.into()),
            false => Ok(()),
        }
    }

    /// Refuses a client that knows a later owner: this one would answer with what was.
    pub(super) fn check_owner(&self, known: Tenure) -> Result<()> {
        if known <= self.tenure || self.world.has_planted(Planted::AnswerLate) {
            return Ok(());
        }
        let text = "the client knows a later owner";
        Err(Error::new(ErrorKind::OldEpoch, text))
    }

    /// Makes sure that this is the owner now, for an answer that nobody takes back.
    ///
    /// # Errors
    /// `OldEpoch` if it isn't; those of coordination.
    pub(super) async fn confirm_ownership(&self) -> Result<()> {
        let shard = self.shard();
        let record = self.host.coordination().shard(shard.id()).await?;
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
            let again = self.host.take_over_again(&shard).await;
            again.unwrap_or_else(|error| tracing::debug!(%error, "the shard stays dropped"));
        }
    }

    /// Refuses a new lock while one that it conflicts with may not have been said yet.
    pub(super) fn check_grace(&self) -> Result<()> {
        match self.in_grace.load(Memory::SeqCst) {
            true => Err(ErrorKind::InGrace.into()),
            false => Ok(()),
        }
    }

    /// A session has ended, or its client knows that this owner knows what it holds.
    pub(super) fn owes_nothing(&self, session: SessionId) {
        if !self.is_unsettled.load(Memory::SeqCst) {
            return;
        }
        let mut reclaim = self.reclaim.lock();
        reclaim.settle(session);
        self.note_owing(&reclaim);
    }

    /// Returns when new locks needn't wait any more.
    ///
    /// # Errors
    /// `Unavailable` if the grace time doesn't end, because inodes without names can't be released.
    pub(super) async fn wait_for_grace(&self) -> Result<()> {
        let over = async {
            while self.in_grace.load(Memory::SeqCst) {
                self.world.sleep(GRACE_PAUSE).await;
            }
        };
        let over = self.world.timeout(2 * GRACE, over).await;
        over.map_err(|_| {
            Error::new(
                ErrorKind::Unavailable,
                "the owner doesn't know all locks yet",
            )
        })
    }

    fn note_owing(&self, reclaim: &Reclaim) {
        let is_owed = reclaim.owing > 0;
        self.is_owed.store(is_owed, Memory::SeqCst);
        self.is_unsettled
            .store(!reclaim.is_settled(), Memory::SeqCst);
    }

    /// Begins with the sessions that are open.
    pub(super) fn begin_grace(&self) {
        let mut reclaim = self.reclaim.lock();
        *reclaim = Reclaim::begin(&self.shard().sessions(), self.world.now());
        self.note_owing(&reclaim);
    }

    /// As [`Metanode::end_grace_if_over`], before clients are served: the rounds release what takes
    /// too long.
    pub(super) async fn begin_releases(&self) -> Result<()> {
        let released = self.end_grace_if_over();
        let released = self.world.timeout(RELEASE_BUDGET, released).await;
        released.map_or_else(
            |_| {
                tracing::warn!("releasing inodes without names takes long; it goes on later");
                Ok(())
            },
            |released| released.map(|_| ()),
        )
    }

    /// Releases inodes that nobody holds once all sessions have said what they hold, or their time
    /// is over. Returns whether it did.
    pub(super) async fn end_grace_if_over(&self) -> Result<u64> {
        // Unless the inodes are in use, the next call releases the rest. The request that ends the
        // grace time may be given up meanwhile.
        let Some(begun) = self.begin_end_of_grace() else {
            return Ok(0);
        };
        let shard = self.shard();
        self.release_orphans(&shard).await?;
        std::mem::forget(begun);
        self.holders.end_grace();
        Ok(1)
    }

    /// If all have said what they hold, or their time is over, new locks don't wait from now on. Only the caller that
    /// gets it may take that back.
    fn begin_end_of_grace(&self) -> Option<Begun<'_>> {
        // Most calls come later.
        if !self.in_grace.load(Memory::SeqCst) {
            return None;
        }
        // Under this lock, so that no session owes anything again before new locks are admitted.
        let reclaim = self.reclaim.lock();
        let is_over = reclaim.is_over(self.world.now());
        let ends =
            |flag: &AtomicBool| flag.compare_exchange(true, false, Memory::SeqCst, Memory::SeqCst);
        (is_over && ends(&self.in_grace).is_ok()).then(|| Begun(&self.in_grace))
    }
}

/// The end of the grace time has begun; dropped, it must begin again.
struct Begun<'a>(&'a AtomicBool);

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.0.store(true, Memory::SeqCst);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use model::{NodeId, NodeRun};
    use proptest::prelude::*;
    use std::sync::LazyLock;
    use world::sim::Simulation;

    const SESSION: SessionId = SessionId(4);
    static NOW: LazyLock<Instant> = LazyLock::new(|| {
        let simulation = Simulation::new(1);
        simulation
            .run(|world| async move { world.now() })
            .finished()
    });

    fn part(attempt: u64, at: u32) -> Reclaimed {
        Reclaimed {
            attempt,
            at,
            ..Reclaimed::default()
        }
    }

    fn new_owner() -> Reclaim {
        let mut sessions = Sessions::default();
        let run = NodeRun {
            node: NodeId(1),
            incarnation: 1,
        };
        sessions.open(SESSION, run).unwrap();
        Reclaim::begin(&sessions, *NOW)
    }

    #[test]
    fn an_attempt_that_never_ends_is_refused() {
        let mut owner = new_owner();
        for at in 0..PARTS_MAX {
            assert_eq!(owner.hear(SESSION, &part(1, at)).unwrap(), Part::Next);
        }
        let refused = owner.hear(SESSION, &part(1, PARTS_MAX)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    }

    #[test]
    fn an_owner_that_missed_the_first_part_does_not_take_the_last_one_for_everything() {
        let mut owner = new_owner();
        let early = owner.hear(SESSION, &part(1, 1)).unwrap_err();
        assert_eq!(early.kind(), ErrorKind::ReclaimFirst);
        assert!(owner.owes(SESSION));
    }

    #[test]
    fn an_attempt_replaces_those_before_it_until_the_session_is_settled() {
        let mut owner = new_owner();
        assert_eq!(owner.hear(SESSION, &part(1, 0)).unwrap(), Part::Next);
        assert!(owner.taken_in(SESSION, &part(1, 0), true).is_none());
        assert!(!owner.owes(SESSION) && owner.owing == 0);
        // The client didn't get the answer.
        assert_eq!(owner.hear(SESSION, &part(2, 0)).unwrap(), Part::Next);
        assert!(owner.owes(SESSION));
        let late = owner.hear(SESSION, &part(1, 0)).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::Stale);
        assert!(owner.taken_in(SESSION, &part(2, 0), true).is_some());
        owner.settle(SESSION);
        assert_eq!(owner.hear(SESSION, &part(3, 0)).unwrap(), Part::Known);
        assert!(!owner.owes(SESSION) && owner.owing == 0);
    }

    /// What an owner has taken in.
    struct Owner {
        reclaim: Reclaim,
        holds: BTreeSet<InodeId>,
    }

    impl Owner {
        fn take(&mut self, part: &Reclaimed, is_last: bool) -> Result<()> {
            if self.reclaim.hear(SESSION, part)? != Part::Known {
                self.holds
                    .extend(part.holds.iter().map(|(inode, _)| *inode));
                if let Some(named) = self.reclaim.taken_in(SESSION, part, is_last) {
                    self.holds.retain(|inode| named.inodes.contains(inode));
                }
            }
            Ok(())
        }
    }

    proptest! {
        /// Parts get lost or come late, twice, and to owners that have just begun; what is held
        /// changes between attempts. The owner that answers all parts knows exactly what is held.
        #[test]
        fn the_owner_that_answers_a_whole_attempt_knows_what_is_held(
            attempts in prop::collection::vec(
                (prop::collection::btree_set(0_u64..9, 0..7), prop::collection::vec(0_u8..8, 9)),
                1..12)
        ) {
            let mut owner = Owner { reclaim: new_owner(), holds: BTreeSet::new() };
            let mut sent: Vec<(Reclaimed, bool)> = Vec::new();
            for (attempt, (held, faults)) in attempts.into_iter().enumerate() {
                let held: Vec<InodeId> = held.into_iter().map(InodeId).collect();
                let mut chunks: Vec<&[InodeId]> = held.chunks(2).collect();
                if chunks.is_empty() {
                    chunks.push(&[]);
                }
                let mut answered = 0;
                for (at, chunk) in chunks.iter().enumerate() {
                    let mut part = part(attempt as u64, at as u32);
                    part.holds = chunk.iter().map(|inode| (*inode, 1)).collect();
                    sent.push((part.clone(), at + 1 == chunks.len()));
                    let fault = faults[at];
                    if fault == 0 {
                        owner = Owner { reclaim: new_owner(), holds: BTreeSet::new() };
                    }
                    if fault == 1 {
                        let (late, is_last) = &sent[usize::from(faults[8]) % sent.len()];
                        let _ = owner.take(late, *is_last);
                    }
                    if fault == 2 {
                        break;
                    }
                    let taken = owner.take(&part, at + 1 == chunks.len());
                    if fault == 3 || taken.is_err() {
                        break;
                    }
                    answered += 1;
                }
                if answered == chunks.len() && !faults[..answered].contains(&0) {
                    prop_assert!(!owner.reclaim.owes(SESSION));
                    prop_assert_eq!(&owner.holds, &held.iter().copied().collect());
                }
                prop_assert_eq!(owner.reclaim.owing, usize::from(owner.reclaim.owes(SESSION)));
            }
        }
    }
}
