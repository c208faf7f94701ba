//! NSDs that are missing, fail and come back under a real daemon: within tolerance everything keeps
//! working, `shale health` reports the problem, and pieces that an NSD missed are repaired when it
//! is back.

use crate::fixture::{
    Node,
    bounded::{event, must_be_sound, must_not_have_panicked, shale, wait_for, wait_healthy},
    must_run, pattern, skipped,
};
use std::{
    fs::{self, OpenOptions},
    os::fd::AsRawFd,
    path::PathBuf,
};

fn region(node: &Node, nsd: u32) -> PathBuf {
    node.dir.join(format!("nsd/{nsd}.region"))
}

fn away(node: &Node, nsd: u32) -> PathBuf {
    node.dir.join(format!("{nsd}.away"))
}

fn content(number: u64) -> Vec<u8> {
    pattern(number, [100, 5_000, 90_000, 2_000_000][number as usize % 4])
}

fn write(node: &Node, numbers: std::ops::Range<u64>) {
    for number in numbers {
        fs::write(node.path(&number.to_string()), content(number)).unwrap();
    }
    node.must(&["fs", "sync"]);
}

fn verify(node: &Node, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let found = fs::read(node.path(&number.to_string())).unwrap();
        assert!(found == content(number), "file {number}");
    }
}

fn is_repaired(node: &Node) {
    wait_for(node, &["repair", "status"], |repair| {
        repair["state"] == "idle" && repair["segments_to_do"] == 0
    });
    node.must(&["fs", "check", "--deep"]);
}

/// Truncates the first region under the daemon, which notices and stops using it.
fn cut_short(node: &Node) {
    let file = OpenOptions::new()
        .write(true)
        .open(region(node, 1))
        .unwrap();
    file.set_len(64 << 20).unwrap();
    event(node, "NSD 1 (", "was cut short");
}

/// Copies a region, keeping its holes.
fn copy_region(node: &Node, nsd: u32) {
    let (from, to) = (region(node, nsd), away(node, nsd));
    let names = [from.display().to_string(), to.display().to_string()];
    must_run(&node.dir, "cp", &["--sparse=always", &names[0], &names[1]]);
}

#[test]
fn nsds_missing_at_start_are_told_and_taken_in_when_they_come_back() {
    for (scheme, lost) in [("replicate(2)", 1..2), ("erasure(4+2)", 1..3)] {
        let node = Node::with(&["--scheme", scheme, "--nsd-size", "512M"]);
        write(&node, 0..12);
        node.must(&["down"]);
        for nsd in lost.clone() {
            fs::rename(region(&node, nsd), away(&node, nsd)).unwrap();
        }
        assert_eq!(shale(&node, &["up"]).code, 0, "{scheme}");
        for nsd in lost.clone() {
            let found = event(&node, &format!("NSD {nsd} ("), "missing");
            assert_eq!(found["severity"], "warning");
            let remedy = found["remedy"].as_str().unwrap();
            assert!(remedy.contains("bring the file or device back"), "{remedy}");
            assert!(!region(&node, nsd).exists(), "nothing new was made");
        }
        verify(&node, 0..12);
        for number in 0..4 {
            fs::remove_file(node.path(&number.to_string())).unwrap();
        }
        write(&node, 12..24);
        verify(&node, 4..24);
        // They are back: the daemon finds one itself, and the other at once when told.
        for nsd in lost.clone() {
            fs::rename(away(&node, nsd), region(&node, nsd)).unwrap();
        }
        if lost.len() > 1 {
            node.must(&["nsd", "open", "1"]);
        }
        wait_for(&node, &["nsd", "list"], |nsds| {
            let mut nsds = nsds.as_array().unwrap().iter();
            nsds.all(|nsd| nsd["health"] == "online")
        });
        is_repaired(&node);
        wait_healthy(&node);
        must_be_sound(&node);
        // The returned NSDs have all their pieces: others may be lost now.
        node.must(&["down"]);
        for nsd in lost.clone() {
            fs::remove_file(region(&node, nsd + lost.len() as u32)).unwrap();
        }
        assert_eq!(shale(&node, &["up"]).code, 0, "{scheme}");
        verify(&node, 4..24);
        for number in 0..4 {
            assert!(!node.path(&number.to_string()).exists(), "{number} is back");
        }
    }
}

#[test]
fn an_nsd_that_fails_while_running_and_comes_back_as_an_old_copy_serves_nothing_old() {
    let node = Node::with(&[
        "--scheme",
        "replicate(2)",
        "--nsds",
        "2",
        "--nsd-size",
        "512M",
    ]);
    write(&node, 0..8);
    node.must(&["down"]);
    copy_region(&node, 1);
    node.must(&["up"]);
    write(&node, 8..16);
    for number in 0..4 {
        fs::write(node.path(&number.to_string()), content(number + 4)).unwrap();
    }
    node.must(&["fs", "sync"]);
    cut_short(&node);
    write(&node, 16..24);
    verify(&node, 4..24);
    // Its owner restores it from an old backup.
    fs::rename(away(&node, 1), region(&node, 1)).unwrap();
    wait_for(&node, &["nsd", "list"], |nsds| {
        nsds[0]["health"] == "online"
    });
    is_repaired(&node);
    wait_healthy(&node);
    node.must(&["down"]);
    fs::remove_file(region(&node, 2)).unwrap();
    node.must(&["up"]);
    verify(&node, 4..24);
    for number in 0..4 {
        let found = fs::read(node.path(&number.to_string())).unwrap();
        assert!(found == content(number + 4), "file {number} is an old one");
    }
    must_be_sound(&node);
}

#[test]
fn when_the_only_nsd_fails_reads_and_writes_are_eio_nothing_hangs_and_health_is_critical() {
    let node = Node::with(&["--nsd-size", "512M"]);
    write(&node, 0..8);
    node.must(&["down"]);
    copy_region(&node, 1);
    node.must(&["up"]);
    cut_short(&node);
    let late = fs::File::create(node.path("late")).and_then(|file| {
        use std::os::unix::fs::FileExt;
        file.write_all_at(&pattern(9, 100_000), 0)?;
        file.sync_all()
    });
    assert_eq!(late.unwrap_err().raw_os_error(), Some(libc::EIO));
    assert_eq!(event(&node, "NSD 1 (", "refused")["severity"], "critical");
    event(&node, "metadata", "doesn't serve");
    let read = fs::read(node.path("3"));
    if let Err(error) = read {
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
    }
    let down = shale(&node, &["down", "--force"]);
    // It ends within its deadline, and what was written last is nowhere.
    down.refused_with(&["not everything is durable", "may be lost"]);
    fs::rename(away(&node, 1), region(&node, 1)).unwrap();
    assert_eq!(shale(&node, &["up"]).code, 0);
    verify(&node, 0..8);
    must_not_have_panicked(&node);
}

#[test]
fn an_nsd_that_may_not_be_opened_is_told_and_taken_in_when_it_may() {
    let node = Node::with(&["--scheme", "replicate(2)", "--nsd-size", "512M"]);
    write(&node, 0..8);
    node.must(&["down"]);
    let file = fs::File::open(region(&node, 2)).unwrap();
    if !set_immutable(&file, true) {
        skipped(
            "an_nsd_that_may_not_be_opened_is_told_and_taken_in_when_it_may",
            "this file system has no immutable files, or this isn't root",
        );
        return;
    }
    let up = shale(&node, &["up"]);
    let told = (up.code == 0).then(|| event(&node, "NSD 2 (", "not accessible"));
    assert!(set_immutable(&file, false));
    assert_eq!(up.code, 0, "{}", up.text);
    assert!(
        told.unwrap()["remedy"]
            .as_str()
            .unwrap()
            .contains("change its rights")
    );
    write(&node, 8..12);
    wait_for(&node, &["nsd", "list"], |nsds| {
        nsds[1]["health"] == "online"
    });
    is_repaired(&node);
    verify(&node, 0..12);
    wait_healthy(&node);
}

/// Makes a file immutable, so that even root can't write to it; returns whether that worked.
fn set_immutable(file: &fs::File, on: bool) -> bool {
    const FS_IMMUTABLE_FL: libc::c_long = 0x10;
    let mut flags: libc::c_long = 0;
    // SAFETY: both calls take a descriptor that `file` keeps open and a long that lives on.
    unsafe {
        if libc::ioctl(file.as_raw_fd(), libc::FS_IOC_GETFLAGS, &raw mut flags) != 0 {
            return false;
        }
        if on {
            flags |= FS_IMMUTABLE_FL;
        } else {
            flags &= !FS_IMMUTABLE_FL;
        }
        libc::ioctl(file.as_raw_fd(), libc::FS_IOC_SETFLAGS, &raw const flags) == 0
    }
}

#[test]
fn a_region_that_is_removed_while_in_use_is_told_before_it_is_lost() {
    let node = Node::with(&["--nsd-size", "512M"]);
    write(&node, 0..8);
    fs::remove_file(region(&node, 1)).unwrap();
    let found = event(&node, "NSD 1 (", "removed while in use");
    assert_eq!(found["severity"], "critical");
    write(&node, 8..12);
    // Follow the remedy.
    node.must(&["nsd", "add"]);
    node.must(&["nsd", "remove", "1"]);
    wait_for(&node, &["nsd", "list"], |nsds| nsds[0]["state"] == "lost");
    node.must(&["down"]);
    node.must(&["up"]);
    verify(&node, 0..12);
    is_repaired(&node);
}

#[test]
fn opening_an_nsd_that_serves_or_is_unknown_is_refused() {
    let node = Node::with(&["--nsd-size", "512M"]);
    shale(&node, &["nsd", "open", "1"]).refused_with(&["serves", "nothing to open"]);
    shale(&node, &["nsd", "open", "7"]).refused_with(&["no NSD 7", "shale nsd list"]);
}
