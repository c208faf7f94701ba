//! Attempts to make a cluster that fail.

use super::{Cluster, free_net, refused};
use crate::fixture::{Node, eventually};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn address() -> String {
    let [a, b, c] = free_net();
    format!("{a}.{b}.{c}.1")
}

fn alone() -> Node {
    let node = Node::unstarted();
    node.must(&["up", "--nsd-size", "1G"]);
    fs::write(node.path("old"), "kept").unwrap();
    node
}

/// `shale cluster create`, with these folders instead of PATH.
fn create(node: &Node, path: &str, more: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_shale"))
        .args(["cluster", "create", "--dir"])
        .arg(&node.dir)
        .args(more)
        .env("PATH", path)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[test]
fn what_is_wrong_with_a_new_cluster_is_said_before_anything_changes() {
    let node = alone();
    let pid = node.pid();
    let (path, own) = (std::env::var("PATH").unwrap(), address());
    let taken = TcpListener::bind((own.as_str(), 7313)).unwrap();
    for (path, more, part) in [
        (
            &path[..],
            &["--address", "192.0.2.7"][..],
            "doesn't have 192.0.2.7",
        ),
        (&path, &["--address", &own], "port 7313"),
        (
            &path,
            &["--address", &own, "--name", "rack1/n1"],
            "rack1/n1",
        ),
        ("/nonexistent", &["--address", &own], "isn't installed"),
        (
            &path,
            &["--address", &own, "--etcd", "https://127.0.0.1:9"],
            "--etcd-ca",
        ),
        (
            &path,
            &["--address", &own, "--etcd", "http://127.0.0.1:9"],
            "asking the etcd",
        ),
    ] {
        let output = create(&node, path, more);
        assert!(refused(&output).contains(part), "{more:?}: {output:?}");
    }
    drop(taken);
    assert_eq!(node.pid(), pid);
    let nothing = create(&node, &path, &["--undo"]);
    assert!(nothing.status.success(), "{nothing:?}");
    assert_eq!(fs::read_to_string(node.path("old")).unwrap(), "kept");
}

/// Starts the node again with a daemon that looks for programs in these folders.
fn up_with(node: &Node, path: &str) {
    node.must(&["down"]);
    let up = Command::new(env!("CARGO_BIN_EXE_shale"))
        .args(["up", "--dir"])
        .arg(&node.dir)
        .env("PATH", path)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(up.status.success(), "{up:?}");
}

/// An attempt whose etcd doesn't start; it ends as if the machine had been switched off.
fn fail(node: &Node, address: &str) {
    let folder = node.place("programs");
    let etcd = folder.join("etcd");
    fs::write(&etcd, "#!/bin/sh\nexit 1\n").unwrap();
    fs::set_permissions(&etcd, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    up_with(node, &path);
    let more = ["--address", address, "--name", "wrong"];
    let output = std::thread::scope(|scope| {
        let attempt = scope.spawn(|| create(node, &path, &more));
        let daemon = || daemon_of(&node.dir);
        eventually("the daemon waits for etcd", || {
            attempt.is_finished() || daemon().is_some() && is_founding(&node.dir)
        });
        if let Some(daemon) = daemon() {
            kill_process(Pid::from_raw(daemon).unwrap(), Signal::KILL).unwrap();
        }
        attempt.join().unwrap()
    });
    assert!(refused(&output).contains("--undo"), "{output:?}");
}

fn is_founding(dir: &Path) -> bool {
    let toml = fs::read_to_string(dir.join("node.toml")).unwrap_or_default();
    toml.contains("founding = true")
}

/// The daemon that has the directory's lock, if it isn't the command.
fn daemon_of(dir: &Path) -> Option<i32> {
    let pid: i32 = fs::read_to_string(dir.join("daemon.lock"))
        .ok()?
        .trim()
        .parse()
        .ok()?;
    let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
    line.contains("\0daemon\0").then_some(pid)
}

/// Would be broken if a cluster that can't be made cost programs anything, or left something behind.
#[test]
fn a_node_whose_daemon_finds_no_etcd_stays_as_it_was() {
    let node = alone();
    up_with(&node, "/nonexistent");
    let (pid, path) = (node.pid(), std::env::var("PATH").unwrap());
    let held = fs::File::open(node.path("old")).unwrap();
    // The command finds one.
    let attempt = create(&node, &path, &["--address", &address()]);
    let said = refused(&attempt);
    assert!(said.contains("isn't installed"), "{said}");
    assert!(said.contains("the node stays as it was"), "{said}");
    assert_eq!(node.pid(), pid);
    assert_eq!(std::io::read_to_string(&held).unwrap(), "kept");
    assert!(!node.dir.join("keys").exists() && !node.dir.join("etcd").exists());
    assert!(!is_founding(&node.dir));
    assert!(node.ask(&["status"])["cluster"].is_null());
    fs::write(node.path("new"), "written").unwrap();
    drop(held);
    up_with(&node, &path);
    assert!(node.ask(&["status"])["cluster"].is_null());
    assert_eq!(fs::read_to_string(node.path("new")).unwrap(), "written");
}

#[test]
fn an_attempt_that_failed_is_made_again_in_another_way_or_taken_back() {
    let node = alone();
    fail(&node, &address());
    let undone = node.must(&["cluster", "create", "--undo"]);
    assert!(undone.contains("alone again"), "{undone}");
    assert!(!node.dir.join("keys").exists());
    node.must(&["up"]);
    assert!(node.ask(&["status"])["cluster"].is_null());
    assert_eq!(fs::read_to_string(node.path("old")).unwrap(), "kept");
    fs::remove_dir_all(node.dir.with_file_name("programs")).unwrap();
    fail(&node, &address());
    // Another address, another name: etcd's certificate is for the new one, or its clients would refuse it.
    let net = free_net();
    let mut cluster = Cluster {
        nodes: vec![node],
        net,
    };
    let address = cluster.address(1);
    let one = cluster.node(1);
    one.must(&[
        "cluster",
        "create",
        "--address",
        &address,
        "--name",
        "right",
    ]);
    assert_eq!(one.ask(&["status"])["cluster"]["name"], "right");
    assert_eq!(fs::read_to_string(one.path("old")).unwrap(), "kept");
    let late = one.run(&["cluster", "create", "--undo"]);
    assert!(refused(&late).contains("already"), "{late:?}");
    cluster.join(false);
    assert_eq!(fs::read_to_string(cluster.path(2, "old")).unwrap(), "kept");
}

/// Would be broken if a move to etcd that broke off anywhere left two stores that both go on, or none.
#[test]
fn a_cluster_whose_daemon_dies_while_it_is_made_is_made_by_the_next_one() {
    let mut cluster = Cluster {
        nodes: vec![alone()],
        net: free_net(),
    };
    let (one, address) = (cluster.node(1), cluster.address(1));
    one.must(&["fs", "sync"]);
    let path = std::env::var("PATH").unwrap();
    let wal = one.dir.join("etcd/member/wal");
    let is_free = |port: u16| TcpListener::bind((address.as_str(), port)).is_ok();
    let stages: [&dyn Fn() -> bool; 3] = [&|| is_founding(&one.dir), &|| wal.exists(), &|| {
        TcpStream::connect((address.as_str(), 7312)).is_ok()
    }];
    for is_so_far in stages {
        std::thread::scope(|scope| {
            let attempt = scope.spawn(|| create(one, &path, &["--address", &address]));
            let daemon = || daemon_of(&one.dir);
            eventually("the attempt is so far", || {
                attempt.is_finished() || daemon().is_some() && is_so_far()
            });
            if let Some(daemon) = daemon() {
                let _ = kill_process(Pid::from_raw(daemon).unwrap(), Signal::KILL);
            }
            // It may be through, or was before.
            let _made_or_not = attempt.join().unwrap();
        });
        eventually("its etcd is gone with it", || (7311..=7313).all(is_free));
    }
    match is_founding(&one.dir) {
        true => one.must(&["cluster", "create", "--address", &address]),
        false => one.must(&["up"]),
    };
    assert_eq!(one.ask(&["status"])["cluster"]["node"], 1);
    assert_eq!(cluster.view(1)["nodes"].as_array().unwrap().len(), 1);
    assert!(!one.dir.join("coordination.region").exists());
    cluster.join(false);
    assert_eq!(fs::read_to_string(cluster.path(2, "old")).unwrap(), "kept");
}

#[test]
fn two_commands_that_make_a_cluster_of_one_node_make_one() {
    let node = alone();
    let address = address();
    let attempt = || node.run(&["cluster", "create", "--address", &address]);
    let outputs = std::thread::scope(|scope| {
        let both = [scope.spawn(attempt), scope.spawn(attempt)];
        both.map(|one| one.join().unwrap())
    });
    let done = outputs.iter().filter(|it| it.status.success()).count();
    assert!(done >= 1, "{outputs:?}");
    assert!(refused(&attempt()).contains("already"));
    assert_eq!(node.ask(&["status"])["cluster"]["node"], 1);
    assert_eq!(fs::read_to_string(node.path("old")).unwrap(), "kept");
}
