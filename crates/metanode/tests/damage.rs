//! Damaged records: a check reports them and continues, and they cause no further loss.

use crate::rig::{self, Rig, pattern};
use metanode::{CheckReport, FaultKind};
use model::{ExtentKind, FileKind, InodeId, Scheme, SegmentPlace, SessionId};
use namespace::{Key, Record, Reserved, Run};
use std::sync::Arc;
use testkit::forge::damaged_name;
use world::sim::Simulation;

const ROOT: InodeId = InodeId::ROOT;

async fn record(rig: &Rig, key: &Key) -> Record {
    let record = rig.metanode.hosted().record(key).await.unwrap();
    record.expect("the record exists")
}

async fn forge(rig: &Rig, key: Key, record: Record) {
    rig.forge(vec![(key, Some(record))]).await;
}

/// An inode larger than any file.
async fn damage_inode(rig: &Rig, inode: InodeId) {
    let key = Key::Inode(inode);
    let Record::Inode(known) = record(rig, &key).await else {
        panic!("an inode")
    };
    let damaged = namespace::Inode {
        size: u64::MAX,
        ..(*known).clone()
    };
    forge(rig, key, Record::Inode(Arc::new(damaged))).await;
}

/// An extent after the end of its segment.
async fn damage_extent(rig: &Rig, inode: InodeId) {
    let Record::Inode(owner) = record(rig, &Key::Inode(inode)).await else {
        panic!("an inode")
    };
    let key = Key::Extent {
        fileset: inode.fileset(),
        data: owner.data,
        end: owner.size,
    };
    let Record::Extent(known) = record(rig, &key).await else {
        panic!("an extent")
    };
    let mut damaged = (*known).clone();
    if let ExtentKind::Data { at, .. } = &mut damaged.kind {
        *at = u32::MAX;
    }
    forge(rig, key, Record::Extent(Arc::new(damaged))).await;
}

/// A name for an inode that can't exist.
pub(crate) async fn damage_name(rig: &Rig, text: &str) {
    let (key, damaged) = damaged_name(&rig.metanode.hosted(), text).await;
    forge(rig, key, damaged).await;
}

/// An empty run among the numbers that a session has reserved.
pub(crate) async fn damage_reserved(rig: &Rig, session: SessionId) {
    let key = Key::Reserved {
        session,
        fileset: ROOT.fileset(),
    };
    let damaged = Reserved {
        inodes: vec![Run { next: 7, end: 7 }],
        data: Vec::new(),
    };
    forge(rig, key, Record::Reserved(Arc::new(damaged))).await;
}

/// A live segment without live bytes.
async fn damage_segment(rig: &Rig, place: &SegmentPlace) {
    let key = Key::Segment(place.segment);
    let Record::Segment(known) = record(rig, &key).await else {
        panic!("a segment")
    };
    let damaged = namespace::Segment {
        live: 0,
        ..(*known).clone()
    };
    forge(rig, key, Record::Segment(Arc::new(damaged))).await;
}

async fn place_of(rig: &Rig, file: InodeId) -> SegmentPlace {
    let (extents, _) = rig.extents(file).await;
    let ExtentKind::Data { place, .. } = extents[0].kind else {
        panic!("the file has a segment")
    };
    place
}

fn must_tell(report: &CheckReport, kind: FaultKind, parts: &[&str]) {
    let is_told = report
        .faults
        .iter()
        .any(|fault| fault.kind == kind && parts.iter().all(|part| fault.text.contains(part)));
    assert!(is_told, "{parts:?} is not in {:#?}", report.faults);
}

#[test]
fn a_check_tells_records_that_cannot_be_decoded_and_goes_on() {
    let simulation = Simulation::new(41);
    let files = simulation
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            let mut files = Vec::new();
            for text in ["inode", "extent", "name", "segment", "lost"] {
                let file = rig.file(ROOT, text).await;
                rig.write(file, 0, &pattern(files.len() as u64, 50_000))
                    .await;
                files.push(file);
            }
            rig.must_be_clean("at first").await;
            let lost = place_of(&rig, files[4]).await;
            let segment = place_of(&rig, files[3]).await;
            let piece = [lost.blob(0)];
            let nsd = model::NsdId(1);
            rig.pool.delete_blobs(nsd, &piece).await.unwrap();
            damage_inode(&rig, files[0]).await;
            damage_extent(&rig, files[1]).await;
            damage_name(&rig, "name").await;
            damage_segment(&rig, &segment).await;
            rig.close().await;
            files
        })
        .finished();
    simulation
        .run(|world| async move {
            let rig = rig::open(&world).await;
            let report = rig.check().await;
            let record = |parts: &[&str]| must_tell(&report, FaultKind::Record, parts);
            let inode = files[0].to_string();
            record(&["inode", &inode, "(/inode)", "larger than any file"]);
            let inode = files[1].to_string();
            record(&["inode", &inode, "(/extent)", "longer than its data"]);
            record(&["directory", "(/)", "out of range"]);
            record(&["segment", "can't be read", "no bytes"]);
            // The file whose name it was.
            let inode = files[2].to_string();
            record(&["inode", &inode, "records 1 links, but has 0"]);
            // The rest was checked: lost data is reported with its file's name, and nothing is
            // called a leak.
            must_tell(&report, FaultKind::Data, &["1 file can't be read: /lost"]);
            let is_wrong = |text: &str| text.contains("doesn't exist") || text.contains("counts");
            for fault in &report.faults {
                assert!(
                    fault.kind != FaultKind::Leak && !is_wrong(&fault.text),
                    "{fault:?}"
                );
            }
            assert_eq!((report.inodes, report.extents), (5, 4));
            assert_eq!(rig.data_blobs().await, 4);
            rig.close().await;
        })
        .finished();
}

#[test]
fn a_damaged_orphan_does_not_keep_the_file_system_closed() {
    let simulation = Simulation::new(45);
    let file = simulation
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            let file = rig.file(ROOT, "file").await;
            // A record of another kind, which can't be an orphan's.
            let other = record(&rig, &Key::Inode(file)).await;
            forge(&rig, Key::Orphan(file), other).await;
            rig.close().await;
            file
        })
        .finished();
    simulation
        .run(|world| async move {
            let rig = rig::open(&world).await;
            let report = rig.check().await;
            let parts = [&*file.to_string(), "(/file)", "Orphan"];
            must_tell(&report, FaultKind::Record, &parts);
            rig.file(ROOT, "another").await;
            rig.close().await;
        })
        .finished();
}

/// Would be broken if an owner that begins stopped at what its node's last run has left and nobody can read.
#[test]
fn a_damaged_record_of_a_former_session_does_not_keep_the_file_system_closed() {
    let simulation = Simulation::new(46);
    simulation
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            damage_reserved(&rig, rig.source.session()).await;
        })
        .finished();
    simulation
        .run(|world| async move {
            let rig = rig::open(&world).await;
            rig.file(ROOT, "file").await;
            rig.close().await;
        })
        .finished();
}

#[test]
fn a_suspect_that_cannot_be_judged_leaves_the_others_to_repair() {
    let simulation = Simulation::new(42);
    let count = 4;
    simulation
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(2), 2).await;
            let rig = rig::open(&world).await;
            for number in 0..count {
                let file = rig.file(ROOT, &format!("f{number}")).await;
                rig.write(file, 0, &pattern(number, 200_000)).await;
            }
            rig.must_be_clean("at first").await;
            let first = rig.look(ROOT, "f0").await.unwrap().inode;
            let place = place_of(&rig, first).await;
            damage_segment(&rig, &place).await;
            rig.close().await;
        })
        .finished();
    let disk = simulation.disk("nsd1", 1 << 30);
    let mut wanted: Vec<Vec<u8>> = (0..count)
        .map(|number| pattern(number, 200_000)[8192..12_288].to_vec())
        .collect();
    for at in (0..(1 << 30) / 4096_u64).map(|unit| unit * 4096) {
        let unit = disk.content(at, 4096);
        if let Some(found) = wanted.iter().position(|wanted| *wanted == unit) {
            simulation.faults().flip_bit("nsd1", at + 100);
            wanted.remove(found);
        }
        if wanted.is_empty() {
            break;
        }
    }
    assert!(wanted.is_empty(), "each has a copy on the first NSD");
    simulation
        .run(|world| async move {
            let rig = rig::open(&world).await;
            for number in 0..count {
                let file = rig.look(ROOT, &format!("f{number}")).await.unwrap();
                let place = place_of(&rig, file.inode).await;
                (0..2).for_each(|piece| rig.pool.suspect_damage(&place, None, piece));
            }
            // Other work may stop at the damaged record.
            let _ = rig.metanode.run_background_once().await;
            assert_eq!(rig.metanode.repair_status().pieces_rebuilt, count - 1);
            let faults = rig.check().await.faults;
            assert!(
                faults.iter().all(|fault| fault.kind == FaultKind::Record),
                "{faults:#?}"
            );
            rig.close().await;
        })
        .finished();
}

#[test]
fn directories_in_a_circle_are_told() {
    let simulation = Simulation::new(43);
    simulation
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            let mut at = ROOT;
            let mut made = Vec::new();
            for text in ["a", "b", "c", "d"] {
                at = rig.make(at, text, FileKind::Directory).await.unwrap().inode;
                made.push(at);
            }
            rig.must_be_clean("at first").await;
            // Moving `a/b` into `a/b/c`: `b` and `c` become each other's ancestors.
            let (a, b, c) = (made[0], made[1], made[2]);
            let (from, to) = (
                Key::Name {
                    directory: a,
                    position: 0,
                },
                Key::Name {
                    directory: a,
                    position: namespace::POSITION_END,
                },
            );
            let shard = rig.metanode.hosted();
            let mut effects = Vec::new();
            for (key, record) in shard.scan(&from, &to, 10).await.unwrap() {
                let Key::Name { position, .. } = key else {
                    panic!("a name")
                };
                effects.push((
                    Key::Name {
                        directory: c,
                        position,
                    },
                    Some(record),
                ));
                effects.push((key, None));
            }
            assert_eq!(effects.len(), 2);
            for (inode, links, entries, parent) in [(a, -1, -1, ROOT), (b, 0, 0, c), (c, 1, 1, b)] {
                let key = Key::Inode(inode);
                let Record::Inode(known) = record(&rig, &key).await else {
                    panic!("an inode")
                };
                let moved = namespace::Inode {
                    links: known.links.strict_add_signed(links),
                    entries: known.entries.strict_add_signed(entries),
                    parent: parent.number(),
                    ..(*known).clone()
                };
                effects.push((key, Some(Record::Inode(Arc::new(moved)))));
            }
            rig.forge(effects).await;
            let faults = rig.check().await.faults;
            assert_eq!(faults.len(), 1, "{faults:#?}");
            let text = &faults[0].text;
            assert!(text.contains("a circle of 2 directories"), "{text}");
            assert!(
                text.contains(&format!("directory {b}")) && text.len() < 300,
                "{text}"
            );
            rig.close().await;
        })
        .finished();
}
