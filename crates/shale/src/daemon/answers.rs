//! What a running daemon says about itself: status, health, waiters, repair.

use super::serving::Serving;
use crate::admin::{Health, HealthEvent, MemoryLine, RepairStatus, ShardStatus, Status, Waiter};
use model::{map::NsdState, nsd::NsdHealth};
use shale::node::NsdView;

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
        let mut events: Vec<HealthEvent> = self.node.nsds().iter().filter_map(nsd_event).collect();
        events.extend(self.mount_events());
        let repair = self.node.metanode().repair_status();
        for segment in &repair.segments_unreadable {
            events.push(HealthEvent {
                severity: "critical".into(),
                subject: format!("segment {segment}"),
                message: "more of its pieces are gone than its scheme tolerates".into(),
                remedy: "bring a lost NSD back; `shale fs check` names the files".into(),
            });
        }
        if repair.segments_degraded > 0 {
            events.push(HealthEvent {
                severity: "warning".into(),
                subject: "redundancy".into(),
                message: format!("{} segments lack pieces", repair.segments_degraded),
                remedy: "`shale repair status` shows how far repair is; add an NSD with `shale nsd add` if it waits for one".into(),
            });
        }
        let usage = self.node.pool().usage();
        if usage.available_to_users == 0 {
            events.push(HealthEvent {
                severity: "critical".into(),
                subject: "space".into(),
                message: "the storage pool is full; writes are refused with ENOSPC, deleting works"
                    .into(),
                remedy: "delete files, or add an NSD with `shale nsd add`".into(),
            });
        }
        events.sort_by_key(|event| event.severity != "critical");
        let state = match events.first().map(|event| event.severity.as_str()) {
            None => "healthy",
            Some("critical") => "critical",
            Some(_) => "degraded",
        };
        Health {
            state: state.into(),
            events,
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

    /// A mount that was taken away looks like an empty directory: say so, and how it comes back.
    fn mount_events(&self) -> Vec<HealthEvent> {
        let own = self.config.lock().mount.clone();
        let dir = self.dir.display();
        let mut events = Vec::new();
        if !self.is_on_demand() && !self.mounts.has(&own) {
            events.push(HealthEvent {
                severity: "warning".into(),
                subject: format!("mount {}", own.display()),
                message: "it is gone: somebody unmounted it; the node runs on".into(),
                remedy: format!(
                    "`shale up --dir {dir}` mounts it again, `shale down --dir {dir}` ends the node"
                ),
            });
        }
        for line in self.mounts.lines() {
            if line.state != "mounted" {
                events.push(HealthEvent {
                    severity: "warning".into(),
                    subject: format!("mount {}", line.path),
                    message: "it was unmounted lazily; programs that had files open still use it"
                        .into(),
                    remedy: format!(
                        "end those programs; `shale mount --dir {dir} {}` mounts again beside them",
                        line.path
                    ),
                });
            }
        }
        events
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

fn nsd_event(view: &NsdView) -> Option<HealthEvent> {
    if view.state == NsdState::Lost {
        return None;
    }
    let message = match view.health {
        Some(NsdHealth::Online) => return None,
        Some(NsdHealth::Full) => "its region is full".to_string(),
        Some(NsdHealth::Failed) => "its disk reported errors; it is left alone".to_string(),
        None => view
            .refused
            .as_ref()
            .map_or("it didn't open".to_string(), ToString::to_string),
    };
    Some(HealthEvent {
        severity: "warning".into(),
        subject: format!("NSD {} ({})", view.nsd, view.path.display()),
        message,
        remedy: format!(
            "mend the disk and restart the node, or give it up with `shale nsd remove {}` and add another with `shale nsd add`",
            view.nsd
        ),
    })
}

/// Resident memory of this process, from the kernel; 0 if it doesn't say.
fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split_whitespace().nth(1)?.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}
