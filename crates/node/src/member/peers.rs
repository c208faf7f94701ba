//! The other nodes, and this one as if it were another.

use futures::future::{BoxFuture, join_all};
use model::call::{Answer, Call, Class, NoAnswer};
use model::{NodeId, NodeRun, Result};
use parking_lot::Mutex;
use rpc::{Addresses, Connections, Identity, LaneView, Peer};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use world::call::{Remote, Service};
use world::{Deadline, Part, World, errand};

/// The cause by which calls of this node to itself are listed that wait for their answers.
const ANSWER_WAIT: &str = "the answer of this node itself";

/// Ways to the nodes of the cluster; one for each, made when it is first needed.
pub(super) struct Peers {
    world: World,
    identity: Identity,
    addresses: Arc<Addresses>,
    peers: Mutex<Table>,
    own: Arc<dyn Remote>,
}

#[derive(Default)]
struct Table {
    peers: BTreeMap<NodeId, Arc<Peer>>,
    connections: Connections,
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
                urgent: world.urgent(),
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
        let mut table = self.peers.lock();
        let Table { peers, connections } = &mut *table;
        let peer = peers.entry(node).or_insert_with(|| {
            let dial = self.addresses.clone();
            let peer = Peer::new(&self.world, self.identity, node, dial);
            let set = peer.set_connections(*connections);
            set.expect("connections are checked when they are set");
            Arc::new(peer)
        });
        peer.clone()
    }

    /// How many connections this node wants to each other one from now on.
    ///
    /// # Errors
    /// `InvalidArgument`: a value is out of its range; nothing has changed.
    pub(super) fn set_connections(&self, connections: Connections) -> Result<()> {
        connections.check()?;
        let peers: Vec<_> = {
            let mut table = self.peers.lock();
            table.connections = connections;
            table.peers.values().cloned().collect()
        };
        peers
            .iter()
            .try_for_each(|peer| peer.set_connections(connections))
    }

    /// Further calls go over new connections, which are made as the node's security says now.
    pub(super) fn renew(&self) {
        let peers: Vec<_> = self.peers.lock().peers.values().cloned().collect();
        peers.iter().for_each(|peer| peer.renew());
    }

    /// This machine's network is a bond of so many links; 0: it isn't.
    pub(super) fn set_bond_links(&self, links: u8) {
        self.addresses.set_bond_links(links);
    }

    /// The lanes to each node that was called.
    pub(super) fn lanes(&self) -> BTreeMap<NodeId, Vec<LaneView>> {
        let peers = self.peers.lock().peers.clone();
        let lanes = peers.into_iter().map(|(node, peer)| (node, peer.lanes()));
        lanes.collect()
    }

    /// The way to this node, for parts that take every owner for another node.
    pub(super) fn own(&self) -> Arc<dyn Remote> {
        self.own.clone()
    }

    /// Ends all connections, after the replies under way.
    pub(super) async fn close(&self, deadline: Deadline) {
        let peers: Vec<_> = self.peers.lock().peers.values().cloned().collect();
        join_all(peers.iter().map(|peer| peer.close(deadline))).await;
    }
}

/// This node, called without a network.
struct OwnNode {
    world: World,
    urgent: World,
    run: NodeRun,
    service: Arc<dyn Service>,
}

impl Remote for OwnNode {
    fn call(
        &self,
        mut call: Call,
        deadline: Deadline,
    ) -> BoxFuture<'_, std::result::Result<Answer, NoAnswer>> {
        Box::pin(async move {
            let world = match call.class {
                Class::Lease => &self.urgent,
                Class::Metadata | Class::Bulk | Class::Repair => &self.world,
            };
            if call.trace == 0 {
                call.trace = self.world.errand().trace;
            }
            let (trace, node) = (call.trace, self.run.node);
            let part = Part::ForAnswer {
                node,
                method: call.method,
            };
            let served = self.service.serve(self.run, call, deadline);
            let served = errand::within(trace, node, served);
            let served = deadline.bound(world, served);
            match world.listed(ANSWER_WAIT, part, served).await {
                Ok(reply) => Ok(Answer {
                    from: self.run,
                    reply,
                }),
                Err(_) => Err(NoAnswer::unknown("the deadline passed")),
            }
        })
    }
}
