//! Machines that become nodes, and those that may not.

use super::{Cluster, expelling::until_kept_out, refused};
use crate::fixture::{
    Node, bounded,
    calendar::{AHEAD, BEHIND, Calendar, HOUR, library},
    eventually, mounted_as, poll, skipped, within_a_minute,
};
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

/// How often a machine is refused: one line of log for each is the most.
const REFUSALS: usize = 3;
/// A daemon with another calendar takes it within seconds, and a machine is refused until then.
const PATIENCE: Duration = Duration::from_secs(120);

/// Whether a daemon that refuses a machine has said so, and why.
fn is_told(cluster: &Cluster, number: usize, why: &str) -> bool {
    let log = fs::read_to_string(cluster.node(number).dir.join("daemon.log")).unwrap();
    let admission = format!("a machine wasn't admitted: {why}");
    let is_line =
        |line: &str| line.contains("a connection was refused") && line.contains(&admission);
    log.lines().any(is_line)
}

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
    eventually("it is told of", || {
        is_told(&cluster, 1, "the join token was used")
    });
    let log = fs::read_to_string(cluster.node(1).dir.join("daemon.log")).unwrap();
    let lines = log.matches("a machine wasn't admitted").count();
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

/// By how much the only node's calendar is ahead of the machine's. A node that is alone with the file system dates what is made
/// through its mount.
fn ahead(cluster: &Cluster) -> Duration {
    let path = cluster.path(1, "dated");
    fs::create_dir(&path).unwrap();
    let made = fs::metadata(&path).unwrap().modified().unwrap();
    fs::remove_dir(&path).unwrap();
    made.duration_since(SystemTime::now()).unwrap_or_default()
}

/// Would be broken if a node admitted whoever has a token that was ever made: nobody waits here, but by the calendar of the node
/// that admits machines the token is an hour old, and then it isn't.
#[test]
fn a_token_that_is_older_than_five_minutes_lets_no_machine_in() {
    let Some(library) = library() else {
        let test = std::thread::current()
            .name()
            .unwrap_or("joining")
            .to_owned();
        skipped(&test, "libfaketime isn't installed");
        return;
    };
    let mut cluster = Cluster::founded();
    let mut calendar = Calendar::right(cluster.node(1).place("calendar").join("offset"));
    cluster.node(1).must(&["down"]);
    let mut up = Command::new("env");
    up.args(calendar.variables(&library))
        .args([env!("CARGO_BIN_EXE_shale"), "up", "--dir"])
        .arg(&cluster.node(1).dir);
    let ended = bounded::run(&mut up);
    assert_eq!(ended.code, 0, "{}", ended.text);
    calendar.note_daemon(cluster.node(1).pid());

    let hour = Duration::from_secs(HOUR);
    let token = cluster.token();
    calendar.set(AHEAD);
    eventually("its calendar is ahead", || ahead(&cluster) > hour);
    let (machine, output) = cluster.try_to_join(&token, false, &["--nsds", "0"]);
    let why = refused(&output);
    let is_over = "the join token's time is over";
    for words in [is_over, "make another one with `shale cluster join-token`"] {
        assert!(why.contains(words), "{why}");
    }
    eventually("it is told of", || is_told(&cluster, 1, is_over));
    assert!(!machine.dir.join("node.toml").exists());
    let nodes = cluster.view(1)["nodes"].clone();
    assert_eq!(nodes.as_array().map(Vec::len), Some(1), "{nodes}");

    // It is young again, however long all that took, and wasn't used up: nothing else was wrong with it.
    calendar.set(BEHIND);
    poll::until("it is let in", PATIENCE, || {
        let joined = cluster.try_to_be(&machine, 2, &token, false, &["--nsds", "0"]);
        let said = String::from_utf8_lossy(&joined.stderr).into_owned();
        joined.status.success().then_some(()).ok_or(said)
    });
    cluster.nodes.push(machine);
    fs::write(cluster.path(1, "a"), "seen").unwrap();
    assert_eq!(fs::read_to_string(cluster.path(2, "a")).unwrap(), "seen");
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
    until_kept_out(&cluster, 2);
    let why = refused(&two.run(&["up"]));
    assert!(why.contains("unexpel"), "{why}");
    // What refuses can be unmounted.
    two.must(&["umount", two.mnt.to_str().unwrap()]);
    assert_eq!(mounted_as(&two.mnt), None);
    two.must(&["down"]);
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
