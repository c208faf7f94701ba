//! File locks through the kernel and the mount, between descriptors and between processes.

mod closes;
mod ends;
mod flocks;
pub(crate) mod processes;
mod ranges;
mod waits;

use crate::fixture::{Node, open};
use std::{
    fs::File,
    io::{BufRead, BufReader, Error, Write},
    os::fd::AsRawFd,
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

/// fcntl with a lock of `length` bytes; returns the errno if refused.
fn fcntl(
    file: &File,
    command: i32,
    kind: i32,
    start: i64,
    length: i64,
) -> Result<libc::flock, i32> {
    // SAFETY: flock is plain data; all zeros is a valid value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = start;
    lock.l_len = length;
    // SAFETY: the descriptor is open and the lock lives over the call.
    if unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) } < 0 {
        return Err(Error::last_os_error().raw_os_error().unwrap());
    }
    Ok(lock)
}

/// Another process that holds a file open and locks as told.
struct Other {
    child: Child,
    say: ChildStdin,
    answers: BufReader<ChildStdout>,
}

const OTHER: &str = "SHALE_TEST_LOCKER";

impl Other {
    fn start(path: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "locks::the_other_process", "--nocapture"])
            .env(OTHER, path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let say = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Self {
            child,
            say,
            answers,
        }
    }

    /// Makes it try a lock.
    fn begin(&mut self, command: i32, kind: i32, start: i64, length: i64) {
        writeln!(self.say, "{command} {kind} {start} {length}").unwrap();
    }

    /// The result: 0 or an errno.
    fn answer(&mut self) -> i32 {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.answers.read_line(&mut line).unwrap() > 0, "it died");
            if let Some((_, answer)) = line.split_once("answer ") {
                return answer.trim().parse().unwrap();
            }
        }
    }

    fn lock(&mut self, command: i32, kind: i32, start: i64, length: i64) -> i32 {
        self.begin(command, kind, start, length);
        self.answer()
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The other process of these tests. Does nothing on its own.
#[test]
fn the_other_process() {
    let Some(path) = std::env::var_os(OTHER) else {
        return;
    };
    let file = open(Path::new(&path));
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let numbers: Vec<i64> = line.split(' ').map(|n| n.parse().unwrap()).collect();
        let (command, kind) = (numbers[0] as i32, numbers[1] as i32);
        let result = fcntl(&file, command, kind, numbers[2], numbers[3]);
        println!("answer {}", result.err().unwrap_or(0));
    }
    std::process::exit(0);
}

#[test]
fn processes_share_and_exclude_ranges() {
    let node = Node::new();
    let path = node.path("f");
    let file = open(&path);
    let mut other = Other::start(&path);
    fcntl(&file, libc::F_SETLK, libc::F_WRLCK, 0, 100).unwrap();
    assert_eq!(
        other.lock(libc::F_SETLK, libc::F_RDLCK, 50, 10),
        libc::EAGAIN
    );
    assert_eq!(other.lock(libc::F_SETLK, libc::F_WRLCK, 100, 0), 0);
    let held = fcntl(&file, libc::F_GETLK, libc::F_RDLCK, 500, 1).unwrap();
    assert_eq!(held.l_pid, other.child.id() as i32);
    assert_eq!(
        (i32::from(held.l_type), held.l_start, held.l_len),
        (libc::F_WRLCK, 100, 0)
    );
    // Part of the range is unlocked, the rest stays locked.
    fcntl(&file, libc::F_SETLK, libc::F_UNLCK, 20, 10).unwrap();
    assert_eq!(other.lock(libc::F_SETLK, libc::F_WRLCK, 20, 10), 0);
    assert_eq!(
        other.lock(libc::F_SETLK, libc::F_WRLCK, 30, 1),
        libc::EAGAIN
    );
    fcntl(&file, libc::F_SETLK, libc::F_RDLCK, 30, 70).unwrap();
    assert_eq!(other.lock(libc::F_SETLK, libc::F_RDLCK, 30, 70), 0);
    // Locks end with their process.
    drop(other);
    fcntl(&file, libc::F_SETLKW, libc::F_WRLCK, 0, 0).unwrap();
}

#[test]
fn two_processes_that_wait_for_each_other_are_told() {
    let node = Node::new();
    let path = node.path("f");
    let file = open(&path);
    let mut other = Other::start(&path);
    fcntl(&file, libc::F_SETLK, libc::F_WRLCK, 0, 1).unwrap();
    assert_eq!(other.lock(libc::F_SETLK, libc::F_WRLCK, 1, 1), 0);
    other.begin(libc::F_SETLKW, libc::F_WRLCK, 0, 1);
    // The second waiter would close the circle, is refused, and unlocks.
    let (mine, others) = std::thread::scope(|scope| {
        let others = scope.spawn(|| {
            let answer = other.answer();
            if answer == libc::EDEADLK {
                assert_eq!(other.lock(libc::F_SETLK, libc::F_UNLCK, 1, 1), 0);
            }
            answer
        });
        let mine = fcntl(&file, libc::F_SETLKW, libc::F_WRLCK, 1, 1).map(drop);
        if mine == Err(libc::EDEADLK) {
            fcntl(&file, libc::F_SETLK, libc::F_UNLCK, 0, 1).unwrap();
        }
        (mine.err().unwrap_or(0), others.join().unwrap())
    });
    let mut seen = [mine, others];
    seen.sort_unstable();
    assert_eq!(seen, [0, libc::EDEADLK], "exactly one is refused");
}

#[test]
fn descriptions_and_whole_files_lock_as_well() {
    let node = Node::new();
    let (one, two) = (open(&node.path("f")), open(&node.path("f")));
    let (set, wait) = (libc::F_OFD_SETLK, libc::F_OFD_SETLKW);
    fcntl(&one, set, libc::F_WRLCK, 0, 10).unwrap();
    assert_eq!(
        fcntl(&two, set, libc::F_WRLCK, 5, 1).map(drop),
        Err(libc::EAGAIN)
    );
    let held = fcntl(&two, libc::F_OFD_GETLK, libc::F_WRLCK, 5, 1).unwrap();
    assert_eq!((i32::from(held.l_type), held.l_pid), (libc::F_WRLCK, -1));
    fcntl(&two, set, libc::F_WRLCK, 10, 10).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| fcntl(&two, wait, libc::F_WRLCK, 0, 10).map(drop));
        fcntl(&one, set, libc::F_UNLCK, 0, 0).unwrap();
        assert_eq!(waiting.join().unwrap(), Ok(()));
    });
    // flocks are independent.
    // SAFETY: the descriptors are open.
    unsafe {
        assert_eq!(libc::flock(one.as_raw_fd(), libc::LOCK_EX), 0);
        assert_eq!(
            libc::flock(two.as_raw_fd(), libc::LOCK_SH | libc::LOCK_NB),
            -1
        );
        assert_eq!(
            Error::last_os_error().raw_os_error(),
            Some(libc::EWOULDBLOCK)
        );
    }
    drop(one);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::flock(two.as_raw_fd(), libc::LOCK_SH) }, 0);
}
