//! A fresh machine becomes a node: it shows the token's secret, stores what it is given, and adds its member to the
//! cluster's etcd if it is to be a quorum node. Its daemon does the rest.
//!
//! *A failure*: the machine's key is stored before it is shown, so that whoever tries again with the same token is told the
//! same node. The token works for one key only.

use super::keys;
use crate::daemon::config::{ClusterConfig, EtcdConfig};
use coordination::etcd::{Etcd, EtcdEndpoint, EtcdMember, EtcdSettings};
use model::{Error, ErrorKind, Result};
use rpc::security::{Credentials, JoinToken, Newcomer, join};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use world::{Deadline, World};

/// How long joining may take.
const JOIN_MAX: Duration = Duration::from_secs(60);
/// How long the member of etcd of another node that joins is waited for: there is one newcomer at a time.
const TURN_MAX: Duration = Duration::from_secs(120);
/// Pause between two attempts.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

/// What a machine wishes to be.
#[derive(Serialize, Deserialize, Debug, Clone)]
pub struct Wishes {
    pub name: Option<String>,
    pub is_quorum: bool,
}

/// What the cluster tells a new node besides its certificate.
#[derive(Serialize, Deserialize, Clone)]
pub struct More {
    pub name: String,
    /// What the cluster's keys in etcd begin with.
    pub prefix: String,
    /// Where etcd answers.
    pub endpoints: Vec<String>,
    /// Key and certificate of the authority, for a quorum node.
    pub authority: Option<(String, String)>,
}

/// Joins, and stores keys and certificates in the directory. Returns the node's place.
///
/// # Errors
/// `AccessDenied`: the token is wrong, used or over. `Unavailable`: no node that it names answers.
pub async fn become_node(
    world: &World,
    dir: &Path,
    token: &JoinToken,
    address: SocketAddr,
    wishes: &Wishes,
) -> Result<ClusterConfig> {
    let newcomer = Newcomer {
        key: keys::key_to_join(dir)?,
        addresses: vec![address],
        host: rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned(),
        wishes: postcard::to_stdvec(wishes).expect("it is plain data"),
    };
    let deadline = Deadline::after(world, JOIN_MAX);
    let joined = join(world, token, &newcomer, deadline).await?;
    let more: More = postcard::from_bytes(&joined.more).map_err(|_| {
        let text = "the cluster's answer isn't understood; use the version of Shale that it has";
        Error::new(ErrorKind::NotSupported, text)
    })?;
    if let Some((key, certificate)) = &more.authority {
        keys::store_authority(dir, key, certificate)?;
    }
    keys::store(dir, &joined.credentials)?;
    let name = joined.credentials.name();
    let mut cluster = ClusterConfig {
        id: format!("{:032x}", name.cluster),
        node: name.node.0,
        name: more.name,
        address,
        coordination: more.endpoints,
        prefix: more.prefix,
        etcd: None,
        founding: false,
    };
    if wishes.is_quorum {
        cluster.etcd = Some(add_to_etcd(world, &cluster, &joined.credentials).await?);
    }
    Ok(cluster)
}

/// How the cluster's etcd is reached with these credentials.
///
/// # Errors
/// `InvalidArgument`: node.toml was edited badly. `Corrupt`: TLS can't use the credentials.
pub fn etcd_settings(
    world: &World,
    cluster: &ClusterConfig,
    credentials: &Credentials,
) -> Result<EtcdSettings> {
    let endpoints = cluster
        .coordination
        .iter()
        .map(|it| it.parse::<EtcdEndpoint>());
    Ok(EtcdSettings {
        endpoints: endpoints.collect::<Result<_>>()?,
        prefix: cluster.prefix.clone(),
        tls: Some(credentials.etcd_client(world)?),
    })
}

/// Where a node's member of etcd listens: at the two ports after the node's own.
///
/// # Errors
/// `InvalidArgument` if there are no such ports.
pub fn etcd_ports(address: SocketAddr) -> Result<(SocketAddr, SocketAddr)> {
    let after = |by: u16| {
        let port = address.port().checked_add(by).ok_or_else(|| {
            let text = "etcd takes the next two ports after that of --address; choose a lower one";
            Error::new(ErrorKind::InvalidArgument, text)
        })?;
        Ok::<_, Error>(SocketAddr::new(address.ip(), port))
    };
    Ok((after(1)?, after(2)?))
}

/// Adds this node's member to the cluster's etcd, without a vote until its daemon has started it.
async fn add_to_etcd(
    world: &World,
    cluster: &ClusterConfig,
    credentials: &Credentials,
) -> Result<EtcdConfig> {
    let (client, peer) = etcd_ports(cluster.address)?;
    let etcd = Etcd::new(world, &etcd_settings(world, cluster, credentials)?)?;
    let url = format!("https://{peer}");
    let deadline = Deadline::after(world, TURN_MAX);
    // Others may be joining, and members that have just started must hear each other first.
    loop {
        let known = etcd.members().await;
        let has_url = |all: &Vec<EtcdMember>| all.iter().any(|it| it.peer_urls.contains(&url));
        if known.is_ok_and(|all| has_url(&all)) {
            break;
        }
        match etcd.add_learner(std::slice::from_ref(&url), deadline).await {
            Ok(_) => break,
            // Whether it was added isn't known.
            Err(error) if error.kind() == ErrorKind::Unavailable && !deadline.has_passed(world) => {
                world.sleep(AGAIN_AFTER).await;
            }
            Err(error) => return Err(error.while_doing("adding this node to the cluster's etcd")),
        }
    }
    let members = etcd.members().await?;
    let joins = members.iter().flat_map(|member| {
        let name = match member.peer_urls.contains(&url) {
            true => cluster.name.clone(),
            false => member.name.clone(),
        };
        let peers = member.peer_urls.iter();
        peers.map(move |it| (name.clone(), it.trim_start_matches("https://").to_owned()))
    });
    Ok(EtcdConfig {
        client,
        peer,
        joins: joins.collect(),
    })
}
