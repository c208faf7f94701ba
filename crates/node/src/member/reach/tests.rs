//! Which nodes a run needs.

use super::*;
use coordination::{ShardRecord, Versioned};
use model::map::{NsdEntry, PoolMap};
use model::member::{Member, Membership};
use model::{EntryNumber, FailureGroupId, MapEpoch, NsdId, SessionId, ShardEpoch, ShardId};

fn run(node: u32) -> NodeRun {
    NodeRun {
        node: NodeId(node),
        incarnation: 4,
    }
}

fn versioned<T>(value: T) -> Versioned<T> {
    Versioned { value, version: 1 }
}

/// Members 1 to 6; the first has the only shard, the second and the third an NSD each.
fn roster() -> Roster {
    let member = |node| Member {
        run: run(node),
        may_own: true,
        standing: Standing::In,
        nsds_away: false,
    };
    let members = (1..=6).map(|node| (NodeId(node), member(node)));
    let shard = ShardRecord {
        shard: ShardId(0),
        families: Vec::new(),
        assigned: Some(run(1)),
        epoch: ShardEpoch(1),
        owner: SessionId(1),
        view: Vec::new(),
        first_entry: EntryNumber(0),
        closed: Vec::new(),
        ended: Vec::new(),
        trimmed_below: EntryNumber(0),
        marker: 0,
    };
    let nsd = |nsd, state| NsdEntry {
        nsd: NsdId(nsd),
        failure_group: FailureGroupId(nsd),
        weight: 1,
        state,
    };
    let map = PoolMap {
        epoch: MapEpoch(1),
        nsds: vec![
            nsd(2, NsdState::Active),
            nsd(3, NsdState::Draining),
            nsd(4, NsdState::Lost),
        ],
        names: Vec::new(),
        generations: Vec::new(),
    };
    Roster {
        membership: Some(versioned(Membership {
            members: members.collect(),
            ..Membership::default()
        })),
        shards: BTreeMap::from([(ShardId(0), versioned(shard))]),
        pools: BTreeMap::from([("data".into(), map)]),
        homes: BTreeMap::from([2, 3, 4].map(|it| (NsdId(it), NodeId(it)))),
        ..Roster::default()
    }
}

fn stands(roster: &mut Roster, node: u32, standing: Standing) {
    let members = &mut roster.membership.as_mut().unwrap().value.members;
    members.get_mut(&NodeId(node)).unwrap().standing = standing;
}

fn nodes(needed: &BTreeMap<NodeId, NodeRun>) -> Vec<u32> {
    assert!(needed.iter().all(|(node, run)| run.node == *node));
    needed.keys().map(|node| node.0).collect()
}

#[test]
fn owners_and_servers_that_are_members_are_needed_and_who_the_run_before_went_for() {
    let mut roster = roster();
    assert_eq!(nodes(&needed(&roster, NodeId(6))), [1, 2, 3]);
    assert_eq!(nodes(&needed(&roster, NodeId(2))), [1, 3]);
    stands(&mut roster, 3, Standing::Leaving);
    assert_eq!(nodes(&needed(&roster, NodeId(6))), [1, 2, 3]);
    stands(&mut roster, 3, Standing::Expelled(Cause::Silent));
    stands(&mut roster, 1, Standing::Left);
    assert_eq!(nodes(&needed(&roster, NodeId(6))), [2]);
    assert_eq!(apart_from(&roster, NodeId(3)), None);
    // It serves nothing, and has to be reached all the same.
    stands(&mut roster, 6, Standing::Expelled(Cause::Apart(NodeId(5))));
    assert_eq!(apart_from(&roster, NodeId(6)), Some(NodeId(5)));
    assert_eq!(nodes(&needed(&roster, NodeId(6))), [2, 5]);
    assert_eq!(nodes(&needed(&roster, NodeId(4))), [2]);
    stands(&mut roster, 5, Standing::Expelled(Cause::Refused));
    assert_eq!(nodes(&needed(&roster, NodeId(6))), [2]);
    assert!(needed(&Roster::default(), NodeId(6)).is_empty());
}
