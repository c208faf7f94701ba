//! Measures what the pool adds to its NSDs: encoding, and writes and reads of segments.
//!
//! Run by `make bench-parts`, in SHALE_BENCH_DIR or else the temporary directory. Needs 3 GiB.
#![allow(clippy::print_stdout, reason = "it prints its measurements")]

use bytes::Bytes;
use model::Payload;
use model::checksum::crc32c;
use model::map::{NsdEntry, NsdState};
use model::nsd::{BlobDelete, BlobHeader, BlobPut, GroupFence};
use model::{
    BlobName, DataId, FailureGroupId, FamilyId, GroupId, GroupVersion, InodeNumber, NsdId, Result,
    Scheme, SegmentId, SessionId,
};
use nsd::{Nsd, NsdIdentity};
use placement::codec;
use pool::{Pool, SegmentOwner, SegmentSource};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use world::World;

const MIB: usize = 1 << 20;
const REGION_BYTES: u64 = 512 << 20;
const ROUNDS: usize = 24;

fn plain(length: usize) -> Bytes {
    let mut buffer = world::AlignedBuffer::zeroed(length);
    buffer
        .iter_mut()
        .enumerate()
        .for_each(|(index, byte)| *byte = ((index * 31) >> 3) as u8);
    buffer.freeze()
}

/// The memory that the pool provides to the codec.
struct Recycled(world::AlignedBuffer);

impl codec::PieceMemory for Recycled {
    fn with_any_content(length: usize) -> Self {
        Self(world::AlignedBuffer::with_any_content(length))
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }

    fn freeze(self) -> Bytes {
        self.0.freeze()
    }
}

fn speed(bytes: usize, seconds: f64) -> String {
    format!("{:8.2} GB/s", bytes as f64 / seconds / 1e9)
}

fn encoding(world: &World) {
    let bytes = Payload::from(plain(4 * MIB));
    for (k, m) in [(4, 2), (4, 3), (8, 2), (8, 3), (16, 2), (16, 3)] {
        let scheme = Scheme::Erasure { k, m };
        let pieces = codec::encode_in::<Recycled>(scheme, &bytes);
        let started = world.now();
        (0..200).for_each(|_| {
            assert_eq!(
                codec::encode_in::<Recycled>(scheme, &bytes).len(),
                scheme.width()
            )
        });
        let encode = (world.now() - started).as_secs_f64();
        let have: Vec<(u8, Bytes)> = (1..=k)
            .map(|piece| (piece, pieces[usize::from(piece)].bytes().clone()))
            .collect();
        let started = world.now();
        (0..200)
            .for_each(|_| assert!(codec::reconstruct_in::<Recycled>(scheme, &have, &[0]).is_ok()));
        let rebuild = (world.now() - started).as_secs_f64();
        println!(
            "{scheme:<15} encode 4 MiB {}   rebuild one piece {}",
            speed(800 * MIB, encode),
            speed(800 * MIB, rebuild)
        );
    }
    let started = world.now();
    (0..200).for_each(|_| assert_ne!(crc32c(bytes.bytes()), 0));
    println!(
        "crc32c of 4 MiB {}",
        speed(800 * MIB, (world.now() - started).as_secs_f64())
    );
}

async fn make_nsd(world: &World, folder: &Path, nsd: u32) -> Result<Arc<Nsd>> {
    let path = folder.join(format!("pool-speed-{nsd}.region"));
    let disk = world
        .create_disk(&path, REGION_BYTES)
        .expect("a new region file");
    Nsd::format(
        world,
        &disk,
        NsdIdentity {
            cluster: 1,
            nsd: NsdId(nsd),
            pool: 0,
        },
    )
    .await?;
    Nsd::open(world, disk).await
}

async fn through_nsd(world: &World, nsd: &Nsd, length: usize) -> Result<()> {
    let bytes = plain(length);
    let name = |counter| BlobName {
        group: GroupId(0),
        segment: SegmentId {
            session: SessionId(2),
            counter,
        },
        piece: 0,
    };
    let header = BlobHeader {
        family: FamilyId(0),
        inode: InodeNumber(0),
        data: DataId(0),
        file_offset: 0,
        scheme: Scheme::Replicate(1),
        skipped_slots: 0,
        segment_bytes: length as u32,
        segment_crc: 0,
    };
    let started = world.now();
    for counter in 0..ROUNDS as u64 {
        let put = BlobPut {
            name: name(counter),
            nonce: 1,
            header,
            payload: bytes.clone().into(),
            fence: GroupVersion(1),
        };
        nsd.put(put).await?;
    }
    let put = (world.now() - started).as_secs_f64();
    let started = world.now();
    for counter in 0..ROUNDS as u64 {
        nsd.get(name(counter), 0, length as u32).await?;
    }
    let get = (world.now() - started).as_secs_f64();
    report("nsd", length, put, get);
    let fence = GroupFence {
        group: name(0).group,
        version: GroupVersion::FIRST,
    };
    let all = BlobDelete {
        names: (0..ROUNDS as u64).map(name).collect(),
        fences: vec![fence],
    };
    nsd.delete(all).await
}

fn report(what: &str, length: usize, write: f64, read: f64) {
    println!(
        "{what:<15} {:>5} KiB  write {} ({:6.0} µs each)   read {} ({:6.0} µs each)",
        length >> 10,
        speed(ROUNDS * length, write),
        write / ROUNDS as f64 * 1e6,
        speed(ROUNDS * length, read),
        read / ROUNDS as f64 * 1e6
    );
}

async fn through_pool(
    world: &World,
    nsds: &[Arc<Nsd>],
    scheme: Scheme,
    length: usize,
    session: u64,
) -> Result<()> {
    let entry = |nsd: &Arc<Nsd>| NsdEntry {
        nsd: nsd.id(),
        failure_group: FailureGroupId(nsd.id().0),
        weight: 1,
        state: NsdState::Active,
    };
    let map = placement::new_pool(scheme, nsds.iter().map(entry).collect(), 1)?;
    let pool = Pool::new(world.clone(), map, nsds.to_vec());
    let source = SegmentSource::new(SessionId(session));
    let owner = SegmentOwner::table(FamilyId(0));
    let bytes = plain(length);
    let mut places = Vec::new();
    let started = world.now();
    for _ in 0..ROUNDS {
        places.push(pool.write(&source, owner, bytes.clone()).await?);
    }
    let write = (world.now() - started).as_secs_f64();
    let started = world.now();
    for place in &places {
        pool.read(place, 0, place.length).await?;
    }
    let read = (world.now() - started).as_secs_f64();
    report(&format!("{scheme}"), length, write, read);
    pool.delete(&places).await
}

async fn measure(folder: PathBuf) -> Result<()> {
    let world = World::real();
    encoding(&world);
    let mut nsds = Vec::new();
    for nsd in 1..=6 {
        nsds.push(make_nsd(&world, &folder, nsd).await?);
    }
    let mut session = 10;
    for length in [4096, 64 << 10, MIB, 4 * MIB] {
        through_nsd(&world, &nsds[0], length).await?;
        for (scheme, count) in [
            (Scheme::Replicate(1), 1),
            (Scheme::Replicate(3), 6),
            (Scheme::Erasure { k: 4, m: 2 }, 6),
        ] {
            session += 1;
            through_pool(&world, &nsds[..count], scheme, length, session).await?;
        }
    }
    for nsd in nsds {
        nsd.close().await?;
        world::host::remove_file(&folder.join(format!("pool-speed-{}.region", nsd.id())))
            .expect("our own file");
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let directory = std::env::var_os("SHALE_BENCH_DIR");
    measure(directory.map_or_else(std::env::temp_dir, PathBuf::from)).await
}
