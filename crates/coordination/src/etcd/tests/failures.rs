//! Three members, of which some are killed or hang: what goes on, and what waits.

use super::servers::{Servers, in_real_time};
use crate::{Change, Coordination, LeaseId, News, Watch};
use futures::future::join3;
use model::{ErrorKind, Result};
use std::time::Duration;
use world::{Deadline, World};

/// How long anything may take on a busy machine before it counts as broken.
const BROKEN: Duration = Duration::from_secs(90);
/// A request's deadline, and much more than a busy machine adds.
const ANSWERED: Duration = Duration::from_secs(20);

/// Someone who changes a key, keeps a lease and watches, and whom nothing may escape.
struct User {
    world: World,
    store: Coordination,
    version: u64,
    changes: u64,
    lease: LeaseId,
    watch: Watch,
    told: Vec<u64>,
}

impl User {
    async fn new(world: &World, servers: &Servers) -> Self {
        let store = Coordination::etcd(world, &servers.settings_of_its_own()).unwrap();
        let lease = store.grant(Duration::from_secs(600)).await.unwrap().id;
        let leased = Change::put_leased("leased", 0, "x", lease);
        store.transaction(vec![leased]).await.unwrap();
        let revision = store.list("").await.unwrap().revision;
        Self {
            world: world.clone(),
            watch: store.watch("counter", revision),
            store,
            version: 0,
            changes: 0,
            lease,
            told: Vec::new(),
        }
    }

    /// One of each request.
    async fn ask(&mut self) -> Result<()> {
        self.store.get("leased").await?;
        let ttl = self.store.keep_alive(self.lease).await?;
        assert_eq!(ttl, Duration::from_secs(600));
        let next = (self.changes + 1).to_string();
        let change = Change::put("counter", self.version, next);
        self.version = self.store.transaction(vec![change]).await?;
        self.changes += 1;
        Ok(())
    }

    /// Asks until all is answered again. After an unknown outcome it looks what has happened.
    async fn ask_patiently(&mut self) {
        let end = Deadline::after(&self.world, BROKEN);
        while let Err(error) = self.ask().await {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert!(!end.has_passed(&self.world), "it doesn't go on: {error}");
            self.world.sleep(Duration::from_millis(100)).await;
            let Ok(now) = self.store.get("counter").await else {
                continue;
            };
            if let Some(now) = now.found {
                let value: u64 = std::str::from_utf8(&now.value).unwrap().parse().unwrap();
                assert!(value == self.changes || value == self.changes + 1);
                (self.version, self.changes) = (now.version, value);
            }
        }
    }

    /// What the watch tells until it has told of all changes.
    async fn hear(&mut self) {
        let end = Deadline::after(&self.world, BROKEN);
        while (self.told.len() as u64) < self.changes {
            match self.watch.next(Duration::from_secs(1)).await {
                News::Changed { events, .. } => {
                    assert_eq!(events.len(), 1);
                    let value = events[0].value.clone().unwrap();
                    self.told
                        .push(std::str::from_utf8(&value).unwrap().parse().unwrap());
                }
                News::Quiet => assert!(!end.has_passed(&self.world), "the watch is silent"),
                News::Lost => panic!("nothing was compacted"),
            }
        }
        assert!(
            self.told.iter().copied().eq(1..=self.changes),
            "{:?}",
            self.told
        );
    }
}

#[test]
fn one_of_three_members_is_lost_and_nothing_fails() {
    let mut servers = Servers::start(3, &[]);
    let (lost, leader) = in_real_time(async |world| {
        let leader = servers.leader(&world).await;
        // The one that is asked first, unless it leads.
        (usize::from(leader == 0), leader)
    });
    in_real_time(async |world| {
        let mut user = User::new(&world, &servers).await;
        for _ in 0..20 {
            user.ask().await.unwrap();
        }
        user.hear().await;
        servers.kill(lost);
        for _ in 0..50 {
            user.ask().await.unwrap();
        }
        user.hear().await;
        servers.begin(lost);
        for _ in 0..50 {
            user.ask().await.unwrap();
        }
        user.hear().await;
        assert_eq!(servers.leader(&world).await, leader);
    });
}

#[test]
fn when_the_leader_is_killed_requests_and_watches_go_on_by_themselves() {
    let mut servers = Servers::start(3, &[]);
    in_real_time(async |world| {
        let mut user = User::new(&world, &servers).await;
        for _ in 0..2 {
            user.ask_patiently().await;
            let leader = servers.leader(&world).await;
            servers.kill(leader);
            for _ in 0..20 {
                user.ask_patiently().await;
            }
            user.hear().await;
            servers.begin(leader);
        }
        user.ask_patiently().await;
        user.hear().await;
    });
}

#[test]
fn without_a_quorum_requests_end_at_their_deadline_and_with_one_all_goes_on() {
    let mut servers = Servers::start(3, &[]);
    in_real_time(async |world| {
        let mut user = User::new(&world, &servers).await;
        user.ask().await.unwrap();
        user.hear().await;
        servers.kill(1);
        servers.kill(2);
        let store = user.store.clone();
        let begun = world.now();
        let (read, changed, news) = join3(
            store.get("counter"),
            store.transaction(vec![Change::put("other", 0, "x")]),
            user.watch.next(Duration::from_secs(6)),
        )
        .await;
        assert!(world.now() - begun < ANSWERED);
        assert_eq!(news, News::Quiet);
        // A leader keeps leases alive until it notices, after an election time, that it leads nobody.
        let kept = store.keep_alive(user.lease).await;
        for error in [read.unwrap_err(), changed.unwrap_err(), kept.unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        }
        servers.begin(1);
        for _ in 0..5 {
            user.ask_patiently().await;
        }
        user.hear().await;
        assert!(store.get("leased").await.unwrap().found.is_some());
    });
}

#[test]
fn a_member_that_hangs_is_left_for_another_by_requests_and_watches() {
    let servers = Servers::start(3, &[]);
    in_real_time(async |world| {
        let mut user = User::new(&world, &servers).await;
        let leader = servers.leader(&world).await;
        // The one that is asked first, or one that doesn't matter.
        let hung = usize::from(leader == 0);
        user.ask().await.unwrap();
        user.hear().await;
        servers.pause(hung);
        for _ in 0..20 {
            user.ask_patiently().await;
        }
        // Its connection stays, so nothing but a question tells the watch.
        user.hear().await;
        servers.resume(hung);
        for _ in 0..20 {
            user.ask_patiently().await;
        }
        user.hear().await;
    });
}
