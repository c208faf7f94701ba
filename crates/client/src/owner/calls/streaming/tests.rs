//! Who sends the stream itself, and the end of its session.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::super::tests::{SECOND, SESSION, unanswered};
use super::*;
use model::FileKind;
use model::operation::Publish;
use testkit::inodes::{attributes, name, new_inode};
use world::sim::Simulation;

const DIRECTORY: InodeId = InodeId(50);
const FILE: InodeId = InodeId(100);

/// Would be broken if who sends the stream noticed the end of the session when its message has failed, which may take half a
/// minute: all that waits for the file would wait for that.
#[test]
fn who_syncs_a_new_file_hears_at_once_that_its_session_has_ended() {
    let ran = Simulation::new(3).run(|world| async move {
        let calls = unanswered(&world);
        {
            let mut stream = calls.streaming.stream.lock();
            stream.reserved(DIRECTORY, 100..101);
            let directory = attributes(DIRECTORY, FileKind::Directory);
            let (text, new) = (name("f"), new_inode(FileKind::File));
            let made = stream.make((&directory, None), (&text, &new), true, world.wall());
            assert_eq!(made.unwrap().attributes.inode, FILE);
            calls.streaming.unlock(stream);
        }
        let publish = Publish {
            inode: FILE,
            extents: Vec::new(),
            size_at_least: 0,
            written: None,
            replaces: None,
        };
        let publishes = OwnerRequest::Execute {
            operation: Operation::Publish(publish),
            stamp: Stamp::own(world.wall(), SESSION),
        };
        let mut syncing = Box::pin(calls.ask(&publishes));
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
