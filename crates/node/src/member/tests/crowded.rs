//! Many programs of one node wait for something at another one, and everything else of the node goes on.

use super::*;
use model::lock::{LockOwner, LockTaker};
use model::{FileKind, InodeId, LockKind, LockRange};
use std::future::{Pending, pending};
use std::sync::atomic::{AtomicU64, Ordering};
use testkit::inodes::{name, new_inode};

/// More than are asked for at the same time.
const PROGRAMS: u64 = 300;
/// Much less than an answer to one of those that wait takes.
const SOON: Duration = Duration::from_millis(500);
const TAKER: LockTaker = LockTaker {
    open: 1,
    pid: 1,
    user: 1,
};

/// Would be broken if those who wait took all the room that their node has on its connection to the owner: unlocking,
/// and everything else, would take seconds.
#[test]
fn programs_that_wait_for_locks_hold_up_nothing_else_of_their_node() {
    let run = Simulation::new(1).run(|world| async move {
        let [first, second] = two_members(&world, 1).await;
        first.create_shard().await.unwrap();
        let opened = second.open_client_of(ROOT_SHARD, ClientSettings::default());
        let client = opened.await.unwrap();
        let mut files = Vec::new();
        for file in ["wanted", "other"] {
            let made = client.create(InodeId::ROOT, name(file), new_inode(FileKind::File));
            files.push(made.await.unwrap().inode);
        }
        let [wanted, other] = files[..] else {
            unreachable!("two were made");
        };
        let door = client.begin_lock_door().await.unwrap();
        let set = async |file: InodeId, kind: Option<LockKind>| {
            let owner = LockOwner { door, id: 0 };
            let never = None::<Pending<()>>;
            let set = client.set_lock(file, owner, LockRange::ALL, kind, TAKER, never);
            set.await.unwrap();
        };
        let exclusive = Some(LockKind::Exclusive);
        set(wanted, exclusive).await;
        let got = Arc::<AtomicU64>::default();
        let mut waits = Vec::new();
        for id in 1..=PROGRAMS {
            let (client, got) = (client.clone(), got.clone());
            let wait = async move {
                let owner = LockOwner { door, id };
                let never = Some(pending::<()>());
                let set = client.set_lock(wanted, owner, LockRange::ALL, exclusive, TAKER, never);
                if set.await.is_ok() {
                    got.fetch_add(1, Ordering::Relaxed);
                }
            };
            waits.push(world.spawn("waits for a lock", wait));
        }
        let owner = first.hosted().unwrap();
        // With the lock that they wait for.
        let all_wait = || owner.locks().count() as u64 == PROGRAMS + 1;
        until(&world, "all wait", all_wait).await;
        drop(owner);

        let began = world.now();
        set(other, exclusive).await;
        set(other, None).await;
        let took = world.now() - began;
        assert!(took < SOON, "{took:?}");
        let began = world.now();
        set(wanted, None).await;
        let took = world.now() - began;
        assert!(took < SOON, "{took:?}");
        let one_got_it = || got.load(Ordering::Relaxed) == 1;
        until(&world, "the next one gets it", one_got_it).await;

        client.end_lock_door(door);
        for wait in waits {
            wait.await;
        }
        client.close().await.unwrap();
        for member in [first, second] {
            member.close().await.unwrap();
        }
    });
    run.finished();
}
