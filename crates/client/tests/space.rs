//! Writers that overwrite in a small pool: none is refused while dead data holds space.

use crate::rig::{self, Node, Place, content};
use client::ClientSettings;
use metanode::CheckOptions;
use model::Scheme;
use world::sim::Simulation;

#[test]
fn overwriting_parts_of_a_file_for_long_is_never_refused() {
    const FILE: usize = 24 << 20;
    let sim = Simulation::new(9);
    sim.run(|world| async move {
        let place = Place {
            nsds: 1,
            nsd_bytes: 96 << 20,
            scheme: Scheme::Replicate(1),
            ..Place::default()
        };
        let settings = ClientSettings {
            page_pool_bytes: 16 << 20,
            block_bytes: 1 << 20,
            ..ClientSettings::default()
        };
        Node::create(&world, &place).await;
        let node = Node::open(&world, &place, settings).await;
        let file = node.file("f").await;
        let mut expected = content(1, FILE);
        node.client.write(file, 0, &expected).await.unwrap();
        let capacity = node.pool.usage().capacity;
        let mut written = 0;
        let mut number = 0;
        // Parts of all sizes at all places leave few segments completely dead.
        while written < 3 * capacity {
            number += 1;
            let random = world.random_u64();
            let length = 4096 << (random % 6);
            let at = (random >> 8) as usize % (FILE - length) / 4096 * 4096;
            let bytes = content(number, length);
            if let Err(error) = node.client.write(file, at as u64, &bytes).await {
                panic!(
                    "after {written} bytes: {error}; {:?}; {} bytes are free to be freed; {:?}",
                    node.pool.usage(),
                    node.metanode.unfreed(),
                    node.metanode.counters()
                );
            }
            expected[at..at + length].copy_from_slice(&bytes);
            written += length as u64;
        }
        node.client.fsync(file, false).await.unwrap();
        let found = rig::read(&node.client, file, 0, FILE).await;
        assert!(found == expected);
        let check = CheckOptions { deep: true };
        let report = node.metanode.check(check).await.unwrap();
        assert!(report.is_clean(), "{:#?}", report.faults);
        assert_eq!(node.client.waiters(), []);
        node.close().await;
    })
    .finished();
}
