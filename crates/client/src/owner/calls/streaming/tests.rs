//! Who sends the stream itself, and the end of its session.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::super::tests::{SECOND, SESSION, answers, session_of, unanswered};
use super::*;
use futures::FutureExt;
use futures::future::BoxFuture;
use model::FileKind;
use model::call::{Answer, Call, NoAnswer};
use model::operation::{Publish, Rank};
use std::sync::Arc;
use testkit::inodes::{attributes, name, new_inode};
use world::World;
use world::call::Remote;
use world::sim::Simulation;

const DIRECTORY: InodeId = InodeId(50);
const FILE: InodeId = InodeId(100);

/// A program has made a file, of which the owner has yet to hear.
fn make(world: &World, calls: &Calls) {
    let mut stream = calls.streaming.stream.lock();
    stream.reserved(DIRECTORY, 100..101);
    let directory = attributes(DIRECTORY, FileKind::Directory);
    let (text, new) = (name("f"), new_inode(FileKind::File));
    let made = stream.make((&directory, None), (&text, &new), true, world.wall());
    assert_eq!(made.unwrap().attributes.inode, FILE);
    calls.streaming.unlock(stream);
}

/// What a program asks for that syncs it.
fn publish(world: &World) -> OwnerRequest {
    let publish = Publish {
        inode: FILE,
        extents: Vec::new(),
        size_at_least: 0,
        written: None,
        replaces: None,
    };
    OwnerRequest::Execute {
        operation: Operation::Publish(publish),
        stamp: Stamp::own(world.wall(), SESSION),
    }
}

/// An owner on another node that does at once all that was done here.
struct Applies;

impl Remote for Applies {
    fn call(
        &self,
        call: Call,
        _: Deadline,
    ) -> BoxFuture<'_, std::result::Result<Answer, NoAnswer>> {
        let operations = match call.decode::<OwnerCall>().unwrap().request {
            OwnerRequest::ExecuteStream { operations, .. } => operations,
            other => panic!("{other:?}"),
        };
        let done = operations.iter().map(|operation| {
            let is_publish = matches!(operation.operation, Operation::Publish(_));
            Ok(StreamDone {
                rank: Rank::default(),
                attributes: is_publish.then(|| attributes(FILE, FileKind::File)),
                tokens: None,
            })
        });
        answers(OwnerReply::Streamed(done.collect()))
    }
}

/// Would be broken if another task sent it: that would have to wake, and to wake again who waits for it.
#[test]
fn who_syncs_a_new_file_sends_it_and_hears_the_answer_without_another_task() {
    let ran = Simulation::new(8).run(|world| async move {
        let calls = session_of(&world, || Some(Arc::new(Applies)));
        make(&world, &calls);
        // No other task runs meanwhile.
        let synced = calls.ask(&publish(&world)).now_or_never();
        let synced = synced.expect("nobody else has to do anything");
        assert!(matches!(synced.unwrap(), OwnerReply::Operation(_)));
        assert!(!calls.is_streaming(), "all of it is answered");
    });
    ran.finished();
}

/// Would be broken if who sends the stream noticed the end of the session when its message has failed, which may take half a
/// minute: all that waits for the file would wait for that.
#[test]
fn who_syncs_a_new_file_hears_at_once_that_its_session_has_ended() {
    let ran = Simulation::new(3).run(|world| async move {
        let calls = unanswered(&world);
        make(&world, &calls);
        let publish = publish(&world);
        let mut syncing = Box::pin(calls.ask(&publish));
        let early = world.timeout(SECOND * 35, syncing.as_mut()).await;
        assert!(early.is_err(), "it is on its way");
        let ended = world.now();
        assert!(calls.has_lost_answers().await, "the file");
        let synced = syncing.await.unwrap_err();
        assert_eq!(synced.kind(), ErrorKind::SessionEnded);
        assert_eq!(world.now(), ended);
    });
    ran.finished();
}
