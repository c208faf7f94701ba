//! Runs operations on the shard to their ends, across take-overs.

use crate::host::Host;
use model::operation::{Ranked, Stamp, Turn};
use model::owner::Usage;
use model::{CommitNumber, Error, ErrorKind, InodeId, Operation, Reply, Result, SegmentPlace};
use namespace::{Key, Record};
use shard::Shard;
use std::sync::Arc;
use world::Point;

/// Most segments condemned by one operation.
const CONDEMNED_MAX: usize = 1024;
/// Most steps of one truncate: 2^40 extents are more than any file has.
const CUT_STEPS_MAX: u64 = 1 << 28;

/// What an answer shows: all of a shard up to a commit.
pub(crate) struct Look {
    shard: Arc<Shard>,
    commit: CommitNumber,
}

impl Host {
    /// Runs an operation on the shard, taking it over again if it was given up. An operation
    /// refused by a given-up shard was not applied.
    pub(crate) async fn run(&self, operation: &Operation, stamp: &Stamp) -> Result<Reply> {
        let ranked = self.run_as(operation, stamp, false).await?;
        Ok(ranked.reply)
    }

    /// As [`Host::run`], with the operation's rank; durable if it must be.
    pub(crate) async fn run_as(
        &self,
        operation: &Operation,
        stamp: &Stamp,
        durable: bool,
    ) -> Result<Ranked> {
        loop {
            let (answer, look) = self.look(operation, stamp).await?;
            if !durable || self.settle(operation, look).await? {
                return answer;
            }
        }
    }

    /// Runs an operation on the shard, taking it over again if it was given up; what the answer shows may not be durable yet.
    pub(crate) async fn look(
        &self,
        operation: &Operation,
        stamp: &Stamp,
    ) -> Result<(Result<Ranked>, Look)> {
        loop {
            let shard = self.shard();
            let (answer, commit) = shard.execute_shown(operation, stamp).await;
            match answer {
                Err(error) if is_of_given_up(&shard, &error) => {
                    Box::pin(self.take_over_again(&shard)).await?;
                }
                answer => return Ok((answer, Look { shard, commit })),
            }
        }
    }

    /// Waits until what a look has shown is durable. False if its shard was given up first, and is taken over again: then
    /// it may not be true any more.
    pub(crate) async fn settle(&self, operation: &Operation, look: Look) -> Result<bool> {
        match look.shard.settle(operation, look.commit).await {
            Err(error) if is_of_given_up(&look.shard, &error) => {
                Box::pin(self.take_over_again(&look.shard)).await?;
                Ok(false)
            }
            settled => settled.map(|()| true),
        }
    }

    /// Runs an operation of the metanode itself, which neither adds names nor removes any.
    pub(crate) async fn run_own(&self, operation: &Operation) -> Result<Reply> {
        let stamp = self.stamp();
        let reply = self.run_as(operation, &stamp, false).await;
        let done = self.finish_cuts(operation, &stamp, reply, false).await?;
        Ok(done.reply)
    }

    /// Puts segments on the dead list that nothing points at and nothing ever will: their blobs are
    /// deleted once that is durable, so that a new owner knows what an old one may be deleting.
    pub(crate) async fn condemn(&self, places: Vec<SegmentPlace>) -> Result<()> {
        for part in places.chunks(CONDEMNED_MAX) {
            let places = part.to_vec();
            self.run_own(&Operation::Condemn { places }).await?;
        }
        Ok(())
    }

    /// Finishes the truncates that an answer left or met; then the answer is the operation's.
    pub(crate) async fn finish_cuts(
        &self,
        operation: &Operation,
        stamp: &Stamp,
        answer: Result<Ranked>,
        durable: bool,
    ) -> Result<Ranked> {
        match answer {
            Ok(first) if is_unfinished(&first.reply) => {
                let inode =
                    cut_inodes(operation)[0].expect("only operations on an inode leave a cut");
                let reply = self.finish_cut(inode, stamp).await;
                if durable {
                    self.sync().await?;
                }
                Ok(first.with(reply?))
            }
            Err(error) if error.kind() == ErrorKind::Busy && cut_inodes(operation)[0].is_some() => {
                for inode in cut_inodes(operation).into_iter().flatten() {
                    self.finish_cut(inode, stamp).await?;
                }
                self.run_as(operation, stamp, durable).await
            }
            answer => answer,
        }
    }

    async fn finish_cut(&self, inode: InodeId, stamp: &Stamp) -> Result<Reply> {
        let stamp = Stamp {
            turn: Turn::Own,
            ..*stamp
        };
        for _ in 0..CUT_STEPS_MAX {
            let reply = self.run(&Operation::ContinueCut { inode }, &stamp).await?;
            if !is_unfinished(&reply) {
                return Ok(reply);
            }
            self.world().at(Point::CutBegun).await;
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            format!("the truncate of inode {inode} doesn't end"),
        ))
    }

    /// Whether the operation of the stamp's slot has been answered: it must not be refused now. Also
    /// if that can't be seen before the shard is taken over again.
    pub(crate) async fn has_run(&self, stamp: &Stamp) -> Result<bool> {
        let Turn::Slot { slot, number } = stamp.turn else {
            return Ok(false);
        };
        let session = stamp.session;
        let key = Key::Slot { session, slot };
        let shard = self.shard();
        match shard.record(&key).await {
            Ok(Some(Record::Slot(last))) => Ok(last.number == number),
            Ok(_) => Ok(false),
            Err(error) if is_of_given_up(&shard, &error) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// One record, from memory or the tree; waits for a shard that is being taken over again.
    ///
    /// # Errors
    /// `Unavailable` if it can't be read; those of [`Host::take_over_again`].
    pub(crate) async fn record(&self, key: &Key) -> Result<Option<Record>> {
        loop {
            let shard = self.shard();
            match shard.record(key).await {
                Err(error) if is_of_given_up(&shard, &error) => {
                    Box::pin(self.take_over_again(&shard)).await?;
                }
                record => return record,
            }
        }
    }

    /// Makes everything answered so far durable. Concurrent calls share one commit.
    ///
    /// # Errors
    /// `Unavailable` if that isn't possible now; it is retried in the background.
    pub(crate) async fn sync(&self) -> Result<()> {
        loop {
            let shard = self.shard();
            match shard.sync().await {
                // Boxed: the take-over's future is large and rare, and every caller's would contain
                // it.
                Err(_) if shard.check_alive().is_err() => {
                    Box::pin(self.take_over_again(&shard)).await?
                }
                other => return other,
            }
        }
    }

    /// Space and inodes for `df` and statfs. No I/O if the counters are in memory.
    ///
    /// # Errors
    /// `Unavailable` while the shard is being taken over.
    pub(crate) async fn usage(&self) -> Result<Usage> {
        let pool = self.pool().usage();
        let mut usage = Usage {
            capacity: pool.capacity,
            used: pool.used,
            available: pool.available_to_users,
            ..Usage::default()
        };
        for family in self.families().iter() {
            let inode = family.root();
            let reply = match self.run_own(&Operation::GetUsage { inode }).await {
                // Its first fileset is just being made.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                reply => reply?,
            };
            let Reply::Usage {
                inodes,
                logical,
                allocated,
            } = reply
            else {
                unreachable!("GetUsage answers Usage")
            };
            usage.inodes = usage.inodes.saturating_add(inodes);
            usage.logical = usage.logical.saturating_add(logical);
            usage.allocated = usage.allocated.saturating_add(allocated);
        }
        Ok(usage)
    }
}

/// Whether an operation was refused because its shard was given up: it was not applied.
pub(crate) fn is_of_given_up(shard: &Shard, error: &Error) -> bool {
    error.kind() == ErrorKind::Unavailable && shard.check_alive().is_err()
}

/// The inodes whose unfinished truncate an operation may leave or find.
fn cut_inodes(operation: &Operation) -> [Option<InodeId>; 2] {
    match operation {
        Operation::SetAttributes { inode, .. }
        | Operation::ContinueCut { inode }
        | Operation::ChangeRange { inode, .. } => [Some(*inode), None],
        Operation::Publish(publish) => [Some(publish.inode), None],
        Operation::Share { from, to, .. } => [Some(*to), Some(*from)],
        _ => [None, None],
    }
}

/// Whether an answer may have left or met an unfinished truncate.
pub(crate) fn has_cuts(operation: &Operation, answer: &Result<Ranked>) -> bool {
    match answer {
        Ok(ranked) => is_unfinished(&ranked.reply),
        Err(error) => error.kind() == ErrorKind::Busy && cut_inodes(operation)[0].is_some(),
    }
}

fn is_unfinished(reply: &Reply) -> bool {
    matches!(reply, Reply::Attributes { unfinished, .. } if *unfinished)
}
