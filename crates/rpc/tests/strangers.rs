//! Connections of those that don't belong: refused, while others are served.

use crate::scene::{ANSWERING, ASKING, Scene, admission, ask, identity, ms, request, run};
use model::NodeId;
use model::call::NoAnswer;
use rpc::{Identity, Peer};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[test]
fn garbage_is_cut_off_and_others_are_served() {
    run(1, |world| async move {
        let scene = Scene::new(&world);
        scene.ask(1, 0, ms(100)).await.unwrap();
        for length in [1, 63, 64, 65, 5000] {
            let mut stream = scene.wire.connect().unwrap();
            let bytes: Vec<u8> = (0..length).map(|_| world.random_u64() as u8).collect();
            stream.write_all(&bytes).await.unwrap();
            let mut answer = Vec::new();
            // A piece of a frame is waited for, but not for ever.
            let reading = stream.read_to_end(&mut answer);
            world.timeout(ms(6000), reading).await.unwrap().unwrap();
            scene.ask(2 + length, 0, ms(100)).await.unwrap();
        }
    });
}

#[test]
fn more_connections_than_allowed_are_closed() {
    run(2, |world| async move {
        let scene = Scene::new(&world);
        scene.ask(1, 0, ms(100)).await.unwrap();
        let silent: Vec<_> = (0..20).map(|_| scene.wire.connect().unwrap()).collect();
        let most = admission().connections;
        let mut open = 0;
        for mut stream in silent {
            let mut byte = [0];
            let closed = world.timeout(ms(20), stream.read(&mut byte)).await;
            open += usize::from(closed.is_err());
        }
        assert_eq!(open, most - 1);
        scene.ask(2, 0, ms(100)).await.unwrap();
    });
}

#[test]
fn nodes_of_other_clusters_and_old_daemons_are_refused() {
    run(3, |world| async move {
        let scene = Scene::new(&world);
        let refused = async |identity, node: NodeId, why: &str| {
            let peer = Peer::new(&world, identity, node, scene.wire.clone());
            let none = ask(&world, &peer, request(9, 0), ms(300))
                .await
                .unwrap_err();
            let NoAnswer::NotRun(error) = &none else {
                panic!("{none}");
            };
            assert!(error.to_string().contains(why), "{error}");
        };
        let mut foreign: Identity = identity(ASKING, 1);
        foreign.cluster += 1;
        refused(foreign, ANSWERING, "another cluster").await;

        let newer = Peer::new(&world, identity(ASKING, 5), ANSWERING, scene.wire.clone());
        ask(&world, &newer, request(1, 0), ms(100)).await.unwrap();
        refused(identity(ASKING, 4), ANSWERING, "old daemon").await;
        assert_eq!(scene.begun(9), 0);
    });
}

#[test]
fn a_new_daemon_ends_the_connections_of_the_one_before() {
    run(4, |world| async move {
        let scene = Scene::new(&world);
        let running = scene.spawn_ask(1, 1000, ms(5000));
        world.sleep(ms(20)).await;
        let newer: Arc<Peer> =
            Peer::new(&world, identity(ASKING, 2), ANSWERING, scene.wire.clone()).into();
        ask(&world, &*newer, request(2, 0), ms(100)).await.unwrap();
        let lost = running.await.unwrap_err();
        assert!(matches!(lost, NoAnswer::Unknown(_)), "{lost}");
        assert!(
            !scene.counter.finished.lock().contains_key(&1),
            "its request was stopped"
        );
    });
}
