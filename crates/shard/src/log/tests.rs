//! The log's promises: on all members, in order, across changes of the view.

use crate::rig::{SHARD, commit, frame, machine, open, opened_nsd, power_on, value};
use futures::future::join_all;
use model::map::NsdState;
use model::{EntryNumber, FamilyId, NodeId, NodeRun, NsdId, Scheme};
use std::time::Duration;

const THREE: Scheme = Scheme::Replicate(3);

#[test]
fn an_acknowledged_entry_is_on_every_member_of_the_view() {
    machine(11, THREE, 5)
        .run(|world| async move {
            let opening = power_on(&world, &[]).await;
            let opened = open(opening.clone()).await.unwrap();
            let frames: Vec<_> = (1..=30)
                .map(|number| frame(number, &[("k", Some("v"))]))
                .collect();
            let entries =
                join_all(frames.iter().map(|frame| opened.log.append_commit(frame))).await;
            let entries: Vec<EntryNumber> =
                entries.into_iter().map(|entry| entry.unwrap()).collect();
            assert!(
                entries.windows(2).all(|pair| pair[0].next() == pair[1]),
                "numbers follow the order of calls"
            );
            for nsd in opened.log.view() {
                let held = opened_nsd(nsd)
                    .log_read(SHARD, entries[0], 1000)
                    .await
                    .unwrap();
                assert!(held.len() >= entries.len(), "NSD {nsd}");
            }
        })
        .finished();
}

#[test]
fn a_failed_member_is_replaced_before_the_next_acknowledgment() {
    let machine = machine(12, THREE, 5);
    let faults = machine.faults();
    let view = machine
        .run(|world| async move {
            let opening = power_on(&world, &[]).await;
            let opened = open(opening.clone()).await.unwrap();
            commit(&opened, 1, &[("a", Some("1"))]).await.unwrap();
            let old = opened.log.view();
            faults.fail(&old[1].to_string());
            let before = world.now();
            commit(&opened, 2, &[("b", Some("2"))]).await.unwrap();
            assert!(world.now() - before < Duration::from_secs(1));
            let new = opened.log.view();
            assert_eq!(new.len(), 3);
            assert!(!new.contains(&old[1]));
            let record = opening
                .coordination
                .shard(SHARD)
                .await
                .unwrap()
                .unwrap()
                .value;
            assert_eq!(record.view, new);
            assert_eq!(record.closed.len(), 1);
            let missing = new.iter().find(|nsd| !old.contains(nsd)).unwrap();
            let held = opened_nsd(*missing)
                .log_read(SHARD, record.first_entry, 100)
                .await
                .unwrap();
            assert!(
                !held.is_empty(),
                "what wasn't acknowledged is put to the new member"
            );
            new
        })
        .finished();
    machine.faults().heal("1");
    for nsd in 1..=5 {
        machine.faults().heal(&nsd.to_string());
    }
    machine
        .run(|world| async move {
            let opened = open(power_on(&world, &[view[0].0, view[1].0]).await)
                .await
                .unwrap();
            assert_eq!(value(&opened, "a").await.as_deref(), Some("1"));
            assert_eq!(value(&opened, "b").await.as_deref(), Some("2"));
        })
        .finished();
}

#[test]
fn an_owner_whose_shard_is_assigned_to_another_still_replaces_a_failed_member() {
    let machine = machine(18, THREE, 5);
    let faults = machine.faults();
    machine
        .run(|world| async move {
            let opening = power_on(&world, &[]).await;
            let opened = open(opening.clone()).await.unwrap();
            commit(&opened, 1, &[("a", Some("1"))]).await.unwrap();
            let coordination = &opening.coordination;
            let record = coordination.shard(SHARD).await.unwrap().unwrap();
            let other = NodeRun {
                node: NodeId(2),
                incarnation: 1,
            };
            let from = record.value.assigned;
            coordination.assign_shard(SHARD, from, other).await.unwrap();
            faults.fail(&opened.log.view()[1].to_string());
            commit(&opened, 2, &[("b", Some("2"))]).await.unwrap();
            let record = coordination.shard(SHARD).await.unwrap().unwrap();
            assert_eq!(record.value.view, opened.log.view());
            assert_eq!(record.value.assigned, Some(other));
        })
        .finished();
}

/// Two changes of the record are lost to their owner and take effect late: a family and a trim.
#[test]
fn an_owner_goes_on_with_a_record_that_its_own_late_write_has_changed() {
    let machine = machine(19, THREE, 5);
    let faults = machine.faults();
    machine
        .run(|world| async move {
            let opening = power_on(&world, &[]).await;
            let opened = open(opening.clone()).await.unwrap();
            commit(&opened, 1, &[("a", Some("1"))]).await.unwrap();
            let coordination = &opening.coordination;
            let mut record = coordination.shard(SHARD).await.unwrap().unwrap();
            record.value.families.push(FamilyId(3));
            let late = coordination.add_family(record.version, &record.value, FamilyId(3));
            late.await.unwrap();
            // Nothing is lost of it, whatever is written next.
            let marker = record.value.marker + 1;
            opened.log.record_marker(marker).await.unwrap();

            let mut record = coordination.shard(SHARD).await.unwrap().unwrap();
            assert_eq!(record.value.marker, marker);
            record.value.families.push(FamilyId(4));
            let late = coordination.add_family(record.version, &record.value, FamilyId(4));
            late.await.unwrap();
            let families = opened.log.add_family(FamilyId(4)).await.unwrap();
            assert_eq!(families, [0, 3, 4].map(FamilyId));

            let mut record = coordination.shard(SHARD).await.unwrap().unwrap();
            record.value.trimmed_below = EntryNumber(1);
            let late = coordination.set_shard(record.version, &record.value);
            late.await.unwrap();
            faults.fail(&opened.log.view()[1].to_string());
            commit(&opened, 2, &[("b", Some("2"))]).await.unwrap();
            let record = coordination.shard(SHARD).await.unwrap().unwrap();
            assert_eq!(record.value.view, opened.log.view());
            assert_eq!(record.value.families, [0, 3, 4].map(FamilyId));
            assert_eq!(opened.log.failed(), None);
        })
        .finished();
}

#[test]
fn a_late_member_is_replaced_in_a_fraction_of_a_second() {
    let machine = machine(13, THREE, 5);
    let faults = machine.faults();
    machine
        .run(|world| async move {
            let opened = open(power_on(&world, &[]).await).await.unwrap();
            let old = opened.log.view();
            faults.slow(&old[0].to_string(), Duration::from_secs(30));
            let before = world.now();
            commit(&opened, 1, &[("a", Some("1"))]).await.unwrap();
            assert!(
                world.now() - before < Duration::from_secs(1),
                "{:?}",
                world.now() - before
            );
            assert!(!opened.log.view().contains(&old[0]));
        })
        .finished();
}

/// Each NSD is late, also each that takes the place of a late one.
#[test]
fn all_nsds_may_be_slow() {
    let machine = machine(19, Scheme::Replicate(2), 3);
    let faults = machine.faults();
    machine
        .run(|world| async move {
            let opened = open(power_on(&world, &[]).await).await.unwrap();
            for nsd in 1..=3 {
                faults.slow(&nsd.to_string(), Duration::from_millis(400));
            }
            for number in 1..=20 {
                let commit = commit(&opened, number, &[("a", Some("1"))]);
                let written = world.timeout(Duration::from_secs(60), commit).await;
                written.expect("it is acknowledged").unwrap();
            }
            let view = opened.log.view();
            for number in 21..=40 {
                let begun = world.now();
                commit(&opened, number, &[("a", Some("1"))]).await.unwrap();
                assert!(world.now() - begun < Duration::from_secs(2));
            }
            assert_eq!(opened.log.view(), view, "nothing is replaced any more");
            // Fast again, a member that is slow alone is late as before.
            (1..=3).for_each(|nsd| faults.heal(&nsd.to_string()));
            for number in 41..=60 {
                commit(&opened, number, &[("a", Some("1"))]).await.unwrap();
            }
            faults.slow(&view[0].to_string(), Duration::from_secs(30));
            let begun = world.now();
            commit(&opened, 61, &[("a", Some("1"))]).await.unwrap();
            assert!(world.now() - begun < Duration::from_secs(1));
        })
        .finished();
}

#[test]
fn the_only_nsd_may_be_slow() {
    let machine = machine(14, Scheme::Replicate(1), 1);
    let faults = machine.faults();
    machine
        .run(|world| async move {
            let opened = open(power_on(&world, &[]).await).await.unwrap();
            faults.slow("1", Duration::from_millis(700));
            commit(&opened, 1, &[("a", Some("1"))]).await.unwrap();
            assert_eq!(opened.log.view(), [NsdId(1)]);
        })
        .finished();
}

#[test]
fn a_dropped_append_leaves_no_hole() {
    let machine = machine(15, Scheme::Replicate(1), 1);
    machine
        .run(|world| async move {
            let opened = open(power_on(&world, &[]).await).await.unwrap();
            let first = frame(1, &[("a", Some("1"))]);
            // One append never polled, one polled once.
            drop(opened.log.append_commit(&first));
            let second = opened.log.append_commit(&frame(2, &[("b", Some("2"))]));
            let _late = world.timeout(Duration::ZERO, second).await;
            commit(&opened, 3, &[("c", Some("3"))]).await.unwrap();
        })
        .finished();
    // The tree got only the third and wasn't closed: the log has all of them.
    machine
        .run(|world| async move {
            let opened = open(power_on(&world, &[]).await).await.unwrap();
            assert_eq!(opened.last_commit.0, 3);
            for key in ["a", "b", "c"] {
                assert!(value(&opened, key).await.is_some(), "{key}");
            }
        })
        .finished();
}

#[test]
fn a_payload_longer_than_an_entry_goes_in_parts_and_comes_back_whole() {
    let machine = machine(16, Scheme::Replicate(1), 1);
    machine
        .run(|world| async move {
            let opened = open(power_on(&world, &[]).await).await.unwrap();
            let long = "x".repeat(10 << 20);
            commit(&opened, 1, &[("long", Some(&long)), ("short", Some("s"))])
                .await
                .unwrap();
            commit(&opened, 2, &[("next", Some("n"))]).await.unwrap();
        })
        .finished();
    machine
        .run(|world| async move {
            let opened = open(power_on(&world, &[]).await).await.unwrap();
            assert_eq!(
                value(&opened, "long").await.map(|text| text.len()),
                Some(10 << 20)
            );
            assert_eq!(value(&opened, "next").await.as_deref(), Some("n"));
        })
        .finished();
}

#[test]
fn a_trimmed_log_replays_from_its_snapshot() {
    let machine = machine(17, Scheme::Replicate(1), 1);
    machine
        .run(|world| async move {
            let opening = power_on(&world, &[]).await;
            let opened = open(opening.clone()).await.unwrap();
            for number in 1..=100 {
                commit(&opened, number, &[("k", Some(&number.to_string()))])
                    .await
                    .unwrap();
            }
            opened.tree.close().await.unwrap();
            let record = opening
                .coordination
                .shard(SHARD)
                .await
                .unwrap()
                .unwrap()
                .value;
            assert!(record.trimmed_below > EntryNumber(64));
            let left = opened_nsd(NsdId(1))
                .log_read(SHARD, EntryNumber(1), 1000)
                .await
                .unwrap();
            assert_eq!(left[0].number, record.trimmed_below);
        })
        .finished();
    machine
        .run(|world| async move {
            let opened = open(power_on(&world, &[]).await).await.unwrap();
            assert_eq!(opened.last_commit.0, 100);
            assert_eq!(value(&opened, "k").await.as_deref(), Some("100"));
        })
        .finished();
}

/// Would be broken if entries were as old as those before them that were flushed: a quiet shard would flush every commit to a
/// table of its own.
#[test]
fn an_entry_is_as_old_as_itself_and_not_as_those_before_it() {
    const PAUSE: Duration = Duration::from_secs(30);
    machine(29, Scheme::Replicate(1), 1)
        .run(|world| async move {
            let opened = open(power_on(&world, &[]).await).await.unwrap();
            commit(&opened, 1, &[("a", Some("1"))]).await.unwrap();
            let first = opened.log.acknowledged();
            world.sleep(PAUSE).await;
            let before = opened.log.acknowledged();
            commit(&opened, 2, &[("a", Some("2"))]).await.unwrap();
            let old = opened.log.behind(EntryNumber(first.0 - 1));
            assert!(old.age >= PAUSE, "{old:?}");
            let young = opened.log.behind(before);
            assert!(young.entries > 0 && young.age < PAUSE / 2, "{young:?}");
        })
        .finished();
}

/// Would be broken if only the first of them were tried, whose place no other NSD can take before the second one has left.
#[test]
fn a_log_leaves_two_nsds_that_are_given_up_whichever_can_go_first() {
    machine(27, Scheme::Replicate(2), 3)
        .run(|world| async move {
            let opening = power_on(&world, &[]).await;
            let opened = open(opening.clone()).await.unwrap();
            commit(&opened, 1, &[("a", Some("1"))]).await.unwrap();
            let before = opened.log.view();
            assert_eq!(before.len(), 2);
            let mut map = (*opening.pool.map()).clone();
            map.epoch = map.epoch.next();
            let of_second = map.nsd(before[1]).unwrap().failure_group;
            for entry in &mut map.nsds {
                match before.contains(&entry.nsd) {
                    true => entry.state = NsdState::Draining,
                    false => entry.failure_group = of_second,
                }
            }
            opening.pool.set_map(map).await.unwrap();
            for _ in &before {
                // One NSD is enough for the log.
                opened.log.leave_given_up(1).await.unwrap();
            }
            let after = opened.log.view();
            assert_eq!(after.len(), 1, "{after:?}");
            assert!(!before.contains(&after[0]), "{after:?}");
            commit(&opened, 2, &[("b", Some("2"))]).await.unwrap();
            assert_eq!(value(&opened, "a").await.as_deref(), Some("1"));
        })
        .finished();
}
