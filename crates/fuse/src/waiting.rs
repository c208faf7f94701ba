//! Requests that wait: which, since when, and a hook when the wait begins.

use crate::abi::opcode;
use crate::request::Incoming;
use model::InodeId;
use parking_lot::Mutex;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use world::{Instant, Map};

/// Longer waits are logged.
const LONG: Duration = Duration::from_secs(10);

/// A waiting request, for `shale waiters`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WaitingRequest {
    /// The kernel's name of the request.
    pub request: &'static str,
    /// The inode concerned.
    pub inode: InodeId,
    /// The waiting thread; 0 for the kernel itself.
    pub pid: u32,
    /// Time waited so far.
    pub since: Duration,
}

/// The waiting requests of one mount that hold a thread, by their number.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    requests: Mutex<Map<u64, (u32, InodeId, u32, Instant)>>,
}

impl Waiting {
    pub(crate) fn begin(&self, incoming: &Incoming<'_>, now: Instant) {
        let header = incoming.header;
        let request = (header.opcode, incoming.inode(), header.pid, now);
        self.requests.lock().insert(header.unique, request);
    }

    /// Ends a wait, and logs it if it was long: no one else may have noticed.
    pub(crate) fn end(&self, unique: u64, now: Instant) {
        let Some((code, inode, pid, since)) = self.requests.lock().remove(&unique) else {
            return;
        };
        let waited = now - since;
        // Lock waits last as long as the holders keep their locks.
        if waited >= LONG && code != opcode::SETLKW {
            let request = opcode::name(code);
            tracing::warn!(request, %inode, pid, ?waited, "a request of the kernel waited for long");
        }
    }

    /// The current waits, longest first.
    pub(crate) fn list(&self, now: Instant) -> Vec<WaitingRequest> {
        let mut waiting: Vec<_> = self
            .requests
            .lock()
            .values()
            .map(|(code, inode, pid, since)| WaitingRequest {
                request: opcode::name(*code),
                inode: *inode,
                pid: *pid,
                since: now - *since,
            })
            .collect();
        waiting.sort_by_key(|request| std::cmp::Reverse(request.since));
        waiting
    }
}

/// Calls `on_wait` once, when the operation first has to wait.
pub(crate) struct WithWaitHook<'a, O, H> {
    pub(crate) operation: Pin<&'a mut O>,
    pub(crate) on_wait: Option<H>,
}

impl<O: Future, H: FnOnce() + Unpin> Future for WithWaitHook<'_, O, H> {
    type Output = O::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<O::Output> {
        let answer = self.operation.as_mut().poll(context);
        if answer.is_pending()
            && let Some(on_wait) = self.on_wait.take()
        {
            on_wait();
        }
        answer
    }
}
