//! Changed maps differ little, keep failure groups apart, and end up balanced.

use super::*;
use proptest::prelude::*;

pub(super) const WIDE: Scheme = Scheme::Erasure { k: 4, m: 2 };

pub(super) fn entry(nsd: u32) -> NsdEntry {
    NsdEntry {
        nsd: NsdId(nsd),
        failure_group: FailureGroupId(nsd),
        weight: 20,
        state: NsdState::Active,
    }
}

pub(super) fn pool(scheme: Scheme, nsds: u32) -> PoolMap {
    new_pool(scheme, (1..=nsds).map(entry).collect(), 7).expect("a legal pool")
}

pub(super) fn finish_all(map: &PoolMap) -> PoolMap {
    finish_moves(map, &Groups::new(map).moving())
}

pub(super) fn check(map: &PoolMap) {
    let groups = Groups::new(map);
    for group in groups.all() {
        let targets = groups.members(group).iter().map(|slot| slot.target());
        let live: Vec<_> = targets
            .filter_map(|nsd| map.nsd(nsd))
            .filter(|entry| entry.state != NsdState::Lost)
            .collect();
        let failure_groups: BTreeSet<_> = live.iter().map(|entry| entry.failure_group).collect();
        assert_eq!(
            failure_groups.len(),
            live.len(),
            "group {group} has two pieces in one failure group"
        );
    }
}

#[test]
fn a_pool_needs_m_plus_one_failure_groups() {
    let make = |scheme, nsds: u32| new_pool(scheme, (1..=nsds).map(entry).collect(), 7);
    assert!(make(WIDE, 3).is_ok());
    assert_eq!(
        make(WIDE, 2).expect_err("two").kind(),
        ErrorKind::InvalidArgument
    );
    assert_eq!(
        make(Scheme::Replicate(3), 2).expect_err("two").kind(),
        ErrorKind::InvalidArgument
    );
    assert!(make(Scheme::Replicate(1), 0).is_err());
    assert!(new_pool(Scheme::Replicate(1), vec![entry(1), entry(1)], 7).is_err());
}

#[test]
fn slots_of_a_lost_nsd_go_to_all_others() {
    let map = pool(WIDE, 12);
    let before = Groups::new(&map).load()[&NsdId(3)];
    let changed = mark_lost(&map, NsdId(3)).expect("the NSD exists");
    check(&changed);
    let groups = Groups::new(&changed);
    assert_eq!(groups.moving().len() as u64, before, "only its slots move");
    let load = groups.load();
    assert!(
        load.iter()
            .all(|(nsd, slots)| *nsd == NsdId(3) || (205..=214).contains(slots)),
        "{load:?}"
    );
    assert_eq!(
        changed.newest().versions.len() as u64,
        before,
        "each of its groups has a new version"
    );
    assert_eq!(changed.epoch, map.epoch.next());
}

#[test]
fn without_a_spare_failure_group_lost_slots_wait_for_a_new_nsd() {
    let map = mark_lost(&pool(WIDE, 6), NsdId(2)).expect("the NSD exists");
    assert_eq!(Groups::new(&map).moving().len(), 0);
    let added = add_nsd(&map, entry(7)).expect("new");
    check(&added);
    let groups = Groups::new(&added);
    assert_eq!(
        groups.load()[&NsdId(7)],
        192,
        "it takes over every lost slot"
    );
    let (group, slot) = groups.moving()[0];
    assert_eq!(
        groups.members(group)[usize::from(slot)],
        SlotMembers {
            current: NsdId(2),
            next: Some(NsdId(7))
        }
    );
    let done = finish_all(&added);
    assert_eq!(Groups::new(&done).slots_of(NsdId(2)), []);
    assert!(remove_nsd(&done, NsdId(2)).is_ok());
    assert_eq!(
        remove_nsd(&done, NsdId(7)).expect_err("in use").kind(),
        ErrorKind::Busy
    );
}

#[test]
fn a_new_nsd_gets_its_fair_share_and_no_more_moves() {
    let map = pool(Scheme::Replicate(2), 5);
    let added = add_nsd(&map, entry(6)).expect("new");
    check(&added);
    let groups = Groups::new(&added);
    assert_eq!(groups.moving().len(), 320 / 6);
    let load = groups.load();
    assert!(
        load.values().all(|slots| (51..=56).contains(slots)),
        "{load:?}"
    );
    assert_eq!(
        finish_all(&added).newest().versions.values().copied().max(),
        Some(GroupVersion(3))
    );
}

#[test]
fn empty_slots_of_a_narrow_pool_are_filled_by_new_nsds() {
    let mut map = pool(WIDE, 3);
    for nsd in 4..=6 {
        map = finish_all(&add_nsd(&map, entry(nsd)).expect("new"));
        check(&map);
    }
    let groups = Groups::new(&map);
    assert!(groups.all().all(|group| {
        groups
            .members(group)
            .iter()
            .all(|slot| slot.current != NsdId::NONE)
    }));
}

#[test]
fn a_drained_nsd_ends_without_slots() {
    let map = pool(WIDE, 8);
    let draining = drain(&map, NsdId(1)).expect("seven others");
    check(&draining);
    assert!(Groups::new(&draining).moving().len() > 100);
    let done = finish_all(&draining);
    assert_eq!(Groups::new(&done).slots_of(NsdId(1)), []);
    assert_eq!(
        drain(&pool(WIDE, 6), NsdId(1))
            .expect_err("no spare")
            .kind(),
        ErrorKind::NoSpace
    );
}

#[test]
fn a_slot_whose_receiver_is_lost_gets_another() {
    let draining = drain(&pool(WIDE, 9), NsdId(1)).expect("eight others");
    let lost = mark_lost(&draining, NsdId(5)).expect("the NSD exists");
    check(&lost);
    let groups = Groups::new(&lost);
    for (group, slot) in groups.slots_of(NsdId(1)) {
        let members = groups.members(group)[usize::from(slot)];
        assert!(
            members.next.is_some() && members.next != Some(NsdId(5)),
            "{members:?}"
        );
    }
}

/// Would be broken if an NSD were forgotten that a slot was on its way to: what was written meanwhile may be
/// nowhere else.
#[test]
fn a_slot_whose_receiver_is_drained_keeps_it_until_another_has_all() {
    let slots_to = |map: &PoolMap, nsd: u32| {
        let groups = Groups::new(map);
        let mut moving = groups.moving();
        moving.retain(|(group, slot)| {
            groups.members(*group)[usize::from(*slot)].next == Some(NsdId(nsd))
        });
        assert!(!moving.is_empty());
        moving
    };
    let at = |map: &PoolMap, (group, slot): (GroupId, u8)| {
        Groups::new(map).members(group)[usize::from(slot)]
    };
    let is_active = |map: &PoolMap, nsd: NsdId| {
        map.nsd(nsd)
            .is_some_and(|entry| entry.state == NsdState::Active)
    };
    // One that was added: the slot turns back.
    let added = add_nsd(&pool(Scheme::Replicate(2), 5), entry(6)).expect("new");
    let turned = drain(&added, NsdId(6)).expect("five others");
    check(&turned);
    for slot in slots_to(&added, 6) {
        let before = at(&added, slot).current;
        let members = SlotMembers {
            current: NsdId(6),
            next: Some(before),
        };
        assert_eq!(at(&turned, slot), members);
    }
    // One that got the slots of another that is being drained: those go on from there.
    let first = drain(&pool(Scheme::Replicate(2), 5), NsdId(1)).expect("four others");
    let second = drain(&first, NsdId(2)).expect("three others");
    check(&second);
    let arrived = finish_all(&second);
    for slot in slots_to(&first, 2) {
        assert_eq!(at(&second, slot), at(&first, slot));
        let members = at(&arrived, slot);
        assert_eq!(members.current, NsdId(2));
        assert!(is_active(&arrived, members.target()), "{members:?}");
    }
    let done = finish_all(&arrived);
    check(&done);
    for nsd in [1, 2] {
        assert_eq!(Groups::new(&done).slots_of(NsdId(nsd)), []);
    }
    // Nobody could have them then.
    let third = drain(&second, NsdId(3)).expect("two others");
    let refused = drain(&third, NsdId(4)).expect_err("one other");
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
}

/// Would be broken if NSDs could be drained to which slots of others have to go that are being drained: those drains
/// would never end.
#[test]
fn an_nsd_that_another_drain_needs_is_not_drained() {
    let slot = |current: u32, next: Option<u32>| SlotException {
        current: NsdId(current),
        next: next.map(NsdId),
    };
    let mut map = pool(Scheme::Replicate(2), 4);
    map.nsds[0].state = NsdState::Draining;
    map.generations[0].groups = 1;
    map.generations[0].exceptions =
        BTreeMap::from([((0, 0), slot(1, Some(2))), ((0, 1), slot(3, None))]);
    let both = drain(&map, NsdId(2)).expect("the slot goes on to the fourth");
    for needed in [3, 4] {
        let refused = drain(&both, NsdId(needed)).expect_err("two are needed");
        assert_eq!(refused.kind(), ErrorKind::NoSpace);
    }
    // Nor does it end if that one is lost, until another is added.
    let lost = finish_all(&mark_lost(&both, NsdId(4)).expect("the NSD exists"));
    assert_eq!(Groups::new(&lost).staying_on(NsdId(2)), 1);
    let added = finish_all(&add_nsd(&lost, entry(5)).expect("new"));
    assert_eq!(Groups::new(&added).slots_of(NsdId(2)), []);
}

#[test]
fn a_drain_that_is_taken_back_keeps_what_has_moved_and_turns_the_rest_back() {
    let map = pool(WIDE, 8);
    let draining = drain(&map, NsdId(1)).expect("seven others");
    let moving = Groups::new(&draining).moving();
    let (moved, left) = moving.split_at(moving.len() / 2);
    let half = finish_moves(&draining, moved);
    let back = cancel_drain(&half, &[NsdId(1)]).expect("it has half of its slots");
    check(&back);
    let state = back.nsd(NsdId(1)).map(|entry| entry.state);
    assert_eq!(state, Some(NsdState::Active));
    let (before, after) = (Groups::new(&half), Groups::new(&back));
    let at =
        |groups: &Groups, (group, slot): (GroupId, u8)| groups.members(group)[usize::from(slot)];
    for slot in moved {
        assert_eq!(at(&after, *slot), at(&before, *slot));
    }
    for slot in left {
        let to = at(&before, *slot).next.expect("it was moving");
        let members = SlotMembers {
            current: to,
            next: Some(NsdId(1)),
        };
        assert_eq!(at(&after, *slot), members);
        assert!(back.version(slot.0) > half.version(slot.0));
    }
    let done = finish_all(&back);
    assert_eq!(Groups::new(&done).slots_of(NsdId(1)), left);
    // Before they are back, it is drained again.
    let again = drain(&back, NsdId(1)).expect("seven others");
    check(&again);
    let again = Groups::new(&again);
    for slot in left {
        assert_eq!(at(&again, *slot), at(&before, *slot));
    }
    // Several at once, of which nothing has moved.
    let map = pool(WIDE, 9);
    let both = [NsdId(1), NsdId(2)];
    let draining = drain_all(&map, &both).expect("seven others");
    let back = finish_all(&cancel_drain(&draining, &both).expect("both have all"));
    assert_eq!(back.nsds, map.nsds);
    assert!(back.newest().exceptions.is_empty());
}

/// Would be broken if what was lost stayed lost although the NSD that is kept can have it.
#[test]
fn slots_that_nobody_could_take_move_to_an_nsd_that_is_kept_after_all() {
    let draining = drain(&pool(Scheme::Replicate(2), 3), NsdId(1)).expect("two others");
    let lost = mark_lost(&draining, NsdId(3)).expect("the NSD exists");
    let back = cancel_drain(&lost, &[NsdId(1)]).expect("it has slots");
    check(&back);
    let (before, after) = (Groups::new(&lost), Groups::new(&back));
    let on = |nsd: u32, next: Option<u32>| SlotMembers {
        current: NsdId(nsd),
        next: next.map(NsdId),
    };
    let mut waited = 0;
    for group in before.all() {
        let slots = before.members(group).iter().zip(after.members(group));
        // The other one of the group is where it stays.
        if before.members(group).contains(&on(2, None)) {
            for (_, now) in slots.filter(|(slot, _)| **slot == on(3, None)) {
                assert_eq!(*now, on(3, Some(1)), "group {group}");
                waited += 1;
            }
        }
    }
    assert!(waited > 0);
}

#[test]
fn only_a_drain_that_is_under_way_can_be_taken_back() {
    let map = pool(WIDE, 8);
    let refused = |map: &PoolMap, nsds: &[u32]| {
        let nsds: Vec<NsdId> = nsds.iter().copied().map(NsdId).collect();
        let error = cancel_drain(map, &nsds).expect_err("it is refused");
        (error.kind(), error.to_string())
    };
    let must_say = |(kind, text): (ErrorKind, String), part: &str| {
        assert_eq!(kind, ErrorKind::InvalidArgument);
        assert!(text.contains(part), "{text}");
    };
    assert_eq!(refused(&map, &[9]).0, ErrorKind::NotFound);
    must_say(refused(&map, &[1]), "isn't being drained");
    let draining = drain(&map, NsdId(1)).expect("seven others");
    must_say(refused(&draining, &[1, 2]), "NSD 2: it isn't being drained");
    let moved = finish_all(&draining);
    must_say(refused(&moved, &[1]), "have moved already");
    let ended = mark_lost(&moved, NsdId(1)).expect("the NSD exists");
    must_say(refused(&ended, &[1]), "out of use; `shale nsd add`");
}

#[test]
fn an_nsd_number_is_never_used_twice() {
    let map = finish_all(&drain(&pool(WIDE, 8), NsdId(1)).expect("others"));
    let removed = remove_nsd(&map, NsdId(1)).expect("empty");
    assert_eq!(
        add_nsd(&removed, entry(1)).expect_err("used").kind(),
        ErrorKind::Exists
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    #[test]
    fn any_history_keeps_failure_groups_apart(steps in prop::collection::vec((0u8..5, 0u32..16), 1..12), seed: u64) {
        let mut map = new_pool(Scheme::Replicate(3), (1..=5).map(entry).collect(), seed).expect("legal");
        let mut newest = 5;
        for (step, choice) in steps {
            let nsd = map.nsds[choice as usize % map.nsds.len()].nsd;
            let next = match step {
                0 => { newest += 1; add_nsd(&map, entry(newest)) }
                1 => drain(&map, nsd),
                3 => cancel_drain(&map, &[nsd]),
                2 if map.nsds.iter().filter(|entry| entry.state == NsdState::Active).count() > 3 => mark_lost(&map, nsd),
                _ => Ok(finish_all(&map)),
            };
            if let Ok(next) = next {
                prop_assert!(next.epoch > map.epoch);
                map = next;
            }
            check(&map);
            // Moves under way may use the failure group that a lost slot needs, so finish them
            // first.
            let settled = finish_all(&finish_all(&map));
            check(&settled);
            let groups = Groups::new(&settled);
            let active = |nsd: NsdId| map.nsd(nsd).is_some_and(|entry| entry.state == NsdState::Active);
            // With three failure groups every slot of an unusable NSD can be moved.
            let spare = map.nsds.iter().filter(|entry| entry.state == NsdState::Active).count() >= 3;
            let all_live = groups.all().all(|group| groups.members(group).iter().all(|slot| active(slot.target())));
            let drains = map.nsds.iter().any(|entry| entry.state == NsdState::Draining);
            prop_assert!(all_live || !spare || drains);
        }
    }
}
