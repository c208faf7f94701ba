//! Connections that end, stall, or lead to another daemon than before.

use crate::scene::{ANSWERING, Scene, Way, ask, identity, ms, request, run};
use model::call::{Answer, Call, Class, NoAnswer};
use std::ops::Range;
use std::sync::Arc;
use world::Task;

/// A small call whose answer is as large as it: a few of them fill a connection.
fn data(ticket: u64) -> Call {
    Call {
        class: Class::Bulk,
        payload: vec![ticket as u8; 60_000].into(),
        reply_bytes_max: 70_000,
        ..request(ticket, 1)
    }
}

/// Asks for data of so many tickets at the same time.
fn spawn_data(scene: &Scene, tickets: Range<u64>) -> Vec<Task<Result<Answer, NoAnswer>>> {
    let spawn = |ticket| {
        let (world, peer) = (scene.world.clone(), scene.peer.clone());
        let asking = async move { ask(&world, &*peer, data(ticket), ms(3000)).await };
        scene.world.spawn("ask", asking)
    };
    tickets.map(spawn).collect()
}

#[test]
fn a_cut_ends_what_is_under_way_at_once_and_the_next_call_connects_again() {
    run(1, |world| async move {
        let scene = Scene::new(&world);
        let start = world.now();
        let call = scene.spawn_ask(1, 5000, ms(10_000));
        world.sleep(ms(50)).await;
        scene.wire.cut();
        let NoAnswer::Unknown(_) = call.await.unwrap_err() else {
            panic!("it was running");
        };
        assert!(world.now() - start < ms(100), "not at its deadline");
        scene.ask(2, 0, ms(100)).await.unwrap();
        assert_eq!(scene.begun(1), 1);
        assert_eq!(*scene.wire.dialed.lock(), 2);
    });
}

#[test]
fn a_call_to_a_node_that_is_down_fails_with_the_first_attempt() {
    run(2, |world| async move {
        let scene = Scene::new(&world);
        scene.kill_server();
        let start = world.now();
        for message in 1..=100 {
            let down = scene.ask(message, 0, ms(60_000)).await.unwrap_err();
            assert!(matches!(down, NoAnswer::NotRun(_)), "{down}");
        }
        assert!(world.now() - start < ms(20), "none waits for the node");
        assert_eq!(*scene.wire.dialed.lock(), 1, "not every call is an attempt");
    });
}

#[test]
fn a_node_that_comes_back_is_found_within_a_second() {
    run(10, |world| async move {
        let scene = Scene::new(&world);
        scene.kill_server();
        for _ in 0..500 {
            scene.ask(1, 0, ms(3000)).await.unwrap_err();
            world.sleep(ms(20)).await;
        }
        // 20 ms, doubling up to a second, each at least half of that.
        let dialed = *scene.wire.dialed.lock();
        assert!((10..=30).contains(&dialed), "{dialed} attempts in 10 s");
        scene.start_server(2);
        let back = world.now();
        let answer = loop {
            match scene.ask(2, 0, ms(3000)).await {
                Ok(answer) => break answer,
                Err(_) => world.sleep(ms(20)).await,
            }
        };
        assert!(world.now() - back <= ms(1020), "the longest pause");
        assert_eq!(answer.from, identity(ANSWERING, 2).run);
        assert_eq!((scene.begun(1), scene.begun(2)), (0, 1));
    });
}

#[test]
fn attempts_end_when_nobody_asks() {
    run(3, |world| async move {
        let scene = Scene::new(&world);
        scene.kill_server();
        scene.ask(1, 0, ms(10)).await.unwrap_err();
        world.sleep(ms(2000)).await;
        assert!(*scene.wire.dialed.lock() <= 2);
    });
}

#[test]
fn a_restarted_daemon_answers_only_what_it_was_asked() {
    run(4, |world| async move {
        let scene = Scene::new(&world);
        let call = scene.spawn_ask(1, 200, ms(1000));
        world.sleep(ms(20)).await;
        scene.kill_server();
        scene.start_server(2);
        let lost = call.await.unwrap_err();
        assert!(matches!(lost, NoAnswer::Unknown(_)), "{lost}");
        let answer = scene.ask(2, 0, ms(200)).await.unwrap();
        assert_eq!(answer.from.incarnation, 2);
        assert_eq!(answer.reply.decode::<u64>(), Ok(2));
        assert_eq!(scene.begun(1), 1, "nothing is sent twice");
        // The daemon from before the restart comes back on the same wire.
        scene.kill_server();
        scene.start_server(1);
        // A request leaves with its caller, who may not know yet that the connection has ended.
        let old = scene.ask(3, 0, ms(500)).await.unwrap_err();
        assert!(
            matches!(old, NoAnswer::NotRun(_) | NoAnswer::Unknown(_)),
            "{old}"
        );
        let older = scene.ask(3, 0, ms(500)).await.unwrap_err();
        assert!(matches!(older, NoAnswer::NotRun(_)), "{older}");
        assert_eq!(scene.begun(3), 0);
        assert!(
            *scene.wire.dialed.lock() <= 12,
            "it isn't tried without pause"
        );
    });
}

#[test]
fn a_silent_connection_is_given_up_and_the_next_one_works() {
    run(5, |world| async move {
        let scene = Scene::new(&world);
        scene.ask(1, 0, ms(100)).await.unwrap();
        scene.wire.set(Way::Held, Way::Held);
        // Sent into nothing: the deadline tells.
        let lost = scene.ask(2, 0, ms(300)).await.unwrap_err();
        assert!(matches!(lost, NoAnswer::Unknown(_)), "{lost}");
        world.sleep(ms(4000)).await;
        scene.wire.set(Way::Open, Way::Open);
        scene.ask(3, 0, ms(2000)).await.unwrap();
        assert!(*scene.wire.dialed.lock() >= 2);
        assert!(scene.begun(2) <= 1);
    });
}

#[test]
fn an_idle_connection_stays_open() {
    run(6, |world| async move {
        let scene = Scene::new(&world);
        scene.ask(1, 0, ms(100)).await.unwrap();
        world.sleep(ms(60_000)).await;
        scene.ask(2, 0, ms(100)).await.unwrap();
        assert_eq!(*scene.wire.dialed.lock(), 1);
    });
}

#[test]
fn a_request_whose_reply_is_lost_has_run_once_and_is_unknown() {
    run(7, |world| async move {
        let scene = Scene::new(&world);
        scene.ask(1, 0, ms(100)).await.unwrap();
        scene.wire.set(Way::Open, Way::Held);
        let lost = scene.ask(2, 0, ms(500)).await.unwrap_err();
        assert!(matches!(lost, NoAnswer::Unknown(_)), "{lost}");
        assert_eq!(scene.begun(2), 1);
        scene.wire.set(Way::Open, Way::Open);
        // Its late reply isn't taken for the next call's.
        let answer = scene.ask(3, 0, ms(500)).await.unwrap();
        assert_eq!(answer.reply.decode::<u64>(), Ok(3));
    });
}

/// Would be broken if who made an answer left a part of it to nobody, or sent it into the middle of another one.
#[test]
fn answers_that_a_connection_does_not_take_at_once_arrive_whole() {
    run(11, |world| async move {
        let scene = Scene::new(&world);
        scene.ask(1, 0, ms(100)).await.unwrap();
        scene.wire.set(Way::Open, Way::Held);
        let calls = spawn_data(&scene, 2..14);
        world.sleep(ms(1000)).await;
        let finished = scene.counter.finished.lock().len();
        assert_eq!(finished, 13, "all are answered, and no answer has come");
        scene.wire.set(Way::Open, Way::Open);
        for (ticket, call) in (2..).zip(calls) {
            let answer = call.await.unwrap();
            assert_eq!(answer.reply.decode::<u64>(), Ok(ticket));
            assert_eq!(answer.reply.payload, data(ticket).payload);
        }
        assert_eq!(*scene.wire.dialed.lock(), 1);
    });
}

/// Would be broken if an answer that is being sent kept its connection, or what its request held.
#[test]
fn a_connection_that_ends_while_answers_are_sent_leaves_nothing_behind() {
    run(12, |world| async move {
        let scene = Scene::new(&world);
        for round in 0..3 {
            scene.ask(round, 0, ms(500)).await.unwrap();
            scene.wire.set(Way::Open, Way::Held);
            let first = 100 * (round + 1);
            let calls = spawn_data(&scene, first..first + 12);
            world.sleep(ms(500)).await;
            scene.wire.cut();
            for call in calls {
                let lost = call.await.unwrap_err();
                assert!(matches!(lost, NoAnswer::Unknown(_)), "{lost}");
            }
            world.sleep(ms(10)).await;
            assert!(scene.server().connections().is_empty());
            scene.wire.set(Way::Open, Way::Open);
        }
        // All credits and all room are there again.
        for call in spawn_data(&scene, 500..512) {
            call.await.unwrap();
        }
        scene.kill_server();
        world.sleep(ms(10)).await;
        let users = Arc::strong_count(&scene.counter);
        assert_eq!(users, 1, "no request and no connection is left");
    });
}

#[test]
fn a_closing_node_answers_what_runs_and_runs_nothing_else() {
    run(8, |world| async move {
        let scene = Scene::new(&world);
        let running = scene.spawn_ask(1, 200, ms(1000));
        world.sleep(ms(50)).await;
        let server = scene.server();
        let deadline = scene.deadline(ms(1000));
        let start = world.now();
        let closing = world.spawn("close", async move { server.close(deadline).await });
        let late = scene.ask(2, 0, ms(400)).await.unwrap_err();
        assert!(matches!(late, NoAnswer::NotRun(_)), "{late}");
        assert_eq!(running.await.unwrap().reply.decode::<u64>(), Ok(1));
        closing.await;
        assert!(
            world.now() - start < ms(600),
            "it waits no longer than needed"
        );
        assert_eq!(scene.begun(2), 0);
    });
}

#[test]
fn all_tasks_end_with_peer_and_server() {
    run(9, |world| async move {
        let scene = Scene::new(&world);
        let call = scene.spawn_ask(1, 10_000, ms(20_000));
        world.sleep(ms(50)).await;
        scene.peer.close(scene.deadline(ms(100))).await;
        let lost = call.await.unwrap_err();
        assert!(matches!(lost, NoAnswer::Unknown(_)), "{lost}");
        let after = scene.ask(2, 0, ms(100)).await.unwrap_err();
        assert!(matches!(after, NoAnswer::NotRun(_)), "{after}");
        scene.server().close(scene.deadline(ms(100))).await;
        scene.kill_server();
        world.sleep(ms(10)).await;
        let Scene {
            counter,
            wire,
            peer,
            ..
        } = scene;
        drop(peer);
        assert_eq!(Arc::strong_count(&counter), 1, "no request runs");
        assert_eq!(Arc::strong_count(&wire), 1, "no connection is opened");
        assert!(counter.finished.lock().is_empty());
    });
}
