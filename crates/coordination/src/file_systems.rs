//! The file systems of a cluster: each has a name, a shard and a family. All of it is made in one
//! transaction, so that of several processes that want a name, or have chosen the same numbers, one
//! makes its file system and the others nothing.
//!
//! *A creation*: [`Coordination::draft_file_system`] looks whether the name is free and chooses numbers;
//! [`Coordination::create_file_system`] makes what was drafted, if that is still so. The record carries the
//! nonce of who made it, so that one whose outcome is unknown drafts again with it and learns
//! whether it was made.
//!
//! *Numbers* are chosen at or above a counter that every creation raises, so none is ever chosen twice,
//! also if file systems can be removed one day: logs on NSDs are named by shard, blobs by family.

use crate::facts::{FAMILIES, SHARDS, decode, encode, new_shard};
use crate::roster::number;
use crate::{Change, Coordination, ShardRecord};
use model::{Error, ErrorKind, FamilyId, FileSystemId, FileSystemName, InodeId, Result, ShardId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

const FILE_SYSTEMS: &str = "fs/";
const NEXT: &str = "file_systems/next";

/// A file system of the cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FileSystem {
    /// Its number; never reused.
    pub id: FileSystemId,
    /// The shard that was made with it; it has the root directory.
    pub shard: ShardId,
    /// The family of the root directory.
    pub family: FamilyId,
    /// Names the creation that made it.
    nonce: u64,
    /// The user and the group that its root directory is made for.
    owner: RootOwner,
}

/// The user and the group that a root directory is made for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RootOwner {
    /// The user; 0: root.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

/// A creation of a file system, the same in all its attempts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Creation {
    /// Names it.
    pub nonce: u64,
    /// Whom the root directory is for.
    pub owner: RootOwner,
}

impl FileSystem {
    /// Its root directory.
    #[must_use]
    pub fn root(&self) -> InodeId {
        self.family.root()
    }
}

/// No creation chooses a number below these any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Next {
    id: FileSystemId,
    shard: ShardId,
    family: FamilyId,
}

impl Next {
    /// The first numbers of each kind are those of the file system that a cluster begins with.
    const FIRST: Self = Self {
        id: FileSystemId(1),
        shard: ShardId(1),
        family: FamilyId(1),
    };
}

/// What a creation has found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Draft {
    /// An attempt of this creation before has made it.
    Made(FileSystem),
    /// The name is free; this can be made.
    New(NewFileSystem),
}

/// A file system to be made, with the numbers that were free.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewFileSystem {
    /// Its name.
    pub name: FileSystemName,
    /// Its numbers.
    pub file_system: FileSystem,
    next: Next,
    /// The version of the counter before.
    version: u64,
}

impl Coordination {
    /// The file systems by their names.
    ///
    /// # Errors
    /// `Unavailable`: no answer; ask again. `Corrupt` or `NotSupported`: a fact can't be read.
    pub async fn file_systems(&self) -> Result<BTreeMap<FileSystemName, FileSystem>> {
        let all = self.list(FILE_SYSTEMS).await?;
        let read = |(key, fact): (String, crate::Versioned<bytes::Bytes>)| {
            let name = key.strip_prefix(FILE_SYSTEMS).unwrap_or_default().parse();
            let name = name.map_err(|error: Error| {
                Error::new(ErrorKind::Corrupt, format!("fact {key:?}: {error}"))
            })?;
            Ok((name, decode(&key, &fact.value)?))
        };
        all.found.into_iter().map(read).collect()
    }

    /// The file system with a name, if there is one.
    ///
    /// # Errors
    /// As [`Coordination::file_systems`].
    pub async fn file_system(&self, name: &FileSystemName) -> Result<Option<FileSystem>> {
        let key = key_of(name);
        let fact = self.get(&key).await?.found;
        fact.map(|fact| decode(&key, &fact.value)).transpose()
    }

    /// Whom the root directory of a family is for, as the creation of its file system said; root, if none did.
    ///
    /// # Errors
    /// As [`Coordination::file_systems`].
    pub async fn root_owner_of(&self, family: FamilyId) -> Result<RootOwner> {
        let all = self.file_systems().await?;
        let mut all = all.values();
        let found = all.find(|it| it.family == family);
        Ok(found.map_or_else(RootOwner::default, |it| it.owner))
    }

    /// Looks whether a name is free, and chooses numbers for a file system with it that no shard and no
    /// family has; `is_first`: those of the file system that a cluster begins with.
    ///
    /// # Errors
    /// `Exists`: another creation has made one with this name. `NoSpace`: there are no more numbers.
    /// `Unavailable`: no answer; ask again.
    pub async fn draft_file_system(
        &self,
        name: &FileSystemName,
        creation: Creation,
        is_first: bool,
    ) -> Result<Draft> {
        let Creation { nonce, owner } = creation;
        let all = self.list("").await?;
        let own = key_of(name);
        let (mut next, mut version) = (Next::FIRST, 0);
        let (mut shards, mut families) = (BTreeSet::new(), BTreeSet::new());
        for (key, fact) in all.found {
            if key == own {
                let made: FileSystem = decode(&key, &fact.value)?;
                return match made.nonce == nonce {
                    true => Ok(Draft::Made(made)),
                    false => Err(exists(name)),
                };
            } else if key == NEXT {
                (next, version) = (decode(&key, &fact.value)?, fact.version);
            } else if let Some(shard) = number(&key, SHARDS) {
                shards.insert(shard);
            } else if let Some(family) = number(&key, FAMILIES) {
                families.insert(family);
            }
        }
        let file_system = match is_first {
            true if shards.contains(&0) || families.contains(&0) => {
                let text = "the cluster's first file system exists";
                return Err(Error::new(ErrorKind::Exists, text));
            }
            true => FileSystem {
                id: FileSystemId(0),
                shard: ShardId(0),
                family: FamilyId(0),
                nonce,
                owner,
            },
            false => {
                let shard = ShardId(first_free(next.shard.0, u32::MAX, &shards, "shards")?);
                let family = first_free(next.family.0, FamilyId::COUNT, &families, "families")?;
                let chosen = FileSystem {
                    id: next.id,
                    shard,
                    family: FamilyId(family),
                    nonce,
                    owner,
                };
                next = Next {
                    id: chosen.id.next(),
                    shard: chosen.shard.next(),
                    family: chosen.family.next(),
                };
                chosen
            }
        };
        Ok(Draft::New(NewFileSystem {
            name: name.clone(),
            file_system,
            next,
            version,
        }))
    }

    /// Gives the file system of a node that was alone a name, as the first one of a cluster. Nothing if it has the
    /// name already.
    ///
    /// # Errors
    /// `Exists`: another file system has the name. After `Unavailable`, name it again.
    pub async fn name_first_file_system(&self, name: &FileSystemName) -> Result<()> {
        let first = FileSystem {
            id: FileSystemId(0),
            shard: ShardId(0),
            family: FamilyId(0),
            nonce: 0,
            // Its root directory exists.
            owner: RootOwner::default(),
        };
        let changes = vec![Change::put(key_of(name), 0, encode(&first))];
        match self.transaction(changes).await {
            Err(error) if error.kind() == ErrorKind::Changed => {
                let known = self.file_system(name).await?;
                match known.is_some_and(|known| known.shard == first.shard) {
                    true => Ok(()),
                    false => Err(exists(name)),
                }
            }
            named => named.map(drop),
        }
    }

    /// Makes what was drafted: the name, the shard with this record, and its family.
    ///
    /// # Errors
    /// `Changed`: it isn't free any more; draft it again. Nothing was done. After `Unavailable` it is unknown
    /// whether it was made: draft it again.
    pub async fn create_file_system(
        &self,
        new: &NewFileSystem,
        record: &ShardRecord,
    ) -> Result<FileSystem> {
        let made = new.file_system;
        assert!(
            record.shard == made.shard && record.families == [made.family],
            "the record is that of the drafted shard"
        );
        let mut changes = new_shard(record);
        changes.push(Change::put(key_of(&new.name), 0, encode(&made)));
        changes.push(Change::put(NEXT, new.version, encode(&new.next)));
        self.transaction(changes).await.map(|_| made)
    }
}

fn key_of(name: &FileSystemName) -> String {
    format!("{FILE_SYSTEMS}{name}")
}

fn exists(name: &FileSystemName) -> Error {
    let text = format!("there is a file system {name}: choose another name, or use that one");
    Error::new(ErrorKind::Exists, text)
}

fn first_free(from: u32, end: u32, taken: &BTreeSet<u32>, what: &str) -> Result<u32> {
    (from..end).find(|it| !taken.contains(it)).ok_or_else(|| {
        let text = format!(
            "all {end} numbers of {what} that this cluster has were given out: use a directory of a file \
             system that exists, or another cluster"
        );
        Error::new(ErrorKind::NoSpace, text)
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::simulated::Simulated;
    use model::{EntryNumber, NodeId, SessionId, ShardEpoch};
    use world::sim::Simulation;

    #[test]
    fn the_bytes_of_a_file_system_are_those_of_the_format_table() {
        let file_system = FileSystem {
            id: FileSystemId(1),
            shard: ShardId(300),
            family: FamilyId(2),
            nonce: 128,
            owner: RootOwner { uid: 1_000, gid: 5 },
        };
        let bytes = [3, 1, 0xac, 2, 2, 0x80, 1, 0xe8, 7, 5];
        assert_eq!(encode(&file_system)[..], bytes);
        let next = Next {
            id: FileSystemId(2),
            shard: ShardId(301),
            family: FamilyId(3),
        };
        assert_eq!(encode(&next)[..], [3, 2, 0xad, 2, 3]);
        assert_eq!(key_of(&"a!b".parse().unwrap()), "fs/a!b");
    }

    fn record(shard: ShardId, family: FamilyId) -> ShardRecord {
        ShardRecord {
            shard,
            families: vec![family],
            assigned: None,
            epoch: ShardEpoch(0),
            owner: SessionId(0),
            view: vec![],
            first_entry: EntryNumber(1),
            closed: vec![],
            ended: vec![],
            trimmed_below: EntryNumber(1),
            marker: 0,
        }
    }

    async fn draft(facts: &Coordination, name: &str, nonce: u64) -> Result<Draft> {
        let name = name.parse().unwrap();
        let owner = RootOwner { uid: 7, gid: 8 };
        let creation = Creation { nonce, owner };
        facts.draft_file_system(&name, creation, false).await
    }

    async fn new(facts: &Coordination, name: &str, nonce: u64) -> NewFileSystem {
        match draft(facts, name, nonce).await.unwrap() {
            Draft::New(new) => new,
            Draft::Made(made) => panic!("{made:?}"),
        }
    }

    async fn make(facts: &Coordination, new: &NewFileSystem) -> Result<FileSystem> {
        let numbers = new.file_system;
        let record = record(numbers.shard, numbers.family);
        facts.create_file_system(new, &record).await
    }

    fn with_a_store<F: Future<Output = ()>>(test: impl FnOnce(Coordination) -> F) {
        let run = Simulation::new(1).run(|world| {
            let store = Simulated::new(&world, 1);
            test(store.connect(NodeId(1), &world))
        });
        run.finished();
    }

    #[test]
    fn what_was_drafted_is_made_whole_or_not_at_all() {
        with_a_store(async |facts| {
            let a = new(&facts, "a", 1).await;
            let (other, same) = (new(&facts, "b", 2).await, new(&facts, "a", 3).await);
            let made = make(&facts, &a).await.unwrap();
            let owner = facts.root_owner_of(made.family).await.unwrap();
            assert_eq!((owner.uid, owner.gid), (7, 8));
            let none = facts.root_owner_of(FamilyId(9)).await.unwrap();
            assert_eq!(none, RootOwner::default());
            let numbers = (made.id.0, made.shard.0, made.family.0);
            assert_eq!(numbers, (1, 1, 1), "0 is that of the first one");
            let before = facts.list("").await.unwrap();
            for late in [other, same] {
                let refused = make(&facts, &late).await.unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::Changed);
            }
            assert_eq!(facts.list("").await.unwrap(), before, "nothing was made");
            // The same creation once more, and another one of the same name.
            assert_eq!(draft(&facts, "a", 1).await.unwrap(), Draft::Made(made));
            let refused = draft(&facts, "a", 3).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Exists);
            let b = new(&facts, "b", 2).await;
            let b = make(&facts, &b).await.unwrap();
            assert_eq!((b.id.0, b.shard.0, b.family.0), (2, 2, 2));
            let all = facts.file_systems().await.unwrap();
            let names: Vec<_> = all.keys().map(|name| name.as_str()).collect();
            assert_eq!(names, ["a", "b"]);
            assert_eq!(all[&"b".parse().unwrap()], b);
        });
    }

    #[test]
    fn numbers_that_shards_and_families_have_are_left_out_and_none_comes_twice() {
        with_a_store(async |facts| {
            for (shard, family) in [(1, 7), (2, 1), (4, 2)] {
                let record = record(ShardId(shard), FamilyId(family));
                facts.create_shard(&record).await.unwrap();
            }
            let a = make(&facts, &new(&facts, "a", 1).await).await.unwrap();
            assert_eq!((a.id.0, a.shard.0, a.family.0), (1, 3, 3));
            // Somebody takes the next shard between the choice and the creation.
            let drafted = new(&facts, "b", 2).await;
            assert_eq!(drafted.file_system.shard, ShardId(5));
            let taken = record(ShardId(5), FamilyId(9));
            facts.create_shard(&taken).await.unwrap();
            let refused = make(&facts, &drafted).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Changed);
            let b = make(&facts, &new(&facts, "b", 2).await).await.unwrap();
            assert_eq!((b.id.0, b.shard.0, b.family.0), (2, 6, 4));
            // As if it had been removed.
            for key in ["fs/b", "shard/0000000006", "family/0000000004"] {
                let version = facts.get(key).await.unwrap().found.unwrap().version;
                facts.compare_and_set(key, version, None).await.unwrap();
            }
            let c = make(&facts, &new(&facts, "c", 3).await).await.unwrap();
            assert_eq!((c.id.0, c.shard.0, c.family.0), (3, 7, 5));
        });
    }

    #[test]
    fn without_a_number_of_a_family_none_is_made_and_it_is_said_why() {
        with_a_store(async |facts| {
            let last = Next {
                family: FamilyId(FamilyId::COUNT - 1),
                ..Next::FIRST
            };
            facts.set_fact(NEXT, 0, &last).await.unwrap();
            make(&facts, &new(&facts, "a", 1).await).await.unwrap();
            let refused = draft(&facts, "b", 2).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::NoSpace);
            let text = refused.to_string();
            assert!(text.contains("all 4096 numbers of families"), "{text}");
            assert!(text.contains("use a directory"), "{text}");
        });
    }
}
