//! What sessions say to a new owner: locks and open files, in attempts that replace each other.

use crate::rig;
use crate::rig::clients::{exclusive, exists, next_owner, opened, take_lock};
use futures::FutureExt;
use model::lock::{LockDoor, LockOwner, LockRequest, LockSpace};
use model::owner::{LockCall, OwnerReply, OwnerRequest, Reclaimed};
use model::{ErrorKind, InodeId, LockKind, LockRange, Scheme};
use std::pin::pin;
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

/// Would be broken if a client whose answer got lost lost its lock as well: it says again what it holds while
/// others wait for it.
#[test]
fn a_repeated_reclaim_gives_no_lock_away() {
    Simulation::new(64)
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            let session = rig.source.session();
            let inode = rig.file(ROOT, "f").await;
            let other = rig.metanode.open_session().await.unwrap();
            let new = next_owner(&rig).await;
            let doors = [1, 2].map(|number| LockDoor { session, number });
            let lock = exclusive(inode, doors[0]);
            let said = |attempt, doors: &[LockDoor], locks: &[LockRequest]| Reclaimed {
                attempt,
                doors: doors.to_vec(),
                locks: locks.to_vec(),
                ..Reclaimed::default()
            };
            let reclaim = async |part| match new.reclaim(session, &part, true).await.unwrap() {
                OwnerReply::Reclaimed { lost, .. } => lost,
                other => panic!("{other:?}"),
            };
            assert_eq!(reclaim(said(1, &doors, &[lock])).await, 0);
            let nothing = Reclaimed::default();
            new.reclaim(other, &nothing, true).await.unwrap();
            // Another client, now that all have said what they hold.
            let of_other = LockDoor {
                session: other,
                number: 1,
            };
            new.locks().begin_door(of_other).unwrap();
            let waits = exclusive(inode, of_other);
            assert!(!new.locks().queue(1, waits).unwrap());
            assert_eq!(reclaim(said(2, &doors, &[lock])).await, 0);
            let mut granted = Box::pin(new.locks().granted(other, 1));
            assert!(granted.as_mut().now_or_never().is_none());
            // What it has given back since, it doesn't name any more.
            assert_eq!(reclaim(said(3, &doors[..1], &[])).await, 0);
            granted.await.unwrap();
            let refused = new.locks().try_set(exclusive(inode, doors[1])).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Interrupted, "its door has ended");
            new.close().await.unwrap();
        })
        .finished();
}

/// Would be broken if others were told that they have the locks of a session whose end is lost with its owner: the client comes
/// back, and the next owner gives it the locks again.
#[test]
fn the_locks_of_a_session_are_free_when_a_new_owner_would_know_of_its_end() {
    Simulation::new(59)
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            let inode = rig.file(ROOT, "f").await;
            let session = opened(&rig).await;
            take_lock(&rig, session, inode).await;
            let knows_end = || {
                let is_open = rig.metanode.hosted().run_of_session(session).is_some();
                !is_open && rig.metanode.is_clean()
            };
            let mut closing = pin!(rig.metanode.close_session(session));
            let closed = loop {
                if let Some(closed) = closing.as_mut().now_or_never() {
                    break closed;
                }
                assert!(rig.metanode.locks().count() == 1 || knows_end());
                world.sleep(Duration::from_micros(10)).await;
            };
            closed.unwrap();
            assert!(rig.metanode.locks().count() == 0 && knows_end());
            let next = next_owner(&rig).await;
            assert!(next.hosted().run_of_session(session).is_none());
            next.close().await.unwrap();
        })
        .finished();
}
