//! Coordination without a quorum for so long that nobody has a lease: programs wait, and all go on when it is back, however
//! long that takes.

use crate::partition::{Program, runs_of};
use crate::stories::{find, make};
use model::Result;
use sim::cluster::{ClusterScenario, Stage, client};
use sim::{by_suite, each_seed};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use testkit::content::content;

const FIVE: ClusterScenario = ClusterScenario {
    nodes: 5,
    ..ClusterScenario::USUAL
};
const NODES: [usize; 5] = [0, 1, 2, 3, 4];
/// Nodes with a program.
const BUSY: usize = 3;
/// Bytes of a block that a program writes and syncs.
const BYTES: usize = 4_096;
/// Less than the programs' patience, which is two minutes, and longer than that.
const SHORT: Duration = Duration::from_secs(80);
const LONG: Duration = Duration::from_secs(400);
/// How soon all go on when the quorum is back, and for how long they work under held leases when it is lost.
const GO_ON_MAX: Duration = Duration::from_secs(20);
const LEASES_MAX: Duration = Duration::from_secs(10);

/// Programs on some nodes write and sync when the quorum is lost, for this time. Returns how each of them ended, a while
/// after it was back: with its longest wait, or what it was told. What they had synced is there, and no node has joined again.
async fn lose(stage: &Arc<Stage>, seed: u64, time: Duration) -> Vec<Result<Duration>> {
    stage.settled().await;
    let mut programs = Vec::new();
    for node in 0..BUSY {
        programs.push(Program::start(stage, node).await);
    }
    let before = runs_of(stage, NODES).await;
    stage.sleep(Duration::from_millis(seed * 331 % 2_000)).await;
    stage.lose_quorum();
    stage.sleep(time).await;
    stage.regain_quorum();
    stage.settled().await;
    stage.sleep(GO_ON_MAX).await;
    let mut ends = Vec::new();
    for (node, program) in programs.into_iter().enumerate() {
        let seen = program.seen.clone();
        ends.push(program.end(stage).await);
        let synced = seen.synced.load(Ordering::Relaxed);
        must_have(stage, seed, node, synced).await;
    }
    let after = runs_of(stage, NODES).await;
    assert_eq!(after, before, "seed {seed}: a node had to join again");
    ends
}

/// Another node shows the blocks that a node's program has synced.
async fn must_have(stage: &Arc<Stage>, seed: u64, node: usize, synced: usize) {
    let read = stage.run((node + 1) % NODES.len(), async move |_, member| {
        let client = client(&member).await;
        let file = find(&client, &format!("own{node}")).await?;
        let found = client.read(file, 0, synced * BYTES).await?.concat();
        client.close().await?;
        Ok::<_, model::Error>(found)
    });
    let found = read.await;
    let found = found.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    assert_eq!(found.len(), synced * BYTES, "seed {seed}");
    for (block, bytes) in found.chunks(BYTES).enumerate() {
        let is_there = *bytes == content(block as u64, BYTES)[..];
        assert!(is_there, "seed {seed}: block {block} of {synced} is lost");
    }
}

/// As [`lose`]; each program has waited for all that time and goes on.
async fn must_cost_a_pause(stage: &Arc<Stage>, seed: u64, time: Duration) {
    for end in lose(stage, seed, time).await {
        let longest = end.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let least = time.saturating_sub(LEASES_MAX);
        let is_right = longest >= least && longest <= time + GO_ON_MAX;
        assert!(is_right, "seed {seed}: {longest:?}");
    }
}

/// Would be broken if programs were told an error, or a node were taken for dead, because nobody could renew a lease.
#[test]
fn a_quorum_that_is_away_for_less_than_programs_wait_costs_a_pause() {
    each_seed(0..by_suite(1, 20), |seed| {
        Stage::play(seed, &FIVE, None, async move |stage| {
            must_cost_a_pause(&stage, seed, SHORT).await;
        });
    });
}

/// Would be broken if programs' patience ended while nobody can renew a lease, or if something that waits for coordination
/// gave up for good.
#[test]
fn a_quorum_that_is_away_for_minutes_costs_a_pause_and_all_go_on_when_it_is_back() {
    each_seed(0..by_suite(1, 20), |seed| {
        Stage::play(seed, &FIVE, None, async move |stage| {
            must_cost_a_pause(&stage, seed, LONG).await;
            // New ones work on each node.
            for node in NODES {
                let works = stage.run(node, async move |_, member| {
                    let client = client(&member).await;
                    let file = make(&client, &format!("after{node}")).await?;
                    client.write(file, 0, &content(1, BYTES)).await?;
                    client.fsync(file, false).await?;
                    client.close().await
                });
                let worked = works.await;
                worked.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            }
        });
    });
}
