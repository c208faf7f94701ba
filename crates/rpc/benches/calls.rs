//! Measures calls over TCP on the loopback beside the same bytes without `rpc`, and what each
//! `cipherList` costs.
//!
//! Run by `make bench-parts`.

#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "it measures the clock itself"
)]

use bytes::Bytes;
use futures::future::{BoxFuture, join_all};
use model::call::{Call, Class, Method, Reply};
use model::{NodeId, NodeRun};
use rpc::security::{Authority, Credentials, Holder, Mode, Policy, Security, Suite, Suites};
use rpc::{Addresses, Admission, Credit, Identity, Peer, Server};
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use world::call::{Remote, Service};
use world::{AlignedBuffer, Deadline, World};

const SMALL: usize = 40_000;
const LARGE: usize = 2_000;
const LARGE_BYTES: usize = 1 << 20;
const ROUNDS: usize = 5;

/// Answers at once, without the payload.
struct Echo;

impl Service for Echo {
    fn serve(&self, _: NodeRun, call: Call, _: Deadline) -> BoxFuture<'_, Reply> {
        Box::pin(async move { Reply::new(&call.decode::<u64>(), Bytes::new()) })
    }
}

fn identity(node: u32) -> Identity {
    let run = NodeRun {
        node: NodeId(node),
        incarnation: 1,
    };
    Identity { cluster: 1, run }
}

fn any_port() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

async fn calls(world: &World, peer: &Peer, total: usize, depth: usize, payload: &Bytes) {
    let caller = async |_| {
        for number in 0..(total / depth) as u64 {
            let mut call = Call::new(Method(1), Class::Bulk, &number);
            call.payload = payload.clone();
            let deadline = Deadline::after(world, Duration::from_secs(30));
            let answer = peer.call(call, deadline).await.unwrap();
            assert_eq!(answer.reply.decode(), Ok(number));
        }
    };
    join_all((0..depth).map(caller)).await;
}

/// 64 bytes and the payload there, 64 bytes back, one after the other.
async fn raw(world: &World, address: SocketAddr, total: usize, payload: &Bytes) {
    let deadline = Deadline::after(world, Duration::from_secs(30));
    let mut stream = world.connect(address, deadline).await.unwrap();
    stream.write_u64_le(payload.len() as u64).await.unwrap();
    let mut back = [0; 64];
    for _ in 0..total {
        stream.write_all(&[0; 64]).await.unwrap();
        stream.write_all(payload).await.unwrap();
        stream.read_exact(&mut back).await.unwrap();
    }
}

async fn answer_raw(listener: world::Listener) {
    loop {
        let mut stream = listener.accept().await.unwrap();
        let length = stream.read_u64_le().await.unwrap() as usize;
        let mut bytes = AlignedBuffer::zeroed(64 + length);
        while stream.read_exact(&mut bytes).await.is_ok() {
            stream.write_all(&bytes[..64]).await.unwrap();
        }
    }
}

fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Microseconds of time and of CPU (both sides) for each of `count`.
async fn measured(count: usize, work: impl Future<Output = ()>) -> (f64, f64) {
    let (start, start_cpu) = (Instant::now(), cpu());
    work.await;
    let each = |time: Duration| time.as_secs_f64() * 1e6 / count as f64;
    (each(start.elapsed()), each(cpu() - start_cpu))
}

fn median(rounds: &mut [(f64, f64)]) -> (f64, f64) {
    rounds.sort_by(|left, right| left.0.total_cmp(&right.0));
    rounds[rounds.len() / 2]
}

fn admission() -> Admission {
    let credit = Credit {
        requests: 64,
        bytes: 64 << 20,
    };
    Admission {
        credits: [credit; 4],
        small_data: credit,
        running: [64; 4],
        connections: 4,
    }
}

/// A server of node 2 with connections of this mode, where it listens, and what node 1 needs.
async fn listening(
    world: &World,
    authority: &Authority,
    mode: Mode,
) -> (Server, SocketAddr, Arc<Security>) {
    let security = |node| {
        let holder = Holder {
            node: NodeId(node),
            addresses: Vec::new(),
            has_localhost: false,
        };
        let credentials = Credentials::first(authority, &holder, world.wall()).unwrap();
        Security::new(world, Policy::only(mode), credentials).unwrap()
    };
    let server = Server::new(world, identity(2), admission(), Arc::new(Echo));
    let server = server.with_security(security(2), None);
    let listener = world.listen(any_port()).await.unwrap();
    let address = listener.address();
    server.listen(listener);
    (server, address, security(1))
}

/// Node 1's way to node 2.
fn peer(world: &World, address: SocketAddr, security: Arc<Security>) -> Peer {
    let addresses = Arc::new(Addresses::new(world).with_security(security));
    addresses.set(NodeId(2), address);
    Peer::new(world, identity(1), NodeId(2), addresses)
}

async fn run_plain(world: &World) {
    let server = Server::new(world, identity(2), admission(), Arc::new(Echo));
    let listener = world.listen(any_port()).await.unwrap();
    let addresses = Arc::new(Addresses::new(world));
    addresses.set(NodeId(2), listener.address());
    server.listen(listener);
    let peer = Peer::new(world, identity(1), NodeId(2), addresses);
    let listener = world.listen(any_port()).await.unwrap();
    let raw_address = listener.address();
    let _raw = world.spawn("raw", answer_raw(listener));

    let none = Bytes::new();
    let large = AlignedBuffer::zeroed(LARGE_BYTES).freeze();
    println!("one process, both sides; us of time and of CPU, median of {ROUNDS}");
    for (name, total, payload) in [("empty", SMALL, &none), ("1 MiB there", LARGE, &large)] {
        let mut rounds: [Vec<_>; 3] = Default::default();
        for _ in 0..ROUNDS {
            let raw = raw(world, raw_address, total, payload);
            rounds[0].push(measured(total, raw).await);
            let one = calls(world, &peer, total, 1, payload);
            rounds[1].push(measured(total, one).await);
            let many = calls(world, &peer, total, 8, payload);
            rounds[2].push(measured(total, many).await);
        }
        let [raw, one, many] = rounds.each_mut().map(|rounds| median(rounds));
        for (what, (time, cpu)) in [
            ("bytes alone", raw),
            ("calls", one),
            ("calls, 8 at once", many),
        ] {
            println!("{name:12} {what:18} {time:8.1} {cpu:8.1}");
        }
    }
}

/// Every mode in turn in each round, so that a machine that is busy for a while is it for all; what is
/// compared is of the same round.
async fn run_modes(world: &World) {
    const ROUNDS: usize = 21;
    let authority = Authority::found(1, world.wall()).unwrap();
    let encrypted = Suite::ALL.map(|suite| Mode::Encrypted(Suites::only(suite)));
    let modes = [vec![Mode::Off, Mode::AuthOnly], encrypted.to_vec()].concat();
    let mut pairs = Vec::new();
    for mode in &modes {
        let (server, address, security) = listening(world, &authority, *mode).await;
        pairs.push((server, peer(world, address, security)));
    }
    let none = Bytes::new();
    let large = AlignedBuffer::zeroed(LARGE_BYTES).freeze();
    println!();
    println!(
        "each cipherList; us of time and of CPU for a call, median of {ROUNDS}; how many times EMPTY's"
    );
    println!("of the same round each is, median; MiB/s");
    for (name, total, depth, payload) in [
        ("empty", SMALL / 8, 1, &none),
        ("empty, 8 at once", SMALL / 8, 8, &none),
        ("1 MiB there", LARGE / 8, 1, &large),
        ("1 MiB there, 8 at once", LARGE / 8, 8, &large),
    ] {
        let mut rounds = vec![Vec::new(); modes.len()];
        for _ in 0..ROUNDS {
            for ((_, peer), rounds) in pairs.iter().zip(&mut rounds) {
                let work = calls(world, peer, total, depth, payload);
                rounds.push(measured(total, work).await);
            }
        }
        let middle = |values: &mut dyn Iterator<Item = f64>| {
            let mut values: Vec<f64> = values.collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        for (mode, own) in modes.iter().zip(&rounds) {
            let pairs = || own.iter().zip(&rounds[0]);
            let time = middle(&mut own.iter().map(|round| round.0));
            let cpu = middle(&mut own.iter().map(|round| round.1));
            let times = middle(&mut pairs().map(|(own, empty)| own.0 / empty.0));
            let cpus = middle(&mut pairs().map(|(own, empty)| own.1 / empty.1));
            let rate = payload.len() as f64 / 1.048576 / time;
            let mode = mode.to_string();
            print!("{name:22} {mode:28} {time:8.1} {times:5.2} {cpu:8.1} {cpus:5.2}");
            match payload.len() {
                0 => println!(),
                _ => println!(" {rate:8.0}"),
            }
        }
    }
}

/// How long it takes to open a connection and to make the first call.
async fn run_openings(world: &World) {
    const OPENINGS: usize = 200;
    let authority = Authority::found(1, world.wall()).unwrap();
    println!();
    println!("a connection with its first call; us of time and of CPU");
    for mode in [Mode::Off, Mode::AuthOnly, Mode::Encrypted(Suites::ALL)] {
        let (_server, address, security) = listening(world, &authority, mode).await;
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            let opening = async {
                for _ in 0..OPENINGS / ROUNDS {
                    let peer = peer(world, address, security.clone());
                    calls(world, &peer, 1, 1, &Bytes::new()).await;
                    peer.close(Deadline::after(world, Duration::from_secs(1)))
                        .await;
                }
            };
            rounds.push(measured(OPENINGS / ROUNDS, opening).await);
        }
        let (time, cpu) = median(&mut rounds);
        println!("{:28} {time:8.1} {cpu:8.1}", mode.to_string());
    }
}

async fn run() {
    let world = World::real();
    run_plain(&world).await;
    run_modes(&world).await;
    run_openings(&world).await;
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(run());
}
