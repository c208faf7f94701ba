//! Where the cluster's own etcd answers, as its nodes' facts say.

use crate::daemon::config::ClusterConfig;
use coordination::Versioned;
use coordination::etcd::{ENDPOINTS_MAX, EtcdMember};
use model::NodeId;
use node::NodeFacts;
use std::collections::{BTreeMap, BTreeSet};

/// The endpoints that a node uses, at most [`ENDPOINTS_MAX`]: its own first, if it has one, then the others, at nodes of
/// different numbers beginning with different ones, so that not all ask the same member. Only quorum nodes' count, whatever
/// others say; none for a cluster whose etcd others run.
pub fn endpoints_for(
    node: NodeId,
    own: Option<&str>,
    nodes: &BTreeMap<NodeId, Versioned<NodeFacts>>,
) -> Vec<String> {
    let quorum = nodes.values().filter(|it| it.value.is_quorum);
    // A machine that joined anew has the address of the node that it was before.
    let all: BTreeSet<&str> = quorum.filter_map(|it| it.value.etcd.as_deref()).collect();
    let mut others: Vec<String> = all.into_iter().map(str::to_owned).collect();
    if !others.is_empty() {
        let first = node.0 as usize % others.len();
        others.rotate_left(first);
    }
    others.sort_by_key(|it| Some(it.as_str()) != own);
    if others.len() > ENDPOINTS_MAX {
        let left_out = &others[ENDPOINTS_MAX..];
        tracing::warn!(?left_out, "coordination has more endpoints than are used");
        others.truncate(ENDPOINTS_MAX);
    }
    others
}

/// A node's place in the cluster with the endpoints that it uses by now; nothing if they are as they were, or if others run the
/// cluster's etcd: the facts of its nodes name none.
pub fn moved(
    known: &ClusterConfig,
    own: Option<&str>,
    nodes: &BTreeMap<NodeId, Versioned<NodeFacts>>,
) -> Option<ClusterConfig> {
    let coordination = endpoints_for(NodeId(known.node), own, nodes);
    let is_news = !coordination.is_empty() && coordination != known.coordination;
    is_news.then(|| ClusterConfig {
        coordination,
        ..known.clone()
    })
}

/// The nodes whose facts name an endpoint that no member of etcd has any more, as far as these members say.
pub fn outdated(
    nodes: &BTreeMap<NodeId, Versioned<NodeFacts>>,
    members: &[EtcdMember],
) -> Vec<NodeId> {
    let urls: BTreeSet<&str> = members
        .iter()
        .flat_map(|it| it.client_urls.iter().map(String::as_str))
        .collect();
    let mut named = BTreeSet::new();
    let mut outdated = Vec::new();
    // The newest node of an address has its member.
    for (node, facts) in nodes.iter().rev() {
        let Some(url) = facts.value.etcd.as_deref() else {
            continue;
        };
        if !urls.contains(url) || !named.insert(url) {
            outdated.push(*node);
        }
    }
    outdated
}

#[cfg(test)]
mod tests {
    use super::*;
    use coordination::etcd::EtcdMemberId;

    fn nodes(
        all: impl IntoIterator<Item = (u32, bool, Option<u32>)>,
    ) -> BTreeMap<NodeId, Versioned<NodeFacts>> {
        let fact = |(node, is_quorum, etcd): (u32, bool, Option<u32>)| {
            let value = NodeFacts {
                node: NodeId(node),
                name: format!("n{node}"),
                class: "default".into(),
                is_quorum,
                has_authority: is_quorum,
                is_barred: false,
                etcd: etcd.map(url),
                address: format!("10.0.0.{node}:7311").parse().unwrap(),
                key: [0; 32],
            };
            (NodeId(node), Versioned { value, version: 1 })
        };
        all.into_iter().map(fact).collect()
    }

    fn url(number: u32) -> String {
        format!("https://10.0.0.{number}:7312")
    }

    #[test]
    fn endpoints_are_those_of_quorum_nodes_each_once_and_the_own_one_first() {
        let known = nodes([
            (1, true, Some(1)),
            (2, true, Some(2)),
            (3, true, Some(3)),
            // It says so itself, and nobody made it one.
            (4, false, Some(4)),
            (5, false, None),
            // Node 3's machine, which joined anew.
            (6, true, Some(3)),
        ]);
        let own = url(2);
        let of_quorum = endpoints_for(NodeId(2), Some(&own), &known);
        assert_eq!(of_quorum[0], own);
        assert_eq!(of_quorum.len(), 3);
        let first = |node| endpoints_for(NodeId(node), None, &known)[0].clone();
        assert_eq!(
            BTreeSet::from([first(3), first(4), first(5)]).len(),
            3,
            "nodes without one of their own ask different ones first"
        );
        assert!(endpoints_for(NodeId(1), None, &nodes([(1, false, None)])).is_empty());
    }

    #[test]
    fn more_endpoints_than_can_be_used_are_left_out_and_the_own_one_never() {
        let known = nodes((1..=40).map(|it| (it, true, Some(it))));
        let own = url(40);
        let used = endpoints_for(NodeId(40), Some(&own), &known);
        assert_eq!((used.len(), &used[0]), (ENDPOINTS_MAX, &own));
    }

    #[test]
    fn endpoints_of_members_that_are_gone_are_outdated() {
        let known = nodes([
            (1, true, Some(1)),
            (2, true, Some(2)),
            (3, true, Some(3)),
            (4, true, None),
            (6, true, Some(3)),
        ]);
        let member = |number: u32| EtcdMember {
            id: EtcdMemberId(number.into()),
            name: format!("n{number}"),
            peer_urls: Vec::new(),
            client_urls: vec![url(number)],
            is_learner: false,
        };
        let members = [member(1), member(3)];
        assert_eq!(outdated(&known, &members), [NodeId(3), NodeId(2)]);
    }
}
