//! Changes of the storage pool as a whole: its scheme and its block size.

use super::nsds::LocalNsds;
use model::map::{Generation, NsdEntry, NsdState, PoolMap};
use model::{Error, ErrorKind, FailureGroupId, NsdId, Result, Scheme, limits};
use placement::FailsWith;
use std::collections::BTreeSet;
use world::Planted;

/// What shall be different. What is `None` stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PoolChange {
    /// The scheme. All data is rewritten in the background.
    pub scheme: Option<Scheme>,
    /// Most plain bytes of a new segment of a file, [`limits::BLOCK_BYTES_MIN`] to
    /// [`limits::SEGMENT_BYTES_MAX`], a power of two. Data that exists stays as it is.
    pub block_bytes: Option<u32>,
}

/// One generation of a pool's groups, as `shale pool list` shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GenerationView {
    /// The number of its first group, which names it.
    pub first_group: u32,
    /// Number of groups.
    pub groups: u32,
    /// Its scheme.
    pub scheme: Scheme,
    /// Bytes per block, if it says.
    pub block_bytes: Option<u32>,
    /// Number of NSDs that hold slots of it.
    pub nsds: u64,
    /// Whether it takes new segments; the others are being emptied.
    pub is_newest: bool,
}

impl LocalNsds {
    /// Changes the pool for all data written from now on. With another scheme, what exists is
    /// rewritten in the background: [`metanode::RepairStatus`] shows the progress, and nothing has
    /// less redundancy meanwhile than the old or the new scheme gives it. A crash at any time only
    /// delays it.
    ///
    /// # Errors
    /// `InvalidArgument`: the pool is like that already, the NSDs have too few failure groups, or
    /// there is no such block size. `NoSpace`: the data wouldn't fit. `Busy`: too many changes
    /// aren't finished yet.
    pub async fn change_pool(&self, change: PoolChange) -> Result<()> {
        let attempted = "change the storage pool";
        self.check_change(&change)
            .map_err(|error| error.while_doing(attempted))?;
        let seed = self.world.random_u64();
        let is_blind = self.world.has_planted(Planted::OneFailureGroup);
        self.change_map(|map| match is_blind {
            true => changed(&each_alone(map), &change, seed),
            false => changed(map, &change, seed),
        })
        .await
        .map_err(|error| error.while_doing(attempted))?;
        let map = self.pool.map();
        tracing::info!(scheme = %map.scheme(), block_bytes = map.newest().block_bytes, "the pool has changed");
        Ok(())
    }

    /// Puts NSDs of a node that is alone together with all others of the failure group with this name;
    /// `None`: each fails alone again. Data is rewritten in the background, so that no two pieces of a
    /// segment are in one failure group.
    ///
    /// # Errors
    /// As [`placement::with_failure_groups`]; `NoSpace`: the data wouldn't fit.
    pub async fn set_failure_groups(&self, which: &[(NsdId, Option<String>)]) -> Result<()> {
        let with = |(nsd, name): &(NsdId, Option<String>)| (*nsd, fails_with(name, nsd.0));
        let which: Vec<_> = which.iter().map(with).collect();
        self.fail_together(|_| Ok(which.clone())).await
    }

    /// As [`LocalNsds::set_failure_groups`], of what `which` says of the map.
    pub(super) async fn fail_together(
        &self,
        which: impl Fn(&PoolMap) -> Result<Vec<(NsdId, FailsWith)>>,
    ) -> Result<()> {
        let seed = self.world.random_u64();
        let changed = self.change_map(|map| {
            let next = placement::with_failure_groups(map, &which(map)?, seed)?;
            if next.generations != map.generations {
                self.must_fit(narrowed(&next))?;
            }
            Ok(next)
        });
        changed
            .await
            .map_err(|error| error.while_doing("change failure groups"))?;
        tracing::info!(names = ?self.pool.map().names, "failure groups have changed");
        Ok(())
    }

    fn check_change(&self, change: &PoolChange) -> Result<()> {
        let bounds = limits::BLOCK_BYTES_MIN..=limits::SEGMENT_BYTES_MAX;
        let is_size = |bytes: u32| bytes.is_power_of_two() && bounds.contains(&bytes);
        if let Some(bytes) = change.block_bytes.filter(|bytes| !is_size(*bytes)) {
            let text = format!(
                "a block has {} KiB to {} MiB, a power of two, not {bytes} bytes",
                bounds.start() >> 10,
                bounds.end() >> 20
            );
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        match change.scheme {
            Some(scheme) => self.must_fit(scheme),
            None => Ok(()),
        }
    }

    /// Refuses a scheme under which what is stored wouldn't fit.
    fn must_fit(&self, scheme: Scheme) -> Result<()> {
        let usage = self.pool.usage();
        let stored =
            |bytes: u64| u128::from(bytes) * scheme.width() as u128 / scheme.data_pieces() as u128;
        let kept = usage.raw_capacity / 100 * limits::RESERVED_PERCENT;
        let room = usage.raw_capacity.saturating_sub(kept);
        if stored(usage.used) <= u128::from(room) {
            return Ok(());
        }
        let text = format!(
            "{} bytes of data would take {} bytes as {scheme}, and the NSDs have {room}: add NSDs, or remove data",
            usage.used,
            stored(usage.used)
        );
        Err(Error::new(ErrorKind::NoSpace, text))
    }

    /// The pool's generations, oldest first.
    #[must_use]
    pub fn generations(&self) -> Vec<GenerationView> {
        let groups = self.pool.groups();
        let map = groups.map();
        let view = |generation: &Generation| {
            let is_holder = |entry: &&NsdEntry| {
                let slots = groups.slots_of(entry.nsd);
                let mut slots = slots.iter();
                entry.state != NsdState::Lost && slots.any(|(group, _)| generation.contains(*group))
            };
            GenerationView {
                first_group: generation.first_group.0,
                groups: generation.groups,
                scheme: generation.scheme,
                block_bytes: generation.block_bytes,
                nsds: map.nsds.iter().filter(is_holder).count() as u64,
                is_newest: generation.first_group == map.newest().first_group,
            }
        };
        map.generations.iter().map(view).collect()
    }
}

/// What an NSD fails with that has the failure group `own` unless it is given a name.
pub(super) fn fails_with(name: &Option<String>, own: u32) -> FailsWith {
    match name {
        Some(name) => FailsWith::Named(name.clone()),
        None => FailsWith::Own(FailureGroupId(own)),
    }
}

/// The pool's scheme, as narrow as its failure groups make it.
fn narrowed(map: &PoolMap) -> Scheme {
    let active = map.nsds.iter().filter(|it| it.state == NsdState::Active);
    let failure_groups: BTreeSet<_> = active.map(|it| it.failure_group).collect();
    match map.scheme() {
        Scheme::Erasure { k, m } => {
            let room = failure_groups.len().saturating_sub(usize::from(m)).max(1);
            let k = u8::try_from(room).map_or(k, |room| room.min(k));
            Scheme::Erasure { k, m }
        }
        copies => copies,
    }
}

/// The map as if each NSD failed alone.
fn each_alone(map: &PoolMap) -> PoolMap {
    let mut map = map.clone();
    for entry in &mut map.nsds {
        entry.failure_group = FailureGroupId(entry.nsd.0);
    }
    map
}

/// The map after the change.
fn changed(map: &PoolMap, change: &PoolChange, seed: u64) -> Result<PoolMap> {
    let newest = map.newest();
    let block_bytes = change.block_bytes.or(newest.block_bytes);
    let scheme = change.scheme.filter(|scheme| *scheme != newest.scheme);
    match scheme {
        Some(scheme) => placement::new_generation(map, scheme, block_bytes, seed),
        None => match block_bytes.filter(|_| block_bytes != newest.block_bytes) {
            Some(bytes) => Ok(placement::with_block_bytes(map, bytes)),
            None => {
                let text = format!(
                    "it is like that already: {} with the same block size",
                    newest.scheme
                );
                Err(Error::new(ErrorKind::InvalidArgument, text))
            }
        },
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests;
