//! The node behind the admin API: one that is alone, or a member of a cluster.

use super::file_systems::{FileSystems, OpenFileSystem};
use super::member::{Home, InCluster};
use client::{ClientSettings, Losses};
use futures::future::BoxFuture;
use metanode::{MemoryUse, Metanode};
use model::{Error, ErrorKind, FileSystemName, InodeId, NsdId, Result};
use node::{FIRST_FILE_SYSTEM, GenerationView, Node, NsdView, PoolChange, ROOT_SHARD, Removal};
use pool::Pool;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use world::{Instant, World};

/// How often a command that waits looks whether the node has its lease.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A running node.
pub enum Running {
    /// It is the whole cluster.
    Alone(Arc<Node>),
    /// One of many.
    InCluster(Arc<InCluster>),
}

/// What `shale fs df` shows, in users' bytes.
pub struct Usage {
    pub size: u64,
    pub used: u64,
    pub available: u64,
    /// Bytes of all files together, if that is known here.
    pub logical: Option<u64>,
    pub inodes: u64,
}

impl FileSystems for Node {
    fn open<'a>(
        self: Arc<Self>,
        name: Option<&'a FileSystemName>,
    ) -> BoxFuture<'a, Result<Arc<OpenFileSystem>>> {
        let opened = match name {
            Some(name) if name.as_str() != FIRST_FILE_SYSTEM => {
                let text = format!(
                    "there is no file system {name}: a node that is alone has one, {FIRST_FILE_SYSTEM}; \
                     `shale cluster create` makes it the first node of a cluster, which may have more"
                );
                Err(Error::new(ErrorKind::NotFound, text))
            }
            _ => Ok(OpenFileSystem::new(self.client().clone(), InodeId::ROOT)),
        };
        Box::pin(std::future::ready(opened))
    }

    fn opened(&self) -> Vec<Arc<OpenFileSystem>> {
        vec![OpenFileSystem::new(self.client().clone(), InodeId::ROOT)]
    }

    fn losses(&self) -> Losses {
        self.client().losses()
    }
}

impl Running {
    /// Time and tasks.
    pub fn world(&self) -> &World {
        match self {
            Self::Alone(node) => node.world(),
            Self::InCluster(here) => here.member().world(),
        }
    }

    /// The file systems that can be mounted.
    pub fn file_systems(&self) -> Arc<dyn FileSystems> {
        match self {
            Self::Alone(node) => node.clone(),
            Self::InCluster(here) => here.clone(),
        }
    }

    /// The member, if the node belongs to a cluster.
    ///
    /// # Errors
    /// `NotSupported` on a node that is alone.
    pub fn in_cluster(&self) -> Result<&Arc<InCluster>> {
        match self {
            Self::InCluster(here) => Ok(here),
            Self::Alone(_) => Err(Error::new(
                ErrorKind::NotSupported,
                "this node belongs to no cluster; make it the first one of a cluster with `shale cluster create`, or \
                 join one with a new node: `shale node join`",
            )),
        }
    }

    /// The storage pool.
    pub fn pool(&self) -> &Arc<Pool> {
        match self {
            Self::Alone(node) => node.pool(),
            Self::InCluster(here) => here.member().pool(),
        }
    }

    /// The metadata services here.
    pub fn metanodes(&self) -> Vec<Arc<Metanode>> {
        match self {
            Self::Alone(node) => vec![node.metanode().clone()],
            Self::InCluster(here) => {
                let shards = here.member().hosted_shards().into_iter();
                shards
                    .filter_map(|shard| here.member().hosted_of(shard))
                    .collect()
            }
        }
    }

    /// The metadata service of the first file system.
    ///
    /// # Errors
    /// `NotFound`: another node has it; it says which.
    pub fn metanode_of_first(&self) -> Result<Arc<Metanode>> {
        match self {
            Self::Alone(node) => Ok(node.metanode().clone()),
            Self::InCluster(here) => here.member().hosted().ok_or_else(|| {
                let owner = here.member().roster().assigned(ROOT_SHARD);
                let text = match owner {
                    Some(run) => format!(
                        "node {0} serves its metadata: ask there, with --node {0}",
                        run.node
                    ),
                    None => "no node serves its metadata now; try again in some seconds".into(),
                };
                Error::new(ErrorKind::NotFound, text)
            }),
        }
    }

    /// The metadata service that scrubs when it is asked.
    ///
    /// # Errors
    /// `NotSupported` in a cluster, whose manager has all groups scrubbed in turn.
    pub fn metanode_that_scrubs(&self) -> Result<Arc<Metanode>> {
        match self {
            Self::Alone(node) => Ok(node.metanode().clone()),
            Self::InCluster(_) => Err(Error::new(
                ErrorKind::NotSupported,
                "in a cluster the NSD servers scrub all groups by themselves, as often as the setting                  scrub_every_seconds says: `shale config set scrub_every_seconds 86400`",
            )),
        }
    }

    /// Which node has each NSD; empty on a node that is alone.
    pub fn homes(&self) -> BTreeMap<NsdId, Home> {
        match self {
            Self::Alone(_) => BTreeMap::new(),
            Self::InCluster(here) => here.homes(),
        }
    }

    /// Space of the pool, and what the first file system has.
    ///
    /// # Errors
    /// `Unavailable` while the metadata is.
    pub async fn usage(&self) -> Result<Usage> {
        match self {
            Self::Alone(node) => {
                let usage = node.metanode().usage().await?;
                Ok(Usage {
                    size: usage.capacity,
                    used: usage.used,
                    available: usage.available,
                    // For people and scripts: few JSON readers take numbers beyond 64 bits.
                    logical: Some(u64::try_from(usage.logical).unwrap_or(u64::MAX)),
                    inodes: usage.inodes,
                })
            }
            Self::InCluster(here) => {
                let usage = here.usage_of_first().await?;
                Ok(Usage {
                    size: usage.capacity,
                    used: usage.capacity.saturating_sub(usage.free),
                    available: usage.available,
                    logical: None,
                    inodes: usage.inodes,
                })
            }
        }
    }

    /// Makes everything durable that was written here.
    ///
    /// # Errors
    /// The first thing that couldn't be made durable. `Unavailable` if the node has no lease for as long as programs wait for other
    /// things: they wait on then, and commands don't.
    pub async fn sync_all(&self) -> Result<()> {
        let syncing = async {
            let mut result = Ok(());
            // In use meanwhile, so that none is closed.
            for open in self.file_systems().opened() {
                result = result.and(open.client.sync_all().await);
            }
            result
        };
        tokio::select! {
            biased;
            synced = syncing => synced,
            error = self.stays_without_lease() => Err(error),
        }
    }

    /// Returns when the node of a cluster has had no lease for long, with what people are told.
    async fn stays_without_lease(&self) -> Error {
        let Self::InCluster(here) = self else {
            return std::future::pending().await;
        };
        let (member, patience) = (here.member(), ClientSettings::default().patience);
        without_lease(member.world(), patience, || member.lease_ends()).await;
        let text = "nothing can be made durable while this node has no lease; what was written waits in memory. See that most of \
                    the quorum nodes run and that this node reaches them: `shale health --all`";
        Error::new(ErrorKind::Unavailable, text)
    }

    /// The NSDs of the pool.
    pub fn nsds(&self) -> Vec<NsdView> {
        match self {
            Self::Alone(node) => node.nsds().views(),
            Self::InCluster(here) => {
                let homes = here.member().roster().homes.clone();
                let mut all = here.member().nsds();
                for view in all.iter_mut().filter(|it| it.path.as_os_str().is_empty()) {
                    if let Some(node) = homes.get(&view.nsd) {
                        view.path = format!("on node {node}").into();
                    }
                }
                all
            }
        }
    }

    /// Takes NSDs that came back into use. A member does so by itself.
    pub async fn look_for_returned(&self) {
        if let Self::Alone(node) = self {
            node.nsds().look_for_returned().await;
        }
    }

    /// Reopens an NSD of this node.
    ///
    /// # Errors
    /// Why it doesn't open.
    pub async fn reopen(&self, nsd: NsdId) -> Result<()> {
        match self {
            Self::Alone(node) => node.nsds().reopen(nsd).await,
            Self::InCluster(here) => here.member().reopen_nsd(nsd).await,
        }
    }

    /// A number for a new NSD.
    ///
    /// # Errors
    /// Those of coordination.
    pub async fn next_nsd(&self) -> Result<NsdId> {
        match self {
            Self::Alone(node) => node.nsds().next_id().await,
            Self::InCluster(here) => here.member().next_nsd().await,
        }
    }

    /// Adds an NSD of this node.
    ///
    /// # Errors
    /// As [`node::LocalNsds::add`].
    pub async fn add_nsd(&self, nsd: NsdId, path: &Path, bytes: u64) -> Result<()> {
        match self {
            Self::Alone(node) => node.nsds().add(nsd, path, bytes).await,
            Self::InCluster(here) => here.member().add_nsd(nsd, path, bytes).await,
        }
    }

    /// Removes what attempts to add an NSD have left that broke off.
    ///
    /// # Errors
    /// As [`node::LocalNsds::discard_leftovers`].
    pub async fn discard_leftovers(
        &self,
        noted: &BTreeMap<NsdId, PathBuf>,
        own: &Path,
    ) -> Result<Vec<NsdId>> {
        match self {
            Self::Alone(node) => node.nsds().discard_leftovers(noted, own).await,
            Self::InCluster(here) => here.member().discard_leftovers(noted, own).await,
        }
    }

    /// Takes an NSD out of use.
    ///
    /// # Errors
    /// As [`node::LocalNsds::remove`].
    pub async fn remove_nsd(&self, nsd: NsdId, removal: Removal) -> Result<()> {
        match self {
            Self::Alone(node) => node.nsds().remove(nsd, removal).await,
            Self::InCluster(here) => here.member().remove_nsd(nsd, removal).await,
        }
    }

    /// Takes back the drain of an NSD.
    ///
    /// # Errors
    /// As [`node::LocalNsds::cancel_drain`].
    pub async fn cancel_drain(&self, nsd: NsdId) -> Result<()> {
        match self {
            Self::Alone(node) => node.nsds().cancel_drain(nsd).await,
            Self::InCluster(here) => here.member().cancel_drain(nsd).await,
        }
    }

    /// The pool's generations, oldest first.
    pub fn generations(&self) -> Vec<GenerationView> {
        match self {
            Self::Alone(node) => node.nsds().generations(),
            Self::InCluster(here) => here.member().generations(),
        }
    }

    /// Segments that are still to be moved into the pool's newest groups. `None`: they aren't counted yet, or the
    /// cluster's manager doesn't answer.
    pub async fn segments_to_rewrite(&self) -> Option<u64> {
        match self {
            Self::Alone(node) => node.metanode().moves().to_rewrite,
            Self::InCluster(here) => {
                let progress = here.member().repair_status().await.ok()?;
                // It may not have heard yet that there is something to do.
                progress.to_rewrite.filter(|_| progress.closed > 0)
            }
        }
    }

    /// Changes the pool.
    ///
    /// # Errors
    /// As [`node::LocalNsds::change_pool`].
    pub async fn change_pool(&self, change: PoolChange) -> Result<()> {
        match self {
            Self::Alone(node) => node.nsds().change_pool(change).await,
            Self::InCluster(here) => here.member().change_pool(change).await,
        }
    }

    /// Says which NSDs fail together.
    ///
    /// # Errors
    /// As [`node::LocalNsds::set_failure_groups`].
    pub async fn set_failure_groups(&self, which: &[(NsdId, Option<String>)]) -> Result<()> {
        match self {
            Self::Alone(node) => node.nsds().set_failure_groups(which).await,
            Self::InCluster(here) => here.member().name_failure_groups(which).await,
        }
    }

    /// Bytes per block.
    pub fn block_bytes(&self) -> u32 {
        match self {
            Self::Alone(node) => node.block_bytes(),
            Self::InCluster(here) => here.member().block_bytes(),
        }
    }

    /// What the memory of the metadata services here is used for.
    pub fn memory_uses(&self) -> Vec<MemoryUse> {
        match self {
            Self::Alone(node) => node.memory_uses(),
            Self::InCluster(here) => here.member().memory_uses(),
        }
    }

    /// Makes everything durable and closes all parts.
    ///
    /// # Errors
    /// The first thing that couldn't be made durable; the rest was closed all the same.
    pub async fn close(&self) -> Result<()> {
        match self {
            Self::Alone(node) => node.close().await,
            Self::InCluster(here) => here.close().await,
        }
    }
}

/// Returns when there was no lease, which ends when `ends` says, for so long since this was called.
async fn without_lease(world: &World, most: Duration, ends: impl Fn() -> Instant) {
    let mut has_had = world.now();
    while world.now() - has_had < most {
        world.sleep(LOOK_EVERY).await;
        if ends() > world.now() {
            has_had = world.now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use world::sim::Simulation;

    /// Would be broken if a command were told that the node has no lease while it has one, or never.
    #[test]
    fn a_command_is_told_when_the_node_has_had_no_lease_for_a_minute() {
        let run = Simulation::new(1).run(async |world: World| {
            let (begun, minute) = (world.now(), Duration::from_secs(60));
            without_lease(&world, minute, || begun).await;
            assert_eq!(world.now() - begun, minute);
            // Lost for half a minute, had for a minute, and lost.
            let begun = world.now();
            let (from, to) = (begun + minute / 2, begun + minute * 3 / 2);
            let ends = || match world.now() >= from {
                true => to,
                false => begun,
            };
            without_lease(&world, minute, ends).await;
            assert_eq!(world.now(), to - LOOK_EVERY + minute);
        });
        run.finished();
    }
}
