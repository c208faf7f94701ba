//! New certificates for members, and the authority's key for those that certify others: a member asks a node that has it,
//! over the connection that proves which node it is.

use super::Member;
use bytes::Bytes;
use futures::future::BoxFuture;
use model::call::{Call, Class, Method, Reply};
use model::join::{
    AUTHORITY_KEY, AuthorityKey, AuthorityKeyRequest, RENEW, RenewReply, RenewRequest,
};
use model::{Error, ErrorKind, NodeId, NodeRun, Result};
use parking_lot::RwLock;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::Duration;
use world::Deadline;
use world::call::Remote;

/// How long another node may take to answer.
const RENEW_MAX: Duration = Duration::from_secs(15);
/// Longest answer: some certificates.
const REPLY_BYTES_MAX: u32 = 64 * 1024;

/// Certifies members anew.
pub trait Renew: Send + Sync {
    /// Certifies the node whose run asks.
    ///
    /// # Errors
    /// Why it isn't certified.
    fn renew(&self, from: NodeRun, request: RenewRequest) -> BoxFuture<'_, Result<RenewReply>>;

    /// The key of an authority, for a run that may certify others.
    ///
    /// # Errors
    /// Why it doesn't get it.
    fn authority_key(
        &self,
        from: NodeRun,
        request: AuthorityKeyRequest,
    ) -> BoxFuture<'_, Result<AuthorityKey>>;
}

/// Who does it here; nobody, unless the program says so.
#[derive(Default)]
pub(super) struct RenewalDesk {
    renew: RwLock<Option<Arc<dyn Renew>>>,
}

impl RenewalDesk {
    /// Answers another node.
    pub(super) async fn serve(&self, from: NodeRun, call: Call) -> Reply {
        Reply::new(&self.judge(from, &call).await, Bytes::new())
    }

    /// Gives another node the key of an authority. It came over a connection that proves which node it is
    /// ([`model::join::needs_proof`]).
    pub(super) async fn serve_key(&self, from: NodeRun, call: Call) -> Reply {
        Reply::new(&self.judge_key(from, &call).await, Bytes::new())
    }

    async fn judge(&self, from: NodeRun, call: &Call) -> Result<RenewReply> {
        let renew = self.here()?;
        let request: RenewRequest = call.decode()?;
        request.check()?;
        let reply = renew.renew(from, request).await?;
        reply.check().map(|()| reply)
    }

    async fn judge_key(&self, from: NodeRun, call: &Call) -> Result<AuthorityKey> {
        let renew = self.here()?;
        let request: AuthorityKeyRequest = call.decode()?;
        let key = renew.authority_key(from, request).await?;
        key.check().map(|()| key)
    }

    fn here(&self) -> Result<Arc<dyn Renew>> {
        let renew = self.renew.read().clone();
        renew.ok_or_else(|| {
            let text = "this node hasn't the cluster's authority; ask another one";
            Error::new(ErrorKind::NotSupported, text)
        })
    }
}

impl Member {
    /// From now on this certifies members anew that ask here.
    pub fn answer_renewals(&self, renew: Arc<dyn Renew>) {
        *self.parts.services.renewals().renew.write() = Some(renew);
    }

    /// Asks a node that has the authority for a new certificate of this one.
    ///
    /// # Errors
    /// Why it isn't given; `Unavailable`: the node doesn't answer.
    pub async fn renew(&self, at: NodeId, request: &RenewRequest) -> Result<RenewReply> {
        request.check()?;
        let reply: RenewReply = self.ask_for(at, RENEW, request).await?;
        reply.check().map(|()| reply)
    }

    /// Asks a node that has it for the key of an authority.
    ///
    /// # Errors
    /// Why it isn't given; `Unavailable`: the node doesn't answer.
    pub async fn authority_key(
        &self,
        at: NodeId,
        request: &AuthorityKeyRequest,
    ) -> Result<AuthorityKey> {
        let key: AuthorityKey = self.ask_for(at, AUTHORITY_KEY, request).await?;
        key.check().map(|()| key)
    }

    async fn ask_for<Q: Serialize, A: DeserializeOwned>(
        &self,
        at: NodeId,
        method: Method,
        request: &Q,
    ) -> Result<A> {
        let mut call = Call::new(method, Class::Metadata, request);
        call.reply_bytes_max = REPLY_BYTES_MAX;
        let deadline = Deadline::after(&self.parts.world, RENEW_MAX);
        let to: Arc<dyn Remote> = match at == self.parts.run.node {
            true => self.parts.peers.own(),
            false => self.parts.peers.to(at),
        };
        let answered = to.call(call, deadline).await;
        let answer = answered.map_err(|none| {
            let text = format!("node {at} doesn't certify this node: {none}");
            Error::new(ErrorKind::Unavailable, text)
        })?;
        answer.reply.decode()
    }
}
