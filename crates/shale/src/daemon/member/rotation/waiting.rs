//! For whom a rotation of keys waits, and what people can do about it.

use crate::admin::RotationLine;
use crate::daemon::member::quorum::VOTERS_TO_SPARE;
use crate::daemon::member::{InCluster, reports::standings};
use coordination::{Authorities, Lack, NodeFacts, NodeSecurity, Versioned, lacking};
use model::{NodeId, Result};
use rpc::security::Fingerprint;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Nodes that an error names at most.
const NAMED_MAX: usize = 10;

/// For whom a rotation waits.
pub struct Waiting {
    /// The nodes that haven't made the step.
    pub lines: Vec<RotationLine>,
    /// The authorities that were replaced, and that some of them still trust.
    pub old: Vec<String>,
    /// Why even those that are up can't make it, and what to do.
    pub held_up: Option<String>,
}

impl InCluster {
    /// The nodes that haven't made the step which the authorities are at.
    pub(super) async fn waiting(&self, authorities: &Authorities) -> Result<Waiting> {
        let facts = self.member().coordination();
        let (nodes, said) = (facts.nodes().await?, facts.said_of_security().await?);
        let standings = standings(&self.member().roster());
        let is_up = |node: NodeId| standings.get(&node).is_some_and(|it| it.is_member());
        Ok(waiting(authorities, (&nodes, &said), is_up))
    }

    /// The nodes that trust an authority which was replaced, in words.
    ///
    /// # Errors
    /// Those of coordination.
    pub async fn still_trusting(&self, authorities: &Authorities) -> Result<Vec<String>> {
        if authorities.next.is_some() {
            return Ok(Vec::new());
        }
        let waiting = self.waiting(authorities).await?;
        let name =
            |line: &RotationLine| format!("node {} ({}, {})", line.node, line.name, line.state);
        Ok(waiting.lines.iter().map(name).collect())
    }
}

fn waiting(
    authorities: &Authorities,
    (nodes, said): (
        &BTreeMap<NodeId, Versioned<NodeFacts>>,
        &BTreeMap<NodeId, NodeSecurity>,
    ),
    is_up: impl Fn(NodeId) -> bool,
) -> Waiting {
    let lacking = lacking(authorities, nodes, said);
    let line = |(node, lack): &(NodeId, Lack)| RotationLine {
        node: node.0,
        name: nodes
            .get(node)
            .map_or_else(String::new, |it| it.value.name.clone()),
        state: if is_up(*node) { "up" } else { "down" }.into(),
        lacks: lack.to_string(),
    };
    let trusted: Vec<_> = authorities.trusted().map(|it| it.hash).collect();
    let said = lacking.iter().filter_map(|(node, _)| said.get(node));
    let old = said.flat_map(|said| &said.trusts);
    let old = old.filter(|hash| !trusted.contains(hash));
    let old: BTreeSet<_> = old.map(|hash| Fingerprint(*hash).to_string()).collect();
    // Those that trust it, or stop to, must start their member of etcd again.
    let starts_again = |(node, lack): &(NodeId, Lack)| {
        let facts = nodes.get(node).map(|it| &it.value);
        matches!(lack, Lack::Trust | Lack::Distrust)
            && is_up(*node)
            && facts.is_some_and(|it| it.etcd.is_some())
    };
    Waiting {
        lines: lacking.iter().map(line).collect(),
        old: old.into_iter().collect(),
        held_up: lacking
            .iter()
            .any(starts_again)
            .then(|| held_up(nodes, &is_up))
            .flatten(),
    }
}

/// Why no member of etcd can start again now: with it too few would be left. None does it then
/// ([`InCluster::check_may_start_again`]).
fn held_up(
    nodes: &BTreeMap<NodeId, Versioned<NodeFacts>>,
    is_up: impl Fn(NodeId) -> bool,
) -> Option<String> {
    let nodes = nodes.values().map(|it| &it.value);
    let voters: Vec<&NodeFacts> = nodes.filter(|it| it.etcd.is_some()).collect();
    let is_away = |it: &&&NodeFacts| it.is_barred || !is_up(it.node);
    let away: Vec<_> = voters.iter().filter(is_away).collect();
    let (all, needed) = (voters.len(), voters.len() / 2 + 1);
    if all < VOTERS_TO_SPARE || all - away.len() > needed {
        return None;
    }
    let remedy = |it: &&&NodeFacts| match it.is_barred {
        true => format!(
            "{0} was expelled: if it is gone for good, `shale node remove {0}`, which also takes its member out of etcd; \
             else `shale node unexpel {0}`, and `shale up` there if its daemon doesn't run",
            it.name
        ),
        false => format!(
            "{0} is down: `shale up` there, or `shale node remove {0}` if it is gone for good",
            it.name
        ),
    };
    let remedies: Vec<_> = away.iter().map(remedy).collect();
    let (text, away) = (remedies.join(". "), away.len());
    Some(format!(
        "it stands still: {away} of the {all} members of etcd are away, and each of the others must start again to believe \
         other authorities; meanwhile fewer than the {needed} that are needed would be left. {text}"
    ))
}

/// Why a rotation can't be finished.
pub(super) fn unfinished(waiting: &Waiting) -> String {
    let mut text = String::from("the old authority is still needed:");
    for (at, line) in waiting.lines.iter().take(NAMED_MAX).enumerate() {
        let comma = if at == 0 { "" } else { "," };
        let RotationLine {
            node,
            name,
            state,
            lacks,
        } = line;
        write!(text, "{comma} node {node} ({name}, {state}) {lacks}").expect("a string takes all");
    }
    if waiting.lines.len() > NAMED_MAX {
        let more = waiting.lines.len() - NAMED_MAX;
        write!(text, ", and {more} more").expect("a string takes all");
    }
    let remedy = waiting.held_up.as_deref().unwrap_or(
        "Start those that are down and wait some seconds; a node that doesn't come back is removed first (`shale node \
         remove`), or expelled, and then joins anew later",
    );
    format!("{text}. {remedy}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::member::rotation::tests::facts_of;
    use coordination::{AuthorityFact, NextAuthority};

    const OLD: [u8; 32] = [1; 32];
    const NEW: [u8; 32] = [2; 32];

    fn line(node: u32) -> RotationLine {
        RotationLine {
            node,
            name: format!("n{node}"),
            state: "down".into(),
            lacks: "doesn't trust the new authority yet".into(),
        }
    }

    fn authority(hash: [u8; 32]) -> AuthorityFact {
        AuthorityFact {
            hash,
            certificate: Vec::new(),
        }
    }

    /// So many quorum nodes, of which one was expelled, and one that is none.
    fn nodes(quorum: u32, barred: Option<u32>) -> BTreeMap<NodeId, Versioned<NodeFacts>> {
        let node = |number: u32| facts_of(number, number <= quorum, barred == Some(number));
        (1..=quorum + 1).map(node).collect()
    }

    #[test]
    fn nodes_that_are_waited_for_are_named() {
        let with = |lines: Vec<RotationLine>| Waiting {
            lines,
            old: Vec::new(),
            held_up: None,
        };
        let text = unfinished(&with(vec![line(3), line(5)]));
        let named = "node 3 (n3, down) doesn't trust the new authority yet, node 5 (n5, down)";
        assert!(text.contains(named), "{text}");
        assert!(text.contains("shale node remove"), "{text}");
        let text = unfinished(&with((1..=13).map(line).collect()));
        assert!(
            text.contains("n10, down") && !text.contains("n11"),
            "{text}"
        );
        assert!(text.contains("and 3 more"), "{text}");
    }

    /// Would be broken if people were told only which nodes are waited for, which are up and do nothing.
    #[test]
    fn a_quorum_node_that_is_away_holds_a_rotation_up_and_people_are_told_what_to_do() {
        let begun = Authorities {
            current: authority(OLD),
            next: Some(NextAuthority {
                authority: authority(NEW),
                certifies: false,
            }),
        };
        let said = BTreeMap::new();
        let held_up = |nodes: &BTreeMap<_, _>, down: &[u32]| {
            waiting(&begun, (nodes, &said), |node| !down.contains(&node.0)).held_up
        };
        assert_eq!(held_up(&nodes(3, None), &[]), None);
        let why = held_up(&nodes(3, Some(3)), &[]).unwrap();
        assert!(why.contains("1 of the 3 members of etcd are away"), "{why}");
        assert!(why.contains("`shale node remove n3`"), "{why}");
        assert!(why.contains("`shale node unexpel n3`"), "{why}");
        let why = held_up(&nodes(3, None), &[2]).unwrap();
        assert!(why.contains("n2 is down: `shale up` there"), "{why}");
        // Of five one can be away while another one starts again, and of one or two none is spared.
        assert_eq!(held_up(&nodes(5, Some(3)), &[]), None);
        let why = held_up(&nodes(5, Some(3)), &[4]).unwrap();
        assert!(
            why.contains("n3 was expelled") && why.contains("n4 is down"),
            "{why}"
        );
        assert_eq!(held_up(&nodes(2, Some(2)), &[]), None);
        // A node without a member of etcd holds up nothing but itself.
        assert_eq!(held_up(&nodes(3, None), &[4]), None);
        let waiting = waiting(&begun, (&nodes(3, Some(3)), &said), |_| true);
        let refused = unfinished(&waiting);
        assert!(refused.contains("`shale node remove n3`"), "{refused}");
    }

    #[test]
    fn an_authority_that_is_replaced_and_still_trusted_is_named() {
        let over = Authorities {
            current: authority(NEW),
            next: None,
        };
        let said = |trusts: &[[u8; 32]]| NodeSecurity {
            trusts: trusts.to_vec(),
            ..NodeSecurity::default()
        };
        let said = BTreeMap::from([
            (NodeId(1), said(&[NEW])),
            (NodeId(2), said(&[OLD, NEW])),
            (NodeId(3), said(&[OLD, NEW])),
        ]);
        let waiting = waiting(&over, (&nodes(3, None), &said), |node| node.0 != 3);
        assert_eq!(waiting.old, [Fingerprint(OLD).to_string()]);
        let lines = waiting.lines.iter().map(|it| (it.node, it.state.as_str()));
        assert_eq!(lines.collect::<Vec<_>>(), [(2, "up"), (3, "down")]);
    }
}
