//! Requests that wait: which, since when, how they learn that their program was killed, and a hook when the wait begins.

use crate::abi::opcode;
use crate::request::Incoming;
use model::InodeId;
use parking_lot::Mutex;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use world::{Errand, GivenUp, Instant, Map, World};

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
    /// Wakes whoever runs it.
    waker: Waker,
    /// There once its program was killed.
    given_up: Option<GivenUp>,
}

/// A request that waits, and whose wait its program's death may end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mortal {
    /// The request's number.
    pub(crate) unique: u64,
    /// The thread that waits for its answer.
    pub(crate) pid: u32,
}

/// The waiting requests of one mount that hold a thread or a ring entry, by their number.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    requests: Mutex<Map<u64, Begun>>,
}

impl Waiting {
    /// A request begins to wait on an errand; the waker is that of whoever runs it.
    pub(crate) fn begin(&self, incoming: &Incoming<'_>, at: Instant, errand: Errand, waker: Waker) {
        let header = incoming.header;
        let request = Begun {
            opcode: header.opcode,
            inode: incoming.inode(),
            pid: header.pid,
            at,
            errand,
            waker,
            given_up: None,
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

    /// The request with this number, if it waits, isn't given up, and its program's death may end that.
    pub(crate) fn mortal(&self, unique: u64) -> Option<Mortal> {
        let requests = self.requests.lock();
        requests
            .get(&unique)
            .and_then(|request| request.mortal(unique))
    }

    /// All such requests that have waited for so long.
    pub(crate) fn mortals(&self, now: Instant, least: Duration) -> Vec<Mortal> {
        let requests = self.requests.lock();
        let long = requests
            .iter()
            .filter(|(_, request)| now - request.at >= least);
        long.filter_map(|(unique, request)| request.mortal(*unique))
            .collect()
    }

    /// The program of a request was killed: its wait ends soon, unless it has ended meanwhile.
    pub(crate) fn give_up(&self, unique: u64, world: &World) {
        let mut requests = self.requests.lock();
        let Some(request) = requests.get_mut(&unique) else {
            return;
        };
        if request.given_up.is_none() && !request.errand.is_none() {
            request.given_up = Some(world.give_up(request.errand));
            request.waker.wake_by_ref();
        }
    }

    /// Has all of them be polled again.
    pub(crate) fn wake_all(&self) {
        let requests = self.requests.lock();
        requests
            .values()
            .for_each(|request| request.waker.wake_by_ref());
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

impl Begun {
    fn mortal(&self, unique: u64) -> Option<Mortal> {
        let Self { opcode, pid, .. } = *self;
        let may_end = self.given_up.is_none() && pid != 0 && ends_with_program(opcode);
        may_end.then_some(Mortal { unique, pid })
    }
}

/// Whether the wait of a request ends if its program is killed. All do but those for which no program waits, and those by which
/// locks of files are taken or end: one that is taken late would stay, and one that ends late could be another program's by
/// then, since the kernel uses the names of lock owners again.
fn ends_with_program(code: u32) -> bool {
    !matches!(
        code,
        opcode::FLUSH
            | opcode::SETLK
            | opcode::SETLKW
            | opcode::RELEASE
            | opcode::RELEASEDIR
            | opcode::FORGET
            | opcode::BATCH_FORGET
            | opcode::INIT
            | opcode::DESTROY
            | opcode::INTERRUPT
            | opcode::NOTIFY_REPLY
    )
}

/// Calls `on_wait` once, when the operation first has to wait, with the waker of whoever runs it. While `is_cut` is true it
/// waits for nothing, and `None` comes of it; whoever makes that true wakes it.
pub(crate) struct WithWaitHook<'a, O, H, C> {
    pub(crate) operation: Pin<&'a mut O>,
    pub(crate) on_wait: Option<H>,
    pub(crate) is_cut: C,
}

impl<O, H, C> Future for WithWaitHook<'_, O, H, C>
where
    O: Future,
    H: FnOnce(&Waker) + Unpin,
    C: Fn() -> bool + Unpin,
{
    type Output = Option<O::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(answer) = self.operation.as_mut().poll(context) {
            return Poll::Ready(Some(answer));
        }
        if let Some(on_wait) = self.on_wait.take() {
            on_wait(context.waker());
        }
        // After that: who wakes all that wait has made it true before.
        match (self.is_cut)() {
            true => Poll::Ready(None),
            false => Poll::Pending,
        }
    }
}
