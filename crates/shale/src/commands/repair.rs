//! Prints the daemon's answer to `shale repair status`.

use super::progress::time;
use crate::{
    admin::{
        RepairStatus,
        repair::{ClusterRepair, NodePartLine},
    },
    output::{bytes, say, table},
};
use std::{process::ExitCode, time::Duration};

/// What a table shows where there is nothing to say.
const NOTHING: &str = "-";

pub(super) fn repair(repair: &RepairStatus) -> ExitCode {
    match &repair.cluster {
        Some(cluster) => of_cluster(repair, cluster),
        None => of_node(repair),
    }
    ExitCode::SUCCESS
}

/// Repair of a node that is alone.
fn of_node(repair: &RepairStatus) {
    say!(
        "{}: {} segments to do, {} done ({} pieces, {} written)",
        repair.state,
        repair.segments_to_do,
        repair.segments_done,
        repair.pieces_done,
        bytes(repair.bytes_done)
    );
    if !repair.reason.is_empty() {
        say!("{}", repair.reason);
    }
}

fn of_cluster(repair: &RepairStatus, cluster: &ClusterRepair) {
    match repair.reason.as_str() {
        "" => say!("{}", repair.state),
        reason => say!("{}: {reason}", repair.state),
    }
    let heads = [
        "work", "state", "left", "critical", "done", "speed", "ends in",
    ];
    table(&heads, &rows_of_work(cluster));
    say!(
        "repair, sweep and scrub may read or write {}/s at each node, and its owners as much again (setting \
         repair_bytes_per_second):",
        bytes(cluster.limit_bytes_per_second)
    );
    let rows: Vec<_> = cluster.nodes.iter().map(row_of_node).collect();
    table(
        &["node", "leads", "takes part", "may use", "rebuilt"],
        &rows,
    );
}

/// One row for each kind of work.
fn rows_of_work(cluster: &ClusterRepair) -> Vec<Vec<String>> {
    let ends = |seconds: Option<u64>| match seconds {
        Some(seconds) => time(Duration::from_secs(seconds)),
        None => "unknown".into(),
    };
    let groups = |groups: u64, left: u64| format!("{groups} groups, {}", bytes(left));
    let repair = &cluster.repair;
    let left = repair
        .critical_bytes_left
        .saturating_add(repair.normal_bytes_left);
    let is_busy = repair.groups > 0;
    let or_nothing = |is_so: bool, text: String| match is_so {
        true => text,
        false => NOTHING.into(),
    };
    let mut rows = vec![vec![
        "repair".into(),
        repair.state.clone(),
        or_nothing(is_busy, groups(repair.groups, left)),
        or_nothing(
            repair.groups_critical > 0,
            groups(repair.groups_critical, repair.critical_bytes_left),
        ),
        format!(
            "{} in {} pieces",
            bytes(repair.bytes_done),
            repair.pieces_done
        ),
        or_nothing(is_busy, format!("{}/s", bytes(repair.bytes_per_second))),
        or_nothing(is_busy, ends(repair.seconds_left)),
    ]];
    let rewrite = &cluster.rewrite;
    let left = match (rewrite.generations, rewrite.segments_left) {
        (0, _) => NOTHING.into(),
        (_, Some(left)) => format!("{left} segments"),
        (_, None) => "not counted yet".into(),
    };
    let ends = or_nothing(rewrite.generations > 0, ends(rewrite.seconds_left));
    rows.push(row(["rewrite", &rewrite.state, &left], &ends));
    let others = [
        ("balance", cluster.balancing_shards, "file systems"),
        ("sweep", cluster.sweeps, "groups now"),
        ("scrub", cluster.scrubs, "groups now"),
    ];
    for (kind, count, unit) in others {
        let (state, left) = match count {
            0 => ("idle", NOTHING.into()),
            count => ("running", format!("{count} {unit}")),
        };
        rows.push(row([kind, state, &left], NOTHING));
    }
    rows
}

/// A row of work that isn't counted in bytes.
fn row(first: [&str; 3], ends: &str) -> Vec<String> {
    let rest = [NOTHING, NOTHING, NOTHING, ends];
    first.iter().chain(&rest).map(ToString::to_string).collect()
}

fn row_of_node(node: &NodePartLine) -> Vec<String> {
    vec![
        node.node.to_string(),
        node.led.to_string(),
        node.taking_part.to_string(),
        format!("{}/s", bytes(node.bytes_per_second)),
        format!("{} in {} pieces", bytes(node.bytes_done), node.pieces_done),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::repair::{RepairLine, RewriteLine};

    fn idle() -> ClusterRepair {
        let state = || "idle".to_string();
        ClusterRepair {
            repair: RepairLine {
                state: state(),
                seconds_left: Some(0),
                ..RepairLine::default()
            },
            rewrite: RewriteLine {
                state: state(),
                segments_left: Some(0),
                ..RewriteLine::default()
            },
            balancing_shards: 0,
            sweeps: 0,
            scrubs: 0,
            limit_bytes_per_second: 256 << 20,
            nodes: Vec::new(),
        }
    }

    #[test]
    fn work_is_shown_with_what_is_left_critical_first_and_when_it_ends() {
        let mut cluster = idle();
        let shown = rows_of_work(&cluster);
        let first: Vec<_> = shown.iter().map(|row| row[0].as_str()).collect();
        assert_eq!(first, ["repair", "rewrite", "balance", "sweep", "scrub"]);
        for row in &shown {
            assert_eq!(row.len(), 7, "{row:?}");
            assert_eq!((row[1].as_str(), row[2].as_str()), ("idle", "-"));
        }
        cluster.repair = RepairLine {
            state: "running".into(),
            groups: 5,
            groups_critical: 2,
            critical_bytes_left: 2 << 20,
            normal_bytes_left: 3 << 20,
            bytes_per_second: 1 << 20,
            seconds_left: Some(65),
            pieces_done: 7,
            bytes_done: 7 << 10,
            ..RepairLine::default()
        };
        cluster.rewrite = RewriteLine {
            state: "running".into(),
            generations: 1,
            segments_left: Some(70),
            seconds_left: None,
        };
        cluster.scrubs = 3;
        let shown = rows_of_work(&cluster);
        let repair = [
            "repair",
            "running",
            "5 groups, 5.0 MiB",
            "2 groups, 2.0 MiB",
            "7.0 KiB in 7 pieces",
            "1.0 MiB/s",
            "1 min 5 s",
        ];
        assert_eq!(shown[0], repair);
        assert_eq!(shown[1][2], "70 segments");
        assert_eq!(shown[1][6], "unknown");
        assert_eq!(shown[4][2], "3 groups now");
        cluster.rewrite.segments_left = None;
        assert_eq!(rows_of_work(&cluster)[1][2], "not counted yet");
    }
}
