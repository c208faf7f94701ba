//! Clients of the owner's process: answers at once or nothing done, before they are durable.

use crate::rig::clients::{CLIENT, exists, next_owner, opened};
use crate::rig::{self, Rig, name, new_inode};
use metanode::Metanode;
use model::operation::{Stamp, Turn};
use model::owner::{NearAnswer, OwnerCall, OwnerReply, OwnerRequest};
use model::{Error, ErrorKind, FileKind, InodeId, Operation, Reply, Scheme, SessionId, ShardId};
use std::sync::Arc;
use std::time::Duration;
use world::Deadline;
use world::call::Asked;
use world::sim::Simulation;

fn run<F: Future<Output = ()>>(seed: u64, scenario: impl FnOnce(Rig) -> F) {
    Simulation::new(seed)
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(2), 3).await;
            let rig = rig::open(&world).await;
            // Otherwise the grace time isn't over.
            rig.metanode.run_background_once().await.unwrap();
            scenario(rig).await;
        })
        .finished();
}

fn create(rig: &Rig, session: SessionId, text: &str, turn: Turn) -> OwnerRequest {
    OwnerRequest::Execute {
        operation: Operation::Create {
            directory: InodeId::ROOT,
            name: name(text),
            new: new_inode(FileKind::File),
        },
        stamp: Stamp {
            turn,
            ..Stamp::own(rig.world.wall(), session)
        },
    }
}

/// A program's open(2) with O_CREAT.
fn open_new(rig: &Rig, session: SessionId, text: &str) -> OwnerRequest {
    OwnerRequest::Execute {
        operation: Operation::CreateHeld {
            directory: InodeId::ROOT,
            name: name(text),
            new: new_inode(FileKind::File),
        },
        stamp: Stamp::own(rig.world.wall(), session),
    }
}

fn made(answer: &model::Result<OwnerReply>) -> InodeId {
    match answer {
        Ok(OwnerReply::Operation(ranked)) => match &ranked.reply {
            Reply::Entry { attributes, .. } => attributes.inode,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

fn at_once(metanode: &Arc<Metanode>, request: &OwnerRequest) -> Option<NearAnswer> {
    match metanode.ask_near(request)? {
        Asked::Ready(answered) => Some(answered),
        Asked::Waits(_) => panic!("it isn't ready"),
    }
}

async fn called(
    rig: &Rig,
    metanode: &Metanode,
    session: SessionId,
    request: OwnerRequest,
) -> NearAnswer {
    let call = OwnerCall {
        shard: ShardId(0),
        session,
        tenure: metanode.tenure(),
        order: None,
        request,
    };
    let deadline = Deadline::after(&rig.world, Duration::from_secs(5));
    metanode.call_near(CLIENT, &call, deadline).await
}

#[test]
fn what_can_not_be_answered_at_once_is_not_begun() {
    run(1, |rig| async move {
        let metanode = &rig.metanode;
        let session = opened(&rig).await;
        let answered = at_once(metanode, &create(&rig, session, "a", Turn::Own)).unwrap();
        let file = made(&answered.answer);
        assert!(!metanode.has_durable(answered.shows));
        let refused = at_once(metanode, &create(&rig, session, "a", Turn::Own)).unwrap();
        assert_eq!(refused.answer.unwrap_err().kind(), ErrorKind::Exists);
        assert!(
            refused.shows >= answered.shows,
            "it shows that there is one"
        );
        metanode.sync().await.unwrap();
        assert!(metanode.has_durable(answered.shows));

        let changes = metanode.hosted().changes();
        let is_left = |metanode: &Arc<Metanode>, session| {
            let hold = OwnerRequest::Hold {
                session,
                inode: file,
            };
            let all = [
                create(&rig, session, "b", Turn::Own),
                open_new(&rig, session, "c"),
                hold,
            ];
            all.iter()
                .all(|request| metanode.ask_near(request).is_none())
        };
        // Nobody has opened this one, and that one has ended.
        assert!(is_left(metanode, SessionId(session.0 + 50)));
        let other = opened(&rig).await;
        metanode.close_session(other).await.unwrap();
        assert!(is_left(metanode, other));
        // A new owner knows nothing yet of what sessions hold, and one that gives the shard up answers nothing.
        let next = next_owner(&rig).await;
        assert!(is_left(&next, session));
        next.close().await.unwrap();
        assert!(is_left(&next, session));
        assert!(
            metanode.hosted().changes() <= changes + 3,
            "but for the sessions"
        );
        assert_eq!(metanode.in_use().inodes, 0);
    });
}

#[test]
fn what_waits_is_done_once_also_by_the_next_owner_and_is_not_kept_until_it_is_durable() {
    run(2, |rig| async move {
        let metanode = &rig.metanode;
        let session = opened(&rig).await;
        let turn = Turn::Slot { slot: 0, number: 1 };
        let request = create(&rig, session, "a", turn);
        let first = called(&rig, metanode, session, request.clone()).await;
        assert!(!metanode.has_durable(first.shows));
        let again = called(&rig, metanode, session, request.clone()).await;
        assert_eq!(again.answer, first.answer);
        metanode.close().await.unwrap();
        assert!(metanode.has_durable(first.shows));
        let left = called(&rig, metanode, session, request.clone()).await;
        assert_eq!(left.answer.unwrap_err().kind(), ErrorKind::OldEpoch);

        let next = next_owner(&rig).await;
        let asked = called(&rig, &next, session, request.clone()).await;
        assert_eq!(asked.answer.unwrap_err().kind(), ErrorKind::ReclaimFirst);
        let all = OwnerRequest::Reclaim {
            session,
            part: model::owner::Reclaimed::default(),
            is_last: true,
        };
        called(&rig, &next, session, all).await.answer.unwrap();
        // Others haven't said yet what they hold: that is waited for until the grace time is over.
        let asked = loop {
            let asked = called(&rig, &next, session, request.clone()).await;
            match &asked.answer {
                Err(error) if error.kind() == ErrorKind::InGrace => {}
                _ => break asked,
            }
        };
        assert_eq!(made(&asked.answer), made(&first.answer));
        next.close().await.unwrap();
    });
}

#[test]
fn an_owner_that_takes_its_shard_over_again_loses_nothing_that_it_answered() {
    run(3, |rig| async move {
        let metanode = &rig.metanode;
        let session = opened(&rig).await;
        let answered = at_once(metanode, &create(&rig, session, "a", Turn::Own)).unwrap();
        let why = Error::new(ErrorKind::Unavailable, "its tree can't be read");
        metanode.hosted().resign(&why);
        assert!(
            metanode
                .ask_near(&create(&rig, session, "b", Turn::Own))
                .is_none()
        );
        assert!(!metanode.has_durable(answered.shows));
        assert!(rig.look(InodeId::ROOT, "a").await.is_some());
        metanode.sync().await.unwrap();
        assert!(metanode.has_durable(answered.shows));
        // Once it has in memory what that needs.
        rig.file(InodeId::ROOT, "b").await;
        assert!(rig.look(InodeId::ROOT, "c").await.is_none());
        let again = at_once(metanode, &create(&rig, session, "c", Turn::Own));
        made(&again.unwrap().answer);
    });
}

#[test]
fn an_owner_that_another_has_followed_does_not_know_that_its_answers_are_durable() {
    run(4, |rig| async move {
        let metanode = &rig.metanode;
        let session = opened(&rig).await;
        let durable = at_once(metanode, &create(&rig, session, "a", Turn::Own)).unwrap();
        metanode.sync().await.unwrap();
        let lost = at_once(metanode, &create(&rig, session, "b", Turn::Own)).unwrap();
        let next = next_owner(&rig).await;
        assert!(metanode.sync().await.is_err());
        assert!(metanode.has_durable(durable.shows));
        assert!(!metanode.has_durable(lost.shows));
        assert!(
            metanode
                .ask_near(&create(&rig, session, "c", Turn::Own))
                .is_none()
        );
        next.close().await.unwrap();
    });
}

/// As one that was opened by itself.
#[test]
fn a_file_that_is_made_open_at_once_is_in_use_until_its_close_or_its_sessions_end() {
    run(5, |rig| async move {
        let metanode = &rig.metanode;
        let session = opened(&rig).await;
        let answered = at_once(metanode, &open_new(&rig, session, "f")).unwrap();
        let file = made(&answered.answer);
        let refused = at_once(metanode, &open_new(&rig, session, "f")).unwrap();
        assert_eq!(refused.answer.unwrap_err().kind(), ErrorKind::Exists);
        assert_eq!(metanode.in_use().inodes, 1);
        rig.unlink(InodeId::ROOT, "f").await;
        assert!(exists(metanode, file, &rig.stamp()).await);
        let close = OwnerRequest::Unhold {
            inode: file,
            stamp: Stamp::own(rig.world.wall(), session),
        };
        let closed = at_once(metanode, &close).unwrap();
        assert_eq!(closed.answer, Ok(OwnerReply::Done));
        assert_eq!(metanode.in_use().inodes, 0);
        assert!(!exists(metanode, file, &rig.stamp()).await);

        let left = at_once(metanode, &open_new(&rig, session, "g")).unwrap();
        let left = made(&left.answer);
        rig.unlink(InodeId::ROOT, "g").await;
        assert!(exists(metanode, left, &rig.stamp()).await);
        metanode.close_session(session).await.unwrap();
        assert!(!exists(metanode, left, &rig.stamp()).await);
        assert_eq!(metanode.in_use().inodes, 0);
    });
}
