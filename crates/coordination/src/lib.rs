//! Small facts that the cluster agrees on: who owns a shard, where its log is, which NSDs make a
//! pool.
//!
//! A key-value store with revisions, transactions, watches and leases. It holds nothing per file,
//! blob or client. The interface has only what etcd (3.4 or newer) offers and with etcd's meaning;
//! `conformance` has the rules. Bodies: a small disk region for a single node
//! ([`Coordination::embedded`]), an etcd ([`Coordination::etcd`]), and a simulated etcd with its
//! faults for tests ([`simulated`]).
//!
//! # Revisions
//! Each change of the store has a *revision*, higher than all before and never reused, also after a
//! restart. All changes of a transaction have the same one. The *version* of a key is the revision
//! that wrote it (etcd's `mod_revision`).
//!
//! # A read
//! `get` and `list` return durable facts only, and nothing older than any change that was answered
//! before the call (etcd: linearizable reads), with the revision of the store at that moment.
//!
//! # A change
//! A [`transaction`](Coordination::transaction) names the version that each of its keys must have,
//! and makes all changes or none. It is durable when it is answered.
//!
//! # A failure
//! After `Unavailable` the outcome is unknown: a change may have happened, may happen later (the
//! request can still be under way), or never. Read again, and change again *with the same expected
//! versions*: at most one of the attempts can happen, because it changes the version that the others
//! expect. A new read followed by a change with the versions that it found is safe as well.
//!
//! One case is left: a *creation* (expected version 0) whose outcome is unknown may happen once more
//! after the key was made and removed again. Keys that are created by attempts are therefore not
//! removed, or belong to a lease, without which the late creation is refused.
//!
//! # Watches
//! A [`Watch`] tells the changes after a revision, each once and in order. It may be late without
//! limit, and a member of etcd that is cut off says nothing at all: silence proves nothing, a read
//! does. A watch that can't be continued without a gap says [`News::Lost`].
//!
//! # Leases
//! A [`Lease`] that isn't kept alive ends, and its keys go with it, in one change. It lasts *at
//! least* its TTL, counted from before its holder *sent* the last answered request to keep it alive;
//! with the exception of some versions of etcd ([`etcd`]). There is no upper limit: each change of
//! etcd's leader (as each restart of the embedded store) gives every lease its full TTL again. A
//! lease's end alone proves nothing about its holder, which may be paused and act later: epochs decide.

mod embedded;
pub mod etcd;
mod export;
mod facts;
mod file_systems;
mod history;
mod ids;
mod members;
mod nodes;
mod roster;
mod security;
pub mod simulated;
mod state;
mod watch;

#[cfg(test)]
mod conformance;
#[cfg(test)]
mod tests;

pub use export::{EXPORT_FACTS_MAX, Export};
pub use facts::{ClosedFragment, EndedEpoch, ShardRecord};
pub use file_systems::{Creation, Draft, FileSystem, NewFileSystem, RootOwner};
pub use history::Event;
pub use members::{Doubt, Kept, PLACE_LEASE, Place};
pub use nodes::{
    CLOCKS_DIFFER_MAX, JOIN_TOKENS_MAX, NODE_NAME_BYTES_MAX, NewNode, NodeFacts, check_node_name,
    settings_of_node,
};
pub use roster::{NodeAddress, Roster};
pub use security::{
    Authorities, AuthorityFact, Ciphers, Lack, NextAuthority, NodeSecurity, lacking,
};
pub use watch::{News, Watch};

use arc_swap::ArcSwap;
use bytes::Bytes;
use model::{Error, ErrorKind, Result};
use std::{fmt, sync::Arc, time::Duration};
use world::{Disk, World};

/// Minimum size of the embedded store's region in bytes.
pub const EMBEDDED_REGION_BYTES: u64 = embedded::REGION_BYTES;
/// Longest key in bytes.
pub const KEY_BYTES_MAX: usize = 256;
/// Most bytes of all keys and values together, counting 22 more for each key and 12 for each lease. A
/// transaction that puts more is refused; of an etcd, a list of four times as much.
pub const STATE_BYTES_MAX: usize = 1024 * 1024;
/// Most changes of one transaction; etcd's default.
pub const CHANGES_MAX: usize = 128;
/// Most leases at the same time: one for each process that may become manager is enough. An etcd has more
/// if they are asked for.
pub const LEASES_MAX: usize = 1024;
/// Longest TTL of a lease.
pub const LEASE_TTL_MAX: Duration = Duration::from_secs(3600);

/// A value and the version to compare when changing it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Versioned<T> {
    /// The value.
    pub value: T,
    /// The revision that wrote it; never 0.
    pub version: u64,
}

/// What a read found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reading<T> {
    /// The revision of the store at the moment of the read: a watch after it misses nothing.
    pub revision: u64,
    /// The facts as they were then.
    pub found: T,
}

/// Keys with their values, in the order of the keys.
pub type Facts = Vec<(String, Versioned<Bytes>)>;

/// Names a lease; never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LeaseId(pub u64);

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// A lease as it was granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lease {
    /// Its name.
    pub id: LeaseId,
    /// How long it lasts without being kept alive. May be longer than asked for: etcd counts whole
    /// seconds and has a minimum (1.5 times its election time).
    pub ttl: Duration,
}

/// One key's part in a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// The key.
    pub key: String,
    /// The version that the key must have now; 0 if it must not exist.
    pub expected: u64,
    /// What happens to it then.
    pub action: Action,
}

/// What a transaction does to a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Nothing: the rest of the transaction depends on its version.
    Keep,
    /// A new value. Belongs to this lease from now on, and to no earlier one.
    Put {
        /// The value.
        value: Bytes,
        /// The key vanishes with this lease.
        lease: Option<LeaseId>,
    },
    /// Removes the key.
    Remove,
}

impl Change {
    /// Sets a key.
    pub fn put(key: impl Into<String>, expected: u64, value: impl Into<Bytes>) -> Self {
        let action = Action::Put {
            value: value.into(),
            lease: None,
        };
        Self::new(key, expected, action)
    }

    /// Sets a key that vanishes with a lease.
    pub fn put_leased(
        key: impl Into<String>,
        expected: u64,
        value: impl Into<Bytes>,
        lease: LeaseId,
    ) -> Self {
        let action = Action::Put {
            value: value.into(),
            lease: Some(lease),
        };
        Self::new(key, expected, action)
    }

    /// Removes a key.
    pub fn remove(key: impl Into<String>, expected: u64) -> Self {
        Self::new(key, expected, Action::Remove)
    }

    /// Changes nothing, but the transaction happens only if the key has this version.
    pub fn keep(key: impl Into<String>, expected: u64) -> Self {
        Self::new(key, expected, Action::Keep)
    }

    fn new(key: impl Into<String>, expected: u64, action: Action) -> Self {
        Self {
            key: key.into(),
            expected,
            action,
        }
    }
}

/// The store of facts, as one process sees it. Cheap to clone; clones share the ids that this
/// process holds in reserve.
#[derive(Clone)]
pub struct Coordination {
    backend: Backend,
    ids: Arc<ids::Ids>,
}

#[derive(Clone)]
enum Backend {
    Embedded(Arc<embedded::Embedded>),
    Simulated(simulated::Handle),
    /// Replaced when the etcd is reached elsewhere.
    Etcd(Arc<ArcSwap<etcd::Store>>),
}

impl Coordination {
    /// Opens the embedded store on its own disk region. Formats the region if no state was ever
    /// stored there (all zeros, or a power cut during the first format).
    ///
    /// # Errors
    /// `Corrupt` if no copy of the state is whole; `Unavailable` if the disk fails.
    pub async fn embedded(world: &World, disk: Disk) -> Result<Self> {
        let store = embedded::Embedded::open(world.clone(), disk).await?;
        Ok(Self::new(Backend::Embedded(store)))
    }

    /// The store in an etcd. Connects when it is first asked, and again whenever it must.
    ///
    /// # Errors
    /// `InvalidArgument`: the settings can't be right.
    pub fn etcd(world: &World, settings: &etcd::EtcdSettings) -> Result<Self> {
        let store = etcd::Store::new(world, settings)?;
        Ok(Self::new(Backend::Etcd(Arc::new(ArcSwap::from_pointee(
            store,
        )))))
    }

    fn new(backend: Backend) -> Self {
        Self {
            backend,
            ids: Arc::default(),
        }
    }

    fn world(&self) -> World {
        match &self.backend {
            Backend::Embedded(store) => store.world().clone(),
            Backend::Simulated(handle) => handle.world().clone(),
            Backend::Etcd(store) => store.load().world().clone(),
        }
    }

    /// The value of a key.
    ///
    /// # Errors
    /// `Unavailable`: no answer; ask again.
    pub async fn get(&self, key: &str) -> Result<Reading<Option<Versioned<Bytes>>>> {
        match &self.backend {
            Backend::Embedded(store) => Ok(store.get(key)),
            Backend::Simulated(handle) => handle.get(key).await,
            Backend::Etcd(store) => store.load_full().get(key).await,
        }
    }

    /// The revision of the store now: no change that was answered before the call is newer. Costs next to nothing.
    ///
    /// # Errors
    /// `Unavailable`: no answer; ask again. An etcd that has no leader doesn't answer.
    pub async fn revision(&self) -> Result<u64> {
        match &self.backend {
            Backend::Embedded(store) => Ok(store.get("").revision),
            Backend::Simulated(handle) => Ok(handle.get("").await?.revision),
            Backend::Etcd(store) => store.load_full().revision().await,
        }
    }

    /// The etcd that the facts are in ([`etcd::EtcdStatus::cluster`]), once one of its members has answered; `None` for
    /// other stores.
    #[must_use]
    pub fn etcd_cluster(&self) -> Option<u64> {
        match &self.backend {
            Backend::Etcd(store) => store.load().cluster(),
            _ => None,
        }
    }

    /// All keys that begin with `prefix`, in order.
    ///
    /// # Errors
    /// `Unavailable`: no answer; ask again. `NoSpace` and `Corrupt`: another program writes to our part of
    /// an etcd.
    pub async fn list(&self, prefix: &str) -> Result<Reading<Facts>> {
        match &self.backend {
            Backend::Embedded(store) => Ok(store.list(prefix)),
            Backend::Simulated(handle) => handle.list(prefix).await,
            Backend::Etcd(store) => store.load_full().list(prefix).await,
        }
    }

    /// Sets (or with `None` removes) one key if its version is `expected` (0: it must not exist).
    /// Returns the new version. Errors as for [`Coordination::transaction`].
    pub async fn compare_and_set(
        &self,
        key: &str,
        expected: u64,
        value: Option<Bytes>,
    ) -> Result<u64> {
        let change = match value {
            Some(value) => Change::put(key, expected, value),
            None => Change::remove(key, expected),
        };
        self.transaction(vec![change]).await
    }

    /// Makes all changes or none, durably, and returns their version; if nothing was to be changed,
    /// the revision at which the keys were as expected. A change that was sent may happen even if
    /// the future is dropped.
    ///
    /// # Errors
    /// `Changed` if a version differs, `NotFound` if a lease has ended, `NoSpace`,
    /// `InvalidArgument`: nothing was done. After `Unavailable` it is unknown whether the changes
    /// happened or will: see the crate's documentation.
    pub async fn transaction(&self, changes: Vec<Change>) -> Result<u64> {
        check_changes(&changes)?;
        match &self.backend {
            Backend::Embedded(store) => store.transaction(changes).await,
            Backend::Simulated(handle) => handle.transaction(changes).await,
            Backend::Etcd(store) => store.load_full().transaction(changes).await,
        }
    }

    /// Watches the keys that begin with `prefix` for changes after the revision `after`, normally
    /// that of a [`Coordination::list`].
    #[must_use]
    pub fn watch(&self, prefix: &str, after: u64) -> Watch {
        Watch::new(self.backend.clone(), prefix, after)
    }

    /// Grants a lease.
    ///
    /// # Errors
    /// `InvalidArgument`: no TTL, or one above [`LEASE_TTL_MAX`]. `NoSpace`: too many leases, or etcd is full. After
    /// `Unavailable`, and after `NoSpace` of an etcd, it may have been granted: it ends by itself.
    pub async fn grant(&self, ttl: Duration) -> Result<Lease> {
        if ttl.is_zero() || ttl > LEASE_TTL_MAX {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("a lease of {ttl:?} was asked for; the maximum is {LEASE_TTL_MAX:?}"),
            ));
        }
        let ttl = Duration::from_secs(ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0));
        match &self.backend {
            Backend::Embedded(store) => store.grant(ttl).await,
            Backend::Simulated(handle) => handle.grant(ttl).await,
            Backend::Etcd(store) => store.load_full().grant(ttl).await,
        }
    }

    /// Gives a lease its full TTL again, which it returns. The holder counts from before this call.
    ///
    /// # Errors
    /// `NotFound`: it has ended, and its keys are gone. `Unavailable`: no answer; the lease goes on
    /// ending when it would have.
    pub async fn keep_alive(&self, lease: LeaseId) -> Result<Duration> {
        match &self.backend {
            Backend::Embedded(store) => store.keep_alive(lease).await,
            Backend::Simulated(handle) => handle.keep_alive(lease).await,
            Backend::Etcd(store) => store.load_full().keep_alive(lease).await,
        }
    }

    /// Ends a lease; its keys are gone when this is answered.
    ///
    /// # Errors
    /// `NotFound`: it has ended already. After `Unavailable` it may have ended or end later.
    pub async fn revoke(&self, lease: LeaseId) -> Result<()> {
        match &self.backend {
            Backend::Embedded(store) => store.revoke(lease).await,
            Backend::Simulated(handle) => handle.revoke(lease).await,
            Backend::Etcd(store) => store.load_full().revoke(lease).await,
        }
    }

    /// Reaches the same etcd as `settings` say from now on: members have come or gone. Requests under way, and watches that
    /// exist, go on as they began; all clones of this change, too.
    ///
    /// # Errors
    /// `InvalidArgument`: the settings can't be right. `NotSupported`: the store isn't an etcd. Nothing has changed then.
    pub fn reach(&self, settings: &etcd::EtcdSettings) -> Result<()> {
        match &self.backend {
            Backend::Etcd(store) => {
                let before = store.load_full();
                let next = etcd::Store::new(before.world(), settings)?;
                next.follow_on(&before);
                store.store(Arc::new(next));
                Ok(())
            }
            _ => Err(export::not_here(
                "only an etcd is reached at other endpoints",
            )),
        }
    }

    /// All facts of an embedded store, for [`Coordination::import`]. From then on the store takes no
    /// changes, also after a restart; asked again, it gives the same export. Ids that this process holds
    /// in reserve were taken before, so it may still give them out.
    ///
    /// # Errors
    /// `Unavailable`: the disk fails; ask again. `NotSupported`: the store isn't embedded.
    pub async fn export(&self) -> Result<Export> {
        match &self.backend {
            Backend::Embedded(store) => store.export().await,
            _ => Err(export::not_here("only an embedded store is exported")),
        }
    }

    /// The id of the export of an embedded store: its facts are moving, or have moved, to an etcd.
    #[must_use]
    pub fn exported(&self) -> Option<u128> {
        match &self.backend {
            Backend::Embedded(store) => store.exported(),
            _ => None,
        }
    }

    /// Lets an embedded store that was exported take changes again. Only if nobody uses the facts where
    /// they were imported, or ever will. A later export has another id.
    ///
    /// # Errors
    /// `Changed`: this isn't its export. `Unavailable`: the disk fails; ask again. `NotSupported`: the
    /// store isn't embedded.
    pub async fn cancel_export(&self, id: u128) -> Result<()> {
        match &self.backend {
            Backend::Embedded(store) => store.cancel_export(id).await,
            _ => Err(export::not_here("only an embedded store is exported")),
        }
    }

    /// Puts all facts of an export into an etcd, under a prefix that has no keys, in one transaction.
    /// Done again, also much later, it changes nothing.
    ///
    /// # Errors
    /// `Exists`: there are other facts under the prefix. `NoSpace`: more than [`EXPORT_FACTS_MAX`] facts, or
    /// larger than etcd's requests may be. `InvalidArgument`: more than etcd's `--max-txn-ops`. Nothing was
    /// done. After `Unavailable` it may be done: import again. `NotSupported`: the store isn't an etcd.
    pub async fn import(&self, export: &Export) -> Result<()> {
        match &self.backend {
            Backend::Etcd(store) => store.load_full().import(export).await,
            _ => Err(export::not_here("only an etcd imports facts")),
        }
    }
}

fn check_changes(changes: &[Change]) -> Result<()> {
    let refused = |text| Err(Error::new(ErrorKind::InvalidArgument, text));
    if changes.len() > CHANGES_MAX {
        let text = format!(
            "{} changes in one transaction; the maximum is {CHANGES_MAX}",
            changes.len()
        );
        return refused(text);
    }
    for (at, Change { key, .. }) in changes.iter().enumerate() {
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return refused(format!(
                "key {key:?} is empty or longer than {KEY_BYTES_MAX} bytes"
            ));
        }
        if changes[..at].iter().any(|earlier| earlier.key == *key) {
            return refused(format!("key {key:?} appears twice in one transaction"));
        }
    }
    // More than the whole store may have. Also less than etcd takes in one request (1.5 MiB).
    state::check_room(state::bytes_of(changes))
}
