//! Where nodes listen, and connections to there.

use crate::drive::Stream;
use crate::peer::Dial;
use futures::future::BoxFuture;
use model::NodeId;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use world::{Deadline, World};

/// The addresses of the cluster's nodes, as far as this node knows them.
pub struct Addresses {
    world: World,
    table: Mutex<BTreeMap<NodeId, SocketAddr>>,
}

impl Addresses {
    /// No node is known yet.
    #[must_use]
    pub fn new(world: &World) -> Self {
        Self {
            world: world.clone(),
            table: Mutex::default(),
        }
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
    fn dial(&self, node: NodeId, deadline: Deadline) -> BoxFuture<'_, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            let address = self.table.lock().get(&node).copied();
            let Some(address) = address else {
                let text = format!("the address of node {node} isn't known");
                return Err(io::Error::new(io::ErrorKind::NotFound, text));
            };
            let connection = self.world.connect(address, deadline).await?;
            let stream: Box<dyn Stream> = Box::new(connection);
            Ok(stream)
        })
    }
}
