//! Whatever is added, drained, kept after all or lost: pieces are where the map of that time looks for them.

use super::tests::entry;
use super::*;
use model::map::GroupStanding;
use proptest::prelude::*;

/// Moves that end one after the other in a group: each slot's to an NSD that is drained, and on from there.
const ROUNDS_MAX: usize = 8;

/// The pieces of a slot: the NSDs that have each.
type Pieces = Vec<BTreeSet<NsdId>>;

#[derive(Clone, Copy, Debug)]
enum Step {
    Add,
    /// Of so many NSDs at once.
    Drain(usize),
    Cancel(usize),
    Lose,
    /// Each slot gets a piece. Some NSDs may have no room.
    Write,
    /// Next NSDs get what they lack, in all groups or in some.
    Copy,
    Arrive,
    Change(u8),
    Drop,
}

fn steps() -> impl Strategy<Value = Vec<(Step, u32)>> {
    let step = prop_oneof![
        1 => Just(Step::Add),
        3 => (1..3usize).prop_map(Step::Drain),
        2 => (1..3usize).prop_map(Step::Cancel),
        1 => Just(Step::Lose),
        4 => Just(Step::Write),
        2 => Just(Step::Copy),
        2 => Just(Step::Arrive),
        1 => (1..4u8).prop_map(Step::Change),
        1 => Just(Step::Drop),
    ];
    prop::collection::vec((step, any::<u32>()), 1..20)
}

fn is_active(map: &PoolMap, nsd: NsdId) -> bool {
    let entry = map.nsd(nsd);
    entry.is_some_and(|entry| entry.state == NsdState::Active)
}

/// A pool's map, and which pieces its NSDs have.
struct Stored {
    map: PoolMap,
    slots: BTreeMap<(GroupId, u8), Pieces>,
    newest: u32,
}

impl Stored {
    fn play(&mut self, step: Step, choice: u32) {
        let part = choice % 4;
        match step {
            Step::Write => self.write(|nsd| part == 0 || nsd.0 % 4 != part),
            Step::Copy => self.copy(|group| part == 0 || group.0 % 4 == part),
            Step::Arrive => self.arrive(),
            _ => self.change(step, choice),
        }
    }

    fn changed(&mut self, step: Step, choice: u32) -> Result<PoolMap> {
        let map = &self.map;
        let at = |by: u32| map.nsds[by as usize % map.nsds.len()].nsd;
        let nsds = [at(choice), at(choice / 64)];
        match step {
            Step::Add => {
                self.newest += 1;
                add_nsd(map, entry(self.newest))
            }
            Step::Drain(count) => drain_all(map, &nsds[..count]),
            Step::Cancel(count) => cancel_drain(map, &nsds[..count]),
            Step::Lose => mark_lost(map, nsds[0]),
            Step::Change(copies) => {
                new_generation(map, Scheme::Replicate(copies), None, u64::from(choice))
            }
            Step::Drop => drop_generation(map, map.generations[0].first_group),
            Step::Write | Step::Copy | Step::Arrive => Ok(map.clone()),
        }
    }

    /// Pieces on lost NSDs, and in generations that are no more, aren't looked for.
    fn change(&mut self, step: Step, choice: u32) {
        let Ok(map) = self.changed(step, choice) else {
            return;
        };
        self.slots
            .retain(|(group, _), _| map.standing(*group) == GroupStanding::Known);
        let is_kept = |nsd: &NsdId| {
            let entry = map.nsd(*nsd);
            entry.is_some_and(|entry| entry.state != NsdState::Lost)
        };
        for pieces in self.slots.values_mut() {
            for piece in pieces.iter_mut() {
                piece.retain(is_kept);
            }
            pieces.retain(|piece| !piece.is_empty());
        }
        self.map = map;
    }

    /// As writers do: to all NSDs of a slot that take new pieces.
    fn write(&mut self, has_room: impl Fn(NsdId) -> bool) {
        let groups = Groups::new(&self.map);
        for group in self.map.newest().all_groups() {
            for (slot, members) in (0u8..).zip(groups.members(group)) {
                let nsds = members.in_reading_order();
                let to: BTreeSet<NsdId> = nsds
                    .filter(|nsd| is_active(&self.map, *nsd) && has_room(*nsd))
                    .collect();
                if !to.is_empty() {
                    self.slots.entry((group, slot)).or_default().push(to);
                }
            }
        }
    }

    fn copy(&mut self, is_chosen: impl Fn(GroupId) -> bool) {
        let groups = Groups::new(&self.map);
        let moving = groups.moving().into_iter();
        for (group, slot) in moving.filter(|(group, _)| is_chosen(*group)) {
            let next = groups.members(group)[usize::from(slot)].target();
            let pieces = self.slots.get_mut(&(group, slot));
            for piece in pieces.into_iter().flatten() {
                piece.insert(next);
            }
        }
    }

    /// As repair does: a slot's next NSD becomes current when it has all, and then the one before deletes what it has.
    fn arrive(&mut self) {
        let groups = Groups::new(&self.map);
        let members = |group: GroupId, slot: u8| groups.members(group)[usize::from(slot)];
        let mut arrived = groups.moving();
        arrived.retain(|(group, slot)| {
            let next = members(*group, *slot).target();
            let mut pieces = self.slots.get(&(*group, *slot)).into_iter().flatten();
            pieces.all(|piece| piece.contains(&next))
        });
        self.map = finish_moves(&self.map, &arrived);
        for (group, slot) in arrived {
            let left = members(group, slot).current;
            let pieces = self.slots.get_mut(&(group, slot));
            for piece in pieces.into_iter().flatten() {
                piece.remove(&left);
            }
        }
    }

    fn check(&self) {
        let groups = Groups::new(&self.map);
        for ((group, slot), pieces) in &self.slots {
            let members = groups.members(*group)[usize::from(*slot)];
            let looked_for: BTreeSet<NsdId> = members.in_reading_order().collect();
            for piece in pieces {
                assert!(
                    !piece.is_empty() && piece.is_subset(&looked_for),
                    "slot {slot} of group {group}: on {piece:?}, looked for on {members:?}"
                );
            }
        }
    }

    /// Nothing moves for ever, and a slot is without an NSD in use only if no failure group is left for it.
    fn settle(&mut self) {
        for _ in 0..ROUNDS_MAX {
            self.copy(|_| true);
            self.arrive();
            self.check();
        }
        let groups = Groups::new(&self.map);
        assert_eq!(groups.moving(), []);
        let active = self.map.nsds.iter();
        let active = active.filter(|entry| entry.state == NsdState::Active);
        let failure_groups: BTreeSet<_> = active.map(|entry| entry.failure_group).collect();
        for group in groups.all() {
            let slots = groups.members(group);
            let is_whole = slots.iter().all(|slot| is_active(&self.map, slot.target()));
            assert!(
                is_whole || failure_groups.len() < slots.len(),
                "group {group}: {slots:?}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Would be broken by a slot that forgets an NSD which has pieces of it, as the next one of a drained NSD that is
    /// drained as well, or that keeps moving.
    #[test]
    fn pieces_are_looked_for_where_they_are_whatever_happens(copies in 1u8..4, steps in steps(), seed: u64) {
        let scheme = Scheme::Replicate(copies);
        let map = new_pool(scheme, (1..=5).map(entry).collect(), seed).expect("legal");
        let mut stored = Stored { map, slots: BTreeMap::new(), newest: 5 };
        stored.play(Step::Write, 0);
        for (step, choice) in steps {
            stored.play(step, choice);
            stored.check();
        }
        stored.settle();
    }
}
