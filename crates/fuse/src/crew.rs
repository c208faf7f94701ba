//! The threads that read requests from /dev/fuse and run them to their answers.
//!
//! A few threads read. When a thread's operation must wait, another thread reads instead, so that
//! slow operations never starve fast ones. When the operation continues, a surplus thread rests,
//! and ends after a while.

use crate::abi::{InHeader, WriteIn, init};
use crate::device::{Device, Received};
use crate::file_system::FileSystem;
use crate::init::DATA_BYTES_MAX;
use crate::pulse::Pulse;
use crate::request::Incoming;
use crate::serving::{Ending, ReplyTo, Serving};
use parking_lot::{Condvar, Mutex};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use world::AlignedBuffer;

/// A surplus thread ends after resting this long.
const REST_MAX: Duration = Duration::from_secs(10);
/// Data of a WRITE begins here in a thread's buffer: page aligned.
const DATA_AT: usize = 4096;
/// A request is read to here, so that a WRITE's headers end and its data begins at `DATA_AT`.
const REQUEST_AT: usize = DATA_AT - size_of::<InHeader>() - size_of::<WriteIn>();

/// How many threads serve a mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CrewSize {
    /// Threads that should be reading or running at all times.
    pub(crate) readers: usize,
    /// Most threads, including those whose operations wait.
    pub(crate) most: usize,
}

pub(crate) struct Crew<F> {
    serving: Arc<Serving<F>>,
    device: Arc<Device>,
    size: CrewSize,
    state: Mutex<CrewState>,
    wake: Condvar,
}

#[derive(Default)]
struct CrewState {
    /// Threads that read, or run an operation that hasn't had to wait.
    readers: usize,
    /// Threads that rest.
    resting: usize,
    /// Resting threads that were woken but haven't run yet; counted as readers.
    called: usize,
    /// All threads.
    threads: usize,
    ending: bool,
}

/// A thread's next step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Read,
    End,
}

impl<F: FileSystem> Crew<F> {
    /// Starts reading. One thread is enough at first: each that waits starts another.
    ///
    /// # Errors
    /// The machine, or the container, has no thread left.
    pub(crate) fn start(
        ending: &Arc<Ending<F>>,
        device: &Arc<Device>,
        size: CrewSize,
    ) -> io::Result<()> {
        let state = CrewState {
            readers: size.readers,
            threads: size.readers,
            ..CrewState::default()
        };
        let crew = Arc::new(Self {
            serving: Arc::clone(&ending.serving),
            device: Arc::clone(device),
            size,
            state: Mutex::new(state),
            wake: Condvar::new(),
        });
        for started in 0..size.readers {
            let Err(error) = crew.start_thread(ending) else {
                continue;
            };
            if started == 0 {
                return Err(error);
            }
            tracing::warn!(%error, started, "a mount starts with fewer FUSE threads");
            let mut state = crew.state.lock();
            state.readers -= size.readers - started;
            state.threads -= size.readers - started;
            break;
        }
        Ok(())
    }

    fn start_thread(self: &Arc<Self>, ending: &Arc<Ending<F>>) -> io::Result<()> {
        let (crew, ending) = (Arc::clone(self), Arc::clone(ending));
        // The handle isn't needed: `Ending` reports the last thread's end.
        self.serving
            .world
            .try_spawn_thread("shale-fuse", move || crew.run(&ending))
            .map(drop)
    }

    fn run(self: &Arc<Self>, ending: &Arc<Ending<F>>) {
        // Each thread has its own descriptor and queue. Sharing the first one works, only slower.
        let device = self
            .device
            .clone_queue()
            .map_or_else(|_| Arc::clone(&self.device), Arc::new);
        let mut buffer = AlignedBuffer::with_any_content(DATA_AT + DATA_BYTES_MAX as usize);
        let pulse = self.serving.pulses.add();
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
            let request = &buffer[REQUEST_AT..REQUEST_AT + length];
            if self.serve(ending, &device, request, &pulse) == Next::End {
                break;
            }
        }
    }

    fn serve(
        self: &Arc<Self>,
        ending: &Arc<Ending<F>>,
        device: &Arc<Device>,
        bytes: &[u8],
        pulse: &Pulse,
    ) -> Next {
        let long_setxattr = self.serving.agreement.has(init::SETXATTR_EXT);
        let Ok(incoming) = Incoming::from_device(bytes, long_setxattr) else {
            tracing::error!(
                length = bytes.len(),
                "the kernel sent a request that is too short"
            );
            return Next::Read;
        };
        let mut waited = false;
        let reply_to = ReplyTo::Device(device);
        let reply = self.serving.run(&incoming, &reply_to, pulse, || {
            waited = true;
            self.stand_in(ending);
        });
        device.answer(incoming.header.unique, &reply);
        if waited { self.come_back() } else { Next::Read }
    }

    /// The calling thread's operation must wait: wakes or starts another reader.
    fn stand_in(self: &Arc<Self>, ending: &Arc<Ending<F>>) {
        let mut state = self.state.lock();
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
            if let Err(error) = self.start_thread(ending) {
                tracing::warn!(%error, "couldn't start another FUSE thread");
                let mut state = self.state.lock();
                state.threads -= 1;
                state.readers -= 1;
            }
        } else {
            tracing::debug!(threads = state.threads, "all FUSE threads wait");
        }
    }

    /// The calling thread's operation was answered: it reads again, or rests.
    fn come_back(&self) -> Next {
        let mut state = self.state.lock();
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
                state.threads -= 1;
                return Next::End;
            }
        }
    }

    /// Called when the mount has ended.
    fn finish(&self) {
        self.serving.locks.close();
        let mut state = self.state.lock();
        state.ending = true;
        state.readers -= 1;
        state.threads -= 1;
        self.wake.notify_all();
    }
}
