//! A client on its owner's node: function calls, answers before they are durable, and what becomes of them when the
//! owner ends.

use crate::rig::near::{Map, run};
use crate::rig::way::{self, RUN, Way};
use crate::rig::{self, Node, content, name, new_file, patient};
use client::{Client, Expired, Kernel, Losses, OpenFlags};
use futures::future::{BoxFuture, select};
use metanode::{Metanode, OwnerLease};
use model::lock::{LockOwner, LockTaker};
use model::operation::Stamp;
use model::owner::OwnerRequest;
use model::{
    Attributes, ErrorKind, InodeId, LockKind, LockRange, NodeId, NodeRun, Operation, Result,
    SetAttributes,
};
use simkernel::{PAGE, PageKernel, SimKernel};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use world::Task;

/// The node that owns the shard next.
const OTHER: NodeRun = NodeRun {
    node: NodeId(2),
    incarnation: 1,
};

const SECOND: Duration = Duration::from_secs(1);

/// A client on a third node, so that nobody is alone.
async fn another(node: &Node) -> (Arc<Client>, Arc<way::Map>) {
    another_of(node, &node.metanode).await
}

async fn another_of(node: &Node, owner: &Arc<Metanode>) -> (Arc<Client>, Arc<way::Map>) {
    let map = way::Map::to(&Way::new(&node.world, owner, 0));
    let (owner, world) = (map.remote_owner(), node.world.clone());
    let session = owner.open_session(&world).await.unwrap();
    let client = Client::new(world, owner, node.pool.clone(), session, patient());
    (client, map)
}

/// Waits until the client has everything.
async fn is_alone(client: &Client) {
    while !client.asked().is_alone() {
        client.world().sleep(SECOND / 100).await;
    }
}

async fn exists(client: &Client, text: &str) -> bool {
    match client.lookup(InodeId::ROOT, name(text)).await {
        Ok(_) => true,
        Err(error) if error.kind() == ErrorKind::NotFound => false,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_client_alone_with_its_owner_waits_for_nothing_and_asks_for_no_token() {
    run(1, OwnerLease::endless(), |node, map| async move {
        let client = &node.client;
        is_alone(client).await;
        let called = map.called.load(Ordering::Relaxed);
        let begun = node.world.now();
        let mut made = Vec::new();
        for number in 0..100 {
            let text = format!("f{number}");
            let inode = rig::file(client, &text).await;
            client
                .write(inode, 0, &content(number, 1_000))
                .await
                .unwrap();
            client.flush(inode).await.unwrap();
            let set = SetAttributes {
                mode: Some(0o600),
                ..SetAttributes::default()
            };
            client.set_attributes(inode, set).await.unwrap();
            assert_eq!(
                rig::read(client, inode, 0, 1_000).await,
                content(number, 1_000)
            );
            client.release(inode).await;
            made.push((text, inode));
        }
        for (text, inode) in made {
            assert_eq!(
                client
                    .lookup(InodeId::ROOT, name(&text))
                    .await
                    .unwrap()
                    .inode,
                inode
            );
            client.open(inode, OpenFlags::default()).await.unwrap();
            client.unlink(InodeId::ROOT, name(&text)).await.unwrap();
            client.release(inode).await;
        }
        assert_eq!(node.metanode.in_use().inodes, 0, "all are closed");
        // No disk, no message and no other task has been waited for.
        assert_eq!(node.world.now(), begun);
        assert_eq!(map.called.load(Ordering::Relaxed), called);
        assert!(!node.metanode.is_clean());
        assert_eq!(client.usable(), [], "it needs no tokens");
        client.sync_all().await.unwrap();
        assert!(node.metanode.is_clean());
        node.check_and_close().await;
    });
}

#[test]
fn another_client_is_shown_nothing_of_it_that_is_not_durable() {
    run(2, OwnerLease::endless(), |node, _| async move {
        let (far, _) = another(&node).await;
        let client = &node.client;
        let directory = rig::file(client, "first").await;
        node.metanode.sync().await.unwrap();
        // A name, attributes and a refusal.
        rig::file(client, "a").await;
        assert!(!node.metanode.is_clean());
        assert!(exists(&far, "a").await);
        assert!(node.metanode.is_clean());
        let set = SetAttributes {
            mode: Some(0o604),
            ..SetAttributes::default()
        };
        client.set_attributes(directory, set).await.unwrap();
        assert!(!node.metanode.is_clean());
        let shown = far.get_attributes(directory).await.unwrap();
        assert_eq!(shown.mode & 0o777, 0o604);
        assert!(node.metanode.is_clean());
        rig::file(client, "b").await;
        assert!(!node.metanode.is_clean());
        let refused = far.create(InodeId::ROOT, name("b"), new_file()).await;
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Exists);
        assert!(node.metanode.is_clean());
        // Bytes.
        client
            .write(directory, 0, &content(1, 3_000))
            .await
            .unwrap();
        client.flush(directory).await.unwrap();
        assert_eq!(
            rig::read(&far, directory, 0, 3_000).await,
            content(1, 3_000)
        );
        assert!(node.metanode.is_clean());
        far.close().await.unwrap();
        node.check_and_close().await;
    });
}

/// Opens, locks and files without names survive; the next owner is on another node, and the one after in the client's
/// process again.
#[test]
fn a_session_goes_on_when_its_owner_gives_the_shard_up() {
    run(3, OwnerLease::endless(), |node, map| async move {
        let (client, session) = (&node.client, node.client.session());
        is_alone(client).await;
        let door = client.begin_lock_door().await.unwrap();
        let locked = rig::file(client, "locked").await;
        let owner = LockOwner { door, id: 1 };
        let taker = LockTaker {
            open: 1,
            pid: 1,
            user: 1,
        };
        let exclusive = LockKind::Exclusive;
        let taking = client.set_lock(
            locked,
            owner,
            LockRange::ALL,
            Some(exclusive),
            taker,
            None::<std::future::Ready<()>>,
        );
        taking.await.unwrap();
        let gone = rig::file(client, "gone").await;
        client.write(gone, 0, &content(1, 100_000)).await.unwrap();
        client.unlink(InodeId::ROOT, name("gone")).await.unwrap();
        let unnamed = client
            .create_unnamed(InodeId::ROOT, new_file())
            .await
            .unwrap()
            .inode;

        let mut owners = vec![node.metanode.clone()];
        for (number, run) in [OTHER, RUN, OTHER].into_iter().enumerate() {
            let before = owners.last().unwrap().clone();
            rig::file(client, &format!("f{number}")).await;
            {
                let _nobody = before.end_alone().await.unwrap();
                assert!(!client.asked().is_alone());
                rig::file(client, &format!("g{number}")).await;
                before.close().await.unwrap();
            }
            assert!(
                before
                    .ask_near(&OwnerRequest::Hold {
                        session,
                        inode: gone
                    })
                    .is_none()
            );
            let next = node.next_owner(run).await;
            match run == RUN {
                true => map.is_near(&next),
                false => map.is_far(&next),
            }
            for text in [format!("f{number}"), format!("g{number}")] {
                assert!(exists(client, &text).await);
            }
            assert_eq!(
                rig::read(client, gone, 0, 100_000).await,
                content(1, 100_000)
            );
            let other = LockOwner { door, id: 2 };
            let held = client
                .get_lock(locked, other, LockRange::ALL, exclusive)
                .await;
            assert_eq!(held.unwrap().unwrap().owner, owner);
            client.get_attributes(unnamed).await.unwrap();
            assert_eq!(
                (client.session(), client.losses()),
                (session, Losses::default())
            );
            owners.push(next);
        }
        for inode in [locked, gone, unnamed] {
            client.release(inode).await;
        }
        client.close().await.unwrap();
        owners.last().unwrap().close().await.unwrap();
    });
}

#[test]
fn a_session_that_keeps_everything_ends_with_its_owner() {
    run(4, OwnerLease::endless(), |node, map| async move {
        let (client, session) = (&node.client, node.client.session());
        is_alone(client).await;
        let inode = rig::file(client, "f").await;
        client.sync_all().await.unwrap();
        client.write(inode, 0, b"only here").await.unwrap();
        node.metanode.close().await.unwrap();
        let next = node.next_owner(OTHER).await;
        map.is_far(&next);
        // Nobody else can change anything until it has heard of it.
        while client.losses().sessions == 0 || client.session() == session {
            node.world.sleep(SECOND / 100).await;
        }
        let lost = client.read(inode, 0, 9).await.unwrap_err();
        assert_eq!(lost.kind(), ErrorKind::SessionEnded);
        let losses = client.losses();
        assert_eq!((losses.sessions, losses.files_with_data), (1, 1));
        client.release(inode).await;
        client.open(inode, OpenFlags::default()).await.unwrap();
        assert_eq!(rig::read(client, inode, 0, 9).await, b"");
        client.release(inode).await;
        // Once, whoever would have taken what was answered for durable hears that it was lost.
        let lost = client.sync_all().await.unwrap_err();
        assert_eq!(lost.kind(), ErrorKind::SessionEnded);
        client.close().await.unwrap();
        next.close().await.unwrap();
    });
}

/// A kernel that hears at once what it must not use any more.
struct Quick;

impl Kernel for Quick {
    fn expire(&self, _: Expired) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// Would be broken if a session went on that has yet to forget what it had without tokens: its next owner lets others
/// change that, and the client would go on reading what was.
#[test]
fn a_session_that_is_giving_everything_back_ends_with_its_owner() {
    run(11, OwnerLease::endless(), |node, map| async move {
        let (client, session) = (&node.client, node.client.session());
        is_alone(client).await;
        // It may use for some seconds what it was answered.
        let kernel: Arc<dyn Kernel> = Arc::new(Quick);
        client.add_kernel(Arc::downgrade(&kernel));
        let inode = rig::file(client, "f").await;
        client.write(inode, 0, b"old").await.unwrap();
        client.sync_all().await.unwrap();
        {
            let given_back = node.world.timeout(SECOND, node.metanode.end_alone());
            assert!(given_back.await.is_err(), "a kernel may use it still");
        }
        assert!(!client.asked().is_alone());
        node.metanode.close().await.unwrap();
        let next = node.next_owner(OTHER).await;
        map.is_far(&next);
        // A program asks the next owner before all is given back.
        assert!(exists(client, "f").await);
        let (far, _) = another_of(&node, &next).await;
        far.open(inode, OpenFlags::default()).await.unwrap();
        far.write(inode, 0, b"new").await.unwrap();
        far.fsync(inode, false).await.unwrap();
        let lost = client.read(inode, 0, 3).await.unwrap_err();
        assert_eq!(lost.kind(), ErrorKind::SessionEnded);
        assert_ne!(client.session(), session);
        client.release(inode).await;
        client.open(inode, OpenFlags::default()).await.unwrap();
        assert_eq!(rig::read(client, inode, 0, 3).await, b"new");
        client.release(inode).await;
        far.release(inode).await;
        far.close().await.unwrap();
        let lost = client.sync_all().await.unwrap_err();
        assert_eq!(lost.kind(), ErrorKind::SessionEnded);
        client.close().await.unwrap();
        next.close().await.unwrap();
    });
}

/// The owner here gives the shard up, and waits for its client as long as a node does; too short. Returns the next one, on
/// another node.
async fn moved(node: &Node, map: &Map) -> Arc<Metanode> {
    let mut ending = pin!(node.metanode.end_alone());
    let given_back = node.world.timeout(SECOND * 10, ending.as_mut()).await;
    assert!(given_back.is_err(), "nothing is left");
    node.metanode.close().await.unwrap();
    let next = node.next_owner(OTHER).await;
    map.is_far(&next);
    next
}

/// Would be broken if what was written without tokens had to be published before a move: with slow disks that may take any
/// time, and programs would lose what they haven't synced.
#[test]
fn what_was_written_alone_and_is_not_published_in_time_is_published_at_the_next_owner() {
    run(12, OwnerLease::endless(), |node, map| async move {
        let (client, session) = (&node.client, node.client.session());
        is_alone(client).await;
        let published = rig::file(client, "published").await;
        client.write(published, 0, b"published").await.unwrap();
        let written = rig::file(client, "written").await;
        client.sync_all().await.unwrap();
        map.no_publishes.store(true, Ordering::Relaxed);
        client
            .write(written, 0, &content(1, 300_000))
            .await
            .unwrap();
        let next = moved(&node, &map).await;
        assert_eq!(
            rig::read(client, written, 0, 300_000).await,
            content(1, 300_000)
        );
        client.write(written, 300_000, b"more").await.unwrap();
        client.fsync(written, false).await.unwrap();
        let (far, _) = another_of(&node, &next).await;
        for inode in [published, written] {
            far.open(inode, OpenFlags::default()).await.unwrap();
        }
        let whole = [&content(1, 300_000)[..], b"more"].concat();
        assert!(rig::read(&far, written, 0, 400_000).await == whole);
        // What it had is under tokens there, or forgotten.
        far.write(published, 0, b"PUBLISHED").await.unwrap();
        far.write(written, 0, b"new").await.unwrap();
        assert_eq!(rig::read(client, published, 0, 9).await, b"PUBLISHED");
        assert_eq!(rig::read(client, written, 0, 3).await, b"new");
        assert_eq!(
            (client.session(), client.losses()),
            (session, Losses::default())
        );
        for inode in [published, written] {
            client.release(inode).await;
            far.release(inode).await;
        }
        far.close().await.unwrap();
        client.close().await.unwrap();
        next.close().await.unwrap();
    });
}

/// As before, of pages that were changed in mappings: a kernel writes them back one by one.
#[test]
fn what_a_kernel_has_not_written_back_in_time_goes_on_to_the_next_owner() {
    run(13, OwnerLease::endless(), |node, map| async move {
        const MANY: usize = 6_000;
        const PART: usize = 256 * PAGE;
        let (client, session) = (&node.client, node.client.session());
        is_alone(client).await;
        let file = rig::file(client, "f").await;
        client.write(file, 0, &vec![1; MANY * PAGE]).await.unwrap();
        client.sync_all().await.unwrap();
        let kernel = PageKernel::before(client);
        let open = kernel.open(file, true).await.unwrap();
        kernel.fill_with(&open, 0..MANY as u64, 2).await;
        let next = moved(&node, &map).await;
        assert!(kernel.has(file, MANY as u64 - 1), "all are written back");
        let (far, _) = another_of(&node, &next).await;
        for at in (0..MANY * PAGE).step_by(PART) {
            let length = PART.min(MANY * PAGE - at);
            let read = rig::read(&far, file, at as u64, length).await;
            assert!(read == vec![2; length], "from {at}");
        }
        assert_eq!(kernel.lost.load(Ordering::Relaxed), 0);
        assert_eq!(
            (client.session(), client.losses()),
            (session, Losses::default())
        );
        kernel.close(open).await;
        client.release(file).await;
        far.close().await.unwrap();
        client.close().await.unwrap();
        next.close().await.unwrap();
    });
}

/// Would be broken if it was let in as soon as tokens are used: what it wants would have to be given back in less time than
/// slow disks may need.
#[test]
fn a_second_client_is_let_in_when_all_that_was_written_alone_is_published() {
    run(14, OwnerLease::endless(), |node, map| async move {
        let client = &node.client;
        is_alone(client).await;
        let inode = rig::file(client, "f").await;
        map.no_publishes.store(true, Ordering::Relaxed);
        client.write(inode, 0, &content(1, 300_000)).await.unwrap();
        let far = {
            let mut opening = pin!(another(&node));
            let early = node.world.timeout(SECOND * 20, opening.as_mut()).await;
            assert!(early.is_err(), "it is there");
            assert!(!client.asked().is_alone());
            // Its own programs go on.
            client.write(inode, 0, b"new").await.unwrap();
            map.no_publishes.store(false, Ordering::Relaxed);
            opening.await.0
        };
        let whole = [&b"new"[..], &content(1, 300_000)[3..]].concat();
        assert!(rig::read(&far, inode, 0, 400_000).await == whole);
        assert_eq!(client.losses(), Losses::default());
        client.release(inode).await;
        far.close().await.unwrap();
        node.check_and_close().await;
    });
}

/// The owner is replaced while it and its clients live: its log is sealed by another node.
async fn replaced(node: &Node, maps: (&Map, &way::Map), syncs: bool) -> Arc<Metanode> {
    let client = &node.client;
    rig::file(client, "lost").await;
    if syncs {
        client.sync_all().await.unwrap();
    }
    assert_eq!(node.metanode.is_clean(), syncs);
    let next = node.next_owner(OTHER).await;
    maps.0.is_far(&next);
    *maps.1.owner.lock() = Some(Way::new(&node.world, &next, 0));
    next
}

#[test]
fn a_session_ends_with_an_owner_that_loses_what_it_answered() {
    run(5, OwnerLease::endless(), |node, map| async move {
        let (far, far_map) = another(&node).await;
        let (client, session) = (&node.client, node.client.session());
        let kept = rig::file(client, "kept").await;
        client.write(kept, 0, b"kept").await.unwrap();
        client.sync_all().await.unwrap();
        let next = replaced(&node, (&map, &far_map), false).await;
        assert!(!exists(client, "lost").await);
        assert_ne!(client.session(), session);
        assert_eq!(client.losses().sessions, 1);
        // Programs hear of it where they have something open, and once where they sync and would hear nothing.
        let told = client.read(kept, 0, 4).await.unwrap_err();
        assert_eq!(told.kind(), ErrorKind::SessionEnded);
        let told = client.fsync(kept, false).await.unwrap_err();
        assert_eq!(told.kind(), ErrorKind::SessionEnded);
        client.settle().await.unwrap();
        let told = client.fsync(InodeId::ROOT, false).await.unwrap_err();
        assert_eq!(told.kind(), ErrorKind::SessionEnded);
        client.fsync(InodeId::ROOT, false).await.unwrap();
        client.release(kept).await;
        client.open(kept, OpenFlags::default()).await.unwrap();
        assert_eq!(rig::read(client, kept, 0, 4).await, b"kept");
        // The next owner has heard that the session before is over: nobody waits for it.
        node.world.sleep(SECOND).await;
        assert_eq!(next.in_use().sessions, 2);
        client.release(kept).await;
        far.close().await.unwrap();
        client.close().await.unwrap();
        next.close().await.unwrap();
    });
}

#[test]
fn a_session_goes_on_although_its_owner_is_replaced_if_all_that_it_was_shown_is_durable() {
    run(6, OwnerLease::endless(), |node, map| async move {
        let (far, far_map) = another(&node).await;
        let (client, session) = (&node.client, node.client.session());
        let inode = rig::file(client, "kept").await;
        client.write(inode, 0, &content(3, 50_000)).await.unwrap();
        let next = replaced(&node, (&map, &far_map), true).await;
        // What was written since is in the client, under its tokens.
        client.write(inode, 0, &content(4, 50_000)).await.unwrap();
        assert!(exists(client, "lost").await);
        client.fsync(inode, false).await.unwrap();
        assert_eq!(
            rig::read(client, inode, 0, 50_000).await,
            content(4, 50_000)
        );
        assert_eq!(
            (client.session(), client.losses()),
            (session, Losses::default())
        );
        client.release(inode).await;
        far.close().await.unwrap();
        client.close().await.unwrap();
        next.close().await.unwrap();
    });
}

/// What is cached isn't answered either: another node may own the shard by then, and have other clients.
#[test]
fn nothing_is_answered_after_the_lease_of_the_node() {
    let lease = OwnerLease::not_yet();
    run(7, lease.clone(), |node, _| async move {
        let client = &node.client;
        is_alone(client).await;
        let inode = rig::file(client, "f").await;
        client.write(inode, 0, b"cached").await.unwrap();
        assert_eq!(rig::read(client, inode, 0, 6).await, b"cached");
        node.world.sleep(lease.rest(&node.world)).await;
        let changes = node.metanode.hosted().changes();
        let read = client.read(inode, 0, 6);
        assert!(node.world.timeout(SECOND * 5, read).await.is_err());
        let looked = client.lookup(InodeId::ROOT, name("f"));
        assert!(node.world.timeout(SECOND * 5, looked).await.is_err());
        let locks = client.begin_lock_door();
        assert!(node.world.timeout(SECOND * 5, locks).await.is_err());
        {
            let made = pin!(client.create(InodeId::ROOT, name("g"), new_file()));
            let opened = pin!(client.create_and_open(InodeId::ROOT, name("h"), new_file()));
            let either = node.world.timeout(SECOND * 5, select(made, opened));
            assert!(either.await.is_err());
        }
        assert_eq!(
            node.metanode.hosted().changes(),
            changes,
            "nothing was done"
        );
        lease.extend(node.world.now() + SECOND * 3600);
        assert_eq!(rig::read(client, inode, 0, 6).await, b"cached");
        assert_eq!(client.losses(), Losses::default());
        client.release(inode).await;
        node.check_and_close().await;
    });
}

/// Waits until so many inodes are in use.
async fn until_used(node: &Node, inodes: usize) {
    while node.metanode.in_use().inodes != inodes {
        node.world.sleep(SECOND / 1_000).await;
    }
}

/// A program that makes and opens a file.
fn making(node: &Node, text: &str) -> Task<Result<Attributes>> {
    let (client, text) = (node.client.clone(), name(text));
    let making = async move {
        client
            .create_and_open(InodeId::ROOT, text, new_file())
            .await
    };
    node.world.spawn("a program", making)
}

async fn inodes(client: &Client) -> u64 {
    client.usage(InodeId::ROOT).await.unwrap().inodes
}

/// Would be broken if the use of what was made began or ended with its answer.
#[test]
fn a_file_that_is_made_open_and_answered_late_is_open_then_or_closed_if_nobody_waits() {
    run(8, OwnerLease::endless(), |node, map| async move {
        let client = &node.client;
        is_alone(client).await;
        let there = inodes(client).await;
        map.late.store(true, Ordering::Relaxed);
        let making = making(&node, "f");
        until_used(&node, 1).await;
        let unlink = Operation::Unlink {
            directory: InodeId::ROOT,
            name: name("f"),
        };
        let stamp = Stamp::own(node.world.wall(), client.session());
        node.metanode.execute(&unlink, &stamp).await.unwrap();
        map.late.store(false, Ordering::Relaxed);
        let file = making.await.unwrap().inode;
        client.write(file, 0, &content(1, 5_000)).await.unwrap();
        client.fsync(file, false).await.unwrap();
        assert_eq!(rig::read(client, file, 0, 5_000).await, content(1, 5_000));
        client.release(file).await;
        assert_eq!(inodes(client).await, there);

        map.late.store(true, Ordering::Relaxed);
        let killed = client.create_and_open(InodeId::ROOT, name("killed"), new_file());
        assert!(node.world.timeout(SECOND, killed).await.is_err());
        assert_eq!(node.metanode.in_use().inodes, 1);
        map.late.store(false, Ordering::Relaxed);
        until_used(&node, 0).await;
        client.unlink(InodeId::ROOT, name("killed")).await.unwrap();
        assert_eq!(inodes(client).await, there);
        node.check_and_close().await;
    });
}

/// Would be broken if a program waited for as long as its owner does, which has other limits.
#[test]
fn a_change_that_was_done_and_is_not_answered_is_unknown_when_patience_ends() {
    run(12, OwnerLease::endless(), |node, map| async move {
        let client = &node.client;
        is_alone(client).await;
        let patience = patient().patience;
        map.late.store(true, Ordering::Relaxed);
        for opened in [false, true] {
            let begun = node.world.now();
            let made = async {
                match opened {
                    false => client.create(InodeId::ROOT, name("f"), new_file()).await,
                    true => {
                        let made = client.create_and_open(InodeId::ROOT, name("g"), new_file());
                        made.await
                    }
                }
            };
            let made = node.world.timeout(patience * 2, made).await;
            let unknown = made.expect("patience ends").unwrap_err();
            assert_eq!(unknown.kind(), ErrorKind::Unknown);
            let waited = node.world.now() - begun;
            assert!(
                waited >= patience && waited < patience + SECOND,
                "{waited:?}"
            );
        }
        map.late.store(false, Ordering::Relaxed);
        // They can't be undone, and nobody has one of them open.
        until_used(&node, 0).await;
        for text in ["f", "g"] {
            assert!(exists(client, text).await);
            client.unlink(InodeId::ROOT, name(text)).await.unwrap();
        }
        assert_eq!(client.losses(), Losses::default());
        node.check_and_close().await;
    });
}

/// The next owner hasn't heard of what was done in the last moment: it isn't open there, or is opened there anew.
#[test]
fn what_an_owner_may_not_answer_gives_way_to_the_next_owner() {
    run(9, OwnerLease::endless(), |node, map| async move {
        let (far, far_map) = another(&node).await;
        let (client, session) = (&node.client, node.client.session());
        let kept = client
            .create(InodeId::ROOT, name("kept"), new_file())
            .await
            .unwrap()
            .inode;
        client.sync_all().await.unwrap();
        map.late.store(true, Ordering::Relaxed);
        let making = making(&node, "made");
        let it = client.clone();
        let opening = async move { it.open(kept, OpenFlags::default()).await };
        let opening = node.world.spawn("a program", opening);
        until_used(&node, 2).await;
        node.metanode.sync().await.unwrap();
        let next = node.next_owner(OTHER).await;
        map.is_far(&next);
        *far_map.owner.lock() = Some(Way::new(&node.world, &next, 0));
        // The owner that would say so is over.
        let unknown = making.await.unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::Unknown);
        opening.await.unwrap();
        assert!(exists(client, "made").await);
        assert_eq!(next.in_use().inodes, 1);
        client.release(kept).await;
        assert_eq!(next.in_use().inodes, 0);
        assert_eq!(
            (client.session(), client.losses()),
            (session, Losses::default())
        );
        far.close().await.unwrap();
        client.close().await.unwrap();
        next.close().await.unwrap();
    });
}

fn sets_attributes(operation: &Operation) -> bool {
    matches!(operation, Operation::SetAttributes { .. })
}

/// Would be broken if a kernel got an error when programs lose their patience: it drops what it can't write back.
#[test]
fn a_write_back_waits_for_an_undecided_truncate_as_long_as_the_session_lasts() {
    run(15, OwnerLease::endless(), |node, map| async move {
        let client = &node.client;
        is_alone(client).await;
        let file = rig::file(client, "f").await;
        client.write(file, 0, &content(1, 5_000)).await.unwrap();
        client.fsync(file, false).await.unwrap();
        *map.held_up.lock() = Some(sets_attributes);
        let shorter = SetAttributes {
            size: Some(1_000),
            ..SetAttributes::default()
        };
        let given_up = client.set_attributes(file, shorter);
        assert!(node.world.timeout(SECOND, given_up).await.is_err());
        assert!(client.asked().is_alone());
        {
            let mut written = pin!(client.write_back(file, 0, b"kernel's"));
            let early = node.world.timeout(patient().patience * 3, written.as_mut());
            assert!(early.await.is_err(), "it isn't over");
            *map.held_up.lock() = None;
            written.await.unwrap();
        }
        client.fsync(file, false).await.unwrap();
        let whole = [&b"kernel's"[..], &content(1, 1_000)[8..]].concat();
        assert!(rig::read(client, file, 0, 5_000).await == whole);
        client.release(file).await;
        node.check_and_close().await;
    });
}

/// Would be broken if only what others change were told to this node's kernel.
#[test]
fn a_kernel_hears_of_a_chmod_that_runs_when_its_program_has_given_up() {
    run(16, OwnerLease::endless(), |node, map| async move {
        let client = &node.client;
        is_alone(client).await;
        let file = rig::file(client, "f").await;
        let kernel = SimKernel::before(client);
        *map.held_up.lock() = Some(sets_attributes);
        let private = SetAttributes {
            mode: Some(0o600),
            ..SetAttributes::default()
        };
        let given_up = client.set_attributes(file, private);
        assert!(node.world.timeout(SECOND, given_up).await.is_err());
        for _ in 0..2 {
            let kept = kernel.stat_open(file).await.unwrap();
            assert_eq!(kept.mode & 0o777, 0o644);
        }
        assert_eq!(kernel.asked.load(Ordering::Relaxed), 1, "it is kept");
        *map.held_up.lock() = None;
        let is_private = |shown: Attributes| shown.mode & 0o777 == 0o600;
        while !is_private(client.get_attributes(file).await.unwrap()) {
            node.world.sleep(SECOND / 1_000).await;
        }
        let heard = async {
            while !is_private(kernel.stat_open(file).await.unwrap()) {
                node.world.sleep(SECOND / 1_000).await;
            }
        };
        let in_time = node.world.timeout(SECOND / 2, heard).await;
        assert!(in_time.is_ok(), "it goes on with what it kept");
        client.release(file).await;
        node.check_and_close().await;
    });
}

/// While a client has everything, nobody keeps account of what its kernel has.
#[test]
fn a_kernel_drops_what_a_truncate_cuts_that_runs_when_its_program_has_given_up() {
    run(17, OwnerLease::endless(), |node, map| async move {
        let client = &node.client;
        is_alone(client).await;
        let file = rig::file(client, "f").await;
        client.write(file, 0, &content(1, PAGE)).await.unwrap();
        client.fsync(file, false).await.unwrap();
        let kernel = PageKernel::before(client);
        let open = kernel.open(file, false).await.unwrap();
        kernel.touch(&open, 0, false, |_| ()).await.unwrap();
        *map.held_up.lock() = Some(sets_attributes);
        let empty = SetAttributes {
            size: Some(0),
            ..SetAttributes::default()
        };
        let given_up = client.set_attributes(file, empty);
        assert!(node.world.timeout(SECOND, given_up).await.is_err());
        assert!(kernel.has(file, 0));
        *map.held_up.lock() = None;
        // It waits until it is known what is there.
        assert!(rig::read(client, file, 0, PAGE).await.is_empty());
        let dropped = async {
            while kernel.has(file, 0) {
                node.world.sleep(SECOND / 1_000).await;
            }
        };
        let in_time = node.world.timeout(SECOND * 5, dropped).await;
        assert!(in_time.is_ok(), "programs still see it");
        kernel.close(open).await;
        client.release(file).await;
        node.check_and_close().await;
    });
}

/// Would be broken if what is written later went nowhere at the last close, as what is written to a file without a name.
#[test]
fn what_is_written_to_a_file_that_may_have_a_name_is_kept() {
    run(18, OwnerLease::endless(), |node, map| async move {
        let client = &node.client;
        is_alone(client).await;
        let made = client.create_unnamed(InodeId::ROOT, new_file()).await;
        let file = made.unwrap().inode;
        map.late.store(true, Ordering::Relaxed);
        let linked = client.link(file, InodeId::ROOT, name("f")).await;
        assert_eq!(linked.unwrap_err().kind(), ErrorKind::Unknown);
        map.late.store(false, Ordering::Relaxed);
        client.write(file, 0, b"new").await.unwrap();
        client.release(file).await;
        assert_eq!(rig::read(client, file, 0, 3).await, b"new");
        node.check_and_close().await;
    });
}
