//! Rules of leases.

use super::Body;
use super::patient::{Follower, Patient};
use crate::{Change, LEASE_TTL_MAX, LeaseId};
use model::ErrorKind;
use std::time::Duration;

async fn put_leased(patient: &Patient, key: &str, expected: u64, lease: LeaseId) -> u64 {
    let change = Change::put_leased(key, expected, "leased", lease);
    patient.change(vec![change]).await.unwrap()
}

pub(super) async fn a_lease_lasts_at_least_its_time_and_takes_its_keys_along(body: Body) {
    let [a, b] = [body.patient(0), body.patient(1)];
    let ttl = body.pace.lease;
    // Asked once: with each attempt another lease would begin.
    let (granted, lease) = loop {
        let before = body.world.now();
        if let Ok(lease) = a.store.grant(ttl - Duration::from_millis(1)).await {
            break (before, lease);
        }
    };
    assert!(lease.ttl >= ttl, "whole seconds");
    match a
        .change(vec![Change::put_leased("key/1", 0, "x", lease.id)])
        .await
    {
        Ok(_) => {
            a.put("key/2", 0, "not leased").await;
            let gone = b.until_gone("key/1").await;
            assert!(gone - granted >= lease.ttl);
            assert!(b.get("key/2").await.is_some());
        }
        // Faults took longer than the lease: refused, or made by an attempt with an unknown outcome
        // and gone again.
        Err(error) => {
            assert!(matches!(
                error.kind(),
                ErrorKind::NotFound | ErrorKind::Changed
            ));
            assert!(body.world.now() - granted >= lease.ttl);
        }
    }
    let over = a.keep_alive(lease.id).await.unwrap_err();
    assert_eq!(over.kind(), ErrorKind::NotFound);
}

pub(super) async fn a_lease_that_is_kept_alive_goes_on(body: Body) {
    let [a, b] = [body.patient(0), body.patient(1)];
    let lease = a.grant(body.pace.kept).await;
    put_leased(&a, "key/1", 0, lease.id).await;
    let mut last = body.world.now();
    for _ in 0..body.pace.signs {
        let before = body.world.now();
        let renewed = a.store.keep_alive(lease.id).await;
        match renewed {
            Ok(ttl) => {
                assert_eq!(ttl, lease.ttl);
                last = before;
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable),
        }
        body.world.sleep(body.pace.kept / 6).await;
        let is_there = b.get("key/1").await.is_some();
        assert!(is_there || body.world.now() - last >= lease.ttl);
        if !is_there {
            return;
        }
    }
    let gone = b.until_gone("key/1").await;
    assert!(gone - last >= lease.ttl);
}

pub(super) async fn a_lease_that_is_revoked_takes_its_keys_along_at_once(body: Body) {
    let [a, b] = [body.patient(0), body.patient(1)];
    let lease = a.grant(Duration::from_secs(600)).await;
    let other = a.grant(Duration::from_secs(600)).await;
    assert_ne!(lease.id, other.id);
    put_leased(&a, "key/1", 0, lease.id).await;
    put_leased(&a, "key/2", 0, other.id).await;
    b.revoke(lease.id).await.unwrap();
    let left = a.values("key/").await;
    assert_eq!(left, [("key/2".into(), "leased".into())]);
    let again = b.store.revoke(lease.id).await.unwrap_err().kind();
    assert!(matches!(
        again,
        ErrorKind::NotFound | ErrorKind::Unavailable
    ));
    let late = a.keep_alive(lease.id).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::NotFound);
    assert_eq!(a.keep_alive(other.id).await.unwrap(), other.ttl);
}

pub(super) async fn a_lease_that_has_ended_takes_no_keys(body: Body) {
    let a = body.patient(0);
    let lease = a.grant(body.pace.lease).await.id;
    a.revoke(lease).await.unwrap();
    let changes = vec![
        Change::put("key/1", 0, "x"),
        Change::put_leased("key/2", 0, "x", lease),
    ];
    let refused = a.change(changes).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotFound);
    assert!(a.list("key/").await.found.is_empty());
    // Versions are compared first.
    let changes = vec![Change::put_leased("key/2", 99, "x", lease)];
    let refused = a.change(changes).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Changed);
}

pub(super) async fn a_key_belongs_to_the_lease_of_its_last_change(body: Body) {
    let a = body.patient(0);
    let time = Duration::from_secs(600);
    let [first, second] = [a.grant(time).await.id, a.grant(time).await.id];
    let freed = put_leased(&a, "key/freed", 0, first).await;
    a.put("key/freed", freed, "free").await;
    let moved = put_leased(&a, "key/moved", 0, first).await;
    let moved = a
        .change(vec![Change::put_leased(
            "key/moved",
            moved,
            "moved",
            second,
        )])
        .await;
    let made_again = put_leased(&a, "key/made again", 0, first).await;
    let removal = Change::remove("key/made again", made_again);
    a.change(vec![removal]).await.unwrap();
    a.put("key/made again", 0, "free").await;
    a.revoke(first).await.unwrap();
    let left: Vec<_> = a.list("key/").await.found;
    let left: Vec<&str> = left.iter().map(|(key, _)| &key[..]).collect();
    assert_eq!(left, ["key/freed", "key/made again", "key/moved"]);
    assert_eq!(a.get("key/moved").await.unwrap().version, moved.unwrap());
    a.revoke(second).await.unwrap();
    assert_eq!(a.get("key/moved").await, None);
}

pub(super) async fn all_keys_of_a_lease_go_together(body: Body) {
    let [a, b] = [body.patient(0), body.patient(1)];
    for is_revoked in [true, false] {
        let lease = a.grant(body.pace.kept * 2).await.id;
        let keys = ["key/1", "key/2", "key/3"];
        let changes = keys.map(|key| Change::put_leased(key, 0, "x", lease));
        if a.change(changes.to_vec()).await.is_err() {
            // Faults took longer than the lease.
            continue;
        }
        let mut follower = Follower::new(&b, "key/").await;
        if is_revoked {
            a.revoke(lease).await.unwrap();
        }
        let mut steps = 0;
        while !follower.keys.is_empty() {
            assert_eq!(follower.keys.len(), 3, "all or none");
            follower.step().await;
            steps += 1;
            assert!(steps < 1000, "the lease ends");
        }
        assert!(a.list("key/").await.found.is_empty());
    }
}

pub(super) async fn a_lease_without_time_or_with_too_much_is_refused(body: Body) {
    let a = body.patient(0);
    for ttl in [Duration::ZERO, LEASE_TTL_MAX + Duration::from_millis(1)] {
        let refused = a.store.grant(ttl).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    }
    assert_eq!(a.grant(LEASE_TTL_MAX).await.ttl, LEASE_TTL_MAX);
}
