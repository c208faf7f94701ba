//! NSDs that fail together for another reason than their node, for instance those of a rack: they get a
//! failure group with a name.

use super::new_generation;
use model::map::{
    FAILURE_GROUP_NAME_BYTES_MAX, FAILURE_GROUP_NAMES_MAX, FailureGroupName, NsdEntry, NsdState,
    PoolMap,
};
use model::{Error, ErrorKind, FailureGroupId, NsdId, Result};
use std::collections::{BTreeMap, BTreeSet};

/// Failure groups with names have numbers from here on; below are those of nodes and of single NSDs.
const NAMED_FROM: u32 = 1 << 31;

/// What an NSD fails with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FailsWith {
    /// All others with this name, for instance those of its rack.
    Named(String),
    /// All others of this failure group without a name: those of its node.
    Own(FailureGroupId),
}

/// The map in which these NSDs fail with others than before. If that makes a difference to any two NSDs,
/// the pool gets a new generation of the same scheme: so no two slots of a group that takes new segments
/// are in one failure group, and what exists is rewritten.
///
/// # Errors
/// `InvalidArgument`: no good name, or the pool's scheme needs more failure groups. `NotFound`: the pool has no
/// such NSD in use. `NoSpace`: too many names. `Busy`: the pool has as many generations as it may have.
pub fn with_failure_groups(
    map: &PoolMap,
    which: &[(NsdId, FailsWith)],
    seed: u64,
) -> Result<PoolMap> {
    let mut named = map.clone();
    for (nsd, with) in which {
        let failure_group = match with {
            FailsWith::Named(name) => number_of(&mut named, name)?,
            FailsWith::Own(failure_group) => *failure_group,
        };
        let entry = named.nsds.iter_mut().find(|entry| entry.nsd == *nsd);
        let entry = entry
            .filter(|entry| entry.state != NsdState::Lost)
            .ok_or_else(|| {
                Error::new(
                    ErrorKind::NotFound,
                    format!("the pool has no NSD {nsd} in use"),
                )
            })?;
        entry.failure_group = failure_group;
    }
    let kept: BTreeSet<FailureGroupId> = numbers(&named).collect();
    named.names.retain(|it| kept.contains(&it.failure_group));
    if is_alike(map, &named) {
        named.epoch = map.epoch.next();
        return Ok(named);
    }
    let newest = map.newest();
    new_generation(&named, newest.scheme, newest.block_bytes, seed)
}

/// The number of the failure group with a name, which is made if there is none.
fn number_of(map: &mut PoolMap, name: &str) -> Result<FailureGroupId> {
    let is_good = !name.is_empty() && name.len() <= FAILURE_GROUP_NAME_BYTES_MAX;
    if !is_good || !name.chars().all(|it| it.is_ascii_graphic()) {
        let text = format!(
            "a failure group's name has 1 to {FAILURE_GROUP_NAME_BYTES_MAX} visible ASCII characters, not {name:?}"
        );
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    if let Some(known) = map.names.iter().find(|it| it.name == name) {
        return Ok(known.failure_group);
    }
    let named = map.names.iter().map(|it| it.failure_group);
    let taken: BTreeSet<FailureGroupId> = numbers(map).chain(named).collect();
    let mut free = (NAMED_FROM..=u32::MAX).map(FailureGroupId);
    let free = free.find(|number| !taken.contains(number));
    let has_room = map.names.len() < FAILURE_GROUP_NAMES_MAX;
    let number = free.filter(|_| has_room).ok_or_else(|| {
        let text =
            format!("the pool has {FAILURE_GROUP_NAMES_MAX} failure groups with names already");
        Error::new(ErrorKind::NoSpace, text)
    })?;
    map.names.push(FailureGroupName {
        failure_group: number,
        name: name.to_owned(),
    });
    Ok(number)
}

fn numbers(map: &PoolMap) -> impl Iterator<Item = FailureGroupId> + '_ {
    map.nsds.iter().map(|entry| entry.failure_group)
}

/// Whether the same NSDs fail together in two maps with the same NSDs, whatever the groups are called.
fn is_alike(one: &PoolMap, other: &PoolMap) -> bool {
    let in_use = |entry: &&NsdEntry| entry.state != NsdState::Lost;
    let pairs = one.nsds.iter().filter(in_use);
    let mut pairs = pairs.zip(other.nsds.iter().filter(in_use));
    let (mut there, mut back) = (BTreeMap::new(), BTreeMap::new());
    pairs.all(|(one, other)| {
        let (one, other) = (one.failure_group, other.failure_group);
        *there.entry(one).or_insert(other) == other && *back.entry(other).or_insert(one) == one
    })
}

#[cfg(test)]
mod tests;
