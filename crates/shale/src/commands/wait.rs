//! Waits for the daemon's background work: repair, and emptying an NSD.

use super::{
    present::{nsds, present_last},
    progress::{Looked, UntilInterrupted, stuck, wait_showing},
    repair::repair,
};
use crate::admin::{NsdLine, Progress, RepairStatus, client::Admin};
use hyper::Method;
use model::Result;
use std::process::ExitCode;

/// `shale repair status --wait`.
///
/// # Errors
/// If the daemon doesn't answer.
pub async fn for_repair(admin: &Admin, json: bool) -> Result<ExitCode> {
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
    wait_showing(admin, json, async || {
        let status: RepairStatus = admin.ask(Method::GET, "/v1/repair", ()).await?;
        if status.state != "running" {
            return Ok(Looked::Ended(status));
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

/// Where the daemon is asked to take an NSD out of use.
pub(super) fn path_to_remove(nsd: u32, gone: bool) -> String {
    let how = if gone { "?gone=true" } else { "" };
    format!("/v1/nsds/{nsd}{how}")
}

/// `shale nsd remove --wait`: returns when nothing is left on the NSD and everything that was there
/// has its redundancy elsewhere.
///
/// # Errors The daemon's refusal; `Unavailable` if the pieces can't be moved.
pub async fn for_empty(admin: &Admin, nsd: u32, gone: bool, json: bool) -> Result<ExitCode> {
    let running = UntilInterrupted::tell(
        "the daemon continues; `shale repair status --wait` shows its progress",
    );
    let path = path_to_remove(nsd, gone);
    let before: Vec<NsdLine> = admin.ask(Method::DELETE, &path, ()).await?;
    let used = |lines: &[NsdLine]| {
        let line = lines.iter().find(|line| line.nsd == nsd);
        line.filter(|line| line.state == "draining")
            .map(|line| line.used)
    };
    let all = used(&before).unwrap_or(0);
    let emptied = wait_showing(admin, json, async || {
        let lines: Vec<NsdLine> = admin.ask(Method::GET, "/v1/nsds", ()).await?;
        let Some(left) = used(&lines) else {
            return Ok(Looked::Ended(()));
        };
        let status: RepairStatus = admin.ask(Method::GET, "/v1/repair", ()).await?;
        if status.state == "waiting" {
            return Ok(Looked::Stuck(status.reason));
        }
        Ok(Looked::At(Progress {
            phase: format!("moving the pieces of NSD {nsd}"),
            done: all.saturating_sub(left),
            total: Some(all.max(left)),
            unit: "bytes".into(),
        }))
    });
    emptied.await?;
    // If the NSD was dead, its pieces are rebuilt on the others.
    let status = until_repaired(admin, json).await?;
    if status.state == "waiting" {
        return Err(stuck(&status.reason));
    }
    let lines: serde_json::Value = admin.ask(Method::GET, "/v1/nsds", ()).await?;
    drop(running);
    present_last(lines, json, nsds)
}
