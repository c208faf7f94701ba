//! The other nodes, and this one as if it were another.

use super::reach::{Needed, Reach};
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
    table: Mutex<Table>,
    own: Arc<dyn Remote>,
    reach: Arc<Reach>,
}

#[derive(Default)]
struct Table {
    ways: BTreeMap<NodeId, Way>,
    connections: Connections,
}

/// The way to a node.
#[derive(Clone)]
struct Way {
    peer: Arc<Peer>,
    /// The same for those who need the node.
    needed: Arc<Needed>,
}

impl Peers {
    pub(super) fn new(
        world: &World,
        identity: Identity,
        addresses: Arc<Addresses>,
        own: Arc<dyn Service>,
        reach: &Arc<Reach>,
    ) -> Arc<Self> {
        Arc::new(Self {
            world: world.clone(),
            identity,
            addresses,
            table: Mutex::default(),
            own: Arc::new(OwnNode {
                world: world.clone(),
                urgent: world.urgent(),
                run: identity.run,
                service: own,
            }),
            reach: reach.clone(),
        })
    }

    /// The node listens there from now on.
    pub(super) fn set_address(&self, node: NodeId, address: SocketAddr) {
        self.addresses.set(node, address);
    }

    /// The way to a node.
    pub(super) fn to(&self, node: NodeId) -> Arc<dyn Remote> {
        self.way(node).peer
    }

    /// The way to a node that owns a shard or serves an NSD which somebody here uses. If it doesn't answer there, it is
    /// looked whether it can be reached at all.
    pub(super) fn to_needed(&self, node: NodeId) -> Arc<dyn Remote> {
        self.way(node).needed
    }

    fn way(&self, node: NodeId) -> Way {
        let mut table = self.table.lock();
        let Table { ways, connections } = &mut *table;
        let way = ways.entry(node).or_insert_with(|| {
            let dial = self.addresses.clone();
            let peer = Peer::new(&self.world, self.identity, node, dial);
            let set = peer.set_connections(*connections);
            set.expect("connections are checked when they are set");
            let peer = Arc::new(peer);
            let needed = Needed::new(node, peer.clone(), &self.reach);
            Way { peer, needed }
        });
        way.clone()
    }

    fn all(&self) -> Vec<Arc<Peer>> {
        let table = self.table.lock();
        table.ways.values().map(|way| way.peer.clone()).collect()
    }

    /// How many connections this node wants to each other one from now on.
    ///
    /// # Errors
    /// `InvalidArgument`: a value is out of its range; nothing has changed.
    pub(super) fn set_connections(&self, connections: Connections) -> Result<()> {
        connections.check()?;
        // A way that is made from now on has them from the beginning.
        self.table.lock().connections = connections;
        let peers = self.all();
        peers
            .iter()
            .try_for_each(|peer| peer.set_connections(connections))
    }

    /// Further calls go over new connections, which are made as the node's security says now.
    pub(super) fn renew(&self) {
        self.all().iter().for_each(|peer| peer.renew());
    }

    /// This machine's network is a bond of so many links; 0: it isn't.
    pub(super) fn set_bond_links(&self, links: u8) {
        self.addresses.set_bond_links(links);
    }

    /// The lanes to each node that was called.
    pub(super) fn lanes(&self) -> BTreeMap<NodeId, Vec<LaneView>> {
        let ways = self.table.lock().ways.clone();
        let lanes = ways.into_iter().map(|(node, way)| (node, way.peer.lanes()));
        lanes.collect()
    }

    /// The way to this node, for parts that take every owner for another node.
    pub(super) fn own(&self) -> Arc<dyn Remote> {
        self.own.clone()
    }

    /// Ends all connections, after the replies under way.
    pub(super) async fn close(&self, deadline: Deadline) {
        let peers = self.all();
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
