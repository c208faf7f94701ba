//! Verbs on open files: open, release, read, write, ranges, close and fsync.

use super::Client;
use crate::types::{Allocate, OpenFlags, Opened, ReadTraces, Seek, Written};
use bytes::Bytes;
use model::{Error, InodeId, Privileges, Result};

impl Client {
    /// Opens an inode of any kind: adds a holder, so that it survives unlink. Every success needs
    /// one `release`. Handles are stateless: the inode is the handle.
    ///
    /// # Errors
    /// `NotFound` if it is gone; `IsDirectory` for writing a directory.
    pub async fn open(&self, inode: InodeId, flags: OpenFlags) -> Result<Opened> {
        self.opens.open(inode, flags).await
    }

    /// The last close of one open. Never fails; deletes an inode without names and holders.
    pub async fn release(&self, inode: InodeId) {
        self.opens.release(inode).await
    }

    /// Reads; shorter than requested only at the end of the file. Pieces are contiguous, and not
    /// copied if the page pool has them.
    ///
    /// # Errors
    /// `Unavailable` or `Corrupt` (both EIO) if data can't be read or verified.
    pub async fn read(&self, inode: InodeId, offset: u64, length: usize) -> Result<Vec<Bytes>> {
        let traces = ReadTraces::default();
        self.reader.read(inode, offset, length, traces).await
    }

    /// As `read`, with control over its effects on atime and cache.
    ///
    /// # Errors
    /// As `read`.
    pub async fn read_leaving(
        &self,
        inode: InodeId,
        offset: u64,
        length: usize,
        traces: ReadTraces,
    ) -> Result<Vec<Bytes>> {
        self.reader.read(inode, offset, length, traces).await
    }

    /// Writes all of `data` into the page pool.
    ///
    /// # Errors
    /// `NoSpace` now, never later; `FileTooLarge`; `Unavailable` if no memory was freed because
    /// nothing can be written to the NSDs.
    pub async fn write(&self, inode: InodeId, offset: u64, data: &[u8]) -> Result<()> {
        let written = self
            .writer
            .write(inode, Some(offset), data, Privileges::Keep);
        written.await.map(drop)
    }

    /// As `write`, of bytes that programs changed in pages of a kernel. Waits for no other client if the bytes' token
    /// is held under which the pages were read.
    ///
    /// # Errors
    /// As `write`.
    pub async fn write_back(&self, inode: InodeId, offset: u64, data: &[u8]) -> Result<()> {
        self.writer.write_back(inode, offset, data).await
    }

    /// As [`Client::write_back`], of a file that programs may execute: as with other changes of its bytes it loses its
    /// capabilities, but soon afterwards, because others may be waiting for these pages.
    ///
    /// # Errors
    /// As `write`.
    pub async fn write_stored(&self, inode: InodeId, offset: u64, data: &[u8]) -> Result<()> {
        let written = self.writer.write_back(inode, offset, data).await;
        self.rights.drop_capabilities_later(inode);
        written
    }

    /// O_APPEND: finds the end atomically, writes there and returns its offset.
    ///
    /// # Errors
    /// As `write`.
    pub async fn append(&self, inode: InodeId, data: &[u8]) -> Result<u64> {
        let written = self.writer.write(inode, None, data, Privileges::Keep);
        Ok(written.await?.offset)
    }

    /// As `write`, or as `append` without an offset, for a caller whose bytes may not inherit all
    /// rights of the file. Those rights are dropped before the bytes are written.
    ///
    /// # Errors
    /// As `write`.
    pub async fn write_by(
        &self,
        inode: InodeId,
        offset: Option<u64>,
        data: &[u8],
        privileges: Privileges,
    ) -> Result<Written> {
        self.writer.write(inode, offset, data, privileges).await
    }

    /// fallocate. Reserved space is checked against the free space now; it isn't kept from others.
    ///
    /// # Errors
    /// `InvalidArgument` for an empty range, `FileTooLarge`; `NoSpace` if the reservation doesn't
    /// fit, or if the pool is full and the call adds metadata, which a punch does only in the
    /// middle of an extent.
    pub async fn allocate(
        &self,
        inode: InodeId,
        how: Allocate,
        offset: u64,
        length: u64,
    ) -> Result<()> {
        self.content.allocate(inode, how, offset, length).await
    }

    /// SEEK_DATA and SEEK_HOLE. Reserved space is a hole.
    ///
    /// # Errors
    /// `NoSuchDeviceOrAddress` (ENXIO) at or after the end, or if no data follows.
    pub async fn seek(&self, inode: InodeId, offset: u64, what: Seek) -> Result<u64> {
        self.content.seek(inode, offset, what).await
    }

    /// copy_file_range: shares extents inside a fileset, copies across filesets. Returns the
    /// bytes done, 0 at the end of the source; at most 1 GiB per call.
    ///
    /// # Errors
    /// `InvalidArgument` if the ranges overlap in one file; `FileTooLarge`.
    pub async fn copy_range(
        &self,
        from: InodeId,
        from_offset: u64,
        to: InodeId,
        to_offset: u64,
        length: u64,
    ) -> Result<u64> {
        self.content
            .copy_range(from, from_offset, to, to_offset, length)
            .await
    }

    /// close(2) of one descriptor: reports an earlier write error once, publishes small files.
    /// Makes nothing durable.
    ///
    /// # Errors
    /// Why written data couldn't be stored so far. It is kept and tried again.
    pub async fn flush(&self, inode: InodeId) -> Result<()> {
        self.write_behind.flush(inode).await
    }

    /// Why the inode's written data could not be stored so far, if no program has got the error
    /// yet. For a close, which may ignore the error, so it counts as not reported.
    #[must_use]
    pub fn write_failure(&self, inode: InodeId) -> Option<Error> {
        self.write_behind.failure(inode)
    }

    /// Makes data and attributes of the inode, and its name if it is new, durable. Also for
    /// directories. `data_only` is fdatasync.
    ///
    /// # Errors
    /// Why data couldn't be stored (it is kept and tried again), or `Unavailable` if the
    /// metadata couldn't be made durable. While nodes are away it waits first, as long as the
    /// patience allows.
    pub async fn fsync(&self, inode: InodeId, data_only: bool) -> Result<()> {
        // Times are part of the publish, so leaving them out would save nothing.
        let _ = data_only;
        self.write_behind.fsync(inode).await
    }
}
