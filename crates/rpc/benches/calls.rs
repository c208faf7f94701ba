//! Measures calls over TCP on the loopback beside the same bytes without `rpc`.
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

async fn run() {
    let world = World::real();
    let credit = Credit {
        requests: 64,
        bytes: 64 << 20,
    };
    let admission = Admission {
        credits: [credit; 4],
        running: [64; 4],
        connections: 4,
    };
    let server = Server::new(&world, identity(2), admission, Arc::new(Echo));
    let listener = world.listen(any_port()).await.unwrap();
    let addresses = Arc::new(Addresses::new(&world));
    addresses.set(NodeId(2), listener.address());
    server.listen(listener);
    let peer = Peer::new(&world, identity(1), NodeId(2), addresses);
    let listener = world.listen(any_port()).await.unwrap();
    let raw_address = listener.address();
    let _raw = world.spawn("raw", answer_raw(listener));

    let none = Bytes::new();
    let large = AlignedBuffer::zeroed(LARGE_BYTES).freeze();
    println!("one process, both sides; us of time and of CPU, median of {ROUNDS}");
    for (name, total, payload) in [("empty", SMALL, &none), ("1 MiB there", LARGE, &large)] {
        let mut rounds: [Vec<_>; 3] = Default::default();
        for _ in 0..ROUNDS {
            let raw = raw(&world, raw_address, total, payload);
            rounds[0].push(measured(total, raw).await);
            let one = calls(&world, &peer, total, 1, payload);
            rounds[1].push(measured(total, one).await);
            let many = calls(&world, &peer, total, 8, payload);
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

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(run());
}
