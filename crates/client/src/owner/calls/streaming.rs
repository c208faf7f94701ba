//! What the client does itself under delegations, and how it gets to the owner (`owner/stream.rs` has the rules).
//!
//! A task sends it: at once if somebody waits for it or much is there, else after [`STREAM_DELAY`], so that a file that is
//! closed soon goes as one operation and many go in one message. It ends when all is answered, and with the session. Who
//! publishes, and so waits, sends it itself unless a message is on its way: no other task has to wake first, nor to wake it
//! again. If that is given up, or fails, the task goes on.

#[cfg(test)]
mod tests;

use super::{Calls, Outcome, PAUSE_MAX, PAUSE_MIN};
use crate::known_names::{Making, OwnChange};
use crate::owner::stream::{Made, Stream};
use futures::future::{Either, select};
use model::limits::RESERVED_MAX;
use model::operation::{NewInode, Ranked, Stamp};
use model::owner::{OwnerCall, OwnerReply, OwnerRequest, StreamDone, Tenure};
use model::{
    Advice, Attributes, ErrorKind, FileName, InodeId, InodeNumber, Operation, Reply, Result,
    SessionId,
};
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, oneshot, watch};
use world::{Deadline, Part, Wait, Work};

/// How long operations are collected for which nobody waits. A client that dies loses them, as it loses what it has
/// written and not stored.
const STREAM_DELAY: Duration = Duration::from_millis(50);
/// The cause by which waits are listed for the owner to answer what was done here.
const STREAM_WAIT: &str = "the owner of the metadata, which hasn't heard what was done here";
/// What telling it is called.
const TELLS: &str = "tells the owner what was done here";

/// The session's stream, and who waits for it.
pub(super) struct Streaming {
    /// Locked after what is known of names, and after the tokens.
    stream: Mutex<Stream>,
    /// Whether the owner has yet to answer something. Read by every request.
    is_busy: AtomicBool,
    /// The number up to which the owner has answered; [`OVER`] once the session has ended.
    answered: watch::Sender<u64>,
    /// Publishes that the owner hasn't answered, by their numbers. Locked last.
    publishes: Mutex<BTreeMap<u64, Publishing>>,
    /// It should be sent at once.
    hurry: Notify,
    /// When operations go for which nobody waits. Locked last.
    due: Mutex<Option<Deadline>>,
    /// Who sends has it alone: each message goes once the one before is answered.
    sending: tokio::sync::Mutex<()>,
    /// The owner has refused what a program was told is done, and no program that syncs has heard of it.
    has_refused: AtomicBool,
}

/// Who waits for what became of a publish, and the change that it is until then.
struct Publishing {
    tell: oneshot::Sender<Result<StreamDone>>,
    change: Option<OwnChange>,
}

/// Lets its holder send. If something is urgent when it is dropped, the task sends it.
struct Turn<'a> {
    streaming: &'a Streaming,
    _alone: tokio::sync::MutexGuard<'a, ()>,
}

/// What became of a batch.
enum Batch {
    /// The owner has answered it.
    Answered,
    /// It is to be sent again.
    Again,
    /// There was none, or the session has ended.
    None,
}

/// Nothing is answered any more.
const OVER: u64 = u64::MAX;

impl Default for Streaming {
    fn default() -> Self {
        Self {
            stream: Mutex::default(),
            is_busy: AtomicBool::new(false),
            answered: watch::Sender::new(0),
            publishes: Mutex::default(),
            hurry: Notify::new(),
            due: Mutex::new(None),
            sending: tokio::sync::Mutex::default(),
            has_refused: AtomicBool::new(false),
        }
    }
}

impl Streaming {
    /// Unlocks the stream, which may have changed, and says what follows from that.
    fn unlock(&self, stream: MutexGuard<'_, Stream>) {
        let is_urgent = stream.is_urgent();
        self.unlock_calmly(stream);
        if is_urgent {
            self.hurry.notify_one();
        }
    }

    /// As [`Streaming::unlock`], for who has the turn to send what is urgent.
    fn unlock_calmly(&self, stream: MutexGuard<'_, Stream>) {
        let is_busy = stream.newest().is_some();
        self.is_busy.store(is_busy, Ordering::Release);
        drop(stream);
    }

    /// The turn to send, if nobody has it or waits for it.
    fn try_turn(&self) -> Option<Turn<'_>> {
        let alone = self.sending.try_lock().ok()?;
        Some(Turn {
            streaming: self,
            _alone: alone,
        })
    }

    /// Waits for the turn to send.
    async fn turn(&self) -> Turn<'_> {
        Turn {
            streaming: self,
            _alone: self.sending.lock().await,
        }
    }

    /// The number up to which the owner must have answered before a request.
    fn needs(&self, request: &OwnerRequest) -> Option<u64> {
        match self.is_busy.load(Ordering::Acquire) {
            true => self.stream.lock().needs(request),
            false => None,
        }
    }

    /// Ends with its session. Whether anything is lost.
    pub(super) fn end(&self) -> bool {
        let mut stream = self.stream.lock();
        let was_over = stream.is_over();
        let lost = stream.end();
        if lost > 0 && !was_over {
            tracing::error!(
                lost,
                "files that were made here and not synced are lost with the session"
            );
        }
        self.answered.send_replace(OVER);
        self.unlock(stream);
        // Dropped when they aren't locked any more: a change that ends locks what is known of names. With that locked another
        // thread makes a file and waits for the stream, and a third one, which has that, adds a publish.
        let publishes = std::mem::take(&mut *self.publishes.lock());
        drop(publishes);
        lost > 0
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.streaming.stream.lock().is_urgent() {
            self.streaming.hurry.notify_one();
        }
    }
}

impl Calls {
    /// Whether a request must wait until the owner knows what was done here.
    pub(super) fn is_behind_stream(&self, request: &OwnerRequest) -> bool {
        self.streaming.needs(request).is_some()
    }

    /// Whether a request says that a file is closed of which the owner needn't hear ([`Calls::close_unsent`]).
    pub(super) fn close_streamed(&self, request: &OwnerRequest) -> bool {
        match request {
            OwnerRequest::Unhold { inode, .. } => self.close_unsent(*inode),
            _ => false,
        }
    }

    /// A file is closed. True if it was made here and that hasn't gone: the owner needn't hear of its close.
    pub(super) fn close_unsent(&self, inode: InodeId) -> bool {
        self.is_streaming() && self.streaming.stream.lock().close(inode)
    }

    /// Makes a regular file, and holds it if its program `opens` it, if its directory is delegated to the session and nothing
    /// needs to be asked. Also says which session that is. What is only in the way for a while, [`Calls::until_quiet`] waits for.
    pub(in crate::owner) fn make_here(
        &self,
        directory: InodeId,
        name: &FileName,
        new: &NewInode,
        opens: bool,
    ) -> Making<(Made, SessionId)> {
        let Some(session) = self.session.get().copied() else {
            return Making::Not;
        };
        let now = self.world.wall();
        let (mut begins, mut is_full) = (false, false);
        let making = self.names.make(directory, name, |directory, above| {
            let mut stream = self.streaming.stream.lock();
            is_full = stream.is_full();
            let was_empty = stream.newest().is_none();
            let made = stream.make((directory, above), (name, new), opens, now);
            if was_empty {
                *self.streaming.due.lock() = Some(Deadline::after(&self.world, STREAM_DELAY));
            }
            begins = stream.begin_sending();
            self.streaming.unlock(stream);
            let made = made?;
            Some((made.attributes.inode, made.directory, made))
        });
        self.send_if(begins);
        match making {
            Making::Made(made) => Making::Made((made, session)),
            Making::Not if is_full => Making::Later,
            Making::Not => Making::Not,
            Making::Later => Making::Later,
        }
    }

    /// Waits until those changes of a directory have ended that are under way now, and the stream has room.
    pub(in crate::owner) async fn until_quiet(&self, directory: InodeId) {
        self.names.until_quiet(directory).await;
        // First: an answer that follows isn't missed, nor is the session's end.
        let mut answered = self.streaming.answered.subscribe();
        while self.streaming.stream.lock().is_full() {
            let changed = answered.changed().await;
            changed.expect("the sender is in the same place");
        }
    }

    fn send_if(&self, begins: bool) {
        if begins {
            let calls = self.me.upgrade().expect("an owner is used through its Arc");
            let sending = async move { calls.send_stream().await };
            let task = self.world.spawn("sends what was done here", sending);
            task.detach();
        }
    }

    /// Publishes bytes of a file that was made here in one message with what makes it. `None`: the owner is asked as always.
    /// Who asks has begun the `change`, which then lasts until the owner has answered.
    ///
    /// # Errors
    /// As those of any publish.
    pub(super) async fn publish_streamed(
        &self,
        request: &OwnerRequest,
        change: &mut Option<OwnChange>,
        deadline: Deadline,
    ) -> Option<Result<OwnerReply>> {
        let OwnerRequest::Execute { operation, .. } = request else {
            return None;
        };
        let Operation::Publish(publish) = operation else {
            return None;
        };
        let (told, begins, turn) = {
            let mut stream = self.streaming.stream.lock();
            let number = stream.publish(publish, self.world.wall())?;
            let (tell, told) = oneshot::channel();
            let publishing = Publishing {
                tell,
                change: change.take(),
            };
            self.streaming.publishes.lock().insert(number, publishing);
            let begins = stream.begin_sending();
            let turn = self.streaming.try_turn();
            match turn.is_some() {
                true => self.streaming.unlock_calmly(stream),
                false => self.streaming.unlock(stream),
            }
            (told, begins, turn)
        };
        self.send_if(begins);
        let _listed = self.list_streamed();
        let telling = async {
            let mut told = told;
            if let Some(turn) = turn {
                let sending = pin!(self.send_batch(&turn));
                // The end of the session is heard of at once, whatever is under way.
                let first = select(&mut told, sending).await;
                if let Either::Left((done, _)) = first {
                    return done;
                }
            }
            told.await
        };
        let done = match self.bound(deadline, telling).await {
            Ok(Ok(done)) => done,
            // The session has ended.
            Ok(Err(_)) => return Some(Err(super::ended(request.session().unwrap_or_default()))),
            Err(_) => return Some(Err(self.late(ErrorKind::Unknown))),
        };
        match done {
            Err(error) => Some(Err(error)),
            // An answer was lost, and whether it was refused isn't known any more: once more does no harm.
            Ok(done) => done.attributes.map(|attributes| {
                Ok(OwnerReply::Operation(Ranked {
                    reply: Reply::Attributes {
                        attributes,
                        unfinished: false,
                    },
                    rank: done.rank,
                }))
            }),
        }
    }

    /// Whether the owner has yet to answer something of the stream.
    pub(in crate::owner) fn is_streaming(&self) -> bool {
        self.streaming.is_busy.load(Ordering::Acquire)
    }

    /// Whether the owner has yet to answer something of the stream that was done with a file.
    pub(in crate::owner) fn is_untold(&self, inode: InodeId) -> bool {
        self.is_streaming() && self.streaming.stream.lock().concerned(inode).is_some()
    }

    /// The newest operation of the stream, and its session; `None` if the owner has answered all.
    pub(in crate::owner) fn newest_streamed(&self) -> Option<(SessionId, u64)> {
        let session = self.session.get().copied()?;
        let stream = self.is_streaming().then(|| self.streaming.stream.lock())?;
        Some((session, stream.newest()?))
    }

    /// A program is about to use a file that was made here: its attributes, if its operation brings the tokens for it.
    pub(in crate::owner) fn ask_for_tokens(&self, inode: InodeId) -> Option<Attributes> {
        let mut stream = self.is_streaming().then(|| self.streaming.stream.lock())?;
        stream.ask_for_tokens(inode)
    }

    /// Reserves numbers for files in a directory that is, or is about to be, delegated to the session.
    pub(in crate::owner) async fn reserve_numbers(&self, directory: InodeId) -> Result<()> {
        // Not with the stream locked: what is known of names is locked before it.
        let numbered = self.streaming.stream.lock().numbered();
        let left = numbered
            .into_iter()
            .filter(|other| *other != directory && !self.names.is_delegated(*other));
        let left: Vec<_> = left.collect();
        let wants_more = self.streaming.stream.lock().provide(directory, &left);
        if !wants_more {
            return Ok(());
        }
        let session = self.session.get().copied().unwrap_or_default();
        let operation = Operation::Reserve {
            inode: directory,
            inodes: RESERVED_MAX,
            data: 0,
        };
        let stamp = Stamp::own(self.world.wall(), session);
        let request = OwnerRequest::Execute { operation, stamp };
        match self.ask(&request).await? {
            OwnerReply::Operation(ranked) => {
                if let Reply::Reserved { inode, inodes, .. } = ranked.reply {
                    let run = inode.0..inode.0 + u64::from(inodes);
                    self.streaming.stream.lock().reserved(directory, run);
                }
                Ok(())
            }
            other => crate::owner::unexpected(&other),
        }
    }

    /// Gives numbers back that weren't used since this was asked last. Others that are on their way come before them in their
    /// runs, so this may overtake what is made with these. What can't be sent stays the directory's, and goes when that hasn't
    /// used it for as long again: the owner would keep room for it as long as the session lasts.
    pub(in crate::owner) async fn give_numbers_back(&self) {
        let unused = self.streaming.stream.lock().take_unused_numbers();
        let session = self.session.get().copied().unwrap_or_default();
        let mut unused = unused.into_iter();
        let mut unsent = None;
        for (directory, run) in unused.by_ref() {
            let first = InodeNumber(run.start);
            let operation = Operation::Reserve {
                inode: InodeId::new(directory.fileset(), first),
                inodes: 0,
                data: 0,
            };
            let stamp = Stamp::own(self.world.wall(), session);
            let request = OwnerRequest::Execute { operation, stamp };
            if let Err(error) = self.ask(&request).await {
                tracing::debug!(%directory, %error, "unused numbers aren't given back");
                // Then it certainly wasn't done. Otherwise it may be: it goes on being asked for until that is known, and these
                // aren't used any more.
                let is_unsent = error.kind() == ErrorKind::Unavailable;
                unsent = is_unsent.then_some((directory, run));
                break;
            }
        }
        let mut stream = self.streaming.stream.lock();
        let kept = unsent.into_iter().chain(unused);
        kept.for_each(|(directory, run)| stream.reserved(directory, run));
    }

    /// Waits until the owner knows what a request is about.
    pub(super) async fn behind_stream(
        &self,
        request: &OwnerRequest,
        deadline: Deadline,
    ) -> Result<()> {
        match self.streaming.needs(request) {
            Some(number) => self.streamed_by(number, deadline).await,
            None => Ok(()),
        }
    }

    /// Waits until the owner has answered up to a number.
    pub(super) async fn streamed_by(&self, number: u64, deadline: Deadline) -> Result<()> {
        let waiting = self.until_streamed(number);
        let in_time = self.bound(deadline, waiting).await;
        in_time.unwrap_or_else(|_| Err(self.late(ErrorKind::Unavailable)))
    }

    /// Whether the owner has refused what a program was told is done, since this was last asked.
    pub(in crate::owner) fn take_refused(&self) -> bool {
        self.streaming.has_refused.swap(false, Ordering::AcqRel)
    }

    /// The owner has refused something of the session before, and no program that syncs has heard of it.
    pub(in crate::owner) fn note_refused(&self) {
        self.streaming.has_refused.store(true, Ordering::Release);
    }

    /// Waits until the owner has made durable what was done here with a file or directory, or in one whose name is in it, until
    /// now, or the session has ended.
    ///
    /// # Errors
    /// `SessionEnded`: then what it hadn't answered is lost.
    pub(in crate::owner) async fn streamed(&self, inode: InodeId) -> Result<()> {
        self.all_streamed(&[inode]).await
    }

    /// The same of several of them.
    pub(super) async fn all_streamed(&self, inodes: &[InodeId]) -> Result<()> {
        let newest = {
            let stream = self.streaming.stream.lock();
            let newest = inodes.iter().filter_map(|inode| stream.concerned(*inode));
            newest.max()
        };
        match newest {
            Some(number) => self.until_streamed(number).await,
            None => Ok(()),
        }
    }

    /// As [`Calls::until_streamed`], with the number of an operation of that session.
    ///
    /// # Errors
    /// `SessionEnded` also if another session has followed: it has numbers of its own.
    pub(in crate::owner) async fn until_streamed_of(
        &self,
        session: SessionId,
        number: u64,
    ) -> Result<()> {
        match self.session.get() == Some(&session) {
            true => self.until_streamed(number).await,
            false => Err(super::ended(session)),
        }
    }

    /// Waits until the owner has answered up to a number.
    async fn until_streamed(&self, number: u64) -> Result<()> {
        let _listed = self.list_streamed();
        let mut answered = self.streaming.answered.subscribe();
        {
            let mut stream = self.streaming.stream.lock();
            stream.want(number);
            self.streaming.unlock(stream);
        }
        let answered = answered.wait_for(|answered| *answered >= number).await;
        match *answered.expect("the sender is in the same place") {
            OVER => Err(super::ended(
                self.session.get().copied().unwrap_or_default(),
            )),
            _ => Ok(()),
        }
    }

    /// Sends the stream until all of it is answered, or the session has ended.
    async fn send_stream(&self) {
        let mut pause = PAUSE_MIN;
        loop {
            self.until_due().await;
            let turn = self.streaming.turn().await;
            let sent = self.send_batch(&turn).await;
            drop(turn);
            match sent {
                Batch::Answered => pause = PAUSE_MIN,
                Batch::None => return,
                Batch::Again => {
                    self.world.sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        }
    }

    /// Waits until the stream should be sent: somebody waits for it, much is there, or something has been for long enough.
    async fn until_due(&self) {
        loop {
            // First: a hurry that follows isn't missed.
            let hurry = self.streaming.hurry.notified();
            let due = {
                let stream = self.streaming.stream.lock();
                let due = *self.streaming.due.lock();
                due.filter(|_| !stream.is_urgent())
            };
            // Later than when this began to wait, if others have sent all that was there, and there is more.
            let Some(due) = due.filter(|due| !due.has_passed(&self.world)) else {
                return;
            };
            let _hurried = due.bound(&self.world, hurry).await;
        }
    }

    /// Lists a wait for what is sent, whoever sends it.
    fn list_streamed(&self) -> Wait<'_> {
        let (part, now) = (Part::ForWork(Work::Stream), self.world.now());
        self.waiters.enter_as(part, STREAM_WAIT, None, now)
    }

    /// Sends the next operations once. If this is given up, they are sent again: what was done is done. Others may wait for
    /// it, so it is listed, also if the program sends them that waits for it.
    async fn send_batch(&self, turn: &Turn<'_>) -> Batch {
        let sending = self.send_operations(turn);
        self.world.at_work(TELLS, Work::Stream, sending).await
    }

    async fn send_operations(&self, _turn: &Turn<'_>) -> Batch {
        let session = self.session.get().copied().unwrap_or_default();
        let Some(operations) = self.streaming.stream.lock().batch() else {
            return Batch::None;
        };
        let mut call = OwnerCall {
            shard: self.shard,
            session,
            tenure: Tenure::default(),
            order: None,
            request: OwnerRequest::ExecuteStream {
                session,
                operations,
            },
        };
        let deadline = Deadline::after(&self.world, self.patience);
        let error = match self.ask_until(&mut call, deadline).await {
            // Nothing is waited for between the answer and this: it is taken in as a whole.
            Outcome::Answered(Ok(OwnerReply::Streamed(done))) => {
                self.note_streamed(&call.request, &done);
                return Batch::Answered;
            }
            Outcome::Answered(Ok(other)) => crate::owner::unexpected(&other),
            Outcome::Answered(Err(error)) | Outcome::NotRun(error) | Outcome::Unknown(error) => {
                error
            }
        };
        let is_over = error.kind() == ErrorKind::SessionEnded;
        if is_over || self.closed.load(Ordering::Acquire) {
            self.streaming.end();
            return Batch::None;
        }
        let advice = error.kind().advice();
        if !matches!(advice, Advice::Retry | Advice::RefreshMap | Advice::Wait) {
            // It would be refused for ever, and the owner takes nothing that comes behind it.
            tracing::error!(%error, "the owner refuses what was done here as a whole");
            let _ended = self.give_up_session(session);
            self.streaming.end();
            return Batch::None;
        }
        tracing::warn!(%error, "what was done here can't be told to the owner yet");
        Batch::Again
    }

    /// The owner has answered a batch.
    fn note_streamed(&self, request: &OwnerRequest, done: &[Result<StreamDone>]) {
        let OwnerRequest::ExecuteStream { operations, .. } = request else {
            unreachable!("a batch");
        };
        // What a faulty owner leaves out counts as refused.
        let left_out = Err(ErrorKind::Corrupt.into());
        let done: Vec<_> = done
            .iter()
            .chain(std::iter::repeat(&left_out))
            .take(operations.len())
            .collect();
        let mut published = Vec::new();
        for (operation, done) in operations.iter().zip(&done) {
            let waiting = self.streaming.publishes.lock().remove(&operation.number);
            if matches!(operation.operation, Operation::Publish(_)) {
                let waiting = waiting.map(|publishing| (publishing, (*done).clone()));
                published.extend(waiting);
            } else if let Err(error) = done {
                let inode = operation.made();
                tracing::error!(?inode, %error, "the owner has refused to make a file that a program was told is made");
                self.note_refused();
                // Nobody knows what its name leads to.
                drop(self.names.begin_change(&operation.operation));
            }
        }
        // Before anybody goes on who waits for them.
        if let Some(tokens) = self.tokens.get().and_then(Weak::upgrade) {
            let session = self.session.get().copied().unwrap_or_default();
            for (operation, done) in operations.iter().zip(done) {
                let Some(inode) = operation.made() else {
                    continue;
                };
                if done.is_err() {
                    tokens.refused(inode);
                }
                if operation.with_tokens {
                    let grants = done.as_ref().ok().and_then(|done| done.tokens);
                    tokens.born(session, inode, grants);
                }
            }
        }
        let mut stream = self.streaming.stream.lock();
        let answered = stream.answered(operations.len());
        // What has come meanwhile is collected for as long as what came first.
        *self.streaming.due.lock() = Some(Deadline::after(&self.world, STREAM_DELAY));
        self.streaming.answered.send_if_modified(|last| {
            let is_news = answered > *last;
            *last = answered.max(*last);
            is_news
        });
        self.streaming.unlock(stream);
        // Last, and with nothing locked: a quick thread that syncs goes on at once, and finds nothing left to wait for.
        for (publishing, done) in published {
            drop(publishing.change);
            // Nobody may wait any more: it is tried again later.
            let _told = publishing.tell.send(done);
        }
    }
}
