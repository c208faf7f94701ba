//! A fresh machine becomes a node: it shows the token's secret, stores what it is given, and adds its member to the
//! cluster's etcd if it is to be a quorum node. Its daemon does the rest.
//!
//! *A failure*: the machine's key is stored before it is shown, so that whoever tries again, with the same token or with
//! another one, is told the same node. A token works for one key only.

use super::outside::OutsideTls;
use super::{checks, etcd_members, keys};
use crate::daemon::config::{ClusterConfig, EtcdConfig};
use coordination::Coordination;
use coordination::etcd::{Etcd, EtcdEndpoint, EtcdSettings};
use model::{Error, ErrorKind, Result};
use rpc::security::{Credentials, JoinToken, Newcomer, join};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use world::{Deadline, World};

/// How long joining may take.
const JOIN_MAX: Duration = Duration::from_secs(60);
/// What a machine wishes to be.
#[derive(Serialize, Deserialize, Debug, Clone)]
pub struct Wishes {
    pub name: Option<String>,
    /// Its token must make one.
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
    /// It runs a member of the cluster's own etcd.
    pub runs_etcd: bool,
    /// With what an etcd that others run is reached.
    pub outside: Option<OutsideTls>,
}

/// Joins, and stores keys and certificates in the directory. Returns the node's place.
///
/// # Errors
/// `AccessDenied`: the token is wrong, used or over. `Unavailable`: no node that it names answers.
pub(crate) async fn become_node(
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
    match &more.authority {
        Some((key, certificate)) => keys::store_authority(dir, key, certificate)?,
        // An attempt before this one may have been for a quorum node.
        None => keys::remove_authority(dir)?,
    }
    if let Some(outside) = &more.outside {
        outside.store(dir)?;
    }
    keys::store(dir, &joined.credentials)?;
    let name = joined.credentials.name();
    let mut cluster = ClusterConfig {
        id: format!("{:032x}", name.cluster),
        node: name.node.0,
        name: more.name,
        address,
        coordination: more.endpoints,
        etcd_id: None,
        prefix: more.prefix,
        etcd: None,
        outside: more.outside.map(|it| it.places(dir)),
        founding: false,
    };
    if more.runs_etcd {
        // Before the cluster's etcd waits for this member.
        checks::check_etcd()?;
        // Of a member that isn't this one any more, if there are any.
        etcd_members::remove_data(dir)?;
        cluster.etcd = Some(add_to_etcd(world, &cluster, &joined.credentials).await?);
    }
    Ok(cluster)
}

/// For a node whose join broke off before its daemon had started its member of etcd: adds that again if another machine that
/// waited for its turn has removed it. The caller has the directory's lock. `None`: all is as it was.
///
/// # Errors
/// `NotFound`: the node was removed. As [`become_node`].
pub(crate) async fn add_again(
    world: &World,
    dir: &Path,
    cluster: &ClusterConfig,
) -> Result<Option<EtcdConfig>> {
    let is_joining = cluster.etcd.as_ref().is_some_and(|it| !it.joins.is_empty());
    if !is_joining {
        return Ok(None);
    }
    let credentials = keys::load(dir)?;
    let settings = etcd_settings(world, cluster, &credentials)?;
    let etcd = Etcd::new(world, &settings)?;
    if etcd_members::has_member(&etcd, &etcd_members::peer_url(cluster.address)?).await? {
        return Ok(None);
    }
    let facts = Coordination::etcd(world, &settings)?;
    let node = model::NodeId(cluster.node);
    if facts.node_facts(node).await?.is_none() {
        let text = format!(
            "node {node} was removed from the cluster; join with a new token and an empty directory instead of {}",
            dir.display()
        );
        return Err(Error::new(ErrorKind::NotFound, text));
    }
    etcd_members::remove_data(dir)?;
    add_to_etcd(world, cluster, &credentials).await.map(Some)
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
    let endpoints: Vec<_> = endpoints.collect::<Result<_>>()?;
    let id = cluster.etcd_id.as_deref().map(|it| {
        u64::from_str_radix(it, 16).map_err(|_| {
            let text = format!("node.toml: {it:?} is no id of an etcd; remove the line etcd_id");
            Error::new(ErrorKind::InvalidArgument, text)
        })
    });
    let id = id.transpose()?;
    if let Some(outside) = &cluster.outside {
        return OutsideTls::load(outside)?.settings(world, endpoints, &cluster.prefix, id);
    }
    Ok(EtcdSettings {
        endpoints,
        prefix: cluster.prefix.clone(),
        tls: Some(credentials.etcd_client(world)?),
        cluster: id,
    })
}

/// Adds this node's member to the cluster's etcd, without a vote until its daemon has started it.
async fn add_to_etcd(
    world: &World,
    cluster: &ClusterConfig,
    credentials: &Credentials,
) -> Result<EtcdConfig> {
    let (client, peer) = etcd_members::ports(cluster.address)?;
    let etcd = Etcd::new(world, &etcd_settings(world, cluster, credentials)?)?;
    let url = etcd_members::peer_url(cluster.address)?;
    let joins = etcd_members::add(world, &etcd, &cluster.name, &url).await?;
    Ok(EtcdConfig {
        client,
        peer,
        joins,
        began: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuzzing::{Memory, ROUNDS, Source, fuzz, within};

    /// Whoever has a token, and whoever answers one.
    #[test]
    fn any_wishes_and_any_answer_to_them_are_read_or_refused() {
        fuzz!(ROUNDS, |input: &[u8]| {
            let mut source = Source::new(input);
            let mut all = vec![input.to_vec()];
            if let Some(wishes) = source.value::<Wishes>() {
                let bytes = postcard::to_stdvec(&wishes).unwrap();
                let read: Wishes = postcard::from_bytes(&bytes).unwrap();
                assert_eq!((read.name, read.is_quorum), (wishes.name, wishes.is_quorum));
                all.push(source.changed(&bytes));
            }
            if let Some(more) = source.value::<More>() {
                let bytes = postcard::to_stdvec(&more).unwrap();
                let read: More = postcard::from_bytes(&bytes).unwrap();
                assert_eq!((read.name, read.authority), (more.name, more.authority));
                all.push(source.changed(&bytes));
            }
            for bytes in all {
                let memory = Memory::MESSAGE;
                let _ = within(memory, bytes.len(), || {
                    postcard::from_bytes::<Wishes>(&bytes)
                });
                let _ = within(memory, bytes.len(), || postcard::from_bytes::<More>(&bytes));
            }
        });
    }
}
