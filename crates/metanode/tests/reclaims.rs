//! What sessions say to a new owner: locks and open files, in attempts that replace each other.

use crate::rig;
use crate::rig::clients::{exclusive, exists, next_owner};
use model::lock::{LockDoor, LockOwner, LockRequest, LockSpace};
use model::owner::{LockCall, OwnerReply, OwnerRequest, Reclaimed};
use model::{ErrorKind, InodeId, LockKind, LockRange, Scheme};
use std::time::Duration;
use world::call::Local;
use world::sim::Simulation;

const ROOT: InodeId = InodeId::ROOT;

#[test]
fn a_new_lock_of_a_client_beside_the_owner_waits_for_the_locks_of_others() {
    Simulation::new(55)
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            let session = rig.source.session();
            let inode = rig.file(ROOT, "f").await;
            rig.metanode.sync().await.unwrap();
            let new = next_owner(&rig).await;
            let own = new.open_session().await.unwrap();
            let ask = async |call| {
                let request = OwnerRequest::Lock(call);
                Local::ask(&*new, &request).answer().await
            };
            let door = LockDoor {
                session: own,
                number: 1,
            };
            let began = ask(LockCall::BeginDoor(door)).await;
            assert_eq!(began, Ok(OwnerReply::Done));
            let set = async { ask(LockCall::Set(exclusive(inode, door))).await };
            let test = async {
                let owner = LockOwner { door, id: 2 };
                let (range, kind) = (LockRange::ALL, LockKind::Exclusive);
                ask(LockCall::Test {
                    inode,
                    owner,
                    range,
                    kind,
                })
                .await
            };
            let reclaim = async {
                world.sleep(Duration::from_secs(5)).await;
                let door = LockDoor { session, number: 1 };
                let of_range = LockRequest {
                    space: LockSpace::Range,
                    ..exclusive(inode, door)
                };
                let part = Reclaimed {
                    doors: vec![door],
                    locks: vec![exclusive(inode, door), of_range],
                    ..Reclaimed::default()
                };
                new.reclaim(session, &part, true).await.unwrap()
            };
            let (set, test, reclaimed) = futures::future::join3(set, test, reclaim).await;
            assert_eq!(set.unwrap_err().kind(), ErrorKind::WouldBlock);
            assert!(
                matches!(test, Ok(OwnerReply::Conflict(Some(_)))),
                "{test:?}"
            );
            let OwnerReply::Reclaimed { lost, .. } = reclaimed else {
                panic!("{reclaimed:?}");
            };
            assert_eq!(
                lost, 0,
                "nobody took the lock before its holder had it back"
            );
            new.close().await.unwrap();
        })
        .finished();
}

#[test]
fn an_attempt_to_reclaim_replaces_what_the_one_before_it_said() {
    Simulation::new(56)
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            let session = rig.source.session();
            let inode = rig.file(ROOT, "f").await;
            rig.metanode.hold(session, inode);
            rig.unlink(ROOT, "f").await;
            rig.metanode.sync().await.unwrap();
            let new = next_owner(&rig).await;
            let door = LockDoor { session, number: 1 };
            let part = |attempt, at| Reclaimed {
                attempt,
                at,
                ..Reclaimed::default()
            };
            let half = Reclaimed {
                holds: vec![(inode, 1)],
                doors: vec![door],
                locks: vec![exclusive(inode, door)],
                ..part(1, 0)
            };
            new.reclaim(session, &half, false).await.unwrap();
            // The client gave that up, and has closed the file since.
            let rest = Reclaimed {
                doors: vec![door],
                ..part(2, 0)
            };
            new.reclaim(session, &rest, true).await.unwrap();
            let late = new.reclaim(session, &half, false).await.unwrap_err();
            assert_eq!(late.kind(), ErrorKind::Stale);
            assert!(!exists(&new, inode, &rig.stamp()).await);
            let other = LockOwner { door, id: 2 };
            let mut request = exclusive(inode, door);
            request.owner = other;
            new.locks().try_set(request).unwrap();
            new.close().await.unwrap();
        })
        .finished();
}
