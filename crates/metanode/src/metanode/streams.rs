//! Runs operations of sessions' streams: their clients have answered them already under a delegation. Each is applied once,
//! after the one before, and answered once it is durable (`docs/protocols/streams.md`).

use crate::host::has_cuts;
use crate::metanode::Metanode;
use model::operation::{Rank, Ranked, Stamp, Turn};
use model::owner::{OwnerReply, STREAMED_MAX, StreamDone, Streamed};
use model::{Advice, Error, ErrorKind, FileKind, InodeId, Operation, Reply, Result, SessionId};
use namespace::{Key, Record};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use world::{Deadline, Point};

/// What this owner knows of sessions' streams besides their records.
#[derive(Default)]
pub(super) struct Streams {
    sessions: Mutex<BTreeMap<SessionId, Arc<tokio::sync::Mutex<Stream>>>>,
}

/// A session's stream. Who runs operations of it has it alone: then one that was applied is taken down with it, whatever
/// copies of its request come at the same time.
#[derive(Default)]
struct Stream {
    /// The last operation whose file counts as used by the session under this owner.
    held: u64,
    /// Why operations were refused, by their numbers: the record says only that they have been answered. Also of some that
    /// were put off; these are run again. At most [`STREAMED_MAX`].
    refused: BTreeMap<u64, Error>,
}

impl Streams {
    /// The stream of a session that `stands`.
    fn of(
        &self,
        session: SessionId,
        stands: impl FnOnce() -> Result<()>,
    ) -> Result<Arc<tokio::sync::Mutex<Stream>>> {
        let mut sessions = self.sessions.lock();
        // Under the lock: the end of a session forgets it afterwards.
        stands()?;
        Ok(sessions.entry(session).or_default().clone())
    }

    /// Forgets a session that isn't open any more.
    pub(super) fn forget(&self, session: SessionId) {
        self.sessions.lock().remove(&session);
    }
}

impl Stream {
    /// Takes down why an operation isn't done, before anything is waited for: who repeats it hears the same.
    fn refuse(&mut self, number: u64, error: &Error) {
        self.refused.insert(number, error.clone());
        while self.refused.len() > STREAMED_MAX {
            self.refused.pop_first();
        }
    }
}

impl Metanode {
    /// Runs operations of a session's stream, until the deadline. The same again changes nothing.
    ///
    /// None is refused because the pool is full: room for it is kept since its number was reserved (`room.rs`).
    ///
    /// # Errors
    /// `SessionEnded`. `Unknown` if earlier operations haven't come to this owner, or were lost with the one before; all others
    /// mean that they are to be sent again: some may have been applied, and none of them is sure to last.
    pub(super) async fn serve_stream(
        &self,
        session: SessionId,
        operations: &[Streamed],
        deadline: Deadline,
    ) -> Result<OwnerReply> {
        let of_session = self.streams.of(session, || self.check_standing(session))?;
        // It names this owner's tenure, so its client knows what was reclaimed.
        self.owes_nothing(session);
        let turn = deadline.bound(&self.world, of_session.lock()).await;
        let mut stream = turn.map_err(|_| {
            let text = "earlier operations of the stream are under way";
            Error::new(ErrorKind::InGrace, text)
        })?;
        let mut last = self.last_streamed(session).await?;
        let mut done = Vec::with_capacity(operations.len());
        for streamed in operations {
            let number = streamed.number;
            if last.saturating_add(1) < number {
                self.check_standing(session)?;
                let text = format!("operation {number} of a stream came after {last}");
                return Err(Error::new(ErrorKind::Unknown, text));
            }
            let stamp = self.stamp_of(session, streamed);
            let outcome = match number <= last {
                true => self.repeat(streamed, &stamp, &mut stream).await?,
                false => {
                    self.run_next(streamed, &stamp, &mut stream, deadline)
                        .await?
                }
            };
            last = last.max(number);
            done.push(outcome);
        }
        // The next request of the session may share this commit.
        drop(stream);
        self.sync().await?;
        let mut directories: Vec<_> = operations.iter().filter_map(Streamed::directory).collect();
        directories.dedup();
        self.tokens.note_streamed(session, directories.into_iter());
        Ok(OwnerReply::Streamed(done))
    }

    fn stamp_of(&self, session: SessionId, streamed: &Streamed) -> Stamp {
        let stamp = Stamp {
            now: streamed.now,
            latest: streamed.now,
            session,
            turn: Turn::Stream {
                number: streamed.number,
                fresh: streamed.fresh,
            },
        };
        stamp.received(self.world.wall())
    }

    /// The number of the last operation of the session's stream that has been answered; 0 if there was none.
    async fn last_streamed(&self, session: SessionId) -> Result<u64> {
        match self.host.record(&Key::Stream(session)).await? {
            Some(Record::Stream(last)) => Ok(last),
            _ => Ok(0),
        }
    }

    /// Runs the operation that is the next one of its stream.
    ///
    /// # Errors
    /// Why it isn't done yet. What it was refused with for good is its outcome.
    async fn run_next(
        &self,
        streamed: &Streamed,
        stamp: &Stamp,
        stream: &mut Stream,
        deadline: Deadline,
    ) -> Result<Result<StreamDone>> {
        let (operation, number) = (&streamed.operation, streamed.number);
        // At once for who holds the delegation. Kept until the tokens of what is made are given.
        let _claim = self.claim(operation, stamp.session, Some(deadline)).await?;
        self.world.at(Point::StreamClaimed).await;
        let answer = self.host.run_as(operation, stamp, false).await;
        // Nothing is waited for between this and what is taken down: a request that is given up does both or neither.
        let error = match answer {
            Ok(ranked) if is_new(&ranked) => {
                if matches!(operation, Operation::CreateHeld { .. }) {
                    // The shard has said so to the holders with the change itself.
                    stream.held = number;
                }
                return Ok(Ok(self.applied(streamed, stamp, stream, ranked)));
            }
            Ok(_) => return self.repeat(streamed, stamp, stream).await,
            Err(error) => error,
        };
        stream.refuse(number, &error);
        let answer = Err(error);
        let answer = match has_cuts(operation, &answer) {
            true => {
                let finished = self.host.finish_cuts(operation, stamp, answer, false);
                finished.await
            }
            false => answer,
        };
        match answer {
            Ok(ranked) => Ok(Ok(self.applied(streamed, stamp, stream, ranked))),
            Err(error) => {
                stream.refuse(number, &error);
                if self.last_streamed(stamp.session).await? < number {
                    if !is_final(&error) {
                        return Err(error);
                    }
                    self.use_up(stamp).await?;
                }
                Ok(Err(error))
            }
        }
    }

    /// Uses a number up whose operation the rules couldn't refuse, because what they would look at can't be read: those
    /// behind it go on.
    async fn use_up(&self, stamp: &Stamp) -> Result<()> {
        match self.host.run_as(&nothing(), stamp, false).await {
            Err(error) if error.kind() != ErrorKind::InvalidArgument => Err(error),
            _ => Ok(()),
        }
    }

    /// An operation was applied just now.
    fn applied(
        &self,
        streamed: &Streamed,
        stamp: &Stamp,
        stream: &mut Stream,
        ranked: Ranked,
    ) -> StreamDone {
        stream.refused.remove(&streamed.number);
        let rank = ranked.rank;
        let attributes = match ranked.reply {
            Reply::Attributes { attributes, .. } => Some(attributes),
            _ => None,
        };
        self.note_publish(&streamed.operation, stamp, &Ok(ranked));
        StreamDone {
            attributes,
            ..self.done(streamed, stamp.session, rank)
        }
    }

    /// Answers an operation that has been answered before, by this owner or one before it.
    async fn repeat(
        &self,
        streamed: &Streamed,
        stamp: &Stamp,
        stream: &mut Stream,
    ) -> Result<Result<StreamDone>> {
        let (number, session) = (streamed.number, stamp.session);
        if let Some(error) = stream.refused.get(&number) {
            return Ok(Err(error.clone()));
        }
        // Says where everything is that has been applied by now, whatever its own records are like.
        let rank = self.host.run_as(&nothing(), stamp, false).await?.rank;
        let inode = concerned(streamed);
        let found = match inode {
            Some(inode) => self.host.record(&Key::Inode(inode)).await,
            None => Ok(None),
        };
        let is_there = match found {
            Err(error) if is_final(&error) => return Ok(Err(error)),
            found => found?.is_some(),
        };
        if !is_there {
            let text = format!("operation {number} of a stream was refused, or its file has gone");
            return Ok(Err(Error::new(ErrorKind::NotFound, text)));
        }
        if let (Operation::CreateHeld { .. }, Some(inode)) = (&streamed.operation, inode)
            && number > stream.held
        {
            // Another owner has applied it. The client doesn't say that it holds it until it has the answer.
            self.check_standing(session)?;
            stream.held = number;
            self.holders.reclaim_made(session, inode, true);
            let is_open = self.shard().run_of_session(session).is_some();
            self.end_if_closed(session, is_open)?;
        }
        Ok(Ok(self.done(streamed, session, rank)))
    }

    fn done(&self, streamed: &Streamed, session: SessionId, rank: Rank) -> StreamDone {
        let made = streamed.made().filter(|_| streamed.with_tokens);
        let tokens = made.and_then(|inode| self.tokens.grant_made(session, inode));
        StreamDone {
            rank,
            attributes: None,
            tokens,
        }
    }
}

/// An operation that is refused whatever the records say, or answered if its number was used before: it asks for more than
/// there ever is, so none is read for it that may be damaged.
fn nothing() -> Operation {
    Operation::Reserve {
        inode: InodeId::ROOT,
        inodes: u32::MAX,
        data: 0,
    }
}

/// Whether an operation that fails so would fail again, as long as the records are what they are.
fn is_final(error: &Error) -> bool {
    let is_of_session = matches!(
        error.kind(),
        ErrorKind::SessionEnded | ErrorKind::ShuttingDown
    );
    !is_of_session && matches!(error.advice(), Advice::FixRequest | Advice::GiveUp)
}

/// Whether an operation of a stream was applied just now: of one that was answered before no answer is known.
fn is_new(ranked: &Ranked) -> bool {
    ranked.reply != Reply::Done
}

/// The file that an operation of a stream makes or changes; `None` if there is no such number.
fn concerned(streamed: &Streamed) -> Option<InodeId> {
    match &streamed.operation {
        Operation::Publish(publish) => Some(publish.inode),
        _ => streamed.made(),
    }
}

/// Whether operations are such that clients answer them before the owner does, in the order of their numbers.
pub(super) fn are_sound(operations: &[Streamed]) -> bool {
    let follows = |pair: &[Streamed]| pair[0].number.checked_add(1) == Some(pair[1].number);
    operations.iter().all(is_sound) && operations.windows(2).all(follows)
}

fn is_sound(streamed: &Streamed) -> bool {
    streamed.number > 0
        && match &streamed.operation {
            Operation::Create { new, .. } | Operation::CreateHeld { new, .. } => {
                new.kind == FileKind::File && streamed.fresh.inode.is_some()
            }
            Operation::Publish(publish) => publish.replaces.is_none() && !streamed.with_tokens,
            _ => false,
        }
}
