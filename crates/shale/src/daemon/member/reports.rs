//! What this node knows of the cluster, for `shale cluster show`, `shale node list`, `status` and `health`.

use super::InCluster;
use crate::admin::{
    ClusterStatus, ClusterView, FileSystemLine, LeaseRest, MemberLine, NodeLine, Waits,
};
use crate::daemon::health::{Absence, ClusterFacts, HomeFacts};
use coordination::Roster;
use model::member::{Cause, Standing};
use model::{NodeId, NodeRun, NsdId, Result};
use std::collections::BTreeMap;
use std::time::Duration;

/// The node that has an NSD, as people are told of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Home {
    /// Its number.
    pub node: NodeId,
    /// Its name; `None`: it was removed.
    pub name: Option<String>,
    /// Where its newest daemon listens; `None`: it never ran, or was removed.
    pub address: Option<String>,
}

impl InCluster {
    /// For `shale nsd list`: the node that has each NSD.
    pub fn homes(&self) -> BTreeMap<NsdId, Home> {
        homes(&self.member().roster())
    }

    /// For `shale status`.
    pub fn status(&self) -> ClusterStatus {
        let member = self.member();
        let roster = member.roster();
        ClusterStatus {
            cluster: self.cluster_text(),
            node: member.run().node.0,
            name: self.facts().name.clone(),
            incarnation: member.run().incarnation,
            address: address_of(&roster, member.run().node).unwrap_or_default(),
            is_manager: member.is_manager(),
            lease_milliseconds: self.lease_milliseconds(),
            members: members(&roster),
            cipher_list: self.policy().to_string(),
        }
    }

    /// For how long the node may serve still.
    fn lease_milliseconds(&self) -> u64 {
        let member = self.member();
        milliseconds(member.lease_ends().since(member.world().now()))
    }

    /// For `shale waiters`: how this node stands, and, if it is the manager, the others. Nothing waits.
    pub fn facts_for_waits(&self) -> Waits {
        let member = self.member();
        let leases = member.lease_rests().into_iter();
        let leases = leases.map(|(node, rest)| LeaseRest {
            node: node.0,
            milliseconds: milliseconds(rest),
        });
        Waits {
            node: Some(member.run().node.0),
            lease_milliseconds: Some(self.lease_milliseconds()),
            manager: manager_of(&member.roster()).map(|node| node.0),
            leases: leases.collect(),
            ..Waits::default()
        }
    }

    /// The members, as far as this node knows: coordination isn't asked.
    pub fn member_lines(&self) -> Vec<MemberLine> {
        let (roster, own) = (self.member().roster(), self.member().run().node);
        let members = standings(&roster)
            .into_iter()
            .filter(|(_, standing)| standing.is_member());
        let line = |node: NodeId| MemberLine {
            node: node.0,
            name: roster.names.get(&node).cloned().unwrap_or_default(),
            is_here: node == own,
        };
        members.map(|(node, _)| line(node)).collect()
    }

    /// The runs of the members, in the order of their nodes, as far as this node knows.
    pub fn member_runs(&self) -> Vec<NodeRun> {
        let roster = self.member().roster();
        let members = roster.membership.iter();
        let members = members.flat_map(|it| it.value.members.values());
        let members = members.filter(|it| it.standing.is_member());
        members.map(|it| it.run).collect()
    }

    /// Whether the cluster has ended a run for good: it was expelled, has left, a newer run of its node is a member, or its node
    /// was removed.
    pub fn has_ended(&self, run: NodeRun) -> bool {
        self.member().roster().end_of(run).is_some()
    }

    /// The nodes that were expelled, also by hand, and whose daemons may wait, as far as this node knows.
    pub fn expelled(&self) -> Vec<MemberLine> {
        let roster = self.member().roster();
        let expelled = standings(&roster).into_iter().filter(|(node, standing)| {
            let is_out = matches!(standing, Standing::Expelled(_)) || roster.barred.contains(node);
            is_out && roster.addresses.contains_key(node)
        });
        let line = |node: NodeId| MemberLine {
            node: node.0,
            name: roster.names.get(&node).cloned().unwrap_or_default(),
            is_here: false,
        };
        expelled.map(|(node, _)| line(node)).collect()
    }

    /// For `shale health`.
    pub fn facts_for_health(&self) -> ClusterFacts {
        let member = self.member();
        let roster = member.roster();
        let standings = roster
            .membership
            .iter()
            .flat_map(|it| it.value.members.values());
        let expelled = standings.filter_map(|it| match it.standing {
            // Somebody wanted that.
            Standing::Expelled(_) if roster.barred.contains(&it.run.node) => None,
            // Told apart, with another remedy.
            Standing::Expelled(Cause::Apart(_)) => None,
            // What the membership says of nodes that were removed stays.
            Standing::Expelled(cause) if roster.addresses.contains_key(&it.run.node) => {
                Some((it.run.node.0, cause_text(cause, &roster)))
            }
            _ => None,
        });
        let unowned = roster
            .shards
            .iter()
            .filter(|(_, it)| it.value.assigned.is_none());
        ClusterFacts {
            has_lease: member.lease_ends() > member.world().now(),
            has_manager: roster.manager.is_some(),
            expelled: expelled.collect(),
            homes: homes_of_others(&roster, member.run().node),
            apart: apart(&roster),
            unreached: member
                .unreached()
                .into_iter()
                .map(|(node, time)| (place_text(&roster, node), time.as_secs()))
                .collect(),
            waits_to_join: member.waits_to_join(),
            unowned: unowned.map(|(shard, _)| shard.0).collect(),
            etcd: self.etcd_seen(),
            certificate: Some(self.certificate_facts()),
            takes_plain: self.policy().takes_plain(),
            rotates: roster
                .authorities
                .as_ref()
                .is_some_and(|it| it.value.next.is_some()),
            still_trusting: self.known_still_trusting(),
            security_trouble: self.security_trouble(),
            stop: None,
        }
    }

    /// Why the cluster has expelled this run, as far as this node has heard.
    pub fn why_expelled(&self) -> Option<String> {
        let roster = self.member().roster();
        let members = &roster.membership.as_ref()?.value.members;
        let known = members.get(&self.member().run().node)?;
        match known.standing {
            Standing::Expelled(cause) if known.run == self.member().run() => {
                Some(cause_text(cause, &roster))
            }
            _ => None,
        }
    }

    /// `shale cluster show`.
    ///
    /// # Errors
    /// `Unavailable` if coordination doesn't answer.
    pub async fn view(&self) -> Result<ClusterView> {
        let member = self.member();
        let facts = member.coordination();
        let read = async { Ok((facts.nodes().await?, member.file_systems().await?)) };
        let (nodes, all) = self.read_soon(read).await?;
        let roster = member.roster();
        let line = |name: &model::FileSystemName, it: &node::FileSystem| FileSystemLine {
            name: name.to_string(),
            id: it.id.0,
            shard: it.shard.0,
            owner: roster.assigned(it.shard).map(|run| run.node.0),
        };
        Ok(ClusterView {
            cluster: self.cluster_text(),
            manager: manager_of(&roster).map(|node| node.0),
            coordination: self.endpoints(),
            nodes: nodes
                .values()
                .map(|it| node_line(&roster, &it.value))
                .collect(),
            file_systems: all.iter().map(|(name, it)| line(name, it)).collect(),
        })
    }
}

fn homes(roster: &Roster) -> BTreeMap<NsdId, Home> {
    let home = |node: NodeId| Home {
        node,
        name: roster.names.get(&node).cloned(),
        address: address_of(roster, node),
    };
    let all = roster.homes.iter();
    all.map(|(nsd, node)| (*nsd, home(*node))).collect()
}

/// The nodes that have NSDs which aren't this node's own, and how they stand.
fn homes_of_others(roster: &Roster, own: NodeId) -> BTreeMap<NsdId, HomeFacts> {
    let others = roster.homes.iter().filter(|(_, node)| **node != own);
    let facts = |node: NodeId| HomeFacts {
        node: node.0,
        name: roster.names.get(&node).cloned(),
        absence: absence(roster, node),
    };
    others.map(|(nsd, node)| (*nsd, facts(*node))).collect()
}

fn absence(roster: &Roster, node: NodeId) -> Option<Absence> {
    let membership = roster.membership.as_ref();
    let known = membership.and_then(|it| it.value.members.get(&node))?;
    match known.standing {
        Standing::In | Standing::Leaving => None,
        Standing::Left | Standing::Expelled(_) if roster.barred.contains(&node) => {
            Some(Absence::Barred)
        }
        Standing::Left => Some(Absence::Left),
        Standing::Expelled(cause) => Some(Absence::Expelled(cause_text(cause, roster))),
    }
}

/// One line of `shale node list`.
fn node_line(roster: &Roster, facts: &node::NodeFacts) -> NodeLine {
    let node = facts.node;
    let standing = roster.membership.as_ref();
    let standing = standing.and_then(|it| it.value.members.get(&node));
    let (state, cause) = match standing.map(|it| it.standing) {
        _ if facts.is_barred => ("barred", None),
        None => ("new", None),
        Some(Standing::In) => ("up", None),
        Some(Standing::Leaving) => ("leaving", None),
        Some(Standing::Left) => ("down", None),
        Some(Standing::Expelled(cause)) => ("expelled", Some(cause_text(cause, roster))),
    };
    let owns = |it: &coordination::ShardRecord| it.assigned.is_some_and(|run| run.node == node);
    let shards = roster.shards.iter().filter(|(_, it)| owns(&it.value));
    let nsds = roster.homes.iter().filter(|(_, home)| **home == node);
    NodeLine {
        node: node.0,
        name: facts.name.clone(),
        class: facts.class.clone(),
        quorum: facts.is_quorum,
        authority: facts.has_authority,
        etcd: facts.etcd.clone(),
        state: state.into(),
        cause,
        address: address_of(roster, node),
        manager: manager_of(roster) == Some(node),
        shards: shards.map(|(shard, _)| shard.0).collect(),
        nsds: nsds.map(|(nsd, _)| nsd.0).collect(),
    }
}

/// What is shown of why a run was expelled.
pub fn cause_text(cause: Cause, roster: &Roster) -> String {
    match cause {
        Cause::Refused => "its daemon has ended".into(),
        Cause::NewerRun => "its daemon started again".into(),
        Cause::Silent => "it was silent until its lease ended".into(),
        Cause::Apart(other) => {
            let other = place_text(roster, other);
            format!("it and {other} couldn't reach each other, and one of both had to go")
        }
    }
}

/// The nodes that were expelled because they and another one couldn't reach each other, and that other one.
fn apart(roster: &Roster) -> Vec<(String, String)> {
    let members = roster.membership.iter();
    let members = members.flat_map(|it| it.value.members.values());
    let apart = members.filter_map(|it| match it.standing {
        Standing::Expelled(Cause::Apart(other)) => {
            let node = it.run.node;
            let is_known = roster.addresses.contains_key(&node) && !roster.barred.contains(&node);
            is_known.then(|| (place_text(roster, node), place_text(roster, other)))
        }
        _ => None,
    });
    apart.collect()
}

/// A node with its name and where it listens, as far as that is known.
fn place_text(roster: &Roster, node: NodeId) -> String {
    let name = roster.names.get(&node).cloned();
    let known: Vec<_> = name.into_iter().chain(address_of(roster, node)).collect();
    match known.is_empty() {
        true => format!("node {node}"),
        false => format!("node {node} ({})", known.join(", ")),
    }
}

/// The standing of each node's newest run.
pub fn standings(roster: &Roster) -> BTreeMap<NodeId, Standing> {
    let members = roster
        .membership
        .iter()
        .flat_map(|it| it.value.members.iter());
    members.map(|(node, it)| (*node, it.standing)).collect()
}

fn members(roster: &Roster) -> u64 {
    let standings = standings(roster);
    standings.values().filter(|it| it.is_member()).count() as u64
}

/// The node that is the manager.
pub fn manager_of(roster: &Roster) -> Option<NodeId> {
    roster.manager.as_ref().map(|it| it.value.run.node)
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn address_of(roster: &Roster, node: NodeId) -> Option<String> {
    let known = roster.addresses.get(&node)?;
    Some(known.address.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use coordination::{NodeAddress, Versioned};
    use model::member::{Member, Membership};

    #[test]
    fn a_node_that_has_nsds_is_absent_when_it_is_no_member() {
        let member = |node, standing| model::member::Member {
            run: NodeRun {
                node: NodeId(node),
                incarnation: 1,
            },
            may_own: true,
            standing,
            nsds_away: true,
        };
        let standings = [
            (1, Standing::In),
            (2, Standing::In),
            (3, Standing::Left),
            (4, Standing::Expelled(Cause::Refused)),
            (5, Standing::Expelled(Cause::Silent)),
        ];
        let members = standings.map(|(node, standing)| (NodeId(node), member(node, standing)));
        let membership = model::member::Membership {
            members: members.into(),
            ..Default::default()
        };
        let roster = Roster {
            homes: (1..=6).map(|nsd| (NsdId(nsd), NodeId(nsd))).collect(),
            names: BTreeMap::from([(NodeId(4), "n4".into())]),
            barred: [NodeId(5)].into(),
            membership: Some(coordination::Versioned {
                value: membership,
                version: 1,
            }),
            ..Roster::default()
        };
        let homes = homes_of_others(&roster, NodeId(1));
        let expelled = Absence::Expelled("its daemon has ended".into());
        let expected = [
            (2, None),
            (3, Some(Absence::Left)),
            (4, Some(expelled)),
            (5, Some(Absence::Barred)),
            // It joins.
            (6, None),
        ];
        let absences = homes.iter().map(|(nsd, it)| (nsd.0, it.absence.clone()));
        assert_eq!(absences.collect::<Vec<_>>(), expected);
        assert_eq!(homes[&NsdId(4)].name.as_deref(), Some("n4"));
    }

    #[test]
    fn the_home_of_an_nsd_has_the_name_and_the_address_of_its_node() {
        let run = NodeRun {
            node: NodeId(2),
            incarnation: 5,
        };
        let address = "10.0.0.2:7311".parse().unwrap();
        let roster = Roster {
            addresses: BTreeMap::from([(NodeId(2), NodeAddress { run, address })]),
            names: BTreeMap::from([(NodeId(2), "n2".into())]),
            homes: BTreeMap::from([(NsdId(1), NodeId(2)), (NsdId(4), NodeId(3))]),
            ..Roster::default()
        };
        let known = Home {
            node: NodeId(2),
            name: Some("n2".into()),
            address: Some("10.0.0.2:7311".into()),
        };
        // Node 3 was removed after it had an NSD that is lost.
        let removed = Home {
            node: NodeId(3),
            name: None,
            address: None,
        };
        let expected = BTreeMap::from([(NsdId(1), known), (NsdId(4), removed)]);
        assert_eq!(homes(&roster), expected);
    }

    #[test]
    fn two_nodes_that_could_not_reach_each_other_are_both_named() {
        let run = |node| NodeRun {
            node: NodeId(node),
            incarnation: 5,
        };
        let listens = |node| NodeAddress {
            run: run(node),
            address: format!("10.0.0.{node}:7311").parse().unwrap(),
        };
        let gone = Member {
            run: run(2),
            may_own: true,
            standing: Standing::Expelled(Cause::Apart(NodeId(3))),
            nsds_away: true,
        };
        let membership = Membership {
            members: BTreeMap::from([(NodeId(2), gone)]),
            ..Membership::default()
        };
        let mut roster = Roster {
            addresses: [2, 3].map(|it| (NodeId(it), listens(it))).into(),
            names: BTreeMap::from([(NodeId(2), "n2".into())]),
            membership: Some(Versioned {
                value: membership,
                version: 1,
            }),
            ..Roster::default()
        };
        let (two, three) = ("node 2 (n2, 10.0.0.2:7311)", "node 3 (10.0.0.3:7311)");
        assert_eq!(apart(&roster), [(two.to_owned(), three.to_owned())]);
        let cause = cause_text(Cause::Apart(NodeId(3)), &roster);
        assert!(cause.contains(three), "{cause}");
        assert!(cause_text(Cause::Apart(NodeId(9)), &roster).contains("node 9 couldn't"));
        // Somebody wants it to stay away.
        roster.barred.insert(NodeId(2));
        assert!(apart(&roster).is_empty());
    }
}
