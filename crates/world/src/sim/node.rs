//! One simulated machine: what the simulation knows of it, and what a test does with it.

use super::SimDisk;
use super::cluster::Shared;
use super::network::HostNumber;
use super::run::SimWorld;
use super::step::Program;
use crate::World;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tokio::sync::oneshot;

/// What the simulation knows of one machine.
#[derive(Clone)]
pub(super) struct NodeState {
    pub(super) name: String,
    /// What the names of its disks begin with.
    pub(super) prefix: String,
    /// The process that runs there.
    pub(super) run: Option<u64>,
    /// Nanoseconds that its calendar is behind where it would be by its monotonic clock.
    pub(super) clock_set_back: i64,
    /// Its monotonic clock, in nanoseconds.
    pub(super) clock: u64,
    /// Simulated time at which its clock was last moved.
    pub(super) ticked_at: u64,
    /// Nanoseconds that its clock gains (or loses) in each millisecond.
    pub(super) drift: i64,
    /// Stopped as by SIGSTOP.
    pub(super) is_paused: bool,
    /// Its power was cut and it hasn't started since.
    pub(super) was_off: bool,
    /// Wakes the run when its process ends.
    pub(super) on_end: Option<Waker>,
}

impl NodeState {
    pub(super) fn new(name: &str, prefix: String) -> Self {
        Self {
            name: name.to_owned(),
            prefix,
            run: None,
            clock_set_back: 0,
            clock: 0,
            ticked_at: 0,
            drift: 0,
            is_paused: false,
            was_off: true,
            on_end: None,
        }
    }

    /// Moves its clock to where it is at simulated time `now`.
    pub(super) fn tick(&mut self, now: u64) {
        let passed = now - std::mem::replace(&mut self.ticked_at, now);
        let gained = i128::from(passed) * i128::from(self.drift) / 1_000_000;
        self.clock +=
            u64::try_from(i128::from(passed) + gained).expect("a drifting clock doesn't go back");
    }

    /// Its monotonic clock starts at another value; the calendar isn't affected.
    pub(super) fn restart_clock(&mut self, clock: u64) {
        self.clock_set_back += clock as i64 - self.clock as i64;
        self.clock = clock;
    }
}

/// A machine of a cluster, seen from outside; cheap to clone. Its methods may be called by the judge
/// and by programs.
#[derive(Clone)]
pub struct SimNode {
    shared: Arc<Shared>,
    number: HostNumber,
}

/// The result of a future on a machine; `None` if its program ended before.
pub struct Answer<T> {
    receiver: oneshot::Receiver<T>,
}

impl SimNode {
    pub(super) fn new(shared: Arc<Shared>, number: HostNumber) -> Self {
        Self { shared, number }
    }

    pub(super) fn number(&self) -> HostNumber {
        self.number
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> String {
        self.shared.machine.lock().nodes[self.number].name.clone()
    }

    /// Its address, which no other machine has.
    #[must_use]
    pub fn ip(&self) -> IpAddr {
        self.shared.machine.lock().network.address(self.number)
    }

    /// A port at its address.
    #[must_use]
    pub fn port(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.ip(), port)
    }

    /// Its disk `name`, made with `bytes` of zeros if it doesn't exist. Its program opens it by this
    /// name; for [`super::Faults`] it is called [`SimDisk::name`].
    pub fn disk(&self, name: &str, bytes: u64) -> SimDisk {
        let mut machine = self.shared.machine.lock();
        let name = format!("{}{name}", machine.nodes[self.number].prefix);
        machine.add_device(self.number, &name, bytes);
        SimDisk::new(self.shared.machine.clone(), &name)
    }

    /// Whether a program runs there; a paused one does.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.shared.machine.lock().nodes[self.number].run.is_some()
    }

    /// Starts a program: `main`, in a runtime of its own. It ends when `main` does, with all its
    /// tasks.
    ///
    /// # Panics
    /// If a program runs there.
    pub fn start<T, F>(&self, main: impl FnOnce(World) -> F) -> Answer<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        let now = self.shared.now();
        let machine = &self.shared.machine;
        let run = {
            let mut machine = machine.lock();
            machine.nodes[self.number].tick(now);
            if std::mem::take(&mut machine.nodes[self.number].was_off) {
                machine.forget_page_cache(self.number);
            }
            machine.begin_run(self.number)
        };
        let clock = Some(self.shared.clock.clone());
        let program = Program::new(self.shared.seed, run, |runtime| {
            SimWorld::new(runtime, machine, self.number, run, clock)
        });
        let main = main(World::simulated(program.world.clone()));
        program.begin(async move {
            // The judge may not be interested.
            let _ = sender.send(main.await);
        });
        self.shared.install(self.number, program);
        Answer { receiver }
    }

    /// Runs `task` in the program there, as one of its tasks.
    ///
    /// # Panics
    /// If no program runs there.
    pub fn run<T, F>(&self, name: &'static str, task: impl FnOnce(World) -> F) -> Answer<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        let world = self
            .shared
            .with_program(self.number, |program| program.world.clone());
        let world = world.expect("a program runs on this machine");
        let task = task(World::simulated(world.clone()));
        let task = async move {
            // As above.
            let _ = sender.send(task.await);
        };
        world.spawn(name, Box::pin(task)).detach();
        Answer { receiver }
    }

    /// Kills the program, as SIGKILL: its memory is gone, its disks keep everything written, peers
    /// are told that its connections ended.
    pub fn kill(&self) {
        let mut machine = self.shared.machine.lock();
        if let Some(run) = machine.nodes[self.number].run {
            machine.end_run(self.shared.now(), run);
        }
    }

    /// Cuts the machine's power: as [`SimNode::kill`], but unflushed writes are lost, torn or
    /// reordered, and no peer is told. [`SimNode::start`] starts the machine again.
    pub fn cut_power(&self) {
        let mut machine = self.shared.machine.lock();
        machine.lose_power(self.number, None);
    }

    /// Stops the program, as SIGSTOP. Its kernel still takes connections and bytes.
    pub fn pause(&self) {
        self.shared.machine.lock().nodes[self.number].is_paused = true;
    }

    /// Whether its program stands still.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.shared.machine.lock().nodes[self.number].is_paused
    }

    /// Lets a paused program go on; its timers that came due meanwhile fire together.
    pub fn resume(&self) {
        self.shared.machine.lock().nodes[self.number].is_paused = false;
    }

    /// From now on its clock gains this many microseconds in a second (or loses them).
    ///
    /// # Panics
    /// If the clock would go back.
    pub fn drift(&self, parts_per_million: i64) {
        assert!(parts_per_million >= -1_000_000, "a clock doesn't go back");
        let mut machine = self.shared.machine.lock();
        let state = &mut machine.nodes[self.number];
        state.tick(self.shared.now());
        state.drift = parts_per_million;
    }

    /// Sets its calendar forward by so many seconds (or back). Monotonic time is unaffected.
    pub fn jump_clock(&self, seconds: i64) {
        let mut machine = self.shared.machine.lock();
        machine.nodes[self.number].clock_set_back -= seconds * 1_000_000_000;
    }

    /// Sends a letter from the program of `from` to the one that runs here: `work` is done here after
    /// the network's latency, in order with other letters between the two. It is lost if the way is
    /// cut when it arrives, or if this program ends before; a paused one gets it when it goes on.
    ///
    /// Letters are how simulated services that aren't part of the program (coordination) are
    /// reached: the service is an object shared by the letters' closures, on a machine of its own.
    ///
    /// # Panics
    /// If `from` isn't simulated.
    pub fn post(&self, from: &World, work: impl FnOnce(&World) + Send + 'static) {
        let from = from.simulation();
        let mut machine = self.shared.machine.lock();
        if machine.is_running(from.run) {
            let now = self.shared.now();
            let work = Box::new(work);
            machine
                .network
                .send_letter(now, from.node, self.number, work);
        }
    }

    /// Sends a letter and waits for the answer that `work` gives, which is a letter too. Waits for
    /// ever if either is lost, so bound it with a deadline; the work may have been done all the same.
    ///
    /// # Panics
    /// As [`SimNode::post`].
    pub async fn visit<T: Send + 'static>(
        &self,
        from: &World,
        work: impl FnOnce(&World) -> T + Send + 'static,
    ) -> T {
        let (sender, receiver) = oneshot::channel();
        let home = Self::new(self.shared.clone(), from.simulation().node);
        self.post(from, move |world| {
            let answer = work(world);
            home.post(world, move |_| {
                // The caller may have given up.
                let _ = sender.send(answer);
            });
        });
        match receiver.await {
            Ok(answer) => answer,
            Err(_) => std::future::pending().await,
        }
    }
}

impl<T> Answer<T> {
    /// Waits for it.
    ///
    /// # Panics
    /// If the program ended before.
    pub async fn done(self) -> T {
        self.await.expect("the program runs until its task is done")
    }
}

impl<T> Future for Answer<T> {
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        Pin::new(&mut self.receiver).poll(context).map(Result::ok)
    }
}
