//! Measures an NSD beside the raw disk, alternating, so that both run under the same conditions.
//!
//! Run by `make bench-parts`, in SHALE_BENCH_DIR or else the temporary directory.

#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "it measures the disk and the clock themselves"
)]

use bytes::Bytes;
use futures::stream::{FuturesUnordered, StreamExt};
use model::nsd::{BlobDelete, BlobHeader, BlobPut, GroupFence, LogPut};
use model::{
    BlobName, DataId, EntryNumber, FamilyId, GroupId, GroupVersion, InodeNumber, NsdId, Scheme,
    SegmentId, SessionId, ShardEpoch, ShardId,
};
use nsd::{Nsd, NsdIdentity};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use world::{AlignedBuffer, Disk, World};

const BLOCK: usize = 4 << 20;
const STREAM_BLOCKS: u64 = 64;
const IN_FLIGHT: usize = 4;
const ROUNDS: u64 = 4;
const REGION: u64 = 8 << 30;

fn deletion(name: BlobName) -> BlobDelete {
    BlobDelete {
        names: vec![name],
        fences: vec![GroupFence {
            group: name.group,
            version: GroupVersion::FIRST,
        }],
    }
}

fn name(number: u64) -> BlobName {
    BlobName {
        group: GroupId(1),
        segment: SegmentId {
            session: SessionId(1),
            counter: number,
        },
        piece: 0,
    }
}

fn blob(number: u64, bytes: Bytes) -> BlobPut {
    BlobPut {
        name: name(number),
        nonce: number,
        header: BlobHeader {
            family: FamilyId(1),
            inode: InodeNumber(1),
            data: DataId(1),
            file_offset: 0,
            scheme: Scheme::Replicate(1),
            skipped_slots: 0,
            segment_bytes: bytes.len() as u32,
            segment_crc: 0,
        },
        payload: bytes.into(),
        fence: GroupVersion(1),
    }
}

/// MB/s of `blocks` calls of `one`, several of them in flight.
async fn stream<F: Future<Output = ()>>(blocks: u64, one: impl Fn(u64) -> F) -> f64 {
    let start = Instant::now();
    let mut flying = FuturesUnordered::new();
    for number in 0..blocks {
        if flying.len() == IN_FLIGHT {
            flying.next().await;
        }
        flying.push(one(number));
    }
    while flying.next().await.is_some() {}
    (blocks * BLOCK as u64) as f64 / start.elapsed().as_secs_f64() / 1e6
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// CPU time of this process, in steps of 10 ms.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

/// Duration of a flush after writes to fresh and to used space.
fn flushes(world: &World, raw: &Disk) {
    let block: Bytes = AlignedBuffer::copy_of(&vec![0x5a; BLOCK]).freeze();
    for what in ["fresh", "used"] {
        let (mut writes, mut flushes) = (Vec::new(), Vec::new());
        for number in 0..40 {
            let start = Instant::now();
            world
                .block_on(raw.write(number * BLOCK as u64, block.clone()))
                .unwrap();
            writes.push(start.elapsed());
            let start = Instant::now();
            world.block_on(raw.flush()).unwrap();
            flushes.push(start.elapsed());
        }
        println!(
            "{what} space: 4 MiB write {:?}, flush {:?}",
            median(writes),
            median(flushes)
        );
    }
}

fn streams(world: &World, nsd: &Arc<Nsd>, raw: &Disk) {
    let block: Bytes = AlignedBuffer::copy_of(&vec![0x5a; BLOCK]).freeze();
    let mut ratios = Vec::new();
    for round in 0..ROUNDS {
        let base = round * STREAM_BLOCKS;
        let plain = world.block_on(async {
            let speed = stream(STREAM_BLOCKS, |number| {
                let block = block.clone();
                async move {
                    let offset = (base + number) * BLOCK as u64;
                    raw.write(offset, block).await.unwrap();
                }
            });
            let speed = speed.await;
            raw.flush().await.unwrap();
            speed
        });
        let before = cpu();
        let ours = world.block_on(stream(STREAM_BLOCKS, |number| {
            let put = blob(base + number, block.clone());
            async move { nsd.put(put).await.unwrap() }
        }));
        let used = (cpu() - before) / STREAM_BLOCKS as u32;
        println!(
            "4 MiB puts  raw {plain:7.0} MB/s  nsd {ours:7.0} MB/s  ratio {:.2}  cpu {used:?} per put",
            ours / plain
        );
        ratios.push(ours / plain);
    }
    ratios.sort_by(f64::total_cmp);
    println!("4 MiB puts: median ratio {:.2}", ratios[ratios.len() / 2]);
}

fn log_puts(world: &World, nsd: &Arc<Nsd>, raw: &Disk) {
    let page: Bytes = AlignedBuffer::copy_of(&[0x5a; 4096]).freeze();
    let mut number = 0;
    for _ in 0..ROUNDS {
        let (mut plain, mut ours) = (Vec::new(), Vec::new());
        let before = cpu();
        for _ in 0..500 {
            number += 1;
            let start = Instant::now();
            world
                .block_on(raw.write_durable(number * 4096 % (1 << 30), page.clone()))
                .unwrap();
            plain.push(start.elapsed());
        }
        let raw_cpu = (cpu() - before) / 500;
        let before = cpu();
        for _ in 0..500 {
            number += 1;
            let put = LogPut {
                shard: ShardId(1),
                epoch: ShardEpoch(1),
                number: EntryNumber(number),
                bytes: page.clone(),
            };
            let start = Instant::now();
            world.block_on(nsd.log_put(put)).unwrap();
            ours.push(start.elapsed());
        }
        let our_cpu = (cpu() - before) / 500;
        world
            .block_on(nsd.log_trim(ShardId(1), ShardEpoch(1), EntryNumber(number)))
            .unwrap();
        let (plain, ours) = (median(plain), median(ours));
        println!(
            "4 KiB log_put  raw durable {plain:?} (cpu {raw_cpu:?})  nsd {ours:?} (cpu {our_cpu:?})  ratio {:.2}",
            ours.as_secs_f64() / plain.as_secs_f64()
        );
    }
}

fn small_gets(world: &World, nsd: &Arc<Nsd>, raw: &Disk) {
    let blobs = ROUNDS * STREAM_BLOCKS;
    let place = |turn: u64| {
        let mixed = turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16;
        (mixed % blobs, (mixed >> 20) % 1024 * 4096)
    };
    for round in 0..ROUNDS {
        let turns = || (0..4000).map(|turn| place(round * 4000 + turn));
        let start = (cpu(), Instant::now());
        for (number, at) in turns() {
            let offset = number * BLOCK as u64 + at;
            world.block_on(raw.read(offset, 4096)).unwrap();
        }
        let plain = ((cpu() - start.0) / 4000, start.1.elapsed() / 4000);
        let start = (cpu(), Instant::now());
        for (number, at) in turns() {
            world
                .block_on(nsd.get(name(number), at as u32, 4096))
                .unwrap();
        }
        let ours = ((cpu() - start.0) / 4000, start.1.elapsed() / 4000);
        println!(
            "4 KiB get  raw {:?} (cpu {:?})  nsd {:?} (cpu {:?})",
            plain.1, plain.0, ours.1, ours.0
        );
    }
}

/// Stores many small blobs, kills the NSD and measures how long it takes to serve again.
fn reopening(world: &World, nsd: Arc<Nsd>, path: &std::path::Path) {
    let bytes: Bytes = AlignedBuffer::copy_of(&[0x77; 8192]).freeze();
    let start = Instant::now();
    for thousand in 0..100 {
        world.block_on(async {
            let puts =
                (0..1000).map(|n| nsd.put(blob(1_000_000 + thousand * 1000 + n, bytes.clone())));
            futures::future::try_join_all(puts).await.unwrap();
        });
    }
    println!("100,000 blobs of 8 KiB in {:?}", start.elapsed());
    drop(nsd);
    let disk = loop {
        // A checkpoint in the background may keep the disk open for a moment.
        match world.open_disk(path) {
            Ok(disk) => break disk,
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let start = Instant::now();
    let nsd = world.block_on(Nsd::open(world, disk)).unwrap();
    println!(
        "open with {} blobs: {:?}",
        nsd.usage().blobs,
        start.elapsed()
    );
    let start = Instant::now();
    world.block_on(nsd.close()).unwrap();
    println!("close: {:?}", start.elapsed());
}

fn main() {
    let directory = std::env::var_os("SHALE_BENCH_DIR");
    let directory = directory.map_or_else(std::env::temp_dir, PathBuf::from);
    let paths = ["nsd-speed-raw", "nsd-speed-nsd"].map(|file| directory.join(file));
    for path in &paths {
        let _ = std::fs::remove_file(path);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let context = runtime.enter();
    let world = World::real();
    drop(context);
    let raw = world.create_disk(&paths[0], 4 << 30).unwrap();
    let disk = world.create_disk(&paths[1], REGION).unwrap();
    let identity = NsdIdentity {
        cluster: 1,
        nsd: NsdId(1),
        pool: 0,
    };
    let nsd = world.block_on(async {
        Nsd::format(&world, &disk, identity).await.unwrap();
        Nsd::open(&world, disk).await.unwrap()
    });
    flushes(&world, &raw);
    streams(&world, &nsd, &raw);
    world.block_on(async {
        for number in 0..ROUNDS * STREAM_BLOCKS {
            nsd.delete(deletion(name(number))).await.unwrap();
        }
    });
    println!("again, into used space:");
    streams(&world, &nsd, &raw);
    log_puts(&world, &nsd, &raw);
    small_gets(&world, &nsd, &raw);
    reopening(&world, nsd, &paths[1]);
    for path in &paths {
        std::fs::remove_file(path).unwrap();
    }
}
