//! Writing: one copy into the page pool; memory and disk space are claimed first.

use crate::inode::{HeldState, InodeRef, Known};
use crate::page_pool::{Claim, PagePool};
use crate::privileges::Rights;
use crate::session::{Session, unexpected_reply};
use crate::tokens::{Tokens, Uses};
use crate::types::Written;
use crate::write_behind::WriteBehind;
use model::{
    Attributes, Error, ErrorKind, FileKind, InodeId, Operation, Privileges, Reply, Result,
    TokenRange, limits,
};
use std::sync::Arc;
use world::{Instant, SPACE_WAIT, Work};

/// The cause of waiting for room that the cluster's manager gives.
const ROOM_WAIT: &str = "room in the pool, which other nodes write to as well";
/// Larger writes are split.
const PART_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Why a write may be taken in.
#[derive(Clone, Copy, Default)]
struct Right {
    /// What it needs was claimed, when tokens had been lost so often.
    claimed: Option<u64>,
    /// A kernel writes back what programs changed in its pages: that needs the bytes' token only, and no size but
    /// the end of its own bytes. It may be done because the bytes must go: who wants them may hold the attributes.
    is_kernels: bool,
    /// Attributes for a kernel's write that may not be kept.
    shown: Option<Known>,
}

enum Attempt {
    /// Done at this offset.
    Done(u64),
    /// Size and generation must be requested first; what is held now.
    Unknown(HeldState),
    /// Tokens must be claimed first.
    NotHeld,
    /// The inode may have privileges that this write must drop.
    MayLose,
    /// A truncate or the like is running, or may still run.
    Excluded(u64),
}

/// Writes to files.
pub(crate) struct Writer {
    session: Arc<Session>,
    pages: Arc<PagePool>,
    rights: Arc<Rights>,
    write_behind: Arc<WriteBehind>,
    tokens: Arc<Tokens>,
}

impl Writer {
    pub(crate) fn new(
        session: Arc<Session>,
        pages: Arc<PagePool>,
        rights: Arc<Rights>,
        write_behind: Arc<WriteBehind>,
        tokens: Arc<Tokens>,
    ) -> Self {
        Self {
            session,
            pages,
            rights,
            write_behind,
            tokens,
        }
    }

    /// Writes all of `data` into the page pool: at `offset`, or at the end without one. Drops
    /// `privileges` before.
    pub(crate) async fn write(
        &self,
        inode: InodeId,
        offset: Option<u64>,
        data: &[u8],
        privileges: Privileges,
    ) -> Result<Written> {
        self.session.check_open()?;
        if let Some(offset) = offset {
            check_end(offset, data)?;
        }
        let state = self.pages.inode(inode);
        let mut parts = data.chunks(PART_BYTES_MAX);
        let first = parts.next().unwrap_or_default();
        let right = Right::default();
        let written = self
            .write_part(&state, (offset, first), privileges, right)
            .await?;
        let mut at = written.offset + first.len() as u64;
        for part in parts {
            self.write_part(&state, (Some(at), part), Privileges::Keep, right)
                .await?;
            at += part.len() as u64;
        }
        Ok(written)
    }

    /// A kernel writes pages back in which programs changed bytes.
    pub(crate) async fn write_back(&self, inode: InodeId, offset: u64, data: &[u8]) -> Result<()> {
        self.session.check_open()?;
        check_end(offset, data)?;
        let state = self.pages.inode(inode);
        let right = Right {
            is_kernels: true,
            ..Right::default()
        };
        let mut at = offset;
        for part in data.chunks(PART_BYTES_MAX) {
            self.write_part(&state, (Some(at), part), Privileges::Keep, right)
                .await?;
            at += part.len() as u64;
        }
        Ok(())
    }

    async fn write_part(
        &self,
        state: &InodeRef,
        (at, data): (Option<u64>, &[u8]),
        mut privileges: Privileges,
        mut right: Right,
    ) -> Result<Written> {
        let bytes = data.len() as u64;
        // Others may wait for what a kernel writes back.
        let pace = (!right.is_kernels).then(|| self.pages.pace(bytes, self.session.now()));
        if let Some(time) = pace.flatten() {
            // Boxed because it is rare: every write's future would be larger.
            Box::pin(self.session.world().sleep(time)).await;
        }
        let mut claim = self.claim(state, bytes).await?;
        let mut mode_changed = false;
        let mut uses: Option<Uses> = None;
        loop {
            match self.try_write(state, at, data, privileges, &mut claim, right)? {
                Attempt::Done(offset) => {
                    drop(uses);
                    if self.pages.is_short() {
                        self.write_behind.press();
                    }
                    self.pages.shrink(1);
                    return Ok(Written {
                        offset,
                        mode_changed,
                    });
                }
                Attempt::Unknown(held) => {
                    let asked = held.if_claimed(uses.is_some() && !right.is_kernels);
                    let attributes = self.known_attributes(state.id()).await?;
                    state.lock().learn_first(&attributes, asked);
                    right.shown = right.is_kernels.then(|| Known::from(&attributes));
                }
                Attempt::NotHeld => {
                    drop(uses.take());
                    let range = at.and_then(|at| TokenRange::new(at, at + bytes));
                    let losses = state.lock().losses();
                    // Boxed because it is rare: otherwise every write's future would contain it.
                    uses = match right.is_kernels {
                        true => Box::pin(self.claim_write_back(state, range)).await?,
                        false => {
                            let claimed = self.tokens.claim_write(state, range, at.is_none());
                            Some(Box::pin(claimed).await?)
                        }
                    };
                    right.claimed = uses.is_some().then_some(losses);
                }
                Attempt::MayLose => {
                    // The owner may have to wait for others that wait for this client.
                    drop(uses.take());
                    right.claimed = None;
                    // Boxed because it is rare: otherwise every write's future would contain it.
                    let dropping = Box::pin(self.rights.drop_unless_plain(state, privileges));
                    mode_changed |= dropping.await?;
                    // Privileges granted from now on count as concurrent with this write.
                    privileges = Privileges::Keep;
                }
                Attempt::Excluded(by) => {
                    drop(uses.take());
                    right.claimed = None;
                    // As one wait, whatever else happens to the file meanwhile: it may last.
                    let over = state.until_not_excluded(by, right.is_kernels);
                    let (cause, inode) = ("a truncate of the same file", state.id());
                    // Boxed because it is rare: otherwise every write's future would contain it.
                    match right.is_kernels {
                        true => {
                            let waiting = self.session.wait_in_session(cause, inode, over);
                            Box::pin(waiting).await?;
                        }
                        false => {
                            let waiting = self.session.wait_for_change(cause, inode, over);
                            Box::pin(waiting).await?;
                        }
                    }
                }
            }
        }
    }

    /// Claims what a write-back needs; `None` if its pages have begun to go meanwhile, which is enough: who wants them may
    /// be waiting for this write.
    async fn claim_write_back(
        &self,
        state: &InodeRef,
        range: Option<TokenRange>,
    ) -> Result<Option<Uses>> {
        let goes = async {
            loop {
                let changed = state.changed();
                {
                    let inner = state.lock();
                    let may_go = range.is_some_and(|it| inner.may_write_back(it.start, it.end));
                    if may_go || inner.check_lost().is_err() {
                        return;
                    }
                }
                changed.await;
            }
        };
        tokio::select! {
            biased;
            claimed = self.tokens.claim_write_back(state, range) => claimed.map(Some),
            () = goes => Ok(None),
        }
    }

    /// Size and times as the owner knows them. If the session has the tokens for a write, others that
    /// write have published all that matters to it.
    async fn known_attributes(&self, inode: InodeId) -> Result<Attributes> {
        let operation = Operation::ReadExtents {
            inode,
            offset: 0,
            length: 1,
            limit: 1,
        };
        match self.session.execute(operation).await {
            Ok(Reply::Extents { attributes, .. }) => Ok(attributes),
            Ok(other) => unexpected_reply(&other),
            Err(error) => Err(error),
        }
    }

    /// Claims memory and space for `bytes`; waits for memory, and for space while any is being
    /// freed.
    async fn claim(&self, state: &InodeRef, bytes: u64) -> Result<Claim<'_>> {
        let inode = state.id();
        let mut listed = None;
        loop {
            let room = self.pages.room();
            let answered = self.pages.space_answered();
            let failing = self.pages.has_failing().then(|| failure_of(state));
            let failing = failing.flatten();
            if self.pages.lacks_memory(bytes) {
                self.pages.make_room(bytes);
            }
            // Before the claim: bytes that arrive after it may have been the ones to make room.
            let was_moving = self.pages.is_moving();
            match self.pages.claim(bytes, failing.is_some()) {
                Ok(Some(claim)) => return Ok(claim),
                Ok(None) => {}
                Err(full) if full.kind() == ErrorKind::NoSpace => {
                    // Listed as one wait, however many steps it takes.
                    listed.get_or_insert_with(|| {
                        let now = self.session.now();
                        self.session.list(SPACE_WAIT, Some(inode), now)
                    });
                    // Boxed because it is rare and large: otherwise every write's future would
                    // contain it.
                    let freeing = Box::pin(self.session.make_room());
                    if self.session.within_patience(SPACE_WAIT, freeing).await?? {
                        self.pages.ask_for_space_anew();
                        continue;
                    }
                    // Stored but unpublished data is counted twice, as stored and as reserved, and
                    // the data that it replaces still exists: the pool isn't full yet.
                    if !was_moving || self.pages.failure().is_some() {
                        return Err(full);
                    }
                    if self.pages.is_moving() {
                        self.session.within_patience(SPACE_WAIT, room).await?;
                    }
                    continue;
                }
                // Other nodes write to the pool too.
                Err(asked) if asked.kind() == ErrorKind::Busy => {
                    let answered = Box::pin(answered);
                    let waited = self.session.wait(ROOM_WAIT, Some(inode), answered);
                    if let Err(late) = waited.await {
                        self.pages.give_up_space();
                        return Err(late);
                    }
                    continue;
                }
                Err(error) => return Err(error),
            }
            listed = None;
            if let Some((since, error)) = failing
                && self.session.has_lost_patience(since)
            {
                // The file's share is used up, and waiting has lasted long enough.
                return Err(error.while_doing("make room for more dirty data of this file"));
            }
            let failure = self.pages.failure();
            if let Some(error) = failure.filter(|error| error.kind() == ErrorKind::NoSpace) {
                // Data waiting in memory has space reserved, but the NSDs are fuller than the pool
                // knew: no more can be accepted.
                return Err(error.while_doing("make room for more dirty data"));
            }
            if !self.pages.is_moving() || self.pages.is_short() || self.pages.lacks_memory(bytes) {
                self.write_behind.press();
            }
            let (cause, storing) = ("memory for dirty data", Work::Store(None));
            let waited = self
                .session
                .wait_for_work(cause, inode, storing, room)
                .await;
            if let Err(late) = waited {
                let own = failure_of(state).map(|(_, error)| error);
                return Err(own.or_else(|| self.pages.failure()).unwrap_or(late));
            }
        }
    }

    fn try_write(
        &self,
        state: &InodeRef,
        at: Option<u64>,
        data: &[u8],
        privileges: Privileges,
        claim: &mut Claim<'_>,
        right: Right,
    ) -> Result<Attempt> {
        let now = self.session.wall();
        let mut inner = state.lock();
        inner.check_lost()?;
        let (from, to) = at.map_or((0, u64::MAX), |at| (at, at + data.len() as u64));
        if let Some(by) = inner.excluded_by(right.is_kernels) {
            return Ok(Attempt::Excluded(by));
        }
        let is_claimed = right.claimed == Some(inner.losses());
        let may_write = match right.is_kernels {
            true => inner.may_write_back(from, to),
            false => inner.may_write(from, to, at.is_none()),
        };
        if !is_claimed && !may_write {
            return Ok(Attempt::NotHeld);
        }
        let Some(known) = inner.known().or(right.shown) else {
            return Ok(Attempt::Unknown(inner.held_state()));
        };
        match known.kind {
            FileKind::File => {}
            FileKind::Directory => return Err(ErrorKind::IsDirectory.into()),
            _ => return Err(ErrorKind::InvalidArgument.into()),
        }
        let offset = match at {
            Some(at) => at,
            None => inner.size().expect("the size is known, as seen above"),
        };
        check_end(offset, data)?;
        if data.is_empty() {
            return Ok(Attempt::Done(offset));
        }
        if !inner.loses_nothing_to(privileges) {
            return Ok(Attempt::MayLose);
        }
        let end = offset + data.len() as u64;
        let moment = self.session.now();
        if inner.dirty().is_empty() {
            self.write_behind.note_dirty(state.id());
        }
        claim.used(match right.is_kernels {
            true => inner.write_back(offset, data, known.generation, moment, now),
            false => inner.write(offset, data, moment, now),
        });
        self.pages.uncache(state.id(), &mut inner, offset, end);
        let range = (offset, end);
        let blocks = self.write_behind.full_blocks(state, &mut inner, range);
        if inner.batches().failing_since().is_some() {
            self.pages.recount_failing(&mut inner);
        }
        drop(inner);
        self.write_behind.send(blocks);
        Ok(Attempt::Done(offset))
    }
}

/// Since when data of the inode can't be stored, and why.
fn failure_of(state: &InodeRef) -> Option<(Instant, Error)> {
    let inner = state.lock();
    let since = inner.batches().failing_since()?;
    let error = inner.batches().failure().cloned();
    let error = error.unwrap_or_else(|| ErrorKind::Unavailable.into());
    Some((since, error))
}

fn check_end(offset: u64, data: &[u8]) -> Result<()> {
    match offset.checked_add(data.len() as u64) {
        Some(end) if end <= limits::FILE_BYTES_MAX => Ok(()),
        _ => Err(ErrorKind::FileTooLarge.into()),
    }
}
