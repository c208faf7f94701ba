//! How many bytes each NSD got from this process lately, compared with the others: new segments go
//! where less went. Segments of different sizes would be spread unevenly otherwise.

use model::map::{NsdState, PoolMap};
use model::{NsdId, SegmentPlace};
use placement::balance::Uses;
use placement::{Groups, layout};
use std::collections::BTreeMap;

/// Most bytes that an NSD may be behind the others: one that was away for long doesn't get all new
/// segments when it is back.
const BEHIND_MAX: u64 = 64 << 20;
/// Bytes for a weight are counted in 1/1,024.
const FINE: u64 = 1024;

/// Bytes put to each NSD for its weight, above those of the one that got least.
#[derive(Default)]
pub(crate) struct Evenness {
    put: BTreeMap<NsdId, u64>,
}

impl Evenness {
    pub(crate) fn of(&self, nsd: NsdId) -> u64 {
        self.put.get(&nsd).copied().unwrap_or(0)
    }

    /// Counts a segment that is being written.
    pub(crate) fn note(&mut self, groups: &Groups, place: &SegmentPlace) {
        let bytes = u64::from(layout::piece_length(place.scheme, place.length));
        let slots = groups.members(place.group);
        for piece in 0..place.scheme.width() as u8 {
            if let Some(slot) = slots.get(usize::from(place.slot_of(piece)))
                && let Some(entry) = groups.map().nsd(slot.target())
            {
                let put = bytes.saturating_mul(FINE) / u64::from(entry.weight.max(1));
                let so_far = self.put.entry(entry.nsd).or_default();
                *so_far = so_far.saturating_add(put);
            }
        }
        self.level(groups.map());
    }

    /// Starts again from what the NSDs hold.
    pub(crate) fn begin_from(&mut self, map: &PoolMap, uses: &Uses) {
        let weight = |nsd| {
            map.nsd(nsd)
                .map_or(1, |entry| u64::from(entry.weight.max(1)))
        };
        let held = uses.bytes();
        self.put = held
            .map(|(nsd, bytes)| (nsd, bytes.saturating_mul(FINE) / weight(nsd)))
            .collect();
        self.level(map);
    }

    fn level(&mut self, map: &PoolMap) {
        let active = map.nsds.iter();
        let active = active.filter(|entry| entry.state == NsdState::Active);
        let (mut count, mut weights, mut sum) = (0u64, 0, 0u64);
        let mut known = BTreeMap::new();
        for entry in active {
            count += 1;
            weights += u64::from(entry.weight);
            let put = self.put.get(&entry.nsd).copied();
            sum = sum.saturating_add(put.unwrap_or(0));
            known.insert(entry.nsd, put);
        }
        let (count, weights) = (count.max(1), weights.max(1));
        // One that is new begins where the others are.
        let mean = sum / self.put.len().max(1) as u64;
        let most = known.values().flatten().copied().max().unwrap_or(0);
        let behind_max = BEHIND_MAX.saturating_mul(FINE) * count / weights;
        let least = known.values().flatten().copied().min().unwrap_or(0);
        let least = least.max(most.saturating_sub(behind_max));
        let above = |put: Option<u64>| put.unwrap_or(mean).saturating_sub(least);
        let levelled = known.into_iter().map(|(nsd, put)| (nsd, above(put)));
        self.put = levelled.collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::map::NsdEntry;
    use model::{FailureGroupId, Scheme, SegmentId, SessionId};

    fn entry(nsd: u32, weight: u32) -> NsdEntry {
        NsdEntry {
            nsd: NsdId(nsd),
            failure_group: FailureGroupId(nsd),
            weight,
            state: NsdState::Active,
        }
    }

    #[test]
    fn one_that_gets_nothing_falls_behind_by_no_more_than_the_most() {
        let list = (1..=4).map(|nsd| entry(nsd, 2)).collect();
        let map = placement::new_pool(Scheme::Replicate(1), list, 3).expect("legal");
        let groups = Groups::new(&map);
        let mut evenness = Evenness::default();
        let others = groups.all().filter(|it| !groups.is_member(NsdId(1), *it));
        let others: Vec<_> = others.collect();
        for group in others.into_iter().cycle().take(300) {
            let place = SegmentPlace {
                segment: SegmentId {
                    session: SessionId(1),
                    counter: 1,
                },
                group,
                scheme: Scheme::Replicate(1),
                skipped_slots: 0,
                missing: 0,
                length: 16 << 20,
                crc: 0,
            };
            evenness.note(&groups, &place);
        }
        let most = (1..=4).map(|nsd| evenness.of(NsdId(nsd))).max();
        assert_eq!(evenness.of(NsdId(1)), 0);
        assert_eq!(most, Some((64 << 20) * FINE / 2));
        let more = placement::add_nsd(&map, entry(5, 2)).expect("new");
        evenness.level(&more);
        assert!(evenness.of(NsdId(5)) > 0, "a new one isn't behind");
    }
}
