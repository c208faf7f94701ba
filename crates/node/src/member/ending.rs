//! Asks other nodes whether this run has ended for the cluster, when it has no lease and can't know why.
//!
//! A run that is expelled learns it from coordination, or from the manager's answer to its next heartbeat. One that reaches
//! neither would learn nothing, take itself for held up, and let its programs wait without end. That is so if it is cut
//! off from coordination, and from the manager too; or another one has become the manager meanwhile, whom it doesn't
//! know, or doesn't believe any more (`lease`); or its node was expelled by hand, and isn't answered otherwise. Any other
//! node knows it as well: those whose addresses are known here are asked one after the other, one at a time, as long as the
//! run is held up.
//!
//! Only a member that has a lease answers, from the manager that wrote the membership which it has read
//! (`Services::known_end`). A run that has ended never is a member again, so late news are true, too; all the same none are
//! believed that are of an earlier manager than this node knows (`RunLease::hear_end`). A node that reaches nobody waits on:
//! it can't tell that from a cluster without a quorum.
//!
//! All of it is on the urgent thread, as heartbeats are, which wait for nothing here.

use super::Parts;
use model::NodeId;
use model::call::{Call, Class};
use model::member::{HAS_ENDED, HEARTBEAT_EVERY, KnownEnd};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;
use world::Deadline;

/// Pause before each question: a lease that is back soon costs none.
const ASK_AFTER: Duration = HEARTBEAT_EVERY;
/// How long an answer is waited for, with what it takes to make a connection.
const ANSWER_MAX: Duration = Duration::from_secs(1);

/// The task that asks, until the run has ended. One of the urgent thread.
pub(super) async fn ask(parts: Arc<Parts>) {
    let (world, lease) = (parts.world.urgent(), &parts.lease);
    // Each node begins with the one behind it, so that not all ask the same one.
    let mut last = parts.run.node;
    while !lease.has_ended() {
        lease.held_up().await;
        world.sleep(ASK_AFTER).await;
        if !lease.is_held_up() {
            continue;
        }
        let roster = parts.roster.borrow().clone();
        let Some(next) = next_of(&roster.addresses, last, parts.run.node) else {
            continue;
        };
        last = next;
        if let Some(end) = end_as_said_by(&parts, next).await
            && lease.hear_end(end)
        {
            let (run, term) = (parts.run, end.term.0);
            tracing::warn!(%run, term, by = %next, "another node says that this run has ended");
        }
    }
}

/// The node after `last`, round and round, but never this one.
fn next_of<T>(nodes: &BTreeMap<NodeId, T>, last: NodeId, own: NodeId) -> Option<NodeId> {
    let behind = nodes.range((Bound::Excluded(last), Bound::Unbounded));
    let mut all = behind.chain(nodes).map(|(node, _)| *node);
    all.find(|node| *node != own)
}

/// How this run has ended, if a node says that it has. One that doesn't answer, or is of an earlier build, says nothing.
async fn end_as_said_by(parts: &Parts, node: NodeId) -> Option<KnownEnd> {
    let call = Call::new(HAS_ENDED, Class::Lease, &());
    let deadline = Deadline::after(&parts.world, ANSWER_MAX);
    let answer = parts.peers.to(node).call(call, deadline).await.ok()?;
    answer.reply.decode::<Option<KnownEnd>>().ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_other_nodes_are_asked_in_turn() {
        let nodes: BTreeMap<_, _> = [1, 3, 4].map(|node| (NodeId(node), ())).into();
        let own = NodeId(3);
        let mut last = own;
        let asked = [(); 4].map(|()| {
            last = next_of(&nodes, last, own).unwrap();
            last.0
        });
        assert_eq!(asked, [4, 1, 4, 1]);
        let alone = BTreeMap::from([(own, ())]);
        assert_eq!(next_of(&alone, own, own), None);
        // Whoever was asked last isn't there any more.
        assert_eq!(next_of(&nodes, NodeId(2), NodeId(1)), Some(NodeId(3)));
    }
}
