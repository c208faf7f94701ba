//! Flipped bits in every structure under a real daemon: right bytes or EIO, never wrong bytes, a
//! panic or a hang; with redundancy they are repaired and reported.

use crate::fixture::{
    Node,
    bounded::{event, must_be_sound, must_not_have_panicked, shale},
    must_run, pattern,
};
use std::{
    fs::{self, File, OpenOptions},
    io::ErrorKind,
    ops::Range,
    os::{fd::AsRawFd, unix::fs::FileExt},
    path::PathBuf,
};

const BLOCK: u64 = 4096;
const FILES: u64 = 24;
/// Offset in a copy of the coordination state.
const VERSION_AT: u64 = 16;

fn content(number: u64) -> Vec<u8> {
    pattern(number, [100, 3_000, 20_000, 400_000][number as usize % 4])
}

/// A node with files in log, packs, tables and segments, stopped by `kill -9` or normally.
fn populated(options: &[&str], kill: bool) -> Node {
    let node = Node::with(&[options, &["--nsd-size", "512M"]].concat());
    for number in 0..FILES {
        fs::write(node.path(&number.to_string()), content(number)).unwrap();
    }
    node.must(&["fs", "sync"]);
    if kill {
        node.kill();
    } else {
        node.must(&["down"]);
    }
    node
}

fn region(node: &Node) -> PathBuf {
    node.dir.join("nsd/1.region")
}

/// The parts of a region, according to its superblock.
fn parts(region: &File) -> [(&'static str, Range<u64>); 4] {
    let mut block = vec![0; BLOCK as usize];
    let mut at = 0;
    while {
        region.read_exact_at(&mut block, at).unwrap();
        &block[..8] != b"SHALENSD"
    } {
        at += BLOCK;
    }
    let number = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().unwrap());
    let part = |at: usize, unit: u64| number(at)..number(at) + number(at + 8) * unit;
    [
        ("superblock", 0..4 * BLOCK),
        ("journal", part(88, 1)),
        ("index", part(104, 1)),
        ("data", part(120, BLOCK)),
    ]
}

/// Offsets of the non-empty blocks in a part.
fn used(region: &File, part: &Range<u64>) -> Vec<u64> {
    let mut found = Vec::new();
    let mut block = vec![0; BLOCK as usize];
    let mut at = part.start;
    while at < part.end {
        // SAFETY: lseek takes a descriptor that `region` keeps open, and no memory.
        let next = unsafe { libc::lseek(region.as_raw_fd(), at as i64, libc::SEEK_DATA) };
        if next < 0 || next as u64 >= part.end {
            break;
        }
        at = (next as u64).max(at) / BLOCK * BLOCK;
        region.read_exact_at(&mut block, at).unwrap();
        if block.iter().any(|byte| *byte != 0) {
            found.push(at);
        }
        at += BLOCK;
    }
    found
}

fn flip(region: &File, block: u64, seed: u64) {
    flip_at(
        region,
        block + (block / BLOCK * 977 + seed * 131) % BLOCK,
        seed % 8,
    );
}

fn flip_at(region: &File, at: u64, bit: u64) {
    let mut byte = [0];
    region.read_exact_at(&mut byte, at).unwrap();
    region.write_all_at(&[byte[0] ^ (1 << bit)], at).unwrap();
}

/// Flips a bit in every `step`-th block in use, and in at least one.
fn flip_some(region: &File, part: &Range<u64>, step: usize, seed: u64) {
    let blocks = used(region, part);
    assert!(!blocks.is_empty());
    let first = seed as usize % step.min(blocks.len());
    blocks
        .iter()
        .skip(first)
        .step_by(step)
        .for_each(|block| flip(region, *block, seed));
}

fn open(node: &Node) -> File {
    let options = OpenOptions::new().read(true).write(true).open(region(node));
    options.unwrap()
}

fn copy(node: &Node, from: &str, to: &str) {
    must_run(&node.dir, "cp", &["--sparse=always", "-f", from, to]);
}

#[test]
fn without_redundancy_every_flipped_bit_is_eio_or_a_clear_refusal_and_never_other_bytes() {
    for kill in [false, true] {
        let node = populated(&[], kill);
        copy(&node, "nsd/1.region", "whole.region");
        copy(&node, "coordination.region", "whole.coordination");
        for (index, (name, part)) in parts(&open(&node)).into_iter().enumerate() {
            let step = [2, 3, 5, 7][index];
            let seed = index as u64 + 10 * u64::from(kill);
            flip_some(&open(&node), &part, step, seed);
            let up = shale(&node, &["up"]);
            if up.code == 0 {
                // After a kill, a damaged last group of the journal can't be distinguished from a
                // torn one.
                let torn = kill && name == "journal";
                read_all(&node, if torn { "torn journal" } else { name });
                // Whether they find the damage depends on the bit; each must end with exit code 0
                // or 1.
                for command in [
                    &["nsd", "scrub"][..],
                    &["fs", "check", "--deep"],
                    &["health"],
                ] {
                    let said = shale(&node, command);
                    assert!([0, 1].contains(&said.code), "{command:?}: {}", said.text);
                }
                must_be_sound(&node);
                let down = shale(&node, &["down", "--force"]);
                // What is rotten may keep it from ending cleanly; then it says so.
                let is_said = down.text.contains("not everything is durable");
                assert_eq!(down.code, i32::from(is_said), "{name}: {}", down.text);
            } else {
                assert_eq!(up.code, 1, "{name}: {}", up.text);
                assert!(up.text.len() > 40, "{name}: {}", up.text);
            }
            must_not_have_panicked(&node);
            copy(&node, "whole.region", "nsd/1.region");
            copy(&node, "whole.coordination", "coordination.region");
        }
        assert_eq!(shale(&node, &["up"]).code, 0);
        read_all(&node, "whole");
    }
}

/// Each file must be unchanged or unreadable.
fn read_all(node: &Node, what: &str) {
    for number in 0..FILES {
        match fs::read(node.path(&number.to_string())) {
            // A torn journal leaves what was written before the tear: at most the file's beginning.
            Ok(bytes) if what == "torn journal" => assert!(
                content(number).starts_with(&bytes),
                "{what}: file {number} is another: {} bytes",
                bytes.len()
            ),
            Ok(bytes) => assert!(bytes == content(number), "{what}: file {number} is another"),
            Err(error) => {
                assert_ne!(what, "whole", "file {number}: {error}");
                let is_eio = error.raw_os_error() == Some(libc::EIO);
                let is_torn = what == "torn journal" && error.kind() == ErrorKind::NotFound;
                assert!(is_eio || is_torn, "{what}: file {number}: {error}");
            }
        }
    }
}

#[test]
fn with_redundancy_flipped_bits_in_every_structure_are_mended_and_told() {
    let node = populated(&["--scheme", "replicate(2)", "--nsds", "2"], false);
    for (index, (name, part)) in parts(&open(&node)).into_iter().enumerate() {
        flip_some(&open(&node), &part, [2, 3, 5, 2][index], index as u64);
        node.must(&["up"]);
        for number in 0..FILES {
            let found = fs::read(node.path(&number.to_string()));
            assert!(found.unwrap() == content(number), "{name}: file {number}");
        }
        node.must(&["nsd", "scrub"]);
        node.must(&["fs", "check", "--deep"]);
        if name == "data" {
            event(&node, "NSD 1 (", "damaged bytes were found");
        }
        must_be_sound(&node);
        node.must(&["down"]);
    }
}

#[test]
fn one_rotten_copy_of_coordination_is_mended_and_two_are_refused() {
    let node = populated(&[], false);
    let path = node.dir.join("coordination.region");
    let slot = fs::metadata(&path).unwrap().len() / 4;
    let options = || OpenOptions::new().read(true).write(true).open(&path);
    for copy in 0..4 {
        flip_at(&options().unwrap(), copy * slot + VERSION_AT, 1);
        node.must(&["up"]);
        read_all(&node, "whole");
        node.must(&["down"]);
    }
    let whole = fs::read(&path).unwrap();
    flip_at(&options().unwrap(), VERSION_AT, 1);
    flip_at(&options().unwrap(), slot + VERSION_AT, 1);
    let broken = fs::read(&path).unwrap();
    shale(&node, &["up"]).refused_with(&["coordination", "damaged", "backup"]);
    assert!(fs::read(&path).unwrap() == broken, "left as it is");
    fs::write(&path, whole).unwrap();
    node.must(&["up"]);
    read_all(&node, "whole");
}
