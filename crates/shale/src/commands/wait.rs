//! Waits for the daemon's background work: repair, and emptying NSDs.

use super::{
    present::{nsds, present_last},
    progress::{Looked, UntilInterrupted, stuck, wait_showing},
    repair::repair,
};
use crate::admin::{
    Drained, NsdLine, Progress, RepairStatus, client::Admin, repair::ClusterRepair,
};
use hyper::Method;
use model::Result;
use std::process::ExitCode;

/// `shale repair status --wait`.
///
/// # Errors
/// If the daemon doesn't answer.
pub(crate) async fn for_repair(admin: &Admin, json: bool) -> Result<ExitCode> {
    let running = UntilInterrupted::tell("the daemon continues the repair");
    let status = until_repaired(admin, json).await?;
    drop(running);
    let is_stuck = status.state == "waiting";
    let answer = serde_json::to_value(&status).expect("answers are plain structs");
    let code = present_last(answer, json, repair)?;
    Ok(if is_stuck { ExitCode::from(1) } else { code })
}

async fn until_repaired(admin: &Admin, json: bool) -> Result<RepairStatus> {
    let mut done_before = None;
    let mut of_cluster = OfCluster::default();
    wait_showing(admin, json, async || {
        let status: RepairStatus = admin.ask(Method::GET, "/v1/repair", ()).await?;
        if status.state != "running" {
            return Ok(Looked::Ended(status));
        }
        if let Some(cluster) = &status.cluster {
            return Ok(Looked::At(of_cluster.look(cluster)));
        }
        let before = *done_before.get_or_insert(status.segments_done);
        let done = status.segments_done.saturating_sub(before);
        let (phase, done, total) = match status.segments_to_do {
            0 => {
                let total = status.segments_total.max(status.segments_checked);
                ("looking for missing pieces", status.segments_checked, total)
            }
            left => ("rebuilding missing pieces", done, done + left),
        };
        Ok(Looked::At(Progress {
            phase: phase.into(),
            done,
            total: Some(total),
            unit: "segments".into(),
        }))
    })
    .await
}

/// How far the work on a cluster's pool is. Its manager says what is left: the most that was left is the whole.
#[derive(Default)]
struct OfCluster {
    phase: &'static str,
    most: u64,
}

impl OfCluster {
    fn look(&mut self, cluster: &ClusterRepair) -> Progress {
        let (repair, rewrite) = (&cluster.repair, &cluster.rewrite);
        let bytes = repair
            .critical_bytes_left
            .saturating_add(repair.normal_bytes_left);
        let (phase, left, unit) = match (repair.groups, rewrite.generations) {
            (0, 0) => (
                "moving slots to other NSDs",
                Some(repair.slots_moving),
                "slots",
            ),
            (0, _) => match rewrite.segments_left {
                Some(left @ 1..) => ("rewriting data", Some(left), "segments"),
                _ => ("emptying old groups", None, "segments"),
            },
            _ => ("repairing groups", Some(bytes), "bytes"),
        };
        if self.phase != phase {
            (self.phase, self.most) = (phase, 0);
        }
        self.most = self.most.max(left.unwrap_or(0));
        Progress {
            phase: phase.into(),
            done: left.map_or(0, |left| self.most - left),
            total: left.map(|_| self.most),
            unit: unit.into(),
        }
    }
}

/// Where the daemon is asked to take an NSD out of use.
pub(super) fn path_to_remove(nsd: u32, gone: bool) -> String {
    let how = if gone { "?gone=true" } else { "" };
    format!("/v1/nsds/{nsd}{how}")
}

/// What is said at Ctrl-C.
const GOES_ON: &str = "the daemon continues; `shale repair status --wait` shows its progress";

/// `shale nsd remove --wait`: returns when nothing is left on the NSD and everything that was there
/// has its redundancy elsewhere.
///
/// # Errors
/// The daemon's refusal; `Unavailable` if the pieces can't be moved.
pub(crate) async fn for_empty(admin: &Admin, nsd: u32, gone: bool, json: bool) -> Result<ExitCode> {
    let running = UntilInterrupted::tell(GOES_ON);
    let path = path_to_remove(nsd, gone);
    let before: Vec<NsdLine> = admin.ask(Method::DELETE, &path, ()).await?;
    let lines = until_empty(admin, &[nsd], &before, json).await?;
    drop(running);
    present_last(lines, json, nsds)
}

/// `shale node drain --wait`: as [`for_empty`], of all NSDs of a node.
///
/// # Errors
/// The daemon's refusal; `Unavailable` if the pieces can't be moved.
pub(crate) async fn for_empty_node(admin: &Admin, node: u32, json: bool) -> Result<ExitCode> {
    let running = UntilInterrupted::tell(GOES_ON);
    let path = format!("/v1/nodes/{node}/drain");
    let drained: Drained = admin.ask(Method::POST, &path, ()).await?;
    let before: Vec<NsdLine> = admin.ask(Method::GET, "/v1/nsds", ()).await?;
    let lines = until_empty(admin, &drained.nsds, &before, json).await?;
    drop(running);
    present_last(lines, json, nsds)
}

/// Bytes on those of the NSDs that are being emptied; `None`: none is.
fn used_of(lines: &[NsdLine], nsds: &[u32]) -> Option<u64> {
    let is_draining = |line: &&NsdLine| nsds.contains(&line.nsd) && line.state == "draining";
    let draining: Vec<_> = lines.iter().filter(is_draining).collect();
    (!draining.is_empty()).then(|| draining.iter().map(|line| line.used).sum())
}

/// The first of the NSDs that is in use again.
fn kept_of(lines: &[NsdLine], nsds: &[u32]) -> Option<u32> {
    let mut own = lines.iter().filter(|line| nsds.contains(&line.nsd));
    let kept = own.find(|line| line.state == "active");
    kept.map(|line| line.nsd)
}

/// Waits until nothing is left on these NSDs, and all that was there has its redundancy elsewhere. `before`: how the NSDs
/// were. Returns how they are then.
async fn until_empty(
    admin: &Admin,
    nsds: &[u32],
    before: &[NsdLine],
    json: bool,
) -> Result<serde_json::Value> {
    let all = used_of(before, nsds).unwrap_or(0);
    let numbers: Vec<_> = nsds.iter().map(u32::to_string).collect();
    let which = match nsds.len() {
        1 => "NSD",
        _ => "NSDs",
    };
    let phase = format!("moving the pieces of {which} {}", numbers.join(", "));
    let emptied = wait_showing(admin, json, async || {
        let lines: Vec<NsdLine> = admin.ask(Method::GET, "/v1/nsds", ()).await?;
        if let Some(nsd) = kept_of(&lines, nsds) {
            let text = format!("the drain of NSD {nsd} was taken back; it stays in use");
            return Ok(Looked::Stuck(text));
        }
        let Some(left) = used_of(&lines, nsds) else {
            return Ok(Looked::Ended(()));
        };
        let status: RepairStatus = admin.ask(Method::GET, "/v1/repair", ()).await?;
        if status.state == "waiting" {
            return Ok(Looked::Stuck(status.reason));
        }
        Ok(Looked::At(Progress {
            phase: phase.clone(),
            done: all.saturating_sub(left),
            total: Some(all.max(left)),
            unit: "bytes".into(),
        }))
    });
    emptied.await?;
    // If one was dead, its pieces are rebuilt on the others.
    let status = until_repaired(admin, json).await?;
    if status.state == "waiting" {
        return Err(stuck(&status.reason));
    }
    admin.ask(Method::GET, "/v1/nsds", ()).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::repair::{RepairLine, RewriteLine};

    fn cluster(groups: u64, bytes: u64, generations: u64, segments: Option<u64>) -> ClusterRepair {
        ClusterRepair {
            repair: RepairLine {
                groups,
                critical_bytes_left: bytes / 4,
                normal_bytes_left: bytes - bytes / 4,
                ..RepairLine::default()
            },
            rewrite: RewriteLine {
                generations,
                segments_left: segments,
                ..RewriteLine::default()
            },
            balancing_shards: 0,
            sweeps: 0,
            scrubs: 0,
            limit_bytes_per_second: 1,
            nodes: Vec::new(),
        }
    }

    #[test]
    fn what_is_left_of_a_clusters_work_is_shown_as_what_is_done() {
        let mut looks = OfCluster::default();
        let mut look = |cluster: ClusterRepair| {
            let progress = looks.look(&cluster);
            (progress.phase, progress.done, progress.total)
        };
        let at = |phase: &str, done: u64, total: Option<u64>| (phase.to_string(), done, total);
        let repairing = "repairing groups";
        assert_eq!(look(cluster(3, 80, 1, None)), at(repairing, 0, Some(80)));
        assert_eq!(look(cluster(3, 60, 1, None)), at(repairing, 20, Some(80)));
        // Another NSD is lost.
        assert_eq!(look(cluster(9, 90, 1, None)), at(repairing, 0, Some(90)));
        let counting = look(cluster(0, 0, 1, None));
        assert_eq!(counting, at("emptying old groups", 0, None));
        let rewriting = "rewriting data";
        assert_eq!(look(cluster(0, 0, 1, Some(70))), at(rewriting, 0, Some(70)));
        assert_eq!(
            look(cluster(0, 0, 1, Some(50))),
            at(rewriting, 20, Some(70))
        );
        let last = look(cluster(0, 0, 1, Some(0)));
        assert_eq!(last, at("emptying old groups", 0, None));
    }
}
