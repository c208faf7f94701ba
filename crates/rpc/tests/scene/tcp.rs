//! Two daemons of one process that talk over TCP, with a relay between them that can hold back or cut
//! each connection, without protection and with it.

use super::{ANSWERING, ASKING, identity};
use crate::security::Cluster;
use bytes::Bytes;
use futures::future::BoxFuture;
use model::call::{Answer, Call, Class, Method, NoAnswer, Reply};
use model::{NodeId, NodeRun};
use parking_lot::Mutex;
use rpc::security::{Mode, Policy, Suites};
use rpc::{Addresses, Admission, Channel, Credit, Dial, Lane, LaneView, Peer, Place, Server};
use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use world::call::{Remote, Service};
use world::{Connection, ConnectionReader, ConnectionWriter, Deadline, Listener, Task, World};

/// Threads of the runtime.
const WORKERS: usize = 2;

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

/// How the connections are protected.
const MODES: [Mode; 3] = [Mode::Off, Mode::AuthOnly, Mode::Encrypted(Suites::ALL)];

pub(crate) fn admission() -> Admission {
    let credit = |requests, mebibytes: u64| Credit {
        requests,
        bytes: mebibytes << 20,
    };
    Admission {
        credits: [credit(16, 1), credit(64, 96), credit(32, 64), credit(8, 40)],
        small_data: credit(32, 32),
        running: [64; 4],
        connections: 100,
    }
}

/// Answers with the payload: at once, or after a gate was opened. Requests with even numbers are short.
pub(crate) struct Work {
    pub(crate) gate: watch::Sender<bool>,
    begun: watch::Sender<u64>,
}

impl Service for Work {
    fn serve(&self, _: NodeRun, call: Call, _: Deadline) -> BoxFuture<'_, Reply> {
        Box::pin(async move {
            let (number, waits): (u64, bool) = call.decode().unwrap();
            self.begun.send_modify(|begun| *begun += 1);
            if waits {
                let mut gate = self.gate.subscribe();
                gate.wait_for(|is_open| *is_open).await.unwrap();
            }
            Reply::new(&Ok(number), call.payload)
        })
    }

    fn is_short(&self, call: &Call) -> bool {
        let number = call.decode::<(u64, bool)>().map(|(number, _)| number);
        number.is_ok_and(|number| number.is_multiple_of(2))
    }
}

/// What the relay does with a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// Moves its bytes.
    Open,
    /// Reads none of them.
    Held,
    /// Closes it.
    Cut,
}

/// A connection, as the relay sees it.
pub(crate) struct Relayed {
    lane: Lane,
    pub(crate) way: watch::Sender<Way>,
}

pub(crate) struct Pair {
    pub(crate) world: World,
    pub(crate) work: Arc<Work>,
    pub(crate) server: Arc<Server>,
    pub(crate) peer: Arc<Peer>,
    pub(crate) relayed: Arc<Mutex<Vec<Arc<Relayed>>>>,
    _relays: Vec<Task<()>>,
}

/// A way to the other daemon for each lane, because a relay doesn't see what is protected.
struct ByLane([Addresses; 3]);

impl Dial for ByLane {
    fn dial(
        &self,
        node: NodeId,
        place: Place,
        deadline: Deadline,
    ) -> BoxFuture<'_, io::Result<Channel>> {
        self.0[place.lane as usize].dial(node, place, deadline)
    }
}

/// Runs a scenario in each mode, on a runtime with [`WORKERS`] threads; not on one of them.
pub(crate) fn run<F: Future<Output = ()>>(scenario: impl Fn(Pair) -> F) {
    for mode in MODES {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(WORKERS)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async { scenario(Pair::new(mode).await).await });
    }
}

async fn listen(world: &World) -> Listener {
    let any_port = (Ipv4Addr::LOCALHOST, 0).into();
    world.urgent().listen(any_port).await.unwrap()
}

impl Pair {
    async fn new(mode: Mode) -> Self {
        let world = World::real();
        let cluster = Cluster::new(&world);
        let security = |node| cluster.security(node, Policy::only(mode));
        let work = Arc::new(Work {
            gate: watch::Sender::new(false),
            begun: watch::Sender::new(0),
        });
        let server = Server::new(&world, identity(ANSWERING, 1), admission(), work.clone());
        let server = server.with_security(security(ANSWERING), None);
        let listener = listen(&world).await;
        let address = listener.address();
        server.listen(listener);
        let asking = security(ASKING);
        let ways = Lane::ALL.map(|_| Addresses::new(&world).with_security(asking.clone()));
        let relayed: Arc<Mutex<Vec<_>>> = Arc::default();
        let mut relays = Vec::new();
        for lane in Lane::ALL {
            let listener = listen(&world).await;
            ways[lane as usize].set(ANSWERING, listener.address());
            let relay = relay(world.urgent(), lane, listener, address, relayed.clone());
            // On the urgent thread, so that it works while the others block.
            relays.push(world.urgent().spawn("relay", relay));
        }
        let dial = Arc::new(ByLane(ways));
        let peer = Peer::new(&world, identity(ASKING, 1), ANSWERING, dial);
        Self {
            _relays: relays,
            world,
            work,
            server: Arc::new(server),
            peer: Arc::new(peer),
            relayed,
        }
    }

    /// A call of a class with so many bytes, which waits for the gate or not.
    pub(crate) fn ask(
        &self,
        class: Class,
        number: u64,
        bytes: usize,
        waits: bool,
    ) -> impl Future<Output = Result<Answer, NoAnswer>> + Send + use<> {
        let mut call = Call::new(Method(1), class, &(number, waits));
        call.payload = Bytes::from(vec![number as u8; bytes]);
        call.reply_bytes_max = bytes as u32 + 1000;
        let (world, peer) = (self.world.clone(), self.peer.clone());
        async move {
            let answer = peer.call(call, Deadline::after(&world, LONG)).await?;
            assert_eq!(answer.reply.decode::<u64>(), Ok(number), "its own answer");
            assert_eq!(answer.reply.payload, vec![number as u8; bytes]);
            Ok(answer)
        }
    }

    pub(crate) fn spawn_ask(
        &self,
        class: Class,
        number: u64,
        bytes: usize,
        waits: bool,
    ) -> Task<Result<Answer, NoAnswer>> {
        self.world
            .spawn("ask", self.ask(class, number, bytes, waits))
    }

    /// Waits until so many requests have begun.
    pub(crate) async fn have_begun(&self, count: u64) {
        let mut begun = self.work.begun.subscribe();
        let begun = begun.wait_for(|begun| *begun >= count);
        self.world.timeout(LONG, begun).await.unwrap().unwrap();
    }

    pub(crate) fn lane(&self, lane: Lane) -> LaneView {
        let views = self.peer.lanes();
        views.into_iter().find(|view| view.lane == lane).unwrap()
    }

    /// Open connections of a lane.
    pub(crate) fn open(&self, lane: Lane) -> usize {
        let view = self.lane(lane);
        view.connections.iter().filter(|it| it.is_open).count()
    }

    /// Waits until something holds that the other side or another thread brings about.
    pub(crate) async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let deadline = Deadline::after(&self.world, LONG);
        while !holds(self) {
            assert!(!deadline.has_passed(&self.world), "{what}");
            self.world.sleep(Duration::from_millis(1)).await;
        }
    }

    /// The relay's connections of a lane, in the order in which they were opened.
    pub(crate) fn relayed(&self, lane: Lane) -> Vec<Arc<Relayed>> {
        let relayed = self.relayed.lock();
        let of_lane = relayed.iter().filter(|it| it.lane == lane);
        of_lane.cloned().collect()
    }
}

async fn relay(
    world: World,
    lane: Lane,
    listener: Listener,
    to: SocketAddr,
    relayed: Arc<Mutex<Vec<Arc<Relayed>>>>,
) {
    let mut tasks = Vec::new();
    while let Ok(near) = listener.accept().await {
        let connection = Arc::new(Relayed {
            lane,
            way: watch::Sender::new(Way::Open),
        });
        relayed.lock().push(connection.clone());
        let deadline = Deadline::after(&world, LONG);
        let far = world.connect(to, deadline).await.unwrap();
        tasks.push(world.spawn("relays", both_ways(near, far, connection)));
    }
}

async fn both_ways(near: Connection, far: Connection, relayed: Arc<Relayed>) {
    let (near_reader, near_writer) = near.into_split();
    let (far_reader, far_writer) = far.into_split();
    futures::join!(
        one_way(near_reader, far_writer, relayed.way.subscribe()),
        one_way(far_reader, near_writer, relayed.way.subscribe()),
    );
}

async fn one_way(
    mut from: ConnectionReader,
    mut to: ConnectionWriter,
    mut way: watch::Receiver<Way>,
) {
    let mut bytes = vec![0; 64 << 10];
    let mut open = way.clone();
    let moving = async {
        loop {
            open.wait_for(|way| *way == Way::Open).await.unwrap();
            let count = from.read(&mut bytes).await.unwrap_or(0);
            if count == 0 || to.write_all(&bytes[..count]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = moving => {}
        _ = way.wait_for(|way| *way == Way::Cut) => {}
    }
}
