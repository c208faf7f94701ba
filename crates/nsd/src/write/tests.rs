//! Versions and seals that a full journal refuses.

use super::*;
use crate::open::{format, open};
use crate::{FormatOptions, NsdIdentity};
use model::{BlobName, DataId, FamilyId, InodeNumber, NsdId, Scheme, SegmentId, SessionId};
use std::time::Duration;
use tokio::sync::MutexGuard;
use world::World;
use world::sim::Simulation;

const IDENTITY: NsdIdentity = NsdIdentity {
    cluster: 1,
    nsd: NsdId(7),
    pool: 0,
};
const GROUP: GroupId = GroupId(2);
const SHARD: ShardId = ShardId(3);
/// Longer than a request waits for room in the journal, but not as long as one that does so behind another one.
const FULL_FOR: Duration = Duration::from_secs(90);

fn fence(group: GroupId, version: u32) -> GroupFence {
    GroupFence {
        group,
        version: GroupVersion(version),
    }
}

fn blob(version: u32) -> BlobPut {
    BlobPut {
        name: BlobName {
            group: GROUP,
            segment: SegmentId {
                session: SessionId(4),
                counter: 1,
            },
            piece: 0,
        },
        nonce: 1,
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

/// Fills the journal with versions of a group, while no checkpoint makes room, until one has waited for it in vain.
async fn fill(core: &Arc<Core>, group: u32) {
    for version in 2.. {
        let learnt = core.clone().learn(fence(GroupId(group), version)).await;
        if let Err(full) = learnt {
            must_be(ErrorKind::NoSpace, full);
            return;
        }
    }
}

/// Lets checkpoints make room again, some time later.
async fn make_room(world: &World, full: MutexGuard<'_, ()>) {
    world.sleep(FULL_FOR).await;
    drop(full);
}

fn must_be(kind: ErrorKind, error: Error) {
    assert_eq!(error.kind(), kind, "{error}");
}

/// Would be broken if a version or a seal that a full journal has refused were known all the same: what comes later, or waits
/// behind it, brings no record of it then, is answered, and after a crash older ones are taken.
#[test]
fn what_a_full_journal_refuses_is_not_known_until_another_request_teaches_it() {
    let simulation = Simulation::new(1);
    simulation.disk("nsd", 24 << 20);
    let lived = simulation.run(async |world: World| {
        let disk = world.open_disk("nsd".as_ref()).unwrap();
        let options = FormatOptions {
            journal_bytes: Some(512 << 10),
            index_bytes: Some(4 << 20),
        };
        format(&world, &disk, IDENTITY, options).await.unwrap();
        let core = open(&world, disk).await.unwrap();

        let full = core.checkpointing.lock().await;
        fill(&core, 100).await;
        let (first, behind, ()) = futures::join!(
            core.clone().learn(fence(GROUP, 4)),
            core.clone().put_blob(blob(4)),
            make_room(&world, full),
        );
        must_be(ErrorKind::NoSpace, first.unwrap_err());
        must_be(ErrorKind::NoSpace, behind.unwrap_err());
        core.clone().put_blob(blob(4)).await.unwrap();

        let full = core.checkpointing.lock().await;
        fill(&core, 101).await;
        let (epoch, above) = (ShardEpoch(7), EntryNumber(9));
        let (first, behind, ()) = futures::join!(
            core.clone().seal_log(SHARD, epoch),
            core.clone().discard(SHARD, epoch, above),
            make_room(&world, full),
        );
        must_be(ErrorKind::NoSpace, first.unwrap_err());
        must_be(ErrorKind::NoSpace, behind.unwrap_err());
        core.clone().discard(SHARD, epoch, above).await.unwrap();
    });
    lived.finished();
    let after_the_crash = simulation.run(async |world: World| {
        let disk = world.open_disk("nsd".as_ref()).unwrap();
        let core = open(&world, disk).await.unwrap();
        let older = core.clone().learn(fence(GROUP, 3)).await;
        must_be(ErrorKind::OldEpoch, older.unwrap_err());
        let older = core.clone().seal_log(SHARD, ShardEpoch(6)).await;
        must_be(ErrorKind::OldEpoch, older.unwrap_err());
    });
    after_the_crash.finished();
}
