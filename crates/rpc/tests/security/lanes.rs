//! Several connections of a node: each proves by itself whose it is, and all together are bounded.

use super::*;
use bytes::Bytes;
use futures::future::join_all;
use model::NodeRun;
use model::call::{Class, Method, Reply};
use rpc::Admission;
use world::call::Service;
use world::sim::Cluster as Machines;

const PORT: u16 = 700;

/// A call of each lane.
fn call_for(lane: Lane) -> Call {
    let mut call = Call::new(Method(1), Class::Bulk, &(7_u64, 0_u64));
    match lane {
        Lane::Lease => call.class = Class::Lease,
        Lane::Small => call.class = Class::Metadata,
        Lane::Bulk => call.payload = Bytes::from(vec![1; 1 << 20]),
    }
    call
}

/// Answers at once.
struct Answers;

impl Service for Answers {
    fn serve(&self, _: NodeRun, call: Call, _: Deadline) -> BoxFuture<'_, Reply> {
        Box::pin(async move { Reply::new(&call.decode::<(u64, u64)>(), Bytes::new()) })
    }
}

fn answering(world: &World, security: Arc<Security>, connections: usize) -> Arc<Server> {
    let admission = Admission {
        connections,
        ..crate::scene::tcp::admission()
    };
    let server = Server::new(world, identity(ANSWERING, 1), admission, Arc::new(Answers));
    Arc::new(server.with_security(security, None))
}

/// The connections that a server has, by node and lane.
fn connections(server: &Server) -> Vec<(NodeRun, Option<Lane>)> {
    let mut all: Vec<_> = server
        .connections()
        .iter()
        .map(|it| (it.run, it.lane))
        .collect();
    all.sort();
    all
}

/// Would be broken if only the first connection of a node had to prove whose it is: a member could end
/// another one's connections, or take its place.
#[test]
fn no_lane_takes_a_hello_of_another_node_than_the_certificates() {
    Simulation::new(1)
        .run(|world| async move {
            let cluster = Cluster::new(&world);
            for mode in protected() {
                let server =
                    answering(&world, cluster.security(ANSWERING, Policy::only(mode)), 100);
                let four = NodeId(4);
                let honest = cluster.security(four, Policy::only(mode));
                let honest = peer(&world, &server, honest, identity(four, 1));
                for lane in Lane::ALL {
                    ask_call(&world, &honest, call_for(lane)).await.unwrap();
                }
                let before = connections(&server);
                assert_eq!(before.len(), 3);
                let three = cluster.security(NodeId(3), Policy::only(mode));
                for lane in Lane::ALL {
                    // A newer daemon would end all connections of the one before.
                    let claims = identity(four, 2);
                    let impostor = peer(&world, &server, three.clone(), claims);
                    let none = ask_call(&world, &impostor, call_for(lane)).await;
                    let why = none.unwrap_err().to_string();
                    assert!(why.contains("certificate is node 3's"), "{lane:?}: {why}");
                    // One that has the first connection under its own name gets no other under another.
                    let own = peer(&world, &server, three.clone(), identity(NodeId(3), 1));
                    ask_call(&world, &own, call_for(lane)).await.unwrap();
                    own.close(Deadline::after(&world, ms(1000))).await;
                }
                assert_eq!(connections(&server), before);
                for lane in Lane::ALL {
                    ask_call(&world, &honest, call_for(lane)).await.unwrap();
                }
                assert_eq!(connections(&server), before, "they are the same ones");
            }
        })
        .finished();
}

#[test]
fn no_lane_is_opened_without_protection_or_to_another_node() {
    Simulation::new(1)
        .run(|world| async move {
            let cluster = Cluster::new(&world);
            for mode in protected() {
                let server =
                    answering(&world, cluster.security(ANSWERING, Policy::only(mode)), 100);
                let open = cluster.security(ASKING, Policy::only(Mode::Off));
                let foreign = Cluster::new(&world).security(ASKING, Policy::only(mode));
                for (security, words) in [(open, "cipherList"), (foreign, "authority")] {
                    for lane in Lane::ALL {
                        let asking = identity(ASKING, 1);
                        let peer = peer(&world, &server, security.clone(), asking);
                        let none = ask_call(&world, &peer, call_for(lane)).await;
                        let why = none.unwrap_err().to_string();
                        assert!(why.contains(words), "{mode}, {lane:?}: {why}");
                    }
                }
                assert_eq!(connections(&server), []);
            }
        })
        .finished();
}

/// A node that proves who it is has as many connections as without proof, and no more.
#[test]
fn a_node_that_proves_itself_again_and_again_leaves_room_for_the_others() {
    Simulation::new(1)
        .run(|world| async move {
            let cluster = Cluster::new(&world);
            let server = answering(&world, cluster.security(ANSWERING, policy()), 40);
            let greedy = cluster.security(NodeId(9), policy());
            let mut greedy_peers = Vec::new();
            for _ in 0..60 {
                let own = identity(NodeId(9), 1);
                let peer = peer(&world, &server, greedy.clone(), own);
                for lane in [Lane::Small, Lane::Bulk] {
                    // Some lose their connection to those that come after them.
                    let _ = ask_call(&world, &peer, call_for(lane)).await;
                }
                greedy_peers.push(peer);
            }
            let open = server.connections();
            let open = open.iter().filter(|it| !it.is_ending).count();
            assert!((1..=9).contains(&open), "{open}");
            assert!(server.connections().len() <= 9 + 4);
            let asking = cluster.security(ASKING, policy());
            let honest = peer(&world, &server, asking, identity(ASKING, 1));
            for lane in Lane::ALL {
                ask_call(&world, &honest, call_for(lane)).await.unwrap();
            }
        })
        .finished();
}

fn policy() -> Policy {
    Policy::only(Mode::AuthOnly)
}

/// Would be broken if machines took each other's places while they prove who they are.
#[test]
fn all_machines_of_a_cluster_may_come_at_the_same_time() {
    const MACHINES: u32 = 60;
    let machines = Machines::new(8);
    let there = machines.node("there");
    let address = there.port(PORT);
    let pem = Arc::new(Mutex::new(None));
    let authority = pem.clone();
    drop(there.start(|world| async move {
        let cluster = Cluster::new(&world);
        let certificate = cluster.authority.certificate().to_pem();
        *authority.lock() = Some((cluster.authority.key_pem(), certificate));
        let server = answering(&world, cluster.security(ANSWERING, policy()), 1000);
        let listener = world.urgent().listen(address).await.unwrap();
        server.listen(listener);
        std::future::pending::<()>().await;
    }));
    let nodes: Vec<_> = (0..MACHINES)
        .map(|number| (NodeId(100 + number), machines.node(&format!("m{number}"))))
        .collect();
    machines.run(|judge| async move {
        judge.sleep(ms(1000)).await;
        let (key, certificate) = pem.lock().clone().expect("it has started");
        let asked = nodes.iter().map(|(node, machine)| {
            let authority = Authority::from_pem(&key, &certificate).unwrap();
            let node = *node;
            let asking = machine.start(move |world| async move {
                let cluster = Cluster {
                    world: world.clone(),
                    authority,
                };
                let security = cluster.security(node, policy());
                let addresses = Arc::new(Addresses::new(&world).with_security(security));
                addresses.set(ANSWERING, address);
                let peer = Peer::new(&world, identity(node, 1), ANSWERING, addresses);
                // Its connections of all lanes at the same time.
                let calls = Lane::ALL.map(|lane| ask_call(&world, &peer, call_for(lane)));
                let answers = join_all(calls).await;
                assert!(answers.iter().all(Result::is_ok), "{node}: {answers:?}");
            });
            asking.done()
        });
        let all = join_all(asked);
        judge.within("all are served", ms(120_000), all).await;
    });
}
