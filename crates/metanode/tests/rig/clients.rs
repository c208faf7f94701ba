//! Clients and owners on other nodes: their messages, and what they ask for.

use super::Rig;
use metanode::{Metanode, Opening, OwnerLease};
use model::call::Call;
use model::lock::{LockDoor, LockOwner, LockRequest, LockSpace, LockTaker};
use model::operation::Stamp;
use model::owner::{CLASS, LockCall, OWNER, Order, OwnerCall, OwnerReply, OwnerRequest};
use model::{
    ErrorKind, InodeId, LockKind, LockRange, NodeId, NodeRun, Operation, Reply, SessionId, ShardId,
};
use std::sync::Arc;
use std::time::Duration;
use world::Deadline;
use world::call::Service;

/// The shard's next owner, on another node; the one before stays as it is and doesn't know.
pub async fn next_owner(rig: &Rig) -> Arc<Metanode> {
    next_owner_under(rig, OwnerLease::endless()).await
}

/// The same, with a lease.
pub async fn next_owner_under(rig: &Rig, lease: OwnerLease) -> Arc<Metanode> {
    let shard = ShardId(0);
    let record = rig.coordination.shard(shard).await.unwrap().unwrap().value;
    let run = NodeRun {
        node: NodeId(2),
        incarnation: 1,
    };
    let assigned = rig.coordination.assign_shard(shard, record.assigned, run);
    assigned.await.unwrap();
    let opening = Opening {
        lease,
        ..rig.opening(run)
    };
    Metanode::open(opening).await.unwrap()
}

pub async fn exists(metanode: &Metanode, inode: InodeId, stamp: &Stamp) -> bool {
    let asked = Operation::GetAttributes { inode };
    match metanode.execute(&asked, stamp).await {
        Ok(Reply::Attributes { .. }) => true,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Stale) => false,
        other => panic!("{other:?}"),
    }
}

/// A lock of a whole file.
pub fn exclusive(inode: InodeId, door: LockDoor) -> LockRequest {
    LockRequest {
        space: LockSpace::Whole,
        inode,
        owner: LockOwner { door, id: 1 },
        kind: Some(LockKind::Exclusive),
        range: LockRange::ALL,
        taker: LockTaker {
            open: 1,
            pid: 1,
            user: 1,
        },
    }
}

/// A client takes the lock of a whole file, through its first door.
pub async fn take_lock(rig: &Rig, session: SessionId, inode: InodeId) {
    let door = LockDoor { session, number: 1 };
    let calls = [
        LockCall::BeginDoor(door),
        LockCall::Set(exclusive(inode, door)),
    ];
    for (number, call) in (1..).zip(calls) {
        let order = Some(Order { slot: 1, number });
        let took = send(rig, CLIENT, session, order, OwnerRequest::Lock(call)).await;
        assert_eq!(took, Ok(OwnerReply::Done), "its session is open");
    }
}

/// A client's message to the metanode.
pub async fn send(
    rig: &Rig,
    from: NodeRun,
    session: SessionId,
    order: Option<Order>,
    request: OwnerRequest,
) -> model::Result<OwnerReply> {
    let call = OwnerCall {
        shard: ShardId(0),
        session,
        tenure: rig.metanode.tenure(),
        order,
        request,
    };
    let deadline = Deadline::after(&rig.world, Duration::from_secs(5));
    let call = Call::new(OWNER, CLASS, &call);
    rig.metanode.serve(from, call, deadline).await.decode()
}

/// The daemon of the client that most tests have.
pub const CLIENT: NodeRun = NodeRun {
    node: NodeId(7),
    incarnation: 1,
};

/// A client's first message.
pub async fn new_session(rig: &Rig) -> SessionId {
    let new = OwnerRequest::NewSession;
    let given = send(rig, CLIENT, SessionId::default(), None, new).await;
    let Ok(OwnerReply::NewSession(session)) = given else {
        panic!("{given:?}");
    };
    session
}

/// An open session of the client on another node.
pub async fn opened(rig: &Rig) -> SessionId {
    let session = new_session(rig).await;
    let open = OwnerRequest::OpenSession { session };
    send(rig, CLIENT, session, None, open).await.unwrap();
    session
}
