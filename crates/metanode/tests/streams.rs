//! Streams: operations that a client has answered under a delegation before the owner applies them.

use crate::damage::{damage_name, damage_reserved};
use crate::rig::clients::{CLIENT, exists, next_owner, opened, send};
use crate::rig::{self, Rig};
use bytes::Bytes;
use futures::future::join;
use model::operation::{Fresh, Publish, Ranked, Stamp, Turn};
use model::owner::{
    Order, OwnerReply, OwnerRequest, Reclaimed, STREAMED_MAX, StreamDone, Streamed, UNHELD_MAX,
};
use model::token::{GrantNumber, Ship, TokenReply, TokenRequest, TokenReturn};
use model::{
    CommitNumber, ErrorKind, Extent, ExtentKind, FileKind, GroupId, InodeId, InodeNumber,
    Operation, Reply, Result, Scheme, SegmentId, SessionId, TokenMode, TokenObject, TokenRange,
};
use namespace::{Key, Record, Reserved, Run, Table};
use std::sync::Arc;
use std::time::Duration;
use world::sim::{Cluster, Simulation};
use world::{Interruption, Point, World};

const ROOT: InodeId = InodeId::ROOT;
const SECOND: Duration = Duration::from_secs(1);

async fn start(world: &World) -> Rig {
    rig::create(world, Scheme::Replicate(1), 1).await;
    rig::open(world).await
}

fn run<F: Future<Output = ()>>(seed: u64, scenario: impl FnOnce(Rig) -> F) {
    Simulation::new(seed)
        .run(|world| async move { scenario(start(&world).await).await })
        .finished();
}

async fn ask(rig: &Rig, session: SessionId, request: OwnerRequest) -> OwnerReply {
    send(rig, CLIENT, session, None, request).await.unwrap()
}

/// Reserves numbers for a session's files; the first one.
async fn reserved(rig: &Rig, session: SessionId) -> u64 {
    let operation = Operation::Reserve {
        inode: ROOT,
        inodes: 300,
        data: 0,
    };
    let stamp = Stamp {
        turn: Turn::Slot { slot: 0, number: 1 },
        ..Stamp::own(rig.world.wall(), session)
    };
    let given = ask(rig, session, OwnerRequest::Execute { operation, stamp }).await;
    let OwnerReply::Operation(Ranked {
        reply: Reply::Reserved { inode, .. },
        ..
    }) = given
    else {
        panic!("{given:?}");
    };
    inode.0
}

async fn token(rig: &Rig, session: SessionId, object: TokenObject, mode: TokenMode) -> GrantNumber {
    let wants = TokenRequest {
        object,
        mode,
        required: vec![TokenRange::ALL],
        desired: TokenRange::ALL,
        ship: Ship::Never,
    };
    let asks = OwnerRequest::AskToken {
        session,
        number: 1,
        wants,
    };
    match ask(rig, session, asks).await {
        OwnerReply::Token {
            reply: TokenReply::Granted { number, .. },
            ..
        } => number,
        other => panic!("{other:?}"),
    }
}

/// The session may make and remove names in the root.
async fn delegation(rig: &Rig, session: SessionId) -> GrantNumber {
    let object = TokenObject::Directory(ROOT);
    token(rig, session, object, TokenMode::Exclusive).await
}

/// Waits until something is wanted back, and gives it back; what it is, and the newest grant that the owner named.
async fn give_back(rig: &Rig, session: SessionId) -> (TokenObject, GrantNumber) {
    let waits = OwnerRequest::AwaitRecalls {
        session,
        known: rig.metanode.tenure(),
        has_all: false,
    };
    let OwnerReply::Recalls { recalls, .. } = ask(rig, session, waits).await else {
        panic!("it answers recalls");
    };
    let recall = recalls.first().expect("something is wanted back").clone();
    let back = TokenReturn {
        object: recall.object,
        ranges: recall.ranges,
        keep: None,
        up_to: recall.up_to,
    };
    let back = vec![back];
    ask(rig, session, OwnerRequest::ReturnTokens { session, back }).await;
    (recall.object, recall.up_to)
}

fn inode(number: u64) -> InodeId {
    InodeId::new(ROOT.fileset(), InodeNumber(number))
}

/// A file that is opened as it is made.
fn open_new(rig: &Rig, number: u64, text: &str, inode: u64) -> Streamed {
    Streamed {
        number,
        now: rig.world.wall(),
        operation: Operation::CreateHeld {
            directory: ROOT,
            name: rig::name(text),
            new: rig::new_inode(FileKind::File),
        },
        fresh: Fresh {
            inode: Some(InodeNumber(inode)),
            data: None,
        },
        with_tokens: false,
    }
}

/// A file that isn't opened.
fn make(rig: &Rig, number: u64, text: &str, inode: u64) -> Streamed {
    Streamed {
        operation: Operation::Create {
            directory: ROOT,
            name: rig::name(text),
            new: rig::new_inode(FileKind::File),
        },
        ..open_new(rig, number, text, inode)
    }
}

fn publish(rig: &Rig, number: u64, inode: InodeId, kind: ExtentKind) -> Streamed {
    let extent = Extent {
        offset: 0,
        length: 100,
        kind,
        birth: CommitNumber(0),
    };
    Streamed {
        number,
        now: rig.world.wall(),
        operation: Operation::Publish(Publish {
            inode,
            extents: vec![extent],
            size_at_least: 100,
            written: None,
            replaces: None,
        }),
        fresh: Fresh::default(),
        with_tokens: false,
    }
}

fn write(rig: &Rig, number: u64, inode: InodeId) -> Streamed {
    let bytes = Bytes::from(vec![7; 100]);
    publish(rig, number, inode, ExtentKind::Inline(bytes))
}

async fn stream(
    rig: &Rig,
    session: SessionId,
    operations: &[Streamed],
) -> Result<Vec<Result<StreamDone>>> {
    let operations = operations.to_vec();
    let request = OwnerRequest::ExecuteStream {
        session,
        operations,
    };
    match send(rig, CLIENT, session, None, request).await? {
        OwnerReply::Streamed(done) => Ok(done),
        other => panic!("{other:?}"),
    }
}

/// The same if all are done.
async fn streamed(rig: &Rig, session: SessionId, operations: &[Streamed]) -> Vec<StreamDone> {
    let done = stream(rig, session, operations).await.unwrap();
    done.into_iter().collect::<Result<_>>().unwrap()
}

/// What becomes of each.
async fn outcomes(
    rig: &Rig,
    session: SessionId,
    operations: &[Streamed],
) -> Vec<std::result::Result<(), ErrorKind>> {
    let done = stream(rig, session, operations).await.unwrap();
    let outcome = |done: Result<StreamDone>| done.map(drop).map_err(|error| error.kind());
    done.into_iter().map(outcome).collect()
}

/// The number of the request must be new.
async fn close(rig: &Rig, session: SessionId, inode: InodeId, number: u64) {
    let stamp = Stamp::own(rig.world.wall(), session);
    let order = Some(Order { slot: 1, number });
    let unhold = OwnerRequest::Unhold { inode, stamp };
    let closed = send(rig, CLIENT, session, order, unhold).await;
    assert_eq!(closed, Ok(OwnerReply::Done));
}

/// The next owner, to which the sessions have said that they hold nothing.
async fn taken_over(rig: Rig, session: SessionId) -> Rig {
    let metanode = next_owner(&rig).await;
    for session in [rig.source.session(), session] {
        let nothing = Reclaimed::default();
        metanode.reclaim(session, &nothing, true).await.unwrap();
    }
    Rig { metanode, ..rig }
}

#[test]
fn operations_of_a_stream_are_applied_once_and_durable_in_one_commit_when_they_are_answered() {
    run(1, |rig| async move {
        let session = opened(&rig).await;
        let first = reserved(&rig, session).await;
        delegation(&rig, session).await;
        let mut all: Vec<Streamed> = (0..100)
            .map(|at| open_new(&rig, at + 1, &format!("f{at}"), first + at))
            .collect();
        all.push(write(&rig, 101, inode(first + 3)));
        all.push(make(&rig, 102, "last", first + 100));
        let done = streamed(&rig, session, &all).await;
        assert!(rig.metanode.is_clean(), "it is durable when it is answered");
        assert_eq!(done.len(), all.len());
        for pair in done.windows(2) {
            assert!(pair[0].rank < pair[1].rank);
            assert_eq!(pair[0].rank.commit, pair[1].rank.commit);
        }
        assert!(
            done.iter().all(|done| done.tokens.is_none()),
            "nobody asked"
        );
        assert_eq!(rig.metanode.in_use().inodes, 100);
        assert_eq!(rig.read(inode(first + 3)).await.unwrap(), vec![7; 100]);

        let changes = rig.metanode.hosted().changes();
        let again = streamed(&rig, session, &all).await;
        assert_eq!(rig.metanode.hosted().changes(), changes);
        for (first, again) in done.iter().zip(&again) {
            assert!(again.rank >= first.rank);
        }
        assert_eq!(rig.metanode.in_use().inodes, 100);
        close(&rig, session, inode(first), 1).await;
        // Nor after a file's close, by a late copy.
        streamed(&rig, session, &all[..1]).await;
        assert_eq!(rig.metanode.in_use().inodes, 99);
        rig.must_be_clean("after the stream").await;
    });
}

/// The owner ends after the commit and before the client hears of it: the client says nothing of these files, and sends the
/// operations again.
#[test]
fn operations_of_a_stream_that_are_repeated_after_a_take_over_hold_their_files_once() {
    run(2, |rig| async move {
        let session = opened(&rig).await;
        let first = reserved(&rig, session).await;
        let mut all = vec![
            open_new(&rig, 1, "f1", first),
            open_new(&rig, 2, "f2", first + 1),
            make(&rig, 3, "f3", first + 2),
            write(&rig, 4, inode(first + 1)),
        ];
        streamed(&rig, session, &all).await;
        let rig = taken_over(rig, session).await;
        assert_eq!(rig.metanode.in_use().inodes, 0);
        // This one the owner before never heard of.
        all.push(open_new(&rig, 5, "f5", first + 3));
        for _ in 0..2 {
            streamed(&rig, session, &all).await;
            assert_eq!(rig.metanode.in_use().inodes, 3);
        }
        assert_eq!(rig.read(inode(first + 1)).await.unwrap(), vec![7; 100]);
        let late = stream(&rig, session, &[make(&rig, 7, "f7", first + 9)]).await;
        assert_eq!(late.unwrap_err().kind(), ErrorKind::Unknown);

        for text in ["f1", "f2", "f3", "f5"] {
            rig.unlink(ROOT, text).await;
        }
        let is_there = async |number: u64| exists(&rig.metanode, inode(number), &rig.stamp()).await;
        assert!(!is_there(first + 2).await, "nobody has it open");
        for (number, at) in (1..).zip([first, first + 1, first + 3]) {
            assert!(is_there(at).await);
            close(&rig, session, inode(at), number).await;
            assert!(!is_there(at).await, "it was held once");
        }
        rig.must_be_clean("all are gone").await;
    });
}

/// Would be broken if a copy of the message ended a use that another close ends, or if a file stayed that others have removed.
#[test]
fn uses_of_several_files_end_with_one_message_and_once() {
    run(14, |rig| async move {
        let session = opened(&rig).await;
        let first = reserved(&rig, session).await;
        let files = [0, 1, 2].map(|at| inode(first + at));
        let all: Vec<Streamed> = (0..3)
            .map(|at| open_new(&rig, at + 1, &format!("f{at}"), first + at))
            .collect();
        streamed(&rig, session, &all).await;
        let inode = files[0];
        let hold = OwnerRequest::Hold { session, inode };
        let order = Some(Order { slot: 2, number: 1 });
        send(&rig, CLIENT, session, order, hold).await.unwrap();
        rig.unlink(ROOT, "f1").await;
        assert_eq!(rig.metanode.in_use().inodes, 3);
        let stamp = Stamp::own(rig.world.wall(), session);
        let end = async |number: u64, inodes: &[InodeId]| {
            let order = Some(Order { slot: 1, number });
            let inodes = inodes.to_vec();
            let ends = OwnerRequest::UnholdAll { inodes, stamp };
            send(&rig, CLIENT, session, order, ends).await
        };
        let is_there = async |inode| exists(&rig.metanode, inode, &rig.stamp()).await;
        for _ in 0..2 {
            assert_eq!(end(1, &files).await, Ok(OwnerReply::Done));
            assert!(rig.metanode.is_clean(), "its file is gone for good");
            assert_eq!(rig.metanode.in_use().inodes, 1, "it is open twice");
            assert!(!is_there(files[1]).await && is_there(files[2]).await);
        }
        assert_eq!(end(2, &files[..1]).await, Ok(OwnerReply::Done));
        assert_eq!(rig.metanode.in_use().inodes, 0);
        let many = vec![inode; UNHELD_MAX + 1];
        let refused = end(3, &many).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        rig.must_be_clean("after the closes").await;
    });
}

/// Would be broken if one that can never be done stopped those behind it.
#[test]
fn an_operation_of_a_stream_that_is_refused_is_named_and_the_next_ones_go_on() {
    run(3, |rig| async move {
        rig.file(ROOT, "f").await;
        let session = opened(&rig).await;
        let first = reserved(&rig, session).await;
        let all = [
            make(&rig, 1, "f", first),
            make(&rig, 2, "g", first + 1),
            open_new(&rig, 3, "h", first + 5000),
            open_new(&rig, 4, "h", first + 2),
            write(&rig, 5, inode(first)),
            write(&rig, 6, inode(first + 1)),
        ];
        let said = outcomes(&rig, session, &all).await;
        assert!(rig.metanode.is_clean());
        let (exists, unreserved) = (ErrorKind::Exists, ErrorKind::InvalidArgument);
        assert_eq!(said[..4], [Err(exists), Ok(()), Err(unreserved), Ok(())]);
        assert!(said[4].is_err() && said[5].is_ok(), "{said:?}");
        assert_eq!(outcomes(&rig, session, &all).await, said);
        assert_eq!(rig.metanode.in_use().inodes, 1);
        // The next owner doesn't know why, but that these files aren't there.
        let rig = taken_over(rig, session).await;
        let again = outcomes(&rig, session, &all).await;
        for (said, again) in said.iter().zip(&again) {
            assert_eq!(*again, said.map_err(|_| ErrorKind::NotFound));
        }
        assert_eq!(rig.metanode.in_use().inodes, 1);
        rig.must_be_clean("after the refusals").await;
    });
}

/// Its client writes the bytes again, under another number. Would be broken if the stream never got further.
#[test]
fn a_publish_in_a_stream_that_names_groups_the_pool_has_left_uses_its_number_up() {
    run(4, |rig| async move {
        let session = opened(&rig).await;
        let first = reserved(&rig, session).await;
        let file = inode(first);
        streamed(&rig, session, &[make(&rig, 1, "f", first)]).await;
        let place = rig.segment(file, 0, &rig::pattern(1, 100)).await;
        let segment = SegmentId {
            session,
            counter: 1,
        };
        let kind = ExtentKind::Data {
            place: model::SegmentPlace { segment, ..place },
            at: 0,
            codec: 0,
            key_id: 0,
        };
        let floor = GroupId(place.group.0 + 1);
        rig.metanode.hosted().refuse_below(floor).await;
        let all = [publish(&rig, 2, file, kind), write(&rig, 3, file)];
        for _ in 0..2 {
            let said = outcomes(&rig, session, &all).await;
            assert_eq!(said, [Err(ErrorKind::Stale), Ok(())]);
        }
        assert_eq!(rig.read(file).await.unwrap(), vec![7; 100]);
    });
}

/// Would be broken if the owner put the whole request off for ever, with all that its client makes in other directories.
#[test]
fn an_operation_of_a_stream_that_meets_a_damaged_record_uses_its_number_up() {
    run(11, |rig| async move {
        rig.file(ROOT, "f").await;
        damage_name(&rig, "f").await;
        let session = opened(&rig).await;
        let first = reserved(&rig, session).await;
        let all = [
            make(&rig, 1, "a", first),
            open_new(&rig, 2, "f", first + 1),
            make(&rig, 3, "b", first + 2),
            write(&rig, 4, inode(first + 1)),
            write(&rig, 5, inode(first + 2)),
        ];
        let said = outcomes(&rig, session, &all).await;
        assert_eq!(said[..3], [Ok(()), Err(ErrorKind::Corrupt), Ok(())]);
        assert!(said[3].is_err() && said[4].is_ok(), "{said:?}");
        assert_eq!(outcomes(&rig, session, &all).await, said);
        assert_eq!(rig.metanode.in_use().inodes, 0);
        assert_eq!(rig.read(inode(first + 2)).await.unwrap(), vec![7; 100]);
        // The next owner reads nothing that is damaged either.
        let rig = taken_over(rig, session).await;
        let again = outcomes(&rig, session, &all).await;
        for (said, again) in said.iter().zip(&again) {
            assert_eq!(*again, said.map_err(|_| ErrorKind::NotFound));
        }
    });
}

/// Would be broken if using a number up needed what can't be read either: the request would be refused as a whole, and its
/// client give its session up.
#[test]
fn an_operation_of_a_stream_whose_reserved_numbers_are_damaged_uses_its_number_up() {
    run(13, |rig| async move {
        let file = rig.file(ROOT, "f").await;
        let session = opened(&rig).await;
        let first = reserved(&rig, session).await;
        damage_reserved(&rig, session).await;
        let all = [make(&rig, 1, "a", first), write(&rig, 2, file)];
        for _ in 0..2 {
            let said = outcomes(&rig, session, &all).await;
            assert_eq!(said, [Err(ErrorKind::Corrupt), Ok(())]);
        }
        assert_eq!(rig.read(file).await.unwrap(), vec![7; 100]);
    });
}

/// Would be broken if a record that can't be read kept its session open: others would wait for what that holds for ever, and
/// after a take-over for everything.
#[test]
fn a_session_whose_reserved_numbers_are_damaged_ends_and_others_get_what_it_holds() {
    run(14, |rig| async move {
        let (session, other) = (opened(&rig).await, opened(&rig).await);
        reserved(&rig, session).await;
        damage_reserved(&rig, session).await;
        delegation(&rig, session).await;
        rig.metanode.close_session(session).await.unwrap();
        assert_eq!(rig.metanode.hosted().run_of_session(session), None);
        delegation(&rig, other).await;
    });
}

#[test]
fn a_stream_waits_for_others_that_hold_its_directory_as_any_operation_does() {
    run(5, |rig| async move {
        let (session, other) = (opened(&rig).await, opened(&rig).await);
        let first = reserved(&rig, session).await;
        delegation(&rig, other).await;
        let all = [
            open_new(&rig, 1, "f", first),
            open_new(&rig, 2, "g", first + 1),
        ];
        let late = stream(&rig, session, &all).await;
        assert_eq!(late.unwrap_err().kind(), ErrorKind::InGrace);
        assert_eq!(rig.metanode.in_use().inodes, 0);
        let began = rig.world.now();
        let gives = async {
            rig.world.sleep(SECOND).await;
            give_back(&rig, other).await
        };
        let (done, (object, _)) = join(streamed(&rig, session, &all), gives).await;
        assert_eq!(done.len(), 2);
        assert_eq!(object, TokenObject::Directory(ROOT));
        assert!(rig.world.now() - began >= SECOND);
        assert_eq!(rig.metanode.in_use().inodes, 2);
    });
}

#[test]
fn tokens_that_come_with_a_stream_are_recalled_like_others_and_never_taken_from_anybody() {
    run(6, |rig| async move {
        let (session, other) = (opened(&rig).await, opened(&rig).await);
        let first = reserved(&rig, session).await;
        delegation(&rig, session).await;
        let with_tokens = |streamed| Streamed {
            with_tokens: true,
            ..streamed
        };
        let all = [
            with_tokens(open_new(&rig, 1, "f", first)),
            make(&rig, 2, "g", first + 1),
        ];
        let file = inode(first);
        let objects = [TokenObject::Inode(file), TokenObject::Bytes(file)];
        let knows = |session, object, mode| {
            let whole = TokenRange::ALL;
            rig.metanode.knows_token(session, object, whole, mode)
        };
        let mut newest = GrantNumber::default();
        for _ in 0..2 {
            let done = streamed(&rig, session, &all).await;
            let [of_inode, of_bytes] = done[0].tokens.expect("nobody else has it");
            assert!(newest < of_inode && of_inode < of_bytes);
            newest = of_bytes;
            assert_eq!(done[1].tokens, None);
            for object in objects {
                assert_eq!(knows(session, object, TokenMode::Exclusive), Some(true));
            }
        }
        let wants = token(&rig, other, objects[1], TokenMode::Shared);
        let (_, (object, up_to)) = join(wants, give_back(&rig, session)).await;
        assert_eq!((object, up_to), (objects[1], newest));
        assert_eq!(knows(other, object, TokenMode::Shared), Some(true));
        let done = streamed(&rig, session, &all).await;
        assert_eq!(done[0].tokens, None, "another one has its bytes");
        assert_eq!(knows(other, object, TokenMode::Shared), Some(true));
    });
}

#[test]
fn what_no_sound_client_sends_in_a_stream_is_refused_and_nothing_of_it_is_done() {
    run(7, |rig| async move {
        let (session, other) = (opened(&rig).await, opened(&rig).await);
        let first = reserved(&rig, session).await;
        let sound = |number| open_new(&rig, number, &format!("f{number}"), first + number);
        let with = |operation| Streamed {
            operation,
            ..sound(1)
        };
        let new = rig::new_inode(FileKind::Directory);
        let (directory, name) = (ROOT, rig::name("d"));
        let unnumbered = Streamed {
            fresh: Fresh::default(),
            ..sound(1)
        };
        let mut replaces = write(&rig, 1, ROOT);
        if let Operation::Publish(publish) = &mut replaces.operation {
            publish.replaces = Some(Vec::new());
        }
        let with_tokens = Streamed {
            with_tokens: true,
            ..write(&rig, 1, ROOT)
        };
        let many = (1..=STREAMED_MAX as u64 + 1).map(sound).collect();
        let makes = Operation::CreateHeld {
            directory,
            name: name.clone(),
            new,
        };
        let removes = Operation::Unlink { directory, name };
        let faulty: [Vec<Streamed>; 10] = [
            vec![with(makes)],
            vec![with(removes)],
            vec![with(Operation::GetAttributes { inode: ROOT })],
            vec![unnumbered],
            vec![replaces],
            vec![with_tokens],
            vec![sound(0)],
            vec![sound(1), sound(3)],
            vec![sound(1), sound(1)],
            many,
        ];
        for operations in &faulty {
            let refused = stream(&rig, session, operations).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{operations:?}");
        }
        let turn = Turn::Stream {
            number: 1,
            fresh: Fresh::default(),
        };
        let stamp = Stamp {
            turn,
            ..Stamp::own(rig.world.wall(), session)
        };
        let operation = sound(1).operation;
        let requests = [
            OwnerRequest::Execute { operation, stamp },
            OwnerRequest::ExecuteStream {
                session: other,
                operations: vec![sound(1)],
            },
        ];
        for request in requests {
            let refused = send(&rig, CLIENT, session, None, request).await;
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
        }
        let streams = rig.metanode.hosted();
        for session in [session, other] {
            assert_eq!(streams.record(&Key::Stream(session)).await.unwrap(), None);
        }
        assert_eq!(rig.metanode.in_use().inodes, 0);
    });
}

/// Bytes that the pool keeps for metadata, as of now.
async fn kept(rig: &Rig) -> u64 {
    // A measurement is valid for a moment.
    rig.world.sleep(SECOND).await;
    let data_only = Operation::Reserve {
        inode: ROOT,
        inodes: 0,
        data: 1,
    };
    rig.run(data_only).await.unwrap();
    rig.pool.kept_for_metadata()
}

/// Would be broken if a full pool couldn't store what a client has answered: then there would be no log any more.
#[test]
fn room_for_a_file_is_kept_from_when_its_number_is_reserved_until_it_is_stored() {
    run(11, |rig| async move {
        let session = opened(&rig).await;
        let empty = kept(&rig).await;
        let first = reserved(&rig, session).await;
        let before = kept(&rig).await;
        assert!(before >= empty + 300 * 1024, "{empty}, then {before}");
        let log = || rig.metanode.hosted().tree().log().bytes();
        let log_before = log();
        let all: Vec<Streamed> = (0..STREAMED_MAX as u64)
            .map(|at| make(&rig, at + 1, &format!("{at:0>255}"), first + at))
            .collect();
        streamed(&rig, session, &all).await;
        let stored = log() - log_before;
        let after = kept(&rig).await;
        assert!(
            after + stored <= before,
            "{before}, then {after} + {stored}"
        );
        // The next owner keeps what is left, until nobody can use it any more.
        let rig = taken_over(rig, session).await;
        assert_eq!(rig.metanode.hosted().reserved_numbers(), 44);
        rig.metanode.close_session(session).await.unwrap();
        assert_eq!(rig.metanode.hosted().reserved_numbers(), 0);
        rig.must_be_clean("after the session's end").await;
    });
}

/// Would be broken if what an owner has left of a session, because it died between two commits, kept room for ever.
#[test]
fn numbers_of_a_session_that_has_ended_keep_no_room() {
    run(12, |rig| async move {
        let session = opened(&rig).await;
        let first = reserved(&rig, session).await;
        rig.metanode.close_session(session).await.unwrap();
        let key = Key::Reserved {
            session,
            fileset: ROOT.fileset(),
        };
        let left = Reserved {
            inodes: vec![Run {
                next: first,
                end: first + 300,
            }],
            data: Vec::new(),
        };
        let left = Record::Reserved(Arc::new(left));
        rig.forge(vec![(key, Some(left))]).await;
        assert_eq!(rig.metanode.hosted().reserved_numbers(), 0);
    });
}

#[test]
fn nothing_is_left_of_a_stream_whose_session_has_ended() {
    run(8, |rig| async move {
        let session = opened(&rig).await;
        let first = reserved(&rig, session).await;
        let all = [open_new(&rig, 1, "f", first), make(&rig, 2, "g", first + 1)];
        streamed(&rig, session, &all).await;
        rig.unlink(ROOT, "f").await;
        let left = async || {
            let (shard, mut left) = (rig.metanode.hosted(), 0);
            for table in [Table::Streams, Table::Reserved, Table::Slots] {
                let (from, to) = table.range();
                left += shard.scan(&from, &to, 10).await.unwrap().len();
            }
            left
        };
        assert_eq!(left().await, 3);
        assert!(exists(&rig.metanode, inode(first), &rig.stamp()).await);
        ask(&rig, session, OwnerRequest::CloseSession { session }).await;
        assert_eq!(left().await, 0);
        assert!(!exists(&rig.metanode, inode(first), &rig.stamp()).await);
        assert_eq!(rig.metanode.in_use().inodes, 0);
        let late = stream(&rig, session, &all).await.unwrap_err();
        assert_eq!(late.kind(), ErrorKind::SessionEnded);
        assert_eq!(left().await, 0);
        rig.must_be_clean("after the session's end").await;
    });
}

/// Would be broken if a file stayed in use, or a token with its session, for ever.
#[test]
fn a_session_that_ends_while_its_stream_runs_holds_nothing_of_it() {
    // As its first operation runs, and as its second one does.
    for (seed, passed) in [(9, 0), (10, 1)] {
        let cluster = Cluster::new(seed);
        let delay = Interruption::Delay(2 * SECOND);
        cluster.interrupt(Point::StreamClaimed, passed, delay);
        let program = |world: World| async move {
            let rig = start(&world).await;
            let session = opened(&rig).await;
            let first = reserved(&rig, session).await;
            let with_tokens = |number, text, inode| Streamed {
                with_tokens: true,
                ..open_new(&rig, number, text, inode)
            };
            let all = [with_tokens(1, "f", first), with_tokens(2, "g", first + 1)];
            let ends = async {
                world.sleep(SECOND).await;
                ask(&rig, session, OwnerRequest::CloseSession { session }).await;
            };
            let (done, ()) = join(stream(&rig, session, &all), ends).await;
            assert_eq!(done.unwrap_err().kind(), ErrorKind::SessionEnded);
            assert_eq!(rig.metanode.in_use().inodes, 0);
            for at in [first, first + 1] {
                let object = TokenObject::Inode(inode(at));
                let (whole, mode) = (TokenRange::ALL, TokenMode::Exclusive);
                let knows = rig.metanode.knows_token(session, object, whole, mode);
                assert_eq!(knows, Some(false));
            }
            rig.must_be_clean("after the session's end").await;
            rig.close().await;
        };
        cluster.run(|_| cluster.node("owner").start(program).done());
    }
}
