//! A small NSD on a simulated disk, and blobs with content derived from their number.

#![allow(unreachable_pub, reason = "read as a library of its own")]

use bytes::Bytes;
use model::nsd::{BlobDelete, BlobHeader, BlobPut, GroupFence};
use model::{
    BlobName, DataId, ErrorKind, FamilyId, GroupId, GroupVersion, InodeNumber, NsdId, Scheme,
    SegmentId, SessionId,
};
use nsd::{FormatOptions, Nsd, NsdIdentity};
use std::path::Path;
use std::sync::Arc;
use world::World;
use world::sim::Simulation;

/// Content derived from a seed.
pub fn content(seed: u64, length: usize) -> Bytes {
    testkit::content::content(seed, length).into()
}

pub const IDENTITY: NsdIdentity = NsdIdentity {
    cluster: 0xfeed,
    nsd: NsdId(7),
    pool: 0,
};

pub const DISK: &str = "nsd7";

/// Bytes of the region: 16 MiB of data, and a journal that soon wraps.
pub fn small_region() -> u64 {
    24 << 20
}

pub fn small_options() -> FormatOptions {
    FormatOptions {
        journal_bytes: Some(512 << 10),
        index_bytes: Some(4 << 20),
    }
}

pub fn name(number: u64) -> BlobName {
    BlobName {
        group: GroupId((number % 4) as u32),
        segment: SegmentId {
            session: SessionId(1),
            counter: number,
        },
        piece: (number % 3) as u8,
    }
}

pub fn blob(number: u64, length: usize) -> BlobPut {
    BlobPut {
        name: name(number),
        nonce: number,
        header: BlobHeader {
            family: FamilyId(1),
            inode: InodeNumber(number),
            data: DataId(2),
            file_offset: 3,
            scheme: Scheme::Erasure { k: 2, m: 1 },
            skipped_slots: 0,
            segment_bytes: length as u32,
            segment_crc: 5,
        },
        payload: content(number, length).into(),
        fence: GroupVersion(9),
    }
}

/// A delete of these blobs under the version of their puts.
pub fn deletion(names: &[BlobName]) -> BlobDelete {
    deletion_at(9, names)
}

/// A delete of these blobs under a version of their groups.
pub fn deletion_at(version: u32, names: &[BlobName]) -> BlobDelete {
    BlobDelete {
        names: names.to_vec(),
        fences: (0..4).map(|group| fence(group, version)).collect(),
    }
}

pub fn fence(group: u32, version: u32) -> GroupFence {
    GroupFence {
        group: GroupId(group),
        version: GroupVersion(version),
    }
}

/// A world with a disk that may hold an NSD.
pub struct Scene {
    pub world: World,
}

impl Scene {
    pub fn path(&self) -> &Path {
        Path::new(DISK)
    }

    /// Opens the NSD; formats the disk on first use.
    pub async fn open(&self) -> Arc<Nsd> {
        let disk = self.world.open_disk(self.path()).unwrap();
        match Nsd::open(&self.world, disk.clone()).await {
            Ok(nsd) => nsd,
            Err(error) if error.kind() == ErrorKind::InvalidArgument => {
                let options = small_options();
                Nsd::format_with(&self.world, &disk, IDENTITY, options)
                    .await
                    .unwrap();
                Nsd::open(&self.world, disk).await.unwrap()
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Formats the disk with a journal of this size, and opens it.
    pub async fn formatted(&self, journal_bytes: u64) -> Arc<Nsd> {
        let disk = self.world.open_disk(self.path()).unwrap();
        let options = FormatOptions {
            journal_bytes: Some(journal_bytes),
            ..small_options()
        };
        let formatted = Nsd::format_with(&self.world, &disk, IDENTITY, options);
        formatted.await.unwrap();
        Nsd::open(&self.world, disk).await.unwrap()
    }

    /// Drops the NSD without closing it and opens it again.
    pub async fn reopen(&self, nsd: Arc<Nsd>) -> Arc<Nsd> {
        drop(nsd);
        self.world.sleep(std::time::Duration::from_secs(1)).await;
        self.open().await
    }
}

/// Runs one scenario on a fresh simulated disk.
pub fn on_disk(seed: u64, scenario: impl AsyncFnOnce(Scene)) {
    let simulation = Simulation::new(seed);
    simulation.disk(DISK, small_region());
    simulation
        .run(async |world| scenario(Scene { world }).await)
        .finished();
}
