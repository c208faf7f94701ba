//! Repair, sweep and scrub as jobs for each group: planned by the cluster's manager, done by the nodes that
//! have the groups' NSDs, whatever fails meanwhile. What is looked at here is never done by a round of an
//! owner that a test asks for.

use crate::growing::{change_scheme, has_one_generation, ms, must_read_all, until, write_all};
use crate::stories::make;
use model::jobs::{Assignment, Cursor, Kind, RepairProgress};
use model::{GroupId, NsdId, Scheme, SessionId};
use node::{Member, Removal};
use pool::SurveyedSegment;
use sim::cluster::{ClusterScenario, Stage, client};
use sim::{by_suite, each_seed};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use testkit::content::content;
use world::{Planted, Point};

/// Two of its NSDs can be lost before data is.
const FIVE: ClusterScenario = ClusterScenario {
    scheme: Scheme::Replicate(3),
    nodes: 5,
    ..ClusterScenario::USUAL
};
/// The node whose NSD is lost, and that NSD.
const LOSER: usize = 4;
const LOST: NsdId = NsdId(5);
/// The others.
const OTHERS: std::ops::Range<usize> = 0..LOSER;
/// How long all that waits may take.
const ALL_MAX: u32 = 240;
const LOOK: Duration = ms(20);

async fn status(stage: &Arc<Stage>, node: usize) -> Option<RepairProgress> {
    let asked = stage.run(node, async |_, member| member.repair_status().await.ok());
    asked.await.filter(|status| status.is_known)
}

/// Waits until the manager says that everything is whole.
async fn until_complete(stage: &Arc<Stage>, node: usize, seconds: u32) {
    let mut last = None;
    for _ in 0..seconds {
        last = status(stage, node).await;
        if last.is_some_and(|it| it.is_complete) {
            return;
        }
        stage.sleep(ms(1_000)).await;
    }
    panic!("not repaired within {seconds} s: {last:?}");
}

/// Waits until no job runs for a while: each group was swept and scrubbed, and no sweep comes within minutes.
async fn until_quiet(stage: &Arc<Stage>, node: usize) {
    let mut quiet = 0;
    for _ in 0..ALL_MAX {
        let now = status(stage, node).await;
        let is_quiet = now.is_some_and(|it| it.running == 0 && it.is_complete);
        quiet = if is_quiet { quiet + 1 } else { 0 };
        if quiet > 4 {
            return;
        }
        stage.sleep(ms(1_000)).await;
    }
    panic!("jobs never end: {:?}", status(stage, node).await);
}

/// The jobs that a node leads.
async fn jobs_of(stage: &Arc<Stage>, node: usize) -> Vec<(Assignment, Cursor)> {
    let asked = stage.run(node, async |_, member| member.jobs_here());
    asked.await
}

/// Repairs that a node leads, of groups with slots that move.
async fn moves_of(stage: &Arc<Stage>, node: usize) -> Vec<(Assignment, Cursor)> {
    let asked = stage.run(node, async |_, member| {
        let moving = member.pool().groups().moving();
        let moving: BTreeSet<GroupId> = moving.into_iter().map(|(group, _)| group).collect();
        let mut jobs = member.jobs_here();
        let is_move =
            |job: &model::jobs::JobId| job.kind == Kind::Repair && moving.contains(&job.group);
        jobs.retain(|(assigned, _)| is_move(&assigned.job));
        jobs
    });
    asked.await
}

async fn limit(stage: &Arc<Stage>, node: usize, bytes_per_second: u64) {
    let set = stage.run(node, move |_, member| async move {
        member.limit_repair(bytes_per_second).await
    });
    set.await.expect("the setting is stored");
    // The manager has read it, and servers have heard of it.
    stage.sleep(ms(5_000)).await;
}

/// The last node dies, and its NSD is given up.
async fn lose(stage: &Arc<Stage>, node: usize) {
    stage.kill(LOSER);
    let removed = stage.run(node, |_, member| async move {
        member.remove_nsd(LOST, Removal::Gone).await
    });
    removed.await.expect("it was in use");
}

/// Everything is written, and all that jobs find at the beginning is done.
async fn begin(stage: &Arc<Stage>) {
    write_all(stage).await;
    stage.settled().await;
    until_complete(stage, 0, ALL_MAX).await;
}

/// All segments that NSDs hold.
async fn segments(stage: &Arc<Stage>, node: usize) -> Vec<SurveyedSegment> {
    let asked = stage.run(node, async |_, member| {
        let pool = member.pool();
        let mut all = Vec::new();
        for group in pool.map().all_groups() {
            let survey = pool.survey(group, None, 100_000).await.expect("surveyed");
            all.extend(survey.segments);
        }
        all
    });
    asked.await
}

async fn must_be_whole(stage: &Arc<Stage>, node: usize) {
    let all = segments(stage, node).await;
    assert!(all.len() > 30, "{} segments", all.len());
    for segment in all {
        assert!(
            segment.absent.is_empty() && segment.place.missing == 0,
            "{segment:?}"
        );
    }
}

/// Pieces that each node has rebuilt.
async fn rebuilt(stage: &Arc<Stage>) -> Vec<u64> {
    let mut all = Vec::new();
    for node in OTHERS {
        let asked = stage.run(node, async |_, member| {
            member.pool().repair_progress().rebuilt_pieces
        });
        all.push(asked.await);
    }
    all
}

/// Would be broken if one node rebuilt everything, or a lost NSD's pieces weren't rebuilt by jobs.
#[test]
fn a_lost_nsd_is_rebuilt_by_several_nodes_at_once() {
    each_seed(0..by_suite(1, 20), |seed| {
        Stage::play(seed, &FIVE, None, async |stage| {
            begin(&stage).await;
            limit(&stage, 0, 1 << 20).await;
            let before = rebuilt(&stage).await;
            lose(&stage, 0).await;
            let mut most = 0;
            for step in 0.. {
                let mut leaders = 0;
                for node in OTHERS {
                    leaders += usize::from(!moves_of(&stage, node).await.is_empty());
                }
                most = most.max(leaders);
                let is_moved = stage.run(0, async |_, member| {
                    let pool = member.pool();
                    let is_lost = pool.groups().slots_of(LOST).is_empty();
                    is_lost && pool.groups().moving().is_empty()
                });
                if is_moved.await {
                    break;
                }
                assert!(step < 6_000, "not repaired: {:?}", status(&stage, 0).await);
                stage.sleep(LOOK).await;
            }
            until_complete(&stage, 1, ALL_MAX).await;
            let after = rebuilt(&stage).await;
            let work = before.iter().zip(&after).filter(|(was, is)| is > was);
            assert!(
                most > 2 && work.count() > 2,
                "{most}, {before:?}, {after:?}"
            );
            must_be_whole(&stage, 2).await;
            must_read_all(&stage, 3).await;
            stage.start(LOSER).await;
        });
    });
}

/// The node that is the manager, once there is one.
async fn manager_of(stage: &Arc<Stage>) -> usize {
    for _ in 0..1_000 {
        if let Some(manager) = stage.manager() {
            return manager;
        }
        stage.sleep(LOOK).await;
    }
    panic!("nobody is the manager");
}

/// Jobs of nodes that have come somewhere.
async fn under_way(stage: &Arc<Stage>) -> BTreeMap<usize, Vec<(Assignment, Cursor)>> {
    let mut found = BTreeMap::new();
    for node in OTHERS {
        let mut jobs = moves_of(stage, node).await;
        jobs.retain(|(_, at)| *at > Cursor::default());
        if !jobs.is_empty() {
            found.insert(node, jobs);
        }
    }
    found
}

/// Waits until two nodes have jobs that have come somewhere.
async fn until_under_way(stage: &Arc<Stage>) -> BTreeMap<usize, Vec<(Assignment, Cursor)>> {
    for _ in 0..6_000 {
        let found = under_way(stage).await;
        if found.len() > 1 {
            return found;
        }
        stage.sleep(LOOK).await;
    }
    panic!("nothing is under way: {:?}", status(stage, 0).await);
}

/// Would be broken if jobs began anew, or ended, with the manager that planned them.
#[test]
fn jobs_go_on_where_they_were_when_the_manager_dies() {
    each_seed(0..by_suite(1, 20), |seed| {
        Stage::play(seed, &FIVE, None, async |stage| {
            begin(&stage).await;
            limit(&stage, 0, 200_000).await;
            lose(&stage, 0).await;
            until_under_way(&stage).await;
            let manager = manager_of(&stage).await;
            let mut known: BTreeMap<usize, BTreeMap<_, Cursor>> = BTreeMap::new();
            for (node, jobs) in until_under_way(&stage).await {
                let jobs = jobs.into_iter();
                let jobs = jobs.map(|(it, at)| ((it.job, it.stamp, it.attempt), at));
                known.insert(node, jobs.collect());
            }
            known.remove(&manager);
            stage.kill(manager);
            // The others' jobs go on under the same attempts, though nobody plans for a while.
            let mut went_on = 0;
            for _ in 0..300 {
                for (node, jobs) in &mut known {
                    for (it, at) in jobs_of(&stage, *node).await {
                        let before = jobs.get_mut(&(it.job, it.stamp, it.attempt));
                        if let Some(before) = before {
                            assert!(at >= *before, "{it:?} went back to {at:?}");
                            went_on += usize::from(at > *before);
                            *before = at;
                        }
                    }
                }
                stage.sleep(LOOK).await;
            }
            assert!(went_on > 0, "nothing went on: {known:?}");
            stage.start(manager).await;
            let node = (manager + 1) % LOSER;
            until_complete(&stage, node, ALL_MAX).await;
            until(&stage, node, "nothing moves", |pool| {
                pool.groups().moving().is_empty()
            })
            .await;
            must_be_whole(&stage, node).await;
            stage.start(LOSER).await;
        });
    });
}

/// Would be broken if what a dead node did was begun anew, or not done by others.
#[test]
fn others_go_on_with_the_jobs_of_a_node_that_dies() {
    each_seed(0..by_suite(1, 20), |seed| {
        Stage::play(seed, &FIVE, None, async |stage| {
            begin(&stage).await;
            limit(&stage, 0, 100_000).await;
            lose(&stage, 0).await;
            until_under_way(&stage).await;
            let manager = manager_of(&stage).await;
            // A server that isn't the manager, whose jobs are known there.
            let (dies, jobs) = loop {
                let mut found = until_under_way(&stage).await;
                found.remove(&manager);
                // Nothing more happens to node 0 than that it owns the shard.
                found.remove(&0);
                stage.sleep(ms(1_500)).await;
                if let Some((node, jobs)) = found.pop_first() {
                    let now = jobs_of(&stage, node).await;
                    let runs =
                        |it: &Assignment| now.iter().any(|(now, _)| now.attempt == it.attempt);
                    let jobs: Vec<_> = jobs.into_iter().filter(|(it, _)| runs(it)).collect();
                    if !jobs.is_empty() {
                        break (node, jobs);
                    }
                }
            };
            stage.kill(dies);
            let mut taken = BTreeSet::new();
            // Groups that its death has made critical come first.
            for _ in 0..9_000 {
                if !taken.is_empty() {
                    break;
                }
                for node in OTHERS.filter(|node| *node != dies) {
                    for (now, at) in jobs_of(&stage, node).await {
                        let before = jobs.iter().find(|(it, _)| it.job == now.job);
                        if let Some((it, before)) = before.filter(|(it, _)| it.stamp == now.stamp) {
                            assert!(at >= *before, "{it:?} began anew as {now:?}");
                            taken.insert(now.job);
                        }
                    }
                }
                stage.sleep(LOOK).await;
            }
            assert!(!taken.is_empty(), "nobody goes on with {jobs:?}");
            stage.start(dies).await;
            limit(&stage, 0, 16 << 20).await;
            until_complete(&stage, 0, ALL_MAX).await;
            until(&stage, 0, "nothing moves", |pool| {
                pool.groups().moving().is_empty()
            })
            .await;
            must_be_whole(&stage, 0).await;
            stage.start(LOSER).await;
        });
    });
}

/// Bytes that all processes have read from and put to each NSD, other than the lost one.
async fn traffic(stage: &Arc<Stage>) -> BTreeMap<NsdId, u64> {
    let mut all: BTreeMap<NsdId, u64> = BTreeMap::new();
    for node in OTHERS {
        let asked = stage.run(node, async |_, member| {
            let states = member.pool().nsd_states().into_iter();
            let of = |it: pool::NsdStatus| (it.entry.nsd, it.bytes_read + it.bytes_written);
            states.map(of).collect::<Vec<_>>()
        });
        for (nsd, bytes) in asked.await {
            *all.entry(nsd).or_default() += bytes;
        }
    }
    all.remove(&LOST);
    all
}

/// Would be broken if repair took more of a node than it may, or went on as before when that was changed.
#[test]
fn repair_keeps_below_its_limit_which_can_be_changed_meanwhile() {
    each_seed(0..by_suite(1, 10), |seed| {
        limited(seed, None);
    });
}

pub(crate) fn limited(seed: u64, planted: Option<Planted>) -> u64 {
    const SLOW: u64 = 100_000;
    const FAST: u64 = 1_000_000;
    const SECONDS: u64 = 15;
    // Tables of the shard, and what a share is too large until servers hear of another one.
    const SLACK: u64 = 300_000;
    Stage::play(seed, &FIVE, planted, async |stage| {
        begin(&stage).await;
        limit(&stage, 0, SLOW).await;
        lose(&stage, 0).await;
        // Another manager may have to begin first, and a job pays before it moves its first piece.
        let before = traffic(&stage).await;
        for _ in 0..ALL_MAX {
            if traffic(&stage).await != before {
                break;
            }
            stage.sleep(ms(1_000)).await;
        }
        let mut sums = Vec::new();
        for speed in [SLOW, FAST] {
            if speed == FAST {
                limit(&stage, 1, FAST).await;
            }
            let (before, begun) = (traffic(&stage).await, stage.now());
            stage
                .sleep(Duration::from_secs(SECONDS / (speed / SLOW).min(5)))
                .await;
            let (after, took) = (traffic(&stage).await, stage.now() - begun);
            let mut sum = 0;
            for (nsd, bytes) in after {
                let bytes = bytes - before.get(&nsd).copied().unwrap_or(0);
                let most = speed * took.as_millis() as u64 / 1_000;
                assert!(
                    bytes <= most + SLACK,
                    "{bytes} bytes at NSD {nsd} in {took:?}, {speed} per second are allowed"
                );
                sum += bytes;
            }
            sums.push(sum * 1_000 / took.as_millis() as u64);
        }
        assert!(sums[0] > SLOW / 2 && sums[1] > 2 * sums[0], "{sums:?}");
        until_complete(&stage, 0, ALL_MAX).await;
        must_be_whole(&stage, 0).await;
        stage.start(LOSER).await;
    })
}

/// Bytes that all processes have put to NSDs.
async fn written(stage: &Arc<Stage>) -> u64 {
    let mut sum = 0;
    for node in 0..=LOSER {
        let asked = stage.run(node, async |_, member| {
            let states = member.pool().nsd_states().into_iter();
            states.map(|it| it.bytes_written).sum::<u64>()
        });
        sum += asked.await;
    }
    sum
}

/// Would be broken if owners rewrote as fast as they can after a change of the scheme, or went on as before when the
/// limit was changed, or if nobody was told how far that is meanwhile.
#[test]
fn rewriting_keeps_below_the_limit() {
    each_seed(0..by_suite(1, 10), |seed| {
        rewritten(seed);
    });
}

fn rewritten(seed: u64) -> u64 {
    const SLOW: u64 = 1_000_000;
    // Of three bytes one is read and two are written, as copies.
    const WRITTEN: u64 = SLOW / 3 * 2;
    // The shard's log and tables.
    const SLACK: u64 = 2_000_000;
    Stage::play(seed, &FIVE, None, async |stage| {
        begin(&stage).await;
        until_quiet(&stage, 0).await;
        limit(&stage, 0, SLOW).await;
        let (before, begun) = (written(&stage).await, stage.now());
        change_scheme(&stage, 1, Scheme::Replicate(2)).await;
        stage.sleep(ms(30_000)).await;
        let bytes = written(&stage).await - before;
        let took = stage.now() - begun;
        let paid = WRITTEN * took.as_millis() as u64 / 1_000;
        // A second's worth may be owed, and a round's comes on top.
        assert!(
            bytes <= paid + 3 * WRITTEN + SLACK && bytes > paid / 2,
            "{bytes} bytes in {took:?}, {WRITTEN} per second are allowed"
        );
        let shown = status(&stage, 1).await.expect("the manager tells");
        let is_told =
            shown.to_rewrite > Some(0) && shown.rewritten_in > Some(Duration::from_secs(10));
        assert!(is_told, "{shown:?}");
        limit(&stage, 1, Member::REPAIR_SPEED).await;
        for step in 0.. {
            let shown = status(&stage, 1).await;
            if shown.is_some_and(|it| it.to_rewrite == Some(0)) {
                break;
            }
            assert!(step < 30, "it goes on as slowly: {shown:?}");
            stage.sleep(ms(1_000)).await;
        }
        until(&stage, 2, "one generation", has_one_generation).await;
        must_read_all(&stage, 3).await;
    })
}

/// Would be broken if a job that couldn't ask what is live counted as done, or rebuilt what nobody calls live.
#[test]
fn what_no_owner_judges_is_repaired_later() {
    each_seed(0..by_suite(1, 20), |seed| {
        unjudged(seed, None);
    });
}

pub(crate) fn unjudged(seed: u64, planted: Option<Planted>) -> u64 {
    Stage::play(seed, &FIVE, planted, async |stage| {
        begin(&stage).await;
        until_quiet(&stage, 0).await;
        limit(&stage, 0, 400_000).await;
        lose(&stage, 1).await;
        until_under_way(&stage).await;
        // The owner.
        stage.kill(0);
        stage.sleep(ms(5_000)).await;
        stage.start(0).await;
        // Sweeps, which look at everything, come later.
        until_complete(&stage, 1, 120).await;
        must_be_whole(&stage, 1).await;
        must_read_all(&stage, 2).await;
        stage.start(LOSER).await;
    })
}

/// Would be broken if nobody deleted what a dead client has stored and never published.
#[test]
fn what_a_dead_client_has_stored_is_swept() {
    each_seed(0..by_suite(1, 20), |seed| {
        Stage::play(seed, &FIVE, None, async |stage| {
            begin(&stage).await;
            let sessions = |all: &[SurveyedSegment]| -> BTreeSet<SessionId> {
                let of_files = all.iter().filter(|it| it.owner.inode.0 != 0);
                of_files.map(|it| it.place.segment.session).collect()
            };
            let before = sessions(&segments(&stage, 0).await);
            stage.kill_at(Point::BytesStored, 0);
            let _written = stage.start_task(3, async |_, member| {
                let client = client(&member).await;
                let inode = make(&client, "lost").await.expect("made");
                // All is stored before the first of it is published.
                let _ = client.write(inode, 0, &content(77, 600_000)).await;
                let _ = client.fsync(inode, false).await;
            });
            stage.sleep(ms(5_000)).await;
            let died = stage.killed();
            assert_eq!(died, Some(3), "the client's node comes to the point");
            // The client's, of which nothing is published.
            let mut lost = sessions(&segments(&stage, 0).await);
            lost.retain(|session| !before.contains(session));
            assert_eq!(lost.len(), 1, "it has stored something");
            stage.start(3).await;
            stage.settled().await;
            for step in 0.. {
                let left = sessions(&segments(&stage, 0).await);
                if left.is_disjoint(&lost) {
                    break;
                }
                assert!(step < 2 * ALL_MAX, "{lost:?} is still there");
                stage.sleep(ms(2_000)).await;
            }
        });
    });
}

/// Would be broken if nobody read pieces that no program reads, or a damaged one stayed.
#[test]
fn a_damaged_piece_is_found_by_a_scrub_and_rebuilt() {
    each_seed(0..by_suite(1, 20), |seed| {
        Stage::play(seed, &FIVE, None, async |stage| {
            begin(&stage).await;
            let page = &content(7, 1_000_000)[..4_096];
            let damaged = (0..5).find(|node| stage.damage(*node, FIVE.region_bytes, page));
            assert!(damaged.is_some(), "some NSD has the page");
            let often = stage.run(1, async |_, member| {
                member.scrub_every(Duration::from_secs(20)).await
            });
            often.await.expect("stored");
            let mut mended = 0;
            for _ in 0..ALL_MAX {
                mended = 0;
                for node in 0..5 {
                    let asked = stage.run(node, async |_, member| {
                        member.pool().repair_progress().mended_pieces
                    });
                    mended += asked.await;
                }
                if mended > 0 {
                    break;
                }
                stage.sleep(ms(1_000)).await;
            }
            assert_eq!(mended, 1, "the piece is rebuilt, and no other");
        });
    });
}
