//! What an fsync waits for where programs make files under a delegation.

use super::Maker;
use crate::names::messages;
use crate::rig::{self, new_file, run_patient as run};
use futures::future::join;
use std::sync::atomic::Ordering;
use std::time::Duration;
use testkit::inodes::name;

/// Would be broken if who syncs a file waited for those that other programs go on making, as often as they do so.
#[test]
fn an_fsync_waits_for_what_was_made_before_it_began_and_for_nothing_later() {
    run(9_967, |world, node| async move {
        let mut maker = Maker::new(&world, &node).await;
        let (client, directory) = (maker.client.clone(), maker.directory);
        let file = maker.open_one().await;
        client.write(file, 0, b"before").await.unwrap();
        client.fsync(file, false).await.unwrap();
        let make = async |text: &str| {
            let new = client.create_and_open(directory, name(text), new_file());
            new.await.unwrap().inode
        };
        client.write(file, 0, b"after").await.unwrap();
        // Sooner than what is made meanwhile goes by itself.
        maker.way.publish_ms.store(10, Ordering::Relaxed);
        let making = async {
            world.sleep(Duration::from_millis(2)).await;
            make("later").await
        };
        let syncing = messages(&maker.way, client.fsync(file, false));
        let ((synced, asked), later) = join(syncing, making).await;
        synced.unwrap();
        assert_eq!(asked, 1, "what was written");

        let earlier = make("earlier").await;
        let (synced, asked) = messages(&maker.way, client.fsync(file, false)).await;
        synced.unwrap();
        assert_eq!(asked, 1, "both files");
        let (synced, asked) = messages(&maker.way, client.fsync(later, false)).await;
        synced.unwrap();
        assert_eq!(asked, 0, "the owner has answered");
        for inode in [file, later, earlier] {
            client.release(inode).await;
        }
        assert_eq!(rig::read(&node.client, file, 0, 6).await, b"aftere");
        client.close().await.unwrap();
        node.check_and_close().await;
    });
}
