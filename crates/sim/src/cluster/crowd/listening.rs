//! Listens to what owners answer: which operation of which program stands where in history.

use crate::action::Draw;
use crate::witness::Call;
use client::{HoldUp, NearOwner, OwnerWay, Owners};
use futures::future::BoxFuture;
use model::call::{Answer as Replied, Call as Message, NoAnswer};
use model::operation::{Rank, Turn};
use model::owner::{
    NearAnswer, OWNER, OwnerCall, OwnerReply, OwnerRequest, StreamDone, Streamed, Tenure,
};
use model::{CommitNumber, InodeId, Operation, Reply, Result as Outcome, SessionId};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use world::call::{Asked, Remote};
use world::{Deadline, Instant};

/// Which operation of a program an owner's operation serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verb {
    Create,
    CreateUnnamed,
    Link,
    Unlink,
    RemoveDirectory,
    Rename,
    SetAttributes,
    Xattr,
    Lookup,
    List,
    Stat,
    GetXattr,
}

impl Verb {
    fn of(operation: &Operation) -> Option<(Self, InodeId)> {
        Some(match operation {
            Operation::Create { directory, .. } | Operation::CreateHeld { directory, .. } => {
                (Self::Create, *directory)
            }
            Operation::CreateUnnamed { directory, .. } => (Self::CreateUnnamed, *directory),
            Operation::Link { inode, .. } => (Self::Link, *inode),
            Operation::Unlink { directory, .. } => (Self::Unlink, *directory),
            Operation::RemoveDirectory { directory, .. } => (Self::RemoveDirectory, *directory),
            Operation::Rename { from_directory, .. } => (Self::Rename, *from_directory),
            Operation::SetAttributes { inode, .. } => (Self::SetAttributes, *inode),
            Operation::SetXattr { inode, .. } | Operation::RemoveXattr { inode, .. } => {
                (Self::Xattr, *inode)
            }
            Operation::Lookup { directory, .. } => (Self::Lookup, *directory),
            Operation::ReadDirectory { directory, .. } => (Self::List, *directory),
            Operation::GetAttributes { inode } => (Self::Stat, *inode),
            Operation::GetXattr { inode, .. } => (Self::GetXattr, *inode),
            _ => return None,
        })
    }
}

/// The owner's operation that an operation of a program is, and the inode that it names.
pub(super) fn verb(call: &Call) -> Option<(Verb, InodeId)> {
    Some(match call {
        Call::Create { directory, .. } => (Verb::Create, *directory),
        Call::CreateUnnamed { directory } => (Verb::CreateUnnamed, *directory),
        Call::Link { inode, .. } => (Verb::Link, *inode),
        Call::Unlink { directory, .. } => (Verb::Unlink, *directory),
        Call::RemoveDirectory { directory, .. } => (Verb::RemoveDirectory, *directory),
        Call::Rename { from, .. } => (Verb::Rename, from.0),
        Call::SetMode { inode, .. } | Call::SetOwner { inode, .. } => (Verb::SetAttributes, *inode),
        Call::SetXattr { inode, .. } => (Verb::Xattr, *inode),
        Call::Lookup { directory, .. } => (Verb::Lookup, *directory),
        Call::List { directory } => (Verb::List, *directory),
        Call::Stat { inode } => (Verb::Stat, *inode),
        Call::GetXattr { inode } => (Verb::GetXattr, *inode),
        _ => return None,
    })
}

thread_local! {
    /// The event of the program whose future runs now.
    static CURRENT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Runs what a program asks, so that what goes to the owner meanwhile is known to be its.
pub(super) struct Of<F> {
    event: usize,
    work: Pin<Box<F>>,
}

impl<F: Future> Of<F> {
    pub(super) fn event(event: usize, work: F) -> Self {
        let work = Box::pin(work);
        Self { event, work }
    }
}

impl<F: Future> Future for Of<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let before = CURRENT.replace(Some(self.event));
        let polled = self.work.as_mut().poll(context);
        CURRENT.set(before);
        polled
    }
}

/// What owners said, by the event that it was for.
#[derive(Default)]
pub(super) struct Heard {
    answers: BTreeMap<usize, Vec<(Verb, InodeId, Rank)>>,
    /// What creates made, also if their programs weren't told.
    made: BTreeMap<usize, InodeId>,
    /// The events of operations that may be asked again by another task.
    asked: BTreeMap<(SessionId, u8, u64), usize>,
    /// Those of which an owner in their client's process has answered something.
    near: BTreeSet<usize>,
    /// Where creates under delegations were applied, by what they made.
    streamed: BTreeMap<InodeId, Rank>,
}

impl Heard {
    /// The rank of an event's last operation of this kind on this inode or directory.
    pub(super) fn rank(&self, event: usize, verb: Verb, inode: InodeId) -> Option<Rank> {
        let answers = self.answers.get(&event)?.iter().rev();
        let mut of_verb = answers.filter(|it| (it.0, it.1) == (verb, inode));
        of_verb.next().map(|it| it.2)
    }

    /// What an event's create has made.
    pub(super) fn made(&self, event: usize) -> Option<InodeId> {
        self.made.get(&event).copied()
    }

    /// Whether an owner in its client's process has answered something of an event.
    pub(super) fn is_near(&self, event: usize) -> bool {
        self.near.contains(&event)
    }

    /// Where a create under a delegation was applied, if an owner has said so.
    pub(super) fn streamed(&self, made: InodeId) -> Option<Rank> {
        self.streamed.get(&made).copied()
    }

    /// The event that an operation is of.
    fn event_of(&mut self, request: &OwnerRequest) -> Option<usize> {
        let OwnerRequest::Execute { stamp, .. } = request else {
            return None;
        };
        let Turn::Slot { slot, number } = stamp.turn else {
            return CURRENT.get();
        };
        let key = (stamp.session, slot, number);
        match (self.asked.get(&key).copied(), CURRENT.get()) {
            (Some(event), _) => Some(event),
            (None, Some(event)) => {
                self.asked.insert(key, event);
                Some(event)
            }
            (None, None) => None,
        }
    }

    /// An owner has answered. A stream belongs to no event: what it makes says which one it is of.
    fn note(&mut self, event: Option<usize>, request: &OwnerRequest, answer: &Outcome<OwnerReply>) {
        match (request, answer, event) {
            (OwnerRequest::ExecuteStream { operations, .. }, Ok(OwnerReply::Streamed(done)), _) => {
                for (streamed, done) in operations.iter().zip(done) {
                    self.note_streamed(streamed, done);
                }
            }
            (_, _, Some(event)) => self.note_operation(event, request, answer),
            _ => {}
        }
    }

    /// Of one that is repeated, the owner may know only that it was applied by now.
    fn note_streamed(&mut self, streamed: &Streamed, done: &Outcome<StreamDone>) {
        if let (Some(made), Ok(done)) = (streamed.made(), done) {
            let first = self.streamed.entry(made).or_insert(done.rank);
            *first = done.rank.min(*first);
        }
    }

    fn note_operation(
        &mut self,
        event: usize,
        request: &OwnerRequest,
        answer: &Outcome<OwnerReply>,
    ) {
        if let OwnerRequest::Execute { operation, .. } = request
            && let Some((verb, inode)) = Verb::of(operation)
            && let Ok(OwnerReply::Operation(ranked)) = answer
        {
            let answers = self.answers.entry(event).or_default();
            answers.push((verb, inode, ranked.rank));
            if let (Verb::Create, Reply::Entry { attributes, .. }) = (verb, &ranked.reply) {
                self.made.insert(event, attributes.inode);
            }
        }
    }

    /// An owner in the client's process has.
    fn note_near(
        &mut self,
        event: Option<usize>,
        request: &OwnerRequest,
        answer: &Outcome<OwnerReply>,
    ) {
        self.near.extend(event);
        self.note(event, request, answer);
    }

    /// The rank of the attributes of an inode, if they were asked for after the event's operation: an answer
    /// that may lack what the client has published meanwhile is completed so.
    pub(super) fn attributes_after(
        &self,
        event: usize,
        verb: (Verb, InodeId),
        inode: InodeId,
    ) -> Option<Rank> {
        let answers = self.answers.get(&event)?;
        let at = answers.iter().rposition(|it| (it.0, it.1) == verb)?;
        let mut after = answers[at + 1..].iter().rev();
        let found = after.find(|it| (it.0, it.1) == (Verb::Stat, inode));
        found.map(|it| it.2)
    }
}

fn is_stream(request: &OwnerRequest) -> bool {
    matches!(request, OwnerRequest::ExecuteStream { .. })
}

/// Owners that are listened to.
pub(super) struct Listening {
    owners: Arc<dyn Owners>,
    heard: Arc<Mutex<Heard>>,
    /// Answers are lost on their way from time to time, besides what the network loses.
    losses: Arc<Mutex<Draw>>,
}

impl Listening {
    pub(super) fn to(
        owners: Arc<dyn Owners>,
        heard: &Arc<Mutex<Heard>>,
        losses: Draw,
    ) -> Arc<Self> {
        let losses = Arc::new(Mutex::new(losses));
        Arc::new(Self {
            owners,
            heard: heard.clone(),
            losses,
        })
    }
}

impl Owners for Listening {
    fn owner(&self) -> Option<OwnerWay> {
        let heard = self.heard.clone();
        Some(match self.owners.owner()? {
            OwnerWay::Near(owner) => OwnerWay::Near(Arc::new(NearEar { owner, heard })),
            OwnerWay::Far(owner) => OwnerWay::Far(Arc::new(Ear {
                owner,
                heard,
                losses: self.losses.clone(),
            })),
        })
    }

    fn refresh(&self, deadline: Deadline) -> BoxFuture<'_, ()> {
        self.owners.refresh(deadline)
    }

    fn replaced(&self) -> BoxFuture<'_, ()> {
        self.owners.replaced()
    }

    fn usable_until(&self) -> Option<Instant> {
        self.owners.usable_until()
    }

    fn held_up_since(&self, since: Instant) -> Option<HoldUp> {
        self.owners.held_up_since(since)
    }
}

struct Ear {
    owner: Arc<dyn Remote>,
    heard: Arc<Mutex<Heard>>,
    losses: Arc<Mutex<Draw>>,
}

/// One of so many answers is lost.
const LOST_EVERY: u64 = 200;

impl Remote for Ear {
    fn call(&self, call: Message, deadline: Deadline) -> BoxFuture<'_, Result<Replied, NoAnswer>> {
        let asked = (call.method == OWNER).then(|| call.decode::<OwnerCall>().ok());
        let request = asked.flatten().map(|asked| asked.request);
        let request = request.filter(|request| match request {
            OwnerRequest::Execute { operation, .. } => Verb::of(operation).is_some(),
            request => is_stream(request),
        });
        let event = request
            .as_ref()
            .and_then(|request| self.heard.lock().expect("one thread").event_of(request));
        let request = request.filter(|request| event.is_some() || is_stream(request));
        Box::pin(async move {
            let replied = self.owner.call(call, deadline).await?;
            if let Some(request) = request {
                let answer: Outcome<OwnerReply> = replied.reply.decode();
                let mut heard = self.heard.lock().expect("one thread");
                heard.note(event, &request, &answer);
                drop(heard);
                if self.losses.lock().expect("one thread").below(LOST_EVERY) == 0 {
                    return Err(NoAnswer::unknown("an answer got lost"));
                }
            }
            Ok(replied)
        })
    }
}

/// Listens to an owner in the client's process. Nothing gets lost there.
struct NearEar {
    owner: Arc<dyn NearOwner>,
    heard: Arc<Mutex<Heard>>,
}

impl NearEar {
    fn event_of(&self, request: &OwnerRequest) -> Option<usize> {
        self.heard.lock().expect("one thread").event_of(request)
    }
}

impl NearOwner for NearEar {
    fn tenure(&self) -> Tenure {
        self.owner.tenure()
    }

    fn ask(&self, request: &OwnerRequest) -> Option<Asked<'static, NearAnswer>> {
        let (event, heard) = (self.event_of(request), self.heard.clone());
        let asked = self.owner.ask(request)?;
        if event.is_none() && !is_stream(request) {
            return Some(asked);
        }
        Some(match asked {
            Asked::Ready(answered) => {
                let mut heard = heard.lock().expect("one thread");
                heard.note_near(event, request, &answered.answer);
                Asked::Ready(answered)
            }
            Asked::Waits(rest) => {
                let request = request.clone();
                Asked::Waits(Box::pin(async move {
                    let answered = rest.await;
                    let mut heard = heard.lock().expect("one thread");
                    heard.note_near(event, &request, &answered.answer);
                    answered
                }))
            }
        })
    }

    fn call<'a>(&'a self, call: &'a OwnerCall, deadline: Deadline) -> BoxFuture<'a, NearAnswer> {
        let event = self.event_of(&call.request);
        Box::pin(async move {
            let answered = self.owner.call(call, deadline).await;
            let mut heard = self.heard.lock().expect("one thread");
            heard.note_near(event, &call.request, &answered.answer);
            drop(heard);
            answered
        })
    }

    fn has_durable(&self, commit: CommitNumber) -> bool {
        self.owner.has_durable(commit)
    }

    fn sync(&self) -> BoxFuture<'_, Outcome<()>> {
        self.owner.sync()
    }
}
