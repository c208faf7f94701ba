//! Drives a future on a plain thread, which waits for its own I/O in its ring.

use super::ring::{Driving, Ring};
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

/// The thread is polling or about to check its state.
const RUNNING: u8 = 0;
/// The thread sleeps until it is unparked.
const PARKED: u8 = 1;
/// The thread sleeps in the kernel until its ring has a completion.
const IN_RING: u8 = 2;
/// The future must be polled again.
const NOTIFIED: u8 = 3;

/// Wakes a thread wherever it sleeps.
struct ThreadWaker {
    thread: Thread,
    state: AtomicU8,
    /// The ring in which it sleeps while `IN_RING`.
    ring: OnceLock<Arc<Ring>>,
}

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        match self.state.swap(NOTIFIED, Ordering::AcqRel) {
            PARKED => self.thread.unpark(),
            IN_RING => self
                .ring
                .get()
                .expect("a thread sets its ring before it sleeps there")
                .wake_waiting(),
            _ => {}
        }
    }
}

/// Polls `future` on this thread until it is ready.
pub(super) fn block_on<F: Future>(future: F) -> F::Output {
    let own = Arc::new(ThreadWaker {
        thread: std::thread::current(),
        state: AtomicU8::new(RUNNING),
        ring: OnceLock::new(),
    });
    let waker = Waker::from(own.clone());
    let mut context = Context::from_waker(&waker);
    let driving = Driving::begin();
    let mut future = pin!(future);
    loop {
        own.state.store(RUNNING, Ordering::Release);
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        match driving.ring() {
            Some(ring) => own.sleep_in(&driving, own.ring.get_or_init(|| ring)),
            None => own.sleep(),
        }
    }
}

impl ThreadWaker {
    fn sleep(&self) {
        if !self.try_to_sleep(PARKED) {
            return;
        }
        while self.state.load(Ordering::Acquire) != NOTIFIED {
            std::thread::park();
        }
    }

    fn sleep_in(&self, driving: &Driving, ring: &Ring) {
        while self.try_to_sleep(IN_RING) {
            driving.wait(ring, || {
                // While this thread passes on completions, its own waker must not submit to the
                // ring.
                let _ = self.state.compare_exchange(
                    IN_RING,
                    RUNNING,
                    Ordering::AcqRel,
                    Ordering::Acquire,
                );
            });
        }
    }

    /// False if the future must be polled again first.
    fn try_to_sleep(&self, how: u8) -> bool {
        self.state
            .compare_exchange(RUNNING, how, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }
}
