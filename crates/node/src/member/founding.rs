//! How a cluster's file system begins: the facts of its pool, then each node's regions.

use super::{FIRST_FILE_SYSTEM, Member};
use crate::nsds::{Failures, entry};
use crate::regions::make_disk;
use coordination::{Coordination, NodeFacts};
use metanode::DATA_POOL;
use model::{Error, ErrorKind, NodeId, NsdId, Result, Scheme};
use nsd::{Nsd, NsdIdentity};
use std::collections::BTreeMap;
use std::path::PathBuf;
use world::World;

/// A new cluster.
#[derive(Clone, Debug)]
pub struct Founding {
    /// The pool's scheme.
    pub scheme: Scheme,
    /// Bytes per block.
    pub block_bytes: u32,
    /// The first NSDs.
    pub nsds: Vec<FoundingNsd>,
}

/// An NSD of a new cluster.
#[derive(Clone, Copy, Debug)]
pub struct FoundingNsd {
    /// Its number.
    pub nsd: NsdId,
    /// Its node.
    pub node: NodeId,
    /// Bytes of its region.
    pub bytes: u64,
}

impl Member {
    /// Writes the facts of a new cluster. Each of its nodes then makes its regions
    /// ([`Member::format_nsds`]) and joins; the first one creates the shard.
    ///
    /// # Errors
    /// `Exists` if coordination knows a cluster; `InvalidArgument` if the scheme needs more nodes.
    /// After `Unavailable`, found it again.
    pub async fn found(
        world: &World,
        coordination: &Coordination,
        founding: &Founding,
    ) -> Result<()> {
        if coordination.cluster().await?.is_some() {
            let text = "this cluster exists; nodes join it";
            return Err(Error::new(ErrorKind::Exists, text));
        }
        let entries = founding.nsds.iter();
        let entries = entries.map(|it| entry(it.nsd, it.bytes, Failures::ByNode(it.node)));
        let map = placement::new_pool(founding.scheme, entries.collect(), world.random_u64())?;
        // Facts of an attempt whose outcome wasn't known are replaced.
        let version = coordination.config("block_bytes").await?;
        let version = version.map_or(0, |fact| fact.version);
        let block_bytes = founding.block_bytes.to_string();
        coordination
            .set_config("block_bytes", version, &block_bytes)
            .await?;
        let version = coordination.pool_map(DATA_POOL).await?;
        let version = version.map_or(0, |fact| fact.version);
        coordination.set_pool_map(DATA_POOL, version, &map).await?;
        for it in &founding.nsds {
            coordination.set_home(it.nsd, it.node).await?;
        }
        // Last, so that a cluster with an id is complete.
        let cluster = u128::from(world.random_u64()) << 64 | u128::from(world.random_u64());
        coordination.set_cluster(cluster).await
    }

    /// Makes what a cluster needs of the facts of a node that was alone, which are in `coordination` already: the node
    /// itself, where its NSDs are, and the name of its file system. Can be done again.
    ///
    /// # Errors
    /// `NotFound`: coordination has no such facts. Those of coordination; do it again then.
    pub async fn adopt(
        coordination: &Coordination,
        node: &NodeFacts,
        nsds: impl IntoIterator<Item = NsdId>,
    ) -> Result<()> {
        if coordination.cluster().await?.is_none() {
            let text = "coordination knows no file system";
            return Err(Error::new(ErrorKind::NotFound, text));
        }
        let name = FIRST_FILE_SYSTEM.parse()?;
        coordination.name_first_file_system(&name).await?;
        for nsd in nsds {
            coordination.set_home(nsd, node.node).await?;
        }
        coordination.add_first_node(node).await
    }

    /// Makes the regions of this node's NSDs. They must not exist.
    ///
    /// # Errors
    /// `NotFound` before the cluster was founded; `Exists`, `NoSpace`, or the disk's error.
    pub async fn format_nsds(
        world: &World,
        coordination: &Coordination,
        nsds: &BTreeMap<NsdId, (PathBuf, u64)>,
    ) -> Result<()> {
        let cluster = coordination.cluster().await?.ok_or_else(|| {
            Error::new(
                ErrorKind::NotFound,
                "coordination knows no cluster; found it first",
            )
        })?;
        for (nsd, (path, bytes)) in nsds {
            let disk = make_disk(world, path, *bytes)?;
            let identity = NsdIdentity {
                cluster,
                nsd: *nsd,
                pool: 0,
            };
            Nsd::format(world, &disk, identity)
                .await
                .map_err(|error| error.while_doing(format!("formatting {}", path.display())))?;
        }
        Ok(())
    }
}
