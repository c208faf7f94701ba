//! A node that was alone goes on as a member of a cluster, in the same run.

use super::*;
use crate::{Creation, Node, NodePaths};
use coordination::NodeFacts;
use model::lock::{LockDoor, LockOwner, LockTaker};
use model::{FileKind, InodeId, LockKind, LockRange};
use std::future::Pending;
use testkit::content::content;
use testkit::inodes::{name, new_inode};

const BYTES: usize = 300_000;
const TAKER: LockTaker = LockTaker {
    open: 1,
    pid: 7,
    user: 1,
};

async fn alone(world: &World) -> (Arc<Node>, MemberSettings) {
    let (node, settings) = number("1");
    let paths = NodePaths {
        coordination: PathBuf::from("coordination"),
        nsds: settings.nsds.clone(),
    };
    let creation = Creation {
        scheme: Scheme::Replicate(1),
        nsd_bytes: REGION_BYTES,
        block_bytes: 64 * 1024,
    };
    Node::create(world, &paths, creation).await.unwrap();
    let opened = Node::open(world, &paths, ClientSettings::default());
    let opened = opened.await.unwrap();
    assert_eq!(opened.run().node, node);
    opened.metanode().start_background();
    (opened, settings)
}

/// What a cluster needs beside the facts of the node, in its own store: they needn't move for this.
async fn adopted(node: &Node, settings: &MemberSettings) -> Coordination {
    let facts = NodeFacts {
        node: settings.node,
        name: "n1".into(),
        class: "default".into(),
        is_quorum: false,
        has_authority: false,
        is_barred: false,
        etcd: None,
        address: settings.listen,
        key: [0; 32],
    };
    let store = node.coordination().clone();
    let nsds = settings.nsds.keys().copied();
    Member::adopt(&store, &facts, nsds).await.unwrap();
    store
}

async fn made(client: &Client, text: &str) -> InodeId {
    let made = client.create_and_open(InodeId::ROOT, name(text), new_inode(FileKind::File));
    made.await.unwrap().inode
}

/// The process that has a lock in the way.
async fn in_the_way(client: &Client, inode: InodeId, door: LockDoor) -> Option<u32> {
    let other = LockOwner { door, id: 2 };
    let held = client.get_lock(inode, other, LockRange::ALL, LockKind::Shared);
    held.await.unwrap().map(|held| held.pid)
}

/// Would be broken if programs lost files, names, locks or data when their node becomes the first one of a cluster, or if the
/// regions stayed in use as long as somebody has a part of the node that was alone.
#[test]
fn what_programs_have_open_stays_when_their_node_becomes_a_member() {
    for seed in 0..4 {
        let run = Simulation::new(seed).run(move |world| async move {
            let (node, settings) = alone(&world).await;
            let before = node.client();
            let door = before.begin_lock_door().await.unwrap();
            let (kept, gone) = (made(before, "kept").await, made(before, "gone").await);
            before.unlink(InodeId::ROOT, name("gone")).await.unwrap();
            for (inode, number) in [(kept, 1), (gone, 2)] {
                let bytes = content(number, BYTES);
                before.write(inode, 0, &bytes).await.unwrap();
            }
            let (owner, never) = (LockOwner { door, id: 1 }, None::<Pending<()>>);
            let exclusive = Some(LockKind::Exclusive);
            let set = before.set_lock(kept, owner, LockRange::ALL, exclusive, TAKER, never);
            set.await.unwrap();
            let coordination = adopted(&node, &settings).await;
            let legacy = node.leave().await.unwrap();
            node.close_left().await.unwrap();
            let member = Member::go_on(&world, coordination, settings, node.run()).await;
            let member = member.unwrap();
            assert_eq!(member.run(), node.run());
            let client = member.open_left(legacy, ClientSettings::default()).await;
            let client = client.unwrap();
            for (inode, number) in [(kept, 1), (gone, 2)] {
                let read = client.read(inode, 0, BYTES).await.unwrap().concat();
                assert_eq!(read, content(number, BYTES), "seed {seed}");
                client
                    .write(inode, 0, &content(number + 2, BYTES))
                    .await
                    .unwrap();
                client.fsync(inode, false).await.unwrap();
            }
            // As another node's client sees it.
            let other = member.open_client(ClientSettings::default()).await.unwrap();
            let others = other.begin_lock_door().await.unwrap();
            assert_eq!(in_the_way(&other, kept, others).await, Some(TAKER.pid));
            let read = other.read(kept, 0, BYTES).await.unwrap().concat();
            assert_eq!(read, content(3, BYTES), "seed {seed}");
            assert_eq!(client.losses(), client::Losses::default());
            for client in [client, other] {
                client.close().await.unwrap();
            }
            member.close().await.unwrap();
        });
        run.finished();
    }
}

/// Would be broken if a node went on with what has ended: others may have got it.
#[test]
fn a_member_in_another_run_does_not_go_on_with_what_programs_had_open() {
    let run = Simulation::new(7).run(async |world: World| {
        let (node, settings) = alone(&world).await;
        let gone = made(node.client(), "gone").await;
        let unlinked = node.client().unlink(InodeId::ROOT, name("gone"));
        unlinked.await.unwrap();
        let coordination = adopted(&node, &settings).await;
        let legacy = node.leave().await.unwrap();
        node.close_left().await.unwrap();
        let member = Member::start(&world, coordination, settings).await.unwrap();
        assert_ne!(member.run(), node.run());
        let refused = member.open_left(legacy, ClientSettings::default()).await;
        let refused = refused.err().expect("the session has ended");
        assert_eq!(refused.kind(), ErrorKind::SessionEnded);
        let client = member.open_client(ClientSettings::default()).await.unwrap();
        assert!(client.get_attributes(gone).await.is_err());
        client.close().await.unwrap();
        member.close().await.unwrap();
    });
    run.finished();
}
