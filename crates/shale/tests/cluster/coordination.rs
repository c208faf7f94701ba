//! The cluster's own etcd: what it never forgets, whatever is lost of it.

use super::Cluster;
use crate::fixture::{Node, eventually};
use std::fs;

fn refused(output: &std::process::Output) -> String {
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
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

#[test]
fn a_quorum_node_that_lost_its_disk_joins_at_its_old_address_and_nothing_is_forgotten() {
    let cluster = Cluster::of(3);
    fs::write(cluster.path(1, "a"), "written").unwrap();
    let token = cluster.token();
    // All that it had.
    cluster.node(3).must(&["down", "--kill"]);
    fs::remove_dir_all(cluster.node(3).dir.join("etcd")).unwrap();
    let why = refused(&cluster.node(3).run(&["up"]));
    assert!(why.contains("are gone"), "{why}");
    let fresh = Node::unstarted();
    let address = cluster.address(3);
    let arguments = [
        "node",
        "join",
        &token,
        "--address",
        &address,
        "--nsds",
        "0",
        "--quorum",
    ];
    fresh.must(&arguments);
    eventually(
        "its member has a vote, and each address is named once",
        || {
            let view = cluster.view(1);
            view["coordination"]
                .as_array()
                .is_some_and(|all| all.len() == 3)
        },
    );
    // The new one and one other are the quorum now, and know all.
    cluster.node(2).must(&["down", "--kill"]);
    cluster
        .node(1)
        .must(&["config", "set", "scrub_every_seconds", "4000"]);
    assert_eq!(fs::read_to_string(fresh.path("a")).unwrap(), "written");
    let _ = fresh.run(&["down", "--kill"]);
}
