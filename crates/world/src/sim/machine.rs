//! The simulated machine: numbers every I/O, completes it when it is due, cuts the power.

use super::device::{Device, ReadPath, Write};
use super::faults::Cut;
use super::random::RandomStream;
use super::{RUN_IO_MAX, RUN_TIME_MAX};
use crate::{AlignedBuffer, FixedHasher};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::hash::Hasher;
use std::io;
use std::task::Waker;
use std::time::Duration;

/// Synchronous I/Os that a program may try after the power was cut. After that its thread panics
/// (and the run ends), because it would repeat for ever.
const IO_AFTER_POWER_LOSS_MAX: u64 = 10_000;

/// The machine's whole state, under one lock that is never held across an await.
pub(super) struct Machine {
    pub(super) devices: BTreeMap<String, Device>,
    pub(super) io_count: u64,
    /// Numbers of the I/Os that may change data: writes and flushes.
    pub(super) changes: Vec<u64>,
    pub(super) trace: u64,
    pub(super) cut: Option<(u64, Cut)>,
    /// Nanoseconds by which the calendar was set back.
    pub(super) clock_set_back: i64,
    pub(super) time_limit: Duration,
    /// Random numbers for the program (`World::random_u64`).
    pub(super) program_random: RandomStream,
    /// Random numbers for the order of tasks.
    pub(super) order_random: RandomStream,
    device_random: RandomStream,
    /// Number of the current (or last) run, and whether its machine has power.
    pub(super) run: u64,
    pub(super) powered: bool,
    /// Simulated nanoseconds at the end of the last run.
    pub(super) elapsed: u64,
    /// Wakes the run when the power is cut.
    pub(super) on_power_loss: Option<Waker>,
    pub(super) tasks: BTreeMap<u64, &'static str>,
    pub(super) next_number: u64,
    run_io_start: u64,
    powerless_ios: u64,
    /// Submitted I/Os by due time and number.
    under_way: BTreeMap<(u64, u64), Io>,
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

struct Io {
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

/// The power was cut: no further I/O completes.
pub(super) struct PowerLost;

impl Machine {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            devices: BTreeMap::new(),
            io_count: 0,
            changes: Vec::new(),
            trace: seed,
            cut: None,
            clock_set_back: 0,
            time_limit: RUN_TIME_MAX,
            program_random: RandomStream::new(seed, 1),
            order_random: RandomStream::new(seed, 2),
            device_random: RandomStream::new(seed, 3),
            run: 0,
            powered: false,
            elapsed: 0,
            on_power_loss: None,
            tasks: BTreeMap::new(),
            next_number: 0,
            run_io_start: 0,
            powerless_ios: 0,
            under_way: BTreeMap::new(),
            results: BTreeMap::new(),
        }
    }

    /// A machine in the same state. Only between runs.
    pub(super) fn fork(&self) -> Self {
        assert!(!self.powered, "a machine is copied between runs");
        Self {
            devices: self.devices.clone(),
            io_count: self.io_count,
            changes: self.changes.clone(),
            trace: self.trace,
            cut: self.cut,
            clock_set_back: self.clock_set_back,
            time_limit: self.time_limit,
            program_random: self.program_random.clone(),
            order_random: self.order_random.clone(),
            device_random: self.device_random.clone(),
            run: self.run,
            powered: false,
            elapsed: self.elapsed,
            on_power_loss: None,
            tasks: BTreeMap::new(),
            next_number: self.next_number,
            run_io_start: self.run_io_start,
            powerless_ios: 0,
            under_way: BTreeMap::new(),
            results: BTreeMap::new(),
        }
    }

    pub(super) fn add_device(&mut self, name: &str, bytes: u64) {
        self.devices
            .entry(name.to_owned())
            .or_insert_with(|| Device::new(bytes));
    }

    /// Starts the machine; returns the number of the run.
    pub(super) fn power_on(&mut self) -> u64 {
        assert!(!self.powered, "a simulation runs one scenario at a time");
        self.run += 1;
        self.powered = true;
        self.run_io_start = self.io_count;
        self.powerless_ios = 0;
        self.devices
            .values_mut()
            .for_each(Device::forget_page_cache);
        self.run
    }

    /// The run ended by itself: submitted I/O still happens, nothing is lost. Returns false if the
    /// power was cut before.
    pub(super) fn power_stays(&mut self, now: u64) -> bool {
        self.advance(u64::MAX);
        let powered = self.powered;
        self.end_run(now);
        powered
    }

    pub(super) fn end_run(&mut self, now: u64) {
        self.powered = false;
        self.elapsed = now;
        self.on_power_loss = None;
        self.tasks.clear();
        self.results.clear();
        assert!(
            self.under_way.is_empty(),
            "a run ends with every I/O completed or cut"
        );
        for device in self.devices.values_mut() {
            device.opened = None;
        }
    }

    /// Whether the machine of run `run` still has power.
    pub(super) fn has_power(&self, run: u64) -> bool {
        self.powered && self.run == run
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
        while self.powered {
            match self.under_way.first_key_value() {
                Some((&(due, number), _)) if due <= now => {
                    let io = self
                        .under_way
                        .remove(&(due, number))
                        .expect("it was just found");
                    self.complete(number, io);
                }
                _ => break,
            }
        }
    }

    /// The result of a due I/O; `None` if the power was cut.
    pub(super) fn take_result(&mut self, run: u64, number: u64) -> Option<io::Result<Bytes>> {
        if !self.has_power(run) {
            return None;
        }
        Some(
            self.results
                .remove(&number)
                .expect("completed by advance, and taken once"),
        )
    }

    /// The caller stopped waiting for this I/O; it happens anyway.
    pub(super) fn abandon(&mut self, ticket: Ticket) {
        self.results.remove(&ticket.number);
        if let Some(io) = self.under_way.get_mut(&(ticket.due, ticket.number)) {
            io.abandoned = true;
        }
    }

    /// When the last I/O under way on `device` completes.
    pub(super) fn last_due(&self, device: &str) -> Option<u64> {
        let mut of_device = self.under_way.iter().filter(|(_, io)| io.device == device);
        of_device.next_back().map(|((due, _), _)| *due)
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
            device: device.to_owned(),
            request,
            flush_point,
            abandoned: false,
        };
        self.complete(number, io);
        self.take_result(run, number)
            .unwrap_or_else(|| Err(power_lost()))
    }

    /// Cuts the power of all devices now.
    pub(super) fn cut_now(&mut self) {
        self.lose_power(None);
    }

    /// Cuts the power of all devices; `torn` is the I/O that must be torn.
    fn lose_power(&mut self, torn: Option<Io>) {
        let mut under_way: BTreeMap<String, Vec<Write>> = BTreeMap::new();
        for io in std::mem::take(&mut self.under_way).into_values() {
            if let Request::Write { write, .. } = io.request {
                under_way.entry(io.device).or_default().push(write);
            }
        }
        for (name, device) in &mut self.devices {
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
        self.powered = false;
        self.cut = None;
        if let Some(waker) = self.on_power_loss.take() {
            waker.wake();
        }
    }

    /// The waiting tasks and I/Os, for the watchdog's message.
    pub(super) fn describe_waiting(&self) -> String {
        let tasks: Vec<_> = self.tasks.values().copied().collect();
        let ios: Vec<_> = self
            .under_way
            .iter()
            .map(|((due, number), io)| {
                format!(
                    "#{number} {} on {} due at {due} ns",
                    io.request.verb(),
                    io.device
                )
            })
            .collect();
        format!(
            "tasks alive: {tasks:?}; I/Os under way: {ios:?}; I/Os so far: {}",
            self.io_count
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
        if !self.has_power(run) {
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
            self.lose_power(None);
            return Err(PowerLost);
        }
        Ok(number)
    }

    fn complete(&mut self, number: u64, io: Io) {
        if self.cut == Some((number, Cut::Torn)) {
            return self.lose_power(Some(io));
        }
        let Io {
            device,
            request,
            flush_point,
            abandoned,
        } = io;
        let result = match self.devices.get_mut(&device) {
            Some(device) => execute(device, request, flush_point),
            None => Err(io::Error::from_raw_os_error(libc::ENODEV)),
        };
        if self.cut == Some((number, Cut::After)) {
            return self.lose_power(None);
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
