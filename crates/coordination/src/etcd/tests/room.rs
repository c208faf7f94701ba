//! Room in the database of an etcd whose members can't all do their part, or take long for it. In simulated time.

use super::strangers::{READ, Reply, Stranger, run, stranger, works};
use super::{Etcd, EtcdSettings};
use crate::etcd::{EtcdTended, EtcdTending};
use model::ErrorKind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
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
    let etcd = Etcd::new(world, &settings(&members)).unwrap();
    (etcd, members, asked)
}

fn settings(members: &[Stranger]) -> EtcdSettings {
    EtcdSettings {
        endpoints: members.iter().map(|it| it.endpoint.clone()).collect(),
        prefix: "/".to_owned(),
        tls: None,
        cluster: None,
    }
}

/// An etcd that is looked after, and is full as often as it is said.
struct Tended {
    settings: EtcdSettings,
    members: [Stranger; 3],
    is_full: Arc<AtomicBool>,
    tending: EtcdTending,
}

impl Tended {
    async fn new(world: &World, rewrites: [Rewrites; 3]) -> Self {
        let is_full = Arc::new(AtomicBool::new(false));
        let listed = Arc::new(OnceLock::new());
        let member = |rewrites| stranger(world, tended(is_full.clone(), listed.clone(), rewrites));
        let [one, two, three] = rewrites.map(member);
        let members = [one.await, two.await, three.await];
        let lines = members.iter().enumerate().map(|(at, it)| {
            let endpoint = &it.endpoint;
            format!(r#"{{"ID":"{at}","name":"n{at}","clientURLs":["{endpoint}"]}}"#)
        });
        let lines = lines.collect::<Vec<_>>().join(",");
        let list = format!(r#"{{"header":{{"cluster_id":"7"}},"members":[{lines}]}}"#);
        listed.set(list.leak()).unwrap();
        Self {
            settings: settings(&members),
            members,
            is_full,
            tending: EtcdTending::new(world),
        }
    }

    /// Looks once, while it is full or not. What was done.
    async fn look(&mut self, is_full: bool) -> Vec<EtcdTended> {
        self.is_full.store(is_full, Ordering::Relaxed);
        let tour = self.tending.look(&self.settings).await;
        tour.unwrap().done
    }
}

/// A member that lists an alarm once whenever it is said to be full, and its etcd's members.
fn tended(
    is_full: Arc<AtomicBool>,
    listed: Arc<OnceLock<&'static str>>,
    rewrites: Rewrites,
) -> impl Fn(&str) -> Reply + Send + Sync {
    move |path: &str| match path {
        "/v3/maintenance/alarm" => match is_full.swap(false, Ordering::Relaxed) {
            true => Reply::Answer(200, ALARMED),
            false => Reply::Answer(200, READ),
        },
        "/v3/maintenance/defragment" => rewrites(),
        "/v3/cluster/member/list" => Reply::Answer(200, listed.get().copied().unwrap()),
        path => works(path),
    }
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
        let left_out = etcd.make_room().await.unwrap();
        for member in &members {
            assert!(member.asked("defragment") > 0);
        }
        let endpoints = left_out.iter().map(|it| it.endpoint.clone());
        let cannot = members[..2].iter().map(|it| it.endpoint.clone());
        assert!(endpoints.eq(cannot), "{left_out:?}");
        let why = left_out[0].error.to_string();
        assert!(why.contains("no space left"), "{why}");
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

/// Would be broken if a member that can't rewrite its database had all the others rewrite theirs at each look, for which
/// everybody waits, or if that was told as room.
#[test]
fn the_more_often_a_member_cannot_rewrite_its_database_the_later_it_is_asked_again() {
    const LOOK_EVERY: Duration = Duration::from_secs(30);
    run(|world| async move {
        let rewrites: [Rewrites; 3] = [
            || Reply::Answer(200, READ),
            || Reply::Answer(500, NO_SPACE),
            || Reply::Answer(200, READ),
        ];
        let mut etcd = Tended::new(&world, rewrites).await;
        let mut rounds = Vec::new();
        for look in 0..=50 {
            let done = etcd.look(true).await;
            world.sleep(LOOK_EVERY).await;
            let Some(done) = done.first() else {
                continue;
            };
            let EtcdTended::MadeRoom(left_out) = done else {
                unreachable!("{done:?}");
            };
            let left_out: Vec<_> = left_out.iter().map(|it| &it.endpoint).collect();
            assert_eq!(left_out, [&etcd.members[1].endpoint]);
            rounds.push(look);
        }
        // After a minute, two, four, eight, and then each ten.
        assert_eq!(rounds, [0, 2, 6, 14, 30, 50]);
        assert_eq!(etcd.members[0].asked("defragment"), rounds.len());
        // An alarm that comes after a time without one is new.
        assert_eq!(etcd.look(false).await, []);
        assert_eq!(etcd.look(true).await.len(), 1);
        assert_eq!(etcd.look(true).await, []);
    });
}

#[test]
fn an_etcd_whose_members_all_rewrite_their_databases_gets_room_at_each_look() {
    run(|world| async move {
        let rewrites: [Rewrites; 3] = [|| Reply::Answer(200, READ); 3];
        let mut etcd = Tended::new(&world, rewrites).await;
        for _ in 0..3 {
            let done = etcd.look(true).await;
            assert_eq!(done, [EtcdTended::MadeRoom(Vec::new())]);
        }
    });
}
