//! How many requests that wait for others may be under way to an owner on another node: never so many that what others
//! wait for finds no room on the connection, as unlocking a file, publishing, or giving back a token.

use crate::patience;
use model::call::NoAnswer;
use model::owner::{LockCall, OwnerRequest};
use tokio::sync::{Semaphore, SemaphorePermit};
use world::{Deadline, World};

/// Most programs for which the owner is asked at the same time whether they have got their locks. Those of more programs
/// are asked for in turns, 1.5 s each.
const LOCK_WAITS_MAX: usize = 256;
/// Most requests whose answers may be large, and which wait for what others are changing: each takes 1 MiB of what this
/// node may have under way there. The rooms are each session's own, and a node has 96 MiB at another one: two sessions, with
/// shards there both, leave some of that to what others wait for. From more of them the connection keeps a part
/// (`Call::may_wait`).
const LARGE_MAX: usize = 28;

/// The rooms of a session's requests.
pub(super) struct UnderWay {
    lock_waits: Semaphore,
    large: Semaphore,
}

impl UnderWay {
    pub(super) fn new() -> Self {
        Self {
            lock_waits: Semaphore::new(LOCK_WAITS_MAX),
            large: Semaphore::new(LARGE_MAX),
        }
    }

    /// Waits for room for a request, until it has been answered.
    ///
    /// # Errors
    /// If there was none in time, or before its program was killed: it wasn't sent.
    pub(super) async fn enter(
        &self,
        world: &World,
        request: &OwnerRequest,
        until: Deadline,
    ) -> Result<Option<SemaphorePermit<'_>>, NoAnswer> {
        let rooms = match request {
            OwnerRequest::Lock(LockCall::Await { .. }) => &self.lock_waits,
            OwnerRequest::Execute { operation, .. } if operation.answers_much() => &self.large,
            _ => return Ok(None),
        };
        if let Ok(room) = rooms.try_acquire() {
            return Ok(Some(room));
        }
        match patience::bound(world, until, || until, rooms.acquire()).await {
            Ok(room) => Ok(Some(room.expect("the semaphore is never closed"))),
            Err(_) => {
                let text = "as many requests of its kind as may be are under way";
                Err(NoAnswer::not_run(text))
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use model::operation::Stamp;
    use model::{InodeId, Operation, SessionId, Timestamp};
    use std::time::Duration;
    use world::sim::Simulation;

    const SESSION: SessionId = SessionId(1);
    const SECOND: Duration = Duration::from_secs(1);

    fn execute(operation: Operation) -> OwnerRequest {
        OwnerRequest::Execute {
            operation,
            stamp: Stamp::own(Timestamp(1), SESSION),
        }
    }

    fn listing() -> OwnerRequest {
        execute(Operation::ReadDirectory {
            directory: InodeId::ROOT,
            after: 0,
            limit: 1024,
            with_attributes: false,
        })
    }

    async fn enter<'a>(
        under_way: &'a UnderWay,
        world: &World,
        request: &OwnerRequest,
    ) -> Result<Option<SemaphorePermit<'a>>, NoAnswer> {
        let until = Deadline::after(world, SECOND);
        under_way.enter(world, request, until).await
    }

    /// Would be broken if sessions with shards on one node filled what may be under way there with what waits for others.
    #[test]
    fn two_sessions_leave_room_for_what_others_wait_for() {
        /// What a node may have under way at another one (`node/member.rs`), and what is left of it.
        const ADMITTED: u64 = 96 << 20;
        const LEFT: u64 = 8 << 20;
        let (session, wait) = (SESSION, 1);
        let waits = OwnerRequest::Lock(LockCall::Await { session, wait });
        let bytes = |count: usize, request: OwnerRequest| {
            count as u64 * u64::from(request.reply_bytes_max())
        };
        let of_session = bytes(LOCK_WAITS_MAX, waits) + bytes(LARGE_MAX, listing());
        assert!(2 * of_session + LEFT <= ADMITTED, "{of_session}");
    }

    #[test]
    fn a_kind_of_requests_that_is_full_holds_up_itself_alone() {
        let ran = Simulation::new(1).run(|world| async move {
            let under_way = UnderWay::new();
            let (session, wait) = (SESSION, 1);
            let waits = OwnerRequest::Lock(LockCall::Await { session, wait });
            let mut rooms = Vec::new();
            for _ in 0..LOCK_WAITS_MAX {
                rooms.push(enter(&under_way, &world, &waits).await.unwrap());
            }
            let begun = world.now();
            let refused = enter(&under_way, &world, &waits).await;
            assert!(matches!(refused, Err(NoAnswer::NotRun(_))));
            assert_eq!(world.now() - begun, SECOND);
            for _ in 0..LARGE_MAX {
                rooms.push(enter(&under_way, &world, &listing()).await.unwrap());
            }
            let ends = OwnerRequest::Lock(LockCall::EndWait { session, wait });
            // What a kernel writes back asks for the attributes so.
            let attributes = Operation::ReadExtents {
                inode: InodeId::ROOT,
                offset: 0,
                length: 1,
                limit: 1,
            };
            // Kernels ask for that when they write.
            let capabilities = Operation::GetXattr {
                inode: InodeId::ROOT,
                name: "security.capability".into(),
            };
            let operations = [attributes, capabilities].map(execute);
            for request in operations.into_iter().chain([ends, OwnerRequest::Sync]) {
                let room = enter(&under_way, &world, &request).await.unwrap();
                assert!(room.is_none(), "it needs none");
            }
            drop(rooms);
            let room = enter(&under_way, &world, &waits).await.unwrap();
            assert!(room.is_some());
        });
        ran.finished();
    }
}
