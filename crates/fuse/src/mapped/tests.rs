//! The rules alone, and beside a model of the kernel's page cache.

use super::*;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use world::World;
use world::sim::Simulation;

const FILE: InodeId = InodeId(7);
/// Pages of the model's file.
const PAGES: usize = 3;
const PAGE_BYTES: usize = PAGE as usize;
const BYTES: usize = PAGES * PAGE_BYTES;

/// The result of a future that must not wait.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(given) => given,
        Poll::Pending => panic!("it waits"),
    }
}

fn write(mapped: &Mapped, offset: u64, length: u64) -> Option<Writing<'_>> {
    now(mapped.write(FILE, offset, length))
}

fn stored(mapped: &Mapped, offset: u64, length: u64) -> Vec<Range<u64>> {
    let storing = now(mapped.store(FILE, offset, length));
    assert_eq!(
        storing.is_cut,
        storing.ranges != only(offset..offset + length)
    );
    storing.ranges
}

fn only(range: Range<u64>) -> Vec<Range<u64>> {
    std::iter::once(range).collect()
}

fn mapped() -> Mapped {
    let mapped = Mapped::default();
    mapped.opened(FILE, libc::O_RDWR);
    mapped.filled(FILE, 0, 4 * PAGE);
    mapped
}

#[test]
fn what_a_write_brings_stays_until_its_pages_are_read_again() {
    let mapped = mapped();
    let writing = write(&mapped, 1000, 5000);
    // Stored before the write; written back while it runs and after it.
    assert_eq!(stored(&mapped, 0, 8192), [0..1000, 6000..8192]);
    // Read while the write runs: with or without its bytes.
    mapped.filled(FILE, 0, 8192);
    assert_eq!(stored(&mapped, 0, 8192), [0..1000, 6000..8192]);
    writing.unwrap().finish();
    assert_eq!(stored(&mapped, 0, 8192), [0..1000, 6000..8192]);
    // A write that fails leaves the stores alone.
    drop(write(&mapped, 0, 1000));
    assert_eq!(stored(&mapped, 0, 8192), [0..1000, 6000..8192]);
    // The kernel has read the first page again, but not the second.
    mapped.filled(FILE, 0, 4096);
    assert_eq!(stored(&mapped, 0, 8192), [0..4096, 6000..8192]);
    // The last page of a file is read completely, however few bytes are requested.
    mapped.filled(FILE, 4096, 10);
    assert_eq!(stored(&mapped, 0, 8192), only(0..8192));
    assert_eq!(now(mapped.store(InodeId(8), 5, 5)).ranges, only(5..10));
}

#[test]
fn a_write_waits_for_what_is_being_written_back() {
    let mapped = mapped();
    let storing = now(mapped.store(FILE, 0, 20));
    assert_eq!(storing.ranges, only(0..20));
    let mut writing = pin!(mapped.write(FILE, 0, 10));
    let mut context = Context::from_waker(Waker::noop());
    assert!(writing.as_mut().poll(&mut context).is_pending());
    drop(storing);
    let writing = now(writing);
    assert!(writing.is_some());
    // Write-back doesn't wait for the write.
    assert_eq!(stored(&mapped, 0, 20), only(10..20));
}

#[test]
fn a_file_outside_the_page_cache_costs_nothing() {
    let mapped = Mapped::default();
    mapped.filled(FILE, 0, PAGE);
    assert!(write(&mapped, 0, 10).is_none(), "it has no open");
    mapped.opened(FILE, libc::O_RDWR);
    assert!(!write(&mapped, 0, 10).unwrap().finish(), "nothing was read");
    assert_eq!(stored(&mapped, 0, 20), only(0..20));
    // The first page is read while a write runs, perhaps without its bytes.
    let writing = write(&mapped, 0, 10).unwrap();
    mapped.filled(FILE, 0, PAGE);
    assert!(writing.finish());
    assert_eq!(stored(&mapped, 0, 20), only(10..20));
    mapped.opened(FILE, libc::O_RDWR);
    mapped.released(FILE, libc::O_RDWR);
    let writing = write(&mapped, 0, 10);
    assert!(writing.is_some());
    // The mount is ending: its opens end while writes still run.
    mapped.released(FILE, libc::O_RDWR);
    writing.unwrap().finish();
    assert!(mapped.files.iter().all(|part| part.lock().is_empty()));
}

#[test]
fn a_write_that_began_before_the_file_could_be_mapped_is_kept() {
    let mapped = Mapped::default();
    mapped.opened(FILE, libc::O_WRONLY);
    let writing = write(&mapped, 0, 10);
    // Opened, mapped and stored into while the write runs.
    mapped.opened(FILE, libc::O_RDWR);
    mapped.filled(FILE, 0, PAGE);
    assert_eq!(stored(&mapped, 0, 20), only(10..20));
    // Once more: the table keeps its knowledge when the open that mapped the file ends.
    mapped.released(FILE, libc::O_RDWR);
    mapped.opened(FILE, libc::O_RDWR);
    assert_eq!(stored(&mapped, 0, 20), only(10..20));
    assert!(writing.unwrap().finish(), "its pages are to be dropped");
    mapped.released(FILE, libc::O_RDWR);
    assert_eq!(stored(&mapped, 0, 20), only(10..20));
    mapped.opened(FILE, libc::O_RDONLY);
    mapped.released(FILE, libc::O_RDONLY);
    mapped.released(FILE, libc::O_WRONLY);
    assert!(mapped.files.iter().all(|part| part.lock().is_empty()));
    // No open can map it for stores. The kernel asks for mtime before it reads, which is enough.
    mapped.opened(FILE, libc::O_WRONLY);
    mapped.filled(FILE, 0, PAGE);
    assert!(!write(&mapped, 0, 10).unwrap().finish());
}

#[test]
fn parts_of_a_long_write_are_one_range_and_ranges_have_a_maximum() {
    let mapped = mapped();
    let finished = || mapped.part(FILE)[&FILE].finished.clone();
    for part in 0..1000 {
        write(&mapped, part << 20, 1 << 20).unwrap().finish();
    }
    assert_eq!(finished(), only(0..1000 << 20));
    for number in 0..1000 {
        write(&mapped, number * 10, 5).unwrap().finish();
    }
    let ranges = finished();
    assert_eq!(ranges.len(), FINISHED_MAX);
    assert_eq!(ranges.last(), Some(&(9990..9995)), "the newest are kept");
    mapped.filled(FILE, 9950, 1);
    assert!(finished().len() <= FINISHED_MAX);
}

/// A model: the kernel's page cache of the file, and this file system's content.
struct Kernel {
    world: World,
    mapped: Arc<Mapped>,
    held: Vec<u8>,
    /// Pages in the cache: their bytes, and whether they are dirty.
    pages: [Option<(Vec<u8>, bool)>; PAGES],
    /// The last value given to each byte, by a store or a write.
    given: Vec<u8>,
}

/// The first bytes of each page are changed by stores, the others by writes.
const STORED: usize = 8;

impl Kernel {
    fn below(&self, bound: usize) -> usize {
        (self.world.random_u64() % bound as u64) as usize
    }

    fn page(&mut self, page: usize) -> &mut (Vec<u8>, bool) {
        let at = page * PAGE_BYTES;
        if self.pages[page].is_none() {
            self.mapped.filled(FILE, at as u64, PAGE);
            let read = self.held[at..at + PAGE_BYTES].to_vec();
            self.pages[page] = Some((read, false));
        }
        self.pages[page].as_mut().unwrap()
    }

    fn write_back(&mut self, page: usize) {
        let Some((bytes, dirty)) = &mut self.pages[page] else {
            return;
        };
        if !std::mem::replace(dirty, false) {
            return;
        }
        let first = page * PAGE_BYTES;
        for range in now(self.mapped.store(FILE, first as u64, PAGE)).ranges {
            let (start, end) = (range.start as usize, range.end as usize);
            self.held[start..end].copy_from_slice(&bytes[start - first..end - first]);
        }
    }

    fn drop_pages(&mut self) {
        for page in 0..PAGES {
            self.write_back(page);
            self.pages[page] = None;
        }
    }

    /// Random actions of other threads: loads, stores, write-back.
    fn others(&mut self) {
        for _ in 0..self.below(4) {
            let page = self.below(PAGES);
            match self.below(3) {
                0 => drop(self.page(page).0.len()),
                1 => self.write_back(page),
                _ => {
                    let (at, byte) = (self.below(STORED), self.below(256) as u8);
                    *self.page(page) = {
                        let (mut bytes, _) = self.page(page).clone();
                        bytes[at] = byte;
                        (bytes, true)
                    };
                    self.given[page * PAGE_BYTES + at] = byte;
                }
            }
        }
    }

    /// A write(2) in the kernel's steps.
    fn write(&mut self) {
        let page = self.below(PAGES);
        let start = STORED + self.below(PAGE_BYTES - STORED);
        let length = 1 + self.below(PAGE_BYTES - start);
        let range = page * PAGE_BYTES + start..page * PAGE_BYTES + start + length;
        let byte = self.below(256) as u8;
        self.drop_pages();
        self.others();
        let mapped = Arc::clone(&self.mapped);
        let writing = write(&mapped, range.start as u64, length as u64);
        self.others();
        self.held[range.clone()].fill(byte);
        self.others();
        let _ = writing.map(Writing::finish);
        self.given[range].fill(byte);
        self.others();
        self.drop_pages();
    }
}

#[test]
fn no_write_and_no_store_is_lost_however_they_meet() {
    for seed in 0..300 {
        Simulation::new(seed)
            .run(|world| async move {
                let mut kernel = Kernel {
                    world,
                    mapped: Arc::default(),
                    held: vec![0; BYTES],
                    pages: Default::default(),
                    given: vec![0; BYTES],
                };
                kernel.mapped.opened(FILE, libc::O_RDWR);
                for _ in 0..20 {
                    kernel.others();
                    kernel.write();
                    for page in 0..PAGES {
                        let at = page * PAGE_BYTES;
                        let given = kernel.given[at..at + PAGE_BYTES].to_vec();
                        assert!(kernel.page(page).0 == given, "seed {seed}");
                    }
                }
                kernel.drop_pages();
                assert!(kernel.held == kernel.given, "seed {seed}");
            })
            .finished();
    }
}

#[test]
fn pages_that_programs_may_change_need_a_token_that_nobody_else_has() {
    let mapped = Mapped::default();
    assert_eq!(mapped.kept_under(FILE), TokenMode::Shared);
    mapped.opened(FILE, libc::O_WRONLY);
    assert_eq!(
        mapped.kept_under(FILE),
        TokenMode::Shared,
        "it can't be mapped"
    );
    mapped.opened(FILE, libc::O_RDWR);
    assert_eq!(mapped.kept_under(FILE), TokenMode::Exclusive);
    mapped.released(FILE, libc::O_RDWR);
    mapped.released(FILE, libc::O_WRONLY);
    assert_eq!(mapped.kept_under(FILE), TokenMode::Shared);
}
