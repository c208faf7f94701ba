//! The process's io_urings: one for each thread that drives its own I/O, one for the tasks of each runtime, and a shared
//! one.
//!
//! A thread in `World::block_on` submits to its own ring and waits in it: the kernel wakes that
//! thread directly instead of through a reaper thread (waking an idle core takes 30 to 60 µs). I/O
//! submitted by tasks goes through their runtime's ring, which the runtime's own threads look after as they do after
//! sockets (`collector`). What has no room or no such ring goes through the shared one, whose completions the reaper
//! thread collects.
//!
//! Each ring has one reaper at a time, so that no other thread takes its wake-up: the ring's thread, or the runtime's
//! collector, or, when these left before all their requests were answered (a hedged read, an abandoned
//! future), the reaper thread. Once drained, a thread's ring is free for any thread.
//!
//! The kernel is told of each request at once, but of those that a task or a thread submits while it goes on with many in one
//! go (`World::gather_io`), with one call for all of them: that costs less than a call for each, and the device is told once.
//!
//! A thread passes on the answers in its ring when it sleeps or leaves. A future in `block_on` must
//! therefore not block its thread on another thread that needs one of these answers; nor may tasks block all threads of
//! their runtime on an answer to one of them.

use super::request::{Completion, Memory, Request, UnderWay};
use io_uring::{IoUring, opcode, squeue, types};
use parking_lot::Mutex;
use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use tokio::sync::Semaphore;

/// Most requests under way over all disks and rings; further ones wait (without blocking) for a
/// place. More than NVMe devices run in parallel, but few enough that a burst of bulk writes (1 MiB
/// each) doesn't queue for longer than about 100 ms.
pub(super) const IN_FLIGHT_MAX: usize = 256;
/// Places in the shared ring, and in that of a runtime's tasks. The kernel makes the completion queue twice as long, so
/// it can't overflow: it holds at most the requests under way, and one completion for each abandoned ring,
/// which has at least one request under way.
pub(super) const SHARED_ENTRIES: u32 = 256;
/// Places in a thread's ring; further requests of the thread go through the shared one. Some for each of the requests of
/// programs that a thread has at a time.
const OWN_ENTRIES: u32 = 64;
/// Most drained rings kept for other threads.
const FREE_MAX: usize = 64;

const _: () = assert!(IN_FLIGHT_MAX <= SHARED_ENTRIES as usize);

/// How often a submission is retried while the kernel lacks memory.
const SUBMIT_TRIES_MAX: u32 = 1_000_000;

/// `user_data` of the request that only wakes the waiting thread.
const WAKE_UP: u64 = 0;
/// Set in `user_data` together with a pointer to a ring: its thread abandoned it, and it has
/// completions.
const ABANDONED: u64 = 1;

static RINGS: OnceLock<Result<Rings, i32>> = OnceLock::new();

thread_local! {
    /// Whether the thread is in `block_on`.
    static IS_DRIVING: Cell<bool> = const { Cell::new(false) };
    static OWN: RefCell<Option<Arc<Ring>>> = const { RefCell::new(None) };
    /// Whether the thread is in `gather_io`.
    static IS_GATHERING: Cell<bool> = const { Cell::new(false) };
    /// The ring that has requests of the thread of which the kernel hasn't been told.
    static GATHERED: RefCell<Option<Arc<Ring>>> = const { RefCell::new(None) };
}

/// All rings.
pub(super) struct Rings {
    shared: Arc<Ring>,
    free: Mutex<Vec<Arc<Ring>>>,
    places: Semaphore,
}

/// One ring.
pub(super) struct Ring {
    uring: IoUring,
    /// Guards the submission queue: any thread may submit a wake-up.
    submitting: Mutex<Submitting>,
    /// Guards the completion queue; never contended.
    reaping: Mutex<()>,
    /// Requests of this ring that the kernel hasn't answered.
    under_way: AtomicUsize,
}

/// Whether anybody submits to a ring.
#[derive(Default)]
struct Submitting {
    /// Its runtime has ended: nothing is submitted any more.
    is_left: bool,
}

impl Rings {
    /// The process's rings; the first call makes them and starts the reaper thread.
    pub(super) fn of_process() -> io::Result<&'static Self> {
        let rings =
            RINGS.get_or_init(|| Self::new().map_err(|error| error.raw_os_error().unwrap_or(0)));
        match rings {
            Ok(rings) => {
                start_reaper(rings)?;
                Ok(rings)
            }
            Err(errno) => {
                let error = io::Error::from_raw_os_error(*errno);
                let text = format!("io_uring, which disks need, is not available here: {error}");
                Err(io::Error::new(error.kind(), text))
            }
        }
    }

    fn new() -> io::Result<Self> {
        Ok(Self {
            shared: Ring::new(SHARED_ENTRIES)?,
            free: Mutex::default(),
            places: Semaphore::new(IN_FLIGHT_MAX),
        })
    }

    /// Submits `entry` as soon as there is a place and returns the future of its answer. `entry`
    /// must use only `file` and `memory`. `of_tasks` is the ring for those who don't drive their own I/O.
    pub(super) async fn submit(
        &self,
        entry: squeue::Entry,
        (file, under_way): (&Arc<File>, &Arc<UnderWay>),
        memory: Memory,
        of_tasks: Option<&Arc<Ring>>,
    ) -> Completion {
        let place = self
            .places
            .acquire()
            .await
            .expect("the semaphore is never closed");
        // The request owns the place from here on; it is given back when the kernel answers.
        place.forget();
        let (request, completion) = Request::new(file, memory, under_way);
        let submit_to = |ring: &Arc<Ring>| ring.submit_unless_left(&entry, &request);
        let is_submitted = if IS_DRIVING.get() {
            OWN.with_borrow_mut(|own| {
                if own.is_none() {
                    *own = self.take_free();
                }
                let with_room = own.as_ref().filter(|ring| ring.has_room());
                with_room.is_some_and(submit_to)
            })
        } else {
            of_tasks.is_some_and(submit_to)
        };
        if !is_submitted {
            self.shared.submit(entry, request);
        }
        completion
    }

    /// A ring for the calling thread; `None` if the kernel has no room for another one. The shared
    /// ring works as well, but slower.
    fn take_free(&self) -> Option<Arc<Ring>> {
        let free = self.free.lock().pop();
        free.or_else(|| Ring::new(OWN_ENTRIES).ok())
    }

    /// Hands a ring that was left with requests under way to the reaper.
    pub(super) fn hand_to_reaper(&self, ring: Arc<Ring>) {
        let descriptor = types::Fd(ring.uring.as_raw_fd());
        let readable = opcode::PollAdd::new(descriptor, libc::POLLIN as u32).build();
        let left = Arc::into_raw(ring) as u64 | ABANDONED;
        self.shared.enter(&readable.user_data(left));
    }

    /// The reaper thread: waits for completions of the shared ring and of abandoned ones.
    fn run_reaper(&self) {
        loop {
            self.shared.wait();
            self.reap(&self.shared);
        }
    }

    /// Passes on all completions in a ring. Only the ring's reaper may call it.
    pub(super) fn reap(&self, ring: &Ring) {
        let mut wakers = Vec::new();
        let mut left = Vec::new();
        {
            let _guard = ring.reaping.lock();
            // SAFETY: `reaping` makes this the only user of the completion queue.
            for completion in unsafe { ring.uring.completion_shared() } {
                let data = completion.user_data();
                if data == WAKE_UP {
                    continue;
                }
                if data & ABANDONED != 0 {
                    // SAFETY: `hand_to_reaper` made the pointer, and the kernel completes it once.
                    left.push(unsafe { Arc::from_raw((data & !ABANDONED) as *const Ring) });
                    continue;
                }
                // SAFETY: the pointer comes from `Ring::put_in`, and the kernel completes it once.
                let request = unsafe { Arc::from_raw(data as *const Request) };
                ring.under_way.fetch_sub(1, Ordering::Relaxed);
                self.places.add_permits(1);
                wakers.extend(request.finish(completion.result()));
            }
        }
        wakers.into_iter().for_each(Waker::wake);
        for ring in left {
            self.reap(&ring);
            if ring.is_idle() {
                self.keep(ring);
            } else {
                self.hand_to_reaper(ring);
            }
        }
    }

    /// Keeps a drained ring for the next thread. That of a runtime's tasks goes with its runtime.
    fn keep(&self, ring: Arc<Ring>) {
        if ring.submitting.lock().is_left {
            return;
        }
        let mut free = self.free.lock();
        if free.len() < FREE_MAX {
            free.push(ring);
        }
    }
}

impl Ring {
    pub(super) fn new(entries: u32) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            uring: cooperative(entries).or_else(|_| IoUring::new(entries))?,
            submitting: Mutex::default(),
            reaping: Mutex::new(()),
            under_way: AtomicUsize::new(0),
        }))
    }

    fn has_room(&self) -> bool {
        self.under_way.load(Ordering::Relaxed) < OWN_ENTRIES as usize
    }

    pub(super) fn is_idle(&self) -> bool {
        self.under_way.load(Ordering::Relaxed) == 0
    }

    fn submit(&self, entry: squeue::Entry, request: Arc<Request>) {
        let submitting = self.submitting.lock();
        self.put_in(&submitting, entry, request);
        self.tell(&submitting);
    }

    /// Submits, unless nobody would collect the completion. Says whether it did. Only tasks' rings are left.
    fn submit_unless_left(self: &Arc<Self>, entry: &squeue::Entry, request: &Arc<Request>) -> bool {
        let submitting = self.submitting.lock();
        if submitting.is_left {
            return false;
        }
        self.put_in(&submitting, entry.clone(), request.clone());
        if !self.is_told_later() {
            self.tell(&submitting);
        }
        true
    }

    /// Puts a request where the kernel finds it once it is told.
    fn put_in(&self, submitting: &Submitting, entry: squeue::Entry, request: Arc<Request>) {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        let kernels = Arc::into_raw(request) as u64;
        self.push_in(submitting, &entry.user_data(kernels));
    }

    /// Whether the calling thread tells the kernel of what it has just put here when it has gathered all.
    fn is_told_later(self: &Arc<Self>) -> bool {
        IS_GATHERING.get()
            && GATHERED.with_borrow_mut(|gathered| {
                // Requests to disks of another runtime's world are rare.
                Arc::ptr_eq(gathered.get_or_insert_with(|| self.clone()), self)
            })
    }

    /// Nothing is submitted from here on but what has been begun.
    pub(super) fn leave(&self) {
        self.submitting.lock().is_left = true;
    }

    /// Readable while the ring has completions.
    pub(super) fn descriptor(&self) -> RawFd {
        self.uring.as_raw_fd()
    }

    /// Wakes the thread that waits in this ring.
    pub(super) fn wake_waiting(&self) {
        self.enter(&opcode::Nop::new().build().user_data(WAKE_UP));
    }

    /// Waits until there is a completion.
    fn wait(&self) {
        let flags = 1 << 0; // IORING_ENTER_GETEVENTS
        // SAFETY: no argument struct is given, and nothing is submitted.
        let result = unsafe {
            self.uring
                .submitter()
                .enter::<libc::sigset_t>(0, 1, flags, None)
        };
        if let Err(error) = result {
            let passing = matches!(
                error.raw_os_error(),
                Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)
            );
            assert!(passing, "waiting for completions failed: {error}");
        }
    }

    fn enter(&self, entry: &squeue::Entry) {
        self.enter_in(&self.submitting.lock(), entry);
    }

    fn enter_in(&self, submitting: &Submitting, entry: &squeue::Entry) {
        self.push_in(submitting, entry);
        self.tell(submitting);
    }

    /// With the ring's `submitting` locked, as for all that uses the submission queue.
    fn push_in(&self, _submitting: &Submitting, entry: &squeue::Entry) {
        // SAFETY: `submitting` makes this the only user of the submission queue; the request owns
        // the memory that the entry points to until the kernel has answered.
        let pushed = unsafe { self.uring.submission_shared().push(entry) };
        assert!(
            pushed.is_ok(),
            "a push is followed by its submission, or is one of as many requests as have room"
        );
    }

    /// Whether the kernel has been told of all that was pushed.
    fn is_told(&self, _submitting: &Submitting) -> bool {
        // SAFETY: `submitting` makes this the only user of the submission queue.
        unsafe { self.uring.submission_shared() }.is_empty()
    }

    /// Tells the kernel of all that was pushed, by any thread.
    fn tell(&self, submitting: &Submitting) {
        for _ in 0..SUBMIT_TRIES_MAX {
            if self.is_told(submitting) {
                return;
            }
            match self.uring.submit() {
                // It stops behind an entry that it refuses, and takes the rest with the next call.
                Ok(_) => {}
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR | libc::EAGAIN | libc::EBUSY) => std::thread::yield_now(),
                    _ => panic!("submitting I/O failed: {error}"),
                },
            }
        }
        panic!("the kernel accepted no I/O in {SUBMIT_TRIES_MAX} tries");
    }
}

/// A ring that doesn't interrupt a thread which is just working to tell it that something is complete: the thread sees that
/// when it next turns to the kernel, which it does before it sleeps. Kernels before 5.19 have none.
fn cooperative(entries: u32) -> io::Result<IoUring> {
    IoUring::builder().setup_coop_taskrun().build(entries)
}

/// While this exists, the calling thread drives a future, and its I/O goes to its own ring.
pub(super) struct Driving {
    /// A driven future is itself driving another one.
    is_nested: bool,
}

impl Driving {
    pub(super) fn begin() -> Self {
        Self {
            is_nested: IS_DRIVING.replace(true),
        }
    }

    /// The thread's ring if requests of the thread are under way in it. It stays the same ring
    /// until the drive ends.
    pub(super) fn ring(&self) -> Option<Arc<Ring>> {
        OWN.with_borrow(|own| own.clone().filter(|ring| !ring.is_idle()))
    }

    /// Waits until the thread's ring has a completion, calls `awake`, then passes on all
    /// completions.
    pub(super) fn wait(&self, ring: &Ring, awake: impl FnOnce()) {
        ring.wait();
        awake();
        self.collect(ring);
    }

    /// Passes on the completions that are in the thread's ring.
    pub(super) fn collect(&self, ring: &Ring) {
        if let Some(Ok(rings)) = RINGS.get() {
            rings.reap(ring);
        }
    }
}

impl Drop for Driving {
    /// Hands the ring to the reaper if requests are still under way.
    fn drop(&mut self) {
        if self.is_nested {
            return;
        }
        IS_DRIVING.set(false);
        let left = OWN.with_borrow_mut(|own| own.take_if(|ring| !ring.is_idle()));
        if let (Some(ring), Some(Ok(rings))) = (left, RINGS.get()) {
            rings.hand_to_reaper(ring);
        }
    }
}

/// While this exists, the kernel isn't told of what is submitted on the calling thread, by tasks to their runtime's ring or by
/// the thread to its own. Dropping it tells of all of it. Others that submit to the ring meanwhile may do so before.
pub(super) struct Gathering {
    /// Somebody gathers already, and tells the kernel.
    is_nested: bool,
}

impl Gathering {
    pub(super) fn begin() -> Self {
        Self {
            is_nested: IS_GATHERING.replace(true),
        }
    }
}

impl Drop for Gathering {
    fn drop(&mut self) {
        if self.is_nested {
            return;
        }
        IS_GATHERING.set(false);
        if let Some(ring) = GATHERED.take() {
            // Also if its runtime has ended meanwhile: then the reaper thread waits for the answers.
            ring.tell(&ring.submitting.lock());
        }
    }
}

fn start_reaper(rings: &'static Rings) -> io::Result<()> {
    static STARTED: Mutex<bool> = Mutex::new(false);
    let mut started = STARTED.lock();
    if !*started {
        std::thread::Builder::new()
            .name("disk-reaper".into())
            .spawn(|| rings.run_reaper())?;
        *started = true;
    }
    Ok(())
}

#[cfg(test)]
impl Ring {
    /// As `is_told`.
    pub(super) fn has_told(&self) -> bool {
        self.is_told(&self.submitting.lock())
    }
}
