//! Full: refused with ENOSPC and nothing else, deleting always works, every counter stays exact.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests use the mount as programs do"
)]

mod fixture;

use fixture::{
    Node,
    bounded::{event, must_be_sound, run, shale, wait_for, wait_healthy, wait_until},
    must_run, pattern,
};
use std::{
    fs::{self, File},
    io::{self, Write},
    os::{fd::AsRawFd, unix::fs::MetadataExt},
    path::Path,
    process::Command,
};

fn small() -> Node {
    Node::with(&["--nsd-size", "512M"])
}

#[track_caller]
fn is_no_space(error: &io::Error) {
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
}

/// Writes until it is refused, which must be with ENOSPC; how many bytes were taken.
fn fill(path: &Path, step: usize) -> u64 {
    let bytes = pattern(7, step);
    let mut taken = 0;
    let mut file = match File::create(path) {
        Ok(file) => file,
        Err(error) => {
            is_no_space(&error);
            return taken;
        }
    };
    loop {
        match file.write(&bytes) {
            Ok(written) => taken += written as u64,
            Err(error) => {
                is_no_space(&error);
                return taken;
            }
        }
    }
}

/// Counters and sums over what is there are the same numbers.
fn counters_are_exact(node: &Node) {
    node.must(&["fs", "sync"]);
    let (mut inodes, mut bytes) = (0, 0);
    let mut folders = vec![node.mnt.clone()];
    while let Some(folder) = folders.pop() {
        inodes += 1;
        for entry in fs::read_dir(&folder).unwrap() {
            let entry = entry.unwrap();
            let metadata = entry.metadata().unwrap();
            if metadata.is_dir() {
                folders.push(entry.path());
            } else {
                inodes += 1;
                bytes += metadata.len();
            }
        }
    }
    let df = node.ask(&["fs", "df"]);
    assert_eq!(df["inodes"], inodes);
    assert_eq!(df["logical"], bytes);
    let check = shale(node, &["fs", "check", "--deep"]);
    assert_eq!(check.code, 0, "{}", check.text);
}

fn available(node: &Node) -> u64 {
    node.ask(&["fs", "df"])["available"].as_u64().unwrap()
}

#[test]
fn a_full_pool_refuses_writes_with_enospc_and_deleting_gives_all_space_back() {
    let node = small();
    let empty = available(&node);
    fs::create_dir(node.path("folder")).unwrap();
    fs::write(node.path("small"), pattern(1, 3_000)).unwrap();
    fs::write(node.path("folder/keep"), pattern(2, 200_000)).unwrap();
    fs::write(node.path("more"), "").unwrap();
    let taken = fill(&node.path("large"), 1 << 20);
    assert!(taken > empty / 10 * 8, "{taken} of {empty} were taken");
    let told = event(&node, "space", "full");
    assert!(told["remedy"].as_str().unwrap().contains("delete files"));
    // Not only large writes.
    let more = fill(&node.path("more"), 100_000);
    assert!(more < taken / 10, "{more} after {taken}");
    counters_are_exact(&node);
    // Everything that takes no space works, and what was stored is there.
    fs::rename(node.path("small"), node.path("folder/renamed")).unwrap();
    assert!(fs::read(node.path("folder/renamed")).unwrap() == pattern(1, 3_000));
    assert!(fs::read(node.path("folder/keep")).unwrap() == pattern(2, 200_000));
    assert_eq!(fs::metadata(node.path("large")).unwrap().size(), taken);
    // It is full after a restart, too, and deleting works.
    node.must(&["down"]);
    node.must(&["up"]);
    event(&node, "space", "full");
    fs::remove_file(node.path("large")).unwrap();
    fs::remove_file(node.path("more")).unwrap();
    wait_for(&node, &["fs", "df"], |df| {
        df["available"].as_u64().unwrap() > empty / 10 * 9
    });
    wait_healthy(&node);
    fs::write(node.path("again"), pattern(3, 50 << 20)).unwrap();
    counters_are_exact(&node);
    must_be_sound(&node);
}

#[test]
fn fallocate_beyond_what_is_free_is_enospc_and_takes_nothing() {
    let node = small();
    let before = available(&node);
    let file = File::create(node.path("file")).unwrap();
    let allocate = |bytes: u64| {
        // SAFETY: a plain system call on a descriptor that `file` keeps open.
        match unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, bytes as i64) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    is_no_space(&allocate(before * 2).unwrap_err());
    assert_eq!(file.metadata().unwrap().len(), 0);
    // A commit in the background may take some KiB meanwhile.
    assert!(available(&node).abs_diff(before) < 1 << 20);
    allocate(before / 2).unwrap();
    assert_eq!(file.metadata().unwrap().len(), before / 2);
    counters_are_exact(&node);
}

#[test]
fn small_files_until_full_are_refused_with_enospc_and_can_be_removed() {
    let node = small();
    // Most of the space at once, the rest by small files and names.
    fs::write(node.path("large"), pattern(7, 300 << 20)).unwrap();
    let folder = node.path("many");
    fs::create_dir(&folder).unwrap();
    let bytes = pattern(4, 3_000);
    let mut made = Vec::new();
    let refused = loop {
        let path = folder.join(format!("a_rather_long_name_of_a_small_file_{}", made.len()));
        let file = File::create_new(&path);
        let done = file.and_then(|mut file| {
            made.push(path.clone());
            file.write_all(&bytes)?;
            if made.len().is_multiple_of(64) {
                file.sync_all()?;
            }
            Ok(())
        });
        match done {
            Ok(()) => assert!(made.len() < 200_000, "it is never full"),
            Err(error) => break error,
        }
    };
    is_no_space(&refused);
    // Full for good: names alone are refused as well some time, never with anything else.
    for number in 0..20_000 {
        match File::create_new(folder.join(format!("empty_{number}"))) {
            Ok(_) => made.push(folder.join(format!("empty_{number}"))),
            Err(error) => {
                is_no_space(&error);
                break;
            }
        }
    }
    node.must(&["fs", "sync"]);
    fs::rename(&made[0], folder.join("renamed")).unwrap();
    made[0] = folder.join("renamed");
    counters_are_exact(&node);
    for path in &made {
        fs::remove_file(path).unwrap();
    }
    fs::remove_dir(&folder).unwrap();
    fs::remove_file(node.path("large")).unwrap();
    wait_healthy(&node);
    fs::write(node.path("again"), pattern(5, 20 << 20)).unwrap();
    counters_are_exact(&node);
    must_be_sound(&node);
}

#[test]
fn small_synced_writes_faster_than_the_journal_is_emptied_wait_and_never_fail() {
    let node = small();
    std::thread::scope(|scope| {
        for writer in 0..8_u64 {
            let path = node.path(&format!("log{writer}"));
            scope.spawn(move || {
                let mut file = File::create(path).unwrap();
                // Eight writers put several times the journal's 16 MiB through it.
                for _ in 0..250 {
                    file.write_all(&pattern(writer, 28_000)).unwrap();
                    file.sync_data().unwrap();
                }
            });
        }
    });
    for writer in 0..8 {
        let found = fs::read(node.path(&format!("log{writer}"))).unwrap();
        assert!(
            found
                .chunks(28_000)
                .all(|part| part == pattern(writer, 28_000))
        );
    }
    counters_are_exact(&node);
}

#[test]
fn up_without_room_on_the_host_leaves_nothing_half_made_and_can_be_repeated() {
    let node = Node::unstarted();
    let home = node.dir.parent().unwrap().to_path_buf();
    fs::create_dir(&node.dir).unwrap();
    let image = home.join("image");
    File::create(&image).unwrap().set_len(800 << 20).unwrap();
    let names = [image.display().to_string(), node.dir.display().to_string()];
    must_run(&home, "mkfs.ext4", &["-q", &names[0]]);
    let mounted = run(Command::new("mount").args(["-o", "loop", &names[0], &names[1]]));
    if mounted.code != 0 {
        eprintln!("skipped: no loop devices here ({})", mounted.text);
        return;
    }
    // A new file system has its lost+found in it.
    let refused = shale(&node, &["up", "--nsd-size", "1G"]);
    let left = fs::read_dir(node.dir.join("nsd")).map_or(0, Iterator::count);
    let has_coordination = node.dir.join("coordination.region").exists();
    let again = shale(&node, &["up", "--nsd-size", "512M"]);
    let down = shale(&node, &["down"]);
    // The kernel closes the regions of a process that has ended a little later.
    wait_until("umount", || {
        let umount = run(Command::new("umount").arg(&names[1]));
        if umount.code == 0 {
            Ok(())
        } else {
            Err(umount.text)
        }
    });
    refused.refused_with(&["No space left on device", "smaller --nsd-size"]);
    assert_eq!(
        (left, has_coordination),
        (0, false),
        "half a file system is left"
    );
    assert_eq!(again.code, 0, "{}", again.text);
    assert_eq!(down.code, 0, "{}", down.text);
}
