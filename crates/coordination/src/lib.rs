//! Small facts that the cluster agrees on: who owns a shard, where its log is, which NSDs make a
//! pool.
//!
//! A key-value store with compare-and-set. It holds nothing per file, blob or client. A single node
//! uses the embedded store (a small disk region). The interface has only operations that etcd
//! offers as well (versions per key, transactions, watches by prefix), so that an etcd
//! implementation needs no changes in its callers.

mod embedded;
mod facts;
#[cfg(test)]
mod tests;

pub use facts::{ClosedFragment, EndedEpoch, ShardRecord};

use bytes::Bytes;
use model::{Error, ErrorKind, Result};
use std::{collections::BTreeMap, sync::Arc};
use tokio::sync::watch;
use world::{Disk, World};

/// Minimum size of the embedded store's region in bytes.
pub const EMBEDDED_REGION_BYTES: u64 = embedded::REGION_BYTES;
/// Longest key in bytes.
pub const KEY_BYTES_MAX: usize = 256;
/// Most bytes of all keys and values together, counting 14 more for each key.
pub const STATE_BYTES_MAX: usize = 1024 * 1024;

/// A value and the version to compare when changing it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Versioned<T> {
    /// The value.
    pub value: T,
    /// The version that wrote it; increases over the whole store, never 0, never reused.
    pub version: u64,
}

/// One key's part in a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// The key.
    pub key: String,
    /// The version that the key must have now; 0 if it must not exist.
    pub expected: u64,
    /// The new value; `None` removes the key.
    pub value: Option<Bytes>,
}

pub(crate) type Values = BTreeMap<String, Versioned<Bytes>>;

/// The store of facts. Cheap to clone. Only durable facts are ever returned.
#[derive(Clone)]
pub struct Coordination {
    backend: Backend,
}

#[derive(Clone)]
enum Backend {
    Embedded(Arc<embedded::Embedded>),
}

impl Coordination {
    /// Opens the embedded store on its own disk region. Formats the region if no state was ever
    /// stored there (all zeros, or a power cut during the first format).
    ///
    /// # Errors
    /// `Corrupt` if no copy of the state is whole; `Unavailable` if the disk fails.
    pub async fn embedded(world: &World, disk: Disk) -> Result<Self> {
        Ok(Self {
            backend: Backend::Embedded(embedded::Embedded::open(world.clone(), disk).await?),
        })
    }

    /// The value of a key.
    pub async fn get(&self, key: &str) -> Result<Option<Versioned<Bytes>>> {
        match &self.backend {
            Backend::Embedded(store) => Ok(store.get(key)),
        }
    }

    /// All keys that begin with `prefix`, in order.
    pub async fn list(&self, prefix: &str) -> Result<Vec<(String, Versioned<Bytes>)>> {
        match &self.backend {
            Backend::Embedded(store) => Ok(store.list(prefix)),
        }
    }

    /// Sets one key if its version is `expected` (0: it must not exist). Returns the new version.
    ///
    /// # Errors
    /// `Changed` if the version differs; nothing was done. After `Unavailable` it is unknown
    /// whether the change happened: read again.
    pub async fn compare_and_set(
        &self,
        key: &str,
        expected: u64,
        value: Option<Bytes>,
    ) -> Result<u64> {
        self.transaction(vec![Change {
            key: key.to_owned(),
            expected,
            value,
        }])
        .await
    }

    /// Makes all changes or none, durably, and returns their version. Runs to completion even if
    /// the future is dropped. Errors as for [`Coordination::compare_and_set`].
    pub async fn transaction(&self, changes: Vec<Change>) -> Result<u64> {
        check_changes(&changes)?;
        match &self.backend {
            Backend::Embedded(store) => store.transaction(changes).await,
        }
    }

    /// Notifies of every change: the value is the newest version in the store. Callers list the
    /// keys they care about after each change.
    pub fn watch(&self) -> watch::Receiver<u64> {
        match &self.backend {
            Backend::Embedded(store) => store.watch(),
        }
    }
}

fn check_changes(changes: &[Change]) -> Result<()> {
    for (at, change) in changes.iter().enumerate() {
        if change.key.is_empty() || change.key.len() > KEY_BYTES_MAX {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "key {:?} is empty or longer than {KEY_BYTES_MAX} bytes",
                    change.key
                ),
            ));
        }
        if changes[..at]
            .iter()
            .any(|earlier| earlier.key == change.key)
        {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("key {:?} appears twice in one transaction", change.key),
            ));
        }
    }
    Ok(())
}
