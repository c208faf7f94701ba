//! Calls that a thread makes in one go: they leave together, and end as others do.

use crate::scene::{Scene, ms, run};
use futures::future::join_all;
use rpc::{Lane, LaneView};
use std::task::{Context, Waker};
use world::in_one_go;

/// The lane of small messages.
fn small(scene: &Scene) -> LaneView {
    let lanes = scene.peer.lanes().into_iter();
    let mut small = lanes.filter(|view| view.lane == Lane::Small);
    small.next().unwrap()
}

#[test]
fn calls_that_are_made_in_one_go_leave_at_its_end() {
    run(1, |world| async move {
        let scene = Scene::new(&world);
        // From here on there is a connection.
        scene.ask(1, 0, ms(500)).await.unwrap();
        let calls = (2..6).map(|ticket| Box::pin(scene.ask(ticket, 3, ms(500))));
        let mut calls: Vec<_> = calls.collect();
        in_one_go(|| {
            for call in &mut calls {
                let mut context = Context::from_waker(Waker::noop());
                assert!(call.as_mut().poll(&mut context).is_pending());
            }
            let view = small(&scene);
            assert_eq!((view.waiting, view.connections[0].requests), (4, 0));
        });
        let view = small(&scene);
        assert_eq!((view.waiting, view.connections[0].requests), (0, 4));
        for (ticket, answer) in (2..).zip(join_all(calls).await) {
            assert_eq!(answer.unwrap().reply.decode::<u64>(), Ok(ticket));
        }
    });
}

#[test]
fn a_call_that_is_given_up_before_it_leaves_is_not_run() {
    run(2, |world| async move {
        let scene = Scene::new(&world);
        scene.ask(1, 0, ms(500)).await.unwrap();
        in_one_go(|| {
            let mut call = Box::pin(scene.ask(2, 0, ms(500)));
            let mut context = Context::from_waker(Waker::noop());
            assert!(call.as_mut().poll(&mut context).is_pending());
            drop(call);
        });
        scene.ask(3, 0, ms(500)).await.unwrap();
        assert_eq!((scene.begun(2), scene.begun(3)), (0, 1));
    });
}
