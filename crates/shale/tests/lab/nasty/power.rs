//! All nodes end at once, as when a room loses its power, and the newest superblock of an NSD is torn.

use super::{
    Lab, Told,
    faults::{Fault, until_whole},
    load::{Load, Pauses},
};
use crate::fixture::signals::signal;
use rustix::process::Signal;
use std::{fs::File, os::unix::fs::FileExt, path::PathBuf, time::Instant};

/// Files that each program has made by then.
const FILES: u64 = 10;
/// Bytes of a superblock, and of what is written at once.
const BLOCK: u64 = 4096;
/// How many there are in front, one behind the other.
const SUPERBLOCKS: u64 = 4;
/// How each begins.
const MAGIC: &[u8] = b"SHALENSD";

/// The region of a node's NSD.
fn region(lab: &Lab, node: u32) -> PathBuf {
    let files = lab.node(node).join("nsd").read_dir().unwrap();
    let mut paths = files.map(|entry| entry.unwrap().path());
    let found = paths.find(|path| path.extension().is_some_and(|it| it == "region"));
    found.expect("each node of a lab has an NSD")
}

/// The second half of the newest superblock in front never came to the disk. Another copy is at the region's end.
fn tear_superblock(lab: &Lab, node: u32) {
    let region = File::options()
        .read(true)
        .write(true)
        .open(region(lab, node))
        .unwrap();
    let number = |slot: u64| {
        let mut begin = [0; 24];
        region.read_exact_at(&mut begin, slot * BLOCK).unwrap();
        let number = u64::from_le_bytes(begin[16..].try_into().unwrap());
        begin.starts_with(MAGIC).then_some((number, slot))
    };
    let newest = (0..SUPERBLOCKS).filter_map(number).max();
    let (_, slot) = newest.expect("there is a superblock");
    let half = BLOCK / 2;
    let lost = vec![0xa5; half as usize];
    region.write_all_at(&lost, slot * BLOCK + half).unwrap();
    region.sync_all().unwrap();
}

/// Nobody is left who knows anything: each node starts from its disk, and finds the others so.
pub(super) fn all_nodes_die_at_once_and_what_was_synced_is_there(lab: &Lab) -> Told {
    let nodes = lab.nodes();
    let mut load = Load::start(lab, &nodes);
    load.gets_on(&nodes, FILES);
    let daemons: Vec<_> = nodes.iter().map(|node| lab.daemon(*node)).collect();
    for daemon in daemons {
        signal(daemon, Signal::KILL);
    }
    // What they supervised.
    Fault::Kill.strike(lab, &nodes);
    tear_superblock(lab, nodes[nodes.len() - 1]);
    let begun = Instant::now();
    Fault::Kill.mend(lab, &nodes);
    let mut pauses = Pauses::default();
    pauses.note("start of all", begun.elapsed());
    until_whole(lab);
    load.end_whatever_happened(&nodes);
    load.must_be_seen(lab, &nodes);
    load.remove(lab, nodes[0]);
    Told::of(pauses)
}
