//! Deadlines, cancels and credits.

use crate::scene::{ANSWERING, Scene, admission, ask, identity, ms, request, run};
use bytes::Bytes;
use model::NodeId;
use model::call::{Call, Class, NoAnswer};
use rpc::Peer;

#[test]
fn replies_come_in_any_order_each_to_its_own_call() {
    run(1, |world| async move {
        let scene = Scene::new(&world);
        let works = (0..50).map(|ticket| (50 - ticket) % 7);
        scene.ask_all_at_once(works).await;
    });
}

#[test]
fn a_payload_goes_there_and_back_unchanged() {
    run(2, |world| async move {
        let scene = Scene::new(&world);
        let bytes: Vec<u8> = (0..1_000_000_u32).map(|at| (at * 7 / 3) as u8).collect();
        let mut call = request(1, 0);
        call.class = Class::Bulk;
        call.payload = Bytes::from(bytes.clone());
        call.reply_bytes_max = 1_000_100;
        let answer = ask(&world, &*scene.peer, call.clone(), ms(5000))
            .await
            .unwrap();
        assert_eq!(answer.reply.payload, bytes);
        call.reply_bytes_max = 999_999;
        let none = ask(&world, &*scene.peer, call, ms(5000)).await.unwrap_err();
        assert!(matches!(none, NoAnswer::Unknown(_)), "it ran: {none}");
    });
}

#[test]
fn a_request_that_finds_no_room_until_its_deadline_does_not_run() {
    run(3, |world| async move {
        let scene = Scene::new(&world);
        let running = admission().running[1] as u64;
        let long: Vec<_> = (0..running)
            .map(|ticket| scene.spawn_ask(ticket, 500, ms(2000)))
            .collect();
        world.sleep(ms(20)).await;
        // The caller's view: it was sent, so it may run. The other node knows better, and nothing
        // begins after its deadline.
        scene.ask(100, 0, ms(200)).await.unwrap_err();
        for call in long {
            call.await.unwrap();
        }
        world.sleep(ms(1000)).await;
        assert_eq!(scene.begun(100), 0);
        scene.ask(101, 0, ms(100)).await.unwrap();
    });
}

#[test]
fn a_call_that_is_given_up_stops_and_frees_its_room() {
    run(4, |world| async move {
        let scene = Scene::new(&world);
        let running = admission().running[1] as u64;
        let long: Vec<_> = (0..running)
            .map(|ticket| scene.spawn_ask(ticket, 5000, ms(10_000)))
            .collect();
        world.sleep(ms(20)).await;
        drop(long);
        scene.ask(100, 0, ms(50)).await.unwrap();
        world.sleep(ms(10_000)).await;
        assert_eq!(
            scene.counter.finished.lock().len(),
            1,
            "the others were stopped"
        );
    });
}

#[test]
fn calls_beyond_the_credits_wait_here_and_certainly_do_not_run() {
    run(5, |world| async move {
        let scene = Scene::new(&world);
        let credits = u64::from(admission().credits[1].requests);
        let long: Vec<_> = (0..credits)
            .map(|ticket| scene.spawn_ask(ticket, 400, ms(5000)))
            .collect();
        world.sleep(ms(20)).await;
        let none = scene.ask(100, 0, ms(100)).await.unwrap_err();
        assert!(matches!(none, NoAnswer::NotRun(_)), "{none}");
        // Another class has its own.
        let mut call = request(101, 0);
        call.class = Class::Lease;
        ask(&world, &*scene.peer, call, ms(50)).await.unwrap();
        for call in long {
            call.await.unwrap();
        }
        assert_eq!(scene.begun(100), 0);
    });
}

/// Would be broken if one node that is out of order kept the heartbeats of all others from being answered.
#[test]
fn one_node_leaves_room_for_the_leases_of_others() {
    run(12, |world| async move {
        let scene = Scene::new(&world);
        let lease = |ticket, work| Call {
            class: Class::Lease,
            ..request(ticket, work)
        };
        let running = admission().running[0] as u64;
        let long: Vec<_> = (0..running)
            .map(|ticket| {
                let (world, peer) = (world.clone(), scene.peer.clone());
                let call = lease(ticket, 500);
                scene.world.spawn(
                    "ask",
                    async move { ask(&world, &*peer, call, ms(5000)).await },
                )
            })
            .collect();
        world.sleep(ms(20)).await;
        let other = identity(NodeId(3), 1);
        let other = Peer::new(&world, other, ANSWERING, scene.wire.clone());
        let answered = ask(&world, &other, lease(100, 0), ms(400)).await;
        assert_eq!(answered.unwrap().reply.decode::<u64>(), Ok(100));
        for call in long {
            call.await.unwrap();
        }
    });
}

#[test]
fn a_call_whose_deadline_has_passed_is_not_sent() {
    run(6, |world| async move {
        let scene = Scene::new(&world);
        let none = scene.ask(1, 0, ms(0)).await.unwrap_err();
        assert!(matches!(none, NoAnswer::NotRun(_)), "{none}");
        world.sleep(ms(100)).await;
        assert_eq!(scene.begun(1), 0);
    });
}

#[test]
fn a_request_larger_than_all_credits_is_refused_at_once() {
    run(7, |world| async move {
        let scene = Scene::new(&world);
        let mut call = request(1, 0);
        call.payload = vec![0; 5 << 20].into();
        let start = world.now();
        let none = ask(&world, &*scene.peer, call, ms(5000)).await.unwrap_err();
        assert!(matches!(none, NoAnswer::NotRun(_)), "{none}");
        assert!(world.now() - start < ms(100));
    });
}
