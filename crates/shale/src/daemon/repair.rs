//! What the daemon tells of repair.

use super::member::repairs::of_cluster;
use super::running::Running;
use super::serving::Serving;
use crate::admin::RepairStatus;
use model::{NsdId, Result, map::NsdState};
use pool::Groups;

impl Serving {
    /// `shale repair status`.
    ///
    /// # Errors
    /// `Unavailable`: the cluster has no manager now, or it doesn't answer; ask again.
    pub async fn repair_status(&self) -> Result<RepairStatus> {
        let mut status = match &self.running {
            Running::Alone(node) => of_node(&node.metanode().repair_status()),
            Running::InCluster(here) => of_cluster(&here.member().repair_report().await?),
        };
        let pool = self.running.pool();
        let stuck = stuck_drain(&pool.groups(), |nsd| pool.is_away(nsd));
        if let Some(reason) = stuck.filter(|_| status.state == "idle") {
            status.state = "waiting".into();
            status.reason = reason;
        }
        Ok(status)
    }
}

/// Why an NSD isn't emptied although nothing moves any more: those that its slots could go to were lost since its drain
/// began, or nobody can look what is left on it.
fn stuck_drain(groups: &Groups, is_away: impl Fn(NsdId) -> bool) -> Option<String> {
    if !groups.moving().is_empty() {
        return None;
    }
    let nsds = groups.map().nsds.iter();
    let draining = nsds.filter(|entry| entry.state == NsdState::Draining);
    let draining: Vec<NsdId> = draining.map(|entry| entry.nsd).collect();
    let mut staying = draining.iter().map(|nsd| (nsd, groups.staying_on(*nsd)));
    if let Some((nsd, slots)) = staying.find(|(_, slots)| *slots > 0) {
        return Some(format!(
            "NSD {nsd} can't be emptied: {slots} of its slots can't move to another failure group; add an NSD with \
             `shale nsd add`, or take the drain back with `shale nsd drain {nsd} --cancel`"
        ));
    }
    let is_left = |nsd: &&NsdId| groups.slots_of(**nsd).is_empty() && is_away(**nsd);
    let nsd = draining.iter().find(is_left)?;
    Some(format!(
        "NSD {nsd} doesn't answer, and its drain ends when nothing is on it that no other one has: bring it or its node \
         back (`shale health`), or give it up with `shale nsd remove {nsd} --gone`"
    ))
}

/// Repair of a node that is alone.
fn of_node(status: &metanode::RepairStatus) -> RepairStatus {
    let waits_for = waits_for(status);
    let state = if waits_for.is_some() {
        "waiting"
    } else if status.running || status.segments_degraded > 0 || !status.complete {
        "running"
    } else {
        "idle"
    };
    RepairStatus {
        state: state.into(),
        segments_to_do: status.segments_degraded.max(status.segments_queued),
        segments_done: status.segments_repaired,
        pieces_done: status.pieces_rebuilt,
        bytes_done: status.bytes_rebuilt,
        segments_checked: status.segments_checked,
        segments_total: status.segments_total,
        reason: if let Some(reason) = waits_for {
            reason
        } else if state == "running" {
            let of_total = match status.segments_total {
                // The total is known only once a scan has ended.
                0 => String::new(),
                total => format!(" of about {total}"),
            };
            let emptying = match status.closed_generations {
                0 => String::new(),
                _ => format!(
                    ", {} segments to be moved to new groups",
                    status.segments_to_move
                ),
            };
            let critical = match status.groups_critical {
                0 => String::new(),
                groups => format!(", first {groups} groups that can't lose another NSD"),
            };
            let balancing = match status.balancing {
                false => "",
                true => ", data moves to NSDs that hold less than others",
            };
            format!(
                "scan {}, {}{of_total} segments checked, {} slots moving, {} moved{critical}{}{emptying}{balancing}",
                if status.running { "running" } else { "due" },
                status.segments_checked,
                status.slots_moving,
                status.slots_moved,
                if status.log_moving {
                    ", log moving"
                } else {
                    ""
                }
            )
        } else {
            String::new()
        },
        cluster: None,
    }
}

/// What repair lacks, if it can't make progress without it.
fn waits_for(status: &metanode::RepairStatus) -> Option<String> {
    if status.slots_without_nsd > 0 {
        return Some(format!(
            "{} slots have no NSD; add one with `shale nsd add`",
            status.slots_without_nsd
        ));
    }
    if status.running || status.segments_queued > 0 || status.segments_degraded == 0 {
        return None;
    }
    if !status.offline.is_empty() {
        let away: Vec<String> = status.offline.iter().map(ToString::to_string).collect();
        return Some(format!(
            "NSDs that don't serve: {}; bring them back, or give them up with `shale nsd remove`",
            away.join(", ")
        ));
    }
    let lost = status.unreadable.segments;
    (status.segments_degraded <= lost)
        .then(|| format!("{lost} segments can't be read; `shale health` names the files"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::map::{Generation, NsdEntry, PoolMap, SlotException};
    use model::{FailureGroupId, GroupId, MapEpoch, Scheme};
    use std::collections::BTreeMap;

    /// A pool of one group, whose only slot is on one of two NSDs, or moves on from there. The state is that of the first.
    fn groups(state: NsdState, current: u32, next: Option<NsdId>) -> Groups {
        let nsds = [(1, state), (2, NsdState::Active)].map(|(nsd, state)| NsdEntry {
            nsd: NsdId(nsd),
            failure_group: FailureGroupId(nsd),
            weight: 1,
            state,
        });
        let slot = SlotException {
            current: NsdId(current),
            next,
        };
        let generation = Generation {
            first_group: GroupId(0),
            groups: 1,
            scheme: Scheme::Replicate(1),
            block_bytes: None,
            seed: 1,
            seeded: nsds.to_vec(),
            exceptions: BTreeMap::from([((0, 0), slot)]),
            versions: BTreeMap::new(),
        };
        Groups::new(&PoolMap {
            epoch: MapEpoch(1),
            nsds: nsds.to_vec(),
            names: Vec::new(),
            generations: vec![generation],
        })
    }

    /// Would be broken if whoever waits for a drain that can't end waited for ever.
    #[test]
    fn a_drain_that_cannot_end_is_told_with_what_to_do() {
        let serves = |_| false;
        let stuck = stuck_drain(&groups(NsdState::Draining, 1, None), serves).unwrap();
        for part in ["NSD 1 can't be emptied", "shale nsd add", "--cancel"] {
            assert!(stuck.contains(part), "{stuck}");
        }
        assert_eq!(
            stuck_drain(&groups(NsdState::Active, 1, None), serves),
            None
        );
        let moves = groups(NsdState::Draining, 1, Some(NsdId(2)));
        assert_eq!(stuck_drain(&moves, serves), None);
    }

    /// Would be broken if nobody said that a drain waits for an NSD to come back, or to be given up.
    #[test]
    fn a_drain_that_waits_for_its_nsd_is_told_with_what_to_do() {
        let first = |nsd: NsdId| nsd == NsdId(1);
        let left = groups(NsdState::Draining, 2, None);
        let stuck = stuck_drain(&left, first).unwrap();
        for part in ["NSD 1 doesn't answer", "shale nsd remove 1 --gone"] {
            assert!(stuck.contains(part), "{stuck}");
        }
        assert_eq!(stuck_drain(&left, |_| false), None);
        assert_eq!(stuck_drain(&groups(NsdState::Lost, 2, None), first), None);
    }
}
