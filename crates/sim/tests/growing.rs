//! A pool grows from one NSD to those of eight nodes, changes its scheme and block size, and shrinks to one
//! NSD, while programs read and write and nodes fail.

use crate::noted::figure;
use crate::stories::{find, make};
use client::Client;
use model::map::NsdState;
use model::{NodeId, NsdId, Result, Scheme, SegmentId};
use node::{Member, PoolChange, Removal};
use pool::Pool;
use sim::cluster::{ClusterScenario, Stage, client};
use sim::{by_suite, each_seed};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use testkit::content::content;
use world::sim::Answer;
use world::{Planted, World};

const NODES: u32 = 8;
/// Eight nodes, of which only the first has an NSD.
const GROWING: ClusterScenario = ClusterScenario {
    scheme: Scheme::Replicate(1),
    nodes: NODES,
    first_nsds: 1,
    region_bytes: 256 << 20,
    block_bytes: 4 * BLOCK_BYTES,
    ..ClusterScenario::USUAL
};
/// What the blocks of new data become.
const BLOCK_BYTES: u32 = 64 * 1024;
const WIDE: Scheme = Scheme::Erasure { k: 4, m: 2 };
const FILES: u64 = 30;
const FILE_BYTES: usize = 1_000_000;
/// Bytes that the load writes over.
const LOAD_BYTES: usize = 60_000;
/// How long a pool may take to change, with all that fails meanwhile.
const CHANGE_MAX: u32 = 900;
/// How often NSDs' shares are looked at, every 10 seconds.
const EVEN_MAX: u32 = 25;

pub(crate) const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// Files that nobody changes.
async fn write_files(client: &Client) -> Result<()> {
    for number in 0..FILES {
        let inode = make(client, &format!("f{number}")).await?;
        client.write(inode, 0, &content(number, FILE_BYTES)).await?;
        client.fsync(inode, false).await?;
    }
    Ok(())
}

async fn must_have_files(client: &Client) -> Result<()> {
    for number in 0..FILES {
        let inode = find(client, &format!("f{number}")).await?;
        let found = client.read(inode, 0, FILE_BYTES + 1).await?.concat();
        assert!(found == content(number, FILE_BYTES), "file {number}");
    }
    Ok(())
}

/// A client of the second node writes the files.
pub(crate) async fn write_all(stage: &Arc<Stage>) {
    let written = stage.run(1, async |_, member| {
        let client = client(&member).await;
        write_files(&client).await?;
        client.close().await
    });
    written.await.expect("written");
}

/// A new client on a node reads all of them.
pub(crate) async fn must_read_all(stage: &Arc<Stage>, node: usize) {
    let read = stage.run(node, async |_, member| {
        let client = client(&member).await;
        must_have_files(&client).await?;
        client.close().await
    });
    read.await.expect("everything is there");
}

/// A node gives the pool another scheme.
pub(crate) async fn change_scheme(stage: &Arc<Stage>, node: usize, scheme: Scheme) {
    let changing = begin_change(stage, node, scheme);
    stage.end_of(changing).await.expect("changed");
}

fn begin_change(stage: &Arc<Stage>, node: usize, scheme: Scheme) -> Answer<Result<()>> {
    let change = PoolChange {
        scheme: Some(scheme),
        block_bytes: None,
    };
    stage.start_task(node, move |_, member| async move {
        member.change_pool(change).await
    })
}

/// A program that writes, and reads what it wrote and what others did, until it is told to stop.
/// Returns how often.
async fn load(world: World, member: Arc<Member>, stop: Arc<AtomicBool>) -> Result<u64> {
    let client = client(&member).await;
    let own = make(&client, "own").await?;
    let mut rounds = 0;
    while !stop.load(Ordering::Relaxed) {
        let at = rounds % 5 * LOAD_BYTES as u64;
        client.write(own, at, &content(rounds, LOAD_BYTES)).await?;
        client.fsync(own, false).await?;
        client.forget_clean();
        let found = client.read(own, at, LOAD_BYTES).await?.concat();
        assert!(found == content(rounds, LOAD_BYTES), "round {rounds}");
        let number = rounds % FILES;
        let inode = find(&client, &format!("f{number}")).await?;
        let found = client.read(inode, 0, FILE_BYTES).await?.concat();
        assert!(
            found == content(number, FILE_BYTES),
            "file {number}, round {rounds}"
        );
        rounds += 1;
        world.sleep(ms(200)).await;
    }
    client.close().await?;
    Ok(rounds)
}

pub(crate) fn begin_load(
    stage: &Arc<Stage>,
    node: usize,
) -> (Arc<AtomicBool>, Answer<Result<u64>>) {
    let stop = Arc::new(AtomicBool::new(false));
    let told = stop.clone();
    let work = move |world, member| load(world, member, told);
    (stop, stage.start_task(node, work))
}

pub(crate) async fn end_load(
    stage: &Arc<Stage>,
    (stop, work): (Arc<AtomicBool>, Answer<Result<u64>>),
) {
    stop.store(true, Ordering::Relaxed);
    let rounds = stage.end_of(work).await;
    let rounds = rounds.unwrap_or_else(|error| panic!("a program failed: {error}"));
    assert!(rounds > 3, "{rounds} rounds");
}

/// Waits until a node sees the pool so.
pub(crate) async fn until(stage: &Arc<Stage>, node: usize, what: &str, holds: fn(&Pool) -> bool) {
    for _ in 0..CHANGE_MAX {
        let there = stage.run(node, move |_, member| async move { holds(member.pool()) });
        if there.await {
            return;
        }
        stage.sleep(ms(1_000)).await;
    }
    panic!("{what}: not within {CHANGE_MAX} s");
}

pub(crate) fn has_one_generation(pool: &Pool) -> bool {
    pool.map().closed().is_empty() && pool.groups().moving().is_empty()
}

/// No segment has another scheme than the pool's, no piece of one is in the same node as another, and every
/// NSD has its share of the bytes, within a tenth: true once what the last fault left over is swept or moved.
async fn must_be_spread(world: World, member: Arc<Member>, tolerance: usize) {
    for _ in 0..EVEN_MAX {
        let (mean, bytes) = shares(&member, tolerance).await;
        let differences = bytes.values().map(|it| (*it as f64 - mean).abs() / mean);
        let greatest = differences.fold(0.0, f64::max);
        if greatest <= 0.1 {
            figure(&format!(
                "{} NSDs: each holds {mean:.0} bytes within {:.1} %, all segments have the scheme",
                bytes.len(),
                100.0 * greatest
            ));
            return;
        }
        world.sleep(ms(10_000)).await;
    }
    let (mean, bytes) = shares(&member, tolerance).await;
    panic!("mean {mean}: {bytes:?}");
}

/// The bytes of each NSD, and their mean.
async fn shares(member: &Member, tolerance: usize) -> (f64, BTreeMap<NsdId, u64>) {
    let pool = member.pool();
    let (map, homes) = (pool.map(), member.roster().homes.clone());
    // One that has just come has nothing yet.
    let mut bytes: BTreeMap<NsdId, u64> = map.nsds.iter().map(|entry| (entry.nsd, 0)).collect();
    for group in map.all_groups() {
        let survey = pool.survey(group, None, 100_000).await.expect("surveyed");
        assert_eq!(survey.unreachable, [], "group {group}");
        for segment in survey.segments {
            let place = segment.place;
            let is_small = place.length < 64 * 1024;
            assert_eq!(place.scheme.tolerance(), tolerance, "{place:?}");
            assert!(is_small || place.scheme.data_pieces() > 1, "{place:?}");
            let nodes: BTreeSet<_> = segment.present.iter().map(|(_, nsd)| homes[nsd]).collect();
            assert_eq!(nodes.len(), segment.present.len(), "{place:?}");
            let piece = placement::layout::piece_length(place.scheme, place.length);
            for (_, nsd) in &segment.present {
                *bytes.entry(*nsd).or_default() += u64::from(piece);
            }
        }
    }
    let mean = bytes.values().sum::<u64>() as f64 / map.nsds.len() as f64;
    let elsewhere = bytes.len() - map.nsds.len();
    assert_eq!(
        elsewhere, 0,
        "NSDs that aren't of the pool have pieces: {bytes:?}"
    );
    (mean, bytes)
}

/// Something goes wrong with one of the nodes that do nothing but serve.
async fn trouble(stage: &Arc<Stage>, random: u64) {
    let node = 4 + (random % 4) as usize;
    match random / 4 % 4 {
        0 => {
            stage.kill(node);
            stage.sleep(ms(500 + random % 3_000)).await;
            stage.start(node).await;
        }
        1 => {
            // The owner, with the first NSD: another takes over.
            stage.kill(0);
            stage.start(0).await;
            stage.move_shard(3).await;
            stage.move_shard(0).await;
        }
        2 => {
            stage.pause(node);
            stage.sleep(ms(1_000 + random % 5_000)).await;
            stage.resume(node);
        }
        _ => {
            stage.isolate(node);
            stage.sleep(ms(1_000 + random % 5_000)).await;
            stage.heal();
        }
    }
}

/// Would be broken if a pool kept the groups or the scheme that it was made with, lost a byte when it
/// moves, or didn't go on after a crash.
#[test]
fn a_pool_grows_from_one_nsd_to_eight_nodes_under_load() {
    each_seed(0..by_suite(2, 30), |seed| {
        grown(seed, None);
    });
}

pub(crate) fn grown(seed: u64, planted: Option<Planted>) -> u64 {
    Stage::play(seed, &GROWING, planted, async |stage| {
        write_all(&stage).await;
        // Not where the manager gives the shard first: nobody asks that node before the story gives it on.
        let work = begin_load(&stage, 2);
        for node in 1..NODES as usize {
            let added = stage.add_nsd(node, "second", GROWING.region_bytes).await;
            assert_eq!(added, NsdId(node as u32 + 1));
        }
        let random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 7;
        let is_calm = seed.is_multiple_of(2);
        if !is_calm {
            trouble(&stage, random).await;
        }
        let change = PoolChange {
            scheme: Some(WIDE),
            block_bytes: Some(BLOCK_BYTES),
        };
        let changed = stage.run(2, move |_, member| async move {
            member.change_pool(change).await
        });
        changed.await.expect("changed");
        for step in 1..if is_calm { 1 } else { 4 } {
            stage.sleep(ms(random % 4_000)).await;
            trouble(&stage, random >> (8 * step)).await;
        }
        until(&stage, 2, "one generation", has_one_generation).await;
        end_load(&stage, work).await;
        let settled = stage.run(0, async |_, member| {
            let metanode = member.hosted().expect("the owner");
            while metanode.run_background_once().await.expect("works").steps > 0 {}
        });
        settled.await;
        let looked = stage.run(2, move |world, member| must_be_spread(world, member, 2));
        looked.await;
        stage.run(5, must_write_new_blocks).await;
        must_read_all(&stage, 3).await;
    })
}

/// What is written now is in segments of the new block size.
async fn must_write_new_blocks(_: World, member: Arc<Member>) {
    let before = lengths(&member).await;
    let client = client(&member).await;
    let written = async {
        let inode = make(&client, "after").await?;
        client.write(inode, 0, &content(77, FILE_BYTES)).await?;
        client.fsync(inode, false).await
    };
    written.await.expect("written");
    let after = lengths(&member).await;
    client.close().await.expect("closed");
    let new = after.iter().filter(|(it, _)| !before.contains_key(it));
    let new: Vec<u32> = new.map(|(_, length)| *length).collect();
    let bytes: u64 = new.iter().copied().map(u64::from).sum();
    let most = new.iter().copied().max();
    assert!(
        bytes >= FILE_BYTES as u64 && most <= Some(BLOCK_BYTES),
        "{new:?}"
    );
    let longest = before.values().copied().max();
    assert!(longest > Some(BLOCK_BYTES), "they were no longer before");
}

/// The bytes of each segment.
async fn lengths(member: &Member) -> BTreeMap<SegmentId, u32> {
    let pool = member.pool();
    let mut lengths = BTreeMap::new();
    for group in pool.map().all_groups() {
        let survey = pool.survey(group, None, 100_000).await.expect("surveyed");
        let places = survey.segments.iter().map(|it| it.place);
        lengths.extend(places.map(|place| (place.segment, place.length)));
    }
    lengths
}

/// Would be broken if NSDs that fail together held two pieces of a segment.
#[test]
fn a_changed_pool_keeps_pieces_on_different_nodes() {
    each_seed(0..by_suite(1, 20), |seed| {
        apart(seed, None);
    });
}

pub(crate) fn apart(seed: u64, planted: Option<Planted>) -> u64 {
    let scenario = ClusterScenario {
        scheme: Scheme::Replicate(2),
        ..ClusterScenario::USUAL
    };
    Stage::play(seed, &scenario, planted, async |stage| {
        for node in 0..scenario.nodes as usize {
            stage.add_nsd(node, "second", scenario.region_bytes).await;
        }
        write_all(&stage).await;
        change_scheme(&stage, 2, Scheme::Replicate(3)).await;
        until(&stage, 2, "one generation", has_one_generation).await;
        let homes = stage.run(2, |_, member| async move {
            let (map, homes) = (member.pool().map(), member.roster().homes.clone());
            let groups = member.pool().groups();
            for group in map.all_groups() {
                let slots = groups.members(group).iter();
                let nodes: BTreeSet<_> = slots.clone().map(|slot| homes[&slot.target()]).collect();
                assert_eq!(nodes.len(), slots.len(), "group {group}");
            }
        });
        homes.await;
    })
}

/// Would be broken if a machine's daemon knew only the first of its NSDs after it has restarted: then
/// stories that kill one have fewer NSDs than they say.
#[test]
fn a_daemon_that_restarts_opens_all_nsds_of_its_machine() {
    let scenario = ClusterScenario {
        first_nsds: 2,
        ..ClusterScenario::USUAL
    };
    Stage::play(1, &scenario, None, async |stage| {
        for (node, added) in [(1, 3), (2, 4)] {
            let nsd = stage.add_nsd(node, "second", scenario.region_bytes).await;
            assert_eq!(nsd, NsdId(added));
        }
        write_all(&stage).await;
        for (node, nsds) in [(1, &[2, 3][..]), (2, &[4])] {
            stage.kill(node);
            stage.start(node).await;
            let opened = stage.run(node, |_, member| async move {
                let views = member.nsds().into_iter();
                let own = views.filter(|it| it.path.components().next().is_some());
                own.map(|it| (it.nsd.0, it.health.is_some()))
                    .collect::<Vec<_>>()
            });
            let all: Vec<_> = nsds.iter().map(|nsd| (*nsd, true)).collect();
            assert_eq!(opened.await, all);
        }
        must_read_all(&stage, 0).await;
    });
}

/// Would be broken if a slot counted as moved before its pieces were there, or a writer with an old map
/// could put pieces where nobody looks.
#[test]
fn what_is_written_while_slots_move_is_read_by_all() {
    each_seed(0..by_suite(1, 20), |seed| {
        moved(seed, None);
    });
}

pub(crate) fn moved(seed: u64, planted: Option<Planted>) -> u64 {
    let scenario = ClusterScenario {
        scheme: Scheme::Replicate(1),
        first_nsds: 1,
        ..ClusterScenario::USUAL
    };
    Stage::play(seed, &scenario, planted, async |stage| {
        // A manager that is cut off from coordination learns of no other one, and is expelled.
        while stage.manager() == Some(2) {
            stage.kill(2);
            stage.start(2).await;
            stage.settled().await;
        }
        write_all(&stage).await;
        stage.add_nsd(1, "second", scenario.region_bytes).await;
        let writer = stage.start_task(2, async |world, member| {
            let client = client(&member).await;
            for number in 0..100 {
                let inode = make(&client, &format!("w{number}")).await?;
                client.write(inode, 0, &content(number, LOAD_BYTES)).await?;
                client.fsync(inode, false).await?;
                world.sleep(ms(20)).await;
            }
            client.close().await
        });
        let reader = stage.start_task(0, async |_, member| {
            let client = client(&member).await;
            for _ in 0..5 {
                client.forget_clean();
                must_have_files(&client).await?;
            }
            client.close().await
        });
        // This one writes by the map that it has for a while.
        stage.sleep(ms(10 + seed % 50)).await;
        stage.cut_off_coordination(2);
        stage.sleep(ms(15_000)).await;
        stage.heal();
        stage.end_of(writer).await.expect("the writer goes on");
        stage.end_of(reader).await.expect("nothing is missed");
        let read = stage.run(1, async |_, member| {
            let client = client(&member).await;
            must_have_files(&client).await?;
            for number in 0..100 {
                let inode = find(&client, &format!("w{number}")).await?;
                let found = client.read(inode, 0, LOAD_BYTES).await?.concat();
                assert!(found == content(number, LOAD_BYTES), "w{number}");
            }
            client.close().await
        });
        read.await.expect("everything is there");
    })
}

/// Would be broken if something stayed on an NSD that leaves because no other can take its place: slots of
/// closed groups, or the log's copies that the new scheme doesn't ask for.
#[test]
fn a_pool_shrinks_to_one_nsd_under_load() {
    each_seed(0..by_suite(1, 20), |seed| {
        shrunk(seed);
    });
}

fn shrunk(seed: u64) -> u64 {
    Stage::play(seed, &ClusterScenario::USUAL, None, async |stage| {
        write_all(&stage).await;
        let work = begin_load(&stage, 1);
        change_scheme(&stage, 2, Scheme::Replicate(1)).await;
        let kept = NsdId(1 + (seed % 3) as u32);
        for nsd in (1..=3).map(NsdId).filter(|nsd| *nsd != kept) {
            let removed = stage.run(2, move |_, member| async move {
                member.remove_nsd(nsd, Removal::Drain).await
            });
            removed.await.expect("removed");
        }
        until(&stage, 2, "one NSD", |pool| {
            let map = pool.map();
            let in_use = map.nsds.iter().filter(|it| it.state != NsdState::Lost);
            map.closed().is_empty() && in_use.count() == 1
        })
        .await;
        end_load(&stage, work).await;
        must_read_all(&stage, 2).await;
    })
}

/// Would be broken if a change that is made was reported as failed because an NSD didn't hear of it.
#[test]
fn a_change_that_an_nsd_does_not_hear_of_is_made() {
    Stage::play(1, &ClusterScenario::USUAL, None, async |stage| {
        stage.isolate(2);
        change_scheme(&stage, 1, Scheme::Replicate(1)).await;
        stage.heal();
        until(&stage, 2, "one generation", has_one_generation).await;
    });
}

/// How long it takes until a node uses a map with this scheme.
async fn until_used(stage: &Arc<Stage>, node: usize, scheme: Scheme) -> Duration {
    let begun = stage.now();
    loop {
        let known = stage.run(
            node,
            |_, member| async move { member.pool().map().scheme() },
        );
        if known.await == scheme {
            return stage.now() - begun;
        }
        let took = stage.now() - begun;
        assert!(took < ms(60_000), "node {node} doesn't hear of {scheme}");
        stage.sleep(ms(10)).await;
    }
}

/// Would be broken if a node used the next map only when all NSDs had answered for the one before: NSDs that know it
/// refuse its writes meanwhile.
#[test]
fn a_map_is_used_while_an_nsd_is_silent_for_the_one_before() {
    Stage::play(1, &ClusterScenario::USUAL, None, async |stage| {
        until(&stage, 0, "all slots are where they go", has_one_generation).await;
        for other in [0, 1] {
            stage.cut(other, 2);
        }
        let first = begin_change(&stage, 1, Scheme::Replicate(1));
        for node in [1, 0] {
            until_used(&stage, node, Scheme::Replicate(1)).await;
        }
        let second = begin_change(&stage, 1, Scheme::Replicate(2));
        until_used(&stage, 1, Scheme::Replicate(2)).await;
        let took = until_used(&stage, 0, Scheme::Replicate(2)).await;
        // Its silence ends what the third node was told after four seconds.
        assert!(took < ms(1_000), "{took:?}");
        stage.heal();
        for change in [first, second] {
            stage.end_of(change).await.expect("changed");
        }
        until(&stage, 0, "one generation", has_one_generation).await;
    });
}

/// How far a drain is, as the manager shows it: slots that still move, and bytes put to their new NSDs.
type Moving = (u64, u64);

async fn progress_at(stage: &Arc<Stage>, node: usize) -> Option<Moving> {
    let asked = stage.run(node, async |_, member| {
        let status = member.repair_status().await.ok()?;
        status
            .is_known
            .then_some((status.slots_moving, status.rebuilt.bytes))
    });
    asked.await
}

/// Would be broken if a drain ended with its owner, left anything on the node that only it has, took copies
/// of data that others can't read yet, or didn't show how far it is.
#[test]
fn a_drained_node_may_go_though_owners_die_meanwhile() {
    each_seed(0..by_suite(1, 20), |seed| {
        drained(seed);
    });
}

#[allow(clippy::print_stdout, reason = "says how the progress was shown")]
fn drained(seed: u64) -> u64 {
    const LEAVES: usize = 4;
    let scenario = ClusterScenario {
        nodes: 5,
        ..ClusterScenario::USUAL
    };
    Stage::play(seed, &scenario, None, async |stage| {
        stage.add_nsd(LEAVES, "second", scenario.region_bytes).await;
        write_all(&stage).await;
        until(&stage, 2, "all slots are where they go", has_one_generation).await;
        // Not where the manager gives the shard first: nobody asks that node before the story gives it on.
        let work = begin_load(&stage, 2);
        let leaves = NodeId(LEAVES as u32 + 1);
        let leaving = stage.run(2, move |_, member| async move {
            member.drain_node(leaves).await
        });
        let leaving = leaving.await.expect("the others have room");
        assert_eq!(leaving.len(), 2);

        let mut owner = 0;
        let mut killed = 0;
        let mut seen: Vec<Moving> = Vec::new();
        let mut slots = BTreeSet::new();
        for second in 0..CHANGE_MAX {
            let now = progress_at(&stage, owner).await;
            if let Some(now) = now {
                slots.insert(now.0);
                if seen.last() != Some(&now) {
                    seen.push(now);
                }
            }
            let first = 1 + (seed % 2) as u32;
            if second == first || second == first + 2 {
                killed += 1;
                stage.kill(owner);
                stage.start(owner).await;
                owner = (owner + 3) % 4;
                stage.move_shard(owner).await;
            }
            let gone = leaving.clone();
            let is_gone = stage.run(2, move |_, member| async move {
                let map = member.pool().map();
                let is_lost =
                    |nsd: &NsdId| map.nsd(*nsd).is_some_and(|it| it.state == NsdState::Lost);
                gone.iter().all(is_lost)
            });
            if is_gone.await {
                break;
            }
            stage.sleep(ms(1_000)).await;
            assert!(second + 1 < CHANGE_MAX, "not drained: {seen:?}");
        }
        println!("drained: slots that move and bytes moved, as shown: {seen:?}");
        assert_eq!(killed, 2, "it ended before both owners died: {seen:?}");
        assert!(slots.len() > 2, "no progress was shown: {seen:?}");
        end_load(&stage, work).await;
        // What the others have is all there is.
        stage.kill(LEAVES);
        must_read_all(&stage, 2).await;
        stage.start(LEAVES).await;
    })
}
