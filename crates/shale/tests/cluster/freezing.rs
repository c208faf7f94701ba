//! A daemon that is stopped: its watchdog aborts its mounts, and it mounts again when it goes on.

use super::{Cluster, child_of, three_nodes};
use crate::fixture::{alive, eventually, kill_hard, signals::signal, within_a_minute};
use crate::mapping::Mapping;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

/// The process that watches over a daemon.
fn watchdog(daemon: i32) -> Option<i32> {
    child_of(daemon, "shale-watchdog")
}

/// The log says that so many mounts were aborted, or more.
fn eventually_aborted(cluster: &Cluster, node: usize, mounts: usize) {
    let path = cluster.node(node).dir.join("daemon.log");
    eventually("the watchdog aborts the mounts", || {
        let log = fs::read_to_string(&path).unwrap();
        log.matches("the watchdog has aborted a mount").count() >= mounts
    });
}

fn has_event(cluster: &Cluster, node: usize, event: &str) -> bool {
    // While it is stopped, it doesn't answer.
    let output = cluster.node(node).run(&["events", "--json"]);
    let events: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let mut events = events.as_array().into_iter().flatten();
    events.any(|line| line["event"] == event)
}

/// What a program says that must not hang.
fn runs(program: &str, path: &Path) -> (i32, String) {
    within_a_minute(Command::new(program).env("LC_ALL", "C").arg(path))
}

fn is_told(said: &str) -> bool {
    let errors = [
        "Transport endpoint is not connected",
        "Software caused connection abort",
        "Input/output error",
        "Operation canceled",
    ];
    errors.iter().any(|error| said.contains(error))
}

#[test]
fn programs_on_a_frozen_node_get_errors_when_its_lease_is_over_and_others_go_on() {
    let cluster = three_nodes();
    let frozen = 1 + cluster.owner(1).unwrap() % 3;
    let others = [1 + frozen % 3, 1 + (frozen + 1) % 3];
    let at = |node: usize, name: &str| cluster.path(node, name);
    fs::write(at(frozen, "held"), "before").unwrap();
    fs::create_dir(at(frozen, "directory")).unwrap();
    let held = fs::File::open(at(frozen, "held")).unwrap();
    let pid = cluster.node(frozen).pid();
    // One that has died is followed by another.
    let first = watchdog(pid).unwrap();
    kill_hard(first);
    eventually("there is another watchdog", || {
        watchdog(pid).is_some_and(|it| it != first)
    });
    // What the kernel keeps.
    let mut bytes = [0; 6];
    held.read_exact_at(&mut bytes, 0).unwrap();
    let mapping = Mapping::new(&held, libc::MAP_PRIVATE);
    assert_eq!(mapping.try_read(0).unwrap(), b'b');
    fs::metadata(at(frozen, "directory")).unwrap();

    signal(pid, Signal::STOP);
    fs::write(at(others[0], "held"), "changed").unwrap();
    fs::rename(at(others[0], "directory"), at(others[0], "moved")).unwrap();
    assert_eq!(
        fs::read_to_string(at(others[1], "held")).unwrap(),
        "changed"
    );
    eventually_aborted(&cluster, frozen, 1);
    // Nothing of before may be seen: what isn't the truth is an error.
    for (program, name) in [("cat", "held"), ("stat", "directory"), ("ls", ".")] {
        let (code, said) = runs(program, &at(frozen, name));
        assert!(code != 0 && is_told(&said), "{program} {name}: {said}");
    }
    held.read_exact_at(&mut bytes, 0).unwrap_err();
    fs::write(at(others[1], "meanwhile"), "written").unwrap();

    signal(pid, Signal::CONT);
    eventually("the mount serves again", || {
        fs::read_to_string(at(frozen, "meanwhile")).is_ok_and(|text| text == "written")
    });
    assert_eq!(fs::read_to_string(at(frozen, "held")).unwrap(), "changed");
    assert!(fs::metadata(at(frozen, "moved")).unwrap().is_dir());
    // What was open stays an error.
    held.metadata().unwrap_err();
    eventually("what was mapped goes", || mapping.try_read(0).is_err());
    eventually("the event is there", || {
        has_event(&cluster, frozen, "mount-aborted")
    });
    fs::write(at(frozen, "after"), "served").unwrap();
    assert_eq!(
        fs::read_to_string(at(others[0], "after")).unwrap(),
        "served"
    );
}

#[test]
fn a_frozen_node_that_nobody_expels_mounts_again_all_that_it_had() {
    let cluster = Cluster::founded();
    let node = cluster.node(1);
    let second = node.place("second");
    node.must(&["mount", second.to_str().unwrap(), "-o", "transport=fuse"]);
    fs::write(cluster.path(1, "file"), "written").unwrap();
    let pid = node.pid();
    for round in 1..=2 {
        signal(pid, Signal::STOP);
        // Waits for the daemon, until the watchdog ends that.
        let (code, said) = runs("cat", &second.join("unknown"));
        assert!(code != 0 && is_told(&said), "{said}");
        eventually_aborted(&cluster, 1, 2 * round);
        let (code, said) = runs("cat", &cluster.path(1, "file"));
        assert!(code != 0 && is_told(&said), "{said}");
        signal(pid, Signal::CONT);
        for place in [&node.mnt, &second] {
            eventually("both mounts serve again", || {
                fs::read_to_string(place.join("file")).is_ok_and(|text| text == "written")
            });
        }
        eventually("it has its two mounts", || {
            let mounts = node.ask(&["status"])["mounts"].clone();
            mounts.as_array().is_some_and(|all| all.len() == 2)
        });
    }
    assert!(has_event(&cluster, 1, "mounted-again"));
    assert!(!has_event(&cluster, 1, "node-expelled"));
}

/// Would be broken if programs waited for ever whose requests the kernel had given to a thread that is stopped.
#[test]
fn programs_that_begin_on_a_frozen_node_get_errors_too() {
    let cluster = Cluster::founded();
    let node = cluster.node(1);
    fs::write(cluster.path(1, "file"), "written").unwrap();
    // The daemon may be killed below.
    let file = fs::File::open(cluster.path(1, "file")).unwrap();
    file.sync_all().unwrap();
    drop(file);
    let pid = node.pid();
    signal(pid, Signal::STOP);
    let programs: Vec<_> = (0..8)
        .map(|number| {
            let path = cluster.path(1, &format!("unknown{number}"));
            std::thread::spawn(move || runs("cat", &path))
        })
        .collect();
    for program in programs {
        let (code, said) = program.join().unwrap();
        assert!(code != 0 && is_told(&said), "{said}");
    }
    // Its watchdog may have had to kill it.
    let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::CONT);
    eventually("it serves again", || {
        if !alive(pid) {
            node.must(&["up"]);
        }
        fs::read_to_string(cluster.path(1, "file")).is_ok_and(|text| text == "written")
    });
}

#[test]
fn a_pause_within_the_lease_ends_no_mount_and_a_watchdog_ends_with_its_daemon() {
    let cluster = Cluster::founded();
    let node = cluster.node(1);
    let held = fs::File::create(cluster.path(1, "held")).unwrap();
    let pid = node.pid();
    let watchdog = watchdog(pid).unwrap();
    for _ in 0..20 {
        signal(pid, Signal::STOP);
        signal(pid, Signal::CONT);
        held.write_all_at(b"served", 0).unwrap();
    }
    held.sync_all().unwrap();
    assert!(!has_event(&cluster, 1, "mount-aborted"));
    kill_hard(pid);
    eventually("its watchdog is gone", || !alive(watchdog));
    node.must(&["up"]);
    assert_eq!(
        fs::read_to_string(cluster.path(1, "held")).unwrap(),
        "served"
    );
    // A node that is alone needs none.
    let alone = crate::fixture::Node::new();
    assert_eq!(self::watchdog(alone.pid()), None);
}
