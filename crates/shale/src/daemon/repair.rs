//! What the daemon tells of repair.

use super::member::repairs::of_cluster;
use super::running::Running;
use super::serving::Serving;
use crate::admin::RepairStatus;
use model::Result;

impl Serving {
    /// `shale repair status`.
    ///
    /// # Errors
    /// `Unavailable`: the cluster has no manager now, or it doesn't answer; ask again.
    pub async fn repair_status(&self) -> Result<RepairStatus> {
        match &self.running {
            Running::Alone(node) => Ok(of_node(&node.metanode().repair_status())),
            Running::InCluster(here) => Ok(of_cluster(&here.member().repair_report().await?)),
        }
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
