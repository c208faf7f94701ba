//! Members that join and leave, and databases that are full, of a real etcd.

use super::servers::{self, Servers, in_real_time};
use super::{Etcd, EtcdStatus};
use crate::etcd::{EtcdAlarm, EtcdMemberId, EtcdTended, EtcdTending};
use crate::{Change, Coordination};
use model::{Error, ErrorKind};
use std::time::Duration;
use world::{Deadline, World};

const READY: Duration = Duration::from_secs(60);

#[test]
fn one_member_becomes_three_and_two_again() {
    let mut servers = Servers::start(1, &[]);
    in_real_time(async |world| {
        let first = Etcd::new(&world, &servers.settings("/")).unwrap();
        let before = first.members().await.unwrap();
        assert_eq!(before.len(), 1);
        assert_eq!(
            (&before[0].name[..], before[0].is_learner),
            ("member-0", false)
        );
        let store = Coordination::etcd(&world, &servers.settings("/shale/1/")).unwrap();
        let change = Change::put("key", 0, "x");
        store.transaction(vec![change]).await.unwrap();
        let mut added = Vec::new();
        for _ in 0..2 {
            let at = servers.add();
            let url = [servers.peer_url(at)];
            let deadline = Deadline::after(&world, READY);
            let member = first.add_learner(&url, deadline).await.unwrap();
            assert!(member.is_learner && member.name.is_empty());
            assert_eq!(member.peer_urls, url);
            let soon = || Deadline::after(&world, Duration::from_secs(1));
            let again = first.add_learner(&url, soon()).await.unwrap_err();
            assert!(
                matches!(again.kind(), ErrorKind::Exists | ErrorKind::Busy),
                "{again}"
            );
            // It counts for nothing yet: all goes on although it doesn't run.
            let early = first.promote(member.id, soon()).await.unwrap_err();
            assert_eq!(early.kind(), ErrorKind::Busy, "{early}");
            store.get("key").await.unwrap();
            servers.join(&world, at).await;
            let all = Etcd::new(&world, &servers.settings("/")).unwrap();
            let status = all.until_ready(at, deadline).await.unwrap();
            assert_eq!((status.member, status.is_learner), (member.id, true));
            first.promote(member.id, deadline).await.unwrap();
            first.promote(member.id, deadline).await.unwrap();
            added.push(member.id);
        }
        let all = Etcd::new(&world, &servers.settings("/")).unwrap();
        let members = all.members().await.unwrap();
        assert_eq!(members.len(), 3);
        assert!(
            members
                .iter()
                .all(|it| !it.is_learner && it.client_urls.len() == 1)
        );
        let statuses: Vec<EtcdStatus> = all
            .status()
            .await
            .into_iter()
            .map(|it| it.1.unwrap())
            .collect();
        assert_eq!(statuses.len(), 3);
        for status in &statuses {
            assert!(status.leader.is_some() && status.cluster == statuses[0].cluster);
            assert!(status.version.starts_with("3.") && status.database_bytes >= status.used_bytes);
        }
        // With a vote of its own, a new one is the quorum with one of the others.
        let store = Coordination::etcd(&world, &servers.settings_of(&[1, 2], "/shale/1/")).unwrap();
        assert!(store.get("key").await.unwrap().found.is_some());
        let deadline = Deadline::after(&world, READY);
        first.remove(added[1], deadline).await.unwrap();
        assert_eq!(first.members().await.unwrap().len(), 2);
        let again = first.remove(added[1], deadline).await.unwrap_err();
        assert_eq!(again.kind(), ErrorKind::NotFound, "{again}");
        let unknown = first.promote(EtcdMemberId(1), deadline).await.unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::NotFound, "{unknown}");
    });
}

/// Would be broken if the member that the machine had before was started without its log: it would vote, not knowing
/// what it had agreed to.
#[test]
fn a_machine_that_lost_its_disk_is_another_member_at_its_old_address() {
    let mut servers = Servers::start(3, &[]);
    in_real_time(async |world| {
        let deadline = Deadline::after(&world, READY);
        let etcd = Etcd::new(&world, &servers.settings("/")).unwrap();
        let store = Coordination::etcd(&world, &servers.settings("/shale/1/")).unwrap();
        store
            .transaction(vec![Change::put("key", 0, "x")])
            .await
            .unwrap();
        let url = servers.peer_url(2);
        let before = etcd.members().await.unwrap();
        let old = before.iter().find(|it| it.is_at(&url)).unwrap();
        assert!(!old.was_never_started());
        servers.lose(2);
        let add = async || {
            let all = etcd.add_newcomer("member-2", &url, deadline).await.unwrap();
            all.into_iter().find(|it| it.is_at(&url)).unwrap()
        };
        let added = add().await;
        assert_ne!(added.id, old.id, "the old one has a vote, and no log");
        assert!(added.was_never_started());
        // Its answer was lost: the machine asks again, and is the same one.
        assert_eq!(add().await, added);
        assert_eq!(etcd.members().await.unwrap().len(), 3);
        servers.joins_again(2);
        servers.join(&world, 2).await;
        etcd.promote(added.id, deadline).await.unwrap();
        // With it, one of the others is enough, and nothing is gone.
        servers.kill(1);
        let rest = servers.settings_of(&[0, 2], "/shale/1/");
        let rest = Coordination::etcd(&world, &rest).unwrap();
        let end = Deadline::after(&world, READY);
        let found = loop {
            match rest.get("key").await {
                Ok(read) => break read.found,
                Err(error) => assert!(!end.has_passed(&world), "{error}"),
            }
        };
        assert_eq!(&found.unwrap().value[..], b"x");
    });
}

/// Changes a key until the database is full. Gives its version, and how the next change was refused.
async fn filled(world: &World, store: &Coordination) -> (u64, Error) {
    let (mut version, end) = (0, Deadline::after(world, READY));
    loop {
        let change = Change::put("key", version, vec![7; 500_000]);
        match store.transaction(vec![change]).await {
            Ok(now) => version = now,
            Err(error) if error.kind() == ErrorKind::NoSpace => return (version, error),
            Err(error) => {
                assert!(!end.has_passed(world), "{error}");
                // The change that fills the database may be made, and isn't answered as one that is.
                if let Ok(now) = store.get("key").await {
                    version = now.found.map_or(0, |it| it.version);
                }
            }
        }
    }
}

#[test]
fn a_full_database_refuses_changes_until_there_is_room() {
    // A database of 4 MiB, which has 1 MiB after a compaction.
    let servers = Servers::start(1, &["--quota-backend-bytes=4194304"]);
    in_real_time(async |world| {
        let etcd = Etcd::new(&world, &servers.settings("/")).unwrap();
        let store = Coordination::etcd(&world, &servers.settings("/shale/1/")).unwrap();
        let (version, full) = filled(&world, &store).await;
        assert!(full.to_string().contains("quota-backend-bytes"), "{full}");
        // Also small changes, and leases; reads go on.
        let small = vec![Change::put("small", 0, "x")];
        let refused = store.transaction(small.clone()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoSpace);
        let refused = store.grant(Duration::from_secs(5)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoSpace);
        let read = store.get("key").await.unwrap().found.unwrap();
        assert_eq!(read.version, version);
        let alarms = etcd.alarms().await.unwrap();
        assert!(matches!(alarms[..], [EtcdAlarm::NoSpace(_)]), "{alarms:?}");
        etcd.make_room().await.unwrap();
        assert_eq!(etcd.alarms().await.unwrap(), []);
        store.transaction(small).await.unwrap();
        etcd.make_room().await.unwrap();
        assert_eq!(store.get("key").await.unwrap().found.unwrap(), read);
    });
}

/// Would be broken if nobody looked, or if a member that is away kept the others full.
#[test]
fn a_full_etcd_gets_room_when_it_is_looked_after_also_while_a_member_is_away() {
    let mut servers = Servers::start(3, &["--quota-backend-bytes=4194304"]);
    in_real_time(async |world| {
        let store = Coordination::etcd(&world, &servers.settings("/shale/1/")).unwrap();
        let settings = servers.settings("/");
        let mut tending = EtcdTending::new(&world);
        let tour = tending.look(&settings).await.unwrap();
        assert_eq!((tour.members.len(), tour.done), (3, Vec::new()));
        filled(&world, &store).await;
        // The settings name one of its members only.
        let leader = servers.leader(&world).await;
        servers.kill((leader + 1) % 3);
        let named = servers.settings_of(&[leader], "/");
        let tour = tending.look(&named).await.unwrap();
        let [EtcdTended::MadeRoom(away)] = &tour.done[..] else {
            unreachable!("{:?}", tour.done);
        };
        assert_eq!(away.len(), 1, "{away:?}");
        let small = vec![Change::put("small", 0, "x")];
        store.transaction(small).await.unwrap();
    });
}

#[test]
fn another_member_leads_when_it_is_asked_to_and_one_alone_goes_on() {
    let servers = Servers::start(3, &[]);
    in_real_time(async |world| {
        let etcd = Etcd::new(&world, &servers.settings("/")).unwrap();
        let end = Deadline::after(&world, READY);
        let before = servers.leader(&world).await;
        let next = loop {
            match etcd.lead_elsewhere().await {
                Ok(next) => break next.expect("the others are as good"),
                // A busy machine has elected another one meanwhile.
                Err(error) => assert!(!end.has_passed(&world), "{error}"),
            }
        };
        let status = etcd.status_at(before).await.unwrap();
        assert_ne!(status.member, next);
        let alone = Etcd::new(&world, &servers::one().settings("/")).unwrap();
        assert_eq!(alone.lead_elsewhere().await.unwrap(), None);
    });
}

#[test]
fn a_member_that_nobody_has_started_is_not_ready_at_the_deadline() {
    let settings = servers::one().settings("/");
    in_real_time(async |world| {
        let mut wrong = settings.clone();
        // A port that nobody listens at: it was never free for others on this address.
        wrong.endpoints[0].host = "127.0.0.1".to_owned();
        wrong.endpoints[0].port = 1;
        let etcd = Etcd::new(&world, &wrong).unwrap();
        let deadline = Deadline::after(&world, Duration::from_secs(1));
        let late = etcd.until_ready(0, deadline).await.unwrap_err();
        assert_eq!(late.kind(), ErrorKind::Unavailable, "{late}");
        let etcd = Etcd::new(&world, &settings).unwrap();
        let deadline = Deadline::after(&world, READY);
        etcd.until_ready(0, deadline).await.unwrap();
    });
}
