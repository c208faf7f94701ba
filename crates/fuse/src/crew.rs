//! The threads that read requests from /dev/fuse and run them to their answers.
//!
//! A few threads read. When the operation of one must wait, another takes its place at the
//! device, so that slow operations starve nobody; when it goes on, a surplus thread rests and
//! ends after a while.

use crate::abi::{InHeader, WriteIn, opcode};
use crate::device::{Device, Received};
use crate::file_system::FileSystem;
use crate::init::DATA_BYTES_MAX;
use crate::request::Incoming;
use crate::serving::{ReplyTo, Serving};
use model::InodeId;
use parking_lot::{Condvar, Mutex};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::watch;
use world::{AlignedBuffer, Instant, Map};

/// A surplus thread ends after resting so long.
const REST_MAX: Duration = Duration::from_secs(10);
/// Data of a WRITE begins here in a thread's buffer: page aligned.
const DATA_AT: usize = 4096;
/// A request is read to here, so that what stands before the data of a WRITE ends at `DATA_AT`.
const REQUEST_AT: usize = DATA_AT - size_of::<InHeader>() - size_of::<WriteIn>();

/// A request that waits for something, for `shale waiters`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WaitingRequest {
    /// The kernel's name of the request.
    pub request: &'static str,
    /// Whom it is about.
    pub inode: InodeId,
    /// Which thread waits; 0 if it is the kernel itself.
    pub pid: u32,
    /// For how long.
    pub since: Duration,
}

/// How many threads serve a mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CrewSize {
    /// Threads that should be reading or running at any time.
    pub(crate) readers: usize,
    /// Threads at most, those with waiting operations included.
    pub(crate) most: usize,
}

pub(crate) struct Crew<F> {
    serving: Arc<Serving<F>>,
    device: Arc<Device>,
    size: CrewSize,
    state: Mutex<State>,
    wake: Condvar,
    ended: watch::Sender<bool>,
}

#[derive(Default)]
struct State {
    /// Threads that read, or run an operation that hasn't had to wait.
    readers: usize,
    /// Threads that rest.
    resting: usize,
    /// Resting threads that were called back but haven't woken yet; counted as readers.
    called: usize,
    /// All threads.
    threads: usize,
    ending: bool,
    waiting: Map<u64, (u32, InodeId, u32, Instant)>,
}

/// What a thread does next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Read,
    End,
}

impl<F: FileSystem> Crew<F> {
    /// Starts reading. `ended` turns true when the mount is gone and all threads have ended.
    pub(crate) fn start(
        serving: Arc<Serving<F>>,
        device: Arc<Device>,
        size: CrewSize,
        ended: watch::Sender<bool>,
    ) -> Arc<Self> {
        let state = State {
            readers: size.readers,
            threads: size.readers,
            ..State::default()
        };
        let crew = Arc::new(Self {
            serving,
            device,
            size,
            state: Mutex::new(state),
            wake: Condvar::new(),
            ended,
        });
        for _ in 0..size.readers {
            crew.start_thread();
        }
        crew
    }

    /// What waits now, longest first.
    pub(crate) fn waiting(&self) -> Vec<WaitingRequest> {
        let now = self.serving.world.now();
        let mut waiting: Vec<_> = self
            .state
            .lock()
            .waiting
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

    fn start_thread(self: &Arc<Self>) {
        let crew = Arc::clone(self);
        // The handle isn't needed: `ended` tells when the last thread is gone.
        drop(
            self.serving
                .world
                .spawn_thread("shale-fuse", move || crew.run()),
        );
    }

    fn run(self: &Arc<Self>) {
        // Own descriptor, own queue. Sharing the first one is only slower.
        let device = self
            .device
            .clone_queue()
            .map_or_else(|_| Arc::clone(&self.device), Arc::new);
        let mut buffer = AlignedBuffer::with_any_content(DATA_AT + DATA_BYTES_MAX as usize);
        loop {
            let length = match device.receive(&mut buffer[REQUEST_AT..]) {
                Ok(Received::Request(length)) => length,
                Ok(Received::Again) => continue,
                Ok(Received::Ended) => break self.finish(),
                Err(error) => {
                    tracing::error!(%error, "reading /dev/fuse failed; this mount is no longer served");
                    break self.finish();
                }
            };
            if self.serve(&device, &buffer[REQUEST_AT..REQUEST_AT + length]) == Next::End {
                break;
            }
        }
    }

    fn serve(self: &Arc<Self>, device: &Arc<Device>, bytes: &[u8]) -> Next {
        let Ok(incoming) = Incoming::from_device(bytes) else {
            tracing::error!(
                length = bytes.len(),
                "the kernel sent a request that is too short"
            );
            return Next::Read;
        };
        let unique = incoming.header.unique;
        let reply_to = ReplyTo {
            device: Arc::clone(device),
            unique,
        };
        let mut waited = false;
        let operation = pin!(self.serving.answer(&incoming, &reply_to));
        let on_wait = || {
            waited = true;
            self.stand_in(&incoming);
        };
        let reply = self.serving.world.block_on(WithWaitHook {
            operation,
            on_wait: Some(on_wait),
        });
        reply_to.send(&reply);
        if waited {
            self.come_back(unique)
        } else {
            Next::Read
        }
    }

    /// The operation of the calling thread must wait: somebody else reads in its place.
    fn stand_in(self: &Arc<Self>, incoming: &Incoming<'_>) {
        let header = incoming.header;
        let now = self.serving.world.now();
        let mut state = self.state.lock();
        state.waiting.insert(
            header.unique,
            (header.opcode, incoming.inode(), header.pid, now),
        );
        state.readers -= 1;
        if state.readers >= self.size.readers || state.ending {
            return;
        }
        if state.resting > 0 {
            state.resting -= 1;
            state.called += 1;
            state.readers += 1;
            self.wake.notify_one();
        } else if state.threads < self.size.most {
            state.threads += 1;
            state.readers += 1;
            drop(state);
            self.start_thread();
        } else {
            tracing::debug!(threads = state.threads, "all FUSE threads wait");
        }
    }

    /// The operation of the calling thread is answered: read again, or rest.
    fn come_back(&self, unique: u64) -> Next {
        let mut state = self.state.lock();
        state.waiting.remove(&unique);
        if state.readers < self.size.readers || state.ending {
            state.readers += 1;
            return Next::Read;
        }
        state.resting += 1;
        loop {
            let timed_out = self.wake.wait_for(&mut state, REST_MAX).timed_out();
            if state.called > 0 {
                state.called -= 1;
                return Next::Read;
            }
            if timed_out || state.ending {
                state.resting -= 1;
                self.leave(&mut state);
                return Next::End;
            }
        }
    }

    /// The mount is gone.
    fn finish(&self) {
        let mut state = self.state.lock();
        state.ending = true;
        state.readers -= 1;
        self.wake.notify_all();
        self.leave(&mut state);
    }

    fn leave(&self, state: &mut State) {
        state.threads -= 1;
        if state.threads == 0 {
            self.serving.fs.unmounted();
            self.ended.send_replace(true);
        }
    }
}

/// Calls `on_wait` once, when the operation first has to wait.
struct WithWaitHook<'a, O, H> {
    operation: Pin<&'a mut O>,
    on_wait: Option<H>,
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
