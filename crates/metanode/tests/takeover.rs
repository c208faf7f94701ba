//! A given-up shard is taken over again; an older owner can't write.

use crate::rig::clients::{CLIENT, next_owner, next_owner_under, opened, send};
use crate::rig::{self, Rig, pattern};
use metanode::{Metanode, OwnerLease, TAKE_OVER_MAX};
use model::operation::{Stamp, Turn};
use model::owner::{OwnerReply, OwnerRequest, Reclaimed};
use model::{
    Error, ErrorKind, FileKind, InodeId, NodeId, NodeRun, NsdId, Operation, Scheme, SessionId,
    ShardId,
};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use world::sim::{Faults, Simulation};
use world::{Part, Work, World, errand};

const ROOT: InodeId = InodeId::ROOT;

#[test]
fn clients_see_a_pause_and_lose_nothing_when_a_shard_is_taken_over_again() {
    for seed in 0..20 {
        let simulation = Simulation::new(100 + seed);
        simulation
            .run(|world| async move {
                rig::create(&world, Scheme::Replicate(2), 2).await;
                let rig = Arc::new(rig::open(&world).await);
                rig.metanode.start_background();
                let directory = rig
                    .make(ROOT, "d", FileKind::Directory)
                    .await
                    .unwrap()
                    .inode;
                // The owner resigns repeatedly, at any point of a commit.
                let troubled = rig.clone();
                let trouble = world.spawn("trouble", async move {
                    for _ in 0..5 {
                        let pause = troubled.world.random_u64() % 40;
                        troubled.world.sleep(Duration::from_millis(pause)).await;
                        troubled
                            .metanode
                            .hosted()
                            .resign(&Error::new(ErrorKind::Unavailable, "a test wants it"));
                    }
                });
                for number in 0..200_u64 {
                    let file = rig.file(directory, &format!("f{number}")).await;
                    rig.write_inline(file, 0, &pattern(number, 500)).await;
                    if number % 7 == seed % 7 {
                        rig.metanode.sync().await.unwrap();
                    } else if number % 5 == 0 {
                        world.sleep(Duration::from_millis(1)).await;
                    }
                }
                trouble.await;
                for number in 0..200_u64 {
                    let file = rig
                        .look(directory, &format!("f{number}"))
                        .await
                        .unwrap()
                        .inode;
                    assert_eq!(rig.read(file).await.unwrap(), pattern(number, 500));
                }
                assert!(rig.metanode.counters().takeovers >= 1);
                rig.must_be_clean("after all that").await;
                rig.metanode.close().await.unwrap();
            })
            .finished();
        simulation
            .run(|world| async move {
                let rig = rig::open(&world).await;
                rig.must_be_clean("after the restart").await;
                assert_eq!(rig.metanode.usage().await.unwrap().inodes, 202);
            })
            .finished();
    }
}

#[test]
fn a_sync_while_a_shard_is_taken_over_again_does_not_succeed_before_the_changes_are_durable() {
    let simulation = Simulation::new(42);
    let faults = simulation.faults();
    simulation
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            rig.file(ROOT, "f").await;
            let shard = rig.metanode.hosted();
            shard.resign(&Error::new(ErrorKind::Unavailable, "a test wants it"));
            faults.slow("nsd1", Duration::from_secs(5));
            // At some time the changes leave the given-up shard, and the next owner isn't there yet.
            let second = Duration::from_secs(1);
            let mut parts = Vec::new();
            loop {
                let mut syncing = pin!(errand::begin(rig.metanode.sync()));
                if world.timeout(second, syncing.as_mut()).await.is_ok() {
                    break;
                }
                parts.extend(world.waits().0.iter().map(|wait| wait.part));
            }
            assert!(!Arc::ptr_eq(&shard, &rig.metanode.hosted()));
            let take_over = Work::TakeOver(shard.id());
            for part in [Part::ForWork(take_over), Part::Work(take_over)] {
                assert!(parts.contains(&part), "{part:?}: {parts:?}");
            }
            shard.sync().await.expect_err("it made nothing durable");
            faults.heal("nsd1");
            rig.metanode.sync().await.unwrap();
            assert!(rig.look(ROOT, "f").await.is_some());
            rig.close().await;
        })
        .finished();
}

/// What is listed of the errand of a shard's take-over; the take-over itself must be.
#[track_caller]
fn waits_of_take_over(world: &World, shard: ShardId) -> Vec<Part> {
    let waits = world.waits().0;
    let take_over = Part::Work(Work::TakeOver(shard));
    let work = waits.iter().find(|wait| wait.part == take_over);
    let errand = work.unwrap_or_else(|| panic!("{waits:?}")).errand;
    let inside = waits.iter().filter(|wait| wait.errand == errand);
    inside.map(|wait| wait.part).collect()
}

/// Would be broken if a step of a take-over were in no list: what waits for the take-over waited for nothing meanwhile.
#[test]
fn a_take_over_is_listed_with_what_it_waits_for_until_clients_are_served() {
    let simulation = Simulation::new(45);
    let faults = simulation.faults();
    simulation
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            rig.file(ROOT, "f").await;
            rig.metanode.close().await.unwrap();
            let shard = ShardId(0);
            let run = metanode::begin_alone(&rig.coordination, shard).await;
            let opening = rig.opening(run.unwrap());
            faults.slow("nsd1", Duration::from_secs(1));
            let commit = Part::ForWork(Work::Commit(shard));
            let mut opens = pin!(Metanode::open(opening));
            let mut is_committing = false;
            let metanode = loop {
                let moment = Duration::from_millis(300);
                if let Ok(opened) = world.timeout(moment, opens.as_mut()).await {
                    break opened.unwrap();
                }
                is_committing |= waits_of_take_over(&world, shard).contains(&commit);
            };
            assert!(is_committing, "an owner's session is in a commit");
            faults.heal("nsd1");
            Rig { metanode, ..rig }.close().await;
        })
        .finished();
}

/// Would be broken if it were in no list that the shard which was given up has yet to end, or what that waits for.
#[test]
fn a_take_over_that_waits_for_the_last_commit_of_the_owner_before_is_listed_with_that() {
    let simulation = Simulation::new(46);
    let faults = simulation.faults();
    simulation
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            rig.file(ROOT, "f").await;
            let shard = rig.metanode.hosted();
            faults.slow("nsd1", Duration::from_secs(5));
            let second = Duration::from_secs(1);
            assert!(world.timeout(second, rig.metanode.sync()).await.is_err());
            shard.resign(&Error::new(ErrorKind::Unavailable, "a test wants it"));
            let again = world.timeout(second, rig.metanode.sync());
            assert!(again.await.is_err(), "the commit isn't done yet");
            let parts = waits_of_take_over(&world, shard.id());
            let commit = Part::ForWork(Work::Commit(shard.id()));
            assert!(parts.contains(&commit), "{parts:?}");
            faults.heal("nsd1");
            rig.metanode.sync().await.unwrap();
            assert!(rig.look(ROOT, "f").await.is_some());
            rig.close().await;
        })
        .finished();
}

#[test]
fn an_owner_that_another_has_followed_never_serves_again_and_its_process_may() {
    let simulation = Simulation::new(40);
    simulation
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(2), 2).await;
            let old = rig::open(&world).await;
            old.metanode.start_background();
            old.make(ROOT, "synced", FileKind::Directory).await.unwrap();
            old.metanode.sync().await.unwrap();
            let shard = ShardId(0);
            let record = async || old.coordination.shard(shard).await.unwrap().unwrap().value;
            let mine = record().await.assigned;
            let run = NodeRun {
                node: NodeId(2),
                incarnation: 1,
            };
            old.coordination
                .assign_shard(shard, mine, run)
                .await
                .unwrap();
            let opening = old.opening(run);
            let new = Metanode::open(opening).await.unwrap();
            let session = old.source.session();
            let nothing = Reclaimed::default();
            new.reclaim(session, &nothing, true).await.unwrap();
            let epoch = record().await.epoch;
            let create = |text: &str| {
                let kind = FileKind::Directory;
                let new = model::operation::NewInode {
                    mode: 0o700,
                    ..rig::new_inode(kind)
                };
                Operation::Create {
                    directory: ROOT,
                    name: rig::name(text),
                    new,
                }
            };
            new.execute(&create("by-the-new-owner"), &old.stamp())
                .await
                .unwrap();
            new.sync().await.unwrap();
            // Answered by the old owner, which doesn't know yet, and never durable.
            old.make(ROOT, "not-synced", FileKind::Directory)
                .await
                .unwrap();
            // It notices at its first append. Neither callers nor the background raise the epoch.
            for _ in 0..10 {
                let refused = old.metanode.sync().await.unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::OldEpoch, "{refused}");
                world.sleep(Duration::from_secs(1)).await;
            }
            assert_eq!(record().await.epoch, epoch);
            let number = "the-new-owner-serves-on";
            new.execute(&create(number), &old.stamp()).await.unwrap();
            new.close().await.unwrap();
            old.coordination
                .assign_shard(shard, Some(run), mine.unwrap())
                .await
                .unwrap();
            // What it remembers of opens and locks is void, and what it hadn't made durable is gone.
            for _ in 0..3 {
                world.sleep(Duration::from_secs(2)).await;
                let refused = old.metanode.sync().await.unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::OldEpoch, "{refused}");
            }
            old.metanode.superseded().await;
            let tenure = old.metanode.tenure();
            let opening = old.opening(mine.unwrap());
            let anew = Metanode::open(opening).await.unwrap();
            assert!(anew.tenure() > tenure);
            let old = Rig {
                metanode: anew,
                ..old
            };
            let lookup = Operation::Lookup {
                directory: ROOT,
                name: rig::name("synced"),
            };
            let early = old.metanode.execute(&lookup, &old.stamp()).await;
            assert_eq!(early.unwrap_err().kind(), ErrorKind::ReclaimFirst);
            let told = old.metanode.reclaim(session, &nothing, true);
            told.await.unwrap();
            assert!(old.look(ROOT, "synced").await.is_some());
            assert!(old.look(ROOT, "by-the-new-owner").await.is_some());
            assert!(old.look(ROOT, number).await.is_some());
            assert!(old.look(ROOT, "not-synced").await.is_none());
            old.must_be_clean("the first process is the newest again")
                .await;
        })
        .finished();
}

#[test]
fn operations_with_a_slot_are_applied_once_and_answered_durably() {
    let simulation = Simulation::new(41);
    simulation
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            let stamp = Stamp {
                turn: Turn::Slot { slot: 3, number: 1 },
                ..rig.stamp()
            };
            let new = model::operation::NewInode {
                mode: 0o600,
                ..rig::new_inode(FileKind::File)
            };
            let create = Operation::Create {
                directory: ROOT,
                name: rig::name("once"),
                new,
            };
            let first = rig.metanode.execute(&create, &stamp).await.unwrap();
            assert!(rig.metanode.is_clean(), "it is durable when it is answered");
            let again = rig.metanode.execute(&create, &stamp).await.unwrap();
            assert_eq!(first, again);
            rig.metanode
                .hosted()
                .resign(&Error::new(ErrorKind::Unavailable, "a test wants it"));
            let after_takeover = rig.metanode.execute(&create, &stamp).await.unwrap();
            assert_eq!(first, after_takeover);
            let session = rig.source.session();
            rig.metanode.close_session(session).await.unwrap();
            rig.metanode.sync().await.unwrap();
            let slots = rig.metanode.hosted();
            let (from, to) = namespace::Table::Slots.range();
            assert!(
                slots.scan(&from, &to, 10).await.unwrap().is_empty(),
                "an ended session leaves no slot"
            );
        })
        .finished();
}

/// Each I/O takes so long that no caller waits until the shard is open.
#[test]
fn a_takeover_that_takes_longer_than_its_callers_wait_is_completed() {
    let simulation = Simulation::new(41);
    let faults = simulation.faults();
    simulation
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            let file = rig.file(ROOT, "f").await;
            rig.write_inline(file, 0, &pattern(1, 500)).await;
            rig.metanode.sync().await.unwrap();
            let resigned = Error::new(ErrorKind::Unavailable, "a test wants it");
            rig.metanode.hosted().resign(&resigned);
            faults.slow("nsd1", Duration::from_secs(8));
            let begun = world.now();
            let mut refusals = 0;
            let found = loop {
                let lookup = Operation::Lookup {
                    directory: ROOT,
                    name: rig::name("f"),
                };
                match rig.run(lookup).await {
                    Ok(reply) => break reply,
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                        refusals += 1;
                        assert!(refusals < 20, "not open after {:?}", world.now() - begun);
                    }
                }
            };
            assert!(matches!(found, model::Reply::Entry { .. }), "{found:?}");
            assert!(refusals > 0, "open after {:?}", world.now() - begun);
            faults.heal("nsd1");
            assert_eq!(rig.read(file).await.unwrap(), pattern(1, 500));
            rig.close().await;
        })
        .finished();
}

#[test]
fn a_shard_whose_tables_are_away_is_not_taken_over_again_and_again() {
    let simulation = Simulation::new(41);
    let faults = simulation.faults();
    simulation
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 2).await;
            let rig = rig::open(&world).await;
            for number in 0..6 {
                let file = rig.file(ROOT, &format!("f{number}")).await;
                rig.write(file, 0, &pattern(number, 100_000)).await;
                rig.unlink(ROOT, &format!("f{number}")).await;
                // So long that the table isn't stored in the catalog itself.
                let file = rig.file(ROOT, &format!("g{number}")).await;
                rig.write_inline(file, 0, &pattern(number, 30_000)).await;
                rig.metanode.sync().await.unwrap();
                rig.metanode.hosted().tree().flush().await.unwrap();
            }
            rig.metanode.start_background();
            let log = rig.metanode.hosted().tree().log().view();
            let other = NsdId(3 - log[0].0);
            let away = rig.pool.nsd(other).unwrap();
            faults.fail(&format!("nsd{other}"));
            let resigned = Error::new(ErrorKind::Unavailable, "a test wants it");
            rig.metanode.hosted().resign(&resigned);
            let before = rig.coordination.shard(ShardId(0)).await.unwrap().unwrap();
            world.sleep(Duration::from_secs(1200)).await;
            assert!(rig.metanode.hosted().check_alive().is_err());
            let after = rig.coordination.shard(ShardId(0)).await.unwrap().unwrap();
            let take_overs = after.value.epoch.0 - before.value.epoch.0;
            assert!((3..=5).contains(&take_overs), "{take_overs}");
            faults.heal(&format!("nsd{other}"));
            away.abandon().await;
            rig.pool
                .add_nsd(rig::open_nsd(&world, other.0).await.unwrap());
            assert!(rig.look(ROOT, "g1").await.is_some());
            rig.close().await;
        })
        .finished();
}

const DAY: Duration = Duration::from_secs(24 * 3600);

/// A file system with inodes, a file without a name, and sessions, all in tables.
async fn with_tables(world: &World) -> Rig {
    rig::create(world, Scheme::Replicate(2), 3).await;
    let rig = rig::open(world).await;
    for number in 0..4 {
        let file = rig.file(ROOT, &format!("f{number}")).await;
        // So long that the table isn't stored in the catalog itself.
        rig.write_inline(file, 0, &pattern(number, 30_000)).await;
        rig.metanode.hold(rig.source.session(), file);
        rig.unlink(ROOT, &format!("f{number}")).await;
        rig.metanode.sync().await.unwrap();
        rig.metanode.hosted().tree().flush().await.unwrap();
    }
    rig
}

fn hang_all(faults: &Faults) {
    (1..=3).for_each(|nsd| faults.slow(&format!("nsd{nsd}"), DAY));
}

#[test]
fn an_opening_ends_within_the_sum_of_its_budgets_whatever_hangs() {
    let mut served = 0;
    for moment in (0..60).step_by(3) {
        let simulation = Simulation::new(43);
        let faults = simulation.faults();
        served += simulation
            .run(|world| async move {
                let rig = with_tables(&world).await;
                let run = metanode::begin_alone(&rig.coordination, ShardId(0)).await;
                let opening = rig.opening(run.unwrap());
                let hang = world.spawn("hang", {
                    let world = world.clone();
                    async move {
                        world.sleep(Duration::from_millis(moment)).await;
                        hang_all(&faults);
                    }
                });
                let begun = world.now();
                let ended = Metanode::open(opening).await;
                let took = world.now() - begun;
                assert!(took <= TAKE_OVER_MAX, "moment {moment}: {took:?}");
                hang.await;
                usize::from(ended.is_ok())
            })
            .finished();
    }
    // Inodes without names, which can't be released now, keep no file system closed.
    assert!(served > 0);
}

#[test]
fn each_attempt_to_take_over_again_ends_within_the_sum_whatever_hangs() {
    for moment in (0..60).step_by(3) {
        let simulation = Simulation::new(44);
        let faults = simulation.faults();
        simulation
            .run(|world| async move {
                let rig = Arc::new(with_tables(&world).await);
                let record = async || rig.coordination.shard(ShardId(0)).await.unwrap().unwrap();
                let before = record().await.value.epoch;
                let resigned = Error::new(ErrorKind::Unavailable, "a test wants it");
                rig.metanode.hosted().resign(&resigned);
                let caller = world.spawn("caller", {
                    let (rig, world) = (rig.clone(), world.clone());
                    async move {
                        loop {
                            let _ = rig.metanode.usage().await;
                            world.sleep(Duration::from_millis(100)).await;
                        }
                    }
                });
                world.sleep(Duration::from_millis(moment)).await;
                hang_all(&faults);
                let pauses = Duration::from_secs(10);
                world.sleep(TAKE_OVER_MAX + pauses).await;
                let attempts = record().await.value.epoch.0 - before.0;
                let is_open = rig.metanode.hosted().check_alive().is_ok();
                assert!(is_open || attempts >= 2, "moment {moment}: {attempts}");
                drop(caller);
            })
            .finished();
    }
}

#[test]
fn the_documented_budgets_of_a_take_over_add_up_to_its_longest_attempt() {
    let page = include_str!("../../../docs/protocols/take-over.md");
    let rows = page
        .lines()
        .filter(|line| line.contains("_BUDGET`") || line.contains("_GRACE`"));
    let seconds = rows.map(|row| {
        row.split('|')
            .nth(2)
            .unwrap()
            .trim()
            .parse::<f64>()
            .unwrap()
    });
    let sum = Duration::from_secs_f64(seconds.sum());
    assert_eq!(sum, TAKE_OVER_MAX);
}

/// What a session on another node asks first: a new file.
fn makes(world: &World, session: SessionId) -> OwnerRequest {
    let operation = Operation::Create {
        directory: ROOT,
        name: rig::name("a"),
        new: rig::new_inode(FileKind::File),
    };
    let turn = Turn::Slot { slot: 0, number: 1 };
    let stamp = Stamp {
        turn,
        ..Stamp::own(world.wall(), session)
    };
    OwnerRequest::Execute { operation, stamp }
}

/// Would be broken if a client took a change for undone that its owner has made: it asks for it once more if its session ends.
#[test]
fn a_change_that_was_made_as_the_owners_lease_ended_is_not_said_to_be_undone() {
    Simulation::new(45)
        .run(|world| async move {
            let second = Duration::from_secs(1);
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            let lease = OwnerLease::not_yet();
            let metanode = next_owner_under(&rig, lease.clone()).await;
            let rig = Rig { metanode, ..rig };
            let nothing = Reclaimed::default();
            let told = rig.metanode.reclaim(rig.source.session(), &nothing, true);
            told.await.unwrap();
            lease.extend(world.now() + second);
            let session = opened(&rig).await;
            let ask = async || send(&rig, CLIENT, session, None, makes(&world, session)).await;

            world.sleep(second * 2).await;
            assert_eq!(ask().await.unwrap_err().kind(), ErrorKind::OldEpoch);
            assert!(rig.look(ROOT, "a").await.is_none(), "it wasn't begun");
            // It ends while the change is made durable.
            lease.extend(world.now() + Duration::from_nanos(1));
            assert_eq!(ask().await.unwrap_err().kind(), ErrorKind::Unknown);
            assert!(rig.look(ROOT, "a").await.is_some());
            lease.extend(world.now() + second);
            assert!(matches!(ask().await, Ok(OwnerReply::Operation(_))));
            rig.metanode.close().await.unwrap();
        })
        .finished();
}

/// The same of one that its owner couldn't make durable because another one had followed: it may be in the log that the other
/// one has taken over.
#[test]
fn a_change_that_an_owner_could_not_log_is_not_said_to_be_undone() {
    Simulation::new(46)
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            let session = opened(&rig).await;
            let next = next_owner(&rig).await;
            let ask = async || send(&rig, CLIENT, session, None, makes(&world, session)).await;
            assert_eq!(ask().await.unwrap_err().kind(), ErrorKind::Unknown);
            // Now it knows, and doesn't begin.
            assert_eq!(ask().await.unwrap_err().kind(), ErrorKind::OldEpoch);
            next.close().await.unwrap();
        })
        .finished();
}
