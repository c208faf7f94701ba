//! Speed of one thread that creates files in a fresh directory: in memory, and until everything is
//! durable. `cargo run --release -p metanode --example burst [DIR]`

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "an example that prints figures"
)]

use bytes::Bytes;
use coordination::Coordination;
use metanode::{DATA_POOL, Metanode, Opening};
use model::map::{NsdEntry, NsdState};
use model::operation::{NewInode, Stamp};
use model::{
    FailureGroupId, FamilyId, FileKind, FileName, InodeId, NsdId, Operation, Reply, Scheme, ShardId,
};
use nsd::{Nsd, NsdIdentity};
use pool::Pool;
use std::path::Path;
use world::World;

const FILES: u64 = 50_000;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let world = {
        let _inside = runtime.enter();
        World::real()
    };
    let folder = std::env::args().nth(1);
    let temporary = tempfile::tempdir().unwrap();
    let folder = folder.as_deref().map_or(temporary.path(), Path::new);
    let metanode = world.block_on(open(&world, folder));
    let session = world.block_on(metanode.open_session()).unwrap();
    let stamp = || Stamp {
        now: world.wall(),
        session,
        slot: None,
    };
    let create = |directory: InodeId, text: String, kind: FileKind| {
        let new = NewInode {
            kind,
            mode: 0o644,
            uid: 0,
            gid: 0,
            umask: 0,
            rdev: 0,
            target: Bytes::new(),
        };
        let name = FileName::new(text.as_bytes()).unwrap();
        let reply = world
            .block_on(metanode.execute(
                &Operation::Create {
                    directory,
                    name,
                    new,
                },
                &stamp(),
            ))
            .unwrap();
        let Reply::Entry { attributes, .. } = reply else {
            panic!("a create answers an entry")
        };
        attributes.inode
    };
    for round in 0..4 {
        let directory = create(InodeId::ROOT, format!("d{round}"), FileKind::Directory);
        let begin = world.now();
        for number in 0..FILES {
            create(directory, format!("file-{number}"), FileKind::File);
        }
        let burst = world.now() - begin;
        world.block_on(metanode.sync()).unwrap();
        let durable = world.now() - begin;
        let begin = world.now();
        for number in 0..FILES {
            let name = FileName::new(format!("file-{number}").as_bytes()).unwrap();
            world
                .block_on(metanode.execute(&Operation::Lookup { directory, name }, &stamp()))
                .unwrap();
        }
        let lookups = world.now() - begin;
        let per_second = |time: std::time::Duration| FILES as f64 / time.as_secs_f64();
        println!(
            "round {round}: {:.0} creates/s in memory ({:.2} us each), {:.0}/s until durable, {:.0} lookups/s",
            per_second(burst),
            burst.as_secs_f64() * 1e6 / FILES as f64,
            per_second(durable),
            per_second(lookups),
        );
    }
    let begin = world.now();
    for number in 0..1000 {
        create(InodeId::ROOT, format!("synced-{number}"), FileKind::File);
        world.block_on(metanode.sync()).unwrap();
    }
    println!(
        "create + sync, one thread: {:.0} us each",
        (world.now() - begin).as_secs_f64() * 1e6 / 1000.0
    );
    world.block_on(metanode.close()).unwrap();
}

async fn open(world: &World, folder: &Path) -> std::sync::Arc<Metanode> {
    let disk = world
        .create_disk(
            &folder.join("coordination"),
            coordination::EMBEDDED_REGION_BYTES,
        )
        .unwrap();
    let coordination = Coordination::embedded(world, disk).await.unwrap();
    let disk = world.create_disk(&folder.join("nsd1"), 4 << 30).unwrap();
    Nsd::format(
        world,
        &disk,
        NsdIdentity {
            cluster: 1,
            nsd: NsdId(1),
            pool: 0,
        },
    )
    .await
    .unwrap();
    let nsd = Nsd::open(world, disk).await.unwrap();
    let entry = NsdEntry {
        nsd: NsdId(1),
        failure_group: FailureGroupId(1),
        weight: 4,
        state: NsdState::Active,
    };
    let map = placement::new_pool(Scheme::Replicate(1), vec![entry], 7).unwrap();
    coordination.set_pool_map(DATA_POOL, 0, &map).await.unwrap();
    let pool = Pool::new(world.clone(), map, vec![nsd]);
    let (shard, family) = (ShardId(0), FamilyId(1));
    Metanode::open(Opening {
        world: world.clone(),
        shard,
        family,
        coordination,
        pool,
    })
    .await
    .unwrap()
}
