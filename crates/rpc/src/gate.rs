//! The way in for those who aren't known yet: proves who they are, so many at a time, each in a bounded
//! time, and lets machines join.
//!
//! *Threads.* Which lane a connection is for is known only after the proof. So that leases find their
//! way while all other threads block, proofs are made on the urgent thread, as many in a time as `RateLimit`
//! allows; those of a crowd are left to the other threads. Machines that join are admitted there too.

use crate::channel::{Channel, Stream};
use crate::places::Places;
use crate::pulse::SILENCE_MAX;
use crate::rate_limit::RateLimit;
use crate::security::{
    ADMISSION_MAX, Admit, Proof, Proven, Refusal, RefusalKind, Security, read_request, reply,
};
use futures::future::BoxFuture;
use model::join::JoinRequest;
use model::{Error, ErrorKind};
use parking_lot::Mutex;
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore};
use world::{Instant, Map, Task, World};

/// Most connections whose other side isn't known yet. Each holds at most what TLS keeps of a handshake,
/// 64 KiB and some certificates.
const UNKNOWN_MAX: usize = 128;

/// Longest time until the other side of a connection is known, and a machine that joins has said what
/// it wants.
const HANDSHAKE_MAX: Duration = SILENCE_MAX;

/// Most machines that are admitted at the same time; others wait for their turn.
const ADMISSIONS_MAX: usize = 4;

/// Lets nodes and machines in.
pub(crate) struct Gate {
    world: World,
    urgent: World,
    security: Arc<Security>,
    admit: Option<Arc<dyn Admit>>,
    admissions: Semaphore,
    /// Notified when a place gets free.
    room: Arc<Notify>,
    state: Mutex<State>,
}

struct State {
    places: Places,
    on_urgent: RateLimit,
    tasks: Map<u64, Task<()>>,
    is_closed: bool,
}

/// Takes over the channel of a node that was let in, and what is known of it. It may wait for room;
/// meanwhile the connection keeps its place.
pub(crate) type Welcome = Box<dyn FnOnce(Channel, Proof) -> BoxFuture<'static, ()> + Send>;

impl Gate {
    pub(crate) fn new(
        world: &World,
        security: Arc<Security>,
        admit: Option<Arc<dyn Admit>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            world: world.clone(),
            urgent: world.urgent(),
            security,
            admit,
            admissions: Semaphore::new(ADMISSIONS_MAX),
            room: Arc::default(),
            state: Mutex::new(State {
                places: Places::new(UNKNOWN_MAX),
                on_urgent: RateLimit::new(world.now()),
                tasks: Map::default(),
                is_closed: false,
            }),
        })
    }

    /// How long the next connection should be left in the kernel's queue, unless a place gets free
    /// before, which [`Gate::room`] tells.
    pub(crate) fn patience(&self, now: Instant) -> Option<Duration> {
        self.state.lock().places.patience(now)
    }

    /// Whether a connection would be let in now of which this is known.
    pub(crate) fn takes(&self, proof: &Proof) -> bool {
        self.security.takes(proof)
    }

    /// Notified when a place gets free.
    pub(crate) fn room(&self) -> &Arc<Notify> {
        &self.room
    }

    /// Somebody opened a connection.
    pub(crate) fn enter(
        self: &Arc<Self>,
        stream: impl Stream + 'static,
        from: Option<IpAddr>,
        welcome: Welcome,
    ) {
        let mut state = self.state.lock();
        if state.is_closed {
            return;
        }
        let now = self.world.now();
        let (number, loser) = state.places.enter(from, now);
        let world = match state.on_urgent.take(now) {
            true => self.urgent.clone(),
            false => self.world.clone(),
        };
        // Made here: a task can be dropped before it begins.
        let place = Place {
            gate: Arc::downgrade(self),
            number,
        };
        let security = self.security.clone();
        let gate = Arc::downgrade(self);
        let own = world.clone();
        let task = world.spawn("rpc lets in", async move {
            if let Err(refusal) = pass(&own, &gate, place, stream, from, welcome).await {
                security.refused(from, &refusal);
            }
        });
        state.tasks.insert(number, task);
        let displaced = loser.and_then(|loser| state.tasks.remove(&loser));
        drop(state);
        if displaced.is_some() {
            let text = "too many connections at once don't say who they are; the oldest is closed";
            self.security
                .refused(from, &Refusal::new(RefusalKind::Unfinished, text));
        }
        drop(displaced);
    }

    /// Somebody who was let in is refused for what they say.
    pub(crate) fn refused(&self, proof: &Proof, kind: RefusalKind, why: String) {
        self.security.refused(proof.from, &Refusal::new(kind, why));
    }

    /// Lets nobody in any more.
    pub(crate) fn close(&self) {
        let tasks = {
            let mut state = self.state.lock();
            state.is_closed = true;
            std::mem::take(&mut state.tasks)
        };
        drop(tasks);
    }

    /// Admits a machine, or not.
    async fn admit(
        self: Arc<Self>,
        mut stream: Box<dyn Stream>,
        request: JoinRequest,
        from: Option<IpAddr>,
    ) -> Result<(), Refusal> {
        let Some(admit) = &self.admit else {
            return Err(Refusal::new(
                RefusalKind::Join,
                "this node admits no machines",
            ));
        };
        let host = request.host.clone();
        let admitted = async {
            let _turn = self.admissions.acquire().await;
            admit.admit(request, from).await
        };
        let result = match self.world.timeout(ADMISSION_MAX, admitted).await {
            Ok(result) => result.and_then(|reply| reply.check().map(|()| reply)),
            Err(_) => Err(Error::new(
                ErrorKind::Unknown,
                "the cluster needed too long to admit the machine; ask again",
            )),
        };
        let sent = reply(&self.world, &mut stream, &result).await;
        match result {
            Ok(reply) => {
                sent?;
                tracing::info!(node = %reply.node, ?host, ?from, "a machine has joined");
                Ok(())
            }
            // Also if it has gone and hears nothing of it.
            Err(error) => {
                let text = format!("a machine wasn't admitted: {error}");
                Err(Refusal::new(RefusalKind::Join, text))
            }
        }
    }
}

/// Finds out who opened the connection, and lets them in.
async fn pass(
    world: &World,
    gate: &Weak<Gate>,
    place: Place,
    stream: impl Stream + 'static,
    from: Option<IpAddr>,
    welcome: Welcome,
) -> Result<(), Refusal> {
    let Some((security, takes_joins)) = gate.upgrade().map(|gate| {
        let takes_joins = gate.admit.is_some();
        (gate.security.clone(), takes_joins)
    }) else {
        return Ok(());
    };
    let known = async {
        Ok(match security.accept(stream, from, takes_joins).await? {
            Proven::Node(channel, proof) => Known::Node(channel, proof),
            Proven::Joining(mut stream) => {
                let request = read_request(&mut stream).await?;
                Known::Machine(stream, request)
            }
            Proven::Gone => Known::Gone,
        })
    };
    let known = world.timeout(HANDSHAKE_MAX, known).await;
    let known = known.unwrap_or_else(|_| {
        let text = "the other side didn't say in time who it is";
        Err(Refusal::new(RefusalKind::Unfinished, text))
    })?;
    match known {
        Known::Node(channel, proof) => {
            let welcomed = world.timeout(HANDSHAKE_MAX, welcome(channel, proof)).await;
            welcomed.map_err(|_| {
                let text = "a node was known, but there was no room for its connection in time";
                Refusal::new(RefusalKind::Unfinished, text)
            })?;
        }
        Known::Machine(stream, request) => {
            let Some(gate) = gate.upgrade() else {
                return Ok(());
            };
            let on = gate.world.clone();
            let admission = gate.admit(stream, request, from);
            on.spawn("rpc admits", admission).await?;
        }
        Known::Gone => {}
    }
    // Last: the place holds the task.
    drop(place);
    Ok(())
}

/// Who a connection comes from.
enum Known {
    Node(Channel, Proof),
    Machine(Box<dyn Stream>, JoinRequest),
    Gone,
}

/// A place among those who aren't known. Dropped when they are, or their task ends.
struct Place {
    gate: Weak<Gate>,
    number: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(gate) = self.gate.upgrade() else {
            return;
        };
        let task = {
            let mut state = gate.state.lock();
            state.places.leave(self.number);
            state.tasks.remove(&self.number)
        };
        gate.room.notify_one();
        drop(task);
    }
}
