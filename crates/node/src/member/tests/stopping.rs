//! A cluster whose nodes all end: its shards stay where they are, and nobody becomes the manager.

use super::*;
use model::{FileKind, InodeId};
use testkit::inodes::{name, new_inode};

/// Longer than all leases.
const LONG: Duration = Duration::from_secs(30);

/// Would be broken if nodes that end one after the other handed their shards to those that are left, or were expelled by
/// them; and if the cluster had to wait for the old manager's place when it starts again.
#[test]
fn a_cluster_that_stops_moves_no_shard_expels_nobody_and_starts_again() {
    let run = Simulation::new(7).run(|world| async move {
        let store = Simulated::new(&world, 7);
        let [first, second] = two_members_with(&world, &store).await;
        first.create_shard().await.unwrap();
        until(&world, "it is served", || first.hosted().is_some()).await;
        let settings = ClientSettings::default;
        let opened = second.open_client_of(ROOT_SHARD, settings());
        let client = opened.await.unwrap();
        let file = || name("file");
        let made = client.create(InodeId::ROOT, file(), new_inode(FileKind::File));
        let made = made.await.unwrap();
        client.close().await.unwrap();
        drop(client);

        let members = [&first, &second];
        let is_manager = || members.iter().any(|it| it.is_manager());
        until(&world, "somebody is the manager", is_manager).await;
        for member in members {
            member.close_shards().await;
            assert_eq!(member.hosted_shards(), []);
        }
        // Whoever is the manager sees nothing to do.
        world.sleep(LONG).await;
        for member in members {
            member.retire().await;
        }
        until(&world, "the place is free", || {
            first.roster().manager.is_none()
        })
        .await;
        world.sleep(LONG).await;
        assert!(first.roster().manager.is_none(), "and nobody takes it");
        let roster = first.roster();
        assert_eq!(roster.assigned(ROOT_SHARD), Some(first.run()));
        let known = &roster.membership.as_ref().unwrap().value;
        assert!(members.iter().all(|it| known.is_member(it.run())));
        assert_eq!(second.hosted_shards(), []);
        assert!(!second.is_over(first.run()).await);
        first.close().await.unwrap();
        assert!(second.is_over(first.run()).await);
        second.close().await.unwrap();
        drop((first, second));

        let mut again = Vec::new();
        for (node, settings) in ["1", "2"].map(number) {
            let coordination = store.connect(node, &world);
            again.push(Member::start(&world, coordination, settings).await.unwrap());
        }
        let opened = again[1].open_client_of(ROOT_SHARD, settings());
        let client = opened.await.unwrap();
        let found = client.lookup(InodeId::ROOT, file()).await.unwrap();
        assert_eq!(found.inode, made.inode);
        client.close().await.unwrap();
        for member in again {
            member.close().await.unwrap();
        }
    });
    run.finished();
}
