//! Sessions across a change of the owner: open ones lose nothing, ended ones can do nothing.

use crate::rig::clients::{
    CLIENT, exists, new_session, next_owner, next_owner_under, opened, send, take_lock,
};
use crate::rig::{self, Rig};
use metanode::{Metanode, OwnerLease};
use model::call::Call;
use model::operation::{Ranked, Stamp, Turn};
use model::owner::{CLASS, OWNER, Order, OwnerCall, OwnerReply, OwnerRequest, Reclaimed, Tenure};
use model::{
    ErrorKind, FileKind, InodeId, NodeId, NodeRun, Operation, Reply, Scheme, SessionId, ShardId,
};
use namespace::Table;
use std::time::Duration;
use world::call::Service;
use world::sim::{Cluster, Simulation};
use world::{Deadline, Interruption, Point, World};

const ROOT: InodeId = InodeId::ROOT;
const SECOND: Duration = Duration::from_secs(1);

async fn drain(metanode: &Metanode) {
    for _ in 0..100 {
        if metanode.run_background_once().await.unwrap().steps == 0 {
            return;
        }
    }
    panic!("background work never ends");
}

#[test]
fn a_new_owner_condemns_nothing_that_an_open_session_may_still_publish() {
    Simulation::new(50)
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            let file = rig.file(ROOT, "f").await;
            rig.metanode.sync().await.unwrap();
            let bytes = rig::pattern(1, 100_000);
            let written = rig.segment(file, 0, &bytes).await;
            let new = next_owner(&rig).await;
            // A session that says nothing for longer ends.
            world.sleep(Duration::from_secs(10)).await;
            drain(&new).await;
            let rig = Rig {
                metanode: new,
                ..rig
            };
            rig.metanode
                .reclaim(rig.source.session(), &Reclaimed::default(), true)
                .await
                .unwrap();
            rig.publish_segment(file, 0, &bytes, written).await;
            assert_eq!(rig.read(file).await.unwrap(), bytes);
            // What it gave up and what it wrote before its end goes.
            rig.segment(file, 0, &bytes).await;
            let session = rig.source.session();
            rig.metanode.close_session(session).await.unwrap();
            world.sleep(Duration::from_secs(600)).await;
            drain(&rig.metanode).await;
            rig.must_be_clean("after the session's end").await;
        })
        .finished();
}

#[test]
fn an_open_inode_without_names_outlives_a_change_of_the_owner() {
    Simulation::new(51)
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            let session = rig.source.session();
            let (held, also_held) = (rig.file(ROOT, "f").await, rig.file(ROOT, "g").await);
            for inode in [held, also_held] {
                rig.metanode.hold(session, inode);
            }
            rig.unlink(ROOT, "f").await;
            rig.metanode.sync().await.unwrap();
            let other = rig.metanode.open_session().await.unwrap();
            let new = next_owner(&rig).await;
            drain(&new).await;
            let asked = Operation::GetAttributes { inode: held };
            let early = new.execute(&asked, &rig.stamp()).await;
            assert_eq!(early.unwrap_err().kind(), ErrorKind::ReclaimFirst);
            for _ in 0..2 {
                let part = Reclaimed {
                    holds: vec![(held, 1), (also_held, 1)],
                    ..Reclaimed::default()
                };
                new.reclaim(session, &part, true).await.unwrap();
            }
            // Operations wait until the other session has said what it holds and has cached.
            let part = Reclaimed {
                holds: vec![(also_held, 1)],
                ..Reclaimed::default()
            };
            let begun = world.now();
            let says = async {
                world.sleep(Duration::from_secs(5)).await;
                new.reclaim(other, &part, true).await.unwrap();
            };
            let stamp = rig.stamp();
            let (exists_now, ()) = futures::future::join(exists(&new, held, &stamp), says).await;
            assert!(exists_now && world.now() - begun >= Duration::from_secs(5));
            let unlink = Operation::Unlink {
                directory: ROOT,
                name: rig::name("g"),
            };
            new.execute(&unlink, &rig.stamp()).await.unwrap();
            new.unhold(also_held, &rig.stamp()).await.unwrap();
            assert!(exists(&new, also_held, &rig.stamp()).await);
            let of_other = Stamp {
                session: other,
                ..rig.stamp()
            };
            new.unhold(also_held, &of_other).await.unwrap();
            assert!(!exists(&new, also_held, &rig.stamp()).await);
            assert!(exists(&new, held, &rig.stamp()).await);
            new.unhold(held, &rig.stamp()).await.unwrap();
            assert!(!exists(&new, held, &rig.stamp()).await);
            new.close().await.unwrap();
        })
        .finished();
}

/// The owner ends after the commit that made the file and before its maker hears of it.
#[test]
fn a_file_without_a_name_outlives_the_owner_that_made_it() {
    Simulation::new(58)
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            let (session, read) = (rig.source.session(), rig.stamp());
            let make = async |metanode: &Metanode, slot: u8| {
                let unnamed = Operation::CreateUnnamed {
                    directory: ROOT,
                    new: rig::new_inode(FileKind::File),
                };
                let stamp = Stamp {
                    turn: Turn::Slot { slot, number: 1 },
                    ..read
                };
                match metanode.execute(&unnamed, &stamp).await.unwrap() {
                    Reply::Entry { attributes, .. } => attributes.inode,
                    other => panic!("{other:?}"),
                }
            };
            let made = make(&rig.metanode, 0).await;
            let new = next_owner(&rig).await;
            // Its maker says what it holds, and doesn't know of the file.
            let nothing = Reclaimed::default();
            new.reclaim(session, &nothing, true).await.unwrap();
            world.sleep(Duration::from_secs(20)).await;
            drain(&new).await;
            assert!(exists(&new, made, &read).await);
            // It asks again under the same number, and holds the file with the answer, once.
            for _ in 0..2 {
                assert_eq!(make(&new, 0).await, made);
            }
            new.unhold(made, &read).await.unwrap();
            assert!(!exists(&new, made, &read).await);
            // One that its maker never heard of ends with the session.
            let never = make(&new, 1).await;
            let newest = make(&new, 2).await;
            let other = new.open_session().await.unwrap();
            new.hold(other, newest);
            new.close_session(session).await.unwrap();
            let read = Stamp {
                session: other,
                ..read
            };
            assert!(!exists(&new, never, &read).await);
            assert!(exists(&new, newest, &read).await);
            new.close().await.unwrap();
        })
        .finished();
}

/// Its maker closes it while the new owner waits for another session, which may have it open too. Would be broken if it
/// stayed because the last operation of a slot had made it.
#[test]
fn a_file_without_a_name_that_is_closed_during_the_grace_time_goes_when_that_ends() {
    Simulation::new(60)
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            let (session, read) = (rig.source.session(), rig.stamp());
            rig.metanode.open_session().await.unwrap();
            let unnamed = Operation::CreateUnnamed {
                directory: ROOT,
                new: rig::new_inode(FileKind::File),
            };
            let turn = Turn::Slot { slot: 0, number: 1 };
            let stamp = Stamp { turn, ..read };
            let made = rig.metanode.execute(&unnamed, &stamp).await.unwrap();
            let Reply::Entry { attributes, .. } = made else {
                panic!("{made:?}")
            };
            let inode = attributes.inode;
            let new = next_owner(&rig).await;
            let holds = Reclaimed {
                holds: vec![(inode, 1)],
                ..Reclaimed::default()
            };
            new.reclaim(session, &holds, true).await.unwrap();
            new.unhold(inode, &read).await.unwrap();
            assert!(exists(&new, inode, &read).await, "others may have it open");
            world.sleep(Duration::from_secs(20)).await;
            drain(&new).await;
            assert!(!exists(&new, inode, &read).await);
            new.close().await.unwrap();
        })
        .finished();
}

/// By its number, as programs reach it that have it open elsewhere. Would be broken if it stayed until the next take-over,
/// because this owner hasn't seen how it lost its names, and nobody had said that it uses it.
#[test]
fn a_file_without_names_that_is_opened_during_the_grace_time_goes_with_its_last_close() {
    Simulation::new(61)
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            let (session, read) = (rig.source.session(), rig.stamp());
            rig.metanode.open_session().await.unwrap();
            let inode = rig.file(ROOT, "f").await;
            rig.metanode.hold(session, inode);
            rig.unlink(ROOT, "f").await;
            rig.metanode.sync().await.unwrap();
            let new = next_owner(&rig).await;
            let nothing = Reclaimed::default();
            new.reclaim(session, &nothing, true).await.unwrap();
            new.hold(session, inode);
            world.sleep(Duration::from_secs(20)).await;
            drain(&new).await;
            assert!(exists(&new, inode, &read).await, "it is open");
            new.unhold(inode, &read).await.unwrap();
            drain(&new).await;
            assert!(!exists(&new, inode, &read).await);
            new.close().await.unwrap();
        })
        .finished();
}

/// Its maker has heard that it is gone: a new owner doesn't bring it back because of a slot.
#[test]
fn a_file_without_a_name_that_was_closed_stays_gone() {
    Simulation::new(59)
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            let session = rig.source.session();
            let ask = async |request: OwnerRequest, order: Option<Order>| {
                let run = rig.metanode.hosted().run_of_session(session).unwrap();
                send(&rig, run, session, order, request).await.unwrap()
            };
            let turn = Turn::Slot { slot: 9, number: 1 };
            let operation = Operation::CreateUnnamed {
                directory: ROOT,
                new: rig::new_inode(FileKind::File),
            };
            let stamp = Stamp {
                turn,
                ..rig.stamp()
            };
            let made = ask(OwnerRequest::Execute { operation, stamp }, None).await;
            let OwnerReply::Operation(Ranked {
                reply: Reply::Entry { attributes, .. },
                ..
            }) = made
            else {
                panic!("{made:?}")
            };
            let inode = attributes.inode;
            let order = Order { slot: 3, number: 1 };
            let unhold = OwnerRequest::Unhold { inode, stamp };
            assert_eq!(ask(unhold, Some(order)).await, OwnerReply::Done);
            let new = next_owner(&rig).await;
            let nothing = Reclaimed::default();
            new.reclaim(session, &nothing, true).await.unwrap();
            assert!(!exists(&new, inode, &rig.stamp()).await);
            new.close().await.unwrap();
        })
        .finished();
}

/// Its maker hasn't heard of it, and says so to the next owner. Would be broken if the file went with a name that another
/// client removes before its maker asks again.
#[test]
fn a_file_that_was_made_open_is_held_under_the_next_owner_before_its_maker_hears_of_it() {
    Simulation::new(62)
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            let (session, read) = (rig.source.session(), rig.stamp());
            let make = async |metanode: &Metanode, slot: u8| {
                let operation = Operation::CreateHeld {
                    directory: ROOT,
                    name: rig::name(&format!("f{slot}")),
                    new: rig::new_inode(FileKind::File),
                };
                let stamp = Stamp {
                    turn: Turn::Slot { slot, number: 1 },
                    ..read
                };
                match metanode.execute(&operation, &stamp).await.unwrap() {
                    Reply::Entry { attributes, .. } => attributes.inode,
                    other => panic!("{other:?}"),
                }
            };
            let [unheard, closed, opened] = [
                make(&rig.metanode, 0).await,
                make(&rig.metanode, 1).await,
                make(&rig.metanode, 2).await,
            ];
            let new = next_owner(&rig).await;
            // The answer to the second one has come, and it was closed. The third one has another open, which was
            // answered before its making. The last one wasn't made: no record has its number.
            let said = |attempt| Reclaimed {
                attempt,
                holds: vec![(opened, 1)],
                under_way: vec![(0, 1), (2, 1), (3, 1)],
                ..Reclaimed::default()
            };
            // The answer to the first attempt gets lost.
            for attempt in [1, 2] {
                new.reclaim(session, &said(attempt), true).await.unwrap();
            }
            let other = new.open_session().await.unwrap();
            let of_other = Stamp {
                session: other,
                ..read
            };
            for (slot, is_held) in [(0, true), (1, false), (2, true)] {
                let unlink = Operation::Unlink {
                    directory: ROOT,
                    name: rig::name(&format!("f{slot}")),
                };
                match new.execute(&unlink, &of_other).await.unwrap() {
                    Reply::Removed { orphaned, .. } => assert_eq!(orphaned, is_held, "f{slot}"),
                    other => panic!("{other:?}"),
                }
            }
            drain(&new).await;
            assert!(!exists(&new, closed, &of_other).await);
            // It asks again, and hears of what it holds already.
            for _ in 0..2 {
                assert_eq!(make(&new, 0).await, unheard);
                assert_eq!(make(&new, 2).await, opened);
            }
            for (inode, uses) in [(unheard, 1), (opened, 2)] {
                for _ in 0..uses {
                    assert!(exists(&new, inode, &of_other).await);
                    new.unhold(inode, &read).await.unwrap();
                }
                assert!(!exists(&new, inode, &of_other).await);
            }
            // What the owner before didn't do is done now, and held from then on.
            let made = make(&new, 3).await;
            let unlink = Operation::Unlink {
                directory: ROOT,
                name: rig::name("f3"),
            };
            new.execute(&unlink, &of_other).await.unwrap();
            assert!(exists(&new, made, &of_other).await);
            new.close_session(session).await.unwrap();
            assert!(!exists(&new, made, &of_other).await);
            new.close().await.unwrap();
        })
        .finished();
}

#[test]
fn a_silent_session_keeps_inodes_without_names_for_the_grace_time_only() {
    Simulation::new(52)
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            let held = rig.file(ROOT, "f").await;
            rig.metanode.hold(rig.source.session(), held);
            rig.unlink(ROOT, "f").await;
            rig.metanode.sync().await.unwrap();
            let new = next_owner(&rig).await;
            let own = new.open_session().await.unwrap();
            let stamp = Stamp {
                session: own,
                ..rig.stamp()
            };
            drain(&new).await;
            assert!(exists(&new, held, &stamp).await);
            world.sleep(Duration::from_secs(16)).await;
            drain(&new).await;
            assert!(!exists(&new, held, &stamp).await);
            new.close().await.unwrap();
        })
        .finished();
}

/// The new owner doesn't know whether somebody has it open.
#[test]
fn a_directory_that_is_removed_in_the_grace_time_lists_as_empty_until_the_end() {
    Simulation::new(63)
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            let made = rig.make(ROOT, "d", FileKind::Directory).await;
            let directory = made.unwrap().inode;
            rig.metanode.sync().await.unwrap();
            let new = next_owner(&rig).await;
            let session = new.open_session().await.unwrap();
            let stamp = || Stamp {
                session,
                ..rig.stamp()
            };
            let name = rig::name("d");
            let remove = Operation::RemoveDirectory {
                directory: ROOT,
                name: name.clone(),
            };
            let removed = new.execute(&remove, &stamp()).await;
            assert!(
                matches!(removed, Ok(Reply::Removed { orphaned: true, .. })),
                "{removed:?}"
            );
            let list = Operation::ReadDirectory {
                directory,
                after: 0,
                limit: 10,
                with_attributes: false,
            };
            let nothing = Reply::Listing {
                entries: Vec::new(),
                end: true,
            };
            assert_eq!(new.execute(&list, &stamp()).await, Ok(nothing));
            let lookup = Operation::Lookup { directory, name };
            let found = new.execute(&lookup, &stamp()).await.unwrap_err();
            assert_eq!(found.kind(), ErrorKind::NotFound);
            world.sleep(Duration::from_secs(16)).await;
            drain(&new).await;
            let listed = new.execute(&list, &stamp()).await.unwrap_err();
            assert_eq!(listed.kind(), ErrorKind::Stale);
            new.close().await.unwrap();
        })
        .finished();
}

#[test]
fn a_node_that_starts_again_ends_the_sessions_of_its_former_run() {
    let simulation = Simulation::new(53);
    let create = Operation::Create {
        directory: ROOT,
        name: rig::name("once"),
        new: rig::new_inode(FileKind::File),
    };
    let first = create.clone();
    let stamp = simulation
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            let stamp = Stamp {
                turn: Turn::Slot { slot: 0, number: 1 },
                ..rig.stamp()
            };
            rig.metanode.execute(&first, &stamp).await.unwrap();
            stamp
        })
        .finished();
    simulation
        .run(|world| async move {
            let rig = rig::open(&world).await;
            rig.unlink(ROOT, "once").await;
            // A copy of the first request that was on its way all the time.
            let late = rig.metanode.execute(&create, &stamp).await.unwrap_err();
            assert_eq!(late.kind(), ErrorKind::SessionEnded, "{late}");
            assert!(rig.look(ROOT, "once").await.is_none());
            rig.must_be_clean("after the restart").await;
        })
        .finished();
}

/// Would be broken if what a session takes while it is being closed stayed: nobody would ever give it back.
#[test]
fn a_lock_that_is_taken_while_its_session_is_closed_goes_with_it() {
    let cluster = Cluster::new(63);
    cluster.interrupt(Point::SessionClosing, 0, Interruption::Delay(SECOND));
    let program = |world: World| async move {
        rig::create(&world, Scheme::Replicate(1), 1).await;
        let rig = rig::open(&world).await;
        let inode = rig.file(ROOT, "f").await;
        let session = opened(&rig).await;
        let request = OwnerRequest::CloseSession { session };
        let close = send(&rig, CLIENT, session, None, request);
        let take = async {
            world.sleep(SECOND / 2).await;
            take_lock(&rig, session, inode).await;
            assert_eq!(rig.metanode.locks().count(), 1);
        };
        let (closed, ()) = futures::future::join(close, take).await;
        assert_eq!(closed, Ok(OwnerReply::Done));
        assert_eq!(rig.metanode.locks().count(), 0);
        rig.close().await;
    };
    cluster.run(|_| cluster.node("owner").start(program).done());
}

#[test]
fn messages_that_open_a_session_leave_none_open_when_they_come_late() {
    Simulation::new(57)
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            let run = |node, incarnation| NodeRun {
                node: NodeId(node),
                incarnation,
            };
            let open = || rig.metanode.hosted().sessions().of_clients().count();
            let before = open();
            let ask =
                async |from, request| send(&rig, from, SessionId::default(), None, request).await;
            let session = new_session(&rig).await;
            let begin = OwnerRequest::OpenSession { session };
            for _ in 0..2 {
                assert!(ask(run(7, 1), begin.clone()).await.is_ok());
                assert_eq!(open(), before + 1);
            }
            let close = OwnerRequest::CloseSession { session };
            ask(run(7, 1), close).await.unwrap();
            // Copies of both messages, and one of a mount that was given up before it was answered.
            new_session(&rig).await;
            let late = ask(run(7, 1), begin.clone()).await.unwrap_err();
            assert_eq!(late.kind(), ErrorKind::SessionEnded);
            let abandoned = new_session(&rig).await;
            let close = OwnerRequest::CloseSession { session: abandoned };
            ask(run(7, 1), close).await.unwrap();
            let late = OwnerRequest::OpenSession { session: abandoned };
            assert!(ask(run(7, 1), late).await.is_err());
            assert_eq!(open(), before);
            // One of a daemon that has been replaced meanwhile.
            let (dead, alive) = (new_session(&rig).await, new_session(&rig).await);
            let next = OwnerRequest::OpenSession { session: alive };
            ask(run(7, 2), next).await.unwrap();
            let late = OwnerRequest::OpenSession { session: dead };
            assert!(ask(run(7, 1), late).await.is_err());
            assert_eq!(open(), before + 1);
            // The next owner knows of the ends as well.
            let new = next_owner(&rig).await;
            let serve = async |request| {
                let call = OwnerCall {
                    shard: ShardId(0),
                    session: SessionId::default(),
                    tenure: rig.metanode.tenure(),
                    order: None,
                    request,
                };
                let deadline = Deadline::after(&rig.world, Duration::from_secs(5));
                let call = Call::new(OWNER, CLASS, &call);
                let reply = new.serve(run(7, 2), call, deadline).await;
                reply.decode::<OwnerReply>()
            };
            assert!(serve(begin).await.is_err());
            let again = OwnerRequest::OpenSession { session: alive };
            assert_eq!(serve(again).await, Ok(OwnerReply::Session(new.tenure())));
            assert_eq!(new.hosted().sessions().of_clients().count(), before + 1);
            new.close().await.unwrap();
        })
        .finished();
}

#[test]
fn a_read_of_another_client_waits_until_what_it_shows_is_durable() {
    Simulation::new(58)
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            let session = rig.source.session();
            rig.metanode.sync().await.unwrap();
            let record = rig.coordination.shard(ShardId(0)).await.unwrap();
            let run = record.unwrap().value.assigned.unwrap();
            let ask = async |operation, stamp: Stamp| {
                let execute = OwnerRequest::Execute { operation, stamp };
                send(&rig, run, session, None, execute).await
            };
            let read = |text: &str| Operation::Lookup {
                directory: ROOT,
                name: rig::name(text),
            };
            let of_read = || Stamp {
                turn: Turn::Read,
                ..rig.stamp()
            };
            // Answered to a client in this process, and in memory only.
            rig.file(ROOT, "f").await;
            assert!(!rig.metanode.is_clean());
            let found = ask(read("f"), of_read()).await.unwrap();
            assert!(matches!(
                found,
                OwnerReply::Operation(Ranked {
                    reply: Reply::Entry { .. },
                    ..
                })
            ));
            assert!(rig.metanode.is_clean(), "the answer shows it");
            // A name's absence shows the unlink as well.
            rig.unlink(ROOT, "f").await;
            assert!(!rig.metanode.is_clean());
            let gone = ask(read("f"), of_read()).await.unwrap_err();
            assert_eq!(gone.kind(), ErrorKind::NotFound);
            assert!(rig.metanode.is_clean(), "the refusal shows it");

            // What another node changes is counted, and dated by no clock far ahead.
            let create = Operation::Create {
                directory: ROOT,
                name: rig::name("g"),
                new: rig::new_inode(FileKind::File),
            };
            let refused = ask(create.clone(), rig.stamp()).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
            let hour = Duration::from_secs(3600);
            let stamp = Stamp {
                turn: Turn::Slot { slot: 0, number: 1 },
                ..Stamp::own(rig.world.wall().plus(hour), session)
            };
            let made = ask(create, stamp).await.unwrap();
            let OwnerReply::Operation(Ranked {
                reply: Reply::Entry { attributes, .. },
                ..
            }) = made
            else {
                panic!("{made:?}");
            };
            let second = Duration::from_secs(1);
            assert!(attributes.ctime <= rig.world.wall().plus(second));
        })
        .finished();
}

/// Would be broken if who only asks how full it is had to open a session for that: a client that is the only one would lose
/// everything by it.
#[test]
fn whoever_has_no_session_hears_how_full_it_is_and_nothing_else() {
    Simulation::new(64)
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            let nobody = SessionId::default();
            let told = send(&rig, CLIENT, nobody, None, OwnerRequest::GetUsage).await;
            let known = rig.metanode.usage().await.unwrap();
            assert_eq!(told, Ok(OwnerReply::Usage(known)));
            for request in [OwnerRequest::Sync, OwnerRequest::MakeRoom] {
                let refused = send(&rig, CLIENT, nobody, None, request).await;
                assert_eq!(refused.unwrap_err().kind(), ErrorKind::SessionEnded);
            }
            // Who has had one learns that it has ended.
            let session = opened(&rig).await;
            let close = OwnerRequest::CloseSession { session };
            send(&rig, CLIENT, session, None, close).await.unwrap();
            let refused = send(&rig, CLIENT, session, None, OwnerRequest::GetUsage).await;
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::SessionEnded);
        })
        .finished();
}

#[test]
fn a_session_of_a_new_run_ends_what_the_node_held_before() {
    Simulation::new(54)
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            let held = rig.file(ROOT, "f").await;
            let run = |incarnation| NodeRun {
                node: NodeId(7),
                incarnation,
            };
            let nobody = SessionId::default();
            let session = new_session(&rig).await;
            let open = |session| OwnerRequest::OpenSession { session };
            let opened = send(&rig, run(1), nobody, None, open(session)).await;
            let Ok(OwnerReply::Session(_)) = opened else {
                panic!("{opened:?}");
            };
            let hold = OwnerRequest::Hold {
                session,
                inode: held,
            };
            let first = Order { slot: 0, number: 1 };
            let holds = send(&rig, run(1), session, Some(first), hold).await;
            assert_eq!(holds, Ok(OwnerReply::Done));
            rig.unlink(ROOT, "f").await;
            assert!(exists(&rig.metanode, held, &rig.stamp()).await);
            // The daemon died without a word, and asks again from its next run.
            let next = open(new_session(&rig).await);
            send(&rig, run(2), nobody, None, next).await.unwrap();
            assert!(!exists(&rig.metanode, held, &rig.stamp()).await);
            let late = Operation::GetAttributes { inode: ROOT };
            let late = OwnerRequest::Execute {
                operation: late,
                stamp: Stamp {
                    session,
                    turn: Turn::Read,
                    ..rig.stamp()
                },
            };
            let late = send(&rig, run(1), session, None, late).await;
            assert_eq!(late.unwrap_err().kind(), ErrorKind::SessionEnded);
        })
        .finished();
}

#[test]
fn numbers_that_a_session_reserved_end_with_it() {
    Simulation::new(59)
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            let session = rig.metanode.open_session().await.unwrap();
            let stamp = Stamp {
                turn: Turn::Slot { slot: 2, number: 1 },
                ..Stamp::own(world.wall(), session)
            };
            let reserve = Operation::Reserve {
                inode: ROOT,
                inodes: 10,
                data: 10,
            };
            let given = rig.metanode.execute(&reserve, &stamp).await.unwrap();
            let again = rig.metanode.execute(&reserve, &stamp).await.unwrap();
            assert_eq!(given, again, "a resent request reserves nothing more");
            let left = async || {
                let shard = rig.metanode.hosted();
                let mut left = 0;
                for table in [Table::Reserved, Table::Slots] {
                    let (from, to) = table.range();
                    left += shard.scan(&from, &to, 10).await.unwrap().len();
                }
                left
            };
            assert_eq!(left().await, 2);
            rig.must_be_clean("reserved").await;
            rig.metanode.close_session(session).await.unwrap();
            assert_eq!(left().await, 0);
            rig.must_be_clean("after the session's end").await;
            rig.close().await;
        })
        .finished();
}

/// The ranks of what clients on other nodes are answered: they grow, reads have that of the newest
/// change, and a repetition has the first one, whoever owns the shard by then.
#[test]
fn answers_say_where_they_stand_in_history() {
    Simulation::new(60)
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let mut rig = rig::open(&world).await;
            let session = rig.source.session();
            let ask = async |rig: &Rig, operation: &Operation, turn| {
                let stamp = Stamp {
                    turn,
                    ..rig.stamp()
                };
                let operation = operation.clone();
                let run = rig.metanode.hosted().run_of_session(session).unwrap();
                let execute = OwnerRequest::Execute { operation, stamp };
                match send(rig, run, session, None, execute).await {
                    Ok(OwnerReply::Operation(ranked)) => ranked.rank,
                    other => panic!("{other:?}"),
                }
            };
            let slot = |number| Turn::Slot { slot: 0, number };
            let make = |text: &str| Operation::Create {
                directory: ROOT,
                name: rig::name(text),
                new: rig::new_inode(FileKind::File),
            };
            let look = Operation::GetAttributes { inode: ROOT };
            let first = ask(&rig, &make("a"), slot(1)).await;
            // Answered in memory, and so in one commit with the next one.
            rig.file(ROOT, "local").await;
            let read = ask(&rig, &look, Turn::Read).await;
            assert!(read.index == 1 && read > first, "{first:?} {read:?}");
            // The read made it durable.
            let empty = ask(&rig, &look, Turn::Read).await;
            assert!(empty.index == 0 && empty.commit > read.commit);
            rig.file(ROOT, "other").await;
            let second = ask(&rig, &make("b"), slot(2)).await;
            assert_eq!((second.commit, second.index), (empty.commit, 2));
            assert_eq!(ask(&rig, &make("b"), slot(2)).await, second);
            assert!(ask(&rig, &look, Turn::Read).await > second);

            let old = rig.metanode.clone();
            rig.metanode = next_owner(&rig).await;
            let nothing = Reclaimed::default();
            let reclaimed = rig.metanode.reclaim(session, &nothing, true).await;
            reclaimed.unwrap();
            assert_eq!(ask(&rig, &make("b"), slot(2)).await, second);
            let third = ask(&rig, &make("c"), slot(3)).await;
            assert!(third > second && third.epoch > second.epoch);
            assert_eq!(ask(&rig, &look, Turn::Read).await.epoch, third.epoch);
            rig.metanode.close().await.unwrap();
            drop(old);
        })
        .finished();
}

/// What an owner answers to a client's session.
async fn serve_of(
    world: &World,
    owner: &Metanode,
    session: SessionId,
    request: OwnerRequest,
) -> model::Result<OwnerReply> {
    let call = OwnerCall {
        shard: ShardId(0),
        session,
        tenure: owner.tenure(),
        order: None,
        request,
    };
    let deadline = Deadline::after(world, Duration::from_secs(5));
    let call = Call::new(OWNER, CLASS, &call);
    owner.serve(CLIENT, call, deadline).await.decode()
}

/// Would be broken if a client were told what another owner may have changed by now, or might use its
/// tokens for longer than that.
#[test]
fn no_answer_leaves_an_owner_whose_lease_is_over() {
    let ended = Simulation::new(5).run(|world| async move {
        rig::create(&world, Scheme::Replicate(1), 1).await;
        let rig = rig::open(&world).await;
        let lease = OwnerLease::not_yet();
        let owner = next_owner_under(&rig, lease.clone()).await;
        let session = rig.coordination.next_session().await.unwrap();
        let serve = async |request| serve_of(&world, &owner, session, request).await;
        let opens = OwnerRequest::OpenSession { session };
        let refused = serve(opens.clone()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::OldEpoch);
        lease.extend(world.now() + Duration::from_secs(3));
        // The work was done all the same; asked again, it is answered.
        assert!(serve(opens).await.is_ok());
        let asks = || OwnerRequest::AwaitRecalls {
            session,
            known: Tenure::default(),
            has_all: false,
        };
        let Ok(OwnerReply::Recalls { renewal, .. }) = serve(asks()).await else {
            panic!("it is answered");
        };
        assert!(renewal.span <= Duration::from_secs(3), "{renewal:?}");
        world.sleep(Duration::from_secs(4)).await;
        let refused = serve(asks()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::OldEpoch);
    });
    ended.finished();
}

/// Would be broken if a client lost its session because its owner's lease was extended late: the answer that would
/// have told it of more time came when its tokens had run out.
#[test]
fn who_waits_for_recalls_is_answered_before_its_tokens_run_out() {
    let ended = Simulation::new(7).run(|world| async move {
        rig::create(&world, Scheme::Replicate(1), 1).await;
        let rig = rig::open(&world).await;
        let lease = OwnerLease::not_yet();
        let owner = next_owner_under(&rig, lease.clone()).await;
        let session = rig.coordination.next_session().await.unwrap();
        let serve = async |request| serve_of(&world, &owner, session, request).await;
        lease.extend(world.now() + Duration::from_secs(2));
        serve(OwnerRequest::OpenSession { session }).await.unwrap();
        let asks = |known| OwnerRequest::AwaitRecalls {
            session,
            known,
            has_all: false,
        };
        let Ok(OwnerReply::Recalls { renewal, .. }) = serve(asks(Tenure::default())).await else {
            panic!("it is answered");
        };
        let until = world.now() + renewal.span;
        let extends = {
            let (world, lease) = (world.clone(), lease.clone());
            async move {
                world.sleep(Duration::from_millis(1_700)).await;
                lease.extend(world.now() + Duration::from_secs(6));
            }
        };
        world.spawn("a new manager", extends).detach();
        let mut promised = until;
        while promised == until {
            let sent = world.now();
            let Ok(OwnerReply::Recalls { renewal, .. }) = serve(asks(renewal.tenure)).await else {
                panic!("it is answered");
            };
            assert!(world.now() < until, "too late");
            promised = promised.max(sent + renewal.span);
        }
        assert!(promised >= until + Duration::from_secs(5));
    });
    ended.finished();
}

/// Would be broken if others waited for the tokens of a daemon that the cluster has expelled.
#[test]
fn sessions_of_expelled_runs_end_at_once() {
    let ended = Simulation::new(6).run(|world| async move {
        rig::create(&world, Scheme::Replicate(1), 1).await;
        let rig = rig::open(&world).await;
        let session = opened(&rig).await;
        let asks = OwnerRequest::AwaitRecalls {
            session,
            known: Tenure::default(),
            has_all: false,
        };
        let is_open = || rig.metanode.hosted().run_of_session(session).is_some();
        send(&rig, CLIENT, session, None, asks.clone())
            .await
            .unwrap();
        rig.metanode.part_with(|_| false);
        world.sleep(Duration::from_secs(1)).await;
        assert!(is_open());
        for _ in 0..2 {
            rig.metanode.part_with(|run| run == CLIENT);
        }
        let refused = send(&rig, CLIENT, session, None, asks).await;
        assert!(refused.is_err(), "it isn't answered any more");
        world.sleep(Duration::from_secs(1)).await;
        assert!(!is_open());
    });
    ended.finished();
}

/// A client gives a session up that can't go on with another owner, and has the next one open before the old one has ended.
#[test]
fn what_a_given_up_session_asked_before_is_not_done_beside_the_next_one() {
    let ended = Simulation::new(8).run(|world| async move {
        rig::create(&world, Scheme::Replicate(1), 1).await;
        let rig = rig::open(&world).await;
        let (given_up, known) = (opened(&rig).await, rig.metanode.tenure());
        let metanode = next_owner(&rig).await;
        let rig = Rig { metanode, ..rig };
        opened(&rig).await;
        let is_open = |session| rig.metanode.hosted().run_of_session(session).is_some();
        assert!(is_open(given_up));
        for tenure in [known, rig.metanode.tenure()] {
            let stamp = Stamp {
                turn: Turn::Slot { slot: 0, number: 1 },
                ..Stamp::own(world.wall(), given_up)
            };
            let operation = Operation::Create {
                directory: ROOT,
                name: rig::name("late"),
                new: rig::new_inode(FileKind::File),
            };
            let call = OwnerCall {
                shard: ShardId(0),
                session: given_up,
                tenure,
                order: None,
                request: OwnerRequest::Execute { operation, stamp },
            };
            let deadline = Deadline::after(&world, SECOND * 5);
            let call = Call::new(OWNER, CLASS, &call);
            let late = rig.metanode.serve(CLIENT, call, deadline).await;
            let late = late.decode::<OwnerReply>().unwrap_err();
            assert_eq!(late.kind(), ErrorKind::ReclaimFirst);
        }
        rig.metanode.close().await.unwrap();
    });
    ended.finished();
}
