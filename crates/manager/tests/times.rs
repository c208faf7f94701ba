//! How long it takes until a node's shards are served by others, if nothing else goes wrong.

use super::cluster::{Cluster, Life, Message, Record};
use super::judged;
use model::ShardId;
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
    served_by_others(cluster, &[by_others_than])
}

/// Until all shards are served, by others than the nodes.
fn served_by_others(cluster: &mut Cluster, than: &[usize]) -> Duration {
    let begun = cluster.now;
    loop {
        cluster.calm_tick();
        cluster.check().expect("right at every moment");
        let nodes = cluster.nodes.iter().enumerate();
        let others = nodes.filter(|(at, _)| !than.contains(at));
        let others: Vec<_> = others.map(|(_, node)| node).collect();
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

/// Would be broken if an attempt that isn't refused because the kernel hasn't closed everything yet were the last one for as long
/// as the node counts as heard.
#[test]
fn shards_of_a_killed_node_whose_connections_are_closed_first_have_owners_within_a_second() {
    let mut cluster = at_rest(&SKEWED);
    let at = owner(&cluster);
    cluster.kill_slowly(at);
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

/// The proof with which the place was taken expels the dead manager, too: it isn't asked for twice.
#[test]
fn a_killed_manager_is_expelled_by_the_proof_with_which_its_place_was_taken() {
    let mut cluster = at_rest(&SKEWED);
    let at = place(&cluster);
    let dead = cluster.nodes[at].run;
    cluster.kill(at);
    while cluster.store.membership.is_member(dead) {
        cluster.calm_tick();
        cluster.check().expect("right at every moment");
        let probes =
            |message: &Message| matches!(message, Message::Probe { run, .. } if *run == dead);
        assert!(
            !cluster.messages.iter().any(probes),
            "it is known to be dead"
        );
    }
}

/// Would be broken if a manager whose place has ended early served on by its own lease, which its successor doesn't wait
/// for: that one counts on a place that lasted.
#[test]
fn a_manager_that_lost_its_place_early_serves_nothing_that_others_were_given() {
    let mut cluster = at_rest(&[0; 5]);
    let at = place(&cluster);
    let former = cluster.nodes[at].run;
    assert!(!cluster.nodes[at].hosts.is_empty());
    // Nobody hears it but coordination, of which it can't read what has changed.
    cluster.nodes[at].is_blind = true;
    for other in 1..=5 {
        if other != former.node.0 {
            cluster
                .cuts
                .insert((other.min(former.node.0), other.max(former.node.0)));
        }
    }
    cluster.end_place_early((at + 1) % 5);
    let time = served_again(&mut cluster, at);
    assert!(time <= Duration::from_secs(9), "{time:?}");
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
fn shards_of_a_silent_manager_have_owners_within_nine_seconds() {
    let mut cluster = at_rest(&SKEWED);
    let at = place(&cluster);
    cluster.nodes[at].life = Life::Paused;
    let time = served_again(&mut cluster, at);
    assert!(time <= Duration::from_secs(9), "{time:?}");
}

/// Would be broken if nobody followed a manager whose place coordination's leaders give its full time again and again.
#[test]
fn shards_of_a_silent_manager_have_owners_within_nine_seconds_of_a_doubt_however_long_its_place_lasts()
 {
    let mut cluster = at_rest(&SKEWED);
    let at = place(&cluster);
    cluster.nodes[at].life = Life::Paused;
    cluster.place_stays = true;
    cluster.doubt((at + 1) % 5);
    let time = served_again(&mut cluster, at);
    assert!(time <= Duration::from_secs(9), "{time:?}");
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

/// As file systems are made: with nobody for an owner, and numbers that the manager knows nothing of.
#[test]
fn shards_that_are_made_later_have_owners_within_two_seconds_each_with_who_has_least() {
    let mut cluster = at_rest(&SKEWED);
    for number in [9, 40, 41, 700, 701, 702, u32::MAX] {
        cluster.store.revision += 1;
        let made = Record {
            assigned: None,
            version: cluster.store.revision,
        };
        cluster.store.shards.insert(ShardId(number), made);
    }
    let time = served_by_others(&mut cluster, &[]);
    assert!(time <= Duration::from_secs(2), "{time:?}");
    let hosted = cluster.nodes.iter().map(|node| node.hosts.len());
    let hosted: Vec<_> = hosted.collect();
    assert_eq!(hosted, [3; 5], "15 shards on 5 nodes");
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

/// A rack of forty nodes of eighty, each with two shards.
fn racks() -> Cluster {
    let mut cluster = Cluster::new(&[0; 80], 160, None).spread();
    for _ in 0..100 {
        cluster.calm_tick();
    }
    judged::rest(&cluster).expect("nothing is broken");
    cluster
}

/// The nodes that go down together: forty from the place on.
fn rack(place: usize) -> Vec<usize> {
    (0..40).map(|at| (place + at) % 80).collect()
}

/// Until its NSDs are marked; how many memberships were stored then.
fn stored_until_away(cluster: &mut Cluster, rack: &[usize]) -> u32 {
    let begun = cluster.now;
    let runs: Vec<_> = rack.iter().map(|at| cluster.nodes[*at].run.node).collect();
    loop {
        let away = cluster.store.membership.away();
        if runs.iter().all(|node| away.contains(node)) {
            return cluster.stored;
        }
        cluster.calm_tick();
        cluster.check().expect("right at every moment");
        assert!(cluster.now - begun < Duration::from_secs(60));
    }
}

/// One plan for each node would be 120 stores, one after the other.
#[test]
fn a_rack_that_dies_is_expelled_with_a_few_stores_and_served_within_two_seconds() {
    let mut cluster = racks();
    let rack = rack(place(&cluster) + 1);
    let before = cluster.stored;
    rack.iter().for_each(|at| cluster.kill(*at));
    let time = served_by_others(&mut cluster, &rack);
    assert!(time <= Duration::from_secs(2), "{time:?}");
    let stores = stored_until_away(&mut cluster, &rack) - before;
    assert!(stores <= 8, "{stores} stores");
}

#[test]
fn a_rack_that_dies_with_the_manager_is_served_within_three_seconds() {
    let mut cluster = racks();
    let rack = rack(place(&cluster));
    let before = cluster.stored;
    rack.iter().for_each(|at| cluster.kill(*at));
    let time = served_by_others(&mut cluster, &rack);
    assert!(time <= Duration::from_secs(3), "{time:?}");
    let stores = stored_until_away(&mut cluster, &rack) - before;
    assert!(stores <= 9, "{stores} stores");
}

#[test]
fn a_rack_that_falls_silent_is_served_within_ten_seconds() {
    let mut cluster = racks();
    let rack = rack(place(&cluster) + 1);
    let before = cluster.stored;
    for at in &rack {
        cluster.nodes[*at].life = Life::Paused;
    }
    let time = served_by_others(&mut cluster, &rack);
    assert!(time <= Duration::from_secs(10), "{time:?}");
    let stores = stored_until_away(&mut cluster, &rack) - before;
    assert!(stores <= 8, "{stores} stores");
}

/// Three nodes, of which the second, which isn't the manager, serves all six shards.
fn all_at_the_second() -> Cluster {
    let mut cluster = Cluster::new(&[0, 0, 0], 6, None);
    cluster.give_all_to(cluster.nodes[1].run);
    while cluster.nodes[1].hosts.len() < 6 {
        cluster.calm_tick();
    }
    cluster
}

/// A member that can't reach coordination is heard by the manager all the same, and hears of no shard that it loses.
#[test]
fn a_member_that_is_blind_serves_no_shard_that_others_were_given() {
    let mut cluster = all_at_the_second();
    let blind = cluster.nodes[1].run;
    cluster.cuts.insert((0, blind.node.0));
    // Balance takes shards from it.
    served_again(&mut cluster, 1);
    assert_eq!(cluster.expelled, 1, "it was given no lease any more");
}

/// Coordination has a fact that no member can read, say.
#[test]
fn nobody_is_expelled_because_all_members_are_blind() {
    let mut cluster = all_at_the_second();
    // Only what the manager itself does is known to it.
    cluster
        .nodes
        .iter_mut()
        .for_each(|node| node.is_blind = true);
    for _ in 0..2_000 {
        cluster.calm_tick();
        cluster.check().expect("right at every moment");
    }
    assert_eq!(cluster.expelled, 0);
    cluster
        .nodes
        .iter_mut()
        .for_each(|node| node.is_blind = false);
    cluster.come_to_rest().expect("it goes on");
}
