//! Versions and seals that a full journal refuses.

use super::*;
use crate::open::open;
use crate::small::{GROUP, blob, disk_of, formatted, machine};
use std::time::Duration;
use tokio::sync::MutexGuard;
use world::World;

const SHARD: ShardId = ShardId(3);
/// Longer than a request waits for room in the journal, but not as long as one that does so behind another one.
const FULL_FOR: Duration = Duration::from_secs(90);

fn fence(group: GroupId, version: u32) -> GroupFence {
    GroupFence {
        group,
        version: GroupVersion(version),
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
    let simulation = machine();
    let lived = simulation.run(async |world: World| {
        let core = formatted(&world, disk_of(&world)).await;

        let full = core.checkpointing.lock().await;
        fill(&core, 100).await;
        let (first, behind, ()) = futures::join!(
            core.clone().learn(fence(GROUP, 4)),
            core.clone().put_blob(blob(1, 4)),
            make_room(&world, full),
        );
        must_be(ErrorKind::NoSpace, first.unwrap_err());
        must_be(ErrorKind::NoSpace, behind.unwrap_err());
        core.clone().put_blob(blob(1, 4)).await.unwrap();

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
        let core = open(&world, disk_of(&world)).await.unwrap();
        let older = core.clone().learn(fence(GROUP, 3)).await;
        must_be(ErrorKind::OldEpoch, older.unwrap_err());
        let older = core.clone().seal_log(SHARD, ShardEpoch(6)).await;
        must_be(ErrorKind::OldEpoch, older.unwrap_err());
    });
    after_the_crash.finished();
}
