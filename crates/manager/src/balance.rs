//! Which run gets which shard: those without an owner first, then what makes the load more even.
//!
//! A shard moves only if that brings the busiest owner nearer to the idlest by enough
//! ([`HYSTERESIS_PERCENT`]), so that weights that change a little move nothing.

use model::limits::SHARDS_OF_PROCESS_MAX;
use model::member::{Move, Weight};
use model::{NodeRun, ShardId};
use std::collections::BTreeMap;
use std::time::Duration;

/// Only a move that lowers the load of the busiest owner by this part of the mean is worth it.
pub const HYSTERESIS_PERCENT: u64 = 25;
/// Time between two moves for balance, and before the first one.
pub const MOVE_EVERY: Duration = Duration::from_secs(30);

/// A shard to be balanced.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Load {
    pub(crate) shard: ShardId,
    pub(crate) assigned: Option<NodeRun>,
    pub(crate) weight: Weight,
}

/// What an owner has to do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Busy {
    /// The weights of its shards together.
    pub(crate) weight: u64,
    /// Its shards.
    pub(crate) shards: usize,
}

impl Busy {
    pub(crate) fn add(&mut self, weight: Weight) {
        self.weight += u64::from(weight.0);
        self.shards += 1;
    }
}

/// What the owners have to do that may be given more.
pub(crate) type Owners = BTreeMap<NodeRun, Busy>;

/// Gives each shard in `orphans` to the owner with the least to do, the heaviest shards first.
/// Those for which no owner has room stay.
pub(crate) fn adopt(orphans: &[Load], owners: &Owners) -> Vec<Move> {
    let mut owners = owners.clone();
    let mut orphans = orphans.to_vec();
    orphans.sort_by_key(|load| (std::cmp::Reverse(load.weight), load.shard));
    let mut moves = Vec::with_capacity(orphans.len());
    for orphan in orphans {
        let with_room = owners
            .iter_mut()
            .filter(|(_, busy)| busy.shards < SHARDS_OF_PROCESS_MAX);
        let Some((to, busy)) = with_room.min_by_key(|(run, busy)| (busy.weight, **run)) else {
            break;
        };
        busy.add(orphan.weight);
        moves.push(Move {
            shard: orphan.shard,
            from: orphan.assigned,
            to: *to,
        });
    }
    moves
}

/// The one move that evens the load most, if one is worth it.
pub(crate) fn even_out(shards: &[Load], owners: &Owners, is_needless: bool) -> Option<Move> {
    let (busiest, most) = owners
        .iter()
        .max_by_key(|(run, busy)| (busy.weight, **run))?;
    let with_room = owners
        .iter()
        .filter(|(run, busy)| *run != busiest && busy.shards < SHARDS_OF_PROCESS_MAX);
    let (idlest, least) = with_room.min_by_key(|(run, busy)| (busy.weight, **run))?;
    let (most, least) = (most.weight, least.weight);
    let mean = owners.values().map(|busy| busy.weight).sum::<u64>() / owners.len() as u64;
    let gain = |load: &Load| {
        let weight = u64::from(load.weight.0);
        let after = most.saturating_sub(weight).max(least + weight);
        most.saturating_sub(after)
    };
    let of_busiest = shards.iter().filter(|load| load.assigned == Some(*busiest));
    let best = of_busiest.max_by_key(|load| (gain(load), std::cmp::Reverse(load.shard)))?;
    let is_worth_it = gain(best) > 0 && gain(best) * 100 >= mean * HYSTERESIS_PERCENT;
    (is_worth_it || is_needless).then_some(Move {
        shard: best.shard,
        from: best.assigned,
        to: *idlest,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use model::NodeId;

    pub(crate) fn run(node: u32) -> NodeRun {
        NodeRun {
            node: NodeId(node),
            incarnation: 1,
        }
    }

    fn load(shard: u32, owner: u32, weight: u32) -> Load {
        Load {
            shard: ShardId(shard),
            assigned: Some(run(owner)),
            weight: Weight(weight),
        }
    }

    #[test]
    fn orphans_go_to_who_has_least_to_do() {
        let busy = |weight| Busy { weight, shards: 1 };
        let owners = BTreeMap::from([(run(1), busy(5)), (run(2), busy(0)), (run(3), busy(3))]);
        let orphans = [load(1, 9, 1), load(2, 9, 4), load(3, 9, 2)];
        let moves = adopt(&orphans, &owners);
        let to: Vec<_> = moves.iter().map(|it| (it.shard.0, it.to.node.0)).collect();
        assert_eq!(to, [(2, 2), (3, 3), (1, 2)]);
        assert_eq!(adopt(&orphans, &BTreeMap::new()), []);
    }

    #[test]
    fn moves_end_and_none_is_made_for_little() {
        let mut chance = 1_u64;
        for _ in 0..2_000 {
            let mut below = |end: u64| {
                chance = chance
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                (chance >> 33) % end
            };
            let owners = 1 + below(6) as u32;
            let mut shards: Vec<_> = (0..below(30) as u32)
                .map(|shard| load(shard, 1 + below(owners.into()) as u32, 1 + below(9) as u32))
                .collect();
            for moved in 0.. {
                assert!(moved < 100, "shards move without end: {shards:?}");
                let mut busy: Owners = (1..=owners).map(|it| (run(it), Busy::default())).collect();
                for shard in &shards {
                    let owner = shard.assigned.expect("given");
                    busy.entry(owner).or_default().add(shard.weight);
                }
                let Some(best) = even_out(&shards, &busy, false) else {
                    let weights: Vec<_> = busy.values().map(|it| it.weight).collect();
                    let (most, least) = (weights.iter().max(), weights.iter().min());
                    let gap = most.expect("owners") - least.expect("owners");
                    let mean = weights.iter().sum::<u64>() / u64::from(owners);
                    let heaviest = shards.iter().map(|it| u64::from(it.weight.0)).max();
                    let heaviest = heaviest.unwrap_or(0);
                    assert!(gap <= 2 * heaviest.max(mean), "{gap} {mean} {heaviest}");
                    break;
                };
                let moved = shards.iter_mut().find(|it| it.shard == best.shard);
                moved.expect("it exists").assigned = Some(best.to);
            }
        }
    }
}
