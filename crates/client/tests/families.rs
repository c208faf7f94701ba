//! Two families of one shard, used by one client.

use crate::rig::{Node, Place, content, name, new_file, read, run, settings};
use client::Client;
use metanode::CheckOptions;
use model::{FamilyId, InodeId};
use world::sim::Simulation;

const OTHER: FamilyId = FamilyId(1);
const FILES: u64 = 60;
const BYTES: u64 = 4000;

/// Files of both families, written in turns.
async fn write_files(client: &Client) -> Vec<InodeId> {
    let mut files = Vec::new();
    for number in 0..FILES {
        let root = FamilyId((number % 2) as u32).root();
        let created = client.create_and_open(root, name(&format!("f{number}")), new_file());
        let inode = created.await.unwrap().inode;
        assert_eq!(inode.fileset().family(), FamilyId((number % 2) as u32));
        let bytes = content(number, BYTES as usize);
        client.write(inode, 0, &bytes).await.unwrap();
        files.push(inode);
    }
    client.sync_all().await.unwrap();
    files
}

async fn check(node: &Node, files: &[InodeId]) {
    for (number, inode) in files.iter().enumerate() {
        let read = read(&node.client, *inode, 0, BYTES as usize).await;
        assert_eq!(
            read,
            content(number as u64, BYTES as usize),
            "file {number}"
        );
    }
    let report = node.metanode.check(CheckOptions { deep: true }).await;
    assert!(report.unwrap().faults.is_empty());
}

/// Small files are packed while both families have some; each pack must be of one family, and what one
/// family removes takes nothing of the other.
#[test]
fn packs_are_of_one_family() {
    run(61, |node| async move {
        node.metanode.add_family(OTHER).await.unwrap();
        let files = write_files(&node.client).await;
        check(&node, &files).await;
        let usage = node.metanode.usage().await.unwrap();
        assert_eq!(usage.inodes, FILES + 2);
        assert_eq!(usage.logical, u128::from(FILES * BYTES));
        for number in (0..FILES).step_by(2) {
            let root = FamilyId(0).root();
            node.client
                .unlink(root, name(&format!("f{number}")))
                .await
                .unwrap();
        }
        for inode in files.iter().step_by(2) {
            node.client.release(*inode).await;
        }
        node.client.sync_all().await.unwrap();
        node.metanode.start_background();
        node.world.sleep(std::time::Duration::from_secs(300)).await;
        let left = files
            .iter()
            .enumerate()
            .filter(|(number, _)| number % 2 == 1);
        for (number, inode) in left {
            let read = read(&node.client, *inode, 0, BYTES as usize).await;
            assert_eq!(
                read,
                content(number as u64, BYTES as usize),
                "file {number}"
            );
        }
        let report = node.metanode.check(CheckOptions { deep: true }).await;
        assert!(report.unwrap().faults.is_empty());
        node.close().await;
    });
}

#[test]
fn both_families_are_there_after_a_restart() {
    let sim = Simulation::new(62);
    let files = sim.run(|world| async move {
        let place = Place::default();
        Node::create(&world, &place).await;
        let node = Node::open(&world, &place, settings()).await;
        node.metanode.add_family(OTHER).await.unwrap();
        let files = write_files(&node.client).await;
        node.close().await;
        files
    });
    let files = files.finished();
    sim.run(|world| async move {
        let node = Node::open(&world, &Place::default(), settings()).await;
        check(&node, &files).await;
        let again = node.metanode.add_family(OTHER).await;
        assert_eq!(again.unwrap_err().kind(), model::ErrorKind::Exists);
        node.close().await;
    })
    .finished();
}
