//! A running daemon's reports about itself: status, health, repair.

use super::health::{Facts, MountFacts};
use super::running::Running;
use super::serving::Serving;
use crate::admin::{Health, MemoryLine, RepairStatus, ShardStatus, Status};
use crate::output::bytes;
use client::Client;
use metanode::Metanode;
use model::{Result, jobs::RepairProgress};
use std::sync::Arc;

/// The line for memory that isn't counted elsewhere.
const REST: &str = "everything else, resident";
/// Limit for everything not counted: code, threads with their buffers, indexes of NSDs, data in
/// flight and the allocator's own share.
const REST_BYTES_MAX: u64 = 256 << 20;

impl Serving {
    /// `shale status`.
    pub fn status(&self) -> Status {
        let metanodes = self.running.metanodes();
        let shard = |it: &Arc<Metanode>| {
            let shard = it.shard_status();
            ShardStatus {
                shard: shard.shard.0,
                epoch: shard.epoch.0,
                durable_commit: shard.durable.0,
            }
        };
        let own = self.config.lock().clone();
        Status {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            up_seconds: self.running.world().now().since(self.since).as_secs(),
            mount: own.mount.display().to_string(),
            options: own
                .options()
                .map_or(own.options.clone(), |it| it.to_string()),
            mounts: self.mounts.lines(),
            mount_missing: self.own.missing(),
            scheme: self.running.pool().map().scheme().to_string(),
            block_bytes: u64::from(self.running.block_bytes()),
            shards: metanodes.iter().map(shard).collect(),
            memory: self.memory(),
            resident_bytes: world::host::resident_bytes(),
            background: metanodes
                .first()
                .map(|it| it.counters())
                .unwrap_or_default(),
            cluster: self.running.in_cluster().ok().map(|here| here.status()),
        }
    }

    fn memory(&self) -> Vec<MemoryLine> {
        let clients = self.running.file_systems().clients();
        let pools = clients.iter().map(|client| client.page_pool_memory());
        let (pages, pages_max) = pools.fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
        let (buffers, buffers_max) = world::recycled_buffer_bytes();
        let mut counted = self.running.memory_uses();
        counted.push(("page pool", Some(pages), pages_max));
        counted.push(("free disk buffers", Some(buffers), buffers_max));
        let sum: u64 = counted.iter().filter_map(|(_, used, _)| *used).sum();
        let rest = world::host::resident_bytes().saturating_sub(sum);
        counted.push((REST, Some(rest), REST_BYTES_MAX));
        let mut lines: Vec<_> = counted
            .into_iter()
            .map(|(what, used, budget)| MemoryLine {
                what: what.into(),
                used,
                budget,
            })
            .collect();
        lines.sort_by_key(|line| std::cmp::Reverse(line.budget));
        lines
    }

    /// `shale health`.
    pub fn health(&self) -> Health {
        self.history.judge(&self.facts())
    }

    /// The input of `health`.
    pub(super) fn facts(&self) -> Facts {
        let world = self.running.world();
        let pool = self.running.pool();
        let metanodes = self.running.metanodes();
        let shards: Vec<_> = metanodes.iter().map(|it| it.hosted()).collect();
        let clients = self.running.file_systems().clients();
        Facts {
            nsds: self.running.nsds(),
            tolerance: pool.map().scheme().tolerance(),
            repair: metanodes
                .first()
                .map(|it| it.repair_status())
                .unwrap_or_default(),
            space: pool.usage(),
            unfreed: metanodes.iter().map(|it| it.unfreed()).sum(),
            pieces_mended: pool.repair_progress().mended_pieces,
            metadata: shards.iter().find_map(|it| it.check_alive().err()),
            lost: losses(&clients),
            mounts: self.mount_facts(),
            clock_lag: shards
                .iter()
                .map(|it| it.tree().log().clock_lag())
                .max()
                .unwrap_or_default(),
            waiting: self.mounts.waiting(),
            cluster: self
                .running
                .in_cluster()
                .ok()
                .map(|here| here.facts_for_health()),
            now: world.now(),
            wall: world.wall(),
        }
    }

    fn mount_facts(&self) -> MountFacts {
        let own = self.config.lock().mount.clone();
        let missing = self.own.missing();
        let is_lost = missing.is_none() && !self.is_on_demand() && !self.mounts.has(&own);
        let own = own.display().to_string();
        MountFacts {
            dir: self.dir.display().to_string(),
            lost: is_lost.then(|| own.clone()),
            missing: missing.map(|why| (own, why)),
            lines: self.mounts.lines(),
        }
    }

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

/// What the clients of this node lost together.
fn losses(clients: &[Arc<Client>]) -> client::Losses {
    clients
        .iter()
        .map(|it| it.losses())
        .fold(client::Losses::default(), |sum, it| client::Losses {
            sessions: sum.sessions + it.sessions,
            files_with_data: sum.files_with_data + it.files_with_data,
            files_with_locks: sum.files_with_locks + it.files_with_locks,
            files_without_names: sum.files_without_names + it.files_without_names,
        })
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
