//! The faults of the network between the machines of a cluster.

use super::machine::Machine;
use super::network::Link;
use super::node::SimNode;
use parking_lot::Mutex;
use std::sync::Arc;

/// Cuts, slows and breaks what is between machines; cheap to clone, usable inside a run.
///
/// Bytes that meet a cut way are sent again until it is healed or the connection fails, as by TCP:
/// nobody is told of a cut. Machines always reach themselves.
#[derive(Clone)]
pub struct Wires {
    machine: Arc<Mutex<Machine>>,
}

impl Wires {
    pub(super) fn new(machine: Arc<Mutex<Machine>>) -> Self {
        Self { machine }
    }

    /// How long bytes take between machines for which nothing else is said.
    pub fn usual(&self, link: Link) {
        self.machine.lock().network.links.usual = link;
    }

    /// How long bytes take from one machine to another (not back).
    pub fn link(&self, from: &SimNode, to: &SimNode, link: Link) {
        let mut machine = self.machine.lock();
        let links = &mut machine.network.links;
        links.unusual.insert((from.number(), to.number()), link);
    }

    /// Cuts one way: what is sent from one machine to the other is lost, not what comes back.
    pub fn cut_one_way(&self, from: &SimNode, to: &SimNode) {
        let mut machine = self.machine.lock();
        machine
            .network
            .links
            .cut
            .insert((from.number(), to.number()));
    }

    /// Cuts both ways between two machines.
    pub fn cut(&self, one: &SimNode, other: &SimNode) {
        self.cut_one_way(one, other);
        self.cut_one_way(other, one);
    }

    /// Cuts a machine off from all others that exist.
    pub fn isolate(&self, node: &SimNode) {
        let mut machine = self.machine.lock();
        for other in 0..machine.nodes.len() {
            let cut = &mut machine.network.links.cut;
            cut.insert((node.number(), other));
            cut.insert((other, node.number()));
        }
    }

    /// Heals both ways between two machines.
    pub fn heal(&self, one: &SimNode, other: &SimNode) {
        let mut machine = self.machine.lock();
        let cut = &mut machine.network.links.cut;
        cut.remove(&(one.number(), other.number()));
        cut.remove(&(other.number(), one.number()));
    }

    /// Heals all cut ways, and lets all machines listen.
    pub fn heal_all(&self) {
        let links = &mut self.machine.lock().network.links;
        links.cut.clear();
        links.refusing.clear();
    }

    /// A machine goes on, and whoever wants a connection to it is told that nobody listens, as a filter of packets may do.
    /// Those that others have opened break; its own to others go on.
    pub fn refuse(&self, node: &SimNode) {
        let mut machine = self.machine.lock();
        for other in (0..machine.nodes.len()).filter(|other| *other != node.number()) {
            machine.network.refuse(other, node.number());
        }
    }

    /// The same for connections that one other machine wants. All others are taken.
    pub fn refuse_from(&self, from: &SimNode, node: &SimNode) {
        let mut machine = self.machine.lock();
        machine.network.refuse(from.number(), node.number());
    }

    /// Whether what one machine sends reaches the other.
    #[must_use]
    pub fn is_open(&self, from: &SimNode, to: &SimNode) -> bool {
        let machine = self.machine.lock();
        machine.network.links.is_open(from.number(), to.number())
    }

    /// Breaks all connections between two machines; both are told, and may connect again.
    pub fn reset(&self, one: &SimNode, other: &SimNode) {
        let mut machine = self.machine.lock();
        machine.network.reset(one.number(), other.number());
    }
}
