//! Faults planted in the program on purpose, to see that the simulations find them. Only a simulated
//! world can have them: in a real one [`World::has_planted`] is false, whatever happens.
//!
//! A fault is one wrong line where the program decides something. `docs/planted-faults.md` lists them
//! with the seeds that found them.

use crate::{Inner, World};

macro_rules! faults {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A fault that can be planted.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Planted { $($(#[$doc])* $name,)* }

        impl Planted {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];
        }
    };
}

faults! {
    /// An NSD answers a put before its journal is flushed.
    SkipFlush,
    /// An NSD takes log entries of owners that it sealed out.
    IgnoreSeal,
    /// An NSD answers a seal without taking note of it.
    ForgetSeal,
    /// A log entry counts as durable when one NSD of the view has it.
    AcknowledgeEarly,
    /// A take-over leaves the newest entry out.
    ReplayShort,
    /// An operation in a slot is applied again when it is repeated.
    ApplyTwice,
    /// The record of a new session isn't written.
    DropSessionRecord,
    /// Extents are published while their pieces are on the way.
    PublishEarly,
    /// An owner answers clients that know a later one.
    AnswerLate,
    /// An NSD discards log entries for owners that it sealed out.
    DiscardUnfenced,
    /// A segment of which much is dead is deleted with what lives in it.
    FreeLive,
    /// What open sessions have stored and not published yet is taken for garbage, and deleted before
    /// a log entry condemns it.
    SweepOpen,
    /// A generation of a pool's groups leaves the map before it is empty.
    DropEarly,
    /// NSDs that fail together count as if they didn't.
    OneFailureGroup,
    /// An owner says no recalls.
    DropRecall,
    /// An owner grants what others hold.
    GrantTwice,
    /// An owner takes a range for a byte shorter when it looks for who holds it.
    OneByteShort,
    /// A new owner grants before all sessions have said what they hold.
    GrantInGrace,
    /// A client returns what it changed before that is durable.
    ReturnEarly,
    /// A client begins to use what it is giving back.
    UseTaken,
    /// A client returns what it changed without publishing it.
    ReturnUnflushed,
    /// A delegation goes back before what was made under it is sent.
    ReturnUnstreamed,
    /// A client answers fsync and does nothing.
    SyncNothing,
    /// A client keeps bytes in its cache that it gives back.
    KeepBytes,
    /// A client keeps the last byte of what it gives back.
    KeepOneByte,
    /// A client keeps attributes that it gives back.
    KeepAttributes,
    /// A client gives back what kernels still keep.
    KeepInKernels,
    /// A client gives back bytes of which kernels still have pages.
    KeepPages,
    /// A client lets others read what a kernel's programs may change in a mapping.
    FillShared,
    /// What an owner runs itself claims nothing.
    ClaimNothing,
    /// An owner copies bytes without asking who is changing them.
    CopyUnasked,
    /// An owner changes names before the clients that have cached them have given them back.
    RecallLate,
    /// An owner lists attributes that clients are changing.
    ListOld,
    /// File locks outlive the session of the client that held them.
    KeepLocks,
    /// The uses of inodes outlive the session of their client.
    KeepHolds,
    /// An owner answers operations of clients on other nodes before they are durable.
    AnswerUndurable,
    /// An owner answers looks of clients on other nodes before what they show is durable.
    ShowUndurable,
    /// A client goes on in its session although its owner, in its own process, has lost what it answered.
    KeepLost,
    /// An owner doesn't know what the owner before has answered in a slot.
    ForgetReplies,
    /// An NSD takes pieces whose writer has an older version of their group.
    IgnoreVersion,
    /// A slot counts as moved before its pieces are where it goes.
    ArriveEarly,
    /// Space that was held for written data is never free again.
    KeepSpace,
    /// A node of a cluster writes to what is free without asking for room.
    TakeUnasked,
    /// A node says nothing to a new manager of the room that it has.
    ClaimNoRoom,
    /// A job reads and writes as fast as it can.
    IgnorePace,
    /// A job says that all is done although something couldn't be.
    SkipFailed,
}

impl World {
    /// The fault that is planted here; none in the real world.
    #[must_use]
    pub fn planted(&self) -> Option<Planted> {
        match &self.inner {
            Inner::Real(_) => None,
            Inner::Simulated(world) => world.planted(),
        }
    }

    /// Whether this fault is planted here. False in the real world.
    #[must_use]
    pub fn has_planted(&self, fault: Planted) -> bool {
        self.planted() == Some(fault)
    }
}
