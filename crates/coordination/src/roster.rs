//! The parts of the cluster as one process knows them: where daemons listen, which node has which
//! NSD, the pools' maps, who owns the shards. Pure; [`Roster::read`] and a watch bring it up to date.

use crate::facts::{self, ADDRESSES, SHARDS, ShardRecord, address_key};
use crate::members::{MEMBERSHIP, PLACE, Place};
use crate::nodes::{NODES, NodeFacts};
use crate::security::{AUTHORITIES, Authorities, CIPHERS, Ciphers};
use crate::{Coordination, Event, Facts, Versioned};
use bytes::Bytes;
use model::map::PoolMap;
use model::member::{KnownEnd, Membership};
use model::{Error, ErrorKind, NodeId, NodeRun, NsdId, Result, ShardId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

const HOMES: &str = "home/";
const POOLS: &str = "pool/";
/// What the keys of all settings begin with: of the cluster, of classes and of nodes.
const SETTINGS: [&str; 2] = ["config/", "config_of/"];
/// Attempts of a change that may collide with other writers.
const ATTEMPTS_MAX: usize = 64;

/// Where a run of a daemon listens.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeAddress {
    /// The run.
    pub run: NodeRun,
    /// Its address for other nodes.
    pub address: SocketAddr,
}

/// What coordination says of the cluster's parts.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Roster {
    /// Everything up to this revision of the store is in it.
    pub revision: u64,
    /// Where each node's newest daemon listens.
    pub addresses: BTreeMap<NodeId, NodeAddress>,
    /// The node that has each NSD.
    pub homes: BTreeMap<NsdId, NodeId>,
    /// The maps of storage pools.
    pub pools: BTreeMap<String, PoolMap>,
    /// The records of shards.
    pub shards: BTreeMap<ShardId, Versioned<ShardRecord>>,
    /// The members; `None` before the first manager.
    pub membership: Option<Versioned<Membership>>,
    /// Who has the manager's place; `None`: it is free.
    pub manager: Option<Versioned<Place>>,
    /// The nodes that were expelled by hand, and those that were removed.
    pub barred: BTreeSet<NodeId>,
    /// The nodes that were removed, for ever.
    pub removed: BTreeSet<NodeId>,
    /// The quorum nodes.
    pub quorum: BTreeSet<NodeId>,
    /// What people call the nodes. Those that were removed have no name any more.
    pub names: BTreeMap<NodeId, String>,
    /// The classes of the nodes that have names.
    pub classes: BTreeMap<NodeId, String>,
    /// The authorities that count; `None`: the one that the cluster was founded with.
    pub authorities: Option<Versioned<Authorities>>,
    /// How connections are protected; `None`: nobody has said.
    pub ciphers: Option<Versioned<Ciphers>>,
    /// The settings that somebody has made, by their keys. What can't be read counts as not made: no setting is worth a
    /// node that doesn't know its cluster.
    pub settings: BTreeMap<String, String>,
}

impl Roster {
    /// The roster now.
    ///
    /// # Errors
    /// `Unavailable`: no answer, or who has the manager's place can't be read now; ask again. `Corrupt` or `NotSupported`:
    /// another fact can't be read.
    pub async fn read(coordination: &Coordination) -> Result<Self> {
        let all = coordination.list("").await?;
        let mut roster = Self {
            revision: all.revision,
            ..Self::default()
        };
        for (key, fact) in all.found {
            roster.put(&key, fact.version, Some(fact.value))?;
        }
        Ok(roster)
    }

    /// Brings it up to a later revision. Facts about anything else change nothing.
    ///
    /// # Errors
    /// As those of [`Roster::read`]: a fact can't be read. The others of the revision may be in the
    /// roster or not; read it anew.
    pub fn change(&mut self, revision: u64, events: Vec<Event>) -> Result<()> {
        for event in events {
            self.put(&event.key, revision, event.value)?;
        }
        self.revision = revision;
        Ok(())
    }

    fn put(&mut self, key: &str, version: u64, value: Option<Bytes>) -> Result<()> {
        if let Some(node) = number(key, ADDRESSES) {
            set(&mut self.addresses, NodeId(node), key, value)?;
        } else if let Some(nsd) = number(key, HOMES) {
            set(&mut self.homes, NsdId(nsd), key, value)?;
        } else if let Some(pool) = key.strip_prefix(POOLS) {
            match value {
                None => drop(self.pools.remove(pool)),
                Some(value) => {
                    let map = facts::decode_map(key, &value)?;
                    self.pools.insert(pool.to_owned(), map);
                }
            }
        } else if let Some(shard) = number(key, SHARDS) {
            let shard = ShardId(shard);
            match value {
                None => drop(self.shards.remove(&shard)),
                Some(value) => {
                    let value = facts::decode(key, &value)?;
                    self.shards.insert(shard, Versioned { value, version });
                }
            }
        } else if let Some(node) = number(key, NODES) {
            let facts = value.map(|value| facts::decode::<NodeFacts>(key, &value));
            self.put_node(NodeId(node), facts.transpose()?);
        } else if key == MEMBERSHIP {
            self.membership = versioned(key, version, value)?;
        } else if key == PLACE {
            self.manager = versioned(key, version, value).map_err(not_yet_readable)?;
        } else if key == AUTHORITIES {
            self.authorities = versioned(key, version, value)?;
        } else if key == CIPHERS {
            self.ciphers = versioned(key, version, value)?;
        } else if SETTINGS.iter().any(|all| key.starts_with(all)) {
            match value.and_then(|value| facts::decode::<String>(key, &value).ok()) {
                None => drop(self.settings.remove(key)),
                Some(value) => drop(self.settings.insert(key.to_owned(), value)),
            }
        }
        Ok(())
    }

    fn put_node(&mut self, node: NodeId, facts: Option<NodeFacts>) {
        match facts.as_ref().is_some_and(|it| it.is_barred) {
            true => self.barred.insert(node),
            false => self.barred.remove(&node),
        };
        if facts.as_ref().is_some_and(NodeFacts::is_forgotten) {
            self.removed.insert(node);
        }
        let facts = facts.filter(|it| !it.is_forgotten());
        match facts.as_ref().is_some_and(|it| it.is_quorum) {
            true => self.quorum.insert(node),
            false => self.quorum.remove(&node),
        };
        match facts {
            Some(facts) => {
                self.names.insert(node, facts.name);
                self.classes.insert(node, facts.class);
            }
            None => {
                self.names.remove(&node);
                self.classes.remove(&node);
            }
        }
    }

    /// How a run has ended for the cluster, if it has. What the membership says of a node that was removed may have made room
    /// for another one.
    #[must_use]
    pub fn end_of(&self, run: NodeRun) -> Option<KnownEnd> {
        let membership = &self.membership.as_ref()?.value;
        let is_in_it = membership.members.contains_key(&run.node);
        if !is_in_it && self.removed.contains(&run.node) {
            return Some(KnownEnd {
                term: membership.term,
                has_left: false,
            });
        }
        membership.end_of(run)
    }

    /// The run that owns the shard or shall take it over.
    #[must_use]
    pub fn assigned(&self, shard: ShardId) -> Option<NodeRun> {
        self.shards.get(&shard)?.value.assigned
    }

    /// The shards that the run owns or shall take over, in the order of their numbers.
    #[must_use]
    pub fn assigned_to(&self, run: NodeRun) -> Vec<ShardId> {
        let shards = self.shards.iter();
        let of_run = shards.filter(|(_, record)| record.value.assigned == Some(run));
        of_run.map(|(shard, _)| *shard).collect()
    }
}

impl Coordination {
    /// Tells the others where this run listens.
    ///
    /// # Errors
    /// `OldEpoch` if a newer run of the node has told it: this one must end. After `Unavailable`,
    /// tell it again.
    pub async fn set_address(&self, own: NodeAddress) -> Result<()> {
        let key = address_key(own.run.node);
        for _ in 0..ATTEMPTS_MAX {
            let before = self.fact::<NodeAddress>(&key).await?;
            let version = before.as_ref().map_or(0, |fact| fact.version);
            if let Some(known) = before.map(|fact| fact.value) {
                if known == own {
                    return Ok(());
                }
                if known.run > own.run {
                    let text = format!("{} runs; {} is over", known.run, own.run);
                    return Err(Error::new(ErrorKind::OldEpoch, text));
                }
            }
            match self.set_fact(&key, version, &own).await {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Changed => {}
                Err(error) => return Err(error.while_doing("telling where this node listens")),
            }
        }
        Err(contended(&key))
    }

    /// Tells the others that a node has an NSD. It may have been another's before.
    ///
    /// # Errors
    /// After `Unavailable`, tell it again.
    pub async fn set_home(&self, nsd: NsdId, node: NodeId) -> Result<()> {
        let key = home_key(nsd);
        for _ in 0..ATTEMPTS_MAX {
            let before = self.fact::<NodeId>(&key).await?;
            let version = before.as_ref().map_or(0, |fact| fact.version);
            if before.is_some_and(|fact| fact.value == node) {
                return Ok(());
            }
            match self.set_fact(&key, version, &node).await {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Changed => {}
                Err(error) => return Err(error.while_doing("telling which node has an NSD")),
            }
        }
        Err(contended(&key))
    }

    /// Tells the others that a node hasn't an NSD any more; nothing if another one has it, or none.
    ///
    /// # Errors
    /// After `Unavailable`, tell it again.
    pub async fn remove_home(&self, nsd: NsdId, node: NodeId) -> Result<()> {
        let key = home_key(nsd);
        for _ in 0..ATTEMPTS_MAX {
            let before = self.fact::<NodeId>(&key).await?;
            let Some(own) = before.filter(|fact| fact.value == node) else {
                return Ok(());
            };
            match self.compare_and_set(&key, own.version, None).await {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Changed => {}
                Err(error) => return Err(error.while_doing("telling that a node hasn't an NSD")),
            }
        }
        Err(contended(&key))
    }

    /// The homes that a node has of NSDs which no pool's map names, with their keys.
    pub(crate) async fn unused_homes(&self, node: NodeId) -> Result<Facts> {
        let mut used = BTreeSet::new();
        for (key, map) in self.list(POOLS).await?.found {
            let map = facts::decode_map(&key, &map.value)?;
            used.extend(map.nsds.iter().map(|it| it.nsd));
        }
        let mut homes = self.list(HOMES).await?.found;
        let mut failed = None;
        homes.retain(
            |(key, home)| match facts::decode::<NodeId>(key, &home.value) {
                Ok(it) => {
                    it == node && number(key, HOMES).is_some_and(|nsd| !used.contains(&NsdId(nsd)))
                }
                Err(error) => {
                    failed = Some(error);
                    false
                }
            },
        );
        failed.map_or(Ok(homes), Err)
    }
}

fn home_key(nsd: NsdId) -> String {
    format!("{HOMES}{:010}", nsd.0)
}

fn contended(key: &str) -> Error {
    let text = format!("{key} was changed by others {ATTEMPTS_MAX} times");
    Error::new(ErrorKind::Busy, text)
}

/// The number that a key names after its prefix.
pub(crate) fn number(key: &str, prefix: &str) -> Option<u32> {
    key.strip_prefix(prefix)?.parse().ok()
}

fn set<K: Ord, V: serde::de::DeserializeOwned>(
    table: &mut BTreeMap<K, V>,
    name: K,
    key: &str,
    value: Option<Bytes>,
) -> Result<()> {
    match value {
        None => drop(table.remove(&name)),
        Some(value) => drop(table.insert(name, facts::decode(key, &value)?)),
    }
    Ok(())
}

/// The manager's place can't be read. It is written anew whenever somebody doubts it, with marks that a newer program may
/// understand and this one doesn't, and goes with a lease of seconds: so that is waited for, by a node that starts as well.
fn not_yet_readable(error: Error) -> Error {
    let text = format!(
        "{error}; a newer Shale may have written it, for some seconds: if it stays so, upgrade this node"
    );
    Error::new(ErrorKind::Unavailable, text)
}

fn versioned<V: serde::de::DeserializeOwned>(
    key: &str,
    version: u64,
    value: Option<Bytes>,
) -> Result<Option<Versioned<V>>> {
    let Some(value) = value else {
        return Ok(None);
    };
    let value = facts::decode(key, &value)?;
    Ok(Some(Versioned { value, version }))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::simulated::{Chances, Simulated};
    use crate::{News, Watch};
    use model::member::Term;
    use std::time::Duration;
    use world::sim::Simulation;

    fn address(node: u32, incarnation: u64) -> NodeAddress {
        NodeAddress {
            run: NodeRun {
                node: NodeId(node),
                incarnation,
            },
            address: format!("10.0.0.{node}:{incarnation}").parse().unwrap(),
        }
    }

    #[test]
    fn an_older_run_never_replaces_the_address_of_a_newer_one() {
        let run = Simulation::new(1).run(|world| async move {
            let store = Simulated::new(&world, 1);
            let coordination = store.connect(NodeId(1), &world);
            coordination.set_address(address(1, 2)).await.unwrap();
            let late = coordination.set_address(address(1, 1)).await.unwrap_err();
            assert_eq!(late.kind(), ErrorKind::OldEpoch);
            coordination.set_address(address(1, 3)).await.unwrap();
            let roster = Roster::read(&coordination).await.unwrap();
            assert_eq!(roster.addresses[&NodeId(1)], address(1, 3));
        });
        run.finished();
    }

    /// Would be broken if a node that starts ended because somebody has just marked the place in a way that it doesn't know.
    #[test]
    fn a_managers_place_that_can_not_be_read_is_waited_for() {
        let run = Simulation::new(1).run(|world| async move {
            let store = Simulated::new(&world, 1);
            let coordination = store.connect(NodeId(1), &world);
            let mut version = 0;
            // A mark above all that a lease's number has room for, and another format.
            let marked = [&[3_u8, 1, 2][..], &[0xff; 18], &[0x7f]].concat();
            for unreadable in [marked, vec![4, 1, 2, 7]] {
                let unreadable = Some(Bytes::from(unreadable));
                let stored = coordination.compare_and_set(PLACE, version, unreadable);
                version = stored.await.unwrap();
                let error = Roster::read(&coordination).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                assert!(error.to_string().contains("upgrade this node"), "{error}");
            }
            let ended = coordination.compare_and_set(PLACE, version, None);
            ended.await.unwrap();
            assert_eq!(Roster::read(&coordination).await.unwrap().manager, None);
        });
        run.finished();
    }

    fn node_3() -> NodeFacts {
        NodeFacts {
            node: NodeId(3),
            name: "n3".into(),
            class: "default".into(),
            is_quorum: false,
            has_authority: false,
            is_barred: false,
            etcd: None,
            key: [0; 32],
            address: "10.0.0.3:7311".parse().unwrap(),
        }
    }

    /// Takes in the next change.
    async fn follow(followed: &mut Roster, watch: &mut Watch) {
        let News::Changed { revision, events } = watch.next(Duration::from_secs(1)).await else {
            panic!("it has changed");
        };
        followed.change(revision, events).unwrap();
    }

    #[test]
    fn the_name_of_a_node_is_known_until_it_is_removed() {
        let run = Simulation::new(1).run(|world| async move {
            let store = Simulated::new(&world, 1);
            let coordination = store.connect(NodeId(1), &world);
            let mut followed = Roster::read(&coordination).await.unwrap();
            let mut watch = coordination.watch("", followed.revision);
            for name in [Some("n3"), None] {
                match name {
                    Some(_) => coordination.add_first_node(&node_3()).await.unwrap(),
                    None => coordination.forget_node(NodeId(3)).await.unwrap(),
                }
                follow(&mut followed, &mut watch).await;
                let known = followed.names.get(&NodeId(3)).map(String::as_str);
                assert_eq!(known, name);
                let read = Roster::read(&coordination).await.unwrap();
                assert_eq!(read.names, followed.names);
            }
        });
        run.finished();
    }

    #[test]
    fn the_class_of_a_node_is_known_as_it_is_changed_until_the_node_is_removed() {
        let run = Simulation::new(1).run(|world| async move {
            let store = Simulated::new(&world, 1);
            let coordination = store.connect(NodeId(1), &world);
            coordination.add_first_node(&node_3()).await.unwrap();
            let mut followed = Roster::read(&coordination).await.unwrap();
            let mut watch = coordination.watch("", followed.revision);
            assert_eq!(followed.classes[&NodeId(3)], "default");
            for class in [Some("gpu"), Some("default"), None] {
                match class {
                    Some(class) => {
                        let change = coordination.change_node(NodeId(3), |it| {
                            it.class = class.into();
                            Ok(())
                        });
                        change.await.unwrap();
                    }
                    None => coordination.forget_node(NodeId(3)).await.unwrap(),
                }
                follow(&mut followed, &mut watch).await;
                let known = followed.classes.get(&NodeId(3)).map(String::as_str);
                assert_eq!(known, class);
                let read = Roster::read(&coordination).await.unwrap();
                assert_eq!(read.classes, followed.classes);
            }
        });
        run.finished();
    }

    #[test]
    fn quorum_nodes_are_known_until_they_are_none_or_removed() {
        let run = Simulation::new(1).run(|world| async move {
            let store = Simulated::new(&world, 1);
            let coordination = store.connect(NodeId(1), &world);
            coordination.add_first_node(&node_3()).await.unwrap();
            let mut followed = Roster::read(&coordination).await.unwrap();
            let mut watch = coordination.watch("", followed.revision);
            for step in [Some(true), Some(false), Some(true), None] {
                match step {
                    Some(is_quorum) => {
                        let change = coordination.change_node(NodeId(3), |it| {
                            it.is_quorum = is_quorum;
                            Ok(())
                        });
                        change.await.unwrap();
                    }
                    None => coordination.forget_node(NodeId(3)).await.unwrap(),
                }
                follow(&mut followed, &mut watch).await;
                let is_quorum = followed.quorum.contains(&NodeId(3));
                assert_eq!(is_quorum, step == Some(true));
                let read = Roster::read(&coordination).await.unwrap();
                assert_eq!(read.quorum, followed.quorum);
            }
        });
        run.finished();
    }

    #[test]
    fn nodes_that_were_expelled_by_hand_are_known_until_they_are_let_in() {
        let run = Simulation::new(1).run(|world| async move {
            let store = Simulated::new(&world, 1);
            let coordination = store.connect(NodeId(1), &world);
            coordination.add_first_node(&node_3()).await.unwrap();
            let mut followed = Roster::read(&coordination).await.unwrap();
            let mut watch = coordination.watch("", followed.revision);
            for is_barred in [true, false] {
                let change = coordination.change_node(NodeId(3), |it| {
                    it.is_barred = is_barred;
                    Ok(())
                });
                change.await.unwrap();
                follow(&mut followed, &mut watch).await;
                assert_eq!(followed.barred.contains(&NodeId(3)), is_barred);
                let read = Roster::read(&coordination).await.unwrap();
                assert_eq!(read.barred, followed.barred);
            }
        });
        run.finished();
    }

    /// Would be broken if a daemon of a node that was removed were told nothing because another node has the place.
    #[test]
    fn runs_of_a_node_that_was_removed_have_ended_whether_the_membership_has_it_or_not() {
        let run = Simulation::new(1).run(|world| async move {
            let store = Simulated::new(&world, 1);
            let coordination = store.connect(NodeId(1), &world);
            coordination.add_first_node(&node_3()).await.unwrap();
            let own = NodeRun {
                node: NodeId(3),
                incarnation: 1,
            };
            let membership = Membership {
                term: Term(7),
                ..Membership::default()
            };
            let stored = coordination.store_membership(0, &membership);
            stored.await.unwrap();
            let mut followed = Roster::read(&coordination).await.unwrap();
            let mut watch = coordination.watch("", followed.revision);
            assert_eq!(followed.end_of(own), None, "it hasn't joined yet");
            coordination.forget_node(NodeId(3)).await.unwrap();
            follow(&mut followed, &mut watch).await;
            let read = Roster::read(&coordination).await.unwrap();
            for known in [followed, read] {
                assert_eq!(known.removed, BTreeSet::from([NodeId(3)]));
                let end = known.end_of(own).unwrap();
                assert_eq!((end.term, end.has_left), (Term(7), false));
            }
        });
        run.finished();
    }

    #[test]
    fn settings_are_followed_and_one_that_cannot_be_read_is_none() {
        let run = Simulation::new(1).run(|world| async move {
            let store = Simulated::new(&world, 1);
            let coordination = store.connect(NodeId(1), &world);
            let mut followed = Roster::read(&coordination).await.unwrap();
            let mut watch = coordination.watch("", followed.revision);
            let of_class = "config_of/class/gpu/b";
            let garbage = crate::Change::put("config/c", 0, "\0\0\0");
            coordination.set_config("a", 0, "1").await.unwrap();
            let two = "2".to_owned();
            let version = coordination.set_fact(of_class, 0, &two).await.unwrap();
            coordination.transaction(vec![garbage]).await.unwrap();
            let read = Roster::read(&coordination).await.unwrap();
            let expected = [("config/a", "1"), (of_class, "2")];
            let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
            assert_eq!(read.settings, BTreeMap::from(expected));
            let removed = coordination.compare_and_set(of_class, version, None);
            removed.await.unwrap();
            while let News::Changed { revision, events } = watch.next(Duration::from_secs(1)).await
            {
                followed.change(revision, events).unwrap();
            }
            let read = Roster::read(&coordination).await.unwrap();
            assert_eq!(read.settings, followed.settings);
            assert_eq!(read.settings.len(), 1);
        });
        run.finished();
    }

    /// A roster that follows a watch equals one that is read, whatever changed in which order.
    #[test]
    fn following_a_watch_gives_what_reading_gives() {
        for seed in 0..20 {
            let run = Simulation::new(seed).run(move |world| async move {
                let store = Simulated::new(&world, seed);
                store.set_chances(Chances {
                    compaction: 50,
                    ..Chances::NONE
                });
                let coordination = store.connect(NodeId(1), &world);
                let mut followed = Roster::read(&coordination).await.unwrap();
                let mut watch = coordination.watch("", followed.revision);
                for step in 0..40_u64 {
                    let node = (world.random_u64() % 3 + 1) as u32;
                    match world.random_u64() % 6 {
                        0 => coordination.set_address(address(node, step + 1)).await,
                        1 => coordination.set_home(NsdId(node), NodeId(7 - node)).await,
                        2 => coordination.next_session().await.map(drop),
                        3 => {
                            let known = followed.membership.as_ref();
                            let mut next =
                                known.map_or_else(Membership::default, |it| it.value.clone());
                            next.term.0 = step;
                            let read = coordination.membership().await.unwrap();
                            let version = read.map_or(0, |it| it.version);
                            coordination
                                .store_membership(version, &next)
                                .await
                                .map(drop)
                        }
                        4 => {
                            let holder = coordination.manager().await.unwrap();
                            let version = holder.map_or(0, |it| it.version);
                            let lease = coordination.grant_place().await.unwrap().id;
                            let run = address(node, step + 1).run;
                            coordination.take_place(run, version, lease).await.unwrap();
                            match world.random_u64() % 2 {
                                0 => coordination.revoke(lease).await,
                                _ => Ok(()),
                            }
                        }
                        _ => {
                            let key = format!("{HOMES}{node:010}");
                            let found = coordination.get(&key).await.unwrap().found;
                            let version = found.map_or(0, |fact| fact.version);
                            let removed = coordination.compare_and_set(&key, version, None);
                            removed.await.map(drop)
                        }
                    }
                    .unwrap();
                    if world.random_u64() % 3 > 0 {
                        continue;
                    }
                    loop {
                        match watch.next(Duration::from_secs(1)).await {
                            News::Changed { revision, events } => {
                                followed.change(revision, events).unwrap();
                            }
                            News::Quiet => break,
                            News::Lost => {
                                followed = Roster::read(&coordination).await.unwrap();
                                watch = coordination.watch("", followed.revision);
                            }
                        }
                    }
                    let read = Roster::read(&coordination).await.unwrap();
                    assert_eq!(read.addresses, followed.addresses, "seed {seed}");
                    assert_eq!(read.homes, followed.homes, "seed {seed}");
                    assert_eq!(read.membership, followed.membership, "seed {seed}");
                    assert_eq!(read.manager, followed.manager, "seed {seed}");
                }
            });
            run.finished();
        }
    }
}
