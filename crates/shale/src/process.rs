//! One process of this machine, as /proc shows it.

use model::{Error, ErrorKind, Result};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::{ffi::OsString, fs, os::unix::ffi::OsStringExt, path::Path, time::Duration};

/// One process, and not another one that got its number later.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Process {
    /// Its number.
    pub pid: i32,
    /// When it started, in ticks of the kernel's clock since boot.
    started: u64,
    /// Its command line.
    pub arguments: Vec<OsString>,
}

/// What a thread's line in /proc says.
pub struct Thread {
    state: char,
    started: u64,
}

impl Thread {
    /// The first one of a process, if there is such a process.
    pub fn first_of(pid: i32) -> Option<Self> {
        Self::read(Path::new(&format!("/proc/{pid}/stat")))
    }

    /// Of `/proc/PID/stat`. The name in it may contain any bytes, so what counts begins after the
    /// last parenthesis.
    fn read(file: &Path) -> Option<Self> {
        let bytes = fs::read(file).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        let mut fields = text.rsplit_once(')')?.1.split_whitespace();
        Some(Self {
            state: fields.next()?.chars().next()?,
            // The 22nd field, of which the state is the third.
            started: fields.nth(18)?.parse().ok()?,
        })
    }

    fn is_gone(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }

    /// Whether it is stopped (SIGSTOP, a debugger).
    pub fn is_stopped(&self) -> bool {
        matches!(self.state, 'T' | 't')
    }
}

impl Process {
    /// The process with a number, if it lives.
    pub fn of(pid: i32) -> Option<Self> {
        let thread = Thread::first_of(pid)?;
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let words = line.split(|byte| *byte == 0).map(<[u8]>::to_vec);
        let mut arguments: Vec<_> = words.map(OsString::from_vec).collect();
        // The line ends with a zero, too.
        arguments.pop();
        Some(Self {
            pid,
            started: thread.started,
            arguments,
        })
    }

    /// For how long it has run.
    pub fn age(&self) -> Duration {
        let up = fs::read_to_string("/proc/uptime").unwrap_or_default();
        let up = up.split(' ').next().and_then(|it| it.parse().ok());
        let started = self.started as f64 / rustix::param::clock_ticks_per_second() as f64;
        Duration::from_secs_f64((up.unwrap_or(started) - started).max(0.0))
    }

    /// Whether it has ended: none of its threads is left, and all that it had open is closed.
    pub fn is_gone(&self) -> bool {
        !self.is_itself() || self.threads().iter().all(Thread::is_gone)
    }

    /// Whether it is stopped: no thread of it runs.
    pub fn is_frozen(&self) -> bool {
        let threads = self.threads();
        let runs_not = |thread: &Thread| thread.is_stopped() || thread.is_gone();
        !threads.is_empty() && !self.is_gone() && threads.iter().all(runs_not)
    }

    fn is_itself(&self) -> bool {
        Thread::first_of(self.pid).is_some_and(|thread| thread.started == self.started)
    }

    fn threads(&self) -> Vec<Thread> {
        let entries = fs::read_dir(format!("/proc/{}/task", self.pid));
        let entries = entries.into_iter().flatten().flatten();
        entries
            .filter_map(|entry| Thread::read(&entry.path().join("stat")))
            .collect()
    }

    /// Sends a signal; nothing happens if the process has ended.
    ///
    /// # Errors
    /// `Unavailable`: the system's error.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let failed = |error: rustix::io::Errno| {
            Error::new(ErrorKind::Unavailable, error.to_string())
                .while_doing(format!("signalling process {}", self.pid))
        };
        let pid = Pid::from_raw(self.pid).expect("processes have positive numbers");
        let descriptor = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(descriptor) => descriptor,
            Err(rustix::io::Errno::SRCH) => return Ok(()),
            Err(error) => return Err(failed(error)),
        };
        // Whatever the number means later, the descriptor means the process that it meant here.
        if !self.is_itself() {
            return Ok(());
        }
        match pidfd_send_signal(&descriptor, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(failed(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Would be broken if a program whose name the kernel cuts within a letter, or that gives itself one, were no process:
    /// what ends a lab wouldn't find it.
    #[test]
    fn a_thread_is_seen_whatever_bytes_its_name_has() {
        let thread = std::thread::spawn(|| {
            rustix::thread::set_name(c"\xc3) Z 1 \xff").unwrap();
            Thread::read(Path::new("/proc/thread-self/stat"))
        });
        let seen = thread.join().unwrap().unwrap();
        assert!(!seen.is_gone() && !seen.is_stopped());
    }

    #[test]
    fn a_number_that_belongs_to_another_process_now_is_left_alone() {
        let mut child = Command::new("sleep").arg("100000").spawn().unwrap();
        let process = Process::of(child.id() as i32).unwrap();
        let former = Process {
            started: process.started - 1,
            ..process.clone()
        };
        assert!(former.is_gone());
        former.signal(Signal::KILL).unwrap();
        assert!(!process.is_gone());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
