//! Short requests, which the connection's task of the other node runs: those of even tickets. They hold up nothing, and
//! end as others do.

use crate::scene::{Scene, ms, run};
use model::call::NoAnswer;
use rpc::Lane;

const SEEDS: u64 = 20;

#[test]
fn one_that_waits_holds_up_neither_short_requests_nor_others() {
    for seed in 0..SEEDS {
        run(seed, |world| async move {
            let scene = Scene::new(&world);
            // A disk that hangs.
            let hanging = scene.spawn_ask(2, 3000, ms(10_000));
            world.sleep(ms(50)).await;
            assert_eq!(scene.begun(2), 1);
            for ticket in 3..13 {
                let answer = scene.ask(ticket, ticket % 3, ms(500)).await.unwrap();
                assert_eq!(answer.reply.decode::<u64>(), Ok(ticket));
            }
            assert!(!scene.counter.finished.lock().contains_key(&2));
            let answer = hanging.await.unwrap();
            assert_eq!(answer.reply.decode::<u64>(), Ok(2));
        });
    }
}

#[test]
fn each_gets_its_own_answer_however_many_end_together() {
    for seed in 0..SEEDS {
        run(seed, |world| async move {
            let scene = Scene::new(&world);
            scene
                .ask_all_at_once((0..40).map(|ticket| ticket / 8))
                .await;
        });
    }
}

#[test]
fn a_closing_server_answers_those_under_way() {
    run(1, |world| async move {
        let scene = Scene::new(&world);
        let calls = [2, 3].map(|ticket| scene.spawn_ask(ticket, 500, ms(5000)));
        world.sleep(ms(50)).await;
        let server = scene.server();
        let deadline = scene.deadline(ms(4000));
        server.close(deadline).await;
        assert!(!deadline.has_passed(&world), "nothing else is waited for");
        for (ticket, call) in [2, 3].into_iter().zip(calls) {
            let answer = call.await.unwrap();
            assert_eq!(answer.reply.decode::<u64>(), Ok(ticket));
        }
        let refused = scene.ask(4, 0, ms(500)).await.unwrap_err();
        assert!(matches!(refused, NoAnswer::NotRun(_)), "{refused}");
    });
}

#[test]
fn one_whose_caller_or_connection_goes_away_is_stopped() {
    run(2, |world| async move {
        let scene = Scene::new(&world);
        let late = scene.ask(2, 2000, ms(100)).await.unwrap_err();
        assert!(matches!(late, NoAnswer::Unknown(_)), "{late}");
        let cut = scene.spawn_ask(4, 2000, ms(5000));
        world.sleep(ms(50)).await;
        scene.wire.cut_lane(Lane::Small);
        let cut = cut.await.unwrap_err();
        assert!(matches!(cut, NoAnswer::Unknown(_)), "{cut}");
        world.sleep(ms(5000)).await;
        assert_eq!((scene.begun(2), scene.begun(4)), (1, 1));
        assert!(
            scene.counter.finished.lock().is_empty(),
            "they were stopped"
        );
        scene.ask(6, 0, ms(500)).await.unwrap();
    });
}
