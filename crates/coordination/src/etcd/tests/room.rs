//! Room in the database of an etcd whose members can't all do their part, or take long for it. In simulated time.

use super::strangers::{READ, Reply, Stranger, run, stranger, works};
use super::{Etcd, EtcdSettings};
use model::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use world::World;

const ALARMED: &str =
    r#"{"header":{"cluster_id":"7","revision":"6"},"alarms":[{"memberID":"1","alarm":"NOSPACE"}]}"#;
/// What a member says whose disk is full.
const NO_SPACE: &str = r#"{"error":"write db.tmp.1: no space left on device","code":2}"#;

/// How a member answers that is to rewrite its database.
type Rewrites = fn() -> Reply;

/// A member of a full etcd. `asked`: how often any of them was asked for alarms, or to end one: one is listed at first, and
/// none from then on.
fn full(asked: Arc<AtomicUsize>, rewrites: Rewrites) -> impl Fn(&str) -> Reply + Send + Sync {
    move |path: &str| match path {
        "/v3/maintenance/alarm" => match asked.fetch_add(1, Ordering::Relaxed) {
            0 => Reply::Answer(200, ALARMED),
            _ => Reply::Answer(200, READ),
        },
        "/v3/maintenance/defragment" => rewrites(),
        path => works(path),
    }
}

/// An etcd of three members, of which each rewrites its database as it is said here.
async fn three(world: &World, rewrites: [Rewrites; 3]) -> (Etcd, [Stranger; 3], Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let [one, two, three] = rewrites.map(|it| stranger(world, full(asked.clone(), it)));
    let members = [one.await, two.await, three.await];
    let settings = EtcdSettings {
        endpoints: members.iter().map(|it| it.endpoint.clone()).collect(),
        prefix: "/".to_owned(),
        tls: None,
        cluster: None,
    };
    (Etcd::new(world, &settings).unwrap(), members, asked)
}

/// Would be broken if the disk of one member, which is full, kept all others from changing anything.
#[test]
fn a_member_that_cannot_rewrite_its_database_does_not_keep_the_others_full() {
    run(|world| async move {
        let rewrites: [Rewrites; 3] = [
            || Reply::Answer(500, NO_SPACE),
            // It has died of it.
            || Reply::Close,
            || Reply::Answer(200, READ),
        ];
        let (etcd, members, asked) = three(&world, rewrites).await;
        etcd.make_room().await.unwrap();
        for member in &members {
            assert!(member.asked("defragment") > 0);
        }
        // They were listed, one was ended, and none is left.
        assert_eq!(asked.load(Ordering::Relaxed), 3);
    });
}

#[test]
fn an_alarm_is_not_ended_if_no_member_can_rewrite_its_database() {
    run(|world| async move {
        let (etcd, members, asked) = three(&world, [|| Reply::Answer(500, NO_SPACE); 3]).await;
        let failed = etcd.make_room().await.unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::Unavailable);
        assert!(failed.to_string().contains("no space left"), "{failed}");
        assert!(members.iter().all(|it| it.asked("defragment") > 0));
        assert_eq!(asked.load(Ordering::Relaxed), 0);
    });
}

/// Would be broken if members that take long for large databases left no time to end the alarm: it would never end.
#[test]
fn an_alarm_is_ended_however_long_members_rewrite_their_databases() {
    run(|world| async move {
        let slow: Rewrites = || Reply::Late(Duration::from_secs(20), 200, READ);
        let (etcd, _members, asked) = three(&world, [slow; 3]).await;
        etcd.make_room().await.unwrap();
        assert_eq!(asked.load(Ordering::Relaxed), 3);
    });
}
