//! Nodes that are expelled by hand.

use super::{Cluster, signal};
use crate::fixture::eventually;
use rustix::process::Signal;

/// Its cluster could never let it in again.
#[test]
fn a_node_without_which_coordination_ends_is_not_expelled() {
    let mut cluster = Cluster::founded();
    cluster.join(true);
    let refused = cluster.node(1).run(&["node", "expel", "n2"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success(), "{refused:?}");
    assert!(said.contains("of the 2 voting members"), "{said}");
    assert_eq!(cluster.line(1, 2)["state"], "up");
    // With a third one there are enough.
    cluster.join(true);
    cluster.node(1).must(&["node", "expel", "n2"]);
    eventually("its daemon ends", || {
        !cluster.node(2).dir.join("daemon.sock").exists()
    });
    assert_eq!(cluster.line(3, 2)["state"], "barred");
    let reported = || {
        let health = cluster.node(3).run(&["health"]);
        String::from_utf8_lossy(&health.stdout).contains("2 of 3 members of etcd work")
    };
    eventually("a lost member of etcd is reported", reported);
    cluster.node(1).must(&["node", "unexpel", "n2"]);
    cluster.node(2).must(&["up"]);
    eventually("it is a member", || cluster.line(1, 2)["state"] == "up");
}

/// A daemon that hangs can't end itself.
#[test]
fn a_node_that_does_not_end_itself_is_out_all_the_same() {
    let cluster = Cluster::of(2);
    let pid = cluster.node(2).pid();
    signal(pid, Signal::STOP);
    cluster.node(1).must(&["node", "expel", "n2"]);
    assert_eq!(cluster.line(1, 2)["state"], "barred");
    std::fs::write(cluster.path(1, "a"), "written without it").unwrap();
    signal(pid, Signal::CONT);
    eventually("its daemon ends", || {
        !cluster.node(2).dir.join("daemon.sock").exists()
    });
    let health = cluster.node(1).run(&["health"]);
    let health = String::from_utf8_lossy(&health.stdout).into_owned();
    assert!(!health.contains("it was expelled"), "{health}");
}
