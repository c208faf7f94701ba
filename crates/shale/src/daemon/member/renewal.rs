//! New certificates: a node whose certificate is in its last third, or was issued by an authority that is being replaced,
//! gets another one from a node that has the cluster's authority, which may be itself.
//!
//! *For whom*: for the key that coordination knows of the node, and that the node vouches for with the key and the certificate
//! that it has. It says in coordination which key that is before it asks. So whoever asks in its name gets nothing, also over
//! connections that prove nothing (`EMPTY`), and for no key that somebody else has written there.

use super::key_ring::KeyRing;
use super::{InCluster, joining::etcd_settings, keys};
use crate::daemon::config::ClusterConfig;
use crate::daemon::health::CertificateFacts;
use coordination::{Authorities, Coordination, NodeFacts, Roster, Versioned};
use futures::future::BoxFuture;
use model::join::{AuthorityKey, AuthorityKeyRequest, RenewReply, RenewRequest};
use model::{Error, ErrorKind, NodeId, NodeRun, Result};
use node::Renew;
use rpc::security::{
    Authority, Certificate, Credentials, Holder, PrivateKey, Security, SigningRequest,
};
use std::path::Path;
use std::sync::Arc;
use world::World;

/// How a node's trust has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trust {
    /// It hasn't.
    Same,
    /// It trusts another authority, too.
    More,
    /// It doesn't trust one any more: connections may be open that it wouldn't let in now.
    Less,
}

/// Certifies members anew, with the authority of this node.
pub struct Renewal {
    world: World,
    coordination: Coordination,
    keys: Arc<KeyRing>,
    security: Arc<Security>,
}

impl Renewal {
    /// With the authority of a quorum node.
    pub fn new(
        world: &World,
        coordination: &Coordination,
        keys: &Arc<KeyRing>,
        security: &Arc<Security>,
    ) -> Arc<Self> {
        Arc::new(Self {
            world: world.clone(),
            coordination: coordination.clone(),
            keys: keys.clone(),
            security: security.clone(),
        })
    }

    async fn certify(&self, from: NodeRun, request: RenewRequest) -> Result<RenewReply> {
        let signing = SigningRequest::from_der(&request.signing_request)?;
        let facts = self.coordination.node_facts(from.node).await?;
        let roster = Roster::read(&self.coordination).await?;
        let facts = facts.map(|it| it.value);
        let holder = holder_of(from, signing.key_hash(), facts, &roster)?;
        let vouched = (&request.certificate[..], &request.voucher[..]);
        let (own, now) = (self.security.credentials(), self.world.wall());
        own.check_vouched(from.node, &signing.key_hash(), vouched, now)?;
        let authorities = roster.authorities.map(|it| it.value);
        let authority = self.keys.certifying(authorities.as_ref())?;
        let certificate = authority.issue(&signing, &holder, self.world.wall())?;
        tracing::info!(node = %from.node, "a node has a new certificate");
        Ok(RenewReply {
            certificate: certificate.der().to_vec(),
            authorities: trusted(authorities.as_ref(), &self.security.credentials()),
        })
    }

    async fn key_for(&self, from: NodeRun, request: AuthorityKeyRequest) -> Result<AuthorityKey> {
        let facts = self.coordination.node_facts(from.node).await?;
        let roster = Roster::read(&self.coordination).await?;
        let facts = facts.map(|it| it.value);
        let certifies = facts.as_ref().is_some_and(|it| it.has_authority);
        // Whatever key it has itself.
        let key = facts.as_ref().map_or([0; 32], |it| it.key);
        holder_of(from, key, facts, &roster)?;
        let trusted = roster.authorities.as_ref();
        let mut trusted = trusted.into_iter().flat_map(|it| it.value.trusted());
        if !certifies || !trusted.any(|it| it.hash == request.authority) {
            let text = format!("{from} has no need for the key of that authority");
            return Err(Error::new(ErrorKind::NotPermitted, text));
        }
        let authority = self.keys.of(&request.authority).ok_or_else(|| {
            let text = "this node hasn't got that key yet; ask another one";
            Error::new(ErrorKind::Unavailable, text)
        })?;
        tracing::info!(node = %from.node, "a node has got the key of the cluster's authority");
        Ok(AuthorityKey {
            key: authority.key_pem(),
        })
    }
}

/// The certificates (DER) of the authorities that a node must trust.
pub fn trusted(authorities: Option<&Authorities>, own: &Credentials) -> Vec<Vec<u8>> {
    match authorities {
        Some(known) => known.trusted().map(|it| it.certificate.clone()).collect(),
        None => own
            .authorities()
            .iter()
            .map(|it| it.der().to_vec())
            .collect(),
    }
}

impl Renew for Renewal {
    fn renew(&self, from: NodeRun, request: RenewRequest) -> BoxFuture<'_, Result<RenewReply>> {
        Box::pin(async move {
            let certified = self.certify(from, request).await;
            certified.map_err(|error| error.while_doing(format!("certifying node {}", from.node)))
        })
    }

    fn authority_key(
        &self,
        from: NodeRun,
        request: AuthorityKeyRequest,
    ) -> BoxFuture<'_, Result<AuthorityKey>> {
        Box::pin(async move {
            let key = self.key_for(from, request).await;
            let doing = || format!("giving node {} the authority's key", from.node);
            key.map_err(|error| error.while_doing(doing()))
        })
    }
}

/// Whom a new certificate is for: the node at the address where the cluster knows it, whatever it says of itself. `key`:
/// names the key that is to be certified.
///
/// # Errors
/// `NotPermitted`: it was expelled by hand, or isn't a node, or has another key, or its run isn't the newest one.
fn holder_of(
    from: NodeRun,
    key: [u8; 32],
    facts: Option<NodeFacts>,
    roster: &Roster,
) -> Result<Holder> {
    let refused = |why: &str| Err(Error::new(ErrorKind::NotPermitted, format!("{from} {why}")));
    let Some(facts) = facts else {
        return refused("is no node of this cluster");
    };
    if facts.is_barred {
        return refused("was expelled by hand");
    }
    if facts.key != key {
        return refused("has another key, as far as the cluster knows");
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
        let _alone = self.renewing().await;
        let own = self.credentials();
        if !own.must_renew(self.member().world().wall()) {
            return Ok(false);
        }
        let renewed = self.certified(&own, own.key().clone()).await;
        let next =
            renewed.map_err(|error| error.while_doing("renewing this node's certificate"))?;
        if next.issuer() != own.issuer() {
            // Its key is replaced, too, when an authority is.
            return Ok(false);
        }
        // What isn't stored would be lost with this daemon, and the old one counts still.
        keys::store(dir, &next)?;
        self.use_from_now_on(next)?;
        Ok(true)
    }

    /// Gets a certificate by this authority, for a new key, stores both, and uses them from now on. Returns whether there
    /// was another one before.
    ///
    /// # Errors
    /// Why there is none; try again.
    pub async fn change_key(&self, dir: &Path, by: [u8; 32]) -> Result<bool> {
        let _alone = self.renewing().await;
        let own = self.credentials();
        if own.issuer().is_some_and(|issuer| issuer.0 == by) {
            return Ok(false);
        }
        let doing = "getting a certificate by the cluster's new authority";
        let changed = async {
            // Whoever has the old key may have seen certificates that are for it.
            let next = self.certified(&own, self.next_key().get()?).await?;
            if next.issuer().is_none_or(|issuer| issuer.0 != by) {
                let text = "the node that was asked certifies with another authority still";
                return Err(Error::new(ErrorKind::Unavailable, text));
            }
            keys::replace(dir, &next)?;
            self.use_from_now_on(next)?;
            self.next_key().forget();
            Ok::<_, Error>(())
        };
        changed.await.map_err(|error| error.while_doing(doing))?;
        Ok(true)
    }

    /// The node with a new certificate for this key.
    async fn certified(&self, own: &Credentials, key: PrivateKey) -> Result<Credentials> {
        let member = self.member();
        let hash = key.key_hash();
        let told = member.coordination().change_node(member.run().node, |it| {
            it.key = hash;
            Ok(())
        });
        told.await?;
        let request = RenewRequest {
            signing_request: key.signing_request()?,
            addresses: vec![self.cluster().address.ip()],
            certificate: own.certificate().der().to_vec(),
            voucher: own.vouch_for(&hash)?,
        };
        let mut why = Error::new(
            ErrorKind::Unavailable,
            "no node of the cluster has the authority's key",
        );
        for at in self.certifying_nodes().await? {
            let reply = match member.renew(at, &request).await {
                Ok(reply) => reply,
                Err(error) => {
                    why = error;
                    continue;
                }
            };
            // Whom to believe the cluster's facts say, not whoever is asked.
            let trusted = own.authorities().iter().map(|it| it.der().to_vec());
            let trusted: Vec<_> = trusted.collect();
            let next = own.renewed(key.clone(), &reply.certificate, &trusted)?;
            next.check_at(member.world().wall())?;
            return Ok(next);
        }
        Err(why)
    }

    /// The nodes that certify others, this one first.
    async fn certifying_nodes(&self) -> Result<Vec<NodeId>> {
        let nodes = self.member().coordination().nodes().await?;
        let own = self.member().run().node;
        let certifies = |it: &&Versioned<NodeFacts>| it.value.has_authority && !it.value.is_barred;
        let certifying = nodes.values().filter(certifies);
        let mut certifying: Vec<_> = certifying.map(|it| it.value.node).collect();
        certifying.sort_by_key(|node| *node != own);
        Ok(certifying)
    }

    /// Trusts these authorities, stores that, and counts on it from now on. Returns what has changed.
    ///
    /// # Errors
    /// `Corrupt`: they can't be believed, or the node's own certificate is by none of them; the system's error.
    pub async fn trust(&self, dir: &Path, authorities: &Authorities) -> Result<Trust> {
        let _alone = self.renewing().await;
        let own = self.credentials();
        let wanted = authorities.trusted();
        let wanted = wanted.map(|it| Certificate::from_der(&it.certificate));
        let wanted: Vec<Certificate> = wanted.collect::<Result<_>>()?;
        if own.authorities() == wanted {
            return Ok(Trust::Same);
        }
        let is_less = !own.authorities().iter().all(|it| wanted.contains(it));
        let next = own.trusting(wanted)?;
        if next.issuer().is_none() {
            let text = "this node's certificate is by none of the authorities that the cluster trusts now: it could talk to \
                        nobody any more. It joins anew, with an empty directory and a token (`shale node join`)";
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        keys::store_trust(dir, &next)?;
        self.use_from_now_on(next)?;
        Ok(match is_less {
            true => Trust::Less,
            false => Trust::More,
        })
    }

    /// Gets the key of an authority that the cluster trusts from a node that says it has it.
    ///
    /// # Errors
    /// `Unavailable`: no node gives it; try again.
    pub async fn fetch_authority(&self, from: NodeId, wanted: &Certificate) -> Result<Authority> {
        let request = AuthorityKeyRequest {
            authority: wanted.fingerprint().0,
        };
        let doing = || format!("getting the new authority's key from node {from}");
        let key = self.member().authority_key(from, &request).await;
        let key = key.map_err(|error| error.while_doing(doing()))?;
        Authority::from_pem(&key.key, &wanted.to_pem())
    }

    /// The node proves itself with these, and reaches coordination with them.
    fn use_from_now_on(&self, next: Credentials) -> Result<()> {
        let member = self.member();
        let cluster = ClusterConfig {
            coordination: self.endpoints(),
            ..self.cluster().clone()
        };
        let settings = etcd_settings(member.world(), &cluster, &next)?;
        self.use_credentials(next)?;
        member.coordination().reach(&settings)
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
            key: [5; 32],
            address: "10.0.0.3:7311".parse().unwrap(),
        };
        let mut roster = Roster::default();
        let address = NodeAddress {
            run: run(2),
            address: "10.0.0.3:7311".parse().unwrap(),
        };
        roster.addresses.insert(NodeId(3), address);
        let holder = holder_of(run(2), [5; 32], Some(facts.clone()), &roster).unwrap();
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
        for (from, key, facts) in [
            (run(1), [5; 32], Some(facts.clone())),
            (run(2), [5; 32], None),
            (run(2), [5; 32], Some(barred)),
            // Somebody asks in its name, for a key of their own.
            (run(2), [6; 32], Some(facts)),
        ] {
            let refused = holder_of(from, key, facts, &roster).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::NotPermitted);
        }
    }
}
