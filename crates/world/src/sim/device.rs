//! A simulated device: the bytes that reads see, those that are durable, and those that a power cut
//! leaves.

use super::network::HostNumber;
use super::pages::Pages;
use super::random::RandomStream;
use bytes::Bytes;
use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::time::Duration;

const SECTOR: u64 = 512;
const PAGE: u64 = 4096;

/// A device with a volatile cache.
///
/// Power cuts follow what drives guarantee: a flushed or forced write stays; any other write may
/// stay, be lost, or stay in some of its units (512 bytes or 4 KiB, chosen at the cut),
/// independently of earlier and later writes.
#[derive(Clone)]
pub(super) struct Device {
    pub(super) bytes: u64,
    /// The machine that it belongs to.
    pub(super) node: HostNumber,
    visible: Pages,
    durable: Pages,
    /// Completed but not flushed writes, in order of completion.
    cached: Vec<CachedWrite>,
    completions: u64,
    /// Pages in the kernel's page cache: those used by blocking I/O.
    in_memory: BTreeSet<u64>,
    /// Cached content of pages whose medium was damaged after they were cached.
    undamaged: Pages,
    damaged: BTreeSet<u64>,
    /// The opening that holds the lock, and the run that it belongs to.
    pub(super) opened: Option<(u64, u64)>,
    pub(super) faults: DeviceFaults,
}

/// Faults that tests have injected.
#[derive(Clone, Default)]
pub(super) struct DeviceFaults {
    pub(super) read_errors: Vec<Range<u64>>,
    pub(super) extra_latency: Duration,
    pub(super) full: bool,
    pub(super) failed: bool,
    pub(super) hanging: bool,
}

#[derive(Clone)]
struct CachedWrite {
    completion: u64,
    write: Write,
    /// Durable by itself; listed only because it overlaps an older cached write.
    forced: bool,
}

/// How a read reaches the data.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadPath {
    /// From the medium.
    Direct,
    /// Through the kernel's page cache, which doesn't notice damage to the medium.
    PageCache,
}

/// Bytes to be written at an offset.
#[derive(Clone)]
pub(super) struct Write {
    pub(super) offset: u64,
    pub(super) bytes: Bytes,
}

/// What a power cut does to a write that isn't durable yet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Lost,
    Whole,
    Torn,
}

impl Device {
    pub(super) fn new(node: HostNumber, bytes: u64) -> Self {
        Self {
            bytes,
            node,
            visible: Pages::default(),
            durable: Pages::default(),
            cached: Vec::new(),
            completions: 0,
            in_memory: BTreeSet::new(),
            undamaged: Pages::default(),
            damaged: BTreeSet::new(),
            opened: None,
            faults: DeviceFaults::default(),
        }
    }

    /// The bytes that reads see, ignoring faults.
    pub(super) fn content(&self, offset: u64, buffer: &mut [u8]) {
        self.visible.read(offset, buffer);
    }

    pub(super) fn read(&mut self, offset: u64, buffer: &mut [u8], by: ReadPath) -> io::Result<()> {
        let range = offset..offset + buffer.len() as u64;
        if self.faults.failed
            || self
                .faults
                .read_errors
                .iter()
                .any(|bad| overlap(bad, &range))
        {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        self.visible.read(offset, buffer);
        if by == ReadPath::PageCache {
            self.in_memory.extend(pages_of(&range));
            for page in self.damaged.range(pages_of(&range)) {
                let part = range.start.max(page * PAGE)..range.end.min((page + 1) * PAGE);
                let at = (part.start - offset) as usize;
                let length = (part.end - part.start) as usize;
                self.undamaged
                    .read(part.start, &mut buffer[at..at + length]);
            }
        }
        Ok(())
    }

    /// The machine starts with an empty page cache.
    pub(super) fn forget_page_cache(&mut self) {
        self.in_memory.clear();
        self.damaged.clear();
        self.undamaged = Pages::default();
    }

    pub(super) fn write(&mut self, write: Write, durable: bool) -> io::Result<()> {
        if self.faults.failed {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        if self.faults.full {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        self.visible.write(write.offset, &write.bytes);
        let range = write.range();
        pages_of(&range).for_each(|page| {
            self.damaged.remove(&page);
        });
        self.faults.read_errors = self
            .faults
            .read_errors
            .iter()
            .flat_map(|bad| without(bad, &range))
            .collect();
        self.completions += 1;
        let hides_older = self
            .cached
            .iter()
            .any(|older| overlap(&older.write.range(), &range));
        if durable && !hides_older {
            self.durable.write(write.offset, &write.bytes);
        } else {
            self.cached.push(CachedWrite {
                completion: self.completions,
                write,
                forced: durable,
            });
        }
        Ok(())
    }

    /// Number of writes that a flush starting now covers; argument of [`Device::flush`].
    pub(super) fn flush_point(&self) -> u64 {
        self.completions
    }

    /// Makes the first `point` writes durable.
    pub(super) fn flush(&mut self, point: u64) -> io::Result<()> {
        if self.faults.failed {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        let covered = self
            .cached
            .partition_point(|write| write.completion <= point);
        for CachedWrite { write, .. } in self.cached.drain(..covered) {
            self.durable.write(write.offset, &write.bytes);
        }
        Ok(())
    }

    /// Cuts the power with the writes `under_way` submitted but not answered; `torn` is one of them
    /// and will be torn.
    pub(super) fn lose_power(
        &mut self,
        random: &mut RandomStream,
        mut under_way: Vec<Write>,
        torn: Option<Write>,
    ) {
        let unit = if random.coin() { SECTOR } else { PAGE };
        for CachedWrite { write, forced, .. } in std::mem::take(&mut self.cached) {
            let fate = if forced {
                Fate::Whole
            } else {
                draw_fate(random)
            };
            persist(&mut self.durable, random, &write, fate, unit);
        }
        random.shuffle(&mut under_way);
        for write in under_way {
            let fate = draw_fate(random);
            persist(&mut self.durable, random, &write, fate, unit);
        }
        if let Some(write) = torn {
            persist(&mut self.durable, random, &write, Fate::Torn, SECTOR);
        }
        self.visible = self.durable.clone();
        self.opened = None;
    }

    /// Replaces bytes on the medium, durable at once. The page cache keeps its content.
    pub(super) fn overwrite(&mut self, offset: u64, bytes: &[u8]) {
        for page in pages_of(&(offset..offset + bytes.len() as u64)) {
            if self.in_memory.contains(&page) && self.damaged.insert(page) {
                let mut content = [0; PAGE as usize];
                self.visible.read(page * PAGE, &mut content);
                self.undamaged.write(page * PAGE, &content);
            }
        }
        self.visible.write(offset, bytes);
        self.durable.write(offset, bytes);
    }
}

impl Write {
    fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.bytes.len() as u64
    }
}

/// The numbers of the pages that a range touches.
fn pages_of(range: &Range<u64>) -> Range<u64> {
    range.start / PAGE..range.end.div_ceil(PAGE)
}

fn draw_fate(random: &mut RandomStream) -> Fate {
    match random.below(3) {
        0 => Fate::Lost,
        1 => Fate::Whole,
        _ => Fate::Torn,
    }
}

/// Writes the part of a write that `fate` leaves. A torn write loses at least one of its units and
/// keeps at least one (if it has two); often it keeps just its beginning, as on real disks.
fn persist(durable: &mut Pages, random: &mut RandomStream, write: &Write, fate: Fate, unit: u64) {
    match fate {
        Fate::Lost => return,
        Fate::Whole => return durable.write(write.offset, &write.bytes),
        Fate::Torn => {}
    }
    let units = units_of(write, unit);
    if units.len() < 2 {
        return;
    }
    let kept = random.below(units.len() as u64) as usize;
    let lost = (kept + 1 + random.below(units.len() as u64 - 1) as usize) % units.len();
    let only_beginning = random.coin();
    for (index, range) in units.into_iter().enumerate() {
        let stays = if only_beginning {
            index < kept.max(lost)
        } else {
            random.coin()
        };
        if index != lost && (index == kept || stays) {
            durable.write(write.offset + range.start as u64, &write.bytes[range]);
        }
    }
}

/// A write's parts, cut at the borders of the device's units.
fn units_of(write: &Write, unit: u64) -> Vec<Range<usize>> {
    let mut parts = Vec::new();
    let mut start = 0;
    while start < write.bytes.len() {
        let to_boundary = (unit - (write.offset + start as u64) % unit) as usize;
        let end = write.bytes.len().min(start + to_boundary);
        parts.push(start..end);
        start = end;
    }
    parts
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

/// The parts of `range` outside `hole`.
fn without(range: &Range<u64>, hole: &Range<u64>) -> Vec<Range<u64>> {
    if !overlap(range, hole) {
        return vec![range.clone()];
    }
    [
        range.start..hole.start.max(range.start),
        hole.end.min(range.end)..range.end,
    ]
    .into_iter()
    .filter(|part| !part.is_empty())
    .collect()
}
