//! What `shale lab` does to nodes, on a lab that has a network and no daemons.

use super::fixture::Lab;
use std::fs;

/// A lab whose first node refused its NSD: there is a network, and nothing runs in it.
fn empty_lab(nodes: u32) -> Option<Lab> {
    let lab = Lab::unmade()?;
    let failed = lab.run(&["up", "--nodes", &nodes.to_string(), "--nsd-size", "1M"]);
    failed.refused_with(&["at least 512M"]);
    for node in 1..=nodes {
        fs::create_dir_all(lab.node(node)).unwrap();
    }
    Some(lab)
}

#[test]
fn a_command_on_a_node_runs_in_its_network_as_its_user_wants() {
    let Some(lab) = empty_lab(2) else { return };
    let own = lab.exec(1, &["ip", "-brief", "address", "show", "eth0"]);
    assert!(own.contains("10.83.0.1/24"), "{own}");
    let shell = |line: &str| lab.run(&["exec", "n1", "--", "sh", "-c", line]);
    assert_eq!(shell("exit 7").code, 7);
    let said = shell("echo $SHALE_DIR; pwd; umask");
    let here = lab.node(1).display().to_string();
    let lines: Vec<_> = said.text.lines().collect();
    assert_eq!(
        lines[..2],
        [&here, &here],
        "without a mount it is the node's directory"
    );
    let own = std::process::Command::new("sh")
        .args(["-c", "umask"])
        .output()
        .unwrap();
    assert_eq!(lines[2], String::from_utf8_lossy(&own.stdout).trim());
    let missing = lab.run(&["exec", "1", "--", "there-is-no-such-program"]);
    missing.refused_with(&["running there-is-no-such-program on n1"]);
}

#[test]
fn partitions_are_shown_until_they_are_healed() {
    let Some(lab) = empty_lab(4) else { return };
    let cut_off = |node| lab.state(node)["cut_off_with"].clone();
    lab.must(&["partition", "n1", "n3"]);
    assert_eq!(cut_off(1), serde_json::json!(["n3"]));
    assert!(cut_off(2).is_null());
    lab.must(&["partition", "4"]);
    assert_eq!(cut_off(4), serde_json::json!([]));
    let table = lab.must(&["status"]);
    assert!(table.contains("cut off with n1"), "{table}");
    let healed = lab.must(&["heal", "n2", "n3"]);
    assert!(healed.contains("n3: back"), "{healed}");
    assert_eq!(cut_off(1), serde_json::json!([]));
    lab.must(&["heal"]);
    assert!((1..=4).all(|node| cut_off(node).is_null()));
    let none = lab.must(&["heal"]);
    assert!(none.contains("none"), "{none}");
}

#[test]
fn slow_disks_are_shown_until_they_are_quick_again() {
    let Some(lab) = empty_lab(2) else { return };
    lab.must(&["slow-disk", "n2", "--read-mbit", "80", "--latency-ms", "5"]);
    assert_eq!(
        lab.state(2)["slow_disk"],
        serde_json::json!({"read_mbit": 80, "latency_ms": 5})
    );
    assert!(lab.state(1)["slow_disk"].is_null());
    lab.must(&["slow-disk", "n2", "--write-mbit", "8"]);
    assert_eq!(
        lab.state(2)["slow_disk"],
        serde_json::json!({"write_mbit": 8})
    );
    let file = fs::read_to_string(lab.dir.join("n2.faults")).unwrap();
    assert_eq!(file, "write_mbit = 8\n");
    lab.must(&["slow-disk", "n1", "n2", "--off"]);
    assert!(lab.state(2)["slow_disk"].is_null());
}

#[test]
fn everything_on_a_node_ends_with_the_lab() {
    let Some(lab) = empty_lab(2) else { return };
    let line = "setsid sleep 100000 > /dev/null 2>&1 & echo $!";
    let left = lab.exec(2, &["sh", "-c", line]);
    let comm = format!("/proc/{}/comm", left.trim());
    assert!(fs::read_to_string(&comm).is_ok());
    let said = lab.must(&["down"]);
    assert!(said.contains("1 processes killed"), "{said}");
    let now = fs::read_to_string(&comm).unwrap_or_default();
    let stat = fs::read_to_string(comm.replace("comm", "stat")).unwrap_or_default();
    assert!(now.is_empty() || stat.contains(") Z "), "{now}");
}
