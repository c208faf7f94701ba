//! The node behind the admin API: one method per request, with the API's types.

use super::config::{ClusterConfig, NodeConfig};
use super::events::{Events, Problem};
use super::health::{History, newly_lost};
use super::mounts::{LeftMount, Mounts, real_path, source_of};
use super::own_mount::OwnMount;
use super::running::Running;
use super::stop_mark::StopMark;
use super::watchdog::Guard;
use super::work::Works;
use crate::directory::private;
use crate::{
    admin::{
        AddNsd, ChangeNsds, ChangePool, CheckResult, Df, MountRequest, NsdLine, PoolLine,
        ScrubLine, UnmountRequest,
    },
    options::Options,
};
use fuse::Unmount;
use metanode::CheckOptions;
use model::{Error, ErrorKind, NsdId, Result, map::NsdState, nsd::NsdHealth};
use node::{GenerationView, LOOK_EVERY, NsdView, PoolChange, Removal};
use parking_lot::Mutex;
use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::sync::{Notify, oneshot, watch};

/// An on-demand daemon that was given no mount ends after this.
const FIRST_MOUNT_MAX: Duration = Duration::from_secs(60);
/// How long a change of the NSDs waits for another one in progress.
const NSDS_CHANGE_MAX: Duration = Duration::from_secs(120);

/// How long people who only look are kept waiting for another node: less than they wait for this daemon.
const LOOK_MAX: Duration = Duration::from_secs(3);

/// Somebody wants a node that is alone to become the first one of a cluster.
pub struct Wish {
    /// The node's place in it.
    pub cluster: ClusterConfig,
    answer: oneshot::Sender<Result<()>>,
}

impl Wish {
    /// Says what has become of it.
    pub fn answer(self, result: Result<()>) {
        // Whoever asked may have gone away.
        let _ = self.answer.send(result);
    }
}

/// A node that serves its file system.
pub struct Serving {
    pub(super) dir: PathBuf,
    pub(super) config: Mutex<NodeConfig>,
    pub(super) running: Running,
    pub(super) mounts: Arc<Mounts>,
    pub(super) since: world::Instant,
    /// Ends with its last mount, as users of mount(8) and umount(8) expect.
    on_demand: AtomicBool,
    /// Somebody has asked for the end.
    was_told: AtomicBool,
    /// Whether the whole cluster is being stopped.
    pub(super) stop: StopMark,
    /// `Some(force)` once the end was requested.
    shutdown: watch::Sender<Option<bool>>,
    pub(super) history: History,
    /// What happened here.
    pub(super) events: Arc<Events>,
    /// Held while an NSD is added or removed.
    changing_nsds: tokio::sync::Mutex<()>,
    /// Held by who wants it to become the first node of a cluster, until that is answered.
    becoming: tokio::sync::Mutex<()>,
    /// What it is to become, until somebody sees to it; and signals that it is there.
    wish: Mutex<Option<Wish>>,
    wished: Notify,
    /// The node's own mount.
    pub(super) own: OwnMount,
    /// Long requests in progress.
    pub works: Works,
}

impl Serving {
    /// A node without mounts yet. `guard`: what guards them if other nodes change the same files. `on_demand`: it
    /// serves mounts that others request, and ends with the last of them.
    pub fn new(
        dir: &Path,
        config: NodeConfig,
        running: Running,
        events: Arc<Events>,
        guard: Option<Guard>,
        on_demand: bool,
    ) -> Self {
        let (world, file_systems) = (running.world(), running.file_systems());
        let mounts = Mounts::new(world, file_systems, source_of(dir), guard);
        Self {
            dir: dir.to_path_buf(),
            config: Mutex::new(config),
            since: running.world().now(),
            own: OwnMount::new(mounts.clone()),
            mounts,
            running,
            on_demand: AtomicBool::new(on_demand),
            was_told: AtomicBool::new(false),
            stop: StopMark::default(),
            shutdown: watch::Sender::new(None),
            history: History::default(),
            events,
            changing_nsds: tokio::sync::Mutex::new(()),
            becoming: tokio::sync::Mutex::new(()),
            wish: Mutex::default(),
            wished: Notify::new(),
            works: Works::default(),
        }
    }

    /// Makes the node's own mount; from now on the node stays up until `shale down`.
    ///
    /// # Errors
    /// As [`OwnMount::make`].
    pub async fn mount_own(&self) -> Result<()> {
        let config = self.config.lock().clone();
        self.own.make(&config.mount, &config.options()?).await?;
        self.on_demand.store(false, Ordering::Release);
        Ok(())
    }

    /// Makes the node's own mount in the background of a cluster's node, and tries again until it is made. `tried` is
    /// called after the first attempt.
    pub async fn keep_mounting_own(&self, tried: impl FnOnce()) {
        let make = || self.mount_own();
        self.own.keep_making(self.world(), make, tried).await;
    }

    /// Whether the node ends with its last mount.
    pub fn is_on_demand(&self) -> bool {
        self.on_demand.load(Ordering::Acquire)
    }

    /// `shale mount`.
    ///
    /// # Errors
    /// What is wrong with the mount point or the options, and what to do.
    pub async fn mount(&self, request: &MountRequest) -> Result<()> {
        if self.shutdown.borrow().is_some() {
            return Err(Error::new(
                ErrorKind::ShuttingDown,
                "the node is going down",
            ));
        }
        let Some(path) = &request.path else {
            return self.mount_own().await;
        };
        let options = Options::parse(&request.options)?;
        self.mounts.add(Path::new(path), &options).await
    }

    /// `shale umount`. True if the daemon ends with it.
    ///
    /// # Errors
    /// `NotFound`, `Busy`.
    pub async fn unmount(&self, request: &UnmountRequest) -> Result<bool> {
        let path = Path::new(&request.path);
        self.mounts
            .remove(path, request.id, request.how.into())
            .await?;
        self.settle().await
    }

    /// Called after an unmount that bypassed the daemon: when this returns, everything is durable
    /// and the caller may cut the power. True if the daemon ends, because that was the last mount.
    ///
    /// # Errors
    /// The first thing that couldn't be made durable.
    pub async fn settle(&self) -> Result<bool> {
        self.mounts.settle().await;
        self.running.sync_all().await?;
        Ok(self.is_on_demand() && self.mounts.lines().is_empty())
    }

    /// Waits until the node isn't needed: it is on demand, and its last mount is gone or none came.
    pub async fn wait_for_idle(&self) {
        if !self.is_on_demand() {
            return std::future::pending().await;
        }
        loop {
            let first = self.mounts.first_attempt();
            // The loop checks next whether a mount came.
            let _ = self.running.world().timeout(FIRST_MOUNT_MAX, first).await;
            self.mounts.none_left().await;
            // Its mounts may have been ended for all nodes to stop, and may be made again.
            self.stop.until_over().await;
            if !self.is_on_demand() {
                return std::future::pending().await;
            }
            if self.mounts.close_if_none().await {
                return;
            }
        }
    }

    /// The node's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Time and tasks.
    pub fn world(&self) -> &world::World {
        self.running.world()
    }

    /// Waits until the end was requested; returns whether by force.
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

    /// Unmounts if no program uses the mounts (or by force) and lets the daemon end. Returns the
    /// places that still show the file system and can't be unmounted from here.
    ///
    /// # Errors
    /// `Busy` if programs or bind mounts use a mount and `force` isn't set; nothing has changed
    /// then.
    pub async fn shutdown(&self, force: bool) -> Result<Vec<String>> {
        // An attempt to make the own mount would be waited for, perhaps as long as it is made again and again.
        self.own.stop();
        let left = self.mounts.end_all(how_to_unmount(force)).await;
        let left = left.inspect_err(|_| self.own.go_on())?;
        self.note_shutdown(force);
        Ok(left)
    }

    /// The daemon ends, as it was told.
    fn note_shutdown(&self, force: bool) {
        self.was_told.store(true, Ordering::Release);
        self.shutdown.send_replace(Some(force));
    }

    /// Lets the daemon end with its whole cluster, by force. It ends whatever becomes of its mounts: it couldn't serve them
    /// any more, and nobody will ask it again.
    ///
    /// # Errors
    /// Why a mount couldn't be ended.
    pub async fn shutdown_with_cluster(&self) -> Result<Vec<String>> {
        let left = self.shutdown(true).await;
        if left.is_err() {
            self.note_shutdown(true);
        }
        left
    }

    /// Unmounts if that hasn't happened, makes everything durable, closes the node.
    ///
    /// # Errors
    /// The first thing that couldn't be made durable.
    pub async fn end(&self, force: bool) -> Result<()> {
        self.own.stop();
        let unmounted = self.mounts.end_all_for_good(how_to_unmount(force)).await;
        if unmounted.is_ok() {
            self.note_shutdown(force);
        }
        let closed = self.running.close().await;
        // What is in use, or was mounted meanwhile: without the daemon it would be a dead mount.
        let ended = self.mounts.end_all_for_good(Unmount::Forced).await;
        closed.and(unmounted).and(ended).map(drop)
    }

    /// Ends what an expelled run has here: the service of its mounts, so that no program reads what isn't true any more,
    /// and its parts. The mounts stay in their places and refuse all requests, so that no program comes to the directories below,
    /// and are returned for [`Serving::mount_again`]. Then the first part that didn't end as it should. The run of a node that was
    /// expelled by hand leaves in good order, as long as others answer it: what was written is made durable, and they get its shards.
    pub async fn end_expelled(&self) -> (Vec<LeftMount>, Result<()>) {
        let leaves = match &self.running {
            Running::InCluster(here) if !here.is_barred() => {
                here.was_expelled();
                false
            }
            Running::InCluster(_) | Running::Alone(_) => true,
        };
        self.own.stop();
        let left = self.mounts.leave_dead().await;
        self.shutdown.send_replace(Some(true));
        if leaves {
            // Kernels may use what they were answered, and others change it as soon as the session ends.
            self.world().sleep(client::BELIEVED_MAX).await;
        }
        (left, self.running.close().await)
    }

    /// Makes mounts again, in the background, that the last run of the node has left. Its own one is made as with every
    /// run.
    pub fn mount_again(&self, mut left: Vec<LeftMount>) {
        if !self.is_on_demand() {
            let own = real_path(&self.config.lock().mount);
            left.retain(|one| one.place() != own);
        }
        self.mounts.make_left(left);
    }

    /// Has mounts made in the background that the last run of the node has ended for a stop of the cluster: this one has no part
    /// in that. Its own one is made as with every run.
    pub fn mount_later(&self, mut unmounted: Vec<(PathBuf, Options)>) {
        if !self.is_on_demand() {
            let own = real_path(&self.config.lock().mount);
            unmounted.retain(|(place, _)| *place != own);
        }
        self.stop.note_unmounted(unmounted);
    }

    /// Whether somebody has asked for the end of the daemon, and was told that it ends; or it ends with its whole cluster.
    pub fn was_told_to_end(&self) -> bool {
        self.was_told.load(Ordering::Acquire) || self.stop.is_final()
    }

    /// Closes a node that has no mounts yet.
    ///
    /// # Errors
    /// The first part that didn't end as it should.
    pub async fn close(&self) -> Result<()> {
        self.running.close().await
    }

    /// Looks after the node while it runs: takes returned NSDs back into use, notes facts for
    /// `shale health`, gives back memory that isn't used.
    pub async fn watch(&self) {
        let clock = self.running.world();
        let mut given_back = clock.now();
        let mut lost = client::Losses::default();
        loop {
            clock.sleep(LOOK_EVERY).await;
            let (health, found) = {
                let facts = self.facts();
                (self.history.judge(&facts), facts.lost)
            };
            if let Some(what) = newly_lost(&lost, &found) {
                // Files are counted a little before their session is: what came before it is told with it.
                self.events.tell("session-lost", "client session", &what);
                lost = found;
            }
            let wrong = health.events.into_iter().filter(|it| it.severity != "hint");
            let wrong = wrong.map(|it| {
                let problem = Problem {
                    severity: it.severity,
                    remedy: it.remedy,
                };
                ((it.subject, it.message), problem)
            });
            self.events.compare(wrong.collect());
            self.mounts.remind_umount().await;
            self.running.look_for_returned().await;
            if clock.now() - given_back >= world::GIVE_BACK_EVERY {
                given_back = clock.now();
                world::release_unused_buffers();
            }
        }
    }

    /// `shale nsd open`.
    ///
    /// # Errors
    /// Why it doesn't open.
    pub async fn open_nsd(&self, nsd: NsdId) -> Result<Vec<NsdLine>> {
        self.running.reopen(nsd).await?;
        Ok(self.nsds())
    }

    /// `shale fs df`.
    ///
    /// # Errors
    /// `Unavailable` while the metadata is, or if the node that serves it doesn't answer soon.
    pub async fn df(&self) -> Result<Df> {
        let nsds = self.running.nsds();
        let usage = self.world().timeout(LOOK_MAX, self.running.usage()).await;
        let usage = usage.unwrap_or_else(|_| {
            let text = "the node that serves the file system doesn't answer; `shale health` and `shale waiters` say more, \
                        try again in some seconds";
            Err(Error::new(ErrorKind::Unavailable, text))
        })?;
        Ok(Df {
            size: usage.size,
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
    /// The first thing that couldn't be made durable.
    pub async fn sync(&self) -> Result<()> {
        self.running.sync_all().await
    }

    /// `shale fs check`.
    ///
    /// # Errors
    /// If the check couldn't run; faults are in the answer.
    pub async fn check(&self, deep: bool, work: Option<u64>) -> Result<CheckResult> {
        let work = self.works.begin(work);
        // Data still in memory belongs to the file system; the check reads only published data.
        self.running.sync_all().await?;
        let metanode = self.running.metanode_of_first()?;
        let options = CheckOptions { deep };
        let report = metanode.check_showing(options, &work.progress).await?;
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
            unreadable_files: report.unreadable_files,
            unreadable: report.unreadable,
        })
    }

    /// `shale nsd list`.
    pub fn nsds(&self) -> Vec<NsdLine> {
        let homes = self.running.homes();
        let line = |view: &NsdView| {
            let home = homes.get(&view.nsd);
            NsdLine {
                node: home.map(|it| it.node.0),
                node_name: home.and_then(|it| it.name.clone()),
                address: home.and_then(|it| it.address.clone()),
                ..nsd_line(view)
            }
        };
        self.running.nsds().iter().map(line).collect()
    }

    /// `shale nsd add`.
    ///
    /// # Errors
    /// As [`Node::add_nsd`]; `Busy` if another change of the NSDs takes too long.
    pub async fn add_nsd(&self, request: &AddNsd) -> Result<Vec<NsdLine>> {
        let _alone = self.change_nsds().await?;
        let id = self.running.next_nsd().await?;
        let path = match &request.path {
            Some(path) => PathBuf::from(path),
            None => {
                let folder = self.dir.join("nsd");
                // A node that joined without NSDs has none yet.
                private::make_private_directory(&folder).map_err(|error| {
                    Error::new(ErrorKind::Unavailable, error.to_string())
                        .while_doing(format!("making {}", folder.display()))
                })?;
                folder.join(format!("{id}.region"))
            }
        };
        let bytes = request.bytes.unwrap_or(self.config.lock().create.nsd_bytes);
        // The path first: an NSD in the map without a path would be missing at the next start. A
        // path that the map doesn't name is harmless.
        self.note_path(id, Some(path.clone()))?;
        if let Err(error) = self.running.add_nsd(id, &path, bytes).await {
            let may_be_there = error.kind() == ErrorKind::Unknown;
            if !may_be_there && self.running.nsds().iter().all(|nsd| nsd.nsd != id) {
                self.note_path(id, None)?;
            }
            return Err(error);
        }
        Ok(self.nsds())
    }

    /// Forgets NSDs of this node whose adding broke off before the pool's map named them, and removes their regions. Before
    /// the node serves.
    pub async fn discard_leftovers(&self) {
        let discarded = async {
            let noted = self.config.lock().region_paths()?;
            for nsd in self.running.discard_leftovers(&noted, &self.dir).await? {
                self.note_path(nsd, None)?;
            }
            Ok::<_, Error>(())
        };
        if let Err(error) = discarded.await {
            tracing::warn!(%error, "what attempts to add an NSD have left stays until the next start");
        }
    }

    /// `shale pool list`.
    pub async fn pool(&self) -> Vec<PoolLine> {
        let generations = self.running.generations();
        // Of a cluster only its manager knows what all owners have to do.
        let left = match generations.len() {
            0 | 1 => None,
            _ => self.running.segments_to_rewrite().await,
        };
        let line = |view: &GenerationView| PoolLine {
            first_group: view.first_group,
            groups: view.groups,
            scheme: view.scheme.to_string(),
            block_bytes: u64::from(view.block_bytes.unwrap_or(self.running.block_bytes())),
            nsds: view.nsds,
            state: match view.is_newest {
                true => "current".into(),
                false => "emptying".into(),
            },
            segments_left: left.filter(|_| !view.is_newest),
        };
        generations.iter().map(line).collect()
    }

    /// `shale pool change`.
    ///
    /// # Errors
    /// As [`node::LocalNsds::change_pool`]; `Busy` if another change of the NSDs takes too long.
    pub async fn change_pool(&self, request: &ChangePool) -> Result<Vec<PoolLine>> {
        let scheme = request.scheme.as_deref().map(str::parse).transpose()?;
        let bytes = request.block_bytes;
        // What is too large for a number of 32 bits is too large for a block.
        let block_bytes = bytes.map(|bytes| u32::try_from(bytes).unwrap_or(u32::MAX));
        let _alone = self.change_nsds().await?;
        let change = PoolChange {
            scheme,
            block_bytes,
        };
        self.running.change_pool(change).await?;
        Ok(self.pool().await)
    }

    /// `shale cluster create`, of a node that is alone. Returns when it is certain that it becomes the first node of this
    /// cluster: it serves no more then, and another one in its place that goes on with its mounts.
    ///
    /// # Errors
    /// Why it stays alone, as it was.
    pub async fn become_first(&self, cluster: ClusterConfig) -> Result<()> {
        if let Ok(here) = self.running.in_cluster() {
            let text = format!(
                "this node belongs to cluster {} already",
                here.cluster_text()
            );
            return Err(Error::new(ErrorKind::Exists, text));
        }
        let Ok(_becoming) = self.becoming.try_lock() else {
            let text = "another command makes a cluster of this node; see how it ends";
            return Err(Error::new(ErrorKind::Busy, text));
        };
        let (answer, answered) = oneshot::channel();
        *self.wish.lock() = Some(Wish { cluster, answer });
        self.wished.notify_one();
        let ends = || Err(ErrorKind::ShuttingDown.into());
        let mut shutdown = self.shutdown.subscribe();
        tokio::select! {
            biased;
            answer = answered => answer.unwrap_or_else(|_| ends()),
            // It may give way to another wish.
            _ = shutdown.wait_for(Option::is_some) => ends(),
        }
    }

    /// Waits until somebody wants the node to become the first one of a cluster.
    pub async fn wished(&self) -> Wish {
        loop {
            if let Some(wish) = self.wish.lock().take() {
                return wish;
            }
            self.wished.notified().await;
        }
    }

    /// Another one takes its place: nobody is answered any more.
    pub fn gives_way(&self) {
        self.shutdown.send_replace(Some(false));
    }

    /// Waits until nobody changes the NSDs; nobody does as long as the result is held.
    ///
    /// # Errors
    /// `Busy` if that takes too long.
    pub(super) async fn change_nsds(&self) -> Result<tokio::sync::MutexGuard<'_, ()>> {
        let turn = self.changing_nsds.lock();
        let turn = self.running.world().timeout(NSDS_CHANGE_MAX, turn).await;
        turn.map_err(|_| {
            let text = "another NSD is still being added or removed; try again when it is done";
            Error::new(ErrorKind::Busy, text)
        })
    }

    fn note_path(&self, nsd: NsdId, path: Option<PathBuf>) -> Result<()> {
        let mut config = self.config.lock();
        match path {
            Some(path) => config.nsds.insert(nsd.0.to_string(), path),
            None => config.nsds.remove(&nsd.0.to_string()),
        };
        config.store(&self.dir)
    }

    /// `shale nsd change`.
    ///
    /// # Errors
    /// As [`node::LocalNsds::set_failure_groups`]; `Busy` if another change of the NSDs takes too long.
    pub async fn change_failure_groups(&self, request: &ChangeNsds) -> Result<Vec<NsdLine>> {
        let _alone = self.change_nsds().await?;
        let with = |nsd: &u32| (NsdId(*nsd), request.failure_group.clone());
        let which: Vec<_> = request.nsds.iter().map(with).collect();
        self.running.set_failure_groups(&which).await?;
        Ok(self.nsds())
    }

    /// `shale nsd remove`.
    ///
    /// # Errors
    /// As [`node::LocalNsds::remove`]; `Busy` if another change of the NSDs takes too long.
    pub async fn remove_nsd(&self, nsd: NsdId, removal: Removal) -> Result<Vec<NsdLine>> {
        let _alone = self.change_nsds().await?;
        self.running.remove_nsd(nsd, removal).await?;
        Ok(self.nsds())
    }

    /// `shale nsd drain --cancel`.
    ///
    /// # Errors
    /// As [`node::LocalNsds::cancel_drain`]; `Busy` if another change of the NSDs takes too long.
    pub async fn cancel_drain(&self, nsd: NsdId) -> Result<Vec<NsdLine>> {
        let _alone = self.change_nsds().await?;
        self.running.cancel_drain(nsd).await?;
        Ok(self.nsds())
    }

    /// `shale nsd scrub`, of one NSD or all.
    ///
    /// # Errors
    /// `Busy` while another scrub runs; `NotFound` if there is no such NSD.
    pub async fn scrub(&self, only: Option<NsdId>, work: Option<u64>) -> Result<Vec<ScrubLine>> {
        let work = self.works.begin_scrub(work)?;
        if let Some(nsd) = only
            && self.running.pool().nsd(nsd).is_none()
        {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("NSD {nsd} doesn't serve here; `shale nsd list` shows those that do"),
            ));
        }
        let metanode = self.running.metanode_that_scrubs()?;
        let outcomes = metanode.scrub_showing(only, &work.progress).await?;
        Ok(outcomes
            .into_iter()
            .map(|outcome| ScrubLine {
                nsd: outcome.report.nsd.0,
                checked: outcome.report.checked,
                bytes: outcome.report.bytes,
                damaged: outcome.report.damaged.len() as u64,
                rebuilt: outcome.rebuilt,
                lost: outcome.lost,
                left: outcome.left,
                mended: outcome.report.mended,
            })
            .collect())
    }
}

/// How mounts are ended when the daemon is to end.
fn how_to_unmount(force: bool) -> Unmount {
    match force {
        true => Unmount::Forced,
        false => Unmount::IfIdle,
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
        node: None,
        node_name: None,
        address: None,
        path: view.path.display().to_string(),
        failure_group: view.failure_group.clone(),
        state: state.into(),
        health: health.into(),
        capacity: view.usage.capacity,
        used: view.usage.used,
        blobs: view.usage.blobs,
        bytes_read: view.bytes_read,
        bytes_written: view.bytes_written,
    }
}
