//! Simulated machines: one seed decides time, random numbers, the order of tasks, disks, the network
//! and faults.
//!
//! A program runs on a tokio current-thread runtime with a paused clock. In a [`Simulation`] there is
//! one: when no task can run, time jumps to the next timer. In a [`Cluster`] each machine has its
//! own, and they take turns in steps of a millisecond (`cluster.rs`). Both share disks, network and
//! their faults (`machine.rs`). The same seed and program give the same run, I/O by I/O, message by
//! message and poll by poll (`trace_hash` proves it). Disk latencies are whole milliseconds, because
//! tokio's timers are.
//!
//! A library's own tasks and timers obey all of it, because they are on the machine's runtime.

mod cluster;
mod connection;
mod cuts;
mod device;
mod disk;
mod faults;
mod judge;
mod loopback;
mod machine;
mod network;
mod node;
mod pages;
mod points;
mod random;
mod run;
mod step;
#[cfg(test)]
mod tests;
mod wires;

pub use cluster::Cluster;
pub(crate) use connection::{SimListener, SimReader, SimWriter};
pub use cuts::for_every_cut;
pub(crate) use disk::OpenSimDisk;
pub use disk::SimDisk;
pub use faults::{Cut, Faults};
pub use judge::Judge;
pub use loopback::{Held, Loopback, Loss};
pub use network::Link;
pub use node::{Answer, SimNode};
pub(crate) use run::{SimWorld, ready_at_once};
pub use wires::Wires;

use crate::{Interruption, Point, World};
use machine::Machine;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// Longest simulated time of one run unless [`Simulation::limit_time`] sets another.
pub const RUN_TIME_MAX: Duration = Duration::from_secs(3600);

/// Most I/Os of one run: more means an endless loop.
pub const RUN_IO_MAX: u64 = 20_000_000;

/// One machine and its disks, which outlive crashes. Each [`Simulation::run`] is one power-on.
pub struct Simulation {
    seed: u64,
    machine: Arc<Mutex<Machine>>,
}

/// How a run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome<T> {
    /// The future was ready. Tasks still running were dropped; unflushed writes stay readable and
    /// may be lost at a later power cut (as when a process is killed).
    Finished(T),
    /// The machine lost power; the disks are in a state that a real power cut could have left.
    Crashed,
}

impl Simulation {
    /// A machine without disks.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut machine = Machine::new(seed);
        machine.add_node("machine", String::new());
        Self {
            seed,
            machine: Arc::new(Mutex::new(machine)),
        }
    }

    /// A second machine in this one's state, between two runs. Cheap: both share the pages that
    /// neither changes. The same program gives the same run on both.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self {
            seed: self.seed,
            machine: Arc::new(Mutex::new(self.machine.lock().fork())),
        }
    }

    /// The seed, for messages.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The disk `name`, created with `bytes` of zeros if it doesn't exist (an existing disk keeps
    /// its size). `World::open_disk` opens it by this name. Only written pages take memory.
    pub fn disk(&self, name: &str, bytes: u64) -> SimDisk {
        self.machine.lock().add_device(run::ONLY, name, bytes);
        SimDisk::new(self.machine.clone(), name)
    }

    /// Runs `scenario` until it is ready or the power is cut, then drops it and all its tasks.
    ///
    /// # Panics
    /// With the panic of `scenario` or of any task; and if the run exceeds the limit of simulated
    /// time (no task could make progress, or one repeats for ever): the message names the waiting
    /// tasks and I/Os.
    pub fn run<T, F>(&self, scenario: impl FnOnce(World) -> F) -> Outcome<T>
    where
        F: Future<Output = T>,
    {
        run::run(self.seed, &self.machine, scenario)
    }

    /// Faults to inject.
    #[must_use]
    pub fn faults(&self) -> Faults {
        Faults::new(self.machine.clone())
    }

    /// A fault in the program, from now on.
    pub fn plant(&self, fault: Option<crate::Planted>) {
        self.machine.lock().planted = fault;
    }

    /// Holds up the task that comes to a point next, once it was passed so many times; all others go on. One waits at a
    /// time: this takes the place of the one before.
    pub fn hold_up(&self, point: Point, after: u64, time: Duration) {
        let how = Interruption::Delay(time);
        self.machine.lock().points.arm(point, after, how);
    }

    /// How often each point was passed, over all runs.
    #[must_use]
    pub fn points(&self) -> BTreeMap<Point, u64> {
        self.machine.lock().points.passed()
    }

    /// Simulated time so far, over all runs.
    #[must_use]
    pub fn time(&self) -> Duration {
        Duration::from_nanos(self.machine.lock().nodes[run::ONLY].clock)
    }

    /// I/Os so far, over all runs; this is the number of the next I/O.
    #[must_use]
    pub fn io_count(&self) -> u64 {
        self.machine.lock().io_count
    }

    /// The numbers of all I/Os so far that changed data or made it durable. Power cuts at other
    /// I/Os lead to no further states.
    #[must_use]
    pub fn changing_ios(&self) -> Vec<u64> {
        self.machine.lock().changes.clone()
    }

    /// Hash of everything so far: which I/O and message, where, what, when.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.machine.lock().trace_hash()
    }

    /// Sets the simulated time after which a run ends with a panic.
    pub fn limit_time(&self, limit: Duration) {
        self.machine.lock().time_limit = limit;
    }
}

impl<T> Outcome<T> {
    /// The result of a run. Panics if the power was cut.
    pub fn finished(self) -> T {
        match self {
            Self::Finished(value) => value,
            Self::Crashed => panic!("the machine lost power before the scenario finished"),
        }
    }

    /// Whether the power was cut.
    #[must_use]
    pub fn is_crashed(&self) -> bool {
        matches!(self, Self::Crashed)
    }
}
