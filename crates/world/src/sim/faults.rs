//! The faults that a test can inject into a simulation.

use super::device::Device;
use super::machine::Machine;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// When, relative to a chosen I/O, the machine loses power.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    /// The I/O has no effect.
    Before,
    /// The I/O took effect, but the program wasn't told.
    After,
    /// A write took effect in some of its sectors; a flush for some of the writes.
    Torn,
}

/// Injects faults; cheap to clone, usable inside a run. Every method panics if the disk doesn't
/// exist.
#[derive(Clone)]
pub struct Faults {
    machine: Arc<Mutex<Machine>>,
}

impl Faults {
    pub(super) fn new(machine: Arc<Mutex<Machine>>) -> Self {
        Self { machine }
    }

    /// Cuts the power of the machine that it meets at I/O number `number` (counted from 0 over all runs), once. Replaces an
    /// earlier choice.
    pub fn cut_at_io(&self, number: u64, cut: Cut) {
        self.machine.lock().cut = Some((number, cut));
    }

    /// Cuts the power of all machines now. Inside a run, nothing after the caller's next await happens.
    pub fn cut_now(&self) {
        self.machine.lock().cut_now();
    }

    /// Cancels a cut that has not happened yet.
    pub fn no_cut(&self) {
        self.machine.lock().cut = None;
    }

    /// Sets the calendar of all machines back by this much more, also across power cuts. Monotonic
    /// time is unaffected.
    pub fn set_clock_back(&self, by: Duration) {
        for node in &mut self.machine.lock().nodes {
            node.clock_set_back += by.as_nanos() as i64;
        }
    }

    /// Reads that touch `range` fail with EIO until it is overwritten or healed.
    pub fn read_error(&self, disk: &str, range: Range<u64>) {
        self.change(disk, |device| device.faults.read_errors.push(range));
    }

    /// Flips the lowest bit of the byte at `offset`, silently and permanently.
    pub fn flip_bit(&self, disk: &str, offset: u64) {
        self.change(disk, |device| {
            let mut byte = [0];
            device.content(offset, &mut byte);
            device.overwrite(offset, &[byte[0] ^ 1]);
        });
    }

    /// Each I/O that starts from now on takes `extra` longer.
    pub fn slow(&self, disk: &str, extra: Duration) {
        self.change(disk, |device| device.faults.extra_latency = extra);
    }

    /// Writes fail with ENOSPC.
    pub fn full(&self, disk: &str) {
        self.change(disk, |device| device.faults.full = true);
    }

    /// Every I/O fails with EIO, including those under way.
    pub fn fail(&self, disk: &str) {
        self.change(disk, |device| device.faults.failed = true);
    }

    /// No I/O completes any longer, including those under way, until the disk is healed. Blocking
    /// I/O fails with ETIMEDOUT, because a simulation's only thread can't hang.
    pub fn hang(&self, disk: &str) {
        self.change(disk, |device| device.faults.hanging = true);
    }

    /// Ends `read_error`, `slow`, `full`, `fail` and `hang`; flipped bits stay.
    pub fn heal(&self, disk: &str) {
        self.change(disk, |device| {
            device.faults = super::device::DeviceFaults::default()
        });
        self.machine.lock().stop_hanging(disk);
    }

    fn change(&self, disk: &str, change: impl FnOnce(&mut Device)) {
        let mut machine = self.machine.lock();
        change(
            machine
                .devices
                .get_mut(disk)
                .expect("the disk exists in this simulation"),
        );
    }
}
