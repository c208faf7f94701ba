//! Makes a pool's next map when NSDs are added, drained, removed or lost, moving as few slots as
//! possible, and when its scheme or block size changes, by a new generation.
//!
//! A slot moves in two steps: it gets a *next* NSD under a new group version, so that writers put
//! to both; once the inventories agree, [`finish_moves`] makes that NSD the *current* one under
//! another new version.

mod together;

use crate::groups::{Groups, SlotMembers, group_count};
use crate::random::{Random, mix};
use model::map::{
    GENERATIONS_MAX, GROUPS_MAX, Generation, NsdEntry, NsdState, PoolMap, SlotException,
};
use model::{
    Error, ErrorKind, FailureGroupId, GroupId, GroupVersion, MapEpoch, NsdId, Result, Scheme,
};
use std::collections::{BTreeMap, BTreeSet};

pub use together::{FailsWith, with_failure_groups};

/// Fewest groups per NSD of a generation with equal shares: with fewer, an NSD's share of slots would
/// differ from the others' by more than 10 %. A pool that grows to more than three times its NSDs gets a new
/// generation.
pub const GROUPS_PER_NSD_MIN: usize = 10;
/// Slots of a generation that may differ from what the seed gives until the next added NSD makes a
/// new generation: about 15 bytes each in the map.
pub const EXCEPTIONS_MAX: usize = 16_384;

/// The first map of a pool. Refused with fewer than m + 1 failure groups (n for copies). With at
/// least that many, but fewer than the scheme is wide, segments are narrower until NSDs are added.
pub fn new_pool(scheme: Scheme, nsds: Vec<NsdEntry>, seed: u64) -> Result<PoolMap> {
    let refuse = |text: String| Error::new(ErrorKind::InvalidArgument, text);
    needs_failure_groups(scheme, &nsds)?;
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
    let first = generation(GroupId(0), scheme, None, seed, nsds.clone())?;
    Ok(PoolMap {
        epoch: MapEpoch(1),
        nsds,
        names: Vec::new(),
        generations: vec![first],
    })
}

/// Refuses a scheme whose redundancy the NSDs' failure groups can't carry.
fn needs_failure_groups(scheme: Scheme, nsds: &[NsdEntry]) -> Result<()> {
    let failure_groups: BTreeSet<_> = nsds.iter().map(|entry| entry.failure_group).collect();
    let needed = scheme.tolerance() + 1;
    if failure_groups.len() >= needed {
        return Ok(());
    }
    let text = format!(
        "a {scheme} pool needs NSDs in at least {needed} failure groups, there are {}: add NSDs or choose a scheme that survives fewer losses",
        failure_groups.len()
    );
    Err(Error::new(ErrorKind::InvalidArgument, text))
}

/// A generation that is drawn from these NSDs.
fn generation(
    first_group: GroupId,
    scheme: Scheme,
    block_bytes: Option<u32>,
    seed: u64,
    seeded: Vec<NsdEntry>,
) -> Result<Generation> {
    let groups = group_count(seeded.len());
    if first_group.0.checked_add(groups).is_none() {
        let text = "the pool has used up the numbers of its groups: copy the data to a new pool";
        return Err(Error::new(ErrorKind::NoSpace, text));
    }
    Ok(Generation {
        first_group,
        groups,
        scheme,
        block_bytes,
        seed,
        seeded,
        exceptions: BTreeMap::new(),
        versions: BTreeMap::new(),
    })
}

/// The map with a new generation of another scheme or block size, drawn from all NSDs in use. The
/// others are closed and emptied from now on.
///
/// # Errors
/// `InvalidArgument`: too few failure groups. `Busy`: the pool has [`GENERATIONS_MAX`] generations.
pub fn new_generation(
    map: &PoolMap,
    scheme: Scheme,
    block_bytes: Option<u32>,
    seed: u64,
) -> Result<PoolMap> {
    let in_use = |entry: &&NsdEntry| entry.state == NsdState::Active;
    let seeded: Vec<NsdEntry> = map.nsds.iter().filter(in_use).cloned().collect();
    needs_failure_groups(scheme, &seeded)?;
    if map.generations.len() >= GENERATIONS_MAX {
        let text = format!(
            "the pool still moves data of {} earlier changes: wait until `shale pool list` shows one of them less",
            map.closed().len()
        );
        return Err(Error::new(ErrorKind::Busy, text));
    }
    let newest = generation(map.newest().end(), scheme, block_bytes, seed, seeded)?;
    let mut next = map.clone();
    next.generations.push(newest);
    next.epoch = map.epoch.next();
    Ok(next)
}

/// The map with another block size for new segments of files. Those that exist keep theirs: segments of
/// all sizes are read alike.
#[must_use]
pub fn with_block_bytes(map: &PoolMap, block_bytes: u32) -> PoolMap {
    let mut next = map.clone();
    let newest = next.generations.last_mut();
    newest.expect("a pool has a generation").block_bytes = Some(block_bytes);
    next.epoch = map.epoch.next();
    next
}

/// The map without its oldest generation, which must be closed and empty: see
/// `docs/protocols/generations.md`. `first_group` names it.
///
/// # Errors
/// `NotFound`: it isn't the oldest, or isn't closed.
pub fn drop_generation(map: &PoolMap, first_group: GroupId) -> Result<PoolMap> {
    let oldest = map.closed().first();
    if oldest.is_none_or(|oldest| oldest.first_group != first_group) {
        let text = format!("the pool's oldest closed generation doesn't begin at {first_group}");
        return Err(Error::new(ErrorKind::NotFound, text));
    }
    let mut next = map.clone();
    next.generations.remove(0);
    next.epoch = map.epoch.next();
    Ok(next)
}

/// Whether the newest generation has too few groups for this many NSDs to have equal shares, or too
/// many exceptions for a small map.
fn is_outgrown(map: &PoolMap) -> bool {
    let active = |entry: &&NsdEntry| entry.state == NsdState::Active;
    let nsds = map.nsds.iter().filter(active).count();
    let newest = map.newest();
    (newest.groups as usize) < nsds * GROUPS_PER_NSD_MIN && newest.groups < GROUPS_MAX
        || newest.exceptions.len() > EXCEPTIONS_MAX
}

/// The map with a new NSD, which takes over lost and empty slots first, then its fair share from
/// the fullest NSDs. If the pool has outgrown its groups, it gets a new generation of the same
/// scheme instead.
///
/// # Errors
/// `Exists`: the pool has or had the NSD. `InvalidArgument`: it isn't active, or has no weight.
pub fn add_nsd(map: &PoolMap, entry: NsdEntry) -> Result<PoolMap> {
    let mut seeded = map.generations.iter().flat_map(|it| &it.seeded);
    if entry.nsd == NsdId::NONE
        || map.nsd(entry.nsd).is_some()
        || seeded.any(|old| old.nsd == entry.nsd)
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
    for load in &mut change.loads {
        load.insert(nsd, 0);
    }
    change.replace_unusable();
    if is_outgrown(&change.map) && map.generations.len() < GENERATIONS_MAX {
        let added = change.finish();
        let newest = added.newest();
        let seed = mix(newest.seed ^ mix(u64::from(nsd.0)));
        return new_generation(&added, newest.scheme, newest.block_bytes, seed);
    }
    change.take_fair_share(nsd);
    Ok(change.finish())
}

/// The map without a permanently lost NSD: each of its slots goes to an NSD in a failure group that
/// the slot's group doesn't use yet. Slots for which there is no such NSD wait for [`add_nsd`].
pub fn mark_lost(map: &PoolMap, nsd: NsdId) -> Result<PoolMap> {
    with_states(map, &[nsd], NsdState::Lost)
}

/// The map in which an NSD's slots move away; the NSD takes no new pieces. Slots of closed
/// generations that no other NSD can take stay until the generation is empty.
///
/// # Errors
/// `NoSpace`: one of its slots that take new segments can't move. `NotFound`, `InvalidArgument`: the
/// pool hasn't the NSD, or it is lost.
pub fn drain(map: &PoolMap, nsd: NsdId) -> Result<PoolMap> {
    drain_all(map, &[nsd])
}

/// As [`drain`], of several NSDs at once, for instance those of a node: no slot begins to move from one of
/// them to another. One that was on its way to such an NSD turns back, or goes on from there if the NSD before
/// is leaving, too.
///
/// # Errors
/// As [`drain`], and if slots of others that are being drained would have nowhere to go; nothing is drained then.
pub fn drain_all(map: &PoolMap, nsds: &[NsdId]) -> Result<PoolMap> {
    let drained = with_states(map, nsds, NsdState::Draining)?;
    let (before, after) = (Change::new(map), Change::new(&drained));
    let is_one = |nsd: NsdId| nsds.contains(&nsd);
    // Of others that are being drained, what could go on until now.
    let others = |change: &Change| change.stuck(|nsd| !is_one(nsd));
    let stuck = after.stuck(is_one) + others(&after).saturating_sub(others(&before));
    if stuck > 0 {
        let names: Vec<String> = nsds.iter().map(ToString::to_string).collect();
        let nsd = names.join(", ");
        let text = format!(
            "drain NSD {nsd}: {stuck} slots can't move to another failure group: add an NSD first, or change the pool to a scheme that needs fewer failure groups"
        );
        return Err(Error::new(ErrorKind::NoSpace, text));
    }
    Ok(drained)
}

/// The map in which NSDs that are being drained stay in use. What has moved stays where it is. Slots that are
/// still moving turn back, because what was written meanwhile is at their next NSDs.
///
/// # Errors
/// `NotFound`: the pool hasn't the NSD. `InvalidArgument`: it isn't being drained, or no slot that takes new
/// segments is left, so that it would stay without use. Nothing is changed then.
pub fn cancel_drain(map: &PoolMap, nsds: &[NsdId]) -> Result<PoolMap> {
    let mut change = Change::new(map);
    for nsd in nsds {
        let refuse = |kind: ErrorKind, why: &str| {
            let text = format!("take back the drain of NSD {nsd}: {why}");
            Err(Error::new(kind, text))
        };
        let slots = change.groups.slots_of(*nsd);
        let is_used = change.groups.takes_new(*nsd);
        let mut entries = change.map.nsds.iter_mut();
        let entry = entries.find(|entry| entry.nsd == *nsd);
        match entry.map(|entry| (entry.state, entry)) {
            None => {
                let why = "there is none; `shale nsd list` shows them";
                return refuse(ErrorKind::NotFound, why);
            }
            Some((NsdState::Active, _)) => {
                let why = "it isn't being drained";
                return refuse(ErrorKind::InvalidArgument, why);
            }
            Some((NsdState::Lost, _)) => {
                let why = "it is out of use; `shale nsd add` adds a new one";
                return refuse(ErrorKind::InvalidArgument, why);
            }
            Some((NsdState::Draining, _)) if !is_used => {
                let why = "all its places for new data have moved already, so it is out of use when it is empty; \
                           `shale nsd add` adds a new one";
                return refuse(ErrorKind::InvalidArgument, why);
            }
            Some((NsdState::Draining, entry)) => entry.state = NsdState::Active,
        }
        for (group, slot) in slots {
            let members = change.groups.members(group)[usize::from(slot)];
            if let (true, Some(next)) = (members.current == *nsd, members.next) {
                let back = SlotMembers {
                    current: next,
                    next: Some(*nsd),
                };
                change.set(group, slot, back);
            }
        }
    }
    change.replace_unusable();
    Ok(change.finish())
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

fn with_states(map: &PoolMap, nsds: &[NsdId], state: NsdState) -> Result<PoolMap> {
    let mut change = Change::new(map);
    for nsd in nsds {
        let mut entries = change.map.nsds.iter_mut();
        let entry = entries
            .find(|entry| entry.nsd == *nsd)
            .ok_or_else(|| Error::new(ErrorKind::NotFound, format!("the pool has no NSD {nsd}")))?;
        if entry.state == NsdState::Lost && state != NsdState::Lost {
            let text = format!("NSD {nsd} is lost");
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        entry.state = state;
    }
    change.replace_unusable();
    Ok(change.finish())
}

/// A map being changed.
struct Change {
    /// The groups before the change.
    groups: Groups,
    map: PoolMap,
    /// Of each generation: slots per NSD, with moving slots counted at their destination.
    loads: Vec<BTreeMap<NsdId, u64>>,
    /// Slots that differ from `groups`.
    changed: BTreeMap<(u32, u8), SlotMembers>,
    /// Groups that get a new version.
    touched: BTreeSet<u32>,
}

impl Change {
    fn new(map: &PoolMap) -> Self {
        let groups = Groups::new(map);
        let loads = (0..map.generations.len()).map(|it| groups.load_of(it));
        Self {
            loads: loads.collect(),
            groups,
            map: map.clone(),
            changed: BTreeMap::new(),
            touched: BTreeSet::new(),
        }
    }

    /// The place of a group's generation in the map.
    fn generation(&self, group: GroupId) -> usize {
        let mut all = self.map.generations.iter();
        let found = all.position(|generation| generation.contains(group));
        found.expect("only groups of the map are changed")
    }

    fn width(&self, group: GroupId) -> u8 {
        u8::try_from(self.groups.members(group).len()).expect("a group has at most 20 slots")
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
        let generation = self.generation(group);
        let loads = &mut self.loads[generation];
        if let Some(load) = loads.get_mut(&old.target()) {
            *load -= 1;
        }
        if members.target() != NsdId::NONE {
            *loads.entry(members.target()).or_default() += 1;
        }
        self.changed.insert((group.0, slot), members);
        self.touched.insert(group.0);
    }

    /// Gives every empty, lost or draining slot a next NSD if one is available.
    fn replace_unusable(&mut self) {
        for group in self.map.all_groups().collect::<Vec<_>>() {
            for slot in 0..self.width(group) {
                let mut members = self.with_usable_next(self.slot(group, slot));
                self.set(group, slot, members);
                if members.next.is_none() && self.state(members.current) != Some(NsdState::Active) {
                    members.next = self.replacement(group, slot);
                    self.set(group, slot, members);
                }
            }
        }
    }

    /// Slots that take new segments, and that can't go on from such an NSD, which is being drained.
    fn stuck(&self, is_counted: impl Fn(NsdId) -> bool) -> usize {
        let mut stuck = 0;
        for group in self.map.newest().all_groups() {
            for slot in 0..self.width(group) {
                let members = self.slot(group, slot);
                let nsd = members.target();
                if is_counted(nsd) && self.state(nsd) == Some(NsdState::Draining) {
                    let is_moving = members.next.is_some();
                    let goes_on = is_moving && self.replacement(group, slot).is_some();
                    stuck += usize::from(!goes_on);
                }
            }
        }
        stuck
    }

    /// A slot without a next NSD that is lost. One that drains may have pieces that no other NSD has: what was
    /// written while the slot moved. So the slot turns back, or if the NSD before can't have it, goes on to the next
    /// one first, and from there to another when all is there.
    fn with_usable_next(&self, slot: SlotMembers) -> SlotMembers {
        let Some(next) = slot.next else { return slot };
        match (self.state(slot.current), self.state(next)) {
            (Some(NsdState::Active), Some(NsdState::Draining)) => SlotMembers {
                current: next,
                next: Some(slot.current),
            },
            (_, Some(NsdState::Active | NsdState::Draining)) => slot,
            (_, Some(NsdState::Lost) | None) => SlotMembers { next: None, ..slot },
        }
    }

    /// The active NSD with the fewest slots for its weight whose failure group no other slot of the
    /// group uses; ties are broken randomly, but repeatably for each group.
    fn replacement(&self, group: GroupId, slot: u8) -> Option<NsdId> {
        let used = self.failure_groups_of_others(group, slot);
        let generation = self.generation(group);
        let seed = self.map.generations[generation].seed;
        let mut best: Option<(u128, u64, NsdId)> = None;
        for entry in &self.map.nsds {
            if entry.state == NsdState::Active && !used.contains(&entry.failure_group) {
                let chance = mix(seed ^ mix(u64::from(entry.nsd.0) << 32 | u64::from(group.0)));
                let rank = (self.fullness(generation, entry), chance, entry.nsd);
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
        for other in (0..self.width(group)).filter(|other| *other != slot) {
            let members = self.slot(group, other);
            for nsd in [Some(members.current), members.next].into_iter().flatten() {
                if self.state(nsd).is_some_and(|state| state != NsdState::Lost) {
                    out.extend(self.failure_group(nsd));
                }
            }
        }
        out
    }

    fn fullness(&self, generation: usize, entry: &NsdEntry) -> u128 {
        let load = self.loads[generation].get(&entry.nsd).copied().unwrap_or(0);
        (u128::from(load) << 32) / u128::from(entry.weight.max(1))
    }

    /// Moves slots of the newest generation from the fullest NSDs to `nsd` until it has its fair
    /// share or no NSD is fuller. Those of closed ones will soon be empty.
    fn take_fair_share(&mut self, nsd: NsdId) {
        let newest = self.map.generations.len() - 1;
        let active = |entry: &&NsdEntry| entry.state == NsdState::Active;
        let weights: u64 = self
            .map
            .nsds
            .iter()
            .filter(active)
            .map(|entry| u64::from(entry.weight))
            .sum();
        let taker = self.map.nsd(nsd).expect("the NSD was just added").clone();
        let total: u64 = self.loads[newest]
            .iter()
            .filter(|(nsd, _)| self.state(**nsd) == Some(NsdState::Active))
            .map(|(_, load)| *load)
            .sum();
        let share = total * u64::from(taker.weight) / weights.max(1);
        let mut groups: Vec<GroupId> = self.map.newest().all_groups().collect();
        Random::new(self.map.newest().seed ^ mix(u64::from(nsd.0))).shuffle(&mut groups);
        // First those that have more than their share. Failure groups may forbid that.
        let above = |entry: &NsdEntry| (total * u64::from(entry.weight)).div_ceil(weights.max(1));
        let below = |entry: &NsdEntry| total * u64::from(entry.weight) / weights.max(1);
        let keeps: [&dyn Fn(&NsdEntry) -> u64; 3] = [&above, &below, &|_| 0];
        for keeps in keeps {
            for group in &groups {
                if self.loads[newest].get(&nsd).copied().unwrap_or(0) >= share {
                    return;
                }
                if let Some((slot, donor)) = self.donor(newest, *group, &taker, keeps) {
                    let members = SlotMembers {
                        current: donor,
                        next: Some(nsd),
                    };
                    self.set(*group, slot, members);
                }
            }
        }
    }

    /// The slot of a group that the new NSD should take: that of the fullest NSD which stays fuller
    /// than the new one after giving it up, and has more slots than it `keeps`.
    fn donor(
        &self,
        generation: usize,
        group: GroupId,
        taker: &NsdEntry,
        keeps: &dyn Fn(&NsdEntry) -> u64,
    ) -> Option<(u8, NsdId)> {
        let mut best: Option<(u128, u8, NsdId)> = None;
        for slot in 0..self.width(group) {
            let members = self.slot(group, slot);
            let Some(entry) = self.map.nsd(members.current) else {
                continue;
            };
            let is_free = members.next.is_none() && entry.state == NsdState::Active;
            let load = self.loads[generation].get(&entry.nsd).copied();
            if !is_free
                || load.unwrap_or(0) <= keeps(entry)
                || self
                    .failure_groups_of_others(group, slot)
                    .contains(&taker.failure_group)
            {
                continue;
            }
            let fullness = self.fullness(generation, entry);
            if best.is_none_or(|best| (fullness, slot, members.current) > best) {
                best = Some((fullness, slot, members.current));
            }
        }
        best.filter(|(fullness, _, _)| *fullness > self.fullness(generation, taker))
            .map(|(_, slot, nsd)| (slot, nsd))
    }

    fn finish(mut self) -> PoolMap {
        let mut unchanged = self.map.clone();
        for generation in &mut unchanged.generations {
            generation.exceptions.clear();
        }
        let seeded = Groups::new(&unchanged);
        for ((group, slot), members) in &self.changed {
            let generation = self.generation(GroupId(*group));
            let exceptions = &mut self.map.generations[generation].exceptions;
            let by_seed = seeded.members(GroupId(*group))[usize::from(*slot)];
            if by_seed == *members {
                exceptions.remove(&(*group, *slot));
            } else {
                let exception = SlotException {
                    current: members.current,
                    next: members.next,
                };
                exceptions.insert((*group, *slot), exception);
            }
        }
        for group in &self.touched {
            let generation = self.generation(GroupId(*group));
            let versions = &mut self.map.generations[generation].versions;
            let version = versions.get(group).copied().unwrap_or(GroupVersion::FIRST);
            assert!(
                version.0 + 1 < Generation::CLOSED,
                "no group changes two billion times"
            );
            versions.insert(*group, version.next());
        }
        self.map.epoch = self.map.epoch.next();
        self.map
    }
}

#[cfg(test)]
mod data_tests;
#[cfg(test)]
mod generation_tests;
#[cfg(test)]
mod tests;
