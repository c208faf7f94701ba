//! A region file or block device of the real machine.

use crate::buffer::{AlignedBuffer, DISK_ALIGNMENT};
use bytes::Bytes;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Two descriptors of one region: one around the page cache, one through it.
pub(crate) struct RealDisk {
    path: PathBuf,
    bytes: u64,
    /// O_DIRECT; carries the lock.
    direct: Arc<File>,
    /// Through the page cache, for unaligned blocking I/O.
    cached: File,
}

impl RealDisk {
    /// Makes a region file; see `World::create_disk`.
    pub(crate) fn create(path: &Path, bytes: u64) -> io::Result<Self> {
        check_size(path, bytes)?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)?;
        let made = preallocate(&file, bytes)
            .and_then(|()| file.sync_all())
            .and_then(|()| crate::host::sync_parent(path))
            .and_then(|()| Self::open(path));
        if made.is_err() {
            // Best effort: the first error is the one that the caller must see.
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
        let bytes = size_of(&cached)?;
        check_size(path, bytes)?;
        Ok(Self {
            path: path.to_owned(),
            bytes,
            direct: Arc::new(direct),
            cached,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) async fn read(&self, offset: u64, length: usize) -> io::Result<Bytes> {
        let file = self.direct.clone();
        on_pool(move || {
            let mut buffer = AlignedBuffer::with_any_content(length);
            file.read_exact_at(&mut buffer, offset)?;
            Ok(buffer.freeze())
        })
        .await
    }

    pub(crate) async fn write(&self, offset: u64, bytes: Bytes, durable: bool) -> io::Result<()> {
        let file = self.direct.clone();
        on_pool(move || {
            file.write_all_at(&bytes, offset)?;
            if durable { file.sync_data() } else { Ok(()) }
        })
        .await
    }

    pub(crate) async fn flush(&self) -> io::Result<()> {
        let file = self.direct.clone();
        on_pool(move || file.sync_data()).await
    }

    pub(crate) async fn quiesce(&self) {}

    pub(crate) async fn discard(&self, _offset: u64, _length: u64) {}

    pub(crate) fn read_now(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.cached.read_exact_at(buffer, offset)
    }

    pub(crate) fn write_now(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.cached.write_all_at(bytes, offset)
    }

    pub(crate) fn flush_now(&self) -> io::Result<()> {
        self.cached.sync_data()
    }
}

async fn on_pool<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .expect("file I/O doesn't panic")
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
    let length = libc::off_t::try_from(bytes).map_err(|_| {
        io::Error::new(io::ErrorKind::InvalidInput, "region larger than 2^63 bytes")
    })?;
    // SAFETY: a plain system call on an open descriptor.
    match unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, length) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The size of a file or of a block device.
fn size_of(file: &File) -> io::Result<u64> {
    let metadata = file.metadata()?;
    if !metadata.file_type().is_block_device() {
        return Ok(metadata.len());
    }
    use std::io::{Seek, SeekFrom};
    let mut device = file;
    device.seek(SeekFrom::End(0))
}
