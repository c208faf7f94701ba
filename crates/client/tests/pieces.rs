//! Files of very many pieces, and files that are nearly all hole.

#![allow(clippy::unwrap_used, reason = "tests")]

mod rig;

use client::{Client, OpenFlags, Seek};
use model::{ErrorKind, InodeId, SetAttributes, limits};
use rig::{file, run};

/// Writes `count` single bytes, every second one from `from` on.
async fn write_bytes(client: &Client, inode: InodeId, from: u64, count: u64) {
    for number in 0..count {
        client.write(inode, from + 2 * number, b"x").await.unwrap();
    }
}

#[test]
fn a_seek_passes_the_largest_hole_at_once() {
    run(1, |node| async move {
        let client = &node.client;
        let inode = file(client, "f").await;
        let set = SetAttributes {
            size: Some(limits::FILE_BYTES_MAX),
            ..SetAttributes::default()
        };
        client.set_attributes(inode, set).await.unwrap();
        // What is known of it goes with its last user.
        client.release(inode).await;
        client.open(inode, OpenFlags::default()).await.unwrap();
        let none = client.seek(inode, 0, Seek::Data).await.unwrap_err();
        assert_eq!(none.kind(), ErrorKind::NoSuchDeviceOrAddress);
        let late = 7 << 60;
        client.write(inode, late, b"x").await.unwrap();
        for _ in ["dirty", "published"] {
            assert_eq!(client.seek(inode, 5, Seek::Data).await.unwrap(), late);
            assert_eq!(client.seek(inode, 5, Seek::Hole).await.unwrap(), 5);
            let behind = client.seek(inode, late, Seek::Hole).await.unwrap();
            assert_eq!(behind, late + 1);
            assert!(client.seek(inode, late + 1, Seek::Data).await.is_err());
            client.fsync(inode, false).await.unwrap();
        }
    });
}

#[test]
fn a_seek_passes_more_pieces_than_are_remembered() {
    const COUNT: u64 = 9_000;
    run(2, |node| async move {
        let client = &node.client;
        let inode = file(client, "f").await;
        for from in [0, 1] {
            write_bytes(client, inode, from, COUNT).await;
            client.fsync(inode, false).await.unwrap();
        }
        assert_eq!(client.seek(inode, 0, Seek::Hole).await.unwrap(), 2 * COUNT);
        assert_eq!(client.seek(inode, 7, Seek::Data).await.unwrap(), 7);
        // Every second byte behind that: what is dirty takes turns with what is published.
        write_bytes(client, inode, 2 * COUNT, COUNT).await;
        client.fsync(inode, false).await.unwrap();
        write_bytes(client, inode, 2 * COUNT + 1, COUNT - 1).await;
        let end = 4 * COUNT - 1;
        assert_eq!(client.seek(inode, 0, Seek::Hole).await.unwrap(), end);
    });
}

#[test]
fn seeking_in_what_is_no_file_ends() {
    run(3, |node| async move {
        let refused = node.client.seek(InodeId::ROOT, 0, Seek::Data).await;
        assert!(refused.is_err());
    });
}
