//! Machines that become nodes, and those that may not.

use super::{Cluster, refused};
use crate::fixture::{Node, eventually, within_a_minute};
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

/// How often a machine is refused: one line of log for each is the most.
const REFUSALS: usize = 3;

#[test]
fn a_token_is_good_for_one_machine_of_its_own_cluster() {
    let mut cluster = Cluster::founded();
    let token = cluster.token();
    let (joined, output) = cluster.try_to_join(&token, false, &[]);
    assert!(output.status.success(), "{output:?}");
    cluster.nodes.push(joined);
    // Used.
    let (second, output) = cluster.try_to_join(&token, false, &[]);
    let why = refused(&output);
    assert!(why.contains("used by another machine"), "{why}");
    assert!(!second.dir.join("node.toml").exists());
    // Would be broken if somebody without a token could fill the log, and others' lines were left out.
    for _ in 1..REFUSALS {
        refused(&cluster.try_to_be(&second, 3, &token, false, &[]));
    }
    let log = || fs::read_to_string(cluster.node(1).dir.join("daemon.log")).unwrap();
    let admission = "a machine wasn't admitted: the join token was used";
    let is_told =
        |line: &str| line.contains("a connection was refused") && line.contains(admission);
    eventually("it is told of", || log().lines().any(is_told));
    let lines = log().matches("a machine wasn't admitted").count();
    assert!(lines <= REFUSALS, "{lines}");
    // Mistyped: a letter is another one.
    let fresh = cluster.token();
    let mut wrong: Vec<char> = fresh.chars().collect();
    let last = wrong.len() - 3;
    wrong[last] = if wrong[last] == '0' { '1' } else { '0' };
    let wrong: String = wrong.into_iter().collect();
    let (_, output) = cluster.try_to_join(&wrong, false, &[]);
    refused(&output);
    let (_, output) = cluster.try_to_join("nonsense", false, &[]);
    refused(&output);
    // The directory that was refused joins with a good token.
    let arguments = [
        "node",
        "join",
        &fresh,
        "--address",
        &cluster.address(3),
        "--nsds",
        "0",
    ];
    second.must(&arguments);
    fs::write(cluster.path(1, "a"), "seen").unwrap();
    assert_eq!(fs::read_to_string(second.path("a")).unwrap(), "seen");
    cluster.nodes.push(second);
    // A node that is alone has no tokens, and a node of a cluster makes no other one.
    let alone = Node::unstarted();
    alone.must(&["up", "--nsd-size", "1G"]);
    let why = refused(&alone.run(&["cluster", "join-token"]));
    assert!(why.contains("shale cluster create"), "{why}");
    let again = cluster
        .node(1)
        .run(&["cluster", "create", "--address", "127.0.0.1"]);
    assert!(refused(&again).contains("already"), "{again:?}");
    let address = cluster.address(9);
    let why = refused(&alone.run(&["node", "join", &cluster.token(), "--address", &address]));
    assert!(why.contains("file system of its own"), "{why}");
    // Secrets are its owner's alone.
    for number in 1..=3 {
        use std::os::unix::fs::PermissionsExt;
        let keys = cluster.node(number).dir.join("keys");
        assert_eq!(keys.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        let key = keys.join("node.key").metadata().unwrap();
        assert_eq!(key.permissions().mode() & 0o777, 0o600);
        let has_authority = keys.join("authority.key").exists();
        assert_eq!(has_authority, number == 1, "only quorum nodes have it");
    }
}

#[test]
fn the_token_says_whether_a_machine_becomes_a_quorum_node() {
    let mut cluster = Cluster::founded();
    let (plain, quorum) = (cluster.token(), cluster.token_for(true));
    let (node, output) = cluster.try_to_join(&plain, true, &["--nsds", "0"]);
    assert!(
        refused(&output).contains("join-token --quorum"),
        "{output:?}"
    );
    assert!(!node.dir.join("keys/authority.key").exists());
    let again = cluster.try_to_be(&node, 2, &quorum, false, &["--nsds", "0"]);
    assert!(refused(&again).contains("with --quorum"), "{again:?}");
    assert!(!node.dir.join("keys/authority.key").exists());
    // Neither token is used up, and it is the same machine.
    let joined = cluster.try_to_be(&node, 2, &quorum, true, &["--nsds", "0"]);
    assert!(joined.status.success(), "{joined:?}");
    assert!(node.dir.join("keys/authority.key").exists());
    cluster.nodes.push(node);
    assert_eq!(cluster.line(1, 2)["quorum"], true);
    // Nobody gets a certificate for the address of another node.
    let other = Node::unstarted();
    let taken = format!("{}:9311", cluster.address(1));
    let output = other.run(&["node", "join", &plain, "--address", &taken]);
    assert!(
        refused(&output).contains("is the address of node 1"),
        "{output:?}"
    );
    // A token needn't be an argument, which all users see.
    let mut join = Command::new(env!("CARGO_BIN_EXE_shale"))
        .args(["node", "join", "-", "--nsds", "0", "--address"])
        .arg(cluster.address(3))
        .arg("--dir")
        .arg(&other.dir)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = join.stdin.take().unwrap();
    input.write_all(plain.as_bytes()).unwrap();
    drop(input);
    assert!(join.wait().unwrap().success());
    assert_eq!(other.ask(&["status"])["cluster"]["name"], "n3");
    cluster.nodes.push(other);
}

#[test]
fn a_node_that_was_expelled_by_hand_comes_back_only_when_it_is_let_in() {
    let cluster = Cluster::of(2);
    let (one, two) = (cluster.node(1), cluster.node(2));
    let own = one.run(&["node", "expel", "1"]);
    assert!(
        refused(&own).contains("not expelled by itself")
            || refused(&own).contains("isn't expelled"),
        "{own:?}"
    );
    fs::write(cluster.path(2, "a"), "written").unwrap();
    one.must(&["node", "expel", "n2"]);
    eventually("its daemon ends", || !two.dir.join("daemon.sock").exists());
    let why = refused(&two.run(&["up"]));
    assert!(why.contains("unexpel"), "{why}");
    // systemd's unit knows by this code that it needn't try again.
    let mut daemon = Command::new(env!("CARGO_BIN_EXE_shale"));
    let (code, said) = within_a_minute(daemon.args(["daemon", "--dir"]).arg(&two.dir));
    assert_eq!(code, 78, "{said}");
    assert_eq!(cluster.line(1, 2)["state"], "barred");
    one.must(&["node", "unexpel", "n2"]);
    two.must(&["up"]);
    assert_eq!(fs::read_to_string(cluster.path(2, "a")).unwrap(), "written");
    eventually("it is a member", || cluster.line(1, 2)["state"] == "up");
}
