//! The cluster's side of a machine that joins: quorum nodes have the authority's key and admit whoever shows a token's
//! secret; each secret makes one node.

use super::{
    InCluster,
    joining::{More, Wishes},
};
use crate::admin::JoinTokenMade;
use coordination::{Coordination, NewNode};
use futures::future::BoxFuture;
use model::join::{JoinReply, JoinRequest};
use model::{Error, ErrorKind, Result};
use rpc::security::{
    Admit, Authority, Credentials, Holder, JoinToken, Security, SigningRequest, TOKEN_LIFE,
    secret_hash,
};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use world::World;

/// Most addresses of nodes in a token: the newcomer tries them in turn.
const ADDRESSES_IN_TOKEN_MAX: usize = 3;

/// Admits machines.
pub struct Admission {
    world: World,
    coordination: Coordination,
    authority: Authority,
    security: Arc<Security>,
    prefix: String,
    /// Where coordination is, for a cluster that has no etcd of its own.
    endpoints: Vec<String>,
}

impl Admission {
    /// With the authority of a quorum node.
    pub fn new(
        world: &World,
        coordination: &Coordination,
        authority: Authority,
        security: &Arc<Security>,
        prefix: &str,
        endpoints: &[String],
    ) -> Arc<Self> {
        Arc::new(Self {
            world: world.clone(),
            coordination: coordination.clone(),
            authority,
            security: security.clone(),
            prefix: prefix.to_owned(),
            endpoints: endpoints.to_vec(),
        })
    }

    async fn judge(&self, request: JoinRequest) -> Result<JoinReply> {
        let wishes: Wishes = postcard::from_bytes(&request.wishes).map_err(|_| {
            let text = "what the machine wishes isn't understood; use the version of Shale that the cluster has";
            Error::new(ErrorKind::InvalidArgument, text)
        })?;
        let signing = SigningRequest::from_der(&request.signing_request)?;
        let new = NewNode {
            name: wishes.name,
            class: "default".into(),
            is_quorum: wishes.is_quorum,
            key: signing.key_fingerprint().0,
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
        let certificate = self.authority.issue(&signing, &holder, now)?;
        let own: Credentials = self.security.credentials();
        let trusted = own.authorities().iter().map(|it| it.der().to_vec());
        let nodes = self.coordination.nodes().await?;
        let mut endpoints: Vec<_> = nodes
            .values()
            .filter_map(|it| it.value.etcd.clone())
            .collect();
        if endpoints.is_empty() {
            endpoints.clone_from(&self.endpoints);
        }
        let authority = facts.is_quorum.then(|| {
            let certificate = self.authority.certificate().to_pem();
            (self.authority.key_pem(), certificate)
        });
        let more = More {
            name: facts.name.clone(),
            prefix: self.prefix.clone(),
            endpoints,
            authority,
        };
        tracing::info!(node = %facts.node, name = %facts.name, "a machine has become a node");
        Ok(JoinReply {
            cluster: self.authority.cluster(),
            node: facts.node,
            certificate: certificate.der().to_vec(),
            authorities: trusted.collect(),
            more: postcard::to_stdvec(&more).expect("it is plain data"),
        })
    }
}

impl Admit for Admission {
    fn admit(
        &self,
        request: JoinRequest,
        from: Option<IpAddr>,
    ) -> BoxFuture<'_, Result<JoinReply>> {
        Box::pin(async move {
            let judged = self.judge(request).await;
            if let Err(error) = &judged {
                let from = from.map_or("?".into(), |it| it.to_string());
                tracing::warn!(%from, %error, "a machine wasn't admitted");
            }
            judged
        })
    }
}

impl InCluster {
    /// Makes a token with which one machine can join.
    ///
    /// # Errors
    /// `NotSupported`: no quorum node listens. Those of coordination.
    pub async fn make_join_token(&self) -> Result<JoinTokenMade> {
        let member = self.member();
        let (world, facts) = (member.world(), member.coordination());
        let nodes = facts.nodes().await?;
        let roster = member.roster();
        let quorum = nodes.values().filter(|it| it.value.is_quorum);
        let mut addresses: Vec<SocketAddr> = quorum
            .filter_map(|it| Some(roster.addresses.get(&it.value.node)?.address))
            .collect();
        // This node first: the person who made the token can see it.
        let own = roster
            .addresses
            .get(&member.run().node)
            .map(|it| it.address);
        addresses.sort_by_key(|address| Some(*address) != own);
        addresses.truncate(ADDRESSES_IN_TOKEN_MAX);
        if addresses.is_empty() {
            let text = "no node has the authority's key: make one of the cluster's first nodes a quorum node";
            return Err(Error::new(ErrorKind::NotSupported, text));
        }
        let authorities = self.credentials().authorities().to_vec();
        let authority = authorities.last().map(|it| it.fingerprint());
        let authority = authority
            .ok_or_else(|| Error::new(ErrorKind::Corrupt, "this node trusts no authority"))?;
        let now = world.wall();
        let token = JoinToken::new(addresses, authority, now)?;
        let seconds = |it: model::Timestamp| u64::try_from(it.seconds()).unwrap_or(0);
        let hash = secret_hash(token.secret);
        let until = seconds(token.expires);
        facts.add_join_token(&hash, until, seconds(now)).await?;
        Ok(JoinTokenMade {
            token: token.to_text(),
            seconds: TOKEN_LIFE.as_secs(),
        })
    }
}
