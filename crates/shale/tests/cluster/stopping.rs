//! `shale cluster stop`: all nodes end, or none does.

use super::{Cluster, child_of, content, refused, three_nodes, works_everywhere};
use crate::fixture::{alive, eventually, kill_hard, mounted_as, poll, signals::signal};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// Files that each node writes right before the stop.
const FILES: u32 = 40;

/// Stops the cluster. Children that other tests are starting may have this test's files open for a moment.
fn stop(cluster: &Cluster, asked: usize, more: &[&str]) -> String {
    let arguments = [&["cluster", "stop"][..], more].concat();
    let patience = Duration::from_secs(60);
    poll::until("nobody uses the mounts", patience, || {
        let output = cluster.node(asked).run(&arguments);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        match output.status.success() {
            true => Ok(said),
            false if said.contains("programs still use") => Err(said),
            false => panic!("{said}{}", String::from_utf8_lossy(&output.stderr)),
        }
    })
}

/// Starts all nodes at the same time: most of the quorum nodes need each other.
fn start(cluster: &Cluster, nodes: usize) {
    std::thread::scope(|scope| {
        for number in 1..=nodes {
            scope.spawn(move || cluster.node(number).must(&["up"]));
        }
    });
    eventually("all are members", || {
        (1..=nodes).all(|number| cluster.line(1, number)["state"] == "up")
    });
}

/// Whether a node's daemon has ended with everything durable, and its mount with it.
fn has_ended(cluster: &Cluster, number: usize, pid: i32) -> bool {
    let node = cluster.node(number);
    !alive(pid) && !node.dir.join("daemon.sock").exists() && mounted_as(&node.mnt).is_none()
}

/// How often a node has taken a shard over.
fn take_overs(cluster: &Cluster, number: usize) -> usize {
    let log = fs::read_to_string(cluster.node(number).dir.join("daemon.log")).unwrap();
    log.matches("the node owns a shard").count()
}

#[test]
fn a_cluster_that_is_stopped_has_all_data_when_it_starts_again() {
    let cluster = three_nodes();
    let file = |node: usize, number: u32| format!("of{node}-{number}");
    for node in 1..=3 {
        for number in 0..FILES {
            let path = cluster.path(node, &file(node, number));
            fs::write(path, content(number + node as u32)).unwrap();
        }
    }
    let pids = [1, 2, 3].map(|number| cluster.node(number).pid());
    let before = [1, 2, 3].map(|number| take_overs(&cluster, number));
    // Nothing was synced.
    let said = stop(&cluster, 2, &[]);
    for line in ["n1 has ended", "n2 (this node) has ended", "n3 has ended"] {
        assert!(said.lines().any(|it| it == line), "{said}");
    }
    assert!(said.contains("everything is durable"), "{said}");
    for number in 1..=3 {
        eventually("its daemon has ended", || {
            has_ended(&cluster, number, pids[number - 1])
        });
    }
    let after = [1, 2, 3].map(|number| take_overs(&cluster, number));
    assert_eq!(after, before, "no shard was handed over");
    let nobody = refused(&cluster.node(2).run(&["cluster", "stop"]));
    assert!(nobody.contains("no daemon runs"), "{nobody}");

    start(&cluster, 3);
    for reads in 1..=3 {
        for node in 1..=3 {
            for number in 0..FILES {
                let read = fs::read(cluster.path(reads, &file(node, number))).unwrap();
                let is_right = read == content(number + node as u32);
                assert!(is_right, "{} on node {reads}", file(node, number));
            }
        }
        let old = fs::read(cluster.path(reads, "old3")).unwrap();
        assert!(old == content(3));
    }
    cluster.node(3).must(&["fs", "sync"]);
}

#[test]
fn a_mount_that_programs_use_keeps_all_nodes_up_unless_it_is_forced() {
    let cluster = Cluster::of(2);
    let pids = [1, 2].map(|number| cluster.node(number).pid());
    fs::write(cluster.path(1, "held"), "written").unwrap();
    let held = fs::File::open(cluster.path(2, "held")).unwrap();
    let output = cluster.node(1).run(&["cluster", "stop"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("isn't stopped"), "{said}");
    let user = format!("(process {})", std::process::id());
    let named = said
        .lines()
        .any(|line| line.starts_with("n2 is up: programs still use") && line.contains(&user));
    assert!(named, "{said}");
    // For programs, asked on the other node.
    let stopped = cluster.node(2).ask(&["cluster", "stop"]);
    assert_eq!(stopped["stops"], false);
    // All go on as if nobody had asked.
    for (number, pid) in (1..).zip(pids) {
        assert_eq!(cluster.node(number).pid(), pid);
        assert!(mounted_as(&cluster.node(number).mnt).is_some());
    }
    let mut bytes = [0; 7];
    held.read_exact_at(&mut bytes, 0).unwrap();
    fs::write(cluster.path(1, "after"), "written too").unwrap();
    stop(&cluster, 1, &["--force"]);
    held.metadata().unwrap_err();
    for (number, pid) in (1..).zip(pids) {
        eventually("its daemon has ended", || has_ended(&cluster, number, pid));
    }
    drop(held);
    start(&cluster, 2);
    for (name, text) in [("held", "written"), ("after", "written too")] {
        let read = fs::read_to_string(cluster.path(2, name)).unwrap();
        assert_eq!(read, text);
    }
}

/// A node that hangs must not keep the others up; people hear of it.
#[test]
fn a_node_that_gives_no_answer_is_named_and_the_others_end_if_forced() {
    let cluster = three_nodes();
    let pids = [1, 2, 3].map(|number| cluster.node(number).pid());
    fs::write(cluster.path(1, "a"), "written").unwrap();
    signal(pids[2], Signal::STOP);
    let output = cluster.node(1).run(&["cluster", "stop", "--force"]);
    // Its watchdog may have had to kill it.
    let _ = kill_process(Pid::from_raw(pids[2]).unwrap(), Signal::CONT);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    for line in ["n1 (this node) has ended", "n2 has ended"] {
        assert!(said.lines().any(|it| it == line), "{said}");
    }
    assert!(said.contains("n3 gives no answer"), "{said}");
    assert!(said.contains("`shale down --kill`"), "{said}");
    for number in 1..=2 {
        eventually("its daemon has ended", || {
            has_ended(&cluster, number, pids[number - 1])
        });
    }
    cluster.node(3).must(&["down", "--kill"]);
    start(&cluster, 3);
    let read = fs::read_to_string(cluster.path(3, "a")).unwrap();
    assert_eq!(read, "written");
}

/// Whether an event is told on a node.
fn is_told(cluster: &Cluster, number: usize, event: &str) -> bool {
    let events = cluster.node(number).ask(&["events"]);
    let events = events.as_array().unwrap();
    events.iter().any(|line| line["event"] == event)
}

/// Would be broken if the others waited for people, with their mounts ended, because the daemon that was asked has died: they
/// serve again, or, if one of them has closed its clients already, end.
#[test]
fn a_stop_whose_daemon_dies_leaves_no_node_half_stopped() {
    let mut cluster = Cluster::founded();
    for _ in 0..2 {
        cluster.join_with(false, &["--nsds", "0"]);
    }
    let pids = [1, 2, 3].map(|number| cluster.node(number).pid());
    fs::write(cluster.path(3, "before"), "written").unwrap();
    cluster.node(3).must(&["fs", "sync"]);
    assert_eq!(cluster.owner(2), Some(1));
    // The only owner, NSD and etcd answers nothing, so it has no part in the stop.
    let etcd = child_of(pids[0], "etcd").unwrap();
    let frozen = [pids[0], etcd];
    frozen.iter().for_each(|pid| signal(*pid, Signal::STOP));
    std::thread::scope(|scope| {
        let stop = scope.spawn(|| cluster.node(2).run(&["cluster", "stop", "--force"]));
        eventually("the mounts have ended", || {
            [2, 3]
                .iter()
                .all(|number| mounted_as(&cluster.node(*number).mnt).is_none())
        });
        kill_hard(pids[1]);
        let output = stop.join().unwrap();
        assert!(!output.status.success(), "{output:?}");
    });
    for pid in frozen {
        // Its watchdog may have had to kill it.
        let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::CONT);
    }
    let serves = |cluster: &Cluster, number: usize| {
        let read = fs::read_to_string(cluster.path(number, "before"));
        read.is_ok_and(|text| text == "written")
    };
    eventually("it serves again", || {
        if !alive(pids[0]) {
            cluster.node(1).must(&["up"]);
        }
        serves(&cluster, 1)
    });
    eventually("it serves again or has ended", || {
        serves(&cluster, 3) || has_ended(&cluster, 3, pids[2])
    });
    if has_ended(&cluster, 3, pids[2]) {
        cluster.node(3).must(&["up"]);
    }
    assert!(is_told(&cluster, 3, "cluster-stop-inherited"));
    // The next run of the node that was asked has no part in that stop.
    cluster.node(2).must(&["up"]);
    eventually("all are members", || {
        (1..=3).all(|number| cluster.line(1, number)["state"] == "up")
    });
    works_everywhere(&cluster, 3, "after");
    // And all can be stopped, as ever.
    stop(&cluster, 3, &[]);
}
