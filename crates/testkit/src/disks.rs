//! Simulated disks with NSDs on them.

use model::map::{NsdEntry, NsdState};
use model::{FailureGroupId, NsdId};
use nsd::{Nsd, NsdIdentity};
use std::path::Path;
use std::sync::Arc;
use world::{Disk, World};

/// An NSD in a failure group of its own.
#[must_use]
pub fn entry(nsd: u32) -> NsdEntry {
    NsdEntry {
        nsd: NsdId(nsd),
        failure_group: FailureGroupId(nsd),
        weight: 1,
        state: NsdState::Active,
    }
}

/// NSDs 1 to `count`, each in a failure group of its own.
#[must_use]
pub fn entries(count: u32) -> Vec<NsdEntry> {
    (1..=count).map(entry).collect()
}

/// Makes a disk an NSD of pool 0.
///
/// # Panics
/// If the disk fails or holds something.
pub async fn format(world: &World, disk: &Disk, cluster: u128, nsd: u32) {
    let identity = NsdIdentity {
        cluster,
        nsd: NsdId(nsd),
        pool: 0,
    };
    Nsd::format(world, disk, identity).await.unwrap();
}

/// Opens the NSD on a disk.
///
/// # Panics
/// If there is none.
pub async fn open(world: &World, path: &Path) -> Arc<Nsd> {
    let disk = world.open_disk(path).unwrap();
    Nsd::open(world, disk).await.unwrap()
}
