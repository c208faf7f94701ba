//! The answering side of a node: runs what others ask, so much at a time, until its deadline.
//!
//! *A connection* is accepted and greeted on the urgent thread. Its hello says which lane it is for: one
//! for leases stays there, as do their requests; all others go over to the other threads. `Registry`
//! says whether it may stay, and which others go for it. If connections are protected, `Gate` has found
//! out before which node it comes from, and the hello must be that node's. *A request*: the connection's
//! `Answerer` has found it covered by credits; it becomes a task that waits for its class's room
//! (one about leases for its node's share first, `Shares`), runs the service until the deadline, and leaves
//! its ending with the `Answerer`. On the lane for small messages it also sends it, if the connection's task has
//! nothing under way (`Outlet::send_now`). There, what the service says is short (`Service::is_short`) gets no task:
//! the connection's runs it (`OwnWork`). *The end of a connection* ends its requests at their next wait.

use crate::Fault;
use crate::admission::Admission;
use crate::answerer::{Answerer, Task as Step};
use crate::channel::{Channel, Stream};
use crate::drive::{Side, drive, hear_first, idle};
use crate::frame::{Ending, Frame, Header, class_index};
use crate::gate::Gate;
use crate::hello::Identity;
use crate::lanes::{Connections, Lane};
use crate::outlet::{Next, Outlet};
use crate::own_work::OwnWork;
use crate::receive::{LARGE_INBOXES_MAX, Receiver};
use crate::registry::{Going, Registry};
use crate::seal::Sealer;
use crate::security::{Admit, Proof, RefusalKind, Security};
use crate::shares::Shares;
use bytes::Bytes;
use futures::FutureExt;
use model::call::{Call, Class, Reply};
use model::join::needs_proof;
use model::{Error, ErrorKind, NodeRun, Result};
use parking_lot::{Mutex, MutexGuard};
use std::net::IpAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Weak};
use std::task::Context;
use std::time::Duration;
use tokio::sync::{Notify, Semaphore, SemaphorePermit};
use tokio::task::coop::unconstrained;
use world::call::Service;
use world::{Deadline, Listener, Map, Part, Task, World, errand};

/// What is said on a connection that wouldn't be let in any more.
const UNTAKEN: &str =
    "how connections are protected, or who is trusted, has changed: connect again";

/// The cause by which calls of other nodes are listed that wait here.
const CALL: &str = "the call of another node";

/// Pause after a connection that couldn't be accepted, because of too many open files for example.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Answers other nodes. Dropping it ends its tasks and connections.
pub struct Server {
    shared: Arc<Shared>,
}

/// A connection, for lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServedView {
    /// The daemon that opened it.
    pub run: NodeRun,
    /// Its lane; none: it is for all classes, because that daemon knows no lanes.
    pub lane: Option<Lane>,
    /// Whether no more requests come over it.
    pub is_ending: bool,
}

struct Shared {
    world: World,
    /// Where connections are greeted and leases answered.
    urgent: World,
    identity: Identity,
    admission: Admission,
    service: Arc<dyn Service>,
    /// Finds out who opened a connection; without it, nobody has to prove anything.
    gate: Option<Arc<Gate>>,
    room: [Semaphore; 4],
    /// How much of that for leases one node gets.
    lease_shares: Shares,
    /// Counted connections that this node wants.
    connections: AtomicU8,
    /// For the large inboxes of all connections.
    inbox_room: Arc<Semaphore>,
    state: Mutex<State>,
    /// Notified when a connection has ended.
    ended: Notify,
    /// Notified when a connection was greeted, or ended before.
    room_for_strangers: Arc<Notify>,
}

struct State {
    registry: Registry,
    connections: Map<u64, Connection>,
    listeners: Vec<Task<()>>,
    is_closed: bool,
}

struct Connection {
    link: Arc<Link>,
    /// Dropping it ends the connection.
    task: Task<()>,
}

/// One connection.
struct Link {
    server: Arc<Shared>,
    number: u64,
    /// Which node the connection has proven to come from, and how.
    proof: Proof,
    state: Mutex<LinkState>,
    /// Requests that the connection's task runs.
    own_work: OwnWork<Ending>,
    work: Notify,
}

struct LinkState {
    answerer: Answerer,
    running: Map<u64, Task<()>>,
    /// What small answers leave by without the connection's task. None on other lanes, and none any more once that has
    /// ended, so that no request that still computes keeps the connection open.
    outlet: Option<Arc<Outlet>>,
}

impl Server {
    /// A server without connections.
    ///
    /// # Panics
    /// As `World::urgent`.
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
                urgent: world.urgent(),
                identity,
                admission,
                service,
                gate: None,
                room: admission.running.map(Semaphore::new),
                lease_shares: Shares::of(admission.running[class_index(Class::Lease)]),
                connections: AtomicU8::new(Connections::default().max),
                inbox_room: Arc::new(Semaphore::new(LARGE_INBOXES_MAX)),
                state: Mutex::new(State {
                    registry: Registry::new(admission.connections),
                    connections: Map::default(),
                    listeners: Vec::new(),
                    is_closed: false,
                }),
                ended: Notify::new(),
                room_for_strangers: Arc::default(),
            }),
        }
    }

    /// Takes connections only as `security` allows, and lets machines join if `admit` decides who may.
    /// Call it before the server gets its first connection.
    ///
    /// Handshakes are on the urgent thread, so that leases find their way over new connections too while
    /// all other threads are busy; if there are many at a time, which those of strangers may be, the
    /// further ones are on the other threads.
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

    /// Serves the connections that come to `listener`, until the server is closed. It should be one
    /// of `World::urgent`: then leases can be renewed over new connections too while all other
    /// threads are busy.
    pub fn listen(&self, listener: Listener) {
        let shared = Arc::downgrade(&self.shared);
        let world = self.shared.urgent.clone();
        let room = match &self.shared.gate {
            Some(gate) => gate.room().clone(),
            None => self.shared.room_for_strangers.clone(),
        };
        let task = self.shared.urgent.spawn("rpc listens", async move {
            loop {
                let patience = shared.upgrade().and_then(|shared| shared.patience());
                if let Some(patience) = patience {
                    // A notification that came since then is kept.
                    let _ = world.timeout(patience, room.notified()).await;
                    continue;
                }
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

    /// How many connections this node wants from now on: others are told, open no more than that for
    /// data, and end those that are too many. (It doesn't make them: how many connections a node may
    /// have at all is fixed.)
    ///
    /// # Errors
    /// `InvalidArgument`: a value is out of its range; nothing has changed.
    pub fn set_connections(&self, connections: Connections) -> Result<()> {
        connections.check()?;
        let shared = &self.shared;
        // Before the others are told: a hello that is written after this says it.
        shared.connections.store(connections.max, Ordering::SeqCst);
        for link in shared.links() {
            link.state.lock().answerer.want(connections.max);
            link.work.notify_one();
        }
        Ok(())
    }

    /// The connections of other nodes that have said hello.
    #[must_use]
    pub fn connections(&self) -> Vec<ServedView> {
        let state = self.shared.state.lock();
        let known = state.registry.all_known();
        known
            .map(|known| ServedView {
                run: known.run,
                lane: known.lane,
                is_ending: known.is_ending,
            })
            .collect()
    }

    /// Ends the connections that wouldn't be let in as the node's security is now: other nodes have `patience` to leave
    /// them by themselves ([`Peer::renew`](crate::Peer::renew)), then they are told to, and have as long again for what is
    /// under way. Those that are left are dropped.
    pub async fn end_untaken(&self, patience: Duration) {
        let shared = &self.shared;
        shared.untaken_ended(patience).await;
        for link in shared.untaken() {
            // Whoever hasn't said hello yet is refused then.
            if shared.state.lock().registry.known(link.number).is_some() {
                link.state.lock().answerer.drain(UNTAKEN);
                link.work.notify_one();
            }
        }
        shared.untaken_ended(patience).await;
        let untaken = shared.untaken();
        let dropped: Vec<_> = {
            let mut state = shared.state.lock();
            let numbers = untaken.iter().map(|link| link.number);
            numbers
                .filter_map(|number| state.connections.remove(&number))
                .collect()
        };
        drop(dropped);
    }

    /// Takes on no more connections and requests, answers those under way until the deadline, then
    /// ends all connections.
    pub async fn close(&self, deadline: Deadline) {
        let shared = &self.shared;
        let strangers: Vec<_> = {
            let mut state = shared.state.lock();
            let State {
                registry,
                connections,
                listeners,
                is_closed,
            } = &mut *state;
            *is_closed = true;
            // Dropped with the state locked: ending a task runs nothing of it here.
            listeners.clear();
            let strangers = registry.strangers();
            strangers
                .filter_map(|number| connections.remove(&number))
                .collect()
        };
        drop(strangers);
        for link in shared.links() {
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
            return self.accept(Channel::plain(stream), Proof::NONE);
        };
        let shared = Arc::downgrade(self);
        let welcome = move |channel, proof| Self::welcome(shared, channel, proof).boxed();
        gate.enter(stream, from, Box::new(welcome));
    }

    /// Takes on a connection that the gate has let in, as soon as nobody loses a place for it.
    async fn welcome(server: Weak<Self>, mut channel: Channel, proof: Proof) {
        while let Some(shared) = server.upgrade() {
            let (rest, patience) = match shared.accept_in_turn(channel, proof) {
                Ok(()) => return,
                Err(rest) => rest,
            };
            channel = rest;
            let (world, room) = (shared.urgent.clone(), shared.room_for_strangers.clone());
            drop(shared);
            // A notification that came since then is kept.
            let _ = world.timeout(patience, room.notified()).await;
        }
    }

    /// How long the next connection should be left in the kernel's queue, unless there is room before.
    fn patience(&self) -> Option<Duration> {
        let now = self.world.now();
        match &self.gate {
            Some(gate) => gate.patience(now),
            None => self.state.lock().registry.patience(now),
        }
    }

    /// Takes a connection on, or gives it back with the time after which somebody may lose a place for
    /// it.
    fn accept_in_turn(
        self: &Arc<Self>,
        channel: Channel,
        proof: Proof,
    ) -> std::result::Result<(), (Channel, Duration)> {
        let state = self.state.lock();
        if let Some(patience) = state.registry.patience(self.world.now()) {
            return Err((channel, patience));
        }
        self.accept_with(state, channel, proof);
        Ok(())
    }

    fn accept(self: &Arc<Self>, channel: Channel, proof: Proof) {
        self.accept_with(self.state.lock(), channel, proof);
    }

    fn accept_with(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, State>,
        channel: Channel,
        proof: Proof,
    ) {
        let shared = self;
        let now = shared.world.now();
        let accepted = match state.is_closed {
            true => None,
            false => state.registry.accept(now),
        };
        let Some(accepted) = accepted else {
            tracing::warn!(
                connections = state.registry.len(),
                "a connection is refused: the node closes or has too many"
            );
            return;
        };
        let number = accepted.number;
        let link = Arc::new(Link {
            server: shared.clone(),
            number,
            proof,
            state: Mutex::new(LinkState {
                answerer: Answerer::new(shared.identity, now),
                running: Map::default(),
                outlet: None,
            }),
            own_work: OwnWork::default(),
            work: Notify::new(),
        });
        // Made here: a task can be dropped before it begins.
        let end = LinkEnd(link.clone());
        let task = shared.urgent.spawn("rpc greets", greet(end, channel));
        state.connections.insert(number, Connection { link, task });
        let dropped = accepted.dropped;
        let dropped = dropped.and_then(|dropped| state.connections.remove(&dropped));
        drop(state);
        drop(dropped);
    }

    fn links(&self) -> Vec<Arc<Link>> {
        let state = self.state.lock();
        let connections = state.connections.values();
        connections
            .map(|connection| connection.link.clone())
            .collect()
    }

    /// Whether a connection would be let in now. Nobody judges that without security.
    fn takes(&self, link: &Link) -> bool {
        let gate = self.gate.as_ref();
        gate.is_none_or(|gate| gate.takes(&link.proof))
    }

    /// The connections that wouldn't be.
    fn untaken(&self) -> Vec<Arc<Link>> {
        let links = self.links().into_iter();
        links.filter(|link| !self.takes(link)).collect()
    }

    /// Waits until there are none, as long as that at most.
    async fn untaken_ended(&self, patience: Duration) {
        let all_ended = async {
            loop {
                let mut ended = pin!(self.ended.notified());
                ended.as_mut().enable();
                if self.untaken().is_empty() {
                    return;
                }
                ended.await;
            }
        };
        // Whoever waits looks which are left.
        let _ = self.world.timeout(patience, all_ended).await;
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

    /// Whether a daemon may call over a connection for this lane. Its node's older daemons aren't
    /// there any more.
    fn admit(
        &self,
        link: &Link,
        run: NodeRun,
        lane: Option<Lane>,
    ) -> std::result::Result<(), Fault> {
        // The security may have changed since the handshake. One that changes later finds the connection.
        if !self.takes(link) {
            return Err(Fault::new(UNTAKEN));
        }
        let going = self.state.lock().registry.greet(link.number, run, lane)?;
        self.room_for_strangers.notify_one();
        self.end_connections(going);
        let granted = self.admission.granted(lane);
        let mut state = link.state.lock();
        // Read with the state locked: whoever changes it tells this connection afterwards.
        let connections = self.connections.load(Ordering::SeqCst);
        state.answerer.welcome(run, granted, connections);
        drop(state);
        // A newer daemon that was let in since then has not found this one welcomed.
        match self.state.lock().registry.known(link.number) {
            Some(_) => Ok(()),
            None => Err(Fault::new(format!("{run} is an old daemon of its node"))),
        }
    }

    fn end_connections(&self, going: Going) {
        let mut state = self.state.lock();
        let dropped = going.dropped.iter();
        let dropped: Vec<_> = dropped
            .filter_map(|number| state.connections.remove(number))
            .collect();
        let drained = going.drained.iter();
        let drained: Vec<_> = drained
            .filter_map(|number| Some(state.connections.get(number)?.link.clone()))
            .collect();
        drop(state);
        drop(dropped);
        for link in drained {
            let why = "a newer connection of the same lane has come";
            link.state.lock().answerer.drain(why);
            link.work.notify_one();
        }
    }

    /// Whose threads run requests of the class.
    fn world_for(&self, class: Class) -> &World {
        match class {
            Class::Lease => &self.urgent,
            Class::Metadata | Class::Bulk | Class::Repair => &self.world,
        }
    }

    /// Runs a request to its ending, on the errand that it names.
    async fn answer(&self, from: NodeRun, call: Call, deadline: Deadline) -> Ending {
        let (trace, part) = (call.trace, Part::Call(call.method));
        let answered = pin!(self.answer_in_turn(from, call, deadline));
        let listed = self.world.listed(CALL, part, answered);
        errand::within(trace, from.node, listed).await
    }

    async fn answer_in_turn(&self, from: NodeRun, call: Call, deadline: Deadline) -> Ending {
        let world = self.world_for(call.class);
        let late = || Ending::NotRun("its deadline passed before there was room to run it".into());
        let is_lease = call.class == Class::Lease;
        let own = is_lease.then(|| self.lease_shares.room_of(from.node));
        // First: whoever waits for its own share has nothing of what is for all.
        let _own = match &own {
            None => None,
            Some(own) => match enter(world, own, deadline).await {
                Some(room) => Some(room),
                None => return late(),
            },
        };
        let room = enter(world, &self.room[class_index(call.class)], deadline).await;
        // A daemon that was stopped for a while finds room and deadline at the same time.
        let (Some(_room), false) = (room, deadline.has_passed(world)) else {
            return late();
        };
        let reply = self.service.serve(from, call, deadline);
        match deadline.bound(world, reply).await {
            Ok(reply) => Ending::Answered(reply),
            Err(_) => Ending::Dropped("the deadline passed".into()),
        }
    }
}

/// Waits for room, as long as the deadline allows.
async fn enter<'a>(
    world: &World,
    rooms: &'a Semaphore,
    deadline: Deadline,
) -> Option<SemaphorePermit<'a>> {
    // Whoever waits gets room first: what isn't theirs is free.
    match rooms.try_acquire() {
        Ok(room) => Some(room),
        Err(_) => match deadline.bound(world, rooms.acquire()).await {
            Ok(Ok(room)) => Some(room),
            _ => None,
        },
    }
}

/// Waits for a connection's hello, and takes it to where its lane is.
async fn greet(end: LinkEnd, channel: Channel) {
    let link = end.0.clone();
    let server = &link.server;
    let (mut stream, protection) = channel.into_parts();
    let (sealer, opener) = protection.unzip();
    let receiver = Receiver::with_room(opener, &server.inbox_room);
    let receiver = match hear_first(&server.urgent, &mut stream, receiver, &link).await {
        Ok(receiver) => receiver,
        Err(why) => {
            tracing::debug!(%why, "a connection ended before its hello");
            return;
        }
    };
    let known = server.state.lock().registry.known(link.number);
    let lane = known.map(|known| known.lane);
    match lane {
        Some(Some(Lane::Small | Lane::Bulk) | None) => {
            let mut state = server.state.lock();
            // None: it was dropped meanwhile.
            let Some(connection) = state.connections.get_mut(&link.number) else {
                return;
            };
            let serving = serve(
                server.world.clone(),
                end,
                lane.flatten(),
                stream,
                sealer,
                receiver,
            );
            let task = server.world.spawn("rpc answers", serving);
            std::mem::replace(&mut connection.task, task).detach();
        }
        // Also one that wasn't let in: it is told why.
        Some(Some(Lane::Lease)) | None => {
            serve(
                server.urgent.clone(),
                end,
                lane.flatten(),
                stream,
                sealer,
                receiver,
            )
            .await;
        }
    }
}

/// Drives a connection to its end.
async fn serve(
    world: World,
    end: LinkEnd,
    lane: Option<Lane>,
    stream: Box<dyn Stream>,
    sealer: Option<Sealer>,
    receiver: Receiver,
) {
    let (read, outlet) = Outlet::of(stream, sealer);
    let outlet = Arc::new(outlet);
    if lane == Some(Lane::Small) {
        end.0.state.lock().outlet = Some(outlet.clone());
    }
    let why = drive(&world, read, receiver, &outlet, &end.0).await;
    tracing::debug!(%why, "a connection ended");
}

/// Ends the requests of a connection when its task ends, however it does.
struct LinkEnd(Arc<Link>);

impl Drop for LinkEnd {
    fn drop(&mut self) {
        let (running, outlet) = {
            let mut state = self.0.state.lock();
            (std::mem::take(&mut state.running), state.outlet.take())
        };
        drop((running, outlet));
        self.0.own_work.stop_all();
        let server = &self.0.server;
        let mut state = server.state.lock();
        state.registry.gone(self.0.number);
        let connection = state.connections.remove(&self.0.number);
        drop(state);
        drop(connection);
        server.ended.notify_waiters();
        server.room_for_strangers.notify_one();
    }
}

impl Link {
    /// Whether the daemon is the node's that the connection comes from.
    fn check(&self, run: NodeRun) -> std::result::Result<(), Fault> {
        match self.proof.node {
            Some(node) if node != run.node => {
                let text = format!("the certificate is node {node}'s, the hello is {run}'s");
                if let Some(gate) = &self.server.gate {
                    gate.refused(&self.proof, RefusalKind::Identity, text.clone());
                }
                Err(Fault::new(text))
            }
            _ => Ok(()),
        }
    }

    /// Begins a request, on the connection's task or on one of its own. Called by the former.
    fn run(self: &Arc<Self>, number: u64, from: NodeRun, call: Call, deadline: Deadline) {
        if self.is_for_small() && self.server.service.is_short(&call) {
            let server = self.server.clone();
            let answer = async move { server.answer(from, call, deadline).await };
            // Each has one turn when the task has one: what others have used of the task's budget doesn't hold it up.
            return self.own_work.begin(number, unconstrained(answer).boxed());
        }
        let link = self.clone();
        let world = self.server.world_for(call.class);
        // Locked, so that the task can't end before it is known.
        let mut state = self.state.lock();
        let task = world.spawn("rpc request", async move {
            let ending = link.server.answer(from, call, deadline).await;
            link.finished(number, ending);
        });
        state.running.insert(number, task);
    }

    /// Whether the connection is for small messages, and has begun.
    fn is_for_small(&self) -> bool {
        self.state.lock().outlet.is_some()
    }

    /// A request has ended. A small answer leaves on this thread: waking the connection's task for it would take longer.
    /// Sealing blocks is for that task, and leases are for the urgent thread.
    fn finished(self: &Arc<Self>, number: u64, ending: Ending) {
        let (task, outlet) = {
            let mut state = self.state.lock();
            state.answerer.finish(number, ending);
            (state.running.remove(&number), state.outlet.clone())
        };
        drop(task);
        let outlet = outlet.filter(|_| self.server.world.is_here());
        let is_sent = outlet.is_some_and(|outlet| outlet.send_now(|| self.next()));
        if !is_sent {
            self.work.notify_one();
        }
    }
}

/// The ending of a request that is answered only to whom the connection proves to be.
fn unproven() -> Ending {
    let text = "the connection proves nothing of who asks: cipherList is EMPTY";
    let refused = Err(Error::new(ErrorKind::NotPermitted, text));
    Ending::Answered(Reply::new::<()>(&refused, Bytes::new()))
}

impl Side for Arc<Link> {
    fn allow(&self, header: &Header) -> std::result::Result<(), Fault> {
        self.state.lock().answerer.allow(header)
    }

    fn arrived(&self, frame: Frame) -> std::result::Result<(), Fault> {
        let now = self.server.world.now();
        let step = self.state.lock().answerer.arrived(frame, now)?;
        match step {
            Step::None => {}
            Step::Refused(fault) => self.broken(&fault),
            Step::Greet(run, lane) => {
                let allowed = self.check(run);
                let allowed = allowed.and_then(|()| self.server.admit(self, run, lane));
                if let Err(fault) = allowed {
                    self.state.lock().answerer.drain(&fault.to_string());
                }
            }
            Step::Ending => {
                let dropped = self.server.state.lock().registry.ending(self.number);
                let drained = Vec::new();
                self.server.end_connections(Going { dropped, drained });
            }
            Step::Run(number, _, ref call, _)
                if self.proof.node.is_none() && needs_proof(call.method) =>
            {
                self.finished(number, unproven());
            }
            Step::Run(number, from, call, deadline) => {
                self.run(number, from, call, deadline);
                // Nothing is to be sent before it ends. A task that is woken while it runs is run once more, and
                // another thread is woken to take it.
                return Ok(());
            }
            Step::Stop(number) => {
                let task = self.state.lock().running.remove(&number);
                drop(task);
                self.own_work.stop(number);
            }
        }
        self.work.notify_one();
        Ok(())
    }

    fn heard(&self) {
        let now = self.server.world.now();
        self.state.lock().answerer.heard(now);
    }

    fn broken(&self, fault: &Fault) {
        let Some(gate) = &self.server.gate else {
            return;
        };
        let who = match self.proof.node {
            Some(node) => format!("node {node}"),
            None => "somebody who has proven nothing".to_owned(),
        };
        let why = format!("{who} sends what isn't taken: {fault}");
        gate.refused(&self.proof, RefusalKind::Frames, why);
    }

    fn go_on(&self, context: &mut Context<'_>) -> bool {
        let mut has_ended = false;
        // What they read is asked of the disk together.
        self.server.world.gather_io(|| {
            self.own_work.go_on(context, |number, ending| {
                self.state.lock().answerer.finish(number, ending);
                has_ended = true;
            });
        });
        has_ended
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
