//! One run of a program on a simulated machine: runtime, clock, tasks, watchdog.

use super::Outcome;
use super::disk::OpenSimDisk;
use super::machine::Machine;
use super::network::HostNumber;
use super::step::Watch;
use crate::waits::Waits;
use crate::{Instant, Interruption, Planted, Point, Task, World};
use futures::future::{BoxFuture, LocalBoxFuture};
use parking_lot::Mutex;
use std::future::{Future, poll_fn};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::runtime::{Builder, Handle, RngSeed, Runtime, UnhandledPanic};

/// Calendar time when a simulation begins: 2027-01-15 08:00 UTC.
const WALL_BASE: i64 = 1_800_000_000_000_000_000;

/// How long the only machine is off between two runs.
const OFF: Duration = Duration::from_secs(1);

/// The only machine of a `Simulation`.
pub(super) const ONLY: HostNumber = 0;

/// The world of one run.
pub(crate) struct SimWorld {
    pub(crate) handle: Handle,
    pub(super) machine: Arc<Mutex<Machine>>,
    pub(super) node: HostNumber,
    pub(super) run: u64,
    /// The machine's clock when the run began, and tokio's time at that moment.
    base: u64,
    start: tokio::time::Instant,
    /// Time of disks and network where several machines run; a machine's own clock may drift.
    shared: Option<SharedClock>,
    waits: Waits,
}

/// Nanoseconds of simulated time, the same for all machines.
pub(super) type SharedClock = Arc<AtomicU64>;

impl SimWorld {
    pub(super) fn new(
        runtime: &Runtime,
        machine: &Arc<Mutex<Machine>>,
        node: HostNumber,
        run: u64,
        shared: Option<SharedClock>,
    ) -> Self {
        let _context = runtime.enter();
        Self {
            handle: runtime.handle().clone(),
            machine: machine.clone(),
            node,
            run,
            base: machine.lock().nodes[node].clock,
            start: tokio::time::Instant::now(),
            shared,
            // The same in each simulation of the seed, and no other machine's or run's.
            waits: Waits::new((node as u64 + 1) << 48 | (run & 0xffff) << 32),
        }
    }

    pub(crate) fn waits(&self) -> &Waits {
        &self.waits
    }

    /// The machine's clock when the run began.
    pub(super) fn base(&self) -> u64 {
        self.base
    }

    /// Time as disks and the network know it.
    pub(super) fn network_time(&self) -> u64 {
        match &self.shared {
            Some(clock) => clock.load(Ordering::Relaxed),
            None => self.now().0,
        }
    }

    /// Time continues across runs, so that nothing can rely on it starting at zero.
    pub(crate) fn now(&self) -> Instant {
        // Inside the runtime's context tokio returns its paused time, also in destructors that run
        // after the runtime ended.
        let _context = self.handle.enter();
        let elapsed = tokio::time::Instant::now().saturating_duration_since(self.start);
        Instant(self.base + elapsed.as_nanos() as u64)
    }

    pub(crate) fn wall(&self) -> model::Timestamp {
        let set_back = self.machine.lock().nodes[self.node].clock_set_back;
        model::Timestamp(WALL_BASE + self.now().0 as i64 - set_back)
    }

    pub(crate) fn note(&self, what: &str, number: u64) {
        self.machine.lock().trace_note(self.node, what, number);
    }

    pub(crate) fn planted(&self) -> Option<Planted> {
        self.machine.lock().planted
    }

    /// The program is at a point; what happens to it there.
    pub(crate) fn reach(&self, point: Point) -> Option<Interruption> {
        let now = self.network_time();
        self.machine.lock().reach(now, self.node, self.run, point)
    }

    pub(crate) fn random_u64(&self) -> u64 {
        self.machine.lock().program_random.next()
    }

    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        name: &'static str,
        future: BoxFuture<'static, T>,
    ) -> Task<T> {
        let number = {
            let mut machine = self.machine.lock();
            let number = machine.take_number();
            machine.tasks.insert(number, (self.node, name));
            number
        };
        let machine = self.machine.clone();
        let future = NamedTask {
            number,
            run: self.run,
            machine,
            future,
            catches: self.shared.is_some(),
        };
        Task::new(self.handle.spawn(future))
    }

    pub(crate) fn create_disk(
        self: &Arc<Self>,
        path: &Path,
        bytes: u64,
    ) -> io::Result<OpenSimDisk> {
        let name = self.name_of(path);
        {
            let mut machine = self.machine.lock();
            if bytes == 0 || !bytes.is_multiple_of(crate::DISK_ALIGNMENT as u64) {
                let text = format!("region {name}: {bytes} is not a positive multiple of 4096");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
            }
            if machine.devices.contains_key(&name) {
                return Err(io::Error::from_raw_os_error(libc::EEXIST));
            }
            machine.add_device(self.node, &name, bytes);
        }
        self.open_disk(path)
    }

    pub(crate) fn open_disk(self: &Arc<Self>, path: &Path) -> io::Result<OpenSimDisk> {
        let name = self.name_of(path);
        let mut machine = self.machine.lock();
        let opening = machine.take_number();
        let is_locked = machine.is_locked(&name);
        let Some(device) = machine.devices.get_mut(&name) else {
            return Err(io::Error::from_raw_os_error(libc::ENOENT));
        };
        if is_locked {
            let text = format!("{name} is in use by another process");
            return Err(io::Error::new(io::ErrorKind::WouldBlock, text));
        }
        device.opened = Some((opening, self.run));
        let bytes = device.bytes;
        drop(machine);
        Ok(OpenSimDisk::new(self.clone(), name, bytes, opening))
    }

    /// The name of a disk among those of all machines.
    fn name_of(&self, path: &Path) -> String {
        let machine = self.machine.lock();
        format!(
            "{}{}",
            machine.nodes[self.node].prefix,
            path.to_string_lossy()
        )
    }
}

/// Polls `future` once: the machine's only thread can't wait for itself.
pub(crate) fn ready_at_once<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("block_on in a simulation: its only thread would wait for itself"),
    }
}

/// Runs `scenario`; see `Simulation::run`.
pub(super) fn run<T, F: Future<Output = T>>(
    seed: u64,
    machine: &Arc<Mutex<Machine>>,
    scenario: impl FnOnce(World) -> F,
) -> Outcome<T> {
    // Boxed, so that all that drives it is compiled once for each type of result, not once for each test.
    run_boxed(
        seed,
        machine,
        Box::new(|world| Box::pin(async { scenario(world).await })),
    )
}

/// What a run does, in its world.
type Scenario<'a, T> = Box<dyn FnOnce(World) -> LocalBoxFuture<'a, T> + 'a>;

fn run_boxed<T>(seed: u64, machine: &Arc<Mutex<Machine>>, scenario: Scenario<'_, T>) -> Outcome<T> {
    let (number, limit) = {
        let mut machine = machine.lock();
        machine.nodes[ONLY].clock += OFF.as_nanos() as u64;
        machine.forget_page_cache(ONLY);
        (machine.begin_run(ONLY), machine.time_limit)
    };
    let watch = Arc::new(Watch::default());
    let runtime = new_runtime(seed, number, &watch);
    let sim_world = Arc::new(SimWorld::new(&runtime, machine, ONLY, number, None));
    let world = World::simulated(sim_world.clone());

    let result = catch_unwind(AssertUnwindSafe(|| {
        let scenario = Box::pin(async { scenario(world).await });
        let result = runtime.block_on(until_power_loss(&sim_world, limit, scenario));
        // Destructors of tasks may do (synchronous) I/O, which belongs to the run.
        drop(runtime);
        result
    }));

    let now = sim_world.now().0;
    let mut machine = machine.lock();
    machine.nodes[ONLY].clock = now;
    machine.trace_step(now, ONLY, watch.trace());
    if !machine.end_run(now, number) {
        // A panic after the power was cut could not have happened on a real machine.
        return Outcome::Crashed;
    }
    match result {
        Ok(Some(value)) => Outcome::Finished(value),
        Ok(None) => unreachable!("a run ends early only when the power was cut"),
        Err(panic) => {
            eprintln!(
                "simulation failed: seed {seed}, run {number}, {} I/Os",
                machine.io_count
            );
            drop(machine);
            resume_unwind(panic)
        }
    }
}

/// A runtime that does the same in every run, with its hooks.
pub(super) fn new_runtime(seed: u64, run: u64, watch: &Arc<Watch>) -> Runtime {
    let (polled, parks) = (watch.clone(), watch.clone());
    let mut bytes = seed.to_le_bytes().to_vec();
    bytes.extend_from_slice(&run.to_le_bytes());
    Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .rng_seed(RngSeed::from_bytes(&bytes))
        .unhandled_panic(UnhandledPanic::ShutdownRuntime)
        .on_before_task_poll(move |task| polled.polled(task.spawned_at()))
        .on_thread_park(move || parks.parks())
        .build()
        .expect("a runtime without I/O needs no resources of the system")
}

/// Drives `scenario`; `None` when the power is cut. Panics when simulated time runs out.
async fn until_power_loss<T>(
    world: &Arc<SimWorld>,
    limit: Duration,
    mut scenario: LocalBoxFuture<'_, T>,
) -> Option<T> {
    let mut watchdog = pin!(tokio::time::sleep(limit));
    let mut arrivals = pin!(arrivals(world));
    poll_fn(|context| {
        {
            let mut machine = world.machine.lock();
            if !machine.is_running(world.run) {
                return Poll::Ready(None);
            }
            machine.nodes[world.node].on_end = Some(context.waker().clone());
        }
        if arrivals.as_mut().poll(context).is_ready() {
            unreachable!("a network works for ever");
        }
        if let Poll::Ready(value) = scenario.as_mut().poll(context) {
            let is_running = world.machine.lock().is_running(world.run);
            return Poll::Ready(is_running.then_some(value));
        }
        if watchdog.as_mut().poll(context).is_ready() {
            let waiting = world.machine.lock().describe_waiting();
            panic!("the run didn't end within {limit:?} of simulated time; {waiting}");
        }
        Poll::Pending
    })
    .await
}

/// Lets what is on its way in the network of a single machine arrive when it is due.
async fn arrivals(world: &Arc<SimWorld>) {
    loop {
        let wait = poll_fn(|context| {
            let now = world.network_time();
            let mut machine = world.machine.lock();
            machine.network.deliver(now);
            machine.network.on_event = Some(context.waker().clone());
            Poll::Ready(machine.network.next_due().map(|due| due - now))
        });
        let rest = wait.await;
        let earlier = poll_fn(|_| match world.machine.lock().network.on_event {
            Some(_) => Poll::Pending,
            None => Poll::Ready(()),
        });
        match rest {
            Some(rest) => {
                let _ = tokio::time::timeout(Duration::from_nanos(rest), earlier).await;
            }
            None => earlier.await,
        }
    }
}

/// A task that is listed while it lives, and that sometimes lets other tasks go first.
struct NamedTask<T> {
    number: u64,
    run: u64,
    machine: Arc<Mutex<Machine>>,
    future: BoxFuture<'static, T>,
    /// Of several machines' programs panics are kept until the step is over: a runtime that tokio
    /// shuts down in the middle of a task panics again where it drops the others.
    catches: bool,
}

impl<T> Future for NamedTask<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        // The runtime polls in order of wake-ups; real machines don't. One poll in eight is
        // postponed until after the other tasks.
        if self.machine.lock().order_random.below(8) == 0 {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if !self.catches {
            return self.future.as_mut().poll(context);
        }
        let future = &mut self.future;
        match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
            Ok(polled) => polled,
            Err(panic) => {
                let run = self.run;
                self.machine.lock().panics.entry(run).or_insert(panic);
                Poll::Pending
            }
        }
    }
}

impl<T> Drop for NamedTask<T> {
    fn drop(&mut self) {
        self.machine.lock().tasks.remove(&self.number);
    }
}
