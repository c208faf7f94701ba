//! A shard opens, runs operations on the hot records, closes.

use crate::ahead::Ahead;
use crate::commit::committer;
use crate::fetch::Pinned;
use crate::notes;
use crate::numbers::Numbers;
use crate::records::{Records, successor};
use crate::reserved::ReservedNumbers;
use crate::shrink::shrink_when_pressed;
use crate::state::{Nobody, Rows, Shard, ShardState, Wanted};
use crate::takeover::budgets::{LAST_COMMIT_BUDGET, LEARN_BUDGET, LET_GO_BUDGET, too_late};
use crate::takeover::{self, Lineage, Opened, Opening};
use coordination::{FileSystem, NewFileSystem};
use model::operation::{Ranked, Stamp, Turn};
use model::{
    CommitNumber, Error, ErrorKind, ExtentKind, FilesetId, GroupId, NodeRun, Operation, Reply,
    Result, SessionId,
};
use namespace::sessions::{Sessions, Standing};
use namespace::{Effects, Key, Need, Outcome, Record, Stop};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use world::Point;
use world::{Deadline, Planted};

/// Most rounds of fetching that one operation may need: a rename asks for the ancestors of two
/// directories one by one, and paths have at most 4,096 bytes.
pub(crate) const FETCH_ROUNDS_MAX: usize = 4100;
/// Orphans, sessions, counters or reservations of numbers read per scan when a shard is opened.
const OPENING_PAGE: usize = 1024;
/// Records of a session read per scan when it ends.
const SESSION_PAGE: usize = 128;
/// Longest wait of an operation for the tree.
const FETCH_DEADLINE: Duration = Duration::from_secs(120);

/// First and longest pause between two attempts to read the initial state.
const LEARN_PAUSE_MIN: Duration = Duration::from_millis(100);
const LEARN_PAUSE_MAX: Duration = Duration::from_secs(5);

/// Changes that were answered but not durable when a shard was given up; this process's next
/// take-over applies them.
pub struct Unflushed {
    /// Who may have owned it in between.
    lineage: Lineage,
    open: CommitNumber,
    commits: Vec<(CommitNumber, Arc<Rows>)>,
}

/// Result of one attempt on the hot records.
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all are done: a box would be an allocation for each operation"
)]
pub(crate) enum Attempt {
    /// The answer, and the newest commit that it shows.
    Done(Result<Ranked>, CommitNumber),
    Missing(Vec<Need>),
    Full,
}

impl Shard {
    /// Makes a shard with one empty fileset, durable when it returns. `Exists` if it was made
    /// before. [`Shard::open`] with the same values finishes a creation that a crash interrupted.
    ///
    /// # Errors
    /// Errors of the log's NSDs and of coordination.
    pub async fn create(opening: &Opening) -> Result<()> {
        takeover::create(opening).await
    }

    /// Makes a file system that was drafted, and its shard with one empty fileset: durable when it
    /// returns. `assigned`: who shall take it over; `None`: the cluster's manager says who.
    ///
    /// # Errors
    /// `Changed`: its numbers or its name aren't free any more; nothing was made. Errors of the log's
    /// NSDs and of coordination; after `Unavailable` it may have been made.
    pub async fn create_file_system(
        opening: &Opening,
        new: &NewFileSystem,
        assigned: Option<NodeRun>,
    ) -> Result<FileSystem> {
        takeover::create_file_system(opening, new, assigned).await
    }

    /// Takes the shard over and opens it; the previous owner can't write any more. An empty shard
    /// gets its root fileset: mode 0o755, owned by whom the file system was made for, or root.
    ///
    /// # Errors
    /// `NotFound` if it was never created, `OldEpoch` if its record doesn't name this process,
    /// `Unavailable` if too few NSDs answer.
    pub async fn open(opening: Opening) -> Result<Arc<Self>> {
        Self::open_after(opening, None).await
    }

    /// As [`Shard::open`], after this process gave the shard up: changes that were answered but not
    /// durable are applied again.
    ///
    /// # Errors
    /// As [`Shard::open`]; `Superseded` if another owner came in between. This process may then
    /// take the shard over only as one that has never had it.
    pub async fn open_after(
        opening: Opening,
        mut unflushed: Option<&mut Unflushed>,
    ) -> Result<Arc<Self>> {
        let world = opening.world.clone();
        let mut fresh = Lineage::new(None);
        let lineage = match &mut unflushed {
            Some(unflushed) => &mut unflushed.lineage,
            None => &mut fresh,
        };
        let opened = takeover::open(opening.clone(), lineage).await?;
        world.at(Point::ShardOpened).await;
        let shard = Self::assemble(&opening, opened);
        let is_again = unflushed.is_some();
        if let Some(unflushed) = unflushed {
            shard.bring_in(unflushed);
        }
        if let Err(error) = shard.learn(is_again).await {
            shard.abandon(&error);
            return Err(error);
        }
        let task = world.spawn(
            "committer",
            committer(world.clone(), shard.me.clone(), shard.nudge.clone()),
        );
        *shard.committer.lock() = Some(task);
        let task = world.spawn("record-memory", shrink_when_pressed(shard.me.clone()));
        *shard.shrinking.lock() = Some(task);
        Ok(shard)
    }

    fn assemble(opening: &Opening, opened: Opened) -> Arc<Self> {
        let Opened {
            epoch,
            session,
            previous,
            log,
            catalog,
            tree,
            last_commit,
            families,
            floor,
            unflushed,
        } = opened;
        let world = &opening.world;
        // Simulated runs keep their sequence of random numbers: they don't draw a seed.
        let seed = (!world.is_simulated()).then(|| world.random_u64());
        let share = opening.memory.share();
        let ahead = Ahead::new(share.limit());
        let records = Records::new(share, last_commit);
        let state = ShardState {
            records: records.with_seed(seed.unwrap_or_default()),
            ahead,
            notes: Vec::new(),
            sessions: Sessions::default(),
            reserved: ReservedNumbers::default(),
            numbers: Numbers::default(),
            holders: Arc::new(Nobody),
            durable: last_commit,
            frozen: None,
            changes: 0,
            removals: 0,
            nudged: false,
            failed: None,
            taken: None,
            floor,
        };
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            world: opening.world.clone(),
            shard: opening.shard,
            families: Mutex::new(families.into()),
            epoch,
            run: opening.run,
            session,
            previous,
            log,
            catalog,
            tree,
            state: Mutex::new(state),
            running: Mutex::new(None),
            wanted: Wanted::default(),
            durable_changed: Notify::new(),
            nudge: Arc::new(Notify::new()),
            committer: Mutex::new(None),
            listing: Mutex::new(None),
            shrinking: Mutex::new(None),
            unflushed: Mutex::new(Some(unflushed)),
        })
    }

    /// Opens a session for a run of a daemon; durable when it returns, so that the session may write
    /// segments then. The same request again changes nothing.
    ///
    /// # Errors
    /// `SessionEnded` if the session has ended or its id is too old: take a new id. `Exists` if another
    /// run opened it. `Unavailable` if the shard was given up.
    pub async fn open_session(&self, session: SessionId, run: NodeRun) -> Result<()> {
        self.begin_session(session, |sessions| sessions.open(session, run))
            .await
    }

    /// As [`Shard::open_session`], for the work of this owner itself.
    ///
    /// # Errors
    /// As [`Shard::open_session`].
    pub async fn open_own_session(&self, session: SessionId) -> Result<()> {
        self.begin_session(session, |sessions| sessions.open_own(session, self.run))
            .await
    }

    async fn begin_session(
        &self,
        session: SessionId,
        open: impl FnOnce(&mut Sessions) -> Result<Effects>,
    ) -> Result<()> {
        let commit = {
            let mut state = self.state.lock();
            state.alive()?;
            let is_new = state.sessions.standing(session) == Standing::Unknown;
            let effects = open(&mut state.sessions)?;
            if is_new {
                // It never had records here: the tree isn't searched for them.
                state.records.session_began(session);
                if !self.world.has_planted(Planted::DropSessionRecord) {
                    state.change(effects, None);
                }
            }
            state.newest_change()
        };
        self.sync_to(commit).await
    }

    /// Ends a session: with the next commit it has ended for ever, and its stream, slots and reserved
    /// numbers are removed.
    ///
    /// # Errors
    /// `Unavailable` if the shard was given up.
    pub async fn end_session(&self, session: SessionId) -> Result<()> {
        let records = self.records_of(session).await?;
        {
            let mut state = self.state.lock();
            state.alive()?;
            state.records.session_ended(session);
            let mut gone: Vec<_> = records.into_iter().map(|key| (key, None)).collect();
            gone.extend(state.sessions.end(session, self.run).0);
            if !gone.is_empty() {
                state.change(Effects(gone), None);
            }
        }
        // Those of an operation that was applied between the search and the end. None is from now on.
        let late = self.records_of(session).await?;
        if !late.is_empty() {
            let gone = late.into_iter().map(|key| (key, None)).collect();
            let mut state = self.state.lock();
            state.alive()?;
            state.change(Effects(gone), None);
        }
        Ok(())
    }

    /// The records of a session that its end removes: those that can be read. Nobody asks for the others once it has ended;
    /// others wait for that, and for what it holds.
    async fn records_of(&self, session: SessionId) -> Result<Vec<Key>> {
        let slot = |session| Key::Slot { session, slot: 0 };
        let reserved = |session| Key::Reserved {
            session,
            fileset: FilesetId(0),
        };
        let next = session.next();
        let mut keys = Vec::new();
        for (first, end) in [
            (slot(session), slot(next)),
            (Key::Stream(session), Key::Stream(next)),
            (reserved(session), reserved(next)),
        ] {
            let mut from = first;
            loop {
                let page = self.scan_readable(&from, &end, SESSION_PAGE).await?;
                keys.extend(page.iter().map(|(key, _)| key.clone()));
                match page.last() {
                    Some((last, _)) if page.len() == SESSION_PAGE => from = successor(last),
                    _ => break,
                }
            }
        }
        Ok(keys)
    }

    /// Runs one operation; returns the answer and the newest commit that it shows. Immediate if its
    /// records are hot; otherwise reads them from the tree first.
    ///
    /// # Errors
    /// The operation's refusals; `Unavailable` if the shard was given up or the tree can't be read.
    pub async fn execute(
        &self,
        operation: &Operation,
        stamp: &Stamp,
    ) -> Result<(Reply, CommitNumber)> {
        let (ranked, commit) = self.execute_ranked(operation, stamp).await?;
        Ok((ranked.reply, commit))
    }

    /// As [`Shard::execute`], with the operation's rank in history.
    async fn execute_ranked(
        &self,
        operation: &Operation,
        stamp: &Stamp,
    ) -> Result<(Ranked, CommitNumber)> {
        match self.attempt(operation, stamp) {
            Attempt::Done(answer, commit) => answer.map(|ranked| (ranked, commit)),
            other => Box::pin(self.execute_slowly(operation, stamp, other)).await,
        }
    }

    /// As [`Shard::execute`], if everything that the operation needs is in memory; otherwise nothing
    /// was done.
    pub fn execute_now(&self, operation: &Operation, stamp: &Stamp) -> Option<Result<Ranked>> {
        match self.attempt(operation, stamp) {
            Attempt::Done(answer, _) => Some(answer),
            Attempt::Missing(_) | Attempt::Full => None,
        }
    }

    /// As [`Shard::execute_now`] for an open session, with the newest commit that the answer shows, refusals
    /// included. `None` also if the session isn't open.
    pub fn execute_in_session(
        &self,
        operation: &Operation,
        stamp: &Stamp,
    ) -> Option<(Result<Ranked>, CommitNumber)> {
        let state = self.state.lock();
        // Under the lock under which it ends.
        if state.sessions.standing(stamp.session) != Standing::Open {
            return None;
        }
        match self.attempt_on(state, operation, stamp) {
            Attempt::Done(answer, shows) => Some((answer, shows)),
            Attempt::Missing(_) | Attempt::Full => None,
        }
    }

    /// As [`Shard::execute`], with the operation's rank in history and the newest commit that the answer shows, a refusal as
    /// well: for other clients it must not leave the process before that is [settled](Shard::settle).
    ///
    /// # Errors
    /// As [`Shard::execute`].
    pub async fn execute_shown(
        &self,
        operation: &Operation,
        stamp: &Stamp,
    ) -> (Result<Ranked>, CommitNumber) {
        match self.attempt(operation, stamp) {
            Attempt::Done(answer, commit) => (answer, commit),
            other => match Box::pin(self.execute_slowly(operation, stamp, other)).await {
                Ok((ranked, commit)) => (Ok(ranked), commit),
                // A refusal shows records too, and a slot may remember it.
                Err(error) => (Err(error), self.newest_change()),
            },
        }
    }

    /// Waits until all that the answer to an operation shows is durable.
    ///
    /// # Errors
    /// `Unavailable` if it can't be made durable.
    pub async fn settle(&self, operation: &Operation, commit: CommitNumber) -> Result<()> {
        self.world.at(Point::OperationRun).await;
        let shows_undurable = operation.is_read() && self.world.has_planted(Planted::ShowUndurable);
        if !self.world.has_planted(Planted::AnswerUndurable) && !shows_undurable {
            self.sync_to(commit).await?;
        }
        Ok(())
    }

    async fn execute_slowly(
        &self,
        operation: &Operation,
        stamp: &Stamp,
        first: Attempt,
    ) -> Result<(Ranked, CommitNumber)> {
        let work = async {
            let pinned = Pinned::of(self, operation);
            let mut attempt = first;
            for _ in 0..FETCH_ROUNDS_MAX {
                match attempt {
                    Attempt::Done(answer, commit) => {
                        self.read_on_after(operation, &answer);
                        return answer.map(|ranked| (ranked, commit));
                    }
                    Attempt::Missing(needs) => pinned.fetch(needs).await?,
                    Attempt::Full => self.wait_for_room().await?,
                }
                attempt = self.attempt(operation, stamp);
            }
            Err(too_often_evicted())
        };
        let outcome = self.world.timeout(FETCH_DEADLINE, work).await;
        outcome.unwrap_or_else(|_| {
            let text = format!(
                "shard {} couldn't read its records within {FETCH_DEADLINE:?}",
                self.shard
            );
            Err(Error::new(ErrorKind::Unavailable, text))
        })
    }

    pub(crate) fn attempt(&self, operation: &Operation, stamp: &Stamp) -> Attempt {
        self.attempt_on(self.state.lock(), operation, stamp)
    }

    fn attempt_on(
        &self,
        mut guard: MutexGuard<'_, ShardState>,
        operation: &Operation,
        stamp: &Stamp,
    ) -> Attempt {
        let state = &mut *guard;
        if let Err(error) = state.alive() {
            return Attempt::Done(Err(error), CommitNumber(0));
        }
        if notes::changes(operation) && state.is_full() {
            return Attempt::Full;
        }
        let newest = state.newest_rank(self.epoch);
        let (open, rank) = (newest.commit, newest.next());
        let holders = &state.holders;
        let is_held = |inode| holders.is_held(inode);
        let view = state.records.view(&is_held).giving(&state.numbers);
        let applied = namespace::apply(operation, stamp, rank, &view);
        let applied = match &applied {
            Ok(Outcome {
                before: Some(before),
                ..
            }) if before.epoch < self.epoch && self.world.has_planted(Planted::ForgetReplies) => {
                let anew = Stamp {
                    turn: Turn::Own,
                    ..*stamp
                };
                namespace::apply(operation, &anew, rank, &view)
            }
            _ => applied,
        };
        let shown = view.shown();
        let (mut effects, mut answer) = match applied {
            Ok(Outcome {
                effects,
                reply,
                before,
            }) => {
                let unchanged = if effects.0.is_empty() { newest } else { rank };
                let rank = before.unwrap_or(unchanged);
                (effects, Ok(Ranked { reply, rank }))
            }
            Err(Stop::Missing(needs)) => return Attempt::Missing(needs),
            Err(Stop::Refused(error)) => return Attempt::Done(Err(error), shown),
            Err(Stop::RefusedInSlot(error, effects)) => (effects, Err(error)),
        };
        if effects.0.is_empty() {
            return Attempt::Done(answer, shown);
        }
        // Not before it is known that this isn't the repetition of one that was done.
        if names_group_below(operation, state.floor) {
            let text = "the pool has left the groups of these segments: write them again";
            answer = Err(Error::new(ErrorKind::Stale, text));
            // A stream goes on behind it, so its number is used up.
            effects.0.retain(|(key, _)| matches!(key, Key::Stream(_)));
            if effects.0.is_empty() {
                return Attempt::Done(answer, shown);
            }
        }
        state.change(effects, Some((operation, stamp)));
        if matches!(operation, Operation::CreateHeld { .. })
            && let Ok(made) = &answer
        {
            state.note_made(stamp.session, &made.reply);
        }
        state.records.make_room();
        let nudge = !state.nudged && state.wants_commit();
        state.nudged |= nudge;
        drop(guard);
        if nudge {
            self.nudge.notify_one();
        }
        Attempt::Done(answer, open)
    }

    /// From now on publishes that name a group below `floor` are refused with `Stale`, and no object
    /// of the tree gets a segment there. What was published before may name them.
    pub async fn refuse_below(&self, floor: GroupId) {
        {
            let mut state = self.state.lock();
            state.floor = state.floor.max(floor);
        }
        self.catalog.refuse_below(floor).await;
    }

    /// One record, from memory or the tree.
    ///
    /// # Errors
    /// `Unavailable` if the tree can't be read.
    pub async fn record(&self, key: &Key) -> Result<Option<Record>> {
        for _ in 0..FETCH_ROUNDS_MAX {
            self.check_alive()?;
            if let Some(known) = self.state.lock().records.get(key) {
                return Ok(known);
            }
            // What it brings may be evicted before it is looked at: that doesn't say that there is
            // no record.
            let pinned = Pinned::new(self);
            pinned.fetch(vec![Need::Key(key.clone())]).await?;
            if let Some(known) = self.state.lock().records.get(key) {
                return Ok(known);
            }
        }
        Err(too_often_evicted())
    }

    /// Makes everything durable, flushes the tree's memory to tables, closes.
    ///
    /// # Errors
    /// Why not everything could be made durable or flushed; the shard is closed all the same.
    pub async fn close(&self) -> Result<()> {
        let mut synced = self.sync().await;
        // Changes answered meanwhile must become durable too: ends only when none are left.
        while synced.is_ok() && !self.end_if_clean() {
            synced = self.sync().await;
        }
        // The last commit may not be in the tree yet.
        let running = self.running.lock().clone();
        if let Some(running) = running {
            let _ = running.wait().await;
        }
        drop(self.committer.lock().take());
        self.drop_running();
        drop(self.listing.lock().take());
        self.give_up(&ErrorKind::ShuttingDown.into());
        let closed = self.tree.close().await;
        synced.and(closed)
    }

    /// Stops answering if everything is durable.
    fn end_if_clean(&self) -> bool {
        let mut state = self.state.lock();
        let clean = state.newest_change() <= state.durable;
        if clean && state.failed.is_none() {
            let text = format!("shard {} is closed", self.shard);
            state.failed = Some(Error::new(ErrorKind::Unavailable, text));
        }
        clean
    }

    /// Reads the owner's initial state before serving, as often as its budget allows if it retries.
    async fn learn(&self, retries: bool) -> Result<()> {
        let deadline = Deadline::after(&self.world, LEARN_BUDGET);
        let mut pause = LEARN_PAUSE_MIN;
        loop {
            let late = |_| Err(too_late(LEARN_BUDGET));
            let learned = deadline.bound(&self.world, self.learn_once()).await;
            let Err(error) = learned.unwrap_or_else(late) else {
                return Ok(());
            };
            let is_over = self.check_alive().is_err() || self.tree.failed().is_some();
            if is_over || !retries || deadline.has_passed(&self.world) {
                let step = format!("read the initial state of shard {}", self.shard);
                return Err(error.while_doing(step));
            }
            tracing::warn!(shard = self.shard.0, %error, ?pause, "the shard can't be read yet");
            let rest = deadline.rest(&self.world);
            self.world.sleep(pause.min(rest)).await;
            pause = (pause * 2).min(LEARN_PAUSE_MAX);
        }
    }

    async fn learn_once(&self) -> Result<()> {
        self.make_first_filesets().await?;
        self.skip_given_numbers().await?;
        self.learn_sessions().await?;
        self.learn_reserved().await?;
        self.learn_orphans().await
    }

    /// Goes beyond all inode numbers that owners before can have given. This owner gives none before that is durable
    /// ([`crate::numbers`]); it is with what [`Shard::learn_sessions`] writes.
    async fn skip_given_numbers(&self) -> Result<()> {
        let (mut from, to) = namespace::Table::Counters.range();
        loop {
            // Nothing is made in a fileset whose counters are damaged.
            let page = self.scan_readable(&from, &to, OPENING_PAGE).await?;
            let Some((last, _)) = page.last() else {
                return Ok(());
            };
            from = successor(last);
            let mut state = self.state.lock();
            state.alive()?;
            for (key, record) in page {
                let (Key::Counters(fileset), Record::Counters(found)) = (&key, &record) else {
                    continue;
                };
                if let Some(counters) = state.numbers.begin(*fileset, found) {
                    let counters = Record::Counters(Arc::new(counters));
                    state.change(Effects(vec![(key, Some(counters))]), None);
                }
            }
        }
    }

    /// Reads the sessions, ends those of owners before, which can't commit anything any more, and
    /// opens this owner's: durable before anything is served, because the next owner is told only
    /// of this one.
    async fn learn_sessions(&self) -> Result<()> {
        let (mut from, to) = namespace::Table::Sessions.range();
        let mut known = Vec::new();
        loop {
            let page = self.scan_readable(&from, &to, OPENING_PAGE).await?;
            let Some((last, _)) = page.last() else { break };
            from = successor(last);
            known.extend(
                page.into_iter()
                    .filter_map(|(key, record)| match (key, record) {
                        (Key::Session(id), Record::Session(session)) => Some((id, *session)),
                        _ => None,
                    }),
            );
        }
        let commit = {
            let mut state = self.state.lock();
            state.sessions = Sessions::of(known);
            let mut former = state.sessions.of_former_owners(self.run);
            if self.previous != SessionId(0) {
                former.push(self.previous);
            }
            let mut changes = Vec::new();
            for owner in former {
                changes.extend(state.sessions.end(owner, self.run).0);
            }
            changes.extend(state.sessions.open_own(self.session, self.run)?.0);
            if !changes.is_empty() {
                state.change(Effects(changes), None);
            }
            state.newest_change()
        };
        self.sync_to(commit).await
    }

    /// Reads which inode numbers sessions have reserved.
    async fn learn_reserved(&self) -> Result<()> {
        let (mut from, to) = namespace::Table::Reserved.range();
        loop {
            // With the numbers of a damaged record nothing is made.
            let page = self.scan_readable(&from, &to, OPENING_PAGE).await?;
            let Some((last, _)) = page.last() else {
                return Ok(());
            };
            from = successor(last);
            let mut state = self.state.lock();
            for (key, record) in &page {
                // The end of a session can be durable without that of its last records (`end_session`).
                if let Key::Reserved { session, .. } = key
                    && state.sessions.standing(*session) == Standing::Ended
                {
                    continue;
                }
                state.reserved.note(key, Some(record));
            }
        }
    }

    /// Reads all orphans into the hot records: they are few and often looked up.
    async fn learn_orphans(&self) -> Result<()> {
        let (mut from, to) = namespace::Table::Orphans.range();
        loop {
            // A damaged one isn't released until it is repaired; it must not keep the shard closed.
            let page = self.scan_readable(&from, &to, OPENING_PAGE).await?;
            let mut state = self.state.lock();
            let Some((last, _)) = page.last() else {
                state.records.orphans_offered();
                return Ok(());
            };
            from = successor(last);
            for (key, record) in page {
                state.records.offer(key, Some(record));
            }
        }
    }

    /// Ends an owner that couldn't begin to serve: nothing goes on in the background. A commit under
    /// way holds the shard: without this, one that hangs would keep it.
    pub fn abandon(&self, why: &Error) {
        self.give_up(why);
        drop(self.committer.lock().take());
        self.drop_running();
        self.log.end(why.clone());
    }

    /// Ends a shard that was given up and returns the changes that aren't durable. Takes at most a
    /// part of [`crate::OPEN_MAX`].
    pub async fn end_given_up(&self) -> Unflushed {
        self.give_up(&ErrorKind::ShuttingDown.into());
        let running = self.running.lock().clone();
        drop(self.committer.lock().take());
        drop(self.listing.lock().take());
        if let Some(running) = running {
            let waits = self.waits_for_commit(running.wait());
            let ended = self.world.timeout(LAST_COMMIT_BUDGET, waits).await;
            if ended.is_err() {
                tracing::info!(shard = self.shard.0, "its last commit is applied again");
            }
        }
        self.drop_running();
        let closed = self.world.timeout(LET_GO_BUDGET, self.tree.close()).await;
        if closed.is_err() {
            tracing::info!(
                shard = self.shard.0,
                "its tree isn't closed; its log is replayed"
            );
        }
        // The next owner here has as much.
        drop(self.unflushed.lock().take());
        let mut state = self.state.lock();
        let mut commits = Vec::new();
        if let Some(frozen) = state.frozen.take() {
            commits.push((frozen.number, frozen.rows));
        }
        let is_dirty = state.newest_change() > state.durable || !commits.is_empty();
        let (number, rows) = state.records.freeze();
        commits.push((number, Arc::new(rows)));
        state.taken = is_dirty.then_some(number);
        Unflushed {
            lineage: Lineage::new(Some(self.session)),
            open: number,
            commits,
        }
    }

    /// Applies changes that this process answered as an earlier owner but didn't make durable.
    fn bring_in(&self, unflushed: &Unflushed) {
        let mut state = self.state.lock();
        let durable = state.durable;
        state.records.raise_open_commit(unflushed.open);
        for (number, rows) in &unflushed.commits {
            if *number > durable && !rows.is_empty() {
                state.changes += 1;
                state.records.restore(rows);
            }
        }
    }
}

pub(crate) fn too_often_evicted() -> Error {
    let text = format!(
        "records were evicted {FETCH_ROUNDS_MAX} times while an operation was fetching them"
    );
    Error::new(ErrorKind::Unavailable, text)
}

/// Whether the operation publishes a segment in a group below `floor`.
fn names_group_below(operation: &Operation, floor: GroupId) -> bool {
    let Operation::Publish(publish) = operation else {
        return false;
    };
    floor > GroupId(0)
        && publish.extents.iter().any(|extent| match &extent.kind {
            ExtentKind::Data { place, .. } => place.group < floor,
            _ => false,
        })
}
