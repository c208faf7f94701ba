//! Several simulated machines, each with a runtime of its own, and a judge outside them.
//!
//! Time goes in milliseconds. In each, every running program takes a step, in an order drawn from the
//! seed; then what arrives from the network before the next millisecond is delivered in order of
//! time, and the programs that it reaches take further steps. At last the judge is polled: the
//! future that drives the test, sees time, and causes faults.
//!
//! A program is a future on a machine ([`SimNode::start`]). *Kill*: the run's number is no longer
//! that of a running process, so nothing of it reaches disks or network any more, then its runtime
//! is dropped with all tasks (a library's tasks too). What it submitted to disks happens. *Power
//! cut*: the same, and unflushed writes of that machine's disks are lost or torn. *Pause*: no steps;
//! its clock goes on, so that all timers are late together. *Drift*: its clock moves by more or less
//! than a millisecond in each.

#[cfg(test)]
mod tests;

use super::Faults;
use super::judge::{Judge, Timers};
use super::machine::Machine;
use super::network::HostNumber;
use super::node::SimNode;
use super::run::SharedClock;
use super::step::Program;
use super::wires::Wires;
use crate::{Interruption, Planted, Point};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// Nanoseconds from one step of a program to the next.
const STEP: u64 = 1_000_000;

/// Several machines, their disks, and the network between them, from one seed.
pub struct Cluster {
    shared: Arc<Shared>,
}

/// What the cluster, its nodes and its judge share.
pub(super) struct Shared {
    pub(super) seed: u64,
    pub(super) machine: Arc<Mutex<Machine>>,
    pub(super) clock: SharedClock,
    pub(super) timers: Mutex<Timers>,
    programs: Mutex<Vec<Option<Program>>>,
    /// Programs that were replaced before their runtimes could be dropped.
    dead: Mutex<Vec<Program>>,
}

impl Cluster {
    /// A cluster without machines.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            shared: Arc::new(Shared {
                seed,
                machine: Arc::new(Mutex::new(Machine::new(seed))),
                clock: SharedClock::default(),
                timers: Mutex::default(),
                programs: Mutex::default(),
                dead: Mutex::default(),
            }),
        }
    }

    /// The machine `name`, made if it doesn't exist, with an IP address of its own. No program runs
    /// on a new one.
    pub fn node(&self, name: &str) -> SimNode {
        let mut machine = self.shared.machine.lock();
        let known = machine.nodes.iter().position(|node| node.name == name);
        let number = known.unwrap_or_else(|| {
            self.shared.programs.lock().push(None);
            let number = machine.add_node(name, format!("{name}/"));
            machine.draw_clock(number);
            number
        });
        SimNode::new(self.shared.clone(), number)
    }

    /// Faults of disks; their names begin with those of their machines (`node/disk`).
    #[must_use]
    pub fn faults(&self) -> Faults {
        Faults::new(self.shared.machine.clone())
    }

    /// Faults of the network.
    #[must_use]
    pub fn wires(&self) -> Wires {
        Wires::new(self.shared.machine.clone())
    }

    /// Plants a fault in all programs, or none.
    pub fn plant(&self, fault: Option<Planted>) {
        self.shared.machine.lock().planted = fault;
    }

    /// Interrupts the program that comes to a point next, once others have passed it so many times. One
    /// interruption waits at a time: this takes the place of the one before.
    pub fn interrupt(&self, point: Point, after: u64, how: Interruption) {
        self.shared.machine.lock().points.arm(point, after, how);
    }

    /// Lets go of an interruption that hasn't happened; otherwise returns the machine that it met.
    pub fn interrupted(&self) -> Option<SimNode> {
        let node = self.shared.machine.lock().points.disarm();
        node.map(|node| SimNode::new(self.shared.clone(), node))
    }

    /// Whether an interruption waits.
    #[must_use]
    pub fn is_armed(&self) -> bool {
        self.shared.machine.lock().points.is_armed()
    }

    /// How often each point was passed.
    #[must_use]
    pub fn points(&self) -> BTreeMap<Point, u64> {
        self.shared.machine.lock().points.passed()
    }

    /// I/Os so far, on all disks.
    #[must_use]
    pub fn io_count(&self) -> u64 {
        self.shared.machine.lock().io_count
    }

    /// Hash of everything so far: I/Os, messages, decisions (`World::note`), and which task ran when.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.shared.machine.lock().trace_hash()
    }

    /// Sets the simulated time after which a run ends with a panic ([`super::RUN_TIME_MAX`] otherwise).
    pub fn limit_time(&self, limit: Duration) {
        self.shared.machine.lock().time_limit = limit;
    }

    /// Runs `judge` until it is ready, with all programs that it starts. Those that still run
    /// afterwards are killed. May be called again; time and disks go on.
    ///
    /// # Panics
    /// With the panic of the judge or of any task, after a message that names what waits on each
    /// machine; and at the limit of simulated time.
    pub fn run<T, F: Future<Output = T>>(&self, judge: impl FnOnce(Judge) -> F) -> T {
        let shared = &self.shared;
        let _killed_at_the_end = Ending(shared);
        let limit = shared.machine.lock().time_limit;
        let end = shared.now() + limit.as_nanos() as u64;
        let woken = Arc::new(Woken(AtomicBool::new(true)));
        let waker = Waker::from(woken.clone());
        let mut judge = pin!(judge(Judge::new(shared.clone())));
        loop {
            shared.timers.lock().wake_due(shared.now());
            if woken.0.swap(false, Ordering::Relaxed) {
                let polled = judge.as_mut().poll(&mut Context::from_waker(&waker));
                if let Poll::Ready(value) = polled {
                    return value;
                }
            }
            shared.bury();
            shared.step_all();
            if shared.now() >= end {
                let waiting = shared.machine.lock().describe_waiting();
                panic!("the run didn't end within {limit:?} of simulated time; {waiting}");
            }
        }
    }
}

impl Shared {
    /// Simulated time in nanoseconds.
    pub(super) fn now(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    /// Puts a program on a machine that has none.
    pub(super) fn install(&self, node: HostNumber, program: Program) {
        let old = self.programs.lock()[node].replace(program);
        self.dead.lock().extend(old);
    }

    /// The program that runs on a machine.
    pub(super) fn with_program<T>(
        &self,
        node: HostNumber,
        with: impl FnOnce(&Program) -> T,
    ) -> Option<T> {
        let programs = self.programs.lock();
        let program = programs[node].as_ref()?;
        let runs = self.machine.lock().is_running(program.world.run);
        runs.then(|| with(program))
    }

    /// One millisecond.
    fn step_all(&self) {
        let begin = self.now();
        let mut order: Vec<_> = (0..self.programs.lock().len()).collect();
        {
            let mut machine = self.machine.lock();
            machine.advance(begin);
            machine.network.deliver(begin);
            machine.order_random.shuffle(&mut order);
        }
        self.deliver_letters();
        for node in order {
            self.step(node);
        }
        // What arrives before the next millisecond, round by round.
        loop {
            self.deliver_letters();
            let mut woken: Vec<_> = {
                let mut machine = self.machine.lock();
                let mut woken: Vec<_> = machine.network.take_woken().into_iter().collect();
                machine.order_random.shuffle(&mut woken);
                if woken.is_empty() {
                    match machine.network.next_due() {
                        Some(due) if due < begin + STEP => {
                            self.clock.store(due, Ordering::Relaxed);
                            machine.network.deliver(due);
                            continue;
                        }
                        _ => break,
                    }
                }
                woken
            };
            woken.drain(..).for_each(|node| self.step(node));
        }
        self.clock.store(begin + STEP, Ordering::Relaxed);
    }

    /// Lets the program on a machine run until it waits, unless it is paused.
    fn step(&self, node: HostNumber) {
        let clock = {
            let mut machine = self.machine.lock();
            let now = self.now();
            let state = &mut machine.nodes[node];
            state.tick(now);
            if state.is_paused || state.run.is_none() {
                return;
            }
            state.clock
        };
        let Some(mut program) = self.programs.lock()[node].take() else {
            return;
        };
        let result = program.step(clock);
        self.check(&program, result);
        let has_ended = program.has_ended.load(Ordering::Relaxed);
        {
            let mut machine = self.machine.lock();
            machine.trace_step(self.now(), node, program.trace());
        }
        if has_ended {
            // The kernel closes what it had open, in the order of its own table. What the program drops sends nothing
            // any more: libraries drop some of it late, or on whichever thread comes by (crossbeam's epochs), so that
            // its order would differ from run to run.
            self.machine.lock().end_run(self.now(), program.world.run);
            drop(program);
        } else {
            let mut programs = self.programs.lock();
            match &mut programs[node] {
                // It was killed and started again meanwhile.
                Some(_) => self.dead.lock().push(program),
                none => *none = Some(program),
            }
        }
    }

    /// Fails the run if a program panicked that had not been killed before.
    fn check(&self, program: &Program, result: std::thread::Result<()>) {
        let machine = self.machine.lock();
        if result.is_err() && machine.is_running(program.world.run) {
            let name = machine.nodes[program.world.node].name.clone();
            let (seed, at) = (self.seed, Duration::from_nanos(self.now()));
            let waiting = machine.describe_waiting();
            drop(machine);
            panic!("a task on {name} panicked after {at:?} (seed {seed}); {waiting}");
        }
    }

    /// Does the work of letters that have arrived; those for paused programs wait.
    fn deliver_letters(&self) {
        let mut waiting = Vec::new();
        loop {
            let letter = self.machine.lock().network.take_letter();
            let Some(letter) = letter else {
                break;
            };
            if self.machine.lock().nodes[letter.to].is_paused {
                waiting.push(letter);
                continue;
            }
            let program = self.programs.lock()[letter.to].take();
            if let Some(program) = program {
                if program.world.run == letter.run && self.machine.lock().is_running(letter.run) {
                    let result = program.receive(letter.work);
                    self.check(&program, result);
                }
                self.programs.lock()[letter.to] = Some(program);
            }
        }
        self.machine.lock().network.keep_letters(waiting);
    }

    /// Drops the runtimes of programs that were killed.
    fn bury(&self) {
        let mut dead = std::mem::take(&mut *self.dead.lock());
        {
            let machine = self.machine.lock();
            let mut programs = self.programs.lock();
            for program in programs.iter_mut() {
                let is_dead = |program: &mut Program| !machine.is_running(program.world.run);
                dead.extend(program.take_if(is_dead));
            }
        }
        drop(dead);
    }
}

/// Kills what still runs when a run ends, also by a panic.
struct Ending<'a>(&'a Shared);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let now = self.0.now();
        {
            let mut machine = self.0.machine.lock();
            let runs: Vec<_> = machine.nodes.iter().filter_map(|node| node.run).collect();
            for run in runs {
                machine.end_run(now, run);
            }
        }
        self.0.bury();
        self.0.timers.lock().clear();
    }
}

/// Whether the judge was woken.
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}
