//! A scrub whose node goes down.

use client::ClientSettings;
use model::{FileKind, FileName, InodeId, NsdId, Scheme};
use node::{Creation, Node, NodePaths};
use sim::action::content;
use std::{
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};
use world::{World, sim::Simulation};

const PAGE: usize = 4096;
const BLOCK_BYTES: u32 = 64 * 1024;
const NSD_BYTES: u64 = 64 << 20;
const FILE_BYTES: usize = 2 << 20;

fn paths() -> NodePaths {
    let path = |nsd| (NsdId(nsd), PathBuf::from(format!("nsd{nsd}")));
    NodePaths {
        coordination: PathBuf::from("coordination"),
        nsds: (1..=2).map(path).collect(),
    }
}

async fn open(world: &World) -> Arc<Node> {
    let opened = Node::open(world, &paths(), ClientSettings::default()).await;
    opened.expect("the node opens")
}

/// A node with one file, closed.
async fn with_a_file(world: World) {
    let creation = Creation {
        scheme: Scheme::Replicate(2),
        nsd_bytes: NSD_BYTES,
        block_bytes: BLOCK_BYTES,
    };
    let created = Node::create(&world, &paths(), creation).await;
    created.expect("a new file system is made");
    let node = open(&world).await;
    let new = testkit::inodes::new_inode(FileKind::File);
    let name = FileName::new(b"file").expect("a name");
    let client = node.client();
    let file = client.create(InodeId::ROOT, name, new).await.expect("made");
    let written = client.write(file.inode, 0, &content(7, FILE_BYTES)).await;
    written.expect("written");
    node.close().await.expect("the node closes");
}

/// Flips a bit in each block of the file on the first NSD.
fn damage_each_block(simulation: &Simulation) {
    let (disk, wanted) = (simulation.disk("nsd1", NSD_BYTES), content(7, FILE_BYTES));
    let pages: Vec<_> = wanted
        .chunks(BLOCK_BYTES as usize)
        .map(|it| &it[..PAGE])
        .collect();
    let mut damaged = 0;
    for at in (0..NSD_BYTES).step_by(PAGE) {
        let page = disk.content(at, PAGE);
        if pages.iter().any(|wanted| page == *wanted) {
            simulation.faults().flip_bit("nsd1", at + 100);
            damaged += 1;
        }
    }
    assert_eq!(damaged, pages.len(), "the first NSD has the file's blocks");
}

#[test]
fn a_scrub_stops_rebuilding_when_the_node_goes_down() {
    let simulation = Simulation::new(31);
    simulation.run(with_a_file).finished();
    damage_each_block(&simulation);
    let found = Arc::new(Mutex::new(None));
    let (faults, report) = (simulation.faults(), found.clone());
    let scrubbed = simulation.run(move |world| async move {
        let node = open(&world).await;
        faults.slow("nsd1", Duration::from_millis(500));
        let down = async {
            // While the scrub rebuilds the first pieces.
            while node.metanode().counters().pieces_rebuilt == 0 {
                world.sleep(Duration::from_millis(1)).await;
            }
            node.close().await.expect("the node closes");
        };
        let (outcomes, ()) = tokio::join!(node.metanode().scrub(None), down);
        *report.lock().expect("one thread") = Some(outcomes.expect("the scrub reports"));
    });
    scrubbed.finished();
    let outcomes = found.lock().expect("one thread").take().expect("reported");
    let [first] = &outcomes[..] else {
        panic!("the second NSD isn't read any more: {outcomes:?}");
    };
    let damaged = first.report.damaged.len() as u64;
    assert!(damaged > 3, "{first:?}");
    assert!((1..3).contains(&first.rebuilt), "{first:?}");
    assert_eq!(first.left, damaged - first.rebuilt, "the rest is left");
}
