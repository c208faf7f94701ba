//! A shard that is taken in good order from the node of its only client.

use super::*;
use client::{HoldUp, Losses, NearOwner, OwnerWay};
use model::owner::NearAnswer;
use model::{CommitNumber, FileKind, ShardEpoch};
use std::sync::atomic::{AtomicBool, Ordering};
use testkit::content::content;
use testkit::inodes::{name, new_inode};
use world::call::Asked;

/// Nobody is assigned the shard any more: its owner gives it up, and the manager finds another one.
async fn release(world: &World, owner: &Member) {
    let facts = &owner.parts.coordination;
    let deadline = Deadline::after(world, WAIT_MAX);
    loop {
        let members = facts.membership().await.unwrap().unwrap();
        let run = Some(owner.run());
        let released = facts.assign_shard_as_manager(ROOT_SHARD, run, None, members.version);
        if released.await.is_ok() {
            return;
        }
        assert!(!deadline.has_passed(world), "it is released");
    }
}

/// Waits until the shard has a later owner than that of an epoch.
async fn until_followed(world: &World, epoch: ShardEpoch, members: [&Member; 2]) {
    let is_next = || {
        let mut epochs = members
            .iter()
            .filter_map(|it| Some(it.hosted()?.shard_status().epoch));
        epochs.any(|it| it > epoch)
    };
    until(world, "it has another owner", is_next).await;
}

/// Would be broken if a client had no way to its own owner while nobody is assigned the shard: it couldn't say that it has
/// given back what it had, or wouldn't hear that it shall. Each move would take as long as that is waited for, and programs
/// would wait as long or lose what they have open.
#[test]
fn a_client_that_has_everything_gives_it_back_as_soon_as_its_node_shall() {
    for seed in 0..4 {
        let run = Simulation::new(seed).run(move |world| async move {
            let [first, second] = two_members(&world, seed).await;
            first.create_shard().await.unwrap();
            until(&world, "it is served", || first.hosted().is_some()).await;
            let opened = first.open_client_of(ROOT_SHARD, ClientSettings::default());
            let client = opened.await.unwrap();
            until(&world, "it is alone", || client.asked().is_alone()).await;
            // At any moment between two looks of the client.
            world.sleep(Duration::from_millis(seed * 57)).await;
            let epoch = first.hosted().unwrap().shard_status().epoch;
            let begun = world.now();
            release(&world, &first).await;
            until_followed(&world, epoch, [&first, &second]).await;
            let took = world.now() - begun;
            assert!(took < Duration::from_secs(10), "seed {seed}: {took:?}");
            client.get_attributes(ROOT_FAMILY.root()).await.unwrap();
            assert_eq!(client.losses(), Losses::default(), "seed {seed}");
            client.close().await.unwrap();
            first.close().await.unwrap();
            second.close().await.unwrap();
        });
        run.finished();
    }
}

/// The way of a client to owners: one in its process isn't asked for what publishes as long as this is on.
struct HeldUp<T: ?Sized> {
    world: World,
    to: Arc<T>,
    is_on: Arc<AtomicBool>,
}

impl Owners for HeldUp<dyn Owners> {
    fn owner(&self) -> Option<OwnerWay> {
        Some(match self.to.owner()? {
            OwnerWay::Near(to) => OwnerWay::Near(Arc::new(HeldUp {
                world: self.world.clone(),
                to,
                is_on: self.is_on.clone(),
            })),
            far => far,
        })
    }

    fn refresh(&self, deadline: Deadline) -> BoxFuture<'_, ()> {
        self.to.refresh(deadline)
    }

    fn replaced(&self) -> BoxFuture<'_, ()> {
        self.to.replaced()
    }

    fn usable_until(&self) -> Option<Instant> {
        self.to.usable_until()
    }

    fn held_up_since(&self, since: Instant) -> Option<HoldUp> {
        self.to.held_up_since(since)
    }
}

impl HeldUp<dyn NearOwner> {
    fn holds_up(&self, request: &OwnerRequest) -> bool {
        request.is_publish() && self.is_on.load(Ordering::Relaxed)
    }
}

impl NearOwner for HeldUp<dyn NearOwner> {
    fn tenure(&self) -> Tenure {
        self.to.tenure()
    }

    fn ask(&self, request: &OwnerRequest) -> Option<Asked<'static, NearAnswer>> {
        match self.holds_up(request) {
            true => None,
            false => self.to.ask(request),
        }
    }

    fn call<'a>(&'a self, call: &'a OwnerCall, deadline: Deadline) -> BoxFuture<'a, NearAnswer> {
        Box::pin(async move {
            while self.holds_up(&call.request) {
                self.world.sleep(Duration::from_millis(1)).await;
            }
            self.to.call(call, deadline).await
        })
    }

    fn has_durable(&self, commit: CommitNumber) -> bool {
        self.to.has_durable(commit)
    }

    fn sync(&self) -> BoxFuture<'_, Result<()>> {
        self.to.sync()
    }
}

/// Would be broken if a client's session ended with its owner because it has much to publish, or slow disks: what its
/// programs haven't synced would be lost by a move that somebody plans.
#[test]
fn what_a_client_cannot_publish_before_a_move_it_publishes_at_the_next_owner() {
    for seed in 0..4 {
        let run = Simulation::new(seed).run(move |world| async move {
            let [first, second] = two_members(&world, seed).await;
            first.create_shard().await.unwrap();
            until(&world, "it is served", || first.hosted().is_some()).await;
            let is_on = Arc::<AtomicBool>::default();
            let (time, on) = (world.clone(), is_on.clone());
            let wrap = move |to: Arc<dyn Owners>| {
                let held_up: Arc<dyn Owners> = Arc::new(HeldUp {
                    world: time,
                    to,
                    is_on: on,
                });
                held_up
            };
            let opened = first.open_client_through(ROOT_SHARD, ClientSettings::default(), wrap);
            let client = opened.await.unwrap();
            until(&world, "it is alone", || client.asked().is_alone()).await;
            let root = ROOT_FAMILY.root();
            let made = client.create_and_open(root, name("f"), new_inode(FileKind::File));
            let file = made.await.unwrap().inode;
            is_on.store(true, Ordering::Relaxed);
            let written = content(seed, 300_000);
            client.write(file, 0, &written).await.unwrap();
            let session = client.session();
            let epoch = first.hosted().unwrap().shard_status().epoch;
            let begun = world.now();
            release(&world, &first).await;
            until_followed(&world, epoch, [&first, &second]).await;
            let took = world.now() - begun;
            let was_waited_for = took > Duration::from_secs(9);
            assert!(was_waited_for, "seed {seed}: all was published: {took:?}");
            is_on.store(false, Ordering::Relaxed);
            client.fsync(file, false).await.unwrap();
            let read = client.read(file, 0, written.len()).await.unwrap();
            assert!(read.concat() == written, "seed {seed}");
            let now = (client.session(), client.losses());
            assert_eq!(now, (session, Losses::default()), "seed {seed}");
            client.release(file).await;
            client.close().await.unwrap();
            first.close().await.unwrap();
            second.close().await.unwrap();
        });
        run.finished();
    }
}
