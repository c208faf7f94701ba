//! The answering side of a node: runs what others ask, so much at a time, until its deadline.
//!
//! *A request*: the connection's `Answerer` has found it covered by credits; it becomes a task that
//! waits for its class's room, runs the service until the deadline, and leaves its ending with the
//! `Answerer`. *The end of a connection* ends the tasks of its requests at their next wait.

use crate::Fault;
use crate::answerer::{Answerer, Task as Step};
use crate::channel::{Channel, Stream};
use crate::drive::{Next, Side, drive, idle};
use crate::frame::{Ending, Frame, Header, class_index};
use crate::gate::Gate;
use crate::hello::{Credits, Identity};
use crate::security::{Admit, Security};
use model::call::Call;
use model::{NodeId, NodeRun};
use parking_lot::Mutex;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, Semaphore};
use world::call::Service;
use world::{Deadline, Listener, Map, Task, World};

/// Most nodes whose incarnations are remembered: more than a cluster has.
const NODES_MAX: usize = 16_384;

/// Pause after a connection that couldn't be accepted, because of too many open files for example.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How much a server takes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Admission {
    /// Credits of each connection. Memory of what is under way is at most this for each of them.
    pub credits: Credits,
    /// Requests of each class, from lease to repair, that run at the same time on all connections.
    pub running: [usize; 4],
    /// Connections; further ones are closed at once.
    pub connections: usize,
}

/// Answers other nodes. Dropping it ends its tasks and connections.
pub struct Server {
    shared: Arc<Shared>,
}

struct Shared {
    world: World,
    identity: Identity,
    admission: Admission,
    service: Arc<dyn Service>,
    /// Finds out who opened a connection; without it, nobody has to prove anything.
    gate: Option<Arc<Gate>>,
    room: [Semaphore; 4],
    state: Mutex<State>,
    /// Notified when a connection has ended.
    ended: Notify,
}

#[derive(Default)]
struct State {
    connections: Map<u64, Connection>,
    last_connection: u64,
    listeners: Vec<Task<()>>,
    /// The newest incarnation that was seen of each node.
    incarnations: Map<NodeId, u64>,
    is_closed: bool,
}

struct Connection {
    link: Arc<Link>,
    #[expect(dead_code, reason = "dropping it ends the connection")]
    task: Task<()>,
}

/// One connection.
struct Link {
    server: Arc<Shared>,
    number: u64,
    /// The node that the connection has proven to come from.
    proven: Option<NodeId>,
    state: Mutex<LinkState>,
    work: Notify,
}

struct LinkState {
    answerer: Answerer,
    running: Map<u64, Task<()>>,
}

impl Server {
    /// A server without connections.
    #[must_use]
    pub fn new(
        world: &World,
        identity: Identity,
        admission: Admission,
        service: Arc<dyn Service>,
    ) -> Self {
        Self {
            shared: Arc::new(Shared {
                world: world.clone(),
                identity,
                admission,
                service,
                gate: None,
                room: admission.running.map(Semaphore::new),
                state: Mutex::default(),
                ended: Notify::new(),
            }),
        }
    }

    /// Takes connections only as `security` allows, and lets machines join if `admit` decides who may.
    /// Call it before the server gets its first connection.
    ///
    /// # Panics
    /// If it has got one, or `security` is another node's.
    #[must_use]
    pub fn with_security(mut self, security: Arc<Security>, admit: Option<Arc<dyn Admit>>) -> Self {
        let shared = Arc::get_mut(&mut self.shared);
        let shared = shared.expect("a server is protected before its first connection");
        let (name, own) = (security.name(), shared.identity);
        assert_eq!(
            (name.node, name.cluster),
            (own.run.node, own.cluster),
            "a server has its own node's credentials"
        );
        shared.gate = Some(Gate::new(&shared.world, security, admit));
        self
    }

    /// Serves the connections that come to `listener`, until the server is closed.
    pub fn listen(&self, listener: Listener) {
        let shared = Arc::downgrade(&self.shared);
        let world = self.shared.world.clone();
        let task = self.shared.world.spawn("rpc listens", async move {
            loop {
                let accepted = listener.accept().await;
                let Some(shared) = shared.upgrade() else {
                    return;
                };
                match accepted {
                    Ok(connection) => {
                        let from = connection.peer().ip();
                        shared.arrived(connection, Some(from));
                    }
                    Err(error) => {
                        tracing::warn!(%error, "a connection couldn't be accepted");
                        drop(shared);
                        world.sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        });
        let mut state = self.shared.state.lock();
        if !state.is_closed {
            state.listeners.push(task);
        }
    }

    /// Serves a connection that another node opened, once it is known which one. One that is too many
    /// is closed.
    pub fn accept(&self, stream: impl Stream + 'static) {
        self.shared.arrived(stream, None);
    }

    /// Takes on no more connections and requests, answers those under way until the deadline, then
    /// ends all connections.
    pub async fn close(&self, deadline: Deadline) {
        let shared = &self.shared;
        let links: Vec<_> = {
            let mut state = shared.state.lock();
            state.is_closed = true;
            // Dropped with the state locked: ending a task runs nothing of it here.
            state.listeners.clear();
            let connections = state.connections.values();
            connections
                .map(|connection| connection.link.clone())
                .collect()
        };
        for link in links {
            link.state.lock().answerer.drain("the node is closing");
            link.work.notify_one();
        }
        let all_ended = async {
            loop {
                let mut ended = pin!(shared.ended.notified());
                ended.as_mut().enable();
                if shared.state.lock().connections.is_empty() {
                    return;
                }
                ended.await;
            }
        };
        // What isn't over by then is dropped.
        let _ = deadline.bound(&shared.world, all_ended).await;
        shared.drop_connections();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.drop_connections();
    }
}

impl Shared {
    /// Somebody opened a connection.
    fn arrived(self: &Arc<Self>, stream: impl Stream + 'static, from: Option<IpAddr>) {
        let Some(gate) = &self.gate else {
            return self.accept(Channel::plain(stream), None);
        };
        let shared = Arc::downgrade(self);
        let welcome = move |channel, proven| {
            if let Some(shared) = shared.upgrade() {
                shared.accept(channel, proven);
            }
        };
        gate.enter(stream, from, Box::new(welcome));
    }

    fn accept(self: &Arc<Self>, channel: Channel, proven: Option<NodeId>) {
        let shared = self;
        let mut state = shared.state.lock();
        if state.is_closed || state.connections.len() >= shared.admission.connections {
            tracing::warn!(
                connections = state.connections.len(),
                "a connection is refused: the node closes or has too many"
            );
            return;
        }
        state.last_connection += 1;
        let number = state.last_connection;
        let now = shared.world.now();
        let link = Arc::new(Link {
            server: shared.clone(),
            number,
            proven,
            state: Mutex::new(LinkState {
                answerer: Answerer::new(shared.identity, shared.admission.credits, now),
                running: Map::default(),
            }),
            work: Notify::new(),
        });
        // Made here: a task can be dropped before it begins.
        let end = LinkEnd(link.clone());
        let task = shared.world.spawn("rpc answers", serve(end, channel));
        state.connections.insert(number, Connection { link, task });
    }

    fn drop_connections(&self) {
        if let Some(gate) = &self.gate {
            gate.close();
        }
        let (connections, listeners) = {
            let mut state = self.state.lock();
            state.is_closed = true;
            let connections = std::mem::take(&mut state.connections);
            (connections, std::mem::take(&mut state.listeners))
        };
        drop((connections, listeners));
    }

    /// Whether a daemon may call. Its node's older daemons aren't there any more.
    fn admit(&self, run: NodeRun) -> Result<(), Fault> {
        let mut state = self.state.lock();
        let is_known = state.incarnations.contains_key(&run.node);
        if !is_known && state.incarnations.len() >= NODES_MAX {
            return Err(Fault::new("more nodes have called than a cluster has"));
        }
        let newest = state.incarnations.entry(run.node).or_insert(0);
        if run.incarnation < *newest {
            return Err(Fault::new(format!("{run} is an old daemon of its node")));
        }
        *newest = run.incarnation;
        let links: Vec<_> = state.connections.values().map(|c| c.link.clone()).collect();
        drop(state);
        for link in links {
            let other = link.state.lock().answerer.other();
            if other.is_some_and(|other| other.node == run.node && other < run) {
                let ended = self.state.lock().connections.remove(&link.number);
                drop(ended);
            }
        }
        Ok(())
    }

    /// Runs a request to its ending.
    async fn answer(&self, from: NodeRun, call: Call, deadline: Deadline) -> Ending {
        let room = self.room[class_index(call.class)].acquire();
        let room = deadline.bound(&self.world, room).await;
        // A daemon that was stopped for a while finds room and deadline at the same time.
        let (Ok(Ok(_room)), false) = (room, deadline.has_passed(&self.world)) else {
            return Ending::NotRun("its deadline passed before there was room to run it".into());
        };
        let reply = self.service.serve(from, call, deadline);
        match deadline.bound(&self.world, reply).await {
            Ok(reply) => Ending::Answered(reply),
            Err(_) => Ending::Dropped("the deadline passed".into()),
        }
    }
}

/// Drives a connection to its end.
async fn serve(end: LinkEnd, channel: Channel) {
    let link = &end.0;
    let why = drive(&link.server.world, channel, link).await;
    tracing::debug!(%why, "a connection ended");
}

/// Ends the requests of a connection when its task ends, however it does.
struct LinkEnd(Arc<Link>);

impl Drop for LinkEnd {
    fn drop(&mut self) {
        let running = std::mem::take(&mut self.0.state.lock().running);
        drop(running);
        let server = &self.0.server;
        let connection = server.state.lock().connections.remove(&self.0.number);
        drop(connection);
        server.ended.notify_waiters();
    }
}

impl Link {
    /// Whether the daemon is the node's that the connection comes from.
    fn check(&self, run: NodeRun) -> Result<(), Fault> {
        match self.proven {
            Some(node) if node != run.node => {
                let text = format!("the certificate is node {node}'s, the hello is {run}'s");
                if let Some(gate) = &self.server.gate {
                    gate.refused(&text);
                }
                Err(Fault::new(text))
            }
            _ => Ok(()),
        }
    }

    /// Starts the task of a request.
    fn run(self: &Arc<Self>, number: u64, from: NodeRun, call: Call, deadline: Deadline) {
        let link = self.clone();
        // Locked, so that the task can't end before it is known.
        let mut state = self.state.lock();
        let task = self.server.world.spawn("rpc request", async move {
            let ending = link.server.answer(from, call, deadline).await;
            link.finished(number, ending);
        });
        state.running.insert(number, task);
    }

    fn finished(&self, number: u64, ending: Ending) {
        let task = {
            let mut state = self.state.lock();
            state.answerer.finish(number, ending);
            state.running.remove(&number)
        };
        drop(task);
        self.work.notify_one();
    }
}

impl Side for Arc<Link> {
    fn allow(&self, header: &Header) -> Result<(), Fault> {
        self.state.lock().answerer.allow(header)
    }

    fn arrived(&self, frame: Frame) -> Result<(), Fault> {
        let now = self.server.world.now();
        let step = self.state.lock().answerer.arrived(frame, now)?;
        match step {
            Step::None => {}
            Step::Greet(run) => match self.check(run).and_then(|()| self.server.admit(run)) {
                Ok(()) => self.state.lock().answerer.welcome(run),
                Err(fault) => self.state.lock().answerer.drain(&fault.to_string()),
            },
            Step::Run(number, from, call, deadline) => self.run(number, from, call, deadline),
            Step::Stop(number) => {
                let task = self.state.lock().running.remove(&number);
                drop(task);
            }
        }
        self.work.notify_one();
        Ok(())
    }

    fn heard(&self) {
        let now = self.server.world.now();
        self.state.lock().answerer.heard(now);
    }

    fn next(&self) -> Next {
        let now = self.server.world.now();
        let mut state = self.state.lock();
        if let Some(frame) = state.answerer.next_frame(now) {
            return Next::Send(frame);
        }
        if state.answerer.is_over() {
            return Next::Over;
        }
        idle(state.answerer.beat(now))
    }

    fn work(&self) -> &Notify {
        &self.work
    }
}
