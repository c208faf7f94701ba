//! Connections to a node with several addresses, and over a bond of several links.

use crate::addresses::Addresses;
use crate::bond::bond_link;
use crate::dial::{Dial, Place};
use crate::lanes::Lane;
use model::NodeId;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;
use world::sim::Simulation;
use world::{Connection, Deadline, Listener, World};

const NODE: NodeId = NodeId(2);

/// Runs `rule` on the real network and on the simulated one.
fn on_both<F: Future<Output = ()>>(rule: impl Fn(World) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async { rule(World::real()).await });
    Simulation::new(1).run(&rule).finished();
}

async fn listen(world: &World) -> Listener {
    world.listen((Ipv4Addr::LOCALHOST, 0).into()).await.unwrap()
}

async fn dial(
    world: &World,
    addresses: &Addresses,
    number: usize,
) -> std::io::Result<crate::Channel> {
    let lane = Lane::Bulk;
    let deadline = Deadline::after(world, Duration::from_secs(20));
    addresses.dial(NODE, Place { lane, number }, deadline).await
}

#[test]
fn connections_are_spread_over_a_nodes_addresses_and_avoid_those_that_fail() {
    on_both(|world| async move {
        let addresses = Addresses::new(&world);
        let unknown = dial(&world, &addresses, 0).await.err().unwrap();
        assert_eq!(unknown.kind(), std::io::ErrorKind::NotFound);
        let (first, second) = (listen(&world).await, listen(&world).await);
        let both = [first.address(), second.address()];
        addresses.set_all(NODE, &both);
        for number in 0..4 {
            let expected = [&first, &second][number % 2];
            let (dialed, accepted) =
                futures::join!(dial(&world, &addresses, number), expected.accept());
            dialed.unwrap();
            accepted.unwrap();
        }
        // Each gets to the one that is left, whichever it begins with.
        drop(first);
        for number in 0..4 {
            let (dialed, accepted) =
                futures::join!(dial(&world, &addresses, number), second.accept());
            dialed.unwrap();
            accepted.unwrap();
        }
        drop(second);
        let none = dial(&world, &addresses, 0).await.err().unwrap();
        assert_eq!(none.kind(), std::io::ErrorKind::ConnectionRefused);
        let text = none.to_string();
        assert!(
            both.iter().all(|it| text.contains(&it.to_string())),
            "{text}"
        );
        addresses.remove(NODE);
        let gone = dial(&world, &addresses, 0).await.err().unwrap();
        assert_eq!(gone.kind(), std::io::ErrorKind::NotFound);
    });
}

#[test]
fn connections_are_spread_over_the_links_of_a_bond() {
    on_both(|world| async move {
        let addresses = Addresses::new(&world);
        let listener = listen(&world).await;
        addresses.set(NODE, listener.address());
        for links in [2, 4] {
            addresses.set_bond_links(links);
            let mut open: Vec<Connection> = Vec::new();
            for number in 0..8 {
                let (dialed, accepted) =
                    futures::join!(dial(&world, &addresses, number), listener.accept());
                dialed.unwrap();
                let accepted = accepted.unwrap();
                let (from, to): (SocketAddr, SocketAddr) = (accepted.peer(), accepted.local());
                assert_eq!(bond_link(from, to, links), number as u8 % links);
                open.push(accepted);
            }
        }
    });
}
