//! The NSD of one node is full: data goes elsewhere or is refused, nothing is lost, and space comes back.

use super::{
    faults::{until_well, until_whole},
    fixture::Lab,
};
use crate::fixture::pattern;
use sim::by_suite;
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Write},
};

/// Bytes of a file.
const BYTES: usize = 32 << 20;
/// Of an NSD's bytes 5 % are kept for what the cluster itself writes; a piece may not fit into a little more.
const FULL_PERCENT: u64 = 10;
/// Of those of the others so much is free then: they are three times as large.
const ROOM_PERCENT: u64 = 30;
/// How many nodes there are, ...
const NODES: u32 = 3;
/// ... and the one with the small NSD.
const SMALL: u32 = 3;
/// Files that fill the small NSD have twice its bytes, and it has less than 16 files'.
const FILES_MAX: u64 = 40;

/// How much of what a node's NSDs have is free, in percent.
fn free_percent(lab: &Lab, node: u32) -> u64 {
    let nsds = lab.ask(node, &["nsd", "list"]);
    let lines = nsds.as_array().expect("NSDs are listed").iter();
    let (mut capacity, mut used) = (0, 0);
    for nsd in lines.filter(|nsd| nsd["node"] == node) {
        capacity += nsd["capacity"].as_u64().unwrap();
        used += nsd["used"].as_u64().unwrap();
    }
    (capacity - used) * 100 / capacity
}

fn name_of(number: u64) -> String {
    format!("file{number}")
}

/// Writes and syncs a file; one that can't be written whole is removed again.
fn write(lab: &Lab, node: u32, number: u64) -> io::Result<()> {
    let path = lab.path(node, &name_of(number));
    let write = || {
        let mut file = File::create(&path)?;
        file.write_all(&pattern(number, BYTES))?;
        file.sync_all()
    };
    let written = write();
    if written.is_err() && path.exists() {
        fs::remove_file(&path).unwrap();
    }
    written
}

/// Each file is as it was written, on a node so many after the one that has written it; in a long run on all nodes.
/// `files`: which node has written each.
#[track_caller]
fn must_be_seen(lab: &Lab, files: &BTreeMap<u64, u32>, after: u32) {
    for (number, writer) in files {
        let bytes = pattern(*number, BYTES);
        let another = (writer - 1 + after) % NODES + 1;
        for node in by_suite(another..=another, 1..=NODES) {
            let found = fs::read(lab.path(node, &name_of(*number))).unwrap();
            assert!(found == bytes, "file{number} of n{writer} on n{node}");
        }
    }
}

#[test]
fn a_full_nsd_on_one_node_loses_nothing_and_deleting_makes_room() {
    let all = ["--nodes", "3", "--scheme", "erasure(2+1)"];
    let Some(lab) = Lab::with(&[&all[..], &["--nsd-size", "512M"]].concat()) else {
        return;
    };
    let shale = env!("CARGO_BIN_EXE_shale");
    for node in ["n1", "n2"] {
        lab.exec(
            1,
            &[shale, "nsd", "add", "--node", node, "--nsd-size", "1G"],
        );
    }
    until_whole(&lab);

    let (mut files, mut next) = (BTreeMap::new(), 0);
    while free_percent(&lab, SMALL) >= FULL_PERCENT {
        assert!(next < FILES_MAX, "n{SMALL} is never full");
        let node = 1 + next as u32 % NODES;
        write(&lab, node, next).unwrap();
        files.insert(next, node);
        next += 1;
    }
    for node in [1, 2] {
        let free = free_percent(&lab, node);
        assert!(free > ROOM_PERCENT, "{free} % of n{node} are free");
    }
    // Each piece of a segment is on another node, and there are three: one of the pieces has no place now.
    for node in 1..=NODES {
        match write(&lab, node, next) {
            Ok(()) => {
                files.insert(next, node);
            }
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{error}"),
        }
        next += 1;
    }
    must_be_seen(&lab, &files, 1);

    // Every other one goes, through the node that is full.
    let gone: Vec<u64> = files.keys().copied().step_by(2).collect();
    for number in gone {
        fs::remove_file(lab.path(SMALL, &name_of(number))).unwrap();
        files.remove(&number);
    }
    lab.until("there is room again", || {
        let free = free_percent(&lab, SMALL);
        (free > ROOM_PERCENT)
            .then_some(())
            .ok_or_else(|| format!("{free} %"))
    });
    for node in 1..=NODES {
        write(&lab, node, next).unwrap();
        files.insert(next, node);
        next += 1;
    }
    until_whole(&lab);
    must_be_seen(&lab, &files, 2);
    for node in 1..=NODES {
        let listed = fs::read_dir(lab.path(node, "")).unwrap().count();
        assert_eq!(listed, files.len(), "on n{node}");
    }
    until_well(&lab);
}
