//! Starts FUSE over io_uring, and falls back to /dev/fuse if that fails.

use crate::cpus;
use crate::device::Device;
use crate::ring_entry::RingEntry;
use parking_lot::{Condvar, Mutex};
use std::io;
use std::time::Duration;

/// Entries of a queue without waiting threads: one runs a request, one takes the next.
pub(crate) const READY: usize = 2;
/// How long a registration may take; it only depends on its thread.
const REGISTER_MAX: Duration = Duration::from_secs(5);

/// Entries for all queues, made before the kernel is told that it may use io_uring.
pub(crate) struct Rings {
    pub(crate) entries: Vec<RingEntry>,
    /// Makes the kernel fall back if a registration fails.
    pub(crate) refusal: RingEntry,
}

impl Rings {
    /// One entry per queue.
    ///
    /// # Errors
    /// Why io_uring isn't available here, in words.
    pub(crate) fn prepare(device: &Device) -> Result<Self, String> {
        let queues = cpus::queues()?;
        let entries = (0..queues)
            .flat_map(|queue| [queue; READY])
            .map(|queue| RingEntry::new(device, queue));
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
            entries: entries.collect::<io::Result<_>>().map_err(not_allowed)?,
            refusal: RingEntry::to_refuse(device).map_err(not_allowed)?,
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
