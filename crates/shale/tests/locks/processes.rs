//! Child processes that lock as a test tells them, and the locking calls.

use crate::fixture::{Node, own_process};
use std::{
    ffi::CString,
    io::{Error, Read, Write},
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::{ffi::OsStrExt, net::UnixStream},
    },
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    time::Duration,
};

/// More than anything here takes on a working machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// A node, with no other test in this process: forked processes inherit all of its open files,
/// which would keep other tests' locks alive.
pub(crate) struct Alone {
    pub(crate) node: Node,
}

impl Alone {
    pub(crate) fn new() -> Self {
        let own = std::env::var_os(own_process::NAME);
        assert!(own.is_some(), "the test begins with own_process!()");
        Self { node: Node::new() }
    }

    /// Number of requests that wait for a file lock.
    pub(crate) fn waiting(&self) -> usize {
        let waiters = self.node.ask(&["waiters"]);
        let causes = waiters.as_array().unwrap().iter();
        causes
            .filter(|waiter| {
                let cause = waiter["cause"].as_str().unwrap();
                cause == "a file lock" || cause == "a flock"
            })
            .count()
    }

    /// Waits until this many requests wait for a file lock.
    pub(crate) fn until_waiting(&self, count: usize) {
        crate::fixture::eventually("the expected number of requests wait for a lock", || {
            self.waiting() == count
        });
    }
}

/// One end of the connection between a process and its test.
pub(crate) struct Wire(UnixStream);

impl Wire {
    pub(crate) fn say(&mut self, number: i32) {
        self.0.write_all(&number.to_ne_bytes()).unwrap();
    }

    pub(crate) fn hear(&mut self) -> i32 {
        let mut number = [0; 4];
        self.0.read_exact(&mut number).unwrap();
        i32::from_ne_bytes(number)
    }

    /// Whether nothing has been received yet.
    pub(crate) fn is_silent(&self) -> bool {
        let mut poll = libc::pollfd {
            fd: self.0.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one structure, alive over the call.
        unsafe { libc::poll(&raw mut poll, 1, 0) == 0 }
    }
}

/// A process; killed when dropped.
pub(crate) struct Process {
    pub(crate) pid: i32,
    descriptor: OwnedFd,
    pub(crate) wire: Wire,
    ended: bool,
}

/// Forks this program. The child runs `work`, with all the test's files open, and exits with the
/// code that `work` returns. It should not panic: no one would see it.
pub(crate) fn fork(work: impl FnOnce(&mut Wire) -> i32) -> Process {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(PATIENCE)).unwrap();
    theirs.set_read_timeout(Some(PATIENCE)).unwrap();
    // SAFETY: the child has a copy of this thread only, and uses the C library only in
    // ways that fork(2) keeps possible (memory, files); it never returns to the test's harness.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "{}", Error::last_os_error());
    if pid == 0 {
        drop(ours);
        let mut wire = Wire(theirs);
        let code = catch_unwind(AssertUnwindSafe(|| work(&mut wire))).unwrap_or(101);
        // SAFETY: ends the process.
        unsafe { libc::_exit(code) }
    }
    // SAFETY: the process hasn't been waited for yet, so the number is still its own.
    let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } as i32;
    assert!(descriptor >= 0, "{}", Error::last_os_error());
    Process {
        pid,
        // SAFETY: it was just made and has no other owner.
        descriptor: unsafe { OwnedFd::from_raw_fd(descriptor) },
        wire: Wire(ours),
        ended: false,
    }
}

impl Process {
    /// Waits for its end; returns the exit code, or 128 plus the signal that killed it.
    pub(crate) fn end(&mut self) -> i32 {
        let mut poll = libc::pollfd {
            fd: self.descriptor.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let patience = PATIENCE.as_millis() as i32;
        // SAFETY: one structure, alive over the call.
        let ready = unsafe { libc::poll(&raw mut poll, 1, patience) };
        assert_eq!(ready, 1, "process {} doesn't end", self.pid);
        let mut status = 0;
        // SAFETY: the status is alive over the call.
        let waited = unsafe { libc::waitpid(self.pid, &raw mut status, 0) };
        assert_eq!(waited, self.pid);
        self.ended = true;
        if libc::WIFSIGNALED(status) {
            128 + libc::WTERMSIG(status)
        } else {
            libc::WEXITSTATUS(status)
        }
    }

    pub(crate) fn signal(&self, signal: i32) {
        // SAFETY: the process is a child that wasn't waited for.
        assert_eq!(unsafe { libc::kill(self.pid, signal) }, 0);
    }

    /// Sends a number and receives the answer.
    pub(crate) fn ask(&mut self, number: i32) -> i32 {
        self.wire.say(number);
        self.wire.hear()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.ended {
            // SAFETY: as above; the status isn't wanted.
            unsafe {
                libc::kill(self.pid, libc::SIGKILL);
                libc::waitpid(self.pid, std::ptr::null_mut(), 0);
            }
        }
    }
}

/// A file to lock, by its descriptor's number.
#[derive(Clone, Copy)]
pub(crate) struct Descriptor(pub(crate) i32);

pub(crate) fn path_of(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

/// 0, or the errno.
fn outcome(result: i32) -> i32 {
    if result < 0 {
        Error::last_os_error().raw_os_error().unwrap()
    } else {
        0
    }
}

impl Descriptor {
    pub(crate) fn open(path: &CString) -> Self {
        // SAFETY: the path ends with 0 and is alive over the call.
        let number = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CREAT, 0o666) };
        assert!(number >= 0, "{}", Error::last_os_error());
        Self(number)
    }

    pub(crate) fn duplicate(self) -> Self {
        // SAFETY: no memory is involved.
        let number = unsafe { libc::dup(self.0) };
        assert!(number >= 0, "{}", Error::last_os_error());
        Self(number)
    }

    pub(crate) fn close(self) {
        // SAFETY: tests close what they opened.
        let closed = unsafe { libc::close(self.0) };
        assert_eq!(closed, 0, "{}", Error::last_os_error());
    }

    pub(crate) fn flock(self, operation: i32) -> i32 {
        // SAFETY: no memory is involved.
        outcome(unsafe { libc::flock(self.0, operation) })
    }

    /// fcntl(2) with a lock, which the call may change.
    pub(crate) fn fcntl(self, command: i32, lock: &mut libc::flock) -> i32 {
        // SAFETY: the lock is alive over the call.
        outcome(unsafe { libc::fcntl(self.0, command, &raw mut *lock) })
    }

    /// As `fcntl`, on a range relative to the file's start; length 0 means to its end.
    pub(crate) fn set(self, command: i32, kind: i32, start: i64, length: i64) -> i32 {
        self.fcntl(command, &mut range(kind, start, length))
    }

    /// F_GETLK for a lock of this process: the conflicting lock (kind, start, length, process).
    pub(crate) fn in_the_way(
        self,
        kind: i32,
        start: i64,
        length: i64,
    ) -> Option<(i32, i64, i64, i32)> {
        let mut lock = range(kind, start, length);
        assert_eq!(self.fcntl(libc::F_GETLK, &mut lock), 0);
        let found = i32::from(lock.l_type);
        (found != libc::F_UNLCK).then_some((found, lock.l_start, lock.l_len, lock.l_pid))
    }
}

pub(crate) fn range(kind: i32, start: i64, length: i64) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: length,
        l_pid: 0,
    }
}

/// The three ways to lock a whole file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    Posix,
    Flock,
    Ofd,
}

pub(crate) const WAYS: [Way; 3] = [Way::Posix, Way::Flock, Way::Ofd];

impl Way {
    /// Locks the file exclusively, waiting for it.
    pub(crate) fn wait(self, file: Descriptor) -> i32 {
        match self {
            Self::Posix => file.set(libc::F_SETLKW, libc::F_WRLCK, 0, 0),
            Self::Flock => file.flock(libc::LOCK_EX),
            Self::Ofd => file.set(libc::F_OFD_SETLKW, libc::F_WRLCK, 0, 0),
        }
    }

    /// As `wait`, without waiting: EAGAIN on conflict.
    pub(crate) fn attempt(self, file: Descriptor) -> i32 {
        match self {
            Self::Posix => file.set(libc::F_SETLK, libc::F_WRLCK, 0, 0),
            Self::Flock => file.flock(libc::LOCK_EX | libc::LOCK_NB),
            Self::Ofd => file.set(libc::F_OFD_SETLK, libc::F_WRLCK, 0, 0),
        }
    }

    pub(crate) fn unlock(self, file: Descriptor) -> i32 {
        match self {
            Self::Posix => file.set(libc::F_SETLK, libc::F_UNLCK, 0, 0),
            Self::Flock => file.flock(libc::LOCK_UN),
            Self::Ofd => file.set(libc::F_OFD_SETLK, libc::F_UNLCK, 0, 0),
        }
    }
}

/// Another process that has the file open, and tries to lock it each time it is asked; it releases
/// the locks that it gets.
pub(crate) fn attempts(way: Way, path: &CString) -> Process {
    fork(|wire| {
        let file = Descriptor::open(path);
        while wire.hear() == 0 {
            let answer = way.attempt(file);
            if answer == 0 {
                way.unlock(file);
            }
            wire.say(answer);
        }
        0
    })
}
