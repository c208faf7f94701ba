//! Listing directories while they change, and very large ones, through the kernel.

use crate::fixture::{Node, eventually, once_idle, poll, signals::signal};
use rustix::process::Signal;
use std::{
    collections::BTreeMap,
    ffi::{CStr, CString},
    fs,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::Path,
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Duration,
};

/// An open directory stream of the C library.
struct Stream(*mut libc::DIR);

impl Stream {
    fn open(path: &Path) -> Self {
        let path = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: the path ends with NUL.
        let stream = unsafe { libc::opendir(path.as_ptr()) };
        assert!(!stream.is_null());
        Self(stream)
    }

    /// The next name.
    fn next(&mut self) -> Option<String> {
        self.next_entry().map(|(name, _)| name)
    }

    /// The next name with its inode number.
    fn next_entry(&mut self) -> Option<(String, u64)> {
        // SAFETY: the stream is open; the entry lives until the next call.
        unsafe {
            let entry = libc::readdir(self.0);
            (!entry.is_null()).then(|| {
                let name = CStr::from_ptr((*entry).d_name.as_ptr());
                (name.to_str().unwrap().to_owned(), (*entry).d_ino)
            })
        }
    }

    fn tell(&mut self) -> libc::c_long {
        // SAFETY: the stream is open.
        unsafe { libc::telldir(self.0) }
    }

    fn seek(&mut self, to: libc::c_long) {
        // SAFETY: the stream is open and `to` comes from telldir.
        unsafe { libc::seekdir(self.0, to) }
    }

    /// All names, from the start.
    fn names_again(&mut self) -> Vec<String> {
        // SAFETY: the stream is open.
        unsafe { libc::rewinddir(self.0) };
        std::iter::from_fn(|| self.next()).collect()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the stream is open and not used again.
        unsafe { libc::closedir(self.0) };
    }
}

#[test]
fn names_that_stay_are_listed_once_while_others_come_and_go() {
    let node = Node::new();
    let directory = node.path("d");
    fs::create_dir(&directory).unwrap();
    for number in 0..3000 {
        fs::write(directory.join(format!("stays{number}")), b"").unwrap();
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0u64.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let name = |number: u64| directory.join(format!("goes{number}"));
                fs::write(name(round), b"").unwrap();
                if round >= 100 {
                    if round % 3 == 0 {
                        fs::rename(name(round - 100), directory.join("moved")).unwrap();
                    } else {
                        fs::remove_file(name(round - 100)).unwrap();
                    }
                }
            }
        });
        for _ in 0..10 {
            let mut stream = Stream::open(&directory);
            let mut seen: BTreeMap<String, usize> = BTreeMap::new();
            while let Some(name) = stream.next() {
                if name.starts_with("stays") {
                    *seen.entry(name).or_default() += 1;
                }
            }
            assert_eq!(seen.len(), 3000);
            assert!(seen.values().all(|times| *times == 1));
        }
        stop.store(true, Ordering::Relaxed);
    });
    node.check();
}

#[test]
fn a_position_stays_good_while_names_come_and_go() {
    let node = Node::new();
    for number in 0..2000 {
        fs::write(node.path(&format!("f{number}")), b"").unwrap();
    }
    let mut stream = Stream::open(&node.mnt);
    let mut listed = Vec::new();
    loop {
        let at = stream.tell();
        let Some(name) = stream.next() else { break };
        listed.push((at, name));
    }
    assert_eq!(listed.len(), 2002);
    // Every third name is removed, new ones are added; positions of the others must still lead to
    // them.
    let goes = |name: &str| name.len() > 2 && name.as_bytes()[name.len() - 1].is_multiple_of(3);
    for (_, name) in &listed {
        if goes(name) {
            fs::remove_file(node.path(name)).unwrap();
            fs::write(node.path(&format!("new{name}")), b"").unwrap();
        }
    }
    // A new stream, because the C library has read ahead in the old one.
    let mut stream = Stream::open(&node.mnt);
    for (at, name) in listed.iter().rev().filter(|(_, name)| !goes(name)) {
        stream.seek(*at);
        // New names may come between the previous one and this one.
        let next = std::iter::from_fn(|| stream.next()).find(|name| !name.starts_with("new"));
        assert_eq!(next.as_deref(), Some(name.as_str()));
    }
}

/// The names with their sizes, as `ls -l` sees them. After two of them the kernel answers from
/// memory.
fn sizes(directory: &Path) -> BTreeMap<String, u64> {
    sizes_in(fs::read_dir(directory).unwrap())
}

fn sizes_in(entries: fs::ReadDir) -> BTreeMap<String, u64> {
    let entries = entries.map(|entry| {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        (name, entry.metadata().unwrap().len())
    });
    entries.collect()
}

/// Changes a directory and puts its mtime back.
fn same_time(directory: &Path, change: &dyn Fn()) {
    let modified = fs::metadata(directory).unwrap().modified().unwrap();
    change();
    let times = fs::FileTimes::new().set_modified(modified);
    fs::File::open(directory).unwrap().set_times(times).unwrap();
}

/// Lists an open directory while the daemon is stopped; false if that needs the daemon.
fn lists_without_the_daemon(
    entries: fs::ReadDir,
    expected: &BTreeMap<String, u64>,
    pid: i32,
) -> bool {
    signal(pid, Signal::STOP);
    let (tell, thread) = mpsc::channel();
    let expected = expected.clone();
    let lister = std::thread::spawn(move || {
        // SAFETY: a plain system call.
        tell.send(unsafe { libc::gettid() }).unwrap();
        assert_eq!(sizes_in(entries), expected);
    });
    let thread = thread.recv().unwrap();
    let patience = Duration::from_secs(60);
    let alone = poll::until("the listing ends or waits", patience, || {
        let call = fs::read_to_string(format!("/proc/self/task/{thread}/syscall"));
        let call = call.unwrap_or_default();
        let number = call.split(' ').next().and_then(|word| word.parse().ok());
        match number {
            _ if lister.is_finished() => Ok(true),
            Some(libc::SYS_getdents64 | libc::SYS_statx | libc::SYS_newfstatat) => Ok(false),
            _ => Err(call),
        }
    });
    signal(pid, Signal::CONT);
    lister.join().unwrap();
    alone
}

#[test]
fn the_third_listing_in_a_row_asks_the_daemon_for_neither_names_nor_attributes() {
    let node = Node::new();
    let directory = node.path("d");
    fs::create_dir(&directory).unwrap();
    for number in 0..1000 {
        fs::write(directory.join(format!("f{number}")), b"").unwrap();
    }
    let pid = node.pid();
    // The copy is used for 3 s, which a busy machine may need for the first two.
    eventually("the kernel has the names and the attributes", || {
        let expected = sizes(&directory);
        assert_eq!(sizes(&directory), expected);
        lists_without_the_daemon(fs::read_dir(&directory).unwrap(), &expected, pid)
    });
}

#[test]
fn a_moved_directory_lists_its_new_parent() {
    let node = Node::new();
    let [here, there] = ["here", "there"].map(|name| node.path(name));
    fs::create_dir_all(here.join("d")).unwrap();
    fs::create_dir(&there).unwrap();
    fs::write(here.join("d/file"), b"").unwrap();
    for _ in 0..3 {
        sizes(&here.join("d"));
    }
    fs::rename(here.join("d"), there.join("d")).unwrap();
    let mut moved = Stream::open(&there.join("d"));
    let parent = std::iter::from_fn(|| moved.next_entry()).find(|(name, _)| name == "..");
    assert_eq!(parent.unwrap().1, fs::metadata(&there).unwrap().ino());
}

#[test]
fn a_directory_that_was_open_before_a_second_mount_shows_changes_made_through_it() {
    let node = Node::new();
    fs::create_dir(node.path("d")).unwrap();
    fs::write(node.path("d/file"), b"").unwrap();
    let view = node.place("view");
    let whole = node.mnt.to_str().unwrap();
    let (inside, below) = (node.path("d"), view.clone());
    // Held through the whole file system and changed through the root of a mount, and vice versa.
    for (held, other, mount) in [
        (&inside, &below, [view.to_str().unwrap(), "subdir=d"]),
        (&below, &inside, [whole, "rw"]),
    ] {
        for _ in 0..2 {
            sizes(held);
        }
        let mut stream = Stream::open(held);
        assert!(!stream.names_again().contains(&"new".to_owned()));
        node.must(&["mount", mount[0], "-o", mount[1]]);
        let new = other.join("new");
        same_time(other, &|| fs::write(&new, b"").unwrap());
        let mut shows = |name: &str, is_there| {
            poll::eventually("the change shows", Duration::from_secs(60), || {
                stream.names_again().contains(&name.to_owned()) == is_there
            });
        };
        shows("new", true);
        same_time(other, &|| fs::rename(&new, other.join("newer")).unwrap());
        shows("newer", true);
        same_time(other, &|| fs::hard_link(other.join("newer"), &new).unwrap());
        shows("new", true);
        same_time(other, &|| fs::create_dir(other.join("sub")).unwrap());
        shows("sub", true);
        same_time(other, &|| fs::remove_dir(other.join("sub")).unwrap());
        shows("sub", false);
        for name in ["new", "newer"] {
            same_time(other, &|| fs::remove_file(other.join(name)).unwrap());
            shows(name, false);
        }
        drop(stream);
        if held == &inside {
            once_idle("umount", &["-i", whole]);
        }
    }
}

#[test]
fn a_listing_that_the_kernel_keeps_shows_every_change() {
    let node = Node::new();
    let directory = node.path("d");
    fs::create_dir(&directory).unwrap();
    let mut expected = BTreeMap::new();
    for number in 0..1000 {
        fs::write(directory.join(format!("f{number}")), b"").unwrap();
        expected.insert(format!("f{number}"), 0);
    }
    for round in 0..10 {
        let (old, new) = (format!("f{round}"), format!("new{round}"));
        assert_eq!(sizes(&directory), expected);
        assert_eq!(sizes(&directory), expected);
        // Also changes after which the old mtime is restored.
        same_time(&directory, &|| match round % 3 {
            0 => fs::rename(directory.join(&old), directory.join(&new)).unwrap(),
            1 => fs::remove_file(directory.join(&old)).unwrap(),
            _ => fs::write(directory.join(&old), b"longer").unwrap(),
        });
        match round % 3 {
            0 => drop((expected.remove(&old), expected.insert(new, 0))),
            1 => drop(expected.remove(&old)),
            _ => drop(expected.insert(old, 6)),
        }
    }
    // With a second mount, the kernel keeps no listings.
    let there = node.place("there");
    node.must(&["mount", there.to_str().unwrap()]);
    for round in 0..10 {
        assert_eq!(sizes(&directory), expected);
        assert_eq!(sizes(&there.join("d")), expected);
        let name = format!("there{round}");
        same_time(&there.join("d"), &|| {
            fs::write(there.join("d").join(&name), b"").unwrap();
        });
        expected.insert(name, 0);
    }
    assert_eq!(sizes(&directory), expected);
}

#[test]
fn a_directory_of_very_many_entries_lists_finds_and_empties() {
    let count: u64 = if std::env::var_os("SHALE_LONG").is_some() {
        1_000_000
    } else {
        40_000
    };
    let node = Node::new();
    let directory = node.path("many");
    fs::create_dir(&directory).unwrap();
    for number in 0..count {
        fs::File::create(directory.join(number.to_string())).unwrap();
    }
    node.must(&["down"]);
    node.must(&["up"]);
    let mut seen = vec![false; count as usize];
    for entry in fs::read_dir(&directory).unwrap() {
        let name = entry.unwrap().file_name();
        let number: usize = name.to_str().unwrap().parse().unwrap();
        assert!(
            !std::mem::replace(&mut seen[number], true),
            "{number} twice"
        );
    }
    assert!(seen.iter().all(|seen| *seen));
    assert!(directory.join((count / 2).to_string()).exists());
    assert!(!directory.join(count.to_string()).exists());
    fs::remove_dir_all(&directory).unwrap();
    node.check();
}
