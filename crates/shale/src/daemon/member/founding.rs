//! A node that was alone becomes the first one of a cluster.
//!
//! `shale cluster create` writes the node's place into node.toml, with `founding`, and starts the daemon. The daemon
//! waits for etcd, copies all facts of the node's own store there in one change, adds what a cluster needs, and only then
//! says in node.toml that it is done. Whatever happens before, the next start does all of it again, with an etcd that begins anew
//! ([`begin_anew`]), or finds what is there in one that others run; whatever happens after, the old store isn't read any more.
//! A daemon that serves already does the same itself, while programs wait for a moment (`daemon/cluster/growing.rs`).
//!
//! *A mistake* (an address, a name, an etcd that can't be reached) is taken back by [`take_back`] as long as node.toml says
//! `founding`: nobody else has used the facts in etcd until then.

use super::etcd_members::{empty_data, remove_data};
use super::joining::etcd_settings;
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
pub(crate) async fn open_store(world: &World, path: &Path) -> Result<Coordination> {
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

/// Removes what an attempt before has left of the node's own etcd, before that starts. One that was killed between the begin of
/// its log and the first entries of it knows no members, and would wait for a leader for ever. Nobody else has used the facts in
/// it, and the node's own store still has all of them.
///
/// # Errors
/// The system's error.
pub(crate) fn begin_anew(dir: &Path, cluster: &ClusterConfig) -> Result<()> {
    match cluster.founding && cluster.etcd.is_some() {
        true => empty_data(dir),
        false => Ok(()),
    }
}

/// Waits until the cluster's etcd answers: an address can be wrong, or etcd may be unable to start.
///
/// # Errors
/// Why it doesn't.
pub(crate) async fn until_answered(
    world: &World,
    dir: &Path,
    cluster: &ClusterConfig,
    to: &Coordination,
) -> Result<()> {
    let deadline = Deadline::after(world, ETCD_START_MAX);
    while let Err(error) = to.cluster().await {
        if error.kind() != ErrorKind::Unavailable || deadline.has_passed(world) {
            let log = dir.join("etcd.log");
            let doing = match cluster.etcd {
                Some(_) => format!(
                    "waiting for etcd to answer (it writes to {})",
                    log.display()
                ),
                None => format!("asking etcd at {}", cluster.coordination.join(", ")),
            };
            return Err(error.while_doing(doing));
        }
        world.sleep(AGAIN_AFTER).await;
    }
    Ok(())
}

/// Moves the node's facts. `from`: its own store, if it is open.
///
/// # Errors
/// `Exists`: the etcd holds another cluster under this prefix. What is wrong with the store, or with etcd.
pub(crate) async fn found(
    world: &World,
    dir: &Path,
    (config, cluster): (&NodeConfig, &ClusterConfig),
    from: Option<Coordination>,
    to: &Coordination,
) -> Result<()> {
    // Before anything has changed.
    until_answered(world, dir, cluster, to).await?;
    let from = match from {
        Some(from) => from,
        None => open_store(world, &own_store(dir)).await?,
    };
    // The store takes no changes from here on, so nothing is left behind.
    let facts = from.export().await?;
    let deadline = Deadline::after(world, ETCD_START_MAX);
    loop {
        match to.import(&facts).await {
            Ok(()) => break,
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                if deadline.has_passed(world) {
                    return Err(error);
                }
                world.sleep(AGAIN_AFTER).await;
            }
            Err(error) => {
                // Nothing was done, and nothing would be if it were tried again.
                from.cancel_export(facts.id).await?;
                return Err(error);
            }
        }
    }
    let facts = NodeFacts {
        node: NodeId(cluster.node),
        name: cluster.name.clone(),
        class: "default".into(),
        is_quorum: cluster.etcd.is_some(),
        has_authority: true,
        is_barred: false,
        etcd: cluster
            .etcd
            .as_ref()
            .map(|_| cluster.coordination[0].clone()),
        address: cluster.address,
        key: [0; 32],
    };
    let nsds = config.region_paths()?.into_keys();
    Member::adopt(to, &facts, nsds).await?;
    tracing::info!(cluster = %cluster.id, "the node's facts are in the cluster's etcd");
    Ok(())
}

/// Makes a node whose cluster isn't founded yet one that is alone, as it was. The caller has the directory's lock. Can be done
/// again.
///
/// # Errors
/// `Exists`: the facts are in an etcd that others run already. `Unavailable`: whether they are isn't known, or a file can't be
/// changed.
pub(crate) async fn take_back(world: &World, dir: &Path, config: &mut NodeConfig) -> Result<()> {
    let Some(cluster) = &config.cluster else {
        return Ok(());
    };
    assert!(cluster.founding, "nobody else uses the facts in etcd");
    let store = open_store(world, &own_store(dir)).await?;
    let exported = store.exported();
    if exported.is_some() && cluster.etcd.is_none() {
        refuse_if_moved(world, dir, cluster).await?;
    }
    remove_data(dir)?;
    if let Some(id) = exported {
        store.cancel_export(id).await?;
    }
    config.cluster = None;
    config.store(dir)?;
    // Last: until now the node could have gone on with them.
    keys::remove(dir)
}

/// As [`take_back`], of an attempt that hasn't moved any fact: the node serves, and its store is open. Its etcd has ended.
///
/// # Errors
/// The system's error.
pub(crate) fn give_up(dir: &Path, config: &mut NodeConfig) -> Result<()> {
    remove_data(dir)?;
    config.cluster = None;
    config.store(dir)?;
    keys::remove(dir)
}

/// Refuses if facts are, or may be, in an etcd that isn't removed with the directory.
async fn refuse_if_moved(world: &World, dir: &Path, cluster: &ClusterConfig) -> Result<()> {
    let settings = etcd_settings(world, cluster, &keys::load(dir)?)?;
    let there = Coordination::etcd(world, &settings)?.list("").await;
    let doing = format!(
        "looking whether the node's facts have moved to {}",
        cluster.coordination.join(", ")
    );
    let there = there.map_err(|error| error.while_doing(doing))?;
    if there.found.is_empty() {
        return Ok(());
    }
    let text = format!(
        "the node's facts are in the etcd at {} already, under {:?}; go on with the same command as the first time",
        cluster.coordination.join(", "),
        cluster.prefix
    );
    Err(Error::new(ErrorKind::Exists, text))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::config::{EtcdConfig, Plan};
    use world::sim::Simulation;

    /// More than an embedded store needs.
    const STORE_BYTES: u64 = 8 << 20;

    /// One that is being founded.
    fn founding() -> ClusterConfig {
        let [client, peer] = ["10.0.0.1:7312", "10.0.0.1:7313"].map(|it| it.parse().unwrap());
        ClusterConfig {
            id: format!("{:032x}", 7),
            node: 1,
            name: "n1".into(),
            address: "10.0.0.1:7311".parse().unwrap(),
            coordination: vec![endpoint(client)],
            etcd_id: None,
            prefix: "/shale/7/".into(),
            etcd: Some(EtcdConfig {
                client,
                peer,
                joins: Vec::new(),
                began: false,
            }),
            outside: None,
            founding: true,
        }
    }

    /// Would be broken if an etcd were removed that others may depend on, or one whose directory is a disk of its own.
    #[test]
    fn only_an_attempt_to_found_a_cluster_begins_with_a_new_etcd() {
        let home = tempfile::tempdir().unwrap();
        let data = home.path().join("etcd");
        let log = data.join("member").join("wal");
        std::fs::create_dir_all(&log).unwrap();
        let is_done = ClusterConfig {
            founding: false,
            ..founding()
        };
        let is_outside = ClusterConfig {
            etcd: None,
            ..founding()
        };
        for cluster in [is_done, is_outside] {
            begin_anew(home.path(), &cluster).unwrap();
            assert!(log.exists());
        }
        for _ in 0..2 {
            begin_anew(home.path(), &founding()).unwrap();
            assert!(!log.exists() && data.exists());
        }
    }

    #[test]
    fn an_attempt_is_taken_back_with_its_export() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("node");
        let plan = Plan::of_new_member(None, false, None).unwrap();
        let mut config = NodeConfig::of_new_member(&dir, &plan).unwrap();
        let cluster = founding();
        // In 2026.
        make_keys(&dir, &cluster, Timestamp::from_timespec(1_770_000_000, 0)).unwrap();
        config.cluster = Some(cluster);
        config.store(&dir).unwrap();
        let data = dir.join("etcd");
        std::fs::create_dir(&data).unwrap();
        let of_run = dir.clone();
        let run = Simulation::new(1).run(move |world| async move {
            let store = own_store(&of_run);
            world.create_disk(&store, STORE_BYTES).unwrap();
            let facts = open_store(&world, &store).await.unwrap();
            facts.set_cluster(7).await.unwrap();
            facts.export().await.unwrap();
            facts
                .set_home(model::NsdId(1), NodeId(1))
                .await
                .unwrap_err();
            drop(facts);
            for _ in 0..2 {
                take_back(&world, &of_run, &mut config).await.unwrap();
            }
            let facts = open_store(&world, &store).await.unwrap();
            assert_eq!(facts.exported(), None);
            // It takes changes again.
            facts.set_home(model::NsdId(1), NodeId(1)).await.unwrap();
        });
        run.finished();
        let left = NodeConfig::load(&dir).unwrap().unwrap();
        assert_eq!(left.cluster, None);
        assert!(!data.exists() && !dir.join("keys").exists());
    }
}
