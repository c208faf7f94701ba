//! Each fault of the simulated store, and that it does what it says.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::{Chances, Simulated};
use crate::{Change, Coordination, News};
use model::{ErrorKind, NodeId};
use std::future::Future;
use std::time::Duration;
use world::World;
use world::sim::Simulation;

const ONE: NodeId = NodeId(1);

fn run<F: Future<Output = ()>>(seed: u64, test: impl Fn(World, Simulated, [Coordination; 2]) -> F) {
    let run = |world: World| async {
        let store = Simulated::new(&world, seed);
        let nodes = [1, 2].map(|node| store.connect(NodeId(node), &world));
        test(world, store, nodes).await;
    };
    Simulation::new(seed).run(run).finished();
}

async fn put(store: &Coordination, key: &str) -> model::Result<u64> {
    store.transaction(vec![Change::put(key, 0, "x")]).await
}

#[test]
fn a_lost_answer_hides_a_change_that_happened() {
    run(1, |world, store, [a, b]| async move {
        store.set_chances(Chances {
            lost_reply: 1000,
            ..Chances::NONE
        });
        let begun = world.now();
        let unknown = put(&a, "key").await.unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::Unavailable);
        assert!(world.now() - begun >= Duration::from_secs(5));
        store.heal();
        assert!(b.get("key").await.unwrap().found.is_some());
    });
}

#[test]
fn a_lost_request_never_happens() {
    run(2, |world, store, [a, b]| async move {
        store.set_chances(Chances {
            lost_request: 1000,
            ..Chances::NONE
        });
        let unknown = put(&a, "key").await.unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::Unavailable);
        store.heal();
        world.sleep(Duration::from_secs(60)).await;
        assert_eq!(b.get("key").await.unwrap().found, None);
    });
}

#[test]
fn a_slow_request_may_happen_after_its_sender_gave_up() {
    let mut late = 0;
    for seed in 0..20 {
        let was_late = Simulation::new(seed).run(|world| async move {
            let store = Simulated::new(&world, seed);
            let [a, b] = [1, 2].map(|node| store.connect(NodeId(node), &world));
            store.set_chances(Chances {
                slow: 1000,
                ..Chances::NONE
            });
            let result = put(&a, "key").await;
            store.heal();
            let is_there = b.get("key").await.unwrap().found.is_some();
            world.sleep(Duration::from_secs(10)).await;
            assert!(b.get("key").await.unwrap().found.is_some());
            assert!(is_there || result.is_err());
            !is_there
        });
        late += u32::from(was_late.finished());
    }
    assert!(late > 0, "one of the seeds shows it");
}

#[test]
fn a_request_happens_although_its_sender_was_killed() {
    run(3, |world, store, [a, b]| async move {
        let none = world.timeout(Duration::ZERO, put(&a, "key")).await;
        assert!(none.is_err());
        assert_eq!(store.record(0), []);
        world.sleep(Duration::from_millis(10)).await;
        assert!(b.get("key").await.unwrap().found.is_some());
    });
}

#[test]
fn a_node_that_is_cut_off_hears_nothing_while_the_other_goes_on() {
    run(4, |_, store, [a, b]| async move {
        let revision = a.list("").await.unwrap().revision;
        let mut watch = a.watch("", revision);
        let lease = a.grant(Duration::from_secs(5)).await.unwrap().id;
        store.cut_off(ONE);
        put(&b, "key").await.unwrap();
        assert_eq!(watch.next(Duration::from_secs(30)).await, News::Quiet);
        let unknown = a.get("key").await.unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::Unavailable);
        store.reconnect(ONE);
        let news = watch.next(Duration::from_secs(1)).await;
        assert!(matches!(news, News::Changed { .. }), "{news:?}");
        let ended = a.keep_alive(lease).await.unwrap_err();
        assert_eq!(ended.kind(), ErrorKind::NotFound);
    });
}

#[test]
fn a_new_leader_gives_leases_their_full_time_again() {
    run(5, |world, store, [a, b]| async move {
        let ttl = Duration::from_secs(10);
        let lease = a.grant(ttl).await.unwrap().id;
        let change = Change::put_leased("key", 0, "x", lease);
        let version = a.transaction(vec![change]).await.unwrap();
        // For ever, if leaders change often enough.
        for _ in 0..10 {
            world.sleep(Duration::from_secs(9)).await;
            store.change_leader();
        }
        let changed = world.now();
        let mut watch = b.watch("", version);
        let news = watch.next(Duration::from_secs(60)).await;
        assert!(matches!(news, News::Changed { .. }), "{news:?}");
        assert!(world.now() - changed >= ttl);
    });
}

#[test]
fn leases_that_a_stopped_leader_ends_are_gone_with_their_keys_although_they_were_kept_alive() {
    run(8, |_, store, [a, b]| async move {
        let ttl = Duration::from_secs(10);
        let leases = [
            a.grant(ttl).await.unwrap().id,
            a.grant(ttl).await.unwrap().id,
        ];
        let changes = ["one", "two"].map(|key| Change::put_leased(key, 0, "x", leases[0]));
        a.transaction(changes.to_vec()).await.unwrap();
        put(&a, "free").await.unwrap();
        a.keep_alive(leases[0]).await.unwrap();
        store.lose_quorum();
        store.end_leases_early();
        store.regain_quorum();
        // The first ones may meet the election.
        while a.keep_alive(leases[0]).await.is_err() {}
        store.end_leases_early();
        for lease in leases {
            let ended = a.keep_alive(lease).await.unwrap_err();
            assert_eq!(ended.kind(), ErrorKind::NotFound);
        }
        assert_eq!(b.list("").await.unwrap().found.len(), 1);
    });
}

#[test]
fn a_leader_change_leaves_requests_on_their_way_with_unknown_outcomes() {
    let mut outcomes = [0; 4];
    for seed in 0..100 {
        let outcome = Simulation::new(seed).run(|world| async move {
            let store = Simulated::new(&world, seed);
            let [a, b] = [1, 2].map(|node| store.connect(NodeId(node), &world));
            let judge = async {
                world.sleep(Duration::from_millis(seed % 6)).await;
                store.change_leader();
            };
            let (result, ()) = futures::join!(put(&a, "key"), judge);
            world.sleep(Duration::from_secs(10)).await;
            let is_there = b.get("key").await.unwrap().found.is_some();
            usize::from(result.is_ok()) * 2 + usize::from(is_there)
        });
        outcomes[outcome.finished()] += 1;
    }
    let [lost, hidden, invented, answered] = outcomes;
    assert_eq!(invented, 0);
    assert!(lost > 0 && hidden > 0 && answered > 0, "{outcomes:?}");
}

#[test]
fn a_silent_watch_goes_on_later_and_a_compaction_ends_one_that_is_behind() {
    run(6, |_, store, [a, b]| async move {
        let revision = a.list("").await.unwrap().revision;
        let mut watch = a.watch("", revision);
        store.silence_watches(ONE, Duration::from_secs(20));
        put(&a, "key").await.unwrap();
        assert_eq!(watch.next(Duration::from_secs(10)).await, News::Quiet);
        let news = watch.next(Duration::from_secs(20)).await;
        assert!(matches!(news, News::Changed { .. }), "{news:?}");
        put(&b, "other").await.unwrap();
        store.compact();
        assert_eq!(watch.next(Duration::from_secs(1)).await, News::Lost);
    });
}

#[test]
fn members_on_nodes_answer_while_most_of_them_hear_each_other() {
    run(20, |world, store, [a, _]| async move {
        let nodes = [1, 2, 3].map(NodeId);
        store.put_members_on(nodes);
        let answers = async || world.timeout(Duration::from_secs(2), a.get("key")).await;
        // Not the one that leads.
        store.stop_member(nodes[2]);
        let begun = world.now();
        answers().await.unwrap().unwrap();
        assert!(world.now() - begun < Duration::from_millis(100));
        store.stop_member(nodes[1]);
        for _ in 0..10 {
            assert!(!matches!(answers().await, Ok(Ok(_))));
        }
        store.start_member(nodes[2]);
        world.sleep(Duration::from_secs(2)).await;
        answers().await.unwrap().unwrap();
        // Another one leads, or this one is the last that can.
        store.stop_member(nodes[2]);
        store.start_member(nodes[1]);
        world.sleep(Duration::from_secs(2)).await;
        answers().await.unwrap().unwrap();
    });
}

/// A lease that would end meanwhile gets its full time again, as with every new leader.
#[test]
fn a_leader_that_is_not_heard_any_more_is_followed_by_another() {
    run(21, |world, store, [a, b]| async move {
        store.put_members_on([1, 2, 3].map(NodeId));
        store.lead_from(NodeId(2));
        let lease = a.grant(Duration::from_secs(5)).await.unwrap();
        let put = Change::put_leased("key", 0, "x", lease.id);
        a.transaction(vec![put]).await.unwrap();
        world.sleep(Duration::from_secs(4)).await;
        store.stop_member(NodeId(2));
        world.sleep(Duration::from_secs(5)).await;
        assert!(b.get("key").await.unwrap().found.is_some());
        world.sleep(Duration::from_secs(5)).await;
        assert!(b.get("key").await.unwrap().found.is_none());
    });
}
