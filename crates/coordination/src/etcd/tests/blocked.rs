//! A machine whose threads all wait for a disk, say, and one that keeps the manager's place.

use super::servers::one;
use crate::{Coordination, Doubt, Kept};
use model::{NodeId, NodeRun};
use parking_lot::{Condvar, Mutex};
use std::sync::{Arc, Barrier};
use std::time::Duration;
use world::World;

/// Threads of the runtime.
const WORKERS: usize = 2;
/// How long anything may take on a busy machine before it counts as broken.
const BROKEN: Duration = Duration::from_secs(30);

/// All threads of the runtime block until this is dropped.
struct Blocked(Arc<(Mutex<bool>, Condvar)>);

impl Blocked {
    fn new(world: &World) -> Self {
        let gate = Arc::new((Mutex::new(false), Condvar::new()));
        let all_block = Arc::new(Barrier::new(WORKERS + 1));
        for _ in 0..WORKERS {
            let (gate, all_block) = (gate.clone(), all_block.clone());
            let block = async move {
                all_block.wait();
                let mut is_open = gate.0.lock();
                gate.1.wait_while(&mut is_open, |is_open| !*is_open);
            };
            world.spawn("blocks", block).detach();
        }
        all_block.wait();
        Self(gate)
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        *self.0.0.lock() = true;
        self.0.1.notify_all();
    }
}

/// Would be broken if what the urgent thread asks went over connections, or waited by timers, of the other threads.
#[test]
fn the_place_is_kept_and_its_doubts_are_answered_while_all_other_threads_block() {
    let settings = one().settings_of_its_own();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
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
