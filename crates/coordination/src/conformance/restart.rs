//! What a restart, a power cut, a new leader and a lost quorum leave: the facts with their versions,
//! and leases with their full time.

use super::patient::{Follower, Patient};
use super::{Body, Pace, embedded, machine};
use crate::etcd::tests::servers::{Servers, in_real_time};
use crate::simulated::Simulated;
use crate::{Change, Coordination, Facts, Lease, LeaseId, News};
use model::NodeId;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use world::World;
use world::sim::{Simulation, for_every_cut};

const TTL: Duration = Duration::from_secs(5);

/// What was answered before the fault.
struct Before {
    facts: Facts,
    /// A lease with the keys `leased/1` and `leased/2`, kept alive just now.
    lease: Lease,
    /// Before the last change.
    watched: u64,
}

async fn before(body: &Body) -> Before {
    let a = body.patient(0);
    let removed = a.put("key/removed", 0, "x").await;
    a.put("key/1", 0, "one").await;
    let lease = a.grant(body.pace.lease).await;
    let leased = ["leased/1", "leased/2"];
    let leased = leased.map(|key| Change::put_leased(key, 0, "x", lease.id));
    let watched = a.change(leased.to_vec()).await.unwrap();
    let removal = Change::remove("key/removed", removed);
    a.change(vec![removal]).await.unwrap();
    a.keep_alive(lease.id).await.unwrap();
    Before {
        facts: a.list("").await.found,
        lease,
        watched,
    }
}

async fn after(body: &Body, before: Before) {
    let [a, b] = [body.patient(0), body.patient(1)];
    let begun = body.world.now();
    let list = a.list("").await;
    assert_eq!(list.found, before.facts);
    // A watch from before the fault goes on without a gap, or says that it can't.
    let mut watch = a.store.watch("key/", before.watched);
    match watch.next(Duration::from_secs(20)).await {
        News::Lost => {}
        News::Changed { events, .. } => assert_eq!(events[0].key, "key/removed"),
        News::Quiet => panic!("a change is missing"),
    }
    let newer = a.put("key/removed", 0, "again").await;
    assert!(newer > list.revision);
    // The lease goes on, with its full time, and ends with its keys.
    let mut follower = Follower::new(&b, "leased/").await;
    assert_eq!(follower.keys.len(), 2);
    while follower.keys.len() == 2 {
        follower.step().await;
    }
    assert!(follower.keys.is_empty(), "both keys go together");
    assert!(body.world.now() - begun >= before.lease.ttl - Duration::from_millis(200));
    assert!(a.keep_alive(before.lease.id).await.is_err());
    assert_eq!(a.list("").await.found.len(), 2);
}

fn alone(world: World, store: &Coordination) -> Body {
    let processes = [store.clone(), store.clone(), store.clone()];
    Body {
        world,
        processes,
        pace: Pace::SIMULATED,
    }
}

#[test]
fn the_embedded_store_keeps_facts_and_leases_across_a_restart() {
    let machine = machine(1);
    let promised = machine.run(|world| async {
        let store = embedded(&world).await;
        before(&alone(world, &store)).await
    });
    let promised = promised.finished();
    machine
        .run(|world| async {
            let store = embedded(&world).await;
            after(&alone(world, &store), promised).await;
        })
        .finished();
}

#[test]
fn an_etcd_keeps_facts_and_leases_across_a_restart() {
    let mut servers = Servers::start_durable(1, &std::env::temp_dir());
    let settings = servers.settings_of_its_own();
    in_real_time(async |world| {
        let processes = [(); 3].map(|()| Coordination::etcd(&world, &settings).unwrap());
        let body = Body {
            world,
            processes,
            pace: Pace::REAL,
        };
        let promised = before(&body).await;
        servers.kill(0);
        servers.begin(0);
        after(&body, promised).await;
    });
}

#[test]
fn simulated_etcd_keeps_facts_and_leases_across_faults() {
    let faults: [fn(&Simulated); 4] = [
        Simulated::change_leader,
        |store| {
            store.lose_quorum();
            store.regain_quorum();
        },
        |store| {
            store.change_leader();
            store.compact();
        },
        |store| {
            store.cut_off(NodeId(1));
            store.reconnect(NodeId(1));
            store.change_leader();
        },
    ];
    for (seed, fault) in (0..40).map(|seed| (seed, faults[seed as usize % 4])) {
        Simulation::new(seed)
            .run(|world| async {
                let store = Simulated::new(&world, seed);
                let processes = [1, 2, 3].map(|node| store.connect(NodeId(node), &world));
                let body = Body {
                    world,
                    processes,
                    pace: Pace::SIMULATED,
                };
                let promised = before(&body).await;
                fault(&store);
                after(&body, promised).await;
            })
            .finished();
    }
}

#[test]
fn without_a_quorum_nothing_is_answered_and_no_lease_ends() {
    Simulation::new(1)
        .run(|world| async {
            let store = Simulated::new(&world, 1);
            let processes = [1, 2, 3].map(|node| store.connect(NodeId(node), &world));
            let body = Body {
                world,
                processes,
                pace: Pace::SIMULATED,
            };
            let promised = before(&body).await;
            store.lose_quorum();
            for _ in 0..10 {
                assert!(body.processes[0].get("key/1").await.is_err());
                assert!(body.processes[1].next_session().await.is_err());
            }
            assert_eq!(store.record(promised.watched).len(), 1);
            store.regain_quorum();
            after(&body, promised).await;
        })
        .finished();
}

/// Makes one change after another; after each, calls `acknowledged` with all facts.
async fn changes(patient: &Patient, mut acknowledged: impl FnMut(Facts)) {
    let mut version = 0;
    let mut lease = LeaseId(0);
    for step in 0..12u64 {
        let new = |key: &str| Change::put(format!("{key}/{step}"), 0, "x");
        let changed = match step % 6 {
            0 => patient.store.transaction(vec![new("a"), new("b")]).await,
            1 => {
                let granted = patient.store.grant(TTL).await;
                granted.map(|granted| {
                    lease = granted.id;
                    version
                })
            }
            2 => {
                let leased = Change::put_leased(format!("l/{step}"), 0, "x", lease);
                patient.store.transaction(vec![leased, new("c")]).await
            }
            3 => {
                let last = Change::put(format!("c/{}", step - 1), version, vec![7; 3000]);
                patient.store.transaction(vec![last, new("d")]).await
            }
            4 => {
                let removal = Change::remove(format!("d/{}", step - 1), version);
                patient.store.transaction(vec![removal]).await
            }
            _ => patient.store.revoke(lease).await.map(|()| version),
        };
        version = changed.unwrap();
        acknowledged(patient.store.list("").await.unwrap().found);
    }
}

#[test]
fn a_power_cut_leaves_what_was_acknowledged_and_at_most_the_change_under_way() {
    let whole: Arc<Mutex<Vec<Facts>>> = Arc::new(Mutex::new(vec![Vec::new()]));
    let run = |simulation: &Simulation, seen: &Arc<Mutex<Vec<Facts>>>| {
        simulation.disk(super::DISK, crate::EMBEDDED_REGION_BYTES);
        let seen = seen.clone();
        simulation.run(|world| async move {
            let store = embedded(&world).await;
            let patient = alone(world, &store).patient(0);
            changes(&patient, |facts| seen.lock().unwrap().push(facts)).await;
        })
    };
    run(&Simulation::new(5), &whole).finished();
    let whole = whole.lock().unwrap().clone();
    for_every_cut(5, 10_000, |simulation| {
        let seen = Arc::new(Mutex::new(vec![Vec::new()]));
        if !run(simulation, &seen).is_crashed() {
            return;
        }
        let acknowledged = seen.lock().unwrap().len() - 1;
        // The last two acknowledged states are the same for a grant, so compare values, not
        // numbers.
        let possible = &whole[acknowledged..whole.len().min(acknowledged + 2)];
        let check = |world: World| async move {
            let store = embedded(&world).await;
            let found = store.list("").await.unwrap();
            let is_leased = |(key, _): &&(String, _)| key.starts_with("l/");
            let leased = found.found.iter().filter(is_leased).count();
            let patient = alone(world.clone(), &store).patient(0);
            let begun = world.now();
            for key in ["l/2", "l/8"] {
                patient.until_gone(key).await;
            }
            if leased > 0 {
                assert!(world.now() - begun >= TTL - Duration::from_millis(400));
            }
            let newer = patient.put("newer", 0, "x").await;
            (found, newer)
        };
        let (found, newer) = simulation.run(check).finished();
        assert!(possible.contains(&found.found), "{acknowledged}: {found:?}");
        assert!(newer > found.revision);
    });
}
