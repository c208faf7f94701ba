//! Faults that tests can plant here: each is one wrong line where a machine decides something.
//!
//! They show that the random runs would find such a mistake. Nothing but tests plants any.

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
    /// One refused attempt proves a node's death, without a broken connection.
    ExpelUnproven,
    /// A lease counts as over by the manager's own clock alone.
    NoMargin,
    /// A new manager counts leases from when its term was vacant, not from its own start.
    CountEarly,
    /// A new manager takes the lease of the one before for ended when it has lost its place.
    ForgetFormer,
    /// A run that is being expelled gets its lease renewed.
    RenewCondemned,
    /// A dead node's shards get new owners before the membership says that it is expelled.
    AssignUnfenced,
    /// A plan is taken for done when its shards are still assigned to who was expelled.
    SkipShards,
    /// The NSDs of an expelled node aren't marked.
    SkipNsds,
    /// Of several runs that one plan expels only the first one's NSDs are marked.
    MarkFirst,
    /// A new manager forgets the plan that another one had begun.
    ForgetPlan,
    /// A shard gets its new owner before the old one has given it up.
    TwoOwners,
    /// A shard gets its new owner although the old one may not know that it has lost it.
    GiveToTwo,
    /// Shards move although that makes nothing better.
    NeedlessMoves,
    /// A manager goes on although its own lease is over.
    RuleOn,
    /// An expelled run may join again.
    AdmitExpelled,
    /// Of two members that can't reach each other one is expelled while its lease lasts.
    PartEarly,
    /// A node counts its lease from the answer, not from what it asked.
    CountFromAnswer,
    /// What an ended holder had of a pool isn't free again.
    LoseSlice,
    /// The reserve of a pool is given out.
    GiveReserve,
    /// What was given back unused isn't free again.
    ForgetReturn,
    /// A pool is called full before others were asked for what they don't need.
    FullEarly,
    /// A holder that is asked for what it doesn't need keeps it.
    KeepIdle,
    /// A statement that comes after its holder's end makes it a holder again.
    ReviveEnded,
    /// What an ended holder may have written since its last statement counts as free.
    ForgetUnsaid,
    /// A holder claims nothing of what an earlier ledger gave it.
    ForgetClaim,
    /// A new ledger gives before all holders of the earlier one have claimed what they have.
    GiveBeforeClaims,
    /// A holder takes what an earlier ledger gives after a new one began.
    HearEarlierLedger,
    /// What holders say while a pool is measured counts as if it had been said before.
    MeasureEarly,
    /// What was written to room that others have taken is forgotten when that is put back.
    ForgetOwed,
    /// Repairs begin in any order.
    AnyOrder,
    /// What was done to an earlier state of a group counts for the present one.
    TakeAnyStamp,
    /// A job whose group has changed goes on where it was.
    KeepCursor,
    /// A new manager assigns jobs before it has heard what runs.
    AssignUnheard,
    /// A node takes part in any number of jobs.
    Overload,
}
