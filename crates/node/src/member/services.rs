//! What a node answers to others: its NSDs' requests, and the owner's while the shard is here.

use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt};
use metanode::Metanode;
use model::call::{Call, Reply};
use model::nsd::NSD_METHOD;
use model::owner::{OWNER, OwnerReply};
use model::{Error, ErrorKind, NodeRun};
use nsd::NsdServer;
use parking_lot::Mutex;
use std::sync::Arc;
use world::call::{Deadline, Service};

/// The parts of this node that answer.
pub(super) struct Services {
    nsds: Arc<NsdServer>,
    hosted: Mutex<Option<Arc<Metanode>>>,
}

impl Services {
    pub(super) fn new(nsds: Arc<NsdServer>) -> Arc<Self> {
        Arc::new(Self {
            nsds,
            hosted: Mutex::default(),
        })
    }

    /// The shard's service, if it is here.
    pub(super) fn hosted(&self) -> Option<Arc<Metanode>> {
        self.hosted.lock().clone()
    }

    /// The shard is served from now on.
    pub(super) fn host(&self, metanode: Arc<Metanode>) {
        *self.hosted.lock() = Some(metanode);
    }

    /// The shard's requests are refused from now on.
    pub(super) fn leave(&self) -> Option<Arc<Metanode>> {
        self.hosted.lock().take()
    }
}

impl Service for Services {
    fn serve(&self, from: NodeRun, call: Call, deadline: Deadline) -> BoxFuture<'_, Reply> {
        match call.method {
            NSD_METHOD => self.nsds.serve(from, call, deadline),
            OWNER => match self.hosted() {
                Some(metanode) => async move { metanode.serve(from, call, deadline).await }.boxed(),
                None => {
                    let text = "this node doesn't own the shard";
                    let refused = Err(Error::new(ErrorKind::OldEpoch, text));
                    let refused = Reply::new::<OwnerReply>(&refused, Bytes::new());
                    std::future::ready(refused).boxed()
                }
            },
            other => {
                let text = format!("this node answers no method {}", other.0);
                let refused = Err(Error::new(ErrorKind::NotImplemented, text));
                let refused = Reply::new::<OwnerReply>(&refused, Bytes::new());
                std::future::ready(refused).boxed()
            }
        }
    }
}
