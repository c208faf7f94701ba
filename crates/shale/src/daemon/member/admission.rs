//! The cluster's side of a machine that joins: quorum nodes have the authority's key and admit whoever shows a token's
//! secret; each secret makes one node.

use super::{
    InCluster,
    endpoints::endpoints_for,
    joining::{More, Wishes},
    key_ring::KeyRing,
    outside::OutsideTls,
    renewal::trusted,
    reports::standings,
};
use crate::admin::JoinTokenMade;
use crate::daemon::config::ClusterConfig;
use coordination::{Coordination, NewNode};
use futures::future::BoxFuture;
use model::join::{JoinReply, JoinRequest};
use model::member::Standing;
use model::{Error, ErrorKind, NodeId, Result};
use node::NodeFacts;
use rpc::security::{
    Admit, Fingerprint, Holder, JoinToken, Security, SigningRequest, TOKEN_LIFE, secret_hash,
};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use world::World;

/// Most addresses of nodes in a token: the newcomer tries them in turn.
const ADDRESSES_IN_TOKEN_MAX: usize = 3;

/// Admits machines.
pub struct Admission {
    world: World,
    coordination: Coordination,
    keys: Arc<KeyRing>,
    security: Arc<Security>,
    prefix: String,
    /// Where coordination is, for a cluster that has no etcd of its own.
    endpoints: Vec<String>,
    /// With what that etcd is reached.
    outside: Option<OutsideTls>,
}

impl Admission {
    /// With the authority of a quorum node.
    ///
    /// # Errors
    /// `InvalidArgument`: the files for an etcd that others run can't be read.
    pub fn new(
        world: &World,
        coordination: &Coordination,
        keys: &Arc<KeyRing>,
        security: &Arc<Security>,
        cluster: &ClusterConfig,
    ) -> Result<Arc<Self>> {
        let outside = cluster.outside.as_ref().map(OutsideTls::load);
        Ok(Arc::new(Self {
            world: world.clone(),
            coordination: coordination.clone(),
            keys: keys.clone(),
            security: security.clone(),
            prefix: cluster.prefix.clone(),
            endpoints: cluster.coordination.clone(),
            outside: outside.transpose()?,
        }))
    }

    async fn judge(&self, request: JoinRequest, from: Option<IpAddr>) -> Result<JoinReply> {
        let wishes: Wishes = postcard::from_bytes(&request.wishes).map_err(|_| {
            let text = "what the machine wishes isn't understood; use the version of Shale that the cluster has";
            Error::new(ErrorKind::InvalidArgument, text)
        })?;
        let signing = SigningRequest::from_der(&request.signing_request)?;
        let key = signing.key_fingerprint().0;
        let nodes = self.coordination.nodes().await?;
        let others = nodes.values().map(|it| &it.value);
        let others = others.filter(|it| it.key != key);
        let address = check_addresses(&request.addresses, from, others)?;
        let new = NewNode {
            name: wishes.name,
            class: "default".into(),
            is_quorum: wishes.is_quorum,
            address,
            key,
        };
        let now = self.world.wall();
        let seconds = u64::try_from(now.seconds()).unwrap_or(0);
        let hash = secret_hash(request.secret);
        let facts = self.coordination.redeem(&hash, seconds, &new).await?;
        let holder = Holder {
            node: facts.node,
            addresses: request.addresses.iter().map(SocketAddr::ip).collect(),
            has_localhost: facts.is_quorum,
        };
        // Read after the node is known: whoever takes the next step of a change has seen it, or this sees that step.
        let authorities = self.coordination.authorities().await?.map(|it| it.value);
        let certifying = self.keys.certifying(authorities.as_ref())?;
        let certificate = certifying.issue(&signing, &holder, now)?;
        let nodes = self.coordination.nodes().await?;
        let mut endpoints = endpoints_for(facts.node, None, &nodes);
        if endpoints.is_empty() {
            endpoints.clone_from(&self.endpoints);
        }
        let authority = facts.has_authority.then(|| {
            let certificate = certifying.certificate().to_pem();
            (certifying.key_pem(), certificate)
        });
        let more = More {
            name: facts.name.clone(),
            prefix: self.prefix.clone(),
            endpoints,
            authority,
            runs_etcd: facts.is_quorum,
            outside: self.outside.clone(),
        };
        tracing::info!(node = %facts.node, name = %facts.name, "a machine has become a node");
        Ok(JoinReply {
            cluster: self.keys.cluster(),
            node: facts.node,
            certificate: certificate.der().to_vec(),
            authorities: trusted(authorities.as_ref(), &self.security.credentials()),
            more: postcard::to_stdvec(&more).expect("it is plain data"),
        })
    }
}

/// The address that a machine listens at, if its certificate may name all that it claims: it comes from there, or no other
/// node is there. A certificate for another node's address would let it pass for that node's member of etcd.
fn check_addresses<'a>(
    claimed: &[SocketAddr],
    from: Option<IpAddr>,
    others: impl Iterator<Item = &'a NodeFacts>,
) -> Result<SocketAddr> {
    let wrong = |kind, text: &str| Err(Error::new(kind, text));
    let Some(first) = claimed.first() else {
        return wrong(
            ErrorKind::InvalidArgument,
            "the machine doesn't say where it listens",
        );
    };
    let from = from.map(|it| it.to_canonical());
    let is_strange = |it: &&SocketAddr| Some(it.ip().to_canonical()) != from;
    let strange: Vec<_> = claimed.iter().filter(is_strange).collect();
    for other in others {
        let there = other.address.ip().to_canonical();
        if let Some(taken) = strange.iter().find(|it| it.ip().to_canonical() == there) {
            let text = format!(
                "{} is the address of node {} ({}); give this machine's own with --address",
                taken.ip(),
                other.node,
                other.name
            );
            return wrong(ErrorKind::AccessDenied, &text);
        }
    }
    Ok(*first)
}

/// Whoever asks logs refusals, so many in a time: anybody can bring them about.
impl Admit for Admission {
    fn admit(
        &self,
        request: JoinRequest,
        from: Option<IpAddr>,
    ) -> BoxFuture<'_, Result<JoinReply>> {
        Box::pin(self.judge(request, from))
    }
}

impl InCluster {
    /// Makes a token with which one machine can join; with `makes_quorum` as a quorum node, which gets the authority's key.
    ///
    /// # Errors
    /// `NotSupported`: no quorum node listens. Those of coordination.
    pub async fn make_join_token(&self, makes_quorum: bool) -> Result<JoinTokenMade> {
        let member = self.member();
        let (world, facts) = (member.world(), member.coordination());
        let nodes = facts.nodes().await?;
        let roster = member.roster();
        let admits = |it: &&NodeFacts| it.has_authority && !it.is_barred;
        let admitting = nodes.values().map(|it| &it.value).filter(admits);
        let standings = standings(&roster);
        let own = member.run().node;
        // This node first: the person who made the token can see it. Then those that are up.
        let mut admitting: Vec<_> = admitting.map(|it| it.node).collect();
        admitting.sort_by_key(|node| {
            let is_up = standings.get(node) == Some(&Standing::In);
            (*node != own, !is_up)
        });
        let authority = self.authority_in_token(&mut admitting).await?;
        let known = |node| Some(roster.addresses.get(node)?.address);
        let mut addresses: Vec<SocketAddr> = admitting.iter().filter_map(known).collect();
        addresses.truncate(ADDRESSES_IN_TOKEN_MAX);
        if addresses.is_empty() {
            let text = "no node that isn't expelled has the key of the cluster's authority; start one that has it, or let it in \
                        with `shale node unexpel`";
            return Err(Error::new(ErrorKind::NotSupported, text));
        }
        let now = world.wall();
        let token = JoinToken::new(addresses, authority, now)?;
        let seconds = |it: model::Timestamp| u64::try_from(it.seconds()).unwrap_or(0);
        let hash = secret_hash(token.secret);
        let until = seconds(token.expires);
        let now = seconds(now);
        facts
            .add_join_token(&hash, until, makes_quorum, now)
            .await?;
        Ok(JoinTokenMade {
            token: token.to_text(),
            seconds: TOKEN_LIFE.as_secs(),
        })
    }

    /// The authority by which a machine knows the nodes that admit it: the one that has certified the first of them. While
    /// another one takes its place, only those are left that it has certified, too.
    async fn authority_in_token(&self, admitting: &mut Vec<NodeId>) -> Result<Fingerprint> {
        let (member, own) = (self.member(), self.credentials().issuer());
        let own = own.map(|it| it.0);
        let roster = member.roster();
        let authorities = roster.authorities.as_ref();
        let is_changing = authorities.is_some_and(|it| it.value.next.is_some());
        let mut said = BTreeMap::new();
        if is_changing {
            said = member.coordination().said_of_security().await?;
        }
        let certified_by = |node: &NodeId| match said.get(node) {
            Some(said) if *node != member.run().node => said.certified_by,
            _ => own,
        };
        let authority = admitting.first().map_or(own, certified_by);
        admitting.retain(|node| certified_by(node) == authority);
        authority.map(Fingerprint).ok_or_else(|| {
            let text = "the authority of the nodes that admit machines isn't trusted here";
            Error::new(ErrorKind::Corrupt, text)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_certified_for_its_own_addresses_only() {
        let other = NodeFacts {
            node: NodeId(1),
            name: "n1".into(),
            class: "default".into(),
            is_quorum: true,
            has_authority: true,
            is_barred: false,
            etcd: None,
            address: "10.0.0.1:7311".parse().unwrap(),
            key: [0; 32],
        };
        let check = |claimed: &[&str], from: Option<&str>| {
            let claimed: Vec<_> = claimed.iter().map(|it| it.parse().unwrap()).collect();
            let from = from.map(|it| it.parse().unwrap());
            check_addresses(&claimed, from, std::iter::once(&other))
        };
        for from in [None, Some("10.0.0.9"), Some("10.0.0.2")] {
            let own = check(&["10.0.0.2:7311"], from).unwrap();
            assert_eq!(own, "10.0.0.2:7311".parse().unwrap());
            for claimed in [
                &["10.0.0.1:7311"][..],
                &["10.0.0.2:7311", "10.0.0.1:9"],
                &["[::ffff:10.0.0.1]:9"],
            ] {
                let error = check(claimed, from).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::AccessDenied);
                assert!(error.to_string().contains("node 1 (n1)"), "{error}");
            }
        }
        // Two nodes of one machine.
        check(&["10.0.0.1:8000"], Some("::ffff:10.0.0.1")).unwrap();
        check(&[], Some("10.0.0.2")).unwrap_err();
    }
}
