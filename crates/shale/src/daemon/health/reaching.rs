//! Nodes that can't reach each other although the cluster's manager hears both: which ones, and what to look at.

use super::{CRITICAL, ClusterFacts, NODES_NAMED, WARNING, event};
use crate::admin::HealthEvent;

/// What to do about a link.
const REMEDY: &str = "look at what is between both nodes: cables, switch ports, and firewalls, which must let the port of \
                      each node's address through, both ways. Nothing else is to be done: a node that was expelled for it \
                      joins again by itself";

/// What this node doesn't reach, and who was expelled because two nodes don't reach each other.
pub(super) fn events(cluster: &ClusterFacts) -> Vec<HealthEvent> {
    let mut events = Vec::new();
    if cluster.waits_to_join {
        let unreached = cluster.unreached.iter().map(|(node, _)| node.as_str());
        let named: Vec<_> = unreached.take(NODES_NAMED).collect();
        let more = match cluster.unreached.len() - named.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let now = match named.is_empty() {
            true => "it looks whether it does now".to_owned(),
            false => format!("it doesn't reach {}{more}", named.join(", ")),
        };
        let what = format!(
            "it was expelled because it and another node couldn't reach each other, and joins again when it reaches all \
             nodes with shards or NSDs in use; {now}"
        );
        events.push(event(CRITICAL, "this node", what, REMEDY));
    } else {
        for (node, seconds) in &cluster.unreached {
            let what = format!(
                "this node hasn't reached it for {seconds} s; if it stays so, and the manager hears both, one of both is \
                 expelled"
            );
            events.push(event(WARNING, node, what, REMEDY));
        }
    }
    for (node, other) in &cluster.apart {
        let what = format!(
            "it was expelled: it and {other} couldn't reach each other, and one of both had to go"
        );
        events.push(event(WARNING, node, what, REMEDY));
    }
    events
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_nodes_that_do_not_reach_each_other_are_named_with_what_to_look_at() {
        assert!(events(&ClusterFacts::default()).is_empty());
        let (two, three) = ("node 2 (n2, 10.0.0.2:7311)", "node 3 (n3, 10.0.0.3:7311)");
        let apart = ClusterFacts {
            apart: vec![(two.into(), three.into())],
            unreached: vec![(two.into(), 17)],
            ..ClusterFacts::default()
        };
        let told = events(&apart);
        let subjects: Vec<_> = told.iter().map(|it| it.subject.as_str()).collect();
        assert_eq!(subjects, [two, two]);
        assert!(told[0].message.contains("for 17 s"), "{told:?}");
        assert!(told[1].message.contains(three), "{told:?}");
        for event in &told {
            assert_eq!(event.severity, WARNING);
            assert!(event.remedy.contains("firewalls"), "{event:?}");
        }
    }

    #[test]
    fn a_node_that_waits_to_join_says_for_whom() {
        let facts = |unreached: Vec<(String, u64)>| ClusterFacts {
            waits_to_join: true,
            unreached,
            ..ClusterFacts::default()
        };
        let told = events(&facts(Vec::new()));
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].message.ends_with("it looks whether it does now"));
        let many = (1..=7).map(|node| (format!("node {node}"), 3));
        let told = events(&facts(many.collect()));
        assert_eq!(told.len(), 1, "{told:?}");
        let first = &told[0];
        assert_eq!(
            (first.severity.as_str(), first.subject.as_str()),
            (CRITICAL, "this node")
        );
        assert!(
            first.message.ends_with("node 4, node 5 and 2 more"),
            "{first:?}"
        );
    }
}
