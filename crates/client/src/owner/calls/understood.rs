//! Answers of owners on other nodes, which may be faulty or newer than this client.
//!
//! One that fits no such request is an answer that isn't understood: the request may have run, and its outcome is unknown. It
//! is asked again, under the same number, as if the answer had been lost, until an owner says what became of it. So everything
//! behind this may rely on the kind of an answer, as it may on that of an owner in this process.

use super::{Calls, Sent};
use model::call::{Answer, Call};
use model::owner::{CLASS, OWNER, OwnerCall, OwnerReply, OwnerRequest};
use model::{Error, ErrorKind, NodeRun, Result};
use parking_lot::Mutex;
use std::fmt::Debug;
use std::time::Duration;
use world::call::Remote;
use world::{Deadline, Instant};

/// How often such answers are told in the log: an owner that gives one gives many.
const TOLD_EVERY: Duration = Duration::from_secs(10);
/// How much of a request and its answer is told.
const TOLD_CHARS_MAX: usize = 200;

/// When the log was last told of such an answer to a session.
#[derive(Default)]
pub(super) struct Misfits {
    told: Mutex<Option<Instant>>,
}

impl Misfits {
    /// An owner on this node has given such an answer.
    fn tell(&self, now: Instant, node: NodeRun, request: &OwnerRequest, reply: &OwnerReply) {
        let mut told = self.told.lock();
        if told.is_some_and(|told| now.since(told) < TOLD_EVERY) {
            return;
        }
        *told = Some(now);
        let (request, reply) = (beginning(request), beginning(reply));
        tracing::error!(%node, %request, %reply, "the owner on this node gives an answer that doesn't fit the request, so it \
                        is faulty, or of a version that this node doesn't understand; the request is asked again");
    }
}

impl Calls {
    /// Sends a call to another node, and takes the answer in.
    pub(super) async fn send_far(
        &self,
        owner: &dyn Remote,
        call: &OwnerCall,
        until: Deadline,
    ) -> Sent {
        let mut message = Call::new(OWNER, CLASS, call);
        message.reply_bytes_max = call.request.reply_bytes_max();
        message.may_wait = call.request.may_wait();
        let answer = owner.call(message, until).await?;
        Ok(self.understand(&call.request, &answer))
    }

    /// What an owner has answered.
    ///
    /// # Errors
    /// The owner's own; `Unknown` if it isn't understood.
    fn understand(&self, request: &OwnerRequest, answer: &Answer) -> Result<OwnerReply> {
        let reply = answer.reply.decode::<OwnerReply>()?;
        if request.is_answered_by(&reply) {
            return Ok(reply);
        }
        self.misfits
            .tell(self.world.now(), answer.from, request, &reply);
        let text = format!(
            "the owner on node {} gave an answer that doesn't fit the request, so the outcome is unknown",
            answer.from
        );
        Err(Error::new(ErrorKind::Unknown, text))
    }
}

/// The beginning of what is to be told.
fn beginning(of: &impl Debug) -> String {
    format!("{of:?}").chars().take(TOLD_CHARS_MAX).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::tests::{SESSION, answers, session_of, truncate};
    use super::*;
    use crate::owner::undecided::Late;
    use futures::future::BoxFuture;
    use model::call::NoAnswer;
    use model::limits::RESERVED_MAX;
    use model::operation::{Publish, Rank, Ranked, Stamp};
    use model::owner::{LockCall, Tenure};
    use model::{DataId, FileKind, InodeId, InodeNumber, Operation, Reply, ShardId};
    use std::sync::Arc;
    use testkit::inodes::attributes;
    use world::World;
    use world::sim::Simulation;

    const INODE: InodeId = InodeId(7);

    /// An owner on another node that answers everything with the same.
    struct Repeats {
        reply: Mutex<OwnerReply>,
    }

    impl Remote for Repeats {
        fn call(
            &self,
            _: Call,
            _: Deadline,
        ) -> BoxFuture<'_, std::result::Result<Answer, NoAnswer>> {
            answers(self.reply.lock().clone())
        }
    }

    /// A session of such an owner.
    fn asking(world: &World, reply: OwnerReply) -> (Arc<Calls>, Arc<Repeats>) {
        let reply = Mutex::new(reply);
        let owner = Arc::new(Repeats { reply });
        let found = owner.clone();
        let calls = session_of(world, move || Some(found.clone()));
        (calls, owner)
    }

    fn operation_answer(reply: Reply) -> OwnerReply {
        let rank = Rank::default();
        OwnerReply::Operation(Ranked { reply, rank })
    }

    /// Would be broken if another node could end this daemon, or make it believe what isn't so.
    #[test]
    fn an_answer_that_does_not_fit_leaves_the_outcome_unknown() {
        let ran = Simulation::new(4).run(|world| async move {
            let (calls, _owner) = asking(&world, OwnerReply::Freed(true));
            let looks = OwnerRequest::Execute {
                operation: Operation::GetAttributes { inode: INODE },
                stamp: Stamp::own(world.wall(), SESSION),
            };
            let streams = OwnerRequest::ExecuteStream {
                session: SESSION,
                operations: Vec::new(),
            };
            let hold = OwnerRequest::Hold {
                session: SESSION,
                inode: INODE,
            };
            for request in [OwnerRequest::GetUsage, looks, streams, hold] {
                let error = calls.ask(&request).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Unknown, "{request:?}");
                assert!(error.to_string().contains("node 3.1"), "{error}");
            }
            assert!(calls.book.lock().parts()[0].holds.is_empty());
            let fits = calls.ask(&OwnerRequest::MakeRoom).await;
            assert_eq!(fits, Ok(OwnerReply::Freed(true)));
            calls.close();
        });
        ran.finished();
    }

    /// Would be broken if the change counted as answered: it could run after one that is asked for next.
    #[test]
    fn a_change_is_asked_again_until_an_owner_says_what_became_of_it() {
        let ran = Simulation::new(5).run(|world| async move {
            let (calls, owner) = asking(&world, OwnerReply::Done);
            let truncate = truncate(&world, INODE);
            let error = calls.ask(&truncate).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unknown);
            let decided = calls.undecided(INODE, &[Late::Bytes]).unwrap();
            let done = operation_answer(Reply::Attributes {
                attributes: attributes(INODE, FileKind::File),
                unfinished: false,
            });
            *owner.reply.lock() = done.clone();
            decided.await;
            assert_eq!(calls.ask(&truncate).await, Ok(done));
        });
        ran.finished();
    }

    /// Would be broken if a file were made with a number that no inode can have, which ends the daemon.
    #[test]
    fn numbers_that_no_inode_can_have_are_not_reserved() {
        let ran = Simulation::new(6).run(|world| async move {
            let reserved = |first| {
                operation_answer(Reply::Reserved {
                    inode: InodeNumber(first),
                    inodes: RESERVED_MAX,
                    first_data: DataId(1),
                    data: 0,
                })
            };
            let (calls, owner) = asking(&world, reserved((1 << InodeId::NUMBER_BITS) - 1));
            let error = calls.reserve_numbers(INODE).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unknown);
            *owner.reply.lock() = reserved(100);
            assert_eq!(calls.reserve_numbers(INODE).await, Ok(()));
            calls.close();
        });
        ran.finished();
    }

    /// The connection to an owner on another node, which is told of each call whether it may wait.
    #[derive(Default)]
    struct Connection {
        may_wait: Mutex<Option<bool>>,
    }

    impl Remote for Connection {
        fn call(
            &self,
            call: Call,
            _: Deadline,
        ) -> BoxFuture<'_, std::result::Result<Answer, NoAnswer>> {
            *self.may_wait.lock() = Some(call.may_wait);
            answers(OwnerReply::Done)
        }
    }

    /// Would be broken if the connection couldn't tell them apart: calls that wait for other clients would take the credits
    /// of what those need for going on.
    #[test]
    fn the_connection_is_told_which_calls_may_wait_for_others() {
        let ran = Simulation::new(9).run(|world| async move {
            let calls = session_of(&world, || None);
            let connection = Connection::default();
            let (session, wait) = (SESSION, 1);
            let publish = Publish {
                inode: INODE,
                extents: Vec::new(),
                size_at_least: 0,
                written: None,
                replaces: None,
            };
            let publishes = OwnerRequest::Execute {
                operation: Operation::Publish(publish),
                stamp: Stamp::own(world.wall(), session),
            };
            let lists = OwnerRequest::AskToKnow {
                session,
                inodes: vec![INODE],
            };
            let gives_back = OwnerRequest::ReturnTokens {
                session,
                back: Vec::new(),
            };
            let waits = OwnerRequest::Lock(LockCall::Await { session, wait });
            let gives_up = OwnerRequest::Lock(LockCall::EndWait { session, wait });
            for (request, may_wait) in [
                (truncate(&world, INODE), true),
                (publishes, false),
                (lists, true),
                (gives_back, false),
                (waits, true),
                (gives_up, false),
            ] {
                let call = OwnerCall {
                    shard: ShardId(0),
                    session,
                    tenure: Tenure::default(),
                    order: None,
                    request,
                };
                let until = Deadline::after(&world, Duration::from_secs(1));
                let answered = calls.send_far(&connection, &call, until).await;
                assert!(answered.is_ok(), "it was sent: {answered:?}");
                let told = connection.may_wait.lock().take();
                assert_eq!(told, Some(may_wait), "{:?}", call.request);
            }
        });
        ran.finished();
    }
}
