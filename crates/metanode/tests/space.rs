//! Space of removed and overwritten data is freed for writers that need it.

use crate::rig::{self, FAMILY, Rig, pattern};
use bytes::Bytes;
use futures::future::BoxFuture;
use metanode::CheckOptions;
use model::call::{Answer, Call, NoAnswer};
use model::limits::{RESERVED_MAX, RESERVED_RUNS_MAX};
use model::map::NsdState;
use model::operation::{Publish, Stamp};
use model::{
    CommitNumber, ErrorKind, Extent, ExtentKind, FileKind, InodeId, NsdId, Operation, Reply,
    Scheme, SegmentPlace, SessionId,
};
use namespace::Key;
use pool::SegmentOwner;
use std::sync::Arc;
use std::time::Duration;
use world::call::Remote;
use world::sim::Simulation;
use world::{Deadline, World};

const ROOT: InodeId = InodeId::ROOT;
const MIB: usize = 1 << 20;

async fn alone(world: &World) -> Rig {
    rig::create(world, Scheme::Replicate(1), 1).await;
    rig::open(world).await
}

/// Frees until nothing is left to free.
async fn free_all(rig: &Rig) {
    for _ in 0..1000 {
        if !rig.metanode.make_room().await.unwrap() {
            return;
        }
    }
    panic!("there is always something to free");
}

/// Publishes parts of a file at their places in a segment, as writers do.
fn publish(inode: InodeId, place: SegmentPlace, at: u32, length: u32) -> Operation {
    let kind = ExtentKind::Data {
        place,
        at,
        codec: 0,
        key_id: 0,
    };
    let extent = Extent {
        offset: 0,
        length: u64::from(length),
        kind,
        birth: CommitNumber(0),
    };
    Operation::Publish(Publish {
        inode,
        extents: vec![extent],
        size_at_least: u64::from(length),
        written: None,
        replaces: None,
    })
}

/// An NSD of a node that hasn't started yet.
pub(crate) struct Away;

impl Remote for Away {
    fn call(&self, _: Call, _: Deadline) -> BoxFuture<'_, Result<Answer, NoAnswer>> {
        Box::pin(async { Err(NoAnswer::not_run("nobody listens")) })
    }
}

/// As after a power cut of all nodes, if the owner's own NSD is being emptied: the others may have room.
#[test]
fn a_pool_is_not_called_full_while_it_is_unknown_what_its_nsds_hold() {
    let simulation = Simulation::new(9);
    simulation
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 2).await;
            let rig = rig::open_without(&world, &[2]).await;
            let file = rig.file(ROOT, "f").await;
            rig.write(file, 0, &pattern(1, MIB)).await;
            rig.pool.add_remote_nsd(NsdId(2), Arc::new(Away));
            rig.change_map(|map| {
                let mut next = map.clone();
                next.nsds[0].state = NsdState::Draining;
                next.epoch.0 += 1;
                next
            })
            .await;
            // There was plenty at the last measurement.
            world.sleep(Duration::from_secs(1)).await;
            let begun = world.now();
            let made = world.timeout(Duration::from_secs(15), rig.make(ROOT, "g", FileKind::File));
            assert!(made.await.is_err(), "it waits");
            let made = rig.make(ROOT, "h", FileKind::File).await;
            assert_eq!(made.unwrap_err().kind(), ErrorKind::NoSpace);
            assert!(world.now() - begun < Duration::from_secs(60));
            // Files that are made with these numbers aren't refused any more.
            let reserve = Operation::Reserve {
                inode: ROOT,
                inodes: 1,
                data: 0,
            };
            let reserved = rig.run(reserve).await;
            assert_eq!(reserved.unwrap_err().kind(), ErrorKind::NoSpace);
            rig.close().await;
        })
        .finished();
}

/// Reserves as many numbers as one message may.
const RESERVE: Operation = Operation::Reserve {
    inode: ROOT,
    inodes: RESERVED_MAX,
    data: 0,
};

/// Reserves as many numbers for a session as it may have.
async fn reserve_all(world: &World, rig: &Rig, session: SessionId) -> model::Result<()> {
    for _ in 0..RESERVED_RUNS_MAX {
        let stamp = Stamp::own(world.wall(), session);
        rig.metanode.execute(&RESERVE, &stamp).await?;
    }
    Ok(())
}

/// Would be broken if a pool were full before all was stored that clients have answered under delegations.
#[test]
fn numbers_are_reserved_as_long_as_there_is_room_for_what_is_made_with_them() {
    let simulation = Simulation::new(11);
    simulation
        .run(|world| async move {
            let rig = alone(&world).await;
            let mut sessions = Vec::new();
            let refused = loop {
                assert!(sessions.len() < 20, "there is room for more than fits");
                let session = rig.metanode.open_session().await.unwrap();
                sessions.push(session);
                if let Err(error) = reserve_all(&world, &rig, session).await {
                    break error;
                }
                // There was plenty at the last measurement.
                world.sleep(Duration::from_secs(1)).await;
            };
            assert_eq!(refused.kind(), ErrorKind::NoSpace);
            assert!(sessions.len() > 10, "{}", sessions.len());
            for session in sessions {
                rig.metanode.close_session(session).await.unwrap();
            }
            rig.run(RESERVE).await.unwrap();
            rig.must_be_clean("after the sessions' end").await;
            rig.close().await;
        })
        .finished();
}

/// Would be broken if the room for what a session doesn't make stayed kept until its end.
#[test]
fn there_is_room_again_when_numbers_are_given_back() {
    let simulation = Simulation::new(13);
    simulation
        .run(|world| async move {
            let rig = alone(&world).await;
            let session = rig.metanode.open_session().await.unwrap();
            let stamp = || Stamp::own(world.wall(), session);
            let mut reserved = Vec::new();
            for _ in 0..RESERVED_RUNS_MAX {
                let reply = rig.metanode.execute(&RESERVE, &stamp()).await.unwrap();
                let Reply::Reserved { inode, .. } = reply else {
                    panic!("{reply:?}");
                };
                reserved.push(inode);
            }
            let left = || rig.metanode.hosted().reserved_numbers();
            let all = RESERVED_RUNS_MAX as u64 * u64::from(RESERVED_MAX);
            assert_eq!(left(), all);
            let refused = rig.metanode.execute(&RESERVE, &stamp()).await;
            assert!(refused.is_err(), "the session has as many as it may");
            for number in reserved {
                let back = Operation::Reserve {
                    inode: InodeId::new(ROOT.fileset(), number),
                    inodes: 0,
                    data: 0,
                };
                rig.metanode.execute(&back, &stamp()).await.unwrap();
            }
            assert_eq!(left(), 0);
            rig.metanode.execute(&RESERVE, &stamp()).await.unwrap();
            rig.metanode.close_session(session).await.unwrap();
            rig.must_be_clean("after the session's end").await;
            rig.close().await;
        })
        .finished();
}

/// Would be broken if what was reserved counted only from the next measurement on: many clients may begin at the same time.
#[test]
fn numbers_that_are_reserved_in_one_moment_count_at_once() {
    let simulation = Simulation::new(12);
    simulation
        .run(|world| async move {
            let rig = alone(&world).await;
            // More than fit.
            let mut sessions = Vec::new();
            for _ in 0..24 {
                sessions.push(rig.metanode.open_session().await.unwrap());
            }
            world.sleep(Duration::from_secs(1)).await;
            let mut reserved = Ok(());
            for session in &sessions {
                reserved = reserve_all(&world, &rig, *session).await;
                if reserved.is_err() {
                    break;
                }
            }
            assert_eq!(reserved.unwrap_err().kind(), ErrorKind::NoSpace);
            for session in sessions {
                rig.metanode.close_session(session).await.unwrap();
            }
            rig.must_be_clean("after the sessions' end").await;
            rig.close().await;
        })
        .finished();
}

#[test]
fn what_is_overwritten_in_parts_comes_back_without_a_whole_segment_dying() {
    let simulation = Simulation::new(1);
    simulation
        .run(|world| async move {
            let rig = alone(&world).await;
            let file = rig.file(ROOT, "f").await;
            let mut content = pattern(1, 24 * MIB);
            for (number, part) in content.chunks(4 * MIB).enumerate() {
                rig.write(file, (number * 4 * MIB) as u64, part).await;
            }
            // All but the first 64 KiB of every 256 are overwritten: no segment dies completely.
            for at in (0..content.len()).step_by(256 * 1024) {
                let new = pattern(at as u64, 192 * 1024);
                let from = at + 64 * 1024;
                content[from..from + new.len()].copy_from_slice(&new);
                rig.write(file, from as u64, &new).await;
            }
            rig.metanode.sync().await.unwrap();
            let before = rig.pool.usage().used;
            assert!(before > 42 * MIB as u64, "{before}");
            free_all(&rig).await;
            let after = rig.pool.usage().used;
            assert!(after < 28 * MIB as u64, "{after}");
            assert!(rig.read(file).await.unwrap() == content);
            let cleaned = rig.metanode.counters().segments_cleaned;
            assert_eq!(cleaned, 6);
            rig.must_be_clean("after freeing").await;
            rig.close().await;
        })
        .finished();
}

#[test]
fn shared_bytes_are_not_rewritten_in_vain() {
    let simulation = Simulation::new(2);
    simulation
        .run(|world| async move {
            let rig = alone(&world).await;
            let (a, b) = (rig.file(ROOT, "a").await, rig.file(ROOT, "b").await);
            rig.write(a, 0, &pattern(1, 4 * MIB)).await;
            let share = Operation::Share {
                from: a,
                from_offset: 0,
                to: b,
                to_offset: 8 * MIB as u64,
                length: 64 * 1024,
            };
            rig.run(share).await.unwrap();
            rig.write(a, 64 * 1024, &pattern(2, 4 * MIB)).await;
            free_all(&rig).await;
            // No record says where the other file points at the segment.
            assert_eq!(rig.metanode.counters().segments_cleaned, 0);
            let shared = rig.read(b).await.unwrap();
            assert!(shared[8 * MIB..] == pattern(1, 64 * 1024));
            rig.must_be_clean("after freeing").await;
            rig.close().await;
        })
        .finished();
}

#[test]
fn a_search_for_space_lets_others_in_between_its_steps() {
    let simulation = Simulation::new(6);
    simulation
        .run(|world| async move {
            let rig = alone(&world).await;
            let (a, b) = (rig.file(ROOT, "a").await, rig.file(ROOT, "b").await);
            let length = 64 * 1024_u64;
            for number in 0..100 {
                let at = number * length;
                rig.write(a, at, &pattern(number, length as usize)).await;
                // Parts shared with another file can't be cleaned, however few are left.
                let share = Operation::Share {
                    from: a,
                    from_offset: at,
                    to: b,
                    to_offset: number * 4096,
                    length: 4096,
                };
                rig.run(share).await.unwrap();
                rig.write(a, at, &pattern(number + 1, length as usize))
                    .await;
            }
            let c = rig.file(ROOT, "c").await;
            rig.write(c, 0, &pattern(7, 64 * 1024)).await;
            rig.write(c, 0, &pattern(8, 32 * 1024)).await;
            rig.metanode.sync().await.unwrap();
            // The step examines so many without success that it ends before the one worth cleaning.
            assert!(rig.metanode.make_room().await.unwrap());
            assert_eq!(rig.metanode.counters().segments_cleaned, 0);
            free_all(&rig).await;
            assert_eq!(rig.metanode.counters().segments_cleaned, 1);
            rig.must_be_clean("after freeing").await;
            rig.close().await;
        })
        .finished();
}

#[test]
fn a_pack_that_died_with_its_first_file_is_refused_to_the_others_until_its_writer_is_through() {
    let simulation = Simulation::new(3);
    simulation
        .run(|world| async move {
            let rig = alone(&world).await;
            let (a, b) = (rig.file(ROOT, "a").await, rig.file(ROOT, "b").await);
            let owner = SegmentOwner {
                family: FAMILY,
                inode: model::InodeNumber(0),
                data: model::DataId(0),
                file_offset: 0,
            };
            let bytes = Bytes::from(pattern(1, 16_384));
            let pack = rig.pool.write(&rig.source, owner, bytes).await.unwrap();
            rig.run(publish(a, pack, 0, 8192)).await.unwrap();
            rig.unlink(ROOT, "a").await;
            assert!(rig.metanode.make_room().await.unwrap());
            let gone = rig.pool.read(&pack, 8192, 8192).await.unwrap_err();
            assert_eq!(gone.kind(), ErrorKind::NotFound);
            // The bytes are gone, so a publish must not claim that they are in the file.
            let late = rig.run(publish(b, pack, 8192, 8192)).await.unwrap_err();
            assert_eq!(late.kind(), ErrorKind::Stale);
            let dead = Key::Dead(pack.segment);
            let shard = rig.metanode.hosted();
            assert!(shard.record(&dead).await.unwrap().is_some());
            // The writer has published or given up everything: the record isn't needed any more.
            let (session, last) = (rig.source.session(), rig.source.last_counter());
            rig.metanode.report_low_water(session, last);
            rig.settle().await;
            assert!(shard.record(&dead).await.unwrap().is_none());
            rig.must_be_clean("after the end of the pack").await;
            rig.close().await;
        })
        .finished();
}

#[test]
fn what_was_removed_before_a_power_cut_is_free_within_a_second_after_it() {
    let simulation = Simulation::new(4);
    simulation
        .run(|world| async move {
            let rig = alone(&world).await;
            for number in 0..8 {
                let name = format!("f{number}");
                let file = rig.file(ROOT, &name).await;
                rig.write(file, 0, &pattern(number, 2 * MIB)).await;
            }
            rig.metanode.sync().await.unwrap();
            // Two are overwritten as well: dead without a data id to reclaim.
            let again = rig.look(ROOT, "f0").await.unwrap().inode;
            rig.write(again, 0, &pattern(9, 2 * MIB)).await;
            for number in 1..8 {
                rig.unlink(ROOT, &format!("f{number}")).await;
            }
            rig.metanode.sync().await.unwrap();
        })
        .finished();
    simulation.faults().cut_now();
    simulation
        .run(|world| async move {
            let rig = rig::open(&world).await;
            let before = rig.pool.usage().used;
            assert!(before > 16 * MIB as u64, "{before}");
            rig.metanode.start_background();
            world.sleep(Duration::from_secs(1)).await;
            let after = rig.pool.usage().used;
            assert!(after < 4 * MIB as u64, "{after}");
            rig.close().await;
        })
        .finished();
}

#[test]
fn a_check_of_a_busy_file_system_finds_nothing_and_delays_no_operation() {
    let simulation = Simulation::new(5);
    simulation
        .run(|world| async move {
            let rig = std::sync::Arc::new(alone(&world).await);
            for number in 0..64 {
                let file = rig.file(ROOT, &format!("f{number}")).await;
                rig.write(file, 0, &pattern(number, 100_000)).await;
            }
            rig.settle().await;
            rig.metanode.start_background();
            let busy = rig.clone();
            let checks = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
            let done = checks.clone();
            let working = async move {
                let mut round = 0_u64;
                // Files are created, overwritten and removed, and their space is freed, during each
                // check.
                while done.load(std::sync::atomic::Ordering::SeqCst) < 5 {
                    let number = round % 64;
                    let name = format!("f{number}");
                    let file = busy.look(ROOT, &name).await.unwrap().inode;
                    busy.write(file, 0, &pattern(round, 100_000)).await;
                    if round.is_multiple_of(3) {
                        busy.unlink(ROOT, &name).await;
                        let file = busy.file(ROOT, &name).await;
                        busy.write(file, 0, &pattern(round, 50_000)).await;
                    }
                    busy.metanode.make_room().await.unwrap();
                    round += 1;
                }
                round
            };
            let checking = async {
                for _ in 0..5 {
                    let options = CheckOptions { deep: true };
                    let report = rig.metanode.check(options).await.unwrap();
                    assert!(report.is_clean(), "{:#?}", report.faults);
                    assert!(report.segments >= 32, "{}", report.segments);
                    checks.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                }
            };
            let (rounds, ()) = futures::future::join(working, checking).await;
            assert!(rounds > 10, "work continued during the checks: {rounds}");
        })
        .finished();
}
