//! Properties and faults of the network between machines.

use super::*;
use crate::net_limits::{BACKLOG_MAX, SILENCE_MAX};
use crate::sim::Link;
use std::collections::BTreeSet;
use std::io::ErrorKind;

/// More than a silent peer can go unnoticed.
const NOTICED: Duration = Duration::from_secs(2 * SILENCE_MAX.as_secs());

async fn accept_one(world: &World) -> Connection {
    let address = (std::net::Ipv4Addr::UNSPECIFIED, PORT).into();
    world.listen(address).await.unwrap().accept().await.unwrap()
}

/// Waits until nothing more comes; returns why.
async fn failure_of(mut connection: Connection) -> ErrorKind {
    connection.read_u8().await.unwrap_err().kind()
}

#[test]
fn bytes_take_the_links_latency_and_bandwidth() {
    let (cluster, a, b) = two(1);
    let slow = Link {
        latency_min: 20 * MS,
        latency_max: 30 * MS,
        bytes_per_second: 1_000_000,
    };
    cluster.wires().link(&a, &b, slow);
    cluster.run(|_| async move {
        let received = b.start(|world| async move {
            let mut connection = accept_one(&world).await;
            let byte = connection.read_u8().await.unwrap();
            connection.write_u8(byte).await.unwrap();
            connection.read_exact(&mut vec![0; 500_000]).await.unwrap();
            connection.write_u8(byte).await.unwrap();
            connection.read_u8().await.unwrap_err();
        });
        let sent = a.start(move |world| async move {
            let mut connection = connect(&world, &b, SECOND).await.unwrap();
            let start = world.now();
            ask(&mut connection, 1).await.unwrap();
            let small = (world.now() - start).as_millis();
            connection.write_all(&[1; 500_000]).await.unwrap();
            connection.read_u8().await.unwrap();
            (small, (world.now() - start).as_millis())
        });
        let (small, large) = sent.done().await;
        received.done().await;
        assert!((20..34).contains(&small), "{small} ms");
        assert!((540..600).contains(&large), "{large} ms");
    });
}

/// The order in which the first bytes of three connections are read.
fn order_of_three(seed: u64) -> Vec<u8> {
    let (cluster, a, b) = two(seed);
    cluster.run(|_| async move {
        let taken = b.start(|world| async move {
            let address = (std::net::Ipv4Addr::UNSPECIFIED, PORT).into();
            let listener = world.listen(address).await.unwrap();
            let order: Arc<Mutex<Vec<u8>>> = Arc::default();
            let mut receiving = Vec::new();
            for _ in 0..3 {
                let (mut connection, order) = (listener.accept().await.unwrap(), order.clone());
                receiving.push(world.spawn("receives", async move {
                    let first = connection.read_u8().await.unwrap();
                    order.lock().push(first);
                    for next in 1..100 {
                        assert_eq!(connection.read_u8().await.unwrap(), next);
                    }
                }));
            }
            futures::future::join_all(receiving).await;

            order.lock().clone()
        });
        let _sends = a.start(move |world| async move {
            let mut connections = Vec::new();
            for _ in 0..3 {
                connections.push(connect(&world, &b, SECOND).await.unwrap());
            }
            for (number, connection) in connections.iter_mut().enumerate() {
                connection.write_u8(200 + number as u8).await.unwrap();
            }
            for connection in &mut connections {
                for next in 1..100 {
                    connection.write_u8(next).await.unwrap();
                }
            }
            std::future::pending::<()>().await;
        });
        taken.done().await
    })
}

#[test]
fn connections_overtake_each_other_and_bytes_of_one_do_not() {
    let orders: BTreeSet<_> = (0..20).map(order_of_three).collect();
    assert!(orders.len() > 2, "{orders:?}");
}

#[test]
fn a_machine_that_refuses_is_there_again_once_that_is_healed() {
    let (cluster, a, b) = two(1);
    let wires = cluster.wires();
    cluster.run(|judge| async move {
        let _server = b.start(serve);
        let peer = b.clone();
        let asked = a.start(move |world| async move {
            let mut connection = connect(&world, &peer, SECOND).await.unwrap();
            assert_eq!(ask(&mut connection, 1).await.unwrap(), 2);
            world.sleep(2 * SECOND).await;
            assert!(ask(&mut connection, 2).await.is_err());
            let refused = connect(&world, &peer, SECOND).await.err().unwrap();
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
            world.sleep(2 * SECOND).await;
            let mut connection = connect(&world, &peer, SECOND).await.unwrap();
            assert_eq!(ask(&mut connection, 3).await.unwrap(), 4);
        });
        judge.sleep(SECOND).await;
        wires.refuse(&b);
        judge.sleep(2 * SECOND).await;
        wires.heal_all();
        asked.done().await;
    });
}

#[test]
fn what_meets_a_short_cut_arrives_after_it() {
    let (cluster, a, b) = two(1);
    let wires = cluster.wires();
    cluster.run(|judge| async move {
        let _server = b.start(serve);
        let peer = b.clone();
        let answered = a.start(move |world| async move {
            let mut connection = connect(&world, &peer, SECOND).await.unwrap();
            for byte in 0..100 {
                assert_eq!(ask(&mut connection, byte).await.unwrap(), byte + 1);
                world.sleep(10 * MS).await;
            }
        });
        judge.sleep(50 * MS).await;
        wires.cut(&a, &b);
        judge.sleep(3 * SECOND).await;
        wires.heal(&a, &b);
        let all = judge.within("all is answered", 10 * SECOND, answered.done());
        all.await;
        assert!(judge.now() > 4 * SECOND);
    });
}

#[test]
fn a_long_cut_fails_both_ends_and_no_earlier_than_the_limit() {
    let (cluster, a, b) = two(2);
    let wires = cluster.wires();
    cluster.run(|judge| async move {
        let accepted = b.start(|world| async move { failure_of(accept_one(&world).await).await });
        let peer = b.clone();
        let connected = a.start(move |world| async move {
            failure_of(connect(&world, &peer, SECOND).await.unwrap()).await
        });
        judge.sleep(SECOND).await;
        wires.isolate(&b);
        let kinds = judge.within("both fail", NOTICED, async {
            (accepted.done().await, connected.done().await)
        });
        assert_eq!(kinds.await, (ErrorKind::TimedOut, ErrorKind::TimedOut));
        assert!(judge.now() > SILENCE_MAX);
        wires.heal_all();
        assert!(wires.is_open(&a, &b));
    });
}

#[test]
fn loss_in_one_way_lets_the_other_way_through_until_the_connection_fails() {
    let (cluster, a, b) = two(1);
    let wires = cluster.wires();
    cluster.run(|judge| async move {
        let received = b.start(|world| async move {
            let mut connection = accept_one(&world).await;
            let mut received = Vec::new();
            while let Ok(byte) = connection.read_u8().await {
                received.push(byte);
            }
            received
        });
        let peer = b.clone();
        let answers = a.start(move |world| async move {
            let mut connection = connect(&world, &peer, SECOND).await.unwrap();
            world.sleep(100 * MS).await;
            connection.write_all(&[1, 2, 3]).await.unwrap();
            failure_of(connection).await
        });
        judge.sleep(50 * MS).await;
        // Acknowledgments are lost, data isn't.
        wires.cut_one_way(&b, &a);
        let both = judge.within("both notice", NOTICED, async {
            (answers.done().await, received.done().await)
        });
        let (answers, received) = both.await;
        assert_eq!(answers, ErrorKind::TimedOut);
        assert_eq!(received, [1, 2, 3]);
        assert!(judge.now() > SILENCE_MAX);
    });
}

#[test]
fn peers_of_a_killed_program_are_told_and_can_connect_to_the_next() {
    let (cluster, a, b) = two(1);
    cluster.run(|judge| async move {
        let _server = b.start(serve);
        let peer = b.clone();
        let told = a.start(move |world| async move {
            let connection = connect(&world, &peer, SECOND).await.unwrap();
            failure_of(connection).await;
            let refused = connect(&world, &peer, SECOND).await.unwrap_err().kind();
            while connect(&world, &peer, SECOND).await.is_err() {
                world.sleep(MS).await;
            }
            refused
        });
        judge.sleep(50 * MS).await;
        let killed = judge.now();
        b.kill();
        judge.sleep(50 * MS).await;
        let _server = b.start(serve);
        assert_eq!(told.done().await, ErrorKind::ConnectionRefused);
        assert!(judge.now() - killed < 100 * MS);
    });
}

/// What a program reads whose peer's machine lost power, and when.
fn after_a_power_cut(restart: bool) -> (ErrorKind, Duration) {
    let (cluster, a, b) = two(1);
    cluster.run(|judge| async move {
        let _server = b.start(serve);
        let peer = b.clone();
        let told = a.start(move |world| async move {
            failure_of(connect(&world, &peer, SECOND).await.unwrap()).await
        });
        judge.sleep(50 * MS).await;
        b.cut_power();
        if restart {
            judge.sleep(20 * MS).await;
            drop(b.start(serve));
        }
        let kind = judge.within("the peer notices", NOTICED, told.done());
        (kind.await, judge.now())
    })
}

#[test]
fn nobody_is_told_that_a_machine_lost_power() {
    let (kind, when) = after_a_power_cut(false);
    assert_eq!(kind, ErrorKind::TimedOut);
    assert!(when > SILENCE_MAX);
}

#[test]
fn a_machine_that_started_again_resets_the_connections_that_it_has_forgotten() {
    let (kind, when) = after_a_power_cut(true);
    assert_eq!(kind, ErrorKind::ConnectionReset);
    assert!(when < SILENCE_MAX);
}

#[test]
fn a_machine_that_is_off_or_out_of_reach_is_connected_to_once_it_is_there() {
    let (cluster, a, b) = two(1);
    let wires = cluster.wires();
    cluster.run(|judge| async move {
        let peer = b.clone();
        let off = a.start(move |world| async move {
            let failed = connect(&world, &peer, SECOND).await.unwrap_err();
            let waits = connect(&world, &peer, 20 * SECOND).await;
            (failed.kind(), waits.is_ok())
        });
        judge.sleep(2 * SECOND).await;
        wires.cut_one_way(&b, &a);
        let _server = b.start(serve);
        judge.sleep(2 * SECOND).await;
        wires.heal(&a, &b);
        assert_eq!(off.done().await, (ErrorKind::TimedOut, true));
        assert!(judge.now() > 4 * SECOND);
    });
}

#[test]
fn the_kernel_of_a_paused_program_takes_connections_up_to_the_backlog() {
    let (cluster, a, b) = two(1);
    cluster.run(|judge| async move {
        let _server = b.start(serve);
        judge.sleep(10 * MS).await;
        b.pause();
        let peer = b.clone();
        let answered = a.start(move |world| async move {
            let mut connections = Vec::new();
            for _ in 0..BACKLOG_MAX {
                let mut connection = connect(&world, &peer, SECOND).await.unwrap();
                connection.write_u8(1).await.unwrap();
                connections.push(connection);
            }
            let full = connect(&world, &peer, SECOND).await.unwrap_err();
            assert_eq!(full.kind(), ErrorKind::TimedOut);
            for connection in &mut connections {
                assert_eq!(connection.read_u8().await.unwrap(), 2);
            }
        });
        judge.sleep(20 * SECOND).await;
        b.resume();
        let all = judge.within("all are answered", SECOND, answered.done());
        all.await;
    });
}

#[test]
fn a_reset_breaks_connections_and_new_ones_work() {
    let (cluster, a, b) = two(1);
    let wires = cluster.wires();
    cluster.run(|judge| async move {
        let _server = b.start(serve);
        let peer = b.clone();
        let done = a.start(move |world| async move {
            let mut connection = connect(&world, &peer, SECOND).await.unwrap();
            assert_eq!(ask(&mut connection, 1).await.unwrap(), 2);
            assert_eq!(failure_of(connection).await, ErrorKind::ConnectionReset);
            let mut connection = connect(&world, &peer, SECOND).await.unwrap();
            ask(&mut connection, 1).await.unwrap()
        });
        judge.sleep(50 * MS).await;
        wires.reset(&b, &a);
        assert_eq!(done.done().await, 2);
    });
}

#[test]
fn a_visit_is_done_there_and_answered_here() {
    let (cluster, a, b) = two(1);
    cluster.run(|_| async move {
        let _place = b.start(|_| std::future::pending::<()>());
        let there = a.start(move |world| async move {
            let here = world.now();
            let there = b.visit(&world, |world| world.now()).await;
            (here, there)
        });
        let (here, there) = there.done().await;
        let hour = 3_600_000_000_000;
        assert_ne!(here.0 / hour, there.0 / hour, "the clock was another");
    });
}

#[test]
fn a_visit_whose_answer_is_lost_was_made_and_one_that_is_lost_was_not() {
    let (cluster, a, b) = two(1);
    let wires = cluster.wires();
    cluster.run(|judge| async move {
        let _place = b.start(|_| std::future::pending::<()>());
        let visits: Arc<Mutex<Vec<u32>>> = Arc::default();
        let (place, seen) = (b.clone(), visits.clone());
        let visitor = a.clone();
        let visit = move |number: u32| {
            let (place, visits) = (place.clone(), visits.clone());
            let visiting = visitor.start(move |world| async move {
                let visit = place.visit(&world, move |_| visits.lock().push(number));
                world.timeout(SECOND, visit).await.is_ok()
            });
            visiting.done()
        };
        assert!(visit(1).await);
        judge.sleep(MS).await;
        wires.cut_one_way(&a, &b);
        assert!(!visit(2).await);
        wires.heal_all();
        wires.cut_one_way(&b, &a);
        judge.sleep(MS).await;
        assert!(!visit(3).await);
        wires.heal_all();
        b.pause();
        judge.sleep(MS).await;
        assert!(!visit(4).await);
        assert_eq!(*seen.lock(), [1, 3]);
        b.resume();
        judge.sleep(2 * MS).await;
        assert_eq!(*seen.lock(), [1, 3, 4]);
    });
}
