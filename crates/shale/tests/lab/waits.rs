//! What a program waits for whose file is on a slow disk of another node: the chain ends at that disk.

use super::fixture::Lab;
use crate::fixture::chains;
use serde_json::Value;
use std::{
    fs::File,
    io::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

/// The node with the slow disk. Each of two has one, so everything waits for it.
const SLOW: u64 = 2;
/// The node of the program.
const OTHER: u64 = 1;
/// Files that the program makes at most.
const FILES_MAX: u32 = 200;

/// The number of the slow node's NSD.
fn slow_nsd(lab: &Lab) -> u64 {
    let nsds = lab.ask(1, &["nsd", "list"]);
    let mut lines = nsds.as_array().expect("NSDs are listed").iter();
    let line = lines.find(|line| line["node"] == SLOW);
    line.and_then(|line| line["nsd"].as_u64())
        .expect("it has one")
}

#[test]
fn a_slow_disk_is_the_end_of_the_chain_of_whoever_waits_for_it() {
    let Some(lab) = Lab::up(2, "replicate(2)") else {
        return;
    };
    let nsd = slow_nsd(&lab);
    let node = SLOW.to_string();
    lab.must(&["slow-disk", &node, "--latency-ms", "700"]);
    let has_ended = Arc::new(AtomicBool::new(false));
    let program = thread::spawn({
        let (path, has_ended) = (lab.path(OTHER as u32, "file"), has_ended.clone());
        move || -> io::Result<()> {
            for number in 0..FILES_MAX {
                if has_ended.load(Ordering::Relaxed) {
                    break;
                }
                let mut file = File::create(path.with_extension(number.to_string()))?;
                file.write_all(&[7; 100_000])?;
                file.sync_all()?;
            }
            Ok(())
        }
    });
    let ends_there = format!("waits for NSD {nsd}");
    let way = lab.until("the chain is shown", || {
        let said: Value = lab.ask(SLOW as u32, &["waiters", "--all"]);
        let ways = chains::from(&said, OTHER);
        let mut ways = ways.into_iter().filter(|way| {
            let is_a_programs = way[0].text.contains("of process");
            let last = way.last().expect("a way has a link");
            is_a_programs && last.node == Some(SLOW) && last.text == ends_there
        });
        ways.next().ok_or_else(|| said.to_string())
    });
    let remedy = way.last().and_then(|last| last.remedy.clone());
    let remedy = remedy.expect("something can be done");
    assert!(
        remedy.contains(&format!("shale nsd remove {nsd}")),
        "{remedy}"
    );
    assert!(remedy.contains("on n2"), "{remedy}");
    has_ended.store(true, Ordering::Relaxed);
    lab.must(&["slow-disk", &node, "--off"]);
    program.join().unwrap().unwrap();
}
