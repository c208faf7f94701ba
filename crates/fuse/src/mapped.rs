//! What direct writes brought to pages that are mapped at the same moment.
//!
//! A file that is open for writing bypasses the kernel's page cache, and may be mapped all the
//! same. The kernel handles a write(2) to it so: it writes the dirty mapped pages of the range
//! back and drops them, sends WRITE, drops the pages once more (older kernels don't), and
//! returns. A thread that stores into one of those pages meanwhile brings it back as it was before
//! the WRITE, makes it dirty, and the kernel writes the *whole* page back: what WRITE has just
//! brought would be gone, although the two changed different bytes.
//!
//! So the bytes of a WRITE are remembered from before it is carried out until the kernel has read
//! their page again, and what is written back leaves them alone. By then the page isn't in the
//! kernel's cache any more, so a store that comes after write(2) has returned finds a page with
//! the new bytes, and its READ was seen here. Kernels that don't drop the pages a second time are
//! told to.
//!
//! What the kernel is writing back when a WRITE comes is carried out first.
//!
//! Every WRITE past the page cache is noted while it runs, whoever has the file open: a file may be
//! opened, mapped and read meanwhile. More (waiting, remembering) is done only where the page cache
//! has read of the file since it is open for writing: nobody can have stored into it before.
//!
//! Path of a store that meets a write: READ ([`Mapped::filled`]), WRITE ([`Mapped::write`] before
//! and [`Writing::finish`] after it is carried out), WRITE with `FUSE_WRITE_CACHE`
//! ([`Mapped::store`]). If a WRITE fails, a store into its own bytes that was written back while it
//! ran is lost with it.

use model::InodeId;
use parking_lot::{Mutex, MutexGuard};
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::{OwnedRwLockReadGuard, RwLock};
use world::Map;

/// Independent parts of the table, so that threads rarely meet.
const PARTS: usize = 64;
/// Ranges of finished writes that are remembered of one file. The kernel runs one direct write of
/// a mapped file at a time, and its parts follow each other: one range is enough.
const FINISHED_MAX: usize = 64;
/// Bytes of a page of the kernel.
const PAGE: u64 = 4096;

/// The files of one mount that are open for writing past the page cache.
pub(crate) struct Mapped {
    files: [Mutex<Map<InodeId, File>>; PARTS],
}

#[derive(Default)]
struct File {
    /// How often it is open so.
    opens: u64,
    /// It was opened with O_RDWR since it is, so it may be mapped for stores.
    is_mappable: bool,
    /// The page cache has read of it since it is.
    is_filled: bool,
    /// Shared by those who write back, while they do.
    stores: Arc<RwLock<()>>,
    next: u64,
    /// As many as the kernel sends at once.
    under_way: Vec<(u64, Range<u64>)>,
    /// Oldest first, at most [`FINISHED_MAX`].
    finished: Vec<Range<u64>>,
}

/// A WRITE that is carried out. One that failed is dropped.
pub(crate) struct Writing<'a> {
    mapped: &'a Mapped,
    inode: InodeId,
    /// None if it has ended.
    number: Option<u64>,
}

/// Pages that are being written back: no WRITE begins meanwhile.
pub(crate) struct Storing {
    /// What of their bytes nothing else has written since.
    pub(crate) ranges: Vec<Range<u64>>,
    /// The others are old in the kernel's page.
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
    /// The file was opened with these flags, past the page cache. Its writers count although they
    /// can't map it: what they write must still be known when somebody does.
    pub(crate) fn opened(&self, inode: InodeId, flags: i32) {
        let access = flags & libc::O_ACCMODE;
        if access == libc::O_RDONLY {
            return;
        }
        let mut part = self.part(inode);
        let file = part.entry(inode).or_default();
        file.opens += 1;
        file.is_mappable |= access == libc::O_RDWR;
    }

    /// Such an open has ended.
    pub(crate) fn released(&self, inode: InodeId, flags: i32) {
        if flags & libc::O_ACCMODE == libc::O_RDONLY {
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

    /// The page cache is about to read: what has been written is in what it gets.
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

    /// A WRITE of these bytes begins; nothing is to be done if it goes through the page cache.
    /// Waits for what is just written back, which waits for no WRITE.
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
                // Nothing was stored yet; the first page may be read while this runs.
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

    /// The kernel writes these bytes of its pages back. To be held until they are written.
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

    /// A write isn't under way any more; its bytes are there, or it failed. True if the kernel
    /// should drop its pages.
    fn end(&mut self, number: u64, is_there: bool) -> bool {
        let Some(index) = self.under_way.iter().position(|(it, _)| *it == number) else {
            // Of an earlier time: a kernel that goes closes files while their writes still run.
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
    /// Its bytes are there. True if pages may have been read and mapped for stores meanwhile: the
    /// kernel should drop them.
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

/// Ranges without the bytes of another one.
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
