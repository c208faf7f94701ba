//! A simulated disk, as the program opens it and as a test sees it from outside.

use super::device::{ReadPath, Write};
use super::machine::{Machine, Progress, Request, Ticket};
use super::run::SimWorld;
use bytes::Bytes;
use parking_lot::Mutex;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

/// A disk of the simulation, seen from outside the machine: no faults, no I/O numbers.
#[derive(Clone)]
pub struct SimDisk {
    machine: Arc<Mutex<Machine>>,
    name: String,
}

/// An opening of a simulated disk; holds its lock.
pub(crate) struct OpenSimDisk {
    world: Arc<SimWorld>,
    name: String,
    bytes: u64,
    opening: u64,
    /// Set once the disk was let go. Relaxed ordering is enough: a simulation has one thread.
    is_released: AtomicBool,
}

impl SimDisk {
    pub(super) fn new(machine: Arc<Mutex<Machine>>, name: &str) -> Self {
        Self {
            machine,
            name: name.to_owned(),
        }
    }

    /// The name by which the program opens it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its size.
    ///
    /// # Panics
    /// This and the other methods panic if the disk was removed.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.machine.lock().devices[&self.name].bytes
    }

    /// The bytes that a read would return now without faults.
    #[must_use]
    pub fn content(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut buffer = vec![0; length];
        self.machine.lock().devices[&self.name].content(offset, &mut buffer);
        buffer
    }

    /// Replaces bytes, durable at once, so that tests can damage a disk.
    pub fn overwrite(&self, offset: u64, bytes: &[u8]) {
        let mut machine = self.machine.lock();
        machine
            .devices
            .get_mut(&self.name)
            .expect("the disk exists")
            .overwrite(offset, bytes);
    }
}

impl OpenSimDisk {
    pub(super) fn new(world: Arc<SimWorld>, name: String, bytes: u64, opening: u64) -> Self {
        Self {
            world,
            name,
            bytes,
            opening,
            is_released: AtomicBool::new(false),
        }
    }

    /// See `Disk::release`.
    pub(crate) async fn release(&self) {
        self.is_released.store(true, Ordering::Relaxed);
        self.quiesce().await;
        self.unlock();
    }

    fn unlock(&self) {
        let mut machine = self.world.machine.lock();
        // Of a process that has ended only what it submitted holds the lock.
        if machine.is_running(self.world.run)
            && let Some(device) = machine.devices.get_mut(&self.name)
            && device
                .opened
                .is_some_and(|(opening, _)| opening == self.opening)
        {
            device.opened = None;
        }
    }

    fn check_held(&self) -> io::Result<()> {
        if self.is_released.load(Ordering::Relaxed) {
            let text = format!("{} was released", self.name);
            return Err(io::Error::new(io::ErrorKind::NotConnected, text));
        }
        Ok(())
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) async fn read(&self, offset: u64, length: usize) -> io::Result<Bytes> {
        let request = Request::Read {
            offset,
            length,
            by: ReadPath::Direct,
        };
        self.submit_and_wait(request).await
    }

    pub(crate) async fn write(&self, offset: u64, bytes: Bytes, durable: bool) -> io::Result<()> {
        let write = Write { offset, bytes };
        self.submit_and_wait(Request::Write { write, durable })
            .await
            .map(drop)
    }

    pub(crate) async fn flush(&self) -> io::Result<()> {
        self.submit_and_wait(Request::Flush).await.map(drop)
    }

    pub(crate) async fn quiesce(&self) {
        loop {
            let now = self.world.network_time();
            let due = {
                let mut machine = self.world.machine.lock();
                machine.advance(now);
                machine.last_due(now, &self.name)
            };
            match due {
                Some(due) => self.pause(now, due).await,
                None => return,
            }
        }
    }

    pub(crate) fn read_now(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.read_blocking(offset, buffer, ReadPath::PageCache)
    }

    pub(crate) fn read_medium_now(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.read_blocking(offset, buffer, ReadPath::Direct)
    }

    fn read_blocking(&self, offset: u64, buffer: &mut [u8], by: ReadPath) -> io::Result<()> {
        let length = buffer.len();
        let bytes = self.perform(Request::Read { offset, length, by })?;
        buffer.copy_from_slice(&bytes);
        Ok(())
    }

    pub(crate) fn write_now(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let write = Write {
            offset,
            bytes: Bytes::copy_from_slice(bytes),
        };
        self.perform(Request::Write {
            write,
            durable: false,
        })
        .map(drop)
    }

    pub(crate) fn flush_now(&self) -> io::Result<()> {
        self.perform(Request::Flush).map(drop)
    }

    fn perform(&self, request: Request) -> io::Result<Bytes> {
        self.check_held()?;
        let now = self.world.network_time();
        self.world
            .machine
            .lock()
            .perform(self.world.run, now, &self.name, request)
    }

    async fn submit_and_wait(&self, request: Request) -> io::Result<Bytes> {
        self.check_held()?;
        let now = self.world.network_time();
        let submitted = self
            .world
            .machine
            .lock()
            .submit(self.world.run, now, &self.name, request);
        let Ok(ticket) = submitted else {
            // The power is cut: no further I/O completes, and the run drops this future.
            return std::future::pending().await;
        };
        let waiting = Waiting {
            world: &self.world,
            ticket,
        };
        if ticket.due > now {
            tokio::time::sleep(Duration::from_nanos(ticket.due - now)).await;
        } else {
            // Lets other tasks run at least once, so that the order of answers varies.
            for _ in 0..=ticket.number % 3 {
                tokio::task::yield_now().await;
            }
        }
        let result = loop {
            let progress = poll_fn(|context| {
                let now = self.world.network_time();
                let mut machine = self.world.machine.lock();
                machine.advance(now);
                match machine.progress(self.world.run, ticket.number, context.waker()) {
                    Progress::Done(result) => Poll::Ready(Ok(result)),
                    Progress::DueAt(due) => Poll::Ready(Err((now, due))),
                    Progress::Held | Progress::Never => Poll::Pending,
                }
            });
            match progress.await {
                Ok(result) => break result,
                // This machine's clock is fast.
                Err((now, due)) => self.pause(now, due).await,
            }
        };
        drop(waiting);
        result
    }

    /// Waits until `due`, at least a millisecond.
    async fn pause(&self, now: u64, due: u64) {
        let rest = Duration::from_nanos(due.saturating_sub(now));
        tokio::time::sleep(rest.max(Duration::from_millis(1))).await;
    }
}

impl Drop for OpenSimDisk {
    fn drop(&mut self) {
        self.unlock();
    }
}

/// Tells the machine when the waiting future is dropped.
struct Waiting<'a> {
    world: &'a SimWorld,
    ticket: Ticket,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.world.machine.lock().abandon(self.ticket);
    }
}
