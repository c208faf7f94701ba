//! Mounts of a node whose file systems can't be opened: what doesn't need a kernel. What does is in `kernel`.

mod kernel;

use super::*;
use client::{Client, ClientSettings, Losses, Owner, OwnerWay, Owners, RemoteOwner};
use futures::FutureExt;
use futures::future::{BoxFuture, pending, ready};
use model::map::{Generation, PoolMap};
use model::operation::{Rank, Ranked};
use model::owner::{LockCall, OwnerReply, OwnerRequest};
use model::{FileKind, GroupId, InodeId, MapEpoch, Operation, Reply, Scheme, SessionId, ShardId};
use pool::Pool;
use world::call::{Asked, Local};
use world::sim::Simulation;
use world::{Deadline, Instant};

/// The owner of the first file system doesn't answer, and there is no other one.
struct Unreachable;

impl FileSystems for Unreachable {
    fn open<'a>(
        self: Arc<Self>,
        name: Option<&'a FileSystemName>,
    ) -> BoxFuture<'a, Result<Arc<OpenFileSystem>>> {
        let refused = Err(Error::from(ErrorKind::NotFound));
        match name {
            None => Box::pin(pending::<Result<Arc<OpenFileSystem>>>()),
            Some(_) => Box::pin(ready(refused)),
        }
    }

    fn opened(&self) -> Vec<Arc<OpenFileSystem>> {
        Vec::new()
    }

    fn losses(&self) -> Losses {
        Losses::default()
    }
}

#[test]
fn a_file_system_whose_owner_does_not_answer_holds_up_no_other_mount() {
    let run = Simulation::new(1).run(async |world: World| {
        let mounts = Mounts::new(&world, Arc::new(Unreachable), PathBuf::from("node"), None);
        let (first, other) = (Options::default(), Options::parse("fs=other").unwrap());
        let place = Path::new("/nowhere");
        let mut waits = Box::pin(mounts.add(place, &first));
        assert!(waits.as_mut().now_or_never().is_none());
        let refused = mounts.add(place, &other).now_or_never();
        let refused = refused.expect("it doesn't wait for the first one");
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::NotFound);
        // A daemon on demand doesn't end while somebody tries to mount.
        assert!(!mounts.close_if_none().await);
        drop(waits);
        assert!(mounts.close_if_none().await);
        let refused = mounts.add(place, &other).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ShuttingDown);
    });
    run.finished();
}

/// Would be broken if one mistyped path left a daemon that nobody can reach, nor it its own files.
#[test]
fn no_mount_covers_the_directory_of_its_node() {
    let home = tempfile::tempdir().unwrap();
    let at = |path: &str| home.path().join(path);
    let dir = at("a/node");
    std::fs::create_dir_all(dir.join("mnt")).unwrap();
    std::os::unix::fs::symlink(&dir, at("link")).unwrap();
    let covering = [dir.clone(), at("a"), at("link"), "/".into()];
    for place in &covering {
        let refused = check_place(&dir, place).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        assert!(refused.to_string().contains("another place"), "{refused}");
    }
    // It isn't made yet.
    check_place(&at("b/node"), &at("b")).unwrap_err();
    for place in [dir.join("mnt"), at("a/nod"), at("a/node2"), at("b")] {
        check_place(&dir, &place).unwrap();
    }
    let run = Simulation::new(1).run(move |world: World| async move {
        let mounts = Mounts::new(&world, Arc::new(Unreachable), source_of(&dir), None);
        for place in covering {
            let refused = mounts.add(&place, &Options::default()).now_or_never();
            let refused = refused.expect("nobody is asked first").unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        }
    });
    run.finished();
}

/// No node owns any shard.
struct Nobody(World);

impl Owners for Nobody {
    fn owner(&self) -> Option<OwnerWay> {
        None
    }

    fn refresh(&self, deadline: Deadline) -> BoxFuture<'_, ()> {
        Box::pin(self.0.sleep(deadline.rest(&self.0)))
    }

    fn replaced(&self) -> BoxFuture<'_, ()> {
        Box::pin(pending())
    }

    fn usable_until(&self) -> Option<Instant> {
        None
    }
}

/// A file system that is open, with this owner, and without NSDs.
fn opened(world: &World, owner: Owner) -> Arc<OpenFileSystem> {
    let generation = Generation {
        first_group: GroupId(0),
        groups: 1,
        scheme: Scheme::Replicate(1),
        block_bytes: None,
        seed: 1,
        seeded: testkit::disks::entries(1),
        exceptions: BTreeMap::new(),
        versions: BTreeMap::new(),
    };
    let map = PoolMap {
        epoch: MapEpoch(1),
        nsds: testkit::disks::entries(1),
        names: Vec::new(),
        generations: vec![generation],
    };
    let pool = Pool::new(world.clone(), map, Vec::new());
    let settings = ClientSettings::default();
    let client = Client::new(world.clone(), owner, pool, SessionId(1), settings);
    OpenFileSystem::new(client, InodeId::ROOT)
}

/// File systems that are open, and whose owners have gone.
struct Left(Arc<OpenFileSystem>);

impl Left {
    fn new(world: &World) -> Arc<Self> {
        let (owners, settings) = (Arc::new(Nobody(world.clone())), ClientSettings::default());
        let owner = RemoteOwner::new(world.clone(), ShardId(0), owners, settings.patience);
        Arc::new(Self(opened(world, Owner::There(owner))))
    }
}

impl FileSystems for Left {
    fn open<'a>(
        self: Arc<Self>,
        _: Option<&'a FileSystemName>,
    ) -> BoxFuture<'a, Result<Arc<OpenFileSystem>>> {
        Box::pin(ready(Ok(self.0.clone())))
    }

    fn opened(&self) -> Vec<Arc<OpenFileSystem>> {
        vec![self.0.clone()]
    }

    fn losses(&self) -> Losses {
        Losses::default()
    }
}

/// An owner that never answers.
struct Silent;

impl Local<OwnerRequest, Result<OwnerReply>> for Silent {
    fn ask<'a>(&'a self, _: &'a OwnerRequest) -> Asked<'a, Result<OwnerReply>> {
        Asked::Waits(Box::pin(pending()))
    }
}

/// Would be broken if whoever mounts a file system that is open, or has an ended mount made again, were told nothing for as long as
/// the node has no lease.
#[test]
fn who_mounts_is_told_in_time_that_no_owner_answers() {
    let run = Simulation::new(3).run(async |world: World| {
        let opened = opened(&world, Owner::Here(Arc::new(Silent)));
        let left = Arc::new(Left(opened));
        let mounts = Mounts::new(&world, left, PathBuf::from("node"), None);
        for list in ["ro", "subdir=projects"] {
            let options = Options::parse(list).unwrap();
            let adding = mounts.add(Path::new("/nowhere"), &options);
            let told = world.timeout(ASKING_MAX * 2, adding).await;
            let refused = told.expect("it is told").unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Unavailable);
            assert!(refused.to_string().contains("shale waiters"), "{refused}");
        }
    });
    run.finished();
}

/// An owner that does at once what it is asked, and gives some answers after a mount is given up.
struct Late {
    world: World,
    is_late: fn(&OwnerRequest) -> bool,
    /// How often its session holds an inode, and its doors.
    uses: watch::Sender<u32>,
}

impl Late {
    /// Every name is that of a directory.
    fn execute(operation: &Operation) -> OwnerReply {
        let inode = InodeId(InodeId::ROOT.0 + 1);
        let attributes = testkit::inodes::attributes(inode, FileKind::Directory);
        let reply = match operation {
            Operation::Lookup { .. } => Reply::Entry {
                attributes,
                directory: None,
            },
            _ => Reply::Attributes {
                attributes,
                unfinished: false,
            },
        };
        let rank = Rank::default();
        OwnerReply::Operation(Ranked { reply, rank })
    }
}

impl Local<OwnerRequest, Result<OwnerReply>> for Late {
    fn ask<'a>(&'a self, request: &'a OwnerRequest) -> Asked<'a, Result<OwnerReply>> {
        let answer = match request {
            OwnerRequest::Execute { operation, .. } => Ok(Self::execute(operation)),
            OwnerRequest::Hold { .. } | OwnerRequest::Lock(LockCall::BeginDoor(_)) => {
                self.uses.send_modify(|uses| *uses += 1);
                Ok(OwnerReply::Done)
            }
            OwnerRequest::Unhold { .. } | OwnerRequest::Lock(LockCall::EndDoor(_)) => {
                self.uses.send_modify(|uses| *uses -= 1);
                Ok(OwnerReply::Done)
            }
            _ => return Asked::Waits(Box::pin(pending())),
        };
        if !(self.is_late)(request) {
            return Asked::Ready(answer);
        }
        let late = self.world.sleep(ASKING_MAX * 2);
        Asked::Waits(Box::pin(async move {
            late.await;
            answer
        }))
    }
}

/// Would be broken if a mount that is given up kept its root, which nobody could delete as long as the file system is open, or its
/// door, of which a session has 4,096.
#[test]
fn a_mount_that_is_given_up_leaves_nothing_open() {
    let late: [fn(&OwnerRequest) -> bool; 3] = [
        |request| matches!(request, OwnerRequest::Hold { .. }),
        |request| {
            matches!(
                request,
                OwnerRequest::Execute {
                    operation: Operation::GetAttributes { .. },
                    ..
                }
            )
        },
        |request| matches!(request, OwnerRequest::Lock(LockCall::BeginDoor(_))),
    ];
    for is_late in late {
        let run = Simulation::new(4).run(move |world: World| async move {
            let owner = Arc::new(Late {
                world: world.clone(),
                is_late,
                uses: watch::Sender::new(0),
            });
            let left = Arc::new(Left(opened(&world, Owner::Here(owner.clone()))));
            let mounts = Mounts::new(&world, left, PathBuf::from("node"), None);
            let options = Options::parse("subdir=projects").unwrap();
            let refused = mounts.add(Path::new("/nowhere"), &options).await;
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unavailable);
            let mut uses = owner.uses.subscribe();
            assert!(*uses.borrow() > 0, "it has begun");
            let ended = world.timeout(ASKING_MAX * 4, uses.wait_for(|uses| *uses == 0));
            ended.await.expect("it ends").unwrap();
        });
        run.finished();
    }
}

/// Would be broken if what a door releases were still with a client that leaves: the one that goes on would hold it for ever.
#[test]
fn a_door_is_waited_for_until_it_has_released_what_it_had() {
    let run = Simulation::new(5).run(async |world: World| {
        let owner = Arc::new(Late {
            world: world.clone(),
            is_late: |request| matches!(request, OwnerRequest::Unhold { .. }),
            uses: watch::Sender::new(0),
        });
        let left = Arc::new(Left(opened(&world, Owner::Here(owner))));
        let mounts = Mounts::new(&world, left, PathBuf::from("node"), None);
        let options = Options::parse("subdir=projects").unwrap();
        let prepared = mounts.prepare(&options).await.unwrap();
        let door = prepared.door.clone().unwrap();
        let released = door.until_released().now_or_never();
        released.expect("it releases nothing");
        // As when its mount ends.
        drop(prepared);
        let begun = world.now();
        door.until_released().await;
        assert!(
            world.now() - begun >= ASKING_MAX * 2,
            "the owner takes that"
        );
    });
    run.finished();
}

/// Would be broken if a mount asked its owner while no other one may be made, or all be ended.
#[test]
fn an_owner_that_has_gone_holds_up_no_other_mount_nor_their_end() {
    let run = Simulation::new(2).run(async |world: World| {
        let mounts = Mounts::new(&world, Left::new(&world), PathBuf::from("node"), None);
        let options = Options::default();
        let mut waits = Box::pin(mounts.add(Path::new("/nowhere"), &options));
        let early = world.timeout(Duration::from_secs(1), waits.as_mut()).await;
        assert!(early.is_err(), "it asks its owner");
        let ended = mounts.end_all(Unmount::IfIdle).now_or_never();
        let ended = ended.expect("nothing is being mounted");
        assert!(ended.unwrap().is_empty());
        let refused = waits.await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unavailable);
    });
    run.finished();
}

/// Would be broken if `shale down --kill` left a dead mount, and said nothing of it, because the table of mounts couldn't be
/// read.
#[test]
fn mounts_that_cannot_be_seen_are_not_none() {
    let home = tempfile::tempdir().unwrap();
    let unreadable = Err(ErrorKind::Unavailable.into());
    let refused = mounts_in(unreadable, home.path()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    let nowhere = home.path().join("nowhere");
    for dir in [home.path(), &nowhere] {
        let none = mounts_in(Ok(Vec::new()), dir).unwrap();
        assert!(none.is_empty(), "{none:?}");
    }
}
