//! Peers and servers over the world's network, in simulation and over TCP.

use crate::scene::{ANSWERING, ASKING, Counter, admission, identity, ms, request};
use model::NodeId;
use model::call::{Answer, Class, NoAnswer};
use rpc::{Addresses, Peer, Server};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use world::call::Remote;
use world::sim::Simulation;
use world::{Deadline, World};

/// Runs `rule` in simulation with several seeds, and over TCP.
fn on_both<F: Future<Output = ()>>(rule: impl Fn(World) -> F) {
    for seed in 0..20 {
        Simulation::new(seed).run(&rule).finished();
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async { rule(World::real()).await });
}

async fn start(world: &World, incarnation: u64, counter: &Arc<Counter>) -> (Server, SocketAddr) {
    let any_port = (Ipv4Addr::LOCALHOST, 0).into();
    let listener = world.listen(any_port).await.unwrap();
    let address = listener.address();
    let who = identity(ANSWERING, incarnation);
    let server = Server::new(world, who, admission(), counter.clone());
    server.listen(listener);
    (server, address)
}

/// Asks until there is a connection: in the pause after an attempt that failed calls are refused.
async fn connected(world: &World, peer: &Peer, ticket: u64) -> Answer {
    let deadline = Deadline::after(world, ms(20_000));
    loop {
        match peer.call(request(ticket, 0), deadline).await {
            Err(NoAnswer::NotRun(_)) if !deadline.has_passed(world) => world.sleep(ms(5)).await,
            answer => return answer.unwrap(),
        }
    }
}

#[test]
fn calls_go_over_the_network_to_the_node_that_listens() {
    on_both(|world| async move {
        let counter = Counter::new(&world);
        let addresses = Arc::new(Addresses::new(&world));
        let me = identity(ASKING, 1);
        let peer = Arc::new(Peer::new(&world, me, ANSWERING, addresses.clone()));
        let long = || Deadline::after(&world, ms(20_000));
        let short = || Deadline::after(&world, ms(100));
        let none = peer.call(request(1, 0), short()).await.unwrap_err();
        assert!(matches!(none, NoAnswer::NotRun(_)), "no address: {none}");

        let (server, address) = start(&world, 1, &counter).await;
        addresses.set(ANSWERING, address);
        connected(&world, &peer, 2).await;
        let calls: Vec<_> = (10..60)
            .map(|ticket| {
                let (peer, deadline) = (peer.clone(), long());
                let mut call = request(ticket, ticket % 3);
                call.class = Class::ALL[ticket as usize % 4];
                call.payload = vec![ticket as u8; ticket as usize * 5000].into();
                call.reply_bytes_max = 310_000;
                world.spawn("ask", async move { peer.call(call, deadline).await })
            })
            .collect();
        for (ticket, call) in (10..60).zip(calls) {
            let answer = call.await.unwrap();
            assert_eq!(answer.reply.decode::<u64>(), Ok(ticket));
            assert_eq!(
                answer.reply.payload,
                vec![ticket as u8; ticket as usize * 5000]
            );
            assert_eq!(answer.from.incarnation, 1);
        }

        server.close(long()).await;
        let none = peer.call(request(70, 0), short()).await.unwrap_err();
        assert!(
            matches!(none, NoAnswer::NotRun(_)),
            "nobody listens: {none}"
        );
        let (_server, address) = start(&world, 2, &counter).await;
        addresses.set(ANSWERING, address);
        let answer = connected(&world, &peer, 71).await;
        assert_eq!(answer.from.incarnation, 2);
        addresses.remove(ANSWERING);
        peer.call(request(72, 0), long()).await.unwrap();

        let other = Peer::new(&world, me, NodeId(9), addresses.clone());
        addresses.set(NodeId(9), address);
        let none = other.call(request(73, 0), Deadline::after(&world, ms(500)));
        let none = none.await.unwrap_err();
        assert!(none.to_string().contains("wants node 9"), "{none}");
        let begun = counter.begun.lock();
        assert!(begun.values().all(|runs| *runs == 1));
        assert!([1, 70, 73].iter().all(|ticket| !begun.contains_key(ticket)));
    });
}

/// A connection that is closed while bytes arrive is reset, and what the other side hasn't read is
/// lost.
#[test]
fn a_closing_server_leaves_no_call_unknown_while_more_arrive() {
    for seed in 0..20 {
        let scenario = async |world: World| {
            let counter = Counter::new(&world);
            let (server, address) = start(&world, 1, &counter).await;
            let addresses = Arc::new(Addresses::new(&world));
            addresses.set(ANSWERING, address);
            let me = identity(ASKING, 1);
            let peer = Arc::new(Peer::new(&world, me, ANSWERING, addresses));
            let ask = |ticket: u64| {
                let mut call = request(ticket, 3);
                call.class = Class::ALL[ticket as usize % 4];
                call.payload = vec![1; 100_000].into();
                call.reply_bytes_max = 110_000;
                let (peer, deadline) = (peer.clone(), Deadline::after(&world, ms(500)));
                world.spawn("ask", async move { peer.call(call, deadline).await })
            };
            let mut calls: Vec<_> = (0..40).map(&ask).collect();
            world.sleep(ms(seed)).await;
            let deadline = Deadline::after(&world, ms(5000));
            let closing = world.spawn("close", async move { server.close(deadline).await });
            calls.extend((40..80).map(&ask));
            let mut not_run = Vec::new();
            for (ticket, call) in calls.into_iter().enumerate() {
                match call.await {
                    Ok(_) => {}
                    Err(NoAnswer::NotRun(_)) => not_run.push(ticket as u64),
                    Err(NoAnswer::Unknown(error)) => panic!("seed {seed}, {ticket}: {error}"),
                }
            }
            closing.await;
            let begun = counter.begun.lock();
            assert!(not_run.iter().all(|ticket| !begun.contains_key(ticket)));
        };
        Simulation::new(seed).run(scenario).finished();
    }
}
