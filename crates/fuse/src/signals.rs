//! Signals that are pending for a thread that waits in the kernel, as /proc tells.

/// SIGKILL in a set of signals.
const KILL: u64 = 1 << (libc::SIGKILL - 1);

/// Whether a signal is pending for a thread that has just sent a request over io_uring. If the
/// signal came before the request was handed over, the kernel sends no INTERRUPT (at least in Linux
/// 6.14 to 6.18), and the thread would wait until the lock is granted. A thread without a pending
/// signal must not get EINTR: its program would see errno 512.
pub(crate) fn has_signal(thread: u32) -> bool {
    tells(thread, tells_signal)
}

/// Whether a thread that waits in the kernel dies as soon as it gets out of there. The kernel turns each signal that ends a
/// program without a core dump into SIGKILL of all its threads.
pub(crate) fn is_killed(thread: u32) -> bool {
    tells(thread, tells_kill)
}

/// Whether /proc/PID/status tells that of a thread; false if there is none.
pub(crate) fn tells(thread: u32, that: impl FnOnce(&str) -> bool) -> bool {
    if thread == 0 {
        // The thread belongs to another process id namespace.
        return false;
    }
    let status = std::fs::read(format!("/proc/{thread}/status"));
    // The thread's name in it may have any bytes.
    status.is_ok_and(|status| that(&String::from_utf8_lossy(&status)))
}

fn tells_signal(status: &str) -> bool {
    let mut pending = set(status, "SigPnd:");
    // With several threads, a signal of the process may go to another one.
    if line(status, "Threads:") == Some("1") {
        pending |= set(status, "ShdPnd:");
    }
    pending & !set(status, "SigBlk:") & !set(status, "SigIgn:") != 0
}

/// What the process as a whole has got, each of its threads gets.
fn tells_kill(status: &str) -> bool {
    (set(status, "SigPnd:") | set(status, "ShdPnd:")) & KILL != 0
}

/// The rest of the line that begins so.
pub(crate) fn line<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let rest = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(rest.trim())
}

/// A line's set, of signals for instance; none if there is no such line.
pub(crate) fn set(status: &str, name: &str) -> u64 {
    line(status, name).map_or(0, |bits| u64::from_str_radix(bits, 16).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_waits_for_the_thread_is_seen() {
        let status = |threads, thread, shared, blocked, ignored| {
            format!(
                "Name:\tx\nThreads:\t{threads}\nSigQ:\t0/9\nSigPnd:\t{thread:016x}\n\
                 ShdPnd:\t{shared:016x}\nSigBlk:\t{blocked:016x}\nSigIgn:\t{ignored:016x}\n"
            )
        };
        let alarm = 1 << 13;
        assert!(!tells_signal(&status(1, 0, 0, 0, 0)));
        assert!(tells_signal(&status(1, 0, alarm, 0, 0)));
        assert!(!tells_signal(&status(2, 0, alarm, 0, 0)));
        assert!(tells_signal(&status(2, alarm, 0, 0, 0)));
        assert!(!tells_signal(&status(1, alarm, alarm, alarm, 0)));
        assert!(!tells_signal(&status(1, alarm, alarm, 0, alarm)));
        assert!(!has_signal(std::process::id()) && !has_signal(0));
    }

    /// Would be broken if a program whose name the kernel cuts within a letter couldn't be killed while its request waits, or had
    /// none of its groups and capabilities.
    #[test]
    fn a_thread_is_looked_at_whatever_bytes_its_name_has() {
        let thread = std::thread::spawn(|| {
            rustix::thread::set_name(c"\xc3 \xff").unwrap();
            let own = rustix::thread::gettid().as_raw_pid().cast_unsigned();
            tells(own, |status| line(status, "Threads:").is_some())
        });
        assert!(thread.join().unwrap());
    }

    #[test]
    fn only_a_kill_counts() {
        let status = |thread: u64, shared: u64| {
            format!("Name:\tSigPnd:\nSigQ:\t0/9\nSigPnd:\t{thread:016x}\nShdPnd:\t{shared:016x}\n")
        };
        let (alarm, quit, child) = (1 << 13, 1 << 2, 1 << 16);
        assert!(!tells_kill(&status(0, 0)));
        assert!(!tells_kill(&status(alarm | quit | child, alarm | quit)));
        assert!(tells_kill(&status(alarm | KILL, 0)));
        assert!(tells_kill(&status(0, KILL | child)));
        assert!(!tells_kill(""));
        assert!(!is_killed(std::process::id()) && !is_killed(0));
    }
}
