//! Rules of membership: one writer of the members, one holder of the manager's place, and shards that
//! only the manager of the membership as it is assigns.

use super::Body;
use super::patient::Patient;
use crate::{Doubt, Kept, LeaseId, ShardRecord};
use model::member::{Membership, Term};
use model::{
    EntryNumber, ErrorKind, FamilyId, NodeId, NodeRun, Result, SessionId, ShardEpoch, ShardId,
};
use std::time::Duration;

/// Longer than any lease lasts after its holder has gone, in spite of changes of the leader.
const GONE_MAX: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(200);
const SHARD: ShardId = ShardId(1);

fn run(node: u32) -> NodeRun {
    NodeRun {
        node: NodeId(node),
        incarnation: 1,
    }
}

fn term(term: u64, manager: u32) -> Membership {
    Membership {
        term: Term(term),
        manager: Some(run(manager)),
        ..Membership::default()
    }
}

async fn store(patient: &Patient, expected: u64, members: &Membership) -> Result<u64> {
    let ask = || patient.store.store_membership(expected, members);
    patient.until_answered(ask).await.1
}

async fn take(patient: &Patient, node: u32, expected: u64, lease: LeaseId) -> Result<()> {
    let ask = || patient.store.take_place(run(node), expected, lease);
    patient.until_answered(ask).await.1
}

pub(super) async fn of_two_managers_one_stores_the_membership(body: Body) {
    let [a, b] = [body.patient(0), body.patient(1)];
    let first = store(&a, 0, &term(1, 1)).await.unwrap();
    // Asked again, as after an unknown outcome: it is the same one.
    assert_eq!(store(&a, 0, &term(1, 1)).await.unwrap(), first);
    let second = store(&b, first, &term(2, 2)).await.unwrap();
    assert!(second > first);
    for (expected, members) in [(0, term(1, 1)), (first, term(2, 1)), (first, term(3, 1))] {
        let refused = store(&a, expected, &members).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Changed);
    }
    let ask = || a.store.membership();
    let stored = a.until_answered(ask).await.1.unwrap().unwrap();
    assert_eq!((stored.value, stored.version), (term(2, 2), second));
}

pub(super) async fn the_managers_place_has_one_holder_and_is_free_after_its_lease(body: Body) {
    let [a, b] = [body.patient(0), body.patient(1)];
    // Asked once: with each attempt another lease would begin. One that ended meanwhile takes nothing.
    let (kept, lease) = loop {
        let before = body.world.now();
        let Ok(lease) = a.store.grant_place().await else {
            continue;
        };
        match take(&a, 1, 0, lease.id).await {
            Ok(()) => break (before, lease),
            // An earlier attempt has the place until its lease ends.
            Err(_) => body.world.sleep(PAUSE).await,
        }
    };
    // The same run with another lease: the place goes with the first one.
    if let Ok(other) = a.store.grant_place().await
        && take(&a, 1, 0, other.id).await.is_ok()
    {
        assert!(body.world.now() - kept >= lease.ttl);
    }
    let mut attempts = 0;
    loop {
        attempts += 1;
        let Ok(other) = b.store.grant_place().await else {
            continue;
        };
        match take(&b, 2, 0, other.id).await {
            Ok(()) => break,
            Err(error) => assert!(matches!(
                error.kind(),
                ErrorKind::Changed | ErrorKind::NotFound
            )),
        }
        assert!(body.world.now() - kept < GONE_MAX, "{attempts} attempts");
        body.world.sleep(PAUSE).await;
    }
    assert!(body.world.now() - kept >= lease.ttl);
}

/// Rounds until one meets no fault: each must be over before the place's lease is.
const ROUNDS_MAX: u32 = 200;

/// One round; `None` if something else happened than without faults. What must never happen ends the test.
async fn doubted_place(body: &Body) -> Option<()> {
    let [a, b] = [&body.processes[0], &body.processes[1]];
    let before = a.manager().await.ok()?.map_or(0, |it| it.version);
    let lease = a.grant_place().await.ok()?.id;
    a.take_place(run(1), before, lease).await.ok()?;
    let held = b.manager().await.ok()??;
    must_last(a.keep_place(run(1), lease).await)?;
    let kept = b.manager().await.ok()??;
    let is_kept = kept == held && held.value.run == run(1) && !held.value.is_doubted();
    is_kept.then_some(())?;
    // Its holder answers.
    b.doubt_place(&held, Doubt::OfOne).await.ok()?;
    let doubted = b.manager().await.ok()??;
    let is_seen = doubted.value.is_doubted() && doubted.value.run == run(1);
    is_seen.then_some(())?;
    must_last(a.keep_place(run(1), lease).await)?;
    let other = b.grant_place().await.ok()?.id;
    let taken = b.take_place(run(2), doubted.version, other).await;
    let refused = taken.expect_err("its holder has answered").kind();
    (refused == ErrorKind::Changed).then_some(())?;
    // It doesn't.
    let answered = b.manager().await.ok()??;
    (!answered.value.is_doubted()).then_some(())?;
    b.doubt_place(&answered, Doubt::OfOne).await.ok()?;
    let doubted = b.manager().await.ok()??;
    doubted.value.is_doubted().then_some(())?;
    b.take_place(run(2), doubted.version, other).await.ok()?;
    let late = a.keep_place(run(1), lease).await;
    let late = late.expect_err("another one has the place").kind();
    (late == ErrorKind::NotFound).then_some(())?;
    // It isn't heard by most: it never answers that.
    let held = a.manager().await.ok()??;
    a.doubt_place(&held, Doubt::OfMost).await.ok()?;
    for _ in 0..2 {
        let kept = b.keep_place(run(2), other).await.ok()?;
        assert_eq!(kept, Kept::Unheard, "nobody takes that back");
    }
    let doubted = a.manager().await.ok()??;
    let is_same = doubted.value.is_unheard() && doubted.value.lease() == other;
    is_same.then_some(())
}

/// `None` if nothing is known of it.
fn must_last(kept: Result<Kept>) -> Option<()> {
    let kept = kept.ok()?;
    assert_eq!(kept, Kept::Longer, "its holder may only be late");
    Some(())
}

pub(super) async fn a_place_that_is_doubted_can_be_taken_until_its_holder_answers(body: Body) {
    for _ in 0..ROUNDS_MAX {
        if doubted_place(&body).await.is_some() {
            return;
        }
    }
    panic!("{ROUNDS_MAX} rounds met a fault");
}

pub(super) async fn only_the_manager_of_the_membership_as_it_is_assigns_shards(body: Body) {
    let [a, b] = [body.patient(0), body.patient(1)];
    let record = ShardRecord {
        shard: SHARD,
        families: vec![FamilyId(2)],
        assigned: Some(run(3)),
        epoch: ShardEpoch(0),
        owner: SessionId(0),
        view: vec![],
        first_entry: EntryNumber(1),
        closed: vec![],
        ended: vec![],
        trimmed_below: EntryNumber(1),
        marker: 0,
    };
    // Refused if an attempt with an unknown outcome has made it.
    drop(a.until_answered(|| a.store.set_shard(0, &record)).await);
    let assign = async |patient: &Patient, from, to, members| {
        let store = &patient.store;
        let ask = || store.assign_shard_as_manager(SHARD, from, to, members);
        let assigned: Result<_> = patient.until_answered(ask).await.1;
        assigned.map(|record| record.value.assigned)
    };
    let first = store(&a, 0, &term(1, 1)).await.unwrap();
    let (old, new) = (Some(run(3)), Some(run(4)));
    assert_eq!(assign(&a, old, None, first).await.unwrap(), None);
    assert_eq!(assign(&a, None, new, first).await.unwrap(), new);
    let second = store(&b, first, &term(2, 2)).await.unwrap();
    let late = assign(&a, new, old, first).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::OldEpoch);
    let wrong = assign(&b, old, None, second).await.unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::Changed);
    assert_eq!(assign(&b, new, old, second).await.unwrap(), old);
}
