//! Nodes that don't come back, and members of etcd of machines that broke off.

use super::{Cluster, refused};
use crate::fixture::{Node, eventually};
use coordination::etcd::Etcd;
use std::fs;
use std::time::Duration;
use world::{Deadline, World};

/// How long etcd may take for a change.
const CHANGE_MAX: Duration = Duration::from_secs(60);

/// Does something with the cluster's etcd, as node 1.
fn with_etcd<T>(cluster: &Cluster, run: impl AsyncFnOnce(Etcd, World) -> T) -> T {
    cluster.with_etcd_at((1, 7312), 1, ["node.key", "node.pem"], run)
}

fn members(cluster: &Cluster) -> usize {
    with_etcd(cluster, async |etcd, _| etcd.members().await.unwrap().len())
}

#[test]
fn a_quorum_node_that_is_gone_is_removed_and_its_machine_joins_anew() {
    let mut cluster = Cluster::founded();
    for _ in 0..2 {
        cluster.join_with(true, &["--nsds", "0"]);
    }
    let one = cluster.node(1);
    let up = one.run(&["node", "remove", "n3"]);
    assert!(refused(&up).contains("is up"), "{up:?}");
    let own = one.run(&["node", "remove", "n1"]);
    assert!(refused(&own).contains("isn't removed by itself"), "{own:?}");
    cluster.node(3).kill();
    eventually("it is expelled", || {
        cluster.line(1, 3)["state"] == "expelled"
    });
    let left = one.ask(&["node", "remove", "n3"]);
    assert_eq!(left["nodes"].as_array().unwrap().len(), 2, "{left}");
    assert_eq!(members(&cluster), 2);
    eventually("nobody complains of it any more", || {
        let health = one.run(&["health"]);
        !String::from_utf8_lossy(&health.stdout).contains("node 3")
    });
    let gone = cluster.node(3).run(&["up"]);
    assert!(refused(&gone).contains("was removed"), "{gone:?}");
    // The machine, with a new directory and the same address and name.
    let token = cluster.token_for(true);
    let fresh = Node::unstarted();
    let more = ["--nsds", "0", "--name", "n3"];
    let joined = cluster.try_to_be(&fresh, 3, &token, true, &more);
    assert!(joined.status.success(), "{joined:?}");
    assert_eq!(cluster.line(1, 4)["name"], "n3");
    assert_eq!(members(&cluster), 3);
    cluster.nodes.push(fresh);
}

#[test]
fn a_node_with_data_is_removed_once_it_is_empty() {
    let mut cluster = Cluster::of(2);
    fs::write(cluster.path(1, "kept"), vec![7; 3 << 20]).unwrap();
    let two = cluster.node(2);
    two.must(&["down"]);
    let one = cluster.node(1);
    let full = one.run(&["node", "remove", "n2"]);
    assert!(refused(&full).contains("NSDs in use (2)"), "{full:?}");
    two.must(&["up"]);
    one.must(&["node", "drain", "n2"]);
    eventually("it is empty", || {
        let nsds = one.ask(&["nsd", "list"]);
        let nsds = nsds.as_array().unwrap().iter();
        nsds.filter(|line| line["state"] == "lost").count() == 1
    });
    two.must(&["down"]);
    one.must(&["node", "remove", "n2"]);
    assert_eq!(fs::read(cluster.path(1, "kept")).unwrap(), vec![7; 3 << 20]);
    let token = cluster.token();
    let fresh = Node::unstarted();
    let joined = cluster.try_to_be(&fresh, 2, &token, false, &["--name", "n2"]);
    assert!(joined.status.success(), "{joined:?}");
    cluster.nodes.push(fresh);
}

#[test]
fn a_machine_that_broke_off_keeps_no_other_one_from_becoming_a_quorum_node() {
    let mut cluster = Cluster::founded();
    // It told etcd where its member is, and never started it.
    let lost = format!("https://{}:7313", cluster.address(9));
    with_etcd(&cluster, async |etcd, world| {
        let deadline = Deadline::after(&world, CHANGE_MAX);
        etcd.add_learner(&[lost], deadline).await.unwrap();
    });
    cluster.join_with(true, &["--nsds", "0"]);
    assert_eq!(members(&cluster), 2);
    assert!(!cluster.line(1, 2)["etcd"].is_null());
}
