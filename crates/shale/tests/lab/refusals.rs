//! What `shale lab` refuses, and what is left when it fails half-way.

use super::fixture::Lab;
use crate::fixture::bounded;
use std::{fs, process::Command};

/// The namespaces of the lab in a directory, and what is mounted in it.
fn traces(lab: &Lab) -> (usize, usize) {
    let namespaces = bounded::run(Command::new("ip").args(["netns", "list"]));
    // A lab's namespaces are named after its directory, by a number that only it knows.
    let record = fs::read_to_string(lab.dir.join("lab.toml")).unwrap_or_default();
    let id = record.split('"').nth(1).unwrap_or("none").to_owned();
    let names = namespaces.text.lines().filter(|line| line.contains(&id));
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let dir = lab.dir.to_str().unwrap();
    let mounts = mounts.lines().filter(|line| line.contains(dir));
    (names.count(), mounts.count())
}

#[test]
fn a_lab_that_fails_half_way_says_why_and_can_be_removed() {
    let Some(lab) = Lab::unmade() else { return };
    // The network is there by then; the first node refuses.
    let failed = lab.run(&["up", "--nodes", "2", "--nsd-size", "1M"]);
    let words = [
        "on n1: `shale up",
        "at least 512M",
        "daemon.log",
        "lab down --purge",
    ];
    failed.refused_with(&words);
    assert_eq!(traces(&lab), (3, 0), "left for a look at it");
    let status = lab.must(&["status"]);
    assert!(
        status.contains("never finished") && status.contains("dead"),
        "{status}"
    );
    lab.run(&["up"])
        .refused_with(&["never finished", "--purge"]);

    lab.must(&["down"]);
    assert_eq!(traces(&lab), (0, 0));
    assert!(
        lab.dir.join("lab.toml").exists(),
        "data stays unless it is to go"
    );
    let said = lab.must(&["down", "--purge"]);
    assert!(said.contains("removed"), "{said}");
    assert!(!lab.dir.exists());
    lab.must(&["down", "--purge"]);
}

#[test]
fn a_network_that_outlived_its_lab_is_removed_by_the_next_one() {
    let Some(lab) = Lab::unmade() else { return };
    let make = || lab.run(&["up", "--nodes", "1", "--nsd-size", "1M"]);
    make().refused_with(&["at least 512M"]);
    let before = traces(&lab);
    fs::remove_dir_all(&lab.dir).unwrap();
    // As before: the same names are free again.
    make().refused_with(&["at least 512M"]);
    assert_eq!(traces(&lab), before);
    // Without the record the path alone says which names are the lab's.
    let record = fs::read_to_string(lab.dir.join("lab.toml")).unwrap();
    fs::remove_dir_all(&lab.dir).unwrap();
    lab.must(&["down"]);
    fs::create_dir(&lab.dir).unwrap();
    fs::write(lab.dir.join("lab.toml"), record).unwrap();
    assert_eq!(traces(&lab), (0, 0));
}

#[test]
fn what_a_lab_cant_be_made_of_is_refused_before_anything_is_made() {
    let Some(lab) = Lab::unmade() else { return };
    lab.run(&["up"]).refused_with(&["--nodes"]);
    let wide = ["up", "--nodes", "5", "--scheme", "erasure(4+2)"];
    lab.run(&wide).refused_with(&["needs 6 NSDs"]);
    let large = ["up", "--nodes", "3", "--nsd-size", "1000T"];
    lab.run(&large).refused_with(&["3 NSDs of", "--nsd-size"]);
    for wrong in [
        &["up", "--nodes", "0"][..],
        &["up", "--nodes", "17"],
        &["exec", "n1"],
        &["kill"],
        &["slow-disk", "n1"],
        &["slow-disk", "n1", "--off", "--latency-ms", "3"],
    ] {
        assert_eq!(lab.run(wrong).code, 2, "{wrong:?}");
    }
    assert_eq!(traces(&lab), (0, 0));

    let _ = fs::remove_dir_all(&lab.dir);
    fs::create_dir(&lab.dir).unwrap();
    fs::write(lab.dir.join("precious"), "words").unwrap();
    lab.run(&["up", "--nodes", "1"])
        .refused_with(&["precious", "another --dir"]);
    lab.must(&["down", "--purge"]);
    assert!(lab.dir.join("precious").exists());
}

#[test]
fn commands_on_a_lab_that_isnt_there_or_isnt_up_say_so() {
    let Some(lab) = Lab::unmade() else { return };
    for command in [
        &["status"][..],
        &["kill", "n1"],
        &["stop", "1"],
        &["start", "1"],
        &["partition", "1"],
        &["heal"],
        &["slow-disk", "1", "--off"],
        &["exec", "1", "--", "true"],
    ] {
        lab.run(command)
            .refused_with(&["there is no lab in", "lab up"]);
    }
    let failed = lab.run(&["up", "--nodes", "2", "--nsd-size", "1M"]);
    failed.refused_with(&["at least 512M"]);
    lab.run(&["kill", "n3"])
        .refused_with(&["no node n3", "n1 to n2"]);
    lab.run(&["exec", "n0", "--", "true"])
        .refused_with(&["n1 to n16"]);
    lab.run(&["stop", "n1"]).refused_with(&["n1 is dead"]);
    lab.run(&["partition", "n1", "2"])
        .refused_with(&["all nodes"]);
    let dead = lab.must(&["kill", "n1"]);
    assert!(dead.contains("n1: dead already"), "{dead}");
    lab.must(&["down"]);
    for command in [&["kill", "n1"][..], &["heal"], &["exec", "1", "--", "true"]] {
        lab.run(command).refused_with(&["is down", "lab up"]);
    }
}
