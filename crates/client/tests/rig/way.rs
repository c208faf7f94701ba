//! The way of messages to a metanode: they get lost, late and doubled.

use super::Node;
use bytes::Bytes;
use client::{Client, ClientSettings, HoldUp, Owner, OwnerWay, Owners, RemoteOwner};
use futures::future::BoxFuture;
use metanode::Metanode;
use model::call::{Answer, Call, NoAnswer, Reply};
use model::owner::{OwnerCall, OwnerReply, OwnerRequest};
use model::{Error, ErrorKind, NodeId, NodeRun, Operation, ShardId};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use world::call::{Remote, Service};
use world::{Deadline, Instant, World};

pub const RUN: NodeRun = NodeRun {
    node: NodeId(1),
    incarnation: 1,
};

/// Chooses operations.
pub type Which = fn(&Operation) -> bool;

/// The way to a metanode.
pub struct Way {
    pub world: World,
    pub metanode: Arc<Metanode>,
    /// Of a hundred messages, how many meet a fault.
    pub faults: u64,
    /// Requests and replies each take up to so many milliseconds, so that they overtake each other.
    pub slow_ms: AtomicU64,
    /// Nothing arrives.
    pub cut: AtomicBool,
    /// Everything arrives, and no answer does.
    pub deaf: AtomicBool,
    /// Answers to these operations arrive only once this is `None` again.
    pub late: Mutex<Option<Which>>,
    /// How many answers have been late.
    pub late_answers: AtomicU64,
    /// What publishes takes so many milliseconds more.
    pub publish_ms: AtomicU64,
    /// Answers about tokens take so many milliseconds more.
    pub tokens_ms: AtomicU64,
    /// The answer to the next request about locks takes so many milliseconds more.
    pub lock_ms: AtomicU64,
    /// Answers about the tokens of what is listed arrive only once this is false again; they count as late.
    pub listed_late: AtomicBool,
    /// What opens a session arrives only once this is false again.
    pub no_sessions: AtomicBool,
    /// Nothing that publishes arrives.
    pub no_publishes: AtomicBool,
    /// These operations don't arrive.
    pub loses: Mutex<Option<Which>>,
    /// How many of them didn't.
    pub lost: AtomicU64,
    /// These operations are never sent, and whoever asks for one knows that.
    pub keeps: Mutex<Option<Which>>,
    /// These operations are refused.
    pub refuses: Mutex<Option<Which>>,
    /// Nothing arrives that says what is held.
    pub no_reclaims: AtomicBool,
    /// What clients have done themselves is refused as a whole.
    pub refuses_streams: AtomicBool,
    /// After its next answer about a new file that its maker has open, no node owns the shard.
    pub leaves: AtomicBool,
    pub is_away: AtomicBool,
    /// When the newest request was sent that tokens last from and that was answered.
    pub renewed: Mutex<Option<Instant>>,
    /// Requests that were sent, besides those for which nobody waits: that listen for recalls, and that tell of many closes.
    pub asked: AtomicU64,
    /// Requests that told of closes.
    pub closed: AtomicU64,
    /// Of these, lookups and listings.
    pub looked: AtomicU64,
    /// How many extents each of them had that publishes, in the order in which they were sent.
    pub published: Mutex<Vec<usize>>,
}

impl Way {
    /// One without faults but this many of a hundred messages.
    pub fn new(world: &World, metanode: &Arc<Metanode>, faults: u64) -> Arc<Self> {
        Arc::new(Self {
            world: world.clone(),
            metanode: metanode.clone(),
            faults,
            slow_ms: AtomicU64::new(0),
            cut: AtomicBool::new(false),
            deaf: AtomicBool::new(false),
            late: Mutex::new(None),
            late_answers: AtomicU64::new(0),
            publish_ms: AtomicU64::new(0),
            tokens_ms: AtomicU64::new(0),
            lock_ms: AtomicU64::new(0),
            listed_late: AtomicBool::new(false),
            no_sessions: AtomicBool::new(false),
            no_publishes: AtomicBool::new(false),
            loses: Mutex::new(None),
            lost: AtomicU64::new(0),
            keeps: Mutex::new(None),
            refuses: Mutex::new(None),
            no_reclaims: AtomicBool::new(false),
            refuses_streams: AtomicBool::new(false),
            leaves: AtomicBool::new(false),
            is_away: AtomicBool::new(false),
            renewed: Mutex::new(None),
            asked: AtomicU64::new(0),
            closed: AtomicU64::new(0),
            looked: AtomicU64::new(0),
            published: Mutex::default(),
        })
    }
}

/// A map that names one node.
pub struct Map {
    pub world: World,
    pub owner: Mutex<Option<Arc<Way>>>,
    /// When it names another owner, whoever that is.
    pub moves_at: Mutex<Option<Instant>>,
    /// Nobody renews the lease of the client's node.
    pub is_held_up: AtomicBool,
    /// The end of that lease, if it has one.
    pub usable_until: Mutex<Option<Instant>>,
    /// What waits for the owner before hears that it names another one.
    moved: Notify,
    /// When it was last asked for the owner, and how often at that time.
    asked: Mutex<(Instant, u64)>,
}

/// How often a client may ask for the owner without any time passing.
const ASKED_MAX: u64 = 1_000_000;

impl Map {
    /// One that names the node at the end of a way.
    pub fn to(way: &Arc<Way>) -> Arc<Self> {
        Arc::new(Self {
            world: way.world.clone(),
            owner: Mutex::new(Some(way.clone())),
            moves_at: Mutex::new(None),
            is_held_up: AtomicBool::new(false),
            usable_until: Mutex::new(None),
            moved: Notify::new(),
            asked: Mutex::new((way.world.now(), 0)),
        })
    }

    /// It names the node at the end of another way from now on, and says so.
    pub fn move_to(&self, way: &Arc<Way>) {
        *self.owner.lock() = Some(way.clone());
        self.moved.notify_waiters();
    }

    /// The owner as this map names it.
    pub fn remote_owner(self: &Arc<Self>) -> Owner {
        let world = self.world.clone();
        let patience = super::patient().patience;
        Owner::There(RemoteOwner::new(world, ShardId(0), self.clone(), patience))
    }
}

/// The shard's next owner, on another node, and the way to it; the one before doesn't know.
pub async fn next_on_another_node(node: &Node) -> (Arc<Metanode>, Arc<Way>) {
    let run = NodeRun {
        node: NodeId(2),
        ..RUN
    };
    let next = node.next_owner(run).await;
    next.start_background();
    let way = Way::new(&node.world, &next, 0);
    (next, way)
}

/// A client on another node, whose messages go this way.
pub async fn client_through(node: &Node, way: &Arc<Way>) -> Arc<Client> {
    client_with(node, way, super::patient()).await
}

/// One with other settings.
pub async fn client_with(node: &Node, way: &Arc<Way>, settings: ClientSettings) -> Arc<Client> {
    let owner = Map::to(way).remote_owner();
    let world = &node.world;
    let session = owner.open_session(world).await.unwrap();
    Client::new(world.clone(), owner, node.pool.clone(), session, settings)
}

impl Way {
    /// Asks the metanode now or later; the answer gets lost.
    fn send_on(&self, call: Call, delay: Duration) {
        let (world, metanode) = (self.world.clone(), self.metanode.clone());
        let late = async move {
            world.sleep(delay).await;
            let deadline = Deadline::after(&world, Duration::from_secs(60));
            metanode.serve(RUN, call, deadline).await;
        };
        self.world.spawn("a late message", late).detach();
    }

    fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Relaxed) || self.deaf.load(Ordering::Relaxed)
    }

    /// Waits until an answer is late.
    pub async fn until_late(&self) {
        while self.late_answers.swap(0, Ordering::Relaxed) == 0 {
            self.world.sleep(Duration::from_millis(1)).await;
        }
    }

    /// Waits until an operation was lost.
    pub async fn until_lost(&self) {
        while self.lost.load(Ordering::Relaxed) == 0 {
            self.world.sleep(Duration::from_millis(1)).await;
        }
    }

    async fn travel(&self) {
        let most = self.slow_ms.load(Ordering::Relaxed);
        if most > 0 {
            self.world
                .sleep(self.up_to(Duration::from_millis(most)))
                .await;
        }
    }

    fn up_to(&self, longest: Duration) -> Duration {
        Duration::from_millis(self.world.random_u64() % (longest.as_millis() as u64 + 1))
    }
}

impl Remote for Way {
    fn call(&self, call: Call, deadline: Deadline) -> BoxFuture<'_, Result<Answer, NoAnswer>> {
        Box::pin(async move {
            let sent = self.world.now();
            let silence = self.world.sleep(deadline.rest(&self.world));
            if self.is_cut() {
                if self.deaf.load(Ordering::Relaxed) {
                    self.send_on(call, Duration::ZERO);
                }
                // A connection that was cut is found broken when messages arrive again.
                while self.is_cut() && !deadline.has_passed(&self.world) {
                    let pause = deadline.rest(&self.world).min(Duration::from_millis(50));
                    self.world.sleep(pause).await;
                }
                return Err(NoAnswer::unknown("cut"));
            }
            let is_faulty = self.world.random_u64() % 100 < self.faults;
            let fault = if is_faulty {
                self.world.random_u64() % 6
            } else {
                u64::MAX
            };
            match fault {
                0 => return Err(NoAnswer::not_run("refused")),
                1 => {
                    silence.await;
                    return Err(NoAnswer::unknown("the request was lost"));
                }
                2 => {
                    self.send_on(call, Duration::ZERO);
                    self.world.sleep(self.up_to(Duration::from_secs(1))).await;
                    return Err(NoAnswer::unknown("the reply was lost"));
                }
                3 => {
                    self.send_on(call, self.up_to(Duration::from_secs(30)));
                    return Err(NoAnswer::unknown("the request is late"));
                }
                4 => self.send_on(call.clone(), self.up_to(Duration::from_secs(30))),
                5 => self.world.sleep(self.up_to(Duration::from_secs(1))).await,
                _ => {}
            }
            let request = call.decode::<OwnerCall>().ok().map(|call| call.request);
            let tells_many = matches!(request, Some(OwnerRequest::UnholdAll { .. }));
            if !tells_many && !matches!(request, Some(OwnerRequest::AwaitRecalls { .. })) {
                self.asked.fetch_add(1, Ordering::Relaxed);
            }
            if tells_many || matches!(request, Some(OwnerRequest::Unhold { .. })) {
                self.closed.fetch_add(1, Ordering::Relaxed);
            }
            let reclaims = matches!(request, Some(OwnerRequest::Reclaim { .. }));
            if reclaims && self.no_reclaims.load(Ordering::Relaxed) {
                silence.await;
                return Err(NoAnswer::unknown("reclaims are lost"));
            }
            let is_stream = matches!(request, Some(OwnerRequest::ExecuteStream { .. }));
            if is_stream && self.refuses_streams.load(Ordering::Relaxed) {
                let error = Error::new(ErrorKind::Corrupt, "the stream's record is damaged");
                let reply = Reply::new(&Err::<OwnerReply, _>(error), Bytes::new());
                return Ok(Answer { from: RUN, reply });
            }
            let asks_to_know = matches!(request, Some(OwnerRequest::AskToKnow { .. }));
            let asks_token = asks_to_know || matches!(request, Some(OwnerRequest::AskToken { .. }));
            let renews = asks_token || matches!(request, Some(OwnerRequest::AwaitRecalls { .. }));
            let opens = matches!(request, Some(OwnerRequest::OpenSession { .. }));
            let lock_ms = match request {
                Some(OwnerRequest::Lock(_)) => self.lock_ms.swap(0, Ordering::Relaxed),
                _ => 0,
            };
            let operation = match request {
                Some(OwnerRequest::Execute { operation, .. }) => Some(operation),
                _ => None,
            };
            if let Some(Operation::Lookup { .. } | Operation::ReadDirectory { .. }) = operation {
                self.looked.fetch_add(1, Ordering::Relaxed);
            }
            let makes_held = operation.as_ref().is_some_and(Operation::makes_held);
            if let Some(Operation::Publish(publish)) = &operation {
                self.published.lock().push(publish.extents.len());
            }
            let refuses = *self.refuses.lock();
            if let (Some(refuses), Some(operation)) = (refuses, &operation)
                && refuses(operation)
            {
                let error = Error::new(ErrorKind::Corrupt, "a record is damaged");
                let reply = Reply::new(&Err::<OwnerReply, _>(error), Bytes::new());
                return Ok(Answer { from: RUN, reply });
            }
            let keeps = *self.keeps.lock();
            if let (Some(keeps), Some(operation)) = (keeps, &operation)
                && keeps(operation)
            {
                return Err(NoAnswer::not_run("such operations aren't sent"));
            }
            let publishes = matches!(operation, Some(Operation::Publish(_)));
            if publishes && self.no_publishes.load(Ordering::Relaxed) {
                silence.await;
                return Err(NoAnswer::unknown("publishes are lost"));
            }
            let loses = *self.loses.lock();
            if let (Some(loses), Some(operation)) = (loses, &operation)
                && loses(operation)
            {
                self.lost.fetch_add(1, Ordering::Relaxed);
                silence.await;
                return Err(NoAnswer::unknown("such operations are lost"));
            }
            let serving = async {
                self.travel().await;
                while opens && self.no_sessions.load(Ordering::Relaxed) {
                    self.world.sleep(Duration::from_millis(1)).await;
                }
                if publishes {
                    let time = self.publish_ms.load(Ordering::Relaxed);
                    self.world.sleep(Duration::from_millis(time)).await;
                }
                let reply = self.metanode.serve(RUN, call, deadline).await;
                if asks_token {
                    let time = self.tokens_ms.load(Ordering::Relaxed);
                    self.world.sleep(Duration::from_millis(time)).await;
                }
                if lock_ms > 0 {
                    self.world.sleep(Duration::from_millis(lock_ms)).await;
                }
                let is_late = || match (*self.late.lock(), &operation) {
                    (Some(late), Some(operation)) => late(operation),
                    _ => asks_to_know && self.listed_late.load(Ordering::Relaxed),
                };
                if is_late() {
                    self.late_answers.fetch_add(1, Ordering::Relaxed);
                }
                while is_late() {
                    self.world.sleep(Duration::from_millis(1)).await;
                }
                self.travel().await;
                reply
            };
            match deadline.bound(&self.world, serving).await {
                Ok(reply) => {
                    if makes_held && self.leaves.swap(false, Ordering::Relaxed) {
                        self.is_away.store(true, Ordering::Relaxed);
                    }
                    if renews {
                        let mut renewed = self.renewed.lock();
                        *renewed = (*renewed).max(Some(sent));
                    }
                    Ok(Answer { from: RUN, reply })
                }
                Err(_) => Err(NoAnswer::unknown("no reply in time")),
            }
        })
    }
}

impl Owners for Map {
    fn owner(&self) -> Option<OwnerWay> {
        {
            let (now, mut asked) = (self.world.now(), self.asked.lock());
            let before = if asked.0 == now { asked.1 } else { 0 };
            *asked = (now, before + 1);
            // Otherwise the test would never end.
            assert!(before < ASKED_MAX, "a client asks without waiting");
        }
        let owner = self.owner.lock().clone()?;
        let is_away = owner.is_away.load(Ordering::Relaxed);
        (!is_away).then_some(OwnerWay::Far(owner))
    }

    fn refresh(&self, deadline: Deadline) -> BoxFuture<'_, ()> {
        let now = self.world.now();
        let moves = self.moves_at.lock().filter(|at| *at > now);
        let until = moves.map_or(deadline, |at| deadline.min(Deadline::at(at)));
        Box::pin(self.world.sleep(until.rest(&self.world)))
    }

    fn replaced(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.moved.notified())
    }

    fn usable_until(&self) -> Option<Instant> {
        *self.usable_until.lock()
    }

    fn held_up_since(&self, since: Instant) -> Option<HoldUp> {
        let (is_held_up, until) = (self.is_held_up.load(Ordering::Relaxed), self.world.now());
        let lasted = until - since;
        is_held_up.then_some(HoldUp { until, lasted })
    }
}
