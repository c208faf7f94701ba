//! Who is connected to this node: how many connections each other node may have, which of its daemons
//! is the newest, and which connections must go. No I/O.

use crate::Fault;
use crate::admission::{BULK_MAX, ENDING_MAX, SMALL_AND_BULK_MAX, SMALL_MAX};
use crate::lanes::Lane;
use model::{NodeId, NodeRun};
use std::collections::BTreeMap;
use std::time::Duration;
use world::{Instant, Map};

/// Most nodes whose incarnations are remembered: more than a cluster has.
const NODES_MAX: usize = 16_384;

/// Most connections on which nobody has said hello yet. They are greeted on the urgent thread, so
/// that this also bounds how long strangers can keep it from leases. When all nodes of a cluster come
/// at the same time, the others wait in the kernel's queue.
const STRANGERS_MAX: usize = 64;

/// How long one of them keeps its place while others wait for it.
pub(crate) const STRANGER_PATIENCE: Duration = Duration::from_millis(500);

/// All connections.
#[derive(Debug)]
pub(crate) struct Registry {
    /// Most of them.
    most: usize,
    last: u64,
    /// Those on which nobody has said hello, and when they came.
    strangers: BTreeMap<u64, Instant>,
    /// All others.
    known: BTreeMap<u64, Known>,
    nodes: Map<NodeId, Node>,
}

/// A connection whose other side has said hello.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Known {
    /// The daemon.
    pub(crate) run: NodeRun,
    /// What it is for; none: everything.
    pub(crate) lane: Option<Lane>,
    /// Somebody has said goodbye.
    pub(crate) is_ending: bool,
}

#[derive(Debug, Default)]
struct Node {
    /// The newest incarnation that was seen.
    incarnation: u64,
    /// In the order of their hellos.
    connections: Vec<u64>,
}

/// A connection that was taken on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Accepted {
    /// Its number.
    pub(crate) number: u64,
    /// A stranger that goes for it.
    pub(crate) dropped: Option<u64>,
}

/// Connections that must go.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Going {
    /// At once: they are an older daemon's, or were for all classes and another such one has come, or
    /// have been ending while too many others did.
    pub(crate) dropped: Vec<u64>,
    /// After their requests, because a newer connection of the same lane has come.
    pub(crate) drained: Vec<u64>,
}

impl Registry {
    /// At most so many connections.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            last: 0,
            strangers: BTreeMap::new(),
            known: BTreeMap::new(),
            nodes: Map::default(),
        }
    }

    /// All connections, strangers included.
    pub(crate) fn len(&self) -> usize {
        self.strangers.len() + self.known.len()
    }

    /// A connection has come. If there are too many, it takes the place of the oldest that hasn't
    /// said hello, so that a node of the cluster, which does so at once, is let in while strangers
    /// hold connections open; if all have, it is refused.
    pub(crate) fn accept(&mut self, now: Instant) -> Option<Accepted> {
        let is_full = self.len() >= self.most || self.strangers.len() >= STRANGERS_MAX;
        let dropped = match is_full {
            true => Some(self.strangers.pop_first()?.0),
            false => None,
        };
        self.last += 1;
        self.strangers.insert(self.last, now);
        let number = self.last;
        Some(Accepted { number, dropped })
    }

    /// How long the next connection should be left in the kernel's queue, unless one of those here is
    /// greeted or ends before: nobody shall lose its place while it is being greeted.
    pub(crate) fn patience(&self, now: Instant) -> Option<Duration> {
        let (_, oldest) = self.strangers.first_key_value()?;
        let rest = STRANGER_PATIENCE.saturating_sub(now.since(*oldest));
        (self.strangers.len() >= STRANGERS_MAX && !rest.is_zero()).then_some(rest)
    }

    /// A connection's other side has said hello. Whoever opens more connections than its lane has
    /// doesn't use the oldest any more.
    ///
    /// # Errors
    /// The daemon isn't its node's newest; too many nodes have called.
    pub(crate) fn greet(
        &mut self,
        number: u64,
        run: NodeRun,
        lane: Option<Lane>,
    ) -> Result<Going, Fault> {
        let is_new = !self.nodes.contains_key(&run.node);
        if is_new && self.nodes.len() >= NODES_MAX {
            return Err(Fault::new("more nodes have called than a cluster has"));
        }
        if !self.strangers.contains_key(&number) {
            return Err(Fault::new("the connection was dropped"));
        }
        let node = self.nodes.entry(run.node).or_default();
        if run.incarnation < node.incarnation {
            return Err(Fault::new(format!("{run} is an old daemon of its node")));
        }
        node.incarnation = run.incarnation;
        let mut going = Going::default();
        let others = node.connections.iter().copied();
        let is_replaced = |known: &Known| {
            // One for all classes holds the credits of all lanes, so it isn't waited for.
            known.run < run || known.lane.is_none() && lane.is_none()
        };
        let dropped = others.filter(|other| is_replaced(&self.known[other]));
        going.dropped.extend(dropped);
        node.connections.push(number);
        self.strangers.remove(&number);
        let is_ending = false;
        self.known.insert(
            number,
            Known {
                run,
                lane,
                is_ending,
            },
        );
        for other in &going.dropped {
            self.remove(*other);
        }
        while let Some(surplus) = self.surplus(run.node) {
            going.drained.push(surplus);
            going.dropped.extend(self.ending(surplus));
        }
        Ok(going)
    }

    /// The oldest connection of a node that has more than it may.
    fn surplus(&self, node: NodeId) -> Option<u64> {
        let numbers = self.nodes[&node].connections.iter();
        let open = numbers
            .map(|number| (*number, self.known[number]))
            .filter(|(_, known)| !known.is_ending);
        let of = |lanes: &[Option<Lane>], most: usize| {
            let of = open
                .clone()
                .filter(|(_, known)| lanes.contains(&known.lane));
            let mut of = of.map(|(number, _)| number);
            let first = of.next();
            first.filter(|_| of.count() >= most)
        };
        of(&[Some(Lane::Lease)], 1)
            .or_else(|| of(&[Some(Lane::Small)], SMALL_MAX))
            .or_else(|| of(&[Some(Lane::Bulk)], BULK_MAX))
            .or_else(|| of(&[Some(Lane::Small), Some(Lane::Bulk)], SMALL_AND_BULK_MAX))
    }

    /// Somebody has said goodbye on a connection. Gives those that were ending before it and must go
    /// for it.
    pub(crate) fn ending(&mut self, number: u64) -> Vec<u64> {
        let Some(known) = self.known.get_mut(&number) else {
            return Vec::new();
        };
        known.is_ending = true;
        let node = known.run.node;
        let connections = self.nodes[&node].connections.iter();
        let ending = connections.filter(|other| self.known[other].is_ending);
        let ending: Vec<u64> = ending.copied().collect();
        let dropped = ending[..ending.len().saturating_sub(ENDING_MAX)].to_vec();
        for other in &dropped {
            self.remove(*other);
        }
        dropped
    }

    /// A connection has ended.
    pub(crate) fn gone(&mut self, number: u64) {
        self.strangers.remove(&number);
        self.remove(number);
    }

    fn remove(&mut self, number: u64) {
        if let Some(known) = self.known.remove(&number)
            && let Some(node) = self.nodes.get_mut(&known.run.node)
        {
            node.connections.retain(|other| *other != number);
        }
    }

    /// A connection whose other side was let in, and may stay.
    pub(crate) fn known(&self, number: u64) -> Option<Known> {
        self.known.get(&number).copied()
    }

    /// Those on which nobody has been let in.
    pub(crate) fn strangers(&self) -> impl Iterator<Item = u64> {
        self.strangers.keys().copied()
    }

    /// All whose other side was let in.
    pub(crate) fn all_known(&self) -> impl Iterator<Item = Known> {
        self.known.values().copied()
    }
}
