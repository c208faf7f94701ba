//! Two families of one shard, used by one client.

use crate::rig::{Node, Place, content, name, new_file, read, run, settings};
use client::Client;
use metanode::CheckOptions;
use model::operation::Stamp;
use model::{ExtentKind, FamilyId, InodeId, Operation, Reply, SegmentId, SessionId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use world::sim::Simulation;

const OTHER: FamilyId = FamilyId(1);
/// Not a multiple of what fits into a pack, in either family.
const FILES: u64 = 58;
const BYTES: u64 = 20_000;

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

/// The files that have data in each segment.
type Packs = BTreeMap<SegmentId, BTreeSet<InodeId>>;

async fn packs(node: &Node, files: impl IntoIterator<Item = InodeId>) -> Packs {
    let mut packs = Packs::new();
    for inode in files {
        let operation = Operation::ReadExtents {
            inode,
            offset: 0,
            length: BYTES,
            limit: 100,
        };
        let stamp = Stamp::own(node.world.wall(), SessionId(1));
        let reply = node.metanode.execute(&operation, &stamp).await.unwrap();
        let Reply::Extents { extents, .. } = reply else {
            panic!("{reply:?}")
        };
        for extent in extents {
            if let ExtentKind::Data { place, .. } = extent.kind {
                packs.entry(place.segment).or_default().insert(inode);
            }
        }
    }
    packs
}

fn must_be_of_one_family(packs: &Packs) {
    assert!(
        packs.values().any(|files| files.len() > 1),
        "none is shared"
    );
    for pack in packs.values() {
        let families: BTreeSet<_> = pack.iter().map(|it| it.fileset().family()).collect();
        assert_eq!(families.len(), 1, "{pack:?}");
    }
}

/// Small files are packed while both families have some; each pack must be of one family, and what one
/// family removes takes nothing of the other.
#[test]
fn packs_are_of_one_family() {
    run(61, |node| async move {
        node.metanode.add_family(OTHER).await.unwrap();
        let files = write_files(&node.client).await;
        check(&node, &files).await;
        let before = packs(&node, files.clone()).await;
        must_be_of_one_family(&before);
        let usage = node.metanode.usage().await.unwrap();
        assert_eq!(usage.inodes, FILES + 2);
        assert_eq!(usage.logical, u128::from(FILES * BYTES));
        // What is left of both is moved together.
        let is_left = |number: &u64| number.is_multiple_of(5);
        for number in (0..FILES).filter(|number| !is_left(number)) {
            let root = FamilyId((number % 2) as u32).root();
            let name = name(&format!("f{number}"));
            node.client.unlink(root, name).await.unwrap();
            node.client.release(files[number as usize]).await;
        }
        node.client.sync_all().await.unwrap();
        for _ in 0..20 {
            node.metanode.run_background_once().await.unwrap();
            node.world.sleep(Duration::from_secs(31)).await;
        }
        let cleaned = node.metanode.counters().segments_cleaned;
        assert!(cleaned >= 2, "{cleaned} packs cleaned");
        let left = (0..FILES)
            .filter(is_left)
            .map(|number| files[number as usize]);
        let after = packs(&node, left).await;
        must_be_of_one_family(&after);
        // Less than half of a full pack was left.
        let was_full = |segment| before.get(segment).is_some_and(|files| files.len() == 3);
        assert_eq!(after.keys().find(|segment| was_full(segment)), None);
        for number in (0..FILES).filter(is_left) {
            let inode = files[number as usize];
            let read = read(&node.client, inode, 0, BYTES as usize).await;
            assert_eq!(read, content(number, BYTES as usize), "file {number}");
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
