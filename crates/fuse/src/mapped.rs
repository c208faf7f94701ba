//! Keeps write-back of mapped pages from undoing direct writes made at the same time.
//!
//! A file open for writing bypasses the kernel's page cache, yet it may be mapped. The kernel
//! handles a write(2) to it like this: it writes back and drops the dirty mapped pages of the
//! range, sends WRITE, drops the pages once more (older kernels don't), and returns. If another
//! thread stores into one of those pages meanwhile, the kernel reads the page as it was before the
//! WRITE, marks it dirty, and later writes the *whole* page back. That would undo the WRITE,
//! although the two changed different bytes.
//!
//! So the range of a WRITE is remembered from before the WRITE runs until the kernel has read its
//! pages again, and write-back skips the range. By then the page has left the kernel's cache, so a
//! store after write(2) returned works on a page with the new bytes, whose READ we saw. Kernels
//! that don't drop the pages a second time are told to.
//!
//! Write-back that is in progress when a WRITE arrives finishes first.
//!
//! Every WRITE that bypasses the page cache is noted while it runs, whichever open it came through,
//! because the file may be opened, mapped and read meanwhile. Waiting and remembering happen only
//! if the page cache has read from the file since it was opened for writing: before that, no page
//! can have been stored into.
//!
//! The order for a store that meets a write: READ ([`Mapped::filled`]), WRITE ([`Mapped::write`]
//! before it runs and [`Writing::finish`] after), WRITE with `FUSE_WRITE_CACHE`
//! ([`Mapped::store`]). If a WRITE fails, a store into the same bytes that was written back while
//! it ran is lost too.

use crate::verbs::is_writing;
use model::{InodeId, TokenMode};
use parking_lot::{Mutex, MutexGuard};
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::{OwnedRwLockReadGuard, RwLock};
use world::Map;

/// Partitions of the table, so that threads rarely contend.
const PARTS: usize = 64;
/// Most ranges of finished writes remembered per file. The kernel runs one direct write of a mapped
/// file at a time, in consecutive parts: one range is usually enough.
const FINISHED_MAX: usize = 64;
/// Bytes of a kernel page.
const PAGE: u64 = 4096;

/// The files of one mount that are open for writing and bypass the page cache.
pub(crate) struct Mapped {
    files: [Mutex<Map<InodeId, File>>; PARTS],
}

#[derive(Default)]
struct File {
    /// The number of such opens.
    opens: u64,
    /// O_RDWR was among them, so the file may be mapped for stores.
    is_mappable: bool,
    /// The page cache has read from it since the first of these opens.
    is_filled: bool,
    /// Held shared during write-back.
    stores: Arc<RwLock<()>>,
    next: u64,
    /// Running writes. The kernel limits their number.
    under_way: Vec<(u64, Range<u64>)>,
    /// Oldest first, at most [`FINISHED_MAX`].
    finished: Vec<Range<u64>>,
}

/// A running WRITE. Dropping it without `finish` means that it failed.
pub(crate) struct Writing<'a> {
    mapped: &'a Mapped,
    inode: InodeId,
    /// None once it has ended.
    number: Option<u64>,
}

/// Write-back in progress: no WRITE of the file begins meanwhile.
pub(crate) struct Storing {
    /// The parts of the range that no WRITE has changed since the kernel read them.
    pub(crate) ranges: Vec<Range<u64>>,
    /// Other parts are outdated in the kernel's page.
    pub(crate) is_cut: bool,
    _turn: Option<OwnedRwLockReadGuard<()>>,
}

impl Default for Mapped {
    fn default() -> Self {
        Self {
            files: std::array::from_fn(|_| Mutex::default()),
        }
    }
}

impl Mapped {
    /// Notes an open that bypasses the page cache. O_WRONLY opens can't map the file but count:
    /// their writes must be known once another open maps it.
    pub(crate) fn opened(&self, inode: InodeId, flags: i32) {
        if !is_writing(flags) {
            return;
        }
        let mut part = self.part(inode);
        let file = part.entry(inode).or_default();
        file.opens += 1;
        file.is_mappable |= flags & libc::O_ACCMODE == libc::O_RDWR;
    }

    /// Notes the end of such an open.
    pub(crate) fn released(&self, inode: InodeId, flags: i32) {
        if !is_writing(flags) {
            return;
        }
        let mut part = self.part(inode);
        if let Some(file) = part.get_mut(&inode) {
            file.opens -= 1;
            if file.opens == 0 {
                part.remove(&inode);
            }
        }
    }

    /// Which token the page cache needs for what it reads: the kernel doesn't say who changes a mapped page.
    pub(crate) fn kept_under(&self, inode: InodeId) -> TokenMode {
        let part = self.part(inode);
        match part.get(&inode).is_some_and(|file| file.is_mappable) {
            true => TokenMode::Exclusive,
            false => TokenMode::Shared,
        }
    }

    /// The page cache is about to read: it will get all finished writes.
    pub(crate) fn filled(&self, inode: InodeId, offset: u64, length: u64) {
        let mut part = self.part(inode);
        let Some(file) = part.get_mut(&inode) else {
            return;
        };
        file.is_filled = true;
        let end = offset.saturating_add(length).next_multiple_of(PAGE);
        file.finished = minus(std::mem::take(&mut file.finished), &(offset..end));
        file.forget_oldest();
    }

    /// Notes the start of a WRITE; returns `None` if the file has no such open. Waits for
    /// write-back in progress, which never waits for a WRITE.
    pub(crate) async fn write(
        &self,
        inode: InodeId,
        offset: u64,
        length: u64,
    ) -> Option<Writing<'_>> {
        let range = offset..offset.saturating_add(length);
        let stores = {
            let mut part = self.part(inode);
            let file = part.get_mut(&inode)?;
            if !file.is_filled {
                // Nothing was stored yet; the first page may be read while this WRITE runs.
                let number = file.begin(range);
                return Some(self.writing(inode, number));
            }
            Arc::clone(&file.stores)
        };
        let _nobody_stores = stores.write().await;
        let number = self.part(inode).get_mut(&inode)?.begin(range);
        Some(self.writing(inode, number))
    }

    fn writing(&self, inode: InodeId, number: u64) -> Writing<'_> {
        Writing {
            mapped: self,
            inode,
            number: Some(number),
        }
    }

    /// Notes that the kernel writes these bytes of its pages back. Hold the result until they are
    /// written.
    pub(crate) async fn store(&self, inode: InodeId, offset: u64, length: u64) -> Storing {
        let stores = self
            .part(inode)
            .get(&inode)
            .map(|file| Arc::clone(&file.stores));
        let turn = match stores {
            Some(stores) => Some(stores.read_owned().await),
            None => None,
        };
        let all = offset..offset.saturating_add(length);
        let ranges = self.left_of(inode, all.clone());
        Storing {
            is_cut: ranges != std::slice::from_ref(&all),
            ranges,
            _turn: turn,
        }
    }

    fn left_of(&self, inode: InodeId, all: Range<u64>) -> Vec<Range<u64>> {
        let all = std::iter::once(all).collect();
        let part = self.part(inode);
        let Some(file) = part.get(&inode) else {
            return all;
        };
        let under_way = file.under_way.iter().map(|(_, range)| range);
        under_way.chain(&file.finished).fold(all, minus)
    }

    fn part(&self, inode: InodeId) -> MutexGuard<'_, Map<InodeId, File>> {
        self.files[inode.0 as usize % PARTS].lock()
    }
}

impl File {
    fn begin(&mut self, range: Range<u64>) -> u64 {
        let number = self.next;
        self.next += 1;
        self.under_way.push((number, range));
        number
    }

    /// Ends a running write; `is_there` if it succeeded. Returns whether the kernel should drop its
    /// pages.
    fn end(&mut self, number: u64, is_there: bool) -> bool {
        let Some(index) = self.under_way.iter().position(|(it, _)| *it == number) else {
            // A kernel that is shutting down closes files while their writes still run.
            return false;
        };
        let (_, range) = self.under_way.swap_remove(index);
        if !is_there || !self.is_filled {
            return false;
        }
        match self.finished.last_mut() {
            // The next part of a long write.
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.finished.push(range),
        }
        self.forget_oldest();
        self.is_mappable
    }

    fn forget_oldest(&mut self) {
        let surplus = self.finished.len().saturating_sub(FINISHED_MAX);
        self.finished.drain(..surplus);
    }
}

impl Writing<'_> {
    /// The write succeeded. Returns whether its pages may have been read and mapped for stores
    /// meanwhile, so that the kernel should drop them.
    pub(crate) fn finish(mut self) -> bool {
        self.end(true)
    }

    fn end(&mut self, is_there: bool) -> bool {
        let Some(number) = self.number.take() else {
            return false;
        };
        let mut part = self.mapped.part(self.inode);
        let file = part.get_mut(&self.inode);
        file.is_some_and(|file| file.end(number, is_there))
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.end(false);
    }
}

/// The ranges without the bytes of `taken`.
fn minus(ranges: Vec<Range<u64>>, taken: &Range<u64>) -> Vec<Range<u64>> {
    let halves = ranges.into_iter().flat_map(|range| {
        [
            range.start..range.end.min(taken.start),
            range.start.max(taken.end)..range.end,
        ]
    });
    halves.filter(|half| half.start < half.end).collect()
}

#[cfg(test)]
mod tests;
