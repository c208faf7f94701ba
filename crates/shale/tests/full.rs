//! A full pool: refuses only with ENOSPC, always allows deleting, keeps every counter exact.

use crate::fixture::{
    Node,
    bounded::{event, must_be_sound, run, shale, wait_for, wait_healthy, wait_until},
    must_run, pattern, skipped, tells_of_directory,
};
use std::{
    collections::BTreeSet,
    ffi::CString,
    fs::{self, File},
    io::{self, Write},
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, MetadataExt},
    },
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::{Path, PathBuf},
    process::Command,
};

fn small() -> Node {
    Node::with(&["--nsd-size", "512M"])
}

#[track_caller]
fn is_no_space(error: &io::Error) {
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
}

/// Writes until refused, which must be with ENOSPC; returns the bytes written.
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

/// Counters must equal sums over all files.
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
    // Small writes are refused too.
    let more = fill(&node.path("more"), 100_000);
    assert!(more < taken / 10, "{more} after {taken}");
    counters_are_exact(&node);
    // Everything that takes no space works, and stored data is intact.
    fs::rename(node.path("small"), node.path("folder/renamed")).unwrap();
    assert!(fs::read(node.path("folder/renamed")).unwrap() == pattern(1, 3_000));
    assert!(fs::read(node.path("folder/keep")).unwrap() == pattern(2, 200_000));
    assert_eq!(fs::metadata(node.path("large")).unwrap().size(), taken);
    // It is still full after a restart, and deleting works.
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

/// Checks that the result is Ok or ENOSPC; returns whether it is Ok.
#[track_caller]
fn done_or_full(result: io::Result<()>) -> bool {
    match result {
        Ok(()) => true,
        Err(error) => {
            is_no_space(&error);
            false
        }
    }
}

/// Converts the result of a system call that returns 0 on success.
fn called(result: libc::c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn allocate(file: &File, how: libc::c_int, offset: u64, length: u64) -> io::Result<()> {
    // SAFETY: a plain system call on a descriptor that `file` keeps open.
    called(unsafe { libc::fallocate(file.as_raw_fd(), how, offset as i64, length as i64) })
}

fn set_attribute(path: &Path, name: &str, value: &[u8]) -> io::Result<()> {
    let path = CString::new(path.to_str().unwrap()).unwrap();
    let name = CString::new(name).unwrap();
    let (bytes, length) = (value.as_ptr().cast(), value.len());
    // SAFETY: the names end with NUL, the value is as long as stated.
    called(unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), bytes, length, 0) })
}

fn count_attributes(path: &Path) -> usize {
    let path = CString::new(path.to_str().unwrap()).unwrap();
    let mut names = vec![0u8; 65_536];
    let room = names.len();
    // SAFETY: the path ends with NUL, the buffer is as long as stated.
    let length = unsafe { libc::listxattr(path.as_ptr(), names.as_mut_ptr().cast(), room) };
    let length = usize::try_from(length).expect("the names are listed");
    names[..length].iter().filter(|byte| **byte == 0).count()
}

/// A file made before the pool was full, and its expected content.
struct Kept {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl Kept {
    fn make(node: &Node, name: &str, length: usize) -> Self {
        let (path, bytes) = (node.path(name), pattern(length as u64, length));
        fs::write(&path, &bytes).unwrap();
        Self { path, bytes }
    }

    fn open(&self) -> File {
        File::options()
            .read(true)
            .write(true)
            .open(&self.path)
            .unwrap()
    }

    /// Overwrites or appends. The bytes that the call reports as written must be there.
    fn write(&mut self, at: usize, length: usize) -> bool {
        let new = pattern(at as u64 + 99, length);
        match self.open().write_at(&new, at as u64) {
            Ok(taken) => {
                let end = at + taken;
                if self.bytes.len() < end {
                    self.bytes.resize(end, 0);
                }
                self.bytes[at..end].copy_from_slice(&new[..taken]);
                taken == length
            }
            Err(error) => {
                is_no_space(&error);
                false
            }
        }
    }

    #[track_caller]
    fn check(&self) {
        let found = fs::read(&self.path).unwrap();
        assert_eq!(found.len(), self.bytes.len(), "{}", self.path.display());
        assert!(found == self.bytes, "{}: wrong bytes", self.path.display());
    }
}

/// Creates names of each kind until one is refused, or many exist; returns those created.
fn names_until_full(node: &Node, old: &Path) -> Vec<PathBuf> {
    const MANY: usize = 300;
    let mut made = Vec::new();
    type Make<'a> = (&'a str, &'a dyn Fn(&Path) -> io::Result<()>);
    let kinds: [Make; 4] = [
        ("directory", &|path| fs::create_dir(path)),
        ("link", &|path| fs::hard_link(old, path)),
        ("symlink", &|path| {
            std::os::unix::fs::symlink("t".repeat(1000), path)
        }),
        ("file", &|path| File::create_new(path).map(drop)),
    ];
    for (kind, make) in kinds {
        for number in 0..MANY {
            let path = node.path(&format!("{kind}{number}"));
            let is_made = done_or_full(make(&path));
            assert_eq!(
                path.symlink_metadata().is_ok(),
                is_made,
                "{}",
                path.display()
            );
            if !is_made {
                break;
            }
            made.push(path);
        }
    }
    made
}

#[test]
fn in_a_full_pool_each_change_is_done_or_refused_with_enospc_and_removing_always_works() {
    let node = small();
    let empty = available(&node);
    let mut large = Kept::make(&node, "kept-large", 8 << 20);
    let mut medium = Kept::make(&node, "kept-medium", 100_000);
    let mut small = Kept::make(&node, "kept-small", 700);
    let mut cut = Kept::make(&node, "kept-cut", 5 << 20);
    let mut holed = Kept::make(&node, "kept-holed", 5 << 20);
    node.must(&["fs", "sync"]);
    fill(&node.path("filler"), 1 << 20);
    fill(&node.path("filler-small"), 10_000);

    // Overwriting takes new space before the old space is free; appending takes more.
    let mut refused = 0;
    for round in 0..40 {
        refused += usize::from(!large.write(round * 200_000, 190_000));
        refused += usize::from(!medium.write(round * 2_000, 5_000));
        let end = large.bytes.len();
        refused += usize::from(!large.write(end, 500_000));
        let end = small.bytes.len();
        refused += usize::from(!small.write(end, 50));
    }
    assert!(refused > 20, "the pool isn't full: {refused} refused");
    let mut appending = File::options().append(true).open(&medium.path).unwrap();
    match appending.write(&pattern(3, 70_000)) {
        Ok(taken) => medium.bytes.extend_from_slice(&pattern(3, 70_000)[..taken]),
        Err(error) => is_no_space(&error),
    }
    let made = names_until_full(&node, &medium.path);
    let mut attributes = 0;
    for number in 0..60u64 {
        let value = pattern(number, 900);
        attributes += usize::from(done_or_full(set_attribute(
            &small.path,
            &format!("user.a{number}"),
            &value,
        )));
    }
    // Moving takes no space itself, but its record goes into the log like any other.
    let moved = node.path("kept-moved");
    if done_or_full(fs::rename(&medium.path, &moved)) {
        medium.path = moved;
    }
    // Freeing space is never refused.
    cut.open().set_len(1_000_001).unwrap();
    cut.bytes.truncate(1_000_001);
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    allocate(&holed.open(), punch, 0, 3 << 20).unwrap();
    holed.bytes[..3 << 20].fill(0);
    // A hole in the middle of an extent splits it; growing adds a hole at the end.
    let (from, length) = (4_100_000, 50_000);
    if done_or_full(allocate(&holed.open(), punch, from as u64, length as u64)) {
        holed.bytes[from..from + length].fill(0);
    }
    if done_or_full(small.open().set_len(90_000)) {
        small.bytes.resize(90_000, 0);
    }
    let kept = [&large, &medium, &small, &cut, &holed];
    kept.iter().for_each(|file| file.check());
    let listed = count_attributes(&small.path);
    assert_eq!(listed, attributes, "refused attributes don't exist");
    counters_of_names_are_exact(&node);

    // The same after a crash: synced data survives.
    node.must(&["fs", "sync"]);
    node.kill();
    node.must(&["up"]);
    kept.iter().for_each(|file| file.check());
    for path in made {
        if path.is_dir() && !path.is_symlink() {
            fs::remove_dir(&path).unwrap();
        } else {
            fs::remove_file(&path).unwrap();
        }
    }
    for file in kept {
        fs::remove_file(&file.path).unwrap();
    }
    fs::remove_file(node.path("filler")).unwrap();
    fs::remove_file(node.path("filler-small")).unwrap();
    assert_eq!(fs::read_dir(&node.mnt).unwrap().count(), 0);
    wait_for(&node, &["fs", "df"], |df| {
        df["available"].as_u64().unwrap() > empty / 10 * 9
    });
    wait_healthy(&node);
    fs::write(node.path("again"), pattern(3, 50 << 20)).unwrap();
    counters_are_exact(&node);
    must_be_sound(&node);
}

/// Counts inodes in the mount, hard links once.
fn counters_of_names_are_exact(node: &Node) {
    let mut inodes = BTreeSet::from([fs::metadata(&node.mnt).unwrap().ino()]);
    let (mut folders, mut bytes) = (vec![node.mnt.clone()], 0);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let entry = entry.unwrap();
            let metadata = entry.path().symlink_metadata().unwrap();
            if metadata.is_dir() {
                folders.push(entry.path());
            }
            if inodes.insert(metadata.ino()) && metadata.is_file() {
                bytes += metadata.len();
            }
        }
    }
    node.must(&["fs", "sync"]);
    let df = node.ask(&["fs", "df"]);
    assert_eq!(df["inodes"], inodes.len());
    assert_eq!(df["logical"], bytes);
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
    // A background commit may take some KiB meanwhile.
    assert!(available(&node).abs_diff(before) < 1 << 20);
    allocate(before / 2).unwrap();
    assert_eq!(file.metadata().unwrap().len(), before / 2);
    counters_are_exact(&node);
}

#[test]
fn small_files_until_full_are_refused_with_enospc_and_can_be_removed() {
    let node = small();
    // Fills most of the space at once, the rest with small files and names.
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
    // Even names alone are refused at some point, and never with another error.
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

/// Works with a node whose directory has a small disk of its own, which is gone afterwards whatever happens.
fn on_a_small_disk(test: &str, work: impl FnOnce(&Node)) {
    let node = Node::unstarted();
    let home = node.dir.parent().unwrap().to_path_buf();
    fs::create_dir(&node.dir).unwrap();
    let image = home.join("image");
    File::create(&image).unwrap().set_len(800 << 20).unwrap();
    let names = [image.display().to_string(), node.dir.display().to_string()];
    must_run(&home, "mkfs.ext4", &["-q", &names[0]]);
    let mounted = run(Command::new("mount").args(["-o", "loop", &names[0], &names[1]]));
    if mounted.code != 0 {
        let why = format!("no loop devices here ({})", mounted.text.trim());
        skipped(test, &why);
        return;
    }
    let worked = catch_unwind(AssertUnwindSafe(|| work(&node)));
    let down = shale(&node, &["down"]);
    // The kernel closes the regions of a process a little after its end.
    wait_until("umount", || {
        let umount = run(Command::new("umount").arg(&names[1]));
        if umount.code == 0 {
            Ok(())
        } else {
            Err(umount.text)
        }
    });
    if let Err(panic) = worked {
        resume_unwind(panic);
    }
    assert_eq!(down.code, 0, "{}", down.text);
}

#[test]
fn up_without_room_on_the_host_leaves_nothing_half_made_and_can_be_repeated() {
    let test = "up_without_room_on_the_host_leaves_nothing_half_made_and_can_be_repeated";
    on_a_small_disk(test, |node| {
        // A new file system has lost+found in it.
        let refused = shale(node, &["up", "--nsd-size", "1G"]);
        let left = fs::read_dir(node.dir.join("nsd")).map_or(0, Iterator::count);
        let has_coordination = node.dir.join("coordination.region").exists();
        refused.refused_with(&["No space left on device", "smaller --nsd-size"]);
        assert_eq!(
            (left, has_coordination),
            (0, false),
            "half a file system is left"
        );
        node.must(&["up", "--nsd-size", "512M"]);
    });
}

/// Lengthens the daemon's log to whole blocks: nothing more fits into it on a full disk.
fn fill_last_block_of_log(node: &Node) {
    const BLOCK: usize = 4096;
    let path = node.dir.join("daemon.log");
    let mut log = File::options().append(true).open(path).unwrap();
    let length = log.metadata().unwrap().len() as usize;
    let rest = length.next_multiple_of(BLOCK) - length;
    log.write_all(&vec![b'\n'; rest]).unwrap();
}

/// Waits until the node keeps such an event about its directory.
#[track_caller]
fn until_kept(node: &Node, event: &str) {
    wait_for(node, &["events"], |events| {
        tells_of_directory(events, event)
    });
}

#[test]
fn a_full_disk_under_the_nodes_directory_is_told_and_loses_nothing() {
    let test = "a_full_disk_under_the_nodes_directory_is_told_and_loses_nothing";
    on_a_small_disk(test, |node| {
        node.must(&["up", "--nsd-size", "512M"]);
        let store = |number: u64| {
            let mut file = File::create(node.path(&format!("file{number}"))).unwrap();
            file.write_all(&pattern(number, 3 << 20)).unwrap();
            file.sync_all().unwrap();
        };
        let must_be_there = |numbers: std::ops::Range<u64>| {
            for number in numbers {
                let found = fs::read(node.path(&format!("file{number}"))).unwrap();
                assert!(found == pattern(number, 3 << 20), "file{number}");
            }
        };
        store(0);
        fill_last_block_of_log(node);
        let filler = node.dir.join("filler");
        fill(&filler, 1 << 20);
        let told = event(node, "directory ", "its disk is full: ");
        assert!(told["remedy"].as_str().unwrap().contains("free space"));
        // It can't be kept on the disk, and that can't be logged.
        until_kept(node, "critical-begins");
        store(1);
        must_be_there(0..2);
        // A daemon that has died can be started again.
        node.kill();
        node.must(&["up"]);
        must_be_there(0..2);
        wait_for(node, &["events"], |events| {
            let all = events.as_array().unwrap();
            let started = all
                .iter()
                .rposition(|line| line["event"] == "daemon-started");
            let since = serde_json::Value::from(&all[started.unwrap()..]);
            tells_of_directory(&since, "critical-begins")
        });
        fs::remove_file(&filler).unwrap();
        until_kept(node, "critical-ends");
        store(2);
        node.must(&["down"]);
        node.must(&["up"]);
        must_be_there(0..3);
        until_kept(node, "critical-begins");
        until_kept(node, "critical-ends");
        must_be_sound(node);
    });
}
