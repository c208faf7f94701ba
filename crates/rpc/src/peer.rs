//! Another node, from the asking side: connects when it is asked, and again when that breaks.
//!
//! *A call*: [`Peer`] takes the open connection, or starts the task that opens one and waits for it;
//! the call goes into the connection's `Caller`; the connection's task sends it and hands over its
//! outcome. *A break*: the task ends, and with it every call that was sent (`Unknown`); unsent ones
//! wait for the next connection. *No connection*: a call waits for one attempt. If that fails, so do
//! the calls, because whoever asks has other nodes to turn to; after it there is a pause, in which
//! calls are refused at once. Without calls there are no attempts.

use crate::caller::{Caller, Outcome};
use crate::channel::Channel;
use crate::drive::{Next, Side, drive, idle};
use crate::frame::{Frame, Header};
use crate::hello::{Credits, Hello, Identity};
use crate::{Fault, pulse::SILENCE_MAX};
use futures::future::BoxFuture;
use model::call::{Answer, Call, NoAnswer};
use model::{NodeId, NodeRun};
use parking_lot::Mutex;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};
use world::call::Remote;
use world::{Deadline, Instant, Task, World};

/// Longest attempt to open a connection.
const DIAL_MAX: Duration = SILENCE_MAX;

/// Pause after the first attempt that failed; doubles with each further one.
const PAUSE_MIN: Duration = Duration::from_millis(20);

/// Longest pause between attempts, so that a node that is back is found soon.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Most connections that still wait for replies after the other side's goodbye.
const ENDING_MAX: usize = 4;

/// Opens connections.
pub trait Dial: Send + Sync {
    /// A new connection to the node; waits until the deadline at most.
    ///
    /// # Errors
    /// The network's.
    fn dial(&self, node: NodeId, deadline: Deadline) -> BoxFuture<'_, io::Result<Channel>>;
}

/// Another node. Dropping it ends its tasks and connections.
pub struct Peer {
    shared: Arc<Shared>,
}

struct Shared {
    world: World,
    identity: Identity,
    node: NodeId,
    dial: Arc<dyn Dial>,
    state: Mutex<State>,
    /// Notified when a connection was opened or couldn't be, and at close.
    changed: Notify,
}

struct State {
    current: Current,
    /// Connections over which no more calls go, with calls under way.
    ending: Vec<Connection>,
    /// Attempts in a row that came to no hello.
    failures: u32,
    /// Such attempts altogether: a call that sees another one end gives up.
    failures_ever: u64,
    /// No attempt before this.
    not_before: Option<Instant>,
    /// Why the last connection ended, or wasn't opened.
    last_fault: Option<String>,
    /// The newest incarnation that was seen of the node.
    incarnation: u64,
}

enum Current {
    /// The next call starts an attempt.
    None,
    /// Being opened.
    Dialing(#[expect(dead_code, reason = "dropping it ends the attempt")] Task<()>),
    /// Open.
    Open(Connection),
    /// The peer was closed.
    Closed,
}

struct Connection {
    link: Arc<Link>,
    task: Task<()>,
}

type Ticket = oneshot::Sender<Outcome>;

/// One connection.
struct Link {
    world: World,
    peer: Weak<Shared>,
    caller: Mutex<Caller<Ticket>>,
    work: Notify,
    /// Whether the other side is the daemon that was meant.
    is_greeted: AtomicBool,
}

impl Peer {
    /// The node `node`. Opens nothing yet.
    #[must_use]
    pub fn new(world: &World, identity: Identity, node: NodeId, dial: Arc<dyn Dial>) -> Self {
        Self {
            shared: Arc::new(Shared {
                world: world.clone(),
                identity,
                node,
                dial,
                state: Mutex::new(State {
                    current: Current::None,
                    ending: Vec::new(),
                    failures: 0,
                    failures_ever: 0,
                    not_before: None,
                    last_fault: None,
                    incarnation: 0,
                }),
                changed: Notify::new(),
            }),
        }
    }

    /// Takes on no more calls, waits for the replies of those under way until the deadline, then
    /// ends all connections.
    pub async fn close(&self, deadline: Deadline) {
        let connections = self.shared.closing();
        for connection in &connections {
            let link = &connection.link;
            link.settle(link.caller.lock().close("the node closes the connection"));
            link.work.notify_one();
        }
        for connection in connections {
            // What isn't over by then is dropped.
            let _ = deadline.bound(&self.shared.world, connection.task).await;
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        drop(self.shared.closing());
    }
}

impl Remote for Peer {
    fn call(&self, call: Call, deadline: Deadline) -> BoxFuture<'_, Result<Answer, NoAnswer>> {
        Box::pin(self.shared.call(call, deadline))
    }
}

impl Shared {
    async fn call(
        self: &Arc<Self>,
        mut call: Call,
        deadline: Deadline,
    ) -> Result<Answer, NoAnswer> {
        let failures = self.state.lock().failures_ever;
        loop {
            let link = self.link(failures, deadline).await?;
            match link.call(call, deadline).await {
                Outcome::Ended(ended) => return ended,
                // It never left, so another connection may take it.
                Outcome::Unsent(unsent) => call = unsent,
            }
        }
    }

    /// An open connection, for a call that began after `failures` attempts had failed.
    async fn link(
        self: &Arc<Self>,
        failures: u64,
        deadline: Deadline,
    ) -> Result<Arc<Link>, NoAnswer> {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if deadline.has_passed(&self.world) || self.state.lock().failures_ever > failures {
                return Err(self.no_link());
            }
            if let Some(link) = self.open_link()? {
                return Ok(link);
            }
            if deadline.bound(&self.world, changed).await.is_err() {
                return Err(self.no_link());
            }
        }
    }

    fn no_link(&self) -> NoAnswer {
        let state = self.state.lock();
        let why = state.last_fault.as_deref();
        let why = why.unwrap_or("the deadline passed before there was one");
        NoAnswer::not_run(format!("no connection to node {}: {why}", self.node))
    }

    /// The connection, if it is open; otherwise sees to it that one is being opened. Refuses that
    /// in the pause after an attempt that failed.
    fn open_link(self: &Arc<Self>) -> Result<Option<Arc<Link>>, NoAnswer> {
        let mut dropped = None;
        let mut state = self.state.lock();
        match &state.current {
            Current::Closed => return Err(NoAnswer::not_run("the connection was closed here")),
            Current::Dialing(_) => return Ok(None),
            Current::Open(connection) if connection.link.caller.lock().is_open() => {
                return Ok(Some(connection.link.clone()));
            }
            Current::Open(_) | Current::None => {}
        }
        let now = self.world.now();
        if state.not_before.is_some_and(|time| now < time) {
            drop(state);
            return Err(self.no_link());
        }
        if let Current::Open(old) = std::mem::replace(&mut state.current, Current::None) {
            state
                .ending
                .retain(|connection| !connection.task.is_finished());
            if state.ending.len() >= ENDING_MAX {
                dropped = Some(state.ending.remove(0));
            }
            state.ending.push(old);
        }
        let dialing = self.world.spawn("rpc connects", dial(self.clone()));
        state.current = Current::Dialing(dialing);
        drop(state);
        drop(dropped);
        Ok(None)
    }

    /// A connection was opened.
    fn opened(self: &Arc<Self>, channel: Channel) {
        let hello = Hello::new(self.identity, self.node, Credits::default());
        let link = Arc::new(Link {
            world: self.world.clone(),
            peer: Arc::downgrade(self),
            caller: Mutex::new(Caller::new(hello, self.world.now())),
            work: Notify::new(),
            is_greeted: AtomicBool::new(false),
        });
        let mut state = self.state.lock();
        if matches!(state.current, Current::Closed) {
            return;
        }
        // Made here: a task can be dropped before it begins.
        let end = LinkEnd {
            link: link.clone(),
            why: "the connection was dropped".into(),
        };
        let task = self.world.spawn("rpc asks", serve(end, channel));
        let dialing =
            std::mem::replace(&mut state.current, Current::Open(Connection { link, task }));
        drop(state);
        drop(dialing);
        self.changed.notify_waiters();
    }

    /// No connection, or none any more.
    fn failed(&self, fault: String, has_greeted: bool, is_meant: impl Fn(&Current) -> bool) {
        let now = self.world.now();
        let mut state = self.state.lock();
        state.last_fault = Some(fault);
        let mut ended = None;
        if !has_greeted {
            let longest = PAUSE_MIN * 2_u32.saturating_pow(state.failures.min(16));
            let longest = longest.min(PAUSE_MAX);
            state.failures += 1;
            state.failures_ever += 1;
            // Between half and all of it, so that nodes don't come in step.
            let part = self.world.random_u64() % 512 + 512;
            let pause = longest.mul_f64(part as f64 / 1024.0);
            state.not_before = Some(now + pause);
        }
        if is_meant(&state.current) {
            ended = Some(std::mem::replace(&mut state.current, Current::None));
        }
        drop(state);
        drop(ended);
        self.changed.notify_waiters();
    }

    /// The node said hello. An older daemon of it isn't there any more.
    fn greeted(&self, run: NodeRun, by: &Link) -> Result<(), Fault> {
        let mut state = self.state.lock();
        if run.incarnation < state.incarnation {
            return Err(Fault::new(format!("{run} is an old daemon of its node")));
        }
        let is_new = run.incarnation > state.incarnation;
        state.incarnation = run.incarnation;
        state.failures = 0;
        state.not_before = None;
        let mut ended = Vec::new();
        if is_new {
            let is_other = |connection: &mut Connection| !std::ptr::eq(&*connection.link, by);
            ended.extend(state.ending.extract_if(.., is_other));
        }
        drop(state);
        drop(ended);
        Ok(())
    }

    /// Gives all connections, and lets no more be opened.
    fn closing(&self) -> Vec<Connection> {
        let mut state = self.state.lock();
        let mut connections = std::mem::take(&mut state.ending);
        match std::mem::replace(&mut state.current, Current::Closed) {
            Current::Open(connection) => connections.push(connection),
            Current::None | Current::Dialing(_) | Current::Closed => {}
        }
        drop(state);
        self.changed.notify_waiters();
        connections
    }
}

/// Opens a connection, once.
async fn dial(shared: Arc<Shared>) {
    let deadline = Deadline::after(&shared.world, DIAL_MAX);
    let attempt = shared.dial.dial(shared.node, deadline);
    let fault = match deadline.bound(&shared.world, attempt).await {
        Ok(Ok(channel)) => return shared.opened(channel),
        Ok(Err(error)) => error.to_string(),
        Err(elapsed) => elapsed.to_string(),
    };
    shared.failed(fault, false, |current| {
        matches!(current, Current::Dialing(_))
    });
}

/// Drives a connection to its end.
async fn serve(mut end: LinkEnd, channel: Channel) {
    let link = end.link.clone();
    end.why = drive(&link.world, channel, &*link).await.to_string();
}

/// Ends all calls of a connection when its task ends, however it does.
struct LinkEnd {
    link: Arc<Link>,
    why: String,
}

impl Drop for LinkEnd {
    fn drop(&mut self) {
        let link = &self.link;
        let ended = {
            let mut caller = link.caller.lock();
            let ended = caller.end(&self.why);
            if let Some(why) = caller.why_ended() {
                self.why = why.into();
            }
            ended
        };
        let has_greeted = link.is_greeted.load(Ordering::Relaxed);
        tracing::debug!(why = self.why, "a connection ended");
        if let Some(peer) = link.peer.upgrade() {
            let is_meant = |current: &Current| match current {
                Current::Open(connection) => Arc::ptr_eq(&connection.link, link),
                _ => false,
            };
            peer.failed(std::mem::take(&mut self.why), has_greeted, is_meant);
        }
        link.settle(ended);
    }
}

impl Link {
    async fn call(&self, call: Call, deadline: Deadline) -> Outcome {
        let (ticket, outcome) = oneshot::channel();
        let id = match self.caller.lock().call(call, deadline, ticket) {
            Ok(id) => id,
            Err((_, outcome)) => return outcome,
        };
        self.work.notify_one();
        let mut waiting = Waiting {
            link: self,
            id,
            is_over: false,
        };
        let outcome = deadline.bound(&self.world, outcome).await;
        waiting.is_over = true;
        match outcome {
            Ok(outcome) => outcome.expect("every ticket gets its outcome"),
            Err(_) => Outcome::Ended(Err(self
                .give_up(id)
                .unwrap_or_else(|| NoAnswer::unknown("the reply came at its deadline")))),
        }
    }

    fn give_up(&self, id: u64) -> Option<NoAnswer> {
        let known = self.caller.lock().give_up(id);
        self.work.notify_one();
        known
    }

    fn settle(&self, ended: Vec<(Ticket, Outcome)>) {
        for (ticket, outcome) in ended {
            // Whoever waited may have given up at this moment.
            drop(ticket.send(outcome));
        }
    }
}

/// Tells the connection if whoever waits for a call goes away.
struct Waiting<'a> {
    link: &'a Link,
    id: u64,
    is_over: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.link.give_up(self.id);
        }
    }
}

impl Side for Link {
    fn allow(&self, header: &Header) -> Result<(), Fault> {
        self.caller.lock().allow(header)
    }

    fn arrived(&self, frame: Frame) -> Result<(), Fault> {
        let is_hello = matches!(frame, Frame::Hello(_));
        let (ended, other) = {
            let mut caller = self.caller.lock();
            (caller.arrived(frame)?, caller.other())
        };
        self.settle(ended);
        if let (true, Some(other), Some(peer)) = (is_hello, other, self.peer.upgrade()) {
            peer.greeted(other, self)?;
            self.is_greeted.store(true, Ordering::Relaxed);
        }
        // Credits may have come back.
        self.work.notify_one();
        Ok(())
    }

    fn heard(&self) {
        self.caller.lock().heard(self.world.now());
    }

    fn next(&self) -> Next {
        let now = self.world.now();
        let mut caller = self.caller.lock();
        if let Some(frame) = caller.next_frame(now) {
            return Next::Send(frame);
        }
        if caller.is_over() {
            return Next::Over;
        }
        idle(caller.beat(now))
    }

    fn work(&self) -> &Notify {
        &self.work
    }
}
