//! Connections that end, stall, or lead to another daemon than before.

use crate::scene::{ANSWERING, Scene, Way, identity, ms, run};
use model::call::NoAnswer;

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
        assert_eq!(std::sync::Arc::strong_count(&counter), 1, "no request runs");
        assert_eq!(
            std::sync::Arc::strong_count(&wire),
            1,
            "no connection is opened"
        );
        assert!(counter.finished.lock().is_empty());
    });
}
