//! Nodes that start, or start again, while others are away.

use super::Cluster;
use crate::fixture::{eventually, mounted_as, notified::Notified};
use std::fs;
use std::process::{Command, Stdio};

/// A daemon of a node, started as systemd does it.
fn begin_up(cluster: &Cluster, number: usize) -> std::process::Child {
    Command::new(env!("CARGO_BIN_EXE_shale"))
        .args(["up", "--dir"])
        .arg(&cluster.node(number).dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Others need a node's NSDs whether or not its own mount can be made.
#[test]
fn a_node_whose_mount_cannot_be_made_serves_its_cluster_and_mounts_later() {
    let cluster = Cluster::of(2);
    let two = cluster.node(2);
    two.must(&["down"]);
    // A mount point that isn't a directory.
    fs::remove_dir(&two.mnt).unwrap();
    fs::write(&two.mnt, "in the way").unwrap();
    let up = two.run(&["up"]);
    let said = String::from_utf8_lossy(&up.stderr).into_owned();
    assert!(!up.status.success(), "{up:?}");
    assert!(said.contains("is up and serves its cluster"), "{said}");
    eventually("it is a member", || cluster.line(1, 2)["state"] == "up");
    let health = two.run(&["health"]);
    let health = String::from_utf8_lossy(&health.stdout).into_owned();
    assert!(health.contains("isn't made yet"), "{health}");
    two.must(&["nsd", "add", "--nsd-size", "1G"]);
    // It is put right, and nobody does anything else.
    fs::remove_file(&two.mnt).unwrap();
    eventually("it is mounted", || mounted_as(&two.mnt).is_some());
    fs::write(cluster.path(1, "a"), "seen").unwrap();
    assert_eq!(fs::read_to_string(cluster.path(2, "a")).unwrap(), "seen");
    let health = || {
        let health = two.run(&["health"]);
        String::from_utf8_lossy(&health.stdout).into_owned()
    };
    eventually("nothing is said of the mount", || {
        !health().contains("isn't made yet")
    });
}

/// Its coordination may be away for long; people must be able to stop it meanwhile.
#[test]
fn a_node_that_cannot_join_yet_says_so_and_can_be_stopped() {
    let cluster = Cluster::of(2);
    cluster.node(2).must(&["down"]);
    cluster.node(1).kill();
    let mut up = begin_up(&cluster, 2);
    let asked = || {
        let status = cluster.node(2).run(&["status"]);
        String::from_utf8_lossy(&status.stderr).into_owned()
    };
    eventually("it says what it waits for", || {
        asked().contains("no member of its cluster now: it can't join yet")
    });
    cluster.node(2).must(&["down"]);
    let ended = up.wait().unwrap();
    assert!(!ended.success());
    assert!(!cluster.node(2).dir.join("daemon.sock").exists());
    // Both come back.
    cluster.node(1).must(&["up"]);
    cluster.node(2).must(&["up"]);
    eventually("it is a member", || cluster.line(1, 2)["state"] == "up");
}

/// At boot the network may come up later than the daemon; a daemon that ended may still have the port.
#[test]
fn a_node_whose_address_is_not_free_yet_waits_for_it() {
    let cluster = Cluster::of(2);
    cluster.node(2).must(&["down"]);
    let address = (cluster.address(2), 7311);
    let in_the_way = std::net::TcpListener::bind((address.0.as_str(), address.1)).unwrap();
    let mut up = begin_up(&cluster, 2);
    eventually("it says what it waits for", || {
        let status = cluster.node(2).run(&["status"]);
        String::from_utf8_lossy(&status.stderr).contains("nothing else may listen there")
    });
    drop(in_the_way);
    let ended = up.wait().unwrap();
    assert!(ended.success(), "{ended}");
    eventually("it is a member", || cluster.line(1, 2)["state"] == "up");
}

/// Its etcd tells systemd when it is ready, if it can; the node isn't then.
#[test]
fn systemd_is_told_how_a_node_starts_by_its_daemon_and_not_by_etcd() {
    let cluster = Cluster::founded();
    let one = cluster.node(1);
    one.must(&["down"]);
    let mut told = Notified::start(one);
    let mut states = Vec::new();
    let ready = loop {
        match told.hear() {
            state if state.starts_with("STATUS=") => states.push(state),
            other => break other,
        }
    };
    assert_eq!(ready, "READY=1");
    assert!(states.len() > 1, "{states:?}");
    assert_eq!(states.last().unwrap(), "STATUS=serves", "{states:?}");
    one.must(&["down"]);
    assert_eq!(told.hear(), "STOPPING=1");
    assert!(told.daemon.wait().unwrap().success());
}
