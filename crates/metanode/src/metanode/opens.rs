//! Sessions of clients, and the inodes that they hold.

use crate::host::SCAN_PAGE;
use crate::metanode::Metanode;
use model::operation::Stamp;
use model::{ErrorKind, InodeId, NodeRun, Operation, Reply, Result, SegmentPlace, SessionId};
use namespace::sessions::Standing;
use namespace::{Key, Record, Table};
use shard::{Shard, successor};
use std::collections::BTreeSet;
use world::{Planted, Point};

/// Most inodes that a round releases because the requests that ended their last uses didn't.
const RELEASED_AT_ONCE: usize = 1024;

impl Metanode {
    /// Opens a client's session. Its id comes from coordination and is never reused, nor are
    /// segment ids, which begin with it. Waits for coordination.
    ///
    /// # Errors
    /// `Unavailable` if coordination doesn't answer.
    pub async fn open_session(&self) -> Result<SessionId> {
        let session = self.host.coordination().next_session().await?;
        self.open_session_of(session, self.host.node_run()).await?;
        Ok(session)
    }

    /// Opens the session of a client in a run of a daemon, if it hasn't ended and the node hasn't too many.
    /// The same again changes nothing.
    pub(super) async fn open_session_of(&self, session: SessionId, run: NodeRun) -> Result<()> {
        // A run that asks has replaced those before it of its node.
        for dead in self.shard().sessions().of_former_runs(run) {
            let ended = self.close_session(dead).await;
            ended.map_err(|error| error.while_doing("ending the sessions of a former run"))?;
        }
        // One that is refused takes nothing from the others.
        match self.shard().session_standing(session) {
            Standing::Ended => return Err(namespace::sessions::ended(session)),
            Standing::Unknown => self.shard().sessions().check_room_of(run)?,
            Standing::Open => {}
        }
        let _opening = self.tokens.begin_opening(session).await?;
        loop {
            let shard = self.shard();
            match shard.open_session(session, run).await {
                Err(_) if shard.check_alive().is_err() => {
                    Box::pin(self.host.take_over_again(&shard)).await?;
                }
                Err(error) => return Err(error.while_doing("opening a session")),
                Ok(()) => break,
            }
        }
        self.world.at(Point::SessionRecorded).await;
        self.sessions.begin(session);
        self.tokens.begin_session(session);
        // Who has ended it meanwhile may have forgotten it before it was remembered, and clients in this process may have
        // taken something for it since.
        match self.shard().session_standing(session) {
            Standing::Open => Ok(()),
            _ => {
                self.sessions.end(session);
                self.tokens.end_session(session);
                self.end_if_closed(session, false)
            }
        }
    }

    /// Ends the sessions of earlier runs of this node's daemon: it can't run twice, so they are
    /// dead. Those of other nodes stay open until they end themselves or are ended by name.
    pub(super) async fn end_former_runs(&self, shard: &Shard, run: NodeRun) -> Result<()> {
        for session in shard.sessions().of_former_runs(run) {
            shard.end_session(session).await?;
        }
        Ok(())
    }

    /// The cluster has expelled some runs: they are dead, or their leases have ended by every clock, and
    /// their clients use no tokens without one. The sessions of these clients end. The same again changes
    /// nothing.
    pub fn part_with(&self, has_ended: impl Fn(NodeRun) -> bool) {
        let sessions = self.shard().sessions();
        let clients = sessions.of_clients();
        let gone = clients.filter(|(_, run)| has_ended(*run));
        self.tokens.expel(gone.map(|(session, _)| session));
    }

    /// Ends a client's session, durably: its holds and locks end, and orphans that only it held are released.
    ///
    /// What it has goes last, when a new owner would know of the end. Otherwise a client that comes back to that owner would go on
    /// with files that are gone, and with locks that others were told they have.
    ///
    /// # Errors
    /// Errors of the releases, or if the end isn't durable yet; the session has ended in any case.
    pub async fn close_session(&self, session: SessionId) -> Result<()> {
        // First, so that no late request adds an open.
        self.refuse_requests(session);
        let mut rest = Rest {
            metanode: self,
            session,
            made: BTreeSet::new(),
        };
        let slot = |session| Key::Slot { session, slot: 0 };
        let range = (slot(session), slot(session.next()));
        // Before its end, which removes the records that say it.
        let made = self.just_made(&self.shard(), range).await;
        let mut result = made.map(|made| rest.made = made);
        self.owes_nothing(session);
        self.world.at(Point::SessionClosing).await;
        let ended = self.shard().end_session(session).await;
        if self.shard().session_standing(session) != Standing::Open {
            self.tokens.end_session(session);
        }
        result = result.and(match ended {
            Ok(()) => self.sync().await,
            failed => failed,
        });
        // Also what requests that were under way have taken and made since.
        let free = rest.end();
        drop(rest);
        let stamp = self.host.stamp();
        for inode in free {
            result = result.and(self.release(inode, &stamp).await);
        }
        result
    }

    /// A request has taken something for a session without knowing whether it is still open. If it
    /// isn't, the request may have come after all that its end releases: the same ends again, and a
    /// round releases what nobody uses.
    pub(super) fn end_if_closed(&self, session: SessionId, is_open: bool) -> Result<()> {
        if is_open {
            return Ok(());
        }
        self.end_locks(session);
        drop(self.end_uses(session));
        Err(namespace::sessions::ended(session))
    }

    /// Requests of the session are refused from now on.
    fn refuse_requests(&self, session: SessionId) {
        self.sessions.end(session);
        self.replays.forget(session);
        self.streams.forget(session);
    }

    /// Returns the inodes that are to be released.
    fn end_uses(&self, session: SessionId) -> Vec<InodeId> {
        match self.world.has_planted(Planted::KeepHolds) {
            true => Vec::new(),
            false => self.holders.end_session(session),
        }
    }

    fn end_locks(&self, session: SessionId) {
        if !self.world.has_planted(Planted::KeepLocks) {
            self.locks.release_session(session);
        }
    }

    /// Every segment of the session with a counter up to this one is published or given up: if
    /// nothing points at it, it is garbage. Never goes back.
    pub fn report_low_water(&self, session: SessionId, counter: u64) {
        let is_open = || self.shard().session_standing(session) == Standing::Open;
        if !self.sessions.settle(session, counter) && is_open() {
            // It was opened under an owner before this one.
            self.sessions.begin(session);
            let _ = self.sessions.settle(session, counter);
            // Who has ended it meanwhile may have forgotten it before it was remembered.
            if !is_open() {
                self.sessions.end(session);
                let _ended = self.end_if_closed(session, false);
            }
        }
    }

    /// Segments that their writer will never publish: those that nothing points at are condemned now
    /// instead of by a sweep. Pieces on absent NSDs are left to the sweep.
    ///
    /// # Errors
    /// Errors of reading records; what isn't deleted is left to a sweep.
    pub async fn give_up(&self, places: Vec<SegmentPlace>) -> Result<()> {
        self.background.give_up(places).await
    }

    /// Adds a use of an inode (open, or looked up by a kernel), which then survives losing its last
    /// name. Counted; cheap; no I/O.
    pub fn hold(&self, session: SessionId, inode: InodeId) {
        self.holders.hold(session, inode);
    }

    /// Removes a use of the stamp's session. The last one of an inode without names releases it.
    ///
    /// # Errors
    /// Errors of the release; the use is removed in any case.
    pub async fn unhold(&self, inode: InodeId, stamp: &Stamp) -> Result<()> {
        if self.holders.unhold(stamp.session, inode) {
            self.release(inode, stamp).await?;
        }
        Ok(())
    }

    /// Releases all inodes without names that nothing holds.
    pub(super) async fn release_orphans(&self, shard: &Shard) -> Result<()> {
        let (mut from, to) = Table::Orphans.range();
        let stamp = self.host.stamp();
        loop {
            let page = shard.scan_readable(&from, &to, SCAN_PAGE).await?;
            let Some((last, _)) = page.last() else {
                return Ok(());
            };
            from = successor(last);
            let is_unnamed = |key: &Key, record: &Record| match (key, record) {
                (Key::Orphan(inode), Record::Orphan(it)) => {
                    let may_be_asked_for = !self.holders.is_let_go(*inode);
                    it.linkable && may_be_asked_for && !self.holders.is_held(*inode)
                }
                _ => false,
            };
            // After the orphans: a file that is made now is in its slot when it is an orphan.
            let made = match page.iter().any(|(key, record)| is_unnamed(key, record)) {
                true => self.just_made(shard, Table::Slots.range()).await?,
                false => BTreeSet::new(),
            };
            for (key, record) in &page {
                let Key::Orphan(inode) = key else {
                    continue;
                };
                if is_unnamed(key, record) && made.contains(inode) {
                    continue;
                }
                self.release_orphan(shard, *inode, &stamp).await?;
            }
        }
    }

    /// Releases an inode without names, or notes of one in use that it has none: who opened it under this owner
    /// hasn't said so.
    async fn release_orphan(&self, shard: &Shard, inode: InodeId, stamp: &Stamp) -> Result<()> {
        let release = Operation::Release { inode };
        loop {
            let end = self.holders.last_end(inode);
            match shard.execute(&release, stamp).await {
                Ok((reply, _)) => {
                    if self.is_settled(inode, end, &reply) {
                        return Ok(());
                    }
                }
                failed => {
                    skip_damaged(inode, failed)?;
                    self.holders.released(inode, end);
                    return Ok(());
                }
            }
        }
    }

    /// Releases inodes whose last use has ended in requests that were given up, or failed, before they
    /// released them. Returns how many.
    pub(super) async fn release_rest(&self) -> Result<u64> {
        let stamp = self.host.stamp();
        let (mut count, mut result) = (0, Ok(()));
        for inode in self.holders.unreleased(RELEASED_AT_ONCE) {
            let end = self.holders.last_end(inode);
            match skip_damaged(inode, self.release(inode, &stamp).await) {
                Ok(true) => {}
                Ok(false) => self.holders.released(inode, end),
                // The others don't wait for this one.
                Err(error) => result = Err(error),
            }
            count += 1;
        }
        result.map(|()| count)
    }

    /// Files without names that an open session's last operation in a slot made. Their maker may not
    /// have heard of it, and asks for the answer again: they are its own until it uses the slot for
    /// something else or ends.
    async fn just_made(&self, shard: &Shard, range: (Key, Key)) -> Result<BTreeSet<InodeId>> {
        let (mut from, to) = range;
        let mut made = BTreeSet::new();
        loop {
            let page = shard.scan_readable(&from, &to, SCAN_PAGE).await?;
            let Some((last, _)) = page.last() else {
                return Ok(made);
            };
            from = successor(last);
            for (key, record) in &page {
                if let (Key::Slot { session, .. }, Record::Slot(slot)) = (key, record)
                    && let Ok(Reply::Entry { attributes, .. }) = &slot.answer
                    && shard.session_standing(*session) == Standing::Open
                {
                    made.insert(attributes.inode);
                }
            }
        }
    }
}

/// What a session that is being closed still has: free once this is dropped, as that is done or given up. A round releases the
/// inodes.
struct Rest<'a> {
    metanode: &'a Metanode,
    session: SessionId,
    /// What its last operations have made, perhaps without names.
    made: BTreeSet<InodeId>,
}

impl Rest<'_> {
    /// Ends it. Returns the inodes that are to be released.
    fn end(&mut self) -> BTreeSet<InodeId> {
        let (metanode, session) = (self.metanode, self.session);
        metanode.refuse_requests(session);
        metanode.end_locks(session);
        let mut free = BTreeSet::from_iter(metanode.end_uses(session));
        // As long as it is open its records say what it has made, and it may come back for that.
        if metanode.shard().session_standing(session) != Standing::Open {
            let made = std::mem::take(&mut self.made).into_iter();
            free.extend(made.filter(|inode| metanode.holders.lost_names(*inode)));
        }
        free
    }
}

impl Drop for Rest<'_> {
    fn drop(&mut self) {
        drop(self.end());
    }
}

/// One damaged inode must not make the whole file system unavailable. False if this one is.
fn skip_damaged<T>(inode: InodeId, released: Result<T>) -> Result<bool> {
    match released {
        Ok(_) => Ok(true),
        Err(error) if is_damage(error.kind()) => {
            tracing::error!(%inode, %error, "an inode without names can't be released: run `shale fs check`");
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Whether records contradict each other.
fn is_damage(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Corrupt | ErrorKind::Stale | ErrorKind::NotFound
    )
}
