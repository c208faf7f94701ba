//! What nobody waits for any more may still run. It must not run after what was done later.

use crate::rig::way::{Way, Which, client_through};
use crate::rig::{self, Node, run_patient as run};
use client::{Allocate, Client, OpenFlags};
use futures::future::{Either, join, select};
use model::operation::{RenameMode, XattrMode};
use model::{ErrorKind, InodeId, Operation, Privileges, SetAttributes};
use simkernel::{PageKernel, SimKernel};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use testkit::errands::killed_after;
use world::World;

const MS: Duration = Duration::from_millis(1);

/// A client on another node has written to a file, and nothing that it publishes arrives.
async fn cut_off(node: &Node) -> (Arc<Way>, Arc<Client>, InodeId) {
    let way = Way::new(&node.world, &node.metanode, 0);
    let far = client_through(node, &way).await;
    let file = rig::file(&node.client, "f").await;
    far.open(file, OpenFlags::default()).await.unwrap();
    far.write(file, 0, b"old").await.unwrap();
    way.no_publishes.store(true, Ordering::Relaxed);
    (way, far, file)
}

/// The request is asked for once more, which is lost, and again after a while. Before that others of the file arrive.
async fn go_on(world: &World, node: Node, way: &Way, far: &Client, file: InodeId) {
    world.sleep(MS).await;
    way.no_publishes.store(false, Ordering::Relaxed);
    *way.loses.lock() = None;
    far.fsync(file, false).await.unwrap();
    far.write(file, 0, b"new").await.unwrap();
    far.fsync(file, false).await.unwrap();
    world.sleep(Duration::from_secs(60)).await;
    assert_eq!(rig::read(&node.client, file, 0, 3).await, b"new");
    far.release(file).await;
    far.close().await.unwrap();
    node.check_and_close().await;
}

/// A client on another node has synced what it wrote to a file, and none of these requests of it arrives.
async fn unheard(node: &Node, which: Which) -> (Arc<Way>, Arc<Client>, InodeId) {
    let way = Way::new(&node.world, &node.metanode, 0);
    let far = client_through(node, &way).await;
    let file = rig::file(&node.client, "f").await;
    far.open(file, OpenFlags::default()).await.unwrap();
    far.write(file, 0, b"old").await.unwrap();
    far.fsync(file, false).await.unwrap();
    *way.loses.lock() = Some(which);
    (way, far, file)
}

/// A program gives up what it asks for, when that is under way.
async fn give_up<T>(way: &Way, asking: impl Future<Output = T>) {
    let asking = pin!(asking);
    let lost = pin!(way.until_lost());
    let given_up = select(asking, lost).await;
    assert!(matches!(given_up, Either::Right(_)), "it was answered");
}

fn sets_attributes(operation: &Operation) -> bool {
    matches!(operation, Operation::SetAttributes { .. })
}

fn sets_xattrs(operation: &Operation) -> bool {
    matches!(operation, Operation::SetXattr { .. })
}

fn changes_ranges(operation: &Operation) -> bool {
    matches!(operation, Operation::ChangeRange { .. })
}

fn shares(operation: &Operation) -> bool {
    matches!(operation, Operation::Share { .. })
}

fn changes_names(operation: &Operation) -> bool {
    matches!(
        operation,
        Operation::Unlink { .. } | Operation::Rename { .. }
    )
}

fn empty() -> SetAttributes {
    SetAttributes {
        size: Some(0),
        ..SetAttributes::default()
    }
}

fn mode(mode: u32) -> SetAttributes {
    SetAttributes {
        mode: Some(mode),
        ..SetAttributes::default()
    }
}

/// Would be broken if the end of a program's patience were taken for a failure of the file that it was publishing.
#[test]
fn who_waits_for_what_a_killed_program_was_publishing_hears_no_error() {
    run(9_569, |world, node| async move {
        let (way, far, file) = cut_off(&node).await;
        let killed = async {
            let synced = killed_after(&world, MS * 2, far.fsync(file, false)).await;
            way.no_publishes.store(false, Ordering::Relaxed);
            synced.unwrap_err().kind()
        };
        let (killed, other) = join(killed, far.fsync(file, false)).await;
        assert_eq!(killed, ErrorKind::Interrupted);
        other.unwrap();
        go_on(&world, node, &way, &far, file).await;
    });
}

#[test]
fn a_publish_that_nobody_waits_for_replaces_nothing_newer() {
    run(9_570, |world, node| async move {
        let (way, far, file) = cut_off(&node).await;
        let given_up = world.timeout(MS, far.fsync(file, false)).await;
        assert!(given_up.is_err());
        go_on(&world, node, &way, &far, file).await;
    });
}

#[test]
fn a_publish_that_took_too_long_replaces_nothing_newer() {
    run(9_571, |world, node| async move {
        let (way, far, file) = cut_off(&node).await;
        let unknown = far.fsync(file, false).await.unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::Unknown);
        go_on(&world, node, &way, &far, file).await;
    });
}

#[test]
fn a_truncate_that_nobody_waits_for_cuts_nothing_newer() {
    run(9_572, |world, node| async move {
        let (way, far, file) = unheard(&node, sets_attributes).await;
        give_up(&way, far.set_attributes(file, empty())).await;
        go_on(&world, node, &way, &far, file).await;
    });
}

#[test]
fn a_truncate_that_took_too_long_cuts_nothing_newer() {
    run(9_573, |world, node| async move {
        let (way, far, file) = unheard(&node, sets_attributes).await;
        let unknown = far.set_attributes(file, empty()).await.unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::Unknown);
        go_on(&world, node, &way, &far, file).await;
    });
}

#[test]
fn a_punch_that_nobody_waits_for_removes_nothing_newer() {
    run(9_574, |world, node| async move {
        let (way, far, file) = unheard(&node, changes_ranges).await;
        give_up(&way, far.allocate(file, Allocate::Punch, 0, 3)).await;
        go_on(&world, node, &way, &far, file).await;
    });
}

#[test]
fn a_copy_that_took_too_long_replaces_nothing_newer() {
    run(9_575, |world, node| async move {
        let source = rig::file(&node.client, "source").await;
        node.client.write(source, 0, b"src").await.unwrap();
        node.client.fsync(source, false).await.unwrap();
        let (way, far, file) = unheard(&node, shares).await;
        let unknown = far.copy_range(source, 0, file, 0, 3).await.unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::Unknown);
        go_on(&world, node, &way, &far, file).await;
    });
}

#[test]
fn others_get_a_file_whose_truncate_is_undecided_and_its_own_programs_wait() {
    run(9_576, |world, node| async move {
        let (way, far, file) = unheard(&node, sets_attributes).await;
        give_up(&way, far.set_attributes(file, empty())).await;
        let written = world.timeout(10 * MS, far.write(file, 0, b"far")).await;
        assert!(written.is_err(), "it would be cut");
        let read = world.timeout(10 * MS, far.read(file, 0, 3)).await;
        assert!(read.is_err(), "nobody knows what is there");
        let again = world.timeout(10 * MS, far.set_attributes(file, empty()));
        assert!(again.await.is_err(), "it could run first");
        node.client.write(file, 0, b"near").await.unwrap();
        node.client.fsync(file, false).await.unwrap();
        go_on(&world, node, &way, &far, file).await;
    });
}

#[test]
fn attributes_that_nobody_waits_for_replace_no_newer_ones() {
    run(9_577, |world, node| async move {
        let (way, far, file) = unheard(&node, sets_attributes).await;
        give_up(&way, far.set_attributes(file, mode(0o600))).await;
        *way.loses.lock() = None;
        far.set_attributes(file, mode(0o640)).await.unwrap();
        way.lost.store(0, Ordering::Relaxed);
        *way.loses.lock() = Some(sets_xattrs);
        let name = b"user.a";
        give_up(&way, far.set_xattr(file, name, b"old", XattrMode::Set)).await;
        *way.loses.lock() = None;
        far.set_xattr(file, name, b"new", XattrMode::Set)
            .await
            .unwrap();
        world.sleep(Duration::from_secs(60)).await;
        let attributes = node.client.get_attributes(file).await.unwrap();
        assert_eq!(attributes.mode & 0o7777, 0o640);
        let value = node.client.get_xattr(file, name).await.unwrap();
        assert_eq!(&value[..], b"new");
        far.release(file).await;
        far.close().await.unwrap();
        node.check_and_close().await;
    });
}

/// Would be broken if the file were still known to have no privileges: who writes next would leave them.
#[test]
fn a_write_takes_the_privileges_that_a_given_up_chmod_grants() {
    run(9_578, |_world, node| async move {
        let (way, far, file) = unheard(&node, sets_attributes).await;
        let by_others = Privileges::Drop { group: None };
        assert!(!far.drop_privileges(file, by_others).await.unwrap());
        give_up(&way, far.set_attributes(file, mode(0o4755))).await;
        *way.loses.lock() = None;
        assert!(far.drop_privileges(file, by_others).await.unwrap());
        let attributes = node.client.get_attributes(file).await.unwrap();
        assert_eq!(attributes.mode & 0o7777, 0o755);
        far.release(file).await;
        far.close().await.unwrap();
        node.check_and_close().await;
    });
}

/// Would be broken if each of the file's other events let the wait begin anew.
#[test]
fn a_write_waits_for_an_undecided_truncate_as_long_as_programs_do() {
    run(9_579, |world, node| async move {
        let (way, far, file) = unheard(&node, sets_attributes).await;
        give_up(&way, far.set_attributes(file, empty())).await;
        let pages = pin!(async {
            for _ in 0..20 {
                world.sleep(Duration::from_secs(40)).await;
                far.write_back(file, 0, b"ker").await.unwrap();
                far.fsync(file, false).await.unwrap();
            }
        });
        let writing = pin!(far.write(file, 0, b"new"));
        let Either::Left((written, _)) = select(writing, pages).await else {
            panic!("it waits for ever");
        };
        assert_eq!(written.unwrap_err().kind(), ErrorKind::Unavailable);
        go_on(&world, node, &way, &far, file).await;
    });
}

/// Would be broken if only who is answered told its kernel: the owner recalls nothing from who changes something itself.
#[test]
fn a_kernel_drops_what_a_given_up_truncate_cuts_late() {
    run(9_580, |world, node| async move {
        let (way, far, file) = unheard(&node, sets_attributes).await;
        let kernel = PageKernel::before(&far);
        let open = kernel.open(file, false).await.unwrap();
        let seen = kernel.touch(&open, 0, false, |bytes| bytes.to_vec());
        assert_eq!(seen.await.unwrap(), b"old");
        give_up(&way, far.set_attributes(file, empty())).await;
        assert!(kernel.has(file, 0));
        *way.loses.lock() = None;
        // It waits until it is known what is there.
        assert!(rig::read(&far, file, 0, 3).await.is_empty());
        let dropped = async {
            while kernel.has(file, 0) {
                world.sleep(MS).await;
            }
        };
        let in_time = world.timeout(Duration::from_secs(5), dropped).await;
        assert!(in_time.is_ok(), "programs still see it");
        kernel.close(open).await;
        far.release(file).await;
        far.close().await.unwrap();
        node.check_and_close().await;
    });
}

/// Would be broken if the kernel went on with names that it keeps: the owner recalls nothing from who changes them itself.
#[test]
fn a_kernel_forgets_the_names_that_given_up_changes_move_and_remove_late() {
    const ROOT: InodeId = InodeId::ROOT;
    run(9_581, |world, node| async move {
        let way = Way::new(&world, &node.metanode, 0);
        let far = client_through(&node, &way).await;
        let kernel = SimKernel::before(&far);
        let [first, second] = ["first", "second"].map(rig::name);
        far.create(ROOT, first.clone(), rig::new_file())
            .await
            .unwrap();
        for (old, new) in [(&first, Some(&second)), (&second, None)] {
            // Until the kernel needn't ask for it.
            let asked = || kernel.asked.load(Ordering::Relaxed);
            loop {
                let before = asked();
                kernel.stat(ROOT, old).await.unwrap();
                if asked() == before {
                    break;
                }
                world.sleep(MS).await;
            }
            way.lost.store(0, Ordering::Relaxed);
            *way.loses.lock() = Some(changes_names);
            match new {
                Some(new) => {
                    let mode = RenameMode::Replace;
                    let renamed = far.rename(ROOT, old.clone(), ROOT, new.clone(), mode);
                    give_up(&way, renamed).await;
                }
                None => give_up(&way, far.unlink(ROOT, old.clone())).await,
            }
            *way.loses.lock() = None;
            let forgotten = async {
                while kernel.stat(ROOT, old).await.is_ok() {
                    world.sleep(MS).await;
                }
            };
            let in_time = world.timeout(Duration::from_secs(1), forgotten).await;
            assert!(in_time.is_ok(), "programs still see it");
            if let Some(new) = new {
                kernel.stat(ROOT, new).await.unwrap();
            }
        }
        far.close().await.unwrap();
        node.check_and_close().await;
    });
}
