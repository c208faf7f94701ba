//! A lane to another node: does what [`Traffic`] wants done.

mod link;

use super::LaneView;
use super::Shared;
use crate::caller::Outcome;
use crate::channel::Channel;
use crate::dial::Place;
use crate::drive::idle;
use crate::lanes::Lane;
use crate::outlet::{Next, Outlet};
use crate::pulse::SILENCE_MAX;
use crate::receive::Receiver;
use crate::traffic::{Step, Todo, Traffic};
use link::{Link, LinkEnd, Way, serve};
use model::call::{Call, NoAnswer};
use model::{NodeId, NodeRun};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};
use world::{Deadline, Instant, Task, World, put_off};

/// Longest attempt to open a connection.
const DIAL_MAX: Duration = SILENCE_MAX;

pub(super) type Ticket = oneshot::Sender<Outcome>;

/// A lane to another node.
pub(super) struct LaneOfPeer {
    world: World,
    lane: Lane,
    peer: Weak<Shared>,
    state: Mutex<State>,
    own: Weak<Self>,
}

struct State {
    traffic: Traffic<Ticket>,
    links: BTreeMap<u64, Running>,
    /// Dropping it ends the attempt.
    dialing: Option<Task<()>>,
    /// Counts the attempts to open a connection, and those that were given up.
    attempt: u64,
}

/// A connection that hasn't ended.
struct Running {
    way: Arc<Way>,
    /// Its task; whoever closes the lane takes it.
    task: Option<Task<()>>,
}

/// What is done once no lock is held.
#[derive(Default)]
#[must_use]
pub(super) struct Unlocked {
    ended: Vec<(Ticket, Outcome)>,
    wake: Vec<Arc<Way>>,
    tasks: Vec<Task<()>>,
}

impl Unlocked {
    pub(super) fn extend(&mut self, other: Self) {
        self.ended.extend(other.ended);
        self.wake.extend(other.wake);
        self.tasks.extend(other.tasks);
    }

    pub(super) fn finish(self) {
        for way in self.wake {
            way.work.notify_one();
        }
        drop(self.tasks);
        for (ticket, outcome) in self.ended {
            // Whoever waited may have given up at this moment.
            drop(ticket.send(outcome));
        }
    }
}

impl LaneOfPeer {
    /// A lane without connections, whose tasks are `world`'s.
    pub(super) fn new(
        world: World,
        lane: Lane,
        node: NodeId,
        limit: usize,
        peer: Weak<Shared>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|own| Self {
            world,
            lane,
            peer,
            state: Mutex::new(State {
                traffic: Traffic::new(node, limit),
                links: BTreeMap::new(),
                dialing: None,
                attempt: 0,
            }),
            own: own.clone(),
        })
    }

    pub(super) fn lane(&self) -> Lane {
        self.lane
    }

    pub(super) fn world(&self) -> &World {
        &self.world
    }

    pub(super) fn peer(&self) -> Option<Arc<Shared>> {
        self.peer.upgrade()
    }

    pub(super) async fn call(&self, call: Call, deadline: Deadline) -> Outcome {
        if deadline.has_passed(&self.world) {
            return Outcome::Ended(Err(self.state.lock().traffic.too_late()));
        }
        let (ticket, outcome) = oneshot::channel();
        let (taken, mut unlocked) =
            self.decide(
                |traffic, now| match traffic.call(call, deadline, ticket, now) {
                    Ok((id, todo)) => (Ok(id), todo),
                    Err((_, none)) => (Err(none), Todo::nothing()),
                },
            );
        let woken = std::mem::take(&mut unlocked.wake);
        unlocked.finish();
        woken.into_iter().for_each(|way| self.hurry(&way));
        let id = match taken {
            Ok(id) => id,
            Err(none) => return Outcome::Ended(Err(none)),
        };
        let mut waiting = WaitingCall {
            lane: self,
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

    /// Has a connection send what it can now. A small call leaves on the caller's thread: waking the connection's task
    /// for it would take longer. Calls that a thread makes in one go leave together. Sealing blocks is for that task, and
    /// leases are for the urgent thread.
    fn hurry(&self, way: &Arc<Way>) {
        let is_here = self.lane == Lane::Small && self.world.is_here();
        if !is_here {
            way.work.notify_one();
            return;
        }
        let send = || -> Box<dyn FnOnce()> {
            let (lane, way) = (self.own.clone(), way.clone());
            Box::new(move || {
                // A lane that is gone has ended its calls.
                if let Some(lane) = lane.upgrade() {
                    lane.send_now(&way);
                }
            })
        };
        if !put_off(Arc::as_ptr(way) as usize, send) {
            self.send_now(way);
        }
    }

    fn send_now(&self, way: &Way) {
        if !way.outlet.send_now(|| self.next(way.number)) {
            way.work.notify_one();
        }
    }

    /// What a connection does next.
    fn next(&self, link: u64) -> Next {
        self.with(|traffic, now| {
            let (step, todo) = traffic.next(link, now);
            let next = match step {
                Step::Send(frame) => Next::Send(frame),
                Step::Over => Next::Over,
                Step::Idle => idle(traffic.beat(link, now)),
            };
            (next, todo)
        })
    }

    fn give_up(&self, id: u64) -> Option<NoAnswer> {
        self.with(|traffic, now| traffic.give_up(id, now))
    }

    /// Lets the rules decide, and does what they want. No other lock may be held.
    pub(super) fn with<R>(
        &self,
        decide: impl FnOnce(&mut Traffic<Ticket>, Instant) -> (R, Todo<Ticket>),
    ) -> R {
        let (result, unlocked) = self.decide(decide);
        unlocked.finish();
        result
    }

    fn decide<R>(
        &self,
        decide: impl FnOnce(&mut Traffic<Ticket>, Instant) -> (R, Todo<Ticket>),
    ) -> (R, Unlocked) {
        let mut state = self.state.lock();
        // Read with the state locked, so that the rules' time never goes back.
        let (result, todo) = decide(&mut state.traffic, self.world.now());
        (result, self.begin(&mut state, todo))
    }

    fn begin(&self, state: &mut State, todo: Todo<Ticket>) -> Unlocked {
        let mut unlocked = Unlocked {
            ended: todo.ended,
            ..Unlocked::default()
        };
        let dropped = todo.drop.iter();
        let dropped = dropped.filter_map(|link| state.links.remove(link));
        unlocked
            .tasks
            .extend(dropped.filter_map(|running| running.task));
        let woken = todo.wake.iter().filter_map(|link| state.links.get(link));
        unlocked
            .wake
            .extend(woken.map(|running| running.way.clone()));
        if let (Some(number), Some(peer), Some(own)) =
            (todo.dial, self.peer.upgrade(), self.own.upgrade())
        {
            let place = Place {
                lane: self.lane,
                number,
            };
            state.attempt += 1;
            let dialing = dial(peer, own, place, state.attempt);
            let dialing = self.world.spawn("rpc connects", dialing);
            unlocked.tasks.extend(state.dialing.replace(dialing));
        }
        unlocked
    }

    /// A connection was opened by this attempt.
    fn opened(&self, peer: &Shared, channel: Channel, attempt: u64) {
        let hello = peer.hello(self.lane);
        let Some(own) = self.own.upgrade() else {
            return;
        };
        let mut state = self.state.lock();
        if state.attempt != attempt {
            return;
        }
        let Some(number) = state.traffic.opened(hello, self.world.now()) else {
            return;
        };
        let (stream, protection) = channel.into_parts();
        let (sealer, opener) = protection.unzip();
        let (read, outlet) = Outlet::of(stream, sealer);
        let way = Arc::new(Way {
            number,
            work: Notify::new(),
            outlet,
        });
        let link = Link::new(own, way.clone());
        // Made here: a task can be dropped before it begins.
        let end = LinkEnd::new(link);
        let serving = serve(end, read, Receiver::new(opener));
        let task = Some(self.world.spawn("rpc asks", serving));
        state.links.insert(number, Running { way, task });
        let dialing = state.dialing.take();
        drop(state);
        drop(dialing);
    }

    /// This attempt to open a connection has failed.
    fn not_opened(&self, why: &str, attempt: u64) {
        let random = self.world.random_u64();
        let mut state = self.state.lock();
        if state.attempt != attempt {
            return;
        }
        let todo = state.traffic.not_opened(why, self.world.now(), random);
        let unlocked = self.begin(&mut state, todo);
        drop(state);
        unlocked.finish();
    }

    /// A connection's task has ended. Says why its connection did.
    pub(super) fn link_ended(&self, link: u64, why: &str) -> String {
        let random = self.world.random_u64();
        let running = self.state.lock().links.remove(&link);
        let why = self.with(|traffic, now| {
            let (todo, why) = traffic.ended(link, why, now, random);
            (why, todo)
        });
        drop(running);
        why
    }

    pub(super) fn accepted(&self, link: u64) -> Unlocked {
        let accept = |traffic: &mut Traffic<_>, now| ((), traffic.accepted(link, now));
        self.decide(accept).1
    }

    pub(super) fn set_limit(&self, limit: usize) -> Unlocked {
        let set = |traffic: &mut Traffic<_>, now| ((), traffic.set_limit(limit, now));
        self.decide(set).1
    }

    /// Drops the connections to daemons older than `run`.
    pub(super) fn drop_older(&self, run: NodeRun) -> Unlocked {
        let find = |traffic: &mut Traffic<_>, _| {
            let mut todo = Todo::nothing();
            todo.drop = traffic.older_than(run);
            ((), todo)
        };
        self.decide(find).1
    }

    /// The small lane carries this one's calls.
    pub(super) fn redirect(&self) -> Unlocked {
        let why = "the other node has one connection for everything";
        self.decide(|traffic, _| ((), traffic.redirect(why))).1
    }

    /// See `Peer::renew`.
    pub(super) fn renew(&self) -> Unlocked {
        let mut state = self.state.lock();
        // It may be about to hand over a connection as it is made no more.
        state.attempt += 1;
        let dialing = state.dialing.take();
        let todo = state.traffic.renew(self.world.now());
        let mut unlocked = self.begin(&mut state, todo);
        unlocked.tasks.extend(dialing);
        unlocked
    }

    /// See `Peer::close`.
    pub(super) async fn close(&self, deadline: Deadline) {
        for task in self.end() {
            // What isn't over by then is dropped.
            let _ = deadline.bound(&self.world, task).await;
        }
    }

    /// Takes on no more calls. Gives the tasks of connections that still wait for replies; dropping
    /// them ends all.
    pub(super) fn end(&self) -> Vec<Task<()>> {
        let mut state = self.state.lock();
        let todo = state.traffic.close("the node closes the connection");
        let mut unlocked = self.begin(&mut state, todo);
        unlocked.tasks.extend(state.dialing.take());
        let links = state.links.values_mut();
        let tasks = links.filter_map(|running| running.task.take()).collect();
        drop(state);
        unlocked.finish();
        tasks
    }

    pub(super) fn view(&self, limits: &[usize; 3]) -> LaneView {
        let state = self.state.lock();
        LaneView {
            lane: self.lane,
            connections_max: limits[self.lane.index()],
            waiting: state.traffic.waiting(),
            connections: state.traffic.views(),
        }
    }
}

/// Opens a connection, once: the attempt with this number.
async fn dial(peer: Arc<Shared>, lane: Arc<LaneOfPeer>, place: Place, number: u64) {
    let deadline = Deadline::after(&lane.world, DIAL_MAX);
    let attempt = peer.dial.dial(peer.node, place, deadline);
    let fault = match deadline.bound(&lane.world, attempt).await {
        Ok(Ok(channel)) => return lane.opened(&peer, channel, number),
        Ok(Err(error)) => error.to_string(),
        Err(elapsed) => elapsed.to_string(),
    };
    lane.not_opened(&fault, number);
}

/// Tells the lane if whoever waits for a call goes away.
struct WaitingCall<'a> {
    lane: &'a LaneOfPeer,
    id: u64,
    is_over: bool,
}

impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.lane.give_up(self.id);
        }
    }
}
