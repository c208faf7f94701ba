//! What a running daemon says about itself: status, health, waiters, repair.

use super::health::{Facts, MountFacts};
use super::serving::Serving;
use crate::admin::{Health, MemoryLine, RepairStatus, ShardStatus, Status, Waiter};

impl Serving {
    /// `shale status`.
    pub fn status(&self) -> Status {
        let shard = self.node.metanode().shard_status();
        let own = self.config.lock().clone();
        Status {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            up_seconds: self.node.world().now().since(self.since).as_secs(),
            mount: own.mount.display().to_string(),
            options: own
                .options()
                .map_or(own.options.clone(), |it| it.to_string()),
            mounts: self.mounts.lines(),
            scheme: self.node.pool().map().scheme.to_string(),
            block_bytes: u64::from(self.node.block_bytes()),
            shards: vec![ShardStatus {
                shard: shard.shard.0,
                epoch: shard.epoch.0,
                durable_commit: shard.durable.0,
            }],
            memory: self.memory(),
            resident_bytes: resident_bytes(),
        }
    }

    fn memory(&self) -> Vec<MemoryLine> {
        let (dirty, cached) = self.node.client().page_pool_bytes();
        let pages = (
            "page pool",
            dirty + cached,
            self.node.client().settings().page_pool_bytes,
        );
        let lines = self.node.metanode().memory().into_iter().chain([pages]);
        let mut lines: Vec<_> = lines
            .map(|(what, used, budget)| MemoryLine {
                what: what.into(),
                used: Some(used),
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

    /// What health is judged from.
    pub(super) fn facts(&self) -> Facts {
        let world = self.node.world();
        let (metanode, pool) = (self.node.metanode(), self.node.pool());
        let shard = metanode.hosted();
        Facts {
            nsds: self.node.nsds(),
            tolerance: pool.map().scheme.tolerance(),
            repair: metanode.repair_status(),
            space: pool.usage(),
            pieces_mended: pool.repair_progress().mended_pieces,
            metadata: shard.check_alive().err(),
            mounts: self.mount_facts(),
            clock_lag: shard.tree().log().clock_lag(),
            now: world.now(),
            wall: world.wall(),
        }
    }

    /// `shale waiters`.
    pub fn waiters(&self) -> Vec<Waiter> {
        let name = |waiter: &client::Waiter| {
            waiter.inode.map_or("an operation".to_string(), |inode| {
                format!("an operation on inode {inode}")
            })
        };
        let inside = self.node.client().waiters();
        let inside = inside.iter().map(|waiter| Waiter {
            what: name(waiter),
            cause: waiter.cause.into(),
            milliseconds: waiter.since.as_millis() as u64,
        });
        let requests = self.mounts.waiting();
        let requests = requests.iter().map(|request| Waiter {
            what: format!(
                "{} of process {} on inode {}",
                request.request, request.pid, request.inode
            ),
            cause: "an answer of the file system".into(),
            milliseconds: request.since.as_millis() as u64,
        });
        let mut all: Vec<Waiter> = inside.chain(requests).collect();
        all.sort_by_key(|waiter| std::cmp::Reverse(waiter.milliseconds));
        all
    }

    fn mount_facts(&self) -> MountFacts {
        let own = self.config.lock().mount.clone();
        let is_lost = !self.is_on_demand() && !self.mounts.has(&own);
        MountFacts {
            dir: self.dir.display().to_string(),
            lost: is_lost.then(|| own.display().to_string()),
            lines: self.mounts.lines(),
        }
    }

    /// `shale repair status`.
    pub fn repair_status(&self) -> RepairStatus {
        let status = self.node.metanode().repair_status();
        let waits = status.slots_without_nsd > 0;
        let state = if waits {
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
            bytes_done: status.bytes_rebuilt,
            reason: if waits {
                format!(
                    "{} slots have no NSD; add one with `shale nsd add`",
                    status.slots_without_nsd
                )
            } else if state == "running" {
                format!(
                    "scan {}, {} segments checked, {} slots moving{}",
                    if status.running { "running" } else { "due" },
                    status.segments_checked,
                    status.slots_moving,
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
}

/// Resident memory of this process, from the kernel; 0 if it doesn't say.
fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split_whitespace().nth(1)?.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}
