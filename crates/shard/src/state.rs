//! The state of a shard's owner: what its records, commits and waiters share.

use crate::ahead::Ahead;
use crate::catalog::Catalog;
use crate::frame::OperationNote;
use crate::log::Log;
use crate::memory::UnflushedLimit;
use crate::notes;
use crate::numbers::Numbers;
use crate::records::{NewWork, Records};
use crate::reserved::ReservedNumbers;
use crate::tree::{Tree, TreeSnapshot};
use model::operation::{Rank, Stamp};
use model::{
    CommitNumber, Error, ErrorKind, FamilyId, GroupId, InodeId, NodeRun, Operation, Reply, Result,
    SessionId, ShardEpoch, ShardId, limits,
};
use namespace::sessions::{Sessions, Standing};
use namespace::{Effects, Key, Record};
use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use tokio::sync::{Notify, oneshot};
use world::{Driven, Task, World};

/// A commit starts once this many records have changed,
pub(crate) const COMMIT_RECORDS: usize = 4096;
/// or this many bytes.
pub(crate) const COMMIT_BYTES: usize = 1024 * 1024;
/// The running commit; one of its waiters drives it.
pub(crate) type Running = Driven<Result<()>>;

/// New values of records; `None` for removed ones.
pub(crate) type Rows = Vec<(Key, Option<Record>)>;

/// A frozen commit that isn't in the tree yet.
pub(crate) struct Frozen {
    pub(crate) number: CommitNumber,
    pub(crate) rows: Arc<Rows>,
    pub(crate) operations: usize,
    pub(crate) bytes: usize,
    /// Inode numbers that it gives, at most.
    pub(crate) numbers: u64,
}

/// Who uses inodes here: open files, kernels' references. Asked and told under the shard's lock: quick, and
/// without a call of the shard.
pub trait Holders: Send + Sync {
    /// Whether an inode is in use: then it outlives its last name.
    fn is_held(&self, inode: InodeId) -> bool;

    /// A session that is open has made an inode and holds it ([`Operation::CreateHeld`]). Said with the change
    /// itself, before any other operation is applied; a repetition makes nothing, and isn't said.
    fn made(&self, session: SessionId, inode: InodeId);
}

/// The holders of a shard whose host has none.
pub(crate) struct Nobody;

impl Holders for Nobody {
    fn is_held(&self, _: InodeId) -> bool {
        false
    }

    fn made(&self, _: SessionId, _: InodeId) {}
}

/// One shard, owned by this process.
pub struct Shard {
    pub(crate) me: Weak<Shard>,
    pub(crate) world: World,
    pub(crate) shard: ShardId,
    /// In order of their numbers; changed only by `families.rs`.
    pub(crate) families: Mutex<Arc<[FamilyId]>>,
    pub(crate) epoch: ShardEpoch,
    pub(crate) run: NodeRun,
    pub(crate) session: SessionId,
    /// The session of the owner before.
    pub(crate) previous: SessionId,
    pub(crate) log: Log,
    pub(crate) catalog: Catalog,
    pub(crate) tree: Arc<Tree>,
    pub(crate) state: Mutex<ShardState>,
    pub(crate) running: Mutex<Option<Running>>,
    /// Callers that wait for a snapshot at a commit boundary.
    pub(crate) wanted: Wanted,
    /// Wakes callers that wait for durability.
    pub(crate) durable_changed: Notify,
    /// Wakes the committer.
    pub(crate) nudge: Arc<Notify>,
    pub(crate) committer: Mutex<Option<Task<()>>>,
    /// Reads names ahead of a listing.
    pub(crate) listing: Mutex<Option<Task<()>>>,
    /// Gives up records when the shards of the process use too much memory together.
    pub(crate) shrinking: Mutex<Option<Task<()>>>,
    /// Returned when the tree is closed.
    pub(crate) unflushed: Mutex<Option<UnflushedLimit>>,
}

/// State under the one lock. Held for one operation at a time, never across a wait.
pub(crate) struct ShardState {
    pub(crate) records: Records,
    pub(crate) ahead: Ahead,
    pub(crate) notes: Vec<OperationNote>,
    /// The sessions that the records name.
    pub(crate) sessions: Sessions,
    pub(crate) reserved: ReservedNumbers,
    pub(crate) numbers: Numbers,
    pub(crate) holders: Arc<dyn Holders>,
    pub(crate) durable: CommitNumber,
    pub(crate) frozen: Option<Frozen>,
    /// Operations that changed something, in total.
    pub(crate) changes: u64,
    /// Records removed by commits, in total.
    pub(crate) removals: u64,
    /// The committer was told to run.
    pub(crate) nudged: bool,
    pub(crate) failed: Option<Error>,
    /// Publishes that name a group below this are refused.
    pub(crate) floor: GroupId,
    /// The newest change that was taken out to be applied by a later owner: it isn't durable.
    pub(crate) taken: Option<CommitNumber>,
}

/// Callers that wait for the end of the running commit.
#[derive(Default)]
pub(crate) struct Wanted {
    pub(crate) waiting: Mutex<Vec<oneshot::Sender<Result<TreeSnapshot>>>>,
}

impl Shard {
    /// The shard's id.
    #[must_use]
    pub fn id(&self) -> ShardId {
        self.shard
    }

    /// This owner's epoch.
    #[must_use]
    pub fn epoch(&self) -> ShardEpoch {
        self.epoch
    }

    /// The session of this owner's table segments.
    #[must_use]
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// The catalog of the tree's tables and their segments.
    #[must_use]
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// The tree, for flushes and statistics.
    #[must_use]
    pub fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    /// Number of changes since this owner began: if equal before and after a look, nothing changed
    /// meanwhile.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.state.lock().changes
    }

    /// Number of records that this owner's commits removed: a compaction of the tree can drop them.
    #[must_use]
    pub fn removals(&self) -> u64 {
        self.state.lock().removals
    }

    /// Number of hot records, and their bytes.
    #[must_use]
    pub fn hot_records(&self) -> (usize, usize) {
        self.state.lock().records.size()
    }

    /// Background work found in changes since the last call, under this owner.
    #[must_use]
    pub fn take_work(&self) -> NewWork {
        self.state.lock().records.take_work()
    }

    /// Number of inode numbers that sessions have reserved and not used, as of the newest change.
    #[must_use]
    pub fn reserved_numbers(&self) -> u64 {
        self.state.lock().reserved.all()
    }

    /// Sets who tells which inodes are in use.
    pub fn set_holders(&self, holders: Arc<dyn Holders>) {
        self.state.lock().holders = holders;
    }

    /// What this shard knows of a session, as of the newest change.
    #[must_use]
    pub fn session_standing(&self, session: SessionId) -> Standing {
        self.state.lock().sessions.standing(session)
    }

    /// The run of a daemon that opened a session, if the session is open.
    #[must_use]
    pub fn run_of_session(&self, session: SessionId) -> Option<NodeRun> {
        self.state.lock().sessions.run_of(session)
    }

    /// The sessions that this shard knows, as of the newest change.
    #[must_use]
    pub fn sessions(&self) -> Sessions {
        self.state.lock().sessions.clone()
    }

    /// This owner gives the shard up: no operation is answered any more. The host may take it over
    /// again and apply changes that weren't durable ([`Shard::end_given_up`],
    /// [`Shard::open_after`]).
    pub fn resign(&self, why: &Error) {
        self.give_up(why);
    }

    /// Whether this owner still serves.
    ///
    /// # Errors
    /// `Unavailable`, with the cause, once it was given up.
    pub fn check_alive(&self) -> Result<()> {
        self.state.lock().alive()
    }

    /// The newest commit that is durable with all before it.
    #[must_use]
    pub fn durable(&self) -> CommitNumber {
        self.state.lock().durable
    }

    /// The newest commit that has changes, durable or not.
    #[must_use]
    pub fn newest_change(&self) -> CommitNumber {
        self.state.lock().newest_change()
    }

    /// Whether this commit is durable, or never had changes, with all before it. Also of a shard that was given up:
    /// false then if nobody here knows.
    #[must_use]
    pub fn has_durable(&self, commit: CommitNumber) -> bool {
        self.state.lock().has_durable(commit)
    }

    /// Whether every change is durable.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        let state = self.state.lock();
        state.newest_change() <= state.durable
    }

    /// Ends this owner: no operation is answered until the shard is taken over again.
    pub(crate) fn give_up(&self, cause: &Error) {
        let mut state = self.state.lock();
        if state.failed.is_some() {
            return;
        }
        if cause.kind() == ErrorKind::ShuttingDown {
            tracing::info!(shard = self.shard.0, "shard closed");
        } else {
            tracing::warn!(shard = self.shard.0, %cause, "shard given up, to be taken over again");
        }
        let text = format!("shard {} was given up by this owner: {cause}", self.shard);
        state.failed = Some(Error::new(ErrorKind::Unavailable, text));
        drop(state);
        self.durable_changed.notify_waiters();
    }
}

impl ShardState {
    pub(crate) fn alive(&self) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// The newest commit that has changes.
    pub(crate) fn newest_change(&self) -> CommitNumber {
        if let Some(taken) = self.taken {
            return taken;
        }
        let open = self.records.open_commit();
        if self.records.changed().0 > 0 {
            return open;
        }
        self.frozen
            .as_ref()
            .map_or(self.durable, |frozen| frozen.number.max(self.durable))
    }

    /// Whether a commit and all before it are durable. One without changes is never made.
    pub(crate) fn has_durable(&self, commit: CommitNumber) -> bool {
        self.durable >= commit.min(self.newest_change())
    }

    /// The rank of the newest operation that changed something. Every one of them has a note.
    pub(crate) fn newest_rank(&self, epoch: ShardEpoch) -> Rank {
        Rank {
            epoch,
            commit: self.records.open_commit(),
            index: self.notes.len() as u32,
        }
    }

    /// Whether the open commit is large enough to start it.
    pub(crate) fn wants_commit(&self) -> bool {
        let (records, bytes) = self.records.changed();
        records >= COMMIT_RECORDS
            || bytes >= COMMIT_BYTES
            || self.numbers.moved() >= limits::UNFLUSHED_NUMBERS_MAX / 2
    }

    pub(crate) fn is_full(&self) -> bool {
        let (operations, bytes) = self
            .frozen
            .as_ref()
            .map_or((0, 0), |frozen| (frozen.operations, frozen.bytes));
        // They are safe once it is durable, though it isn't in the tree.
        let running = self.frozen.as_ref();
        let undurable = running.filter(|frozen| frozen.number > self.durable);
        let numbers = undurable.map_or(0, |frozen| frozen.numbers);
        self.notes.len() + operations >= limits::UNFLUSHED_OPERATIONS_MAX
            || self.records.changed().1 + bytes >= limits::UNFLUSHED_BYTES_MAX
            || self.numbers.moved() + numbers >= limits::UNFLUSHED_NUMBERS_MAX
    }

    pub(crate) fn change(&mut self, effects: Effects, by: Option<(&Operation, &Stamp)>) {
        self.changes += 1;
        for (key, record) in &effects.0 {
            self.reserved.note(key, record.as_ref());
            self.numbers.note(key, record.as_ref());
        }
        self.records.apply(effects);
        let Some((operation, stamp)) = by else { return };
        self.notes.push(notes::note(operation, stamp));
    }

    /// A session has just made an inode that it holds, unless it has ended: a client in this process isn't asked.
    pub(crate) fn note_made(&self, session: SessionId, reply: &Reply) {
        if let Reply::Entry { attributes, .. } = reply
            && self.sessions.standing(session) == Standing::Open
        {
            self.holders.made(session, attributes.inode);
        }
    }
}

const _: () = assert!(COMMIT_BYTES < limits::UNFLUSHED_BYTES_MAX);
const _: () = assert!(COMMIT_RECORDS < limits::UNFLUSHED_OPERATIONS_MAX);
