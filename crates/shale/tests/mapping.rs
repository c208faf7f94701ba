//! Shared and private mappings mixed at random with read, write, O_DIRECT and truncate on one file:
//! each way sees the bytes written last.

use crate::fixture::{Node, eventually, pattern};
use sim::action::Draw;
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read},
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, OpenOptionsExt},
    },
    ptr::NonNull,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

pub(crate) const BYTES: usize = 1 << 20;
const PAGE: usize = 4096;

/// A file's first bytes in memory.
pub(crate) struct Mapping {
    at: NonNull<u8>,
}

impl Mapping {
    pub(crate) fn new(file: &File, flags: i32) -> Self {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of an open file, at an address that the kernel chooses.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                BYTES,
                protection,
                flags,
                file.as_raw_fd(),
                0,
            )
        };
        assert!(at != libc::MAP_FAILED, "{}", io::Error::last_os_error());
        Self {
            at: NonNull::new(at.cast()).unwrap(),
        }
    }

    pub(crate) fn read(&self, at: usize, length: usize) -> Vec<u8> {
        assert!(at + length <= BYTES);
        (at..at + length)
            // SAFETY: inside the mapping; no other thread runs while this test reads.
            .map(|at| unsafe { self.at.add(at).read_volatile() })
            .collect()
    }

    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= BYTES);
        for (index, byte) in bytes.iter().enumerate() {
            // SAFETY: as in `read`.
            unsafe { self.at.add(at + index).write_volatile(*byte) }
        }
    }

    /// Eight bytes at once, while others store them.
    pub(crate) fn load(&self, at: usize) -> u64 {
        self.number(at).load(Ordering::SeqCst)
    }

    /// Eight bytes at once, while others load them.
    pub(crate) fn store(&self, at: usize, value: u64) {
        self.number(at).store(value, Ordering::SeqCst);
    }

    fn number(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= BYTES);
        // SAFETY: inside the mapping, which is aligned to a page.
        unsafe { self.at.add(at).cast().as_ref() }
    }

    fn sync(&self) {
        self.try_sync().unwrap();
    }

    /// The byte there, read by the kernel: it gives an error where whoever reads it would get a signal.
    pub(crate) fn try_read(&self, at: usize) -> io::Result<u8> {
        assert!(at < BYTES);
        let (mut out, into) = io::pipe()?;
        // SAFETY: inside the mapping.
        match unsafe { libc::write(into.as_raw_fd(), self.at.add(at).as_ptr().cast(), 1) } {
            1 => {
                let mut byte = [0];
                out.read_exact(&mut byte)?;
                Ok(byte[0])
            }
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// msync(2) of all of it.
    pub(crate) fn try_sync(&self) -> io::Result<()> {
        // SAFETY: the whole mapping.
        match unsafe { libc::msync(self.at.as_ptr().cast(), BYTES, libc::MS_SYNC) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, not used again.
        unsafe { libc::munmap(self.at.as_ptr().cast(), BYTES) };
    }
}

/// Memory aligned for O_DIRECT.
fn aligned(bytes: usize) -> (Vec<u8>, usize) {
    let memory = vec![0u8; bytes + PAGE];
    let skip = memory.as_ptr().align_offset(PAGE);
    (memory, skip)
}

#[test]
fn every_way_to_the_bytes_sees_the_last_write() {
    let node = Node::new();
    let path = node.path("f");
    let mut expected = pattern(1, BYTES);
    fs::write(&path, &expected).unwrap();
    let plain = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    let reader = File::open(&path).unwrap();
    let direct = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(&path)
        .unwrap();
    let shared = Mapping::new(&plain, libc::MAP_SHARED);
    let mut chance = Draw::new(7);
    for step in 0..4000u64 {
        let length = 1 + chance.below(20_000) as usize;
        let at = chance.below((BYTES - length) as u64) as usize;
        let (page, pages) = (at / PAGE * PAGE, length.div_ceil(PAGE) * PAGE);
        let pages = pages.min(BYTES - page);
        let bytes = pattern(step, length);
        let mut seen = vec![0; length];
        match chance.below(9) {
            0 => {
                plain.write_all_at(&bytes, at as u64).unwrap();
                expected[at..at + length].copy_from_slice(&bytes);
            }
            1 => {
                shared.write(at, &bytes);
                expected[at..at + length].copy_from_slice(&bytes);
            }
            2 => {
                let (mut memory, skip) = aligned(pages);
                let bytes = pattern(step, pages);
                memory[skip..skip + pages].copy_from_slice(&bytes);
                direct
                    .write_all_at(&memory[skip..skip + pages], page as u64)
                    .unwrap();
                expected[page..page + pages].copy_from_slice(&bytes);
            }
            3 => {
                let (mut memory, skip) = aligned(pages);
                let seen = &mut memory[skip..skip + pages];
                direct.read_exact_at(seen, page as u64).unwrap();
                assert!(
                    seen == &expected[page..page + pages],
                    "step {step}: O_DIRECT"
                );
            }
            4 => {
                plain.read_exact_at(&mut seen, at as u64).unwrap();
                assert!(seen == expected[at..at + length], "step {step}: read");
            }
            5 => {
                // A reader with cached pages sees stores into a mapping once they are synced.
                shared.sync();
                reader.read_exact_at(&mut seen, at as u64).unwrap();
                assert!(
                    seen == expected[at..at + length],
                    "step {step}: cached read"
                );
            }
            6 => {
                let seen = shared.read(at, length);
                assert!(seen == expected[at..at + length], "step {step}: mapping");
            }
            7 => {
                let private = Mapping::new(&plain, libc::MAP_PRIVATE);
                private.write(at, &bytes);
                assert!(private.read(at, length) == bytes);
                let seen = shared.read(at, length);
                assert!(
                    seen == expected[at..at + length],
                    "step {step}: a private store leaked"
                );
            }
            _ => {
                let cut = (BYTES - chance.below(100_000) as usize) as u64;
                // The mapping may not be touched beyond the end meanwhile.
                plain.set_len(cut).unwrap();
                plain.set_len(BYTES as u64).unwrap();
                expected[cut as usize..].fill(0);
            }
        }
    }
    shared.sync();
    drop((shared, plain, reader, direct));
    assert!(fs::read(&path).unwrap() == expected);
    node.must(&["down"]);
    node.must(&["up"]);
    assert!(fs::read(&path).unwrap() == expected);
    node.check();
}

/// Stops the other thread, even if the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// As xfstests generic/346: a write(2) and stores meet in one page, in different bytes.
#[test]
fn a_write_that_meets_stores_in_its_last_page_and_they_are_all_kept() {
    const WRITTEN: usize = BYTES - PAGE / 2;
    const ROUNDS: u8 = 200;
    let node = Node::new();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(node.path("f"))
        .unwrap();
    file.set_len(BYTES as u64).unwrap();
    let mapping = Mapping::new(&file, libc::MAP_SHARED);
    // SAFETY: aligned, inside the mapping, which outlives the thread; used by nothing else.
    let count = unsafe { AtomicU64::from_ptr(mapping.at.add(BYTES - 8).cast().as_ptr()) };
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let end = Over(&is_over);
        let stores = scope.spawn(|| {
            // At least one, however late this thread gets to run.
            for stored in 0.. {
                assert_eq!(count.load(Ordering::Relaxed), stored, "a store is lost");
                if is_over.load(Ordering::Relaxed) && stored > 0 {
                    return stored;
                }
                count.store(stored + 1, Ordering::Relaxed);
            }
            unreachable!("it is over before")
        });
        let mut lost = Vec::new();
        for round in 1..=ROUNDS {
            file.write_all_at(&vec![round; WRITTEN], 0).unwrap();
            let mut read = [0];
            file.read_exact_at(&mut read, WRITTEN as u64 - 1).unwrap();
            if read != [round] {
                lost.push((round, read));
            }
            // Kernels that don't drop the page themselves show the write once notified.
            eventually("the mapping shows the write", || {
                mapping.read(WRITTEN - 1, 1) == [round]
            });
        }
        drop(end);
        let stored = stores.join().unwrap();
        assert_eq!(lost, [], "bytes were lost after write(2) returned");
        assert_eq!(count.load(Ordering::Relaxed), stored);
    });
    drop(mapping);
    let read = fs::read(node.path("f")).unwrap();
    assert!(read[..WRITTEN] == vec![ROUNDS; WRITTEN]);
}
