//! Lanes over TCP: what one of them suffers is no other's matter.

use crate::scene::tcp::{Pair, Way, run};
use futures::future::{BoxFuture, FutureExt, join_all};
use model::call::{Class, NoAnswer};
use rpc::{Connections, Lane};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use world::{Blocked, Task};

const MIB: usize = 1 << 20;

/// Many that call at the same time, each again and again.
struct Callers {
    is_over: Arc<AtomicBool>,
    asked: Arc<AtomicU64>,
    tasks: Vec<Task<()>>,
}

impl Callers {
    fn start(pair: &Arc<Pair>, class: Class, bytes: usize) -> Self {
        let (is_over, asked) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let caller = |number| {
            let (pair, is_over, asked) = (pair.clone(), is_over.clone(), asked.clone());
            async move {
                while !is_over.load(Ordering::SeqCst) {
                    pair.ask(class, number, bytes, false).await.unwrap();
                    asked.fetch_add(1, Ordering::SeqCst);
                }
            }
        };
        let tasks = (0..24).map(|number| pair.world.spawn("calls", caller(number)));
        Self {
            tasks: tasks.collect(),
            is_over: is_over.clone(),
            asked: asked.clone(),
        }
    }

    fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }

    /// Each has got all its answers.
    async fn stop(self) {
        self.is_over.store(true, Ordering::SeqCst);
        join_all(self.tasks).await;
    }
}

fn most(max: u8) -> Connections {
    Connections {
        max,
        ..Connections::default()
    }
}

#[test]
fn each_lane_opens_its_connection_when_it_is_needed() {
    run(|pair| async move {
        assert!(
            pair.peer
                .lanes()
                .iter()
                .all(|lane| lane.connections.is_empty())
        );
        pair.ask(Class::Metadata, 1, 0, false).await.unwrap();
        pair.ask(Class::Bulk, 2, 4096, false).await.unwrap();
        let open = |pair: &Pair| Lane::ALL.map(|lane| pair.open(lane));
        assert_eq!(open(&pair), [0, 1, 0], "small data goes with metadata");
        pair.ask(Class::Lease, 3, 0, false).await.unwrap();
        pair.ask(Class::Bulk, 4, MIB, false).await.unwrap();
        pair.ask(Class::Repair, 5, 0, false).await.unwrap();
        assert_eq!(open(&pair), [1, 1, 1]);
        let mut served: Vec<_> = pair.server.connections().iter().map(|it| it.lane).collect();
        served.sort();
        assert_eq!(served, Lane::ALL.map(Some));
        // The default of both sides, once there is something to do at the same time.
        let calls = (0..8).map(|number| pair.ask(Class::Bulk, number, MIB, true));
        let calls = join_all(calls);
        let open_gate = async {
            let two = |pair: &Pair| pair.open(Lane::Bulk) == 2;
            pair.until("a second connection opens", two).await;
            pair.work.gate.send_replace(true);
        };
        let (answers, ()) = futures::join!(calls, open_gate);
        assert!(answers.iter().all(Result::is_ok));
        assert_eq!(pair.lane(Lane::Bulk).connections_max, 2);
    });
}

#[test]
fn no_call_is_lost_while_the_number_of_connections_changes() {
    run(|pair| async move {
        let pair = Arc::new(pair);
        let set = |max| {
            pair.peer.set_connections(most(max)).unwrap();
            pair.server.set_connections(most(max)).unwrap();
        };
        set(1);
        let callers = Callers::start(&pair, Class::Bulk, MIB);
        let worked = async |count: u64| {
            let before = callers.asked();
            let more = |_: &Pair| callers.asked() >= before + count;
            pair.until("calls go on", more).await;
        };
        worked(30).await;
        let bulk = |pair: &Pair| pair.lane(Lane::Bulk).connections.len();
        assert_eq!(bulk(&pair), 1);
        set(8);
        pair.until("eight connections", |pair| pair.open(Lane::Bulk) == 8)
            .await;
        worked(100).await;
        set(2);
        pair.until("two are left", |pair| bulk(pair) == 2).await;
        worked(30).await;
        // The smaller wish counts, whoever changes it.
        pair.peer.set_connections(most(8)).unwrap();
        worked(30).await;
        assert_eq!((bulk(&pair), pair.lane(Lane::Bulk).connections_max), (2, 2));
        pair.server.set_connections(most(3)).unwrap();
        pair.until("three", |pair| pair.open(Lane::Bulk) == 3).await;
        pair.server.set_connections(most(1)).unwrap();
        pair.until("one is left", |pair| bulk(pair) == 1).await;
        worked(10).await;
        callers.stop().await;
        let served = |pair: &Pair| pair.server.connections().len();
        pair.until("the server has one too", |pair| served(pair) == 1)
            .await;
    });
}

#[test]
fn small_messages_get_their_part_of_the_connections() {
    run(|pair| async move {
        let half = Connections {
            max: 4,
            small_percent: 50,
            ..Connections::default()
        };
        pair.peer.set_connections(half).unwrap();
        pair.server.set_connections(half).unwrap();
        let pair = Arc::new(pair);
        let callers = Callers::start(&pair, Class::Metadata, 0);
        let opened = |pair: &Pair| pair.open(Lane::Small) == 3;
        pair.until("its own and two of four", opened).await;
        callers.stop().await;
        assert_eq!(pair.lane(Lane::Bulk).connections_max, 2);
    });
}

/// Would be broken if answers that leave on the threads that made them, and by the connection's task meanwhile, got into
/// each other.
#[test]
fn answers_that_are_made_at_the_same_time_arrive_whole() {
    run(|pair| async move {
        let pair = Arc::new(pair);
        // Of the largest, which also take this lane, some don't fit into a socket at once.
        let kinds = [
            (Class::Metadata, 0),
            (Class::Bulk, 4096),
            (Class::Bulk, 200_000),
        ];
        let callers = kinds.map(|(class, bytes)| Callers::start(&pair, class, bytes));
        let enough = |_: &Pair| callers.iter().all(|callers| callers.asked() >= 200);
        pair.until("each kind is answered", enough).await;
        for callers in callers {
            callers.stop().await;
        }
        assert_eq!(Lane::ALL.map(|lane| pair.open(lane)), [0, 1, 0]);
    });
}

#[test]
fn a_broken_connection_fails_only_its_own_calls() {
    run(|pair| async move {
        pair.ask(Class::Lease, 1, 0, false).await.unwrap();
        pair.ask(Class::Metadata, 2, 0, false).await.unwrap();
        // Two find one connection; it is enough for both, and a second one is opened.
        let mut calls: Vec<_> = (3..5)
            .map(|number| pair.spawn_ask(Class::Bulk, number, MIB, true))
            .collect();
        pair.have_begun(4).await;
        pair.until("two", |pair| pair.open(Lane::Bulk) == 2).await;
        for number in 5..9 {
            calls.push(pair.spawn_ask(Class::Bulk, number, MIB, true));
        }
        pair.have_begun(8).await;
        let lease = pair.spawn_ask(Class::Lease, 9, 0, true);
        let metadata = pair.spawn_ask(Class::Metadata, 10, 0, true);
        pair.have_begun(10).await;
        let view = pair.lane(Lane::Bulk);
        let [first, second] = [0, 1].map(|at| view.connections[at].requests);
        assert!(first > 0 && second > 0 && first + second == 6);
        pair.relayed(Lane::Bulk)[0].way.send_replace(Way::Cut);
        pair.until("one is left", |pair| pair.open(Lane::Bulk) == 1)
            .await;
        pair.work.gate.send_replace(true);
        let mut lost = 0;
        for ended in join_all(calls).await {
            match ended {
                Ok(_) => {}
                Err(NoAnswer::Unknown(_)) => lost += 1,
                Err(NoAnswer::NotRun(error)) => panic!("{error}"),
            }
        }
        assert_eq!(lost, first);
        lease.await.unwrap();
        metadata.await.unwrap();
        // The next call opens it again.
        let calls = (0..4).map(|number| pair.ask(Class::Bulk, number, MIB, false));
        assert!(join_all(calls).await.iter().all(Result::is_ok));
    });
}

#[test]
fn data_that_the_other_node_takes_slowly_holds_up_nothing_else() {
    run(|pair| async move {
        pair.ask(Class::Bulk, 1, MIB, false).await.unwrap();
        pair.relayed(Lane::Bulk)[0].way.send_replace(Way::Held);
        // More than the kernels' buffers take.
        let mut stuck = pair.spawn_ask(Class::Bulk, 2, 16 * MIB, false);
        let is_sending = |pair: &Pair| pair.lane(Lane::Bulk).connections[0].requests == 1;
        pair.until("it is on its way", is_sending).await;
        let others: [BoxFuture<'_, _>; 4] = [
            pair.ask(Class::Metadata, 3, 0, false).boxed(),
            pair.ask(Class::Lease, 4, 0, false).boxed(),
            pair.ask(Class::Bulk, 5, 4096, false).boxed(),
            // Over a second connection.
            pair.ask(Class::Bulk, 6, MIB, false).boxed(),
        ];
        assert!(join_all(others).await.iter().all(Result::is_ok));
        assert!((&mut stuck).now_or_never().is_none());
    });
}

/// Would be broken if a disk that hangs, and takes all threads with it, cost the node its lease.
#[test]
fn leases_are_answered_while_all_other_threads_block() {
    run(|pair| async move {
        pair.ask(Class::Metadata, 1, 0, false).await.unwrap();
        let blocked = Blocked::new(&pair.world);
        let urgent = pair.world.urgent();
        // A connection is opened, accepted and greeted; then it is used.
        for number in 2..50 {
            let call = pair.ask(Class::Lease, number, 0, false);
            urgent.spawn("renews", call).await.unwrap();
        }
        // From other threads too, such as this one.
        pair.ask(Class::Lease, 50, 0, false).await.unwrap();
        let relayed = pair.relayed(Lane::Lease);
        relayed[0].way.send_replace(Way::Cut);
        let again = pair.ask(Class::Lease, 51, 0, false).await;
        if again.is_err() {
            pair.ask(Class::Lease, 52, 0, false).await.unwrap();
        }
        let mut waits = Box::pin(pair.ask(Class::Metadata, 53, 0, false));
        assert!((&mut waits).now_or_never().is_none());
        pair.ask(Class::Lease, 54, 0, false).await.unwrap();
        assert!(
            (&mut waits).now_or_never().is_none(),
            "those threads do block"
        );
        drop(blocked);
        waits.await.unwrap();
    });
}
