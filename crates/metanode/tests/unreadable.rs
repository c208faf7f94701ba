//! Unreadable data is reported with the names of its files, whatever finds it, until it can be read
//! again or is no longer live.

use crate::rig::{self, Rig, name, pattern};
use metanode::{FaultKind, UnreadableData};
use model::{ExtentKind, FileKind, InodeId, NsdId, Operation, Scheme, SegmentPlace};
use world::World;
use world::sim::Simulation;

const ROOT: InodeId = InodeId::ROOT;

fn told(rig: &Rig) -> UnreadableData {
    rig.metanode.repair_status().unreadable
}

async fn place_of(rig: &Rig, file: InodeId) -> SegmentPlace {
    let (extents, _) = rig.extents(file).await;
    let ExtentKind::Data { place, .. } = extents[0].kind else {
        panic!("the file has a segment")
    };
    place
}

/// Deletes a piece on all NSDs.
async fn lose(rig: &Rig, place: &SegmentPlace, piece: u8) {
    for state in rig.pool.nsd_states() {
        let nsd = state.entry.nsd;
        if rig.pool.nsd(nsd).is_some() {
            let piece = [place.blob(piece)];
            rig.pool.delete_blobs(nsd, &piece).await.unwrap();
        }
    }
}

async fn folder(rig: &Rig, parent: InodeId, text: &str) -> InodeId {
    let made = rig.make(parent, text, FileKind::Directory).await;
    made.unwrap().inode
}

async fn written(rig: &Rig, parent: InodeId, text: &str, seed: u64) -> InodeId {
    let file = rig.file(parent, text).await;
    rig.write(file, 0, &pattern(seed, 200_000)).await;
    file
}

#[test]
fn a_read_of_lost_data_lists_the_file_until_it_is_deleted() {
    Simulation::new(31)
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(2), 3).await;
            let rig = rig::open(&world).await;
            let deep = folder(&rig, folder(&rig, ROOT, "docs").await, "größe").await;
            let lost = written(&rig, deep, "letter\n", 1).await;
            let emptied = rig.file(deep, "emptied").await;
            rig.write(emptied, 0, &pattern(9, 100_000)).await;
            rig.truncate(emptied, 0).await;
            rig.write(emptied, 0, &pattern(2, 200_000)).await;
            let well = written(&rig, ROOT, "well", 3).await;
            rig.must_be_clean("at first").await;
            assert_eq!(told(&rig).segments, 0);
            for file in [lost, emptied] {
                let place = place_of(&rig, file).await;
                lose(&rig, &place, 0).await;
                lose(&rig, &place, 1).await;
                assert!(rig.read(file).await.is_err());
            }
            rig.settle().await;
            let data = told(&rig);
            assert_eq!((data.files, data.segments, data.is_named), (2, 2, true));
            let names = ["/docs/größe/emptied", "/docs/größe/letter\\u{a}"];
            assert_eq!(data.names, names);
            assert!(data.sentence(1).contains("2 files can't be read: /docs/"));
            assert!(data.sentence(1).ends_with(" and 1 more"));
            assert_eq!(rig.read(well).await.unwrap(), pattern(3, 200_000));
            // The next check shows a rename; removed files aren't reported any more.
            let moved = Operation::Rename {
                from_directory: deep,
                from_name: name("emptied"),
                to_directory: ROOT,
                to_name: name("here"),
                mode: model::operation::RenameMode::Replace,
            };
            rig.run(moved).await.unwrap();
            rig.unlink(deep, "letter\n").await;
            rig.settle().await;
            rig.check().await;
            assert_eq!(told(&rig).names, ["/here"]);
            rig.truncate(emptied, 0).await;
            rig.must_be_clean("nothing is lost any more").await;
            assert_eq!(
                told(&rig),
                UnreadableData {
                    is_named: true,
                    ..Default::default()
                }
            );
            rig.close().await;
        })
        .finished();
}

#[test]
fn a_check_sums_up_what_is_lost_and_what_lacks_redundancy_and_a_returning_nsd_ends_it() {
    Simulation::new(32)
        .run(|world| async move {
            rig::create(&world, Scheme::Erasure { k: 4, m: 2 }, 6).await;
            let rig = rig::open(&world).await;
            for number in 0..40 {
                written(&rig, ROOT, &format!("f{number}"), number).await;
            }
            rig.must_be_clean("at first").await;
            // Two absent NSDs are tolerated, and reported in two lines.
            let away = [2, 5].map(|nsd| rig.pool.remove_nsd(NsdId(nsd)).unwrap());
            let report = rig.check().await;
            assert_eq!(report.faults.len(), 2, "{:#?}", report.faults);
            for fault in &report.faults {
                assert_eq!(fault.kind, FaultKind::Redundancy);
                assert!(fault.text.contains("pieces are out of reach on NSD"));
            }
            assert_eq!((report.unreadable_files, told(&rig).segments), (0, 0));
            // A third piece of two files exceeds the tolerance.
            for text in ["f7", "f12"] {
                let file = rig.look(ROOT, text).await.unwrap().inode;
                let place = place_of(&rig, file).await;
                let group = rig.pool.groups();
                let slots = group.members(place.group);
                let is_there = |piece: &u8| {
                    let nsd = slots[usize::from(place.slot_of(*piece))].current;
                    nsd != NsdId(2) && nsd != NsdId(5)
                };
                let piece = (0..6).find(is_there).unwrap();
                lose(&rig, &place, piece).await;
            }
            let report = rig.check().await;
            let data: Vec<_> = report
                .faults
                .iter()
                .filter(|fault| fault.kind == FaultKind::Data)
                .collect();
            assert_eq!(data.len(), 1, "{:#?}", report.faults);
            assert!(data[0].text.contains("2 files can't be read: /f12, /f7."));
            assert_eq!(report.unreadable, ["/f12", "/f7"]);
            assert!(report.faults.len() <= 5, "{:#?}", report.faults);
            assert_eq!(told(&rig).names, ["/f12", "/f7"]);
            away.into_iter().for_each(|nsd| rig.pool.add_nsd(nsd));
            rig.must_be_clean("repaired").await;
            assert_eq!(told(&rig).segments, 0);
            rig.close().await;
        })
        .finished();
}

#[test]
fn data_that_no_serving_nsd_holds_a_piece_of_is_found_without_a_reader() {
    Simulation::new(33)
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 6).await;
            let rig = rig::open(&world).await;
            let mut files = Vec::new();
            for number in 0..12 {
                let text = format!("f{number}");
                files.push((written(&rig, ROOT, &text, number).await, format!("/{text}")));
            }
            rig.must_be_clean("at first").await;
            let mut places = Vec::new();
            for (file, _) in &files {
                places.push(place_of(&rig, *file).await);
            }
            let victim = spare(&rig, &places).await;
            let mut gone = Vec::new();
            for (file, path) in &files {
                if holder_of(&rig, &place_of(&rig, *file).await).await == victim {
                    gone.push(path.clone());
                }
            }
            gone.sort_unstable();
            let nsd = rig.pool.remove_nsd(victim).unwrap();
            rig.settle().await;
            assert_eq!(told(&rig).names, gone);
            rig.pool.add_nsd(nsd);
            rig.must_be_clean("it is back").await;
            assert_eq!(told(&rig).segments, 0);
            rig.close().await;
        })
        .finished();
}

#[test]
fn what_could_not_be_read_for_a_while_is_cleaned_afterwards() {
    Simulation::new(35)
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 6).await;
            let rig = rig::open(&world).await;
            let mut places = Vec::new();
            for number in 0..12 {
                let file = written(&rig, ROOT, &format!("f{number}"), number).await;
                places.push(place_of(&rig, file).await);
            }
            rig.must_be_clean("at first").await;
            let victim = spare(&rig, &places).await;
            let nsd = rig.pool.remove_nsd(victim).unwrap();
            for number in 0..12 {
                let file = rig.look(ROOT, &format!("f{number}")).await.unwrap().inode;
                rig.write(file, 0, &pattern(99, 180_000)).await;
            }
            rig.settle().await;
            assert!(rig.metanode.counters().segments_cleaned < 12);
            rig.pool.add_nsd(nsd);
            rig.settle().await;
            assert_eq!(rig.metanode.counters().segments_cleaned, 12);
            rig.must_be_clean("cleaned").await;
            rig.close().await;
        })
        .finished();
}

/// An NSD that holds some of these segments, and nothing of log and tables.
async fn spare(rig: &Rig, places: &[SegmentPlace]) -> NsdId {
    let shard = rig.metanode.hosted();
    let mut needed = shard.tree().log().view();
    for table in shard.catalog().live_segments() {
        needed.push(holder_of(rig, &table).await);
    }
    for place in places {
        let holder = holder_of(rig, place).await;
        if !needed.contains(&holder) {
            return holder;
        }
    }
    panic!("an NSD that holds only files");
}

async fn holder_of(rig: &Rig, place: &SegmentPlace) -> NsdId {
    let states = rig.pool.verify(place, pool::Depth::Index).await.unwrap();
    let is_good = |state: &&pool::PieceState| state.condition == pool::PieceCondition::Good;
    states.iter().find(is_good).unwrap().nsd
}

/// Offset of the pattern's third unit on a disk.
fn find(simulation: &Simulation, wanted: &[u8]) -> u64 {
    let disk = simulation.disk("nsd1", 1 << 30);
    (0..(1 << 30) / 4096)
        .map(|unit| unit * 4096)
        .find(|at| disk.content(*at, 4096)[..] == wanted[8192..12_288])
        .expect("the data is on the NSD")
}

async fn rot(world: World) -> Rig {
    rig::create(&world, Scheme::Replicate(1), 1).await;
    rig::open(&world).await
}

#[test]
fn a_scrub_counts_what_is_lost_and_makes_its_files_known() {
    let simulation = Simulation::new(34);
    simulation
        .run(|world| async move {
            let rig = rot(world).await;
            written(&rig, ROOT, "rotten", 77).await;
            written(&rig, ROOT, "well", 78).await;
            rig.settle().await;
            rig.close().await;
        })
        .finished();
    let at = find(&simulation, &pattern(77, 200_000));
    simulation.faults().flip_bit("nsd1", at + 100);
    simulation
        .run(|world| async move {
            let rig = rig::open(&world).await;
            let outcomes = rig.metanode.scrub(None).await.unwrap();
            assert_eq!((outcomes[0].lost, outcomes[0].rebuilt), (1, 0));
            assert_eq!(told(&rig).names, ["/rotten"]);
            rig.settle().await;
            assert_eq!(told(&rig).names, ["/rotten"], "nothing has changed");
            rig.unlink(ROOT, "rotten").await;
            rig.must_be_clean("deleted").await;
            assert_eq!(told(&rig).segments, 0);
            rig.close().await;
        })
        .finished();
}
