//! Two nodes and the wire between them: one asks, the other counts what it runs.

pub(crate) mod tcp;

use futures::future::BoxFuture;
use model::call::{Answer, Call, Class, Method, NoAnswer, Reply};
use model::{NodeId, NodeRun};
use parking_lot::Mutex;
use rpc::{Admission, Channel, Credit, Dial, Identity, Lane, Peer, Place, Server};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf, duplex};
use tokio::sync::watch;
use world::call::{Remote, Service};
use world::sim::{Outcome, Simulation};
use world::{Deadline, Task, World};

pub(crate) const ASKING: NodeId = NodeId(1);
pub(crate) const ANSWERING: NodeId = NodeId(2);

/// The latest that a call may return after its deadline: timers are whole milliseconds, and one
/// poll in eight is postponed.
pub(crate) const TICK: Duration = Duration::from_millis(1);

pub(crate) fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

pub(crate) fn identity(node: NodeId, incarnation: u64) -> Identity {
    Identity {
        cluster: 42,
        run: NodeRun { node, incarnation },
    }
}

pub(crate) fn admission() -> Admission {
    let credit = Credit {
        requests: 16,
        bytes: 4 << 20,
    };
    Admission {
        credits: [credit; 4],
        small_data: credit,
        running: [4, 4, 2, 1],
        connections: 8,
    }
}

/// Runs requests of a ticket and a time: takes that time, answers the ticket. Those of even tickets are short.
pub(crate) struct Counter {
    world: World,
    /// How often each ticket was begun and finished.
    pub(crate) begun: Mutex<BTreeMap<u64, u32>>,
    pub(crate) finished: Mutex<BTreeMap<u64, u32>>,
}

impl Counter {
    pub(crate) fn new(world: &World) -> Arc<Self> {
        Arc::new(Self {
            world: world.clone(),
            begun: Mutex::default(),
            finished: Mutex::default(),
        })
    }
}

impl Service for Counter {
    fn serve(&self, from: NodeRun, call: Call, _: Deadline) -> BoxFuture<'_, Reply> {
        Box::pin(async move {
            assert_ne!(from.node, ANSWERING);
            let (ticket, work): (u64, u64) = call.decode().unwrap();
            *self.begun.lock().entry(ticket).or_default() += 1;
            self.world.sleep(ms(work)).await;
            *self.finished.lock().entry(ticket).or_default() += 1;
            Reply::new(&Ok(ticket), call.payload)
        })
    }

    fn is_short(&self, call: &Call) -> bool {
        let ticket = call.decode::<(u64, u64)>().map(|(ticket, _)| ticket);
        ticket.is_ok_and(|ticket| ticket.is_multiple_of(2))
    }
}

/// What a direction of the wire does with bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// They arrive after the latency.
    Open,
    /// They stay on the way (and are sent again by the transport once it is open).
    Held,
}

/// The wire between the nodes.
pub(crate) struct Wire {
    world: World,
    pub(crate) latency: Mutex<Duration>,
    server: Mutex<Option<Arc<Server>>>,
    there: watch::Sender<Way>,
    back: watch::Sender<Way>,
    /// The connections; a change of the number cuts them.
    cuts: watch::Sender<u64>,
    relays: Mutex<Vec<(Option<Lane>, Task<()>)>>,
    pub(crate) dialed: Mutex<u32>,
}

impl Wire {
    pub(crate) fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    pub(crate) fn set(&self, there: Way, back: Way) {
        self.there.send_replace(there);
        self.back.send_replace(back);
    }

    /// Cuts the connections of a lane.
    pub(crate) fn cut_lane(&self, lane: Lane) {
        self.relays.lock().retain(|(of, _)| *of != Some(lane));
    }

    /// Connections lead to this server from now on.
    pub(crate) fn serve(&self, server: Arc<Server>) {
        *self.server.lock() = Some(server);
    }

    /// A connection to the server, with the wire in between.
    pub(crate) fn connect(&self) -> io::Result<DuplexStream> {
        self.connect_for(None)
    }

    fn connect_for(&self, lane: Option<Lane>) -> io::Result<DuplexStream> {
        *self.dialed.lock() += 1;
        let server = self.server.lock().clone();
        let server = server.ok_or(io::ErrorKind::ConnectionRefused)?;
        let (asking, near) = duplex(64 << 10);
        let (far, answering) = duplex(64 << 10);
        server.accept(answering);
        let (near_read, near_write) = tokio::io::split(near);
        let (far_read, far_write) = tokio::io::split(far);
        let latency = *self.latency.lock();
        let there = relay(
            self.world.clone(),
            latency,
            near_read,
            far_write,
            self.there.subscribe(),
        );
        let back = relay(
            self.world.clone(),
            latency,
            far_read,
            near_write,
            self.back.subscribe(),
        );
        let mut cuts = self.cuts.subscribe();
        let task = self.world.spawn("wire", async move {
            let both = async { futures::future::join(there, back).await };
            let cut = cuts.changed();
            futures::future::select(Box::pin(both), Box::pin(cut)).await;
        });
        self.relays.lock().push((lane, task));
        Ok(asking)
    }
}

async fn relay(
    world: World,
    latency: Duration,
    mut from: ReadHalf<DuplexStream>,
    mut to: WriteHalf<DuplexStream>,
    mut way: watch::Receiver<Way>,
) {
    let mut bytes = vec![0; 16 << 10];
    loop {
        let count = from.read(&mut bytes).await.unwrap_or(0);
        if count == 0 {
            drop(to.shutdown().await);
            return;
        }
        world.sleep(latency).await;
        if way.wait_for(|way| *way == Way::Open).await.is_err() {
            return;
        }
        if to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}

impl Dial for Wire {
    fn dial(&self, node: NodeId, place: Place, _: Deadline) -> BoxFuture<'_, io::Result<Channel>> {
        Box::pin(async move {
            assert_eq!(node, ANSWERING);
            let latency = *self.latency.lock();
            self.world.sleep(latency).await;
            Ok(Channel::plain(self.connect_for(Some(place.lane))?))
        })
    }
}

pub(crate) struct Scene {
    pub(crate) world: World,
    pub(crate) wire: Arc<Wire>,
    pub(crate) peer: Arc<Peer>,
    pub(crate) counter: Arc<Counter>,
}

impl Scene {
    pub(crate) fn new(world: &World) -> Self {
        let wire = Arc::new(Wire {
            world: world.clone(),
            latency: Mutex::new(ms(1)),
            server: Mutex::default(),
            there: watch::Sender::new(Way::Open),
            back: watch::Sender::new(Way::Open),
            cuts: watch::Sender::new(0),
            relays: Mutex::default(),
            dialed: Mutex::default(),
        });
        let peer = Peer::new(world, identity(ASKING, 1), ANSWERING, wire.clone());
        let counter = Counter::new(world);
        let scene = Self {
            world: world.clone(),
            wire,
            peer: Arc::new(peer),
            counter,
        };
        scene.start_server(1);
        scene
    }

    pub(crate) fn start_server(&self, incarnation: u64) {
        let who = identity(ANSWERING, incarnation);
        let server = Server::new(&self.world, who, admission(), self.counter.clone());
        self.wire.serve(Arc::new(server));
    }

    pub(crate) fn server(&self) -> Arc<Server> {
        self.wire.server.lock().clone().unwrap()
    }

    /// The process is gone: its connections close, new ones are refused.
    pub(crate) fn kill_server(&self) {
        let server = self.wire.server.lock().take();
        drop(server);
        self.wire.cut();
    }

    pub(crate) fn deadline(&self, patience: Duration) -> Deadline {
        Deadline::after(&self.world, patience)
    }

    /// A call that works for so many milliseconds.
    pub(crate) async fn ask(
        &self,
        ticket: u64,
        work: u64,
        patience: Duration,
    ) -> Result<Answer, NoAnswer> {
        ask(&self.world, &*self.peer, request(ticket, work), patience).await
    }

    pub(crate) fn spawn_ask(
        &self,
        ticket: u64,
        work: u64,
        patience: Duration,
    ) -> Task<Result<Answer, NoAnswer>> {
        let (world, peer) = (self.world.clone(), self.peer.clone());
        self.world.spawn("ask", async move {
            ask(&world, &*peer, request(ticket, work), patience).await
        })
    }

    /// Asks with tickets from 0 on, all at once, each for work that takes so many milliseconds; each is answered with its own
    /// ticket, and has run once.
    pub(crate) async fn ask_all_at_once(&self, works: impl IntoIterator<Item = u64>) {
        let calls: Vec<_> = (0..)
            .zip(works)
            .map(|(ticket, work)| self.spawn_ask(ticket, work, ms(5000)))
            .collect();
        for (ticket, call) in calls.into_iter().enumerate() {
            let answer = call.await.unwrap();
            assert_eq!(answer.reply.decode::<u64>(), Ok(ticket as u64));
        }
        assert!(self.counter.begun.lock().values().all(|runs| *runs == 1));
    }

    pub(crate) fn begun(&self, ticket: u64) -> u32 {
        self.counter.begun.lock().get(&ticket).copied().unwrap_or(0)
    }
}

pub(crate) fn request(ticket: u64, work: u64) -> Call {
    Call::new(Method(1), Class::Metadata, &(ticket, work))
}

/// Asks, and checks that the call returns by its deadline.
pub(crate) async fn ask(
    world: &World,
    peer: &dyn Remote,
    call: Call,
    patience: Duration,
) -> Result<Answer, NoAnswer> {
    let deadline = Deadline::after(world, patience);
    let answer = peer.call(call, deadline).await;
    let late = world.now().since(deadline.time());
    assert!(late <= TICK, "a call returned {late:?} after its deadline");
    answer
}

pub(crate) fn run<F: Future<Output = ()>>(seed: u64, scenario: impl FnOnce(World) -> F) {
    let outcome = Simulation::new(seed).run(scenario);
    assert_eq!(outcome, Outcome::Finished(()));
}
