//! A machine whose threads all wait for a disk, say, and one that keeps the manager's place.

use super::servers::one;
use crate::{Coordination, Doubt, Kept};
use model::{NodeId, NodeRun};
use std::time::Duration;
use world::{Blocked, World};

/// How long anything may take on a busy machine before it counts as broken.
const BROKEN: Duration = Duration::from_secs(30);

/// Would be broken if what the urgent thread asks went over connections, or waited by timers, of the other threads.
#[test]
fn the_place_is_kept_and_its_doubts_are_answered_while_all_other_threads_block() {
    let settings = one().settings_of_its_own();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let world = World::real();
        let urgent = world.urgent();
        let facts = Coordination::etcd(&world, &settings).unwrap();
        let own = NodeRun {
            node: NodeId(1),
            incarnation: 1,
        };
        // By the other threads, whose connections wait for more.
        let lease = facts.grant_place().await.unwrap().id;
        facts.take_place(own, 0, lease).await.unwrap();
        let asked = facts.clone();
        let keeps = async move {
            let kept = asked.keep_place(own, lease).await.unwrap();
            assert_eq!(kept, Kept::Longer);
            let seen = asked.manager().await.unwrap().unwrap();
            asked.doubt_place(&seen, Doubt::OfOne).await.unwrap();
            let kept = asked.keep_place(own, lease).await.unwrap();
            assert_eq!(kept, Kept::Longer);
            asked.manager().await.unwrap().unwrap()
        };
        let blocked = Blocked::new(&world);
        let kept = urgent.timeout(BROKEN, urgent.spawn("keeps the place", keeps));
        let place = kept.await.expect("it is answered");
        drop(blocked);
        assert_eq!(place.value.run, own);
        assert!(!place.value.is_doubted());
        // Both have asked the same etcd.
        assert_eq!(facts.manager().await.unwrap(), Some(place));
        facts.revoke(lease).await.unwrap();
    });
}
