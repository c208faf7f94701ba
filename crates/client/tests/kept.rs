//! Written bytes kept in metadata, and bytes counted by the page pool.

use crate::rig::{Node, Place, content, settings};
use world::sim::Simulation;

/// Several times the page pool's budget stays in the hot records.
#[test]
fn small_files_in_memory_leave_the_page_pool_to_others() {
    Simulation::new(13)
        .run(|world| async move {
            let place = Place {
                nsd_bytes: 512 << 20,
                ..Place::default()
            };
            Node::create(&world, &place).await;
            let node = Node::open(&world, &place, settings()).await;
            let client = &node.client;
            for number in 0..12_000 {
                let inode = node.file(&format!("f{number}")).await;
                client
                    .write(inode, 0, &content(number, 4000))
                    .await
                    .unwrap();
                client.flush(inode).await.unwrap();
                client.release(inode).await;
            }
            client.sync_all().await.unwrap();
            let (_, hot) = node.metanode.hosted().hot_records();
            assert!(hot > 40 << 20, "{hot} bytes of hot records");
            let (held, budget) = client.page_pool_memory();
            assert!(held <= budget, "{held} bytes of {budget}");
            node.close().await;
        })
        .finished();
}
