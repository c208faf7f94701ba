//! A small NSD on a simulated machine, for tests that look into it.

use crate::core::Core;
use crate::open::{format, open};
use crate::{FormatOptions, NsdIdentity};
use bytes::Bytes;
use model::nsd::{BlobHeader, BlobPut};
use model::{
    BlobName, DataId, FamilyId, GroupId, GroupVersion, InodeNumber, NsdId, Scheme, SegmentId,
    SessionId,
};
use std::sync::Arc;
use world::sim::Simulation;
use world::{Disk, World};

pub(crate) const IDENTITY: NsdIdentity = NsdIdentity {
    cluster: 1,
    nsd: NsdId(7),
    pool: 0,
};
/// Bytes of its region.
pub(crate) const BYTES: u64 = 24 << 20;
/// The group of its blobs.
pub(crate) const GROUP: GroupId = GroupId(2);
/// The name of its disk.
pub(crate) const DISK: &str = "nsd";

/// A machine with the disk of an NSD.
pub(crate) fn machine() -> Simulation {
    let simulation = Simulation::new(1);
    simulation.disk(DISK, BYTES);
    simulation
}

/// The machine's disk.
pub(crate) fn disk_of(world: &World) -> Disk {
    world.open_disk(DISK.as_ref()).unwrap()
}

/// Makes an NSD of a disk, and opens it.
pub(crate) async fn formatted(world: &World, disk: Disk) -> Arc<Core> {
    let options = FormatOptions {
        journal_bytes: Some(512 << 10),
        index_bytes: Some(4 << 20),
    };
    format(world, &disk, IDENTITY, options).await.unwrap();
    open(world, disk).await.unwrap()
}

/// A put of a blob of a segment, by a writer that knows this version of the group.
pub(crate) fn blob(counter: u64, version: u32) -> BlobPut {
    BlobPut {
        name: BlobName {
            group: GROUP,
            segment: SegmentId {
                session: SessionId(4),
                counter,
            },
            piece: 0,
        },
        nonce: counter,
        header: BlobHeader {
            family: FamilyId(1),
            inode: InodeNumber(1),
            data: DataId(2),
            file_offset: 0,
            scheme: Scheme::Replicate(1),
            skipped_slots: 0,
            segment_bytes: 50,
            segment_crc: 5,
        },
        payload: Bytes::from(vec![6; 50]).into(),
        fence: GroupVersion(version),
    }
}
