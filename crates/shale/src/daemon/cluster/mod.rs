//! A daemon whose node belongs to a cluster.
//!
//! *A start*: the node's member of etcd is started if it has one, coordination is reached, and a new run of the node
//! joins as a [`node::Member`]; then the node's mount is made, through a client of the first file system. *An expulsion*:
//! the run's mounts end, so that programs get errors instead of old data, the member is closed, and another run joins and
//! mounts again. *An end*: mounts end, the shards here go to others, the member leaves.
//!
//! `member` is what runs meanwhile; `keeping` learns of changes of the cluster's nodes.

mod etcd;
mod keeping;

use super::config::{ClusterConfig, NodeConfig};
use super::events::Events;
use super::member::{InCluster, admission::Admission, founding, joining, keys};
use super::relay::Relay;
use super::running::Running;
use super::serving::Serving;
use super::{Ended, serve};
use coordination::Coordination;
use coordination::etcd::{Etcd, EtcdBegin, EtcdCertificates, EtcdServer, EtcdSettings, HEARTBEAT};
use etcd::EtcdProcess;
use model::{Error, ErrorKind, NodeId, Result};
use node::{Member, MemberSettings, Protection};
use rpc::security::{Admit, Mode, Policy, Security};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use world::{Deadline, Task, World};

/// How long coordination and the other nodes are waited for when the daemon starts. A whole cluster that starts needs
/// most of its quorum nodes for the first of them to go on.
const START_MAX: Duration = Duration::from_secs(300);
/// How long this node's member of etcd is waited for until it has caught up, each time.
const PROMOTE_MAX: Duration = Duration::from_secs(60);
/// Pause between two attempts.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

/// Runs the daemon of a cluster's node until it is told to end.
///
/// # Errors
/// The reason why it couldn't start, or ended by itself.
pub async fn live(
    world: &World,
    dir: &Path,
    mut config: NodeConfig,
    cluster: ClusterConfig,
    on_demand: bool,
) -> Result<()> {
    let credentials = keys::load(dir)?;
    let settings = joining::etcd_settings(world, &cluster, &credentials)?;
    // Ends after everything else here.
    let _etcd = start_etcd(dir, &cluster)?;
    let coordination = Coordination::etcd(world, &settings)?;
    let policy = Policy::only(Mode::AuthOnly);
    let security = Security::new(world, policy, credentials)?;
    let admit: Option<Arc<dyn Admit>> = match keys::load_authority(dir)? {
        None => None,
        Some(authority) => {
            let (prefix, endpoints) = (&cluster.prefix, &cluster.coordination);
            let new = Admission::new;
            Some(new(
                world,
                &coordination,
                authority,
                &security,
                prefix,
                endpoints,
            ))
        }
    };
    let protection = Protection { security, admit };
    let _promotion = promotion(world, &cluster, &settings, &coordination)?;
    if cluster.founding {
        founding::found(world, dir, &config, &cluster, &coordination).await?;
        let cluster = ClusterConfig {
            founding: false,
            ..cluster.clone()
        };
        config.cluster = Some(cluster);
        config.store(dir)?;
        founding::put_store_aside(dir)?;
    }
    let events = Arc::new(Events::open(dir));
    loop {
        let deadline = Deadline::after(world, START_MAX);
        let here = Arc::new(
            join(
                world,
                &config,
                &cluster,
                &coordination,
                &protection,
                deadline,
            )
            .await?,
        );
        let running = Running::InCluster(here.clone());
        let serving = Arc::new(Serving::new(
            dir,
            config.clone(),
            running,
            events.clone(),
            on_demand,
        ));
        here.member()
            .answer_commands(Relay::new(super::server::routes(serving.clone())));
        let run = here.member().run();
        events.tell(
            "node-joined",
            "this node",
            &format!("run {run} is a member"),
        );
        let keeping = keeping::keep(serving.clone(), here.clone());
        let _keeping = world.spawn("reads the cluster's nodes", keeping);
        let expelled = here.member().ended();
        match serve(&serving, on_demand, expelled).await? {
            Ended::AsTold => return Ok(()),
            Ended::ByItself => {
                tracing::warn!(%run, "the cluster has expelled this run; the node joins again");
                events.tell(
                    "node-expelled",
                    "this node",
                    "the cluster has expelled this run: its mounts have ended, what programs had open fails with an error, \
                     and what was written and not synced is lost; the node joins again",
                );
                config = serving.config.lock().clone();
            }
        }
    }
}

/// Joins with a new run of the node.
async fn join(
    world: &World,
    config: &NodeConfig,
    cluster: &ClusterConfig,
    coordination: &Coordination,
    protection: &Protection,
    deadline: Deadline,
) -> Result<InCluster> {
    let node = NodeId(cluster.node);
    let mut last = None;
    while !deadline.has_passed(world) {
        let joined = deadline.bound(
            world,
            join_once(world, config, cluster, coordination, protection),
        );
        match joined.await {
            Ok(Ok(here)) => return Ok(here),
            Ok(Err(error)) if error.kind() == ErrorKind::Unavailable => {
                tracing::warn!(%error, "the node can't join yet");
                last = Some(error);
            }
            Ok(Err(error)) => return Err(error),
            Err(_) => break,
        }
        world.sleep(AGAIN_AFTER).await;
    }
    let why = last.map_or_else(|| "coordination doesn't answer".into(), |it| it.to_string());
    let text = format!(
        "node {node} could not join its cluster within {} s: {why}; see that most of the quorum nodes run and that the \
         network reaches them ({})",
        START_MAX.as_secs(),
        cluster.coordination.join(", ")
    );
    Err(Error::new(ErrorKind::Unavailable, text))
}

async fn join_once(
    world: &World,
    config: &NodeConfig,
    cluster: &ClusterConfig,
    coordination: &Coordination,
    protection: &Protection,
) -> Result<InCluster> {
    let node = NodeId(cluster.node);
    let facts = coordination.node_facts(node).await?.ok_or_else(|| {
        let text = format!(
            "the cluster knows no node {node}; this directory belongs to another cluster, or its node was removed"
        );
        Error::new(ErrorKind::NotFound, text)
    })?;
    let facts = facts.value;
    if facts.is_barred {
        let text = format!(
            "node {node} was expelled by hand; `shale node unexpel {node}` on another node lets it join again"
        );
        return Err(Error::new(ErrorKind::NotPermitted, text));
    }
    let settings = MemberSettings {
        node,
        listen: cluster.address,
        nsds: config.region_paths()?,
        protection: Some(protection.clone()),
    };
    let member = Member::start(world, coordination.clone(), settings).await?;
    Ok(InCluster::new(
        member,
        facts,
        cluster,
        protection.security.clone(),
    ))
}

/// Starts the node's member of etcd, if it has one.
fn start_etcd(dir: &Path, cluster: &ClusterConfig) -> Result<Option<EtcdProcess>> {
    let Some(own) = &cluster.etcd else {
        return Ok(None);
    };
    let own_peer = (cluster.name.clone(), own.peer.to_string());
    let (members, begin) = match own.joins.is_empty() {
        true => {
            let token = cluster.id.clone();
            (vec![own_peer], EtcdBegin::New { token })
        }
        false => (own.joins.clone(), EtcdBegin::Join),
    };
    let files = keys::files(dir);
    let server = EtcdServer {
        name: cluster.name.clone(),
        data_directory: dir.join("etcd"),
        client_listen: own.client,
        client_authority: own.client.to_string(),
        peer_listen: own.peer,
        peer_authority: own.peer.to_string(),
        members,
        begin,
        certificates: Some(EtcdCertificates {
            certificate: files.certificate,
            key: files.key,
            authority: files.authorities,
        }),
        heartbeat: HEARTBEAT,
    };
    EtcdProcess::start(dir, &server).map(Some)
}

/// Gives this node's member of etcd its vote once it has caught up, and says where it answers; nothing if it has both.
fn promotion(
    world: &World,
    cluster: &ClusterConfig,
    settings: &EtcdSettings,
    coordination: &Coordination,
) -> Result<Option<Task<()>>> {
    let Some(own) = cluster.etcd.as_ref().filter(|own| !own.joins.is_empty()) else {
        return Ok(None);
    };
    let etcd = Etcd::new(world, settings)?;
    let (peer, client) = (
        format!("https://{}", own.peer),
        founding::endpoint(own.client),
    );
    let (node, facts, of_task) = (NodeId(cluster.node), coordination.clone(), world.clone());
    let promote = async move {
        loop {
            let promoted = promote_once(&of_task, &etcd, &peer).await;
            let told = match promoted {
                Ok(()) => facts
                    .change_node(node, |it| {
                        it.etcd = Some(client.clone());
                        Ok(())
                    })
                    .await
                    .map(drop),
                Err(error) => Err(error),
            };
            match told {
                Ok(()) => return,
                Err(error) => tracing::warn!(%error, "this node's member of etcd has no vote yet"),
            }
            of_task.sleep(AGAIN_AFTER).await;
        }
    };
    Ok(Some(world.spawn("promotes etcd's member", promote)))
}

async fn promote_once(world: &World, etcd: &Etcd, peer: &str) -> Result<()> {
    let members = etcd.members().await?;
    let own = members
        .iter()
        .find(|it| it.peer_urls.iter().any(|url| url == peer));
    let own = own.ok_or_else(|| {
        let text = format!("etcd has no member at {peer}; it was removed");
        Error::new(ErrorKind::NotFound, text)
    })?;
    etcd.promote(own.id, Deadline::after(world, PROMOTE_MAX))
        .await
}
