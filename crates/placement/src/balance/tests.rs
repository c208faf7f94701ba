//! Balancing ends, makes uses equal as far as it can, and moves only to whole groups.

use super::*;
use crate::change::{add_nsd, new_pool};
use model::map::NsdEntry;
use model::{FailureGroupId, Scheme, SegmentId, SessionId};
use proptest::prelude::*;

const WIDE: Scheme = Scheme::Erasure { k: 4, m: 2 };

fn pool(scheme: Scheme, weights: &[u32]) -> PoolMap {
    let entries = weights.iter().zip(1..);
    let list = entries.map(|(weight, nsd)| NsdEntry {
        nsd: NsdId(nsd),
        failure_group: FailureGroupId(nsd),
        weight: *weight,
        state: NsdState::Active,
    });
    new_pool(scheme, list.collect(), 11).expect("a legal pool")
}

fn place(group: GroupId, scheme: Scheme, length: u32, skipped_slots: u32) -> SegmentPlace {
    SegmentPlace {
        segment: SegmentId {
            session: SessionId(1),
            counter: 1,
        },
        group,
        scheme,
        skipped_slots,
        missing: 0,
        length,
        crc: 0,
    }
}

fn uses(groups: &Groups, places: &[SegmentPlace]) -> Uses {
    let mut uses = Uses::new(groups.map());
    places.iter().for_each(|place| uses.add(groups, place));
    uses
}

/// Balances as a node does: segments are moved to the groups that the pick gives. Returns how many
/// moved.
fn balance(groups: &Groups, places: &mut [SegmentPlace]) -> usize {
    let mut moves = 0;
    loop {
        let before = moves;
        for at in 0..places.len() {
            let mut now = uses(groups, places);
            if now.unevenness() <= EVEN_BELOW {
                return moves;
            }
            let place = places[at];
            if now.move_if_better(groups, &place, at as u64) {
                // Where the rule counted it.
                let moved = groups.all().find(|group| {
                    places[at].group = *group;
                    uses(groups, places) == now
                });
                assert!(moved.is_some(), "no whole group holds what was counted");
                moves += 1;
            }
        }
        assert!(moves < 100 * places.len().max(1), "moving doesn't end");
        if moves == before {
            return moves;
        }
    }
}

/// Segments that were written while an NSD was away.
fn without(groups: &Groups, away: NsdId, count: usize, length: u32) -> Vec<SegmentPlace> {
    let usable: Vec<GroupId> = groups
        .all()
        .filter(|group| !groups.is_member(away, *group))
        .collect();
    let at = (0..count).map(|it| usable[it * 7 % usable.len()]);
    at.map(|group| place(group, WIDE, length, 0)).collect()
}

#[test]
fn an_nsd_that_was_away_gets_its_share() {
    let map = pool(WIDE, &[1; 8]);
    let groups = Groups::new(&map);
    let mut places = without(&groups, NsdId(3), 60, 1 << 20);
    assert_eq!(uses(&groups, &places).unevenness(), 1000);
    let moves = balance(&groups, &mut places);
    let left = uses(&groups, &places).unevenness();
    assert!(left <= 40, "{left} thousandths");
    // The one that was away holds a piece of three segments in four.
    assert!((40..=70).contains(&moves), "{moves} moves for 60 segments");
    assert_eq!(balance(&groups, &mut places), 0, "it is even");
}

#[test]
fn an_even_pool_moves_nothing() {
    let map = pool(WIDE, &[1; 8]);
    let groups = Groups::new(&map);
    let mut places: Vec<_> = groups
        .all()
        .map(|group| place(group, WIDE, 1 << 20, 0))
        .collect();
    assert!(uses(&groups, &places).unevenness() <= EVEN_BELOW);
    assert_eq!(balance(&groups, &mut places), 0);
}

#[test]
fn segments_with_pieces_on_an_nsd_that_leaves_stay() {
    let map = pool(Scheme::Replicate(2), &[1; 4]);
    let draining = crate::drain(&map, NsdId(1)).expect("three are left");
    let groups = Groups::new(&draining);
    // Counted where they are going.
    let held = uses(&groups, &[place(GroupId(0), Scheme::Replicate(2), 4096, 0)]);
    assert!(held.bytes().all(|(nsd, _)| nsd != NsdId(1)));
    assert_eq!(held.bytes().map(|(_, bytes)| bytes).sum::<u64>(), 8192);
}

#[test]
fn an_nsd_that_is_larger_than_its_groups_allow_ends_it() {
    // Each group has a slot on the large one, and it could hold more.
    let map = pool(Scheme::Replicate(2), &[100, 1, 1]);
    let groups = Groups::new(&map);
    let mut places: Vec<_> = groups
        .all()
        .map(|group| place(group, Scheme::Replicate(2), 1 << 20, 0))
        .collect();
    let moves = balance(&groups, &mut places);
    assert!(moves <= places.len(), "{moves}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever the sizes, the weights and the groups that segments are in.
    #[test]
    fn balancing_ends_and_never_makes_it_worse(
        weights in prop::collection::vec(1u32..4, 4..9),
        added in any::<bool>(),
        segments in prop::collection::vec((any::<u32>(), 1u32..(1 << 20)), 1..40),
    ) {
        let scheme = Scheme::Erasure { k: 2, m: 1 };
        let mut map = pool(scheme, &weights);
        if added {
            let entry = NsdEntry {
                nsd: NsdId(99),
                failure_group: FailureGroupId(99),
                weight: 2,
                state: NsdState::Active,
            };
            map = add_nsd(&map, entry).expect("new");
        }
        let groups = Groups::new(&map);
        let all: Vec<GroupId> = map.newest().all_groups().collect();
        let mut places: Vec<_> = segments
            .iter()
            .map(|(group, length)| place(all[*group as usize % all.len()], scheme, *length, 0))
            .collect();
        let before = uses(&groups, &places);
        balance(&groups, &mut places);
        let after = uses(&groups, &places);
        let total = |uses: &Uses| uses.bytes().map(|(_, bytes)| bytes).sum::<u64>();
        prop_assert_eq!(total(&before), total(&after));
        let square = |uses: &Uses| {
            let all = uses.nsds.values();
            all.map(|(weight, held)| u128::from(*held).pow(2) / u128::from(*weight)).sum::<u128>()
        };
        prop_assert!(square(&after) <= square(&before));
    }
}
