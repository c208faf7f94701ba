//! Starts FUSE over io_uring, and falls back to /dev/fuse if that fails.

use crate::cpus;
use crate::device::Device;
use crate::thread_ring::{ENTRIES_MAX, ThreadRing};
use parking_lot::{Condvar, Mutex};
use std::io;
use std::time::Duration;

/// Threads of a queue at first, and the free entries that it shall always have: one runs a request, one takes the next.
pub(crate) const READY: usize = 2;
/// How long a registration may take; it only depends on its thread.
const REGISTER_MAX: Duration = Duration::from_secs(5);

/// Rings for all queues, made before the kernel is told that it may use io_uring.
pub(crate) struct Rings {
    /// For each queue as many as it has threads at first.
    pub(crate) rings: Vec<ThreadRing>,
    /// Makes the kernel fall back if a registration fails.
    pub(crate) refusal: ThreadRing,
}

/// How many entries a thread has: requests that it can have at a time. Each may wait, so all of the first threads together
/// have no more than `threads_max`, as long as each has one.
pub(crate) fn entries_each(queues: usize, threads_max: usize) -> usize {
    (threads_max / (queues * READY)).clamp(1, ENTRIES_MAX)
}

impl Rings {
    /// Those of a mount where so many requests may wait at once.
    ///
    /// # Errors
    /// Why io_uring isn't available here, in words.
    pub(crate) fn prepare(device: &Device, threads_max: usize) -> Result<Self, String> {
        let queues = cpus::queues()?;
        let entries = entries_each(queues.into(), threads_max);
        let rings = (0..queues)
            .flat_map(|queue| [queue; READY])
            .map(|queue| ThreadRing::new(device, queue, entries));
        let not_allowed = |error: io::Error| match error.raw_os_error() {
            Some(libc::EPERM | libc::ENOSYS) => format!(
                "io_uring is not allowed here ({error}): see kernel.io_uring_disabled and the \
                 container's seccomp profile"
            ),
            Some(libc::EINVAL) => "kernel older than 6.14".to_owned(),
            Some(libc::EMFILE) => format!("{error}: raise the limit (ulimit -n)"),
            _ => format!("making a ring: {error}"),
        };
        Ok(Self {
            rings: rings.collect::<io::Result<_>>().map_err(not_allowed)?,
            refusal: ThreadRing::to_refuse(device).map_err(not_allowed)?,
        })
    }
}

/// Results of the first registrations.
#[derive(Default)]
pub(crate) struct Registrations {
    results: Mutex<Vec<io::Result<()>>>,
    wake: Condvar,
}

impl Registrations {
    pub(crate) fn add(&self, result: io::Result<()>) -> bool {
        let registered = result.is_ok();
        self.results.lock().push(result);
        self.wake.notify_one();
        registered
    }

    /// Waits for `count` results; returns the first error, if any.
    pub(crate) fn wait(&self, count: usize) -> io::Result<()> {
        let mut results = self.results.lock();
        while results.len() < count {
            if self.wake.wait_for(&mut results, REGISTER_MAX).timed_out() {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        results.drain(..).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_threads_have_as_many_entries_as_requests_may_wait() {
        assert_eq!(entries_each(2, 256), ENTRIES_MAX);
        assert_eq!(entries_each(16, 256), 8);
        assert_eq!(entries_each(2, 8), 2);
        // Each has one, however many queues there are.
        assert_eq!(entries_each(512, 256), 1);
        assert_eq!(entries_each(2, 1), 1);
    }
}
