//! Several nodes fill one pool at the same time: whatever a write was told to be accepted is stored, and the
//! pool is full only when it is.

use crate::stories::{find, make};
use client::Client;
use model::{ErrorKind, InodeId, Result};
use sim::cluster::{ClusterScenario, Stage, client};
use sim::{by_suite, each_seed};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use testkit::content::content;
use testkit::inodes::name;
use world::Planted;

/// A small pool, of which each node has a third.
const SMALL: ClusterScenario = ClusterScenario {
    region_bytes: 64 << 20,
    ..ClusterScenario::USUAL
};
/// Bytes of a file.
const BYTES: usize = 700_000;
/// Files that the pool's reserve, the metadata and what is under way at the end may keep from being written.
const SHORT_MAX: u64 = 12;

/// What happens while two nodes write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Trouble {
    Nothing,
    ManagerKilled,
    WriterKilled,
    CoordinationLost,
}

/// Writes files until the pool is full; counts those that were accepted. All that was accepted is durable when
/// this returns. `is_one_away`: an NSD may be away, so that there is too little room for what was accepted before;
/// fsync says so then, and what it says so of is removed and doesn't count. Returns whether that was so.
async fn fill(
    client: &Client,
    node: usize,
    is_one_away: bool,
    accepted: &AtomicU64,
) -> Result<bool> {
    let mut files = Vec::new();
    loop {
        let number = files.len() as u64;
        let inode = match make(client, &format!("n{node}f{number}")).await {
            Ok(inode) => inode,
            Err(full) if full.kind() == ErrorKind::NoSpace => break,
            Err(error) => return Err(error),
        };
        match client.write(inode, 0, &content(number, BYTES)).await {
            Ok(_) => files.push(inode),
            Err(full) if full.kind() == ErrorKind::NoSpace => {
                if is_one_away {
                    // A part of it may have been accepted.
                    let name = name(&format!("n{node}f{number}"));
                    client.unlink(InodeId::ROOT, name).await?;
                    client.release(inode).await;
                }
                break;
            }
            Err(error) => return Err(error),
        }
        accepted.fetch_add(1, Ordering::Relaxed);
    }
    let mut lacks = None;
    for (number, inode) in files.into_iter().enumerate() {
        let stored = match lacks {
            None => client.fsync(inode, false).await,
            Some(_) => Ok(()),
        };
        match stored {
            Err(full) if full.kind() == ErrorKind::NoSpace && is_one_away => {
                accepted.store(number as u64, Ordering::Relaxed);
                lacks = Some(number);
            }
            other => other?,
        }
        if lacks.is_some() {
            let name = name(&format!("n{node}f{number}"));
            client.unlink(InodeId::ROOT, name).await?;
            client.release(inode).await;
        }
    }
    Ok(lacks.is_some())
}

/// All files of a node are as they were written.
async fn check(client: &Client, node: usize, files: u64) -> Result<()> {
    for number in 0..files {
        let inode = find(client, &format!("n{node}f{number}")).await?;
        let found = client.read(inode, 0, BYTES + 1).await?.concat();
        assert!(
            found == content(number, BYTES),
            "node {node}, file {number}"
        );
    }
    Ok(())
}

/// Two nodes fill the pool; returns how many files fitted.
pub(crate) fn filled(seed: u64, trouble: Trouble, planted: Option<Planted>) -> u64 {
    let all = Arc::new(AtomicU64::new(0));
    let counted = all.clone();
    Stage::play(seed, &SMALL, planted, async move |stage| {
        stage.settled().await;
        let manager = stage.manager().expect("one is the manager");
        let writers = [(manager + 1) % 3, (manager + 2) % 3];
        let mut tasks = Vec::new();
        for node in writers {
            let accepted = Arc::new(AtomicU64::new(0));
            let given = accepted.clone();
            let task = stage.start_task(node, async move |_, member| {
                let client = client(&member).await;
                let is_one_away = trouble == Trouble::WriterKilled;
                let filled = fill(&client, node, is_one_away, &given).await;
                let lacks = filled.map_err(|error| error.while_doing("filling"))?;
                match client.close().await {
                    // What was removed may have been on its way.
                    Err(full) if full.kind() == ErrorKind::NoSpace && is_one_away => Ok(true),
                    closed => closed
                        .map(|()| lacks)
                        .map_err(|error| error.while_doing("closing")),
                }
            });
            tasks.push((node, accepted, task));
        }
        stage
            .sleep(Duration::from_millis(200 + seed * 131 % 900))
            .await;
        let victim = writers[0];
        match trouble {
            Trouble::Nothing => {}
            Trouble::ManagerKilled => stage.kill(manager),
            Trouble::WriterKilled => stage.kill(victim),
            // It loses its place, and learns that late.
            Trouble::CoordinationLost => stage.cut_off_coordination(manager),
        }
        if trouble == Trouble::CoordinationLost {
            stage.sleep(Duration::from_secs(8)).await;
            stage.heal();
        }
        let mut any_lacks = false;
        for (node, accepted, task) in tasks {
            if trouble == Trouble::WriterKilled && node == victim {
                continue;
            }
            let done = stage.end_of(task).await;
            any_lacks |= done
                .unwrap_or_else(|error| panic!("seed {seed}, {trouble:?}: node {node}: {error}"));
            let files = accepted.load(Ordering::Relaxed);
            counted.fetch_add(files, Ordering::Relaxed);
            let read = stage.run(3 - manager - victim, async move |_, member| {
                let client = client(&member).await;
                client.forget_clean();
                check(&client, node, files).await?;
                client.close().await
            });
            read.await
                .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        }
        if matches!(trouble, Trouble::Nothing | Trouble::WriterKilled) {
            let fitting = stage.run(manager, async |_, member| member.pool().usage());
            let left = fitting.await.available_to_users / BYTES as u64;
            // What couldn't be stored was removed again.
            assert!(
                left <= SHORT_MAX || any_lacks,
                "seed {seed}: room for {left} files was left"
            );
        }
        match trouble {
            Trouble::ManagerKilled => stage.start(manager).await,
            Trouble::WriterKilled => stage.start(victim).await,
            Trouble::Nothing | Trouble::CoordinationLost => {}
        }
    });
    all.load(Ordering::Relaxed)
}

/// Would be broken if a node took what is free for its own: both would accept the same bytes, of which the last
/// can't be stored.
#[test]
fn two_nodes_fill_a_pool_and_all_that_was_accepted_is_stored() {
    each_seed(0..by_suite(2, 60), |seed| {
        let files = filled(seed, Trouble::Nothing, None);
        println!("seed {seed}: {files} files of {BYTES} bytes fitted");
    });
}

/// Would be broken if a new manager gave what earlier ones had given, or if nobody were given anything any more.
#[test]
fn a_new_manager_gives_nothing_twice() {
    each_seed(0..by_suite(2, 60), |seed| {
        filled(seed, Trouble::ManagerKilled, None);
        filled(seed, Trouble::CoordinationLost, None);
    });
}

/// Would be broken if what a killed node had been given were lost, or were given to others although it had
/// written to it.
#[test]
fn what_a_killed_writer_had_is_given_to_others() {
    each_seed(0..by_suite(2, 60), |seed| {
        filled(seed, Trouble::WriterKilled, None);
    });
}
