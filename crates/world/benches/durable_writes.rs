//! Measures durable 4 KiB writes through `Disk`, beside plain system calls.
//!
//! Run by `make bench-parts`, in SHALE_BENCH_DIR or else the temporary directory.

#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "it measures the system calls themselves"
)]

use bytes::Bytes;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use world::{AlignedBuffer, World};

const ROUNDS: usize = 3000;
const BYTES: u64 = 16 << 20;

fn measure(name: &str, mut one: impl FnMut(u64)) {
    for round in 0..200 {
        one(round * 4096);
    }
    let mut times: Vec<Duration> = (0..ROUNDS)
        .map(|round| {
            let start = Instant::now();
            one((round as u64 * 4096) % BYTES);
            start.elapsed()
        })
        .collect();
    times.sort();
    println!(
        "{name:44} p50 {:>9.1?}  p99 {:>9.1?}",
        times[ROUNDS / 2],
        times[ROUNDS * 99 / 100]
    );
}

fn main() {
    let directory = std::env::var_os("SHALE_BENCH_DIR");
    let directory = directory.map_or_else(std::env::temp_dir, PathBuf::from);
    let path = directory.join("world-disk-latency");
    let _ = std::fs::remove_file(&path);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let context = runtime.enter();
    let world = World::real();
    let disk = world.create_disk(&path, BYTES).unwrap();
    let page = Bytes::from_owner(AlignedBuffer::copy_of(&[7; 4096]));
    // Writes the whole region once, so that the measured writes don't change file system metadata.
    let whole = Bytes::from_owner(AlignedBuffer::copy_of(&vec![7; BYTES as usize]));
    runtime.block_on(disk.write_durable(0, whole)).unwrap();
    drop(context);

    let flags = libc::O_DIRECT | libc::O_DSYNC;
    let plain = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(flags)
        .open(&path)
        .unwrap();
    let direct = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(&path)
        .unwrap();
    for _ in 0..2 {
        measure("durable write: pwrite, O_DIRECT + O_DSYNC", |at| {
            plain.write_all_at(&page, at).unwrap()
        });
        measure("durable write: block_on on a plain thread", |at| {
            world
                .block_on(disk.write_durable(at, page.clone()))
                .unwrap();
        });
        measure("durable write: in a task of the runtime", |at| {
            let (disk, page) = (disk.clone(), page.clone());
            runtime
                .block_on(world.spawn("write", async move { disk.write_durable(at, page).await }))
                .unwrap();
        });
        let mut buffer = AlignedBuffer::zeroed(4096);
        measure("read: pread, O_DIRECT", |at| {
            direct.read_exact_at(&mut buffer, at).unwrap()
        });
        measure("read: block_on on a plain thread", |at| {
            world.block_on(disk.read(at, 4096)).unwrap();
        });
        measure("flush: fdatasync", |_| direct.sync_data().unwrap());
        measure("flush: block_on on a plain thread", |_| {
            world.block_on(disk.flush()).unwrap()
        });
    }
    let throughput = |name: &str, threads: u64, one: &(dyn Fn(u64) + Sync)| {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for thread in 0..threads {
                scope.spawn(move || {
                    (0..500).for_each(|round| one(((thread * 500 + round) * 4096) % BYTES));
                });
            }
        });
        let rate = (threads * 500) as f64 / start.elapsed().as_secs_f64();
        println!("{name}, {threads:2} threads {rate:24.0} per second");
    };
    for threads in [1, 4, 16] {
        throughput("durable write: pwrite", threads, &|at| {
            plain.write_all_at(&page, at).unwrap()
        });
        throughput("durable write: block_on", threads, &|at| {
            world
                .block_on(disk.write_durable(at, page.clone()))
                .unwrap();
        });
        throughput("read: pread", threads, &|at| {
            direct
                .read_exact_at(&mut AlignedBuffer::zeroed(4096), at)
                .unwrap();
        });
        throughput("read: block_on", threads, &|at| {
            world.block_on(disk.read(at, 4096)).unwrap();
        });
    }
    drop(disk);
    std::fs::remove_file(&path).unwrap();
}
