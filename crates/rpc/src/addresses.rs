//! Where nodes listen, and connections to there.

use crate::channel::Channel;
use crate::peer::Dial;
use crate::security::Security;
use futures::future::BoxFuture;
use model::NodeId;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use world::{Deadline, World};

/// The addresses of the cluster's nodes, as far as this node knows them.
pub struct Addresses {
    world: World,
    security: Option<Arc<Security>>,
    table: Mutex<BTreeMap<NodeId, SocketAddr>>,
}

impl Addresses {
    /// No node is known yet.
    #[must_use]
    pub fn new(world: &World) -> Self {
        Self {
            world: world.clone(),
            security: None,
            table: Mutex::default(),
        }
    }

    /// Proves who is there, and protects the connections, as `security` says from each to the next.
    #[must_use]
    pub fn with_security(mut self, security: Arc<Security>) -> Self {
        self.security = Some(security);
        self
    }

    /// The node listens at this address from now on. Open connections stay.
    pub fn set(&self, node: NodeId, address: SocketAddr) {
        self.table.lock().insert(node, address);
    }

    /// The node isn't part of the cluster any more.
    pub fn remove(&self, node: NodeId) {
        self.table.lock().remove(&node);
    }
}

impl Dial for Addresses {
    fn dial(&self, node: NodeId, deadline: Deadline) -> BoxFuture<'_, io::Result<Channel>> {
        Box::pin(async move {
            let address = self.table.lock().get(&node).copied();
            let Some(address) = address else {
                let text = format!("the address of node {node} isn't known");
                return Err(io::Error::new(io::ErrorKind::NotFound, text));
            };
            let connection = self.world.connect(address, deadline).await?;
            let Some(security) = &self.security else {
                return Ok(Channel::plain(connection));
            };
            let protected = security.connect(connection, node, Some(address.ip()));
            deadline
                .bound(&self.world, protected)
                .await
                .unwrap_or_else(|_| {
                    let text = format!(
                        "node {node} at {address} took the connection but didn't say who it is"
                    );
                    Err(io::Error::new(io::ErrorKind::TimedOut, text))
                })
        })
    }
}
