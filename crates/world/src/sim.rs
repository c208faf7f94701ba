//! A simulated machine: one seed decides time, chance, the order of tasks, disks and faults.

#![allow(
    clippy::unimplemented,
    unused_variables,
    dead_code,
    reason = "bodies follow in the next commit"
)]

use crate::{Disk, Instant, Task, World};
use bytes::Bytes;
use std::future::Future;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

/// One machine and its disks, which outlive crashes. Each [`Simulation::run`] is one power-on.
pub struct Simulation {}

/// How a run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome<T> {
    /// The future was ready.
    Finished(T),
    /// The machine lost power at the scheduled I/O; disks hold a legal state after it.
    Crashed,
}

/// Where, at a chosen I/O, the machine loses power.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    /// The I/O has no effect.
    Before,
    /// The I/O took effect, but nobody was told.
    After,
    /// A write took effect in part of its sectors; a flush for some writes.
    Torn,
}

/// Breaks things; cheap to clone, usable inside a run.
#[derive(Clone)]
pub struct Faults {}

/// A disk of the simulation, seen from outside the machine.
#[derive(Clone)]
pub struct SimDisk {}

impl Simulation {
    /// A machine without disks.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {}
    }
    /// The disk `name`, of `bytes`, made of zeros if it doesn't exist. `World::open_disk` opens it by this name.
    pub fn disk(&self, name: &str, bytes: u64) -> SimDisk {
        unimplemented!()
    }
    /// Runs `scenario` on the machine until it is ready or the power is cut.
    pub fn run<T, F>(&self, scenario: impl FnOnce(World) -> F) -> Outcome<T>
    where
        F: Future<Output = T>,
    {
        unimplemented!()
    }
    /// Faults to inject.
    #[must_use]
    pub fn faults(&self) -> Faults {
        unimplemented!()
    }
    /// I/Os so far, over all runs.
    #[must_use]
    pub fn io_count(&self) -> u64 {
        unimplemented!()
    }
    /// Hash of everything that happened on disks so far: same seed and program, same hash.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        unimplemented!()
    }
    /// Simulated time that one run may take before it ends with a panic (default one hour).
    pub fn limit_time(&self, limit: Duration) {}
}

impl<T> Outcome<T> {
    /// The result of a run that must not have crashed.
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

impl Faults {
    /// Cuts the power at I/O number `number` (counted from 0 over all runs of the simulation).
    pub fn cut_at_io(&self, number: u64, cut: Cut) {}
    /// Cuts the power now; nothing after the caller's next await happens.
    pub fn cut_now(&self) {}
    /// Reads that touch `range` fail until [`Faults::heal`] or until the range is overwritten.
    pub fn read_error(&self, disk: &str, range: Range<u64>) {}
    /// Flips one bit of the byte at `offset`, silently, in what reads see and in what is durable.
    pub fn flip_bit(&self, disk: &str, offset: u64) {}
    /// Each I/O takes this much longer.
    pub fn slow(&self, disk: &str, extra: Duration) {}
    /// Writes fail for lack of space.
    pub fn full(&self, disk: &str) {}
    /// Every I/O fails.
    pub fn fail(&self, disk: &str) {}
    /// Ends `read_error`, `slow`, `full` and `fail` of the disk.
    pub fn heal(&self, disk: &str) {}
}

impl SimDisk {
    /// The name it opens by.
    #[must_use]
    pub fn name(&self) -> String {
        unimplemented!()
    }
    /// What a read would return now.
    #[must_use]
    pub fn content(&self, offset: u64, length: usize) -> Vec<u8> {
        unimplemented!()
    }
    /// Replaces bytes, durable at once; a test's way to damage a disk between runs.
    pub fn overwrite(&self, offset: u64, bytes: &[u8]) {}
}

pub(crate) struct SimWorld {
    pub(crate) handle: Handle,
}

impl SimWorld {
    pub(crate) fn now(&self) -> Instant {
        unimplemented!()
    }
    pub(crate) fn wall(&self) -> model::Timestamp {
        unimplemented!()
    }
    pub(crate) fn random_u64(&self) -> u64 {
        unimplemented!()
    }
    pub(crate) fn spawn<F>(&self, name: &'static str, future: F) -> Task<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        unimplemented!()
    }
    pub(crate) fn create_disk(self: &Arc<Self>, path: &Path, bytes: u64) -> io::Result<Disk> {
        unimplemented!()
    }
    pub(crate) fn open_disk(self: &Arc<Self>, path: &Path) -> io::Result<Disk> {
        unimplemented!()
    }
}

pub(crate) struct OpenSimDisk {}

impl OpenSimDisk {
    pub(crate) fn bytes(&self) -> u64 {
        unimplemented!()
    }
    pub(crate) fn name(&self) -> &str {
        unimplemented!()
    }
    pub(crate) async fn read(&self, offset: u64, length: usize) -> io::Result<Bytes> {
        unimplemented!()
    }
    pub(crate) async fn write(&self, offset: u64, bytes: Bytes, durable: bool) -> io::Result<()> {
        unimplemented!()
    }
    pub(crate) async fn flush(&self) -> io::Result<()> {
        unimplemented!()
    }
    pub(crate) async fn quiesce(&self) {}
    pub(crate) fn read_now(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        unimplemented!()
    }
    pub(crate) fn write_now(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        unimplemented!()
    }
    pub(crate) fn flush_now(&self) -> io::Result<()> {
        unimplemented!()
    }
}

/// One step of the SplitMix64 generator: next state and number.
pub(crate) fn split_mix(state: u64) -> (u64, u64) {
    let state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut number = state;
    number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (state, number ^ (number >> 31))
}
