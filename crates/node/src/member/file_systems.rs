//! The file systems of the cluster: made, listed, and opened by name.
//!
//! *A creation* is one change of coordination's facts (`coordination::FileSystem`): there is the whole
//! file system afterwards, or nothing. Nobody owns its shard at first: the manager gives it to the owner with
//! the least to do, which makes the root directory before it serves. So it doesn't matter whether this
//! node goes on.
//!
//! *An unknown outcome* (coordination doesn't answer): the creation's nonce is remembered with the name,
//! so that whoever asks again on this run learns that it was made, if it was.

use super::Member;
use super::owners::ShardOwners;
use crate::{FileSystem, ROOT_SHARD};
use client::{Client, ClientSettings, FileSystemUsage, Owner, RemoteOwner};
use coordination::{Creation, Draft, RootOwner};
use metanode::Metanode;
use model::limits::SHARDS_OF_PROCESS_MAX;
use model::member::Standing;
use model::{Error, ErrorKind, FileSystemName, InodeId, Result};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use world::Point;

/// The name of the file system that a cluster begins with.
pub const FIRST_FILE_SYSTEM: &str = "data";

/// How long a creation may take, with those of this node that are before it.
const CREATE_MAX: Duration = Duration::from_secs(60);
/// Attempts of a creation while others take the numbers that it has chosen.
const ATTEMPTS_MAX: u64 = 64;
/// The longest pause after the first attempt; after the second it is twice as long, and so on.
const PAUSE: Duration = Duration::from_millis(2);
/// Creations without a known outcome that are remembered. Of more one is forgotten: if it was made
/// after all, whoever asks for it again is told that it exists.
const REMEMBERED_MAX: usize = 64;
/// Names in an error.
const NAMED_MAX: usize = 20;

/// The nonces of creations whose outcome isn't known. Held during a creation, so that of two that want one
/// name on this node only one has its nonce.
pub(super) type Creations = tokio::sync::Mutex<BTreeMap<FileSystemName, u64>>;

impl Member {
    /// Makes the first file system of a cluster that was just founded, empty, with the name
    /// [`FIRST_FILE_SYSTEM`]: the root shard with the root family, owned by this run.
    ///
    /// # Errors
    /// `Exists` if there is one; `Unavailable`: its outcome is unknown, ask again.
    pub async fn create_shard(&self) -> Result<()> {
        let name = FIRST_FILE_SYSTEM.parse()?;
        let owner = RootOwner::default();
        self.create_as(&name, owner, true).await.map(drop)
    }

    /// As [`Member::create_file_system_for`], with a root directory of root.
    ///
    /// # Errors
    /// As [`Member::create_file_system_for`].
    pub async fn create_file_system(&self, name: &FileSystemName) -> Result<FileSystem> {
        self.create_file_system_for(name, RootOwner::default())
            .await
    }

    /// Makes an empty file system, whose root directory is `owner`'s. Of several nodes that ask for one name at the same time, one succeeds.
    ///
    /// # Errors
    /// `InvalidArgument`: no new file system may have the name. `Exists`: it is taken. `NoSpace`: its nodes serve as many as they
    /// may, or there are no more numbers for families. `Unavailable`:
    /// its outcome is unknown; asking again, on this run, says whether it was made. `Busy`: others make
    /// so many that this one was never first; ask again.
    pub async fn create_file_system_for(
        &self,
        name: &FileSystemName,
        owner: RootOwner,
    ) -> Result<FileSystem> {
        name.check_new()?;
        if name.as_str() == FIRST_FILE_SYSTEM {
            let text = format!("the first file system of a cluster is {name}: choose another name");
            return Err(Error::new(ErrorKind::Exists, text));
        }
        self.create_as(name, owner, false).await
    }

    async fn create_as(
        &self,
        name: &FileSystemName,
        owner: RootOwner,
        is_first: bool,
    ) -> Result<FileSystem> {
        let world = &self.parts.world;
        let creating = async {
            let mut creations = self.creations.lock().await;
            if creations.len() >= REMEMBERED_MAX && !creations.contains_key(name) {
                creations.pop_first();
            }
            let nonce = creations.entry(name.clone());
            let nonce = *nonce.or_insert_with(|| world.random_u64());
            let creation = Creation { nonce, owner };
            let made = self.create_with(name, creation, is_first).await;
            let is_decided = match &made {
                Ok(_) => true,
                Err(error) => error.kind() == ErrorKind::Exists,
            };
            if is_decided {
                creations.remove(name);
            }
            made
        };
        let created = match world.timeout(CREATE_MAX, creating).await {
            Ok(created) => created,
            Err(_) => {
                let text = format!("not done in {CREATE_MAX:?}; whether it was made is unknown");
                Err(Error::new(ErrorKind::Unavailable, text))
            }
        };
        created.map_err(|error| error.while_doing(format!("create file system {name}")))
    }

    async fn create_with(
        &self,
        name: &FileSystemName,
        creation: Creation,
        is_first: bool,
    ) -> Result<FileSystem> {
        let parts = &self.parts;
        let (world, facts) = (&parts.world, &parts.coordination);
        // Founding doesn't wait for a manager.
        let assigned = is_first.then_some(parts.run);
        for attempt in 1..=ATTEMPTS_MAX {
            let draft = match facts.draft_file_system(name, creation, is_first).await? {
                Draft::Made(made) => return Ok(made),
                Draft::New(draft) => draft,
            };
            if !is_first {
                self.check_room()?;
            }
            world.at(Point::NumbersChosen).await;
            let numbers = draft.file_system;
            let opening = parts.opening(numbers.shard, numbers.family);
            match Metanode::create_file_system(&opening, &draft, assigned).await {
                Ok(made) => {
                    world.at(Point::FileSystemMade).await;
                    let FileSystem {
                        id, shard, family, ..
                    } = made;
                    tracing::info!(%name, %id, %shard, %family, "a file system was made");
                    return Ok(made);
                }
                Err(error) if error.kind() == ErrorKind::Changed => {}
                Err(error) => return Err(error),
            }
            let longest = PAUSE.as_nanos() as u64 * attempt;
            let pause = Duration::from_nanos(world.random_u64() % longest);
            world.sleep(pause).await;
        }
        let text = format!("others were first {ATTEMPTS_MAX} times; ask again");
        Err(Error::new(ErrorKind::Busy, text))
    }

    /// Whether there is an owner for one shard more, as far as this node knows: of creations at the same time on several
    /// nodes all may pass, and what is too much waits for another node.
    fn check_room(&self) -> Result<()> {
        let roster = self.parts.roster.borrow();
        let members = roster.membership.iter();
        let members = members.flat_map(|it| it.value.members.values());
        let owners = members.filter(|it| it.may_own && it.standing == Standing::In);
        check_room_of(owners.count(), roster.shards.len())
    }

    /// The file systems of the cluster by their names, as of now.
    ///
    /// # Errors
    /// Those of coordination.
    pub async fn file_systems(&self) -> Result<BTreeMap<FileSystemName, FileSystem>> {
        self.parts.coordination.file_systems().await
    }

    /// The file system with a name, as of now.
    ///
    /// # Errors
    /// `NotFound`: there is none; it says which there are. Those of coordination.
    pub async fn file_system(&self, name: &FileSystemName) -> Result<FileSystem> {
        // Alone, so that one that can't be read keeps nobody from the others.
        match self.parts.coordination.file_system(name).await? {
            Some(found) => Ok(found),
            None => Err(unknown(name, &self.file_systems().await?)),
        }
    }

    /// Opens a client of a file system, with a session of its own. Returns it with the root directory.
    ///
    /// # Errors
    /// `NotFound`: there is none with this name. `Unavailable` if no owner answers within the client's patience.
    pub async fn open_client_of_file_system(
        &self,
        name: &FileSystemName,
        settings: ClientSettings,
    ) -> Result<(Arc<Client>, InodeId)> {
        let open = async {
            let file_system = self.file_system(name).await?;
            let client = self.open_client_of(file_system.shard, settings).await?;
            Ok((client, file_system.root()))
        };
        let opened: Result<_> = open.await;
        opened.map_err(|error| error.while_doing(format!("open file system {name}")))
    }

    /// How full the first file system is. Its owner is asked without a client: the session of one would take everything from
    /// a client on the owner's node that is the only one, and wait until that has given it up.
    ///
    /// # Errors
    /// `SessionEnded`: the owner's build tells only clients; `Unavailable` if no owner answers within a client's patience.
    pub async fn usage_of_first(&self) -> Result<FileSystemUsage> {
        let parts = &self.parts;
        let owners = ShardOwners::new(parts, ROOT_SHARD);
        let patience = ClientSettings::default().patience;
        let owner = RemoteOwner::new(parts.world.clone(), ROOT_SHARD, owners, patience);
        self.until_space_known().await;
        let inodes = Owner::There(owner).usage().await?.inodes;
        let usage = parts.nsds.pool.usage();
        Ok(FileSystemUsage::of(&usage, self.block_bytes, inodes))
    }

    /// Opens a client of the first file system, with a session of its own.
    ///
    /// # Errors
    /// `Unavailable` if no owner answers within the client's patience.
    pub async fn open_client(&self, settings: ClientSettings) -> Result<Arc<Client>> {
        self.open_client_of(ROOT_SHARD, settings).await
    }
}

/// Whether so many nodes serve one shard more than these. None: the cluster has just been founded.
fn check_room_of(owners: usize, shards: usize) -> Result<()> {
    if owners == 0 || shards < owners * SHARDS_OF_PROCESS_MAX {
        return Ok(());
    }
    let text = format!(
        "the cluster's {owners} nodes serve {shards} file systems, and at most \
         {SHARDS_OF_PROCESS_MAX} each; add a node"
    );
    Err(Error::new(ErrorKind::NoSpace, text))
}

fn unknown(name: &FileSystemName, all: &BTreeMap<FileSystemName, FileSystem>) -> Error {
    let mut names: Vec<_> = all.keys().map(FileSystemName::as_str).collect();
    let more = names.len().saturating_sub(NAMED_MAX);
    names.truncate(NAMED_MAX);
    let known = match (names.is_empty(), more) {
        (true, _) => "there are none; create it".to_owned(),
        (_, 0) => format!("there are: {}", names.join(", ")),
        _ => format!("there are: {}, and {more} more", names.join(", ")),
    };
    let text = format!("there is no file system {name}; {known}");
    Error::new(ErrorKind::NotFound, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_serves_so_many_file_systems() {
        let most = SHARDS_OF_PROCESS_MAX;
        assert!(check_room_of(2, 2 * most - 1).is_ok());
        assert!(check_room_of(0, 1).is_ok(), "nobody is known yet");
        let refused = check_room_of(2, 2 * most).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoSpace);
        assert!(refused.to_string().contains("add a node"), "{refused}");
    }
}
