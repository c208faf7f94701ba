//! A program on one of several simulated machines, run step by step.
//!
//! Tokio's paused clock would jump to the next timer as soon as nothing can run. Here other machines
//! may do something before, so a step moves the clock itself, runs the tasks until all of them wait,
//! and stops short of that jump: the runtime tells through a hook that it is about to park, and the
//! hook wakes the step's own future. After two parks without a task in between (the first one has
//! fired the timers that are due) the step is over.

use super::run::{SimWorld, new_runtime};
use crate::{FixedHasher, World};
use parking_lot::Mutex;
use std::future::{Future, poll_fn};
use std::hash::Hasher;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;
use tokio::runtime::Runtime;

/// Most polls of tasks in one step: more means that tasks wake each other for ever.
const STEP_POLLS_MAX: u64 = 10_000_000;

/// A program: its runtime, and where its clock is.
pub(super) struct Program {
    runtime: Runtime,
    pub(super) world: Arc<SimWorld>,
    watch: Arc<Watch>,
    /// Set when its first task has ended.
    pub(super) has_ended: Arc<AtomicBool>,
    /// Nanoseconds by which its clock has moved since it began.
    moved: u64,
}

/// What the hooks of a runtime see. Relaxed ordering is enough: a simulation has one thread.
#[derive(Default)]
pub(super) struct Watch {
    /// Whether steps are taken; otherwise the runtime's clock moves by itself.
    is_stepped: AtomicBool,
    polls: AtomicU64,
    polls_of_step: AtomicU64,
    polls_at_park: AtomicU64,
    is_idle: AtomicBool,
    step: Mutex<Option<Waker>>,
    /// Hash of which tasks were polled, by where they were spawned.
    trace: AtomicU64,
}

impl Watch {
    /// A task is polled that was spawned at `location`.
    pub(super) fn polled(&self, location: &std::panic::Location<'_>) {
        let mut hasher = FixedHasher::seeded(self.trace.load(Ordering::Relaxed));
        hasher.write_u64(u64::from(location.line()) << 32 | u64::from(location.column()));
        self.trace.store(hasher.finish(), Ordering::Relaxed);
        let polls = self.polls.fetch_add(1, Ordering::Relaxed) + 1;
        if self.is_stepped.load(Ordering::Relaxed) {
            let of_step = polls - self.polls_of_step.load(Ordering::Relaxed);
            assert!(
                of_step < STEP_POLLS_MAX,
                "tasks wake each other for ever; one was spawned at {location}"
            );
        }
    }

    /// The runtime has nothing to run.
    pub(super) fn parks(&self) {
        if !self.is_stepped.load(Ordering::Relaxed) {
            return;
        }
        let polls = self.polls.load(Ordering::Relaxed);
        if self.polls_at_park.swap(polls, Ordering::Relaxed) == polls {
            self.is_idle.store(true, Ordering::Relaxed);
        }
        if let Some(waker) = self.step.lock().as_ref() {
            waker.wake_by_ref();
        }
    }

    pub(super) fn trace(&self) -> u64 {
        self.trace.load(Ordering::Relaxed)
    }

    fn begin_step(&self) {
        self.is_stepped.store(true, Ordering::Relaxed);
        self.is_idle.store(false, Ordering::Relaxed);
        self.polls_at_park.store(u64::MAX, Ordering::Relaxed);
        let polls = self.polls.load(Ordering::Relaxed);
        self.polls_of_step.store(polls, Ordering::Relaxed);
    }
}

impl Program {
    /// Prepares a runtime for `world` to be made with.
    pub(super) fn new(seed: u64, run: u64, world: impl FnOnce(&Runtime) -> SimWorld) -> Self {
        let watch = Arc::new(Watch::default());
        let runtime = new_runtime(seed, run, &watch);
        Self {
            world: Arc::new(world(&runtime)),
            runtime,
            watch,
            has_ended: Arc::default(),
            moved: 0,
        }
    }

    /// Spawns the first task; the program ends with it.
    pub(super) fn begin(&self, main: impl Future<Output = ()> + Send + 'static) {
        let has_ended = self.has_ended.clone();
        let main = async move {
            main.await;
            has_ended.store(true, Ordering::Relaxed);
        };
        self.world.spawn("main", Box::pin(main)).detach();
    }

    /// Moves its clock to `clock` and runs its tasks until all of them wait.
    pub(super) fn step(&mut self, clock: u64) -> std::thread::Result<()> {
        let by = (clock - self.world.base()).saturating_sub(self.moved);
        self.moved += by;
        let watch = &self.watch;
        watch.begin_step();
        let stepped = catch_unwind(AssertUnwindSafe(|| {
            self.runtime.block_on(async {
                if by > 0 {
                    let mut moving = pin!(tokio::time::advance(Duration::from_nanos(by)));
                    // It has moved the clock after its first poll.
                    poll_fn(|context| Poll::Ready(moving.as_mut().poll(context).is_ready())).await;
                }
                poll_fn(|context| {
                    if watch.is_idle.load(Ordering::Relaxed) {
                        return Poll::Ready(());
                    }
                    *watch.step.lock() = Some(context.waker().clone());
                    Poll::Pending
                })
                .await;
            });
        }));
        let panic = self.world.machine.lock().panics.remove(&self.world.run);
        stepped.and(panic.map_or(Ok(()), Err))
    }

    /// Hash of its tasks' polls so far.
    pub(super) fn trace(&self) -> u64 {
        self.watch.trace()
    }

    /// Does the work of a letter.
    pub(super) fn receive(&self, work: super::network::Work) -> std::thread::Result<()> {
        let world = World::simulated(self.world.clone());
        let _context = self.runtime.enter();
        catch_unwind(AssertUnwindSafe(|| work(&world)))
    }
}
