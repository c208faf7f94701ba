//! The members of an etcd: who they are, how one joins and leaves, when one is ready.
//!
//! A new member begins as a learner, without a vote, and gets its vote when it has all data. Had it one
//! at once, it would count for the quorum before it runs: an etcd of one member that adds a second, which
//! then can't be started, could never do anything again. From 2 to 3 members, the time without
//! tolerance of any loss would be as long as the new one copies.

use super::client::{Client, Times};
use super::gateway::{
    self, Base64, Done, Id, Member, MemberAdd, MemberAddAnswer, MembersAnswer, Nothing, Number,
    Range, RangeAnswer, StatusAnswer, Transfer,
};
use super::settings::{EtcdEndpoint, EtcdSettings};
use futures::future::join_all;
use model::{Error, ErrorKind, Result};
use std::{fmt, future::Future, sync::Arc, time::Duration};
use world::{Deadline, World};

/// How long one endpoint may take to say how it is.
const STATUS_MAX: Duration = Duration::from_secs(2);
/// How long one request to change the etcd itself may take.
pub(super) const CHANGE_MAX: Duration = Duration::from_secs(15);
/// Pause between two questions whether something is ready.
const PAUSE: Duration = Duration::from_millis(200);
/// Most entries that a member may lack that is to lead.
const BEHIND_MAX: u64 = 1_000;

/// An etcd itself: its members and their state. Cheap to clone.
#[derive(Clone)]
pub struct Etcd {
    pub(super) client: Arc<Client>,
}

/// Names a member.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EtcdMemberId(pub u64);

impl fmt::Display for EtcdMemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// A member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EtcdMember {
    /// Its id.
    pub id: EtcdMemberId,
    /// Its name; empty until it has been started for the first time.
    pub name: String,
    /// Where other members reach it.
    pub peer_urls: Vec<String>,
    /// Where clients reach it; none until it has been started.
    pub client_urls: Vec<String>,
    /// Has no vote yet.
    pub is_learner: bool,
}

impl EtcdMember {
    /// It was added, without a vote, and has never run: it has promised nothing to anybody.
    #[must_use]
    pub fn was_never_started(&self) -> bool {
        self.is_learner && self.name.is_empty()
    }

    /// Whether others reach it at this URL.
    #[must_use]
    pub fn is_at(&self, peer_url: &str) -> bool {
        self.peer_urls.iter().any(|it| it == peer_url)
    }
}

/// How a member is, as it says itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EtcdStatus {
    /// The etcd that it belongs to.
    pub cluster: u64,
    /// Its id.
    pub member: EtcdMemberId,
    /// Its version.
    pub version: String,
    /// The member that leads; `None`: it knows of none.
    pub leader: Option<EtcdMemberId>,
    /// Has no vote yet.
    pub is_learner: bool,
    /// The revision of its store.
    pub revision: u64,
    /// Counts the elections.
    pub term: u64,
    /// Entries of the log that it knows to be agreed on, and ...
    pub index: u64,
    /// ... those that it has applied.
    pub applied: u64,
    /// Bytes of the database's file.
    pub database_bytes: u64,
    /// Bytes of it that are in use; the rest is reused, or given back by a defragmentation.
    pub used_bytes: u64,
    /// What is wrong, in etcd's words: alarms, no leader.
    pub errors: Vec<String>,
}

impl Etcd {
    /// An etcd. Connects when it is first asked.
    ///
    /// # Errors
    /// `InvalidArgument`: the settings can't be right.
    pub fn new(world: &World, settings: &EtcdSettings) -> Result<Self> {
        Ok(Self {
            client: Arc::new(Client::new(world, settings)?),
        })
    }

    /// The members, learners too. Nothing older than any change that was answered before the call.
    ///
    /// # Errors
    /// `Unavailable`: ask again.
    pub async fn members(&self) -> Result<Vec<EtcdMember>> {
        let world = self.client.world();
        let deadline = Deadline::after(world, super::client::REQUEST_DEADLINE);
        // Members list from what they have applied. One that has just answered a read has applied
        // all that was agreed on before.
        let range = any_key();
        let client = &self.client;
        let read = client.ask_until::<RangeAnswer>(gateway::RANGE, &range, Times::Any, deadline);
        let (_, at) = read.await?;
        let nothing = Nothing {};
        let listed = client.ask_endpoint::<MembersAnswer>(at, gateway::MEMBERS, &nothing, deadline);
        let members = listed.await?.members.into_iter();
        Ok(members.map(EtcdMember::from).collect())
    }

    /// Adds a member without a vote, which is reached at these URLs by the others. Start it with
    /// [`EtcdBegin::Join`](super::EtcdBegin::Join) next. Until the deadline it waits for etcd to be ready
    /// for a change: there is one learner at a time at most, and all members must have heard each other
    /// for 5 s.
    ///
    /// # Errors
    /// `Exists`: a member has one of the URLs, perhaps from an attempt with an unknown outcome: list them.
    /// `Busy`: etcd isn't ready for it. After `Unavailable` it may have been added: list the members.
    pub async fn add_learner(
        &self,
        peer_urls: &[String],
        deadline: Deadline,
    ) -> Result<EtcdMember> {
        let add = MemberAdd {
            peer_urls,
            is_learner: true,
        };
        let add = || self.change::<MemberAddAnswer>(gateway::MEMBER_ADD, &add, deadline);
        Ok(self.when_ready(add, deadline).await?.member.into())
    }

    /// Gives a learner its vote as soon as it has been started and has all data, until the deadline;
    /// nothing if it has one.
    ///
    /// # Errors
    /// `Busy`: it hasn't been started or lacks data. `NotFound`: there is no such member. After
    /// `Unavailable` it may have its vote: ask again.
    pub async fn promote(&self, member: EtcdMemberId, deadline: Deadline) -> Result<()> {
        let promote = || self.try_to_promote(member, deadline);
        self.when_ready(promote, deadline).await
    }

    async fn try_to_promote(&self, member: EtcdMemberId, deadline: Deadline) -> Result<()> {
        let mut members = self.members().await?.into_iter();
        let found = members.find(|it| it.id == member);
        let found = found.ok_or_else(|| {
            let text = format!("etcd has no member {member}");
            Error::new(ErrorKind::NotFound, text)
        })?;
        if !found.is_learner {
            return Ok(());
        }
        // etcd before 3.4.24 may give it a vote all the same.
        if found.name.is_empty() {
            let text = format!("member {member} of etcd hasn't been started yet");
            return Err(Error::new(ErrorKind::Busy, text));
        }
        let id = Id::of(member.0);
        let Done {} = self.change(gateway::MEMBER_PROMOTE, &id, deadline).await?;
        Ok(())
    }

    /// Removes a member, which stops by itself if it runs. Its data are of no more use. Until the
    /// deadline it waits for etcd to be ready for a change.
    ///
    /// # Errors
    /// `NotFound`: there is none, perhaps because it was removed before. `Busy`: without it there would be
    /// no quorum. After `Unavailable` it may have been removed: list the members.
    pub async fn remove(&self, member: EtcdMemberId, deadline: Deadline) -> Result<()> {
        let id = Id::of(member.0);
        let remove = || self.change::<Done>(gateway::MEMBER_REMOVE, &id, deadline);
        self.when_ready(remove, deadline).await.map(drop)
    }

    /// As [`Etcd::remove`], and nothing if there is no such member.
    ///
    /// # Errors
    /// As [`Etcd::remove`], but `NotFound`.
    pub async fn remove_if_there(&self, member: EtcdMemberId, deadline: Deadline) -> Result<()> {
        match self.remove(member, deadline).await {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error.while_doing(format!("removing member {member} of etcd")))
            }
            _ => Ok(()),
        }
    }

    /// Asks again while etcd says that it isn't ready, and so did nothing.
    async fn when_ready<T, F: Future<Output = Result<T>>>(
        &self,
        ask: impl Fn() -> F,
        deadline: Deadline,
    ) -> Result<T> {
        let world = self.client.world();
        loop {
            match ask().await {
                Err(error) if error.kind() == ErrorKind::Busy && deadline.rest(world) > PAUSE => {
                    world.sleep(PAUSE).await;
                }
                answer => return answer,
            }
        }
    }

    /// How each endpoint's member is, all asked at once.
    pub async fn status(&self) -> Vec<(EtcdEndpoint, Result<EtcdStatus>)> {
        let deadline = Deadline::after(self.client.world(), STATUS_MAX);
        let endpoints = self.client.endpoints().cloned().enumerate();
        let asked = endpoints
            .map(|(at, endpoint)| async move { (endpoint, self.status_of(at, deadline).await) });
        join_all(asked).await
    }

    /// How the member at an endpoint (counted from 0) is.
    ///
    /// # Errors
    /// `Unavailable`: it doesn't say.
    pub async fn status_at(&self, endpoint: usize) -> Result<EtcdStatus> {
        let deadline = Deadline::after(self.client.world(), STATUS_MAX);
        self.status_of(endpoint, deadline).await
    }

    /// Has another member lead, if one has a vote and nearly all data: of those at the endpoints that answer the one
    /// that has most. Nobody waits longer than for an answer that comes late. Returns who leads then; `None`: nobody else
    /// can.
    ///
    /// # Errors
    /// `Unavailable`: none of the endpoints' members leads, or it gave no answer.
    pub async fn lead_elsewhere(&self) -> Result<Option<EtcdMemberId>> {
        let statuses = self.status().await.into_iter().enumerate();
        let statuses = statuses.filter_map(|(at, (_, status))| Some((at, status.ok()?)));
        let statuses: Vec<(usize, EtcdStatus)> = statuses.collect();
        let leader = statuses.iter().find(|(_, it)| it.leader == Some(it.member));
        let Some((at, leader)) = leader else {
            let text = "no member of etcd says that it leads";
            return Err(Error::new(ErrorKind::Unavailable, text));
        };
        let all = statuses.iter().map(|(_, status)| status);
        let Some(next) = successor(leader, all) else {
            return Ok(None);
        };
        let target = Number(next.member.0);
        let transfer = Transfer { target };
        let deadline = Deadline::after(self.client.world(), CHANGE_MAX);
        let client = &self.client;
        let asked = client.ask_endpoint(*at, gateway::TRANSFER, &transfer, deadline);
        let Done {} = asked
            .await
            .map_err(|error| error.while_doing("giving the lead of etcd to another member"))?;
        Ok(Some(next.member))
    }

    /// Waits until the member at an endpoint (counted from 0) works: it knows of a leader and, unless it
    /// is a learner, reads.
    ///
    /// # Errors
    /// `Unavailable` at the deadline, with what it said last.
    pub async fn until_ready(&self, endpoint: usize, deadline: Deadline) -> Result<EtcdStatus> {
        let world = self.client.world();
        loop {
            let patience = deadline.min(Deadline::after(world, STATUS_MAX));
            let error = match self.ready(endpoint, patience).await {
                Ok(status) => return Ok(status),
                Err(error) => error,
            };
            if deadline.rest(world) <= PAUSE {
                return Err(error.while_doing("waiting for a member of etcd to be ready"));
            }
            world.sleep(PAUSE).await;
        }
    }

    async fn ready(&self, endpoint: usize, deadline: Deadline) -> Result<EtcdStatus> {
        let status = self.status_of(endpoint, deadline).await?;
        if status.leader.is_none() {
            let text = "etcd's member knows of no leader";
            return Err(Error::new(ErrorKind::Unavailable, text));
        }
        if !status.is_learner {
            let range = any_key();
            let client = &self.client;
            let read =
                client.ask_endpoint::<RangeAnswer>(endpoint, gateway::RANGE, &range, deadline);
            read.await?;
        }
        Ok(status)
    }

    async fn status_of(&self, endpoint: usize, deadline: Deadline) -> Result<EtcdStatus> {
        let nothing = Nothing {};
        let client = &self.client;
        let asked =
            client.ask_endpoint::<StatusAnswer>(endpoint, gateway::STATUS, &nothing, deadline);
        Ok(asked.await?.into())
    }

    /// Asks once for a change of the etcd itself.
    pub(super) async fn change<A: gateway::Answer>(
        &self,
        path: &'static str,
        body: &impl serde::Serialize,
        deadline: Deadline,
    ) -> Result<A> {
        let patience = deadline.min(Deadline::after(self.client.world(), CHANGE_MAX));
        let asked = self.client.ask_until(path, body, Times::Once, patience);
        let (answer, _) = asked.await?;
        Ok(answer)
    }
}

/// The member that should lead after this one: of those with a vote that follow it and have nearly all data, the one
/// that has most. They may say anything of themselves.
pub(super) fn successor<'a>(
    leader: &EtcdStatus,
    all: impl Iterator<Item = &'a EtcdStatus>,
) -> Option<&'a EtcdStatus> {
    let others = all.filter(|it| {
        let is_close = it.applied.saturating_add(BEHIND_MAX) >= leader.applied;
        it.member != leader.member && !it.is_learner && it.leader == leader.leader && is_close
    });
    others.max_by_key(|it| it.applied)
}

/// A read of nothing.
pub(super) fn any_key() -> Range {
    Range {
        key: Base64::text("/"),
        count_only: true,
        ..Range::default()
    }
}

impl From<Member> for EtcdMember {
    fn from(member: Member) -> Self {
        Self {
            id: EtcdMemberId(member.id.0),
            name: member.name,
            peer_urls: member.peer_urls,
            client_urls: member.client_urls,
            is_learner: member.is_learner,
        }
    }
}

impl From<StatusAnswer> for EtcdStatus {
    fn from(status: StatusAnswer) -> Self {
        let leader = Some(status.leader.0).filter(|leader| *leader != 0);
        Self {
            cluster: status.header.cluster_id.0,
            member: EtcdMemberId(status.header.member_id.0),
            version: status.version,
            leader: leader.map(EtcdMemberId),
            is_learner: status.is_learner,
            revision: status.header.revision.0,
            term: status.raft_term.0,
            index: status.raft_index.0,
            applied: status.raft_applied_index.0,
            database_bytes: status.db_size.0,
            used_bytes: status.db_size_in_use.0,
            errors: status.errors,
        }
    }
}
