//! Several families in one shard.

use super::*;
use crate::rig::{SHARD, machine, power_on};
use crate::takeover::create;
use crate::{Opening, successor};
use bytes::Bytes;
use model::operation::{NewInode, Stamp};
use model::{FileKind, FileName, InodeId, Operation, Reply, Scheme, ShardId};
use namespace::{Record, Table};
use world::World;

const FAMILIES: [FamilyId; 3] = [FamilyId(0), FamilyId(3), FamilyId(4000)];

async fn open(world: &World) -> Arc<Shard> {
    Shard::open(power_on(world, &[]).await).await.unwrap()
}

async fn make(world: &World, shard: &Shard, directory: InodeId, name: &str) -> Result<InodeId> {
    let operation = Operation::Create {
        directory,
        name: FileName::new(name.as_bytes()).unwrap(),
        new: NewInode {
            kind: FileKind::File,
            mode: 0o644,
            umask: 0,
            uid: 0,
            gid: 0,
            rdev: 0,
            target: Bytes::new(),
        },
    };
    let stamp = Stamp::own(world.wall(), shard.session());
    match shard.execute(&operation, &stamp).await?.0 {
        Reply::Entry { attributes, .. } => Ok(attributes.inode),
        other => panic!("{other:?}"),
    }
}

/// All inodes, in pages: changes in memory over what the tree has.
async fn inodes(shard: &Shard, page: usize) -> Vec<InodeId> {
    let (mut from, to) = Table::Inodes.range();
    let mut found = Vec::new();
    loop {
        let records = shard.scan(&from, &to, page).await.unwrap();
        let Some((last, _)) = records.last() else {
            return found;
        };
        from = successor(last);
        found.extend(records.iter().map(|(key, _)| match key {
            Key::Inode(inode) => *inode,
            other => panic!("{other:?}"),
        }));
    }
}

#[test]
fn families_of_a_shard_have_inodes_of_their_own_and_outlive_its_owner() {
    let machine = machine(51, Scheme::Replicate(1), 1);
    let made = machine.run(|world| async move {
        let shard = open(&world).await;
        let mut made = vec![InodeId::ROOT];
        for family in &FAMILIES[1..] {
            shard.add_family(*family).await.unwrap();
            made.push(family.root());
        }
        for number in 0..200 {
            let family = FAMILIES[number % 3];
            let name = format!("f{number}");
            let inode = make(&world, &shard, family.root(), &name).await.unwrap();
            assert_eq!(inode.fileset(), family.first_fileset());
            made.push(inode);
            if number == 100 {
                shard.tree().flush().await.unwrap();
            }
        }
        made.sort();
        for page in [1, 7, 1000] {
            assert_eq!(inodes(&shard, page).await, made);
        }
        shard.close().await.unwrap();
        made
    });
    let made = made.finished();
    machine
        .run(move |world| async move {
            let shard = open(&world).await;
            assert_eq!(shard.families()[..], FAMILIES);
            for page in [1, 7, 1000] {
                assert_eq!(inodes(&shard, page).await, made);
            }
            // Also with all of it in memory, and half of it.
            for inode in made.iter().step_by(2) {
                let record = shard.record(&Key::Inode(*inode)).await.unwrap();
                assert!(matches!(record, Some(Record::Inode(_))));
            }
            assert_eq!(inodes(&shard, 7).await, made);
            let snapshot = shard.snapshot().await.unwrap();
            let (from, to) = Table::Inodes.range();
            let mut walk = snapshot.walk(&from, &to);
            let mut walked = Vec::new();
            while !walk.is_done() {
                let page = snapshot.next(&mut walk, 9).await.unwrap();
                assert!(page.damaged.is_empty());
                walked.extend(page.records.into_iter().map(|(key, _)| key));
            }
            let wanted: Vec<_> = made.into_iter().map(Key::Inode).collect();
            assert_eq!(walked, wanted);
            shard.close().await.unwrap();
        })
        .finished();
}

#[test]
fn a_family_is_added_once() {
    machine(52, Scheme::Replicate(1), 1)
        .run(|world| async move {
            let opening = power_on(&world, &[]).await;
            let shard = Shard::open(opening.clone()).await.unwrap();
            let kind = |result: Result<()>| result.unwrap_err().kind();
            let again = shard.add_family(FAMILIES[0]).await;
            assert_eq!(kind(again), ErrorKind::Exists);
            let beyond = shard.add_family(FamilyId(FamilyId::COUNT)).await;
            assert_eq!(kind(beyond), ErrorKind::InvalidArgument);
            let three = (0..3).map(|number| shard.add_family(FamilyId([3, 3, 4][number])));
            let three = futures::future::join_all(three).await;
            assert_eq!(three.iter().filter(|added| added.is_ok()).count(), 2);

            // Another shard has claimed it.
            let of_other = Opening {
                shard: ShardId(SHARD.0 + 1),
                family: FamilyId(9),
                ..opening.clone()
            };
            create(&of_other).await.unwrap();
            let taken = shard.add_family(FamilyId(9)).await;
            assert_eq!(kind(taken), ErrorKind::Exists);
            assert_eq!(shard.families()[..], [0, 3, 4].map(FamilyId));
            // The refusal cost nothing: the shard goes on.
            make(&world, &shard, FamilyId(3).root(), "f").await.unwrap();
            shard.sync().await.unwrap();
            let third = Opening {
                shard: ShardId(SHARD.0 + 2),
                family: FamilyId(3),
                ..of_other
            };
            assert_eq!(kind(create(&third).await), ErrorKind::Exists);
            shard.close().await.unwrap();
        })
        .finished();
}

/// The owner's process ends after the shard's record has the family and before its fileset exists.
#[test]
fn a_family_whose_owner_ended_gets_its_fileset_from_the_next_one() {
    let machine = machine(53, Scheme::Replicate(1), 1);
    machine
        .run(|world| async move {
            let shard = open(&world).await;
            shard.log.add_family(FamilyId(3)).await.unwrap();
            let nothing = make(&world, &shard, FamilyId(3).root(), "f").await;
            assert!(nothing.is_err());
        })
        .finished();
    machine
        .run(|world| async move {
            let shard = open(&world).await;
            make(&world, &shard, FamilyId(3).root(), "f").await.unwrap();
            shard.close().await.unwrap();
        })
        .finished();
}

/// A shard that has nothing to do gives up records that another one needs.
#[test]
fn an_idle_shard_gives_memory_to_a_busy_one() {
    const BUDGET: usize = 2 << 20;
    machine(54, Scheme::Replicate(1), 1)
        .run(|world| async move {
            let opening = Opening {
                memory: crate::ShardMemory::new(BUDGET, 8 << 20),
                ..power_on(&world, &[]).await
            };
            let idle = Shard::open(opening.clone()).await.unwrap();
            let fill = async |shard: &Shard, root: InodeId| {
                for number in 0..6_000 {
                    make(&world, shard, root, &format!("f{number}"))
                        .await
                        .unwrap();
                    if number % 500 == 0 {
                        shard.sync().await.unwrap();
                    }
                }
                shard.sync().await.unwrap();
            };
            fill(&idle, InodeId::ROOT).await;
            let alone = idle.hot_records().1;
            assert!(alone > BUDGET / 4 * 3, "{alone}");
            let of_other = Opening {
                shard: ShardId(SHARD.0 + 1),
                family: FamilyId(9),
                ..opening
            };
            create(&of_other).await.unwrap();
            let busy = Shard::open(of_other).await.unwrap();
            fill(&busy, FamilyId(9).root()).await;
            let (of_idle, of_busy) = (idle.hot_records().1, busy.hot_records().1);
            assert!(of_idle + of_busy <= BUDGET, "{of_idle} and {of_busy}");
            assert!(of_busy > BUDGET / 4, "{of_busy}");
            busy.close().await.unwrap();
            idle.close().await.unwrap();
        })
        .finished();
}
