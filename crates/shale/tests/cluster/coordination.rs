//! The cluster's own etcd: what it never forgets, whatever is lost of it.

use super::{Cluster, child_of, refused, until_all_know_coordination, works_everywhere};
use crate::fixture::{eventually, kill_hard};
use std::fs;
use std::time::Duration;
use world::Deadline;

/// A member of etcd that starts has nothing to read.
const READY_MAX: Duration = Duration::from_secs(60);

/// What the port where members of etcd speak to each other answers a client of etcd at node 1, which comes with this key and
/// certificate of a node.
fn at_members_port(cluster: &Cluster, from: usize, identity: [&str; 2]) -> String {
    cluster.with_etcd_at((1, 7313), from, identity, async |etcd, _| {
        let answer = etcd.status_at(0).await;
        answer.expect_err("it answers no clients").to_string()
    })
}

/// Would be broken if a node that isn't a quorum node, or somebody with its key, could vote in etcd's elections in a member's
/// name.
#[test]
fn only_quorum_nodes_are_let_in_where_members_of_etcd_speak_to_each_other() {
    let cluster = Cluster::of(2);
    let member = ["etcd.key", "etcd.pem"];
    let node = ["node.key", "node.pem"];
    // One that is let in is told that there is nothing for clients.
    let answer = || at_members_port(&cluster, 1, member);
    assert!(answer().contains("HTTP status 404"), "{}", answer());
    for from in [1, 2] {
        let refused = at_members_port(&cluster, from, node);
        assert!(!refused.contains("HTTP status"), "node {from}: {refused}");
    }
    assert!(!cluster.node(2).dir.join("keys/etcd.key").exists());
}

#[test]
fn a_quorum_node_that_lost_its_etcd_is_not_started_and_founds_no_other_one() {
    let cluster = Cluster::founded();
    let one = cluster.node(1);
    fs::write(cluster.path(1, "a"), "written").unwrap();
    one.must(&["down"]);
    let (data, aside) = (one.dir.join("etcd"), one.dir.join("etcd.aside"));
    fs::rename(&data, &aside).unwrap();
    for _ in 0..2 {
        let why = refused(&one.run(&["up"]));
        assert!(
            why.contains("member of etcd") && why.contains("are gone"),
            "{why}"
        );
        assert!(!data.join("member").exists(), "it begins nothing anew");
    }
    let _ = fs::remove_dir(&data);
    fs::rename(&aside, &data).unwrap();
    one.must(&["up"]);
    assert_eq!(fs::read_to_string(cluster.path(1, "a")).unwrap(), "written");
}

/// Would be broken if a daemon lived on without its member: two of them, killed one after the other, took the quorum along.
#[test]
fn a_member_of_etcd_that_is_killed_is_started_again_and_the_cluster_works_meanwhile() {
    let mut cluster = Cluster::founded();
    for _ in 0..2 {
        cluster.join_with(true, &["--nsds", "0"]);
    }
    until_all_know_coordination(&cluster);
    for number in 1..=3 {
        let node = cluster.node(number);
        let daemon = node.pid();
        let killed = child_of(daemon, "etcd").expect("it runs a member of etcd");
        kill_hard(killed);
        works_everywhere(&cluster, 3, &format!("without{number}"));
        eventually("another process is the member", || {
            child_of(daemon, "etcd").is_some_and(|it| it != killed)
        });
        let ready = cluster.with_etcd_at(
            (number as u8, 7312),
            number,
            ["node.key", "node.pem"],
            async |etcd, world| {
                let deadline = Deadline::after(&world, READY_MAX);
                etcd.until_ready(0, deadline).await.map(drop)
            },
        );
        ready.unwrap();
        assert_eq!(node.pid(), daemon, "its daemon has lived on");
        let log = fs::read_to_string(node.dir.join("daemon.log")).unwrap();
        assert!(log.contains("etcd has ended; it is started again"), "{log}");
    }
    works_everywhere(&cluster, 3, "again");
}
