//! The shard's log: entries on every NSD of a view, acknowledged in order (`docs/design.md`).
//!
//! An entry is acknowledged once all members of the view have it durably and all earlier entries
//! are acknowledged. A member that fails or is late is first replaced by compare-and-set in
//! coordination ([`view`]); then every unacknowledged entry is put again, to the new view. That is on NSDs
//! of this node alone only if the cluster hears this node ([`crate::touch`]).

mod append;
mod clock;
mod lateness;
mod view;

#[cfg(test)]
mod late_by_call;
#[cfg(test)]
mod tests;
/// The same tests with all NSDs on another node.
#[cfg(test)]
#[allow(clippy::duplicate_mod, reason = "the same tests, a second time")]
#[path = "log/tests.rs"]
mod tests_by_call;

pub(crate) use clock::Clock;

use crate::frame::{CommitFrame, EntryKind, HEADER_BYTES, Header, PART_BYTES_MAX, seal_entry};
use crate::touch::Touch;
use append::Append;
use bytes::{Bytes, BytesMut};
use coordination::{Coordination, ShardRecord, Versioned};
use lateness::Lateness;
use model::{
    CommitNumber, EntryNumber, Error, ErrorKind, NsdId, Result, ShardEpoch, ShardId, Timestamp,
};
use nsd::Handle;
use parking_lot::Mutex;
use pool::Pool;
use std::collections::{BTreeSet, VecDeque};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use world::{Instant, World};

/// Most entries in flight after the newest acknowledged one; later ones wait. Take-over relies on
/// this: an entry further back was acknowledged.
pub(crate) const IN_FLIGHT_MAX: u64 = 256;
/// Spacing of the marks that measure the log after an entry, in bytes and in time.
const MARK_BYTES: u64 = 256 * 1024;
const MARK_AGE: Duration = Duration::from_secs(1);
/// Most marks kept: 64 GiB of log, or three days of it.
const MARKS_MAX: usize = 1 << 18;

/// The log of one owner (one epoch) of a shard. Cheap to clone.
#[derive(Clone)]
pub struct Log {
    shared: Arc<Shared>,
}

/// Initial state of an owner's log after a take-over.
pub(crate) struct Start {
    pub(crate) world: World,
    pub(crate) coordination: Coordination,
    pub(crate) pool: Arc<Pool>,
    pub(crate) touch: Arc<dyn Touch>,
    pub(crate) record: Versioned<ShardRecord>,
    pub(crate) members: Vec<Arc<Handle>>,
    pub(crate) end: EntryNumber,
    pub(crate) last_commit: CommitNumber,
    pub(crate) clock: Arc<Clock>,
    /// Existing entries, oldest first.
    pub(crate) stored: Vec<Stored>,
}

/// An entry that was in the log before its owner.
pub(crate) struct Stored {
    pub(crate) number: EntryNumber,
    pub(crate) bytes: u64,
    /// The shard's time when it was appended.
    pub(crate) time: Timestamp,
}

struct Shared {
    world: World,
    coordination: Coordination,
    pool: Arc<Pool>,
    touch: Arc<dyn Touch>,
    shard: ShardId,
    epoch: ShardEpoch,
    clock: Arc<Clock>,
    state: Mutex<LogState>,
    /// Signals changes of `state` that an append may wait for.
    moved: Notify,
    /// The shard's record as this owner knows it; held while it is being changed.
    record: tokio::sync::Mutex<Versioned<ShardRecord>>,
}

struct LogState {
    members: Arc<[Arc<Handle>]>,
    /// Counts the views of this owner.
    generation: u64,
    /// Set while the view changes: nothing is acknowledged, because the new view starts after the
    /// newest acknowledged entry.
    view_changing: bool,
    /// When it was last found that a failed member can't be left yet.
    kept: Option<Instant>,
    next: EntryNumber,
    acknowledged: EntryNumber,
    /// Durable on the view of this generation, but an earlier entry isn't.
    done: BTreeSet<EntryNumber>,
    bytes_in_flight: u64,
    lateness: Lateness,
    last_commit: CommitNumber,
    failed: Option<Error>,
    total: u64,
    marks: VecDeque<Mark>,
    trimmed_below: EntryNumber,
}

/// A stretch of the log.
struct Mark {
    /// Its last entry.
    number: EntryNumber,
    /// Bytes of the log before it and up to its end, from an arbitrary origin.
    from: u64,
    total: u64,
    /// When its first entry was appended.
    at: Instant,
}

/// Size of the log after an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Behind {
    pub(crate) entries: u64,
    /// Up to 256 KiB too high.
    pub(crate) bytes: u64,
    /// Time since the oldest of them was appended, by whichever owner; up to a second too high. Zero if there are none.
    pub(crate) age: Duration,
}

impl Log {
    pub(crate) fn start(start: Start) -> Self {
        let now = start.world.now();
        // Entries don't become young because their owner has changed: owners that change often would never flush.
        let time = start.clock.now();
        let mut total = 0;
        let mut marks = VecDeque::new();
        for stored in start.stored {
            let age = time.0.saturating_sub(stored.time.0);
            let age = Duration::from_nanos(u64::try_from(age).unwrap_or(0));
            push_mark(
                &mut marks,
                Mark {
                    number: stored.number,
                    from: total,
                    total: total + stored.bytes,
                    at: now - age,
                },
            );
            total += stored.bytes;
        }
        let state = LogState {
            members: start.members.into(),
            generation: 0,
            view_changing: false,
            kept: None,
            next: start.end.next(),
            acknowledged: start.end,
            done: BTreeSet::new(),
            bytes_in_flight: 0,
            lateness: Lateness::default(),
            last_commit: start.last_commit,
            failed: None,
            total,
            marks,
            trimmed_below: start.record.value.trimmed_below,
        };
        let shared = Shared {
            world: start.world,
            coordination: start.coordination,
            pool: start.pool,
            touch: start.touch,
            shard: start.record.value.shard,
            epoch: start.record.value.epoch,
            clock: start.clock,
            state: Mutex::new(state),
            moved: Notify::new(),
            record: tokio::sync::Mutex::new(start.record),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Appends a commit. When the future completes, it is durable on every member of the view, with
    /// everything before it. The call itself (not the first poll) takes the place in the order, so
    /// several may be in flight. A dropped future continues in a task: the order has no holes.
    /// Returns the entry's number for [`crate::Tree::apply`].
    ///
    /// # Errors
    /// `OldEpoch`: there is a newer owner. `Unavailable`: no NSD takes the log. In both cases this
    /// log has ended and the shard must be taken over again.
    pub fn append_commit(
        &self,
        frame: &CommitFrame,
    ) -> impl Future<Output = Result<EntryNumber>> + Send + use<> {
        let mut body = BytesMut::with_capacity(HEADER_BYTES + frame.encoded_bytes());
        body.resize(HEADER_BYTES, 0);
        frame.encode_into(&mut body);
        self.start_append(EntryKind::Commit, body, Some(frame.commit))
    }

    /// As [`Log::append_commit`] for any payload; long ones are split into parts, and the number is
    /// the last part's.
    pub(crate) fn append(
        &self,
        kind: EntryKind,
        payload: &[u8],
    ) -> impl Future<Output = Result<EntryNumber>> + Send + use<> {
        let mut body = BytesMut::with_capacity(HEADER_BYTES + payload.len());
        body.resize(HEADER_BYTES, 0);
        body.extend_from_slice(payload);
        self.start_append(kind, body, None)
    }

    fn start_append(
        &self,
        kind: EntryKind,
        body: BytesMut,
        commit: Option<CommitNumber>,
    ) -> Append {
        let bodies = cut(body);
        let parts =
            u16::try_from(bodies.len()).expect("64 MiB of unflushed records are at most 17 parts");
        let time = self.shared.clock.now();
        let mut entries = Vec::with_capacity(bodies.len());
        {
            let mut state = self.shared.state.lock();
            if let Some(error) = &state.failed {
                return Append::refused(error.clone());
            }
            if let Some(commit) = commit {
                assert!(
                    commit > state.last_commit,
                    "commit numbers grow along the log"
                );
                state.last_commit = commit;
            }
            for (part, body) in bodies.into_iter().enumerate() {
                let number = state.next;
                state.next = number.next();
                let bytes = body.len() as u64;
                let from = state.total;
                state.total += bytes;
                state.bytes_in_flight += bytes;
                let mark = Mark {
                    number,
                    from,
                    total: state.total,
                    at: self.shared.world.now(),
                };
                push_mark(&mut state.marks, mark);
                let header = Header {
                    kind,
                    part: u16::try_from(part).expect("part is below parts"),
                    parts,
                    shard: self.shared.shard,
                    epoch: self.shared.epoch,
                    number,
                    acknowledged: state.acknowledged,
                    time,
                    commit: state.last_commit,
                };
                entries.push((header, body));
            }
        }
        let entries: Vec<(EntryNumber, Bytes)> = entries
            .into_iter()
            .map(|(header, body)| (header.number, seal_entry(body, &header)))
            .collect();
        Append::new(self.shared.clone(), entries)
    }

    /// The owner's epoch.
    pub(crate) fn epoch(&self) -> ShardEpoch {
        self.shared.epoch
    }

    /// The newest entry that is durable with everything before it.
    #[must_use]
    pub fn acknowledged(&self) -> EntryNumber {
        self.shared.state.lock().acknowledged
    }

    /// Why this log takes no more entries, if so. Permanent: the shard must be taken over again.
    #[must_use]
    pub fn failed(&self) -> Option<Error> {
        self.shared.state.lock().failed.clone()
    }

    /// The NSDs that hold the log now.
    #[must_use]
    pub fn view(&self) -> Vec<NsdId> {
        self.shared
            .state
            .lock()
            .members
            .iter()
            .map(|nsd| nsd.id())
            .collect()
    }

    /// Bytes of entries that replay would read now; [`crate::Tree::flush`] reduces them.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let below = self.shared.state.lock().trimmed_below;
        // An untrimmed log starts at 0, with nothing below it.
        self.behind(EntryNumber(below.0.saturating_sub(1))).bytes
    }

    /// Ends this owner's log: nothing is appended any more. All waiters get `reason`.
    pub(crate) fn end(&self, reason: Error) {
        self.shared.fail(reason);
    }

    pub(crate) fn clock(&self) -> &Arc<Clock> {
        &self.shared.clock
    }

    /// How far the machine's calendar lags behind the newest time in this shard.
    #[must_use]
    pub fn clock_lag(&self) -> Duration {
        self.shared.clock.lag()
    }

    /// Size of the log after `entry`.
    pub(crate) fn behind(&self, entry: EntryNumber) -> Behind {
        let state = self.shared.state.lock();
        let newest = state.next.0 - 1;
        if entry.0 >= newest {
            return Behind::default();
        }
        let first = state.marks.partition_point(|mark| mark.number <= entry);
        let entries = newest - entry.0;
        state.marks.get(first).map_or(
            Behind {
                entries,
                ..Behind::default()
            },
            |mark| Behind {
                entries,
                bytes: state.total - mark.from,
                age: self.shared.world.now() - mark.at,
            },
        )
    }

    /// The first entry that hasn't been trimmed.
    pub(crate) fn trimmed_below(&self) -> EntryNumber {
        self.shared.state.lock().trimmed_below
    }
}

impl Shared {
    /// Ends the log permanently. The first reason stays.
    fn fail(&self, reason: Error) {
        {
            let mut state = self.state.lock();
            if state.failed.is_none() {
                if reason.kind() != ErrorKind::ShuttingDown {
                    tracing::error!(shard = %self.shard, epoch = %self.epoch, %reason, "the log of the shard ends");
                }
                state.failed = Some(reason);
            }
        }
        self.moved.notify_waiters();
    }
}

/// Splits a payload into bodies that each start with room for a header.
fn cut(body: BytesMut) -> Vec<BytesMut> {
    if body.len() - HEADER_BYTES <= PART_BYTES_MAX {
        return vec![body];
    }
    let with_room = |part: &[u8]| {
        let mut out = BytesMut::with_capacity(HEADER_BYTES + part.len());
        out.resize(HEADER_BYTES, 0);
        out.extend_from_slice(part);
        out
    };
    body[HEADER_BYTES..]
        .chunks(PART_BYTES_MAX)
        .map(with_room)
        .collect()
}

/// Keeps one mark per 256 KiB or second; the newest one grows with each append. A longer stretch would make entries as old as
/// those that were flushed before them, so that a quiet shard flushed every commit by itself.
fn push_mark(marks: &mut VecDeque<Mark>, mark: Mark) {
    if let Some(newest) = marks.back_mut()
        && newest.total - newest.from < MARK_BYTES
        && mark.at - newest.at < MARK_AGE
    {
        newest.number = mark.number;
        newest.total = mark.total;
        return;
    }
    if marks.len() == MARKS_MAX {
        marks.pop_front();
    }
    marks.push_back(mark);
}

/// NSDs that a log should be on: one more than the pool may lose.
pub(crate) fn view_size(pool: &Pool) -> usize {
    pool.map().scheme().tolerance() + 1
}
