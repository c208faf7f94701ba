//! Measures a client over real disks: creates, streams, random reads, small synced files.
//!
//! `cargo run --release -p client --example speed [directory]` measures the directory's disk; for
//! comparison the same bytes are written to it raw.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "an example for the terminal"
)]

#[path = "../tests/rig/mod.rs"]
mod rig;

use bytes::Bytes;
use client::{Client, ClientSettings};
use model::{InodeId, Scheme};
use rig::{Node, Place, content, name, new_file};
use std::path::PathBuf;
use world::{Instant, World};

const FILES: usize = 50_000;
const STREAM: u64 = 1 << 30;
const MIB: usize = 1 << 20;

fn main() {
    let directory = std::env::args()
        .nth(1)
        .map_or_else(std::env::temp_dir, PathBuf::from);
    let directory = directory.join(format!("shale-speed-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let world = runtime.block_on(async { World::real() });
    // A plain thread drives the client, like a FUSE thread.
    let thread = std::thread::spawn({
        let directory = directory.clone();
        move || measure(&world, &directory)
    });
    thread.join().unwrap();
    drop(runtime);
    std::fs::remove_dir_all(&directory).unwrap();
}

fn measure(world: &World, directory: &std::path::Path) {
    let (write, read) = raw(world, directory);
    println!("raw disk: write {write:.0} MiB/s, read {read:.0} MiB/s");
    let place = Place {
        directory: directory.to_owned(),
        nsds: 1,
        nsd_bytes: 4 << 30,
        scheme: Scheme::Replicate(1),
    };
    let node = on_runtime(world, {
        let (world, place) = (world.clone(), place);
        async move {
            Node::create(&world, &place).await;
            Node::open(&world, &place, ClientSettings::default()).await
        }
    });
    creates(world, &node.client);
    let (own_write, own_read) = stream(world, &node.client);
    println!(
        "stream: write {own_write:.0} MiB/s ({:.2} of raw)",
        own_write / write
    );
    println!(
        "stream: cold read {own_read:.0} MiB/s ({:.2} of raw)",
        own_read / read
    );
    random_reads(world, &node.client);
    small_synced(world, &node.client);
    on_runtime(world, node.close());
}

/// Opening and closing start tasks, so they must run on the runtime.
fn on_runtime<T: Send + 'static>(
    world: &World,
    future: impl Future<Output = T> + Send + 'static,
) -> T {
    world.block_on(world.spawn("measure", future))
}

fn per_second(world: &World, since: Instant, count: f64) -> f64 {
    count / (world.now() - since).as_secs_f64()
}

fn raw(world: &World, directory: &std::path::Path) -> (f64, f64) {
    let disk = world.create_disk(&directory.join("raw"), STREAM).unwrap();
    let block = {
        let mut buffer = world::AlignedBuffer::zeroed(4 * MIB);
        buffer.copy_from_slice(&content(1, 4 * MIB));
        buffer.freeze()
    };
    let blocks = STREAM / block.len() as u64;
    let transfer = |is_write: bool| {
        let since = world.now();
        let tasks: Vec<_> = (0..8)
            .map(|lane| {
                let (disk, block): (_, Bytes) = (disk.clone(), block.clone());
                world.spawn("raw", async move {
                    for number in (lane..blocks).step_by(8) {
                        let at = number * block.len() as u64;
                        if is_write {
                            disk.write(at, block.clone()).await.unwrap();
                        } else {
                            disk.read(at, block.len()).await.unwrap();
                        }
                    }
                    disk.flush().await.unwrap();
                })
            })
            .collect();
        for task in tasks {
            world.block_on(task);
        }
        per_second(world, since, STREAM as f64 / MIB as f64)
    };
    (transfer(true), transfer(false))
}

fn creates(world: &World, client: &Client) {
    let names: Vec<_> = (0..FILES)
        .map(|number| name(&format!("file{number:06}")))
        .collect();
    let since = world.now();
    for name in &names {
        world
            .block_on(client.create(InodeId::ROOT, name.clone(), new_file()))
            .unwrap();
    }
    println!(
        "create: {:.0} empty files/s",
        per_second(world, since, FILES as f64)
    );
    let since = world.now();
    for name in &names {
        world
            .block_on(client.lookup(InodeId::ROOT, name.clone()))
            .unwrap();
    }
    println!("lookup: {:.0}/s", per_second(world, since, FILES as f64));
    let since = world.now();
    world.block_on(client.sync_all()).unwrap();
    println!("sync: {:.0} ms", (world.now() - since).as_secs_f64() * 1e3);
    let since = world.now();
    for name in names {
        world.block_on(client.unlink(InodeId::ROOT, name)).unwrap();
    }
    println!("unlink: {:.0}/s", per_second(world, since, FILES as f64));
    world.block_on(client.sync_all()).unwrap();
}

fn stream(world: &World, client: &Client) -> (f64, f64) {
    let inode = world.block_on(rig::file(client, "stream"));
    let part = content(2, MIB);
    let since = world.now();
    for at in (0..STREAM).step_by(MIB) {
        world.block_on(client.write(inode, at, &part)).unwrap();
    }
    world.block_on(client.fsync(inode, false)).unwrap();
    let written = per_second(world, since, STREAM as f64 / MIB as f64);
    // The pool of 256 MiB holds the end of the file: reading from the start finds nothing cached
    // and evicts that end before reaching it.
    let since = world.now();
    let step = 256 * 1024;
    for at in (0..STREAM).step_by(step) {
        let pieces = world.block_on(client.read(inode, at, step)).unwrap();
        assert_eq!(pieces.iter().map(Bytes::len).sum::<usize>(), step);
    }
    (
        written,
        per_second(world, since, STREAM as f64 / MIB as f64),
    )
}

fn random_reads(world: &World, client: &Client) {
    let inode = world
        .block_on(client.lookup(InodeId::ROOT, name("stream")))
        .unwrap()
        .inode;
    let count = 5000;
    let since = world.now();
    for _ in 0..count {
        let at = world.random_u64() % (STREAM / 4096) * 4096;
        world.block_on(client.read(inode, at, 4096)).unwrap();
    }
    println!(
        "random 4 KiB reads, one thread: {:.0}/s",
        per_second(world, since, f64::from(count))
    );
}

fn small_synced(world: &World, client: &Client) {
    let count = 300;
    let bytes = content(3, 3901);
    let since = world.now();
    for number in 0..count {
        let inode = world.block_on(rig::file(client, &format!("synced{number}")));
        world.block_on(client.write(inode, 0, &bytes)).unwrap();
        world.block_on(client.fsync(inode, false)).unwrap();
        world.block_on(client.release(inode));
    }
    println!(
        "small synced files, one thread: {:.0}/s",
        per_second(world, since, f64::from(count))
    );
}
