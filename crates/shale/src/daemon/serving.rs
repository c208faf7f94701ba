//! What a running daemon does for the admin API, in the words of the API.

use super::config::NodeConfig;
use super::health::{Facts, History};
use crate::admin::{
    AddNsd, CheckResult, Df, Health, MemoryLine, NsdLine, RepairStatus, ScrubLine, ShardStatus,
    Status, Waiter,
};
use fuse::{Door, DoorSettings, Mount, MountOptions, Unmount};
use metanode::CheckOptions;
use model::{Error, ErrorKind, NsdId, Result, map::NsdState, nsd::NsdHealth};
use parking_lot::Mutex;
use shale::node::{LOOK_EVERY, Node, NsdView};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::sync::watch;

/// A node that is mounted.
pub struct Serving {
    dir: PathBuf,
    config: Mutex<NodeConfig>,
    node: Arc<Node>,
    mount: Mount,
    mount_point: PathBuf,
    since: world::Instant,
    /// `Some(force)` once somebody asked for the end.
    shutdown: watch::Sender<Option<bool>>,
    history: History,
}

impl Serving {
    /// Mounts the node's file system.
    ///
    /// # Errors
    /// What is wrong with the mount point and what to do.
    pub fn mount(dir: &Path, config: NodeConfig, node: Arc<Node>) -> Result<Self> {
        let mount_point = config.mount.clone();
        std::fs::create_dir_all(&mount_point)
            .or_else(|error| {
                if is_dead_mount(&error) {
                    Ok(())
                } else {
                    Err(error)
                }
            })
            .map_err(|e| {
                Error::new(ErrorKind::Unavailable, e.to_string())
                    .while_doing(format!("making the mount point {}", mount_point.display()))
            })?;
        let mut options = MountOptions::new(&mount_point);
        options.allow_other |= config.allow_other;
        let door = Door::new(node.client().clone(), DoorSettings::default());
        let mount = Mount::start(node.world(), Arc::new(door), &options)?;
        Ok(Self {
            dir: dir.to_path_buf(),
            config: Mutex::new(config),
            since: node.world().now(),
            node,
            mount,
            mount_point,
            shutdown: watch::Sender::new(None),
            history: History::default(),
        })
    }

    /// The node's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where the file system is mounted.
    pub fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    /// Waits until somebody asked for the end; tells whether by force.
    pub async fn wait_for_shutdown(&self) -> bool {
        let mut asked = self.shutdown.subscribe();
        loop {
            if let Some(force) = *asked.borrow_and_update() {
                return force;
            }
            if asked.changed().await.is_err() {
                return true;
            }
        }
    }

    /// Unmounts if nothing uses the mount (or by force) and lets the daemon end.
    ///
    /// # Errors
    /// `Busy` if programs use the mount and `force` isn't set; nothing has changed then.
    pub async fn shutdown(&self, force: bool) -> Result<()> {
        let how = if force {
            Unmount::Forced
        } else {
            Unmount::IfIdle
        };
        self.mount
            .unmount(how)
            .await
            .map_err(|error| match error.kind() {
                ErrorKind::Busy => Error::new(
                    ErrorKind::Busy,
                    format!(
                        "programs still use {}; end them (`fuser -vm` shows them), or use --force",
                        self.mount_point.display()
                    ),
                ),
                _ => error,
            })?;
        self.shutdown.send_replace(Some(force));
        Ok(())
    }

    /// Unmounts if that hasn't happened, makes everything durable, ends the node.
    ///
    /// # Errors
    /// What couldn't be made durable.
    pub async fn end(&self, force: bool) -> Result<()> {
        let unmounted = self.shutdown(force).await;
        self.node.close().await.and(unmounted)
    }

    /// `shale status`.
    pub fn status(&self) -> Status {
        let shard = self.node.metanode().shard_status();
        Status {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            up_seconds: self.node.world().now().since(self.since).as_secs(),
            mount: self.mount_point.display().to_string(),
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

    /// Looks after the node as long as it runs: takes NSDs that came back in, notes what
    /// `shale health` tells later.
    pub async fn watch(&self) {
        loop {
            self.node.world().sleep(LOOK_EVERY).await;
            self.history.note(&self.facts());
            self.node.look_for_returned_nsds().await;
        }
    }

    fn facts(&self) -> Facts {
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
            lost_mount: self
                .mount
                .is_ended()
                .then(|| self.mount_point.display().to_string()),
            clock_lag: shard.tree().log().clock_lag(),
            now: world.now(),
            wall: world.wall(),
        }
    }

    /// `shale nsd open`.
    ///
    /// # Errors
    /// Why it doesn't open.
    pub async fn open_nsd(&self, nsd: NsdId) -> Result<Vec<NsdLine>> {
        self.node.reopen_nsd(nsd).await?;
        Ok(self.nsds())
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
        let requests = self.mount.waiting();
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

    /// `shale fs df`.
    ///
    /// # Errors
    /// `Unavailable` while the metadata is.
    pub async fn df(&self) -> Result<Df> {
        let usage = self.node.metanode().usage().await?;
        let nsds = self.node.nsds();
        Ok(Df {
            size: usage.capacity,
            used: usage.used,
            available: usage.available,
            logical: usage.logical,
            inodes: usage.inodes,
            raw_size: nsds.iter().map(|nsd| nsd.usage.capacity).sum(),
            raw_used: nsds.iter().map(|nsd| nsd.usage.used).sum(),
        })
    }

    /// `shale fs sync`.
    ///
    /// # Errors
    /// What couldn't be made durable.
    pub async fn sync(&self) -> Result<()> {
        self.node.client().sync_all().await
    }

    /// `shale fs check`.
    ///
    /// # Errors
    /// If the check couldn't be made; faults are in the answer.
    pub async fn check(&self, deep: bool) -> Result<CheckResult> {
        // What is still in memory belongs to the file system; the check reads what is published.
        self.node.client().sync_all().await?;
        let report = self.node.metanode().check(CheckOptions { deep }).await?;
        let mut faults: Vec<String> = report
            .faults
            .iter()
            .map(|fault| fault.text.clone())
            .collect();
        if report.more_faults > 0 {
            faults.push(format!("and {} more", report.more_faults));
        }
        Ok(CheckResult {
            clean: report.is_clean(),
            inodes: report.inodes,
            extents: report.extents,
            segments: report.segments,
            bytes: report.bytes,
            faults,
        })
    }

    /// `shale nsd list`.
    pub fn nsds(&self) -> Vec<NsdLine> {
        self.node.nsds().iter().map(nsd_line).collect()
    }

    /// `shale nsd add`.
    ///
    /// # Errors
    /// As [`Node::add_nsd`].
    pub async fn add_nsd(&self, request: &AddNsd) -> Result<Vec<NsdLine>> {
        let path = match &request.path {
            Some(path) => PathBuf::from(path),
            None => self.node.next_region(&self.dir.join("nsd")),
        };
        let bytes = request.bytes.unwrap_or(self.config.lock().create.nsd_bytes);
        // The path first: an NSD that the map names and nobody finds at the next start would be
        // missing. A path that the map doesn't name is harmless.
        let id = self.node.next_nsd();
        self.note_path(id, Some(path.clone()))?;
        if let Err(error) = self.node.add_nsd(&path, bytes).await {
            if self.node.nsds().iter().all(|nsd| nsd.nsd != id) {
                self.note_path(id, None)?;
            }
            return Err(error);
        }
        Ok(self.nsds())
    }

    fn note_path(&self, nsd: NsdId, path: Option<PathBuf>) -> Result<()> {
        let mut config = self.config.lock();
        match path {
            Some(path) => config.nsds.insert(nsd.0.to_string(), path),
            None => config.nsds.remove(&nsd.0.to_string()),
        };
        config.store(&self.dir)
    }

    /// `shale nsd remove`.
    ///
    /// # Errors
    /// As [`Node::remove_nsd`].
    pub async fn remove_nsd(&self, nsd: NsdId) -> Result<Vec<NsdLine>> {
        self.node.remove_nsd(nsd).await?;
        Ok(self.nsds())
    }

    /// `shale nsd scrub`, of one NSD or all.
    ///
    /// # Errors
    /// `NotFound` if there is no such NSD.
    pub async fn scrub(&self, only: Option<NsdId>) -> Result<Vec<ScrubLine>> {
        if let Some(nsd) = only
            && self.node.pool().nsd(nsd).is_none()
        {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("NSD {nsd} doesn't serve here; `shale nsd list` shows those that do"),
            ));
        }
        let outcomes = self.node.metanode().scrub(only).await?;
        Ok(outcomes
            .into_iter()
            .map(|outcome| ScrubLine {
                nsd: outcome.report.nsd.0,
                checked: outcome.report.checked,
                bytes: outcome.report.bytes,
                damaged: outcome.report.damaged.len() as u64,
                rebuilt: outcome.rebuilt,
                lost: outcome.lost,
                mended: outcome.report.mended,
            })
            .collect())
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

fn nsd_line(view: &NsdView) -> NsdLine {
    let state = match view.state {
        NsdState::Active => "active",
        NsdState::Draining => "draining",
        NsdState::Lost => "lost",
    };
    let health = match view.health {
        None => "missing",
        Some(NsdHealth::Online) => "online",
        Some(NsdHealth::Failed) => "failed",
        Some(NsdHealth::Full) => "full",
    };
    NsdLine {
        nsd: view.nsd.0,
        path: view.path.display().to_string(),
        state: state.into(),
        health: health.into(),
        capacity: view.usage.capacity,
        used: view.usage.used,
        blobs: view.usage.blobs,
    }
}

/// Resident memory of this process, from the kernel; 0 if it doesn't say.
fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split_whitespace().nth(1)?.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}

/// A killed daemon's mount answers everything with ENOTCONN until mounting clears it.
fn is_dead_mount(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOTCONN)
        || error.kind() == std::io::ErrorKind::AlreadyExists
}
