//! Racks: no group that takes new segments has two slots in one, whoever is put together.

use super::*;
use crate::change::tests::{WIDE, entry, finish_all, pool};
use crate::change::{add_nsd, cancel_drain, drain, drop_generation, mark_lost};
use crate::groups::Groups;
use model::Scheme;
use proptest::prelude::*;

fn named(nsds: &[u32], name: &str) -> Vec<(NsdId, FailsWith)> {
    let with = |nsd: &u32| (NsdId(*nsd), FailsWith::Named(name.to_owned()));
    nsds.iter().map(with).collect()
}

fn own(nsds: &[u32]) -> Vec<(NsdId, FailsWith)> {
    let with = |nsd: &u32| (NsdId(*nsd), FailsWith::Own(FailureGroupId(*nsd)));
    nsds.iter().map(with).collect()
}

/// Returns the slots without an NSD.
fn must_be_apart(map: &PoolMap) -> usize {
    let groups = Groups::new(map);
    let mut empty = 0;
    for group in map.newest().all_groups() {
        let slots = groups.members(group).iter();
        let entries = slots.clone().filter_map(|slot| map.nsd(slot.target()));
        let live = entries.filter(|entry| entry.state != NsdState::Lost);
        let all: Vec<_> = live.map(|entry| entry.failure_group).collect();
        let different: BTreeSet<_> = all.iter().collect();
        assert_eq!(different.len(), all.len(), "group {group}");
        empty += slots.filter(|slot| slot.target() == NsdId::NONE).count();
    }
    empty
}

fn failure_groups(map: &PoolMap) -> usize {
    let active = map.nsds.iter().filter(|it| it.state == NsdState::Active);
    let all: BTreeSet<_> = active.map(|it| it.failure_group).collect();
    all.len()
}

#[test]
fn no_group_has_two_slots_in_a_rack_and_shares_stay_equal() {
    let map = pool(Scheme::Replicate(2), 6);
    let racks = [(&[1, 2], "a"), (&[3, 4], "b"), (&[5, 6], "c")];
    let racks: Vec<_> = racks
        .iter()
        .flat_map(|(nsds, name)| named(*nsds, name))
        .collect();
    let map = with_failure_groups(&map, &racks, 5).expect("three racks");
    assert_eq!(must_be_apart(&map), 0);
    assert_eq!(map.generations.len(), 2, "what exists is rewritten");
    assert_eq!(map.scheme(), Scheme::Replicate(2));
    let rack = map.nsd(NsdId(4)).expect("known").failure_group;
    assert_eq!(map.name_of(rack), Some("b"));
    let load = Groups::new(&map).load();
    assert!(
        load.values().all(|slots| (58..=70).contains(slots)),
        "{load:?}"
    );
}

#[test]
fn another_name_for_the_same_nsds_moves_nothing() {
    let map = pool(Scheme::Replicate(2), 4);
    let map = with_failure_groups(&map, &named(&[1, 2], "a"), 5).expect("a, 3, 4");
    for change in [named(&[1, 2], "b"), named(&[1, 2], "b"), named(&[3], "c")] {
        let next = with_failure_groups(&map, &change, 6).expect("the same together");
        assert_eq!(next.generations, map.generations);
        assert!(next.epoch > map.epoch);
    }
    let next = with_failure_groups(&map, &named(&[1, 2], "b"), 6).expect("another name");
    let names: Vec<&str> = next.names.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["b"], "a name goes with the last NSD that has it");
    let next = with_failure_groups(&next, &own(&[1, 2]), 7).expect("apart again");
    assert_eq!((next.names.len(), next.generations.len()), (0, 3));
    assert_eq!(must_be_apart(&next), 0);
}

#[test]
fn an_nsd_that_is_added_is_not_put_beside_its_rack() {
    let map = pool(Scheme::Replicate(2), 4);
    let map = with_failure_groups(&map, &named(&[1, 2], "a"), 5).expect("a, 3, 4");
    let failure_group = map.nsd(NsdId(1)).expect("known").failure_group;
    let added = NsdEntry {
        failure_group,
        ..entry(5)
    };
    let map = finish_all(&add_nsd(&map, added).expect("new"));
    assert_eq!(must_be_apart(&map), 0);
    assert!(Groups::new(&map).load()[&NsdId(5)] > 0);
}

#[test]
fn what_cannot_be_kept_apart_is_refused_and_says_why() {
    let map = pool(Scheme::Replicate(3), 4);
    let map = with_failure_groups(&map, &named(&[1, 2], "a"), 5).expect("a, 3, 4");
    let kind = |change: &[(NsdId, FailsWith)]| {
        let refused = with_failure_groups(&map, change, 6);
        refused.expect_err("refused").kind()
    };
    assert_eq!(
        kind(&named(&[3], "a")),
        ErrorKind::InvalidArgument,
        "two are left"
    );
    assert_eq!(kind(&named(&[9], "a")), ErrorKind::NotFound);
    for name in ["", "with space", "umläut", &"x".repeat(65)] {
        assert_eq!(
            kind(&named(&[3], name)),
            ErrorKind::InvalidArgument,
            "{name}"
        );
    }
    let lost = mark_lost(&map, NsdId(4)).expect("it was in use");
    let refused = with_failure_groups(&lost, &named(&[4], "b"), 6);
    assert_eq!(refused.expect_err("lost").kind(), ErrorKind::NotFound);
    let names = (0..FAILURE_GROUP_NAMES_MAX as u32).map(|number| FailureGroupName {
        failure_group: FailureGroupId(NAMED_FROM + number),
        name: format!("n{number}"),
    });
    let full = PoolMap {
        names: names.collect(),
        ..map
    };
    let refused = with_failure_groups(&full, &named(&[4], "b"), 6);
    assert_eq!(refused.expect_err("full").kind(), ErrorKind::NoSpace);
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Name(u32),
    Own,
    Add,
    Drain,
    Cancel,
    Lose,
    Arrive,
    Drop,
}

fn steps() -> impl Strategy<Value = Vec<(Step, u32)>> {
    let step = prop_oneof![
        3 => (0..4u32).prop_map(Step::Name),
        1 => Just(Step::Own),
        1 => Just(Step::Add),
        1 => Just(Step::Drain),
        1 => Just(Step::Cancel),
        1 => Just(Step::Lose),
        2 => Just(Step::Arrive),
        2 => Just(Step::Drop),
    ];
    prop::collection::vec((step, any::<u32>()), 1..24)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Would be broken by two slots of a group in one rack, a slot left empty though a rack is free, a
    /// change of names that some group doesn't follow, or a name that nobody has.
    #[test]
    fn racks_stay_apart_whatever_happens(erasure: bool, count in 4u32..10, steps in steps()) {
        let scheme = if erasure { WIDE } else { Scheme::Replicate(2) };
        let mut map = pool(scheme, count);
        let mut newest = count;
        for (step, choice) in steps {
            let nsd = map.nsds[choice as usize % map.nsds.len()].nsd;
            let next = match step {
                Step::Name(rack) => {
                    let next = with_failure_groups(&map, &named(&[nsd.0], &format!("r{rack}")), u64::from(choice));
                    if let Ok(next) = &next {
                        let number = next.nsd(nsd).expect("known").failure_group;
                        let name = next.name_of(number).map(str::to_owned);
                        prop_assert_eq!(name, Some(format!("r{rack}")));
                    }
                    next
                }
                Step::Own => with_failure_groups(&map, &own(&[nsd.0]), u64::from(choice)),
                Step::Add => { newest += 1; add_nsd(&map, entry(newest)) }
                Step::Drain => drain(&map, nsd),
                Step::Cancel => cancel_drain(&map, &[nsd]),
                Step::Lose => mark_lost(&map, nsd),
                Step::Arrive => Ok(finish_all(&map)),
                Step::Drop => drop_generation(&map, map.generations[0].first_group),
            };
            let Ok(next) = next else { continue };
            prop_assert!(next.epoch > map.epoch);
            let empty = must_be_apart(&next);
            let is_drawn = next.newest().first_group != map.newest().first_group;
            if is_drawn && failure_groups(&next) >= scheme.width() {
                prop_assert_eq!(empty, 0, "{} racks are enough", scheme.width());
            }
            let has_name = |name: &FailureGroupName| {
                next.nsds.iter().any(|entry| entry.failure_group == name.failure_group)
            };
            prop_assert!(next.names.iter().all(has_name));
            map = next;
        }
    }
}
