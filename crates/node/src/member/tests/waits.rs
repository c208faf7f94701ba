//! What waits on one node is found on the others: the owner's commit and its disk, a client that gives something back.

use super::*;
use model::{FileKind, InodeId};
use testkit::inodes::{name, new_inode};
use world::{Part, Waiter, Work, errand};

/// How much longer each request to a disk takes: an NSD answers before its caller loses patience.
const SLOW: Duration = Duration::from_secs(2);
/// When it is looked: before a call is given up and made again.
const LOOK_AFTER: Duration = Duration::from_millis(1_500);

async fn client_of(member: &Member) -> Arc<Client> {
    let opened = member.open_client_of(ROOT_SHARD, ClientSettings::default());
    opened.await.unwrap()
}

/// All that waits on both.
fn all_waits(members: &[Arc<Member>; 2]) -> Vec<Waiter> {
    members.iter().flat_map(|it| it.waits().0).collect()
}

#[track_caller]
fn one<'a>(waits: &'a [Waiter], what: &str, is_it: impl Fn(&Waiter) -> bool) -> &'a Waiter {
    let found = waits.iter().find(|it| is_it(it));
    found.unwrap_or_else(|| panic!("{what} isn't in {waits:#?}"))
}

async fn close(world: &World, members: [Arc<Member>; 2], clients: &[Arc<Client>]) {
    for client in clients {
        client.close().await.unwrap();
    }
    until(world, "nothing waits", || all_waits(&members).is_empty()).await;
    for member in members {
        member.close().await.unwrap();
    }
}

#[test]
fn a_program_that_waits_for_another_nodes_disk_is_found_there() {
    let simulation = Simulation::new(1);
    let faults = simulation.faults();
    let run = simulation.run(|world| async move {
        let members = two_members(&world, 1).await;
        members[0].create_shard().await.unwrap();
        let client = client_of(&members[1]).await;
        faults.slow("nsd1", SLOW);
        let making = {
            let client = client.clone();
            async move {
                client
                    .create(InodeId::ROOT, name("file"), new_inode(FileKind::File))
                    .await
            }
        };
        let making = world.spawn("a program", errand::begin(making));
        world.sleep(LOOK_AFTER).await;
        let waits = all_waits(&members);
        let called = one(&waits, "the program's call", |it| {
            let is_to_owner = matches!(
                it.part,
                Part::ForAnswer {
                    node: NodeId(1),
                    ..
                }
            );
            is_to_owner && it.errand.from.is_none() && !it.errand.is_none()
        });
        let served = world::Errand {
            from: Some(NodeId(2)),
            ..called.errand
        };
        let is_served = |part: Part| move |it: &Waiter| it.part == part && it.errand == served;
        one(&waits, "the call there", is_served(Part::Call(OWNER)));
        let commit = Work::Commit(ROOT_SHARD);
        one(&waits, "its wait", is_served(Part::ForWork(commit)));
        let commit = one(&waits, "the commit", |it| it.part == Part::Work(commit));
        let errand = commit.errand;
        one(&waits, "the disk", |it| {
            it.part == Part::ForNsd(NsdId(1)) && it.errand == errand
        });
        faults.heal("nsd1");
        making.await.unwrap();
        close(&world, members, &[client]).await;
    });
    run.finished();
}

#[test]
fn a_program_that_waits_for_what_another_node_gives_back_is_found_there() {
    let simulation = Simulation::new(2);
    let faults = simulation.faults();
    let run = simulation.run(|world| async move {
        let members = two_members(&world, 2).await;
        members[0].create_shard().await.unwrap();
        let reader = client_of(&members[0]).await;
        let writer = client_of(&members[1]).await;
        let made = writer
            .create(InodeId::ROOT, name("file"), new_inode(FileKind::File))
            .await;
        let file = made.unwrap().inode;
        // Too much for a record.
        writer.write(file, 0, &[7; 100_000]).await.unwrap();
        for disk in ["nsd1", "nsd2"] {
            faults.slow(disk, SLOW);
        }
        let looking = {
            let reader = reader.clone();
            async move { reader.get_attributes(file).await }
        };
        let looking = world.spawn("a program", errand::begin(looking));
        world.sleep(LOOK_AFTER).await;
        let waits = all_waits(&members);
        let held = one(&waits, "the holder", |it| {
            let is_it =
                |inode: InodeId, node: Option<NodeId>| inode == file && node == Some(NodeId(2));
            matches!(it.part, Part::ForToken { inode, node, .. } if is_it(inode, node))
        });
        assert!(!held.errand.is_none(), "{held:?}");
        let returning = Part::Work(Work::Return(file));
        let returning = one(&waits, "the return", |it| it.part == returning).errand;
        let storing = Work::Store(Some(file));
        one(&waits, "what that waits for", |it| {
            it.part == Part::ForWork(storing) && it.errand == returning
        });
        let is_at_disk = |it: &Waiter| {
            let stores =
                |work: &Waiter| work.part == Part::Work(storing) && work.errand == it.errand;
            matches!(it.part, Part::ForNsd(_)) && waits.iter().any(stores)
        };
        one(&waits, "the disk", is_at_disk);
        for disk in ["nsd1", "nsd2"] {
            faults.heal(disk);
        }
        let attributes = looking.await.unwrap();
        assert_eq!(attributes.size, 100_000);
        close(&world, members, &[reader, writer]).await;
    });
    run.finished();
}
