//! Nodes that don't hear the manager although it reaches coordination, and a manager that gives its place up.

use super::{Cluster, Node};
use manager::{Event, Moment, Poll, UNHEARD_AFTER, jury};
use model::{NodeId, NodeRun};
use std::time::Duration;

/// How long a node that gave the place up leaves it to others.
const LEFT_TO_OTHERS: Duration = Duration::from_secs(10);

impl Cluster {
    /// Calls of a node reach another one.
    pub(super) fn calls_reach(&self, from: NodeId, to: NodeId) -> bool {
        !self.is_cut(from.0, to.0) && !self.refusals.contains(&(from.0, to.0))
    }

    /// A node refuses connections of another one.
    pub(super) fn refuses(&self, from: NodeId, to: NodeId) -> bool {
        let is_down = self.listens_no_more(self.node(to));
        !self.is_cut(from.0, to.0) && (is_down || self.refusals.contains(&(from.0, to.0)))
    }

    /// All others refuse the run's connections, as this one does.
    pub(super) fn all_refuse_but(&self, from: NodeRun, refused: NodeRun) -> bool {
        let known = &self.node(from.node).known.membership;
        let mut others = jury(known, &self.roles.quorum);
        others.retain(|run| *run != from && *run != refused);
        let mut refuse = others.iter().map(|run| self.refuses(from.node, run.node));
        !others.is_empty() && refuse.all(|it| it)
    }

    /// The node has asked the manager in vain for long.
    fn is_deaf_to(&self, node: &Node, manager: NodeRun) -> bool {
        let asked = node.silent.filter(|(run, _)| *run == manager);
        asked.is_some_and(|(_, since)| node.clock(self.now).since(since) >= UNHEARD_AFTER)
    }

    /// A node that doesn't hear the manager looks whether most don't, and says so.
    pub(super) fn complain(&mut self, at: usize) {
        let (node, place) = (&self.nodes[at], self.store.place);
        let holder = place.map(|(holder, _)| holder);
        let Some(holder) = holder.filter(|it| *it != node.run && self.is_deaf_to(node, *it)) else {
            return;
        };
        let jury = jury(&node.known.membership, &self.roles.quorum);
        let mut poll = Poll::of(&jury);
        for run in jury {
            let is_asked = self.acts(run) && self.calls_reach(node.run.node, run.node);
            poll.says(is_asked && self.is_deaf_to(self.node(run.node), holder));
        }
        if self.store.doubt == 0 && poll.outcome() == Some(true) {
            self.store.revision += 1;
            self.store.doubt = self.store.revision;
            self.store.is_unheard = true;
        }
    }

    /// The node gives the manager's place up, and what its own manager has answered to it counts no longer.
    pub(super) fn give_up(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let own = node.run;
        node.has_lost_place = true;
        node.lease.void();
        node.gave_up = Some(node.clock(self.now));
        let holds = self.store.place.is_some_and(|(holder, _)| holder == own);
        if holds && !self.is_cut(0, own.node.0) {
            self.vacate();
        }
    }

    /// The node gave the manager's place up, and no other one has had it since.
    pub(super) fn leaves_it_to_others(&mut self, at: usize, now: Moment) -> bool {
        let own = self.nodes[at].run;
        let is_others = self.store.place.is_some_and(|(holder, _)| holder != own);
        let gave_up = &mut self.nodes[at].gave_up;
        *gave_up = gave_up.filter(|since| !is_others && now.since(*since) < LEFT_TO_OTHERS);
        gave_up.is_some()
    }

    /// If the node is the manager, it hears of connections that can't be made.
    pub(super) fn try_to_connect(&mut self, at: usize) {
        let own = self.nodes[at].run.node;
        let refusals = self.refusals.iter().filter(|(from, _)| *from == own.0);
        let refused: Vec<NodeRun> = refusals.map(|(_, to)| self.node(NodeId(*to)).run).collect();
        for run in refused {
            self.event(at, Event::Unconnected(run));
        }
    }
}
