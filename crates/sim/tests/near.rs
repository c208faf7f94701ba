//! Programs on the node that owns their file system.

use crate::stories::{find, make};
use client::Losses;
use model::InodeId;
use sim::cluster::{ClusterScenario, Stage, client};
use sim::{by_suite, each_seed};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use testkit::content::content;
use testkit::inodes::name;

/// The node of the programs. The manager gives the shard to the first one.
const NODE: usize = 2;
const BYTES: usize = 1_000;
const HELD_BYTES: usize = 400_000;

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// Would be broken if a node gave a shard up while its own client, the only one, had everything: its next owner couldn't be
/// told of that, nor of what is cached; or if it gave it up before all that it had answered was durable.
#[test]
fn programs_lose_nothing_when_the_manager_takes_the_shard_from_their_node() {
    each_seed(0..by_suite(2, 40), |seed| {
        Stage::play(seed, &ClusterScenario::USUAL, None, async |stage| {
            taken_twice(&stage, seed).await;
        });
    });
}

async fn taken_twice(stage: &Arc<Stage>, seed: u64) {
    stage.settled().await;
    stage.move_shard(NODE).await;
    let stop = Arc::<AtomicBool>::default();
    let told = stop.clone();
    let works = stage.start_task(NODE, async move |world, member| {
        let client = client(&member).await;
        let held = make(&client, "held").await?;
        client.write(held, 0, &content(5, HELD_BYTES)).await?;
        client.unlink(InodeId::ROOT, name("held")).await?;
        let (mut files, mut was_alone) = (0, false);
        while !told.load(Ordering::Relaxed) {
            let inode = make(&client, &format!("f{files}")).await?;
            client.write(inode, 0, &content(files, BYTES)).await?;
            was_alone |= client.asked().is_alone();
            files += 1;
            world.sleep(ms(5)).await;
        }
        assert!(was_alone, "seed {seed}: it was the only client");
        let found = client.read(held, 0, HELD_BYTES).await?.concat();
        assert!(found == content(5, HELD_BYTES), "seed {seed}: held");
        let losses = client.losses();
        client.close().await?;
        Ok::<_, model::Error>((files, losses))
    });
    for _ in 0..2 {
        stage.sleep(ms(700 + seed * 331 % 1_000)).await;
        stage.release_shard().await;
        stage.sleep(ms(300)).await;
        stage.move_shard(NODE).await;
    }
    stage.sleep(ms(300)).await;
    stop.store(true, Ordering::Relaxed);
    let worked = stage.end_of(works).await;
    let (files, losses) = worked.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    assert_eq!(losses, Losses::default(), "seed {seed}");
    let found = stage.run(1, async move |_, member| {
        let client = client(&member).await;
        for file in 0..files {
            let inode = find(&client, &format!("f{file}")).await?;
            let found = client.read(inode, 0, BYTES + 1).await?.concat();
            assert!(found == content(file, BYTES), "file {file}");
        }
        client.close().await
    });
    let found = found.await;
    found.unwrap_or_else(|error| panic!("seed {seed}, {files} files: {error}"));
}
