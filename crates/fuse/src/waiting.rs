//! Requests that wait: which, since when, and a hook when the wait begins.

use crate::abi::opcode;
use crate::request::Incoming;
use model::InodeId;
use parking_lot::Mutex;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use world::{Errand, Instant, Map};

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
    /// By which what is done for it is found, here and on other nodes.
    pub errand: Errand,
}

/// A request that waits.
#[derive(Debug)]
struct Begun {
    opcode: u32,
    inode: InodeId,
    pid: u32,
    at: Instant,
    errand: Errand,
}

/// The waiting requests of one mount that hold a thread or a ring entry, by their number.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    requests: Mutex<Map<u64, Begun>>,
}

impl Waiting {
    pub(crate) fn begin(&self, incoming: &Incoming<'_>, at: Instant, errand: Errand) {
        let header = incoming.header;
        let request = Begun {
            opcode: header.opcode,
            inode: incoming.inode(),
            pid: header.pid,
            at,
            errand,
        };
        self.requests.lock().insert(header.unique, request);
    }

    /// Ends a wait, and logs it if it was long: no one else may have noticed.
    pub(crate) fn end(&self, unique: u64, now: Instant) {
        let Some(request) = self.requests.lock().remove(&unique) else {
            return;
        };
        let waited = now - request.at;
        // Lock waits last as long as the holders keep their locks.
        if waited >= LONG && request.opcode != opcode::SETLKW {
            let Begun { inode, pid, .. } = request;
            let request = opcode::name(request.opcode);
            tracing::warn!(request, %inode, pid, ?waited, "a request of the kernel waited for long");
        }
    }

    /// The current waits, longest first.
    pub(crate) fn list(&self, now: Instant) -> Vec<WaitingRequest> {
        let mut waiting: Vec<_> = self
            .requests
            .lock()
            .values()
            .map(|request| WaitingRequest {
                request: opcode::name(request.opcode),
                inode: request.inode,
                pid: request.pid,
                since: now - request.at,
                errand: request.errand,
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
