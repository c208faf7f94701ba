//! What the daemon tells of repair, on a node that is alone and in a cluster.

use super::running::Running;
use super::serving::Serving;
use crate::admin::RepairStatus;
use crate::output::bytes;
use model::{Result, jobs::RepairProgress};

impl Serving {
    /// `shale repair status`.
    ///
    /// # Errors
    /// `Unavailable`: the cluster has no manager now, or it doesn't answer; ask again.
    pub async fn repair_status(&self) -> Result<RepairStatus> {
        match &self.running {
            Running::Alone(node) => Ok(of_node(&node.metanode().repair_status())),
            Running::InCluster(here) => Ok(of_cluster(&here.member().repair_status().await?)),
        }
    }
}

/// Repair of a cluster's pool, as its manager knows it.
fn of_cluster(progress: &RepairProgress) -> RepairStatus {
    let is_idle = progress.is_known && progress.is_complete && progress.slots_moving == 0;
    let state = match (is_idle, progress.groups_unreadable) {
        (true, _) => "idle",
        (false, 0) => "running",
        _ => "waiting",
    };
    let expected = match progress.done_in {
        Some(time) => format!(", done in about {} s", time.as_secs()),
        None => String::new(),
    };
    let reason = match (progress.is_known, state) {
        (false, _) => "the manager has just begun and doesn't know yet what there is to do".into(),
        (_, "idle") => String::new(),
        (_, "waiting") => format!(
            "{} groups have lost more than their scheme survives; bring their NSDs back (`shale nsd list`)",
            progress.groups_unreadable
        ),
        _ => format!(
            "{} groups that can't lose another NSD come first, {} lack something, {} slots moving, {} moved, {} \
             repairs left on {} servers, {} left at {}/s{expected}",
            progress.groups_critical,
            progress.groups_degraded,
            progress.slots_moving,
            progress.slots_moved,
            progress.repairs,
            progress.servers,
            bytes(progress.bytes_left),
            bytes(progress.bytes_per_second)
        ),
    };
    RepairStatus {
        state: state.into(),
        segments_to_do: progress.repairs,
        segments_done: 0,
        pieces_done: progress.rebuilt.pieces,
        bytes_done: progress.rebuilt.bytes,
        segments_checked: 0,
        segments_total: 0,
        reason,
    }
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
            format!(
                "scan {}, {}{of_total} segments checked, {} slots moving, {} moved{critical}{}{emptying}",
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
