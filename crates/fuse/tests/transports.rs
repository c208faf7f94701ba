//! Promises of both transports: locks, waiting, falling back.

use crate::mounted::{self, Mounted, Waiter, io_uring, memory, on_both_transports, skipped};
use fuse::{Mount, MountOptions, Transport, TransportChoice, Unmount};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use testkit::memory::{MemoryFileSystem, MemorySettings};
use world::World;

on_both_transports! {
    a_hundred_waiting_locks_disturb_no_other_operation,
    a_forced_end_ends_the_waits_for_locks,
    each_mount_says_how_it_is_served,
    data_and_names_of_every_size_arrive_whole,
}

/// Waits until `reached`, for at most twenty seconds.
fn eventually(what: &str, mut reached: impl FnMut() -> bool) {
    mounted::eventually(Duration::from_secs(20), what, &mut reached);
}

/// The errno of flock(2), 0 if it succeeded.
fn flock(file: &File, operation: i32) -> i32 {
    // SAFETY: the descriptor is open over the call.
    if unsafe { libc::flock(file.as_raw_fd(), operation) } == 0 {
        return 0;
    }
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

/// Threads that wait for a shared lock; each returns flock's result.
fn lockers(path: &Path, count: usize) -> Vec<Waiter<i32>> {
    (0..count)
        .map(|_| {
            let file = File::open(path).unwrap();
            Waiter::start(move || flock(&file, libc::LOCK_SH))
        })
        .collect()
}

/// A locked file, and `count` threads that wait for the lock.
fn locked(mounted: &Mounted<MemoryFileSystem>, count: usize) -> (File, Vec<Waiter<i32>>) {
    let path = mounted.path("lock");
    let holder = File::create(&path).unwrap();
    assert_eq!(flock(&holder, libc::LOCK_EX), 0);
    let waiting = lockers(&path, count);
    // Over /dev/fuse a lock wait holds no thread, and isn't listed.
    if mounted.mount.transport().is_io_uring() {
        eventually("all wait", || mounted.mount.waiting().len() == count);
    }
    for one in &waiting {
        one.waits_in(libc::SYS_flock);
    }
    (holder, waiting)
}

fn a_hundred_waiting_locks_disturb_no_other_operation(transport: TransportChoice) {
    let mounted = memory(transport, MemorySettings::default());
    let (holder, waiting) = locked(&mounted, 100);
    let busy = |name: &'static str| {
        let path = mounted.path(name);
        std::thread::spawn(move || {
            for round in 0..200 {
                fs::write(&path, vec![7; round * 10]).unwrap();
                assert_eq!(fs::metadata(&path).unwrap().len(), round as u64 * 10);
                fs::remove_file(&path).unwrap();
            }
        })
    };
    let others = [busy("one"), busy("two"), busy("three")];
    // One more process waits and is killed.
    let mut child = Command::new("flock")
        .arg(mounted.path("lock"))
        .arg("true")
        .spawn()
        .unwrap();
    mounted::waits_in(&child, libc::SYS_flock);
    assert!(child.try_wait().unwrap().is_none(), "it waits");
    child.kill().unwrap();
    eventually("the signal ends it", || child.try_wait().unwrap().is_some());
    for other in others {
        other.join().unwrap();
    }
    assert!(waiting.iter().all(|one| !one.thread.is_finished()));
    assert_eq!(flock(&holder, libc::LOCK_UN), 0);
    for one in waiting {
        assert_eq!(one.thread.join().unwrap(), 0);
    }
    eventually("nothing waits", || mounted.mount.waiting().is_empty());
}

fn a_forced_end_ends_the_waits_for_locks(transport: TransportChoice) {
    let mounted = memory(transport, MemorySettings::default());
    let (_holder, waiting) = locked(&mounted, 20);
    mounted
        .runtime
        .block_on(mounted.mount.unmount(Unmount::Forced))
        .unwrap();
    eventually("all waits end", || {
        waiting.iter().all(|one| one.thread.is_finished())
    });
    for one in waiting {
        assert_ne!(one.thread.join().unwrap(), 0, "the program got an error");
    }
    mounted.runtime.block_on(mounted.mount.ended());
}

fn each_mount_says_how_it_is_served(transport: TransportChoice) {
    let mounted = memory(transport, MemorySettings::default());
    let said = mounted.mount.transport().to_string();
    match transport {
        TransportChoice::IoUring => assert_eq!(said, "io_uring"),
        _ => assert!(said.contains("switched off for this mount"), "{said}"),
    }
}

/// Requests with several arguments, and payloads up to the largest.
fn data_and_names_of_every_size_arrive_whole(transport: TransportChoice) {
    let mounted = memory(transport, MemorySettings::default());
    for length in [1, 100, 255] {
        let (from, to) = (
            mounted.path(&"a".repeat(length)),
            mounted.path(&"b".repeat(length)),
        );
        let target = "t".repeat(length * 16);
        std::os::unix::fs::symlink(&target, &from).unwrap();
        fs::rename(&from, &to).unwrap();
        assert_eq!(fs::read_link(&to).unwrap().to_str(), Some(target.as_str()));
        assert!(!from.exists());
        fs::remove_file(&to).unwrap();
    }
    let path = mounted.path("x");
    fs::write(&path, b"").unwrap();
    let file = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    for length in [0, 1, 4096, 65_536] {
        let value: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
        let mut read = vec![0u8; length.max(1)];
        let name = c"user.long";
        // SAFETY: the names end with NUL, the buffers are as long as stated.
        let (set, got) = unsafe {
            let value = value.as_ptr().cast();
            let set = libc::setxattr(file.as_ptr(), name.as_ptr(), value, length, 0);
            let read = read.as_mut_ptr().cast();
            let room = length.max(1);
            (
                set,
                libc::getxattr(file.as_ptr(), name.as_ptr(), read, room),
            )
        };
        assert_eq!((set, got), (0, length as isize));
        assert_eq!(read[..length], value);
    }
    let bytes: Vec<u8> = (0..2_000_003usize).map(|at| (at % 253) as u8).collect();
    fs::write(&path, &bytes).unwrap();
    assert!(fs::read(&path).unwrap() == bytes);
}

#[test]
fn locks_over_the_maximum_are_refused_and_nothing_hangs() {
    let Some(_switched_on) = io_uring("locks_over_the_maximum_are_refused_and_nothing_hangs")
    else {
        return;
    };
    let mounted = Mounted::with(
        TransportChoice::IoUring,
        |world| MemoryFileSystem::new(world, MemorySettings::default()),
        |options| options.threads_max = 8,
    );
    // Six lock waits are allowed, and one user may have two thirds of what others leave.
    let (holder, waiting) = locked(&mounted, 4);
    for one in lockers(&mounted.path("lock"), 5) {
        assert_eq!(one.thread.join().unwrap(), libc::ENOLCK);
    }
    fs::write(mounted.path("other"), b"goes on").unwrap();
    assert_eq!(fs::read(mounted.path("other")).unwrap(), b"goes on");
    drop(holder);
    for one in waiting {
        assert_eq!(one.thread.join().unwrap(), 0);
    }
}

/// The child process of the next test. Does nothing on its own.
#[test]
fn child_that_mounts_on_one_cpu() {
    let Some(directory) = std::env::var_os("SHALE_TEST_MOUNT_ON_ONE_CPU") else {
        return;
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let world = runtime.block_on(async { World::real() });
    let fs = Arc::new(MemoryFileSystem::new(&world, MemorySettings::default()));
    let mut options = MountOptions::new(&directory);
    let mount = Mount::start(&world, Arc::clone(&fs), &options).unwrap();
    let Transport::Classic { why } = mount.transport() else {
        panic!("io_uring needs all CPUs");
    };
    assert!(why.contains("may not run on CPU"), "{why}");
    fs::write(mount.mountpoint().join("f"), b"x").unwrap();
    runtime.block_on(mount.unmount(Unmount::Forced)).unwrap();
    options.transport = TransportChoice::IoUring;
    let refused = Mount::start(&world, fs, &options).unwrap_err();
    assert_eq!(refused.kind(), model::ErrorKind::NotSupported);
    assert!(refused.to_string().contains("taskset"), "{refused}");
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0, "unmounted");
}

#[test]
fn a_process_that_may_not_use_all_cpus_is_served_by_the_device() {
    if std::thread::available_parallelism().unwrap().get() < 2 {
        return skipped(
            "a_process_that_may_not_use_all_cpus_is_served_by_the_device",
            "this machine has one CPU",
        );
    }
    let _switch = mounted::TURN.read();
    let directory = tempfile::tempdir().unwrap();
    let child = Command::new("taskset")
        .args(["-c", "0"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "transports::child_that_mounts_on_one_cpu"])
        .env("SHALE_TEST_MOUNT_ON_ONE_CPU", directory.path())
        .output()
        .unwrap();
    assert!(child.status.success(), "{child:?}");
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(said.contains("1 passed"), "{said}");
}
