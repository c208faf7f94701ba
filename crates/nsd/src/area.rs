//! The index area: a redb file in a range of the region, with a checksum for every page.
//!
//! redb trusts its pages after a quick repair, so a flipped bit could make it return wrong entries.
//! Here each 4 KiB page has a CRC-32C in a table before the pages; redb gets an I/O error for a
//! page that doesn't match. redb's own header page (page 0) is never written in place: it is kept
//! in the guard blocks, alternately, with two copies each, written one after the other once
//! everything that it refers to is durable.

mod guard;
mod scratch;

pub(crate) use scratch::Scratch;

use crate::checksum::{UNIT, crc32c};
use guard::{Found, Guard, PAGE0_AT};
use parking_lot::Mutex;
use scratch::ScratchState;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use world::Disk;

const GUARDS: u64 = 4;
const BLOCK: u64 = UNIT as u64;
const SUMS_PER_BLOCK: usize = UNIT / 4;
/// Most bytes that redb puts before its pages.
const REDB_HEADERS: u64 = 64 << 10;
/// redb's growth step once it is large.
const REDB_REGION: u64 = 4 << 30;
/// Most pages that wait for the next sync (32 MiB).
const PENDING_PAGES_MAX: usize = 8192;
/// Largest write of joined pages.
const JOINED_BYTES_MAX: usize = 1 << 20;

/// A redb storage in a range of a disk. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Area {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    disk: Disk,
    region: u128,
    start: u64,
    tables: u64,
    pages_max: u64,
    state: Mutex<AreaState>,
}

#[derive(Debug)]
struct AreaState {
    sequence: u64,
    length: u64,
    page0: Box<[u8; UNIT]>,
    guard_dirty: bool,
    /// CRC-32C per page; 0: never written, so redb never reads it.
    sums: Vec<u32>,
    dirty_tables: BTreeSet<usize>,
    /// Written pages that are not on the disk yet. redb writes in no stable order; sorted and
    /// joined they become few writes, in the same order in every run of a simulation.
    pending: BTreeMap<u64, Box<[u8; UNIT]>>,
}

fn damaged(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn page_sum(page: &[u8]) -> u32 {
    crc32c(page).max(1)
}

impl Area {
    fn empty(disk: &Disk, region: u128, start: u64, bytes: u64) -> Self {
        let blocks = bytes / BLOCK - GUARDS;
        let tables = blocks.div_ceil(SUMS_PER_BLOCK as u64 + 1);
        let pages_max = blocks - tables;
        Self {
            shared: Arc::new(Shared {
                disk: disk.clone(),
                region,
                start,
                tables,
                pages_max,
                state: Mutex::new(AreaState {
                    sequence: 0,
                    length: 0,
                    page0: Box::new([0; UNIT]),
                    guard_dirty: false,
                    sums: vec![0; tables as usize * SUMS_PER_BLOCK],
                    dirty_tables: BTreeSet::new(),
                    pending: BTreeMap::new(),
                }),
            }),
        }
    }

    /// Size of an area that lets redb use `capacity` bytes.
    pub(crate) fn bytes_for(capacity: u64) -> u64 {
        let pages = (capacity + REDB_HEADERS) / BLOCK;
        (GUARDS + pages + pages.div_ceil(SUMS_PER_BLOCK as u64) + 1) * BLOCK
    }

    /// Makes an empty storage; the range's previous content is lost. Blocks; durable when it
    /// returns.
    pub(crate) fn create(disk: &Disk, region: u128, start: u64, bytes: u64) -> io::Result<Self> {
        let area = Self::empty(disk, region, start, bytes);
        let zeros = vec![0; UNIT];
        // Clear all guards first: a half-made area must not look like the old one.
        for block in 0..GUARDS {
            disk.write_now(start + block * BLOCK, &zeros)?;
        }
        disk.flush_now()?;
        for block in GUARDS..GUARDS + area.shared.tables {
            disk.write_now(start + block * BLOCK, &zeros)?;
        }
        area.shared.state.lock().guard_dirty = true;
        area.shared.sync()?;
        Ok(area)
    }

    /// Opens a storage. Blocks.
    pub(crate) fn open(disk: &Disk, region: u128, start: u64, bytes: u64) -> io::Result<Self> {
        let area = Self::empty(disk, region, start, bytes);
        let mut bytes = vec![0; UNIT];
        let blocks = std::array::from_fn(|block| {
            // An unreadable block counts as damaged: it has a copy.
            match disk.read_now(start + block as u64 * BLOCK, &mut bytes) {
                Ok(()) => Found::in_block(&bytes, region),
                Err(_) => Found::Damage,
            }
        });
        let Some(guard) = Guard::newest(blocks) else {
            return Err(damaged(
                "both copies of a guard block of the index are damaged".into(),
            ));
        };
        guard.check(area.shared.pages_max * BLOCK)?;
        let mut state = area.shared.state.lock();
        let mut block = vec![0; UNIT];
        for table in 0..area.shared.tables as usize {
            let at = start + (GUARDS + table as u64) * BLOCK;
            disk.read_now(at, &mut block)?;
            for (index, word) in block.chunks_exact(4).enumerate() {
                state.sums[table * SUMS_PER_BLOCK + index] =
                    u32::from_le_bytes(word.try_into().expect("four bytes"));
            }
        }
        state.sequence = guard.sequence;
        state.length = guard.length;
        state.page0 = guard.page0;
        drop(state);
        Ok(area)
    }

    /// Reads all used pages once, in order, so that the scan that follows finds them in the
    /// kernel's page cache. Ignores unreadable pages; their next reader gets the error. Blocks.
    pub(crate) fn warm(&self) {
        const CHUNK: u64 = 1 << 20;
        const WARM_MAX: u64 = 256 << 20;
        let last = self
            .shared
            .state
            .lock()
            .sums
            .iter()
            .rposition(|sum| *sum != 0);
        let used = (last.map_or(0, |page| page as u64 + 1) * BLOCK).min(WARM_MAX);
        let mut chunk = vec![0; CHUNK as usize];
        let start = self.shared.page_offset(0);
        let mut at = 0;
        while at < used {
            let length = CHUNK.min(used - at);
            let _unread = self
                .shared
                .disk
                .read_now(start + at, &mut chunk[..length as usize]);
            at += length;
        }
    }

    /// Bytes that redb can actually use: it doubles its length up to 4 GiB and then grows by 4 GiB.
    pub(crate) fn capacity(&self) -> u64 {
        let most = self.shared.pages_max * BLOCK - REDB_HEADERS;
        if most < REDB_REGION {
            return 1 << most.ilog2();
        }
        most / REDB_REGION * REDB_REGION
    }

    /// Runs `work`, during which whoever needs a page hangs.
    #[cfg(test)]
    pub(crate) fn hang_during<R>(&self, work: impl FnOnce() -> R) -> R {
        let _hangs = self.shared.state.lock();
        work()
    }

    /// Pages in use, the highest of them, and the maximum.
    #[cfg(test)]
    pub(crate) fn use_of_pages(&self) -> (usize, usize, u64) {
        let state = self.shared.state.lock();
        let used = state.sums.iter().filter(|sum| **sum != 0).count();
        let highest = state.sums.iter().rposition(|sum| *sum != 0);
        (used, highest.unwrap_or(0), self.shared.pages_max)
    }

    /// Checks pages with wrong checksums again, and rewrites damaged guard and table blocks.
    /// Returns the pages that still don't match and descriptions of the repairs. Reads only from
    /// the medium. Blocks.
    ///
    /// A page that doesn't match need not be in use: power cuts leave such pages.
    pub(crate) fn finish_check(&self, mismatches: Vec<u64>) -> io::Result<(Vec<u64>, Vec<String>)> {
        let shared = &self.shared;
        let mut mended = Vec::new();
        let mut still = Vec::new();
        for page in mismatches {
            let state = shared.state.lock();
            let sum = state.sums[page as usize];
            let is_there = sum != 0 && !state.pending.contains_key(&page);
            if is_there && matches!(shared.recheck_page(page, sum)?, PageState::Damaged) {
                still.push(page);
            }
        }
        self.check_tables(&mut mended);
        let mut state = shared.state.lock();
        let mut block = vec![0; UNIT];
        for number in 0..GUARDS {
            let at = shared.start + number * BLOCK;
            let read = shared.disk.read_medium_now(at, &mut block);
            let current = number % 2 == state.sequence % 2;
            let good = read.is_ok()
                && match Guard::decode(&block, shared.region) {
                    Some(guard) => !current || guard.sequence == state.sequence,
                    None => state.sequence < 2 && block.iter().all(|byte| *byte == 0),
                };
            if !good {
                let guard = Guard::of(&state).encode(shared.region);
                shared.disk.write_now(at, &guard)?;
                mended.push(format!("guard block {number} of the index rewritten"));
            }
        }
        if !mended.is_empty() {
            shared.write_tables(&mut state)?;
            drop(state);
            shared.disk.flush_now()?;
        }
        Ok((still, mended))
    }

    /// Marks table blocks that are wrong on the medium for writing at the next sync.
    fn check_tables(&self, mended: &mut Vec<String>) {
        let shared = &self.shared;
        let tables = shared.tables as usize;
        let mut chunk = vec![0; JOINED_BYTES_MAX];
        for first in (0..tables).step_by(JOINED_BYTES_MAX / UNIT) {
            let last = tables.min(first + JOINED_BYTES_MAX / UNIT);
            let chunk = &mut chunk[..(last - first) * UNIT];
            // Without the lock, which every lookup in the index needs.
            let read = shared
                .disk
                .read_medium_now(shared.table_offset(first), chunk);
            for (table, block) in (first..last).zip(chunk.chunks_mut(UNIT)) {
                let mut state = shared.state.lock();
                let should = shared.table_block(&state, table);
                if state.dirty_tables.contains(&table) || (read.is_ok() && *block == should[..]) {
                    continue;
                }
                // Was it written in the meantime, or is it the unreadable block of the chunk?
                let at = shared.table_offset(table);
                if shared.disk.read_medium_now(at, block).is_err() || *block != should[..] {
                    state.dirty_tables.insert(table);
                    mended.push(format!("checksum table {table} of the index rewritten"));
                }
            }
        }
    }

    /// Reads all pages from the medium, because good copies in the kernel's page cache would hide
    /// damage until the next start. Returns the pages that don't match their checksum, and how many
    /// pages were rewritten from good copies in the page cache. Checkpoints may run concurrently.
    /// Blocks; rewritten pages are durable when it returns.
    pub(crate) fn check_pages(&self) -> io::Result<(Vec<u64>, u64)> {
        let shared = &self.shared;
        let pages = shared.state.lock().length.div_ceil(BLOCK);
        let pages = pages.min(shared.pages_max);
        let mut mismatches = Vec::new();
        let mut rewritten = 0;
        let mut chunk = vec![0; JOINED_BYTES_MAX];
        let mut first = 1;
        while first < pages {
            let last = pages.min(first + (JOINED_BYTES_MAX / UNIT) as u64);
            let chunk = &mut chunk[..(last - first) as usize * UNIT];
            let is_used = {
                let state = shared.state.lock();
                let sums = &state.sums[first as usize..last as usize];
                sums.iter().any(|sum| *sum != 0)
            };
            let read = is_used
                && shared
                    .disk
                    .read_medium_now(shared.page_offset(first), chunk)
                    .is_ok();
            for page in (first..last).filter(|_| is_used) {
                // The lock keeps page and checksum consistent while redb writes.
                let state = shared.state.lock();
                let sum = state.sums[page as usize];
                if sum == 0 || state.pending.contains_key(&page) {
                    continue;
                }
                let at = (page - first) as usize * UNIT;
                if read && page_sum(&chunk[at..at + UNIT]) == sum {
                    continue;
                }
                match shared.recheck_page(page, sum)? {
                    PageState::Good => {}
                    PageState::Rewritten => rewritten += 1,
                    PageState::Damaged => mismatches.push(page),
                }
            }
            first = last;
        }
        if rewritten > 0 {
            shared.disk.flush_now()?;
        }
        Ok((mismatches, rewritten))
    }

    /// Forgets unreferenced pages with wrong checksums.
    pub(crate) fn forget(&self, pages: &[u64]) {
        let mut state = self.shared.state.lock();
        for page in pages {
            state.sums[*page as usize] = 0;
            state.dirty_tables.insert(*page as usize / SUMS_PER_BLOCK);
        }
    }

    /// A storage that reads this one's last durable state and keeps its own writes in memory.
    pub(crate) fn scratch(&self) -> Scratch {
        let state = self.shared.state.lock();
        Scratch {
            area: self.clone(),
            state: Mutex::new(ScratchState {
                length: state.length,
                page0: state.page0.clone(),
                pages: BTreeMap::new(),
            }),
        }
    }
}

/// Result of checking a page again that didn't match its checksum.
enum PageState {
    Good,
    Rewritten,
    Damaged,
}

impl Shared {
    fn page_offset(&self, page: u64) -> u64 {
        self.start + (GUARDS + self.tables + page) * BLOCK
    }

    fn table_offset(&self, table: usize) -> u64 {
        self.start + (GUARDS + table as u64) * BLOCK
    }

    fn table_block(&self, state: &AreaState, table: usize) -> Vec<u8> {
        state.sums[table * SUMS_PER_BLOCK..(table + 1) * SUMS_PER_BLOCK]
            .iter()
            .flat_map(|sum| sum.to_le_bytes())
            .collect()
    }

    fn write_tables(&self, state: &mut AreaState) -> io::Result<()> {
        for table in std::mem::take(&mut state.dirty_tables) {
            let block = self.table_block(state, table);
            self.disk.write_now(self.table_offset(table), &block)?;
        }
        Ok(())
    }

    /// Checks a page again that didn't match its checksum (it may have been written in the
    /// meantime), and rewrites it if the page cache still has a good copy.
    fn recheck_page(&self, page: u64, sum: u32) -> io::Result<PageState> {
        let at = self.page_offset(page);
        let mut bytes = vec![0; UNIT];
        let on_medium = self.disk.read_medium_now(at, &mut bytes);
        if on_medium.is_ok() && page_sum(&bytes) == sum {
            return Ok(PageState::Good);
        }
        let in_memory = self.disk.read_now(at, &mut bytes);
        if in_memory.is_err() || page_sum(&bytes) != sum {
            return Ok(PageState::Damaged);
        }
        self.disk.write_now(at, &bytes)?;
        Ok(PageState::Rewritten)
    }

    fn is_written(state: &AreaState, page: u64) -> bool {
        page == 0 || state.sums.get(page as usize).is_some_and(|sum| *sum != 0)
    }

    /// Copies a page that is in memory. Gives the checksum of one that isn't. redb reads only pages that it has written. A
    /// request for a page without a checksum therefore comes from a damaged reference, and zeros would make redb panic.
    fn copy_page(&self, state: &AreaState, page: u64, out: &mut [u8]) -> io::Result<Option<u32>> {
        if page == 0 {
            out.copy_from_slice(&state.page0[..]);
            return Ok(None);
        }
        let sum = state.sums.get(page as usize).copied().unwrap_or(0);
        if sum == 0 {
            return Err(damaged(format!(
                "page {page} of the index was requested but never written"
            )));
        }
        if let Some(bytes) = state.pending.get(&page) {
            out.copy_from_slice(&bytes[..]);
            return Ok(None);
        }
        Ok(Some(sum))
    }

    /// Reads one page and checks it.
    fn read_page(&self, state: &AreaState, page: u64, out: &mut [u8]) -> io::Result<()> {
        let Some(sum) = self.copy_page(state, page, out)? else {
            return Ok(());
        };
        self.disk.read_now(self.page_offset(page), out)?;
        if page_sum(out) == sum {
            return Ok(());
        }
        Err(damaged(format!(
            "page {page} of the index doesn't match its checksum"
        )))
    }

    /// As [`Shared::read_page`], without the lock while the disk reads: lookups don't wait for each other.
    fn read_page_beside(&self, page: u64, out: &mut [u8]) -> io::Result<()> {
        let known = self.copy_page(&self.state.lock(), page, out)?;
        let Some(sum) = known else {
            return Ok(());
        };
        self.disk.read_now(self.page_offset(page), out)?;
        if page_sum(out) == sum {
            return Ok(());
        }
        // redb doesn't change a page that a lookup may need. Whether it was changed all the same shows under the lock.
        self.read_page(&self.state.lock(), page, out)
    }

    fn write_page(&self, state: &mut AreaState, page: u64, bytes: &[u8]) -> io::Result<()> {
        if page == 0 {
            assert!(
                bytes[UNIT - PAGE0_AT..].iter().all(|byte| *byte == 0),
                "redb's header is far shorter than a page"
            );
            state.page0.copy_from_slice(bytes);
            state.guard_dirty = true;
            return Ok(());
        }
        assert!(page < self.pages_max, "redb writes inside its length");
        let mut copy = Box::new([0; UNIT]);
        copy.copy_from_slice(bytes);
        state.pending.insert(page, copy);
        state.sums[page as usize] = page_sum(bytes);
        state.dirty_tables.insert(page as usize / SUMS_PER_BLOCK);
        if state.pending.len() > PENDING_PAGES_MAX {
            self.write_pending(state)?;
        }
        Ok(())
    }

    /// Writes pending pages, joining consecutive ones.
    fn write_pending(&self, state: &mut AreaState) -> io::Result<()> {
        let mut joined: Vec<u8> = Vec::new();
        let mut first = 0;
        for (page, bytes) in std::mem::take(&mut state.pending) {
            let follows = first + (joined.len() / UNIT) as u64 == page;
            if !joined.is_empty() && (!follows || joined.len() >= JOINED_BYTES_MAX) {
                self.disk.write_now(self.page_offset(first), &joined)?;
                joined.clear();
            }
            if joined.is_empty() {
                first = page;
            }
            joined.extend_from_slice(&bytes[..]);
        }
        if !joined.is_empty() {
            self.disk.write_now(self.page_offset(first), &joined)?;
        }
        Ok(())
    }

    /// Makes everything durable that was written. One thread writes at a time; others may read meanwhile: the lock, which
    /// every lookup in the index needs, isn't held while the disk flushes, however long that takes.
    fn sync(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        self.write_pending(&mut state)?;
        self.write_tables(&mut state)?;
        drop(state);
        self.disk.flush_now()?;
        let mut state = self.state.lock();
        if !state.guard_dirty {
            return Ok(());
        }
        state.sequence += 1;
        let sequence = state.sequence;
        let guard = Guard::of(&state).encode(self.region);
        drop(state);
        for copy in [0, 2] {
            let number = sequence % 2 + copy;
            self.disk.write_now(self.start + number * BLOCK, &guard)?;
            // Flush before writing the other copy: a power cut may tear writes that aren't durable.
            self.disk.flush_now()?;
        }
        self.state.lock().guard_dirty = false;
        Ok(())
    }
}

/// Calls `each` with (page, offset in the page, range of the buffer).
fn for_pages(
    offset: u64,
    length: usize,
    mut each: impl FnMut(u64, usize, std::ops::Range<usize>) -> io::Result<()>,
) -> io::Result<()> {
    let mut done = 0;
    while done < length {
        let at = offset + done as u64;
        let inside = (at % BLOCK) as usize;
        let take = (UNIT - inside).min(length - done);
        each(at / BLOCK, inside, done..done + take)?;
        done += take;
    }
    Ok(())
}

fn check_bounds(offset: u64, length: usize, end: u64) -> io::Result<()> {
    if offset + length as u64 <= end {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::UnexpectedEof,
        format!("{length} bytes at {offset} are outside an index of {end} bytes"),
    ))
}

impl redb::StorageBackend for Area {
    fn len(&self) -> io::Result<u64> {
        Ok(self.shared.state.lock().length)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        check_bounds(offset, out.len(), self.shared.state.lock().length)?;
        let mut page_bytes = [0; UNIT];
        for_pages(offset, out.len(), |page, inside, range| {
            if range.len() == UNIT {
                return self.shared.read_page_beside(page, &mut out[range]);
            }
            self.shared.read_page_beside(page, &mut page_bytes)?;
            let end = inside + range.len();
            out[range].copy_from_slice(&page_bytes[inside..end]);
            Ok(())
        })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        if len > self.shared.pages_max * BLOCK {
            return Err(io::Error::new(
                io::ErrorKind::StorageFull,
                format!("the index area is full: it can't grow to {len} bytes"),
            ));
        }
        // Pages cut off here must read as zeros when the storage grows again.
        let first = len.div_ceil(BLOCK) as usize;
        let last = state.length.div_ceil(BLOCK) as usize;
        for page in first..last {
            state.sums[page] = 0;
            state.dirty_tables.insert(page / SUMS_PER_BLOCK);
        }
        state.length = len;
        state.guard_dirty = true;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.shared.sync()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        check_bounds(offset, data.len(), state.length)?;
        for_pages(offset, data.len(), |page, inside, range| {
            if range.len() == UNIT {
                return self.shared.write_page(&mut state, page, &data[range]);
            }
            let mut bytes = [0; UNIT];
            if Shared::is_written(&state, page) {
                self.shared.read_page(&state, page, &mut bytes)?;
            }
            bytes[inside..inside + range.len()].copy_from_slice(&data[range]);
            self.shared.write_page(&mut state, page, &bytes)
        })
    }

    fn close(&self) -> io::Result<()> {
        self.shared.sync()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use redb::StorageBackend;
    use std::path::Path;
    use std::time::Duration;
    use world::World;
    use world::sim::Simulation;

    /// Bytes of the area.
    const BYTES: u64 = 1 << 20;

    /// Opens an area whose guards have these sequence numbers and lengths.
    fn opened(guards: [(u64, u64); 2]) -> io::Result<()> {
        let simulation = Simulation::new(1);
        simulation.disk("nsd", BYTES);
        let opened = simulation.run(async |world: World| {
            let disk = world.open_disk(Path::new("nsd")).unwrap();
            Area::create(&disk, 7, 0, BYTES).unwrap();
            for (sequence, length) in guards {
                let page0 = Box::new([0; UNIT]);
                let guard = Guard {
                    sequence,
                    length,
                    page0,
                };
                let block = guard.encode(7);
                for copy in [sequence % 2, sequence % 2 + 2] {
                    disk.write_now(copy * BLOCK, &block).unwrap();
                }
            }
            Area::open(&disk, 7, 0, BYTES).map(drop)
        });
        opened.finished()
    }

    #[test]
    fn a_guard_whose_checksum_fits_but_that_nobody_can_have_written_is_damage() {
        opened([(1, 8192), (2, 8192)]).unwrap();
        for (guards, why) in [
            ([(1, u64::MAX), (2, u64::MAX - 1)], "more than its area"),
            ([(u64::MAX, 0), (u64::MAX - 1, 0)], "last of all numbers"),
        ] {
            let error = opened(guards).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
            assert!(error.to_string().contains(why), "{error}");
        }
    }

    /// Would be broken if lookups in the index waited for a disk that hangs in a flush: those who make them are the threads
    /// that everything else on the node needs.
    #[test]
    fn a_flush_that_hangs_holds_up_no_lookup() {
        let folder = tempfile::tempdir().unwrap();
        let (path, slow) = (folder.path().join("nsd"), folder.path().join("slow"));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let _context = runtime.enter();
        let world = World::real_with_slow_disks(&slow);
        drop(world.create_disk(&path, BYTES).unwrap());
        let disk = world.open_disk(&path).unwrap();
        let area = Area::create(&disk, 7, 0, BYTES).unwrap();
        area.set_len(2 * BLOCK).unwrap();
        area.write(BLOCK, &[5; UNIT]).unwrap();

        world::host::replace_file(&slow, b"latency_ms = 3600000\n").unwrap();
        let own = area.clone();
        let flushing = world.spawn_thread("flushes", move || own.sync_data().unwrap());
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        let looking = world.spawn_thread("looks", move || {
            // The flush begins when all is written.
            while !area.shared.state.lock().pending.is_empty() {
                std::hint::spin_loop();
            }
            let mut page = [0; UNIT];
            area.read(BLOCK, &mut page).unwrap();
            tell.send(page).unwrap();
        });
        let read = told.recv_timeout(Duration::from_secs(60));
        let hangs = !flushing.is_finished();
        world::host::remove_file(&slow).unwrap();
        flushing.join().unwrap();
        looking.join().unwrap();
        assert!(hangs, "the disk flushes until it is quick again");
        let read = read.expect("it is read meanwhile");
        assert!(read.iter().all(|byte| *byte == 5));
    }
}
