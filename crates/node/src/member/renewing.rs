//! New certificates for members: one asks a node that has the cluster's authority, over the connection that proves which
//! node it is.

use super::Member;
use bytes::Bytes;
use futures::future::BoxFuture;
use model::call::{Call, Class, Reply};
use model::join::{RENEW, RenewReply, RenewRequest};
use model::{Error, ErrorKind, NodeId, NodeRun, Result};
use parking_lot::RwLock;
use std::sync::Arc;
use std::time::Duration;
use world::Deadline;
use world::call::Remote;

/// How long another node may take to certify this one.
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

    async fn judge(&self, from: NodeRun, call: &Call) -> Result<RenewReply> {
        let renew = self.renew.read().clone();
        let renew = renew.ok_or_else(|| {
            let text = "this node hasn't the cluster's authority; ask another one";
            Error::new(ErrorKind::NotSupported, text)
        })?;
        let request: RenewRequest = call.decode()?;
        request.check()?;
        let reply = renew.renew(from, request).await?;
        reply.check().map(|()| reply)
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
        let mut call = Call::new(RENEW, Class::Metadata, request);
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
        let reply: RenewReply = answer.reply.decode()?;
        reply.check().map(|()| reply)
    }
}
