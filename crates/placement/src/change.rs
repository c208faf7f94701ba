//! Makes a pool's next map when NSDs are added, drained, removed or lost, moving as few slots as
//! possible.
//!
//! A slot moves in two steps: it gets a *next* NSD under a new group version, so that writers put
//! to both; once the inventories agree, [`finish_moves`] makes that NSD the *current* one under
//! another new version.

use crate::groups::{Groups, SlotMembers, group_count};
use crate::random::{Random, mix};
use model::map::{NsdEntry, NsdState, PoolMap, SlotException};
use model::{
    Error, ErrorKind, FailureGroupId, GroupId, GroupVersion, MapEpoch, NsdId, Result, Scheme,
};
use std::collections::{BTreeMap, BTreeSet};

/// The first map of a pool. Refused with fewer than m + 1 failure groups (n for copies). With at
/// least that many, but fewer than the scheme is wide, segments are narrower until NSDs are added.
pub fn new_pool(scheme: Scheme, nsds: Vec<NsdEntry>, seed: u64) -> Result<PoolMap> {
    let refuse = |text: String| Error::new(ErrorKind::InvalidArgument, text);
    let failure_groups: BTreeSet<_> = nsds.iter().map(|entry| entry.failure_group).collect();
    let needed = scheme.tolerance() + 1;
    if failure_groups.len() < needed {
        return Err(refuse(format!(
            "a {scheme} pool needs NSDs in at least {needed} failure groups, there are {}: add NSDs or choose a scheme that survives fewer losses",
            failure_groups.len()
        )));
    }
    let mut seen = BTreeSet::new();
    for entry in &nsds {
        if entry.nsd == NsdId::NONE || !seen.insert(entry.nsd) {
            return Err(refuse(format!(
                "NSD {} is listed twice for a new pool, or has an invalid number",
                entry.nsd
            )));
        }
        if entry.state != NsdState::Active || entry.weight == 0 {
            return Err(refuse(format!(
                "NSD {} of a new pool must be active and have a weight",
                entry.nsd
            )));
        }
    }
    Ok(PoolMap {
        epoch: MapEpoch(1),
        scheme,
        seed,
        groups: group_count(nsds.len()),
        seeded: nsds.clone(),
        nsds,
        exceptions: BTreeMap::new(),
        versions: BTreeMap::new(),
    })
}

/// The map with a new NSD, which takes over lost and empty slots first, then its fair share from
/// the fullest NSDs.
pub fn add_nsd(map: &PoolMap, entry: NsdEntry) -> Result<PoolMap> {
    if entry.nsd == NsdId::NONE
        || map.nsd(entry.nsd).is_some()
        || map.seeded.iter().any(|old| old.nsd == entry.nsd)
    {
        let text = format!(
            "add NSD {}: the pool has or had an NSD with that number",
            entry.nsd
        );
        return Err(Error::new(ErrorKind::Exists, text));
    }
    if entry.weight == 0 || entry.state != NsdState::Active {
        let text = format!("add NSD {}: it must be active and have a weight", entry.nsd);
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    let nsd = entry.nsd;
    let mut change = Change::new(map);
    change.map.nsds.push(entry);
    change.load.insert(nsd, 0);
    change.replace_unusable();
    change.take_fair_share(nsd);
    Ok(change.finish())
}

/// The map without a permanently lost NSD: each of its slots goes to an NSD in a failure group that
/// the slot's group doesn't use yet. Slots for which there is no such NSD wait for [`add_nsd`].
pub fn mark_lost(map: &PoolMap, nsd: NsdId) -> Result<PoolMap> {
    with_state(map, nsd, NsdState::Lost)
}

/// The map in which an NSD's slots move away; the NSD takes no new pieces. Refused if no other NSD
/// can take one of the slots.
pub fn drain(map: &PoolMap, nsd: NsdId) -> Result<PoolMap> {
    let drained = with_state(map, nsd, NsdState::Draining)?;
    let groups = Groups::new(&drained);
    let stuck = groups
        .slots_of(nsd)
        .iter()
        .filter(|(group, slot)| groups.members(*group)[usize::from(*slot)].target() == nsd)
        .count();
    if stuck > 0 {
        let text = format!(
            "drain NSD {nsd}: {stuck} of its slots can't move to another failure group: add an NSD first"
        );
        return Err(Error::new(ErrorKind::NoSpace, text));
    }
    Ok(drained)
}

/// The map after the given slots have finished moving: next becomes current. Slots that don't move
/// stay unchanged; lost slots that another NSD can now take start to move.
#[must_use]
pub fn finish_moves(map: &PoolMap, arrived: &[(GroupId, u8)]) -> PoolMap {
    let mut change = Change::new(map);
    for (group, slot) in arrived {
        let members = change.groups.members(*group)[usize::from(*slot)];
        if let Some(next) = members.next {
            change.set(
                *group,
                *slot,
                SlotMembers {
                    current: next,
                    next: None,
                },
            );
        }
    }
    change.replace_unusable();
    change.finish()
}

/// The map without an NSD that no longer holds any slot.
pub fn remove_nsd(map: &PoolMap, nsd: NsdId) -> Result<PoolMap> {
    let held = Groups::new(map).slots_of(nsd).len();
    if held > 0 {
        let text = format!(
            "remove NSD {nsd}: it still has {held} slots; drain it, or mark it lost and wait for repair"
        );
        return Err(Error::new(ErrorKind::Busy, text));
    }
    let mut next = map.clone();
    next.nsds.retain(|entry| entry.nsd != nsd);
    next.epoch = map.epoch.next();
    Ok(next)
}

fn with_state(map: &PoolMap, nsd: NsdId, state: NsdState) -> Result<PoolMap> {
    let mut change = Change::new(map);
    let entry = change.map.nsds.iter_mut().find(|entry| entry.nsd == nsd);
    let entry = entry
        .ok_or_else(|| Error::new(ErrorKind::NotFound, format!("the pool has no NSD {nsd}")))?;
    if entry.state == NsdState::Lost && state != NsdState::Lost {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("NSD {nsd} is lost"),
        ));
    }
    entry.state = state;
    change.replace_unusable();
    Ok(change.finish())
}

/// A map being changed.
struct Change {
    /// The groups before the change.
    groups: Groups,
    map: PoolMap,
    /// Slots per NSD, with moving slots counted at their destination.
    load: BTreeMap<NsdId, u64>,
    changed: BTreeMap<(u32, u8), SlotMembers>,
    touched: BTreeSet<u32>,
}

impl Change {
    fn new(map: &PoolMap) -> Self {
        let groups = Groups::new(map);
        let load = groups.load();
        Self {
            groups,
            map: map.clone(),
            load,
            changed: BTreeMap::new(),
            touched: BTreeSet::new(),
        }
    }

    fn state(&self, nsd: NsdId) -> Option<NsdState> {
        self.map.nsd(nsd).map(|entry| entry.state)
    }

    fn failure_group(&self, nsd: NsdId) -> Option<FailureGroupId> {
        self.map.nsd(nsd).map(|entry| entry.failure_group)
    }

    fn slot(&self, group: GroupId, slot: u8) -> SlotMembers {
        let old = || self.groups.members(group)[usize::from(slot)];
        self.changed
            .get(&(group.0, slot))
            .copied()
            .unwrap_or_else(old)
    }

    fn set(&mut self, group: GroupId, slot: u8, members: SlotMembers) {
        let old = self.slot(group, slot);
        if old == members {
            return;
        }
        if let Some(load) = self.load.get_mut(&old.target()) {
            *load -= 1;
        }
        if members.target() != NsdId::NONE {
            *self.load.entry(members.target()).or_default() += 1;
        }
        self.changed.insert((group.0, slot), members);
        self.touched.insert(group.0);
    }

    /// Gives every empty, lost or draining slot a next NSD if one is available.
    fn replace_unusable(&mut self) {
        for group in (0..self.map.groups).map(GroupId) {
            for slot in 0..self.groups.width() as u8 {
                let mut members = self.slot(group, slot);
                if members
                    .next
                    .is_some_and(|next| self.state(next) != Some(NsdState::Active))
                {
                    members.next = None;
                    self.set(group, slot, members);
                }
                if members.next.is_none() && self.state(members.current) != Some(NsdState::Active) {
                    members.next = self.replacement(group, slot);
                    self.set(group, slot, members);
                }
            }
        }
    }

    /// The active NSD with the fewest slots for its weight whose failure group no other slot of the
    /// group uses; ties are broken randomly, but repeatably for each group.
    fn replacement(&self, group: GroupId, slot: u8) -> Option<NsdId> {
        let used = self.failure_groups_of_others(group, slot);
        let mut best: Option<(u128, u64, NsdId)> = None;
        for entry in &self.map.nsds {
            if entry.state == NsdState::Active && !used.contains(&entry.failure_group) {
                let chance =
                    mix(self.map.seed ^ mix(u64::from(entry.nsd.0) << 32 | u64::from(group.0)));
                let rank = (self.fullness(entry), chance, entry.nsd);
                if best.is_none_or(|best| rank < best) {
                    best = Some(rank);
                }
            }
        }
        best.map(|(_, _, nsd)| nsd)
    }

    /// Failure groups of the other slots. Lost NSDs hold no pieces, so their failure groups count
    /// as free; a draining NSD still holds its pieces.
    fn failure_groups_of_others(&self, group: GroupId, slot: u8) -> BTreeSet<FailureGroupId> {
        let mut out = BTreeSet::new();
        for other in (0..self.groups.width() as u8).filter(|other| *other != slot) {
            let members = self.slot(group, other);
            for nsd in [Some(members.current), members.next].into_iter().flatten() {
                if self.state(nsd).is_some_and(|state| state != NsdState::Lost) {
                    out.extend(self.failure_group(nsd));
                }
            }
        }
        out
    }

    fn fullness(&self, entry: &NsdEntry) -> u128 {
        let load = self.load.get(&entry.nsd).copied().unwrap_or(0);
        (u128::from(load) << 32) / u128::from(entry.weight.max(1))
    }

    /// Moves slots from the fullest NSDs to `nsd` until it has its fair share or no NSD is fuller.
    fn take_fair_share(&mut self, nsd: NsdId) {
        let active = |entry: &&NsdEntry| entry.state == NsdState::Active;
        let weights: u64 = self
            .map
            .nsds
            .iter()
            .filter(active)
            .map(|entry| u64::from(entry.weight))
            .sum();
        let taker = self.map.nsd(nsd).expect("the NSD was just added").clone();
        let total: u64 = self
            .load
            .iter()
            .filter(|(nsd, _)| self.state(**nsd) == Some(NsdState::Active))
            .map(|(_, load)| *load)
            .sum();
        let share = total * u64::from(taker.weight) / weights.max(1);
        let mut groups: Vec<GroupId> = (0..self.map.groups).map(GroupId).collect();
        Random::new(self.map.seed ^ mix(u64::from(nsd.0))).shuffle(&mut groups);
        for group in groups {
            if self.load.get(&nsd).copied().unwrap_or(0) >= share {
                return;
            }
            if let Some((slot, donor)) = self.donor(group, &taker) {
                self.set(
                    group,
                    slot,
                    SlotMembers {
                        current: donor,
                        next: Some(nsd),
                    },
                );
            }
        }
    }

    /// The slot of a group that the new NSD should take: that of the fullest NSD which stays fuller
    /// than the new one after giving it up.
    fn donor(&self, group: GroupId, taker: &NsdEntry) -> Option<(u8, NsdId)> {
        let mut best: Option<(u128, u8, NsdId)> = None;
        for slot in 0..self.groups.width() as u8 {
            let members = self.slot(group, slot);
            let Some(entry) = self.map.nsd(members.current) else {
                continue;
            };
            let is_free = members.next.is_none() && entry.state == NsdState::Active;
            if !is_free
                || self
                    .failure_groups_of_others(group, slot)
                    .contains(&taker.failure_group)
            {
                continue;
            }
            let fullness = self.fullness(entry);
            if best.is_none_or(|best| (fullness, slot, members.current) > best) {
                best = Some((fullness, slot, members.current));
            }
        }
        best.filter(|(fullness, _, _)| *fullness > self.fullness(taker))
            .map(|(_, slot, nsd)| (slot, nsd))
    }

    fn finish(mut self) -> PoolMap {
        let seeded = Groups::new(&PoolMap {
            exceptions: BTreeMap::new(),
            ..self.map.clone()
        });
        for ((group, slot), members) in &self.changed {
            let by_seed = seeded.members(GroupId(*group))[usize::from(*slot)];
            if by_seed == *members {
                self.map.exceptions.remove(&(*group, *slot));
            } else {
                let exception = SlotException {
                    current: members.current,
                    next: members.next,
                };
                self.map.exceptions.insert((*group, *slot), exception);
            }
        }
        for group in &self.touched {
            let version: GroupVersion = self.map.version(GroupId(*group)).next();
            self.map.versions.insert(*group, version);
        }
        self.map.epoch = self.map.epoch.next();
        self.map
    }
}

#[cfg(test)]
mod tests;
