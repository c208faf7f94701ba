//! One request to the kernel and its answer.
//!
//! A request owns its memory and its descriptor until the kernel has answered, so its future can be
//! dropped at any time.

use crate::buffer::AlignedBuffer;
use bytes::Bytes;
use parking_lot::Mutex;
use std::cell::UnsafeCell;
use std::fs::File;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use tokio::sync::Notify;

/// The requests of one disk that are under way.
#[derive(Default)]
pub(super) struct UnderWay {
    count: AtomicUsize,
    none_left: Notify,
}

/// Memory that the kernel reads or writes while a request is under way.
pub(super) enum Memory {
    None,
    Filled(#[expect(dead_code, reason = "held for the kernel")] Arc<ReadTarget>),
    Read(#[expect(dead_code, reason = "held for the kernel")] Bytes),
}

/// Memory that the kernel fills in parallel parts; readable once all parts are done.
pub(super) struct ReadTarget {
    buffer: UnsafeCell<AlignedBuffer>,
}

/// One request to the kernel.
pub(super) struct Request {
    _file: Arc<File>,
    _memory: Memory,
    under_way: Arc<UnderWay>,
    state: Mutex<RequestState>,
}

enum RequestState {
    Waiting(Option<Waker>),
    Done(i32),
}

/// Future of a request's answer: the kernel's result.
pub(super) struct Completion {
    request: Arc<Request>,
}

impl Request {
    /// A new request, counted as under way, and the future of its answer.
    pub(super) fn new(
        file: &Arc<File>,
        memory: Memory,
        under_way: &Arc<UnderWay>,
    ) -> (Arc<Self>, Completion) {
        under_way.count.fetch_add(1, Ordering::Relaxed);
        let request = Arc::new(Self {
            _file: file.clone(),
            _memory: memory,
            under_way: under_way.clone(),
            state: Mutex::new(RequestState::Waiting(None)),
        });
        let completion = Completion {
            request: request.clone(),
        };
        (request, completion)
    }

    /// Records the kernel's answer; returns the waker to call.
    pub(super) fn finish(&self, result: i32) -> Option<Waker> {
        let state = std::mem::replace(&mut *self.state.lock(), RequestState::Done(result));
        if self.under_way.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.under_way.none_left.notify_waiters();
        }
        match state {
            RequestState::Waiting(waker) => waker,
            RequestState::Done(_) => unreachable!("the kernel answers each request once"),
        }
    }
}

impl UnderWay {
    /// Waits until no request is under way.
    pub(super) async fn wait_for_all(&self) {
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
            RequestState::Done(result) => Poll::Ready(*result),
            RequestState::Waiting(waker) => {
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

    /// Address of byte `at` of the target.
    pub(super) fn pointer(&self, at: usize) -> *mut u8 {
        // SAFETY: the buffer itself (not its bytes) is never changed, and `at` is inside it.
        unsafe { (*self.buffer.get()).as_raw().add(at) }
    }

    /// The bytes, without a copy. Call it only after all requests on this target have been
    /// answered.
    pub(super) fn into_bytes(self: Arc<Self>) -> Bytes {
        struct Filled(Arc<ReadTarget>);
        impl AsRef<[u8]> for Filled {
            fn as_ref(&self) -> &[u8] {
                // SAFETY: all requests were answered, so the kernel no longer writes.
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
