//! The threads that serve requests through FUSE over io_uring: each owns one ring entry, runs
//! a request to its answer, and sends the reply and gets the next request in one system call.
//!
//! The kernel has a queue per CPU and gives a request to the queue of the CPU that it was made
//! on, to the entry that came back last. An entry can't be taken back from the kernel, so a
//! thread that stood in for a waiting one stays, asleep, for the next time.

use crate::abi::{NotifyRetrieveOut, notify};
use crate::device::Device;
use crate::file_system::FileSystem;
use crate::reply::Reply;
use crate::ring_entry::{Fetched, RingEntry, run_on};
use crate::serving::{Ending, Place, ReplyTo, Serving};
use crate::transport;
use model::InodeId;
use parking_lot::{Condvar, Mutex};
use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use zerocopy::IntoBytes;

/// All threads, those that rest included, as a multiple of those that may wait at once: what a
/// burst on one CPU leaves behind can't serve another one.
const SURPLUS_MAX: usize = 4;
/// Threads that a queue may have however many there are in the others.
const QUEUE_SHARE: usize = 8;
/// How long a registration may take; it waits for nothing but its thread.
const REGISTER_MAX: Duration = Duration::from_secs(5);
/// A thread that stands in tries again after so long if the kernel refuses its entry.
const REGISTER_PAUSE: Duration = Duration::from_millis(100);

/// Entries for all queues, made before the kernel is told that it may use io_uring.
pub(crate) struct Rings {
    entries: Vec<RingEntry>,
    /// Takes back what INIT has said, should a registration fail.
    refusal: RingEntry,
}

impl Rings {
    /// One entry per queue.
    ///
    /// # Errors
    /// Why there is no io_uring here, in words.
    pub(crate) fn prepare(device: &Device) -> Result<Self, String> {
        let queues = transport::queues()?;
        let entries = (0..queues).map(|queue| RingEntry::new(device, queue));
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

    /// Makes the kernel go on with /dev/fuse, after INIT has agreed on io_uring. Entries that
    /// it has already got rest until the mount ends.
    ///
    /// # Errors
    /// What the kernel says if it doesn't understand.
    pub(crate) fn refuse(mut refusal: RingEntry) -> io::Result<()> {
        match refusal.register() {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
            Err(error) => Err(error),
            Ok(()) => Err(io::Error::other("the kernel has more queues than CPUs")),
        }
    }

    #[cfg(test)]
    pub(crate) fn into_refusal(self) -> RingEntry {
        self.refusal
    }
}

/// The threads of a mount and their queues.
pub(crate) struct RingCrew<F: FileSystem> {
    serving: Arc<Serving<F>>,
    device: Arc<Device>,
    threads_max: usize,
    /// Ends the connection: better than a mount that answers nobody.
    abort: Box<dyn Fn() + Send + Sync>,
    /// How often a queue was stirred.
    stirred: AtomicU64,
    state: Mutex<State>,
}

struct State {
    queues: Vec<Queue>,
    /// All threads.
    threads: usize,
    /// Threads whose operations wait.
    waiting: usize,
    ending: bool,
}

#[derive(Clone, Copy)]
struct Queue {
    threads: usize,
    /// Threads that fetch, or run an operation that hasn't had to wait.
    free: usize,
}

/// What became of the first registrations.
#[derive(Default)]
struct Registrations {
    results: Mutex<Vec<io::Result<()>>>,
    wake: Condvar,
}

impl<F: FileSystem> RingCrew<F> {
    /// Starts a thread per queue. When it returns, the kernel sends requests through them, or
    /// it goes on with /dev/fuse: then `Ok(Err(why))`.
    ///
    /// # Errors
    /// The kernel does neither.
    pub(crate) fn start(
        ending: &Arc<Ending<F>>,
        device: &Arc<Device>,
        rings: Rings,
        threads_max: usize,
        abort: Box<dyn Fn() + Send + Sync>,
    ) -> io::Result<Result<(), String>> {
        let Rings { entries, refusal } = rings;
        let queues = entries.len();
        let queue = Queue {
            threads: 1,
            free: 1,
        };
        let state = State {
            queues: vec![queue; queues],
            threads: queues,
            waiting: 0,
            ending: false,
        };
        let crew = Arc::new(Self {
            serving: Arc::clone(&ending.serving),
            device: Arc::clone(device),
            threads_max,
            abort,
            stirred: AtomicU64::new(0),
            state: Mutex::new(state),
        });
        let registrations = Arc::new(Registrations::default());
        let registered = entries
            .into_iter()
            .try_for_each(|entry| {
                crew.start_thread(ending, entry, Some(Arc::clone(&registrations)))
            })
            .and_then(|()| registrations.wait(queues));
        match registered {
            Ok(()) => Ok(Ok(())),
            Err(error) => Rings::refuse(refusal)
                .map(|()| Err(format!("registering with the kernel: {error}"))),
        }
    }

    fn start_thread(
        self: &Arc<Self>,
        ending: &Arc<Ending<F>>,
        entry: RingEntry,
        registrations: Option<Arc<Registrations>>,
    ) -> io::Result<()> {
        let (crew, ending) = (Arc::clone(self), Arc::clone(ending));
        let run = move || {
            let mut entry = entry;
            let bound = run_on(entry.queue());
            let registered = match registrations {
                Some(registrations) => registrations.add(entry.register()),
                None => crew.register_at_last(&mut entry) && crew.stir(&entry, bound),
            };
            if registered {
                crew.run(&ending, &mut entry);
            }
        };
        self.serving
            .world
            .try_spawn_thread("shale-fuse", run)
            .map(drop)
    }

    /// Registers an entry that the queue needs: others wait in the belief that it comes.
    fn register_at_last(&self, entry: &mut RingEntry) -> bool {
        while let Err(error) = entry.register() {
            let gone = matches!(
                error.raw_os_error(),
                Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ENODEV)
            );
            if gone || self.state.lock().ending {
                return false;
            }
            tracing::warn!(%error, queue = entry.queue(), "the kernel refused a ring entry");
            std::thread::sleep(REGISTER_PAUSE);
        }
        true
    }

    /// Makes the kernel look at a queue. Requests that came while it had no entry stay in it:
    /// a registration doesn't look, only a commit does. So the calling thread, which is bound
    /// to the queue's CPU, has the kernel send it a request about nothing.
    fn stir(&self, entry: &RingEntry, bound: bool) -> bool {
        let out = NotifyRetrieveOut {
            // Even, as the kernel's own ones, and far from them.
            notify_unique: (1 << 63) | (self.stirred.fetch_add(1, Ordering::Relaxed) << 1),
            nodeid: InodeId::ROOT.0,
            ..NotifyRetrieveOut::default()
        };
        let stirred = self.device.notify(notify::RETRIEVE, &[out.as_bytes()]);
        match stirred.map_err(|error| (error.raw_os_error(), error)) {
            Ok(()) | Err((Some(libc::ENODEV | libc::ENOTCONN | libc::ENOENT), _)) if bound => {}
            // The next request that a program makes on that CPU does it too.
            stirred => tracing::warn!(
                queue = entry.queue(),
                bound,
                ?stirred,
                "requests on one CPU may have to wait for the next one"
            ),
        }
        true
    }

    fn run(self: &Arc<Self>, ending: &Arc<Ending<F>>, entry: &mut RingEntry) {
        loop {
            match entry.fetch() {
                Ok(Fetched::Request) => {}
                Ok(Fetched::Ended) => break,
                Err(error) => {
                    tracing::error!(%error, "fetching from io_uring failed; this mount is ended");
                    (self.abort)();
                    break;
                }
            }
            let reply = self.serve(ending, entry);
            entry.commit(&reply);
        }
        self.state.lock().ending = true;
        // Nobody can be answered any more; the threads that wait for locks come back.
        self.serving.locks.close();
    }

    fn serve(self: &Arc<Self>, ending: &Arc<Ending<F>>, entry: &RingEntry) -> Reply {
        let Ok(incoming) = entry.request() else {
            tracing::error!("the kernel sent a request that is too short");
            return Reply::Errno(libc::EIO);
        };
        let place = RingPlace {
            crew: self,
            ending,
            queue: usize::from(entry.queue()),
            left: Cell::new(false),
        };
        self.serving.run(&incoming, &ReplyTo::Place(&place), || {
            // Without another thread the queue waits as long as this operation does.
            let _ = place.leave();
        })
    }
}

/// The place of one thread at its queue while it runs a request.
struct RingPlace<'a, F: FileSystem> {
    crew: &'a Arc<RingCrew<F>>,
    ending: &'a Arc<Ending<F>>,
    queue: usize,
    left: Cell<bool>,
}

impl<F: FileSystem> RingPlace<'_, F> {
    /// The calling thread must wait: its queue needs another one. False if there is none.
    fn leave(&self) -> bool {
        let mut state = self.crew.state.lock();
        if !self.left.replace(true) {
            state.queues[self.queue].free -= 1;
            state.waiting += 1;
        }
        let (queue, threads_max) = (state.queues[self.queue], self.crew.threads_max);
        if queue.free > 0 || state.ending {
            return true;
        }
        let all_max = state.queues.len() + SURPLUS_MAX * threads_max;
        if state.waiting > threads_max || (state.threads >= all_max && queue.threads > QUEUE_SHARE)
        {
            tracing::debug!(threads = state.threads, "no further FUSE thread may wait");
            return false;
        }
        // Under the lock, so that nobody relies on a thread that doesn't come. Rare: the
        // thread stays for the next time.
        let started = RingEntry::new(&self.crew.device, self.queue as u16)
            .and_then(|entry| self.crew.start_thread(self.ending, entry, None));
        if let Err(error) = started {
            tracing::warn!(%error, threads = state.threads, "no further FUSE thread");
            return false;
        }
        state.threads += 1;
        state.queues[self.queue].threads += 1;
        state.queues[self.queue].free += 1;
        true
    }
}

impl<F: FileSystem> Place for RingPlace<'_, F> {
    fn leave_for_long(&self) -> bool {
        self.leave()
    }

    /// Each holds a thread, and other operations need some.
    fn lock_waits_max(&self) -> usize {
        (self.crew.threads_max / 4 * 3).max(1)
    }
}

impl<F: FileSystem> Drop for RingPlace<'_, F> {
    /// The operation is answered.
    fn drop(&mut self) {
        if self.left.get() {
            let mut state = self.crew.state.lock();
            state.queues[self.queue].free += 1;
            state.waiting -= 1;
        }
    }
}

impl Registrations {
    fn add(&self, result: io::Result<()>) -> bool {
        let registered = result.is_ok();
        self.results.lock().push(result);
        self.wake.notify_one();
        registered
    }

    /// Waits for `count` results: the first error, if there is one.
    fn wait(&self, count: usize) -> io::Result<()> {
        let mut results = self.results.lock();
        while results.len() < count {
            if self.wake.wait_for(&mut results, REGISTER_MAX).timed_out() {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        results.drain(..).collect()
    }
}
