//! The cluster's own etcd: what it never forgets, whatever is lost of it.

use super::{Cluster, refused};
use std::fs;

/// What the port where members of etcd speak to each other answers a client of etcd at node 1, which comes with this key and
/// certificate of a node.
fn at_members_port(cluster: &Cluster, from: usize, identity: [&str; 2]) -> String {
    cluster.with_etcd_at(7313, from, identity, async |etcd, _| {
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
