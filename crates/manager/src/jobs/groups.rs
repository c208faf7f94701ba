//! The groups of a pool as the planner sees them: what the map says, and which NSDs serve.

use super::Stamp;
use model::{GroupId, GroupVersion, NodeId, NsdId};
use std::collections::{BTreeMap, BTreeSet};

/// A slot of a group.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Slot {
    /// The NSD that has its pieces.
    pub current: NsdId,
    /// The NSD that gets them.
    pub next: Option<NsdId>,
}

/// A group as the map says.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct GroupFact {
    /// The group.
    pub group: GroupId,
    /// Its version.
    pub version: GroupVersion,
    /// How many slots may be missing.
    pub tolerance: u8,
    /// Its slots.
    pub slots: Vec<Slot>,
    /// About how many bytes it has: for the expected end.
    pub bytes: u64,
}

/// An NSD.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NsdFact {
    /// The node that has it.
    pub home: NodeId,
    /// It answers.
    pub serves: bool,
    /// How often it was opened, counted by itself: grows when it comes back.
    pub opened: u64,
}

/// A group with what follows from both.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Group {
    pub(super) stamp: Stamp,
    /// How many more slots may be lost; negative if data can't be read.
    pub(super) left: i32,
    pub(super) missing: usize,
    pub(super) is_moving: bool,
    pub(super) bytes: u64,
    /// The nodes of its NSDs that serve.
    pub(super) nodes: BTreeSet<NodeId>,
}

/// All groups of a pool.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Groups {
    facts: Vec<GroupFact>,
    nsds: BTreeMap<NsdId, NsdFact>,
    pub(super) known: BTreeMap<GroupId, Group>,
}

impl Groups {
    pub(super) fn learn_map(&mut self, facts: Vec<GroupFact>) {
        self.facts = facts;
        self.look();
    }

    pub(super) fn learn_nsds(&mut self, nsds: BTreeMap<NsdId, NsdFact>) {
        self.nsds = nsds;
        self.look();
    }

    /// The nodes that have NSDs which serve.
    pub(super) fn servers(&self) -> BTreeSet<NodeId> {
        let serving = self.nsds.values().filter(|nsd| nsd.serves);
        serving.map(|nsd| nsd.home).collect()
    }

    fn look(&mut self) {
        let known = self.facts.iter().map(|fact| (fact.group, self.of(fact)));
        self.known = known.collect();
    }

    fn of(&self, fact: &GroupFact) -> Group {
        let serves = |nsd: NsdId| self.nsds.get(&nsd).is_some_and(|nsd| nsd.serves);
        let slots = fact.slots.iter();
        // What a slot's next NSD has isn't counted before the slot has moved.
        let missing = slots.clone().filter(|slot| !serves(slot.current)).count();
        let nsds = slots.flat_map(|slot| [Some(slot.current), slot.next]);
        let nsds: Vec<_> = nsds
            .flatten()
            .filter_map(|nsd| self.nsds.get(&nsd))
            .collect();
        Group {
            stamp: Stamp {
                version: fact.version,
                // Only compared with others of the same group.
                opened: nsds.iter().fold(0, |sum, nsd| sum.wrapping_add(nsd.opened)),
            },
            left: i32::from(fact.tolerance) - missing as i32,
            missing,
            is_moving: fact.slots.iter().any(|slot| slot.next.is_some()),
            bytes: fact.bytes,
            nodes: nsds
                .iter()
                .filter(|nsd| nsd.serves)
                .map(|nsd| nsd.home)
                .collect(),
        }
    }
}
