//! Collects the completions of I/O that a runtime's tasks have submitted, on the runtime's own threads.
//!
//! A thread of the runtime that has nothing to do waits for its sockets and timers; it waits for the ring in the same
//! call. So an answer of a disk wakes one thread, which goes on with the task that waits for it: a reaper thread would
//! have to be woken first, and to wake that thread in turn. Nor is there a task that collects: as soon as two tasks can
//! go on, the thread wakes another one, although the second one is often the one that the first one is about to wake.
//! The runtime calls the collector itself where it would wake that task.

use super::ring::{Ring, Rings, SHARED_ENTRIES};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Handle, RuntimeFlavor};

/// What the runtime wakes when a ring has completions. It has the last reference, and drops that when it ends.
struct Collector(AsyncFd<Collected>);

/// The ring of a runtime's tasks, for its collector. Dropping it, which the end of the runtime does, leaves the ring to
/// the reaper thread.
struct Collected {
    rings: &'static Rings,
    ring: Arc<Ring>,
}

/// Makes the ring of a runtime's tasks, and begins to collect its completions. `None`: its tasks use the shared one,
/// because nobody may be looking after the runtime, or the kernel has no room.
pub(super) fn start(handle: &Handle) -> Option<Arc<Ring>> {
    if handle.runtime_flavor() != RuntimeFlavor::MultiThread {
        return None;
    }
    begin(handle)
        .inspect_err(|error| tracing::info!(%error, "tasks have no io_uring of their own"))
        .ok()
}

fn begin(handle: &Handle) -> io::Result<Arc<Ring>> {
    let _context = handle.enter();
    let rings = Rings::of_process()?;
    let ring = Ring::new(SHARED_ENTRIES)?;
    let collected = Collected {
        rings,
        ring: ring.clone(),
    };
    // SAFETY: `collected` has its ring, and with it the one descriptor, as long as it lives.
    let readable = unsafe { AsyncFd::register_with_interest(collected, Interest::READABLE) };
    let readable = readable.map_err(|refused| refused.into_parts().1)?;
    let collector = Arc::new(Collector(readable));
    // A task has the right to look once. Whoever calls this may have used up its own.
    handle.spawn(async move { collector.collect() });
    Ok(ring)
}

impl Collector {
    /// Passes on all completions, and has the runtime wake this when there are more. Once that has ended, it doesn't.
    fn collect(self: &Arc<Self>) {
        let waker = Waker::from(self.clone());
        let mut context = Context::from_waker(&waker);
        while let Poll::Ready(Ok(mut ready)) = self.0.poll_read_ready(&mut context) {
            // First: what comes from here on is told again.
            ready.clear_ready();
            let Collected { rings, ring } = self.0.get_ref();
            rings.reap(ring);
        }
    }
}

/// On the thread of the runtime that has just heard of completions, before it goes on with tasks.
impl Wake for Collector {
    fn wake(self: Arc<Self>) {
        self.collect();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.collect();
    }
}

impl AsRawFd for Collected {
    fn as_raw_fd(&self) -> RawFd {
        self.ring.descriptor()
    }
}

impl Drop for Collected {
    fn drop(&mut self) {
        self.ring.leave();
        if !self.ring.is_idle() {
            self.rings.hand_to_reaper(self.ring.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::request::{Completion, Memory, UnderWay};
    use super::super::ring::Gathering;
    use super::*;
    use io_uring::{opcode, types};
    use std::{
        fs::File,
        io::{PipeWriter, Write},
        os::fd::OwnedFd,
        time::Duration,
    };
    use tokio::{
        runtime::{Builder, Runtime},
        time::timeout,
    };

    /// A runtime, its ring, and a pipe of which the kernel is asked when there is something to read: it can't answer before.
    struct Scene {
        runtime: Option<Runtime>,
        ring: Arc<Ring>,
        /// Who asks isn't on the runtime's threads.
        elsewhere: Runtime,
        reader: Arc<File>,
        writer: PipeWriter,
        under_way: Arc<UnderWay>,
    }

    impl Scene {
        fn new() -> Self {
            let mut builder = Builder::new_multi_thread();
            let runtime = builder.worker_threads(1).enable_all().build().unwrap();
            let ring = start(runtime.handle()).unwrap();
            let mut builder = Builder::new_current_thread();
            let elsewhere = builder.enable_time().build().unwrap();
            let (reader, writer) = io::pipe().unwrap();
            Self {
                runtime: Some(runtime),
                ring,
                elsewhere,
                reader: Arc::new(File::from(OwnedFd::from(reader))),
                writer,
                under_way: Arc::new(UnderWay::default()),
            }
        }

        fn ask(&self) -> Completion {
            let readable = types::Fd(self.reader.as_raw_fd());
            let asked = opcode::PollAdd::new(readable, libc::POLLIN as u32).build();
            let (of, rings) = (
                (&self.reader, &self.under_way),
                Rings::of_process().unwrap(),
            );
            let submitting = rings.submit(asked, of, Memory::None, Some(&self.ring));
            self.elsewhere.block_on(submitting)
        }

        /// There is something to read, and the kernel says so.
        fn must_be_answered(mut self, asked: impl IntoIterator<Item = Completion>) {
            self.writer.write_all(b"now").unwrap();
            for answer in asked {
                let answered = async { timeout(Duration::from_secs(60), answer).await };
                let answer = self.elsewhere.block_on(answered).unwrap();
                assert_eq!(answer & i32::from(libc::POLLIN), libc::POLLIN.into());
            }
        }
    }

    #[test]
    fn a_request_that_is_under_way_at_the_end_of_its_runtime_is_answered() {
        let mut scene = Scene::new();
        let asked = scene.ask();
        assert!(!scene.ring.is_idle());
        drop(scene.runtime.take());
        scene.must_be_answered([asked]);
    }

    #[test]
    fn the_kernel_is_told_of_what_is_gathered_when_all_of_it_is_there() {
        let scene = Scene::new();
        let first = scene.ask();
        assert!(scene.ring.has_told());
        let gathering = Gathering::begin();
        let nested = Gathering::begin();
        let second = scene.ask();
        drop(nested);
        let third = scene.ask();
        assert!(!scene.ring.has_told());
        drop(gathering);
        assert!(scene.ring.has_told());
        let fourth = scene.ask();
        assert!(scene.ring.has_told());
        scene.must_be_answered([first, second, third, fourth]);
    }
}
