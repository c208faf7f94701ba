//! Several file systems of a cluster: which are made when several ask, and that none shows another's files.

use super::*;
use crate::{FIRST_FILE_SYSTEM, FileSystem};
use bytes::Bytes;
use client::OpenFlags;
use coordination::simulated::Chances;
use futures::future::join3;
use model::operation::{RangeChange, RenameMode, Stamp};
use model::{FileKind, FileName, FileSystemName, InodeId, Operation, SetAttributes};
use std::sync::atomic::{AtomicUsize, Ordering};
use testkit::inodes::{name as file_name, new_inode};

fn fs(text: &str) -> FileSystemName {
    text.parse().unwrap()
}

/// Opens a file system on a member; its root directory answers.
async fn open(member: &Member, name: &str) -> (Arc<Client>, InodeId) {
    let (name, settings) = (fs(name), ClientSettings::default());
    let opened = member.open_client_of_file_system(&name, settings);
    let (client, root) = opened.await.unwrap();
    let attributes = client.get_attributes(root).await.unwrap();
    assert_eq!(
        (attributes.inode, attributes.kind),
        (root, FileKind::Directory)
    );
    (client, root)
}

/// Each file system has a shard and a family of its own, and there is no other shard.
async fn must_be_whole(member: &Member, others: usize) {
    let all = member.file_systems().await.unwrap();
    let facts = &member.parts.coordination;
    let shards = facts.shards().await.unwrap();
    assert_eq!(shards.len(), all.len() + others, "{all:?}: {shards:?}");
    let mut ids = BTreeMap::new();
    for (name, it) in &all {
        let record = shards.iter().find(|shard| shard.shard == it.shard);
        assert_eq!(record.unwrap().families, [it.family], "{name}");
        assert_eq!(facts.shard_of(it.family).await.unwrap(), Some(it.shard));
        assert_eq!(ids.insert(it.id, name), None, "{all:?}");
    }
}

async fn close(members: [Arc<Member>; 2]) {
    for member in members {
        member.close().await.unwrap();
    }
}

#[test]
fn a_cluster_begins_with_one_file_system_and_more_are_made_and_listed_by_name() {
    let run = Simulation::new(1).run(|world| async move {
        let [first, second] = two_members(&world, 1).await;
        let none = first.file_system(&fs("data")).await.unwrap_err();
        assert!(none.to_string().contains("there are none"), "{none}");
        first.create_shard().await.unwrap();
        let owner = coordination::RootOwner {
            uid: 1_000,
            gid: 100,
        };
        let name = fs("home");
        let home = second.create_file_system_for(&name, owner).await.unwrap();
        let all = first.file_systems().await.unwrap();
        let names: Vec<_> = all.keys().map(|name| name.as_str()).collect();
        assert_eq!(names, [FIRST_FILE_SYSTEM, "home"]);
        let data = all[&fs(FIRST_FILE_SYSTEM)];
        assert_eq!(
            (data.id.0, data.shard, data.family),
            (0, ROOT_SHARD, ROOT_FAMILY)
        );
        assert_eq!(all[&fs("home")], home);
        assert_eq!((home.id.0, home.shard.0, home.family.0), (1, 1, 1));
        for member in [&first, &second] {
            let (client, root) = open(member, FIRST_FILE_SYSTEM).await;
            assert_eq!(root, InodeId::ROOT);
            client.close().await.unwrap();
            let (client, root) = open(member, "home").await;
            assert_eq!(root, home.root());
            let attributes = client.get_attributes(root).await.unwrap();
            assert_eq!((attributes.uid, attributes.gid), (1_000, 100));
            client.close().await.unwrap();
        }
        must_be_whole(&first, 0).await;
        close([first, second]).await;
    });
    run.finished();
}

#[test]
fn who_asks_for_what_cannot_be_is_told_what_to_do() {
    let run = Simulation::new(1).run(|world| async move {
        let [first, second] = two_members(&world, 1).await;
        first.create_shard().await.unwrap();
        first.create_file_system(&fs("home")).await.unwrap();
        // Also on the node that has made it: it was told so.
        for member in [&first, &second] {
            let taken = member.create_file_system(&fs("home")).await.unwrap_err();
            assert_eq!(taken.kind(), ErrorKind::Exists);
            let text = taken.to_string();
            assert!(
                text.contains("there is a file system home: choose"),
                "{text}"
            );
            let founded = member.create_shard().await.unwrap_err();
            assert_eq!(founded.kind(), ErrorKind::Exists);
        }
        // A mount could not name it.
        let refused = first.create_file_system(&fs("a,ro")).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        assert!(refused.to_string().contains("no comma"), "{refused}");
        let (name, settings) = (fs("hom"), ClientSettings::default());
        let unknown = second.open_client_of_file_system(&name, settings);
        let unknown = unknown.await.map(drop).unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::NotFound);
        let text = unknown.to_string();
        let wanted = "there is no file system hom; there are: data, home";
        assert!(text.contains(wanted), "{text}");
        for more in 0..20 {
            let name = fs(&format!("more{more:02}"));
            second.create_file_system(&name).await.unwrap();
        }
        let unknown = second
            .file_system(&fs("hom"))
            .await
            .unwrap_err()
            .to_string();
        assert!(unknown.contains("more17, and 2 more"), "{unknown}");
        must_be_whole(&first, 0).await;
        close([first, second]).await;
    });
    run.finished();
}

#[test]
fn of_two_nodes_that_ask_for_one_name_one_succeeds_and_both_can_use_it() {
    for seed in 0..20 {
        let run = Simulation::new(seed).run(move |world| async move {
            let [first, second] = two_members(&world, seed).await;
            first.create_shard().await.unwrap();
            let (name, mine, yours) = (fs("one"), fs("mine"), fs("yours"));
            let same = join(
                first.create_file_system(&name),
                second.create_file_system(&name),
            );
            let same: [Result<FileSystem>; 2] = same.await.into();
            let refused: Vec<_> = same.iter().filter_map(|it| it.as_ref().err()).collect();
            assert_eq!(refused.len(), 1, "seed {seed}: {same:?}");
            assert_eq!(
                refused[0].kind(),
                ErrorKind::Exists,
                "seed {seed}: {same:?}"
            );
            // Two of one node, too.
            let twice = fs("twice");
            let twice = join(
                first.create_file_system(&twice),
                first.create_file_system(&twice),
            );
            let twice: [Result<FileSystem>; 2] = twice.await.into();
            assert!(twice[0].is_ok(), "seed {seed}: {twice:?}");
            let refused = twice[1].as_ref().unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Exists, "seed {seed}");
            // Other names are in nobody's way, also beside somebody who wants the same numbers.
            let (shard, family) = (ShardId(3), FamilyId(3));
            let (mine, yours, numbers) = join3(
                first.create_file_system(&mine),
                second.create_file_system(&yours),
                second.create_shard_of(shard, family),
            )
            .await;
            mine.unwrap();
            yours.unwrap();
            must_be_whole(&first, usize::from(numbers.is_ok())).await;
            // The same names, and what each file system has under them.
            let all = ["data", "one", "twice", "mine", "yours"];
            for member in [&first, &second] {
                for name in all {
                    let (client, root) = open(member, name).await;
                    let file = client.create(
                        root,
                        file_name(&member.run().to_string()),
                        new_inode(FileKind::File),
                    );
                    let file = file.await.unwrap().inode;
                    client.write(file, 0, name.as_bytes()).await.unwrap();
                    client.close().await.unwrap();
                }
            }
            for name in all {
                let (client, root) = open(&second, name).await;
                for member in [&first, &second] {
                    let file = file_name(&member.run().to_string());
                    let file = client.lookup(root, file).await.unwrap().inode;
                    let read = client.read(file, 0, 100).await.unwrap().concat();
                    assert_eq!(read, name.as_bytes(), "seed {seed}");
                }
                client.close().await.unwrap();
            }
            close([first, second]).await;
        });
        run.finished();
    }
}

/// Requests and answers are lost or come late: who asks again until it is answered is told "made", never
/// that it exists, and it is made once.
#[test]
fn a_creation_of_unknown_outcome_is_asked_for_again_and_made_once() {
    const NAMES: usize = 8;
    let unknown = Arc::new(AtomicUsize::new(0));
    let made_unheard = Arc::new(AtomicUsize::new(0));
    for seed in 0..20 {
        let (unknown, made_unheard) = (unknown.clone(), made_unheard.clone());
        let run = Simulation::new(seed).run(move |world| async move {
            let store = Simulated::new(&world, seed);
            let [first, second] = two_members_with(&world, &store).await;
            first.create_shard().await.unwrap();
            store.set_chances(Chances {
                lost_request: 60,
                lost_reply: 60,
                slow: 60,
                leader_change: 10,
                ..Chances::NONE
            });
            let ask = async |member: &Member, letter: &str| {
                for number in 0..NAMES {
                    let name = fs(&format!("{letter}{number}"));
                    let mut was_unknown = false;
                    loop {
                        let made = member.create_file_system(&name).await;
                        match made.map_err(|error| error.kind()) {
                            Ok(_) => break,
                            Err(ErrorKind::Unavailable) => {
                                was_unknown = true;
                                unknown.fetch_add(1, Ordering::Relaxed);
                                let all = store.record(0);
                                let key = format!("fs/{name}");
                                let mut events = all.iter().flat_map(|it| &it.events);
                                if events.any(|event| event.key == key) {
                                    made_unheard.fetch_add(1, Ordering::Relaxed);
                                }
                            }
                            Err(kind) => panic!("seed {seed}, {name}: {kind:?}, {was_unknown}"),
                        }
                    }
                }
            };
            join(ask(&first, "a"), ask(&second, "b")).await;
            store.heal();
            // What is still on its way makes nothing more.
            world.sleep(Duration::from_secs(20)).await;
            let all = first.file_systems().await.unwrap();
            assert_eq!(all.len(), 1 + 2 * NAMES, "seed {seed}");
            must_be_whole(&first, 0).await;
            for name in ["a0", "b0"] {
                let (client, _) = open(&second, name).await;
                client.close().await.unwrap();
            }
            close([first, second]).await;
        });
        run.finished();
    }
    let (unknown, made) = (unknown.as_ref(), made_unheard.as_ref());
    let counts = [unknown, made].map(|it| it.load(Ordering::Relaxed));
    assert!(counts[0] >= 20 && counts[1] >= 5, "{counts:?}");
}

fn kind<T>(result: Result<T>) -> Option<ErrorKind> {
    result.map_err(|error| error.kind()).err()
}

/// What a program sees that tries to reach one file system's inodes through another: ESTALE, or EXDEV where both
/// are named. The owner says so; clients don't choose.
#[test]
fn no_inode_of_a_file_system_is_reached_through_another() {
    let run = Simulation::new(1).run(|world| async move {
        let [first, second] = two_members(&world, 1).await;
        first.create_shard().await.unwrap();
        for name in ["a", "b"] {
            first.create_file_system(&fs(name)).await.unwrap();
        }
        let (a, a_root) = open(&first, "a").await;
        let (b, b_root) = open(&second, "b").await;
        let f = || file_name("f");
        let mut files = Vec::new();
        for (client, root, bytes) in [(&a, a_root, b"of a"), (&b, b_root, b"of b")] {
            let made = client
                .create_and_open(root, f(), new_inode(FileKind::File))
                .await
                .unwrap();
            client.write(made.inode, 0, bytes).await.unwrap();
            client.fsync(made.inode, false).await.unwrap();
            files.push(made.inode);
        }
        let (own, other) = (files[0], files[1]);
        assert_eq!(own.number(), other.number(), "the same number in each");
        let set = SetAttributes {
            mode: Some(0o777),
            ..SetAttributes::default()
        };
        let stale = [
            kind(a.lookup(b_root, f()).await),
            kind(a.lookup_parent(b_root).await),
            kind(a.get_attributes(other).await),
            kind(a.get_attributes(b_root).await),
            kind(a.set_attributes(other, set).await),
            kind(
                a.create(b_root, file_name("new"), new_inode(FileKind::File))
                    .await,
            ),
            kind(a.create_unnamed(b_root, new_inode(FileKind::File)).await),
            kind(a.unlink(b_root, f()).await),
            kind(a.remove_directory(b_root, f()).await),
            kind(a.read_directory(b_root, 0, 10, true).await),
            kind(a.read_link(other).await),
            kind(a.get_xattr(other, b"user.x").await),
            kind(a.list_xattrs(other).await),
            kind(a.remove_xattr(other, b"user.x").await),
            kind(a.read(other, 0, 10).await),
            kind(a.write(other, 0, b"x").await),
            kind(a.append(other, b"x").await),
            kind(a.copy_range(other, 0, own, 0, 4).await),
            kind(a.copy_range(own, 0, other, 0, 4).await),
            kind(a.open(other, OpenFlags::default()).await),
        ];
        assert_eq!(stale, [Some(ErrorKind::Stale); 20]);
        let replace = RenameMode::Replace;
        let crossing = [
            kind(a.link(other, a_root, file_name("new")).await),
            kind(a.link(own, b_root, file_name("new")).await),
            kind(a.rename(a_root, f(), b_root, f(), replace).await),
            kind(
                a.rename(b_root, f(), a_root, file_name("new"), replace)
                    .await,
            ),
            kind(
                a.rename(a_root, f(), b_root, f(), RenameMode::Exchange)
                    .await,
            ),
        ];
        assert_eq!(crossing, [Some(ErrorKind::OtherFileset); 5]);
        // The owner itself, whoever asks.
        let shard = first.file_system(&fs("a")).await.unwrap().shard;
        let hosted = [&first, &second].map(|member| member.hosted_of(shard));
        let owner = hosted.into_iter().flatten().next().unwrap();
        let stamp = Stamp::own(world.wall(), SessionId(1));
        for operation in of_another(other, b_root, f()) {
            let refused = kind(owner.execute(&operation, &stamp).await);
            assert_eq!(refused, Some(ErrorKind::Stale), "{operation:?}");
        }
        // Both are as they were.
        for (client, root, bytes) in [(&a, a_root, b"of a"), (&b, b_root, b"of b")] {
            let listing = client.read_directory(root, 0, 10, false).await.unwrap();
            assert_eq!(listing.entries.len(), 1);
            let file = client.lookup(root, f()).await.unwrap();
            assert_eq!((file.size, file.links, file.mode), (4, 1, 0o755));
            let read = client.read(file.inode, 0, 10).await.unwrap().concat();
            assert_eq!(read, bytes);
            client.close().await.unwrap();
        }
        close([first, second]).await;
    });
    run.finished();
}

/// Operations on another file system's file and root directory.
fn of_another(inode: InodeId, directory: InodeId, name: FileName) -> Vec<Operation> {
    let x = Bytes::from_static(b"user.x");
    vec![
        Operation::Lookup {
            directory,
            name: name.clone(),
        },
        Operation::GetAttributes { inode },
        Operation::Create {
            directory,
            name: name.clone(),
            new: new_inode(FileKind::File),
        },
        Operation::Unlink { directory, name },
        Operation::ReadDirectory {
            directory,
            after: 0,
            limit: 10,
            with_attributes: false,
        },
        Operation::GetXattr { inode, name: x },
        Operation::ReadExtents {
            inode,
            offset: 0,
            length: 4,
            limit: 10,
        },
        Operation::ChangeRange {
            inode,
            offset: 0,
            length: 4,
            change: RangeChange::Punch,
            keep_size: true,
        },
    ]
}
