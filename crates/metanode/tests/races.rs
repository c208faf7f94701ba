//! What a request does while another one is between two of its steps.

use crate::rig::clients::{CLIENT, exists, new_session, opened, send};
use crate::rig::{self, Rig};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::join;
use model::operation::{Publish, Ranked, Stamp, Turn};
use model::owner::{Order, OwnerReply, OwnerRequest};
use model::token::{Ship, TokenReply, TokenRequest, TokenReturn};
use model::{
    CommitNumber, Error, ErrorKind, Extent, ExtentKind, FileKind, InodeId, Operation, Reply,
    Result, Scheme, SessionId, TokenMode, TokenObject, TokenRange,
};
use std::time::Duration;
use world::call::Local;
use world::sim::{Cluster, Simulation};
use world::{Interruption, Point, World};

const ROOT: InodeId = InodeId::ROOT;
const SECOND: Duration = Duration::from_secs(1);

async fn ask(rig: &Rig, session: SessionId, request: OwnerRequest) -> OwnerReply {
    send(rig, CLIENT, session, None, request).await.unwrap()
}

async fn read(rig: &Rig, session: SessionId, operation: Operation) -> Reply {
    let stamp = Stamp {
        turn: Turn::Read,
        ..Stamp::own(rig.world.wall(), session)
    };
    let execute = OwnerRequest::Execute { operation, stamp };
    match ask(rig, session, execute).await {
        OwnerReply::Operation(Ranked { reply, .. }) => reply,
        other => panic!("{other:?}"),
    }
}

/// A program has written 100 bytes, and its client publishes them and gives back its token for the
/// inode a second after another client has begun to read; the read has run, and who else may be
/// changing what it shows isn't looked at.
async fn read_beside_a_writer(world: World, look: Operation) -> Reply {
    rig::create(&world, Scheme::Replicate(1), 1).await;
    let rig = rig::open(&world).await;
    let inode = rig.file(ROOT, "f").await;
    let (reader, writer) = (opened(&rig).await, opened(&rig).await);
    let object = TokenObject::Inode(inode);
    let granted = OwnerRequest::AskToken {
        session: writer,
        number: 1,
        wants: TokenRequest {
            object,
            mode: TokenMode::SharedWrite,
            required: vec![TokenRange::ALL],
            desired: TokenRange::ALL,
            ship: Ship::Never,
        },
    };
    let OwnerReply::Token {
        reply: TokenReply::Granted { number, .. },
        ..
    } = ask(&rig, writer, granted).await
    else {
        panic!("nobody else has it");
    };
    let writes = async {
        world.sleep(SECOND).await;
        let extent = Extent {
            offset: 0,
            length: 100,
            kind: ExtentKind::Inline(Bytes::from(vec![7; 100])),
            birth: CommitNumber(0),
        };
        let operation = Operation::Publish(Publish {
            inode,
            extents: vec![extent],
            size_at_least: 100,
            written: None,
            replaces: None,
        });
        let stamp = Stamp {
            turn: Turn::Slot { slot: 0, number: 1 },
            ..Stamp::own(world.wall(), writer)
        };
        ask(&rig, writer, OwnerRequest::Execute { operation, stamp }).await;
        let back = TokenReturn {
            object,
            ranges: vec![TokenRange::ALL],
            keep: None,
            up_to: number,
        };
        let session = writer;
        let back = vec![back];
        ask(&rig, writer, OwnerRequest::ReturnTokens { session, back }).await;
    };
    let (reply, ()) = join(read(&rig, reader, look), writes).await;
    rig.close().await;
    reply
}

fn delayed(seed: u64, point: Point) -> Cluster {
    let cluster = Cluster::new(seed);
    cluster.interrupt(point, 0, Interruption::Delay(2 * SECOND));
    cluster
}

/// Would be broken if a stat showed a file as it was before a write that had ended before the stat began.
#[test]
fn a_look_up_shows_what_was_published_and_given_back_while_it_ran() {
    let cluster = delayed(71, Point::Looked);
    let program = |world: World| async move {
        let look = Operation::Lookup {
            directory: ROOT,
            name: rig::name("f"),
        };
        let Reply::Entry { attributes, .. } = read_beside_a_writer(world, look).await else {
            panic!("it is there");
        };
        assert_eq!(attributes.size, 100);
    };
    cluster.run(|_| cluster.node("owner").start(program).done());
}

#[test]
fn a_listing_leaves_out_attributes_that_were_published_while_it_ran() {
    let cluster = delayed(72, Point::Looked);
    let program = |world: World| async move {
        let list = Operation::ReadDirectory {
            directory: ROOT,
            after: 0,
            limit: 100,
            with_attributes: true,
        };
        let Reply::Listing { entries, .. } = read_beside_a_writer(world, list).await else {
            panic!("it is a directory");
        };
        let entry = entries.iter().find(|entry| entry.name == rig::name("f"));
        let shown = entry.unwrap().attributes.as_ref();
        assert!(shown.is_none_or(|shown| shown.size == 100), "{shown:?}");
    };
    cluster.run(|_| cluster.node("owner").start(program).done());
}

/// A file without a name that a client on another node holds, and the request that ends its use.
async fn last_use(rig: &Rig) -> (SessionId, InodeId, OwnerRequest) {
    let session = opened(rig).await;
    let inode = rig.file(ROOT, "f").await;
    let order = Some(Order { slot: 1, number: 1 });
    let hold = OwnerRequest::Hold { session, inode };
    send(rig, CLIENT, session, order, hold).await.unwrap();
    rig.unlink(ROOT, "f").await;
    rig.metanode.sync().await.unwrap();
    let stamp = Stamp::own(rig.world.wall(), session);
    (session, inode, OwnerRequest::Unhold { inode, stamp })
}

/// A copy of that request.
async fn end_use(rig: &Rig, session: SessionId, unhold: &OwnerRequest) -> Result<OwnerReply> {
    let order = Some(Order { slot: 1, number: 2 });
    send(rig, CLIENT, session, order, unhold.clone()).await
}

/// The shard is given up, and has to be taken over again.
fn give_up(rig: &Rig) {
    let why = Error::new(ErrorKind::Unavailable, "for a test");
    rig.metanode.hosted().resign(&why);
}

/// Would be broken if a client heard that its last use of a file had ended before that was durable: it
/// doesn't say to the next owner that it holds the file.
#[test]
fn a_repeated_end_of_a_use_is_answered_once_the_first_is_durable() {
    Simulation::new(73)
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            let (session, inode, unhold) = last_use(&rig).await;
            let ask = || end_use(&rig, session, &unhold);
            // Given up at its deadline, for instance.
            assert!(ask().now_or_never().is_none());
            assert!(!rig.metanode.is_clean());
            assert_eq!(ask().await, Ok(OwnerReply::Done));
            assert!(rig.metanode.is_clean());
            assert!(!exists(&rig.metanode, inode, &rig.stamp()).await);
            rig.close().await;
        })
        .finished();
}

/// Would be broken if a file that nobody uses any more took its space until the next owner: the request that
/// ended its last use was given up while it waited for a take-over.
#[test]
fn a_file_whose_last_use_ended_in_a_request_that_was_given_up_is_released() {
    Simulation::new(74)
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            for is_repeated in [true, false] {
                let (session, inode, unhold) = last_use(&rig).await;
                let ask = || end_use(&rig, session, &unhold);
                give_up(&rig);
                assert!(ask().now_or_never().is_none());
                match is_repeated {
                    true => assert_eq!(ask().await, Ok(OwnerReply::Done)),
                    false => {
                        rig.metanode.usage().await.unwrap();
                        rig.settle().await;
                    }
                }
                assert!(!exists(&rig.metanode, inode, &rig.stamp()).await);
            }
            rig.close().await;
        })
        .finished();
}

/// The same for all that a session held, when the request that ends it is given up.
#[test]
fn what_a_session_held_is_released_although_the_request_that_ends_it_was_given_up() {
    Simulation::new(75)
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            let (session, inode, _) = last_use(&rig).await;
            give_up(&rig);
            let close = rig.metanode.close_session(session);
            assert!(close.now_or_never().is_none());
            rig.metanode.usage().await.unwrap();
            rig.settle().await;
            assert!(!exists(&rig.metanode, inode, &rig.stamp()).await);
            rig.close().await;
        })
        .finished();
}

/// Would be broken if files went before the end of the session that uses them is recorded: if the owner ended then, the client
/// could come back to the next one, and they would be gone.
#[test]
fn what_only_a_session_uses_is_there_as_long_as_its_record_says_that_it_is_open() {
    let cluster = delayed(80, Point::SessionClosing);
    let program = |world: World| async move {
        rig::create(&world, Scheme::Replicate(1), 1).await;
        let rig = rig::open(&world).await;
        let (session, used, _) = last_use(&rig).await;
        // Made without a name; its maker hasn't opened it yet.
        let operation = Operation::CreateUnnamed {
            directory: ROOT,
            new: rig::new_inode(FileKind::File),
        };
        let stamp = Stamp {
            turn: Turn::Slot { slot: 0, number: 1 },
            ..Stamp::own(world.wall(), session)
        };
        let make = OwnerRequest::Execute { operation, stamp };
        let made = match ask(&rig, session, make).await {
            OwnerReply::Operation(Ranked {
                reply: Reply::Entry { attributes, .. },
                ..
            }) => attributes.inode,
            other => panic!("{other:?}"),
        };
        let inodes = [used, made];
        let look = async {
            world.sleep(SECOND).await;
            assert!(rig.metanode.hosted().run_of_session(session).is_some());
            for inode in inodes {
                assert!(exists(&rig.metanode, inode, &rig.stamp()).await);
            }
        };
        let (closed, ()) = join(rig.metanode.close_session(session), look).await;
        closed.unwrap();
        for inode in inodes {
            assert!(!exists(&rig.metanode, inode, &rig.stamp()).await);
        }
        rig.close().await;
    };
    cluster.run(|_| cluster.node("owner").start(program).done());
}

/// Would be broken if what the owner remembers of a session outlived it: it was ended as its opening hadn't
/// been answered.
#[test]
fn a_session_that_ends_while_it_is_opened_is_not_open() {
    let cluster = Cluster::new(76);
    // The first is that of the client in the owner's process.
    cluster.interrupt(Point::SessionRecorded, 1, Interruption::Delay(2 * SECOND));
    let program = |world: World| async move {
        rig::create(&world, Scheme::Replicate(1), 1).await;
        let rig = rig::open(&world).await;
        let session = new_session(&rig).await;
        let ask = |request| send(&rig, CLIENT, session, None, request);
        let ends = async {
            world.sleep(SECOND).await;
            ask(OwnerRequest::CloseSession { session }).await.unwrap();
        };
        let open = ask(OwnerRequest::OpenSession { session });
        let (opened, ()) = join(open, ends).await;
        assert_eq!(opened.unwrap_err().kind(), ErrorKind::SessionEnded);
        let inode = rig.file(ROOT, "f").await;
        let late = OwnerRequest::Hold { session, inode };
        let held = Local::ask(&*rig.metanode, &late).answer().await;
        assert_eq!(held.unwrap_err().kind(), ErrorKind::SessionEnded);
        rig.close().await;
    };
    cluster.run(|_| cluster.node("owner").start(program).done());
}

/// Would be broken if a session that has ended were given everything: nobody would ever give it back.
#[test]
fn a_session_that_has_ended_is_not_the_only_one() {
    Simulation::new(77)
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            let session = rig.source.session();
            rig.metanode.close_session(session).await.unwrap();
            let late = OwnerRequest::AwaitRecalls {
                session,
                known: rig.metanode.tenure(),
                has_all: false,
            };
            let said = Local::ask(&*rig.metanode, &late).answer().await;
            assert_eq!(said.unwrap_err().kind(), ErrorKind::SessionEnded);
            let began = world.now();
            rig.metanode.open_session().await.unwrap();
            assert!(world.now() - began < SECOND);
            rig.close().await;
        })
        .finished();
}

/// Would be broken if a file went with a name that another client removed as its maker had no answer yet: the program has
/// it open, and its kernel would make it once more.
#[test]
fn a_file_whose_name_goes_before_its_maker_is_answered_is_open_there() {
    let cluster = delayed(78, Point::OperationRun);
    let program = |world: World| async move {
        rig::create(&world, Scheme::Replicate(1), 1).await;
        let rig = rig::open(&world).await;
        let (maker, other) = (opened(&rig).await, opened(&rig).await);
        let execute = |session, operation| {
            let turn = Turn::Slot { slot: 0, number: 1 };
            let stamp = Stamp {
                turn,
                ..Stamp::own(world.wall(), session)
            };
            ask(&rig, session, OwnerRequest::Execute { operation, stamp })
        };
        let make = || Operation::CreateHeld {
            directory: ROOT,
            name: rig::name("f"),
            new: rig::new_inode(FileKind::File),
        };
        let removes = async {
            world.sleep(SECOND).await;
            let unlink = Operation::Unlink {
                directory: ROOT,
                name: rig::name("f"),
            };
            execute(other, unlink).await
        };
        let (made, removed) = join(execute(maker, make()), removes).await;
        let OwnerReply::Operation(Ranked {
            reply:
                Reply::Removed {
                    attributes,
                    orphaned: true,
                    ..
                },
            ..
        }) = removed
        else {
            panic!("{removed:?}");
        };
        let inode = attributes.inode;
        let shown = read(&rig, maker, Operation::GetAttributes { inode }).await;
        assert!(matches!(shown, Reply::Attributes { .. }), "{shown:?}");
        // A copy of the request holds nothing more, also after the end of the use.
        assert_eq!(execute(maker, make()).await, made);
        let unhold = OwnerRequest::Unhold {
            inode,
            stamp: Stamp::own(world.wall(), maker),
        };
        let order = Some(Order { slot: 1, number: 1 });
        let ended = send(&rig, CLIENT, maker, order, unhold).await;
        assert_eq!(ended, Ok(OwnerReply::Done));
        assert!(!exists(&rig.metanode, inode, &rig.stamp()).await);
        assert_eq!(execute(maker, make()).await, made);
        assert_eq!(rig.metanode.in_use().inodes, 0);
        rig.close().await;
    };
    cluster.run(|_| cluster.node("owner").start(program).done());
}

/// One that is made without being opened isn't held.
#[test]
fn a_file_that_is_made_open_ends_with_its_makers_session_and_another_one_with_its_name() {
    Simulation::new(79)
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            let maker = opened(&rig).await;
            let new = || rig::new_inode(FileKind::File);
            let (directory, name) = (ROOT, rig::name("f"));
            let makes = [
                Operation::Create {
                    directory,
                    name: name.clone(),
                    new: new(),
                },
                Operation::CreateHeld {
                    directory,
                    name: name.clone(),
                    new: new(),
                },
            ];
            for (slot, operation) in (0..).zip(makes) {
                let is_held = operation.makes_held();
                let turn = Turn::Slot { slot, number: 1 };
                let stamp = Stamp {
                    turn,
                    ..Stamp::own(world.wall(), maker)
                };
                let made = ask(&rig, maker, OwnerRequest::Execute { operation, stamp }).await;
                let OwnerReply::Operation(Ranked {
                    reply: Reply::Entry { attributes, .. },
                    ..
                }) = made
                else {
                    panic!("{made:?}");
                };
                let inode = attributes.inode;
                rig.unlink(ROOT, "f").await;
                assert_eq!(exists(&rig.metanode, inode, &rig.stamp()).await, is_held);
                if is_held {
                    rig.metanode.close_session(maker).await.unwrap();
                    assert!(!exists(&rig.metanode, inode, &rig.stamp()).await);
                }
            }
            assert_eq!(rig.metanode.in_use().inodes, 0);
            rig.close().await;
        })
        .finished();
}

/// Its session has ended, and it doesn't know yet. Would be broken if a client in the owner's process left something in
/// use for ever.
#[test]
fn what_a_client_makes_here_after_its_sessions_end_is_not_in_use() {
    Simulation::new(80)
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            let session = rig.metanode.open_session().await.unwrap();
            let make = |session, text| {
                let operation = Operation::CreateHeld {
                    directory: ROOT,
                    name: rig::name(text),
                    new: rig::new_inode(FileKind::File),
                };
                let stamp = Stamp::own(world.wall(), session);
                OwnerRequest::Execute { operation, stamp }
            };
            let local =
                async |request: OwnerRequest| Local::ask(&*rig.metanode, &request).answer().await;
            local(make(session, "before")).await.unwrap();
            assert_eq!(rig.metanode.in_use().inodes, 1);
            rig.metanode.close_session(session).await.unwrap();
            let _made_or_refused = local(make(session, "after")).await;
            assert_eq!(rig.metanode.in_use().inodes, 0);
            rig.close().await;
        })
        .finished();
}
