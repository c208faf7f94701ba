//! Mount options, subdirectories and several mounts of one node.

use crate::fixture::{self, Node, eventually, mounted_as, must_run, once_idle, within_a_minute};
use std::{
    fs::{self, File},
    io::Write,
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt},
    path::Path,
    process::Command,
    time::{Duration, SystemTime},
};

fn refused(node: &Node, arguments: &[&str]) -> String {
    let output = node.run(arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn errno(result: std::io::Result<impl Sized>) -> i32 {
    result.err().and_then(|e| e.raw_os_error()).unwrap_or(0)
}

/// Sets an access time that relatime moves at the next read.
fn make_old(path: &Path) -> SystemTime {
    let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let file = File::options().write(true).open(path).unwrap();
    file.set_times(fs::FileTimes::new().set_accessed(old))
        .unwrap();
    old
}

fn accessed(path: &Path) -> SystemTime {
    fs::metadata(path).unwrap().accessed().unwrap()
}

#[test]
fn ro_refuses_every_change_and_leaves_access_times_alone() {
    let node = Node::new();
    fs::write(node.path("file"), "content").unwrap();
    let old = make_old(&node.path("file"));
    node.must(&["down"]);
    node.must(&["up", "-o", "ro"]);
    assert!(mounted_as(&node.mnt).unwrap().contains(" ro"));
    assert_eq!(errno(File::create(node.path("new"))), libc::EROFS);
    assert_eq!(errno(fs::write(node.path("file"), "x")), libc::EROFS);
    assert_eq!(errno(fs::remove_file(node.path("file"))), libc::EROFS);
    assert_eq!(errno(fs::create_dir(node.path("dir"))), libc::EROFS);
    let mode = fs::Permissions::from_mode(0o600);
    assert_eq!(
        errno(fs::set_permissions(node.path("file"), mode)),
        libc::EROFS
    );
    assert_eq!(fs::read_to_string(node.path("file")).unwrap(), "content");
    node.must(&["down"]);
    node.must(&["up", "-o", "rw"]);
    assert_eq!(accessed(&node.path("file")), old);
}

#[test]
fn noatime_means_that_reads_never_move_atime() {
    let node = Node::with(&["--nsd-size", "4G", "-o", "noatime"]);
    assert!(mounted_as(&node.mnt).unwrap().contains("noatime"));
    fs::write(node.path("file"), "content").unwrap();
    let old = make_old(&node.path("file"));
    fs::read(node.path("file")).unwrap();
    node.must(&["fs", "sync"]);
    node.must(&["down"]);
    // The same read without the option moves it, which shows that the test would notice.
    node.must(&["up", "-o", "relatime"]);
    assert_eq!(accessed(&node.path("file")), old);
    fs::read(node.path("file")).unwrap();
    node.must(&["down"]);
    node.must(&["up"]);
    assert!(accessed(&node.path("file")) > old);
}

#[test]
fn nosuid_nodev_and_noexec_are_obeyed() {
    let node = Node::with(&["--nsd-size", "4G", "-o", "nosuid,nodev,noexec"]);
    let shown = mounted_as(&node.mnt).unwrap();
    for option in ["nosuid", "nodev", "noexec"] {
        assert!(shown.contains(option), "{shown}");
    }
    fixture::copy_program("/bin/true", node.path("true"));
    assert_eq!(
        errno(Command::new(node.path("true")).status()),
        libc::EACCES
    );
    must_run(&node.mnt, "mknod", &["null", "c", "1", "3"]);
    assert_eq!(errno(File::open(node.path("null"))), libc::EACCES);
    node.must(&["down"]);
    node.must(&["up", "-o", "exec,dev,suid"]);
    assert!(Command::new(node.path("true")).status().unwrap().success());
    File::open(node.path("null")).unwrap();
}

#[test]
fn options_are_remembered_and_can_be_changed_while_the_node_is_down() {
    let node = Node::with(&["--nsd-size", "4G", "-o", "ro,noatime,defaults,nofail"]);
    node.must(&["down"]);
    node.must(&["up"]);
    assert_eq!(node.ask(&["status"])["options"], "ro,noatime");
    let text = refused(&node, &["up", "-o", "rw"]);
    assert!(
        text.contains("ro,noatime") && text.contains("shale down"),
        "{text}"
    );
    node.must(&["down"]);
    node.must(&["up", "-o", "defaults"]);
    assert_eq!(node.ask(&["status"])["options"], "rw");
    node.must(&["down"]);
    // A file from before options existed.
    let file = node.dir.join("node.toml");
    let text = fs::read_to_string(&file).unwrap();
    let lines: Vec<_> = text.lines().filter(|l| !l.starts_with("options")).collect();
    assert_ne!(lines.len(), text.lines().count());
    fs::write(&file, lines.join("\n")).unwrap();
    node.must(&["up"]);
    assert_eq!(node.ask(&["status"])["options"], "rw");
    let text = refused(&node, &["up", "-o", "compress"]);
    assert!(
        text.contains("compress") && text.contains("noatime"),
        "{text}"
    );
}

#[test]
fn a_subdirectory_is_the_root_of_a_mount() {
    let node = Node::new();
    fs::create_dir_all(node.path("projects/a/sub")).unwrap();
    fs::write(node.path("projects/a/file"), "inside").unwrap();
    fs::write(node.path("projects/secret"), "outside").unwrap();
    let place = node.place("view");
    node.must(&["mount", place.to_str().unwrap(), "-o", "subdir=projects/a"]);
    let shown = mounted_as(&place).unwrap();
    let source = node.dir.canonicalize().unwrap();
    assert!(
        shown.starts_with(&format!("{} fuse.shale rw", source.display())),
        "{shown}"
    );
    assert!(must_run(&place, "df", &["."]).contains(source.to_str().unwrap()));
    assert_eq!(fs::read_to_string(place.join("file")).unwrap(), "inside");
    assert_eq!(must_run(&place, "ls", &[]).split_whitespace().count(), 2);
    // Its root is inode 1, seen from above and from below, and nothing is above it.
    assert_eq!(fs::metadata(&place).unwrap().ino(), 1);
    assert_eq!(fs::metadata(place.join("sub/..")).unwrap().ino(), 1);
    let listed = must_run(&place.join("sub"), "ls", &["-a", "-i"]);
    let parent = listed.lines().find(|line| line.ends_with(" ..")).unwrap();
    assert_eq!(parent.split_whitespace().next(), Some("1"));
    assert!(!place.join("../secret").exists());
    // Everything works at the root: names, attributes, extended attributes.
    fs::write(place.join("new"), "x").unwrap();
    fs::rename(place.join("new"), place.join("sub/new")).unwrap();
    fs::rename(place.join("sub/new"), place.join("newer")).unwrap();
    fs::set_permissions(&place, fs::Permissions::from_mode(0o750)).unwrap();
    File::open(&place).unwrap().sync_all().unwrap();
    assert_eq!(
        fs::read_to_string(node.path("projects/a/newer")).unwrap(),
        "x"
    );
    assert_eq!(
        fs::metadata(node.path("projects/a")).unwrap().mode() & 0o777,
        0o750
    );
    // The mount follows the directory, not its name.
    fs::rename(node.path("projects/a"), node.path("elsewhere")).unwrap();
    assert_eq!(fs::read_to_string(place.join("file")).unwrap(), "inside");
    fs::remove_dir_all(node.path("elsewhere")).unwrap();
    assert_eq!(fs::read_dir(&place).unwrap().count(), 0);
    assert_eq!(errno(File::create(place.join("late"))), libc::ENOENT);
    node.must(&["umount", place.to_str().unwrap()]);
    node.check();
}

#[test]
fn a_subdirectory_that_is_none_is_refused_with_what_to_do() {
    let node = Node::new();
    fs::write(node.path("file"), "x").unwrap();
    std::os::unix::fs::symlink("/", node.path("link")).unwrap();
    let place = node.place("view");
    let place = place.to_str().unwrap();
    for (path, says) in [
        ("nowhere/at/all", "mkdir -p"),
        ("file", "a directory"),
        ("link", "symbolic links"),
        ("../etc", "root of the file system"),
    ] {
        let text = refused(&node, &["mount", place, "-o", &format!("subdir={path}")]);
        assert!(text.contains(says), "{path}: {text}");
    }
    let missing = node.mnt.with_file_name("missing");
    let text = refused(&node, &["mount", missing.to_str().unwrap()]);
    assert!(text.contains("mkdir -p"), "{text}");
    assert_eq!(node.ask(&["status"])["mounts"].as_array().unwrap().len(), 1);
    // The same for the node's own mount; options are remembered.
    node.must(&["down"]);
    let text = refused(&node, &["up", "-o", "subdir=missing"]);
    assert!(text.contains("missing"), "{text}");
    node.must(&["up", "-o", "rw"]);
    fs::create_dir(node.path("missing")).unwrap();
    node.must(&["down"]);
    node.must(&["up", "-o", "subdir=missing"]);
    assert!(!node.path("file").exists());
}

/// Makes all kinds of changes and checks that the other mount sees them.
fn changes_are_seen(here: &Path, there: &Path, round: usize) {
    let name = format!("round{round}");
    let (mine, theirs) = (here.join(&name), there.join(&name));
    assert!(!theirs.exists(), "looked up before it is made");
    let mut file = File::create(&mine).unwrap();
    assert_eq!(fs::metadata(&theirs).unwrap().len(), 0);
    let reader = File::open(&theirs).unwrap();
    for step in 1..=20u8 {
        file.write_all(&vec![step; 5_000]).unwrap();
        let length = u64::from(step) * 5_000;
        assert_eq!(fs::metadata(&theirs).unwrap().len(), length);
        assert_eq!(reader.metadata().unwrap().len(), length);
        let mut last = [0; 1];
        reader.read_exact_at(&mut last, length - 1).unwrap();
        assert_eq!(last[0], step);
        // Overwrites what was read before, after utimes has set mtime ahead.
        let ahead = SystemTime::now() + Duration::from_secs(1_000);
        file.set_times(fs::FileTimes::new().set_modified(ahead))
            .unwrap();
        file.write_all_at(&[200 + step], 7).unwrap();
        reader.read_exact_at(&mut last, 7).unwrap();
        assert_eq!(last[0], 200 + step);
        assert_eq!(fs::read(&theirs).unwrap()[7], 200 + step);
    }
    fs::set_permissions(&mine, fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(fs::metadata(&theirs).unwrap().mode() & 0o777, 0o640);
    let moved = format!("moved{round}");
    fs::rename(&mine, here.join(&moved)).unwrap();
    assert!(!theirs.exists() && there.join(&moved).exists());
    let names: Vec<_> = fs::read_dir(there)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert!(names.iter().any(|found| found == moved.as_str()));
    fs::remove_file(here.join(&moved)).unwrap();
    assert!(!there.join(&moved).exists());
    reader.read_exact_at(&mut [0; 1], 7).unwrap();
}

#[test]
fn what_one_mount_changes_the_other_sees_at_once() {
    let node = Node::new();
    fs::create_dir(node.path("shared")).unwrap();
    // Cached by the first mount's kernel while it was alone: attributes, names, pages.
    fs::write(node.path("shared/early"), "before").unwrap();
    let early = File::open(node.path("shared/early")).unwrap();
    early.read_exact_at(&mut [0; 6], 0).unwrap();
    assert!(!node.path("shared/late").exists());
    let place = node.place("view");
    node.must(&["mount", place.to_str().unwrap(), "-o", "subdir=shared"]);
    fs::write(place.join("early"), "after!").unwrap();
    fs::write(place.join("late"), "x").unwrap();
    assert!(node.path("shared/late").exists());
    let mut read = [0; 6];
    early.read_exact_at(&mut read, 0).unwrap();
    assert_eq!(&read, b"after!");
    assert_eq!(
        fs::read_to_string(node.path("shared/early")).unwrap(),
        "after!"
    );
    for round in 0..3 {
        changes_are_seen(&node.path("shared"), &place, 2 * round);
        changes_are_seen(&place, &node.path("shared"), 2 * round + 1);
    }
    // A third mount, read-only, sees it too; the caches come back when one mount is left.
    let third = node.place("third");
    node.must(&["mount", third.to_str().unwrap(), "-o", "ro"]);
    fs::write(place.join("late"), "longer").unwrap();
    assert_eq!(
        fs::read_to_string(third.join("shared/late")).unwrap(),
        "longer"
    );
    node.must(&["umount", third.to_str().unwrap()]);
    node.must(&["umount", place.to_str().unwrap()]);
    assert_eq!(
        fs::read_to_string(node.path("shared/late")).unwrap(),
        "longer"
    );
    node.check();
}

#[test]
fn a_mapped_page_shows_what_another_mount_wrote() {
    let node = Node::new();
    fs::write(node.path("file"), vec![1u8; 4096]).unwrap();
    let place = node.place("view");
    node.must(&["mount", place.to_str().unwrap()]);
    let file = File::open(place.join("file")).unwrap();
    // SAFETY: a fresh mapping of a file that stays open and 4 KiB long.
    let map = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_READ,
            libc::MAP_SHARED,
            std::os::fd::AsRawFd::as_raw_fd(&file),
            0,
        )
    };
    assert_ne!(map, libc::MAP_FAILED);
    let byte = map.cast::<u8>();
    // SAFETY: the mapping is 4 KiB and lives to the end of the test.
    let seen = || unsafe { byte.read_volatile() };
    assert_eq!(seen(), 1);
    let writer = File::options().write(true).open(node.path("file")).unwrap();
    writer.write_all_at(&[2], 0).unwrap();
    eventually("the mapped page shows the write", || seen() == 2);
    // SAFETY: mapped above, and not used any more.
    unsafe { libc::munmap(map, 4096) };
}

#[test]
fn status_lists_the_mounts_and_each_can_be_ended() {
    let node = Node::new();
    fs::create_dir(node.path("docs")).unwrap();
    let place = node.place("view");
    let shown = place.canonicalize().unwrap();
    node.must(&["mount", place.to_str().unwrap(), "-o", "ro,subdir=docs"]);
    let status = node.ask(&["status"]);
    assert_eq!(status["mounts"][1]["path"], shown.to_str().unwrap());
    assert_eq!(status["mounts"][1]["options"], "ro,subdir=docs");
    assert_eq!(status["mounts"][1]["state"], "mounted");
    let text = refused(&node, &["mount", place.to_str().unwrap()]);
    assert!(text.contains("mounted there already"), "{text}");
    // The node is found through the mount table.
    let binary = env!("CARGO_BIN_EXE_shale");
    let (code, said) = within_a_minute(Command::new(binary).arg("umount").arg(&place));
    assert_eq!(code, 0, "{said}");
    assert_eq!(mounted_as(&shown), None);
    let text = refused(&node, &["umount", place.to_str().unwrap()]);
    assert!(text.contains("no mount at"), "{text}");
    assert_eq!(node.ask(&["status"])["mounts"].as_array().unwrap().len(), 1);
    let link = place.with_file_name("link");
    std::os::unix::fs::symlink(&place, &link).unwrap();
    node.must(&["mount", link.to_str().unwrap()]);
    node.must(&["umount", link.to_str().unwrap()]);
    node.must(&["mount", place.to_str().unwrap()]);
    node.must(&["down"]);
    assert_eq!(mounted_as(&shown), None, "down ends all mounts");
}

#[test]
fn a_mount_ended_from_outside_shows_in_health_and_comes_back_with_up() {
    let node = Node::new();
    fs::write(node.path("file"), "x").unwrap();
    once_idle("umount", &[node.mnt.to_str().unwrap()]);
    eventually("the daemon sees it", || {
        node.ask(&["health"])["state"] == "degraded"
    });
    let health = node.ask(&["health"]);
    assert!(
        health["events"][0]["remedy"]
            .as_str()
            .unwrap()
            .contains("shale up")
    );
    let pid = node.pid();
    node.must(&["up"]);
    assert_eq!(node.pid(), pid, "the node ran on");
    assert_eq!(fs::read_to_string(node.path("file")).unwrap(), "x");
    assert_eq!(node.ask(&["health"])["state"], "healthy");
}
