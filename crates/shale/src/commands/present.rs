//! Prints the daemon's answers.

use crate::{
    admin::{
        CheckResult, Df, EventLine, Health, NodeLine, NsdLine, PoolLine, ScrubLine, SettingLine,
        Status,
    },
    output::{self, bytes, say, table},
};
use model::{Error, ErrorKind, Result};
use serde::{Serialize, de::DeserializeOwned};
use std::process::ExitCode;

/// Faults printed of a check.
const FAULTS_SHOWN: usize = 50;
/// Unreadable files printed of a check.
const FILES_SHOWN: usize = 100;

/// Prints an answer after lines of progress: as JSON it is one line, the last one.
pub(super) fn present_last<A: DeserializeOwned + Serialize>(
    answer: serde_json::Value,
    json: bool,
    print: impl FnOnce(&A) -> ExitCode,
) -> Result<ExitCode> {
    present(answer, json, |answer| say!("{answer}"), print)
}

pub(super) fn present<A: DeserializeOwned + Serialize>(
    answer: serde_json::Value,
    json: bool,
    as_json: impl FnOnce(&serde_json::Value),
    print: impl FnOnce(&A) -> ExitCode,
) -> Result<ExitCode> {
    let typed: A = serde_json::from_value(answer.clone()).map_err(|e| {
        Error::new(
            ErrorKind::Unavailable,
            format!("the daemon's version differs from this command's ({e})"),
        )
    })?;
    if !json {
        return Ok(print(&typed));
    }
    as_json(&answer);
    // The exit code doesn't depend on --json.
    let bad = answer.get("clean") == Some(&serde_json::Value::Bool(false))
        || answer
            .get("state")
            .is_some_and(|state| state == "degraded" || state == "critical")
        || answer.as_array().is_some_and(|rows| {
            rows.iter().any(|row| {
                row.get("lost")
                    .and_then(serde_json::Value::as_u64)
                    .is_some_and(|lost| lost > 0)
            })
        });
    Ok(if bad {
        ExitCode::from(1)
    } else {
        ExitCode::SUCCESS
    })
}

pub(super) fn status(status: &Status) -> ExitCode {
    say!(
        "shale {} (pid {}), up {} s",
        status.version,
        status.pid,
        status.up_seconds
    );
    say!(
        "{}, block size {}",
        status.scheme,
        bytes(status.block_bytes)
    );
    if let Some(cluster) = &status.cluster {
        let lease = match cluster.lease_milliseconds {
            0 => "no lease: it answers nobody, `shale health` says why".to_owned(),
            rest => format!("lease {}.{} s", rest / 1_000, rest % 1_000 / 100),
        };
        say!(
            "node {} ({}) of cluster {}, {} members{}, {lease}",
            cluster.node,
            cluster.name,
            cluster.cluster,
            cluster.members,
            if cluster.is_manager {
                ", the manager"
            } else {
                ""
            },
        );
        say!("connections to other nodes: {}", cluster.cipher_list);
    }
    for line in &status.mounts {
        say!("{} at {} ({})", line.state, line.path, line.options);
        say!("  requests through {}", line.transport);
    }
    if let Some(why) = &status.mount_missing {
        say!("not mounted at {} yet: {why}", status.mount);
    }
    for shard in &status.shards {
        let sessions = match shard.sessions {
            None => String::new(),
            Some(1) => ", 1 session".into(),
            Some(count) => format!(", {count} sessions"),
        };
        say!(
            "shard {}: epoch {}, commit {}{sessions}",
            shard.shard,
            shard.epoch,
            shard.durable_commit
        );
    }
    let work = &status.background;
    say!(
        "in the background: {} extents packed, {} segments cleaned, {} deleted; {} pieces rebuilt",
        work.extents_folded,
        work.segments_cleaned,
        work.segments_deleted,
        work.pieces_rebuilt
    );
    say!("resident {}; budgets:", bytes(status.resident_bytes));
    let rows: Vec<_> = status
        .memory
        .iter()
        .map(|line| {
            vec![
                line.what.clone(),
                line.used.map_or("-".into(), bytes),
                bytes(line.budget),
            ]
        })
        .collect();
    table(&["memory", "used", "at most"], &rows);
    ExitCode::SUCCESS
}

/// The status of a daemon that has come up. The exit code is 1 if its own mount couldn't be made yet.
pub(super) fn status_as_json(status: &Status) -> ExitCode {
    output::json(status);
    ExitCode::from(u8::from(status.mount_missing.is_some()))
}

/// Whoever starts a node wants its mount.
///
/// # Errors
/// `Unavailable`: it isn't made yet; the daemon runs.
pub(super) fn refuse_without_mount(status: &Status) -> Result<()> {
    let Some(why) = &status.mount_missing else {
        return Ok(());
    };
    let text = format!(
        "the node is up and serves its cluster, but its file system isn't mounted at {} yet: {why}; this is tried again \
         until it is mounted, and `shale health` says how it stands",
        status.mount
    );
    Err(Error::new(ErrorKind::Unavailable, text))
}

/// Says what has come up.
pub(super) fn report(status: &Status, what: &str, json: bool) -> Result<ExitCode> {
    if json {
        return Ok(status_as_json(status));
    }
    refuse_without_mount(status)?;
    match &status.cluster {
        Some(cluster) => say!(
            "node {} ({}) {what}; {} with blocks of {}, mounted at {}",
            cluster.node,
            cluster.name,
            status.scheme,
            bytes(status.block_bytes),
            status.mount
        ),
        None => say!("{} is mounted at {}", status.scheme, status.mount),
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn table_of_nodes(nodes: &[NodeLine]) {
    let numbers = |all: &[u32]| {
        let all: Vec<_> = all.iter().map(u32::to_string).collect();
        all.join(",")
    };
    let row = |line: &NodeLine| {
        let mut roles = Vec::new();
        if line.quorum {
            roles.push("quorum");
        } else if line.authority {
            roles.push("authority");
        }
        if line.manager {
            roles.push("manager");
        }
        let state = match &line.cause {
            Some(cause) => format!("{} ({cause})", line.state),
            None => line.state.clone(),
        };
        vec![
            line.node.to_string(),
            line.name.clone(),
            line.class.clone(),
            state,
            line.address.clone().unwrap_or("-".into()),
            roles.join(","),
            numbers(&line.shards),
            numbers(&line.nsds),
        ]
    };
    let rows: Vec<_> = nodes.iter().map(row).collect();
    let heads = [
        "node", "name", "class", "state", "address", "roles", "shards", "NSDs",
    ];
    table(&heads, &rows);
}

#[allow(clippy::ptr_arg, reason = "it prints the answer as it is decoded")]
pub(super) fn settings(lines: &Vec<SettingLine>) -> ExitCode {
    let row = |line: &SettingLine| {
        vec![
            line.name.clone(),
            line.value.clone(),
            line.from.clone(),
            line.help.clone(),
        ]
    };
    let rows: Vec<_> = lines.iter().map(row).collect();
    table(&["setting", "value", "from", "meaning"], &rows);
    ExitCode::SUCCESS
}

#[allow(clippy::ptr_arg, reason = "it prints the answer as it is decoded")]
pub(super) fn events(lines: &Vec<EventLine>) -> ExitCode {
    for line in lines {
        let at = i64::try_from(line.at)
            .ok()
            .and_then(chrono::DateTime::from_timestamp_millis);
        let at = at.map_or("-".into(), |at| {
            at.format("%Y-%m-%dT%H:%M:%S%.3fZ").to_string()
        });
        say!("{at} {} {}: {}", line.event, line.subject, line.message);
        if let Some(remedy) = &line.remedy {
            say!("    {remedy}");
        }
    }
    ExitCode::SUCCESS
}

pub(super) fn health(health: &Health) -> ExitCode {
    say!("{}", health.state);
    for event in &health.events {
        say!(
            "{}: {}: {}\n    {}",
            event.severity,
            event.subject,
            event.message,
            event.remedy
        );
    }
    if health.state == "healthy" {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(1)
    }
}

pub(super) fn df(df: &Df) -> ExitCode {
    table(
        &["", "size", "used", "available"],
        &[
            vec![
                "for files".into(),
                bytes(df.size),
                bytes(df.used),
                bytes(df.available),
            ],
            vec![
                "on NSDs".into(),
                bytes(df.raw_size),
                bytes(df.raw_used),
                bytes(df.raw_size.saturating_sub(df.raw_used)),
            ],
        ],
    );
    match df.logical {
        Some(logical) => say!("{} inodes, {} in files", df.inodes, bytes(logical)),
        None => say!("{} inodes", df.inodes),
    }
    ExitCode::SUCCESS
}

pub(super) fn check(check: &CheckResult) -> ExitCode {
    say!(
        "{} inodes, {} extents, {} segments, {} read and verified",
        check.inodes,
        check.extents,
        check.segments,
        bytes(check.bytes)
    );
    if check.clean {
        say!("no faults found");
        return ExitCode::SUCCESS;
    }
    for fault in check.faults.iter().take(FAULTS_SHOWN) {
        say!("fault: {fault}");
    }
    if check.faults.len() > FAULTS_SHOWN {
        say!(
            "and {} more; --json lists them",
            check.faults.len() - FAULTS_SHOWN
        );
    }
    for file in check.unreadable.iter().take(FILES_SHOWN) {
        say!("can't be read: {file}");
    }
    if check.unreadable_files > FILES_SHOWN as u64 {
        say!(
            "and {} more files; --json lists a thousand",
            check.unreadable_files - FILES_SHOWN as u64
        );
    }
    ExitCode::from(1)
}

#[allow(clippy::ptr_arg, reason = "it prints the answer as it is decoded")]
pub(super) fn nsds(nsds: &Vec<NsdLine>) -> ExitCode {
    let rows: Vec<_> = nsds
        .iter()
        .map(|nsd| {
            vec![
                nsd.nsd.to_string(),
                home_of(nsd),
                nsd.failure_group.clone().unwrap_or_else(|| "-".into()),
                nsd.state.clone(),
                nsd.health.clone(),
                bytes(nsd.capacity),
                bytes(nsd.used),
                nsd.blobs.to_string(),
                nsd.path.clone(),
            ]
        })
        .collect();
    table(
        &[
            "nsd",
            "served by",
            "fails with",
            "state",
            "health",
            "size",
            "used",
            "blobs",
            "region",
        ],
        &rows,
    );
    ExitCode::SUCCESS
}

/// The node that serves it: `n2 (10.0.0.2:7311)`; `-` on a node that is alone.
fn home_of(nsd: &NsdLine) -> String {
    let named = nsd.node_name.clone();
    let node = named.or_else(|| nsd.node.map(|number| format!("node {number}")));
    match (node, &nsd.address) {
        (None, _) => "-".into(),
        (Some(node), None) => node,
        (Some(node), Some(address)) => format!("{node} ({address})"),
    }
}

#[allow(clippy::ptr_arg, reason = "it prints the answer as it is decoded")]
pub(super) fn pool(lines: &Vec<PoolLine>) -> ExitCode {
    let rows: Vec<_> = lines
        .iter()
        .map(|line| {
            vec![
                line.scheme.clone(),
                bytes(line.block_bytes),
                line.state.clone(),
                line.nsds.to_string(),
                line.groups.to_string(),
                line.segments_left
                    .map_or("-".into(), |left| left.to_string()),
            ]
        })
        .collect();
    table(
        &[
            "scheme",
            "block",
            "state",
            "nsds",
            "groups",
            "segments left",
        ],
        &rows,
    );
    ExitCode::SUCCESS
}

pub(super) fn scrub(lines: &Vec<ScrubLine>) -> ExitCode {
    let rows: Vec<_> = lines
        .iter()
        .map(|line| {
            vec![
                line.nsd.to_string(),
                line.checked.to_string(),
                bytes(line.bytes),
                line.damaged.to_string(),
                line.rebuilt.to_string(),
                line.left.to_string(),
                line.lost.to_string(),
            ]
        })
        .collect();
    table(
        &[
            "nsd", "checked", "read", "damaged", "rebuilt", "left", "lost",
        ],
        &rows,
    );
    for line in lines {
        for mended in &line.mended {
            say!("nsd {}: mended: {mended}", line.nsd);
        }
    }
    if lines.iter().all(|line| line.lost == 0) {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(1)
    }
}
