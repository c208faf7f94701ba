//! Generations have groups of their own, equal shares and separate failure groups, and move no more
//! than they must.

use super::tests::{WIDE, check, entry, finish_all, pool};
use super::*;
use crate::pick::Availability;
use model::map::GroupStanding;
use proptest::prelude::*;

const FREE: Availability = Availability {
    writable: true,
    free: 60_000,
    put: 0,
};

fn grown(map: PoolMap, nsds: impl IntoIterator<Item = u32>) -> PoolMap {
    nsds.into_iter().fold(map, |map, nsd| {
        finish_all(&add_nsd(&map, entry(nsd)).expect("new"))
    })
}

/// Every NSD's share of the slots that take new segments.
fn must_be_balanced(map: &PoolMap) {
    let load = Groups::new(map).load();
    let load: Vec<u64> = map
        .nsds
        .iter()
        .filter(|entry| entry.state == NsdState::Active)
        .map(|entry| load[&entry.nsd])
        .collect();
    let mean = load.iter().sum::<u64>() as f64 / load.len() as f64;
    assert!(
        load.iter()
            .all(|it| (*it as f64 - mean).abs() <= mean / 10.0),
        "mean {mean}: {load:?}"
    );
}

#[test]
fn new_segments_go_into_the_newest_generation() {
    let old = grown(pool(Scheme::Replicate(1), 1), 2..=8);
    let map = new_generation(&old, WIDE, Some(1 << 20), 9).expect("eight are enough");
    let groups = Groups::new(&map);
    for counter in 0..1000 {
        let placement = groups.pick(counter, 4 << 20, &|_| FREE).expect("free");
        assert!(map.newest().contains(placement.group));
        assert_eq!(placement.scheme, WIDE);
        assert_eq!(placement.version, GroupVersion::FIRST);
    }
    let picked = |map: &PoolMap, counter| {
        let groups = Groups::new(map);
        groups
            .pick(counter, 4 << 20, &|_| FREE)
            .expect("free")
            .group
    };
    let all: BTreeSet<_> = (0..256).map(|counter| picked(&map, counter)).collect();
    assert_eq!(all.len(), 256, "all groups take turns");
}

#[test]
fn closing_raises_the_versions_of_all_groups_and_changes_the_groups_of_none() {
    let old = finish_all(&drain(&pool(WIDE, 8), NsdId(3)).expect("others"));
    let map = new_generation(&old, Scheme::Replicate(3), None, 9).expect("legal");
    let (before, after) = (Groups::new(&old), Groups::new(&map));
    for group in before.all() {
        assert!(map.version(group) > old.version(group));
        assert_eq!(before.members(group), after.members(group));
        assert_eq!(after.scheme_of(group), Some(WIDE));
    }
    // Versions of closed groups still count the moves of their slots.
    let lost = mark_lost(&map, NsdId(5)).expect("there");
    let moved = Groups::new(&lost).moving();
    let of_closed = moved.iter().filter(|(group, _)| lost.is_closed(*group));
    assert!(of_closed.clone().count() > 0);
    for (group, _) in of_closed {
        assert!(lost.version(*group) > map.version(*group));
    }
}

#[test]
fn a_dropped_generation_is_the_oldest_and_closed() {
    let first = pool(Scheme::Replicate(2), 4);
    let kind = |result: Result<PoolMap>| result.expect_err("refused").kind();
    assert_eq!(
        kind(drop_generation(&first, GroupId(0))),
        ErrorKind::NotFound
    );
    let second = new_generation(&first, Scheme::Replicate(3), None, 1).expect("legal");
    let third = new_generation(&second, WIDE, None, 2).expect("narrow is legal");
    let of_second = third.generations[1].first_group;
    assert_eq!(
        kind(drop_generation(&third, of_second)),
        ErrorKind::NotFound
    );
    let left = drop_generation(&third, GroupId(0)).expect("the oldest");
    assert_eq!(left.standing(GroupId(0)), GroupStanding::Gone);
    assert_eq!(left.standing(of_second), GroupStanding::Known);
    assert_eq!(left.standing(left.newest().end()), GroupStanding::Future);
    assert!(left.version(GroupId(0)) > third.version(GroupId(0)));
    assert_eq!(Groups::new(&left).members(GroupId(0)), []);
}

#[test]
fn a_pool_has_few_generations_and_says_so() {
    let mut map = pool(Scheme::Replicate(2), 4);
    for seed in 1..GENERATIONS_MAX as u64 {
        map = new_generation(&map, Scheme::Replicate(2), None, seed).expect("legal");
    }
    let refused = new_generation(&map, WIDE, None, 0).expect_err("full");
    assert_eq!(refused.kind(), ErrorKind::Busy);
    let refused = new_generation(&pool(WIDE, 3), Scheme::Replicate(4), None, 0);
    assert_eq!(
        refused.expect_err("three failure groups").kind(),
        ErrorKind::InvalidArgument
    );
}

#[test]
fn a_pool_that_grows_far_gets_a_new_generation_and_stays_balanced() {
    for scheme in [Scheme::Replicate(1), Scheme::Replicate(2), WIDE] {
        let mut map = pool(scheme, scheme.tolerance() as u32 + 1);
        let first = scheme.tolerance() as u32 + 2;
        for nsd in first..first + 30 {
            let added = add_nsd(&map, entry(nsd)).expect("new");
            check(&added);
            map = finish_all(&added);
            while map.generations.len() > 1 {
                map = drop_generation(&map, map.generations[0].first_group).expect("closed");
            }
            // A pool narrower than its scheme has each NSD in all groups.
            must_be_balanced(&map);
        }
        assert!(map.newest().first_group > GroupId(0), "{scheme}");
    }
}

#[test]
fn an_nsd_that_old_groups_need_is_drained_when_they_are_empty() {
    // Six NSDs carry 4+2; only the change to two copies lets one go.
    let wide = pool(WIDE, 6);
    assert!(drain(&wide, NsdId(1)).is_err());
    let map = new_generation(&wide, Scheme::Replicate(2), None, 3).expect("legal");
    let draining = finish_all(&drain(&map, NsdId(1)).expect("four others are enough"));
    let groups = Groups::new(&draining);
    let left = groups.slots_of(NsdId(1));
    assert!(!left.is_empty() && left.iter().all(|(group, _)| draining.is_closed(*group)));
    let emptied = drop_generation(&draining, GroupId(0)).expect("closed");
    assert_eq!(Groups::new(&emptied).slots_of(NsdId(1)), []);
}

#[test]
fn adding_moves_no_more_than_the_share_and_draining_no_more_than_its_own() {
    let map = pool(WIDE, 12);
    let added = Groups::new(&add_nsd(&map, entry(13)).expect("new"));
    assert!(added.moving().len() as u64 <= 12 * 192 / 13);
    for (group, slot) in added.moving() {
        let slot = added.members(group)[usize::from(slot)];
        assert_eq!(slot.next, Some(NsdId(13)));
    }
    let before = Groups::new(&map);
    let drained = Groups::new(&drain(&map, NsdId(4)).expect("others"));
    let moving = drained.moving();
    assert_eq!(moving, before.slots_of(NsdId(4)));
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Add,
    Drain,
    Cancel,
    Lose,
    Arrive,
    Change(Scheme),
    Drop,
}

fn steps() -> impl Strategy<Value = Vec<(Step, u32)>> {
    let step = prop_oneof![
        Just(Step::Add),
        Just(Step::Drain),
        Just(Step::Cancel),
        Just(Step::Lose),
        Just(Step::Arrive),
        Just(Step::Change(Scheme::Replicate(2))),
        Just(Step::Change(WIDE)),
        Just(Step::Drop),
    ];
    prop::collection::vec((step, 0..64u32), 1..20)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Would be broken by a group number that is used twice, a slot that goes to an NSD which is
    /// leaving and doesn't go on from there, or two pieces of a group in one failure group.
    #[test]
    fn any_history_of_generations_keeps_groups_and_failure_groups_apart(steps in steps(), seed: u64) {
        let mut map = new_pool(Scheme::Replicate(1), vec![entry(1)], seed).expect("legal");
        let (mut newest, mut used) = (1, BTreeMap::from([(0, seed)]));
        for (step, choice) in steps {
            let nsd = map.nsds[choice as usize % map.nsds.len()].nsd;
            let next = match step {
                Step::Add => { newest += 1; add_nsd(&map, entry(newest)) }
                Step::Drain => drain(&map, nsd),
                Step::Cancel => cancel_drain(&map, &[nsd]),
                Step::Lose if map.nsds.len() > 4 => mark_lost(&map, nsd),
                Step::Lose => continue,
                Step::Arrive => Ok(finish_all(&map)),
                Step::Change(scheme) => new_generation(&map, scheme, None, u64::from(choice)),
                Step::Drop => drop_generation(&map, map.generations[0].first_group),
            };
            let Ok(next) = next else { continue };
            prop_assert!(next.epoch > map.epoch);
            for generation in &next.generations {
                let known = used.insert(generation.first_group.0, generation.seed);
                prop_assert!(known.is_none_or(|seed| seed == generation.seed), "a group is used twice");
            }
            for group in next.all_groups() {
                prop_assert!(next.version(group) >= map.version(group) || map.standing(group) == GroupStanding::Future);
            }
            let groups = Groups::new(&next);
            for (group, slot) in groups.moving() {
                let members = groups.members(group)[usize::from(slot)];
                let state = |nsd| next.nsd(nsd).map(|entry| entry.state);
                let to = state(members.target());
                let goes_on = to == Some(NsdState::Draining) && state(members.current) != Some(NsdState::Active);
                prop_assert!(to == Some(NsdState::Active) || goes_on, "{members:?}");
            }
            check(&next);
            prop_assert!(next.generations.windows(2).all(|pair| pair[0].end() <= pair[1].first_group));
            map = next;
        }
    }
}
