//! One region of stable storage: reads, writes, durability; each real and simulated.

use crate::buffer::{AlignedBuffer, DISK_ALIGNMENT, is_aligned};
use crate::real::RealDisk;
use crate::sim::OpenSimDisk;
use bytes::Bytes;
use std::fmt;
use std::io;
use std::sync::Arc;

/// An open region file or block device; closed (and its lock given back) with the last clone.
///
/// * Offsets and lengths of async I/O are multiples of 4 KiB; anything else is
///   `InvalidInput`, and so is a range that ends behind the region.
/// * A write that has returned is seen by every later read. It survives a power cut only
///   after [`Disk::flush`], or if it was a [`Disk::write_durable`].
/// * A dropped future doesn't stop an I/O that was submitted: a dropped write may still
///   happen at any later time, so its range must not be written again before a
///   [`Disk::quiesce`].
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
    /// What the device says; `InvalidInput` for unaligned ranges or ranges behind the end.
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
    /// What the device says (the range is then undefined); `InvalidInput` as for reads.
    pub async fn write(&self, offset: u64, bytes: Bytes) -> io::Result<()> {
        self.write_as("write", offset, bytes, false).await
    }

    /// Like [`Disk::write`], and `bytes` (only they) survive a power cut when it returns.
    ///
    /// # Errors
    /// As [`Disk::write`].
    pub async fn write_durable(&self, offset: u64, bytes: Bytes) -> io::Result<()> {
        self.write_as("durable write", offset, bytes, true).await
    }

    /// Makes every write that returned before this call durable.
    ///
    /// # Errors
    /// After an error nothing is known about earlier writes: kernels report it once. The
    /// caller must treat everything since the last successful flush as lost.
    pub async fn flush(&self) -> io::Result<()> {
        match &self.inner {
            Inner::Real(disk) => disk.flush().await,
            Inner::Simulated(disk) => disk.flush().await,
        }
    }

    /// Waits until no submitted I/O of this disk is under way, those of dropped futures
    /// included.
    pub async fn quiesce(&self) {
        match &self.inner {
            Inner::Real(disk) => disk.quiesce().await,
            Inner::Simulated(disk) => disk.quiesce().await,
        }
    }

    /// Whether the region is still what was opened: nobody has cut it short (`UnexpectedEof`:
    /// writes may go on for a while, but what was there is lost) or removed it (`NotFound`: it
    /// goes with the last who has it open). No I/O on the region.
    ///
    /// # Errors
    /// What happened to it.
    pub fn check(&self) -> io::Result<()> {
        match &self.inner {
            Inner::Real(disk) => disk.check(),
            Inner::Simulated(_) => Ok(()),
        }
    }

    /// Gives the region up while clones of this disk are still around: their I/O fails from here
    /// on, what is under way is waited for, then the lock is given back. So a disk that failed
    /// can be opened again although somebody still holds the failed one.
    pub async fn let_go(&self) {
        match &self.inner {
            Inner::Real(disk) => disk.let_go().await,
            Inner::Simulated(disk) => disk.let_go().await,
        }
    }

    /// Gives the space of a range back to the file system if it can; best effort. What the
    /// range reads afterwards is undefined (old bytes or zeros) until it is written.
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

    /// Fills `buffer` from `offset`, any alignment, blocking the thread. Only for ranges that
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

    /// Fills `buffer` from the medium, whatever the kernel's page cache holds, blocking the thread.
    /// For ranges that are written with [`Disk::write_now`], to see what a restart would find.
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

    /// Writes `bytes` at `offset`, any alignment, blocking the thread. Never mix ranges with
    /// async I/O: the one goes through the kernel's page cache, the other around it.
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

    /// Makes every returned write durable (both kinds), blocking the thread.
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
            "range ends behind the region"
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
