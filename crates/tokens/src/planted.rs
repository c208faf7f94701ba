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

            /// The fault of the same name: a simulation plants some of them in whole programs.
            #[must_use]
            pub fn of(planted: impl std::fmt::Debug) -> Option<Self> {
                let name = format!("{planted:?}");
                let named = |fault: &&Self| format!("{fault:?}") == name;
                Self::ALL.iter().find(named).copied()
            }
        }
    };
}

faults! {
    /// An owner says no recalls.
    DropRecall,
    /// An owner grants what others hold.
    GrantTwice,
    /// An owner takes a range for a byte shorter when it looks for who holds it.
    OneByteShort,
    /// An owner grants what an operation works with that it runs.
    IgnoreRunning,
    /// An owner grants tokens before all sessions have said what they hold.
    GrantInGrace,
    /// An owner ends a silent session whose tokens haven't run out.
    EndEarly,
    /// An owner takes a return for one of everything, also of what it granted since.
    ForgetNewer,
    /// An owner takes an exclusive token for given back of which a shared one was kept.
    ForgetKept,
    /// A client returns what it changed before that is durable.
    ReturnEarly,
    /// A client gives back what is in use.
    ForgetUses,
    /// A client begins to use what it is giving back.
    UseTaken,
    /// A client uses a grant that comes after it was returned.
    UseReturned,
    /// A client uses tokens that have run out.
    UseExpired,
    /// A new owner's answers renew a client's tokens before the client knows which of them it lost.
    RenewLost,
    /// A client keeps an exclusive token of which it returned all but a shared one.
    KeepExclusive,
}
