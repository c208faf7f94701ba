//! A node that was alone becomes the first one of a cluster.
//!
//! `shale cluster create` writes the node's place into node.toml, with `founding`, and starts the daemon. The daemon
//! copies all facts of the node's own store into the cluster's etcd in one change, adds what a cluster needs, and only then
//! says in node.toml that it is done. Whatever happens before, the next start does all of it again and finds what is there;
//! whatever happens after, the old store isn't read any more.

use super::keys;
use crate::daemon::config::{ClusterConfig, NodeConfig};
use coordination::Coordination;
use model::{Error, ErrorKind, NodeId, Result, Timestamp};
use node::{Member, NodeFacts};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use world::{Deadline, World};

/// How long etcd may take to answer for the first time.
const ETCD_START_MAX: Duration = Duration::from_secs(60);
/// Pause between two attempts.
const AGAIN_AFTER: Duration = Duration::from_millis(200);

/// The store of a node that is alone.
pub fn own_store(dir: &Path) -> PathBuf {
    dir.join("coordination.region")
}

/// Opens it.
///
/// # Errors
/// What is wrong with it.
pub async fn open_store(world: &World, path: &Path) -> Result<Coordination> {
    let opened = async {
        let disk = world
            .open_disk(path)
            .map_err(|error| Error::new(ErrorKind::NotFound, error.to_string()))?;
        Coordination::embedded(world, disk).await
    };
    let opened: Result<_> = opened.await;
    opened.map_err(|error| error.while_doing(format!("opening {}", path.display())))
}

/// Where a member of etcd answers clients, as text.
pub fn endpoint(client: SocketAddr) -> String {
    format!("https://{client}")
}

/// Makes the cluster's authority and this node's certificate.
///
/// # Errors
/// The system's error.
pub fn make_keys(dir: &Path, cluster: &ClusterConfig, now: Timestamp) -> Result<()> {
    let id = u128::from_str_radix(&cluster.id, 16).map_err(|_| {
        let text = format!("{:?} is no cluster's id", cluster.id);
        Error::new(ErrorKind::InvalidArgument, text)
    })?;
    keys::found(dir, id, cluster.address, now)
}

/// Moves the node's facts.
///
/// # Errors
/// `Exists`: the etcd holds another cluster under this prefix. What is wrong with the store, or with etcd.
pub async fn found(
    world: &World,
    dir: &Path,
    config: &NodeConfig,
    cluster: &ClusterConfig,
    to: &Coordination,
) -> Result<()> {
    let from = open_store(world, &own_store(dir)).await?;
    // The store takes no changes from here on, so nothing is left behind.
    let facts = from.export().await?;
    let deadline = Deadline::after(world, ETCD_START_MAX);
    loop {
        match to.import(&facts).await {
            Err(error) if error.kind() == ErrorKind::Unavailable && !deadline.has_passed(world) => {
                world.sleep(AGAIN_AFTER).await;
            }
            done => break done?,
        }
    }
    let facts = NodeFacts {
        node: NodeId(cluster.node),
        name: cluster.name.clone(),
        class: "default".into(),
        is_quorum: cluster.etcd.is_some(),
        is_barred: false,
        etcd: cluster
            .etcd
            .as_ref()
            .map(|_| cluster.coordination[0].clone()),
        key: [0; 32],
    };
    let nsds = config.region_paths()?.into_keys();
    Member::adopt(to, &facts, nsds).await?;
    tracing::info!(cluster = %cluster.id, "the node's facts are in the cluster's etcd");
    Ok(())
}

/// Renames the store that isn't used any more, so that nobody starts from it again.
///
/// # Errors
/// The system's error.
pub fn put_store_aside(dir: &Path) -> Result<()> {
    let store = own_store(dir);
    let aside = dir.join("coordination.region.moved-to-etcd");
    match std::fs::rename(&store, &aside) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::new(ErrorKind::Unavailable, error.to_string())
                .while_doing(format!("renaming {}", store.display())))
        }
        _ => Ok(()),
    }
}
