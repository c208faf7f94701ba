//! Breakage under or beside the node as a user sees it: the message says what, where and what to
//! do, nothing is changed, nothing hangs, and the node works again once it is fixed.

use crate::fixture::{
    self, Node,
    bounded::{self, event, in_own_mounts, must_be_sound, shale},
    pattern,
};
use model::checksum::crc32c;
use std::{
    fs::{self, OpenOptions},
    os::unix::fs::{FileExt, PermissionsExt},
    path::{Path, PathBuf},
    process::Command,
};

const BLOCK: usize = 4096;

/// A stopped node with one small NSD and a file.
fn resting() -> Node {
    let node = Node::with(&["--nsd-size", "512M"]);
    fs::write(node.path("file"), pattern(1, 300_000)).unwrap();
    node.must(&["down"]);
    node
}

fn comes_up_with_its_file(node: &Node) {
    let up = shale(node, &["up"]);
    assert_eq!(up.code, 0, "{}", up.text);
    assert!(fs::read(node.path("file")).unwrap() == pattern(1, 300_000));
    node.must(&["fs", "check", "--deep"]);
}

fn region(node: &Node) -> PathBuf {
    node.dir.join("nsd/1.region")
}

fn overwrite(path: &Path, offset: u64, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(bytes, offset).unwrap();
}

fn read_at(path: &Path, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let file = fs::File::open(path).unwrap();
    file.read_exact_at(&mut bytes, offset).unwrap();
    bytes
}

#[test]
fn a_directory_that_is_a_file_or_of_another_user_is_refused_with_advice() {
    let node = Node::unstarted();
    fs::create_dir_all(node.dir.parent().unwrap()).unwrap();
    fs::write(&node.dir, "a file").unwrap();
    shale(&node, &["up"]).refused_with(&["--dir must be a directory"]);
    fs::remove_file(&node.dir).unwrap();
    fs::create_dir(&node.dir).unwrap();
    // Readable by everyone, writable by its owner only.
    fs::set_permissions(&node.dir, fs::Permissions::from_mode(0o755)).unwrap();
    let copy = node.dir.parent().unwrap().join("shale");
    fixture::copy_program(env!("CARGO_BIN_EXE_shale"), &copy);
    let home = node.dir.parent().unwrap();
    fs::set_permissions(home, fs::Permissions::from_mode(0o755)).unwrap();
    let as_nobody = |arguments: &[&str]| {
        bounded::run(
            Command::new("setpriv")
                .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
                .arg(&copy)
                .args(arguments)
                .arg("--dir")
                .arg(&node.dir),
        )
    };
    let is_reached = bounded::run(
        Command::new("setpriv")
            .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
            .args(["test", "-x"])
            .arg(&copy),
    );
    if is_reached.code == 0 {
        as_nobody(&["up"]).refused_with(&["belongs to user 0", "run as its owner"]);
        assert_eq!(fs::read_dir(&node.dir).unwrap().count(), 0);
        node.must(&["up", "--nsd-size", "512M"]);
        for command in ["status", "health", "down"] {
            as_nobody(&[command]).refused_with(&["belongs to another user", "run as its owner"]);
        }
        must_be_sound(&node);
    }
}

#[test]
fn a_node_without_its_only_nsd_says_which_path_is_missing_and_makes_nothing_new() {
    let node = resting();
    let (path, away) = (region(&node), node.dir.join("away"));
    fs::rename(&path, &away).unwrap();
    let name = path.display().to_string();
    shale(&node, &["up"]).refused_with(&["NSD 1", &name, "No such file", "bring it back"]);
    assert!(!path.exists(), "no empty file system was made");
    for (make, words) in [
        (0, ["was emptied", "bring it back"]),
        (512 << 20, ["no NSD superblock", "bring the region back"]),
    ] {
        fs::File::create(&path).unwrap().set_len(make).unwrap();
        shale(&node, &["up"]).refused_with(&[&[name.as_str()], &words[..]].concat());
        assert!(
            read_at(&path, 0, make.min(1 << 20) as usize)
                .iter()
                .all(|b| *b == 0)
        );
    }
    fs::create_dir(node.dir.join("folder")).unwrap();
    fs::remove_file(&path).unwrap();
    fs::rename(node.dir.join("folder"), &path).unwrap();
    shale(&node, &["up"]).refused_with(&[&name, "Is a directory"]);
    fs::remove_dir(&path).unwrap();
    fs::rename(&away, &path).unwrap();
    comes_up_with_its_file(&node);
}

#[test]
fn a_region_that_was_cut_short_or_is_another_file_systems_is_refused_and_left_alone() {
    let node = resting();
    let path = region(&node);
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    let (whole, back) = (
        512 << 20,
        read_at(&path, (512 << 20) - 4 * BLOCK as u64, 4 * BLOCK),
    );
    file.set_len(400 << 20).unwrap();
    shale(&node, &["up"]).refused_with(&["was cut short", "bring the whole region back"]);
    file.set_len(whole).unwrap();
    overwrite(&path, whole - 4 * BLOCK as u64, &back);
    drop(file);

    let other = resting();
    let away = node.dir.join("away");
    fs::rename(&path, &away).unwrap();
    fs::rename(region(&other), &path).unwrap();
    let before = read_at(&path, 0, 1 << 20);
    shale(&node, &["up"]).refused_with(&["of another file system", "put the right region back"]);
    assert!(
        read_at(&path, 0, 1 << 20) == before,
        "not a byte of it was changed"
    );
    fs::rename(&path, region(&other)).unwrap();
    fs::rename(&away, &path).unwrap();
    comes_up_with_its_file(&node);
    comes_up_with_its_file(&other);
}

#[test]
fn a_region_that_can_only_be_read_is_refused_until_it_can_be_written() {
    let node = resting();
    let line = r#"mount --bind "$DIR/nsd" "$DIR/nsd"; mount -o remount,ro,bind "$DIR/nsd"
        "$SHALE" up --dir "$DIR""#;
    in_own_mounts(&node, line).refused_with(&["Read-only file system", "make it writable"]);
    // Nor can the daemon log and lock.
    let line =
        r#"mount --bind "$DIR" "$DIR"; mount -o remount,ro,bind "$DIR"; "$SHALE" up --dir "$DIR""#;
    let words = ["daemon.log", "Read-only file system", "make it writable"];
    in_own_mounts(&node, line).refused_with(&words);
    let line = line.replace(" up ", " daemon ");
    let words = ["daemon.lock", "Read-only file system", "make it writable"];
    in_own_mounts(&node, &line).refused_with(&words);
    comes_up_with_its_file(&node);
}

#[test]
fn what_a_newer_shale_wrote_is_refused_and_left_as_it_is() {
    let node = resting();
    // node.toml, with a field that this program doesn't know.
    let toml = node.dir.join("node.toml");
    let text = fs::read_to_string(&toml).unwrap();
    let newer = format!(
        "tide = \"high\"\n{}",
        text.replace("version = 1", "version = 3")
    );
    fs::write(&toml, &newer).unwrap();
    shale(&node, &["up"]).refused_with(&["node.toml", "newer Shale", "upgrade"]);
    assert_eq!(fs::read_to_string(&toml).unwrap(), newer);
    fs::write(&toml, &text).unwrap();
    // A superblock.
    let path = region(&node);
    let back = fs::metadata(&path).unwrap().len() - 4 * BLOCK as u64;
    let slots = (0..4).flat_map(|slot| [slot * BLOCK as u64, back + slot * BLOCK as u64]);
    let old: Vec<_> = slots.map(|at| (at, read_at(&path, at, BLOCK))).collect();
    for (at, block) in &old {
        let mut block = block.clone();
        block[8] = 2;
        block[12..16].fill(0);
        let crc = crc32c(&block);
        block[12..16].copy_from_slice(&crc.to_le_bytes());
        overwrite(&path, *at, &block);
    }
    let before = read_at(&path, 0, 1 << 20);
    shale(&node, &["up"]).refused_with(&["NSD 1", "newer Shale", "upgrade"]);
    assert!(read_at(&path, 0, 1 << 20) == before);
    old.iter()
        .for_each(|(at, block)| overwrite(&path, *at, block));
    // Coordination.
    let path = node.dir.join("coordination.region");
    let whole = fs::read(&path).unwrap();
    let slot_bytes = whole.len() / 4;
    let mut newer = whole.clone();
    for slot in newer.chunks_mut(slot_bytes) {
        let body = u32::from_le_bytes(slot[12..16].try_into().unwrap()) as usize;
        slot[8] = 3;
        slot[24..28].fill(0);
        let crc = crc32c(&slot[..32 + body]);
        slot[24..28].copy_from_slice(&crc.to_le_bytes());
    }
    fs::write(&path, &newer).unwrap();
    shale(&node, &["up"]).refused_with(&["coordination", "newer Shale", "upgrade"]);
    assert!(fs::read(&path).unwrap() == newer);
    fs::write(&path, &whole).unwrap();
    comes_up_with_its_file(&node);
}

#[test]
fn a_damaged_or_lost_node_toml_is_refused_and_a_whole_file_system_is_never_made_anew() {
    let node = resting();
    let toml = node.dir.join("node.toml");
    let text = fs::read_to_string(&toml).unwrap();
    fs::write(&toml, text.replace("version", "versi\u{1}n")).unwrap();
    shale(&node, &["up"]).refused_with(&["node.toml", "fix this line"]);
    fs::write(&toml, &text[..text.len() / 2]).unwrap();
    shale(&node, &["up"]).refused_with(&["node.toml"]);
    fs::remove_file(&toml).unwrap();
    shale(&node, &["up"]).refused_with(&["lost its node.toml", "restore"]);
    // As if creation hadn't finished: the node sees that the file system is complete.
    fs::write(&toml, text.replace("created = true", "created = false")).unwrap();
    comes_up_with_its_file(&node);
}

#[test]
fn without_dev_fuse_it_is_said_what_is_missing_and_the_node_comes_up_later() {
    let node = resting();
    let line =
        r#"mount -t tmpfs none /dev; mknod -m 666 /dev/null c 1 3; "$SHALE" up --dir "$DIR""#;
    in_own_mounts(&node, line).refused_with(&["there is no /dev/fuse", "modprobe fuse"]);
    let line = r#"mount --bind /dev/null /dev/fuse; "$SHALE" up --dir "$DIR""#;
    in_own_mounts(&node, line).refused_with(&["a FUSE device", "--device /dev/fuse"]);
    comes_up_with_its_file(&node);
}

#[test]
fn a_mount_point_in_the_way_is_named_and_a_full_one_is_only_covered() {
    let node = resting();
    fs::write(node.mnt.join("below"), "covered").unwrap();
    comes_up_with_its_file(&node);
    assert!(
        !node.path("below").exists(),
        "covered while the file system is mounted"
    );
    node.must(&["down"]);
    assert_eq!(
        fs::read_to_string(node.mnt.join("below")).unwrap(),
        "covered"
    );
    fs::remove_file(node.mnt.join("below")).unwrap();
    fs::remove_dir(&node.mnt).unwrap();
    fs::write(&node.mnt, "a file").unwrap();
    shale(&node, &["up"]).refused_with(&["mnt", "directory"]);
    fs::remove_file(&node.mnt).unwrap();
    comes_up_with_its_file(&node);
    // Another node with the same mount point.
    let other = resting();
    let mount = node.mnt.display().to_string();
    shale(&other, &["up", "--mount", &mount]).refused_with(&[&mount, "mounted there already"]);
    // The directories of the nodes themselves.
    for place in [other.dir.as_path(), other.dir.parent().unwrap()] {
        let place = place.to_str().unwrap();
        shale(&other, &["up", "--mount", place]).refused_with(&[place, "would cover"]);
    }
    shale(&node, &["mount", node.dir.to_str().unwrap()]).refused_with(&["would cover"]);
    // No mount is ended in the name of another node, whose daemon makes nothing of it durable.
    for ends in [&["umount", &mount][..], &["fs", "unmount", &mount]] {
        let dir = node.dir.to_str().unwrap();
        shale(&other, ends).refused_with(&["serves the mount", dir]);
    }
    assert!(node.path("file").exists());
    must_be_sound(&node);
}

#[test]
fn a_directory_whose_daemon_is_just_ending_is_taken_over_by_up() {
    let node = resting();
    node.must(&["up"]);
    std::thread::scope(|scope| {
        let down = scope.spawn(|| shale(&node, &["down"]));
        let up = shale(&node, &["up"]);
        let down = down.join().unwrap();
        assert_eq!((up.code, down.code), (0, 0), "{} {}", up.text, down.text);
        // Either order works: the node was still up, or it came up again afterwards. `up` never
        // mounts what `down` then unmounts.
        let was_up = up.text.contains("is already up");
        assert!(was_up || up.text.contains("is up:"), "{}", up.text);
        let is_up = shale(&node, &["status"]).code == 0;
        assert_eq!(is_up, !was_up, "{} {}", up.text, down.text);
    });
    comes_up_with_its_file(&node);
}

/// Whether a command is connected to the node's daemon.
fn asks_daemon(node: &Node) -> bool {
    let socket = node.dir.join("daemon.sock");
    let all = fs::read_to_string("/proc/net/unix").unwrap();
    let mut of_node = all
        .lines()
        .filter(|line| line.ends_with(socket.to_str().unwrap()));
    // State 03 is a connection, 01 the daemon's own socket.
    of_node.any(|line| line.split_whitespace().nth(5) == Some("03"))
}

#[test]
fn a_mount_that_is_just_being_made_ends_with_the_node() {
    let node = resting();
    node.must(&["up"]);
    // From here on the kernel trusts what it has cached, and a second mount waits for that to end.
    fs::metadata(node.path("file")).unwrap();
    let second = node.place("second");
    let path = second.display().to_string();
    std::thread::scope(|scope| {
        let mount = scope.spawn(|| shale(&node, &["mount", &path]));
        fixture::eventually("the daemon is asked to mount", || asks_daemon(&node));
        let down = shale(&node, &["down"]);
        assert_eq!(down.code, 0, "{}", down.text);
        let mount = mount.join().unwrap();
        let is_refused = mount.text.contains("going down");
        assert!(mount.code == 0 || is_refused, "{}", mount.text);
    });
    assert_eq!(fixture::mounted_as(&second), None);
    assert_eq!(fixture::mounted_as(&node.mnt), None);
    comes_up_with_its_file(&node);
}

#[test]
fn a_mount_ended_from_outside_is_reported_and_comes_back() {
    let node = resting();
    node.must(&["up"]);
    let umount = Command::new("umount").arg("-l").arg(&node.mnt).status();
    assert!(umount.unwrap().success());
    event(&node, "mount", "the mount is gone");
    assert_eq!(shale(&node, &["down"]).code, 0);
    comes_up_with_its_file(&node);
}
