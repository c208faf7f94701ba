//! The rules of the store: what a transaction and the end of a lease do to the keys. Pure; the
//! bodies decide when, and under which revision.

use crate::{
    Action, Change, Event, Facts, LEASES_MAX, LeaseId, STATE_BYTES_MAX, Versioned, history::Batch,
};
use bytes::Bytes;
use model::{Error, ErrorKind, Result};
use std::{collections::BTreeMap, time::Duration};

/// Bytes that a key takes besides itself and its value.
const KEY_COST: usize = 22;
/// Bytes that a lease takes.
const LEASE_COST: usize = 12;

/// All keys and leases at one revision. When a lease ends is up to the body.
#[derive(Clone, Default)]
pub(crate) struct State {
    pub(crate) keys: BTreeMap<String, Stored>,
    /// Each lease with its TTL.
    pub(crate) leases: BTreeMap<LeaseId, Duration>,
}

#[derive(Clone)]
pub(crate) struct Stored {
    pub(crate) value: Bytes,
    /// The revision that wrote it.
    pub(crate) version: u64,
    pub(crate) lease: Option<LeaseId>,
}

impl Stored {
    fn versioned(&self) -> Versioned<Bytes> {
        Versioned {
            value: self.value.clone(),
            version: self.version,
        }
    }
}

impl State {
    pub(crate) fn get(&self, key: &str) -> Option<Versioned<Bytes>> {
        self.keys.get(key).map(Stored::versioned)
    }

    pub(crate) fn list(&self, prefix: &str) -> Facts {
        self.keys
            .range(prefix.to_owned()..)
            .take_while(|(key, _)| key.starts_with(prefix))
            .map(|(key, stored)| (key.clone(), stored.versioned()))
            .collect()
    }

    /// Whether the transaction may happen now: versions first, then leases, then room.
    pub(crate) fn check(&self, changes: &[Change]) -> Result<()> {
        for Change { key, expected, .. } in changes {
            let found = self.keys.get(key).map_or(0, |stored| stored.version);
            if found != *expected {
                return Err(fact_changed(key, found, *expected));
            }
        }
        let mut bytes = self.bytes();
        for Change { key, action, .. } in changes {
            if matches!(action, Action::Keep) {
                continue;
            }
            if let Some(old) = self.keys.get(key) {
                bytes -= KEY_COST + key.len() + old.value.len();
            }
            if let Action::Put { value, lease } = action {
                bytes += KEY_COST + key.len() + value.len();
                if let Some(lease) = lease
                    && !self.leases.contains_key(lease)
                {
                    return Err(lease_ended(*lease));
                }
            }
        }
        check_room(bytes)
    }

    /// Whether a transaction that may happen has a revision of its own.
    pub(crate) fn is_changed_by(changes: &[Change]) -> bool {
        changes.iter().any(|change| match change.action {
            Action::Keep => false,
            Action::Put { .. } => true,
            // Without the key there is nothing to remove.
            Action::Remove => change.expected != 0,
        })
    }

    /// Makes the changes, which were checked, under this revision.
    pub(crate) fn apply(&mut self, changes: Vec<Change>, revision: u64) -> Batch {
        let mut events = Vec::new();
        for Change { key, action, .. } in changes {
            let value = match action {
                Action::Keep => continue,
                Action::Put { value, lease } => {
                    let stored = Stored {
                        value: value.clone(),
                        version: revision,
                        lease,
                    };
                    self.keys.insert(key.clone(), stored);
                    Some(value)
                }
                Action::Remove => {
                    if self.keys.remove(&key).is_none() {
                        continue;
                    }
                    None
                }
            };
            events.push(Event { key, value });
        }
        Batch { revision, events }
    }

    /// Adds a lease.
    pub(crate) fn grant(&mut self, lease: LeaseId, ttl: Duration) -> Result<()> {
        if self.leases.len() >= LEASES_MAX {
            return Err(Error::new(
                ErrorKind::NoSpace,
                format!("there are {LEASES_MAX} leases, which is the maximum"),
            ));
        }
        check_room(self.bytes() + LEASE_COST)?;
        let before = self.leases.insert(lease, ttl);
        assert!(before.is_none(), "names of leases aren't reused");
        Ok(())
    }

    /// Ends a lease and removes its keys under this revision.
    pub(crate) fn end(&mut self, lease: LeaseId, revision: u64) -> Result<Batch> {
        self.leases
            .remove(&lease)
            .ok_or_else(|| lease_ended(lease))?;
        let mut events = Vec::new();
        self.keys.retain(|key, stored| {
            let stays = stored.lease != Some(lease);
            if !stays {
                let key = key.clone();
                events.push(Event { key, value: None });
            }
            stays
        });
        Ok(Batch { revision, events })
    }

    fn bytes(&self) -> usize {
        let keys = self.keys.iter();
        let keys: usize = keys
            .map(|(key, stored)| KEY_COST + key.len() + stored.value.len())
            .sum();
        keys + self.leases.len() * LEASE_COST
    }
}

/// Bytes that the keys which a transaction puts take, with their values.
pub(crate) fn bytes_of(changes: &[Change]) -> usize {
    let puts = changes.iter().filter_map(|change| match &change.action {
        Action::Put { value, .. } => Some(KEY_COST + change.key.len() + value.len()),
        Action::Keep | Action::Remove => None,
    });
    puts.sum()
}

pub(crate) fn check_room(bytes: usize) -> Result<()> {
    if bytes <= STATE_BYTES_MAX {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::NoSpace,
        format!(
            "the coordination state would have {bytes} bytes; the maximum is {STATE_BYTES_MAX}"
        ),
    ))
}

pub(crate) fn fact_changed(key: &str, found: u64, expected: u64) -> Error {
    Error::new(
        ErrorKind::Changed,
        format!("fact {key:?} is at version {found}, not at {expected}"),
    )
}

pub(crate) fn lease_ended(lease: LeaseId) -> Error {
    Error::new(ErrorKind::NotFound, format!("lease {lease} has ended"))
}
