//! Whole file systems from one seed, broken on purpose, checked.

pub mod action;
pub mod cluster;
pub mod drive;
mod log;
pub mod recovered;
pub mod scenario;
pub mod seeds;
pub mod shrink;
pub mod storm;
pub mod witness;

use std::{
    ops::Range,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

/// `short` in `make test`, `long` in `make test-all`.
pub fn by_suite<T>(short: T, long: T) -> T {
    if std::env::var_os("SHALE_LONG").is_some() {
        long
    } else {
        short
    }
}

/// Calls `work` for every seed, on as many threads as there are cores; each simulation runs on one
/// thread.
///
/// # Panics
/// With the first panic of `work`; seeds not yet started are then skipped.
#[allow(
    clippy::disallowed_methods,
    reason = "the threads are the judge's, not the simulated program's"
)]
pub fn each_seed(seeds: Range<u64>, work: impl Fn(u64) + Sync) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicU64::new(seeds.start);
    let failed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while !failed.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let guard = OnPanic(&failed);
                    work(seed);
                    drop(guard);
                }
            });
        }
    });
}

struct OnPanic<'a>(&'a AtomicBool);

impl Drop for OnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}
