//! Nodes that are expelled by hand.

use super::{Cluster, child_of, until_all_know_coordination};
use crate::fixture::{alive, eventually, kill_hard, never_bare, signals::signal};
use rustix::process::Signal;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;

/// Whether a node's people are told that it was expelled by hand, and waits.
fn is_kept_out(cluster: &Cluster, number: usize) -> bool {
    let health = cluster.node(number).run(&["health"]);
    let health = String::from_utf8_lossy(&health.stdout).into_owned();
    health.contains("expelled by hand") && health.contains(&format!("unexpel {number}"))
}

/// Waits until the daemon of a node that was expelled by hand has nothing any more, and waits until it is let in.
#[track_caller]
pub(super) fn until_kept_out(cluster: &Cluster, number: usize) {
    eventually("it waits until it is let in", || {
        is_kept_out(cluster, number)
    });
}

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
    let two = cluster.node(2).pid();
    cluster.node(1).must(&["node", "expel", "n2"]);
    // What of etcd still runs there ends too.
    let refused = cluster.node(1).run(&["node", "expel", "n3"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success(), "{refused:?}");
    assert!(said.contains("of the 3 voting members"), "{said}");
    assert_eq!(cluster.line(1, 3)["state"], "up");
    until_kept_out(&cluster, 2);
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
    // As systemd ends it.
    signal(two, Signal::TERM);
    eventually("its daemon ends", || !alive(two));
    cluster.node(1).must(&["node", "unexpel", "n2"]);
    cluster.node(2).must(&["up"]);
    eventually("it is a member", || cluster.line(1, 2)["state"] == "up");
}

/// Would be broken if programs got another error, or were shown what others have changed since; if what they had written was lost;
/// or if somebody had to start anything.
#[test]
fn programs_on_a_node_that_is_expelled_by_hand_get_eio_until_it_is_let_in_and_serves_again() {
    let mut cluster = Cluster::founded();
    // All data are on the other one.
    cluster.join_with(false, &["--nsds", "0"]);
    let (one, two) = (cluster.node(1), cluster.node(2));
    let (pid, path) = (two.pid(), cluster.path(2, "held"));
    fs::write(&path, "before").unwrap();
    let held = fs::File::open(&path).unwrap();
    let errors = RefCell::new(BTreeSet::new());
    let look = || {
        let looks = [held.metadata(), fs::metadata(&path)].into_iter();
        let refused = looks.filter_map(|look| Some(look.err()?.raw_os_error()));
        errors.borrow_mut().extend(refused);
    };
    never_bare(&two.mnt, || {
        one.must(&["node", "expel", "n2"]);
        eventually("it waits until it is let in", || {
            look();
            is_kept_out(&cluster, 2)
        });
        // From here on others may have changed all of it.
        for refused in [held.metadata(), fs::metadata(&path)] {
            let errno = refused.map_err(|error| error.raw_os_error());
            assert_eq!(errno.err(), Some(Some(libc::EIO)));
        }
        let other = cluster.path(1, "held");
        assert_eq!(fs::read_to_string(&other).unwrap(), "before");
        fs::write(&other, "after").unwrap();
        let status = two.run(&["status"]);
        let said = String::from_utf8_lossy(&status.stderr).into_owned();
        assert!(!status.status.success(), "{status:?}");
        assert!(said.contains("shale node unexpel 2"), "{said}");
        let events = two.ask(&["events"]);
        let mut events = events.as_array().unwrap().iter();
        let is_told = |line: &serde_json::Value| {
            let message = line["message"].as_str().unwrap_or_default();
            line["event"] == "node-expelled" && message.contains("by hand")
        };
        assert!(events.any(is_told), "its people are told");
        one.must(&["node", "unexpel", "n2"]);
        eventually("its mount is served again", || {
            look();
            fs::read_to_string(&path).is_ok_and(|text| text == "after")
        });
    });
    let still = held.metadata().unwrap_err();
    assert_eq!(still.raw_os_error(), Some(libc::EIO));
    assert_eq!(errors.into_inner(), BTreeSet::from([Some(libc::EIO)]));
    assert_eq!(two.pid(), pid, "its daemon lives");
}

/// Would be broken if a node that doesn't hear that somebody expels it, and is expelled for its silence, ended when it may not come
/// back; or if one waited that never may.
#[test]
fn a_silent_node_that_was_expelled_by_hand_waits_until_it_is_removed() {
    let mut cluster = Cluster::founded();
    cluster.join_with(false, &["--nsds", "0"]);
    let (one, pid) = (cluster.node(1), cluster.node(2).pid());
    signal(pid, Signal::STOP);
    one.must(&["node", "expel", "n2"]);
    eventually("it is no member", || {
        one.ask(&["status"])["cluster"]["members"] == 1
    });
    signal(pid, Signal::CONT);
    until_kept_out(&cluster, 2);
    assert!(alive(pid));
    one.must(&["node", "remove", "n2"]);
    eventually("its daemon ends", || !alive(pid));
}

/// Would be broken if the member of etcd of a node that was expelled by hand stayed away although the others can't do without it any
/// more: nobody could let the node in, nor could anything else be changed.
#[test]
fn a_node_that_was_expelled_by_hand_is_let_in_although_etcd_has_lost_another_member() {
    let mut cluster = Cluster::founded();
    for _ in 0..2 {
        cluster.join_with(true, &["--nsds", "0"]);
    }
    until_all_know_coordination(&cluster);
    let [two, three] = [2, 3].map(|number| cluster.node(number).pid());
    cluster.node(1).must(&["node", "expel", "n2"]);
    until_kept_out(&cluster, 2);
    eventually("its etcd rests", || child_of(two, "etcd").is_none());
    let etcd = child_of(three, "etcd").expect("it runs a member of etcd");
    [three, etcd].into_iter().for_each(kill_hard);
    eventually("it is let in", || {
        let let_in = cluster.node(1).run(&["node", "unexpel", "n2"]);
        let_in.status.success()
    });
    eventually("its mount is served again", || {
        fs::metadata(&cluster.node(2).mnt).is_ok()
    });
    assert_eq!(cluster.node(2).pid(), two, "its daemon has lived on");
    assert!(child_of(two, "etcd").is_some());
}
