//! Places in the program at which a simulation can end its process, or hold a task up: between two steps
//! of which another one may see only the first. In a real world passing one costs a comparison.
//!
//! A point names what has just been done and what has not. `docs/planted-faults.md` lists them; a
//! simulation counts how often each was passed, so that those are known that no run has reached.

use crate::{Inner, World};
use std::time::Duration;

macro_rules! points {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// A place at which a simulation can interrupt the program.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Point { $($(#[doc = $doc])* $name,)* }

        impl Point {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];
        }
    };
}

points! {
    /// A commit is frozen; nothing of it is in the log.
    CommitFrozen,
    /// A commit is in the log; nobody knows yet that it is durable.
    CommitAppended,
    /// A commit is known to be durable; the tree doesn't have it.
    CommitDurable,
    /// All members of a view have an entry; it isn't acknowledged.
    EntryPut,
    /// The next view has an NSD that is ready; the record doesn't name it.
    ViewChosen,
    /// The record names the next view; the owner still puts to the one before.
    ViewRecorded,
    /// A shard's epoch is raised; the log of the owner before isn't sealed.
    EpochRaised,
    /// The log is sealed; its end isn't found.
    LogSealed,
    /// The end of the log is known; the new view doesn't have all up to it.
    TailRead,
    /// The new view has all; its end isn't recorded.
    TailCopied,
    /// The end is recorded; what follows it isn't discarded.
    EndRecorded,
    /// The rest is discarded; nothing is replayed.
    RestDiscarded,
    /// The shard is open again; its sessions aren't.
    ShardOpened,
    /// An operation of a client on another node is durable; the answer hasn't left.
    BeforeAnswer,
    /// An operation has what it needs; it hasn't run.
    OperationClaimed,
    /// The same of an operation that its client has answered already.
    StreamClaimed,
    /// A client on another node looks, and what it is shown was read; whether others may be changing that isn't known.
    Looked,
    /// An operation has run, and others may see what it did; it isn't durable.
    OperationRun,
    /// The record of a session is durable; nobody knows it.
    SessionRecorded,
    /// A session is being closed; its record says that it is open, and it has all that it had.
    SessionClosing,
    /// A token is granted; what its holder may see isn't durable, and it isn't told.
    TokenGranted,
    /// A recall was taken out; its holder isn't told.
    RecallTaken,
    /// A token was taken back; its holder doesn't know.
    TokenTakenBack,
    /// A part of what a client held is taken down; it doesn't know.
    PartReclaimed,
    /// The end of a file is cut in a step; others follow.
    CutBegun,
    /// A client's bytes are stored; they aren't published.
    BytesStored,
    /// A client's bytes are published; it doesn't know.
    BytesPublished,
    /// A client has published what it gives back; it still has it in its cache.
    FlushPublished,
    /// A client has dropped what it gives back; nobody is told.
    FlushForgotten,
    /// A client that lost its session has another one; its open files aren't held there.
    SessionRenewed,
    /// A client knows a new owner; it hasn't said what it holds.
    ReclaimBegun,
    /// An NSD has written a group of its journal; its index doesn't know it.
    JournalWritten,
    /// Pieces of a segment are on their NSDs; nobody knows where.
    PiecesPut,
    /// A damaged piece was rebuilt; it isn't written.
    PieceRebuilt,
    /// Garbage is condemned; nothing is deleted.
    GarbageCondemned,
    /// Files of a segment were written to another one; they don't point at it.
    SegmentRewritten,
    /// All that a slot held is where it goes; the map doesn't say so.
    SlotArrived,
    /// The map says where a slot is; the NSD before still has its pieces.
    SlotSwitched,
    /// A process was given a shard; it hasn't begun to open it.
    AssignmentSeen,
    /// An owner knows that it is none any more; it still answers.
    AssignmentLost,
    /// A manager has decided what is to be done; nothing of it is begun.
    ManagerDecided,
    /// Numbers for a new file system are chosen; nothing of it is made.
    NumbersChosen,
    /// A file system is made; who asked for it isn't told.
    FileSystemMade,
}

/// What happens at a point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interruption {
    /// The process ends, as by SIGKILL.
    Kill,
    /// The task that came there stands still; all others go on.
    Delay(Duration),
}

impl World {
    /// The program is at a point. Returns at once, unless a simulation interrupts it here.
    pub async fn at(&self, point: Point) {
        if let Inner::Simulated(world) = &self.inner
            && let Some(interruption) = world.reach(point)
        {
            // Boxed because it is rare: every caller's future contains this one.
            Box::pin(self.interrupt(interruption)).await;
        }
    }

    async fn interrupt(&self, interruption: Interruption) {
        match interruption {
            Interruption::Kill => std::future::pending().await,
            Interruption::Delay(time) => self.sleep(time).await,
        }
    }
}
