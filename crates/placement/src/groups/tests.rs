//! Groups are balanced, separated and stable, and picks spread over them.

use super::*;
use crate::change::{add_nsd, finish_moves, mark_lost, new_pool};
use crate::pick::{Availability, Placement};
use model::{Scheme, limits};

fn entry(nsd: u32, failure_group: u32, weight: u32) -> NsdEntry {
    NsdEntry {
        nsd: NsdId(nsd),
        failure_group: FailureGroupId(failure_group),
        weight,
        state: NsdState::Active,
    }
}

fn pool(scheme: Scheme, nsds: u32, failure_groups: u32) -> Groups {
    let list = (1..=nsds)
        .map(|nsd| entry(nsd, nsd % failure_groups, 100))
        .collect();
    Groups::new(&new_pool(scheme, list, 42).expect("a legal pool"))
}

const WIDE: Scheme = Scheme::Erasure { k: 4, m: 2 };
const FREE: Availability = Availability {
    writable: true,
    free: 60_000,
    put: 0,
};
const DEAD: Availability = Availability {
    writable: false,
    free: 0,
    put: 0,
};

#[test]
fn every_nsd_gets_its_share_of_slots() {
    for (nsds, scheme) in [
        (1, Scheme::Replicate(1)),
        (4, Scheme::Replicate(1)),
        (5, Scheme::Replicate(3)),
        (6, WIDE),
        (9, WIDE),
        (100, WIDE),
        (23, Scheme::Erasure { k: 16, m: 3 }),
    ] {
        let groups = pool(scheme, nsds, nsds);
        assert_eq!(groups.count(), 32 * nsds);
        let load = groups.load();
        let fair = 32 * scheme.width() as u64;
        assert!(
            load.values().all(|slots| slots.abs_diff(fair) <= 2),
            "{nsds} NSDs, {scheme}: {load:?}"
        );
    }
}

#[test]
fn slots_follow_the_weights() {
    let list = (1..=12)
        .map(|nsd| entry(nsd, nsd, if nsd <= 4 { 200 } else { 100 }))
        .collect();
    let load = Groups::new(&new_pool(Scheme::Replicate(2), list, 1).expect("legal")).load();
    // 384 groups of two: 768 slots shared by a total weight of 1,600.
    assert!(
        (1..=4).all(|nsd| load[&NsdId(nsd)].abs_diff(96) <= 2),
        "{load:?}"
    );
    assert!(
        (5..=12).all(|nsd| load[&NsdId(nsd)].abs_diff(48) <= 2),
        "{load:?}"
    );
}

#[test]
fn pieces_of_a_group_are_in_different_failure_groups() {
    let groups = pool(WIDE, 24, 7);
    for group in groups.all() {
        let members = groups
            .members(group)
            .iter()
            .map(|slot| groups.map().nsd(slot.current).expect("listed"));
        let failure_groups: BTreeSet<_> = members.map(|entry| entry.failure_group).collect();
        assert_eq!(failure_groups.len(), 6);
    }
}

#[test]
fn every_nsd_shares_groups_with_every_other() {
    let groups = pool(WIDE, 20, 20);
    let mut pairs = BTreeSet::new();
    for group in groups.all() {
        let members: Vec<_> = groups
            .members(group)
            .iter()
            .map(|slot| slot.current)
            .collect();
        pairs.extend(
            members
                .iter()
                .flat_map(|a| members.iter().map(|b| (*a, *b))),
        );
    }
    assert_eq!(pairs.len(), 400);
}

#[test]
fn every_nsd_holds_every_kind_of_piece() {
    let groups = pool(WIDE, 6, 6);
    let mut counts = BTreeMap::new();
    for group in groups.all() {
        for (slot, members) in groups.members(group).iter().enumerate() {
            *counts.entry((members.current, slot)).or_insert(0) += 1;
        }
    }
    assert!(
        counts.len() == 36 && counts.values().all(|count| (12..=52).contains(count)),
        "{counts:?}"
    );
}

/// The draw is part of the format: stored maps contain only its seed. It must never change.
#[test]
fn the_groups_of_a_seed_never_change() {
    let groups = pool(Scheme::Replicate(3), 7, 7);
    let first: Vec<u32> = (0..4)
        .flat_map(|group| {
            groups
                .members(GroupId(group))
                .iter()
                .map(|slot| slot.current.0)
        })
        .collect();
    assert_eq!(first, GOLDEN);
}

const GOLDEN: [u32; 12] = [2, 7, 5, 4, 1, 3, 2, 6, 3, 7, 4, 6];

#[test]
fn a_pool_with_too_few_failure_groups_has_empty_slots() {
    let groups = pool(WIDE, 3, 3);
    assert!(
        groups
            .members(GroupId(0))
            .iter()
            .filter(|slot| slot.current == NsdId::NONE)
            .count()
            == 3
    );
    let placement = groups
        .pick(0, 1 << 20, &|_| FREE)
        .expect("three are enough for 1 + 2");
    assert_eq!(
        (placement.scheme, placement.skipped_slots.count_ones()),
        (Scheme::Replicate(3), 3)
    );
}

#[test]
fn successive_picks_use_all_nsds_evenly() {
    let groups = pool(Scheme::Replicate(1), 8, 8);
    let mut load = BTreeMap::new();
    for counter in 0..64 {
        let placement = groups
            .pick(counter, 1 << 20, &|_| FREE)
            .expect("all are free");
        *load
            .entry(groups.members(placement.group)[0].current)
            .or_insert(0) += 1;
    }
    assert!(
        load.len() == 8 && load.values().all(|count| (7..=9).contains(count)),
        "{load:?}"
    );
}

#[test]
fn an_empty_nsd_is_picked_more_often_than_full_ones() {
    let groups = pool(Scheme::Replicate(1), 4, 4);
    let availability = |nsd: NsdId| Availability {
        writable: true,
        free: if nsd == NsdId(1) { 60_000 } else { 15_000 },
        put: 0,
    };
    let picks =
        (0..1000).map(|counter| groups.pick(counter, 1, &availability).expect("free").group);
    let emptiest = picks
        .filter(|group| groups.members(*group)[0].current == NsdId(1))
        .count();
    assert!((400..700).contains(&emptiest), "{emptiest} of 1000");
}

fn with_dead(groups: &Groups, dead: &[u32], length: u32) -> Option<Placement> {
    groups
        .pick(5, length, &|nsd| {
            if dead.contains(&nsd.0) { DEAD } else { FREE }
        })
        .ok()
}

#[test]
fn dead_nsds_make_segments_narrower_until_redundancy_would_be_lost() {
    let groups = pool(WIDE, 6, 6);
    let scheme = |dead: &[u32]| with_dead(&groups, dead, 4 << 20).map(|placement| placement.scheme);
    assert_eq!(scheme(&[]), Some(WIDE));
    assert_eq!(scheme(&[3]), Some(Scheme::Erasure { k: 3, m: 2 }));
    assert_eq!(scheme(&[3, 4]), Some(Scheme::Erasure { k: 2, m: 2 }));
    assert_eq!(scheme(&[3, 4, 1]), Some(Scheme::Replicate(3)));
    assert_eq!(scheme(&[3, 4, 1, 2]), None);
}

#[test]
fn skipped_slots_are_those_of_the_dead() {
    let groups = pool(WIDE, 6, 6);
    let placement = with_dead(&groups, &[3, 4], 4 << 20).expect("four live");
    for (slot, members) in groups.members(placement.group).iter().enumerate() {
        assert_eq!(
            placement.skipped_slots & (1 << slot) != 0,
            [3, 4].contains(&members.current.0)
        );
    }
}

#[test]
fn whole_groups_are_preferred_to_narrow_ones() {
    let groups = pool(WIDE, 9, 9);
    for counter in 0..200 {
        let placement = groups
            .pick(counter, 4 << 20, &|nsd| {
                if nsd.0 == 4 { DEAD } else { FREE }
            })
            .expect("eight live");
        assert_eq!((placement.scheme, placement.skipped_slots), (WIDE, 0));
    }
}

#[test]
fn short_segments_take_m_plus_one_slots_in_turn() {
    let groups = pool(WIDE, 6, 6);
    let mut load = BTreeMap::new();
    for counter in 0..600 {
        let placement = groups
            .pick(counter, limits::UNIT_BYTES, &|_| FREE)
            .expect("all live");
        assert_eq!(placement.scheme, Scheme::Replicate(3));
        for slot in (0..6).filter(|slot| placement.skipped_slots & (1 << slot) == 0) {
            *load
                .entry(groups.members(placement.group)[slot].current)
                .or_insert(0) += 1;
        }
    }
    assert!(
        load.len() == 6 && load.values().all(|count| (240..360).contains(count)),
        "{load:?}"
    );
}

#[test]
fn two_failure_groups_may_write_one_copy_and_three_may_not() {
    let two = pool(Scheme::Replicate(2), 2, 2);
    assert_eq!(
        with_dead(&two, &[1], 99).map(|placement| placement.scheme),
        Some(Scheme::Replicate(1))
    );
    let three = pool(Scheme::Replicate(3), 3, 3);
    assert_eq!(
        with_dead(&three, &[1], 99).map(|placement| placement.scheme),
        Some(Scheme::Replicate(2))
    );
    assert_eq!(with_dead(&three, &[1, 2], 99), None);
}

/// Would be broken if an NSD that was given up counted, which stays in the map: nothing could be written to a pool of two
/// whose NSD was once replaced while one of them is away.
#[test]
fn a_pool_of_two_whose_nsd_was_replaced_may_still_write_one_copy() {
    let two = pool(Scheme::Replicate(2), 2, 2);
    let scheme = |map: &PoolMap, dead: &[u32]| {
        with_dead(&Groups::new(map), dead, 99).map(|placement| placement.scheme)
    };
    let lost = mark_lost(two.map(), NsdId(2)).expect("it was in use");
    let moving = add_nsd(&lost, entry(3, 3, 100)).expect("a new number");
    let replaced = finish_moves(&moving, &Groups::new(&moving).moving());
    assert_eq!(scheme(&replaced, &[2]), Some(Scheme::Replicate(2)));
    for away in [1, 3] {
        assert_eq!(scheme(&replaced, &[2, away]), Some(Scheme::Replicate(1)));
    }
    let three = add_nsd(two.map(), entry(3, 3, 100)).expect("a new number");
    assert_eq!(scheme(&three, &[1, 2]), None);
}

/// Coordination refuses unsound maps; groups are drawn from whatever passes.
#[test]
fn any_sound_map_has_groups() {
    let drawn = fuzzing::Seen::default();
    fuzzing::fuzz!(fuzzing::ROUNDS, |input: &[u8]| {
        let mut source = fuzzing::Source::new(input);
        let Some(mut map) = source.value::<PoolMap>() else {
            return;
        };
        // Large groups cost time; small ones are as odd.
        let mut first = 0;
        for generation in &mut map.generations {
            generation.groups = generation.groups % 70 + 1;
            if source.chance() {
                generation.first_group = GroupId(first);
            }
            first = generation.first_group.0.saturating_add(generation.groups);
        }
        if map.check().is_err() {
            return;
        }
        let groups = Groups::new(&map);
        for group in groups.all() {
            let scheme = groups.scheme_of(group).unwrap();
            assert_eq!(groups.members(group).len(), scheme.width());
            let _ = map.version(group);
        }
        assert!(groups.members(map.newest().end()).is_empty());
        let _ = groups.load();
        drawn.note();
    });
    drawn.check(20, "maps are sound");
}
