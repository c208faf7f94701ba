//! How long it takes until a node's shards are served by others, if nothing else goes wrong.

use super::cluster::{Cluster, Life};
use super::judged;
use std::time::Duration;

/// Five nodes at rest, with eight shards.
fn at_rest(drifts: &[i32]) -> Cluster {
    let mut cluster = Cluster::new(drifts, 8, None);
    // Long enough for all moves that balance asks for.
    for _ in 0..6_000 {
        cluster.calm_tick();
    }
    judged::rest(&cluster).expect("nothing is broken");
    cluster
}

/// Until all shards are served, by others than the node.
fn served_again(cluster: &mut Cluster, by_others_than: usize) -> Duration {
    let begun = cluster.now;
    loop {
        cluster.calm_tick();
        cluster.check().expect("right at every moment");
        let mut others = cluster.nodes.clone();
        others.remove(by_others_than);
        let mut shards = cluster.store.shards.keys();
        if shards.all(|shard| others.iter().any(|node| cluster.serves(node, *shard))) {
            return cluster.now - begun;
        }
        assert!(cluster.now - begun < Duration::from_secs(60));
    }
}

const SKEWED: [i32; 5] = [24, -24, 0, 24, -24];

fn place(cluster: &Cluster) -> usize {
    let (run, _) = cluster.store.place.expect("there is a manager");
    run.node.0 as usize - 1
}

fn owner(cluster: &Cluster) -> usize {
    let place = place(cluster);
    let owns = |at: usize| !cluster.nodes[at].hosts.is_empty();
    let mut others = (0..cluster.nodes.len()).filter(|at| *at != place && owns(*at));
    others.next().expect("shards are spread")
}

#[test]
fn shards_of_a_killed_node_have_owners_within_a_second() {
    let mut cluster = at_rest(&SKEWED);
    let at = owner(&cluster);
    cluster.kill(at);
    let time = served_again(&mut cluster, at);
    assert!(time <= Duration::from_millis(1_000), "{time:?}");
}

#[test]
fn shards_of_a_killed_manager_have_owners_within_two_seconds() {
    let mut cluster = at_rest(&SKEWED);
    let at = place(&cluster);
    cluster.kill(at);
    let time = served_again(&mut cluster, at);
    assert!(time <= Duration::from_secs(2), "{time:?}");
}

#[test]
fn shards_of_a_silent_node_have_owners_within_nine_seconds() {
    let mut cluster = at_rest(&SKEWED);
    let at = owner(&cluster);
    cluster.nodes[at].life = Life::Paused;
    let time = served_again(&mut cluster, at);
    assert!(time <= Duration::from_secs(9), "{time:?}");
}

#[test]
fn shards_of_a_silent_manager_have_owners_within_thirteen_seconds() {
    let mut cluster = at_rest(&SKEWED);
    let at = place(&cluster);
    cluster.nodes[at].life = Life::Paused;
    let time = served_again(&mut cluster, at);
    assert!(time <= Duration::from_secs(13), "{time:?}");
}

#[test]
fn a_member_that_wants_to_leave_loses_nothing_and_ends() {
    let mut cluster = at_rest(&SKEWED);
    let at = owner(&cluster);
    cluster.nodes[at].wants_to_leave = true;
    let time = served_again(&mut cluster, at);
    assert!(time <= Duration::from_secs(6), "{time:?}");
    while cluster.nodes[at].life == Life::Running {
        cluster.calm_tick();
        cluster.check().expect("right at every moment");
        assert!(cluster.now < Duration::from_secs(900), "it doesn't end");
    }
    assert_eq!(cluster.expelled, 0);
}

#[test]
fn shards_spread_over_the_owners_and_stay_there() {
    let mut cluster = at_rest(&[0; 5]);
    for _ in 0..12_000 {
        cluster.calm_tick();
        cluster.check().expect("right at every moment");
    }
    let owned = cluster.nodes.iter().map(|node| node.hosts.len());
    let owned: Vec<_> = owned.collect();
    assert!(
        owned.iter().all(|count| (1..=2).contains(count)),
        "{owned:?}"
    );
    let before = cluster.store.revision;
    for _ in 0..2_400 {
        cluster.calm_tick();
    }
    assert_eq!(cluster.store.revision, before, "nothing moves any more");
}
