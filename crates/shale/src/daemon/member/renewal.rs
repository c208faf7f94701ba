//! New certificates in time: a node whose certificate is in its last third gets another one from a node that has the
//! cluster's authority, which may be itself.

use super::{InCluster, joining::etcd_settings, keys};
use crate::daemon::config::ClusterConfig;
use crate::daemon::health::CertificateFacts;
use coordination::{Coordination, NodeFacts, Roster};
use futures::future::BoxFuture;
use model::join::{RenewReply, RenewRequest};
use model::{Error, ErrorKind, NodeRun, Result};
use node::Renew;
use rpc::security::{Authority, Holder, Security, SigningRequest};
use std::path::Path;
use std::sync::Arc;
use world::World;

/// Certifies members anew, with the authority of this node.
pub struct Renewal {
    world: World,
    coordination: Coordination,
    authority: Authority,
    security: Arc<Security>,
}

impl Renewal {
    /// With the authority of a quorum node.
    pub fn new(
        world: &World,
        coordination: &Coordination,
        authority: Authority,
        security: &Arc<Security>,
    ) -> Arc<Self> {
        Arc::new(Self {
            world: world.clone(),
            coordination: coordination.clone(),
            authority,
            security: security.clone(),
        })
    }

    async fn certify(&self, from: NodeRun, request: RenewRequest) -> Result<RenewReply> {
        let signing = SigningRequest::from_der(&request.signing_request)?;
        let facts = self.coordination.node_facts(from.node).await?;
        let roster = Roster::read(&self.coordination).await?;
        let holder = holder_of(from, facts.map(|it| it.value), &roster)?;
        let now = self.world.wall();
        let certificate = self.authority.issue(&signing, &holder, now)?;
        let own = self.security.credentials();
        let authorities = own.authorities().iter().map(|it| it.der().to_vec());
        tracing::info!(node = %from.node, "a node has a new certificate");
        Ok(RenewReply {
            certificate: certificate.der().to_vec(),
            authorities: authorities.collect(),
        })
    }
}

impl Renew for Renewal {
    fn renew(&self, from: NodeRun, request: RenewRequest) -> BoxFuture<'_, Result<RenewReply>> {
        Box::pin(async move {
            let certified = self.certify(from, request).await;
            certified.map_err(|error| error.while_doing(format!("certifying node {}", from.node)))
        })
    }
}

/// Whom a new certificate is for: the node at the address where the cluster knows it, whatever it says of itself.
///
/// # Errors
/// `NotPermitted`: it was expelled by hand, or isn't a node, or its run isn't the newest one.
fn holder_of(from: NodeRun, facts: Option<NodeFacts>, roster: &Roster) -> Result<Holder> {
    let refused = |why: &str| Err(Error::new(ErrorKind::NotPermitted, format!("{from} {why}")));
    let Some(facts) = facts else {
        return refused("is no node of this cluster");
    };
    if facts.is_barred {
        return refused("was expelled by hand");
    }
    match roster.addresses.get(&from.node) {
        Some(known) if known.run == from => Ok(Holder {
            node: from.node,
            addresses: vec![known.address.ip()],
            has_localhost: facts.is_quorum,
        }),
        _ => refused("isn't the node's newest run"),
    }
}

impl InCluster {
    /// Gets a new certificate if it is time for one, stores it, and uses it from now on. Returns whether there is one.
    ///
    /// # Errors
    /// Why there is none; try again.
    pub async fn renew_certificate(&self, dir: &Path) -> Result<bool> {
        let (member, own) = (self.member(), self.credentials());
        let world = member.world();
        if !own.must_renew(world.wall()) {
            return Ok(false);
        }
        let request = RenewRequest {
            signing_request: own.key().signing_request()?,
            addresses: vec![self.cluster().address.ip()],
        };
        let nodes = member.coordination().nodes().await?;
        let mut quorum: Vec<_> = nodes
            .values()
            .filter(|it| it.value.is_quorum && !it.value.is_barred)
            .map(|it| it.value.node)
            .collect();
        quorum.sort_by_key(|node| *node != member.run().node);
        let mut why = Error::new(
            ErrorKind::Unavailable,
            "no node of the cluster has the authority's key",
        );
        for at in quorum {
            let reply = match member.renew(at, &request).await {
                Ok(reply) => reply,
                Err(error) => {
                    why = error;
                    continue;
                }
            };
            let next = own.renewed(own.key().clone(), &reply.certificate, &reply.authorities)?;
            // What isn't stored would be lost with this daemon, and the old one counts still.
            keys::store(dir, &next)?;
            let cluster = ClusterConfig {
                coordination: self.endpoints(),
                ..self.cluster().clone()
            };
            let settings = etcd_settings(world, &cluster, &next)?;
            self.use_credentials(next)?;
            member.coordination().reach(&settings)?;
            return Ok(true);
        }
        Err(why.while_doing("renewing this node's certificate"))
    }

    /// How long the certificate counts still, for `shale health`.
    pub(super) fn certificate_facts(&self) -> CertificateFacts {
        let own = self.credentials();
        let now = self.member().world().wall();
        let until = own.certificate().validity().until;
        CertificateFacts {
            seconds_left: until.seconds() - now.seconds(),
            is_due: own.must_renew(now),
            trouble: self.renewal_trouble(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coordination::NodeAddress;
    use model::NodeId;

    #[test]
    fn a_certificate_is_for_a_node_that_may_run_and_for_where_the_cluster_knows_it() {
        let run = |incarnation| NodeRun {
            node: NodeId(3),
            incarnation,
        };
        let facts = NodeFacts {
            node: NodeId(3),
            name: "n3".into(),
            class: "default".into(),
            is_quorum: true,
            has_authority: true,
            is_barred: false,
            etcd: None,
            key: [0; 32],
            address: "10.0.0.3:7311".parse().unwrap(),
        };
        let mut roster = Roster::default();
        let address = NodeAddress {
            run: run(2),
            address: "10.0.0.3:7311".parse().unwrap(),
        };
        roster.addresses.insert(NodeId(3), address);
        let holder = holder_of(run(2), Some(facts.clone()), &roster).unwrap();
        let expected = Holder {
            node: NodeId(3),
            addresses: vec![address.address.ip()],
            has_localhost: true,
        };
        assert_eq!(holder, expected);
        let barred = NodeFacts {
            is_barred: true,
            ..facts.clone()
        };
        for (from, facts) in [
            (run(1), Some(facts)),
            (run(2), None),
            (run(2), Some(barred)),
        ] {
            let refused = holder_of(from, facts, &roster).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::NotPermitted);
        }
    }
}
