//! Another node, from the asking side: its lanes, and what all of them know of it.
//!
//! *A call* goes to its lane (`Lane::of`); lanes share nothing but what is known of the node: its
//! newest daemon, and how many connections it wants. *A newer daemon* says hello: the connections of
//! all lanes to the older one end. *A node that knows no lanes* has one connection, that of the small
//! lane, for everything. A call that is made on somebody's errand carries its number, and is listed while
//! it waits.

mod lane;

use crate::dial::Dial;
use crate::hello::{Hello, Identity, Lanes};
use crate::lanes::{Connections, Lane};
use crate::traffic::LinkView;
use crate::{Fault, caller::Outcome, frame::cost, hello::Credits};
use futures::future::BoxFuture;
use lane::{LaneOfPeer, Unlocked};
use model::call::{Answer, Call, NoAnswer};
use model::{NodeId, NodeRun, Result};
use parking_lot::Mutex;
use std::sync::Arc;
use world::call::Remote;
use world::{Deadline, Part, World};

/// The cause by which calls are listed that wait for their answers.
const ANSWER_WAIT: &str = "the answer of another node";

/// Another node. Dropping it ends its tasks and connections.
pub struct Peer {
    shared: Arc<Shared>,
}

/// A lane, for lists.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LaneView {
    /// Which.
    pub lane: Lane,
    /// Most connections that it may have now.
    pub connections_max: usize,
    /// Calls that wait for room.
    pub waiting: usize,
    /// Its connections, also those that are ending.
    pub connections: Vec<LinkView>,
}

struct Shared {
    identity: Identity,
    node: NodeId,
    dial: Arc<dyn Dial>,
    lanes: [Arc<LaneOfPeer>; 3],
    /// Locked before a lane's state, never after it.
    state: Mutex<State>,
}

struct State {
    connections: Connections,
    /// Counted connections that the node wants, once it has said so.
    theirs: Option<u8>,
    /// The node knows no lanes.
    is_whole: bool,
    /// The newest incarnation that was seen of the node.
    incarnation: u64,
}

impl Peer {
    /// The node `node`, with the default [`Connections`]. Opens nothing yet.
    ///
    /// # Panics
    /// As `World::urgent`.
    #[must_use]
    pub fn new(world: &World, identity: Identity, node: NodeId, dial: Arc<dyn Dial>) -> Self {
        let connections = Connections::default();
        let limits = connections.limits(None);
        let shared = Arc::new_cyclic(|shared| Shared {
            identity,
            node,
            dial,
            lanes: Lane::ALL.map(|lane| {
                let world = match lane {
                    Lane::Lease => world.urgent(),
                    Lane::Small | Lane::Bulk => world.clone(),
                };
                LaneOfPeer::new(world, lane, node, limits[lane.index()], shared.clone())
            }),
            state: Mutex::new(State {
                connections,
                theirs: None,
                is_whole: false,
                incarnation: 0,
            }),
        });
        Self { shared }
    }

    /// How many connections this node wants from now on. More are opened when they are needed;
    /// those that are too many take no more calls, and end after theirs.
    ///
    /// # Errors
    /// `InvalidArgument`: a value is out of its range; nothing has changed.
    pub fn set_connections(&self, connections: Connections) -> Result<()> {
        connections.check()?;
        let shared = &self.shared;
        let mut state = shared.state.lock();
        state.connections = connections;
        let unlocked = shared.use_limits(&state);
        drop(state);
        unlocked.finish();
        Ok(())
    }

    /// Leaves the connections that there are: they take no more calls, and end after theirs. Further calls go over new
    /// ones, which are made as the node's security says now.
    pub fn renew(&self) {
        let mut unlocked = Unlocked::default();
        for lane in &self.shared.lanes {
            unlocked.extend(lane.renew());
        }
        unlocked.finish();
    }

    /// All lanes with their connections.
    #[must_use]
    pub fn lanes(&self) -> Vec<LaneView> {
        let limits = self.shared.state.lock().limits();
        let lanes = self.shared.lanes.iter();
        lanes.map(|lane| lane.view(&limits)).collect()
    }

    /// Takes on no more calls, waits for the replies of those under way until the deadline, then
    /// ends all connections.
    pub async fn close(&self, deadline: Deadline) {
        let lanes = self.shared.lanes.iter();
        futures::future::join_all(lanes.map(|lane| lane.close(deadline))).await;
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        for lane in &self.shared.lanes {
            drop(lane.end());
        }
    }
}

impl Remote for Peer {
    fn call(
        &self,
        call: Call,
        deadline: Deadline,
    ) -> BoxFuture<'_, std::result::Result<Answer, NoAnswer>> {
        Box::pin(self.shared.call(call, deadline))
    }
}

impl Shared {
    async fn call(
        &self,
        mut call: Call,
        deadline: Deadline,
    ) -> std::result::Result<Answer, NoAnswer> {
        let world = self.lanes[0].world();
        if call.trace == 0 {
            call.trace = world.errand().trace;
        }
        let part = Part::ForAnswer {
            node: self.node,
            method: call.method,
        };
        let answer = std::pin::pin!(self.ask(call, deadline));
        world.listed(ANSWER_WAIT, part, answer).await
    }

    async fn ask(
        &self,
        mut call: Call,
        deadline: Deadline,
    ) -> std::result::Result<Answer, NoAnswer> {
        loop {
            match self.lane_of(&call).call(call, deadline).await {
                Outcome::Ended(ended) => return ended,
                // It never left, so another lane may take it.
                Outcome::Unsent(unsent) => call = unsent,
            }
        }
    }

    fn lane_of(&self, call: &Call) -> &LaneOfPeer {
        let state = self.state.lock();
        let lane = match state.is_whole {
            true => Lane::Small,
            false => Lane::of(call.class, cost(call), &state.connections),
        };
        &self.lanes[lane.index()]
    }

    /// The first frame of a connection of this lane.
    fn hello(&self, lane: Lane) -> Hello {
        let lanes = Lanes {
            lane: lane.number(),
            connections: self.state.lock().connections.max,
        };
        Hello::new(self.identity, self.node, Credits::default(), lanes)
    }

    /// The node said hello on a connection. An older daemon of it isn't there any more.
    fn greeted(
        &self,
        lane: &LaneOfPeer,
        link: u64,
        run: NodeRun,
        lanes: Option<Lanes>,
    ) -> std::result::Result<(), Fault> {
        let mut state = self.state.lock();
        if run.incarnation < state.incarnation {
            return Err(Fault::new(format!("{run} is an old daemon of its node")));
        }
        let is_new = run.incarnation > state.incarnation;
        state.incarnation = run.incarnation;
        state.theirs = lanes.map(|lanes| lanes.connections);
        state.is_whole = lanes.is_none();
        let mut unlocked = self.use_limits(&state);
        unlocked.extend(lane.accepted(link));
        for lane in &self.lanes {
            if is_new {
                unlocked.extend(lane.drop_older(run));
            }
            if state.is_whole && lane.lane() != Lane::Small {
                unlocked.extend(lane.redirect());
            }
        }
        drop(state);
        unlocked.finish();
        Ok(())
    }

    /// The node wants so many counted connections from now on.
    fn wanted(&self, theirs: u8) {
        let mut state = self.state.lock();
        state.theirs = Some(theirs);
        let unlocked = self.use_limits(&state);
        drop(state);
        unlocked.finish();
    }

    fn use_limits(&self, state: &State) -> Unlocked {
        let limits = state.limits();
        let mut unlocked = Unlocked::default();
        for lane in &self.lanes {
            unlocked.extend(lane.set_limit(limits[lane.lane().index()]));
        }
        unlocked
    }
}

impl State {
    fn limits(&self) -> [usize; 3] {
        match self.is_whole {
            true => [1; 3],
            false => self.connections.limits(self.theirs),
        }
    }
}
