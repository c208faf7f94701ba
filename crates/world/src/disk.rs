//! One region of stable storage: reads, writes and durability, real and simulated.

use crate::buffer::{AlignedBuffer, DISK_ALIGNMENT, is_aligned};
use crate::real::RealDisk;
use crate::sim::OpenSimDisk;
use bytes::Bytes;
use std::fmt;
use std::io;
use std::sync::Arc;

/// An open region file or block device. Dropping the last clone closes it and releases its lock.
///
/// * Offsets and lengths of async I/O are multiples of 4 KiB; anything else is `InvalidInput`, and
///   so is a range that ends after the region.
/// * Every read that starts after a write returned sees that write. The write survives a power cut
///   only after [`Disk::flush`], or if it was a [`Disk::write_durable`].
/// * Dropping a future doesn't cancel a submitted I/O: a dropped write may still happen at any
///   later time, so its range must not be written again before a [`Disk::quiesce`].
/// * Concurrent I/O to overlapping ranges has no order.
#[derive(Clone)]
pub struct Disk {
    inner: Inner,
}

#[derive(Clone)]
enum Inner {
    Real(Arc<RealDisk>),
    Simulated(Arc<OpenSimDisk>),
}

impl Disk {
    pub(crate) fn real(disk: RealDisk) -> Self {
        Self {
            inner: Inner::Real(Arc::new(disk)),
        }
    }

    pub(crate) fn simulated(disk: OpenSimDisk) -> Self {
        Self {
            inner: Inner::Simulated(Arc::new(disk)),
        }
    }

    /// Size of the region; never changes while it is open.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match &self.inner {
            Inner::Real(disk) => disk.bytes(),
            Inner::Simulated(disk) => disk.bytes(),
        }
    }

    /// Reads `length` bytes into page-aligned memory.
    ///
    /// # Errors
    /// The device's error; `InvalidInput` for ranges that are unaligned or end after the region.
    pub async fn read(&self, offset: u64, length: usize) -> io::Result<Bytes> {
        self.check_range("read", offset, length as u64, DISK_ALIGNMENT as u64)?;
        match &self.inner {
            Inner::Real(disk) => disk.read(offset, length).await,
            Inner::Simulated(disk) => disk.read(offset, length).await,
        }
    }

    /// Writes `bytes`; memory that isn't page aligned is copied once.
    ///
    /// # Errors
    /// The device's error (the range's content is then undefined); `InvalidInput` as for reads.
    pub async fn write(&self, offset: u64, bytes: Bytes) -> io::Result<()> {
        self.write_as("write", offset, bytes, false).await
    }

    /// Like [`Disk::write`], and `bytes` (nothing else) survive a power cut once it returns.
    ///
    /// # Errors
    /// As [`Disk::write`].
    pub async fn write_durable(&self, offset: u64, bytes: Bytes) -> io::Result<()> {
        self.write_as("durable write", offset, bytes, true).await
    }

    /// Makes every write that returned before this call durable.
    ///
    /// # Errors
    /// The device's error. The kernel reports a failed write only once, so nothing is known about
    /// earlier writes: the caller must treat everything since the last successful flush as lost.
    pub async fn flush(&self) -> io::Result<()> {
        match &self.inner {
            Inner::Real(disk) => disk.flush().await,
            Inner::Simulated(disk) => disk.flush().await,
        }
    }

    /// Waits until no submitted I/O of this disk is under way, including I/O of dropped futures.
    pub async fn quiesce(&self) {
        match &self.inner {
            Inner::Real(disk) => disk.quiesce().await,
            Inner::Simulated(disk) => disk.quiesce().await,
        }
    }

    /// Checks that the open region hasn't been truncated (`UnexpectedEof`: writes may succeed for a
    /// while, but the bytes cut off are lost) or removed (`NotFound`: it disappears once the last
    /// process closes it). Does no I/O on the region.
    ///
    /// # Errors
    /// `UnexpectedEof` or `NotFound`, as described.
    pub fn check(&self) -> io::Result<()> {
        match &self.inner {
            Inner::Real(disk) => disk.check(),
            Inner::Simulated(_) => Ok(()),
        }
    }

    /// Releases the region while clones of this disk still exist: their I/O fails from now on, I/O
    /// under way is waited for, then the lock is released. This allows a failed disk to be opened
    /// again while other tasks still hold the failed one.
    pub async fn release(&self) {
        match &self.inner {
            Inner::Real(disk) => disk.release().await,
            Inner::Simulated(disk) => disk.release().await,
        }
    }

    /// Returns a range's space to the file system if that is possible; best effort. The range then
    /// reads as old bytes or zeros until it is written.
    pub async fn discard(&self, offset: u64, length: u64) {
        if self
            .check_range("discard", offset, length, DISK_ALIGNMENT as u64)
            .is_err()
        {
            return;
        }
        match &self.inner {
            Inner::Real(disk) => disk.discard(offset, length).await,
            Inner::Simulated(_) => {}
        }
    }

    /// Fills `buffer` from `offset`, with any alignment, blocking the thread. Only for ranges that
    /// are written with [`Disk::write_now`].
    ///
    /// # Errors
    /// As [`Disk::read`].
    pub fn read_now(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.check_range("read", offset, buffer.len() as u64, 1)?;
        match &self.inner {
            Inner::Real(disk) => disk.read_now(offset, buffer),
            Inner::Simulated(disk) => disk.read_now(offset, buffer),
        }
    }

    /// Fills `buffer` from the medium, regardless of the kernel's page cache, blocking the thread.
    /// Shows what a restart would find in ranges that are written with [`Disk::write_now`].
    ///
    /// # Errors
    /// As [`Disk::read`].
    pub fn read_medium_now(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.check_range("read", offset, buffer.len() as u64, DISK_ALIGNMENT as u64)?;
        match &self.inner {
            Inner::Real(disk) => disk.read_medium_now(offset, buffer),
            Inner::Simulated(disk) => disk.read_medium_now(offset, buffer),
        }
    }

    /// Writes `bytes` at `offset`, with any alignment, blocking the thread. Never use a range both
    /// for this and for async I/O: this goes through the kernel's page cache, async I/O bypasses
    /// it.
    ///
    /// # Errors
    /// As [`Disk::write`].
    pub fn write_now(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.check_range("write", offset, bytes.len() as u64, 1)?;
        match &self.inner {
            Inner::Real(disk) => disk.write_now(offset, bytes),
            Inner::Simulated(disk) => disk.write_now(offset, bytes),
        }
    }

    /// Makes every completed write (async and blocking) durable, blocking the thread.
    ///
    /// # Errors
    /// As [`Disk::flush`].
    pub fn flush_now(&self) -> io::Result<()> {
        match &self.inner {
            Inner::Real(disk) => disk.flush_now(),
            Inner::Simulated(disk) => disk.flush_now(),
        }
    }

    async fn write_as(
        &self,
        verb: &'static str,
        offset: u64,
        bytes: Bytes,
        durable: bool,
    ) -> io::Result<()> {
        self.check_range(verb, offset, bytes.len() as u64, DISK_ALIGNMENT as u64)?;
        match &self.inner {
            Inner::Real(disk) => {
                let bytes = if is_aligned(&bytes) {
                    bytes
                } else {
                    AlignedBuffer::copy_of(&bytes).freeze()
                };
                disk.write(offset, bytes, durable).await
            }
            Inner::Simulated(disk) => disk.write(offset, bytes, durable).await,
        }
    }

    fn check_range(&self, verb: &str, offset: u64, length: u64, alignment: u64) -> io::Result<()> {
        let aligned = offset.is_multiple_of(alignment) && length.is_multiple_of(alignment);
        let inside = offset
            .checked_add(length)
            .is_some_and(|end| end <= self.bytes());
        if aligned && inside {
            return Ok(());
        }
        let reason = if aligned {
            "range ends after the end of the region"
        } else {
            "range is not aligned"
        };
        Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{verb} of {length} bytes at {offset} on {self:?}: {reason}"),
        ))
    }
}

impl fmt::Debug for Disk {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = match &self.inner {
            Inner::Real(disk) => disk.path().display().to_string(),
            Inner::Simulated(disk) => disk.name().to_owned(),
        };
        write!(formatter, "disk {path} ({} bytes)", self.bytes())
    }
}
