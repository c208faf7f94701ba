//! The simulated machines: numbers every I/O, completes it when it is due, cuts the power.

use super::device::{Device, ReadPath, Write};
use super::faults::Cut;
use super::network::{HostNumber, Network};
use super::node::NodeState;
use super::points::Points;
use super::random::RandomStream;
use super::{RUN_IO_MAX, RUN_TIME_MAX};
use crate::{AlignedBuffer, FixedHasher, Interruption, Planted, Point};
use bytes::Bytes;
use std::any::Any;
use std::collections::BTreeMap;
use std::hash::Hasher;
use std::io;
use std::task::Waker;
use std::time::Duration;

/// Synchronous I/Os that a program may try after the power was cut. After that its thread panics
/// (and the run ends), because it would repeat for ever.
const IO_AFTER_POWER_LOSS_MAX: u64 = 10_000;

/// The state of all machines, under one lock that is never held across an await.
pub(super) struct Machine {
    pub(super) nodes: Vec<NodeState>,
    pub(super) network: Network,
    pub(super) devices: BTreeMap<String, Device>,
    pub(super) io_count: u64,
    /// Numbers of the I/Os that may change data: writes and flushes.
    pub(super) changes: Vec<u64>,
    pub(super) trace: u64,
    /// Hash of which program ran when, and of what programs noted.
    steps: u64,
    pub(super) cut: Option<(u64, Cut)>,
    pub(super) time_limit: Duration,
    /// Random numbers for the program (`World::random_u64`).
    pub(super) program_random: RandomStream,
    /// Random numbers for the order of tasks.
    pub(super) order_random: RandomStream,
    device_random: RandomStream,
    /// Number of the newest run of a program.
    pub(super) run: u64,
    /// The tasks of all machines, by number.
    pub(super) tasks: BTreeMap<u64, (HostNumber, &'static str)>,
    pub(super) next_number: u64,
    /// The fault that is planted in all programs.
    pub(super) planted: Option<Planted>,
    /// Where programs were, and where they are interrupted.
    pub(super) points: Points,
    /// The panic of a task, by the run of its program.
    pub(super) panics: BTreeMap<u64, Box<dyn Any + Send>>,
    run_io_start: u64,
    powerless_ios: u64,
    /// Submitted I/Os by due time and number.
    under_way: BTreeMap<(u64, u64), Io>,
    /// I/Os that are due on hanging disks, by number, and the wakers of those who wait for them.
    held: BTreeMap<u64, Io>,
    held_wakers: BTreeMap<u64, Waker>,
    results: BTreeMap<u64, io::Result<Bytes>>,
}

/// An I/O for a device.
pub(super) enum Request {
    Read {
        offset: u64,
        length: usize,
        by: ReadPath,
    },
    Write {
        write: Write,
        durable: bool,
    },
    Flush,
}

pub(super) struct Io {
    run: u64,
    device: String,
    request: Request,
    /// For flushes: the number of writes it covers.
    flush_point: u64,
    /// The future was dropped; the result is discarded.
    abandoned: bool,
}

/// An I/O that was submitted.
#[derive(Clone, Copy)]
pub(super) struct Ticket {
    pub(super) due: u64,
    pub(super) number: u64,
}

/// The power was cut or the process ended: no further I/O completes.
pub(super) struct PowerLost;

/// What has become of a submitted I/O.
pub(super) enum Progress {
    Done(io::Result<Bytes>),
    DueAt(u64),
    /// Its disk hangs.
    Held,
    /// The process has ended.
    Never,
}

impl Machine {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            planted: None,
            points: Points::default(),
            panics: BTreeMap::new(),
            nodes: Vec::new(),
            network: Network::new(seed),
            devices: BTreeMap::new(),
            io_count: 0,
            changes: Vec::new(),
            trace: seed,
            steps: seed,
            cut: None,
            time_limit: RUN_TIME_MAX,
            program_random: RandomStream::new(seed, 1),
            order_random: RandomStream::new(seed, 2),
            device_random: RandomStream::new(seed, 3),
            run: 0,
            tasks: BTreeMap::new(),
            next_number: 0,
            run_io_start: 0,
            powerless_ios: 0,
            under_way: BTreeMap::new(),
            held: BTreeMap::new(),
            held_wakers: BTreeMap::new(),
            results: BTreeMap::new(),
        }
    }

    /// A machine in the same state. Only between runs.
    pub(super) fn fork(&self) -> Self {
        assert!(
            self.nodes.iter().all(|node| node.run.is_none()),
            "machines are copied between runs"
        );
        Self {
            nodes: self.nodes.clone(),
            network: self.network.fork(),
            devices: self.devices.clone(),
            io_count: self.io_count,
            changes: self.changes.clone(),
            trace: self.trace,
            steps: self.steps,
            cut: self.cut,
            time_limit: self.time_limit,
            program_random: self.program_random.clone(),
            order_random: self.order_random.clone(),
            device_random: self.device_random.clone(),
            run: self.run,
            tasks: BTreeMap::new(),
            next_number: self.next_number,
            planted: self.planted,
            points: Points::default(),
            panics: BTreeMap::new(),
            run_io_start: self.run_io_start,
            powerless_ios: 0,
            under_way: BTreeMap::new(),
            held: BTreeMap::new(),
            held_wakers: BTreeMap::new(),
            results: BTreeMap::new(),
        }
    }

    /// Adds a machine; returns its number.
    pub(super) fn add_node(&mut self, name: &str, prefix: String) -> HostNumber {
        self.nodes.push(NodeState::new(name, prefix));
        self.network.add_host()
    }

    pub(super) fn add_device(&mut self, node: HostNumber, name: &str, bytes: u64) {
        self.devices
            .entry(name.to_owned())
            .or_insert_with(|| Device::new(node, bytes));
    }

    /// Starts a program on a machine; returns the number of the run.
    pub(super) fn begin_run(&mut self, node: HostNumber) -> u64 {
        let state = &mut self.nodes[node];
        assert!(
            state.run.is_none(),
            "a simulated machine runs one program at a time"
        );
        self.run += 1;
        state.run = Some(self.run);
        state.is_paused = false;
        self.run_io_start = self.io_count;
        self.powerless_ios = 0;
        self.network.begin_run(node, self.run);
        self.run
    }

    /// A machine's monotonic clock starts anywhere, so that nothing can compare those of two.
    pub(super) fn draw_clock(&mut self, node: HostNumber) {
        let hours = 1 + self.order_random.below(1000);
        self.nodes[node].restart_clock(hours * 3_600_000_000_000);
    }

    /// A machine that was off starts with an empty page cache.
    pub(super) fn forget_page_cache(&mut self, node: HostNumber) {
        self.devices
            .values_mut()
            .filter(|device| device.node == node)
            .for_each(Device::forget_page_cache);
    }

    /// A process ends, by itself or killed: what it submitted still happens, nothing is lost, and
    /// the kernel closes its connections. Returns false if it had ended before.
    pub(super) fn end_run(&mut self, now: u64, run: u64) -> bool {
        let ios: Vec<_> = self
            .under_way
            .iter()
            .filter(|(_, io)| io.run == run)
            .map(|(key, _)| *key)
            .collect();
        for (due, number) in ios {
            // A power cut that was planned for one of them ends the others.
            if let Some(io) = self.under_way.remove(&(due, number)) {
                self.finish(number, io);
            }
        }
        let node = self.node_of(run);
        if let Some(node) = node {
            self.network.end_run(now, node);
            self.stop(node);
        }
        node.is_some()
    }

    /// A program is at a point; what happens to it there.
    pub(super) fn reach(
        &mut self,
        now: u64,
        node: HostNumber,
        run: u64,
        point: Point,
    ) -> Option<Interruption> {
        // What follows a kill isn't the program's any more.
        if !self.is_running(run) {
            return Some(Interruption::Kill);
        }
        let interruption = self.points.reach(node, point)?;
        if interruption == Interruption::Kill {
            self.end_run(now, run);
        }
        Some(interruption)
    }

    /// The process of `node` is no more.
    fn stop(&mut self, node: HostNumber) {
        let state = &mut self.nodes[node];
        state.run = None;
        if let Some(waker) = state.on_end.take() {
            waker.wake();
        }
    }

    /// The machine on which `run` runs, if it still does.
    fn node_of(&self, run: u64) -> Option<HostNumber> {
        self.nodes.iter().position(|node| node.run == Some(run))
    }

    /// Whether the process of run `run` still runs.
    pub(super) fn is_running(&self, run: u64) -> bool {
        self.node_of(run).is_some()
    }

    /// A new number for an opening or task.
    pub(super) fn take_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// Submits an I/O. [`Machine::advance`] completes it once its ticket's `due` has come.
    pub(super) fn submit(
        &mut self,
        run: u64,
        now: u64,
        device: &str,
        request: Request,
    ) -> Result<Ticket, PowerLost> {
        self.advance(now);
        let number = self.begin(run, now, device, &request)?;
        let state = self.devices.get(device);
        let extra = state.map_or(Duration::ZERO, |device| device.faults.extra_latency);
        let flush_point = state.map_or(0, Device::flush_point);
        let due = now + self.draw_latency() + extra.as_nanos() as u64;
        let io = Io {
            run,
            device: device.to_owned(),
            request,
            flush_point,
            abandoned: false,
        };
        self.under_way.insert((due, number), io);
        Ok(Ticket { due, number })
    }

    /// Completes every I/O that is due, in order of time.
    pub(super) fn advance(&mut self, now: u64) {
        while let Some((&(due, number), _)) = self.under_way.first_key_value()
            && due <= now
        {
            let io = self.under_way.remove(&(due, number));
            self.finish(number, io.expect("it was just found"));
        }
    }

    /// Completes an I/O, or holds it if its disk hangs.
    fn finish(&mut self, number: u64, io: Io) {
        let device = self.devices.get(&io.device);
        if device.is_some_and(|device| device.faults.hanging) {
            self.held.insert(number, io);
        } else {
            self.complete(number, io);
        }
    }

    /// What has become of an I/O. If its disk hangs, `waker` is woken when it no longer does.
    pub(super) fn progress(&mut self, run: u64, number: u64, waker: &Waker) -> Progress {
        if !self.is_running(run) {
            return Progress::Never;
        }
        if let Some(result) = self.results.remove(&number) {
            return Progress::Done(result);
        }
        if self.held.contains_key(&number) {
            self.held_wakers.insert(number, waker.clone());
            return Progress::Held;
        }
        let due = self.under_way.keys().find(|key| key.1 == number);
        Progress::DueAt(due.expect("an I/O is under way until it is done").0)
    }

    /// The disk works again: what it held goes on.
    pub(super) fn stop_hanging(&mut self, device: &str) {
        let of_device = self.held.iter().filter(|(_, io)| io.device == device);
        let numbers: Vec<_> = of_device.map(|(number, _)| *number).collect();
        for number in numbers {
            let io = self.held.remove(&number).expect("just listed");
            if let Some(waker) = self.held_wakers.remove(&number) {
                waker.wake();
            }
            self.complete(number, io);
        }
    }

    /// The caller stopped waiting for this I/O; it happens anyway.
    pub(super) fn abandon(&mut self, ticket: Ticket) {
        self.results.remove(&ticket.number);
        self.held_wakers.remove(&ticket.number);
        let submitted = self.under_way.get_mut(&(ticket.due, ticket.number));
        if let Some(io) = submitted.or_else(|| self.held.get_mut(&ticket.number)) {
            io.abandoned = true;
        }
    }

    /// When the last I/O under way on `device` completes; for held ones that isn't known, and
    /// `now` stands for it.
    pub(super) fn last_due(&self, now: u64, device: &str) -> Option<u64> {
        let is_held = self.held.values().any(|io| io.device == device);
        let mut of_device = self.under_way.iter().filter(|(_, io)| io.device == device);
        let last = of_device.next_back().map(|((due, _), _)| *due);
        last.or(is_held.then_some(now))
    }

    /// Whether a process holds the lock of `device`: one that runs, or one that ended and whose
    /// I/O hangs.
    pub(super) fn is_locked(&self, device: &str) -> bool {
        let holder = self.devices.get(device).and_then(|device| device.opened);
        holder.is_some_and(|(_, run)| {
            self.is_running(run) || self.held.values().any(|io| io.device == device)
        })
    }

    /// Does an I/O at once, for blocking callers.
    pub(super) fn perform(
        &mut self,
        run: u64,
        now: u64,
        device: &str,
        request: Request,
    ) -> io::Result<Bytes> {
        self.advance(now);
        let Ok(number) = self.begin(run, now, device, &request) else {
            self.powerless_ios += 1;
            assert!(
                self.powerless_ios < IO_AFTER_POWER_LOSS_MAX,
                "endless I/O after the power was cut"
            );
            return Err(power_lost());
        };
        let flush_point = self.devices.get(device).map_or(0, Device::flush_point);
        let io = Io {
            run,
            device: device.to_owned(),
            request,
            flush_point,
            abandoned: false,
        };
        let device = self.devices.get(&io.device);
        if device.is_some_and(|device| device.faults.hanging) {
            // The only thread can't hang, so it is told.
            return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT));
        }
        self.complete(number, io);
        let result = self.results.remove(&number);
        match self.is_running(run) {
            true => result.expect("it was just completed"),
            false => Err(power_lost()),
        }
    }

    /// Cuts the power of all machines now.
    pub(super) fn cut_now(&mut self) {
        self.cut = None;
        for node in 0..self.nodes.len() {
            self.lose_power(node, None);
        }
    }

    /// Cuts the power of one machine; `torn` is the I/O that must be torn.
    pub(super) fn lose_power(&mut self, node: HostNumber, torn: Option<Io>) {
        let mut under_way: BTreeMap<String, Vec<Write>> = BTreeMap::new();
        let devices = &self.devices;
        let is_of_node = |io: &Io| {
            devices
                .get(&io.device)
                .is_some_and(|device| device.node == node)
        };
        let lost = self.under_way.extract_if(.., |_, io| is_of_node(io));
        let mut lost: Vec<_> = lost.map(|(_, io)| io).collect();
        lost.extend(
            self.held
                .extract_if(.., |_, io| is_of_node(io))
                .map(|(_, io)| io),
        );
        for io in lost {
            if let Request::Write { write, .. } = io.request {
                under_way.entry(io.device).or_default().push(write);
            }
        }
        let of_node = self
            .devices
            .iter_mut()
            .filter(|(_, device)| device.node == node);
        for (name, device) in of_node {
            let torn = match &torn {
                Some(Io {
                    device,
                    request: Request::Write { write, .. },
                    ..
                }) if device == name => Some(write.clone()),
                _ => None,
            };
            device.lose_power(
                &mut self.device_random,
                under_way.remove(name).unwrap_or_default(),
                torn,
            );
        }
        self.nodes[node].was_off = true;
        self.network.lose_power(node);
        if self.nodes[node].run.is_some() {
            self.stop(node);
        }
    }

    /// The machine whose I/O the planned cut is at loses power.
    fn planned_cut(&mut self, device: &str, torn: Option<Io>) {
        self.cut = None;
        let node = self.devices.get(device).map_or(0, |device| device.node);
        self.lose_power(node, torn);
    }

    /// Hash of everything so far.
    pub(super) fn trace_hash(&self) -> u64 {
        let mut hasher = FixedHasher::default();
        hasher.write_u64(self.trace);
        hasher.write_u64(self.network.trace);
        hasher.write_u64(self.steps);
        hasher.finish()
    }

    /// A program took a step; `polls` is the hash of its tasks' polls.
    pub(super) fn trace_step(&mut self, now: u64, node: HostNumber, polls: u64) {
        let mut hasher = FixedHasher::default();
        for word in [self.steps, now, node as u64, polls] {
            hasher.write_u64(word);
        }
        self.steps = hasher.finish();
    }

    /// A program noted something.
    pub(super) fn trace_note(&mut self, node: HostNumber, what: &str, number: u64) {
        let mut hasher = FixedHasher::default();
        for word in [self.steps, node as u64, number] {
            hasher.write_u64(word);
        }
        hasher.write(what.as_bytes());
        self.steps = hasher.finish();
    }

    /// What waits on each running machine, for messages of the watchdog and after a panic.
    pub(super) fn describe_waiting(&self) -> String {
        let mut text = String::new();
        for (node, state) in self.nodes.iter().enumerate() {
            if state.run.is_some() {
                text += &self.describe_node(node);
            }
        }
        format!("{text}I/Os so far: {}", self.io_count)
    }

    fn describe_node(&self, node: HostNumber) -> String {
        let tasks = self.tasks.values().filter(|(of, _)| *of == node);
        let tasks: Vec<_> = tasks.map(|(_, name)| *name).collect();
        let is_of_node = |io: &Io| self.nodes[node].run == Some(io.run);
        let under_way = self.under_way.iter().filter(|(_, io)| is_of_node(io));
        let under_way = under_way.map(|((due, number), io)| {
            let (verb, device) = (io.request.verb(), &io.device);
            format!("#{number} {verb} on {device} due at {due} ns")
        });
        let held = self.held.iter().filter(|(_, io)| is_of_node(io));
        let held = held.map(|(number, io)| {
            let (verb, device) = (io.request.verb(), &io.device);
            format!("#{number} {verb} on {device}, which hangs")
        });
        let ios: Vec<_> = under_way.chain(held).collect();
        let connections = self.network.describe(node);
        let name = &self.nodes[node].name;
        let paused = if self.nodes[node].is_paused {
            " (paused)"
        } else {
            ""
        };
        format!(
            "{name}{paused}: tasks alive: {tasks:?}; I/Os under way: {ios:?}; \
             connections: {connections}; "
        )
    }

    /// Numbers and traces an I/O; cuts the power if a cut before it is scheduled.
    fn begin(
        &mut self,
        run: u64,
        now: u64,
        device: &str,
        request: &Request,
    ) -> Result<u64, PowerLost> {
        if !self.is_running(run) {
            return Err(PowerLost);
        }
        let number = self.io_count;
        self.io_count += 1;
        if !matches!(request, Request::Read { .. }) {
            self.changes.push(number);
        }
        let of_run = self.io_count - self.run_io_start;
        assert!(
            of_run <= RUN_IO_MAX,
            "endless I/O: {}",
            self.describe_waiting()
        );
        self.trace = traced(self.trace, now, number, device, request);
        if self.cut == Some((number, Cut::Before)) {
            self.planned_cut(device, None);
            return Err(PowerLost);
        }
        Ok(number)
    }

    fn complete(&mut self, number: u64, io: Io) {
        if self.cut == Some((number, Cut::Torn)) {
            let device = io.device.clone();
            return self.planned_cut(&device, Some(io));
        }
        let Io {
            run: _,
            device: name,
            request,
            flush_point,
            abandoned,
        } = io;
        let result = match self.devices.get_mut(&name) {
            Some(device) => execute(device, request, flush_point),
            None => Err(io::Error::from_raw_os_error(libc::ENODEV)),
        };
        if self.cut == Some((number, Cut::After)) {
            return self.planned_cut(&name, None);
        }
        if !abandoned {
            self.results.insert(number, result);
        }
    }

    /// Half of the I/Os complete within the current millisecond, the others after 1 to 4.
    fn draw_latency(&mut self) -> u64 {
        self.device_random.below(8).saturating_sub(3) * 1_000_000
    }
}

impl Request {
    fn verb(&self) -> &'static str {
        match self {
            Self::Read { .. } => "read",
            Self::Write { durable: false, .. } => "write",
            Self::Write { durable: true, .. } => "durable write",
            Self::Flush => "flush",
        }
    }
}

fn execute(device: &mut Device, request: Request, flush_point: u64) -> io::Result<Bytes> {
    match request {
        Request::Read { offset, length, by } => {
            let mut buffer = AlignedBuffer::zeroed(length);
            device
                .read(offset, &mut buffer, by)
                .map(|()| buffer.freeze())
        }
        Request::Write { write, durable } => device.write(write, durable).map(|()| Bytes::new()),
        Request::Flush => device.flush(flush_point).map(|()| Bytes::new()),
    }
}

fn traced(trace: u64, now: u64, number: u64, device: &str, request: &Request) -> u64 {
    let mut hasher = FixedHasher::default();
    for word in [trace, now, number] {
        hasher.write_u64(word);
    }
    hasher.write(device.as_bytes());
    hasher.write(request.verb().as_bytes());
    match request {
        Request::Read { offset, length, .. } => {
            hasher.write_u64(*offset);
            hasher.write_usize(*length);
        }
        Request::Write { write, .. } => {
            hasher.write_u64(write.offset);
            hasher.write(&write.bytes);
        }
        Request::Flush => {}
    }
    hasher.finish()
}

fn power_lost() -> io::Error {
    io::Error::other("the simulated machine has lost power")
}
