//! Data that the owner moves to other segments while a client on another node knows where it was.

use crate::rig::way::{Way, client_through};
use crate::rig::{Node, content, file, name, read, run_patient as run};
use metanode::CheckOptions;
use model::operation::Stamp;
use model::{ExtentKind, InodeId, Operation, Reply, SegmentId, SessionId};
use std::time::Duration;

const FILES: u64 = 30;
/// Too much for a record; several fit into a segment.
const BYTES: usize = 20_000;

/// The segments that a file's data is in.
async fn segments(node: &Node, inode: InodeId) -> Vec<SegmentId> {
    let operation = Operation::ReadExtents {
        inode,
        offset: 0,
        length: BYTES as u64,
        limit: 100,
    };
    let stamp = Stamp::own(node.world.wall(), SessionId(1));
    let reply = node.metanode.execute(&operation, &stamp).await.unwrap();
    let Reply::Extents { extents, .. } = reply else {
        panic!("{reply:?}")
    };
    let places = extents.into_iter().filter_map(|extent| match extent.kind {
        ExtentKind::Data { place, .. } => Some(place.segment),
        _ => None,
    });
    places.collect()
}

/// Would be broken if a reader believed in what it knows: the segment that it asks for is gone.
#[test]
fn a_reader_that_knows_where_data_was_before_the_cleaning_finds_it() {
    run(12_100, |world, node| async move {
        let way = Way::new(&world, &node.metanode, 0);
        let reader = client_through(&node, &way).await;
        let mut files = Vec::new();
        for number in 0..FILES {
            let inode = file(&node.client, &format!("f{number}")).await;
            let bytes = content(number, BYTES);
            node.client.write(inode, 0, &bytes).await.unwrap();
            files.push(inode);
        }
        node.client.sync_all().await.unwrap();
        let left: Vec<(u64, InodeId)> = (0..FILES)
            .zip(files.iter().copied())
            .filter(|(number, _)| number.is_multiple_of(5))
            .collect();
        let mut before = Vec::new();
        for (number, inode) in &left {
            assert_eq!(
                read(&reader, *inode, 0, BYTES).await,
                content(*number, BYTES)
            );
            before.push(segments(&node, *inode).await);
        }
        // It keeps the places.
        reader.forget_clean();
        for number in (0..FILES).filter(|number| !number.is_multiple_of(5)) {
            node.client.release(files[number as usize]).await;
            let name = name(&format!("f{number}"));
            node.client.unlink(InodeId::ROOT, name).await.unwrap();
        }
        node.client.sync_all().await.unwrap();
        for _ in 0..20 {
            node.metanode.run_background_once().await.unwrap();
            world.sleep(Duration::from_secs(31)).await;
        }
        let mut moved = 0;
        for ((_, inode), before) in left.iter().zip(before) {
            moved += usize::from(segments(&node, *inode).await != before);
        }
        assert!(moved > 0, "nothing was cleaned");
        for (number, inode) in &left {
            assert_eq!(
                read(&reader, *inode, 0, BYTES).await,
                content(*number, BYTES)
            );
        }
        reader.close().await.unwrap();
        let report = node.metanode.check(CheckOptions { deep: true }).await;
        assert!(report.unwrap().faults.is_empty());
    });
}
