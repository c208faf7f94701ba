//! The disk's own speed: O_DIRECT through io_uring on a region file next to the NSDs.

use crate::measure::rate;
use futures::StreamExt;
use model::{Error, ErrorKind, Result};
use std::path::Path;
use world::{AlignedBuffer, Disk, World};

/// Requests in flight during a stream.
const DEPTH: usize = 8;

/// A region in `dir` that was written once, because reading unwritten blocks needs no I/O.
///
/// # Errors
/// No space, or no permission.
pub fn floor(world: &World, dir: &Path, bytes: u64) -> Result<Disk> {
    let path = dir.join("floor.region");
    let _ = std::fs::remove_file(&path);
    let disk = world.create_disk(&path, bytes).map_err(|e| {
        Error::new(ErrorKind::Unavailable, e.to_string()).while_doing("making the floor's region")
    })?;
    write(world, &disk, bytes);
    Ok(disk)
}

/// Writes `bytes` in 1 MiB requests and flushes; bytes per second.
pub fn write(world: &World, disk: &Disk, bytes: u64) -> f64 {
    let piece = AlignedBuffer::copy_of(&vec![0x5A; 1 << 20]).freeze();
    rate(bytes, || {
        world.block_on(async {
            futures::stream::iter(0..bytes >> 20)
                .for_each_concurrent(DEPTH, |number| {
                    let piece = piece.clone();
                    async move { disk.write(number << 20, piece).await.expect("writes") }
                })
                .await;
            disk.flush().await.expect("flushes");
        });
    })
}

/// Reads `bytes` in 1 MiB requests.
pub fn read(world: &World, disk: &Disk, bytes: u64) -> f64 {
    rate(bytes, || {
        world.block_on(async {
            futures::stream::iter(0..bytes >> 20)
                .for_each_concurrent(DEPTH, |number| async move {
                    disk.read(number << 20, 1 << 20).await.expect("reads");
                })
                .await;
        });
    })
}

/// 4 KiB reads at random offsets, `depth` at once.
pub fn read_random(world: &World, disk: &Disk, bytes: u64, count: u64, depth: u64) -> f64 {
    rate(count, || {
        world.block_on(async {
            let worker = |worker: u64| async move {
                let mut state = worker.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
                for _ in 0..count / depth {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    disk.read(state % (bytes / 4096) * 4096, 4096)
                        .await
                        .expect("reads");
                }
            };
            futures::future::join_all((1..=depth).map(worker)).await;
        });
    })
}
