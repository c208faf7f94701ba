//! Requests that nobody waits for any more, and the end of their session.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use bytes::Bytes;
use futures::future::ready;
use model::call::{Answer, Call};
use model::{NodeId, NodeRun, Operation, SetAttributes};
use testkit::errands::killed_after;
use world::call::Remote;
use world::sim::Simulation;

pub(super) const SESSION: SessionId = SessionId(1);
const TENURE: Tenure = Tenure(3);
const INODE: InodeId = InodeId(7);
pub(super) const SECOND: Duration = Duration::from_secs(1);

/// An owner on another node that answers nothing.
struct Silent(World);

impl Remote for Silent {
    fn call(
        &self,
        _: Call,
        deadline: Deadline,
    ) -> BoxFuture<'_, std::result::Result<Answer, NoAnswer>> {
        Box::pin(async move {
            self.0.sleep(deadline.rest(&self.0)).await;
            Err(NoAnswer::unknown("it is silent"))
        })
    }
}

/// The way to an owner on another node, while there is one.
struct Ways<F> {
    world: World,
    owner: F,
}

impl<F: Fn() -> Option<Arc<dyn Remote>> + Send + Sync> Owners for Ways<F> {
    fn owner(&self) -> Option<OwnerWay> {
        (self.owner)().map(OwnerWay::Far)
    }

    fn refresh(&self, deadline: Deadline) -> BoxFuture<'_, ()> {
        Box::pin(self.world.sleep(deadline.rest(&self.world)))
    }

    fn replaced(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::pending())
    }

    fn usable_until(&self) -> Option<Instant> {
        None
    }
}

/// A session whose owner is on another node: the one that `owner` finds, if there is one.
pub(super) fn session_of(
    world: &World,
    owner: impl Fn() -> Option<Arc<dyn Remote>> + Send + Sync + 'static,
) -> Arc<Calls> {
    let owners = Arc::new(Ways {
        world: world.clone(),
        owner,
    });
    let shared = (Arc::default(), KnownNames::new(), Arc::default());
    let patience = SECOND * 60;
    let calls = Calls::new(world.clone(), ShardId(0), owners, patience, shared);
    calls.set_session(SESSION, TENURE);
    calls
}

/// A session whose owner answers nothing.
pub(super) fn unanswered(world: &World) -> Arc<Calls> {
    let owner = Arc::new(Silent(world.clone()));
    session_of(world, move || Some(owner.clone()))
}

/// What an owner on another node says, at once.
pub(super) fn answers(
    reply: OwnerReply,
) -> BoxFuture<'static, std::result::Result<Answer, NoAnswer>> {
    let reply = model::call::Reply::new(&Ok(reply), Bytes::new());
    let from = NodeRun {
        node: NodeId(3),
        incarnation: 1,
    };
    Box::pin(ready(Ok(Answer { from, reply })))
}

/// Empties a file.
pub(super) fn truncate(world: &World, inode: InodeId) -> OwnerRequest {
    let set = SetAttributes {
        size: Some(0),
        ..SetAttributes::default()
    };
    OwnerRequest::Execute {
        operation: Operation::SetAttributes { inode, set },
        stamp: Stamp::own(world.wall(), SESSION),
    }
}

/// A session with a truncate that was given up long ago: it is asked for again with attempts that take long. Returns what waits
/// until it is known what became of that.
async fn given_up(world: &World) -> (Arc<Calls>, BoxFuture<'static, ()>) {
    let calls = unanswered(world);
    let truncate = truncate(world, INODE);
    let asked = world.timeout(SECOND, calls.ask(&truncate)).await;
    assert!(asked.is_err(), "it is answered");
    let mut decided = calls.undecided(INODE, &[Late::Bytes]).unwrap();
    let early = world.timeout(SECOND * 35, decided.as_mut()).await;
    assert!(early.is_err(), "it may still run");
    (calls, decided)
}

/// Would be broken if the end of a session were noticed when an attempt has failed, which may take half a minute.
#[test]
fn a_session_that_has_ended_leaves_nothing_undecided() {
    let ran = Simulation::new(1).run(|world| async move {
        let (calls, decided) = given_up(&world).await;
        let ended = world.now();
        assert!(!calls.has_lost_answers().await);
        decided.await;
        assert_eq!(world.now(), ended);
        // Its slot is free for who hears then that the session is over.
        let taken = (0..model::limits::SESSION_SLOTS).map(|_| calls.slots.take(true));
        let taken = world.timeout(SECOND, futures::future::join_all(taken));
        assert!(taken.await.is_ok());
    });
    ran.finished();
}

/// As when the owner in this process has ended with answers that aren't durable: no other one can go on with it.
#[test]
fn a_session_that_can_not_go_on_leaves_nothing_undecided() {
    let ran = Simulation::new(7).run(|world| async move {
        let (calls, decided) = given_up(&world).await;
        let ended = world.now();
        let error = calls.give_up_session(SESSION);
        assert_eq!(error.kind(), ErrorKind::SessionEnded);
        decided.await;
        assert_eq!(world.now(), ended);
    });
    ran.finished();
}

#[test]
fn a_session_that_is_closed_leaves_nothing_undecided() {
    let ran = Simulation::new(2).run(|world| async move {
        let (calls, decided) = given_up(&world).await;
        let ended = world.now();
        calls.close();
        decided.await;
        assert_eq!(world.now(), ended);
    });
    ran.finished();
}

/// What a program is told that is killed while it waits for the answer to a request, and after how long.
async fn killed(world: &World, calls: &Calls, request: &OwnerRequest) -> (Error, Duration) {
    let begun = world.now();
    let answer = killed_after(world, SECOND * 5, calls.ask(request)).await;
    (answer.unwrap_err(), world.now() - begun)
}

/// Would be broken if a killed program waited until its patience ends, or if nobody cared what became of what it asked.
#[test]
fn a_killed_program_waits_no_longer_and_what_it_asked_is_decided() {
    let ran = Simulation::new(11).run(|world| async move {
        let calls = unanswered(&world);
        let (error, waited) = killed(&world, &calls, &truncate(&world, INODE)).await;
        assert_eq!((error.kind(), waited), (ErrorKind::Unknown, SECOND * 5));
        let decided = calls.undecided(INODE, &[Late::Bytes]).unwrap();
        calls.close();
        decided.await;
    });
    ran.finished();
}

/// Would be broken if a program that is dead changed something later.
#[test]
fn what_was_not_sent_before_its_program_was_killed_never_is() {
    let ran = Simulation::new(12).run(|world| async move {
        let begun = world.now();
        let late = {
            let world = world.clone();
            let owner: Arc<dyn Remote> = Arc::new(Silent(world.clone()));
            move || (world.now() - begun >= SECOND * 5).then(|| owner.clone())
        };
        let calls = session_of(&world, late);
        let (error, waited) = killed(&world, &calls, &truncate(&world, INODE)).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(waited, SECOND * 5);
        assert!(calls.undecided(INODE, &[Late::Bytes]).is_none());
    });
    ran.finished();
}

/// Would be broken if a file were held for a program that is dead, because a new owner had to be told first what is held.
#[test]
fn what_waited_to_be_sent_when_its_program_was_killed_never_is() {
    let ran = Simulation::new(13).run(|world| async move {
        let calls = unanswered(&world);
        let reclaiming = calls.reclaiming.clone().write_owned().await;
        let hold = OwnerRequest::Hold {
            session: SESSION,
            inode: INODE,
        };
        let (error, waited) = killed(&world, &calls, &hold).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(waited, SECOND * 5);
        drop(reclaiming);
        // Nobody asks for it, or its slot wouldn't be free.
        let taken = (0..model::limits::SESSION_SLOTS).map(|_| calls.slots.take(true));
        let taken = world.timeout(SECOND, futures::future::join_all(taken));
        assert!(taken.await.is_ok());
    });
    ran.finished();
}
