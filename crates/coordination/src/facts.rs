//! The typed facts and their keys.

use crate::{Change, Coordination, Versioned};
use bytes::Bytes;
use model::{
    EntryNumber, Error, ErrorKind, FamilyId, GroupId, NodeId, NodeRun, NsdId, Result, SessionId,
    ShardEpoch, ShardId,
    map::{MapWithoutGenerations, PoolMap},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::collections::BTreeSet;

const CLUSTER: &str = "cluster/id";
pub(crate) const SHARDS: &str = "shard/";
/// Where daemons listen.
pub(crate) const ADDRESSES: &str = "address/";
pub(crate) const FAMILIES: &str = "family/";
/// What nodes say of their keys and connections.
pub(crate) const SAID: &str = "security/node/";
/// Attempts of a change that may collide with other writers.
const ATTEMPTS_MAX: usize = 64;
/// First byte of every typed value, except maps of pools.
const VALUE_FORMAT: u8 = 3;
/// First byte of a pool's map. Maps with [`VALUE_FORMAT`] were written before there were generations,
/// and are read as a map of one.
const MAP_FORMAT: u8 = 4;

/// A shard's owner and where its log is. Changed by compare-and-set only.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ShardRecord {
    /// The shard.
    pub shard: ShardId,
    /// The families whose records it holds, in order of their numbers; never none. No other shard has one
    /// of them.
    pub families: Vec<FamilyId>,
    /// The run of a daemon that owns the shard now or shall take it over. No other may take it
    /// over; `None`: nobody may. Changed by [`Coordination::assign_shard`], not by owners.
    pub assigned: Option<NodeRun>,
    /// Counts the owners.
    pub epoch: ShardEpoch,
    /// The session of the owner; its tables carry it.
    pub owner: SessionId,
    /// The NSDs that hold the log now: an entry is acknowledged when all of them have it.
    pub view: Vec<NsdId>,
    /// The first entry on `view`; earlier ones are on `closed`.
    pub first_entry: EntryNumber,
    /// Earlier views that hold entries not yet trimmed, oldest first.
    pub closed: Vec<ClosedFragment>,
    /// Where earlier epochs ended, oldest first, for epochs whose entries aren't all trimmed.
    /// Entries of an ended epoch after its end are garbage.
    pub ended: Vec<EndedEpoch>,
    /// The first entry that replay needs. Once the shard was opened, the log always has it.
    pub trimmed_below: EntryNumber,
    /// Ties log and tree to each other; 0 until the first owner has written it to the log.
    pub marker: u128,
}

impl ShardRecord {
    /// The NSDs with entries of the log that a take-over would need.
    #[must_use]
    pub fn log_holders(&self) -> BTreeSet<NsdId> {
        let closed = self.closed.iter().flat_map(|closed| closed.view.iter());
        closed.chain(&self.view).copied().collect()
    }
}

/// A stretch of the log on a view that is no longer written.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ClosedFragment {
    /// The NSDs.
    pub view: Vec<NsdId>,
    /// Its first entry.
    pub first: EntryNumber,
    /// Its last entry.
    pub last: EntryNumber,
}

/// Where an epoch ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EndedEpoch {
    /// The epoch.
    pub epoch: ShardEpoch,
    /// The last entry of the log when the epoch ended (its own or of one before it).
    pub last: EntryNumber,
}

impl Coordination {
    /// The cluster's id; `None` until it is set.
    pub async fn cluster(&self) -> Result<Option<u128>> {
        Ok(self.fact::<u128>(CLUSTER).await?.map(|fact| fact.value))
    }

    /// Sets the cluster's id, once: `Changed` if it is already set.
    pub async fn set_cluster(&self, cluster: u128) -> Result<()> {
        self.set_fact(CLUSTER, 0, &cluster).await.map(drop)
    }

    /// The record of a shard.
    pub async fn shard(&self, shard: ShardId) -> Result<Option<Versioned<ShardRecord>>> {
        self.fact(&shard_key(shard)).await
    }

    /// The records of all shards. NSDs with a rebuilt index need the epochs in them.
    pub async fn shards(&self) -> Result<Vec<ShardRecord>> {
        let all = self.list(SHARDS).await?;
        all.found
            .into_iter()
            .map(|(key, fact)| decode(&key, &fact.value))
            .collect()
    }

    /// Changes a shard's record (`expected` 0: creates it without its families' facts, as only tests do).
    pub async fn set_shard(&self, expected: u64, record: &ShardRecord) -> Result<u64> {
        self.set_fact(&shard_key(record.shard), expected, record)
            .await
    }

    /// Creates a shard with its families.
    ///
    /// # Errors
    /// `Exists`: the shard exists, or another one has one of the families; nothing was done.
    pub async fn create_shard(&self, record: &ShardRecord) -> Result<()> {
        let shard = record.shard;
        match self.transaction(new_shard(record)).await {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() != ErrorKind::Changed => return Err(error),
            Err(_) => {}
        }
        if self.shard(shard).await?.is_some() {
            return Err(Error::new(
                ErrorKind::Exists,
                format!("shard {shard} exists"),
            ));
        }
        for family in &record.families {
            self.check_free(*family, shard).await?;
        }
        Err(ErrorKind::Changed.into())
    }

    /// Gives a shard one more family: changes its record, whose version is `expected`, to `record`, which names the
    /// family. Returns the new version.
    ///
    /// # Errors
    /// `Exists`: another shard has the family. `Changed`: the record has another version. Nothing was done. After
    /// `Unavailable` it is unknown whether it was done: read again.
    pub async fn add_family(
        &self,
        expected: u64,
        record: &ShardRecord,
        family: FamilyId,
    ) -> Result<u64> {
        let changes = vec![
            Change::put(shard_key(record.shard), expected, encode(record)),
            Change::put(family_key(family), 0, encode(&record.shard)),
        ];
        match self.transaction(changes).await {
            Err(error) if error.kind() == ErrorKind::Changed => {
                self.check_free(family, record.shard).await?;
                Err(error)
            }
            done => done,
        }
    }

    /// The shard that has a family.
    pub async fn shard_of(&self, family: FamilyId) -> Result<Option<ShardId>> {
        let fact = self.fact::<ShardId>(&family_key(family)).await?;
        Ok(fact.map(|fact| fact.value))
    }

    /// `Exists` if another shard has the family.
    async fn check_free(&self, family: FamilyId, own: ShardId) -> Result<()> {
        match self.shard_of(family).await? {
            Some(shard) if shard != own => {
                let text = format!(
                    "family {family} is in shard {shard}: choose a family that no shard has, or move \
                     shard {shard} to the node that should serve it"
                );
                Err(Error::new(ErrorKind::Exists, text))
            }
            _ => Ok(()),
        }
    }

    /// Names the run that shall take the shard over, if the record still names `from`. Changes by
    /// its owner (a new view, say) don't matter. Returns the record as it is now.
    ///
    /// The owner so far isn't stopped by this: it serves until the new one has raised the epoch and
    /// sealed the log.
    ///
    /// # Errors
    /// `NotFound`: it was never created. `Changed`: the record names another run than `from`;
    /// nothing was done. After `Unavailable` it is unknown whether it was done: read again.
    pub async fn assign_shard(
        &self,
        shard: ShardId,
        from: Option<NodeRun>,
        to: NodeRun,
    ) -> Result<Versioned<ShardRecord>> {
        self.assign_shard_if(shard, from, Some(to), None).await
    }

    /// Names the run that shall take the shard over, or nobody, if the record names `from` and the key
    /// of `fence` has its version.
    ///
    /// # Errors
    /// As [`Coordination::assign_shard`]; also `OldEpoch`: the fence's key has another version. Nothing
    /// was done.
    pub(crate) async fn assign_shard_if(
        &self,
        shard: ShardId,
        from: Option<NodeRun>,
        to: Option<NodeRun>,
        fence: Option<(&str, u64)>,
    ) -> Result<Versioned<ShardRecord>> {
        for _ in 0..ATTEMPTS_MAX {
            let mut record = self.shard(shard).await?.ok_or_else(|| {
                Error::new(
                    ErrorKind::NotFound,
                    format!("shard {shard} was never created"),
                )
            })?;
            // Perhaps by an attempt whose outcome wasn't known.
            if record.value.assigned == to {
                return Ok(record);
            }
            if record.value.assigned != from {
                return Err(Error::new(
                    ErrorKind::Changed,
                    format!(
                        "shard {shard} is assigned to {:?}, not to {from:?}",
                        record.value.assigned
                    ),
                ));
            }
            record.value.assigned = to;
            let assigned = Change::put(shard_key(shard), record.version, encode(&record.value));
            let kept = fence.map(|(key, version)| Change::keep(key, version));
            let changes = std::iter::once(assigned).chain(kept).collect();
            match self.transaction(changes).await {
                Ok(version) => {
                    record.version = version;
                    return Ok(record);
                }
                Err(error) if error.kind() == ErrorKind::Changed => {
                    if let Some((key, version)) = fence
                        && self.get(key).await?.found.map_or(0, |it| it.version) != version
                    {
                        let text = format!("{key} was changed; whoever changed it decides");
                        return Err(Error::new(ErrorKind::OldEpoch, text));
                    }
                }
                Err(error) => return Err(error.while_doing(format!("assigning shard {shard}"))),
            }
        }
        Err(Error::new(
            ErrorKind::Busy,
            format!("the record of shard {shard} was changed by others {ATTEMPTS_MAX} times"),
        ))
    }

    /// Begins a run of a node's daemon, under an incarnation that was never used.
    ///
    /// # Errors
    /// After `Unavailable`, begin again: an incarnation that was lost this way is never used.
    pub async fn begin_run(&self, node: NodeId) -> Result<NodeRun> {
        let key = incarnations_key(node);
        for _ in 0..ATTEMPTS_MAX {
            let (last, version) = self
                .fact::<u64>(&key)
                .await?
                .map_or((0, 0), |fact| (fact.value, fact.version));
            let incarnation = last + 1;
            match self.set_fact(&key, version, &incarnation).await {
                Ok(_) => return Ok(NodeRun { node, incarnation }),
                Err(error) if error.kind() == ErrorKind::Changed => {}
                Err(error) => return Err(error.while_doing(format!("starting node {node}"))),
            }
        }
        Err(Error::new(
            ErrorKind::Busy,
            format!("node {node} was started by others {ATTEMPTS_MAX} times"),
        ))
    }

    /// The map of a storage pool.
    pub async fn pool_map(&self, pool: &str) -> Result<Option<Versioned<PoolMap>>> {
        let key = pool_key(pool);
        match self.get(&key).await?.found {
            None => Ok(None),
            Some(fact) => Ok(Some(Versioned {
                value: decode_map(&key, &fact.value)?,
                version: fact.version,
            })),
        }
    }

    /// Changes a pool's map (`expected` 0: creates it).
    pub async fn set_pool_map(&self, pool: &str, expected: u64, map: &PoolMap) -> Result<u64> {
        let value = encode_as(MAP_FORMAT, map);
        self.compare_and_set(&pool_key(pool), expected, Some(value))
            .await
    }

    /// No record of the shard names a segment in a group of the pool below this one, and none ever
    /// will; 0 if its owners haven't said anything.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn floor(&self, shard: ShardId) -> Result<GroupId> {
        let fact = self.fact::<GroupId>(&floor_key(shard)).await?;
        Ok(fact.map_or(GroupId(0), |fact| fact.value))
    }

    /// Says that no record of the shard names a group below `floor`, as its owner under `epoch`.
    /// The owners after it keep to that.
    ///
    /// # Errors
    /// `OldEpoch`: the shard has a later owner; nothing was said. `Changed`: the shard's record was
    /// changed meanwhile: say it again. After `Unavailable` it is unknown whether it was said.
    pub async fn raise_floor(
        &self,
        shard: ShardId,
        epoch: ShardEpoch,
        floor: GroupId,
    ) -> Result<()> {
        let record = self.shard(shard).await?;
        let Some(record) = record.filter(|record| record.value.epoch == epoch) else {
            let text = format!("shard {shard} isn't owned under epoch {epoch} any more");
            return Err(Error::new(ErrorKind::OldEpoch, text));
        };
        let key = floor_key(shard);
        let known = self.fact::<GroupId>(&key).await?;
        let (known, version) = known.map_or((GroupId(0), 0), |fact| (fact.value, fact.version));
        if known >= floor {
            return Ok(());
        }
        let changes = vec![
            Change::put(key, version, encode(&floor)),
            Change::keep(shard_key(shard), record.version),
        ];
        self.transaction(changes).await.map(drop)
    }

    /// A setting of the cluster, as text.
    pub async fn config(&self, name: &str) -> Result<Option<Versioned<String>>> {
        self.fact(&config_key(name)).await
    }

    /// Changes a setting of the cluster (`expected` 0: creates it).
    pub async fn set_config(&self, name: &str, expected: u64, value: &str) -> Result<u64> {
        self.set_fact(&config_key(name), expected, &value.to_owned())
            .await
    }

    /// A typed fact under a key of the caller's choice.
    pub async fn fact<T: DeserializeOwned>(&self, key: &str) -> Result<Option<Versioned<T>>> {
        match self.get(key).await?.found {
            None => Ok(None),
            Some(fact) => Ok(Some(Versioned {
                value: decode(key, &fact.value)?,
                version: fact.version,
            })),
        }
    }

    /// Changes a typed fact (`expected` 0: creates it).
    pub async fn set_fact<T: Serialize>(&self, key: &str, expected: u64, value: &T) -> Result<u64> {
        self.compare_and_set(key, expected, Some(encode(value)))
            .await
    }
}

/// What makes a shard with its families.
pub(crate) fn new_shard(record: &ShardRecord) -> Vec<Change> {
    let mut changes = vec![Change::put(shard_key(record.shard), 0, encode(record))];
    let claim = |family: &FamilyId| Change::put(family_key(*family), 0, encode(&record.shard));
    changes.extend(record.families.iter().map(claim));
    changes
}

fn shard_key(shard: ShardId) -> String {
    format!("{SHARDS}{:010}", shard.0)
}

fn family_key(family: FamilyId) -> String {
    format!("{FAMILIES}{:010}", family.0)
}

fn floor_key(shard: ShardId) -> String {
    format!("floor/{:010}", shard.0)
}

/// Where it is told where a node's daemon listens.
pub(crate) fn address_key(node: NodeId) -> String {
    format!("{ADDRESSES}{:010}", node.0)
}

/// Where the newest incarnation of a node's daemon is.
pub(crate) fn incarnations_key(node: NodeId) -> String {
    format!("node/{:010}", node.0)
}

/// Where a node says what it has made of the cluster's keys and `cipher_list`.
pub(crate) fn said_key(node: NodeId) -> String {
    format!("{SAID}{:010}", node.0)
}

fn pool_key(pool: &str) -> String {
    format!("pool/{pool}")
}

fn config_key(name: &str) -> String {
    format!("config/{name}")
}

pub(crate) fn encode<T: Serialize>(value: &T) -> Bytes {
    encode_as(VALUE_FORMAT, value)
}

fn encode_as<T: Serialize>(format: u8, value: &T) -> Bytes {
    let out = postcard::to_extend(value, vec![format])
        .expect("facts are plain data, which postcard always encodes");
    Bytes::from(out)
}

/// Reads a pool's map, also one of the time before generations.
pub(crate) fn decode_map(key: &str, bytes: &[u8]) -> Result<PoolMap> {
    let map: PoolMap = match bytes.first() == Some(&VALUE_FORMAT) {
        true => decode::<MapWithoutGenerations>(key, bytes)?.into(),
        false => decode_as(MAP_FORMAT, key, bytes)?,
    };
    let sound = map.check();
    sound.map_err(|error| error.while_doing(format!("reading fact {key:?}")))?;
    Ok(map)
}

pub(crate) fn decode<T: DeserializeOwned>(key: &str, bytes: &[u8]) -> Result<T> {
    decode_as(VALUE_FORMAT, key, bytes)
}

fn decode_as<T: DeserializeOwned>(readable: u8, key: &str, bytes: &[u8]) -> Result<T> {
    match bytes.split_first() {
        Some((format, rest)) if *format == readable => {
            postcard::from_bytes(rest).map_err(|error| {
                Error::new(
                    ErrorKind::Corrupt,
                    format!("fact {key:?} can't be read: {error}"),
                )
            })
        }
        Some((format, _)) => {
            let age = if *format < readable { "older" } else { "newer" };
            Err(Error::new(
                ErrorKind::NotSupported,
                format!(
                    "fact {key:?} has the format {format} of an {age} Shale; this program reads \
                     {readable}"
                ),
            ))
        }
        None => Err(Error::new(
            ErrorKind::Corrupt,
            format!("fact {key:?} is empty"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::{JoinToken, NodeFacts};
    use crate::security::{Authorities, Ciphers, NodeSecurity};
    use crate::{FileSystem, NodeAddress, Place};
    use fuzzing::{Format, Memory, ROUNDS, Tally, check, fuzz};
    use model::member::Membership;
    use std::fmt::Debug;

    /// A type of facts that [`decode`] reads.
    fn fact<T>(input: &[u8], tally: &Tally)
    where
        T: Serialize + DeserializeOwned + PartialEq + Debug,
    {
        let format = Format {
            encode: |value: &T| encode(value).to_vec(),
            decode: |bytes: &[u8]| decode::<T>("key", bytes).ok(),
            memory: Memory::MESSAGE,
        };
        check(input, &format, tally);
    }

    macro_rules! targets {
        ($(fn $name:ident() for $type:ty;)*) => {$(
            #[test]
            fn $name() {
                let tally = Tally::default();
                fuzz!(ROUNDS, |input: &[u8]| fact::<$type>(input, &tally));
                tally.check();
            }
        )*};
    }

    targets! {
        fn any_bytes_are_refused_or_are_a_shard_record() for ShardRecord;
        fn any_bytes_are_refused_or_are_a_membership() for Membership;
        fn any_bytes_are_refused_or_are_the_managers_place() for Place;
        fn any_bytes_are_refused_or_are_a_file_system() for FileSystem;
        fn any_bytes_are_refused_or_are_an_address() for NodeAddress;
        fn any_bytes_are_refused_or_are_a_node() for NodeFacts;
        fn any_bytes_are_refused_or_are_a_token_with_its_role() for JoinToken;
        fn any_bytes_are_refused_or_are_the_authorities_that_count() for Authorities;
        fn any_bytes_are_refused_or_are_a_change_of_ciphers() for Ciphers;
        fn any_bytes_are_refused_or_are_what_a_node_trusts() for NodeSecurity;
        fn any_bytes_are_refused_or_are_a_setting() for String;
        fn any_bytes_are_refused_or_are_a_number() for u64;
        fn any_bytes_are_refused_or_are_a_mark() for u128;
    }

    /// What was read keeps the rules that those who compute with it rely on.
    #[test]
    fn any_bytes_are_refused_or_are_a_sound_map_of_a_pool() {
        let tally = Tally::default();
        fuzz!(ROUNDS, |input: &[u8]| {
            let format = Format {
                // An unsound map counts as one that can't be written.
                encode: |map: &SoundMap| encode_as(MAP_FORMAT, &map.0).to_vec(),
                decode: |bytes: &[u8]| {
                    let map = decode_map("pool/data", bytes).ok()?;
                    assert_eq!(map.check(), Ok(()));
                    assert!(map.newest().end() > map.generations[0].first_group);
                    Some(SoundMap(map))
                },
                memory: Memory::MESSAGE,
            };
            check(input, &format, &tally);
            let mut old = fuzzing::Source::new(input);
            if let Some(old) = old.value::<MapWithoutGenerations>()
                && let Ok(map) = decode_map("pool/data", &encode(&old))
            {
                assert_eq!(map.check(), Ok(()));
            }
        });
        tally.check();
    }

    #[derive(PartialEq, Debug, Serialize, Deserialize)]
    #[serde(try_from = "PoolMap")]
    struct SoundMap(PoolMap);

    impl TryFrom<PoolMap> for SoundMap {
        type Error = Error;

        fn try_from(map: PoolMap) -> Result<Self> {
            map.check().map(|()| Self(map))
        }
    }
}
