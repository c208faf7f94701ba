//! Closing: the locks that it ends, and those that it must keep.

use super::processes::{Alone, Descriptor, WAYS, Way, attempts, fork, path_of};
use crate::fixture::own_process;
use libc::{EAGAIN, F_SETLK, F_WRLCK};

/// Several processes increment a counter in a file, locking it each time; returns the count.
fn counted(way: Way, processes: usize, rounds: u64) -> u64 {
    let alone = Alone::new();
    let path = alone.node.path("counter");
    std::fs::write(&path, 0u64.to_ne_bytes()).unwrap();
    let name = path_of(&path);
    let count = || {
        fork(|_| {
            for _ in 0..rounds {
                let file = Descriptor::open(&name);
                let locked = way.wait(file);
                if locked != 0 {
                    eprintln!("{way:?}: errno {locked}");
                    return 1;
                }
                let mut bytes = [0; 8];
                // SAFETY: both calls stay within the array.
                unsafe {
                    assert_eq!(libc::pread(file.0, bytes.as_mut_ptr().cast(), 8, 0), 8);
                    bytes = (u64::from_ne_bytes(bytes) + 1).to_ne_bytes();
                    assert_eq!(libc::pwrite(file.0, bytes.as_ptr().cast(), 8, 0), 8);
                }
                file.close();
            }
            0
        })
    };
    let mut all: Vec<_> = (0..processes).map(|_| count()).collect();
    for process in &mut all {
        assert_eq!(process.end(), 0);
    }
    u64::from_ne_bytes(std::fs::read(&path).unwrap().try_into().unwrap())
}

#[test]
fn eight_processes_that_lock_ranges_lose_no_increment() {
    own_process!();
    assert_eq!(counted(Way::Posix, 8, 200), 1600);
}

#[test]
fn eight_processes_that_use_flock_lose_no_increment() {
    own_process!();
    assert_eq!(counted(Way::Flock, 8, 200), 1600);
}

#[test]
fn eight_processes_that_lock_descriptions_lose_no_increment() {
    own_process!();
    assert_eq!(counted(Way::Ofd, 8, 200), 1600);
}

#[test]
fn a_lock_taken_after_a_close_outlives_the_end_of_the_closed_file() {
    own_process!();
    for way in WAYS {
        let alone = Alone::new();
        let path = path_of(&alone.node.path("f"));
        let mut other = attempts(way, &path);
        for round in 0..300 {
            let first = Descriptor::open(&path);
            assert_eq!(way.wait(first), 0, "{way:?} {round}");
            first.close();
            let second = Descriptor::open(&path);
            assert_eq!(way.wait(second), 0, "{way:?} {round}");
            assert_eq!(other.ask(0), EAGAIN, "{way:?} {round}");
            second.close();
        }
    }
}

#[test]
fn the_close_of_any_descriptor_ends_the_posix_locks_of_its_process() {
    own_process!();
    let alone = Alone::new();
    let path = path_of(&alone.node.path("f"));
    // All opened before any lock was taken.
    let (first, second) = (Descriptor::open(&path), Descriptor::open(&path));
    let third = first.duplicate();
    let mut other = attempts(Way::Posix, &path);
    for closed in [third, second] {
        assert_eq!(first.set(F_SETLK, F_WRLCK, 10, 10), 0);
        assert_eq!(other.ask(0), EAGAIN);
        closed.close();
        assert_eq!(other.ask(0), 0);
    }
    first.close();
}

#[test]
fn the_end_of_a_process_ends_its_posix_locks_while_its_child_has_the_file() {
    own_process!();
    let alone = Alone::new();
    let path = path_of(&alone.node.path("f"));
    let file = Descriptor::open(&path);
    let mut owner = fork(|wire| {
        assert_eq!(Way::Posix.wait(file), 0);
        // The child lives until the test kills it by its number, or for five minutes if that fails.
        // SAFETY: no memory is involved.
        let child = fork(|_| unsafe {
            libc::alarm(300);
            libc::pause()
        });
        wire.say(child.pid);
        std::mem::forget(child);
        i32::from(wire.hear() != 0)
    });
    let child = owner.wire.hear();
    let mut other = attempts(Way::Posix, &path);
    assert_eq!(other.ask(0), EAGAIN);
    owner.wire.say(0);
    assert_eq!(owner.end(), 0);
    let freed = other.ask(0);
    // SAFETY: the test's grandchild, not waited for yet.
    assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0);
    assert_eq!(freed, 0);
}

#[test]
fn locks_of_open_files_end_with_their_last_descriptor_only() {
    own_process!();
    for way in [Way::Flock, Way::Ofd] {
        let alone = Alone::new();
        let path = path_of(&alone.node.path("f"));
        let file = Descriptor::open(&path);
        let again = file.duplicate();
        assert_eq!(way.wait(file), 0);
        let mut other = attempts(way, &path);
        // The attempting process was forked after the lock, and shares its open file.
        file.close();
        assert_eq!(other.ask(0), EAGAIN, "{way:?}");
        let second = Descriptor::open(&path);
        second.close();
        assert_eq!(
            other.ask(0),
            EAGAIN,
            "{way:?}: another open's close is nothing to it"
        );
        let mut shares = fork(|wire| {
            assert_eq!(wire.hear(), 0);
            wire.say(way.unlock(again));
            wire.hear()
        });
        assert_eq!(shares.ask(0), 0);
        assert_eq!(
            other.ask(0),
            0,
            "{way:?}: whoever has the open file may unlock it"
        );
        assert_eq!(way.wait(again), 0);
        again.close();
        assert_eq!(other.ask(0), EAGAIN, "{way:?}: another process has it open");
        shares.wire.say(0);
        assert_eq!(shares.end(), 0);
    }
}

#[test]
fn posix_locks_stay_over_exec_and_are_not_inherited() {
    own_process!();
    let alone = Alone::new();
    let path = path_of(&alone.node.path("f"));
    let file = Descriptor::open(&path);
    assert_eq!(Way::Posix.wait(file), 0);
    let mut child = fork(|wire| {
        wire.say(Way::Posix.attempt(file));
        // Its exit closes the file, which ends only its own locks.
        0
    });
    assert_eq!((child.wire.hear(), child.end()), (EAGAIN, 0));
    let mut other = attempts(Way::Posix, &path);
    assert_eq!(other.ask(0), EAGAIN);
    file.close();
    let mut program = fork(|_| {
        let file = Descriptor::open(&path);
        assert_eq!(Way::Posix.wait(file), 0);
        // exec closes Rust's own descriptors, but not this one.
        let words = [c"sleep", c"1000"].map(std::ffi::CStr::as_ptr);
        let arguments = [words[0], words[1], std::ptr::null()];
        // SAFETY: strings that end with 0, and a list of them that ends with null.
        unsafe { libc::execv(c"/bin/sleep".as_ptr(), arguments.as_ptr()) };
        1
    });
    let name = || std::fs::read_to_string(format!("/proc/{}/comm", program.pid));
    crate::fixture::eventually("the program runs", || name().unwrap().trim() == "sleep");
    assert_eq!(other.ask(0), EAGAIN);
    program.signal(libc::SIGKILL);
    assert_eq!(program.end(), 128 + libc::SIGKILL);
    assert_eq!(other.ask(0), 0);
}
