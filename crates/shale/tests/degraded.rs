//! erasure(4+2) on six NSDs: losing two is no more than a pause, and flipped bits are mended.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests use the mount as programs do"
)]

mod fixture;

use fixture::{Node, pattern};
use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::FileExt,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

fn six() -> Node {
    Node::with(&["--scheme", "erasure(4+2)", "--nsd-size", "1G"])
}

fn write_files(node: &Node, folder: &str, count: u64) {
    fs::create_dir_all(node.path(folder)).unwrap();
    for number in 0..count {
        fs::write(node.path(&format!("{folder}/{number}")), content(number)).unwrap();
    }
}

fn content(number: u64) -> Vec<u8> {
    pattern(
        number,
        [100, 5_000, 90_000, 700_000, 5_000_000][(number % 5) as usize],
    )
}

fn verify_files(node: &Node, folder: &str, count: u64) {
    for number in 0..count {
        assert!(
            fs::read(node.path(&format!("{folder}/{number}"))).unwrap() == content(number),
            "{folder}/{number}"
        );
    }
}

/// Asks until the answer fits; the bound is for the case that it never does.
fn wait_for(
    node: &Node,
    what: &[&str],
    fits: impl Fn(&serde_json::Value) -> bool,
) -> serde_json::Value {
    let begun = Instant::now();
    loop {
        let answer = node.ask(what);
        if fits(&answer) {
            return answer;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(300),
            "{what:?} still says {answer}"
        );
        std::thread::yield_now();
    }
}

#[test]
fn two_of_six_nsds_may_be_lost_under_load_and_repair_completes_with_new_ones() {
    let node = six();
    write_files(&node, "before", 40);
    node.must(&["fs", "sync"]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut rounds = 0;
            while !stop.load(Ordering::Relaxed) {
                write_files(&node, "during", 20);
                verify_files(&node, "before", 20);
                rounds += 1;
            }
            rounds
        });
        // One disk forgets everything under the daemon, another is taken out.
        let region = OpenOptions::new()
            .write(true)
            .open(node.dir.join("nsd/2.region"))
            .unwrap();
        region.set_len(0).unwrap();
        verify_files(&node, "before", 40);
        node.must(&["nsd", "remove", "5"]);
        verify_files(&node, "before", 40);
        stop.store(true, Ordering::Relaxed);
        assert!(load.join().unwrap() > 0);
    });
    verify_files(&node, "during", 20);
    write_files(&node, "after", 40);
    node.must(&["fs", "sync"]);
    verify_files(&node, "after", 40);

    // A restart finds neither region and serves all the same.
    node.must(&["down"]);
    for nsd in [2, 5] {
        fs::remove_file(node.dir.join(format!("nsd/{nsd}.region"))).unwrap();
    }
    node.must(&["up"]);
    assert_ne!(node.ask(&["health"])["state"], "healthy");
    for folder in ["before", "after"] {
        verify_files(&node, folder, 40);
    }

    node.must(&["nsd", "remove", "2"]);
    node.must(&["nsd", "add"]);
    node.must(&["nsd", "add"]);
    wait_for(&node, &["repair", "status"], |repair| {
        repair["state"] == "idle" && repair["segments_to_do"] == 0
    });
    node.must(&["fs", "check", "--deep"]);

    // Now two others may go.
    node.must(&["down"]);
    fs::remove_file(node.dir.join("nsd/1.region")).unwrap();
    fs::remove_file(node.dir.join("nsd/4.region")).unwrap();
    node.must(&["up"]);
    for folder in ["before", "after"] {
        verify_files(&node, folder, 40);
    }
}

#[test]
fn the_only_nsd_is_replaced_and_its_region_may_go() {
    let node = Node::with(&["--nsd-size", "1G"]);
    write_files(&node, "files", 40);
    node.must(&["fs", "sync"]);
    let refused = node.run(&["nsd", "remove", "1"]);
    assert_eq!(refused.status.code(), Some(1), "nothing else could hold it");
    node.must(&["nsd", "add"]);
    node.must(&["nsd", "remove", "1"]);
    let is_given_up = |nsds: &serde_json::Value| nsds[0]["state"] == "lost";
    wait_for(&node, &["nsd", "list"], is_given_up);
    wait_for(&node, &["repair", "status"], |repair| {
        repair["state"] == "idle"
    });
    node.must(&["down"]);
    fs::remove_file(node.dir.join("nsd/1.region")).unwrap();
    node.must(&["up"]);
    verify_files(&node, "files", 40);
    node.must(&["fs", "check", "--deep"]);
}

#[test]
fn flipped_bytes_in_a_region_are_found_and_mended() {
    let node = six();
    write_files(&node, "files", 40);
    node.must(&["down"]);
    let path = node.dir.join("nsd/3.region");
    let region: File = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    let length = region.metadata().unwrap().len();
    let mut flipped = 0;
    let mut unit = vec![0; 4096];
    // Every 16th page that holds something, over the whole region.
    let mut used = 0;
    for page in 0..length / 4096 {
        if !holds_data(&region, page * 4096) {
            continue;
        }
        region.read_exact_at(&mut unit, page * 4096).unwrap();
        if unit.iter().all(|byte| *byte == 0) {
            continue;
        }
        used += 1;
        if used % 16 == 0 {
            let at = (page * 977 % 4096) as usize;
            unit[at] ^= 1 << (page % 8);
            region.write_all_at(&unit, page * 4096).unwrap();
            flipped += 1;
        }
    }
    assert!(
        flipped > 20,
        "the region holds enough to damage: {used} pages"
    );
    drop(region);
    node.must(&["up"]);
    verify_files(&node, "files", 40);
    node.must(&["nsd", "scrub"]);
    node.must(&["fs", "check", "--deep"]);
    let again = node.ask(&["nsd", "scrub"]);
    assert!(
        again
            .as_array()
            .unwrap()
            .iter()
            .all(|line| line["damaged"] == 0),
        "{again}"
    );
}

/// Skips the holes of a sparse region quickly.
fn holds_data(file: &File, offset: u64) -> bool {
    use std::os::fd::AsRawFd;
    // SAFETY: lseek takes a descriptor that `file` keeps open, and no memory.
    let next = unsafe { libc::lseek(file.as_raw_fd(), offset as i64, libc::SEEK_DATA) };
    next == offset as i64
}
