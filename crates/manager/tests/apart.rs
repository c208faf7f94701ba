//! Two members can't reach each other, and both reach the manager: one of both goes, soon, once, and until it reaches the
//! other one again.

use super::cluster::Cluster;
use super::judged;
use manager::Roles;
use model::member::{Cause, Standing};
use model::{FailureGroupId, NodeId, NodeRun};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const NODES: [i32; 5] = [24, -24, 0, 24, -24];
/// From a cut on: it is noticed, others are heard, and a lease ends by every clock.
const GONE_MAX: Duration = Duration::from_secs(19);
/// Once all reach each other again.
const BACK_MAX: Duration = Duration::from_secs(10);

/// Five nodes at rest. The first one is the manager, and the second one has the only shard.
fn at_rest() -> Cluster {
    at_rest_with(Roles::default())
}

fn at_rest_with(roles: Roles) -> Cluster {
    let mut cluster = Cluster::new(&NODES, 1, None).looking();
    cluster.roles = roles;
    cluster.give_all_to(cluster.nodes[1].run);
    cluster.calm(Duration::from_secs(20));
    judged::rest(&cluster).expect("nothing is broken");
    let (manager, _) = cluster.store.place.expect("there is a manager");
    assert_eq!(manager.node, NodeId(1), "the first one that looked");
    assert_eq!(cluster.nodes[1].hosts.len(), 1);
    cluster
}

/// Until so many runs were expelled, at most so long.
#[track_caller]
fn until_expelled(cluster: &mut Cluster, runs: u32, most: Duration) {
    let begun = cluster.now;
    while cluster.expelled < runs {
        cluster.calm_tick();
        cluster.check().expect("right at every moment");
        assert!(
            cluster.now - begun <= most,
            "{:?}",
            cluster.store.membership
        );
    }
}

/// Until all are members, and the shard is served.
#[track_caller]
fn until_whole(cluster: &mut Cluster, most: Duration) {
    let begun = cluster.now;
    while let Err(why) = judged::rest(cluster) {
        cluster.calm_tick();
        cluster.check().expect("right at every moment");
        assert!(cluster.now - begun <= most, "{why}");
    }
}

fn runs(cluster: &Cluster) -> Vec<NodeRun> {
    cluster.nodes.iter().map(|node| node.run).collect()
}

/// The node that was expelled because it was apart from another one, and that one.
fn gone(cluster: &Cluster) -> Vec<(u32, u32)> {
    let members = cluster.store.membership.members.values();
    let gone = members.filter_map(|it| match it.standing {
        Standing::Expelled(Cause::Apart(other)) => Some((it.run.node.0, other.0)),
        _ => None,
    });
    gone.collect()
}

/// Would be broken if programs of the one got errors for as long as the link is cut, if both went, or if it came back
/// before it reaches the owner, to go again.
#[test]
fn of_an_owner_and_another_node_the_other_one_goes_and_comes_back_with_the_link() {
    let mut cluster = at_rest();
    let before = runs(&cluster);
    cluster.cuts.insert((2, 3));
    until_expelled(&mut cluster, 1, GONE_MAX);
    assert_eq!(gone(&cluster), [(3, 2)]);
    let owner = &cluster.nodes[1];
    assert!(
        owner.run == before[1] && owner.hosts.len() == 1,
        "it serves on"
    );
    cluster.calm(Duration::from_secs(180));
    assert_eq!(gone(&cluster), [(3, 2)], "it waits");
    assert_eq!(cluster.expelled, 1);
    assert!(cluster.nodes[2].run > before[2], "as a new run");
    cluster.cuts.clear();
    until_whole(&mut cluster, BACK_MAX);
    cluster.calm(Duration::from_secs(60));
    assert_eq!(cluster.expelled, 1);
}

#[test]
fn an_owner_that_several_nodes_cannot_reach_goes_and_its_shard_is_served_by_another_one() {
    let mut cluster = at_rest();
    let before = runs(&cluster);
    let shard = *cluster.store.shards.keys().next().expect("there is one");
    cluster.cuts.extend([(2, 3), (2, 4)]);
    until_expelled(&mut cluster, 1, GONE_MAX);
    assert_eq!(gone(&cluster)[0].0, 2);
    cluster.calm(Duration::from_secs(2));
    let serves = |at: usize| cluster.serves(&cluster.nodes[at], shard);
    assert!([0, 2, 3, 4].into_iter().any(serves));
    cluster.calm(Duration::from_secs(120));
    assert_eq!(cluster.expelled, 1);
    assert_eq!(runs(&cluster)[2..], before[2..], "nobody else went");
    cluster.cuts.clear();
    until_whole(&mut cluster, BACK_MAX);
}

/// Would be broken if a node went for a link that is back before its lease has ended.
#[test]
fn nobody_goes_for_a_link_that_is_back_in_time() {
    for milliseconds in (500..=10_500).step_by(500) {
        let mut cluster = at_rest();
        cluster.cuts.insert((2, 3));
        cluster.calm(Duration::from_millis(milliseconds));
        cluster.cuts.clear();
        cluster.calm(Duration::from_secs(30));
        assert_eq!(cluster.expelled, 0, "{milliseconds} ms");
        judged::rest(&cluster).expect("all is as before");
    }
}

/// Would be broken if the ends of a link that comes and goes went in turn.
#[test]
fn a_link_that_comes_and_goes_costs_the_same_end_each_time() {
    let mut cluster = at_rest();
    let before = runs(&cluster);
    // Cut for 25 seconds of every 35.
    for _ in 0..10 {
        cluster.cuts.insert((2, 3));
        cluster.calm(Duration::from_secs(25));
        cluster.cuts.clear();
        cluster.calm(Duration::from_secs(10));
    }
    let after = runs(&cluster);
    let changed: Vec<_> = (0..5).filter(|at| after[*at] != before[*at]).collect();
    assert_eq!(changed, [2]);
    assert!((1..=10).contains(&cluster.expelled), "{}", cluster.expelled);
    until_whole(&mut cluster, BACK_MAX);
}

/// Would be broken if what one manager had decided was another's as well, or forgotten for good.
#[test]
fn one_of_both_goes_although_the_manager_dies_in_the_middle() {
    for seconds in [2, 8, 11, 12, 14, 16, 18] {
        let mut cluster = at_rest();
        cluster.cuts.insert((4, 5));
        cluster.calm(Duration::from_secs(seconds));
        cluster.kill(0);
        cluster.calm(Duration::from_secs(60));
        let is_in = |at: usize| {
            let node = &cluster.nodes[at];
            cluster.store.membership.is_member(node.run)
        };
        let members = &cluster.store.membership;
        assert!(is_in(1) && is_in(2), "after {seconds} s: {members:?}");
        assert!(is_in(3) != is_in(4), "after {seconds} s: {members:?}");
        cluster.come_to_rest().expect("all come back");
    }
}

/// The network between two halves is cut, but for the manager, which is in both: the smaller one goes, node by node, and
/// never so many that the rest isn't most.
#[test]
fn of_two_halves_the_smaller_one_goes() {
    let mut cluster = Cluster::new(&[0; 7], 1, None).looking();
    cluster.calm(Duration::from_secs(20));
    judged::rest(&cluster).expect("nothing is broken");
    let (manager, _) = cluster.store.place.expect("there is a manager");
    let others = (1..=7).filter(|node| *node != manager.node.0);
    let others: Vec<u32> = others.collect();
    let (small, large) = others.split_at(2);
    for one in small {
        let cuts = large.iter().map(|other| (*one.min(other), *one.max(other)));
        cluster.cuts.extend(cuts);
    }
    until_expelled(&mut cluster, 2, Duration::from_secs(60));
    cluster.calm(Duration::from_secs(120));
    let away: Vec<u32> = gone(&cluster).into_iter().map(|(node, _)| node).collect();
    assert_eq!((away, cluster.expelled), (small.to_vec(), 2));
    cluster.cuts.clear();
    until_whole(&mut cluster, BACK_MAX);
}

/// Would be broken if the manager expelled what the cluster can't do without for the sake of one link.
#[test]
fn a_server_of_nsds_stays_while_others_are_away() {
    let server = |node| (NodeId(node), BTreeSet::from([FailureGroupId(node)]));
    let mut cluster = at_rest_with(Roles {
        servers: BTreeMap::from([2, 3, 4].map(server)),
        tolerance: 1,
        ..Roles::default()
    });
    cluster.kill(3);
    cluster.calm(Duration::from_secs(5));
    cluster.cuts.insert((2, 3));
    cluster.calm(Duration::from_secs(120));
    assert_eq!(cluster.expelled, 0, "{:?}", cluster.store.membership);
    cluster.start(3);
    until_expelled(&mut cluster, 1, Duration::from_secs(10));
    assert_eq!(gone(&cluster), [(3, 2)]);
}
