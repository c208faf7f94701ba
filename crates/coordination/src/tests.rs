//! Coordination's promises, with power cuts at every I/O.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::{Change, Coordination, EMBEDDED_REGION_BYTES, News, Roster, ShardRecord};
use bytes::Bytes;
use model::{
    EntryNumber, ErrorKind, FamilyId, GroupId, GroupVersion, MapEpoch, NodeId, NodeRun, NsdId,
    Scheme, SessionId, ShardEpoch, ShardId,
};
use std::path::Path;
use std::time::Duration;
use world::World;
use world::sim::{Cut, Faults, Outcome, Simulation};

const DISK: &str = "coordination";
/// Offset of the version in a slot: a byte that exists however short the state is.
const VERSION_AT: u64 = 16;

async fn open(world: &World) -> model::Result<Coordination> {
    Coordination::embedded(world, world.open_disk(Path::new(DISK)).unwrap()).await
}

fn simulation(seed: u64) -> Simulation {
    let simulation = Simulation::new(seed);
    simulation.disk(DISK, EMBEDDED_REGION_BYTES);
    simulation
}

fn finished<T>(outcome: Outcome<T>) -> T {
    match outcome {
        Outcome::Finished(value) => value,
        Outcome::Crashed => panic!("no power cut was scheduled"),
    }
}

/// A map as the release before generations stored it: one NSD, a moving slot.
const MAP_WITHOUT_GENERATIONS: [u8; 25] = [
    3, // format
    2, // epoch
    0, 1, 7, 32, // replicate(1), seed, groups
    1, 1, 1, 20, 0, // drawn from NSD 1 in failure group 1, 20 GiB, active
    1, 1, 1, 20, 0, // the same NSD now
    1, 5, 0, 2, 1, 3, // slot 0 of group 5: from NSD 2 to NSD 3
    1, 5, 2, // version of group 5
];

/// Would be broken if a file system of the release before generations couldn't be opened.
#[test]
fn a_map_of_the_time_before_generations_is_one_generation() {
    finished(simulation(1).run(|world| async move {
        let facts = open(&world).await.unwrap();
        let stored = Bytes::from_static(&MAP_WITHOUT_GENERATIONS);
        let written = facts
            .compare_and_set("pool/data", 0, Some(stored))
            .await
            .unwrap();
        let found = facts.pool_map("data").await.unwrap().unwrap();
        let map = &found.value;
        assert_eq!((found.version, map.epoch), (written, MapEpoch(2)));
        assert_eq!((map.generations.len(), map.nsds.len()), (1, 1));
        let first = map.newest();
        assert_eq!((first.first_group, first.groups), (GroupId(0), 32));
        assert_eq!((first.scheme, first.seed), (Scheme::Replicate(1), 7));
        assert_eq!((first.block_bytes, first.seeded.len()), (None, 1));
        assert_eq!(map.version(GroupId(5)), GroupVersion(2));
        assert_eq!(map.version(GroupId(4)), GroupVersion::FIRST);
        let moving = first.exceptions[&(5, 0)];
        assert_eq!((moving.current, moving.next), (NsdId(2), Some(NsdId(3))));
        let roster = Roster::read(&facts).await.unwrap();
        assert_eq!(roster.pools["data"], *map);
        // Its next change is stored with generations.
        facts.set_pool_map("data", written, map).await.unwrap();
        assert_eq!(facts.pool_map("data").await.unwrap().unwrap().value, *map);
        let stored = facts.get("pool/data").await.unwrap().found.unwrap();
        assert_eq!(stored.value[0], 4);
    }));
}

#[test]
fn a_map_without_any_generation_is_refused() {
    finished(simulation(1).run(|world| async move {
        let facts = open(&world).await.unwrap();
        let none = Bytes::from_static(&[4, 1, 0, 0, 0]);
        facts
            .compare_and_set("pool/data", 0, Some(none))
            .await
            .unwrap();
        let refused = facts.pool_map("data").await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Corrupt);
        assert!(Roster::read(&facts).await.is_err());
    }));
}

#[test]
fn a_counter_at_the_end_of_all_numbers_is_an_error() {
    finished(simulation(1).run(|world| async move {
        let facts = open(&world).await.unwrap();
        for key in ["sessions/next", "nsds/next", "nodes_next"] {
            facts.set_fact(key, 0, &u64::MAX).await.unwrap();
        }
        let refused = facts.next_session().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
        let refused = facts.next_nsd(NsdId(1)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
        let refused = facts.next_node().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
    }));
}

#[test]
fn a_change_with_an_old_version_is_refused_and_a_transaction_is_all_or_nothing() {
    finished(simulation(1).run(|world| async move {
        let facts = open(&world).await.unwrap();
        let first = facts
            .compare_and_set("a", 0, Some(Bytes::from_static(b"1")))
            .await
            .unwrap();
        let refused = facts.compare_and_set("a", 0, None).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Changed);
        let change = |key: &str, expected| Change::put(key, expected, "2");
        let refused = facts
            .transaction(vec![change("b", 0), change("a", first + 9)])
            .await
            .unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Changed);
        assert_eq!(facts.get("b").await.unwrap().found, None);
        let second = facts
            .transaction(vec![change("b", 0), change("a", first)])
            .await
            .unwrap();
        assert!(second > first);
        assert_eq!(facts.list("").await.unwrap().found.len(), 2);
        facts.compare_and_set("a", second, None).await.unwrap();
        // A key that is created again never gets an earlier version.
        let third = facts
            .compare_and_set("a", 0, Some(Bytes::new()))
            .await
            .unwrap();
        assert!(third > second + 1);
    }));
}

#[test]
fn changes_are_seen_by_watchers_and_survive_a_reopen() {
    let simulation = simulation(2);
    finished(simulation.run(|world| async move {
        let facts = open(&world).await.unwrap();
        let mut watch = facts.watch("config/", facts.list("").await.unwrap().revision);
        facts.set_config("block-size", 0, "4M").await.unwrap();
        assert!(matches!(
            watch.next(Duration::ZERO).await,
            News::Changed { .. }
        ));
    }));
    finished(simulation.run(|world| async move {
        let facts = open(&world).await.unwrap();
        assert_eq!(
            facts.config("block-size").await.unwrap().unwrap().value,
            "4M"
        );
    }));
}

#[test]
fn more_than_a_mebibyte_is_refused_and_changes_nothing() {
    finished(simulation(3).run(|world| async move {
        let facts = open(&world).await.unwrap();
        facts
            .compare_and_set("small", 0, Some(Bytes::from_static(b"x")))
            .await
            .unwrap();
        let refused = facts
            .compare_and_set("big", 0, Some(Bytes::from(vec![1; crate::STATE_BYTES_MAX])))
            .await
            .unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoSpace);
        assert_eq!(facts.list("").await.unwrap().found.len(), 1);
    }));
}

#[test]
fn a_shard_record_reads_back() {
    finished(simulation(4).run(|world| async move {
        let facts = open(&world).await.unwrap();
        let record = ShardRecord {
            shard: ShardId(1),
            families: vec![FamilyId(2)],
            assigned: Some(run(6, 1)),
            epoch: ShardEpoch(3),
            owner: SessionId(4),
            view: vec![NsdId(5), NsdId(6)],
            first_entry: EntryNumber(7),
            closed: vec![],
            ended: vec![],
            trimmed_below: EntryNumber(8),
            marker: 9,
        };
        let version = facts.set_shard(0, &record).await.unwrap();
        let read = facts.shard(ShardId(1)).await.unwrap().unwrap();
        assert_eq!((read.value, read.version), (record.clone(), version));
        assert_eq!(facts.shards().await.unwrap(), vec![record]);
    }));
}

#[test]
fn a_family_has_one_shard() {
    finished(simulation(4).run(|world| async move {
        let facts = open(&world).await.unwrap();
        let record = |shard, families: &[u32]| ShardRecord {
            shard: ShardId(shard),
            families: families.iter().copied().map(FamilyId).collect(),
            assigned: None,
            epoch: ShardEpoch(0),
            owner: SessionId(0),
            view: vec![],
            first_entry: EntryNumber(1),
            closed: vec![],
            ended: vec![],
            trimmed_below: EntryNumber(1),
            marker: 0,
        };
        let exists = |result: model::Result<()>| {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::Exists);
        };
        facts.create_shard(&record(1, &[2])).await.unwrap();
        exists(facts.create_shard(&record(1, &[3])).await);
        exists(facts.create_shard(&record(5, &[3, 2])).await);
        assert_eq!(facts.shard(ShardId(5)).await.unwrap(), None);
        assert_eq!(facts.shard_of(FamilyId(3)).await.unwrap(), None);
        facts.create_shard(&record(5, &[3])).await.unwrap();

        let first = facts.shard(ShardId(1)).await.unwrap().unwrap();
        let both = record(1, &[2, 3]);
        let taken = facts.add_family(first.version, &both, FamilyId(3)).await;
        exists(taken.map(drop));
        let more = record(1, &[2, 4]);
        let late = facts
            .add_family(first.version + 1, &more, FamilyId(4))
            .await;
        assert_eq!(late.unwrap_err().kind(), ErrorKind::Changed);
        assert_eq!(facts.shard_of(FamilyId(4)).await.unwrap(), None);
        facts
            .add_family(first.version, &more, FamilyId(4))
            .await
            .unwrap();
        assert_eq!(facts.shard_of(FamilyId(4)).await.unwrap(), Some(ShardId(1)));
        assert_eq!(facts.shard(ShardId(1)).await.unwrap().unwrap().value, more);
        // An attempt whose outcome wasn't known, once more.
        let again = facts.add_family(first.version, &more, FamilyId(4)).await;
        assert_eq!(again.unwrap_err().kind(), ErrorKind::Changed);
    }));
}

fn run(node: u32, incarnation: u64) -> NodeRun {
    NodeRun {
        node: NodeId(node),
        incarnation,
    }
}

#[test]
fn the_bytes_of_a_shard_record_are_those_of_the_format_table() {
    let record = ShardRecord {
        shard: ShardId(1),
        families: vec![FamilyId(2)],
        assigned: Some(run(300, 4)),
        epoch: ShardEpoch(3),
        owner: SessionId(4),
        view: vec![NsdId(5), NsdId(6)],
        first_entry: EntryNumber(7),
        closed: vec![],
        ended: vec![],
        trimmed_below: EntryNumber(8),
        marker: 9,
    };
    let bytes = [3, 1, 1, 2, 1, 0xac, 2, 4, 3, 4, 2, 5, 6, 7, 0, 0, 8, 9];
    finished(simulation(5).run(|world| async move {
        let facts = open(&world).await.unwrap();
        facts.set_shard(0, &record).await.unwrap();
        let stored = facts.get("shard/0000000001").await.unwrap();
        let stored = stored.found.unwrap();
        assert_eq!(stored.value[..], bytes);
        // An older program's record is refused by name, not misread.
        let mut older = bytes.to_vec();
        older[0] = 1;
        let key = "shard/0000000001";
        let older = Some(Bytes::from(older));
        facts
            .compare_and_set(key, stored.version, older)
            .await
            .unwrap();
        let refused = facts.shard(ShardId(1)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NotSupported);
        assert!(refused.to_string().contains("older Shale"), "{refused}");
    }));
}

#[test]
fn a_shard_is_assigned_only_away_from_the_run_that_the_decision_was_made_about() {
    finished(simulation(6).run(|world| async move {
        let facts = open(&world).await.unwrap();
        let shard = ShardId(1);
        let missing = facts.assign_shard(shard, None, run(1, 1)).await;
        assert_eq!(missing.unwrap_err().kind(), ErrorKind::NotFound);
        let mut record = ShardRecord {
            shard,
            families: vec![FamilyId(0)],
            assigned: None,
            epoch: ShardEpoch(0),
            owner: SessionId(0),
            view: vec![NsdId(1)],
            first_entry: EntryNumber(1),
            closed: vec![],
            ended: vec![],
            trimmed_below: EntryNumber(1),
            marker: 0,
        };
        facts.set_shard(0, &record).await.unwrap();
        let first = facts.assign_shard(shard, None, run(1, 1)).await.unwrap();
        record.assigned = Some(run(1, 1));
        assert_eq!(first.value, record);
        // Asking again, after an unknown outcome, changes nothing.
        let again = facts.assign_shard(shard, None, run(1, 1)).await.unwrap();
        assert_eq!(again, first);
        // Another manager decided on what it read earlier.
        let late = facts.assign_shard(shard, None, run(2, 1)).await;
        assert_eq!(late.unwrap_err().kind(), ErrorKind::Changed);
        // The owner's own changes of the record aren't in the way.
        record.view = vec![NsdId(2)];
        facts.set_shard(first.version, &record).await.unwrap();
        let moved = facts
            .assign_shard(shard, Some(run(1, 1)), run(2, 1))
            .await
            .unwrap();
        record.assigned = Some(run(2, 1));
        assert_eq!(moved.value, record);
    }));
}

#[test]
fn each_start_of_a_node_has_its_own_incarnation_also_after_a_restart() {
    let simulation = simulation(7);
    for expected in [[1, 2], [3, 4]] {
        let got = finished(simulation.run(|world| async move {
            let facts = open(&world).await.unwrap();
            facts.begin_run(NodeId(8)).await.unwrap();
            let second = facts.begin_run(NodeId(9)).await.unwrap();
            [second, facts.begin_run(NodeId(9)).await.unwrap()]
        }));
        assert_eq!(got, expected.map(|incarnation| run(9, incarnation)));
    }
}

#[test]
fn acknowledged_changes_survive_a_power_cut_at_every_io_and_sessions_never_repeat() {
    // Three blocks of ids.
    const SESSIONS: u64 = 150;
    for cut in [Cut::Before, Cut::After, Cut::Torn] {
        for at in 0.. {
            let simulation = simulation(at * 31 + 7);
            simulation.faults().cut_at_io(at, cut);
            let given = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
            let seen = given.clone();
            let outcome = simulation.run(|world| async move {
                let facts = open(&world).await.unwrap();
                for _ in 0..SESSIONS {
                    let session = facts.next_session().await.unwrap();
                    seen.lock().unwrap().push(session);
                }
            });
            simulation.faults().no_cut();
            let before = given.lock().unwrap().clone();
            let after = finished(simulation.run(|world| async move {
                let facts = open(&world).await.unwrap();
                let first = facts.next_session().await.unwrap();
                // Open again: ids issued after the first restart aren't issued again either.
                drop(facts);
                let facts = open(&world).await.unwrap();
                [first, facts.next_session().await.unwrap()]
            }));
            assert!(
                !before.contains(&after[0]) && !before.contains(&after[1]) && after[0] != after[1],
                "cut {cut:?} at {at}"
            );
            assert!(
                before.iter().all(|session| *session < after[0]),
                "cut {cut:?} at {at}"
            );
            if matches!(outcome, Outcome::Finished(())) {
                assert!(at > 6, "the cuts covered the run");
                break;
            }
        }
    }
}

#[test]
fn the_bytes_of_a_region_are_those_of_the_format_table() {
    let simulation = simulation(9);
    let disk = simulation.disk(DISK, EMBEDDED_REGION_BYTES);
    finished(simulation.run(|world| async move {
        let facts = open(&world).await.unwrap();
        // Version 3, which is the lease's name.
        let lease = facts.grant(Duration::from_secs(10)).await.unwrap().id;
        let change = Change::put_leased("key", 0, "value", lease);
        facts.transaction(vec![change]).await.unwrap();
    }));
    let mut slot = Vec::new();
    slot.extend(b"SHLCOORD");
    slot.extend(2u32.to_le_bytes());
    slot.extend((4 + 12 + 22 + 8u32).to_le_bytes());
    slot.extend(4u64.to_le_bytes());
    slot.extend([0; 4]);
    slot.extend(1u32.to_le_bytes());
    slot.extend(1u32.to_le_bytes());
    slot.extend(3u64.to_le_bytes());
    slot.extend(10u32.to_le_bytes());
    slot.extend(3u16.to_le_bytes());
    slot.extend(5u32.to_le_bytes());
    slot.extend(4u64.to_le_bytes());
    slot.extend(3u64.to_le_bytes());
    slot.extend(b"keyvalue");
    let crc = model::checksum::crc32c(&slot);
    slot[24..28].copy_from_slice(&crc.to_le_bytes());
    for copy in [0, EMBEDDED_REGION_BYTES / 4] {
        assert_eq!(disk.content(copy, slot.len()), slot);
    }
}

#[test]
fn what_another_version_of_shale_wrote_is_refused_and_left_as_it_is() {
    for (format, writer) in [(1, "an older Shale"), (3, "a newer Shale")] {
        let simulation = simulation(10);
        let disk = simulation.disk(DISK, EMBEDDED_REGION_BYTES);
        finished(simulation.run(|world| async move { open(&world).await.map(drop) })).unwrap();
        for slot in 0..4 {
            let at = slot * (EMBEDDED_REGION_BYTES / 4);
            let mut bytes = disk.content(at, 36);
            bytes[8] = format;
            bytes[24..28].fill(0);
            let crc = model::checksum::crc32c(&bytes);
            bytes[24..28].copy_from_slice(&crc.to_le_bytes());
            disk.overwrite(at, &bytes);
        }
        let before = disk.content(0, EMBEDDED_REGION_BYTES as usize);
        let refused = finished(simulation.run(|world| async move { open(&world).await.err() }));
        let refused = refused.unwrap();
        assert_eq!(refused.kind(), ErrorKind::NotSupported);
        assert!(refused.to_string().contains(writer), "{refused}");
        assert!(disk.content(0, EMBEDDED_REGION_BYTES as usize) == before);
    }
}

#[test]
fn a_watch_that_is_far_behind_is_lost() {
    finished(simulation(11).run(|world| async move {
        let facts = open(&world).await.unwrap();
        let mut watch = facts.watch("", facts.list("").await.unwrap().revision);
        for number in 0..9 {
            let change = |key| Change::put(format!("{number}/{key}"), 0, "x");
            facts
                .transaction((0..120).map(change).collect())
                .await
                .unwrap();
        }
        assert_eq!(watch.next(Duration::ZERO).await, News::Lost);
    }));
}

#[test]
fn a_lease_whose_end_the_disk_refuses_ends_later() {
    let simulation = simulation(12);
    let faults = simulation.faults();
    finished(simulation.run(|world| async move {
        let facts = open(&world).await.unwrap();
        let lease = facts.grant(Duration::from_secs(5)).await.unwrap().id;
        let change = Change::put_leased("key", 0, "x", lease);
        let version = facts.transaction(vec![change]).await.unwrap();
        faults.fail(DISK);
        world.sleep(Duration::from_secs(20)).await;
        // Its time is over, but its keys are there: there is no answer that would be true.
        let late = facts.keep_alive(lease).await.unwrap_err();
        assert_eq!(late.kind(), ErrorKind::Unavailable);
        assert!(facts.get("key").await.unwrap().found.is_some());
        faults.heal(DISK);
        let mut watch = facts.watch("key", version);
        let news = watch.next(Duration::from_secs(5)).await;
        assert!(matches!(news, News::Changed { .. }), "{news:?}");
        let ended = facts.keep_alive(lease).await.unwrap_err();
        assert_eq!(ended.kind(), ErrorKind::NotFound);
    }));
}

#[test]
fn one_rotten_copy_loses_nothing() {
    for slot in 0..4u64 {
        let simulation = simulation(40 + slot);
        let last = finished(simulation.run(|world| async move {
            let facts = open(&world).await.unwrap();
            facts.next_session().await.unwrap();
            facts.next_session().await.unwrap()
        }));
        simulation
            .faults()
            .flip_bit(DISK, slot * (EMBEDDED_REGION_BYTES / 4) + VERSION_AT);
        let next =
            finished(simulation.run(|world| async move {
                open(&world).await.unwrap().next_session().await.unwrap()
            }));
        assert!(next > last, "slot {slot}");
    }
}

#[test]
fn a_region_without_a_whole_copy_is_refused_not_formatted() {
    let simulation = simulation(50);
    finished(
        simulation
            .run(|world| async move { open(&world).await.unwrap().next_session().await.unwrap() }),
    );
    for slot in 0..4u64 {
        simulation
            .faults()
            .flip_bit(DISK, slot * (EMBEDDED_REGION_BYTES / 4) + VERSION_AT);
    }
    let refused = finished(
        simulation.run(|world| async move { open(&world).await.err().map(|error| error.kind()) }),
    );
    assert_eq!(refused, Some(ErrorKind::Corrupt));
}

#[test]
fn both_copies_of_a_version_that_rot_are_refused_because_the_other_may_be_old() {
    for pair in [[0, 1], [2, 3]] {
        let simulation = simulation(51);
        finished(
            simulation.run(|world| async move {
                open(&world).await.unwrap().next_session().await.unwrap()
            }),
        );
        for slot in pair {
            let at = slot * (EMBEDDED_REGION_BYTES / 4) + VERSION_AT;
            simulation.faults().flip_bit(DISK, at);
        }
        let refused = finished(
            simulation.run(|world| async move { open(&world).await.err().map(|e| e.kind()) }),
        );
        assert_eq!(refused, Some(ErrorKind::Corrupt), "copies {pair:?}");
    }
}

#[test]
fn a_disk_that_does_not_answer_makes_a_change_unknown_and_not_endless() {
    let simulation = simulation(30);
    let faults = simulation.faults();
    finished(simulation.run(|world| async move {
        let facts = open(&world).await.unwrap();
        faults.slow(DISK, Duration::from_secs(100));
        let value = Some(Bytes::from_static(b"1"));
        let late = facts.compare_and_set("a", 0, value).await.unwrap_err();
        assert_eq!(late.kind(), ErrorKind::Unavailable, "{late}");
        let before = facts.get("a").await.unwrap();
        assert_eq!(before.found, None);
        faults.heal(DISK);
        // The change was completed.
        let mut watch = facts.watch("a", before.revision);
        let news = watch.next(Duration::from_secs(600)).await;
        assert!(matches!(news, News::Changed { .. }), "{news:?}");
        assert!(facts.get("a").await.unwrap().found.is_some());
    }));
}

/// A change whose first copy is written and whose second copy fails.
async fn half_a_change(world: &World, facts: &Coordination, faults: &Faults, value: Bytes) {
    faults.slow(DISK, Duration::from_secs(10));
    let change = facts.compare_and_set("b", 0, Some(value));
    let copy_and_a_half = world.timeout(Duration::from_secs(15), change).await;
    assert!(copy_and_a_half.is_err(), "a change makes two writes");
    faults.fail(DISK);
    world.sleep(Duration::from_secs(10)).await;
    assert_eq!(facts.get("b").await.unwrap().found, None);
    faults.heal(DISK);
}

/// Longer than a sector, so that a torn write leaves damage.
fn long(byte: u8) -> Bytes {
    Bytes::from(vec![byte; 2000])
}

#[test]
fn facts_survive_a_rotten_copy_after_a_failed_change() {
    for (seed, rotten) in (0..16).flat_map(|seed| [(seed, 0), (seed, 1)]) {
        let simulation = simulation(60 + seed);
        let disk = simulation.disk(DISK, EMBEDDED_REGION_BYTES);
        let faults = simulation.faults();
        let slot = EMBEDDED_REGION_BYTES / 4;
        let outcome = simulation.run(|world| async move {
            let facts = open(&world).await.unwrap();
            let value = Some(Bytes::new());
            assert_eq!(facts.compare_and_set("a", 0, value).await.unwrap(), 3);
            half_a_change(&world, &facts, &faults, long(1)).await;
            // The second copy was written after all; only its answer was lost.
            disk.overwrite(slot, &disk.content(0, 8192));
            faults.slow(DISK, Duration::from_secs(10));
            let change = facts.compare_and_set("b", 0, Some(long(2)));
            let copy_and_a_half = world.timeout(Duration::from_secs(15), change).await;
            assert!(copy_and_a_half.is_err(), "a change makes two writes");
            faults.cut_now();
            world.sleep(Duration::from_secs(1)).await;
        });
        assert!(outcome.is_crashed());
        simulation.faults().heal(DISK);
        let read =
            |world: World| async move { open(&world).await.unwrap().get("b").await.unwrap().found };
        let before = finished(simulation.run(read)).unwrap();
        simulation
            .faults()
            .flip_bit(DISK, rotten * slot + VERSION_AT);
        let after = finished(simulation.run(read)).unwrap();
        assert!(after == before, "seed {seed}, copy {rotten}");
    }
}

#[test]
fn a_power_cut_in_the_change_after_one_that_failed_leaves_a_whole_copy() {
    for seed in 0..16 {
        let simulation = simulation(80 + seed);
        let faults = simulation.faults();
        let outcome = simulation.run(|world| {
            let simulation = &simulation;
            async move {
                let facts = open(&world).await.unwrap();
                let value = Some(Bytes::new());
                assert_eq!(facts.compare_and_set("a", 0, value).await.unwrap(), 3);
                half_a_change(&world, &facts, &faults, long(1)).await;
                // The failed copy was torn.
                faults.flip_bit(DISK, EMBEDDED_REGION_BYTES / 4 + VERSION_AT);
                faults.cut_at_io(simulation.io_count(), Cut::Torn);
                let _ = facts.compare_and_set("b", 0, Some(long(2))).await;
            }
        });
        assert!(outcome.is_crashed());
        let read =
            |world: World| async move { open(&world).await.unwrap().get("a").await.unwrap().found };
        assert!(finished(simulation.run(read)).is_some(), "seed {seed}");
    }
}

#[test]
fn a_pair_of_copies_that_is_gone_is_refused_because_the_other_may_be_old() {
    for pair in [0, 1] {
        let simulation = simulation(52);
        finished(
            simulation.run(|world| async move {
                open(&world).await.unwrap().next_session().await.unwrap()
            }),
        );
        let half = EMBEDDED_REGION_BYTES / 2;
        let zeros = vec![0; half as usize];
        let disk = simulation.disk(DISK, EMBEDDED_REGION_BYTES);
        disk.overwrite(pair * half, &zeros);
        let refused = finished(
            simulation.run(|world| async move { open(&world).await.err().map(|e| e.kind()) }),
        );
        assert_eq!(refused, Some(ErrorKind::Corrupt), "pair {pair}");
    }
}
