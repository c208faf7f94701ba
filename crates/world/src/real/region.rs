//! A region file or block device of the real machine.

use super::faults::{Faults, Moves, SlowDisk};
use super::queue_limits::request_bytes_max;
use super::request::{Memory, ReadTarget, UnderWay};
use super::ring::{Ring, Rings};
use crate::buffer::{AlignedBuffer, DISK_ALIGNMENT};
use bytes::Bytes;
use io_uring::{opcode, squeue, types};
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// I/O that takes longer is logged.
const LONG: Duration = Duration::from_secs(10);

/// How often a request that the kernel interrupted or completed in part is submitted again.
const TRIES_MAX: u32 = 1000;

/// Two descriptors of one region: one bypasses the page cache, one goes through it.
pub(crate) struct RealDisk {
    path: PathBuf,
    bytes: u64,
    is_device: bool,
    /// Longer I/O is split into parallel requests of this size.
    request_bytes_max: usize,
    rings: &'static Rings,
    /// The ring of the tasks of its world's runtime.
    of_tasks: Option<Arc<Ring>>,
    /// O_DIRECT; carries the lock.
    direct: Arc<File>,
    /// Through the page cache, for unaligned blocking I/O.
    cached: File,
    under_way: Arc<UnderWay>,
    /// Every I/O holds it for reading; `release` takes it for writing and never releases it.
    gate: tokio::sync::RwLock<()>,
    /// Set once `release` has taken the gate.
    is_closed: AtomicBool,
    /// Only in labs.
    slow: Option<SlowDisk>,
}

/// Memory and direction of a transfer.
#[derive(Clone)]
enum Transfer {
    Read(Arc<ReadTarget>),
    Write { bytes: Bytes, durable: bool },
}

impl RealDisk {
    /// Makes a region file; see `World::create_disk`.
    pub(crate) fn create(path: &Path, bytes: u64) -> io::Result<Self> {
        check_size(path, bytes)?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            // The region holds files of many users: reading it directly would bypass their
            // permissions.
            .mode(0o600)
            .open(path)?;
        let made = preallocate(&file, bytes)
            .and_then(|()| file.sync_all())
            .and_then(|()| crate::host::sync_parent(path))
            .and_then(|()| Self::open(path));
        if made.is_err() {
            // Best effort: the caller must see the first error.
            let _ = std::fs::remove_file(path);
        }
        made
    }

    /// Opens and locks; see `World::open_disk`.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let direct = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_DIRECT | libc::O_CLOEXEC)
            .open(path)?;
        crate::host::lock_exclusively(&direct, path)?;
        let cached = OpenOptions::new().read(true).write(true).open(path)?;
        let (bytes, is_device) = size_of(&cached)?;
        check_size(path, bytes)?;
        Ok(Self {
            path: path.to_owned(),
            bytes,
            is_device,
            request_bytes_max: request_bytes_max(&cached),
            rings: Rings::of_process()?,
            of_tasks: None,
            direct: Arc::new(direct),
            cached,
            under_way: Arc::default(),
            gate: tokio::sync::RwLock::new(()),
            is_closed: AtomicBool::new(false),
            slow: None,
        })
    }

    /// I/O of tasks goes through this ring.
    pub(super) fn with_ring(mut self, of_tasks: Option<Arc<Ring>>) -> Self {
        self.of_tasks = of_tasks;
        self
    }

    /// As slow as a lab's faults say.
    pub(crate) fn with_faults(mut self, faults: Option<&Arc<Faults>>) -> Self {
        self.slow = faults.map(SlowDisk::new);
        self
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) async fn read(&self, offset: u64, length: usize) -> io::Result<Bytes> {
        let _inside = self.enter()?;
        let target = ReadTarget::new(length);
        self.transfer(offset, length, Transfer::Read(target.clone()))
            .await?;
        Ok(target.into_bytes())
    }

    pub(crate) async fn write(&self, offset: u64, bytes: Bytes, durable: bool) -> io::Result<()> {
        let _inside = self.enter()?;
        self.transfer(offset, bytes.len(), Transfer::Write { bytes, durable })
            .await
    }

    pub(crate) async fn flush(&self) -> io::Result<()> {
        let _inside = self.enter()?;
        let entry = opcode::Fsync::new(self.descriptor())
            .flags(types::FsyncFlags::DATASYNC)
            .build();
        self.run_to_end(&entry).await
    }

    pub(crate) async fn quiesce(&self) {
        self.under_way.wait_for_all().await;
    }

    /// See `Disk::release`.
    pub(crate) async fn release(&self) {
        if !self.is_closed.load(Ordering::Acquire) {
            let alone = self.gate.write().await;
            self.is_closed.store(true, Ordering::Release);
            // Never released: the gate stays closed.
            std::mem::forget(alone);
        }
        self.under_way.wait_for_all().await;
        crate::host::unlock(&self.direct);
    }

    /// Permission for one I/O.
    fn enter(&self) -> io::Result<tokio::sync::RwLockReadGuard<'_, ()>> {
        self.gate.try_read().map_err(|_| {
            let text = format!("{} was released", self.path.display());
            io::Error::new(io::ErrorKind::NotConnected, text)
        })
    }

    /// Only on devices: a region file keeps its preallocated space, so that writing can't fail for
    /// lack of it.
    pub(crate) async fn discard(&self, offset: u64, length: u64) {
        if !self.is_device {
            return;
        }
        let Ok(_inside) = self.enter() else { return };
        let entry = opcode::Fallocate::new(self.descriptor(), length)
            .offset(offset)
            .mode(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE)
            .build();
        if let Err(error) = self.run_to_end(&entry).await {
            tracing::debug!(path = %self.path.display(), %error, "the device couldn't discard a range");
        }
    }

    /// See `Disk::check`.
    pub(crate) fn check(&self) -> io::Result<()> {
        use std::os::unix::fs::MetadataExt;
        if self.is_device {
            return Ok(());
        }
        let found = self.cached.metadata()?;
        let path = self.path.display();
        if found.len() < self.bytes {
            let text = format!("{path} was cut short to {} bytes", found.len());
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
        }
        if found.nlink() == 0 {
            let text = format!("{path} was removed while in use");
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        }
        Ok(())
    }

    pub(crate) fn read_now(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let _inside = self.enter()?;
        self.cached.read_exact_at(buffer, offset)
    }

    /// The kernel first writes back its page cache of the range, then reads the medium.
    pub(crate) fn read_medium_now(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let _inside = self.enter()?;
        let mut aligned = AlignedBuffer::with_any_content(buffer.len());
        self.direct.read_exact_at(&mut aligned, offset)?;
        buffer.copy_from_slice(&aligned);
        Ok(())
    }

    pub(crate) fn write_now(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let _inside = self.enter()?;
        self.cached.write_all_at(bytes, offset)
    }

    pub(crate) fn flush_now(&self) -> io::Result<()> {
        let _inside = self.enter()?;
        if let Some(slow) = &self.slow {
            slow.hold_now(Moves::Nothing);
        }
        self.cached.sync_data()
    }

    /// Moves `length` bytes, in parallel requests if they are many. Waits for all of them even if
    /// one fails, so that nothing is under way when it returns.
    async fn transfer(&self, offset: u64, length: usize, transfer: Transfer) -> io::Result<()> {
        let most = self.request_bytes_max;
        if length <= most {
            return self.transfer_part(offset, 0..length, &transfer).await;
        }
        let parts = (0..length).step_by(most).map(|start| {
            let end = length.min(start + most);
            self.transfer_part(offset, start..end, &transfer)
        });
        let results = futures::future::join_all(parts).await;
        results.into_iter().collect()
    }

    /// Moves the bytes `part` of the memory from or to `offset + part.start`.
    async fn transfer_part(
        &self,
        offset: u64,
        part: Range<usize>,
        transfer: &Transfer,
    ) -> io::Result<()> {
        let mut start = part.start;
        for _ in 0..TRIES_MAX {
            if start == part.end {
                return Ok(());
            }
            let entry = self.entry(offset, start..part.end, transfer);
            let length = part.end - start;
            let (memory, moves) = match transfer {
                Transfer::Read(target) => (Memory::Filled(target.clone()), Moves::Read(length)),
                Transfer::Write { bytes, .. } => {
                    (Memory::Read(bytes.clone()), Moves::Write(length))
                }
            };
            match bytes_moved(self.ask(entry, memory, moves).await)? {
                // Interrupted: nothing was moved; ask again.
                None => {}
                Some(0) => {
                    let text = format!(
                        "{}: no bytes were transferred at {offset}",
                        self.path.display()
                    );
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
                }
                // Bytes after the last aligned border are moved again.
                Some(moved) => {
                    let unaligned = if start + moved == part.end {
                        0
                    } else {
                        moved % DISK_ALIGNMENT
                    };
                    start += moved - unaligned;
                }
            }
        }
        Err(io::Error::other(format!(
            "{}: I/O at {offset} makes no progress",
            self.path.display()
        )))
    }

    fn entry(&self, offset: u64, part: Range<usize>, transfer: &Transfer) -> squeue::Entry {
        let length = u32::try_from(part.len()).expect("parts are at most 1 MiB");
        let offset = offset + part.start as u64;
        match transfer {
            Transfer::Read(target) => {
                opcode::Read::new(self.descriptor(), target.pointer(part.start), length)
                    .offset(offset)
                    .build()
            }
            Transfer::Write { bytes, durable } => {
                let flags = if *durable { libc::RWF_DSYNC } else { 0 };
                opcode::Write::new(self.descriptor(), bytes[part].as_ptr(), length)
                    .offset(offset)
                    .rw_flags(flags)
                    .build()
            }
        }
    }

    /// Runs a request without memory, again as long as the kernel interrupts it.
    async fn run_to_end(&self, entry: &squeue::Entry) -> io::Result<()> {
        for _ in 0..TRIES_MAX {
            let answer = self.ask(entry.clone(), Memory::None, Moves::Nothing).await;
            if bytes_moved(answer)?.is_some() {
                return Ok(());
            }
        }
        Err(io::Error::other(format!(
            "{}: an I/O was interrupted too often",
            self.path.display()
        )))
    }

    /// Submits one request and waits for the kernel's answer. Warns operators of a slow disk.
    async fn ask(&self, entry: squeue::Entry, memory: Memory, moves: Moves) -> i32 {
        let begun = Instant::now();
        if let Some(slow) = &self.slow {
            slow.hold(moves).await;
        }
        let (disk, of_tasks) = ((&self.direct, &self.under_way), self.of_tasks.as_ref());
        let request = self.rings.submit(entry, disk, memory, of_tasks);
        let answer = request.await.await;
        let took = begun.elapsed();
        if took >= LONG {
            tracing::warn!(path = %self.path.display(), ?took, "a disk I/O took very long");
        }
        answer
    }

    fn descriptor(&self) -> types::Fd {
        types::Fd(self.direct.as_raw_fd())
    }
}

/// How many bytes were moved according to the kernel's answer; `None` if the request must be
/// submitted again (the kernel cancels requests of threads that end).
fn bytes_moved(answer: i32) -> io::Result<Option<usize>> {
    match usize::try_from(answer) {
        Ok(moved) => Ok(Some(moved)),
        Err(_) => match -answer {
            libc::EINTR | libc::EAGAIN | libc::ECANCELED => Ok(None),
            errno => Err(io::Error::from_raw_os_error(errno)),
        },
    }
}

fn check_size(path: &Path, bytes: u64) -> io::Result<()> {
    if bytes > 0 && bytes.is_multiple_of(DISK_ALIGNMENT as u64) {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!(
            "region {}: {bytes} bytes is not a positive multiple of 4096",
            path.display()
        ),
    ))
}

fn preallocate(file: &File, bytes: u64) -> io::Result<()> {
    let flags = rustix::fs::FallocateFlags::empty();
    Ok(rustix::fs::fallocate(file, flags, 0, bytes)?)
}

/// The size of a file or block device, and whether it is a device.
fn size_of(file: &File) -> io::Result<(u64, bool)> {
    use std::io::{Seek, SeekFrom};
    let metadata = file.metadata()?;
    if !metadata.file_type().is_block_device() {
        return Ok((metadata.len(), false));
    }
    let mut device = file;
    Ok((device.seek(SeekFrom::End(0))?, true))
}
