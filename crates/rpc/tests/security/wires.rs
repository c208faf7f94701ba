//! Somebody on the wire: whatever they do, no call gets another answer than its own, and none runs twice.

use super::wire::{Deed, Portions, Tapped, Way, Wire};
use super::*;
use model::NodeRun;
use model::call::{Class, Method, Reply};
use world::call::Service;

struct Scene {
    world: World,
    wire: Arc<Wire>,
    peer: Arc<Peer>,
    server: Arc<Server>,
    counter: Arc<Counter>,
}

impl Scene {
    fn new(world: &World, mode: Mode, portions: Portions) -> Self {
        let cluster = Cluster::new(world);
        let (server, counter) = cluster.server(mode);
        let security = cluster.security(ASKING, Policy::only(mode));
        let wire = Wire::new(world, &server, security, portions);
        let dial = Arc::new(Tapped(wire.clone()));
        let peer = Arc::new(Peer::new(world, identity(ASKING, 1), ANSWERING, dial));
        Self {
            world: world.clone(),
            wire,
            peer,
            server,
            counter,
        }
    }

    /// A call with a payload, whose answer must be its own.
    async fn call(&self, ticket: u64, size: usize) -> Result<(), NoAnswer> {
        let mut call = request(ticket, 0);
        call.payload = vec![ticket as u8; size].into();
        call.reply_bytes_max = size as u32 + 100;
        let answer = ask_call(&self.world, &self.peer, call).await?;
        assert_eq!(answer.reply.decode::<u64>(), Ok(ticket));
        assert_eq!(answer.reply.payload, vec![ticket as u8; size]);
        let begun = self.counter.begun.lock();
        assert!(begun.values().all(|runs| *runs == 1), "{begun:?}");
        Ok(())
    }
}

#[test]
fn it_doesnt_matter_how_bytes_are_cut_into_portions() {
    for portions in [Portions::AsTheyCome, Portions::Single, Portions::Together] {
        for mode in protected() {
            Simulation::new(1)
                .run(|world| async move {
                    let scene = Scene::new(&world, mode, portions);
                    for (ticket, size) in [0, 1, 15_000, 40_000].into_iter().enumerate() {
                        let called = scene.call(ticket as u64, size).await;
                        called.unwrap_or_else(|none| panic!("{portions:?}, {mode}: {none}"));
                    }
                    assert_eq!(*scene.wire.dialed.lock(), 1);
                })
                .finished();
        }
    }
}

/// In the handshake, and in the first frames.
#[test]
fn a_bit_that_changes_at_the_beginning_forges_nothing() {
    for mode in protected() {
        for way in [Way::ToServer, Way::ToClient] {
            for at in (0..2600).step_by(101) {
                Simulation::new(at as u64)
                    .run(|world| async move {
                        let scene = Scene::new(&world, mode, Portions::AsTheyCome);
                        scene.wire.plan(way, Deed::Flip(at, at as u32 % 8));
                        let _ = scene.call(1, 500).await;
                        // The next connection is a good one.
                        world.sleep(ms(1100)).await;
                        scene.call(2, 500).await.unwrap();
                    })
                    .finished();
            }
        }
    }
}

/// Every region of a sealed frame: header, tags, encoded part, payload.
#[test]
fn a_bit_that_changes_in_a_frame_ends_the_connection() {
    for mode in protected() {
        for way in [Way::ToServer, Way::ToClient] {
            let regions = (0..130).step_by(7).chain((130..5050).step_by(977));
            for at in regions {
                Simulation::new(at as u64)
                    .run(|world| async move {
                        let scene = Scene::new(&world, mode, Portions::AsTheyCome);
                        scene.call(1, 0).await.unwrap();
                        scene.wire.plan(way, Deed::Flip(at, at as u32 % 8));
                        let none = scene.call(2, 5000).await.err();
                        assert!(
                            matches!(none, Some(NoAnswer::Unknown(_))),
                            "{mode} {way:?} {at}: {none:?}"
                        );
                        scene.call(3, 5000).await.unwrap();
                        assert_eq!(*scene.wire.dialed.lock(), 2);
                    })
                    .finished();
            }
        }
    }
}

#[test]
fn a_connection_that_is_cut_anywhere_tells_what_is_known() {
    for mode in protected() {
        for way in [Way::ToServer, Way::ToClient] {
            for at in [0, 1, 79, 80, 81, 97, 3000] {
                Simulation::new(1)
                    .run(|world| async move {
                        let scene = Scene::new(&world, mode, Portions::AsTheyCome);
                        scene.call(1, 0).await.unwrap();
                        scene.wire.plan(way, Deed::Cut(at));
                        let none = scene.call(2, 5000).await.unwrap_err();
                        assert!(matches!(none, NoAnswer::Unknown(_)), "{at}: {none}");
                        scene.call(3, 5000).await.unwrap();
                    })
                    .finished();
            }
        }
    }
}

#[test]
fn bytes_that_were_recorded_are_worth_nothing() {
    for mode in protected() {
        Simulation::new(1)
            .run(|world| async move {
                let scene = Scene::new(&world, mode, Portions::AsTheyCome);
                scene.call(1, 300).await.unwrap();
                let before = scene.wire.seen(Way::ToServer).len();
                scene.call(2, 300).await.unwrap();
                let all = scene.wire.seen(Way::ToServer);

                // On a new connection.
                let mut stream = stranger(&scene.server);
                stream.write_all(&all).await.unwrap();
                let mut answer = Vec::new();
                let reading = stream.read_to_end(&mut answer);
                world.timeout(ms(6000), reading).await.unwrap().unwrap();

                // On the same one: the last request once more, before the next.
                scene.wire.slip_in(Way::ToServer, all[before..].to_vec());
                scene.call(3, 300).await.unwrap_err();
                let begun = scene.counter.begun.lock().clone();
                assert!(begun.values().all(|runs| *runs == 1), "{mode}: {begun:?}");
                drop(begun);
                scene.call(4, 300).await.unwrap();
            })
            .finished();
    }
}

#[test]
fn what_a_side_has_sent_isnt_taken_from_the_other() {
    for mode in protected() {
        Simulation::new(1)
            .run(|world| async move {
                let scene = Scene::new(&world, mode, Portions::AsTheyCome);
                scene.call(1, 300).await.unwrap();
                let before = scene.wire.seen(Way::ToServer).len();
                scene.call(2, 300).await.unwrap();
                let own = scene.wire.seen(Way::ToServer)[before..].to_vec();
                scene.wire.slip_in(Way::ToClient, own);
                let none = scene.call(3, 300).await.unwrap_err();
                assert!(matches!(none, NoAnswer::Unknown(_)), "{none}");
            })
            .finished();
    }
}

/// Answers with the length of what it was told.
struct Polite;

impl Service for Polite {
    fn serve(&self, _: NodeRun, call: Call, _: Deadline) -> BoxFuture<'_, Reply> {
        let length = call.decode::<String>().map(|text| text.len() as u64);
        Box::pin(async move { Reply::new(&length, bytes::Bytes::new()) })
    }
}

/// Paths and tokens are in encoded parts. Of a payload, `AUTHONLY` promises no secrecy.
#[test]
fn requests_cant_be_read_on_the_way() {
    for mode in protected() {
        Simulation::new(1)
            .run(|world| async move {
                let cluster = Cluster::new(&world);
                let security = cluster.security(ANSWERING, Policy::only(mode));
                let server = Server::new(
                    &world,
                    identity(ANSWERING, 1),
                    admission(),
                    Arc::new(Polite),
                );
                let server = Arc::new(server.with_security(security, None));
                let security = cluster.security(ASKING, Policy::only(mode));
                let wire = Wire::new(&world, &server, security, Portions::AsTheyCome);
                let dial = Arc::new(Tapped(wire.clone()));
                let peer = Peer::new(&world, identity(ASKING, 1), ANSWERING, dial);
                let mut call = Call::new(Method(1), Class::Metadata, &"/home/secret");
                call.payload = b"file data file data".to_vec().into();
                let answer = ask_call(&world, &peer, call).await.unwrap();
                assert_eq!(answer.reply.decode::<u64>(), Ok(12));
                let seen = wire.seen(Way::ToServer);
                let has = |words: &[u8]| seen.windows(words.len()).any(|part| part == words);
                assert!(!has(b"secret") && !has(b"SHRP"), "{mode}");
                assert_eq!(has(b"file data"), mode == Mode::AuthOnly, "{mode}");
            })
            .finished();
    }
}

/// Somebody in front of the node answers as if nothing was protected, or as another mode.
#[test]
fn nobody_on_the_way_can_lower_the_protection() {
    Simulation::new(1)
        .run(|world| async move {
            let cluster = Cluster::new(&world);
            for mode in protected() {
                let (bare, counter) = cluster.server(Mode::Off);
                let security = cluster.security(ASKING, Policy::only(mode));
                let wire = Wire::new(&world, &bare, security, Portions::AsTheyCome);
                let dial = Arc::new(Tapped(wire.clone()));
                let peer = Peer::new(&world, identity(ASKING, 1), ANSWERING, dial);
                refusal(&world, &peer, &counter, 1).await;
                let seen = wire.seen(Way::ToServer);
                assert!(!seen.windows(4).any(|part| part == b"SHRP"), "{mode}");
            }
        })
        .finished();
}
