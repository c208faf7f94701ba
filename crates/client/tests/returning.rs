//! How long a client may take to give back what others want: as long as it gets on with it.

use crate::rig::way::{Way, client_through, client_with};
use crate::rig::{self, Node, content};
use client::{Client, ClientSettings, Losses, OpenFlags};
use model::{ErrorKind, InodeId};
use std::sync::atomic::Ordering;
use std::time::Duration;

const BLOCK: usize = 1 << 16;

/// A file system with a client on another node, which has a file open and closes it in the end. Programs
/// wait as long as users' do.
fn run(seed: u64, scenario: impl AsyncFnOnce(&Node, &Client, &Way, InodeId) + Send + 'static) {
    let settings = ClientSettings {
        patience: ClientSettings::default().patience,
        ..rig::patient()
    };
    rig::run_with(seed, settings, |node| async move {
        let way = Way::new(&node.world, &node.metanode, 0);
        let far = client_through(&node, &way).await;
        let file = rig::file(&node.client, "f").await;
        far.open(file, OpenFlags::default()).await.unwrap();
        scenario(&node, &far, &way, file).await;
        far.release(file).await;
        far.close().await.unwrap();
        node.close().await;
    });
}

/// Writes a block again and again: each time is published by itself, because it replaces the one before.
async fn rewrite(far: &Client, file: InodeId, times: u64) {
    for time in 1..=times {
        far.write(file, 0, &content(time, BLOCK)).await.unwrap();
    }
}

#[test]
fn a_client_that_goes_on_publishing_what_others_want_has_the_time() {
    run(9_400, async |node, far, way, file| {
        let (world, here) = (&node.world, &node.client);
        way.publish_ms.store(3_000, Ordering::Relaxed);
        rewrite(far, file, 10).await;
        let begun = world.now();
        assert!(rig::read(here, file, 0, 100).await == content(10, 100));
        let waited = world.now() - begun;
        // Longer than one that doesn't go on.
        assert!(waited > Duration::from_secs(28), "{waited:?}");
        assert_eq!(far.losses(), Losses::default());
        way.publish_ms.store(0, Ordering::Relaxed);
        assert!(rig::read(here, file, 0, BLOCK).await == content(10, BLOCK));
        far.write(file, 0, &content(11, 100)).await.unwrap();
        assert!(rig::read(here, file, 0, 100).await == content(11, 100));
    });
}

/// It would need two minutes. The owner's own programs wait in another way than those of other nodes.
#[test]
fn a_client_that_publishes_for_too_long_what_others_want_loses_its_session_and_they_see_a_pause() {
    run(9_403, async |node, far, way, file| {
        let (world, here) = (&node.world, &node.client);
        way.publish_ms.store(3_000, Ordering::Relaxed);
        rewrite(far, file, 40).await;
        let begun = world.now();
        here.get_attributes(file).await.unwrap();
        let waited = world.now() - begun;
        let expected = Duration::from_secs(45)..Duration::from_secs(60);
        assert!(expected.contains(&waited), "{waited:?}");
        way.publish_ms.store(0, Ordering::Relaxed);
        let lost = far.read(file, 0, 10).await.unwrap_err();
        assert_eq!(lost.kind(), ErrorKind::SessionEnded);
    });
}

#[test]
fn a_client_that_publishes_nothing_of_what_others_want_loses_its_session() {
    run(9_401, async |node, far, way, file| {
        let (world, here) = (&node.world, &node.client);
        way.no_publishes.store(true, Ordering::Relaxed);
        far.write(file, 0, &content(1, 50_000)).await.unwrap();
        let begun = world.now();
        assert!(rig::read(here, file, 0, 100).await.is_empty());
        let waited = world.now() - begun;
        let expected = Duration::from_secs(20)..Duration::from_secs(30);
        assert!(expected.contains(&waited), "{waited:?}");
        way.no_publishes.store(false, Ordering::Relaxed);
        let lost = far.read(file, 0, 10).await.unwrap_err();
        assert_eq!(lost.kind(), ErrorKind::SessionEnded);
        assert_eq!(far.losses().files_with_data, 1);
    });
}

/// It asks the owner for one answer after the other: each is refused after a few seconds.
#[test]
fn a_client_that_gives_nothing_back_is_ended_for_who_asks_for_attributes_again_and_again() {
    run(9_402, async |node, far, way, file| {
        let world = &node.world;
        let other = client_through(node, &Way::new(world, &node.metanode, 0)).await;
        way.no_publishes.store(true, Ordering::Relaxed);
        far.write(file, 0, &content(1, 50_000)).await.unwrap();
        let begun = world.now();
        assert_eq!(other.get_attributes(file).await.unwrap().size, 0);
        let waited = world.now() - begun;
        assert!(waited < Duration::from_secs(60), "{waited:?}");
        way.no_publishes.store(false, Ordering::Relaxed);
        world.sleep(Duration::from_secs(30)).await;
        other.close().await.unwrap();
    });
}

/// One segment is on its way at a time, and each takes a while: all would take longer than a client that
/// doesn't get on is waited for.
#[test]
fn what_others_want_is_stored_before_what_was_written_to_other_files() {
    let settings = ClientSettings {
        segments_in_flight_max: 1,
        ..rig::patient()
    };
    let sim = world::sim::Simulation::new(9_404);
    let faults = sim.faults();
    let place = rig::Place::default();
    let at = place.clone();
    let disk = move |nsd| at.nsd(nsd).display().to_string();
    sim.run(|world| async move {
        rig::Node::create(&world, &place).await;
        let node = Node::open(&world, &place, rig::patient()).await;
        let way = Way::new(&world, &node.metanode, 0);
        let far = client_with(&node, &way, settings).await;
        let files = [
            rig::file(&node.client, "others").await,
            rig::file(&node.client, "wanted").await,
        ];
        for file in files {
            far.open(file, OpenFlags::default()).await.unwrap();
        }
        for nsd in 1..=place.nsds {
            faults.slow(&disk(nsd), Duration::from_millis(300));
        }
        let [others, wanted] = files;
        far.write(others, 0, &content(1, 100 << 16)).await.unwrap();
        far.write(wanted, 0, &content(2, 100_000)).await.unwrap();
        let begun = world.now();
        let read = rig::read(&node.client, wanted, 0, 100_000).await;
        let waited = world.now() - begun;
        assert_eq!(far.losses(), Losses::default(), "{waited:?}");
        assert!(waited < Duration::from_secs(10), "{waited:?}");
        assert!(read == content(2, 100_000));
        let begun = world.now();
        far.fsync(others, false).await.unwrap();
        let waited = world.now() - begun;
        assert!(
            waited > Duration::from_secs(20),
            "{waited:?}: nothing had to wait"
        );
        for nsd in 1..=place.nsds {
            faults.heal(&disk(nsd));
        }
        assert!(rig::read(&node.client, others, 0, 100 << 16).await == content(1, 100 << 16));
        for file in files {
            far.release(file).await;
        }
        far.close().await.unwrap();
        node.close().await;
    })
    .finished();
}
