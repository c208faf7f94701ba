//! A kernel before a client: it keeps names and attributes for as long as it may, as Linux does with FUSE.

use crate::{connect, travel};
use client::{Client, Expired, Found, Kernel};
use futures::future::BoxFuture;
use model::{Attributes, ErrorKind, FileName, InodeId, Result};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use world::{Instant, World};

/// Answers, and notices, take up to so long.
const WAY: Duration = Duration::from_millis(20);

type Name = (InodeId, FileName);

/// What the kernel keeps.
#[derive(Default)]
struct Kept {
    /// Where names lead to, until when, and the epoch in which that was asked for.
    names: BTreeMap<Name, (Option<InodeId>, Instant, u64)>,
    attributes: BTreeMap<InodeId, (Attributes, Instant)>,
    /// Names of an earlier one aren't valid (`INC_EPOCH`).
    epoch: u64,
    /// Counts changes of this kernel's programs, and notices about attributes.
    version: u64,
    changed_names: BTreeMap<Name, u64>,
    changed_attributes: BTreeMap<InodeId, u64>,
}

/// The kernel of one client's node.
pub struct SimKernel {
    world: World,
    client: Arc<Client>,
    kept: Mutex<Kept>,
    /// Lookups and requests for attributes that it sent.
    pub asked: AtomicU64,
}

impl SimKernel {
    /// One before this client.
    #[must_use]
    pub fn before(client: &Arc<Client>) -> Arc<Self> {
        let kernel = Arc::new(Self {
            world: client.world().clone(),
            client: client.clone(),
            kept: Mutex::default(),
            asked: AtomicU64::new(0),
        });
        let _ = connect(client, kernel.clone());
        kernel
    }

    async fn travel(&self) {
        travel(&self.world, WAY).await;
    }

    /// What is kept and valid: of the name, and of the inode that it leads to.
    fn known(&self, name: &Name) -> Option<(Option<InodeId>, Option<Attributes>)> {
        let kept = self.kept.lock();
        let now = self.world.now();
        let (inode, until, epoch) = *kept.names.get(name)?;
        if now >= until || epoch != kept.epoch {
            return None;
        }
        let attributes = inode.and_then(|inode| kept.attributes.get(&inode));
        let attributes = attributes.filter(|(_, until)| now < *until);
        Some((inode, attributes.map(|(attributes, _)| *attributes)))
    }

    /// stat(2) of a path of one name.
    ///
    /// # Errors
    /// As [`Client::lookup`].
    pub async fn stat(&self, directory: InodeId, name: &FileName) -> Result<Attributes> {
        let name = (directory, name.clone());
        let missing = || Err(ErrorKind::NotFound.into());
        match self.known(&name) {
            Some((None, _)) => return missing(),
            Some((Some(_), Some(attributes))) => return Ok(attributes),
            Some((Some(inode), None)) => {
                self.asked.fetch_add(1, Ordering::Relaxed);
                match self.client.get_attributes(inode).await {
                    // The name was removed meanwhile; Linux looks it up again.
                    Err(error) if error.kind() == ErrorKind::Stale => {}
                    other => return other,
                }
            }
            None => {}
        }
        let (epoch, version) = {
            let kept = self.kept.lock();
            (kept.epoch, kept.version)
        };
        self.asked.fetch_add(1, Ordering::Relaxed);
        let found = self
            .client
            .lookup_to_keep(directory, name.1.clone())
            .await?;
        self.travel().await;
        let now = self.world.now();
        let mut kept = self.kept.lock();
        let is_new = |changed: Option<&u64>| changed.is_some_and(|changed| *changed > version);
        if is_new(kept.changed_names.get(&name)) {
            // Its own change followed the answer; programs saw both at the same time.
        } else if let Found::Entry(attributes, valid) = &found {
            let inode = attributes.inode;
            kept.names
                .insert(name, (Some(inode), now + valid.name, epoch));
            if !is_new(kept.changed_attributes.get(&inode)) {
                let known = (*attributes, now + valid.attributes);
                kept.attributes.insert(inode, known);
            }
        } else if let Found::Missing(valid) = &found {
            kept.names.insert(name, (None, now + *valid, epoch));
        }
        match found {
            Found::Entry(attributes, _) => Ok(attributes),
            Found::Missing(_) => missing(),
        }
    }

    /// fstat(2) of an open file, or stat(2) of a working directory.
    ///
    /// # Errors
    /// As [`Client::get_attributes`].
    pub async fn stat_open(&self, inode: InodeId) -> Result<Attributes> {
        let version = {
            let kept = self.kept.lock();
            let known = kept.attributes.get(&inode);
            if let Some((known, until)) = known
                && self.world.now() < *until
            {
                return Ok(*known);
            }
            kept.version
        };
        self.asked.fetch_add(1, Ordering::Relaxed);
        let (attributes, valid) = self.client.get_attributes_to_keep(inode).await?;
        self.travel().await;
        let until = self.world.now() + valid;
        let mut kept = self.kept.lock();
        let changed = kept.changed_attributes.get(&inode);
        if changed.is_none_or(|changed| *changed <= version) {
            kept.attributes.insert(inode, (attributes, until));
        }
        Ok(attributes)
    }

    /// A program of this kernel begins or ends a change of names.
    pub fn changes_name(&self, directory: InodeId, name: &FileName) {
        let name = (directory, name.clone());
        let mut kept = self.kept.lock();
        kept.version += 1;
        let version = kept.version;
        kept.names.remove(&name);
        kept.changed_names.insert(name, version);
    }

    /// A program of this kernel begins or ends a change of attributes.
    pub fn changes_attributes(&self, inode: InodeId) {
        let mut kept = self.kept.lock();
        kept.version += 1;
        let version = kept.version;
        kept.attributes.remove(&inode);
        kept.changed_attributes.insert(inode, version);
    }
}

impl Kernel for SimKernel {
    fn expire(&self, what: Expired) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.travel().await;
            match what {
                Expired::Names => self.kept.lock().epoch += 1,
                Expired::Attributes(inode) => {
                    self.changes_attributes(inode);
                    self.kept.lock().epoch += 1;
                }
                Expired::Bytes { .. } => {}
            }
            self.travel().await;
        })
    }
}
