//! The process's io_uring: submissions by the thread that polls, completions by whoever waits.
//!
//! One ring for all disks. A submission is pushed and entered at once by the polling thread.
//! Completions are collected by a reaper thread, and also by threads in `World::block_on`
//! that wait for I/O of their own: the kernel wakes them directly, which saves the hop over
//! the reaper (an idle core takes 30 to 60 µs to wake).
//!
//! A request owns its memory and its descriptor until the kernel has answered, so a future can
//! be dropped at any time.

use crate::buffer::AlignedBuffer;
use bytes::Bytes;
use io_uring::{IoUring, cqueue, squeue};
use parking_lot::Mutex;
use std::cell::{Cell, UnsafeCell};
use std::fs::File;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use tokio::sync::{Notify, Semaphore};

/// Requests under way at most, over all disks; further ones wait (without blocking) for a
/// place. Larger than what NVMe devices run in parallel, small enough that a burst of bulk
/// writes (1 MiB each) doesn't queue for longer than about 100 ms.
pub(super) const IN_FLIGHT_MAX: usize = 256;

/// The kernel makes the completion queue twice as long, so it can't overflow: every request
/// under way, and wake-ups, find a place.
const SUBMISSION_ENTRIES: u32 = 256;

const _: () = assert!(IN_FLIGHT_MAX <= SUBMISSION_ENTRIES as usize);

/// How often a submission is tried again while the kernel lacks memory.
const SUBMIT_TRIES_MAX: u32 = 1_000_000;

/// `user_data` of the request that only wakes waiting threads.
const WAKE_UP: u64 = 0;

static RING: OnceLock<Result<Ring, i32>> = OnceLock::new();

thread_local! {
    /// Whether this thread submitted anything since `block_on` reset this.
    static SUBMITTED_HERE: Cell<bool> = const { Cell::new(false) };
}

/// The ring and who waits for a place in it.
pub(super) struct Ring {
    uring: IoUring,
    /// Guards the submission queue.
    submitting: Mutex<()>,
    /// Guards the completion queue.
    reaping: Mutex<()>,
    places: Semaphore,
}

/// The requests of one disk that are under way.
#[derive(Default)]
pub(super) struct UnderWay {
    count: AtomicUsize,
    none_left: Notify,
}

/// What the kernel reads from or writes to while a request is under way.
pub(super) enum Memory {
    None,
    Filled(#[expect(dead_code, reason = "held for the kernel")] Arc<ReadTarget>),
    Read(#[expect(dead_code, reason = "held for the kernel")] Bytes),
}

/// Memory that the kernel fills, in parts and in parallel; readable once all parts are done.
pub(super) struct ReadTarget {
    buffer: UnsafeCell<AlignedBuffer>,
}

/// One request to the kernel.
struct Request {
    _file: Arc<File>,
    _memory: Memory,
    under_way: Arc<UnderWay>,
    state: Mutex<State>,
}

enum State {
    Waiting(Option<Waker>),
    Done(i32),
}

/// The answer of a request to come: the kernel's result.
pub(super) struct Completion {
    request: Arc<Request>,
}

impl Ring {
    /// The process's ring; made, with its reaper thread, at the first call.
    pub(super) fn of_process() -> io::Result<&'static Self> {
        let ring =
            RING.get_or_init(|| Self::new().map_err(|error| error.raw_os_error().unwrap_or(0)));
        match ring {
            Ok(ring) => {
                start_reaper(ring)?;
                Ok(ring)
            }
            Err(errno) => {
                let error = io::Error::from_raw_os_error(*errno);
                let text = format!("io_uring, which disks need, is not available here: {error}");
                Err(io::Error::new(error.kind(), text))
            }
        }
    }

    /// The ring if a disk was ever opened.
    pub(super) fn if_used() -> Option<&'static Self> {
        RING.get().and_then(|ring| ring.as_ref().ok())
    }

    fn new() -> io::Result<Self> {
        Ok(Self {
            uring: IoUring::new(SUBMISSION_ENTRIES)?,
            submitting: Mutex::new(()),
            reaping: Mutex::new(()),
            places: Semaphore::new(IN_FLIGHT_MAX),
        })
    }

    /// Submits `entry` as soon as there is a place; its answer comes from the future returned.
    /// `entry` works on `file` and on nothing but `memory`.
    pub(super) async fn submit(
        &self,
        entry: squeue::Entry,
        file: &Arc<File>,
        memory: Memory,
        under_way: &Arc<UnderWay>,
    ) -> Completion {
        let place = self
            .places
            .acquire()
            .await
            .expect("the semaphore is never closed");
        // The place belongs to the request from here, given back when the kernel answers.
        place.forget();
        let request = Arc::new(Request {
            _file: file.clone(),
            _memory: memory,
            under_way: under_way.clone(),
            state: Mutex::new(State::Waiting(None)),
        });
        under_way.count.fetch_add(1, Ordering::Relaxed);
        let kernels = Arc::into_raw(request.clone()) as u64;
        SUBMITTED_HERE.set(true);
        self.enter(&entry.user_data(kernels));
        Completion { request }
    }

    /// Wakes every thread that waits in [`Ring::wait`].
    pub(super) fn wake_waiting(&self) {
        self.enter(&io_uring::opcode::Nop::new().build().user_data(WAKE_UP));
    }

    /// Waits until there is a completion (or somebody else just took the last one).
    pub(super) fn wait_for_completion(&self) {
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
        let _guard = self.submitting.lock();
        // SAFETY: `submitting` makes this the only user of the submission queue; what the
        // entry points to is owned by its request until the kernel has answered.
        let pushed = unsafe { self.uring.submission_shared().push(entry) };
        assert!(
            pushed.is_ok(),
            "every push is followed by its submission, so there is room"
        );
        for _ in 0..SUBMIT_TRIES_MAX {
            match self.uring.submit() {
                Ok(_) => return,
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR | libc::EAGAIN | libc::EBUSY) => std::thread::yield_now(),
                    _ => panic!("submitting I/O failed: {error}"),
                },
            }
        }
        panic!("the kernel took no I/O after {SUBMIT_TRIES_MAX} tries");
    }

    /// Passes on all completions there are.
    pub(super) fn reap(&self) {
        let mut wakers = Vec::new();
        {
            let _guard = self.reaping.lock();
            // SAFETY: `reaping` makes this the only user of the completion queue.
            for completion in unsafe { self.uring.completion_shared() } {
                self.finish(&completion, &mut wakers);
            }
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    fn finish(&self, completion: &cqueue::Entry, wakers: &mut Vec<Waker>) {
        if completion.user_data() == WAKE_UP {
            return;
        }
        // SAFETY: `user_data` is the pointer made by `Arc::into_raw` at submission, and the
        // kernel completes each request once.
        let request = unsafe { Arc::from_raw(completion.user_data() as *const Request) };
        self.places.add_permits(1);
        let state = std::mem::replace(&mut *request.state.lock(), State::Done(completion.result()));
        if let State::Waiting(Some(waker)) = state {
            wakers.push(waker);
        }
        if request.under_way.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            request.under_way.none_left.notify_waiters();
        }
    }
}

impl UnderWay {
    /// Waits until no request is under way.
    pub(super) async fn none(&self) {
        loop {
            let notified = self.none_left.notified();
            if self.count.load(Ordering::Acquire) == 0 {
                return;
            }
            notified.await;
        }
    }
}

impl Future for Completion {
    type Output = i32;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<i32> {
        match &mut *self.request.state.lock() {
            State::Done(result) => Poll::Ready(*result),
            State::Waiting(waker) => {
                match waker {
                    Some(waker) => waker.clone_from(context.waker()),
                    None => *waker = Some(context.waker().clone()),
                }
                Poll::Pending
            }
        }
    }
}

// SAFETY: while requests are under way only the kernel touches the bytes, through pointers
// taken before; `into_bytes` is called when none is left (see there).
unsafe impl Sync for ReadTarget {}

impl ReadTarget {
    pub(super) fn new(length: usize) -> Arc<Self> {
        Arc::new(Self {
            buffer: UnsafeCell::new(AlignedBuffer::with_any_content(length)),
        })
    }

    /// Where byte `at` of the target lies.
    pub(super) fn pointer(&self, at: usize) -> *mut u8 {
        // SAFETY: the buffer itself (not its bytes) is never changed, and `at` is inside it.
        unsafe { (*self.buffer.get()).as_raw().add(at) }
    }

    /// The bytes, without a copy. Only after all requests on this target have been answered.
    pub(super) fn into_bytes(self: Arc<Self>) -> Bytes {
        struct Filled(Arc<ReadTarget>);
        impl AsRef<[u8]> for Filled {
            fn as_ref(&self) -> &[u8] {
                // SAFETY: all requests were answered, so nobody writes any more.
                unsafe { &*self.0.buffer.get() }
            }
        }
        match Arc::try_unwrap(self) {
            Ok(target) => target.buffer.into_inner().freeze(),
            // The reaper may still hold the answered request for a moment.
            Err(shared) => Bytes::from_owner(Filled(shared)),
        }
    }
}

/// Forgets what this thread submitted.
pub(super) fn reset_submitted_here() {
    SUBMITTED_HERE.set(false);
}

/// Whether this thread submitted since the last reset.
pub(super) fn submitted_here() -> bool {
    SUBMITTED_HERE.get()
}

fn start_reaper(ring: &'static Ring) -> io::Result<()> {
    static STARTED: Mutex<bool> = Mutex::new(false);
    let mut started = STARTED.lock();
    if !*started {
        std::thread::Builder::new()
            .name("disk-reaper".into())
            .spawn(|| {
                loop {
                    ring.wait_for_completion();
                    ring.reap();
                }
            })?;
        *started = true;
    }
    Ok(())
}
