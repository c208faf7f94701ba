//! A metanode over simulated NSDs, and enough of a client to make files with content.

#![allow(unreachable_pub, reason = "compiled as a separate library")]

pub mod clients;

use bytes::Bytes;
use coordination::Coordination;
use metanode::{CheckOptions, CheckReport, Metanode, Opening, ShardMemory};
use model::map::{NsdState, PoolMap};
use model::operation::{Publish, Stamp};
use model::{
    Attributes, Extent, ExtentKind, FamilyId, FileKind, InodeId, NodeRun, Operation, Reply, Result,
    Scheme, SegmentPlace, SetAttributes, ShardId,
};
use namespace::{Key, Record};
use nsd::Nsd;
use pool::{Pool, SegmentOwner, SegmentSource};
use std::path::Path;
use std::sync::Arc;
use testkit::disks::entries;
pub use testkit::disks::entry;
pub use testkit::inodes::{name, new_inode};
use world::World;

/// Bytes of each simulated region.
const REGION_BYTES: u64 = 1 << 30;
/// The family of the root shard.
pub const FAMILY: FamilyId = FamilyId(0);

/// One power-on of the machine.
pub struct Rig {
    pub world: World,
    pub coordination: Coordination,
    pub pool: Arc<Pool>,
    pub metanode: Arc<Metanode>,
    pub source: SegmentSource,
}

fn disk_name(nsd: u32) -> String {
    format!("nsd{nsd}")
}

/// Makes an NSD's region.
pub async fn format(world: &World, nsd: u32) {
    let disk = world
        .create_disk(Path::new(&disk_name(nsd)), REGION_BYTES)
        .unwrap();
    testkit::disks::format(world, &disk, 1, nsd).await;
}

pub async fn open_nsd(world: &World, nsd: u32) -> Result<Arc<Nsd>> {
    let disk = world
        .open_disk(Path::new(&disk_name(nsd)))
        .map_err(|error| model::Error::new(model::ErrorKind::Unavailable, error.to_string()))?;
    Nsd::open(world, disk).await
}

/// Makes the disks of an empty pool; the first [`open`] makes the file system.
pub async fn create(world: &World, scheme: Scheme, nsds: u32) {
    let disk = world
        .create_disk(
            Path::new("coordination"),
            coordination::EMBEDDED_REGION_BYTES,
        )
        .unwrap();
    let coordination = Coordination::embedded(world, disk).await.unwrap();
    for nsd in 1..=nsds {
        format(world, nsd).await;
    }
    let map = placement::new_pool(scheme, entries(nsds), 7).unwrap();
    coordination
        .set_pool_map(metanode::DATA_POOL, 0, &map)
        .await
        .unwrap();
}

/// What the root shard is opened with in a run of a node, without an end to its lease.
fn opening(world: &World, coordination: &Coordination, pool: &Arc<Pool>, run: NodeRun) -> Opening {
    Opening {
        world: world.clone(),
        shard: ShardId(0),
        family: FAMILY,
        coordination: coordination.clone(),
        pool: pool.clone(),
        run,
        memory: ShardMemory::of_machine(world),
        lease: metanode::OwnerLease::endless(),
        surveys: metanode::Surveys::Own,
        touch: Arc::new(metanode::Whole),
    }
}

/// Opens everything except the NSDs in `without`.
pub async fn open_without(world: &World, without: &[u32]) -> Rig {
    let disk = world.open_disk(Path::new("coordination")).unwrap();
    let coordination = Coordination::embedded(world, disk).await.unwrap();
    let map: PoolMap = coordination
        .pool_map(metanode::DATA_POOL)
        .await
        .unwrap()
        .unwrap()
        .value;
    let mut nsds = Vec::new();
    for entry in map
        .nsds
        .iter()
        .filter(|entry| entry.state != NsdState::Lost && !without.contains(&entry.nsd.0))
    {
        nsds.push(open_nsd(world, entry.nsd.0).await.unwrap());
    }
    let pool = Pool::new(world.clone(), map, nsds);
    let run = metanode::begin_alone(&coordination, ShardId(0)).await;
    let opening = opening(world, &coordination, &pool, run.unwrap());
    let metanode = Metanode::open(opening).await.unwrap();
    let session = metanode.open_session().await.unwrap();
    Rig {
        world: world.clone(),
        coordination,
        pool,
        metanode,
        source: SegmentSource::new(session),
    }
}

pub async fn open(world: &World) -> Rig {
    open_without(world, &[]).await
}

/// Bytes that vary everywhere and depend on the file's seed.
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    (0..length as u64)
        .map(|at| (at.wrapping_mul(2_654_435_761).wrapping_add(seed * 977) >> 7) as u8)
        .collect()
}

impl Rig {
    /// What the root shard is opened with once more, in this run of a node.
    pub fn opening(&self, run: NodeRun) -> Opening {
        opening(&self.world, &self.coordination, &self.pool, run)
    }

    /// A shard with another family in the same process, made if it doesn't exist. Close its metanode
    /// before the rig.
    pub async fn neighbour(&self, shard: ShardId, family: FamilyId) -> Rig {
        let of_root = self.coordination.shard(ShardId(0)).await.unwrap();
        let run = of_root.unwrap().value.assigned.unwrap();
        if let Some(record) = self.coordination.shard(shard).await.unwrap() {
            let before = record.value.assigned;
            let assigned = self.coordination.assign_shard(shard, before, run).await;
            assigned.unwrap();
        }
        let opening = Opening {
            shard,
            family,
            ..self.opening(run)
        };
        let metanode = Metanode::open(opening).await.unwrap();
        let session = metanode.open_session().await.unwrap();
        Rig {
            world: self.world.clone(),
            coordination: self.coordination.clone(),
            pool: self.pool.clone(),
            metanode,
            source: SegmentSource::new(session),
        }
    }

    /// Changes the pool's map in coordination, then here.
    pub async fn change_map(&self, change: impl Fn(&PoolMap) -> PoolMap) {
        let fact = self.coordination.pool_map(metanode::DATA_POOL).await;
        let fact = fact.unwrap().unwrap();
        let next = change(&fact.value);
        self.coordination
            .set_pool_map(metanode::DATA_POOL, fact.version, &next)
            .await
            .unwrap();
        self.pool.set_map(next).await.unwrap();
    }

    pub fn stamp(&self) -> Stamp {
        Stamp::own(self.world.wall(), self.source.session())
    }

    /// Puts records that break the rules.
    pub async fn forge(&self, records: Vec<(Key, Option<Record>)>) {
        testkit::forge::forge(&self.metanode.hosted(), records).await;
        // The first operation takes the shard over again.
        self.metanode.usage().await.unwrap();
    }

    pub async fn run(&self, operation: Operation) -> Result<Reply> {
        self.metanode.execute(&operation, &self.stamp()).await
    }

    pub async fn make(&self, directory: InodeId, text: &str, kind: FileKind) -> Result<Attributes> {
        let new = new_inode(kind);
        match self
            .run(Operation::Create {
                directory,
                name: name(text),
                new,
            })
            .await?
        {
            Reply::Entry { attributes, .. } => Ok(attributes),
            other => panic!("{other:?}"),
        }
    }

    pub async fn file(&self, directory: InodeId, text: &str) -> InodeId {
        self.make(directory, text, FileKind::File)
            .await
            .unwrap()
            .inode
    }

    pub async fn look(&self, directory: InodeId, text: &str) -> Option<Attributes> {
        match self
            .run(Operation::Lookup {
                directory,
                name: name(text),
            })
            .await
        {
            Ok(Reply::Entry { attributes, .. }) => Some(attributes),
            Ok(other) => panic!("{other:?}"),
            Err(error) if error.kind() == model::ErrorKind::NotFound => None,
            Err(error) => panic!("{error}"),
        }
    }

    pub async fn unlink(&self, directory: InodeId, text: &str) {
        self.run(Operation::Unlink {
            directory,
            name: name(text),
        })
        .await
        .unwrap();
    }

    /// Writes through a segment.
    pub async fn write(&self, inode: InodeId, offset: u64, bytes: &[u8]) {
        let place = self.segment(inode, offset, bytes).await;
        self.publish_segment(inode, offset, bytes, place).await;
    }

    /// Writes a segment, without publishing it.
    pub async fn segment(&self, inode: InodeId, offset: u64, bytes: &[u8]) -> SegmentPlace {
        let owner = SegmentOwner {
            family: inode.fileset().family(),
            inode: inode.number(),
            data: model::DataId(0),
            file_offset: offset,
        };
        let bytes = Bytes::copy_from_slice(bytes);
        let written = self.pool.write(&self.source, owner, bytes).await;
        written.unwrap()
    }

    pub async fn publish_segment(
        &self,
        inode: InodeId,
        offset: u64,
        bytes: &[u8],
        place: SegmentPlace,
    ) {
        let kind = ExtentKind::Data {
            place,
            at: 0,
            codec: 0,
            key_id: 0,
        };
        self.publish(inode, offset, bytes.len() as u64, kind).await;
    }

    /// Writes through the log.
    pub async fn write_inline(&self, inode: InodeId, offset: u64, bytes: &[u8]) {
        self.publish(
            inode,
            offset,
            bytes.len() as u64,
            ExtentKind::Inline(Bytes::copy_from_slice(bytes)),
        )
        .await;
    }

    async fn publish(&self, inode: InodeId, offset: u64, length: u64, kind: ExtentKind) {
        let extent = Extent {
            offset,
            length,
            kind,
            birth: model::CommitNumber(0),
        };
        let publish = Publish {
            inode,
            extents: vec![extent],
            size_at_least: offset + length,
            written: None,
            replaces: None,
        };
        self.run(Operation::Publish(publish)).await.unwrap();
    }

    pub async fn truncate(&self, inode: InodeId, size: u64) {
        let set = SetAttributes {
            size: Some(size),
            ..SetAttributes::default()
        };
        self.run(Operation::SetAttributes { inode, set })
            .await
            .unwrap();
    }

    /// The file's extents.
    pub async fn extents(&self, inode: InodeId) -> (Vec<Extent>, Attributes) {
        let mut out = Vec::new();
        let mut offset = 0;
        loop {
            let length = (1 << 62) - offset;
            let asked = Operation::ReadExtents {
                inode,
                offset,
                length,
                limit: 1000,
            };
            let Reply::Extents {
                extents,
                known_to,
                attributes,
            } = self.run(asked).await.unwrap()
            else {
                panic!("ReadExtents answers Extents");
            };
            out.extend(extents);
            offset = known_to;
            if offset >= attributes.size {
                return (out, attributes);
            }
        }
    }

    /// The file's content.
    pub async fn read(&self, inode: InodeId) -> Result<Vec<u8>> {
        let (extents, attributes) = self.extents(inode).await;
        let mut out = vec![0; attributes.size as usize];
        for extent in extents {
            let Some(extent) = extent.clip(0, attributes.size) else {
                continue;
            };
            let target = &mut out[extent.offset as usize..extent.end() as usize];
            match &extent.kind {
                ExtentKind::Inline(bytes) => target.copy_from_slice(bytes),
                ExtentKind::Reserved => {}
                ExtentKind::Data { place, at, .. } => {
                    let chunks = self.pool.read(place, *at, extent.length as u32).await?;
                    target.copy_from_slice(&chunks.concat());
                }
            }
        }
        Ok(out)
    }

    /// Runs background work until there is none.
    pub async fn settle(&self) {
        for _ in 0..100 {
            if self.metanode.run_background_once().await.unwrap().steps == 0 {
                return;
            }
        }
        panic!("background work never ends");
    }

    pub async fn check(&self) -> CheckReport {
        self.metanode
            .check(CheckOptions { deep: true })
            .await
            .unwrap()
    }

    pub async fn must_be_clean(&self, when: &str) {
        self.settle().await;
        let report = self.check().await;
        assert!(report.is_clean(), "{when}: {:#?}", report.faults);
    }

    /// Number of blobs on all NSDs, except those of the tree's tables.
    pub async fn data_blobs(&self) -> u64 {
        self.check().await.data_blobs
    }

    /// Closes everything cleanly.
    pub async fn close(self) {
        self.metanode.close().await.unwrap();
        for state in self.pool.nsd_states() {
            if let Some(nsd) = self.pool.nsd(state.entry.nsd) {
                let _ = nsd.close().await;
            }
        }
    }
}
