//! The real machine: kernel clocks, the runtime's tasks, disks through io_uring and O_DIRECT.

mod blocked;
mod collector;
mod faults;
mod net;
mod queue_limits;
mod region;
mod request;
mod ring;
mod rounds;
#[cfg(test)]
mod tests;
mod threads;
mod urgent;

pub use blocked::Blocked;
pub(crate) use faults::Faults;
pub(crate) use net::{
    RealListener, RealReader, RealStream, address_towards, connect_tcp, ephemeral_ports,
};
pub(crate) use region::RealDisk;
pub use rounds::{Bell, Rounds};

use crate::split_mix::split_mix;
use crate::waits::Waits;
use ring::{Gathering, Ring};
use std::cell::Cell;
use std::future::Future;
use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};
use tokio::runtime::Handle;
use urgent::UrgentThread;

/// The runtime of the real world.
pub(crate) struct RealWorld {
    pub(crate) handle: Handle,
    /// The thread that the runtime is on, if it is the urgent one.
    thread: Option<UrgentThread>,
    /// The same machine with its urgent runtime, once that was needed.
    urgent: OnceLock<Arc<RealWorld>>,
    /// Of all disks, in labs only.
    faults: Option<Arc<Faults>>,
    /// Of the runtime's tasks, once there was a disk.
    ring: OnceLock<Option<Arc<Ring>>>,
    /// Of the machine, whichever runtime waits.
    waits: Arc<Waits>,
}

impl RealWorld {
    pub(crate) fn new(handle: Handle, faults: Option<Arc<Faults>>) -> Self {
        Self {
            handle,
            thread: None,
            urgent: OnceLock::new(),
            faults,
            ring: OnceLock::new(),
            // No two nodes give their errands the same numbers, but by an accident that nobody meets.
            waits: Arc::new(Waits::new(random_u64())),
        }
    }

    pub(crate) fn waits(&self) -> &Waits {
        &self.waits
    }

    /// See `World::urgent`.
    pub(crate) fn urgent(self: &Arc<Self>) -> Arc<Self> {
        if self.thread.is_some() {
            return self.clone();
        }
        let start = || {
            let thread = UrgentThread::start()
                .expect("the machine has room for the program's threads at start-up");
            Arc::new(Self {
                handle: thread.handle().clone(),
                thread: Some(thread),
                urgent: OnceLock::new(),
                faults: self.faults.clone(),
                ring: OnceLock::new(),
                waits: self.waits.clone(),
            })
        };
        self.urgent.get_or_init(start).clone()
    }

    /// See `World::is_here`.
    pub(crate) fn is_here(&self) -> bool {
        self.thread.is_some() == urgent::is_urgent_thread()
    }

    /// Runs a thread's work with the runtime entered, so that timers and tasks work there.
    pub(crate) fn run_thread(self: Arc<Self>, work: impl FnOnce()) {
        let _context = self.handle.enter();
        HOME.set(Arc::as_ptr(&self) as usize);
        work();
    }

    pub(crate) fn block_on<F: Future>(&self, future: F) -> F::Output {
        // Entering updates a reference count that all threads share; too expensive for each
        // request.
        let is_home = HOME.get() == std::ptr::from_ref(self) as usize;
        let _context = (!is_home).then(|| self.handle.enter());
        threads::block_on(future)
    }

    pub(crate) fn create_disk(&self, path: &Path, bytes: u64) -> io::Result<RealDisk> {
        Ok(self.with_disk(RealDisk::create(path, bytes)?))
    }

    pub(crate) fn open_disk(&self, path: &Path) -> io::Result<RealDisk> {
        Ok(self.with_disk(RealDisk::open(path)?))
    }

    fn with_disk(&self, disk: RealDisk) -> RealDisk {
        let ring = self.ring.get_or_init(|| collector::start(&self.handle));
        disk.with_ring(ring.clone())
            .with_faults(self.faults.as_ref())
    }
}

/// See `World::gather_io`.
pub(crate) fn gather_io<R>(work: impl FnOnce() -> R) -> R {
    let _gathering = Gathering::begin();
    work()
}

/// Calendar time. Unlike the other clocks it is asked of the C library, so that libfaketime can give a process another
/// calendar than its machine's.
pub(crate) fn wall_time() -> model::Timestamp {
    let nanoseconds = |time: Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
    match SystemTime::now().duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => model::Timestamp(nanoseconds(since)),
        Err(before) => model::Timestamp(-nanoseconds(before.duration())),
    }
}

thread_local! {
    /// Address of the world whose runtime this thread has entered for its whole life; 0 if none.
    static HOME: Cell<usize> = const { Cell::new(0) };
    /// State of this thread's generator; zero until seeded from the kernel.
    static RANDOM: Cell<u64> = const { Cell::new(0) };
}

/// A number that won't repeat by accident; not for secrets.
pub(crate) fn random_u64() -> u64 {
    RANDOM.with(|state| {
        let mut current = state.get();
        if current == 0 {
            current = seed_of_kernel();
        }
        let (next, number) = split_mix(current);
        state.set(next);
        number
    })
}

fn seed_of_kernel() -> u64 {
    let mut seed = [0_u8; 8];
    let filled = rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty());
    assert!(
        filled == Ok(seed.len()),
        "the kernel gives eight random bytes once it has started"
    );
    u64::from_ne_bytes(seed)
}
