//! Stories of failures with several nodes, each as a scenario of its own: `docs/failure-stories.md`.

use bytes::Bytes;
use client::Client;
use model::operation::RenameMode;
use model::{ErrorKind, FileKind, InodeId, Result, SetAttributes};
use sim::cluster::{ClusterScenario, Stage, client};
use sim::{by_suite, each_seed};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use testkit::content::content;
use testkit::inodes::{name, new_inode};
use world::{Planted, Point};

/// More than an fsync takes into the log.
const BYTES: usize = 400_000;

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

pub(crate) async fn make(client: &Client, file: &str) -> Result<InodeId> {
    let made = client.create_and_open(InodeId::ROOT, name(file), new_inode(FileKind::File));
    Ok(made.await?.inode)
}

pub(crate) async fn find(client: &Client, file: &str) -> Result<InodeId> {
    Ok(client.lookup(InodeId::ROOT, name(file)).await?.inode)
}

/// Makes a file, and returns when it is durable, also if an owner on the client's own node ends before that.
async fn make_durable(client: &Client, file: &str) -> Result<()> {
    loop {
        let made = match make(client, file).await {
            Err(error) if error.kind() == ErrorKind::Exists => Ok(()),
            made => made.map(drop),
        };
        let durable = match made {
            Ok(()) => client.sync_all().await,
            Err(error) => Err(error),
        };
        match durable {
            Err(error) if matches!(error.kind(), ErrorKind::SessionEnded | ErrorKind::Unknown) => {}
            durable => return durable,
        }
    }
}

async fn read(client: &Client, inode: InodeId) -> Result<Bytes> {
    let pieces = client.read(inode, 0, BYTES + 1).await?;
    Ok(pieces.concat().into())
}

/// Would be broken if a write, an fsync or a read failed with EIO because NSDs can't be reached for
/// a while, or if it never went on.
#[test]
fn programs_on_a_node_that_is_cut_off_see_a_pause_and_no_error() {
    each_seed(0..by_suite(2, 40), |seed| {
        cut_off(seed, None);
    });
}

pub(crate) fn cut_off(seed: u64, planted: Option<Planted>) -> u64 {
    Stage::play(seed, &ClusterScenario::USUAL, planted, async |stage| {
        // On NSDs of the other nodes, and not in the client's memory.
        let written = stage.run(2, async |_, member| {
            let client = client(&member).await;
            for file in 0..8 {
                let inode = make(&client, &format!("f{file}")).await?;
                client.write(inode, 0, &content(file, BYTES)).await?;
            }
            client.close().await
        });
        written.await.expect("written");
        let worked = stage.start_task(1, async |world, member| {
            let client = client(&member).await;
            let inode = make(&client, "new").await?;
            let mut files = Vec::new();
            for file in 0..8 {
                files.push(find(&client, &format!("f{file}")).await?);
            }
            world.sleep(ms(1_000)).await;
            // The node is cut off here.
            client.write(inode, 0, &content(9, BYTES)).await?;
            client.fsync(inode, false).await?;
            for (file, inode) in files.into_iter().enumerate() {
                assert!(read(&client, inode).await? == content(file as u64, BYTES));
            }
            client.close().await
        });
        stage.sleep(ms(900)).await;
        stage.isolate(1);
        // Less than its lease: for longer, the cluster goes on without it.
        stage.sleep(ms(4_000)).await;
        stage.heal();
        let worked = stage.end_of(worked).await;
        worked.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    })
}

/// The node that is the manager, and another one, which gets the shard.
async fn manager_without_shard(stage: &Arc<Stage>) -> (usize, usize) {
    stage.settled().await;
    let manager = stage.manager().expect("one is the manager");
    let other = (manager + 1) % 3;
    stage.move_shard(other).await;
    (manager, other)
}

/// Would be broken if the cluster expelled a manager's node that only coordination can't be reached from: it has
/// never heard who followed it.
#[test]
fn a_manager_that_is_cut_off_from_coordination_alone_stays_a_member() {
    each_seed(0..by_suite(2, 40), |seed| {
        Stage::play(seed, &ClusterScenario::USUAL, None, async |stage| {
            let (manager, _) = manager_without_shard(&stage).await;
            let before = stage.run(manager, async |_, member| member.run()).await;
            let worked = stage.start_task(manager, async |world, member| {
                let client = client(&member).await;
                let inode = make(&client, "kept").await?;
                for round in 0..30 {
                    client.write(inode, 0, &content(round, BYTES)).await?;
                    client.fsync(inode, false).await?;
                    world.sleep(ms(1_000)).await;
                }
                client.close().await
            });
            stage.sleep(ms(2_000)).await;
            stage.cut_off_coordination(manager);
            stage.sleep(ms(10_000)).await;
            assert_ne!(stage.manager(), Some(manager), "seed {seed}: another is it");
            stage.heal();
            let worked = stage.end_of(worked).await;
            worked.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            let after = stage.run(manager, async |_, member| member.run()).await;
            assert_eq!(after, before, "seed {seed}: it was expelled");
        });
    });
}

/// Would be broken if a node stayed a member that has heard nothing of the cluster's facts for long: others would wait
/// for what only it can say.
#[test]
fn a_manager_that_is_cut_off_from_coordination_for_long_is_expelled_and_others_go_on() {
    each_seed(0..by_suite(1, 20), |seed| {
        Stage::play(seed, &ClusterScenario::USUAL, None, async |stage| {
            let (manager, other) = manager_without_shard(&stage).await;
            let before = stage.run(manager, async |_, member| member.run()).await;
            stage.cut_off_coordination(manager);
            let wrote = stage.run(other, async |world, member| {
                let client = client(&member).await;
                let inode = make(&client, "written").await?;
                for round in 0..60 {
                    let at = round * BYTES as u64;
                    client.write(inode, at, &content(round, BYTES)).await?;
                    client.fsync(inode, false).await?;
                    world.sleep(ms(1_000)).await;
                }
                client.close().await
            });
            wrote
                .await
                .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            stage.heal();
            stage.settled().await;
            let after = stage.run(manager, async |_, member| member.run()).await;
            assert_ne!(after, before, "seed {seed}: it was a member all the time");
        });
    });
}

/// Would be broken if a node that was expelled never came back, or if its programs went on as if nothing
/// had happened.
#[test]
fn a_node_that_is_cut_off_for_long_is_expelled_and_starts_anew_with_all_that_was_synced() {
    each_seed(0..by_suite(2, 40), |seed| {
        Stage::play(seed, &ClusterScenario::USUAL, None, async |stage| {
            stage.settled().await;
            // A node that isn't the manager, which is looked at by another story.
            let manager = stage.manager().expect("one is the manager");
            let victim = (manager + 1) % 3;
            let before = stage.run(victim, async |_, member| {
                let client = client(&member).await;
                let inode = make(&client, "kept").await.expect("made");
                let bytes = content(3, BYTES);
                client.write(inode, 0, &bytes).await.expect("written");
                client.fsync(inode, false).await.expect("synced");
                std::mem::forget(client);
                member.run()
            });
            let before = before.await;
            stage.isolate(victim);
            stage.sleep(ms(20_000)).await;
            // The others have its file, whoever owned the shard.
            let read = stage.run(manager, async |_, member| {
                let client = client(&member).await;
                let inode = find(&client, "kept").await?;
                let read = read(&client, inode).await?;
                client.close().await?;
                Ok::<_, model::Error>(read)
            });
            let found = read.await.expect("read");
            assert!(found == content(3, BYTES), "seed {seed}: it differs");
            stage.heal();
            stage.settled().await;
            let after = stage.run(victim, async |_, member| member.run());
            assert!(after.await > before, "seed {seed}: the run was expelled");
        });
    });
}

/// Would be broken if two moves that are checked one by one were carried out together: neither directory could be
/// reached any more.
#[test]
fn directories_that_two_nodes_move_into_each_other_make_no_loop() {
    each_seed(0..by_suite(2, 40), |seed| {
        Stage::play(seed, &ClusterScenario::USUAL, None, async |stage| {
            let made = stage.run(0, async |_, member| {
                let client = client(&member).await;
                let mut made = Vec::new();
                for directory in ["a", "b"] {
                    let new = new_inode(FileKind::Directory);
                    let directory = client.create(InodeId::ROOT, name(directory), new).await?;
                    made.push(directory.inode);
                }
                client.close().await?;
                Ok::<_, model::Error>(made)
            });
            let made = made.await.expect("made");
            let moves = [(1, "a", made[1]), (2, "b", made[0])].map(|(node, from, into)| {
                stage.start_task(node, async move |world, member| {
                    let client = client(&member).await;
                    let wait = Duration::from_micros(world.random_u64() % 5_000);
                    world.sleep(wait).await;
                    let mode = RenameMode::NoReplace;
                    let root = InodeId::ROOT;
                    let moved = (client.rename(root, name(from), into, name(from), mode)).await;
                    client.close().await?;
                    match moved {
                        Ok(()) => Ok(true),
                        // It would be inside itself, or its name isn't there any more.
                        Err(error) => match error.kind() {
                            ErrorKind::InvalidArgument | ErrorKind::NotFound => Ok(false),
                            _ => Err(error),
                        },
                    }
                })
            });
            let mut moved = 0;
            for task in moves {
                let done: Result<bool> = stage.end_of(task).await;
                moved += usize::from(done.unwrap_or_else(|error| panic!("seed {seed}: {error}")));
            }
            assert_eq!(moved, 1, "seed {seed}: one of them is moved");
        });
    });
}

/// Would be broken if stat showed a size that its writer had only in its memory.
#[test]
fn a_size_that_somebody_saw_outlives_the_writer_that_dies() {
    each_seed(0..by_suite(3, 60), |seed| {
        Stage::play(seed, &ClusterScenario::USUAL, None, async move |stage| {
            let file = stage.run(0, async |_, member| {
                let client = client(&member).await;
                let file = make(&client, "grows").await?;
                client.close().await?;
                Ok::<_, model::Error>(file)
            });
            let file = file.await.expect("made");
            // Two write it at the same time, each its own blocks.
            for node in 1..3_u64 {
                drop(stage.start_task(node as usize, async move |world, member| {
                    let client = client(&member).await;
                    for block in 0..1_000 {
                        let at = (block * 2 + node) * 4_096;
                        client.write(file, at, &content(1, 4_096)).await?;
                        world.sleep(Duration::from_millis(3)).await;
                    }
                    Ok::<_, model::Error>(())
                }));
            }
            stage.sleep(ms(200 + seed * 83 % 900)).await;
            let size = |node| {
                let asked = stage.start_task(node, async move |_, member| {
                    let client = client(&member).await;
                    let size = client.get_attributes(file).await?.size;
                    client.close().await?;
                    Ok::<_, model::Error>(size)
                });
                async { stage.end_of(asked).await.expect("the size") }
            };
            let seen = size(0).await;
            stage.kill(1);
            stage.kill(2);
            let later = size(0).await;
            assert!(
                seen > 0 && later >= seen,
                "seed {seed}: {seen}, then {later}"
            );
            for node in 1..3 {
                stage.start(node).await;
            }
        });
    });
}

/// Would be broken if a reader were answered before what it sees is durable.
#[test]
fn what_a_node_has_seen_survives_the_owner_that_showed_it() {
    each_seed(0..by_suite(4, 80), |seed| {
        seen(seed, None);
    });
}

pub(crate) fn seen(seed: u64, planted: Option<Planted>) -> u64 {
    Stage::play(seed, &ClusterScenario::USUAL, planted, async |stage| {
        let writer = stage.start_task(1, async |_, member| {
            let client = client(&member).await;
            for file in 0..1_000 {
                make(&client, &format!("f{file}")).await?;
            }
            client.close().await
        });
        // The reader's last answer is the newest name that anybody has seen.
        let reader = stage.start_task(2, async move |world, member| {
            let client = client(&member).await;
            let (mut seen, begun) = (0, world.now());
            while world.now() - begun < ms(100 + 20 * seed) {
                while find(&client, &format!("f{seen}")).await.is_ok() {
                    seen += 1;
                }
                // That the name is missing is known here, until the writer wants to make it.
                world.sleep(ms(1)).await;
            }
            seen
        });
        let seen = stage.end_of(reader).await;
        stage.kill(0);
        stage.move_shard(2).await;
        let found = stage.run(2, async move |_, member| {
            let client = client(&member).await;
            for file in 0..seen {
                find(&client, &format!("f{file}")).await?;
            }
            client.close().await
        });
        let found = found.await;
        found.unwrap_or_else(|error| panic!("seed {seed}, {seen} names seen: {error}"));
        assert!(seen > 0, "seed {seed}: the reader saw something");
        stage.end_of(writer).await.expect("the writer goes on");
        stage.start(0).await;
    })
}

/// Would be broken if an owner answered with what was, because it hasn't heard that another one had the shard
/// meanwhile and that it got it back.
#[test]
fn a_client_that_knows_a_later_owner_is_shown_nothing_by_the_one_before() {
    each_seed(0..by_suite(3, 60), |seed| {
        there_and_back(seed, None);
    });
}

pub(crate) fn there_and_back(seed: u64, planted: Option<Planted>) -> u64 {
    Stage::play(seed, &ClusterScenario::USUAL, planted, async |stage| {
        let step = Arc::new(AtomicU64::new(0));
        let steps = step.clone();
        let looking = stage.start_task(2, async move |world, member| {
            let client = client(&member).await;
            let until = async |step| {
                while steps.load(Ordering::Relaxed) < step {
                    world.sleep(ms(1)).await;
                }
            };
            make(&client, "first").await?;
            until(1).await;
            make(&client, "second").await?;
            steps.store(2, Ordering::Relaxed);
            until(3).await;
            find(&client, "others").await?;
            client.close().await
        });
        stage.sleep(ms(200)).await;
        stage.silence_watches(0, ms(20_000));
        stage.move_shard(1).await;
        step.store(1, Ordering::Relaxed);
        while step.load(Ordering::Relaxed) < 2 {
            stage.sleep(ms(1)).await;
        }
        let made = stage.run(1, async |_, member| {
            let client = client(&member).await;
            make(&client, "others").await?;
            client.close().await
        });
        made.await.expect("the second owner serves");
        stage.assign(0).await;
        stage.sleep(ms(seed % 5)).await;
        step.store(3, Ordering::Relaxed);
        let found = stage.end_of(looking).await;
        found.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    })
}

/// Would be broken if an operation whose answer was lost were applied again by a later owner: the
/// second application of an exclusive create, a rename or an unlink is refused.
#[test]
fn an_operation_whose_answer_is_lost_is_applied_once_across_two_moves() {
    each_seed(0..by_suite(4, 80), |seed| {
        applied_once(seed, None);
    });
}

pub(crate) fn applied_once(seed: u64, planted: Option<Planted>) -> u64 {
    Stage::play(seed, &ClusterScenario::USUAL, planted, async |stage| {
        let worked = stage.start_task(2, async |world, member| {
            let client = client(&member).await;
            let begun = world.now();
            let mut round = 0;
            while world.now() - begun < ms(20_000) {
                let (old, new) = (format!("old{round}"), format!("new{round}"));
                make(&client, &old).await?;
                let (old, new) = (name(&old), name(&new));
                let mode = model::operation::RenameMode::NoReplace;
                let root = InodeId::ROOT;
                client.rename(root, old, root, new.clone(), mode).await?;
                client.unlink(root, new).await?;
                round += 1;
            }
            client.close().await.map(|()| round)
        });
        stage.sleep(ms(200 + 3 * seed)).await;
        // Operations arrive, and no answer comes back.
        stage.cut_one_way(0, 2);
        stage.sleep(ms(500)).await;
        stage.assign(1).await;
        stage.sleep(ms(100 * (seed % 7))).await;
        stage.cut_one_way(1, 2);
        stage.sleep(ms(700)).await;
        stage.heal();
        stage.move_shard(0).await;
        let rounds = stage.end_of(worked).await;
        let rounds = rounds.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert!(rounds > 10, "seed {seed}: {rounds} rounds");
    })
}

/// Pieces of a file, each an extent of its own: more than one step of a truncate cuts.
const PIECES: u64 = 3_700;
const STRIDE: u64 = 3 * 4096;

/// Would be broken if an owner that ends in the middle of a long truncate left the rest of the file's end
/// there, or if its client took an unfinished one for done.
#[test]
fn a_long_truncate_whose_owner_is_killed_between_two_steps_is_finished_by_the_next() {
    each_seed(0..by_suite(2, 20), |seed| {
        Stage::play(seed, &ClusterScenario::USUAL, None, async |stage| {
            stage.settled().await;
            stage.move_shard(0).await;
            let written = stage.run(2, async |_, member| {
                let client = client(&member).await;
                let inode = make(&client, "long").await?;
                for piece in 0..PIECES {
                    client
                        .write(inode, piece * STRIDE, &content(piece, 4096))
                        .await?;
                }
                client.close().await
            });
            written.await.expect("written");
            stage.kill_at(Point::CutBegun, seed % 2);
            let cut = stage.start_task(2, async |_, member| {
                let client = client(&member).await;
                let inode = find(&client, "long").await?;
                resize(&client, inode, 100).await?;
                client.close().await
            });
            let cut = stage.end_of(cut).await;
            cut.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            assert_eq!(stage.killed(), Some(0), "seed {seed}");
            let read = stage.run(1, async |_, member| {
                let client = client(&member).await;
                let inode = find(&client, "long").await?;
                let attributes = client.get_attributes(inode).await?;
                // What was cut doesn't come back.
                resize(&client, inode, PIECES * STRIDE).await?;
                let bytes = client.read(inode, 0, (PIECES * STRIDE) as usize).await?;
                client.close().await?;
                Ok::<_, model::Error>((attributes, bytes.concat()))
            });
            let (attributes, bytes) = read.await.expect("read");
            assert_eq!(attributes.size, 100, "seed {seed}");
            assert!(attributes.allocated <= 4096, "seed {seed}: {attributes:?}");
            assert!(bytes[..100] == content(0, 4096)[..100], "seed {seed}");
            assert!(bytes[100..].iter().all(|byte| *byte == 0), "seed {seed}");
            stage.start(0).await;
        });
    });
}

async fn resize(client: &Client, inode: InodeId, size: u64) -> Result<()> {
    let set = SetAttributes {
        size: Some(size),
        ..SetAttributes::default()
    };
    client.set_attributes(inode, set).await.map(drop)
}

/// Would be broken if an owner took for garbage what an open session has stored and not published
/// yet: its publish would succeed, and the data be gone.
#[test]
fn owners_keep_what_a_client_is_about_to_publish() {
    each_seed(0..by_suite(4, 80), |seed| {
        unpublished(seed, None);
    });
}

pub(crate) fn unpublished(seed: u64, planted: Option<Planted>) -> u64 {
    const PARTS: u64 = 40;
    Stage::play(seed, &ClusterScenario::USUAL, planted, async |stage| {
        let written = stage.start_task(2, async |_, member| {
            let client = client(&member).await;
            let inode = make(&client, "f").await?;
            for part in 0..PARTS {
                let bytes = content(part, BYTES);
                client.write(inode, part * BYTES as u64, &bytes).await?;
                client.fsync(inode, false).await?;
            }
            client.close().await
        });
        let sweep = |node| {
            stage.start_task(node, async move |world, member| {
                let begun = world.now();
                while let Some(metanode) = member.hosted()
                    && world.now() - begun < ms(3_000)
                {
                    // The shard may be taken away in the middle of it.
                    let _ = metanode.run_background_once().await;
                    world.sleep(ms(7)).await;
                }
            })
        };
        let first = sweep(0);
        stage.sleep(ms(60 + 20 * seed)).await;
        stage.move_shard(1).await;
        stage.end_of(sweep(1)).await;
        stage.end_of(first).await;
        let written = stage.end_of(written).await;
        written.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let read = stage.run(0, async |_, member| {
            let client = client(&member).await;
            let inode = find(&client, "f").await?;
            for part in 0..PARTS {
                let found = client.read(inode, part * BYTES as u64, BYTES).await?;
                assert!(found.concat() == content(part, BYTES), "part {part}");
            }
            client.close().await
        });
        let read = read.await;
        read.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    })
}

/// Would be broken if a file without names died with the owner that knew who holds it, or if it
/// outlived a node that never comes back.
#[test]
fn a_file_without_names_lives_as_long_as_the_node_that_holds_it() {
    each_seed(0..by_suite(2, 40), |seed| {
        without_names(seed, None);
    });
}

pub(crate) fn without_names(seed: u64, planted: Option<Planted>) -> u64 {
    Stage::play(seed, &ClusterScenario::USUAL, planted, async |stage| {
        let held = stage.start_task(2, async |world, member| {
            let client = client(&member).await;
            let inode = make(&client, "f").await?;
            client.write(inode, 0, &content(5, BYTES)).await?;
            client.fsync(inode, false).await?;
            client.unlink(InodeId::ROOT, name("f")).await?;
            world.sleep(ms(20_000)).await;
            client.forget_clean();
            read(&client, inode).await
        });
        stage.sleep(ms(3_000)).await;
        stage.kill(0);
        stage.move_shard(1).await;
        stage.sleep(ms(3_000)).await;
        stage.start(0).await;
        stage.move_shard(0).await;
        let read = stage.end_of(held).await;
        let read = read.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert!(read == content(5, BYTES), "seed {seed}");
        // Its node starts again, and the new run holds nothing.
        stage.kill(2);
        stage.start(2).await;
        let left = stage.run(2, async |world, member| {
            let client = client(&member).await;
            for _ in 0..600 {
                client.sync_all().await.expect("synced");
                if client.usage(InodeId::ROOT).await.expect("counted").inodes <= 1 {
                    break;
                }
                world.sleep(ms(1_000)).await;
            }
            let left = client.usage(InodeId::ROOT).await.expect("counted").inodes;
            client.close().await.expect("closed");
            left
        });
        assert_eq!(left.await, 1, "seed {seed}: only the root is left");
    })
}

/// Would be broken if a taker could erase entries after it was itself followed: here it stands
/// still in the middle of its take-over, and goes on when its successor has acknowledged more. Then
/// the other copy is lost.
#[test]
fn a_taker_that_stood_still_erases_nothing_of_its_successor() {
    each_seed(0..by_suite(20, 200), |seed| {
        paused_taker(seed, None);
    });
}

pub(crate) fn paused_taker(seed: u64, planted: Option<Planted>) -> u64 {
    Stage::play(seed, &ClusterScenario::USUAL, planted, async |stage| {
        let made = Arc::new(AtomicU64::new(0));
        let counted = made.clone();
        let maker = stage.start_task(0, async move |_, member| {
            let client = client(&member).await;
            while client_is_needed(&counted) {
                let file = counted.load(Ordering::Relaxed);
                make_durable(&client, &format!("f{file}")).await?;
                counted.fetch_add(1, Ordering::Relaxed);
            }
            client.close().await
        });
        stage.sleep(ms(300)).await;
        if seed.is_multiple_of(2) {
            // Where only the erasing is left.
            stage.hold_at(Point::EndRecorded, ms(20));
            stage.assign(1).await;
            stage.until_held().await;
        } else {
            stage.assign(1).await;
            stage.sleep(ms(1 + seed)).await;
        }
        stage.pause(1);
        stage.move_shard(2).await;
        stage.sleep(ms(1_000)).await;
        stage.resume(1);
        stage.sleep(ms(500)).await;
        stage.kill(2);
        stage.move_shard(0).await;
        stage.sleep(ms(500)).await;
        let acknowledged = made.fetch_or(ENOUGH, Ordering::Relaxed);
        let ended = stage.end_of(maker).await;
        ended.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let found = stage.run(1, async move |_, member| {
            let client = client(&member).await;
            for file in 0..acknowledged {
                find(&client, &format!("f{file}")).await?;
            }
            client.close().await
        });
        let found = found.await;
        found.unwrap_or_else(|error| panic!("seed {seed}, of {acknowledged} names: {error}"));
        stage.start(2).await;
    })
}

/// Set in the count of made files when no more are wanted.
const ENOUGH: u64 = 1 << 63;

fn client_is_needed(made: &AtomicU64) -> bool {
    made.load(Ordering::Relaxed) & ENOUGH == 0
}

/// Would be broken if space came back from segments in which something still lives.
#[test]
fn files_outlive_the_cleaning_of_their_segments() {
    each_seed(0..by_suite(2, 40), |seed| {
        cleaned(seed, None);
    });
}

pub(crate) fn cleaned(seed: u64, planted: Option<Planted>) -> u64 {
    const FILES: u64 = 60;
    const LENGTH: usize = 9_000;
    Stage::play(seed, &ClusterScenario::USUAL, planted, async |stage| {
        let made = stage.run(1, async |_, member| {
            let client = client(&member).await;
            for file in 0..FILES {
                let inode = make(&client, &format!("f{file}")).await?;
                client.write(inode, 0, &content(file, LENGTH)).await?;
            }
            // Together, so that they share segments.
            client.sync_all().await?;
            for file in (0..FILES).filter(|file| file % 4 != 0) {
                client
                    .unlink(InodeId::ROOT, name(&format!("f{file}")))
                    .await?;
            }
            client.close().await
        });
        made.await.expect("made");
        stage.sleep(ms(60_000)).await;
        stage.move_shard(2).await;
        let cleaned = stage.run(2, async |world, member| {
            for _ in 0..120 {
                let Some(metanode) = member.hosted() else {
                    break;
                };
                metanode.run_background_once().await?;
                world.sleep(ms(1_000)).await;
            }
            Ok::<_, model::Error>(())
        });
        cleaned.await.expect("background work succeeds");
        let read = stage.run(0, async |_, member| {
            let client = client(&member).await;
            for file in (0..FILES).step_by(4) {
                let inode = find(&client, &format!("f{file}")).await?;
                let found = client.read(inode, 0, LENGTH + 1).await?;
                assert!(found.concat() == content(file, LENGTH), "file {file}");
            }
            client.close().await
        });
        let read = read.await;
        read.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    })
}
