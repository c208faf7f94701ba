//! The other nodes, and this one as if it were another.

use futures::future::{BoxFuture, join_all};
use model::call::{Answer, Call, NoAnswer};
use model::{NodeId, NodeRun};
use parking_lot::Mutex;
use rpc::{Addresses, Identity, Peer};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use world::call::{Remote, Service};
use world::{Deadline, World};

/// Ways to the nodes of the cluster; one for each, made when it is first needed.
pub(super) struct Peers {
    world: World,
    identity: Identity,
    addresses: Arc<Addresses>,
    peers: Mutex<BTreeMap<NodeId, Arc<Peer>>>,
    own: Arc<dyn Remote>,
}

impl Peers {
    pub(super) fn new(
        world: &World,
        identity: Identity,
        addresses: Arc<Addresses>,
        own: Arc<dyn Service>,
    ) -> Arc<Self> {
        Arc::new(Self {
            world: world.clone(),
            identity,
            addresses,
            peers: Mutex::default(),
            own: Arc::new(OwnNode {
                world: world.clone(),
                run: identity.run,
                service: own,
            }),
        })
    }

    /// The node listens there from now on.
    pub(super) fn set_address(&self, node: NodeId, address: SocketAddr) {
        self.addresses.set(node, address);
    }

    /// The way to a node.
    pub(super) fn to(&self, node: NodeId) -> Arc<dyn Remote> {
        let mut peers = self.peers.lock();
        let peer = peers.entry(node).or_insert_with(|| {
            let dial = self.addresses.clone();
            Arc::new(Peer::new(&self.world, self.identity, node, dial))
        });
        peer.clone()
    }

    /// The way to this node, for parts that take every owner for another node.
    pub(super) fn own(&self) -> Arc<dyn Remote> {
        self.own.clone()
    }

    /// Ends all connections, after the replies under way.
    pub(super) async fn close(&self, deadline: Deadline) {
        let peers: Vec<_> = self.peers.lock().values().cloned().collect();
        join_all(peers.iter().map(|peer| peer.close(deadline))).await;
    }
}

/// This node, called without a network.
struct OwnNode {
    world: World,
    run: NodeRun,
    service: Arc<dyn Service>,
}

impl Remote for OwnNode {
    fn call(&self, call: Call, deadline: Deadline) -> BoxFuture<'_, Result<Answer, NoAnswer>> {
        Box::pin(async move {
            let served = self.service.serve(self.run, call, deadline);
            match deadline.bound(&self.world, served).await {
                Ok(reply) => Ok(Answer {
                    from: self.run,
                    reply,
                }),
                Err(_) => Err(NoAnswer::unknown("the deadline passed")),
            }
        })
    }
}
