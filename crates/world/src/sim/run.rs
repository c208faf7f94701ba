//! One power-on of the simulated machine: runtime, clock, tasks, watchdog.

use super::Outcome;
use super::disk::OpenSimDisk;
use super::machine::Machine;
use crate::{Disk, Instant, Task, World};
use parking_lot::Mutex;
use std::future::{Future, poll_fn};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::runtime::{Builder, Handle, RngSeed, Runtime, UnhandledPanic};

/// Calendar time when a simulation begins: 2027-01-15 08:00 UTC.
const WALL_BASE: i64 = 1_800_000_000_000_000_000;

/// How long the machine is off between two runs.
const OFF: Duration = Duration::from_secs(1);

/// The world of one run.
pub(crate) struct SimWorld {
    pub(crate) handle: Handle,
    pub(super) machine: Arc<Mutex<Machine>>,
    pub(super) run: u64,
    /// Simulated nanoseconds when the run began, and tokio's time at that moment.
    base: u64,
    start: tokio::time::Instant,
}

impl SimWorld {
    /// Time continues across runs, so that nothing can rely on it starting at zero.
    pub(crate) fn now(&self) -> Instant {
        // Inside the runtime's context tokio returns its paused time, also in destructors that run
        // after the runtime ended.
        let _context = self.handle.enter();
        let elapsed = tokio::time::Instant::now().saturating_duration_since(self.start);
        Instant(self.base + elapsed.as_nanos() as u64)
    }

    pub(crate) fn wall(&self) -> model::Timestamp {
        let set_back = self.machine.lock().clock_set_back;
        model::Timestamp(WALL_BASE + self.now().0 as i64 - set_back)
    }

    pub(crate) fn random_u64(&self) -> u64 {
        self.machine.lock().program_random.next()
    }

    pub(crate) fn spawn<F>(&self, name: &'static str, future: F) -> Task<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let number = {
            let mut machine = self.machine.lock();
            let number = machine.take_number();
            machine.tasks.insert(number, name);
            number
        };
        let machine = self.machine.clone();
        let future = NamedTask {
            number,
            machine,
            future: Box::pin(future),
        };
        Task::new(self.handle.spawn(future))
    }

    pub(crate) fn create_disk(self: &Arc<Self>, path: &Path, bytes: u64) -> io::Result<Disk> {
        let name = path.to_string_lossy();
        {
            let mut machine = self.machine.lock();
            if bytes == 0 || !bytes.is_multiple_of(crate::DISK_ALIGNMENT as u64) {
                let text = format!("region {name}: {bytes} is not a positive multiple of 4096");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
            }
            if machine.devices.contains_key(&*name) {
                return Err(io::Error::from_raw_os_error(libc::EEXIST));
            }
            machine.add_device(&name, bytes);
        }
        self.open_disk(path)
    }

    pub(crate) fn open_disk(self: &Arc<Self>, path: &Path) -> io::Result<Disk> {
        let name = path.to_string_lossy().into_owned();
        let mut machine = self.machine.lock();
        let opening = machine.take_number();
        let Some(device) = machine.devices.get_mut(&name) else {
            return Err(io::Error::from_raw_os_error(libc::ENOENT));
        };
        if device.opened.is_some() {
            let text = format!("{name} is in use by another process");
            return Err(io::Error::new(io::ErrorKind::WouldBlock, text));
        }
        device.opened = Some(opening);
        let bytes = device.bytes;
        drop(machine);
        Ok(Disk::simulated(OpenSimDisk::new(
            self.clone(),
            name,
            bytes,
            opening,
        )))
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
    let (number, base, limit) = {
        let mut machine = machine.lock();
        let base = machine.elapsed + OFF.as_nanos() as u64;
        (machine.power_on(), base, machine.time_limit)
    };
    let runtime = new_runtime(seed, number);
    let start = {
        let _context = runtime.enter();
        tokio::time::Instant::now()
    };
    let handle = runtime.handle().clone();
    let sim_world = Arc::new(SimWorld {
        handle,
        machine: machine.clone(),
        run: number,
        base,
        start,
    });
    let world = World::simulated(sim_world.clone());

    let result = catch_unwind(AssertUnwindSafe(|| {
        let scenario = async { scenario(world).await };
        let result = runtime.block_on(until_power_loss(machine, limit, scenario));
        // Destructors of tasks may do (synchronous) I/O, which belongs to the run.
        drop(runtime);
        result
    }));

    let now = sim_world.now().0;
    let mut machine = machine.lock();
    let powered = machine.powered && machine.power_stays(now);
    if !powered {
        // A panic after the power was cut could not have happened on a real machine.
        machine.end_run(now);
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

fn new_runtime(seed: u64, run: u64) -> Runtime {
    let mut bytes = seed.to_le_bytes().to_vec();
    bytes.extend_from_slice(&run.to_le_bytes());
    Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .rng_seed(RngSeed::from_bytes(&bytes))
        .unhandled_panic(UnhandledPanic::ShutdownRuntime)
        .build()
        .expect("a runtime without I/O needs no resources of the system")
}

/// Drives `scenario`; `None` when the power is cut. Panics when simulated time runs out.
async fn until_power_loss<T>(
    machine: &Arc<Mutex<Machine>>,
    limit: Duration,
    scenario: impl Future<Output = T>,
) -> Option<T> {
    let mut scenario = pin!(scenario);
    let mut watchdog = pin!(tokio::time::sleep(limit));
    poll_fn(|context| {
        {
            let mut machine = machine.lock();
            if !machine.powered {
                return Poll::Ready(None);
            }
            machine.on_power_loss = Some(context.waker().clone());
        }
        if let Poll::Ready(value) = scenario.as_mut().poll(context) {
            return Poll::Ready(machine.lock().powered.then_some(value));
        }
        if watchdog.as_mut().poll(context).is_ready() {
            let waiting = machine.lock().describe_waiting();
            panic!("the run didn't end within {limit:?} of simulated time; {waiting}");
        }
        Poll::Pending
    })
    .await
}

/// A task that is listed while it lives, and that sometimes lets other tasks go first.
struct NamedTask<F> {
    number: u64,
    machine: Arc<Mutex<Machine>>,
    future: Pin<Box<F>>,
}

impl<F: Future> Future for NamedTask<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        // The runtime polls in order of wake-ups; real machines don't. One poll in eight is
        // postponed until after the other tasks.
        if self.machine.lock().order_random.below(8) == 0 {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.future.as_mut().poll(context)
    }
}

impl<F> Drop for NamedTask<F> {
    fn drop(&mut self) {
        self.machine.lock().tasks.remove(&self.number);
    }
}
