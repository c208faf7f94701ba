//! Listens to what owners answer: which operation of which program stands where in history.

use crate::action::Draw;
use crate::witness::Call;
use client::Owners;
use futures::future::BoxFuture;
use model::call::{Answer as Replied, Call as Message, NoAnswer};
use model::operation::{Rank, Turn};
use model::owner::{OWNER, OwnerCall, OwnerReply, OwnerRequest};
use model::{InodeId, Operation, SessionId};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use world::call::Remote;
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
    /// The events of operations that may be asked again by another task.
    asked: BTreeMap<(SessionId, u8, u64), usize>,
}

impl Heard {
    /// The rank of an event's last operation of this kind on this inode or directory.
    pub(super) fn rank(&self, event: usize, verb: Verb, inode: InodeId) -> Option<Rank> {
        let answers = self.answers.get(&event)?.iter().rev();
        let mut of_verb = answers.filter(|it| (it.0, it.1) == (verb, inode));
        of_verb.next().map(|it| it.2)
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
    fn owner(&self) -> Option<Arc<dyn Remote>> {
        let owner = self.owners.owner()?;
        Some(Arc::new(Ear {
            owner,
            heard: self.heard.clone(),
            losses: self.losses.clone(),
        }))
    }

    fn refresh(&self, deadline: Deadline) -> BoxFuture<'_, ()> {
        self.owners.refresh(deadline)
    }

    fn usable_until(&self) -> Option<Instant> {
        self.owners.usable_until()
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
        let asked = asked.flatten().and_then(|asked| match asked.request {
            OwnerRequest::Execute { operation, stamp } => Some((Verb::of(&operation)?, stamp)),
            _ => None,
        });
        let event = asked.as_ref().and_then(|(_, stamp)| {
            let mut heard = self.heard.lock().expect("one thread");
            let Turn::Slot { slot, number } = stamp.turn else {
                return CURRENT.get();
            };
            let key = (stamp.session, slot, number);
            match (heard.asked.get(&key).copied(), CURRENT.get()) {
                (Some(event), _) => Some(event),
                (None, Some(event)) => {
                    heard.asked.insert(key, event);
                    Some(event)
                }
                (None, None) => None,
            }
        });
        Box::pin(async move {
            let replied = self.owner.call(call, deadline).await?;
            if let (Some(((verb, inode), _)), Some(event)) = (asked, event) {
                let answer: Result<OwnerReply, _> = replied.reply.decode();
                if let Ok(OwnerReply::Operation(ranked)) = answer {
                    let mut heard = self.heard.lock().expect("one thread");
                    let answers = heard.answers.entry(event).or_default();
                    answers.push((verb, inode, ranked.rank));
                }
                if self.losses.lock().expect("one thread").below(LOST_EVERY) == 0 {
                    return Err(NoAnswer::unknown("an answer got lost"));
                }
            }
            Ok(replied)
        })
    }
}
