//! Nodes that die, freeze and come back, under load.

use super::{Cluster, content, three_nodes};
use crate::fixture::{eventually, figure, mounted_as, never_bare, signals::signal};
use rustix::process::Signal;
use std::fs;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[test]
fn a_cluster_grows_out_of_one_node_and_survives_the_one_that_serves_it() {
    let cluster = three_nodes();
    let dead = cluster.owner(1).unwrap();
    let writer = 1 + dead % 3;
    let reader = 1 + writer % 3;
    let is_over = AtomicBool::new(false);
    let (written, longest) = std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let (mut number, mut longest) = (0, Duration::ZERO);
            while !is_over.load(Ordering::Relaxed) || number < 20 {
                let begun = Instant::now();
                let path = cluster.path(writer, &format!("new{number}"));
                let mut file = fs::File::create(path).unwrap();
                file.write_all(&content(number)).unwrap();
                file.sync_all().unwrap();
                longest = longest.max(begun.elapsed());
                number += 1;
            }
            (number, longest)
        });
        cluster.node(dead).kill();
        eventually("others serve", || {
            cluster.owner(writer).is_some_and(|node| node != dead)
        });
        eventually("it is expelled", || {
            cluster.line(writer, dead)["state"] == "expelled"
        });
        is_over.store(true, Ordering::Relaxed);
        load.join().unwrap()
    });
    // Its NSD is away with it, and nobody is sent to look at its disk.
    let said = health_of_nsds(&cluster, writer, dead);
    let [(message, remedy)] = &said[..] else {
        panic!("{said:?}");
    };
    let node = format!("away: node {dead} (n{dead}) has been away for");
    assert!(message.starts_with(&node), "{message}");
    assert!(remedy.contains("`shale up` there"), "{remedy}");
    assert!(!remedy.contains("smartctl"), "{remedy}");
    // Printed, not judged: the machine may be busy.
    figure(&format!(
        "a killed node held up others' longest operation for {longest:?}"
    ));
    for other in [writer, reader].into_iter().filter(|node| *node != dead) {
        for number in 0..10 {
            let old = fs::read(cluster.path(other, &format!("old{number}"))).unwrap();
            assert!(old == content(number), "old{number} on node {other}");
        }
        for number in 0..written {
            let new = fs::read(cluster.path(other, &format!("new{number}"))).unwrap();
            assert!(new == content(number), "new{number} on node {other}");
        }
    }
    // It comes back, and what it missed is repaired.
    never_bare(&cluster.node(dead).mnt, || {
        cluster.node(dead).must(&["up"]);
        eventually("it is a member", || {
            cluster.line(writer, dead)["state"] == "up"
        });
        eventually("it is mounted", || cluster.path(dead, "old0").exists());
    });
    eventually("all is repaired", || cluster.is_repaired(writer));
    eventually("its NSD isn't blamed any more", || {
        let others = [writer, reader].into_iter();
        let others = others.filter(|node| *node != dead);
        let mut said = others.flat_map(|node| health_of_nsds(&cluster, node, dead));
        !said.any(|(message, _)| message.contains("away") || message.contains("failed"))
    });
    let last = fs::read(cluster.path(dead, &format!("new{}", written - 1))).unwrap();
    assert!(last == content(written - 1));
}

/// What a node's health says of the NSDs of another one: messages and remedies.
fn health_of_nsds(cluster: &Cluster, asked: usize, home: usize) -> Vec<(String, String)> {
    let health = cluster.node(asked).ask(&["health"]);
    let of_home = format!("(on node {home})");
    let text = |event: &serde_json::Value, field: &str| event[field].as_str().unwrap().to_owned();
    let events = health["events"].as_array().unwrap().iter();
    let of_nsds = events.filter(|event| text(event, "subject").ends_with(&of_home));
    of_nsds
        .map(|event| (text(event, "message"), text(event, "remedy")))
        .collect()
}

#[test]
fn a_frozen_node_is_expelled_its_programs_get_errors_and_it_joins_again() {
    let cluster = three_nodes();
    let frozen = cluster.owner(1).unwrap();
    fs::write(cluster.path(frozen, "held"), "before").unwrap();
    let held = fs::File::open(cluster.path(frozen, "held")).unwrap();
    let second = cluster.node(frozen).place("second");
    cluster
        .node(frozen)
        .must(&["mount", second.to_str().unwrap()]);
    // Both mounts come back, and nobody gets to the directories below them meanwhile.
    never_bare(&cluster.node(frozen).mnt, || {
        never_bare(&second, || joins_again(&cluster, frozen, &held));
    });
    let other = cluster.path(1 + frozen % 3, "held");
    fs::write(other, "served").unwrap();
    let read = fs::read_to_string(second.join("held"));
    assert_eq!(read.unwrap(), "served");
    // Nothing dead is left below.
    for place in [&second, &cluster.node(frozen).mnt] {
        cluster
            .node(frozen)
            .must(&["umount", place.to_str().unwrap()]);
        assert!(fs::read_dir(place).unwrap().next().is_none());
        assert_eq!(mounted_as(place), None);
    }
}

/// Freezes a node until others have taken its place, and lets it go on. `held`: a file that it has open.
fn joins_again(cluster: &Cluster, frozen: usize, held: &fs::File) {
    let other = 1 + frozen % 3;
    let pid = cluster.node(frozen).pid();
    signal(pid, Signal::STOP);
    // It held the shard, perhaps the manager and etcd's leader, too.
    fs::write(cluster.path(other, "meanwhile"), "written").unwrap();
    fs::write(cluster.path(other, "held"), "changed").unwrap();
    signal(pid, Signal::CONT);
    // Its run has ended: no program reads on it what isn't true any more.
    eventually("a new run joins", || {
        let status = cluster.node(frozen).run(&["status", "--json"]);
        let status = serde_json::from_slice::<serde_json::Value>(&status.stdout);
        let status = status.unwrap_or_default();
        status["cluster"]["incarnation"]
            .as_u64()
            .is_some_and(|it| it > 1)
            && status["cluster"]["lease_milliseconds"]
                .as_u64()
                .is_some_and(|it| it > 0)
    });
    held.metadata().unwrap_err();
    // It mounts again a moment after it has joined.
    eventually("it shows what others wrote", || {
        fs::read_to_string(cluster.path(frozen, "held")).is_ok_and(|text| text == "changed")
    });
    eventually("its second mount is there again", || {
        let mounts = cluster.node(frozen).ask(&["status"])["mounts"].clone();
        mounts.as_array().is_some_and(|all| all.len() == 2)
    });
    let events = cluster.node(frozen).ask(&["events"]);
    let events = events.as_array().unwrap();
    assert!(
        events.iter().any(|line| line["event"] == "node-expelled"),
        "{events:?}"
    );
    assert_eq!(
        fs::read_to_string(cluster.path(frozen, "meanwhile")).unwrap(),
        "written"
    );
}
