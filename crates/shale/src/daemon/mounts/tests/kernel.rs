//! Mounts that a kernel has, of a node whose file systems are opened when a test lets them.

use super::super::{Mounts, OneMount};
use super::opened;
use crate::daemon::file_systems::{FileSystems, OpenFileSystem};
use crate::options::Options;
use client::{Losses, Owner};
use fuse::{Mount, MountOptions, TransportChoice, Unmount};
use futures::future::{BoxFuture, pending};
use model::owner::{LockCall, OwnerReply, OwnerRequest};
use model::{ErrorKind, FileSystemName, Result};
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use testkit::memory::{MemoryFileSystem, MemorySettings};
use tokio::sync::Semaphore;
use world::World;
use world::call::{Asked, Local};

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
            open: Semaphore::new(0),
        })
    }

    /// Waits until somebody asks for the file system.
    async fn until_asked(&self) {
        self.asked.acquire().await.unwrap().forget();
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
    let place = home.join(name);
    std::fs::create_dir(&place).unwrap();
    let mut how = MountOptions::new(&place);
    how.name = home.display().to_string();
    how.transport = TransportChoice::Classic;
    let shown = Arc::new(MemoryFileSystem::new(world, MemorySettings::default()));
    let of_mount = world.clone();
    let mounted = world.blocking(move || Mount::start(&of_mount, shown, &how));
    Arc::new(OneMount {
        mount: mounted.await.unwrap(),
        options: Options::parse(&format!("fs={name}")).unwrap(),
        file_system: gate.file_system.clone(),
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
        let mut again = pin!(mounts.add_again(&one));
        tokio::select! {
            made = &mut again => panic!("{made:?}"),
            () = gate.until_asked() => {}
        }
        one.mount.detach_dead().await.unwrap();
        gate.open.add_permits(1);
        let refused = again.await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NotFound, "{refused}");
        assert!(fuse::shale_on(&home.join("mnt")).is_none());
        assert!(mounts.lines().is_empty());
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
            tokio::select! {
                ended = &mut ending => panic!("{ended:?}"),
                () = gate.until_asked() => {}
            }
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
            tokio::select! {
                ended = &mut ending => panic!("{ended:?}"),
                () = gate.until_asked() => {}
            }
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
