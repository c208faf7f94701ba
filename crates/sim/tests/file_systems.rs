//! Several file systems in one cluster: their owners die apart from each other, daemons are killed while they
//! make one, and each file system keeps its own files.

use client::Client;
use model::{ErrorKind, FileKind, InodeId, Result, ShardId};
use node::{FIRST_FILE_SYSTEM, FileSystem, Member, ROOT_SHARD};
use sim::cluster::{ClusterScenario, Stage, client_of};
use sim::{by_suite, each_seed};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use testkit::content::content;
use testkit::inodes::{name, new_inode};
use world::sim::Answer;
use world::{Point, World};

const FIVE: ClusterScenario = ClusterScenario {
    nodes: 5,
    ..ClusterScenario::USUAL
};
/// Bytes of a file: more than is stored in a record.
const BYTES: usize = 40_000;
/// How long the manager may take to spread shards: it moves one in 30 s.
const SPREAD_MAX: Duration = Duration::from_secs(300);

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// What a program wrote in a file system, the same names in each.
struct Program {
    file_system: &'static str,
    node: usize,
    /// Files that were synced.
    synced: Arc<AtomicU64>,
    work: Answer<Result<()>>,
}

/// What is in a file: of no other file system, program or round.
fn written(file_system: &str, node: usize, round: u64) -> Vec<u8> {
    let number = u64::from(file_system.as_bytes()[0]) * 1_000_000;
    content(number + node as u64 * 100_000 + round, BYTES)
}

fn file(node: usize, round: u64) -> String {
    format!("f{node}-{round}")
}

/// Makes file after file, each synced, until it is stopped.
async fn write_on(
    world: &World,
    (client, root): (Arc<Client>, InodeId),
    (file_system, node): (&str, usize),
    synced: &AtomicU64,
    stop: &AtomicBool,
) -> Result<()> {
    let mut round = 0;
    while !stop.load(Ordering::Relaxed) {
        let new = new_inode(FileKind::File);
        let made = client.create_and_open(root, name(&file(node, round)), new);
        let inode = made.await?.inode;
        let bytes = written(file_system, node, round);
        client.write(inode, 0, &bytes).await?;
        client.fsync(inode, false).await?;
        client.release(inode).await;
        round += 1;
        synced.store(round, Ordering::Relaxed);
        world.sleep(ms(50)).await;
    }
    client.close().await
}

/// The names in a root directory.
async fn names(client: &Client, root: InodeId) -> Result<BTreeSet<String>> {
    let (mut all, mut after) = (BTreeSet::new(), 0);
    loop {
        let page = client.read_directory(root, after, 100, false).await?;
        let entries = page.entries.iter();
        all.extend(entries.map(|it| String::from_utf8_lossy(it.name.as_bytes()).into_owned()));
        match page.entries.last() {
            Some(last) => after = last.position,
            None => return Ok(all),
        }
    }
}

async fn make(member: &Member, name: &str) -> Result<FileSystem> {
    let name = name.parse()?;
    member.create_file_system(&name).await
}

/// Waits until each of the shards is on another node, and all are served.
async fn spread(stage: &Stage, shards: &[ShardId], within: Duration) -> Vec<usize> {
    let until = stage.now() + within;
    loop {
        let hosts: Vec<_> = shards.iter().filter_map(|it| stage.host_of(*it)).collect();
        let apart: BTreeSet<_> = hosts.iter().collect();
        if apart.len() == shards.len() {
            return hosts;
        }
        assert!(stage.now() < until, "{shards:?} are on {hosts:?}");
        stage.sleep(ms(10)).await;
    }
}

/// Would be broken if two file systems shared a name, a file or an owner's fate; or if one's owner took what
/// the other's had made durable for its own, or for garbage.
#[test]
fn file_systems_whose_owners_end_at_different_moments_keep_what_was_synced_each_its_own() {
    each_seed(0..by_suite(4, 80), |seed| {
        Stage::play(seed, &FIVE, None, async |stage| {
            owners_end(&stage, seed).await;
        });
    });
}

async fn owners_end(stage: &Stage, seed: u64) {
    stage.settled().await;
    let made = stage.run(seed as usize % 5, async |_, member| {
        let a = make(&member, "a").await?;
        let b = make(&member, "b").await?;
        Ok::<_, model::Error>([a.shard, b.shard])
    });
    let [a, b] = made.await.expect("made");
    let hosts = spread(stage, &[ROOT_SHARD, a, b], ms(10_000)).await;
    let (a_host, b_host) = (hosts[1], hosts[2]);
    let others: Vec<_> = (0..5).filter(|it| *it != a_host && *it != b_host).collect();
    let stop = Arc::<AtomicBool>::default();
    let mut programs = Vec::new();
    for node in others.iter().copied().take(2) {
        for file_system in ["a", "b"] {
            let synced = Arc::<AtomicU64>::default();
            let (given, stop) = (synced.clone(), stop.clone());
            let work = stage.start_task(node, async move |world, member| {
                let opened = client_of(&member, file_system).await;
                write_on(&world, opened, (file_system, node), &given, &stop).await
            });
            programs.push(Program {
                file_system,
                node,
                synced,
                work,
            });
        }
    }
    stage.sleep(ms(500 + seed * 37 % 1_000)).await;
    // One after the other, and both are away for a while.
    let is_silent = seed % 2 == 1;
    match is_silent {
        false => stage.kill(a_host),
        true => stage.isolate(a_host),
    }
    stage.sleep(ms(seed * 997 % 9_000)).await;
    stage.kill(b_host);
    stage.sleep(ms(3_000 + seed * 613 % 9_000)).await;
    match is_silent {
        false => stage.start(a_host).await,
        true => stage.heal(),
    }
    stage.sleep(ms(seed * 211 % 2_000)).await;
    stage.start(b_host).await;
    stage.settled().await;
    let before: Vec<_> = synced(&programs);
    stage.sleep(ms(2_000)).await;
    let after: Vec<_> = synced(&programs);
    let go_on = before
        .iter()
        .zip(&after)
        .all(|(before, after)| before < after);
    assert!(go_on, "seed {seed}: {before:?} {after:?}");
    stop.store(true, Ordering::Relaxed);
    let mut counts = Vec::new();
    for program in programs {
        let ended = stage.end_of(program.work).await;
        ended.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let synced = program.synced.load(Ordering::Relaxed);
        counts.push((program.file_system, program.node, synced));
    }
    for file_system in ["a", "b", FIRST_FILE_SYSTEM] {
        let counts = counts.clone();
        let checked = stage.run(others[2], async move |_, member| {
            must_have(&member, file_system, &counts).await
        });
        let checked = checked.await;
        checked.unwrap_or_else(|error| panic!("seed {seed}, {file_system}: {error}"));
    }
    spread(stage, &[ROOT_SHARD, a, b], SPREAD_MAX).await;
}

fn synced(programs: &[Program]) -> Vec<u64> {
    let counts = programs.iter().map(|it| it.synced.load(Ordering::Relaxed));
    counts.collect()
}

/// A file system has the files of its programs, and no others.
async fn must_have(
    member: &Member,
    file_system: &str,
    counts: &[(&'static str, usize, u64)],
) -> Result<()> {
    let (client, root) = client_of(member, file_system).await;
    let mut expected = BTreeSet::new();
    for (_, node, count) in counts.iter().filter(|it| it.0 == file_system) {
        assert!(*count > 5, "{file_system} on {node}: {count} files");
        for round in 0..*count {
            let file = file(*node, round);
            let inode = client.lookup(root, name(&file)).await?.inode;
            let found = client.read(inode, 0, BYTES + 1).await?.concat();
            let is_right = found == written(file_system, *node, round);
            assert!(is_right, "{file} of {file_system} differs");
            expected.insert(file);
        }
    }
    assert_eq!(names(&client, root).await?, expected, "{file_system}");
    client.close().await
}

/// Would be broken if the manager knew shards of one file system only, or left them all where they began.
#[test]
fn shards_of_all_file_systems_are_spread_over_the_nodes_whoever_made_them() {
    each_seed(0..by_suite(2, 40), |seed| {
        Stage::play(seed, &FIVE, None, async |stage| {
            stage.settled().await;
            let made = stage.run(0, async |_, member| {
                let mut shards = vec![ROOT_SHARD];
                for name in ["a", "b", "c", "d"] {
                    shards.push(make(&member, name).await.expect("made").shard);
                }
                shards
            });
            let shards = made.await;
            spread(&stage, &shards, ms(10_000)).await;
            // Balance finds them also when all are on one node.
            let node = seed as usize % 5;
            for shard in &shards {
                stage.assign_shard(*shard, node).await;
            }
            let until = stage.now() + ms(20_000);
            while shards.iter().any(|it| stage.host_of(*it) != Some(node)) {
                assert!(stage.now() < until, "seed {seed}: they don't gather");
                stage.sleep(ms(10)).await;
            }
            spread(&stage, &shards, SPREAD_MAX).await;
        });
    });
}

/// Would be broken if a file system could be there by name and not open, or if its name or its numbers were taken
/// for good by a daemon that ended while it made it.
#[test]
fn a_daemon_that_is_killed_while_it_makes_a_file_system_leaves_one_that_opens_or_none() {
    let (seeds, least) = by_suite((16, 4), (200, 8));
    let outcomes = [const { AtomicUsize::new(0) }; 2];
    each_seed(0..seeds, |seed| {
        Stage::play(seed, &ClusterScenario::USUAL, None, async |stage| {
            let was_made = killed_while_making(&stage, seed).await;
            outcomes[usize::from(was_made)].fetch_add(1, Ordering::Relaxed);
        });
    });
    let [none, made] = outcomes.map(AtomicUsize::into_inner);
    assert!(
        none >= least && made >= least,
        "{none} without, {made} with one"
    );
}

/// Whether the file system was there when its maker had ended.
async fn killed_while_making(stage: &Stage, seed: u64) -> bool {
    stage.settled().await;
    let manager = stage.manager().expect("one is the manager");
    // The manager's node, or the one that owns the first file system, or the third.
    let maker = (manager + seed as usize / 4) % 3;
    let others = [(maker + 1) % 3, (maker + 2) % 3];
    let point = match seed % 4 {
        0 => Some(Point::NumbersChosen),
        1 => Some(Point::FileSystemMade),
        _ => None,
    };
    if let Some(point) = point {
        stage.kill_at(point, 0);
    }
    drop(stage.start_task(maker, async |_, member| make(&member, "x").await));
    match point {
        Some(_) => {
            stage.sleep(ms(500)).await;
            assert_eq!(stage.killed(), Some(maker), "seed {seed}");
        }
        None => {
            stage.sleep(ms(seed / 4 * 7 % 40)).await;
            stage.kill(maker);
        }
    }
    // What was sent may still happen.
    stage.sleep(ms(1_000)).await;
    let known = stage.run(others[0], async |_, member| {
        let all = member.file_systems().await.expect("listed");
        all.contains_key(&"x".parse().expect("a name"))
    });
    let was_made = known.await;
    let again = stage.run(others[0], async |_, member| make(&member, "x").await);
    match (was_made, again.await) {
        (false, Ok(_)) => {}
        (true, Err(error)) if error.kind() == ErrorKind::Exists => {}
        (_, other) => panic!("seed {seed}, made {was_made}: {other:?}"),
    }
    for node in others {
        let used = stage.run(node, async move |_, member| use_it(&member, node).await);
        let used = used.await;
        used.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    stage.start(maker).await;
    stage.settled().await;
    let last = stage.run(maker, async move |_, member| {
        let exists = make(&member, "x").await.map(drop);
        assert_eq!(exists.expect_err("it is there").kind(), ErrorKind::Exists);
        make(&member, "y").await?;
        use_it(&member, maker).await?;
        let (client, root) = client_of(&member, "x").await;
        assert_eq!(names(&client, root).await?.len(), 3);
        client.close().await?;
        let all = member.file_systems().await?;
        let shards: BTreeSet<_> = all.values().map(|it| it.shard).collect();
        assert_eq!((all.len(), shards.len()), (3, 3));
        // Nothing is left of what wasn't made.
        let known: BTreeSet<_> = member.roster().shards.keys().copied().collect();
        assert_eq!(known, shards);
        Ok::<_, model::Error>(())
    });
    let last = last.await;
    last.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    was_made
}

/// Opens the file system, makes a file, and reads it.
async fn use_it(member: &Member, node: usize) -> Result<()> {
    let (client, root) = client_of(member, "x").await;
    let made = client.create_and_open(root, name(&file(node, 0)), new_inode(FileKind::File));
    let inode = made.await?.inode;
    let bytes = written("x", node, 0);
    client.write(inode, 0, &bytes).await?;
    client.fsync(inode, false).await?;
    client.forget_clean();
    let found = client.read(inode, 0, BYTES + 1).await?.concat();
    assert!(found == bytes, "what was written differs");
    client.release(inode).await;
    client.close().await
}
