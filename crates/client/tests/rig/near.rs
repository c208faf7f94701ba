//! An owner in the client's own process, now and then.

use super::way::{RUN, Way, Which};
use super::{Node, Place, patient};
use client::{NearOwner, Owner, OwnerWay, Owners, RemoteOwner};
use futures::future::BoxFuture;
use metanode::{Metanode, OwnerLease};
use model::owner::{NearAnswer, OwnerCall, OwnerRequest, Tenure};
use model::{CommitNumber, Result, ShardId};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use world::call::Asked;
use world::sim::Simulation;
use world::{Deadline, Instant, World};

/// Names the owner of a client: in its process, on another node, or none.
pub struct Map {
    pub world: World,
    way: Mutex<Option<OwnerWay>>,
    lease: OwnerLease,
    /// Requests that weren't answered at once.
    pub called: Arc<AtomicU64>,
    /// What changes something at once isn't answered as long as this is set, as if the lease of the node were over.
    pub late: Arc<AtomicBool>,
    /// An owner in the client's process isn't asked for what publishes as long as this is set.
    pub no_publishes: Arc<AtomicBool>,
    /// Nor for these operations, as long as there are some.
    pub held_up: Arc<Mutex<Option<Which>>>,
}

impl Map {
    /// One that names none yet.
    pub fn new(world: &World, lease: OwnerLease) -> Arc<Self> {
        Arc::new(Self {
            world: world.clone(),
            way: Mutex::default(),
            lease,
            called: Arc::default(),
            late: Arc::default(),
            no_publishes: Arc::default(),
            held_up: Arc::default(),
        })
    }

    pub fn owner(self: &Arc<Self>) -> Owner {
        let (world, patience) = (self.world.clone(), patient().patience);
        Owner::There(RemoteOwner::new(world, ShardId(0), self.clone(), patience))
    }

    /// The owner is in the client's process from now on.
    pub fn is_near(&self, metanode: &Arc<Metanode>) {
        *self.way.lock() = Some(OwnerWay::Near(Arc::new(Hosted {
            world: self.world.clone(),
            metanode: metanode.clone(),
            called: self.called.clone(),
            late: self.late.clone(),
            no_publishes: self.no_publishes.clone(),
            held_up: self.held_up.clone(),
        })));
    }

    /// It is on another node.
    pub fn is_far(&self, metanode: &Arc<Metanode>) {
        let way = Way::new(&self.world, metanode, 0);
        *self.way.lock() = Some(OwnerWay::Far(way));
    }
}

impl Owners for Map {
    fn owner(&self) -> Option<OwnerWay> {
        self.way.lock().clone()
    }

    fn refresh(&self, deadline: Deadline) -> BoxFuture<'_, ()> {
        Box::pin(self.world.sleep(deadline.rest(&self.world)))
    }

    fn replaced(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::pending())
    }

    fn usable_until(&self) -> Option<Instant> {
        let rest = self.lease.rest(&self.world);
        Some(self.world.now() + rest.min(Duration::from_secs(3600)))
    }
}

struct Hosted {
    world: World,
    metanode: Arc<Metanode>,
    called: Arc<AtomicU64>,
    late: Arc<AtomicBool>,
    no_publishes: Arc<AtomicBool>,
    held_up: Arc<Mutex<Option<Which>>>,
}

impl Hosted {
    fn is_held_up(&self, request: &OwnerRequest) -> bool {
        let held_up = *self.held_up.lock();
        let is_one = match (request, held_up) {
            (OwnerRequest::Execute { operation, .. }, Some(which)) => which(operation),
            _ => false,
        };
        is_one || (request.is_publish() && self.no_publishes.load(Ordering::Relaxed))
    }
}

impl NearOwner for Hosted {
    fn tenure(&self) -> Tenure {
        self.metanode.tenure()
    }

    fn ask(&self, request: &OwnerRequest) -> Option<Asked<'static, NearAnswer>> {
        if self.is_held_up(request) {
            return None;
        }
        let is_change = request.is_change() || request.is_in_order();
        match self.metanode.ask_near(request)? {
            Asked::Ready(answered) if is_change && self.late.load(Ordering::Relaxed) => {
                let (world, late) = (self.world.clone(), self.late.clone());
                Some(Asked::Waits(Box::pin(async move {
                    while late.load(Ordering::Relaxed) {
                        world.sleep(Duration::from_millis(1)).await;
                    }
                    answered
                })))
            }
            asked => Some(asked),
        }
    }

    fn call<'a>(&'a self, call: &'a OwnerCall, deadline: Deadline) -> BoxFuture<'a, NearAnswer> {
        if !matches!(call.request, OwnerRequest::AwaitRecalls { .. }) {
            self.called.fetch_add(1, Ordering::Relaxed);
        }
        Box::pin(async move {
            while self.is_held_up(&call.request) {
                self.world.sleep(Duration::from_millis(1)).await;
            }
            self.metanode.call_near(RUN, call, deadline).await
        })
    }

    fn has_durable(&self, commit: CommitNumber) -> bool {
        self.metanode.has_durable(commit)
    }

    fn sync(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.metanode.sync())
    }
}

/// For how long a lease lasts at first.
pub const LEASE: Duration = Duration::from_secs(60);

/// Runs `scenario` with a client whose owner is in its process, under a lease.
pub fn run<F>(seed: u64, lease: OwnerLease, scenario: impl FnOnce(Node, Arc<Map>) -> F)
where
    F: Future<Output = ()>,
{
    let sim = Simulation::new(seed);
    sim.limit_time(Duration::from_secs(24 * 60 * 60));
    sim.run(|world| async move {
        lease.extend(world.now() + LEASE);
        let place = Place {
            lease: lease.clone(),
            // With so little space as usual no operation that needs some is done before it is looked for.
            nsd_bytes: 1 << 30,
            ..Place::default()
        };
        Node::create(&world, &place).await;
        let map = Map::new(&world, lease);
        let node = Node::open_with(&world, &place, patient(), |metanode| {
            map.is_near(metanode);
            map.owner()
        });
        scenario(node.await, map).await;
    })
    .finished();
}
