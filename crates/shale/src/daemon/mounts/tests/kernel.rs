//! Mounts that a kernel has, of a node whose file systems are opened when a test lets them.

use super::super::again::{Dead, QUICK_MAX, Tries};
use super::super::{Mounts, OneMount};
use super::opened;
use crate::daemon::events::Events;
use crate::daemon::file_systems::{FileSystems, OpenFileSystem};
use crate::daemon::watchdog::Again;
use crate::options::Options;
use client::{Losses, Owner};
use fuse::{Door, DoorSettings, FileSystem, Mount, MountOptions, TransportChoice, Unmount};
use futures::FutureExt;
use futures::future::{BoxFuture, pending};
use model::owner::{LockCall, OwnerReply, OwnerRequest, Usage};
use model::{Error, ErrorKind, FileSystemName, Result};
use parking_lot::Mutex;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use testkit::memory::{MemoryFileSystem, MemorySettings};
use testkit::own_mounts::{Cover, is_among_own_mounts};
use tokio::sync::Semaphore;
use world::World;
use world::call::{Asked, Local};

#[path = "../../../../tests/fixture/poll.rs"]
mod poll;

/// An owner that lets doors be made, and answers nothing else.
struct Doorkeeper;

impl Local<OwnerRequest, Result<OwnerReply>> for Doorkeeper {
    fn ask<'a>(&'a self, request: &'a OwnerRequest) -> Asked<'a, Result<OwnerReply>> {
        match request {
            OwnerRequest::Lock(LockCall::BeginDoor(_)) => Asked::Ready(Ok(OwnerReply::Done)),
            _ => Asked::Waits(Box::pin(pending())),
        }
    }
}

/// A file system that is opened as often as the test lets it.
struct Gate {
    file_system: Arc<OpenFileSystem>,
    /// One for each time that it was asked for.
    asked: Semaphore,
    /// By which names it was.
    names: Mutex<Vec<Option<FileSystemName>>>,
    /// How often it can't be opened before that.
    refusals: AtomicU32,
    /// One for each time that it may be opened.
    open: Semaphore,
}

impl Gate {
    fn new(world: &World) -> Arc<Self> {
        let owner = Owner::Here(Arc::new(Doorkeeper));
        Arc::new(Self {
            file_system: opened(world, owner),
            asked: Semaphore::new(0),
            names: Mutex::default(),
            refusals: AtomicU32::new(0),
            open: Semaphore::new(0),
        })
    }

    /// Waits until somebody asks for the file system, which this does before it ends.
    async fn until_asked_by<T: Debug>(&self, asking: &mut (impl Future<Output = T> + Unpin)) {
        tokio::select! {
            ended = asking => panic!("it has ended: {ended:?}"),
            asked = self.asked.acquire() => asked.unwrap().forget(),
        }
    }
}

impl FileSystems for Gate {
    fn open<'a>(
        self: Arc<Self>,
        name: Option<&'a FileSystemName>,
    ) -> BoxFuture<'a, Result<Arc<OpenFileSystem>>> {
        Box::pin(async move {
            self.names.lock().push(name.cloned());
            self.asked.add_permits(1);
            let refuse = |left: u32| left.checked_sub(1);
            let (set, get) = (Ordering::AcqRel, Ordering::Acquire);
            if self.refusals.fetch_update(set, get, refuse).is_ok() {
                return Err(Error::new(ErrorKind::Unavailable, "no owner answers"));
            }
            self.open.acquire().await.unwrap().forget();
            Ok(self.file_system.clone())
        })
    }

    fn opened(&self) -> Vec<Arc<OpenFileSystem>> {
        vec![self.file_system.clone()]
    }

    fn losses(&self) -> Losses {
        Losses::default()
    }
}

/// Runs a test of the mounts of a node with this directory.
fn run<F: Future<Output = ()>>(test: impl FnOnce(World, PathBuf, Arc<Gate>, Arc<Mounts>) -> F) {
    let directory = tempfile::tempdir().unwrap();
    let home = directory.path().canonicalize().unwrap();
    // Its end comes first, and with it that of mounts that a failed test leaves.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let world = World::real();
        let gate = Gate::new(&world);
        let mounts = Mounts::new(&world, gate.clone(), home.clone(), None);
        test(world, home, gate, mounts).await;
    });
}

/// A mount of a file system in memory, at a new directory in that of the node; it is made again as one of a file system of this
/// name.
async fn mount(world: &World, home: &Path, name: &str, gate: &Gate) -> Arc<OneMount> {
    let shown = MemoryFileSystem::new(world, MemorySettings::default());
    mount_of(world, home, name, gate, Arc::new(shown)).await
}

/// The same of another one.
async fn mount_of<F: FileSystem>(
    world: &World,
    home: &Path,
    name: &str,
    gate: &Gate,
    shown: Arc<F>,
) -> Arc<OneMount> {
    let place = home.join(name);
    std::fs::create_dir(&place).unwrap();
    let mut how = MountOptions::new(&place);
    how.name = home.display().to_string();
    how.transport = TransportChoice::Classic;
    let of_mount = world.clone();
    let mounted = world.blocking(move || Mount::start(&of_mount, shown, &how));
    Arc::new(OneMount {
        mount: Arc::new(mounted.await.unwrap()),
        options: Options::parse(&format!("fs={name},transport=fuse")).unwrap(),
        file_system: gate.file_system.clone(),
        watched: None,
        handed_over: tokio::sync::Notify::new(),
    })
}

/// Would be broken if nobody looked whether it is still there after the file system's owner was asked: that may take as long as a
/// client's patience.
#[test]
fn a_dead_mount_that_is_unmounted_while_it_is_made_again_stays_away() {
    run(|world, home, gate, mounts| async move {
        let one = mount(&world, &home, "mnt", &gate).await;
        one.mount.leave_dead().await.unwrap();
        assert!(one.mount.is_left_dead());
        let dead = Dead::of(&one).unwrap();
        let mut again = pin!(mounts.add_again(&dead));
        gate.until_asked_by(&mut again).await;
        one.mount.detach_dead().await.unwrap();
        gate.open.add_permits(1);
        let refused = again.await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NotFound, "{refused}");
        assert!(fuse::shale_on(&home.join("mnt")).unwrap().is_none());
        assert!(mounts.lines().is_empty());
    });
}

/// A mount that is dead in its place.
async fn dead_mount(world: &World, home: &Path, gate: &Gate) -> Arc<Dead> {
    let one = mount(world, home, "mnt", gate).await;
    one.mount.leave_dead().await.unwrap();
    Dead::of(&one).unwrap()
}

/// How mounts are made again of a node with this directory, which has its lease.
fn with_lease(home: &Path) -> Again {
    Again {
        events: Arc::new(Events::open(home)),
        may_serve: Box::new(|| true),
    }
}

/// Would be broken if a dead mount were given up after some seconds, or kept its client open although nobody can use it.
#[test]
fn a_dead_mount_is_tried_until_it_is_made_and_what_is_wrong_is_told_once() {
    run(|world, home, gate, mounts| async move {
        let (dead, again) = (dead_mount(&world, &home, &gate).await, with_lease(&home));
        let events = || {
            let lines = again.events.lines().into_iter();
            lines.map(|it| it.event).collect::<Vec<_>>()
        };
        mounts.left.lock().push(dead.clone());
        let mut tries = Tries::default();
        assert!((1..QUICK_MAX).all(|_| !tries.failed(Duration::ZERO)));
        // One more, and one after it was told.
        gate.refusals.store(2, Ordering::Release);
        assert!(mounts.make_dead_again(&dead, &again, &mut tries).await);
        assert_eq!(events(), ["mount-stays-dead"]);
        let place = home.join("mnt");
        let told = mounts.dead();
        assert_eq!(told, [(place.clone(), "no owner answers".to_owned())]);
        assert!(mounts.is_dead(&place) && !mounts.has(&place));
        assert_eq!(Arc::strong_count(&gate.file_system), 1, "nobody uses it");
        gate.open.add_permits(1);
        assert!(!mounts.make_dead_again(&dead, &again, &mut tries).await);
        assert_eq!(events(), ["mount-stays-dead", "mounted-again"]);
        assert!(mounts.has(&place) && mounts.dead().is_empty());
        mounts.end_all(Unmount::Forced).await.unwrap();
    });
}

/// Would be broken if the end of the mounts waited for the owner of a dead one, or as long as pauses last.
#[test]
fn a_dead_mount_that_is_tried_holds_up_no_end_and_ends_with_the_others() {
    run(|world, home, gate, mounts| async move {
        let (dead, again) = (dead_mount(&world, &home, &gate).await, with_lease(&home));
        mounts.left.lock().push(dead.clone());
        let mut tries = Tries::default();
        let mut trying = pin!(mounts.make_dead_again(&dead, &again, &mut tries));
        gate.until_asked_by(&mut trying).await;
        let soon = Duration::from_secs(60);
        let none_left = world.timeout(soon, mounts.none_left()).await;
        assert!(none_left.is_ok(), "nobody waits for it");
        assert!(!mounts.close_if_none().await, "an attempt keeps the node");
        let ended = world.timeout(soon, mounts.end_all(Unmount::IfIdle)).await;
        assert!(ended.unwrap().unwrap().is_empty());
        let goes_on = world.timeout(soon, trying).await;
        assert_eq!(goes_on, Ok(false));
        assert!(fuse::shale_on(&home.join("mnt")).unwrap().is_none());
    });
}

/// Would be broken if a mount came back that its next run is to make, or that somebody has unmounted.
#[test]
fn a_dead_mount_is_not_tried_after_its_run_or_when_it_was_unmounted() {
    run(|world, home, gate, mounts| async move {
        let (dead, again) = (dead_mount(&world, &home, &gate).await, with_lease(&home));
        mounts.left.lock().push(dead.clone());
        let mut tries = Tries::default();
        let soon = Duration::from_secs(60);
        let left = {
            let mut trying = pin!(mounts.make_dead_again(&dead, &again, &mut tries));
            gate.until_asked_by(&mut trying).await;
            let left = mounts.leave_dead().await;
            assert_eq!(world.timeout(soon, trying).await, Ok(false));
            left
        };
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].place(), home.join("mnt"));
        assert!(dead.mount.is_left(), "the next run makes it");
        let next = Mounts::new(&world, gate.clone(), home.clone(), None);
        let mut trying = pin!(next.make_dead_again(&dead, &again, &mut tries));
        gate.until_asked_by(&mut trying).await;
        dead.mount.detach().await.unwrap();
        // As `shale umount` does afterwards.
        next.settle().await;
        assert_eq!(world.timeout(soon, trying).await, Ok(false));
        assert!(!next.is_dead(&home.join("mnt")));
    });
}

/// Would be broken if programs on an expelled node got another error than EIO, or if a mount that answers passed for one that is
/// served: none could be made in its place.
#[test]
fn mounts_of_a_run_that_has_ended_give_eio_until_the_next_one_makes_them_again() {
    run(|world, home, gate, mounts| async move {
        let (one, place) = (mount(&world, &home, "mnt", &gate).await, home.join("mnt"));
        mounts.list.lock().push(one.clone());
        let held = std::fs::File::create(place.join("held")).unwrap();
        let left = mounts.leave_dead().await;
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].place(), place);
        assert!(mounts.is_dead(&place) && one.mount.is_left_dead());
        let errno = |done: std::io::Result<()>| done.map_err(|error| error.raw_os_error());
        let eio = Err(Some(libc::EIO));
        assert_eq!(errno(std::fs::create_dir(place.join("new"))), eio);
        assert_eq!(errno(held.sync_all()), eio);
        let next = Mounts::new(&world, gate.clone(), home.clone(), None);
        gate.open.add_permits(1);
        next.add_again(&Dead::of(&one).unwrap()).await.unwrap();
        assert!(next.has(&place));
        assert_eq!(errno(held.sync_all()), eio);
        next.end_all(Unmount::Forced).await.unwrap();
        drop(held);
        let soon = Duration::from_secs(60);
        let gone = world.timeout(soon, one.mount.gone()).await;
        assert!(gone.is_ok(), "its last user has gone");
    });
}

/// Would be broken if a program that keeps something of a mount whose run has ended kept the memory of that run's client, too.
#[test]
fn a_mount_of_a_run_that_has_ended_keeps_nothing_of_its_client() {
    run(|world, home, gate, mounts| async move {
        let client = &gate.file_system.client;
        let users = Arc::strong_count(client);
        let place = home.join("mnt");
        std::fs::create_dir(&place).unwrap();
        gate.open.add_permits(1);
        let options = Options::parse("transport=fuse").unwrap();
        mounts.add(&place, &options).await.unwrap();
        assert!(Arc::strong_count(client) > users, "its door asks it");
        let left = mounts.leave_dead().await;
        assert_eq!(left.len(), 1);
        let refused = std::fs::metadata(&place).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EIO));
        assert_eq!(Arc::strong_count(client), users);
        let dead = fuse::shale_on(&place).unwrap().unwrap();
        world.blocking(move || fuse::detach(&dead)).await.unwrap();
    });
}

/// Would be broken if other mounts could neither be made nor end while the owner is asked for one that comes back.
#[test]
fn mounts_that_come_back_because_another_one_is_in_use_hold_up_nobody() {
    run(|world, home, gate, mounts| async move {
        // The newest one is ended first.
        let busy = mount(&world, &home, "busy", &gate).await;
        let idle = mount(&world, &home, "idle", &gate).await;
        let held = std::fs::File::create(home.join("busy/held")).unwrap();
        mounts.list.lock().extend([busy.clone(), idle.clone()]);
        {
            let mut ending = pin!(mounts.end_all(Unmount::IfIdle));
            gate.until_asked_by(&mut ending).await;
            assert!(idle.mount.is_ended() && !busy.mount.is_ended());
            let closes = world.timeout(Duration::from_secs(60), mounts.close_if_none());
            assert_eq!(closes.await, Ok(false));
            // Nor does the daemon end because it has none for a moment.
            mounts.list.lock().clear();
            assert!(!mounts.close_if_none().await);
        }
        drop(held);
        busy.mount.unmount(Unmount::Forced).await.unwrap();
    });
}

/// Would be broken if a mount that somebody has just unmounted came back with those that are ended in vain.
#[test]
fn a_mount_that_was_unmounted_before_does_not_come_back_with_the_others() {
    run(|world, home, gate, mounts| async move {
        let busy = mount(&world, &home, "busy", &gate).await;
        let gone = mount(&world, &home, "gone", &gate).await;
        let idle = mount(&world, &home, "idle", &gate).await;
        let held = std::fs::File::create(home.join("busy/held")).unwrap();
        gone.mount.unmount(Unmount::Forced).await.unwrap();
        let all = [busy.clone(), gone, idle];
        mounts.list.lock().extend(all);
        {
            let mut ending = pin!(mounts.end_all(Unmount::IfIdle));
            gate.until_asked_by(&mut ending).await;
        }
        // The oldest one comes first.
        let first = "idle".parse::<FileSystemName>().unwrap();
        assert_eq!(*gate.names.lock(), [Some(first)]);
        drop(held);
        busy.mount.unmount(Unmount::Forced).await.unwrap();
    });
}

/// Would be broken if a daemon that ends, perhaps because its machine does, waited for an owner that has gone before it stores
/// what was written: mounts came back that it ended once more.
#[test]
fn mounts_of_a_daemon_that_ends_do_not_come_back_because_another_one_is_in_use() {
    run(|world, home, gate, mounts| async move {
        let busy = mount(&world, &home, "busy", &gate).await;
        let idle = mount(&world, &home, "idle", &gate).await;
        let held = std::fs::File::create(home.join("busy/held")).unwrap();
        mounts.list.lock().extend([busy.clone(), idle.clone()]);
        let refused = mounts.end_all_for_good(Unmount::IfIdle).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Busy);
        assert!(idle.mount.is_ended() && !busy.mount.is_ended());
        assert!(gate.names.lock().is_empty(), "nobody is asked for it");
        drop(held);
        busy.mount.unmount(Unmount::Forced).await.unwrap();
    });
}

/// Would be broken if a command that comes in the pause ended mounts whose programs are to go on, or if one were made whose requests
/// aren't held: nobody would go on with it.
#[test]
fn only_force_ends_mounts_that_are_held_and_none_is_made_beside_them() {
    run(|world, home, gate, mounts| async move {
        let one = mount(&world, &home, "one", &gate).await;
        mounts.list.lock().push(one.clone());
        let (other, options) = (home.join("other"), Options::default());
        let most = Duration::from_secs(60);
        {
            let mut begun = pin!(mounts.add(&other, &options));
            gate.until_asked_by(&mut begun).await;
            let refused = mounts.hold_all(most).await.err().unwrap();
            assert_eq!(refused.kind(), ErrorKind::Busy, "one is being made");
        }
        let make = || mounts.add(&other, &options).now_or_never();
        assert!(mounts.held_for().is_none(), "it goes on");
        let held = mounts.hold_all(most).await.unwrap();
        assert!(mounts.held_for().is_some(), "people are told");
        let refused = mounts.end_all(Unmount::IfIdle).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Busy);
        assert!(!one.mount.is_ended());
        let refused = make().expect("nobody is asked for it").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ShuttingDown);
        drop(held);
        assert!(make().is_none(), "it can be made again");
        mounts.end_all(Unmount::Forced).await.unwrap();
    });
}

/// An owner that lets doors begin and end, and tells what is used when it may.
struct Counts {
    may: Semaphore,
}

impl Local<OwnerRequest, Result<OwnerReply>> for Counts {
    fn ask<'a>(&'a self, request: &'a OwnerRequest) -> Asked<'a, Result<OwnerReply>> {
        match request {
            OwnerRequest::Lock(_) => Asked::Ready(Ok(OwnerReply::Done)),
            OwnerRequest::GetUsage => Asked::Waits(Box::pin(async move {
                self.may.acquire().await.unwrap().forget();
                Ok(OwnerReply::Usage(Usage::default()))
            })),
            _ => Asked::Waits(Box::pin(pending())),
        }
    }
}

/// Would be broken if mounts were held one after the other: each may take as long as all of them together, and the programs of
/// those before it wait for that as well.
#[test]
fn all_mounts_are_held_at_the_same_time() {
    run(|world, home, gate, mounts| async move {
        let patience = Duration::from_secs(60);
        let owner = Arc::new(Counts {
            may: Semaphore::new(0),
        });
        let file_system = opened(&world, Owner::Here(owner.clone()));
        let door = Door::new(file_system.client.clone(), DoorSettings::default());
        let door = Arc::new(door.await.unwrap());
        let slow = mount_of(&world, &home, "slow", &gate, door).await;
        let other = mount(&world, &home, "other", &gate).await;
        mounts.list.lock().extend([slow.clone(), other.clone()]);
        let place = home.join("slow");
        let asks = std::thread::spawn(move || rustix::fs::statvfs(&place));
        let waits = |one: &OneMount| !one.mount.waiting().is_empty();
        poll::eventually("a request is under way", patience, || waits(&slow));
        let mut holding = pin!(mounts.hold_all(patience * 2));
        assert!(holding.as_mut().now_or_never().is_none());
        let place = home.join("other/file");
        let writes = std::thread::spawn(move || std::fs::write(place, "held"));
        poll::eventually("the other one is held", patience, || waits(&other));
        owner.may.add_permits(1);
        let held = holding.await.unwrap();
        asks.join().unwrap().unwrap();
        assert!(waits(&other), "as long as all are held");
        drop(held);
        writes.join().unwrap().unwrap();
        mounts.end_all(Unmount::Forced).await.unwrap();
    });
}

/// Would be broken if a forced end stopped at the first mount while the table of mounts can't be read: the others hung on, or were
/// dead in their places, and nobody was told.
#[test]
fn mounts_that_cannot_be_seen_all_end_by_force_and_it_is_told_that_they_stay_there() {
    let test = "mounts_that_cannot_be_seen_all_end_by_force_and_it_is_told_that_they_stay_there";
    if !is_among_own_mounts(module_path!(), test) {
        return;
    }
    run(|world, home, gate, mounts| async move {
        let one = mount(&world, &home, "one", &gate).await;
        let two = mount(&world, &home, "two", &gate).await;
        mounts.list.lock().extend([one.clone(), two.clone()]);
        let hides_all = Cover::over(Path::new("/proc"));
        let refused = mounts.end_all(Unmount::IfIdle).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
        assert!(!one.mount.is_ended() && !two.mount.is_ended());
        let left = mounts.end_all(Unmount::Forced).await;
        drop(hides_all);
        let is_told = |left: &[String], ended: &OneMount| {
            assert!(ended.mount.is_ended());
            let told = format!("the mount at {}", ended.mount.mountpoint().display());
            assert!(left.iter().any(|it| it.starts_with(&told)), "{left:?}");
        };
        let left = left.unwrap();
        for ended in [one, two] {
            is_told(&left, &ended);
            ended.mount.detach_dead().await.unwrap();
        }
        // What somebody has mounted over one is left as well.
        let covered = mount(&world, &home, "covered", &gate).await;
        let cover = Cover::over(&home.join("covered"));
        mounts.list.lock().push(covered.clone());
        let left = mounts.end_all(Unmount::Forced).await.unwrap();
        is_told(&left, &covered);
        drop(cover);
        covered.mount.detach_dead().await.unwrap();
    });
}
