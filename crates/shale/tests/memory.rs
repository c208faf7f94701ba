//! Compares the daemon's resident memory with `shale status`.

use crate::fixture::Node;
use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::FileExt,
};

const MIB: usize = 1 << 20;
/// The line for memory that isn't counted elsewhere.
const REST: &str = "everything else, resident";

/// Resident memory according to the kernel.
fn resident(node: &Node) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", node.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.unwrap().split_whitespace().nth(1).unwrap();
    kib.parse::<u64>().unwrap() << 10
}

/// Resident memory must be the counted memory plus little, and each line within its budget.
fn is_as_printed(node: &Node, when: &str) {
    let resident = resident(node);
    let status = node.ask(&["status"]);
    let lines = status["memory"].as_array().unwrap();
    let (mut counted, mut budgets, mut rest_max) = (0, 0, None);
    for line in lines {
        let most = line["budget"].as_u64().unwrap();
        budgets += most;
        // What isn't counted is part of the rest.
        let Some(used) = line["used"].as_u64() else {
            continue;
        };
        if line["what"] == REST {
            rest_max = Some(most);
        } else {
            counted += used;
        }
        assert!(used <= most, "{when}: {line}");
    }
    let rest_max = rest_max.expect("the line for uncounted memory");
    assert!(resident <= budgets, "{when}: {resident} resident, {status}");
    assert!(
        resident <= counted + rest_max,
        "{when}: {resident} resident, {counted} counted: {status}"
    );
}

#[test]
fn what_is_resident_is_what_status_prints() {
    let node = Node::with(&["--nsd-size", "2G"]);
    is_as_printed(&node, "at the start");
    let bytes = vec![7; 4 * MIB];
    let names: Vec<_> = (0..120)
        .map(|number| node.path(&format!("f{number}")))
        .collect();
    for name in &names {
        fs::write(name, &bytes).unwrap();
    }
    is_as_printed(&node, "written");
    node.must(&["fs", "sync"]);
    is_as_printed(&node, "synced");
    for name in &names {
        let file = OpenOptions::new().write(true).open(name).unwrap();
        file.set_len(1).unwrap();
    }
    is_as_printed(&node, "cut to a byte");
    // Consecutive blocks, then a byte in each of many.
    let file = File::create(node.path("far")).unwrap();
    file.write_all_at(&vec![8; 16 * MIB], 0).unwrap();
    for block in 4..404 {
        file.write_all_at(b"x", block * 4 * MIB as u64).unwrap();
    }
    is_as_printed(&node, "a byte in each block");
    // Small overwrites across the cached data.
    let file = File::create(node.path("random")).unwrap();
    for part in 0..50 {
        file.write_all_at(&bytes, part * bytes.len() as u64)
            .unwrap();
    }
    node.must(&["fs", "sync"]);
    for number in 0..5000u64 {
        let at = number * 7919 % (50 * 1024) * 4096;
        file.write_all_at(&bytes[..4096], at).unwrap();
    }
    is_as_printed(&node, "small overwrites");
    for name in &names {
        assert_eq!(fs::read(name).unwrap(), [7]);
    }
    is_as_printed(&node, "read");
    node.check();
}

#[test]
fn what_is_read_in_small_pieces_is_counted() {
    const PAGES: u64 = 72 * 1024;
    let node = Node::with(&["--nsd-size", "2G"]);
    let file = File::create(node.path("pieces")).unwrap();
    for pages in [(0..PAGES).step_by(2), (1..PAGES).step_by(2)] {
        for page in pages {
            file.write_all_at(&[9; 4096], page * 4096).unwrap();
        }
        file.sync_data().unwrap();
    }
    drop(file);
    is_as_printed(&node, "written");
    node.must(&["down"]);
    node.must(&["up"]);
    let file = File::open(node.path("pieces")).unwrap();
    let mut bytes = vec![0; MIB];
    for part in 0..PAGES * 4096 / MIB as u64 {
        file.read_exact_at(&mut bytes, part * MIB as u64).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 9));
    }
    is_as_printed(&node, "read");
}
