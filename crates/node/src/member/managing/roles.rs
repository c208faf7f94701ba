//! What nodes are for the cluster beside owners, as the manager's rules want it.

use coordination::Roster;
use manager::Roles;
use model::map::NsdState;

/// As the roster says.
pub(super) fn roles_of(roster: &Roster) -> Roles {
    let mut roles = Roles {
        quorum: roster.quorum.clone(),
        barred: roster.barred.clone(),
        removed: roster.removed.clone(),
        ..Roles::default()
    };
    let pools = roster.pools.values();
    let nsds = pools.clone().flat_map(|map| &map.nsds);
    for entry in nsds.filter(|entry| entry.state != NsdState::Lost) {
        if let Some(home) = roster.homes.get(&entry.nsd) {
            let groups = roles.servers.entry(*home).or_default();
            groups.insert(entry.failure_group);
        }
    }
    let generations = pools.flat_map(|map| &map.generations);
    let tolerances = generations.map(|generation| generation.scheme.tolerance());
    roles.tolerance = tolerances.min().unwrap_or(0);
    roles
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::map::NsdEntry;
    use model::{FailureGroupId, NodeId, NsdId, Scheme};
    use std::collections::{BTreeMap, BTreeSet};

    #[test]
    fn a_node_serves_nsds_as_long_as_one_of_them_is_in_use() {
        let entry = |nsd| NsdEntry {
            nsd: NsdId(nsd),
            failure_group: FailureGroupId(nsd / 2),
            weight: 1,
            state: NsdState::Active,
        };
        let scheme = Scheme::Erasure { k: 2, m: 1 };
        let mut map = placement::new_pool(scheme, (2..=7).map(entry).collect(), 1).unwrap();
        map.nsds[0].state = NsdState::Lost;
        map.nsds[1].state = NsdState::Lost;
        map.nsds[2].state = NsdState::Lost;
        map.nsds[4].state = NsdState::Draining;
        let home = |nsd| (NsdId(nsd), NodeId(nsd / 2));
        let roster = Roster {
            pools: BTreeMap::from([("data".into(), map)]),
            homes: (2..=7).map(home).collect(),
            quorum: BTreeSet::from([NodeId(9)]),
            barred: BTreeSet::from([NodeId(8)]),
            removed: BTreeSet::from([NodeId(7)]),
            ..Roster::default()
        };
        // Node 1 has none in use.
        let server = |node| (NodeId(node), BTreeSet::from([FailureGroupId(node)]));
        let expected = Roles {
            quorum: BTreeSet::from([NodeId(9)]),
            servers: BTreeMap::from([2, 3].map(server)),
            tolerance: 1,
            barred: BTreeSet::from([NodeId(8)]),
            removed: BTreeSet::from([NodeId(7)]),
        };
        assert_eq!(roles_of(&roster), expected);
        assert_eq!(roles_of(&Roster::default()), Roles::default());
    }
}
