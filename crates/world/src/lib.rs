//! The only door to the machine: time, randomness, tasks, disks and connections, real and simulated.
//!
//! Everything that waits, needs random numbers or touches a device takes a [`World`]. The program
//! makes [`World::real`]; tests make a [`sim::Simulation`], which runs the same code on one thread
//! from one seed, with faults and power cuts.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the other crates use these through this one"
)]

mod buffer;
pub mod call;
mod debt;
mod disk;
mod driven;
pub mod errand;
mod given_up;
mod hash;
pub mod host;
mod instant;
mod net;
mod net_limits;
mod planted;
mod points;
pub mod program;
mod put_off;
mod real;
pub mod sim;
mod split_mix;
mod task;
mod waiters;
mod waits;

pub use buffer::{
    AlignedBuffer, DISK_ALIGNMENT, GIVE_BACK_EVERY, is_aligned, recycled_buffer_bytes,
    release_unused_buffers,
};
pub use call::Deadline;
pub use debt::Debt;
pub use disk::Disk;
pub use driven::Driven;
pub use errand::Errand;
pub use given_up::GivenUp;
pub use hash::{FixedHasher, Map, Set};
pub use instant::Instant;
pub use net::{Connection, ConnectionReader, ConnectionWriter, Listener};
pub use net_limits::{BACKLOG_MAX, SILENCE_MAX};
pub use planted::Planted;
pub use points::{Interruption, Point};
pub use put_off::{in_one_go, put_off};
pub use real::{Bell, Blocked, Rounds};
pub use task::Task;
pub use waiters::{SPACE_WAIT, WAITERS_MAX, Wait, Waiter, Waiters, joined_waits, longest_waits};
pub use waits::{Part, WAITS_MAX, Work};

use futures::FutureExt;
use futures::future::BoxFuture;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use waits::Waits;

/// Time, randomness, tasks and disks of one machine. Cheap to clone.
#[derive(Clone)]
pub struct World {
    inner: Inner,
}

#[derive(Clone)]
enum Inner {
    Real(Arc<real::RealWorld>),
    Simulated(Arc<sim::SimWorld>),
}

/// The deadline of a [`World::timeout`] passed before its future was ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Elapsed;

impl fmt::Display for Elapsed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the deadline passed")
    }
}

impl std::error::Error for Elapsed {}

impl World {
    /// The real machine. Call it inside a tokio runtime; tasks run there.
    #[must_use]
    pub fn real() -> Self {
        Self::real_with(None)
    }

    /// The real machine, as [`World::real`], with disks that are as slow as a file says, which may
    /// change at any time (`real/faults.rs` has its format): for labs.
    #[must_use]
    pub fn real_with_slow_disks(file: &Path) -> Self {
        Self::real_with(Some(real::Faults::of(file)))
    }

    fn real_with(faults: Option<Arc<real::Faults>>) -> Self {
        let handle = tokio::runtime::Handle::current();
        Self {
            inner: Inner::Real(Arc::new(real::RealWorld::new(handle, faults))),
        }
    }

    pub(crate) fn simulated(world: Arc<sim::SimWorld>) -> Self {
        Self {
            inner: Inner::Simulated(world),
        }
    }

    /// Mixes a decision into the trace of a simulation (`sim::Cluster::trace_hash`), so that two runs
    /// that decided differently are told apart at once. Costs nothing in the real world.
    pub fn note(&self, what: &'static str, number: u64) {
        if let Inner::Simulated(world) = &self.inner {
            world.note(what, number);
        }
    }

    /// The simulation that this is a world of.
    ///
    /// # Panics
    /// In the real world.
    pub(crate) fn simulation(&self) -> &Arc<sim::SimWorld> {
        match &self.inner {
            Inner::Simulated(world) => world,
            Inner::Real(_) => panic!("only a simulated program can do this"),
        }
    }

    /// Whether this is a simulation.
    #[must_use]
    pub fn is_simulated(&self) -> bool {
        matches!(self.inner, Inner::Simulated(_))
    }

    /// Monotonic time; about 25 ns in the real world.
    #[must_use]
    pub fn now(&self) -> Instant {
        match &self.inner {
            Inner::Real(_) => Instant::boot_time(),
            Inner::Simulated(world) => world.now(),
        }
    }

    /// Calendar time; may jump. Only for times that users see.
    #[must_use]
    pub fn wall(&self) -> model::Timestamp {
        match &self.inner {
            Inner::Real(_) => real::wall_time(),
            Inner::Simulated(world) => world.wall(),
        }
    }

    /// Waits for `duration` (rounded up to whole milliseconds).
    pub async fn sleep(&self, duration: Duration) {
        let sleep = {
            let _context = self.handle().enter();
            tokio::time::sleep(duration)
        };
        sleep.await;
    }

    /// Drives `future` for at most `duration`, then drops it.
    ///
    /// # Errors
    /// [`Elapsed`] if it was not ready in time.
    //
    // No `async fn`: the future would be in it twice, as its argument and as what it waits for, and these are nested.
    pub fn timeout<F: Future>(
        &self,
        duration: Duration,
        future: F,
    ) -> impl Future<Output = Result<F::Output, Elapsed>> {
        let _context = self.handle().enter();
        let timeout = tokio::time::timeout(duration, future);
        timeout.map(|result| result.map_err(|_| Elapsed))
    }

    fn all_waits(&self) -> &Waits {
        match &self.inner {
            Inner::Real(world) => world.waits(),
            Inner::Simulated(world) => world.waits(),
        }
    }

    /// The errand of the future that is being polled; `NONE` outside of one.
    #[must_use]
    pub fn errand(&self) -> Errand {
        errand::current(|| self.all_waits().number())
    }

    /// Gives an errand up that began on this machine, as long as the result exists: its program was killed. Whoever waits on
    /// it doesn't hear of that by itself: its future must be polled again.
    ///
    /// # Panics
    /// If it is nobody's errand, or is given up already.
    #[must_use]
    pub fn give_up(&self, errand: Errand) -> GivenUp {
        self.all_waits().unwanted().add(errand)
    }

    /// Whether the errand of the future that is being polled is [given up](World::give_up), and it may hear of that
    /// ([`errand::undisturbed`]).
    #[must_use]
    pub fn is_given_up(&self) -> bool {
        let unwanted = self.all_waits().unwanted();
        unwanted.is_any() && errand::disturbed().is_some_and(|errand| unwanted.has(errand))
    }

    /// What waits on this machine on somebody's errand, oldest first, and how many more than
    /// [`WAITS_MAX`] do. Waits that its parts list themselves ([`Waiters`]) are not among them.
    #[must_use]
    pub fn waits(&self) -> (Vec<Waiter>, usize) {
        self.all_waits().list(self.now())
    }

    /// Drives `future`. While it waits, that is listed, if it is on somebody's errand.
    pub fn listed<F: Future>(
        &self,
        cause: &'static str,
        part: Part,
        future: F,
    ) -> impl Future<Output = F::Output> {
        // Boxed: as an argument of an `async fn` it would be in the future twice, and these are nested.
        let mut future = Box::pin(future);
        async move {
            let (mut is_first, mut listed) = (true, None);
            let output = poll_fn(|context| {
                let polled = future.as_mut().poll(context);
                if polled.is_pending() && std::mem::take(&mut is_first) {
                    let errand = self.errand();
                    if !errand.is_none() {
                        let now = self.now();
                        listed = Some(self.all_waits().enter(cause, errand, part, now));
                    }
                }
                polled
            });
            let output = output.await;
            drop(listed);
            output
        }
    }

    /// Drives work that others wait for as an errand of its own, and lists it.
    pub fn at_work<F: Future>(
        &self,
        what: &'static str,
        work: Work,
        future: F,
    ) -> impl Future<Output = F::Output> {
        errand::begin(self.listed(what, Part::Work(work), future))
    }

    /// A random number; from the seed in simulation.
    #[must_use]
    pub fn random_u64(&self) -> u64 {
        match &self.inner {
            Inner::Real(_) => real::random_u64(),
            Inner::Simulated(world) => world.random_u64(),
        }
    }

    /// Runs `future` as a task. A simulation that gets stuck reports the names of its tasks.
    pub fn spawn<F>(&self, name: &'static str, future: F) -> Task<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        // Boxed, so that the runtime's code for tasks is compiled once for each type of result instead
        // of once for each future: that was two fifths of a test program's functions.
        let future: BoxFuture<'static, F::Output> = Box::pin(future);
        match &self.inner {
            Inner::Real(world) => Task::new(world.handle.spawn(future)),
            Inner::Simulated(world) => world.spawn(name, future),
        }
    }

    /// The same machine, with tasks, timers and sockets on a thread of their own: what is spawned there
    /// goes on while all threads of this world's runtime block or compute. For the few tasks whose
    /// delay costs a node its standing (leases); they must not block nor compute, as they delay each
    /// other. The thread starts with the first call and lives as long as a world or task of it. In a
    /// simulation, which has one thread, this world itself.
    ///
    /// # Panics
    /// When the machine has no threads left, so call it first at start-up.
    #[must_use]
    pub fn urgent(&self) -> Self {
        match &self.inner {
            Inner::Real(world) => Self {
                inner: Inner::Real(world.urgent()),
            },
            Inner::Simulated(_) => self.clone(),
        }
    }

    /// Whether the calling thread is of this world's kind: an urgent one for the urgent world, any other one for the
    /// other. A connection that is polled elsewhere goes over to there ([`Connection`]), away from the task that waits for
    /// it. In a simulation always.
    #[must_use]
    pub fn is_here(&self) -> bool {
        match &self.inner {
            Inner::Real(world) => world.is_here(),
            Inner::Simulated(_) => true,
        }
    }

    /// Runs CPU-heavy or blocking `work` on a thread where it delays no task; inline in simulation.
    /// Panics of `work` propagate to the caller.
    pub async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        match &self.inner {
            Inner::Real(world) => Task::new(world.handle.spawn_blocking(work)).await,
            Inner::Simulated(_) => work(),
        }
    }

    /// Drives `future` on the calling thread until it is ready. Only for plain threads (those that
    /// read requests from the kernel). A simulation has one thread, so there the future must be
    /// ready at the first poll.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        match &self.inner {
            Inner::Real(world) => world.block_on(future),
            Inner::Simulated(_) => sim::ready_at_once(future),
        }
    }

    /// Runs `work`, which polls futures for a task, or on a thread in [`Rounds`]. The kernel is told at its end, with one call,
    /// of what they ask of disks: for whoever goes on with many requests in one go. `work` must not wait for any of them.
    pub fn gather_io<R>(&self, work: impl FnOnce() -> R) -> R {
        match &self.inner {
            Inner::Real(_) => real::gather_io(work),
            Inner::Simulated(_) => work(),
        }
    }

    /// Starts a plain thread, for work that blocks in the kernel. Panics in a simulation, and when
    /// the machine has no threads left, so call it only at start-up.
    pub fn spawn_thread(
        &self,
        name: &str,
        work: impl FnOnce() + Send + 'static,
    ) -> std::thread::JoinHandle<()> {
        self.try_spawn_thread(name, work)
            .expect("the machine has room for the program's threads at start-up")
    }

    /// Like [`World::spawn_thread`], for threads that are started and stopped while the program
    /// runs.
    ///
    /// # Errors
    /// The machine or container has no threads left.
    pub fn try_spawn_thread(
        &self,
        name: &str,
        work: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<std::thread::JoinHandle<()>> {
        let Inner::Real(world) = &self.inner else {
            panic!("a simulation has one thread; {name} can't have its own");
        };
        let world = world.clone();
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || world.run_thread(work))
    }

    /// The runtime that tasks run on, for libraries that start their own tasks (the tree).
    #[must_use]
    pub fn runtime(&self) -> tokio::runtime::Handle {
        self.handle().clone()
    }

    /// The same, not counted once more: all threads share the count, and timers are made often.
    fn handle(&self) -> &tokio::runtime::Handle {
        match &self.inner {
            Inner::Real(world) => &world.handle,
            Inner::Simulated(world) => &world.handle,
        }
    }

    /// Makes a region file of `bytes` (a multiple of 4 KiB), preallocated and durable, and opens
    /// it. Unwritten ranges read as zeros. Never overwrites a file.
    ///
    /// # Errors
    /// `AlreadyExists`, no space, or the file system's error. A failed call leaves no file.
    pub fn create_disk(&self, path: &Path, bytes: u64) -> io::Result<Disk> {
        match &self.inner {
            Inner::Real(world) => world.create_disk(path, bytes).map(Disk::real),
            Inner::Simulated(world) => world.create_disk(path, bytes).map(Disk::simulated),
        }
    }

    /// Opens a region file or block device for this process alone.
    ///
    /// # Errors
    /// `WouldBlock` if another process (or another handle of this one) has it open;
    /// `InvalidInput` if its size is no multiple of 4 KiB; `NotFound` and others.
    pub fn open_disk(&self, path: &Path) -> io::Result<Disk> {
        match &self.inner {
            Inner::Real(world) => world.open_disk(path).map(Disk::real),
            Inner::Simulated(world) => world.open_disk(path).map(Disk::simulated),
        }
    }
}

impl fmt::Debug for World {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.is_simulated() {
            "World(simulated)"
        } else {
            "World(real)"
        })
    }
}
