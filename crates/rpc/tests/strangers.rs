//! Connections of those that don't belong: refused, while others are served.

use crate::scene::{ANSWERING, ASKING, Scene, admission, ask, identity, ms, request, run};
use bytes::Bytes;
use futures::future::{BoxFuture, join_all};
use model::call::{Call, Class, NoAnswer, Reply};
use model::checksum::crc32c;
use model::{NodeId, NodeRun};
use rpc::{Addresses, Admission, Identity, Lane, Peer, Server};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use world::Deadline;
use world::call::Service;

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

/// A hello of node 7 for a lane, as `docs/formats/rpc.md` says.
fn hello(lane: u8) -> Vec<u8> {
    let mut body = vec![1, 0, 1, 0, 7, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
    body.extend(42_u128.to_le_bytes());
    body.extend(ANSWERING.0.to_le_bytes());
    body.extend([0; 4 + 48]);
    body.extend([lane, 8, 0, 0]);
    let mut frame = b"SHRP\0\x01\0\0".to_vec();
    frame.extend([0; 24]);
    frame.extend((body.len() as u32).to_le_bytes());
    frame.extend([0; 8]);
    frame.extend(crc32c(&body).to_le_bytes());
    frame.extend(crc32c(&[]).to_le_bytes());
    frame.extend([0; 8]);
    frame.extend(crc32c(&frame).to_le_bytes());
    frame.extend(body);
    frame
}

/// Bytes that the answer to a hello grants; none if there is no hello.
async fn granted(stream: &mut DuplexStream) -> Option<u64> {
    let mut answer = [0; 64 + 92];
    stream.read_exact(&mut answer).await.ok()?;
    assert_eq!(answer[5], 1, "a hello");
    let credits = answer[64 + 40..][..48].chunks(12);
    Some(
        credits
            .map(|credit| u64::from_le_bytes(credit[4..].try_into().unwrap()))
            .sum(),
    )
}

#[test]
fn a_node_that_opens_connections_without_end_leaves_room_for_the_others() {
    run(5, |world| async move {
        let scene = Scene::new(&world);
        let admission = Admission {
            connections: 40,
            ..admission()
        };
        let service = scene.counter.clone();
        let server = Arc::new(Server::new(
            &world,
            identity(ANSWERING, 1),
            admission,
            service,
        ));
        scene.wire.serve(server.clone());
        let mut open = Vec::new();
        for round in 0..50 {
            for lane in 0..4 {
                let (mut near, far) = duplex(4096);
                server.accept(far);
                near.write_all(&hello(lane)).await.unwrap();
                let granted = granted(&mut near).await.expect("the newest is let in");
                open.push((near, granted));
            }
            let (other, class) = (round, Class::ALL[round as usize % 4]);
            let mut call = request(other, 0);
            call.class = class;
            ask(&world, &*scene.peer, call, ms(1000)).await.unwrap();
        }
        let hostile = || {
            let connections = server.connections().into_iter();
            let of_it = connections.filter(|it| it.run.node == NodeId(7));
            of_it.count()
        };
        // One for leases, nine for data, one for everything; and four that haven't left yet.
        assert_eq!(hostile(), 15);
        let mut bytes = 0;
        for (stream, granted) in &mut open {
            // What is still said: a goodbye, or nothing.
            let mut rest = Vec::new();
            let closed = world.timeout(ms(1), stream.read_to_end(&mut rest)).await;
            bytes += u64::from(closed.is_err()) * *granted;
        }
        assert!(bytes <= admission.node_bytes_max(), "{bytes} bytes");
        world.sleep(ms(1500)).await;
        assert_eq!(hostile(), 11, "those had nothing under way");
        // A lane that nobody knows.
        let (mut near, far) = duplex(4096);
        server.accept(far);
        near.write_all(&hello(4)).await.unwrap();
        let mut answer = Vec::new();
        near.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer[5], 5, "a goodbye");
        assert!(answer[64..].ends_with(b"no lane 4"));
    });
}

#[test]
fn silent_strangers_keep_no_node_out() {
    run(6, |world| async move {
        let scene = Scene::new(&world);
        let silent: Vec<_> = (0..200).map(|_| scene.wire.connect().unwrap()).collect();
        for number in 0..8 {
            let mut call = request(number, 0);
            call.class = Class::ALL[number as usize % 4];
            ask(&world, &*scene.peer, call, ms(1000)).await.unwrap();
        }
        drop(silent);
    });
}

#[test]
fn a_newer_daemon_ends_the_connections_of_all_lanes_to_the_one_before() {
    run(7, |world| async move {
        let scene = Scene::new(&world);
        let spawn = |peer: &Arc<Peer>, ticket, class, work| {
            let (world, peer) = (world.clone(), peer.clone());
            let mut call = request(ticket, work);
            call.class = class;
            let asking = async move { ask(&world, &*peer, call, ms(20_000)).await };
            scene.world.spawn("ask", asking)
        };
        let start = world.now();
        // The asking daemon is replaced.
        let classes = [Class::Lease, Class::Metadata, Class::Repair];
        let lost: Vec<_> = (1..)
            .zip(classes)
            .map(|(ticket, class)| spawn(&scene.peer, ticket, class, 10_000))
            .collect();
        world.sleep(ms(50)).await;
        let newer: Arc<Peer> =
            Peer::new(&world, identity(ASKING, 2), ANSWERING, scene.wire.clone()).into();
        spawn(&newer, 4, Class::Lease, 0).await.unwrap();
        for lost in lost {
            let lost = lost.await.unwrap_err();
            assert!(matches!(lost, NoAnswer::Unknown(_)), "{lost}");
        }
        // The answering daemon is replaced, and its connections stay; the next one finds out.
        let lost = [Class::Metadata, Class::Repair];
        let lost = lost.map(|class| spawn(&newer, 5, class, 10_000));
        world.sleep(ms(50)).await;
        let older = scene.server();
        scene.start_server(2);
        for lane in newer.lanes() {
            assert_eq!(lane.connections.len(), 1, "{lane:?}");
        }
        assert_eq!(older.connections().len(), 3);
        scene.wire.cut_lane(Lane::Lease);
        world.sleep(ms(50)).await;
        let answer = spawn(&newer, 6, Class::Lease, 0).await.unwrap();
        assert_eq!(answer.from.incarnation, 2);
        for lost in lost {
            let lost = lost.await.unwrap_err();
            assert!(matches!(lost, NoAnswer::Unknown(_)), "{lost}");
        }
        assert!(world.now() - start < ms(2000), "not at their deadlines");
    });
}

struct Answers;

impl Service for Answers {
    fn serve(&self, _: NodeRun, call: Call, _: Deadline) -> BoxFuture<'_, Reply> {
        Box::pin(async move { Reply::new(&call.decode::<(u64, u64)>(), Bytes::new()) })
    }
}

/// Would be broken if those that come took the places of those that are being greeted.
#[test]
fn all_nodes_of_a_cluster_may_come_at_the_same_time() {
    run(8, |world| async move {
        let admission = Admission {
            connections: 1000,
            ..admission()
        };
        let server = Server::new(&world, identity(ANSWERING, 1), admission, Arc::new(Answers));
        let listener = world.listen("0.0.0.0:0".parse().unwrap()).await.unwrap();
        let addresses = Arc::new(Addresses::new(&world));
        addresses.set(ANSWERING, listener.address());
        server.listen(listener);
        let first_call = async |number: u32| {
            let from = identity(NodeId(100 + number), 1);
            let peer = Peer::new(&world, from, ANSWERING, addresses.clone());
            // The kernel's queue is full for a while.
            ask(&world, &peer, request(1, 0), ms(60_000)).await.unwrap();
            peer
        };
        let peers = join_all((0..300).map(first_call)).await;
        assert_eq!(server.connections().len(), peers.len());
    });
}
