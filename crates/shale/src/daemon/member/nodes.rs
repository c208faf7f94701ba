//! `shale node …` and `shale fs create`: changes of the cluster that any node makes in coordination.

use super::joining::etcd_settings;
use super::reports::standings;
use super::{InCluster, etcd_members};
use crate::admin::{ChangeNode, FileSystemLine};
use crate::daemon::config::ClusterConfig;
use coordination::etcd::Etcd;
use coordination::{Coordination, RootOwner, Roster, Versioned};
use model::map::NsdState;
use model::{Error, ErrorKind, FileSystemName, NodeId, Result};
use node::NodeFacts;
use std::collections::BTreeMap;

/// The nodes, as coordination has them.
type Nodes = BTreeMap<NodeId, Versioned<NodeFacts>>;

impl InCluster {
    /// `shale node expel`, `unexpel` and `class`.
    ///
    /// # Errors
    /// `NotFound`; `InvalidArgument`; `Busy`: the node can't be expelled, because coordination would end with it; those of
    /// coordination.
    pub async fn change_node(&self, node: u32, change: &ChangeNode) -> Result<()> {
        let node = NodeId(node);
        if change.barred == Some(true) && node == self.member().run().node {
            let text =
                "a node isn't expelled by itself: ask another one, or stop it with `shale down`";
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        if let Some(class) = &change.class {
            check_class(class)?;
        }
        let facts = self.member().coordination();
        let before = facts.nodes().await?;
        let is_barred = before.get(&node).is_some_and(|it| it.value.is_barred);
        let expels = change.barred == Some(true) && !is_barred;
        if expels {
            let checked = self.check_can_do_without(node).await;
            checked.map_err(|error| error.while_doing(format!("expelling node {node}")))?;
        }
        let changed = facts.change_node(node, |it| {
            if let Some(class) = &change.class {
                it.class.clone_from(class);
            }
            it.is_barred = change.barred.unwrap_or(it.is_barred);
            Ok(())
        });
        changed.await?;
        if !expels {
            return Ok(());
        }
        // Whoever expels another one now sees this one, or is seen here.
        let Err(error) = check_expelled_alone(node, &before, &facts.nodes().await?) else {
            return Ok(());
        };
        let let_in = facts.change_node(node, |it| {
            it.is_barred = false;
            Ok(())
        });
        let let_in = let_in.await;
        let_in.map_err(|it| it.while_doing(format!("letting node {node} in again ({error})")))?;
        Err(error)
    }

    /// `shale node remove`: forgets a node that is gone, or that never ran, and removes its member of etcd.
    ///
    /// # Errors
    /// `NotFound`: there is no such node. `InvalidArgument`: it is up, or has what the cluster needs. Those of coordination and
    /// etcd: remove it again; its daemon doesn't start meanwhile.
    pub async fn remove_node(&self, node: u32) -> Result<()> {
        let node = NodeId(node);
        let (member, own) = (self.member(), self.member().run().node);
        let facts = member.coordination();
        let known = check_removal_now(facts, node, own).await?;
        let bar = |barred: bool| {
            facts.change_node(node, move |it| {
                it.is_barred = barred;
                Ok(())
            })
        };
        // No run of it joins from here on, ...
        bar(true).await?;
        // ... but one may have joined until now.
        if let Err(error) = check_removal_now(facts, node, own).await {
            bar(known.is_barred).await?;
            return Err(error);
        }
        if known.is_quorum {
            let world = member.world();
            let cluster = ClusterConfig {
                coordination: self.endpoints(),
                ..self.cluster().clone()
            };
            let settings = etcd_settings(world, &cluster, &self.credentials())?;
            let (etcd, url) = (
                Etcd::new(world, &settings)?,
                etcd_members::peer_url(known.address)?,
            );
            let removed = etcd_members::remove(world, &etcd, &known.name, &url).await;
            removed.map_err(|error| {
                let text = format!(
                    "{error}; node {node} can't start until it is removed or let in (`shale node unexpel {node}`): try again \
                     when most of the quorum nodes are up"
                );
                Error::new(error.kind(), text)
            })?;
        }
        facts.forget_node(node).await?;
        tracing::info!(%node, name = %known.name, "the node was removed");
        Ok(())
    }

    /// `shale node drain`: the NSDs that are emptied; none if the node is empty.
    ///
    /// # Errors
    /// As [`node::Member::drain_node`].
    pub async fn drain(&self, node: u32) -> Result<Vec<u32>> {
        let nsds = self.member().drain_node(NodeId(node)).await?;
        Ok(nsds.into_iter().map(|nsd| nsd.0).collect())
    }

    /// `shale node drain --cancel`: the NSDs that stay in use.
    ///
    /// # Errors
    /// As [`node::Member::cancel_drain_of_node`].
    pub async fn cancel_drain(&self, node: u32) -> Result<Vec<u32>> {
        let nsds = self.member().cancel_drain_of_node(NodeId(node)).await?;
        Ok(nsds.into_iter().map(|nsd| nsd.0).collect())
    }

    /// `shale fs create`: the root directory is the daemon's user's.
    ///
    /// # Errors
    /// As [`node::Member::create_file_system`].
    pub async fn create_file_system(&self, name: &str) -> Result<FileSystemLine> {
        let name: FileSystemName = name.parse()?;
        // Were it root's, an ordinary user whose daemon this is could create nothing in it.
        let owner = RootOwner {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        };
        let made = self.member().create_file_system_for(&name, owner).await?;
        Ok(FileSystemLine {
            name: name.to_string(),
            id: made.id.0,
            shard: made.shard.0,
            owner: None,
        })
    }
}

/// Whether no other quorum node was expelled while this one was: each was done without only as the other one stayed.
fn check_expelled_alone(node: NodeId, before: &Nodes, now: &Nodes) -> Result<()> {
    let runs_etcd = |it: &NodeFacts| it.etcd.is_some();
    let was_barred = |node: NodeId| before.get(&node).is_some_and(|it| it.value.is_barred);
    let barred = now.values().map(|it| &it.value).filter(|it| it.is_barred);
    let mut others = barred.filter(|it| it.node != node && runs_etcd(it) && !was_barred(it.node));
    let own = now.get(&node).is_some_and(|it| runs_etcd(&it.value));
    let Some(other) = others.next().filter(|_| own) else {
        return Ok(());
    };
    let text = format!(
        "node {}, which runs a member of the cluster's etcd too, was expelled at the same time as node {node}: see which of both \
         still is (`shale node list`), and expel again",
        other.node
    );
    Err(Error::new(ErrorKind::Busy, text))
}

/// Whether a node can be removed, as coordination knows it now.
async fn check_removal_now(facts: &Coordination, node: NodeId, own: NodeId) -> Result<NodeFacts> {
    let nodes = facts.nodes().await?;
    let Some(known) = nodes.get(&node) else {
        let text = format!("the cluster has no node {node}; `shale node list` shows its nodes");
        return Err(Error::new(ErrorKind::NotFound, text));
    };
    let others = nodes.values().map(|it| &it.value);
    let others = others.filter(|it| it.node != node);
    let has_authority = others.clone().any(|it| it.has_authority);
    // What this node has heard of the others may be old.
    let roster = Roster::read(facts).await?;
    check_removal(&known.value, own, has_authority, &roster)?;
    Ok(known.value.clone())
}

/// The rule. `others_admit`: another node has the key of the cluster's authority.
fn check_removal(
    known: &NodeFacts,
    own: NodeId,
    others_admit: bool,
    roster: &Roster,
) -> Result<()> {
    let (node, name) = (known.node, &known.name);
    let refused = |text: String| Err(Error::new(ErrorKind::InvalidArgument, text));
    if node == own {
        return refused(
            "a node isn't removed by itself: end it with `shale down`, and ask another one".into(),
        );
    }
    if standings(roster)
        .get(&node)
        .is_some_and(|it| it.is_member())
    {
        return refused(format!(
            "node {node} is up: end it with `shale down` there, or with `shale node expel {name}`, and remove it then"
        ));
    }
    let is_its = |nsd| roster.homes.get(&nsd) == Some(&node);
    let all = roster.pools.values().flat_map(|map| &map.nsds);
    let in_use = all.filter(|it| it.state != NsdState::Lost && is_its(it.nsd));
    let in_use: Vec<_> = in_use.map(|it| it.nsd.to_string()).collect();
    if !in_use.is_empty() {
        return refused(format!(
            "node {node} has NSDs in use ({}): `shale node drain {name}` empties them, and `shale nsd list` calls them lost \
             then; if they are gone for good, `shale nsd remove NSD --gone` for each",
            in_use.join(", ")
        ));
    }
    let owns = |it: &coordination::ShardRecord| it.assigned.is_some_and(|run| run.node == node);
    if roster.shards.values().any(|it| owns(&it.value)) {
        let text = format!(
            "node {node} still has shards, which others take over; try again in some seconds"
        );
        return Err(Error::new(ErrorKind::Busy, text));
    }
    if known.has_authority && !others_admit {
        return refused(format!(
            "only node {node} has the key of the cluster's authority: without it no machine could join any more. Make another \
             node that has it first: `shale cluster join-token --quorum`"
        ));
    }
    Ok(())
}

/// What a class may be called.
pub(super) fn check_class(class: &str) -> Result<()> {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if !class.is_empty() && class.len() <= 32 && class.chars().all(is_fine) {
        return Ok(());
    }
    let text = format!("a node class has 1 to 32 letters, digits, '-' or '_', not {class:?}");
    Err(Error::new(ErrorKind::InvalidArgument, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use coordination::ShardRecord;
    use model::map::{NsdEntry, PoolMap};
    use model::member::{Cause, Member, Membership, Standing};
    use model::{FailureGroupId, MapEpoch, NodeRun, NsdId, ShardId};

    const GONE: NodeId = NodeId(2);

    fn facts(has_authority: bool) -> NodeFacts {
        NodeFacts {
            node: GONE,
            name: "n2".into(),
            class: "default".into(),
            is_quorum: has_authority,
            has_authority,
            is_barred: false,
            etcd: None,
            address: "10.0.0.2:7311".parse().unwrap(),
            key: [2; 32],
        }
    }

    fn run() -> NodeRun {
        NodeRun {
            node: GONE,
            incarnation: 3,
        }
    }

    fn standing(standing: Standing) -> Roster {
        let member = Member {
            run: run(),
            may_own: true,
            standing,
            nsds_away: true,
        };
        let membership = Membership {
            members: BTreeMap::from([(GONE, member)]),
            ..Membership::default()
        };
        Roster {
            membership: Some(Versioned {
                value: membership,
                version: 1,
            }),
            ..Roster::default()
        }
    }

    fn with_nsd(state: NsdState, home: NodeId) -> Roster {
        let entry = NsdEntry {
            nsd: NsdId(7),
            failure_group: FailureGroupId(7),
            weight: 1,
            state,
        };
        let map = PoolMap {
            epoch: MapEpoch(1),
            nsds: vec![entry],
            names: Vec::new(),
            generations: Vec::new(),
        };
        Roster {
            pools: BTreeMap::from([("data".into(), map)]),
            homes: BTreeMap::from([(NsdId(7), home)]),
            ..standing(Standing::Left)
        }
    }

    /// Would be broken if of three quorum nodes two could be expelled at once: both were checked when none was expelled yet.
    #[test]
    fn of_two_quorum_nodes_that_are_expelled_at_once_one_is_let_in_again() {
        let nodes = |barred: &[u32], with_etcd: &[u32]| {
            let node = |number: u32| {
                let etcd = format!("https://10.0.0.{number}:7312");
                let value = NodeFacts {
                    node: NodeId(number),
                    is_barred: barred.contains(&number),
                    etcd: with_etcd.contains(&number).then_some(etcd),
                    ..facts(true)
                };
                (NodeId(number), Versioned { value, version: 1 })
            };
            (1..=4).map(node).collect::<Nodes>()
        };
        let quorum = [1, 2, 3];
        let before = nodes(&[], &quorum);
        let check = |before: &Nodes, now: &Nodes| check_expelled_alone(GONE, before, now);
        check(&before, &nodes(&[2], &quorum)).unwrap();
        let refused = check(&before, &nodes(&[2, 3], &quorum)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Busy);
        let refused = refused.to_string();
        assert!(refused.contains("node 3, which runs"), "{refused}");
        // It was when they were counted; one of both has nothing to do with etcd.
        check(&nodes(&[3], &quorum), &nodes(&[2, 3], &quorum)).unwrap();
        check(&before, &nodes(&[2, 4], &quorum)).unwrap();
        let without_own = [1, 3];
        let before = nodes(&[], &without_own);
        check(&before, &nodes(&[2, 3], &without_own)).unwrap();
    }

    #[test]
    fn only_a_node_that_is_gone_and_has_nothing_that_is_needed_is_removed() {
        let check = |roster: &Roster| check_removal(&facts(false), NodeId(1), true, roster);
        // It never ran; it left; it was expelled; others have NSDs, and its own are out of use.
        check(&Roster::default()).unwrap();
        check(&standing(Standing::Left)).unwrap();
        check(&standing(Standing::Expelled(Cause::Silent))).unwrap();
        check(&with_nsd(NsdState::Active, NodeId(1))).unwrap();
        check(&with_nsd(NsdState::Lost, GONE)).unwrap();
        let refused = |result: Result<()>, part: &str| {
            let text = result.unwrap_err().to_string();
            assert!(text.contains(part), "{text}");
        };
        refused(check(&standing(Standing::In)), "is up");
        refused(check(&standing(Standing::Leaving)), "is up");
        for state in [NsdState::Active, NsdState::Draining] {
            refused(check(&with_nsd(state, GONE)), "NSDs in use (7)");
        }
        let mut owner = standing(Standing::Expelled(Cause::Silent));
        let record = ShardRecord {
            shard: ShardId(0),
            families: Vec::new(),
            assigned: Some(run()),
            epoch: model::ShardEpoch(1),
            owner: model::SessionId(1),
            view: Vec::new(),
            first_entry: model::EntryNumber(0),
            closed: Vec::new(),
            ended: Vec::new(),
            trimmed_below: model::EntryNumber(0),
            marker: 0,
        };
        let record = Versioned {
            value: record,
            version: 1,
        };
        owner.shards.insert(ShardId(0), record);
        refused(check(&owner), "still has shards");
        let nothing = Roster::default();
        refused(
            check_removal(&facts(false), GONE, true, &nothing),
            "isn't removed by itself",
        );
        refused(
            check_removal(&facts(true), NodeId(1), false, &nothing),
            "key of the cluster's authority",
        );
        check_removal(&facts(true), NodeId(1), true, &nothing).unwrap();
    }
}
