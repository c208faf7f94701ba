//! NSDs are lost, added and drained; afterwards redundancy is complete again.

use super::*;
use crate::NsdStatus;
use model::ErrorKind;
use model::map::NsdEntry;

const LENGTHS: [usize; 4] = [10, 70_000, 300_000, MIB];

async fn fill(rig: &Rig, count: usize) -> Vec<(SegmentPlace, Bytes)> {
    let mut out = Vec::new();
    for index in 0..count {
        let bytes = plain(LENGTHS[index % LENGTHS.len()] + index, index as u64);
        out.push((rig.write(&bytes).await, bytes));
    }
    out
}

/// All segments are as they were written.
async fn must_read(rig: &Rig, segments: &[(SegmentPlace, Bytes)], when: &str) {
    for (place, bytes) in segments {
        assert_eq!(rig.read(place).await, bytes, "{place:?} {when}");
    }
}

#[test]
fn a_lost_nsd_is_replaced_by_an_added_one_and_redundancy_is_whole_again() {
    with_pool(WIDE, 6, DISK_BYTES, async |rig| {
        let mut segments = fill(&rig, 40).await;
        rig.disconnect(NsdId(3));
        rig.set_map(placement::mark_lost(&rig.pool.map(), NsdId(3)).expect("known"))
            .await;
        assert_eq!(rig.pool.repair_progress().lost_slots, 192);
        // Written without the lost NSD: narrower.
        let bytes = plain(MIB, 99);
        segments.push((rig.write(&bytes).await, bytes));
        rig.add_nsd(7).await;
        assert_eq!(rig.pool.repair_progress().moving_slots, 192);
        // Written while the slots move: the new NSD gets its pieces at once.
        let bytes = plain(MIB, 100);
        segments.push((rig.write(&bytes).await, bytes));
        assert_eq!(segments.last().expect("just pushed").0.scheme, WIDE);
        rig.repair_all().await;
        let progress = rig.pool.repair_progress();
        assert_eq!(
            (progress.moving_slots, progress.lost_slots, progress.failed),
            (0, 0, 0)
        );
        assert!(progress.rebuilt_pieces > 20);
        for (place, _) in &segments {
            assert!(rig.is_whole(place).await, "{place:?}");
        }
        for nsd in [1, 2] {
            rig.disconnect(NsdId(nsd));
        }
        must_read(&rig, &segments, "").await;
    });
}

#[test]
fn with_spare_failure_groups_a_lost_nsd_is_rebuilt_onto_all_others() {
    with_pool(Scheme::Replicate(2), 5, DISK_BYTES, async |rig| {
        let segments = fill(&rig, 60).await;
        rig.disconnect(NsdId(3));
        rig.set_map(placement::mark_lost(&rig.pool.map(), NsdId(3)).expect("known"))
            .await;
        rig.repair_all().await;
        for (place, bytes) in &segments {
            assert!(rig.is_whole(place).await, "{place:?}");
            assert_eq!(rig.read(place).await, bytes);
        }
    });
}

#[test]
fn an_added_nsd_takes_its_share_while_writers_and_readers_go_on() {
    with_pool(Scheme::Replicate(2), 3, DISK_BYTES, async |rig| {
        let mut segments = fill(&rig, 40).await;
        rig.add_nsd(4).await;
        segments.extend(fill(&rig, 40).await);
        must_read(&rig, &segments, "while slots move").await;
        rig.repair_all().await;
        assert_eq!(rig.pool.repair_progress().moving_slots, 0);
        assert!(rig.nsd(NsdId(4)).usage().blobs > 20);
        for (place, bytes) in &segments {
            assert!(rig.is_whole(place).await, "{place:?}");
            assert_eq!(rig.read(place).await, bytes);
        }
    });
}

#[test]
fn a_drained_nsd_ends_empty_and_can_be_removed() {
    with_pool(Scheme::Replicate(2), 4, DISK_BYTES, async |rig| {
        let segments = fill(&rig, 40).await;
        rig.set_map(placement::drain(&rig.pool.map(), NsdId(2)).expect("three others"))
            .await;
        rig.repair_all().await;
        for group in rig.pool.groups().all() {
            rig.pool
                .leave_group(NsdId(2), group)
                .await
                .expect("it isn't a member");
        }
        assert_eq!(rig.nsd(NsdId(2)).usage().blobs, 0);
        rig.set_map(
            placement::remove_nsd(&rig.pool.map(), NsdId(2)).expect("it doesn't hold a slot"),
        )
        .await;
        rig.disconnect(NsdId(2));
        for (place, bytes) in &segments {
            assert!(rig.is_whole(place).await, "{place:?}");
            assert_eq!(rig.read(place).await, bytes);
        }
    });
}

/// Would be broken if an NSD were forgotten that slots were on their way to: it alone has what was written meanwhile.
#[test]
fn what_was_written_during_the_drain_of_one_nsd_outlives_the_drain_of_another() {
    with_pool(Scheme::Replicate(1), 4, DISK_BYTES, async |rig| {
        let mut segments = fill(&rig, 20).await;
        for nsd in [1, 2] {
            rig.set_map(placement::drain(&rig.pool.map(), NsdId(nsd)).expect("two others"))
                .await;
            segments.extend(fill(&rig, 80).await);
        }
        must_read(&rig, &segments, "while slots move").await;
        rig.repair_all().await;
        for nsd in [NsdId(1), NsdId(2)] {
            assert_eq!(rig.pool.groups().slots_of(nsd), []);
            rig.disconnect(nsd);
        }
        must_read(&rig, &segments, "").await;
    });
}

/// Would be broken if the NSDs that slots were on their way to were forgotten, which alone have what was written
/// meanwhile, or if they got the rest before they lose it all.
#[test]
fn a_drain_that_is_taken_back_moves_only_what_was_written_meanwhile() {
    with_pool(Scheme::Replicate(1), 3, DISK_BYTES, async |rig| {
        let nsd = NsdId(1);
        let mut segments = fill(&rig, 40).await;
        let own = rig.pool.groups().slots_of(nsd);
        rig.set_map(placement::drain(&rig.pool.map(), nsd).expect("two others"))
            .await;
        let late = fill(&rig, 80).await;
        let comes_back = |(place, _): &&(SegmentPlace, Bytes)| {
            own.iter().any(|(group, _)| *group == place.group)
        };
        let moved = late.iter().filter(comes_back).count() as u64;
        assert!(moved > 5);
        segments.extend(late);
        rig.set_map(placement::cancel_drain(&rig.pool.map(), &[nsd]).expect("nothing has moved"))
            .await;
        segments.extend(fill(&rig, 40).await);
        must_read(&rig, &segments, "while slots come back").await;
        rig.repair_all().await;
        let progress = rig.pool.repair_progress();
        assert_eq!((progress.moving_slots, progress.rebuilt_pieces), (0, moved));
        assert_eq!(rig.pool.groups().slots_of(nsd), own);
        for other in [2, 3] {
            for (group, _) in &own {
                let left = rig.pool.leave_group(NsdId(other), *group).await;
                left.expect("it isn't a member");
            }
        }
        for (place, bytes) in &segments {
            assert!(rig.is_whole(place).await, "{place:?}");
            assert_eq!(rig.read(place).await, bytes);
        }
    });
}

/// Would be broken if slots came back without what was written during the drain, because the only NSD that has it is
/// away.
#[test]
fn a_drain_is_taken_back_while_the_nsd_that_got_the_data_is_away() {
    with_pool(Scheme::Replicate(1), 2, DISK_BYTES, async |rig| {
        let (one, two) = (NsdId(1), NsdId(2));
        let mut segments = fill(&rig, 20).await;
        let own = rig.pool.groups().slots_of(one);
        rig.set_map(placement::drain(&rig.pool.map(), one).expect("another one"))
            .await;
        segments.extend(fill(&rig, 40).await);
        let away = rig.disconnect(two);
        rig.set_map(placement::cancel_drain(&rig.pool.map(), &[one]).expect("nothing has moved"))
            .await;
        let late = fill(&rig, 20).await;
        must_read(&rig, &late, "").await;
        segments.extend(late);
        rig.repair_all().await;
        assert_eq!(rig.pool.groups().moving(), own);
        rig.connect(away).await;
        must_read(&rig, &segments, "before they are back").await;
        rig.repair_all().await;
        assert_eq!(rig.pool.groups().moving(), []);
        assert_eq!(rig.pool.groups().slots_of(one), own);
        for (place, bytes) in &segments {
            assert!(rig.is_whole(place).await, "{place:?}");
            assert_eq!(rig.read(place).await, bytes);
        }
    });
}

/// Would be broken if only the NSD that a slot comes from counted as the one that has its pieces: while an NSD is
/// drained its next one alone gets what is written, and when that is taken back, the next one has nearly all.
#[test]
fn both_nsds_of_a_moving_slot_are_needed() {
    with_pool(Scheme::Replicate(2), 4, DISK_BYTES, async |rig| {
        let (one, two) = (NsdId(1), NsdId(2));
        let is_needed = |nsd: NsdId| rig.pool.is_needed(&rig.pool.map(), nsd);
        assert!((1..=4).all(|nsd| !is_needed(NsdId(nsd))));
        rig.set_map(placement::drain(&rig.pool.map(), one).expect("three others"))
            .await;
        rig.set_map(placement::cancel_drain(&rig.pool.map(), &[one]).expect("it has all"))
            .await;
        assert!((1..=4).all(|nsd| !is_needed(NsdId(nsd))));
        // What the first one is to get back is only with the others of its groups, should it not return.
        let away = rig.disconnect(one);
        assert!((2..=4).all(|nsd| is_needed(NsdId(nsd))));
        rig.connect(away).await;
        assert!(!is_needed(two));
        // By a map in which another one is given up.
        let lost = placement::mark_lost(&rig.pool.map(), two).expect("it was in use");
        assert!(rig.pool.is_needed(&lost, NsdId(3)));
    });
    with_pool(Scheme::Replicate(1), 3, DISK_BYTES, async |rig| {
        let one = NsdId(1);
        rig.set_map(placement::drain(&rig.pool.map(), one).expect("two others"))
            .await;
        rig.set_map(placement::cancel_drain(&rig.pool.map(), &[one]).expect("it has all"))
            .await;
        let groups = rig.pool.groups();
        let slots = groups.slots_of(one).into_iter();
        let mut members = slots.map(|(group, slot)| groups.members(group)[usize::from(slot)]);
        assert!(members.all(|slot| slot.next == Some(one)));
        assert!(
            rig.pool.is_needed(&rig.pool.map(), one),
            "nobody else has its pieces"
        );
    });
}

#[test]
fn a_slot_has_not_arrived_before_the_new_nsd_holds_all() {
    with_pool(Scheme::Replicate(1), 1, DISK_BYTES, async |rig| {
        let segments = fill(&rig, 64).await;
        rig.add_nsd(2).await;
        let moving = rig.pool.groups().moving();
        let mut arrived = 0;
        for (group, slot) in &moving {
            let has = segments.iter().any(|(place, _)| place.group == *group);
            let slots = rig
                .pool
                .arrived_slots(*group)
                .await
                .expect("members answer");
            assert_eq!(slots.contains(slot), !has);
            arrived += slots.len();
        }
        assert_eq!((moving.len(), arrived), (16, 0));
    });
}

/// Would be broken if a slot left an NSD that is away with the only copies of what was written while the other failure
/// group was away: nobody would look for them there any more, and a drained NSD would be called lost.
#[test]
fn a_slot_does_not_leave_an_nsd_that_may_have_the_only_copy() {
    with_pool(Scheme::Replicate(2), 2, DISK_BYTES, async |rig| {
        let (one, two) = (NsdId(1), NsdId(2));
        let other = rig.disconnect(two);
        let segments = fill(&rig, 20).await;
        assert!(segments.iter().all(|(place, _)| place.scheme.width() == 1));
        rig.connect(other).await;
        // Another one on the first one's node takes some of its slots.
        rig.connect(make_nsd(&rig.world, 3).await).await;
        let beside = NsdEntry {
            failure_group: entry(1).failure_group,
            ..entry(3)
        };
        rig.set_map(placement::add_nsd(&rig.pool.map(), beside).expect("a new number"))
            .await;
        let moving = rig.pool.groups().moving();
        assert!(!moving.is_empty());
        let away = rig.disconnect(one);
        for (group, _) in &moving {
            let arrived = rig.pool.arrived_slots(*group).await;
            assert!(arrived.expect("two answer").is_empty(), "group {group}");
        }
        rig.connect(away).await;
        rig.repair_all().await;
        assert_eq!(rig.pool.groups().moving(), []);
        must_read(&rig, &segments, "").await;
    });
}

/// Would be broken if only a pool that is of two failure groups now could have single copies: the NSD that is added when
/// one has died makes it a pool of three.
#[test]
fn a_slot_does_not_leave_an_nsd_with_the_only_copy_when_a_third_one_has_come() {
    with_pool(Scheme::Replicate(2), 2, DISK_BYTES, async |rig| {
        let (one, two) = (NsdId(1), NsdId(2));
        let other = rig.disconnect(two);
        let segments = fill(&rig, 20).await;
        assert!(segments.iter().all(|(place, _)| place.scheme.width() == 1));
        rig.add_nsd(3).await;
        rig.connect(other).await;
        let groups = rig.pool.groups();
        let mut leaving = groups.moving();
        leaving.retain(|(group, slot)| {
            let members = groups.members(*group)[usize::from(*slot)];
            members.current == one
        });
        assert!(!leaving.is_empty());
        let away = rig.disconnect(one);
        for (group, _) in &leaving {
            let arrived = rig.pool.arrived_slots(*group).await;
            assert!(arrived.expect("two answer").is_empty(), "group {group}");
        }
        rig.connect(away).await;
        rig.repair_all().await;
        assert_eq!(rig.pool.groups().moving(), []);
        must_read(&rig, &segments, "").await;
    });
}

#[test]
fn a_survey_describes_segments_so_that_they_can_be_read() {
    with_pool(WIDE, 6, DISK_BYTES, async |rig| {
        let segments = fill(&rig, 20).await;
        for (place, bytes) in &segments {
            let survey = rig
                .pool
                .survey(place.group, None, 16)
                .await
                .expect("members answer");
            let found = survey
                .segments
                .iter()
                .find(|segment| segment.place.segment == place.segment)
                .expect("listed");
            assert_eq!((found.place, found.owner), (*place, OWNER));
            assert_eq!(
                (found.absent.len(), found.present.len()),
                (0, place.scheme.width())
            );
            assert_eq!(rig.read(&found.place).await, bytes);
        }
    });
}

#[test]
fn pieces_only_on_a_slots_old_nsd_are_handed_over() {
    with_pool(Scheme::Replicate(1), 1, DISK_BYTES, async |rig| {
        rig.add_nsd(2).await;
        let moving = rig.pool.groups().moving();
        // All slots have arrived; then a write finds the next NSD full.
        let next = rig.disconnect(NsdId(2));
        let mut segments = fill(&rig, 64).await;
        segments.retain(|(place, _)| moving.iter().any(|(group, _)| *group == place.group));
        rig.connect(next).await;
        rig.set_map(placement::finish_moves(&rig.pool.map(), &moving))
            .await;
        for (group, _) in &moving {
            let left = rig.pool.leave_group(NsdId(1), *group).await;
            left.expect("it isn't a member");
        }
        assert!(segments.len() > 10);
        for (place, bytes) in &segments {
            assert_eq!(rig.read(place).await, bytes);
            assert!(rig.is_whole(place).await);
        }
    });
}

#[test]
fn pieces_that_a_slots_new_nsd_cannot_take_stay_on_the_old_one() {
    with_pool(Scheme::Replicate(1), 1, DISK_BYTES, async |rig| {
        let segments = fill(&rig, 64).await;
        rig.add_nsd(2).await;
        rig.repair_all().await;
        let next = rig.disconnect(NsdId(2));
        let groups = rig.pool.groups();
        let is_moved = |place: &SegmentPlace| groups.is_member(NsdId(2), place.group);
        let (place, bytes) = segments
            .iter()
            .find(|(place, _)| is_moved(place))
            .expect("some");
        let left = rig.pool.leave_group(NsdId(1), place.group).await;
        let left = left.expect_err("the slot's new NSD is away");
        assert_eq!(left.kind(), model::ErrorKind::Unavailable);
        rig.connect(next).await;
        rig.pool
            .leave_group(NsdId(1), place.group)
            .await
            .expect("it is back");
        assert_eq!(rig.read(place).await, bytes);
    });
}

#[test]
fn a_slots_old_nsd_refuses_puts_of_writers_with_the_old_map() {
    with_pool(Scheme::Replicate(1), 1, DISK_BYTES, async |rig| {
        rig.add_nsd(2).await;
        let moving = rig.pool.groups().moving();
        let old = rig.pool.map();
        rig.set_map(placement::finish_moves(&old, &moving)).await;
        let (group, _) = moving[0];
        let name = model::BlobName {
            group,
            segment: rig.source.next(),
            piece: 0,
        };
        let place = SegmentPlace {
            segment: name.segment,
            group,
            scheme: Scheme::Replicate(1),
            skipped_slots: 0,
            missing: 0,
            length: 5,
            crc: 0,
        };
        let put = model::nsd::BlobPut {
            name,
            nonce: 1,
            header: OWNER.header(&place),
            payload: plain(5, 1).into(),
            fence: old.version(group),
        };
        let nsd = rig.nsd(NsdId(1));
        let refused = nsd.put(put).await.expect_err("the slot has left it");
        assert_eq!(refused.kind(), model::ErrorKind::OldEpoch);
    });
}

#[test]
fn a_late_delete_does_not_meet_a_piece_that_came_back_with_its_slot() {
    with_pool(Scheme::Replicate(1), 1, DISK_BYTES, async |rig| {
        let written = fill(&rig, 40).await;
        rig.add_nsd(2).await;
        let moving = rig.pool.groups().moving();
        let before = rig.pool.map();
        let is_moving =
            |place: &SegmentPlace| moving.iter().any(|(group, _)| *group == place.group);
        let (place, bytes) = written
            .into_iter()
            .find(|(place, _)| is_moving(place))
            .expect("one");
        // Decided by this map, and sent only after the slot has moved away and back.
        let late = crate::deletion::fenced(&rig.pool.groups(), &[place.blob(0)]);
        let mut back = placement::finish_moves(&before, &moving);
        rig.set_map(back.clone()).await;
        for (group, _) in &moving {
            let generation = &mut back.generations[0];
            generation
                .exceptions
                .retain(|(other, _), _| *other != group.0);
            let version = generation.versions.get_mut(&group.0).expect("it has moved");
            *version = version.next();
        }
        back.epoch = back.epoch.next();
        rig.set_map(back).await;
        let nsd = rig.nsd(NsdId(1));
        let refused = nsd.delete(late).await.expect_err("it is late");
        assert_eq!(refused.kind(), model::ErrorKind::OldEpoch);
        assert_eq!(rig.read(&place).await, bytes);
    });
}

#[test]
fn deleting_on_an_nsd_that_hangs_is_given_up() {
    with_pool(Scheme::Replicate(2), 3, DISK_BYTES, async |rig| {
        const MINUTE: std::time::Duration = std::time::Duration::from_secs(60);
        let (place, _) = fill(&rig, 1).await.pop().expect("one");
        let nsd = rig.holder(&place, 0);
        rig.faults.slow(&nsd.to_string(), 10 * MINUTE);
        let begun = rig.world.now();
        let late = rig.pool.delete_blobs(nsd, &[place.blob(0)]).await;
        late.expect_err("it doesn't answer");
        assert!(rig.world.now() - begun < MINUTE);
    });
}

#[test]
fn a_new_map_does_not_wait_for_a_hanging_nsd_that_is_lost() {
    with_pool(Scheme::Replicate(2), 3, DISK_BYTES, async |rig| {
        const MINUTE: std::time::Duration = std::time::Duration::from_secs(60);
        rig.faults.slow("2", 10 * MINUTE);
        let begun = rig.world.now();
        let lost = placement::mark_lost(&rig.pool.map(), NsdId(2)).expect("known");
        rig.set_map(lost).await;
        assert!(rig.world.now() - begun < MINUTE);
        rig.faults.slow("3", 10 * MINUTE);
        let map = placement::add_nsd(&rig.pool.map(), entry(4)).expect("a new number");
        let late = rig.pool.set_map(map).await.expect_err("one doesn't answer");
        assert_eq!(late.kind(), model::ErrorKind::Unavailable);
        assert!(rig.world.now() - begun < 2 * MINUTE);
    });
}

/// Would be broken if repair read from, or rebuilt onto, some NSDs more than others: then a rebuild takes
/// as long as the busiest of them needs.
#[test]
fn a_rebuild_burdens_all_survivors_alike() {
    with_pool(WIDE, 12, DISK_BYTES, async |rig| {
        for index in 0..480 {
            rig.write(&plain(70_000, index)).await;
        }
        rig.disconnect(NsdId(5));
        let before = rig.pool.nsd_states();
        rig.set_map(placement::mark_lost(&rig.pool.map(), NsdId(5)).expect("known"))
            .await;
        rig.repair_all().await;
        assert_eq!(rig.pool.repair_progress().moving_slots, 0);
        let after = rig.pool.nsd_states();
        let of_survivors = |bytes: fn(&NsdStatus) -> u64| -> Vec<u64> {
            let pairs = before.iter().zip(&after);
            let kept = pairs.filter(|(_, now)| now.entry.nsd != NsdId(5));
            kept.map(|(then, now)| bytes(now) - bytes(then)).collect()
        };
        let read = of_survivors(|state| state.bytes_read);
        let written = of_survivors(|state| state.bytes_written);
        for (did, burden) in [("read", read), ("written", written)] {
            let mean = burden.iter().sum::<u64>() as f64 / burden.len() as f64;
            assert!(mean > 100_000.0, "{burden:?}");
            let differences = burden.iter().map(|it| (*it as f64 - mean).abs() / mean);
            let greatest = differences.fold(0.0, f64::max);
            println!(
                "rebuild after a loss: {} survivors, each has {did} {mean:.0} bytes within {:.1} %",
                burden.len(),
                100.0 * greatest
            );
            assert!(greatest <= 0.25, "mean {mean}: {burden:?}");
        }
    });
}

/// Would be broken if a write could end in groups that take no new segments, or a reader with an older
/// map failed.
#[test]
fn writes_go_into_the_newest_generation_and_readers_wait_for_its_map() {
    with_pool(Scheme::Replicate(2), 6, DISK_BYTES, async |rig| {
        let old = fill(&rig, 8).await;
        let before = (*rig.pool.map()).clone();
        let changed = placement::new_generation(&before, WIDE, Some(64 * 1024), 3).expect("six");
        rig.set_map(changed.clone()).await;
        let new = fill(&rig, 8).await;
        assert!(
            new.iter()
                .all(|(place, _)| changed.newest().contains(place.group))
        );
        assert!(old.iter().all(|(place, _)| rig.pool.is_closed(place)));
        for (place, bytes) in old.iter().chain(&new) {
            assert_eq!(rig.read(place).await, bytes);
            assert!(rig.is_whole(place).await);
        }
        let parts = rig.pool.write_parts(&rig.source, OWNER, plain(200_000, 9));
        let lengths: Vec<u32> = parts
            .await
            .expect("room")
            .iter()
            .map(|it| it.length)
            .collect();
        assert_eq!(lengths, [65_536, 65_536, 65_536, 3_392]);
        // Another process that still has the map before.
        let late = Pool::new(rig.world.clone(), before, Vec::new());
        for nsd in rig.opened.lock().values() {
            late.add_nsd(nsd.clone());
        }
        assert!(!late.is_behind(), "it hasn't heard of it");
        let refused = late.write(&rig.source, OWNER, plain(10, 1)).await;
        let refused = refused.expect_err("closed");
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
        assert!(late.is_behind());
        let (place, bytes) = &new[1];
        let (read, told) = futures::future::join(late.read_whole(place), async {
            rig.world.sleep(Duration::from_secs(1)).await;
            late.set_map(changed).await
        })
        .await;
        told.expect("told");
        assert!(!late.is_behind(), "it has the newer map");
        assert_eq!(read.expect("the map came"), bytes);
        // Once the generation has left the map its places are stale.
        let dropped = placement::drop_generation(&rig.pool.map(), GroupId(0)).expect("closed");
        rig.set_map(dropped).await;
        let stale = rig.pool.read_whole(&old[0].0).await.expect_err("stale");
        assert_eq!(stale.kind(), ErrorKind::NotFound);
    });
}

/// Would be broken if who reads by a map that lacks the segment's group weren't told that a newer one may come: a program got
/// EIO after seconds.
#[test]
fn who_reads_by_an_old_map_knows_that_it_is_one() {
    with_pool(Scheme::Replicate(2), 4, DISK_BYTES, async |rig| {
        let before = (*rig.pool.map()).clone();
        let changed = placement::new_generation(&before, Scheme::Replicate(3), None, 3);
        let changed = changed.expect("four");
        rig.set_map(changed.clone()).await;
        let bytes = plain(10, 1);
        let place = rig.write(&bytes).await;
        let late = Pool::new(rig.world.clone(), before, Vec::new());
        for nsd in rig.opened.lock().values() {
            late.add_nsd(nsd.clone());
        }
        assert!(!late.is_behind(), "it has asked nobody");
        let unknown = late.read_whole(&place).await.expect_err("no such group");
        assert_eq!(unknown.kind(), ErrorKind::Unavailable, "{unknown}");
        assert!(late.is_behind());
        late.set_map(changed).await.expect("told");
        assert!(!late.is_behind(), "it has the newer map");
        assert_eq!(late.read_whole(&place).await.expect("it is there"), bytes);
    });
}

#[test]
fn a_closed_generation_is_empty_when_no_nsd_has_a_blob_of_it_and_all_know() {
    with_pool(Scheme::Replicate(2), 4, DISK_BYTES, async |rig| {
        let segments = fill(&rig, 8).await;
        let changed = placement::new_generation(&rig.pool.map(), Scheme::Replicate(3), None, 3);
        rig.set_map(changed.expect("four")).await;
        let closed = rig.pool.map().closed()[0].clone();
        assert!(!rig.pool.is_emptied(&closed).await.expect("all answer"));
        let places: Vec<SegmentPlace> = segments.iter().map(|(place, _)| *place).collect();
        rig.pool.delete(&places).await.expect("all answer");
        assert!(rig.pool.is_emptied(&closed).await.expect("all answer"));
        let away = rig.disconnect(NsdId(2));
        let unknown = rig.pool.is_emptied(&closed).await.expect_err("one is away");
        assert_eq!(unknown.kind(), ErrorKind::Unavailable);
        rig.connect(away).await;
        assert!(rig.pool.is_emptied(&closed).await.expect("all answer"));
    });
}

#[test]
fn groups_that_survive_the_fewest_losses_are_repaired_first() {
    with_pool(WIDE, 9, DISK_BYTES, async |rig| {
        for nsd in [2, 7] {
            rig.disconnect(NsdId(nsd));
        }
        let must_be_first = |twice: u64| {
            let groups = rig.pool.groups();
            let lost = |group: &GroupId| {
                let members = groups.members(*group).iter();
                members
                    .filter(|slot| [2, 7].contains(&slot.current.0))
                    .count()
            };
            let order: Vec<usize> = rig.pool.groups_by_need().iter().map(lost).collect();
            assert_eq!((order[0], order.len()), (2, 288));
            assert!(order.is_sorted_by(|a, b| a >= b), "{order:?}");
            let critical = order.iter().filter(|lost| **lost == 2).count() as u64;
            assert_eq!(rig.pool.critical_groups(), critical);
            assert!(twice == 0 || twice == critical);
            critical
        };
        let twice = must_be_first(0);
        // Given up, each slot has a next NSD, which has nothing yet.
        for nsd in [2, 7] {
            let lost = placement::mark_lost(&rig.pool.map(), NsdId(nsd));
            rig.set_map(lost.expect("it was in use")).await;
        }
        assert_eq!(must_be_first(twice), twice);
    });
}

/// Would be broken if the pieces of an owner's failed attempt stayed on NSDs that didn't delete them by the old map:
/// until the owner's next run, and a slot never left it.
#[test]
fn pieces_of_a_failed_write_go_although_the_writer_has_an_old_map() {
    with_pool(Scheme::Replicate(2), 2, DISK_BYTES, async |rig| {
        let place = rig.pool.write(&source(77), OWNER, plain(100_000, 1)).await;
        let place = place.expect("written");
        let newer = newer_map(&rig).await;
        let pool = rig.pool.clone();
        let deleting = rig.world.spawn(
            "a delete",
            async move { pool.delete_by_newest(&[place]).await },
        );
        rig.world.sleep(std::time::Duration::from_secs(1)).await;
        assert_eq!(stored(&rig).await, [1], "the first NSD refuses");
        rig.set_map(newer).await;
        deleting.await.expect("deleted");
        assert!(stored(&rig).await.is_empty());
    });
}

fn source(session: u64) -> crate::SegmentSource {
    crate::SegmentSource::new(model::SessionId(session))
}

/// The segments of which there are pieces, by their counters.
async fn stored(rig: &Rig) -> Vec<u64> {
    let mut stored = Vec::new();
    let groups: Vec<_> = rig.pool.map().all_groups().collect();
    for group in groups {
        let survey = rig.pool.survey(group, None, 100).await.expect("surveyed");
        let found = survey.segments.into_iter();
        stored.extend(found.map(|it| it.place.segment.counter));
    }
    stored
}

/// A map with newer versions of all groups. The first NSD has heard of it, the others and the pool haven't.
async fn newer_map(rig: &Rig) -> PoolMap {
    let mut newer = (*rig.pool.map()).clone();
    let groups: Vec<_> = newer.all_groups().collect();
    let version = model::GroupVersion::FIRST.next();
    newer.epoch = newer.epoch.next();
    newer.generations[0].versions = groups.iter().map(|group| (group.0, version)).collect();
    let fences: Vec<_> = groups
        .iter()
        .map(|group| model::nsd::GroupFence {
            group: *group,
            version,
        })
        .collect();
    let deadline = world::Deadline::after(&rig.world, std::time::Duration::from_secs(5));
    let first = rig.pool.handle(NsdId(1)).expect("it is there");
    first.learn_groups(&fences, deadline).await.expect("heard");
    newer
}

#[test]
fn a_write_by_an_old_map_leaves_nothing_behind() {
    with_pool(Scheme::Replicate(2), 2, DISK_BYTES, async |rig| {
        let newer = newer_map(&rig).await;
        let pool = rig.pool.clone();
        let writing = rig.world.spawn("a write", async move {
            pool.write(&source(77), OWNER, plain(100_000, 1)).await
        });
        rig.world.sleep(std::time::Duration::from_secs(1)).await;
        rig.set_map(newer).await;
        assert_eq!(writing.await.expect("written").segment.counter, 2);
        let mut left = stored(&rig).await;
        for _ in 0..100 {
            if left == [2] {
                break;
            }
            rig.world.sleep(std::time::Duration::from_millis(50)).await;
            left = stored(&rig).await;
        }
        assert_eq!(left, [2]);
    });
}
