//! The threads that serve requests through FUSE over io_uring: each owns some ring entries, runs the requests in them to
//! their answers, and sends replies and gets the next requests in one system call (`shift`).
//!
//! The kernel has a queue per CPU and gives a request to the queue of the CPU that the caller runs
//! on, to the entry that came back last: mostly one of the thread that has just answered. The kernel never returns an entry,
//! so a thread that was started for waiting requests stays, asleep, until the next time.
//!
//! Requests that arrive while a queue has no entry stay in it: a new registration doesn't look at
//! the queue, only a commit does, which takes one of them. So a queue has one entry more than it needs, and a thread that
//! adds some *stirs* the queue as often as it has added one: it makes the kernel send a dummy request, whose commit looks.

use crate::abi::{EntryOut, NotifyRetrieveOut, init, notify, opcode};
use crate::cpus::run_on;
use crate::device::Device;
use crate::file_system::FileSystem;
use crate::reply::Reply;
use crate::request::Incoming;
use crate::ring_entry::RingEntry;
use crate::rings::{READY, Registrations, Rings};
use crate::serving::{Ending, Place, ReplyTo, Said, Serving};
use crate::shift::{Boss, Shift};
use crate::thread_ring::ThreadRing;
use model::InodeId;
use parking_lot::Mutex;
use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;
use zerocopy::{FromBytes, IntoBytes};

/// Limit of all entries, including free ones, as a multiple of requests that may wait at once:
/// entries that a burst left on one CPU can't serve another.
const SURPLUS_MAX: usize = 4;
/// A queue with fewer entries may get another thread, however many the others have.
const QUEUE_SHARE: usize = 9;
/// If the kernel refuses all of a new thread's entries, the thread tries again after this long.
const REGISTER_PAUSE: Duration = Duration::from_millis(100);

/// The threads of a mount and their queues.
pub(crate) struct RingCrew<F: FileSystem> {
    serving: Arc<Serving<F>>,
    device: Arc<Device>,
    /// Most requests that may wait.
    threads_max: usize,
    /// Entries of each thread.
    entries_each: usize,
    /// Ends the connection: better than a mount that doesn't answer.
    abort: Box<dyn Fn() + Send + Sync>,
    /// Number of times that queues were stirred; makes notification ids unique.
    stirred: AtomicU64,
    /// A regular file that the kernel recently looked up or used; 0 if there was none.
    known_file: AtomicU64,
    state: Mutex<RingCrewState>,
}

struct RingCrewState {
    queues: Vec<Queue>,
    /// All entries.
    entries: usize,
    /// Those whose requests wait.
    waiting: usize,
    ending: bool,
}

#[derive(Clone, Copy)]
struct Queue {
    entries: usize,
    /// Those that the kernel may use, or whose requests haven't had to wait.
    free: usize,
}

impl RingCrewState {
    /// That of so many queues with their first threads, of so many entries each.
    fn new(queues: usize, each: usize) -> Self {
        let queue = Queue {
            entries: READY * each,
            free: READY * each,
        };
        Self {
            queues: vec![queue; queues],
            entries: queues * READY * each,
            waiting: 0,
            ending: false,
        }
    }

    /// Whether a queue may get a thread with so many entries more.
    fn has_room(&self, queue: usize, each: usize, threads_max: usize) -> bool {
        let all_max = self.queues.len() * READY * each + SURPLUS_MAX * threads_max;
        self.entries + each <= all_max || self.queues[queue].entries < QUEUE_SHARE
    }

    /// A queue has got a thread with so many entries.
    fn add(&mut self, queue: usize, each: usize) {
        self.entries += each;
        self.queues[queue].entries += each;
        self.queues[queue].free += each;
    }
}

/// Why a thread starts.
enum Start {
    /// With the mount.
    First(Arc<Registrations>),
    /// A request about this inode must wait.
    StandIn(InodeId),
}

impl<F: FileSystem> RingCrew<F> {
    /// Starts threads for each queue. When it returns, either the kernel sends requests to them, or
    /// the kernel continues with /dev/fuse: then `Ok(Err(why))`.
    ///
    /// # Errors
    /// If the kernel does neither.
    pub(crate) fn start(
        ending: &Arc<Ending<F>>,
        device: &Arc<Device>,
        rings: Rings,
        threads_max: usize,
        abort: Box<dyn Fn() + Send + Sync>,
    ) -> io::Result<Result<(), String>> {
        let Rings { rings, refusal } = rings;
        let threads = rings.len();
        let entries_each = rings.first().map_or(1, ThreadRing::entries);
        let state = RingCrewState::new(threads / READY, entries_each);
        let crew = Arc::new(Self {
            serving: Arc::clone(&ending.serving),
            device: Arc::clone(device),
            threads_max,
            entries_each,
            abort,
            stirred: AtomicU64::new(0),
            known_file: AtomicU64::new(0),
            state: Mutex::new(state),
        });
        let registrations = Arc::new(Registrations::default());
        let registered = rings
            .into_iter()
            .try_for_each(|ring| {
                let start = Start::First(Arc::clone(&registrations));
                crew.start_thread(ending, ring, start)
            })
            .and_then(|()| registrations.wait(threads));
        match registered {
            Ok(()) => Ok(Ok(())),
            Err(error) => refusal
                .refuse()
                .map(|()| Err(format!("registering with the kernel: {error}"))),
        }
    }

    fn start_thread(
        self: &Arc<Self>,
        ending: &Arc<Ending<F>>,
        ring: ThreadRing,
        start: Start,
    ) -> io::Result<()> {
        let (crew, ending) = (Arc::clone(self), Arc::clone(ending));
        let run = move || {
            let mut ring = ring;
            let bound = Cell::new(run_on(ring.queue()));
            let registered = match start {
                Start::First(registrations) => registrations.add(crew.register(&mut ring)),
                Start::StandIn(inode) => {
                    let registered = crew.register_at_last(&mut ring);
                    if registered {
                        // If that fails, the commits of the waiting operations look at the queue.
                        drop(crew.stir_elsewhere(ring.queue(), inode, ring.entries()));
                    }
                    registered
                }
            };
            if registered {
                crew.run(&ending, &mut ring, &bound);
            }
        };
        self.serving
            .world
            .try_spawn_thread("shale-fuse", run)
            .map(drop)
    }

    /// Registers entries. A ring of which the kernel has taken some is served, whatever it says of the others: as soon as
    /// each queue has one, requests come to them, and nobody can take these back.
    fn register(&self, ring: &mut ThreadRing) -> io::Result<()> {
        let Err(error) = ring.register() else {
            return Ok(());
        };
        let refused = ring.do_without_refused();
        if refused == 0 || refused == ring.entries() {
            return Err(error);
        }
        tracing::warn!(%error, queue = ring.queue(), refused, "the kernel refused some entries");
        self.never_had(ring.queue(), refused);
        Ok(())
    }

    /// Registers entries that the queue needs: requests wait, relying on them.
    fn register_at_last(&self, ring: &mut ThreadRing) -> bool {
        while let Err(error) = self.register(ring) {
            let gone = matches!(
                error.raw_os_error(),
                Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ENODEV)
            );
            if gone || self.state.lock().ending {
                return false;
            }
            tracing::warn!(%error, queue = ring.queue(), "the kernel refused entries");
            std::thread::sleep(REGISTER_PAUSE);
        }
        true
    }

    /// So many entries of a queue, which were counted, aren't there.
    fn never_had(&self, queue: u16, entries: usize) {
        let mut state = self.state.lock();
        state.entries -= entries;
        let queue = &mut state.queues[usize::from(queue)];
        queue.entries -= entries;
        queue.free -= entries;
    }

    /// Makes the kernel look at the queue of the CPU that the calling thread is bound to. `inode`:
    /// one that the kernel knows. False if the kernel refused: it must be a regular file.
    ///
    /// The kernel waits for a file that it is just dropping, and that may in turn wait for the answer to a read ahead. So a
    /// thread that has requests must be sure that somebody uses the file, or do it elsewhere.
    fn stir(&self, inode: InodeId) -> bool {
        let out = NotifyRetrieveOut {
            // Even, like the kernel's own ids, and far from them.
            notify_unique: (1 << 63) | (self.stirred.fetch_add(1, Ordering::Relaxed) << 1),
            nodeid: inode.0,
            // Size 0: none of the file's pages.
            ..NotifyRetrieveOut::default()
        };
        self.device
            .notify(notify::RETRIEVE, &[out.as_bytes()])
            .is_ok()
    }

    /// Has a thread without requests stir a queue so often, with whichever of `inode` and the known file is a regular one. It
    /// says whether it did; not at all if there is no thread.
    fn stir_elsewhere(
        self: &Arc<Self>,
        queue: u16,
        inode: InodeId,
        times: usize,
    ) -> oneshot::Receiver<bool> {
        let (tell, stirred) = oneshot::channel();
        let crew = Arc::clone(self);
        let stir = move || {
            let known_file = InodeId(crew.known_file.load(Ordering::Relaxed));
            let stir = || crew.stir(inode) || crew.stir(known_file);
            let done = run_on(queue) && (0..times).all(|_| stir());
            // Mostly nobody waits for that.
            let _ = tell.send(done);
        };
        let started = self.serving.world.try_spawn_thread("shale-stir", stir);
        if let Err(error) = started {
            tracing::warn!(%error, queue, "couldn't start a thread that stirs a queue");
        }
        stirred
    }

    fn run(self: &Arc<Self>, ending: &Arc<Ending<F>>, ring: &mut ThreadRing, bound: &Cell<bool>) {
        let pulse = self.serving.pulses.add();
        let (queue, bell) = (ring.queue(), ring.bell());
        let (line, entries) = ring.split();
        let mut shift = Shift::new(line, entries, &bell, &pulse);
        let answer = move |at: usize| self.answer(ending, &entries[at], queue, bound);
        shift.run(answer, &**self, &self.serving.world);
    }

    /// Answers the request that has come to an entry.
    async fn answer(
        self: &Arc<Self>,
        ending: &Arc<Ending<F>>,
        entry: &RingEntry,
        queue: u16,
        bound: &Cell<bool>,
    ) -> Reply {
        let long_setxattr = self.serving.agreement.has(init::SETXATTR_EXT);
        let request = entry.open();
        let Ok(incoming) = request.incoming(long_setxattr) else {
            tracing::error!("the kernel sent a request that is too short");
            return Reply::Errno(libc::EIO);
        };
        let place = RingPlace {
            crew: self,
            ending,
            queue,
            inode: incoming.inode(),
            bound,
            left: Cell::new(false),
        };
        let reply_to = ReplyTo::Place(&place);
        let on_wait = || {
            // Without another entry the queue waits until this operation is answered.
            let _ = place.leave();
        };
        let reply = self.serving.serve(&incoming, &reply_to, on_wait).await;
        if let Some(inode) = regular_file(&incoming, &reply) {
            self.known_file.store(inode.0, Ordering::Relaxed);
        }
        reply
    }
}

impl<F: FileSystem> Boss for RingCrew<F> {
    fn ends(&self) {
        self.state.lock().ending = true;
        // No request can be answered any more; those that wait for locks end.
        self.serving.locks.close();
    }

    fn abort(&self, error: &io::Error) {
        tracing::error!(%error, "fetching from io_uring failed; this mount is ended");
        (self.abort)();
    }
}

/// The regular file that the kernel knows from this request and its reply, if any.
fn regular_file(incoming: &Incoming<'_>, reply: &Reply) -> Option<InodeId> {
    match (incoming.header.opcode, reply) {
        (opcode::OPEN | opcode::READ | opcode::WRITE | opcode::FSYNC, _) => Some(incoming.inode()),
        (opcode::LOOKUP | opcode::CREATE, Reply::Fixed(fixed)) => {
            let (entry, _) = EntryOut::read_from_prefix(fixed.as_bytes()).ok()?;
            (entry.attr.mode & libc::S_IFMT == libc::S_IFREG).then_some(InodeId(entry.nodeid))
        }
        _ => None,
    }
}

/// The place at its queue of a request that is being run.
struct RingPlace<'a, F: FileSystem> {
    crew: &'a Arc<RingCrew<F>>,
    ending: &'a Arc<Ending<F>>,
    queue: u16,
    inode: InodeId,
    /// Its thread runs on the queue's CPU and nowhere else.
    bound: &'a Cell<bool>,
    left: Cell<bool>,
}

impl<F: FileSystem> RingPlace<'_, F> {
    /// The request must wait: makes sure its queue has a free entry. False if it can't.
    fn leave(&self) -> bool {
        let mut state = self.crew.state.lock();
        let at = usize::from(self.queue);
        if !self.left.replace(true) {
            state.queues[at].free -= 1;
            state.waiting += 1;
        }
        let (queue, threads_max) = (state.queues[at], self.crew.threads_max);
        if queue.free >= READY || state.ending {
            return true;
        }
        let each = self.crew.entries_each;
        if state.waiting > threads_max || !state.has_room(at, each, threads_max) {
            tracing::debug!(entries = state.entries, "no further request may wait");
            return queue.free > 0;
        }
        // Under the lock, so that no thread relies on one that fails to start. Rare: the thread
        // stays for the next time.
        let start = Start::StandIn(self.inode);
        let started = ThreadRing::new(&self.crew.device, self.queue, each)
            .and_then(|ring| self.crew.start_thread(self.ending, ring, start));
        if let Err(error) = started {
            tracing::warn!(%error, entries = state.entries, "couldn't start another FUSE thread");
            return queue.free > 0;
        }
        state.add(at, each);
        true
    }
}

impl<F: FileSystem> Place for RingPlace<'_, F> {
    /// Stirs in any case: the request that ends the wait may be in the queue, and the thread that added the free entry may
    /// have failed to stir.
    fn leave_for_long(&self) -> Said<'_> {
        Box::pin(async move {
            if !self.bound.get() {
                // The CPU was offline when this thread started.
                self.bound.set(run_on(self.queue));
            }
            if !(self.bound.get() && self.leave()) {
                return false;
            }
            // Who asks for the lock has it open, so the kernel isn't dropping it. A directory doesn't do.
            if self.crew.stir(self.inode) {
                return true;
            }
            let stirred = self.crew.stir_elsewhere(self.queue, self.inode, 1);
            stirred.await.unwrap_or(false)
        })
    }

    /// Each lock wait holds an entry, and other operations need some.
    fn lock_waits_max(&self) -> usize {
        (self.crew.threads_max / 4 * 3).max(1)
    }
}

impl<F: FileSystem> Drop for RingPlace<'_, F> {
    /// The operation was answered.
    fn drop(&mut self) {
        if self.left.get() {
            let mut state = self.crew.state.lock();
            state.queues[usize::from(self.queue)].free += 1;
            state.waiting -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rings::entries_each;

    /// Would be broken if the limit were compared with what there is, without what a thread brings.
    #[test]
    fn no_thread_brings_more_entries_than_all_may_be() {
        let threads_max = 70;
        let each = entries_each(2, threads_max);
        let mut state = RingCrewState::new(2, each);
        let all_max = state.entries + SURPLUS_MAX * threads_max;
        while state.has_room(0, each, threads_max) {
            state.add(0, each);
        }
        assert!(state.entries <= all_max, "{}", state.entries);
        assert!(state.entries + each > all_max, "{}", state.entries);
        assert!(!state.has_room(1, each, threads_max));
    }

    #[test]
    fn a_queue_gets_its_share_however_many_entries_others_have() {
        let (queues, threads_max) = (64, 8);
        let each = entries_each(queues, threads_max);
        let mut state = RingCrewState::new(queues, each);
        while state.has_room(0, each, threads_max) {
            state.add(0, each);
        }
        while state.has_room(1, each, threads_max) {
            state.add(1, each);
        }
        assert_eq!(state.queues[1].entries, QUEUE_SHARE);
    }
}
