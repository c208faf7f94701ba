//! What a node answers to others: its NSDs' requests, those to the owners of the shards that are here, and
//! heartbeats and statements of jobs if the cluster's manager is.

use super::commands::{COMMAND, CommandDesk};
use super::jobs::Jobs;
use super::lease::RunLease;
use super::managing::Office;
use super::peers::Peers;
use super::renewing::RenewalDesk;
use super::spaces::{Desk, Holding};
use bytes::Bytes;
use coordination::Roster;
use futures::future::{BoxFuture, FutureExt};
use metanode::Metanode;
use model::call::{Call, Class, Reply};
use model::jobs::JOBS;
use model::join::{AUTHORITY_KEY, RENEW};
use model::member::{
    ATTEND, ATTEND_MAX, Attend, HAS_ENDED, HEARD, HEARTBEAT, Heard, Heartbeat, HeartbeatReply,
    KnownEnd, KnownManager, REACHES_BACK, UNREACHED, Unreached, WHO_MANAGES,
};
use model::nsd::NSD_METHOD;
use model::owner::{OWNER, OwnerCall, OwnerReply};
use model::space::{SPACE_STATE, SPACE_TELL, Statement, Told};
use model::{Error, ErrorKind, NodeId, NodeRun, Result, ShardId};
use nsd::NsdServer;
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tokio::sync::watch;
use world::call::{Deadline, Service};
use world::{Instant, World};

/// The parts of this node that answer.
pub(super) struct Services {
    world: World,
    /// Where requests of leases are answered.
    urgent: World,
    nsds: Arc<NsdServer>,
    hosted: Mutex<BTreeMap<ShardId, Arc<Metanode>>>,
    office: Arc<Office>,
    desk: Arc<Desk>,
    holding: Arc<Holding>,
    lease: Arc<RunLease>,
    jobs: Arc<Jobs>,
    commands: CommandDesk,
    renewals: RenewalDesk,
    /// The ways to other nodes, once there are some. They know these services, as the way to this node.
    peers: OnceLock<Weak<Peers>>,
    /// What coordination said last.
    roster: watch::Receiver<Arc<Roster>>,
    /// The nodes that were expelled by hand, and since when that is known here.
    barred: RwLock<BTreeMap<NodeId, Instant>>,
}

/// How long a node that was expelled by hand is answered still, so that its run can make durable what it has, hand over its
/// shards and end.
const BARRED_GRACE: Duration = Duration::from_secs(20);

/// How long a node may take to answer that asks whether it is reached: less than it waits itself.
const BACK_MAX: Duration = Duration::from_millis(1_500);

/// The methods of what members say to each other. Only these are answered on the urgent thread, where requests of leases are:
/// anything else would keep it from them.
const MEMBERS_METHODS: RangeInclusive<u16> = 0x0300..=0x03FF;

/// How long a run that asks for a command may be no member as far as this node knows: news take a moment.
const MEMBER_MAX: Duration = Duration::from_secs(2);

impl Services {
    pub(super) fn new(
        world: &World,
        nsds: Arc<NsdServer>,
        office: &Arc<Office>,
        space: (&Arc<Desk>, &Arc<Holding>),
        lease: &Arc<RunLease>,
        jobs: &Arc<Jobs>,
        roster: watch::Receiver<Arc<Roster>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            world: world.clone(),
            urgent: world.urgent(),
            nsds,
            hosted: Mutex::default(),
            office: office.clone(),
            desk: space.0.clone(),
            holding: space.1.clone(),
            lease: lease.clone(),
            jobs: jobs.clone(),
            commands: CommandDesk::default(),
            renewals: RenewalDesk::default(),
            peers: OnceLock::new(),
            roster,
            barred: RwLock::default(),
        })
    }

    /// Who runs commands that come from other nodes.
    pub(super) fn commands(&self) -> &CommandDesk {
        &self.commands
    }

    /// These are the ways to other nodes.
    pub(super) fn set_peers(&self, peers: &Arc<Peers>) {
        let is_first = self.peers.set(Arc::downgrade(peers)).is_ok();
        assert!(is_first, "a member has one set of ways");
    }

    /// Who certifies other nodes.
    pub(super) fn renewals(&self) -> &RenewalDesk {
        &self.renewals
    }

    /// A shard's service, if it is here.
    pub(super) fn hosted(&self, shard: ShardId) -> Option<Arc<Metanode>> {
        self.hosted.lock().get(&shard).cloned()
    }

    /// The shards that are here with their services, in the order of their numbers.
    pub(super) fn all_hosted(&self) -> Vec<(ShardId, Arc<Metanode>)> {
        let hosted = self.hosted.lock();
        let all = hosted.iter();
        all.map(|(shard, metanode)| (*shard, metanode.clone()))
            .collect()
    }

    /// The shard is served from now on.
    pub(super) fn host(&self, shard: ShardId, metanode: Arc<Metanode>) {
        self.hosted.lock().insert(shard, metanode);
    }

    /// The shard's requests are refused from now on.
    pub(super) fn leave(&self, shard: ShardId) -> Option<Arc<Metanode>> {
        self.hosted.lock().remove(&shard)
    }

    /// The owner that a call is for.
    ///
    /// # Errors
    /// `InvalidArgument` if it names no shard; `OldEpoch` if the shard isn't here: the caller looks
    /// for its owner anew.
    fn owner_for(&self, call: &Call) -> Result<Arc<Metanode>> {
        let shard = OwnerCall::shard_of(call)?;
        self.hosted(shard).ok_or_else(|| {
            let text = format!("this node doesn't own shard {shard}");
            Error::new(ErrorKind::OldEpoch, text)
        })
    }
}

impl Services {
    /// # Errors
    /// `OldEpoch`: the manager isn't here, or not yet; it is looked for again.
    fn heartbeat(&self, from: NodeRun, heartbeat: Heartbeat) -> Result<HeartbeatReply> {
        let now = self.lease.moment(self.world.now());
        let reply = self.office.heartbeat(from, heartbeat, now);
        reply.ok_or_else(|| Error::new(ErrorKind::OldEpoch, "this node isn't the manager"))
    }

    /// # Errors
    /// As for heartbeats.
    fn unreached(&self, from: NodeRun, unreached: Unreached) -> Result<()> {
        let now = self.lease.moment(self.world.now());
        match self.office.hear_unreached(from, unreached, now) {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::OldEpoch,
                "this node isn't the manager",
            )),
        }
    }

    /// # Errors
    /// As for heartbeats.
    fn stated(&self, from: NodeRun, statement: Statement) -> Result<Told> {
        let told = self.desk.hear(from, statement);
        told.ok_or_else(|| Error::new(ErrorKind::OldEpoch, "this node has no ledger of the pool"))
    }

    /// These nodes were expelled by hand, as far as is known from now on.
    pub(super) fn set_barred(&self, nodes: &BTreeSet<NodeId>) {
        let now = self.world.now();
        let mut barred = self.barred.write();
        barred.retain(|node, _| nodes.contains(node));
        for node in nodes {
            barred.entry(*node).or_insert(now);
        }
    }

    /// Whether a node is answered at all. One that was expelled by hand ends its run in good order; if it hasn't within
    /// [`BARRED_GRACE`] it isn't, heartbeats included: whatever its daemon does, it loses its lease then, and the manager
    /// expels its run as one that fell silent.
    fn check_not_barred(&self, node: NodeId, grace: Duration) -> Result<()> {
        let since = self.barred.read().get(&node).copied();
        match since {
            Some(since) if self.world.now() - since >= grace => {
                let text = format!(
                    "node {node} was expelled by hand, and is answered by nobody until `shale node unexpel {node}` on \
                     another node"
                );
                Err(Error::new(ErrorKind::NotPermitted, text))
            }
            _ => Ok(()),
        }
    }

    /// Runs a command of another member.
    async fn command(&self, from: NodeRun, call: Call) -> Reply {
        if let Err(error) = self.check_not_barred(from.node, Duration::ZERO) {
            return Reply::new::<()>(&Err(error), Bytes::new());
        }
        let mut roster = self.roster.clone();
        let is_member = |roster: &Arc<Roster>| {
            let members = roster.membership.as_ref();
            members.is_some_and(|it| it.value.is_member(from))
        };
        let known = self.world.timeout(MEMBER_MAX, roster.wait_for(is_member));
        let is_known = known.await.is_ok_and(|known| known.is_ok());
        if !is_known {
            let text = format!("{from} is no member of the cluster: its commands aren't run");
            let refused: Result<()> = Err(Error::new(ErrorKind::NotPermitted, text));
            return Reply::new(&refused, Bytes::new());
        }
        self.commands.serve(from, call).await
    }

    /// How a run has ended for the cluster, if it has as coordination has shown it. Only whoever has a lease may say so, and of
    /// the manager that wrote what it has read: otherwise it may have missed something, even that the cluster's facts are those
    /// of an earlier time again, with other runs of the same numbers.
    pub(super) fn known_end(&self, run: NodeRun) -> Option<KnownEnd> {
        let roster = self.roster.borrow().clone();
        let end = roster.end_of(run)?;
        self.lease.is_of(end.term).then_some(end)
    }

    /// Whether a node answers something that it answers at once.
    async fn reaches(&self, node: NodeId) -> bool {
        let Some(peers) = self.peers.get().and_then(Weak::upgrade) else {
            return false;
        };
        let call = Call::new(WHO_MANAGES, Class::Lease, &());
        let deadline = Deadline::after(&self.urgent, BACK_MAX);
        peers.to(node).call(call, deadline).await.is_ok()
    }

    /// Answers when the asked time is over: a connection that breaks before tells the caller that this node has
    /// ended, and this node that the caller has.
    async fn attend(&self, from: NodeRun, attend: Attend, deadline: Deadline) -> Reply {
        let asked = Duration::from_millis(attend.answer_after_ms.into());
        let wait = asked.min(ATTEND_MAX).min(deadline.rest(&self.urgent));
        let attended = Attended::begin(&self.lease, from);
        self.urgent.sleep(wait).await;
        attended.answered();
        Reply::new(&Ok(()), Bytes::new())
    }
}

/// A call to learn when this node ends; dropped without an answer if its connection breaks.
struct Attended<'a> {
    lease: &'a RunLease,
    from: NodeRun,
    was_answered: bool,
}

impl<'a> Attended<'a> {
    fn begin(lease: &'a RunLease, from: NodeRun) -> Self {
        lease.attended_by(from);
        Self {
            lease,
            from,
            was_answered: false,
        }
    }

    fn answered(mut self) {
        self.was_answered = true;
    }
}

impl Drop for Attended<'_> {
    fn drop(&mut self) {
        self.lease.unattended_by(self.from, self.was_answered);
    }
}

impl Service for Services {
    fn serve(&self, from: NodeRun, call: Call, deadline: Deadline) -> BoxFuture<'_, Reply> {
        // Only that its run has ended is said to a node that was expelled by hand: it may hear it from nobody else.
        if call.method != HAS_ENDED
            && let Err(error) = self.check_not_barred(from.node, BARRED_GRACE)
        {
            return refuse(error);
        }
        if call.class == Class::Lease && !MEMBERS_METHODS.contains(&call.method.0) {
            let text = format!("method {} isn't answered where leases are", call.method.0);
            return refuse(Error::new(ErrorKind::InvalidArgument, text));
        }
        match call.method {
            NSD_METHOD => self.nsds.serve(from, call, deadline),
            OWNER => match self.owner_for(&call) {
                Ok(metanode) => async move { metanode.serve(from, call, deadline).await }.boxed(),
                Err(error) => refuse(error),
            },
            HEARTBEAT => {
                let answer = call.decode().and_then(|it| self.heartbeat(from, it));
                done(Reply::new::<HeartbeatReply>(&answer, Bytes::new()))
            }
            UNREACHED => {
                let answer = call.decode().and_then(|it| self.unreached(from, it));
                done(Reply::new::<()>(&answer, Bytes::new()))
            }
            SPACE_STATE => {
                let answer = call.decode().and_then(|it| self.stated(from, it));
                done(Reply::new::<Told>(&answer, Bytes::new()))
            }
            SPACE_TELL => {
                let answer = call.decode().and_then(|it| self.holding.told(from, it));
                done(Reply::new::<Statement>(&answer, Bytes::new()))
            }
            JOBS => {
                let now = self.lease.moment(self.world.now());
                std::future::ready(self.jobs.serve(from, &call, now)).boxed()
            }
            WHO_MANAGES => {
                let known = self.lease.known_manager();
                done(Reply::new::<Option<KnownManager>>(&Ok(known), Bytes::new()))
            }
            HEARD => {
                let heard = call.decode().map(|manager| self.lease.heard(manager));
                done(Reply::new::<Heard>(&heard, Bytes::new()))
            }
            REACHES_BACK => async move {
                let reaches = self.reaches(from.node).await;
                Reply::new::<bool>(&Ok(reaches), Bytes::new())
            }
            .boxed(),
            HAS_ENDED => {
                let end = self.known_end(from);
                done(Reply::new::<Option<KnownEnd>>(&Ok(end), Bytes::new()))
            }
            ATTEND => match call.decode() {
                Ok(attend) => self.attend(from, attend, deadline).boxed(),
                Err(error) => refuse(error),
            },
            RENEW => self.renewals.serve(from, call).boxed(),
            AUTHORITY_KEY => self.renewals.serve_key(from, call).boxed(),
            COMMAND => self.command(from, call).boxed(),
            other => {
                let text = format!("this node answers no method {}", other.0);
                refuse(Error::new(ErrorKind::NotImplemented, text))
            }
        }
    }

    fn is_short(&self, call: &Call) -> bool {
        self.nsds.is_short(call)
    }
}

fn refuse(error: Error) -> BoxFuture<'static, Reply> {
    done(Reply::new::<OwnerReply>(&Err(error), Bytes::new()))
}

fn done(reply: Reply) -> BoxFuture<'static, Reply> {
    std::future::ready(reply).boxed()
}
