//! The rebuild of one lost NSD of eight: how evenly the others carry it.

use super::daemons::{Cluster, Daemon};
use super::{Clusters, ERASURE, GIB, Wanted};
use crate::measure::{Goal, Unit, note};
use crate::paths;
use model::{Error, ErrorKind, Result};
use serde_json::Value;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Instant;

/// Nodes with an NSD each. The last one is lost.
const NODES: u8 = 8;
const NSD: &str = "1G";
/// Bytes of a file: so many segments that chance makes little difference.
const FILL: u64 = 2 * GIB;
/// Jobs are over if none runs at so many looks in a row: between two looks more of them begin than a manager needs to plan.
const CALM_LOOKS: u32 = 8;
const REBUILD: Wanted = (
    "rebuild of one NSD of eight: farthest from the mean",
    Unit::Times,
    Goal::AtMost(0.25),
);

impl Clusters {
    /// What each survivor reads and writes while others' pieces are rebuilt.
    pub(super) fn rebuild(&self) -> Result<()> {
        if !self.wanted(&[REBUILD.0]) {
            return Ok(());
        }
        let dir = self.folder("eight")?;
        let cluster = Cluster::of(&dir, NODES, ERASURE, NSD)?;
        let first = cluster.first();
        // New groups are scrubbed once, and that reads everything.
        until_calm(&cluster)?;
        paths::write_stream(&first.mount().join("stream"), FILL);
        until_calm(&cluster)?;

        let (last, others) = cluster.nodes().split_last().expect("there are eight");
        let nsds = first.ask(&["nsd", "list"])?;
        let (lost, kept) = nsds_of(&nsds, u64::from(NODES))?;
        last.run(&["down", "--kill"])?;
        let before = carried(others)?;
        let begun = Instant::now();
        first.run(&["nsd", "remove", &lost.to_string(), "--gone"])?;
        until_calm(&cluster)?;
        let seconds = begun.elapsed().as_secs_f64();
        let after = carried(others)?;

        let carried = kept.keys().map(|nsd| {
            let at = |counts: &BTreeMap<u64, f64>| counts.get(nsd).copied().unwrap_or_default();
            at(&after) - at(&before)
        });
        let carried: Vec<f64> = carried.collect();
        let held: Vec<f64> = kept.into_values().collect();
        let values = (vec![farthest(&carried)], vec![farthest(&held)]);
        self.print_beside("what they held", REBUILD, values);
        let mib = |bytes: &f64| format!("{:.0}", bytes / 1_048_576.0);
        let each: Vec<String> = carried.iter().map(mib).collect();
        note(&format!(
            "MiB that each survivor has read and written in {seconds:.0} s: {}",
            each.join(", ")
        ));
        Ok(())
    }
}

/// Waits until nothing is left to be done to the cluster's pool.
fn until_calm(cluster: &Cluster) -> Result<()> {
    let calm = Cell::new(0);
    cluster.wait("the pool isn't left alone", |cluster| {
        // Nobody tells while another node becomes the manager.
        let status = cluster.first().ask(&["repair", "status"]);
        let is_calm = status.is_ok_and(|status| is_calm(&status));
        calm.set(if is_calm { calm.get() + 1 } else { 0 });
        Ok(calm.get() >= CALM_LOOKS)
    })
}

/// No work runs on the pool, by an answer of `shale repair status`.
fn is_calm(status: &Value) -> bool {
    let work = &status["cluster"];
    let running = ["sweeps", "scrubs", "balancing_shards"];
    status["state"] == "idle" && running.iter().all(|kind| work[kind] == 0)
}

/// The NSD of a node, and how many bytes each NSD of the others holds.
fn nsds_of(nsds: &Value, node: u64) -> Result<(u64, BTreeMap<u64, f64>)> {
    let (mut own, mut others) = (None, BTreeMap::new());
    for line in nsds.as_array().into_iter().flatten() {
        let Some(nsd) = line["nsd"].as_u64() else {
            continue;
        };
        match line["node"] == node {
            true => own = Some(nsd),
            false => _ = others.insert(nsd, line["used"].as_f64().unwrap_or_default()),
        }
    }
    let own = own.ok_or_else(|| {
        let text = format!("node {node} has no NSD: {nsds}");
        Error::new(ErrorKind::Unavailable, text)
    })?;
    Ok((own, others))
}

/// Bytes that these daemons have read from and put to each NSD.
fn carried(daemons: &[Daemon]) -> Result<BTreeMap<u64, f64>> {
    let mut sums: BTreeMap<u64, f64> = BTreeMap::new();
    for daemon in daemons {
        let nsds = daemon.ask(&["nsd", "list"])?;
        for line in nsds.as_array().into_iter().flatten() {
            let bytes = |what: &str| line[what].as_f64().unwrap_or_default();
            let nsd = line["nsd"].as_u64().unwrap_or_default();
            *sums.entry(nsd).or_default() += bytes("bytes_read") + bytes("bytes_written");
        }
    }
    Ok(sums)
}

/// How far the farthest of these values is from their mean, as a part of it.
fn farthest(values: &[f64]) -> f64 {
    let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
    let distances = values.iter().map(|value| (value - mean).abs());
    distances.fold(0.0, f64::max) / mean.max(f64::MIN_POSITIVE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_farthest_survivor_is_told_by_its_part_of_the_mean() {
        assert!((farthest(&[100.0, 120.0, 80.0, 70.0, 130.0]) - 0.3).abs() < 1e-9);
        assert_eq!(farthest(&[5.0, 5.0]), 0.0);
        assert_eq!(farthest(&[]), 0.0);
    }

    #[test]
    fn a_nodes_nsd_is_told_apart_from_the_others() {
        let line = |nsd: u64, node: u64| json!({ "nsd": nsd, "node": node, "used": 10 * nsd });
        let nsds = json!([line(1, 1), line(9, 8), line(3, 2)]);
        let (own, others) = nsds_of(&nsds, 8).unwrap();
        assert_eq!(own, 9);
        assert_eq!(others, BTreeMap::from([(1, 10.0), (3, 30.0)]));
        nsds_of(&nsds, 7).unwrap_err();
    }

    #[test]
    fn a_pool_is_calm_when_no_kind_of_work_runs() {
        let status = |state: &str, scrubs: u64| {
            json!({
                "state": state,
                "cluster": { "sweeps": 0, "scrubs": scrubs, "balancing_shards": 0 },
            })
        };
        assert!(is_calm(&status("idle", 0)));
        assert!(!is_calm(&status("idle", 1)));
        assert!(!is_calm(&status("running", 0)));
        assert!(!is_calm(&json!({ "state": "idle" })));
    }
}
