//! Repair of a cluster's pool as people are told of it: from any node, by what the cluster's manager knows.

use crate::admin::RepairStatus;
use crate::admin::repair::{ClusterRepair, NodePartLine, RepairLine, RewriteLine};
use crate::output::bytes;
use model::jobs::{NodePart, RepairProgress, RepairReport};
use std::time::Duration;

/// Repair of a cluster's pool, as its manager knows it.
pub fn of_cluster(report: &RepairReport) -> RepairStatus {
    let progress = &report.progress;
    let (repair, rewrite) = (repair_line(progress), rewrite_line(progress));
    let state = match (repair.state.as_str(), rewrite.state.as_str()) {
        ("idle", state) => state,
        (state, _) => state,
    };
    RepairStatus {
        state: state.into(),
        segments_to_do: progress.repairs,
        segments_done: 0,
        pieces_done: progress.rebuilt.pieces,
        bytes_done: progress.rebuilt.bytes,
        segments_checked: 0,
        segments_total: 0,
        reason: reason_of_cluster(progress, &repair, &rewrite),
        cluster: Some(ClusterRepair {
            repair,
            rewrite,
            balancing_shards: progress.balancing,
            sweeps: progress.sweeps,
            scrubs: progress.scrubs,
            limit_bytes_per_second: progress.limit,
            nodes: report.nodes.iter().map(part_of_node).collect(),
        }),
    }
}

fn repair_line(progress: &RepairProgress) -> RepairLine {
    let has_all = progress.is_complete && progress.slots_moving == 0;
    // What is left waits for NSDs: nobody could do anything.
    let is_stuck = progress.repairs == 0 && progress.slots_moving == 0;
    let state = match (progress.is_known, has_all, is_stuck) {
        (true, true, _) => "idle",
        (true, false, true) => "waiting",
        _ => "running",
    };
    RepairLine {
        state: state.into(),
        groups: progress.repairs,
        groups_critical: progress.groups_critical,
        groups_degraded: progress.groups_degraded,
        groups_unreadable: progress.groups_unreadable,
        critical_bytes_left: progress.bytes_critical,
        normal_bytes_left: progress.bytes_left.saturating_sub(progress.bytes_critical),
        bytes_per_second: progress.bytes_per_second,
        seconds_left: progress.done_in.map(seconds),
        pieces_done: progress.rebuilt.pieces,
        bytes_done: progress.rebuilt.bytes,
        slots_moving: progress.slots_moving,
        slots_moved: progress.slots_moved,
    }
}

fn rewrite_line(progress: &RepairProgress) -> RewriteLine {
    let is_idle = progress.closed == 0;
    RewriteLine {
        state: if is_idle { "idle" } else { "running" }.into(),
        generations: progress.closed,
        segments_left: progress.to_rewrite,
        seconds_left: progress.rewritten_in.map(seconds),
    }
}

fn part_of_node(part: &NodePart) -> NodePartLine {
    NodePartLine {
        node: part.node.0,
        led: part.led,
        taking_part: part.taking_part,
        bytes_per_second: part.bytes_per_second,
        pieces_done: part.rebuilt.pieces,
        bytes_done: part.rebuilt.bytes,
    }
}

/// Never 0 for what isn't over.
fn seconds(time: Duration) -> u64 {
    let rest = u64::from(time.subsec_nanos() > 0);
    time.as_secs().saturating_add(rest)
}

/// In words what is done, or why nothing is.
fn reason_of_cluster(
    progress: &RepairProgress,
    repair: &RepairLine,
    rewrite: &RewriteLine,
) -> String {
    if !progress.is_known {
        return "the manager doesn't know yet what there is to do: it has just begun, or the pool has just changed"
            .into();
    }
    let expected = |seconds: Option<u64>| match seconds {
        Some(seconds) => format!(", done in about {seconds} s"),
        None => String::new(),
    };
    let mut parts = Vec::new();
    match repair.state.as_str() {
        "waiting" => parts.push(format!(
            "{} groups lack an NSD that doesn't serve, {} of them can't be read; `shale nsd list` shows it: bring it back, or \
             give it up with `shale nsd remove NSD --gone`",
            repair.groups_degraded, repair.groups_unreadable
        )),
        "running" => parts.push(format!(
            "{} groups that can't lose another NSD come first, {} lack something, {} slots moving, {} moved, {} \
             repairs left on {} servers, {} left at {}/s{}",
            repair.groups_critical,
            repair.groups_degraded,
            repair.slots_moving,
            repair.slots_moved,
            repair.groups,
            progress.servers,
            bytes(progress.bytes_left),
            bytes(repair.bytes_per_second),
            expected(repair.seconds_left)
        )),
        _ => {}
    }
    if rewrite.generations > 0 {
        parts.push(match rewrite.segments_left {
            None => "segments that have to be rewritten are being counted".into(),
            Some(0) => {
                "all is rewritten, and old groups end when nobody reads in them any more".into()
            }
            Some(left) => format!(
                "{left} segments have to be rewritten{}",
                expected(rewrite.seconds_left)
            ),
        });
    }
    parts.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::NodeId;
    use model::jobs::Rebuilt;

    /// Repair of three groups, one of which loses data with the next NSD.
    fn running() -> RepairProgress {
        RepairProgress {
            is_known: true,
            groups_critical: 1,
            groups_degraded: 3,
            repairs: 3,
            running: 5,
            sweeps: 1,
            scrubs: 1,
            servers: 2,
            limit: 4_096,
            rebuilt: Rebuilt {
                pieces: 2,
                bytes: 2_000,
            },
            bytes_left: 6_000,
            bytes_critical: 1_000,
            bytes_per_second: 500,
            done_in: Some(Duration::from_millis(11_500)),
            to_rewrite: Some(0),
            rewritten_in: Some(Duration::ZERO),
            ..RepairProgress::default()
        }
    }

    fn shown(progress: RepairProgress) -> RepairStatus {
        let nodes = vec![NodePart {
            node: NodeId(3),
            led: 2,
            taking_part: 4,
            bytes_per_second: 4_000,
            rebuilt: progress.rebuilt,
        }];
        of_cluster(&RepairReport { progress, nodes })
    }

    #[test]
    fn a_clusters_repair_is_told_with_what_is_left_and_when_it_ends() {
        let status = shown(running());
        assert_eq!(status.state, "running");
        assert!(status.reason.contains("done in about 12 s"), "{status:?}");
        let cluster = status.cluster.unwrap();
        let repair = &cluster.repair;
        assert_eq!(
            (repair.critical_bytes_left, repair.normal_bytes_left),
            (1_000, 5_000)
        );
        assert_eq!((repair.groups, repair.groups_critical), (3, 1));
        assert_eq!((repair.bytes_done, repair.seconds_left), (2_000, Some(12)));
        assert_eq!((cluster.sweeps, cluster.scrubs), (1, 1));
        assert_eq!(cluster.limit_bytes_per_second, 4_096);
        assert_eq!(cluster.nodes[0].node, 3);
        assert_eq!(cluster.nodes[0].bytes_done, 2_000);
    }

    #[test]
    fn repair_waits_only_if_nothing_can_be_done() {
        let lacking = RepairProgress {
            repairs: 0,
            groups_critical: 0,
            ..running()
        };
        let status = shown(lacking);
        assert_eq!(status.state, "waiting");
        assert!(status.reason.contains("--gone"), "{status:?}");
        let moving = RepairProgress {
            slots_moving: 1,
            ..lacking
        };
        assert_eq!(shown(moving).state, "running");
        let unread = RepairProgress {
            groups_unreadable: 1,
            ..running()
        };
        assert_eq!(shown(unread).state, "running", "others can be repaired");
        let whole = RepairProgress {
            groups_degraded: 0,
            is_complete: true,
            ..lacking
        };
        assert_eq!(shown(whole).state, "idle");
        assert_eq!(shown(whole).reason, "");
        let new = RepairProgress::default();
        assert_eq!(shown(new).state, "running", "nobody knows yet");
    }

    #[test]
    fn a_pool_that_is_rewritten_is_not_idle() {
        let rewriting = |to_rewrite: Option<u64>| RepairProgress {
            repairs: 0,
            groups_critical: 0,
            groups_degraded: 0,
            is_complete: true,
            closed: 1,
            to_rewrite,
            rewritten_in: None,
            ..running()
        };
        for (left, said) in [
            (None, "are being counted"),
            (Some(70), "70 segments have to be rewritten"),
            (Some(0), "all is rewritten"),
        ] {
            let status = shown(rewriting(left));
            assert_eq!(status.state, "running");
            assert!(status.reason.contains(said), "{status:?}");
            let rewrite = status.cluster.unwrap().rewrite;
            assert_eq!((rewrite.generations, rewrite.segments_left), (1, left));
        }
    }
}
