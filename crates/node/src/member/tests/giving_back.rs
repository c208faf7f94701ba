//! A shard that is taken in good order from the node of its only client.

use super::*;
use client::Losses;

/// Would be broken if a client had no way to its own owner while nobody is assigned the shard: it couldn't say that it has
/// given back what it had, or wouldn't hear that it shall. Each move would take as long as that is waited for, and programs
/// would wait as long or lose what they have open.
#[test]
fn a_client_that_has_everything_gives_it_back_as_soon_as_its_node_shall() {
    for seed in 0..4 {
        let run = Simulation::new(seed).run(move |world| async move {
            let [first, second] = two_members(&world, seed).await;
            first.create_shard().await.unwrap();
            until(&world, "it is served", || first.hosted().is_some()).await;
            let opened = first.open_client_of(ROOT_SHARD, ClientSettings::default());
            let client = opened.await.unwrap();
            until(&world, "it is alone", || client.asked().is_alone()).await;
            // At any moment between two looks of the client.
            world.sleep(Duration::from_millis(seed * 57)).await;
            let epoch = first.hosted().unwrap().shard_status().epoch;
            let (facts, begun) = (&first.parts.coordination, world.now());
            let deadline = Deadline::after(&world, WAIT_MAX);
            loop {
                let members = facts.membership().await.unwrap().unwrap();
                let owner = Some(first.run());
                let released =
                    facts.assign_shard_as_manager(ROOT_SHARD, owner, None, members.version);
                if released.await.is_ok() {
                    break;
                }
                assert!(!deadline.has_passed(&world), "seed {seed}: it is released");
            }
            let is_next = || {
                let members = [&first, &second].into_iter();
                let mut epochs = members.filter_map(|it| Some(it.hosted()?.shard_status().epoch));
                epochs.any(|it| it > epoch)
            };
            until(&world, "it has another owner", is_next).await;
            let took = world.now() - begun;
            assert!(took < Duration::from_secs(10), "seed {seed}: {took:?}");
            client.get_attributes(ROOT_FAMILY.root()).await.unwrap();
            assert_eq!(client.losses(), Losses::default(), "seed {seed}");
            client.close().await.unwrap();
            first.close().await.unwrap();
            second.close().await.unwrap();
        });
        run.finished();
    }
}
