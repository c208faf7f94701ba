//! Two simulated machines: one asks, the other is killed, stopped, cut off and loses power.

use crate::scene::{ANSWERING, ASKING, admission, ask, identity, ms, request};
use bytes::Bytes;
use futures::future::{BoxFuture, join_all};
use model::NodeRun;
use model::call::{Call, Class, NoAnswer, Reply};
use parking_lot::Mutex;
use rpc::{Addresses, Peer, Server};
use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use world::call::Service;
use world::sim::{Cluster, SimNode};
use world::{Deadline, World};

const SEEDS: u64 = 12;
const PORT: u16 = 700;

/// How often each ticket's work was begun, over all runs of the daemon.
type Begun = Arc<Mutex<BTreeMap<u64, u32>>>;

struct Work {
    world: World,
    begun: Begun,
}

impl Service for Work {
    fn serve(&self, _: NodeRun, call: Call, _: Deadline) -> BoxFuture<'_, Reply> {
        Box::pin(async move {
            let (ticket, work): (u64, u64) = call.decode().unwrap();
            *self.begun.lock().entry(ticket).or_default() += 1;
            self.world.sleep(ms(work)).await;
            Reply::new(&Ok(ticket), Bytes::new())
        })
    }
}

async fn daemon(world: World, address: std::net::SocketAddr, incarnation: u64, begun: Begun) {
    let listener = world.listen(address).await.unwrap();
    let work = Arc::new(Work {
        world: world.clone(),
        begun,
    });
    let server = Server::new(&world, identity(ANSWERING, incarnation), admission(), work);
    server.listen(listener);
    pending().await
}

/// What was learned of each ticket: whether it ran, if that is known.
async fn callers(world: World, address: std::net::SocketAddr) -> Vec<(u64, Option<bool>)> {
    let addresses = Arc::new(Addresses::new(&world));
    addresses.set(ANSWERING, address);
    let peer = Peer::new(&world, identity(ASKING, 1), ANSWERING, addresses);
    let caller = async |caller: u64| {
        let mut learned = Vec::new();
        for call in 0..40 {
            let ticket = caller * 100 + call;
            let mut call = request(ticket, world.random_u64() % 60);
            call.class = Class::ALL[ticket as usize % 4];
            let patience = ms(1 + world.random_u64() % 1000);
            let has_run = match ask(&world, &peer, call, patience).await {
                Ok(answer) => {
                    assert_eq!(answer.reply.decode::<u64>(), Ok(ticket), "its own answer");
                    Some(true)
                }
                Err(NoAnswer::NotRun(_)) => Some(false),
                Err(NoAnswer::Unknown(_)) => None,
            };
            learned.push((ticket, has_run));
            if has_run == Some(false) {
                // Without a connection calls are refused at once.
                world.sleep(patience).await;
            }
        }
        learned
    };
    join_all((1..=8).map(caller)).await.concat()
}

fn start(node: &SimNode, incarnation: u64, begun: &Begun) {
    let (address, begun) = (node.port(PORT), begun.clone());
    drop(node.start(|world| daemon(world, address, incarnation, begun)));
}

#[test]
fn calls_between_machines_end_truthfully_whatever_happens_to_the_other() {
    for seed in 0..SEEDS {
        let cluster = Cluster::new(seed);
        let (here, there) = (cluster.node("here"), cluster.node("there"));
        let begun = Begun::default();
        start(&there, 1, &begun);
        let address = there.port(PORT);
        let asking = here.start(|world| callers(world, address));
        let wires = cluster.wires();
        let learned = cluster.run(|judge| async move {
            for fault in 0..10_u64 {
                judge.sleep(ms(300 + 70 * ((seed + fault) % 5))).await;
                match (seed * 3 + fault) % 6 {
                    0 => there.kill(),
                    1 => there.cut_power(),
                    2 => there.pause(),
                    3 => wires.cut(&here, &there),
                    4 => wires.cut_one_way(&there, &here),
                    _ => wires.cut_one_way(&here, &there),
                }
                // Sometimes longer than a side waits for a sign of life.
                let long = if (seed + fault).is_multiple_of(4) {
                    5000
                } else {
                    0
                };
                judge.sleep(ms(200 + long)).await;
                wires.heal_all();
                if there.is_running() {
                    there.resume();
                } else {
                    start(&there, fault + 2, &begun);
                }
            }
            let learned = judge
                .within("the calls end", ms(600_000), asking.done())
                .await;
            judge.sleep(ms(15_000)).await;
            let begun = begun.lock();
            (learned, begun.clone())
        });
        let (learned, begun) = learned;
        let mut answered = 0;
        for (ticket, has_run) in learned {
            let runs = begun.get(&ticket).copied().unwrap_or(0);
            assert!(runs <= 1, "seed {seed}: request {ticket} ran {runs} times");
            if let Some(has_run) = has_run {
                assert_eq!(has_run, runs == 1, "seed {seed}: request {ticket}");
                answered += u32::from(has_run);
            }
        }
        assert!(answered > 50, "seed {seed}: {answered} answers");
    }
}
