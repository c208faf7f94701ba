//! Files are created, changed and removed across power cuts; space and counters return to zero.

use crate::rig::{self, Rig, pattern};
use model::{FileKind, InodeId, Scheme};
use world::sim::{Simulation, for_every_cut};

const ROOT: InodeId = InodeId::ROOT;

#[test]
fn what_was_synced_is_there_after_a_power_cut() {
    let simulation = Simulation::new(1);
    simulation
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(2), 3).await;
            let rig = rig::open(&world).await;
            let directory = rig
                .make(ROOT, "d", FileKind::Directory)
                .await
                .unwrap()
                .inode;
            for number in 0..50 {
                let file = rig.file(directory, &format!("f{number}")).await;
                rig.write(file, 0, &pattern(number, 10_000)).await;
            }
            rig.metanode.sync().await.unwrap();
        })
        .finished();
    simulation.faults().cut_now();
    simulation
        .run(|world| async move {
            let rig = rig::open(&world).await;
            let directory = rig.look(ROOT, "d").await.unwrap().inode;
            for number in 0..50 {
                let file = rig
                    .look(directory, &format!("f{number}"))
                    .await
                    .unwrap()
                    .inode;
                assert_eq!(rig.read(file).await.unwrap(), pattern(number, 10_000));
            }
            rig.must_be_clean("after the cut").await;
            rig.close().await;
        })
        .finished();
}

/// A mix of operations, with a sync in the middle.
async fn mixed(rig: &Rig) {
    let directory = rig
        .make(ROOT, "d", FileKind::Directory)
        .await
        .unwrap()
        .inode;
    let a = rig.file(directory, "a").await;
    let b = rig.file(directory, "b").await;
    rig.write(a, 0, &pattern(1, 70_000)).await;
    rig.write_inline(b, 0, &pattern(2, 3000)).await;
    rig.metanode.sync().await.unwrap();
    rig.write_inline(a, 5000, &pattern(3, 20_000)).await;
    rig.write(b, 0, &pattern(4, 9000)).await;
    rig.truncate(a, 40_000).await;
    rig.metanode.sync().await.unwrap();
    rig.unlink(directory, "a").await;
    rig.truncate(b, 0).await;
    rig.metanode.run_background_once().await.unwrap();
}

/// All contents that the two files ever had.
fn mixed_contents() -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let first = pattern(1, 70_000);
    let mut overwritten = first.clone();
    overwritten[5000..25_000].copy_from_slice(&pattern(3, 20_000));
    let cut = overwritten[..40_000].to_vec();
    let a = vec![Vec::new(), first, overwritten, cut];
    (a, vec![Vec::new(), pattern(2, 3000), pattern(4, 9000)])
}

#[test]
fn a_power_cut_at_any_io_leaves_a_right_file_system() {
    for_every_cut(11, 150, |simulation| {
        let mut begun = false;
        // The cut may hit creation, work or recovery.
        for _ in 0..3 {
            if !begun {
                let made = simulation.run(|world| async move {
                    if world
                        .open_disk(std::path::Path::new("coordination"))
                        .is_err()
                    {
                        rig::create(&world, Scheme::Replicate(1), 1).await;
                    }
                });
                if made.is_crashed() {
                    // Creating a pool's disks isn't tested here.
                    return;
                }
                begun = true;
                simulation.run(|world| async move { mixed(&rig::open(&world).await).await });
            }
        }
        for _ in 0..2 {
            let recovered = simulation.run(|world| async move {
                let rig = rig::open(&world).await;
                let (contents_of_a, contents_of_b) = mixed_contents();
                if let Some(directory) = rig.look(ROOT, "d").await {
                    if let Some(a) = rig.look(directory.inode, "a").await {
                        let content = rig.read(a.inode).await.unwrap();
                        let bytes = content.len();
                        assert!(
                            contents_of_a.contains(&content),
                            "a has {bytes} other bytes"
                        );
                    }
                    if let Some(b) = rig.look(directory.inode, "b").await {
                        let content = rig.read(b.inode).await.unwrap();
                        let bytes = content.len();
                        assert!(
                            contents_of_b.contains(&content),
                            "b has {bytes} other bytes"
                        );
                    }
                }
                rig.must_be_clean("after a power cut").await;
                rig.close().await;
            });
            if !recovered.is_crashed() {
                return;
            }
        }
        panic!("a cut happens once");
    });
}

#[test]
fn after_deleting_everything_no_blob_of_data_is_left_and_counters_are_zero() {
    let simulation = Simulation::new(2);
    simulation
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 2).await;
            let rig = rig::open(&world).await;
            let empty = rig.metanode.usage().await.unwrap();
            for number in 0..40 {
                let text = format!("f{number}");
                let file = rig.file(ROOT, &text).await;
                for part in 0..4 {
                    rig.write(file, part * 50_000, &pattern(number, 50_000))
                        .await;
                }
                rig.write_inline(file, 1000, &pattern(number + 1, 100))
                    .await;
            }
            rig.must_be_clean("full").await;
            let full = rig.metanode.usage().await.unwrap();
            assert_eq!(
                (full.inodes, full.logical),
                (empty.inodes + 40, 40 * 200_000)
            );
            assert!(rig.data_blobs().await >= 160);
            for number in 0..40 {
                rig.unlink(ROOT, &format!("f{number}")).await;
            }
            rig.must_be_clean("empty").await;
            assert_eq!(rig.data_blobs().await, 0);
            let after = rig.metanode.usage().await.unwrap();
            assert_eq!(
                (after.inodes, after.logical, after.allocated),
                (empty.inodes, 0, 0)
            );
            rig.close().await;
        })
        .finished();
}

#[test]
fn inline_extents_are_folded_and_read_the_same() {
    let simulation = Simulation::new(3);
    simulation
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            let mut contents = Vec::new();
            for number in 0..20 {
                let file = rig.file(ROOT, &format!("f{number}")).await;
                let mut content = pattern(number, 60_000);
                rig.write(file, 0, &content).await;
                for part in 0..10_u64 {
                    let at = part * 5000;
                    let bytes = pattern(100 + part, 700);
                    rig.write_inline(file, at, &bytes).await;
                    content[at as usize..at as usize + 700].copy_from_slice(&bytes);
                }
                contents.push((file, content));
            }
            rig.must_be_clean("folded").await;
            assert_eq!(rig.metanode.counters().extents_folded, 200);
            for (file, content) in contents {
                assert_eq!(rig.read(file).await.unwrap(), content);
                let (extents, _) = rig.extents(file).await;
                assert!(
                    extents
                        .iter()
                        .all(|extent| matches!(extent.kind, model::ExtentKind::Data { .. }))
                );
            }
            rig.close().await;
        })
        .finished();
}

#[test]
fn a_file_that_changes_while_it_is_looked_through_holds_up_no_fold() {
    for moment in 0..40 {
        let simulation = Simulation::new(7);
        let faults = simulation.faults();
        simulation
            .run(|world| async move {
                rig::create(&world, Scheme::Replicate(1), 1).await;
                let rig = rig::open(&world).await;
                let file = rig.file(ROOT, "f").await;
                // More extents than are processed together.
                for part in 0..1100_u64 {
                    rig.write_inline(file, part * 20, &pattern(part, 10)).await;
                }
                rig.close().await;
            })
            .finished();
        simulation
            .run(|world| async move {
                let rig = rig::open(&world).await;
                let file = rig.look(ROOT, "f").await.unwrap().inode;
                faults.slow("nsd1", std::time::Duration::from_millis(2));
                let changing = async {
                    world.sleep(std::time::Duration::from_millis(moment)).await;
                    rig.write_inline(file, 20_000, &pattern(3, 2000)).await;
                };
                let folding = rig.metanode.run_background_once();
                let (folded, ()) = futures::future::join(folding, changing).await;
                folded.unwrap();
                assert!(rig.metanode.counters().extents_folded >= 1000);
                rig.must_be_clean("folded").await;
                let content = rig.read(file).await.unwrap();
                assert_eq!(content[20_000..], pattern(3, 2000));
                assert_eq!(content[..10], pattern(0, 10));
                rig.close().await;
            })
            .finished();
    }
}

#[test]
fn mostly_dead_segments_and_scattered_blocks_are_rewritten() {
    let simulation = Simulation::new(4);
    simulation
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            let file = rig.file(ROOT, "f").await;
            let mut content = pattern(1, 1 << 20);
            rig.write(file, 0, &content).await;
            for part in 0..100_u64 {
                let at = part * 10_000;
                let bytes = pattern(part, 9000);
                rig.write(file, at, &bytes).await;
                content[at as usize..at as usize + 9000].copy_from_slice(&bytes);
            }
            assert!(rig.extents(file).await.0.len() > 190);
            rig.must_be_clean("cleaned").await;
            assert!(rig.metanode.counters().segments_cleaned > 0);
            assert_eq!(rig.read(file).await.unwrap(), content);
            let (extents, _) = rig.extents(file).await;
            assert!(extents.len() < 10, "{} extents", extents.len());
            assert!(rig.data_blobs().await < 10);
            rig.close().await;
        })
        .finished();
}

#[test]
fn a_scattered_block_is_joined_when_it_rests_and_not_before() {
    const BLOCK: u64 = 4 << 20;
    let simulation = Simulation::new(8);
    simulation
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            rig.metanode.start_background();
            let file = rig.file(ROOT, "f").await;
            for page in 0..100 {
                for block in [0, BLOCK] {
                    rig.write(file, block + page * 4096, &pattern(page, 4096))
                        .await;
                }
            }
            let extents_of = async |block: u64| {
                let (extents, _) = rig.extents(file).await;
                let inside = |at: u64| (block..block + BLOCK).contains(&at);
                extents.iter().filter(|it| inside(it.offset)).count()
            };
            assert_eq!((extents_of(0).await, extents_of(BLOCK).await), (100, 100));
            for second in 0..90 {
                world.sleep(std::time::Duration::from_secs(1)).await;
                rig.write(file, BLOCK + second % 7 * 4096, &pattern(second, 4096))
                    .await;
            }
            let (resting, busy) = (extents_of(0).await, extents_of(BLOCK).await);
            assert!(resting < 4, "{resting} extents");
            assert!(busy > 90, "{busy} extents");
            rig.must_be_clean("joined").await;
            rig.close().await;
        })
        .finished();
}

#[test]
fn of_neighbours_written_together_those_that_change_meanwhile_are_left_out() {
    for moment in [3, 6, 9, 12, 15, 18, 21, 24, 30, 40] {
        let simulation = Simulation::new(moment);
        let faults = simulation.faults();
        simulation
            .run(|world| async move {
                rig::create(&world, Scheme::Replicate(1), 1).await;
                let rig = rig::open(&world).await;
                let file = rig.file(ROOT, "f").await;
                for page in 0..200 {
                    rig.write_inline(file, page * 1000, &pattern(page, 1000))
                        .await;
                }
                faults.slow("nsd1", std::time::Duration::from_millis(2));
                let changing = async {
                    world.sleep(std::time::Duration::from_millis(moment)).await;
                    rig.write_inline(file, 100_000, &pattern(7, 1000)).await;
                };
                let folding = rig.metanode.run_background_once();
                let (folded, ()) = futures::future::join(folding, changing).await;
                folded.unwrap();
                let (extents, _) = rig.extents(file).await;
                assert!(extents.len() <= 4, "{} extents", extents.len());
                let content = rig.read(file).await.unwrap();
                assert_eq!(content[100_000..101_000], pattern(7, 1000));
                assert_eq!(content[101_000..102_000], pattern(101, 1000));
                rig.must_be_clean("folded").await;
                rig.close().await;
            })
            .finished();
    }
}

#[test]
fn packs_of_tiny_ranges_are_not_rewritten_for_ever() {
    let simulation = Simulation::new(6);
    simulation
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            for number in 0..600_u64 {
                let file = rig.file(ROOT, &format!("f{number}")).await;
                rig.write_inline(file, 70_000, &pattern(number, 3)).await;
            }
            // Runs background work until there is none.
            rig.must_be_clean("folded").await;
            assert_eq!(rig.metanode.counters().extents_folded, 600);
            assert_eq!(rig.metanode.counters().segments_cleaned, 0);
            rig.close().await;
        })
        .finished();
}

#[test]
fn an_unlinked_file_lives_as_long_as_it_is_held_and_not_over_a_crash() {
    let simulation = Simulation::new(5);
    simulation
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            let file = rig.file(ROOT, "f").await;
            rig.write(file, 0, &pattern(1, 9000)).await;
            rig.metanode.hold(rig.source.session(), file);
            rig.unlink(ROOT, "f").await;
            rig.settle().await;
            assert_eq!(rig.read(file).await.unwrap(), pattern(1, 9000));
            rig.metanode.unhold(file, &rig.stamp()).await.unwrap();
            rig.must_be_clean("let go").await;
            assert_eq!(rig.data_blobs().await, 0);
            let other = rig.file(ROOT, "g").await;
            rig.write(other, 0, &pattern(2, 9000)).await;
            rig.metanode.hold(rig.source.session(), other);
            rig.unlink(ROOT, "g").await;
            rig.metanode.sync().await.unwrap();
        })
        .finished();
    simulation
        .run(|world| async move {
            let rig = rig::open(&world).await;
            rig.must_be_clean("after the crash").await;
            assert_eq!(rig.data_blobs().await, 0);
            rig.close().await;
        })
        .finished();
}
