//! Policies and credentials that are replaced while a cluster works.

use super::*;
use world::Task;

/// Both nodes of a cluster, each with what it may replace.
struct Pair {
    world: World,
    asking: Arc<Security>,
    answering: Arc<Security>,
    server: Arc<Server>,
    counter: Arc<Counter>,
    tickets: Mutex<u64>,
}

impl Pair {
    fn new(world: &World, cluster: &Cluster, policy: &Policy) -> Self {
        let answering = cluster.security(ANSWERING, policy.clone());
        let (server, counter) = server(world, answering.clone());
        Self {
            world: world.clone(),
            asking: cluster.security(ASKING, policy.clone()),
            answering,
            server,
            counter,
            tickets: Mutex::new(0),
        }
    }

    /// A new connection.
    fn peer(&self) -> Arc<Peer> {
        peer(
            &self.world,
            &self.server,
            self.asking.clone(),
            identity(ASKING, 1),
        )
    }

    async fn works(&self, peer: &Peer) {
        let ticket = self.ticket();
        ask(&self.world, peer, ticket).await.unwrap();
    }

    async fn is_refused(&self) -> String {
        let ticket = self.ticket();
        refusal(&self.world, &self.peer(), &self.counter, ticket).await
    }

    /// A call that takes its time, once it runs.
    async fn begun(&self, peer: &Arc<Peer>, milliseconds: u64) -> Task<Result<Answer, NoAnswer>> {
        let ticket = self.ticket();
        let (peer, world) = (peer.clone(), self.world.clone());
        let asking = async move { ask_call(&world, &peer, request(ticket, milliseconds)).await };
        let call = self.world.spawn("asks", asking);
        while !self.counter.begun.lock().contains_key(&ticket) {
            self.world.sleep(ms(1)).await;
        }
        call
    }

    fn ticket(&self) -> u64 {
        let mut tickets = self.tickets.lock();
        *tickets += 1;
        *tickets
    }
}

/// Nodes hear of a change one after the other; between two steps of it all of them talk.
#[test]
fn a_cluster_goes_from_each_mode_to_each_without_a_refusal() {
    Simulation::new(1)
        .run(|world| async move {
            let cluster = Cluster::new(&world);
            let changes = modes()
                .into_iter()
                .flat_map(|old| modes().into_iter().map(move |new| (old, new)));
            for (old, new) in changes {
                let pair = Pair::new(&world, &cluster, &Policy::only(old));
                let before = pair.peer();
                pair.works(&before).await;
                let steps = [
                    Policy::only(old).also_taking(new),
                    Policy::only(new).also_taking(old),
                    Policy::only(new),
                ];
                for step in steps {
                    pair.answering.set_policy(step.clone()).unwrap();
                    pair.works(&pair.peer()).await;
                    pair.asking.set_policy(step).unwrap();
                    pair.works(&pair.peer()).await;
                }
                // What was open goes on.
                pair.works(&before).await;
                if old != new {
                    pair.asking.set_policy(Policy::only(old)).unwrap();
                    pair.is_refused().await;
                }
            }
        })
        .finished();
}

/// Would be broken if a change of `cipherList` counted only for connections that happen to be opened later, or if it cost
/// calls that are under way.
#[test]
fn connections_made_before_a_change_are_left_and_no_call_is_lost() {
    Simulation::new(1)
        .run(|world| async move {
            let cluster = Cluster::new(&world);
            let encrypted = Mode::Encrypted(Suites::ALL);
            for (old, new) in [
                (Mode::Off, Mode::AuthOnly),
                (Mode::AuthOnly, encrypted),
                (encrypted, Mode::Off),
            ] {
                let pair = Pair::new(&world, &cluster, &Policy::only(old));
                let peer = pair.peer();
                let before = pair.begun(&peer, 3000).await;
                for side in [&pair.answering, &pair.asking] {
                    let both = Policy::only(old).also_taking(new);
                    side.set_policy(both).unwrap();
                }
                pair.asking.set_policy(Policy::only(new)).unwrap();
                peer.renew();
                // Meanwhile others go over a new connection.
                pair.works(&peer).await;
                assert_eq!(pair.server.connections().len(), 2);
                pair.answering.set_policy(Policy::only(new)).unwrap();
                pair.server.end_untaken(ms(5000)).await;
                before.await.unwrap();
                pair.works(&peer).await;
                assert_eq!(pair.server.connections().len(), 1, "{old} to {new}");
                // The connection is the new one: there is no other any more that is made as before.
                pair.answering.set_policy(Policy::only(old)).unwrap();
                peer.renew();
                let ticket = pair.ticket();
                refusal(&world, &peer, &pair.counter, ticket).await;
            }
        })
        .finished();
}

/// Whoever goes on as before is cut off, also in the middle of a call.
#[test]
fn a_node_that_keeps_a_connection_of_before_a_change_loses_it() {
    Simulation::new(1)
        .run(|world| async move {
            let cluster = Cluster::new(&world);
            for (old, new) in [(Mode::Off, Mode::AuthOnly), (Mode::AuthOnly, Mode::Off)] {
                let pair = Pair::new(&world, &cluster, &Policy::only(old));
                let peer = pair.peer();
                let endless = pair.begun(&peer, 15_000).await;
                pair.answering.set_policy(Policy::only(new)).unwrap();
                let start = world.now();
                pair.server.end_untaken(ms(100)).await;
                assert!(world.now() - start >= ms(200));
                let none = endless.await.unwrap_err();
                assert!(matches!(none, NoAnswer::Unknown(_)), "{none}");
                assert!(pair.server.connections().is_empty());
                let ticket = pair.ticket();
                refusal(&world, &peer, &pair.counter, ticket).await;
                // Nothing is ended that was made since.
                pair.asking.set_policy(Policy::only(new)).unwrap();
                peer.renew();
                pair.works(&peer).await;
                pair.server.end_untaken(ms(100)).await;
                assert_eq!(pair.server.connections().len(), 1);
            }
        })
        .finished();
}

#[test]
fn an_authority_is_replaced_while_nodes_talk() {
    Simulation::new(1)
        .run(|world| async move {
            for mode in protected() {
                let (old, new) = (Cluster::new(&world), Cluster::new(&world));
                let authority = |cluster: &Cluster| cluster.authority.certificate().clone();
                let both = vec![authority(&old), authority(&new)];
                let pair = Pair::new(&world, &old, &Policy::only(mode));
                pair.works(&pair.peer()).await;
                // First all trust both.
                for side in [&pair.answering, &pair.asking] {
                    let trusting = side.credentials().trusting(both.clone()).unwrap();
                    side.set_credentials(trusting).unwrap();
                    pair.works(&pair.peer()).await;
                }
                // Then all get a certificate of the new one.
                for (side, node) in [(&pair.asking, ASKING), (&pair.answering, ANSWERING)] {
                    let renewed = new.credentials(node).trusting(both.clone()).unwrap();
                    side.set_credentials(renewed).unwrap();
                    pair.works(&pair.peer()).await;
                }
                // Then nobody trusts the old one.
                for side in [&pair.answering, &pair.asking] {
                    let only = side.credentials().trusting(vec![authority(&new)]).unwrap();
                    side.set_credentials(only).unwrap();
                    pair.works(&pair.peer()).await;
                }
                pair.asking
                    .set_credentials(old.credentials(ASKING))
                    .unwrap();
                let why = pair.is_refused().await;
                assert!(
                    why.contains("no authority that is trusted"),
                    "{mode}: {why}"
                );
            }
        })
        .finished();
}

#[test]
fn credentials_of_another_node_or_cluster_are_not_taken_over() {
    Simulation::new(1)
        .run(|world| async move {
            let cluster = Cluster::new(&world);
            let security = cluster.security(ASKING, Policy::only(Mode::AuthOnly));
            let other = Cluster::of(&world, CLUSTER + 1);
            for wrong in [cluster.credentials(ANSWERING), other.credentials(ASKING)] {
                let error = security.set_credentials(wrong).unwrap_err();
                assert!(error.to_string().contains("this is n1."), "{error}");
            }
            assert_eq!(security.name().node, ASKING);
        })
        .finished();
}
