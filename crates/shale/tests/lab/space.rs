//! The NSD of one node is full: data goes to the others until they are full too, then it is refused; nothing is lost,
//! and space comes back.

use super::{
    faults::{tells, until_well, until_whole},
    fixture::Lab,
};
use crate::fixture::pattern;
use sim::by_suite;
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read, Write},
};

/// Bytes of a file.
const BYTES: usize = 32 << 20;
/// A 16th of an NSD's bytes is kept for what the cluster itself writes. With less than this free, the pieces of another
/// file don't all fit.
const FULL_PERCENT: u64 = 10;
/// Of those of the others more is free then: they are twice as large.
const ROOM_PERCENT: u64 = 30;
/// How many nodes there are, ...
const NODES: u32 = 3;
/// ... and the one with the small NSD.
const SMALL: u32 = 3;
/// Files that fill the small NSD have twice its bytes, and it has less than 16 files'.
const FILES_MAX: u64 = 40;
/// The rest of the pool is filled in writes of so many bytes, ...
const STEP: usize = 1 << 20;
/// ... and all NSDs have fewer than that.
const REST_MAX: usize = 3 << 30;

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

/// The number of a node's only NSD.
fn nsd_of(lab: &Lab, node: u32) -> u64 {
    let nsds = lab.ask(node, &["nsd", "list"]);
    let mut lines = nsds.as_array().expect("NSDs are listed").iter();
    let line = lines.find(|line| line["node"] == node);
    line.and_then(|line| line["nsd"].as_u64())
        .expect("it has one")
}

fn name_of(number: u64) -> String {
    format!("file{number}")
}

/// Writes and syncs a file. One that can't be written whole is removed again; only `write` may refuse it.
fn write(lab: &Lab, node: u32, number: u64) -> io::Result<()> {
    let path = lab.path(node, &name_of(number));
    let write = || -> io::Result<()> {
        let mut file = File::create(&path)?;
        file.write_all(&pattern(number, BYTES))?;
        file.sync_all().expect("what write has accepted is stored");
        Ok(())
    };
    let written = write();
    if written.is_err() && path.exists() {
        fs::remove_file(&path).unwrap();
    }
    written
}

/// The name of the file with which a node fills the pool.
fn rest_of(node: u32) -> String {
    format!("rest{node}")
}

/// Writes until the pool is full; returns how many bytes were accepted. They can be stored.
fn fill(file: &mut File, node: u32) -> usize {
    let bytes = pattern(u64::from(node), STEP);
    let mut taken = 0;
    loop {
        assert!(taken < REST_MAX, "n{node} is never refused");
        match file.write(&bytes[taken % STEP..]) {
            Ok(more) => taken += more,
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::StorageFull, "n{node}: {error}");
                file.sync_all().expect("what write has accepted is stored");
                return taken;
            }
        }
    }
}

/// Whether a node says of something that it is full, or nearly, and what helps.
fn tells_full(lab: &Lab, node: u32, subject: &str) -> Result<(), String> {
    tells(lab, node, [subject, "full", "delete files"])
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

/// What a node has filled the pool with is as it was accepted, on another node.
#[track_caller]
fn rest_must_be_seen(lab: &Lab, node: u32, length: usize) {
    let bytes = pattern(u64::from(node), STEP);
    let another = node % NODES + 1;
    let mut file = File::open(lab.path(another, &rest_of(node))).unwrap();
    let mut found = Vec::with_capacity(STEP);
    for from in (0..length).step_by(STEP) {
        found.clear();
        let mut part = (&mut file).take(STEP as u64);
        part.read_to_end(&mut found).unwrap();
        let expected = &bytes[..STEP.min(length - from)];
        assert!(found == expected, "of n{node} on n{another}, at {from}");
    }
    assert_eq!(file.metadata().unwrap().len(), length as u64, "n{node}");
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
            &[shale, "nsd", "add", "--node", node, "--nsd-size", "512M"],
        );
    }
    until_whole(&lab);
    let small = nsd_of(&lab, SMALL);

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
    // Segments get narrower where the full one had a piece, a data and a parity piece on the others: all writes go on.
    for node in 1..=NODES {
        let written = write(&lab, node, next);
        assert!(written.is_ok(), "n{node}, n{SMALL} is full: {written:?}");
        files.insert(next, node);
        next += 1;
    }
    lab.until("the node says that its NSD is full", || {
        tells_full(&lab, SMALL, &format!("NSD {small} "))
    });

    // With only one failure group that has room, or none, there is no place for redundancy: ENOSPC on each node.
    let rests = (1..=NODES).map(|node| File::create(lab.path(node, &rest_of(node))).unwrap());
    let mut rests: Vec<File> = rests.collect();
    let mut accepted = Vec::new();
    for (node, file) in (1..).zip(&mut rests) {
        accepted.push(fill(file, node));
    }
    drop(rests);
    let all: usize = accepted.iter().sum();
    assert!(all > BYTES, "{all} bytes fit where n{SMALL} has no room");
    for node in 1..=NODES {
        lab.until("a node says that the pool is full", || {
            tells_full(&lab, node, "space")
        });
    }
    for (node, length) in (1..).zip(accepted) {
        rest_must_be_seen(&lab, node, length);
    }
    must_be_seen(&lab, &files, 1);

    // That goes, with every other file, through the node that was full first; writes go on by themselves.
    for node in 1..=NODES {
        fs::remove_file(lab.path(SMALL, &rest_of(node))).unwrap();
    }
    let gone: Vec<u64> = files.keys().copied().step_by(2).collect();
    for number in gone {
        fs::remove_file(lab.path(SMALL, &name_of(number))).unwrap();
        files.remove(&number);
    }
    for node in 1..=NODES {
        lab.until("there is room again", || {
            let written = write(&lab, node, next);
            written.map_err(|error| {
                assert_eq!(error.kind(), io::ErrorKind::StorageFull, "n{node}: {error}");
                error.to_string()
            })
        });
        files.insert(next, node);
        next += 1;
    }
    lab.until("the small NSD has room again", || {
        let free = free_percent(&lab, SMALL);
        (free > ROOM_PERCENT)
            .then_some(())
            .ok_or_else(|| format!("{free} %"))
    });
    until_whole(&lab);
    must_be_seen(&lab, &files, 2);
    for node in 1..=NODES {
        let listed = fs::read_dir(lab.path(node, "")).unwrap().count();
        assert_eq!(listed, files.len(), "on n{node}");
    }
    until_well(&lab);
}
