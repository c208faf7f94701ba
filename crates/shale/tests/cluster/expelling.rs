//! Nodes that are expelled by hand.

use super::Cluster;
use crate::fixture::eventually;

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
    // What of etcd still runs there ends too.
    let refused = cluster.node(1).run(&["node", "expel", "n3"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success(), "{refused:?}");
    assert!(said.contains("of the 3 voting members"), "{said}");
    assert_eq!(cluster.line(1, 3)["state"], "up");
    eventually("its daemon ends", || {
        !cluster.node(2).dir.join("daemon.sock").exists()
    });
    assert_eq!(cluster.line(3, 2)["state"], "barred");
    let health = cluster.node(3).run(&["health"]);
    let health = String::from_utf8_lossy(&health.stdout).into_owned();
    assert!(
        !health.contains("it was expelled:"),
        "somebody wanted it: {health}"
    );
    let reported = || {
        let health = cluster.node(3).run(&["health"]);
        String::from_utf8_lossy(&health.stdout).contains("2 of 3 members of etcd work")
    };
    eventually("a lost member of etcd is reported", reported);
    cluster.node(1).must(&["node", "unexpel", "n2"]);
    cluster.node(2).must(&["up"]);
    eventually("it is a member", || cluster.line(1, 2)["state"] == "up");
}
