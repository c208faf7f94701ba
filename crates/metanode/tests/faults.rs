//! Faults are found, reported and repaired.

use crate::rig::{self, FAMILY, Rig, pattern};
use metanode::{FaultKind, Progress};
use model::{ExtentKind, FileKind, InodeId, NsdId, Operation, Reply, Scheme};
use namespace::{Key, Record};
use pool::{SegmentOwner, SegmentSource};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use world::sim::Simulation;

const ROOT: InodeId = InodeId::ROOT;

async fn one_file(rig: &Rig) -> (InodeId, model::SegmentPlace) {
    let file = rig.file(ROOT, "f").await;
    rig.write(file, 0, &pattern(77, 200_000)).await;
    rig.must_be_clean("at first").await;
    let (extents, _) = rig.extents(file).await;
    let ExtentKind::Data { place, .. } = extents[0].kind else {
        panic!("the file has a segment")
    };
    (file, place)
}

/// A segment that nothing points at.
async fn unpublished(rig: &Rig, source: &SegmentSource) -> model::SegmentPlace {
    let owner = SegmentOwner {
        family: FAMILY,
        inode: model::InodeNumber(99),
        data: model::DataId(99),
        file_offset: 0,
    };
    let bytes = bytes::Bytes::from(pattern(1, 5000));
    rig.pool.write(source, owner, bytes).await.unwrap()
}

async fn kinds(rig: &Rig) -> Vec<FaultKind> {
    let mut kinds: Vec<FaultKind> = rig
        .check()
        .await
        .faults
        .iter()
        .map(|fault| fault.kind)
        .collect();
    kinds.dedup();
    kinds
}

async fn holder_of(rig: &Rig, name: model::BlobName) -> NsdId {
    for state in rig.pool.nsd_states() {
        let nsd = rig.pool.nsd(state.entry.nsd).unwrap();
        if nsd.info(name).await.is_ok() {
            return state.entry.nsd;
        }
    }
    panic!("no NSD has blob {name}");
}

#[test]
fn a_deleted_blob_is_found_and_rebuilt_while_there_is_another() {
    let simulation = Simulation::new(21);
    simulation
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(2), 3).await;
            let rig = rig::open(&world).await;
            let (file, place) = one_file(&rig).await;
            let first = holder_of(&rig, place.blob(0)).await;
            let piece = [place.blob(0)];
            rig.pool.delete_blobs(first, &piece).await.unwrap();
            assert_eq!(kinds(&rig).await, [FaultKind::Redundancy]);
            rig.must_be_clean("repaired").await;
            let second = holder_of(&rig, place.blob(1)).await;
            let piece = [place.blob(0)];
            rig.pool.delete_blobs(first, &piece).await.unwrap();
            let piece = [place.blob(1)];
            rig.pool.delete_blobs(second, &piece).await.unwrap();
            assert!(kinds(&rig).await.contains(&FaultKind::Data));
            assert!(rig.read(file).await.is_err());
        })
        .finished();
}

#[test]
fn a_flipped_byte_is_found_by_check_and_mended_by_scrub() {
    let simulation = Simulation::new(22);
    let disk = simulation.disk("nsd1", 1 << 30);
    let faults = simulation.faults();
    drop(disk);
    let simulation = Simulation::new(22);
    let outcome = simulation.run(|world| async move {
        rig::create(&world, Scheme::Replicate(2), 2).await;
        let rig = rig::open(&world).await;
        one_file(&rig).await;
        rig.close().await;
    });
    outcome.finished();
    drop(faults);
    let disk = simulation.disk("nsd1", 1 << 30);
    let wanted = pattern(77, 200_000);
    let mut at = None;
    for unit in 0..(1 << 30) / 4096_u64 {
        let bytes = disk.content(unit * 4096, 4096);
        if bytes[..] == wanted[8192..12_288] {
            at = Some(unit * 4096 + 100);
            break;
        }
    }
    simulation
        .faults()
        .flip_bit("nsd1", at.expect("the data is on the first NSD"));
    simulation
        .run(|world| async move {
            let rig = rig::open(&world).await;
            let file = rig.look(ROOT, "f").await.unwrap().inode;
            assert_eq!(kinds(&rig).await, [FaultKind::Redundancy]);
            let progress = Progress::default();
            let outcomes = rig.metanode.scrub_showing(None, &progress).await.unwrap();
            let stage = progress.stage();
            // Both copies of the file were read; `done` never exceeds a known total.
            assert!(stage.done >= 400_000 && stage.total.is_some(), "{stage:?}");
            assert_eq!(
                outcomes.iter().map(|outcome| outcome.rebuilt).sum::<u64>(),
                1
            );
            rig.must_be_clean("scrubbed").await;
            assert_eq!(rig.read(file).await.unwrap(), pattern(77, 200_000));
            rig.close().await;
        })
        .finished();
}

#[test]
fn data_that_dies_during_its_repair_comes_back_whole_after_a_power_cut() {
    // The repair takes a few I/Os: the file is overwritten at each moment of them, and the power is
    // cut before the overwrite becomes durable.
    for moment in 0..20 {
        let simulation = Simulation::new(29);
        let faults = simulation.faults();
        simulation
            .run(|world| async move {
                rig::create(&world, Scheme::Replicate(2), 3).await;
                let rig = rig::open(&world).await;
                let file = rig.file(ROOT, "f").await;
                rig.write(file, 0, &pattern(1, 20_000)).await;
                rig.must_be_clean("at first").await;
                let (extents, _) = rig.extents(file).await;
                let ExtentKind::Data { place, .. } = extents[0].kind else {
                    panic!("the file has a segment")
                };
                let nsd = holder_of(&rig, place.blob(0)).await;
                let piece = [place.blob(0)];
                rig.pool.delete_blobs(nsd, &piece).await.unwrap();
                for nsd in 1..=3 {
                    faults.slow(&format!("nsd{nsd}"), Duration::from_millis(20));
                }
                let overwriting = async {
                    world.sleep(Duration::from_millis(5 * moment)).await;
                    rig.write_inline(file, 0, &pattern(2, 20_000)).await;
                    world.sleep(Duration::from_millis(90)).await;
                };
                let repairing = async {
                    rig.metanode.run_background_once().await.unwrap();
                    std::future::pending::<()>().await;
                };
                futures::future::select(pin!(repairing), pin!(overwriting)).await;
            })
            .finished();
        simulation.faults().cut_now();
        simulation
            .run(|world| async move {
                let rig = rig::open(&world).await;
                let file = rig.look(ROOT, "f").await.unwrap();
                let content = rig.read(file.inode).await.unwrap();
                assert!(content == pattern(1, 20_000) || content == pattern(2, 20_000));
                rig.must_be_clean("after the cut").await;
            })
            .finished();
    }
}

async fn forge(rig: &Rig, key: Key, record: Option<Record>) {
    rig.forge(vec![(key, record)]).await;
}

#[test]
fn a_damaged_record_holds_up_neither_freeing_nor_opening() {
    let simulation = Simulation::new(30);
    simulation
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            let (_, place) = one_file(&rig).await;
            // Queued data in a segment without a record, ahead of everything queued later.
            let (fileset, data) = (model::FilesetId(0), model::DataId(1));
            let segment = model::SegmentId {
                session: rig.source.session(),
                counter: 1 << 40,
            };
            let kind = ExtentKind::Data {
                place: model::SegmentPlace { segment, ..place },
                at: 0,
                codec: 0,
                key_id: 0,
            };
            let extent = model::Extent {
                offset: 0,
                length: 4096,
                kind,
                birth: model::CommitNumber(0),
            };
            let end = extent.end();
            let key = Key::Extent { fileset, data, end };
            forge(&rig, key, Some(Record::Extent(Arc::new(extent)))).await;
            let queued = namespace::Reclaim {
                inode: model::InodeNumber(1),
                xattrs: false,
            };
            let key = Key::Reclaim { fileset, data };
            forge(&rig, key, Some(Record::Reclaim(queued))).await;
            rig.unlink(ROOT, "f").await;
            assert!(rig.metanode.make_room().await.unwrap());
            let gone = rig.pool.read(&place, 0, 4096).await.unwrap_err();
            assert_eq!(gone.kind(), model::ErrorKind::NotFound);
            rig.settle().await;
            // A file with a name, wrongly recorded as an orphan.
            let named = rig.file(ROOT, "named").await;
            rig.write(named, 0, &pattern(5, 9000)).await;
            let orphan = Record::Orphan(namespace::Orphan { linkable: false });
            forge(&rig, Key::Orphan(named), Some(orphan)).await;
            rig.close().await;
        })
        .finished();
    simulation
        .run(|world| async move {
            let rig = rig::open(&world).await;
            let named = rig.look(ROOT, "named").await.unwrap();
            assert_eq!(rig.read(named.inode).await.unwrap(), pattern(5, 9000));
            // The queued data is tried again, and the orphan record is still there.
            rig.unlink(ROOT, "named").await;
            rig.settle().await;
            assert!(!rig.check().await.is_clean());
            rig.close().await;
        })
        .finished();
}

#[test]
fn forged_records_are_found() {
    let simulation = Simulation::new(23);
    simulation
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            let (file, place) = one_file(&rig).await;
            // A size that the counters don't include.
            let key = Key::Inode(file);
            let Some(Record::Inode(inode)) = rig.metanode.hosted().record(&key).await.unwrap()
            else {
                panic!("the inode has no record")
            };
            let larger = namespace::Inode {
                size: inode.size + 1,
                ..(*inode).clone()
            };
            forge(&rig, key.clone(), Some(Record::Inode(Arc::new(larger)))).await;
            assert_eq!(kinds(&rig).await, [FaultKind::Counter]);
            forge(&rig, key.clone(), Some(Record::Inode(inode.clone()))).await;
            // An inode missing under its name.
            forge(&rig, key.clone(), None).await;
            assert!(kinds(&rig).await.contains(&FaultKind::Record));
            forge(&rig, key, Some(Record::Inode(inode))).await;
            // A segment whose record doesn't match the extents that point at it.
            let key = Key::Segment(place.segment);
            let Some(Record::Segment(segment)) = rig.metanode.hosted().record(&key).await.unwrap()
            else {
                panic!("the segment has no record")
            };
            let more = namespace::Segment {
                live: segment.live + 1,
                ..(*segment).clone()
            };
            forge(&rig, key.clone(), Some(Record::Segment(Arc::new(more)))).await;
            assert_eq!(kinds(&rig).await, [FaultKind::Record]);
            forge(&rig, key, Some(Record::Segment(segment))).await;
            // An orphan without a holder.
            forge(
                &rig,
                Key::Orphan(file),
                Some(Record::Orphan(namespace::Orphan { linkable: false })),
            )
            .await;
            assert!(kinds(&rig).await.contains(&FaultKind::Orphan));
            forge(&rig, Key::Orphan(file), None).await;
            rig.must_be_clean("all forgeries undone").await;
        })
        .finished();
}

#[test]
fn an_inode_without_names_whose_release_is_under_way_is_no_fault() {
    let simulation = Simulation::new(28);
    simulation
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            // Nobody holds it.
            let unnamed = Operation::CreateUnnamed {
                directory: ROOT,
                new: rig::new_inode(FileKind::File),
            };
            let file = match rig.run(unnamed).await.unwrap() {
                Reply::Entry { attributes, .. } => attributes.inode,
                other => panic!("{other:?}"),
            };
            let (metanode, stamp, later) = (rig.metanode.clone(), rig.stamp(), world.clone());
            let release = async move {
                later.sleep(Duration::from_millis(100)).await;
                let released = Operation::Release { inode: file };
                metanode.execute(&released, &stamp).await.unwrap();
            };
            world.spawn("release", release).detach();
            assert!(!kinds(&rig).await.contains(&FaultKind::Orphan));
            rig.must_be_clean("released").await;
        })
        .finished();
}

#[test]
fn what_a_writer_left_unpublished_is_swept_after_its_session() {
    let simulation = Simulation::new(24);
    simulation
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            one_file(&rig).await;
            unpublished(&rig, &rig.source).await;
            rig.settle().await;
            assert_eq!(
                rig.metanode.counters().garbage_deleted,
                0,
                "its session may still publish it"
            );
            rig.metanode
                .close_session(rig.source.session())
                .await
                .unwrap();
            rig.must_be_clean("swept").await;
            assert_eq!(rig.metanode.counters().garbage_deleted, 1);
            assert_eq!(rig.data_blobs().await, 1);
        })
        .finished();
}

#[test]
fn a_check_calls_leaks_only_what_the_last_sweep_should_have_deleted() {
    let simulation = Simulation::new(26);
    simulation
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            let left = async |source: &SegmentSource| {
                unpublished(&rig, source).await;
                rig.metanode
                    .report_low_water(source.session(), source.last_counter());
            };
            // Given up before the sweep, and so deleted by it.
            left(&rig.source).await;
            rig.settle().await;
            assert_eq!(rig.metanode.counters().garbage_deleted, 1);
            // Given up after it: left to the next sweep.
            left(&rig.source).await;
            assert_eq!(kinds(&rig).await, []);
            rig.settle().await;
            assert_eq!(rig.metanode.counters().garbage_deleted, 2);
            // Blobs of a session that had ended before the sweep, and of one that never existed.
            let ended = rig.metanode.open_session().await.unwrap();
            rig.metanode.close_session(ended).await.unwrap();
            rig.settle().await;
            left(&SegmentSource::new(ended)).await;
            assert_eq!(kinds(&rig).await, [FaultKind::Leak]);
            left(&SegmentSource::new(model::SessionId(1_000_000))).await;
            assert_eq!(kinds(&rig).await, [FaultKind::Leak]);
            let faults = rig.check().await.faults;
            assert_eq!(faults.len(), 1, "{faults:#?}");
            assert!(faults[0].text.starts_with("nothing points at 2 segments"));
        })
        .finished();
}

#[test]
fn what_a_writer_gives_up_is_deleted_unless_it_was_published() {
    let simulation = Simulation::new(27);
    simulation
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            let (_, published) = one_file(&rig).await;
            let unpublished = unpublished(&rig, &rig.source).await;
            rig.metanode
                .give_up(vec![published, unpublished])
                .await
                .unwrap();
            assert_eq!(rig.metanode.counters().segments_given_up, 1);
            rig.settle().await;
            assert_eq!(rig.data_blobs().await, 1);
            rig.must_be_clean("only the unpublished one is gone").await;
        })
        .finished();
}

#[test]
fn a_lost_nsd_is_rebuilt_on_an_added_one() {
    let simulation = Simulation::new(25);
    simulation
        .run(|world| async move {
            rig::create(&world, Scheme::Erasure { k: 2, m: 1 }, 3).await;
            let rig = rig::open(&world).await;
            let mut files = Vec::new();
            for number in 0..30 {
                let file = rig.file(ROOT, &format!("f{number}")).await;
                rig.write(file, 0, &pattern(number, 150_000)).await;
                files.push(file);
            }
            rig.must_be_clean("whole").await;
            assert!(rig.metanode.repair_status().complete);
            // NSD 2 is permanently gone.
            rig.pool.remove_nsd(NsdId(2)).unwrap();
            rig.change_map(|map| placement::change::mark_lost(map, NsdId(2)).unwrap())
                .await;
            rig.settle().await;
            let status = rig.metanode.repair_status();
            assert!(
                !status.complete && status.segments_degraded >= 30 && status.slots_without_nsd > 0,
                "{status:?}"
            );
            for (number, file) in files.iter().enumerate() {
                assert_eq!(
                    rig.read(*file).await.unwrap(),
                    pattern(number as u64, 150_000)
                );
            }
            rig::format(&world, 4).await;
            rig.pool.add_nsd(rig::open_nsd(&world, 4).await.unwrap());
            rig.change_map(|map| placement::change::add_nsd(map, rig::entry(4)).unwrap())
                .await;
            rig.must_be_clean("rebuilt").await;
            let status = rig.metanode.repair_status();
            assert!(status.complete && status.pieces_rebuilt >= 30, "{status:?}");
            rig.close().await;
        })
        .finished();
}

#[test]
fn what_was_written_narrow_is_widened_when_the_pool_is_whole_again() {
    let scheme = Scheme::Erasure { k: 4, m: 2 };
    let simulation = Simulation::new(26);
    simulation
        .run(|world| async move {
            rig::create(&world, scheme, 6).await;
            let rig = rig::open(&world).await;
            rig.pool.remove_nsd(NsdId(2)).unwrap();
            rig.change_map(|map| placement::change::mark_lost(map, NsdId(2)).unwrap())
                .await;
            let file = rig.file(ROOT, "f").await;
            for part in 0..3 {
                rig.write(file, part * 300_000, &pattern(part, 300_000))
                    .await;
            }
            rig.settle().await;
            let narrow = Scheme::Erasure { k: 3, m: 2 };
            assert_eq!(schemes(&rig, file).await, [narrow; 3]);
            rig::format(&world, 7).await;
            rig.pool.add_nsd(rig::open_nsd(&world, 7).await.unwrap());
            rig.change_map(|map| placement::change::add_nsd(map, rig::entry(7)).unwrap())
                .await;
            rig.must_be_clean("widened").await;
            let wide = schemes(&rig, file).await;
            assert!(
                !wide.is_empty() && wide.iter().all(|seen| *seen == scheme),
                "{wide:?}"
            );
            let content: Vec<u8> = (0..3).flat_map(|part| pattern(part, 300_000)).collect();
            assert_eq!(rig.read(file).await.unwrap(), content);
            rig.close().await;
        })
        .finished();
}

async fn schemes(rig: &Rig, file: InodeId) -> Vec<Scheme> {
    let (extents, _) = rig.extents(file).await;
    let places = extents.iter().filter_map(|extent| match &extent.kind {
        ExtentKind::Data { place, .. } => Some(place.scheme),
        _ => None,
    });
    places.collect()
}
