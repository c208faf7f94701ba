//! What comes late: answers that took long, bytes that were fetched before others changed them.

use crate::rig::way::{Way, client_through};
use crate::rig::{self, Node, Place, content, run_patient as run};
use client::{OpenFlags, ReadTraces};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokens::TOKEN_TIME;
use world::sim::Simulation;

const MS: Duration = Duration::from_millis(1);

/// Would be broken if the time of tokens counted from when an answer came: the owner gives them to others when it has
/// passed since it was asked.
#[test]
fn tokens_last_from_when_the_owner_was_asked_however_long_its_answer_took() {
    let shown = Arc::new(AtomicU32::new(0));
    for seed in 0..4 {
        let shown = shown.clone();
        run(9_700 + seed, |world, node| async move {
            let file = rig::file(&node.client, "f").await;
            node.client.write(file, 0, b"old").await.unwrap();
            let way = Way::new(&world, &node.metanode, 0);
            let far = client_through(&node, &way).await;
            far.open(file, OpenFlags::default()).await.unwrap();
            way.slow_ms.store(1_000, Ordering::Relaxed);
            assert_eq!(rig::read(&far, file, 0, 3).await, b"old");
            world.sleep(Duration::from_secs(12)).await;
            rig::read(&far, file, 0, 3).await;
            way.cut.store(true, Ordering::Relaxed);
            for _ in 0..1_000 {
                let seen = world.timeout(MS, rig::read(&far, file, 0, 3)).await;
                // What was on its way when the way was cut arrives.
                let until = way.renewed.lock().unwrap() + TOKEN_TIME;
                assert!(seen.is_err() || world.now() <= until, "their time is over");
                shown.fetch_add(u32::from(seen.is_ok()), Ordering::Relaxed);
                world.sleep(10 * MS).await;
            }
            node.client.write(file, 0, b"new").await.unwrap();
            let seen = world.timeout(MS, rig::read(&far, file, 0, 3)).await;
            assert!(seen.is_err(), "{seen:?}");
            way.slow_ms.store(0, Ordering::Relaxed);
            way.cut.store(false, Ordering::Relaxed);
            assert_eq!(rig::read(&far, file, 0, 3).await, b"new");
            far.close().await.unwrap();
            node.check_and_close().await;
        });
    }
    let shown = shown.load(Ordering::Relaxed);
    assert!(shown > 0, "they last for a while");
}

/// Would be broken if bytes that come after a recall were cached: nobody recalls them again.
#[test]
fn bytes_that_come_after_others_have_changed_them_are_not_kept() {
    const LENGTH: usize = 1 << 20;
    let sim = Simulation::new(9_710);
    let faults = sim.faults();
    let place = Place::default();
    sim.run(|world| async move {
        Node::create(&world, &place).await;
        let node = Node::open(&world, &place, rig::patient()).await;
        let here = &node.client;
        let file = rig::file(here, "f").await;
        here.write(file, 0, &content(1, LENGTH)).await.unwrap();
        here.fsync(file, false).await.unwrap();
        let way = Way::new(&world, &node.metanode, 0);
        let far = client_through(&node, &way).await;
        far.open(file, OpenFlags::default()).await.unwrap();
        // It holds the whole file, and has none of its bytes.
        let traces = ReadTraces {
            cached: false,
            ..ReadTraces::default()
        };
        let read = far.read_leaving(file, 0, LENGTH, traces).await;
        assert!(read.unwrap().concat() == content(1, LENGTH));
        let disks = (1..=place.nsds).map(|nsd| place.nsd(nsd).display().to_string());
        let disks: Vec<_> = disks.collect();
        disks.iter().for_each(|disk| faults.slow(disk, 500 * MS));
        let reads = {
            let far = far.clone();
            async move { rig::read(&far, file, 0, 4096).await }
        };
        let reads = world.spawn("a program", reads);
        world.sleep(100 * MS).await;
        here.write(file, 0, &content(2, 4096)).await.unwrap();
        assert!(!reads.is_finished(), "its bytes are on their way");
        // It was asked before the write, so it may show either.
        let seen = reads.await;
        assert!(seen == content(1, LENGTH)[..4096] || seen == content(2, 4096));
        disks.iter().for_each(|disk| faults.heal(disk));
        assert!(rig::read(&far, file, 0, 4096).await == content(2, 4096));
        far.close().await.unwrap();
        node.check_and_close().await;
    })
    .finished();
}
