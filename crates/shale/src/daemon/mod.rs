//! The daemon: takes the directory's lock, starts the node, mounts, serves the admin API, ends
//! in order.

mod answers;
mod cluster;
pub mod config;
mod door;
mod events;
mod file_systems;
pub mod health;
pub mod member;
pub mod mounts;
mod own_mount;
mod relay;
mod repair;
pub mod running;
mod server;
pub mod serving;
mod signals;
mod stop_mark;
mod stopping;
mod supervisor;
mod users;
mod waits;
pub mod watchdog;
mod work;

use crate::directory::{lock, log};
use cluster::growing::{self, Grown};
use config::NodeConfig;
use events::Events;
use model::{Error, ErrorKind, Result};
use node::{Creation, Node, NodePaths};
use running::Running;
use serving::Serving;
use signals::Signals;
use std::{io::Write, path::Path, process::ExitCode, sync::Arc, time::Duration};
use tracing_subscriber::{
    filter::{LevelFilter, Targets},
    layer::SubscriberExt,
    util::SubscriberInitExt,
};
use world::World;

/// First line on the daemon's standard output once it serves; any other line is the reason why it
/// doesn't.
pub const READY: &str = "ready";

/// Environment variable: the file through which a lab makes this daemon's disks slow.
pub const SLOW_DISKS: &str = "SHALE_LAB_FAULTS";

/// An ending daemon makes everything durable first, and the disk or the other nodes may be slow: whoever ends it waits for
/// so long.
pub const END_MAX: Duration = Duration::from_secs(150);

/// Exit code of a daemon that would end with the same error again until somebody does something (EX_CONFIG of sysexits.h):
/// systemd's units don't start it again.
const NEEDS_SOMEBODY: u8 = 78;

/// Worker threads for commits, disks and the tree; operations run on the FUSE threads.
const WORKERS_MAX: usize = 4;
/// Time for answers in flight when the daemon ends.
const ANSWERS_END: Duration = Duration::from_secs(2);

/// Runs the daemon of a directory until it is told to end. Prints `ready`, or the reason why it
/// can't serve, on standard output. `on_demand`: mounts nothing itself and ends with its last
/// mount. The exit code is [`NEEDS_SOMEBODY`] if starting again wouldn't help.
///
/// # Errors
/// The reason why it couldn't start, if another attempt may.
pub fn run(dir: &Path, on_demand: bool) -> Result<ExitCode> {
    write_log();
    let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cores.clamp(2, WORKERS_MAX))
        .thread_name("shale")
        .on_thread_start(fuse::run_on_all_cpus)
        .enable_all()
        .build()
        .map_err(|e| {
            Error::new(ErrorKind::Unavailable, e.to_string()).while_doing("starting the runtime")
        })?;
    let result = runtime.block_on(live(dir, on_demand));
    if let Err(error) = &result {
        // The command that started us reads this line; the log keeps it too.
        say(&error.to_string());
        tracing::error!(%error, "the daemon ends");
    }
    // Never shut down: operations that a forced unmount left waiting still use its timer, and would
    // panic without it. They end with the process; all that was answered is durable.
    std::mem::forget(runtime);
    match result {
        // It has been said.
        Err(error) if needs_somebody(error.kind()) => Ok(ExitCode::from(NEEDS_SOMEBODY)),
        ended => ended.map(|()| ExitCode::SUCCESS),
    }
}

/// Whether a daemon that ended with such an error ends with it again until somebody does something: its node was expelled
/// by hand or removed, it isn't its user's, or data are gone. All else may pass: a disk that comes late after a start of
/// the machine, an address, a lock.
fn needs_somebody(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::NotPermitted | ErrorKind::Corrupt)
}

/// Runs the watchdog of a directory's daemon, which starts it. It writes to the daemon's log.
///
/// # Errors
/// As [`watchdog::run`].
pub fn watch_over(dir: &Path) -> Result<ExitCode> {
    write_log();
    watchdog::run(mounts::source_of(dir))
        .inspect_err(|error| tracing::error!(%error, "the watchdog ends"))
}

/// Logs to standard error from now on.
fn write_log() {
    let wanted = std::env::var("SHALE_LOG").ok();
    let wanted: Option<Targets> = wanted.and_then(|text| text.parse().ok());
    let written = tracing_subscriber::fmt::layer()
        .with_writer(log::Log::new())
        .with_ansi(false);
    tracing_subscriber::registry()
        .with(written)
        .with(wanted.unwrap_or_else(|| {
            Targets::new()
                .with_default(LevelFilter::INFO)
                .with_target("slatedb", LevelFilter::WARN)
                .with_target("foyer", LevelFilter::WARN)
        }))
        .init();
}

async fn live(dir: &Path, on_demand: bool) -> Result<()> {
    let dir = &std::path::absolute(dir).unwrap_or_else(|_| dir.to_path_buf());
    let load = || {
        NodeConfig::load(dir)?.ok_or_else(|| {
            let text = format!(
                "{} holds no Shale node; create one with `shale up --dir {0}`",
                dir.display()
            );
            Error::new(ErrorKind::NotFound, text)
        })
    };
    // Where there is no node nothing is written.
    load()?;
    let lock = lock::take(dir)?;
    // A command may have changed it until it gave the lock up.
    let config = load()?;
    // The node's own one is made again, in a cluster perhaps much later.
    let stays = (config.cluster.is_some() && !on_demand).then(|| mounts::real_path(&config.mount));
    clear_dead_mounts(dir, stays.as_deref());
    if let Err(error) = world::host::raise_descriptor_limit() {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
    let world = match std::env::var_os(SLOW_DISKS) {
        Some(file) => World::real_with_slow_disks(Path::new(&file)),
        None => World::real(),
    };
    let result = match config.cluster.clone() {
        Some(cluster) => cluster::live(&world, dir, config, cluster, on_demand).await,
        None => live_alone(&world, dir, config, on_demand).await,
    };
    tracing::info!("ended");
    // Held until the process is gone, and with it all its open files.
    std::mem::forget(lock);
    result
}

/// Runs the daemon of a node that is its whole cluster.
async fn live_alone(
    world: &World,
    dir: &Path,
    mut config: NodeConfig,
    on_demand: bool,
) -> Result<()> {
    let paths = node_paths(dir, &config)?;
    let is_new = !config.created;
    if is_new {
        create(world, dir, &paths, &config).await?;
    }
    let node = Node::open(world, &paths, client::ClientSettings::default()).await?;
    if is_new {
        give_root_to_maker(&node).await?;
        config.created = true;
        config.store(dir)?;
    }
    node.metanode().start_background();
    let running = Running::Alone(node);
    let events = Arc::new(Events::open(dir));
    events.tell("daemon-started", "this node", "it serves");
    // Nobody else changes what its kernel has: it needs no watchdog.
    let serving = Serving::new(dir, config, running, events, None, on_demand);
    serving.discard_leftovers().await;
    let serving = Arc::new(serving);
    match serve(&serving, on_demand).await? {
        None => Ok(()),
        Some((grown, signals)) => {
            // Nobody uses it any more.
            drop(serving);
            Box::pin(cluster::go_on(world, dir, grown, &signals)).await
        }
    }
}

/// How a node ends its service.
enum Ended {
    /// Somebody told it to end; whether by force.
    AsTold(bool),
    /// Its run has ended: the cluster doesn't count on it any more. Or it was alone, and becomes the first one of a cluster.
    ByItself,
}

/// Mounts, answers, and ends in order when it is told to; or serves no more because it becomes the first node of a cluster.
///
/// # Errors
/// Why it can't serve, or the first thing that couldn't be made durable.
async fn serve(serving: &Arc<Serving>, on_demand: bool) -> Result<Option<(Grown, Signals)>> {
    let world = serving.world().clone();
    if !on_demand && let Err(error) = serving.mount_own().await {
        let _ = serving.close().await;
        return Err(error);
    }
    let admin = match server::listen(serving) {
        Ok(admin) => admin,
        Err(error) => {
            // Nothing else ends the mount: the runtime isn't shut down.
            let _ = serving.end(true).await;
            return Err(error);
        }
    };
    let admin = world.spawn("admin API", admin);
    let signals = Signals::catch(&world);
    let is_ready = std::future::ready(());
    let mut grown = None;
    let becomes_first = async { grown = Some(growing::grow(serving).await) };
    let ended = attend(serving, &signals, is_ready, becomes_first).await;
    let force = match ended {
        Ended::AsTold(force) => force,
        Ended::ByItself => {
            serving.gives_way();
            // Who asked for it still needs the answer.
            let _ = world.timeout(ANSWERS_END, admin).await;
            let grown = grown.expect("it has ended for that");
            if !serving.was_told_to_end() {
                return Ok(Some((grown, signals)));
            }
            // By force, when its mounts were held already.
            grown.end().await?;
            remove_socket(serving.dir());
            return Ok(None);
        }
    };
    let result = serving.end(force).await;
    // The client that asked for the end still needs its answer.
    let _ = world.timeout(ANSWERS_END, admin).await;
    if result.is_ok() {
        remove_socket(serving.dir());
    }
    result.map(|()| None)
}

/// To programs that unmount, the missing socket means that everything is durable.
fn remove_socket(dir: &Path) {
    let _ = std::fs::remove_file(dir.join(crate::admin::client::SOCKET));
}

/// Looks after a node that serves, until it is told to end or `run_ended` is ready. Says that it serves when `is_ready`
/// is.
async fn attend(
    serving: &Arc<Serving>,
    signals: &Signals,
    is_ready: impl Future<Output = ()>,
    run_ended: impl Future<Output = ()>,
) -> Ended {
    let (world, dir) = (serving.world().clone(), serving.dir().to_path_buf());
    let watched = serving.clone();
    let watch = world.spawn("watch", async move { watched.watch().await });
    let ready = async {
        is_ready.await;
        let milliseconds = world.now().since(serving.since).as_millis();
        tracing::info!(dir = %dir.display(), milliseconds, "serving");
        say(READY);
        supervisor::tell("READY=1");
        std::future::pending::<()>().await
    };
    let ended = tokio::select! {
        force = wait_for_end(serving, signals) => Ended::AsTold(force),
        () = run_ended => Ended::ByItself,
        () = ready => unreachable!("it is pending"),
    };
    if let Ended::AsTold(_) = ended {
        supervisor::tell("STOPPING=1");
    }
    watch.stop().await;
    ended
}

/// The root directory belongs to the user who created the file system: if it were root's, an
/// ordinary user could create nothing in it.
async fn give_root_to_maker(node: &Node) -> Result<()> {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    let owner = model::SetAttributes {
        uid: Some(uid.as_raw()),
        gid: Some(gid.as_raw()),
        ..model::SetAttributes::default()
    };
    let root = model::InodeId::ROOT;
    node.client().set_attributes(root, owner).await?;
    node.client().sync_all().await
}

/// Detaches mounts left by daemons that died. One at `stays` is kept, dead, so that no program writes into the directory
/// below it.
fn clear_dead_mounts(dir: &Path, stays: Option<&Path>) {
    for mount in seen_mounts(dir) {
        let mountpoint = mount.mountpoint.display();
        if stays == Some(&*mount.mountpoint) && is_aborted(&mount) {
            tracing::warn!(%mountpoint, "the mount of a daemon that died stays until it is made again");
            continue;
        }
        tracing::warn!(%mountpoint, "removing the mount of a daemon that died");
        detach(&mount);
    }
    if let Err(error) = fuse::forget_ended(&mounts::source_of(dir)) {
        tracing::warn!(%error, "umount(8) still has lines about mounts that ended");
    }
}

/// Those of this directory; none if they can't be seen.
fn seen_mounts(dir: &Path) -> Vec<fuse::MountedShale> {
    mounts::mounts_of(dir).unwrap_or_else(|error| {
        // At our mount point, mounting will say what to do.
        tracing::warn!(%error, "mounts of a daemon that died may be left");
        Vec::new()
    })
}

/// Ends a mount's connection; the kernel may take a moment until it has torn down what a dead daemon had, and requests
/// hang until then. Returns whether it could be ended.
fn is_aborted(mount: &fuse::MountedShale) -> bool {
    let abort = fuse::AbortFile::of_mount(mount.id, &mount.source);
    let abort = abort.map(|connection| connection.abort().is_ok());
    abort.unwrap_or(false)
}

/// Detaches all mounts of this directory, when nothing serves them: we hold its lock. Says `why`.
fn detach_mounts(dir: &Path, why: &str) {
    for mount in seen_mounts(dir) {
        tracing::warn!(mountpoint = %mount.mountpoint.display(), "{why}");
        detach(&mount);
    }
}

fn detach(mount: &fuse::MountedShale) {
    if let Err(error) = fuse::detach(mount) {
        // At our mount point, mounting will say what to do; elsewhere it does no harm.
        tracing::warn!(%error, "couldn't remove a dead mount");
    }
}

/// Starts an interrupted creation again: no one can have used what it left. Removes only files in
/// our own directory, never a device or a path elsewhere, and never a complete file system,
/// whatever node.toml says.
async fn create(world: &World, dir: &Path, paths: &NodePaths, config: &NodeConfig) -> Result<()> {
    if Node::is_created(world, paths).await? {
        return Ok(());
    }
    let doing = || format!("creating a file system in {}", dir.display());
    let folder = dir.join("nsd");
    std::fs::create_dir_all(&folder).map_err(|e| {
        Error::new(ErrorKind::Unavailable, e.to_string())
            .while_doing(format!("creating {}", folder.display()))
            .while_doing(doing())
    })?;
    let ours = || {
        let regions = paths.nsds.values().chain([&paths.coordination]);
        regions.filter(|path| path.starts_with(dir))
    };
    let remove_ours = || {
        for path in ours() {
            let _ = std::fs::remove_file(path);
        }
    };
    remove_ours();
    let creation = Creation {
        scheme: config.create.scheme.parse()?,
        nsd_bytes: config.create.nsd_bytes,
        block_bytes: config.create.block_bytes,
    };
    let created = Node::create(world, paths, creation).await;
    created.map_err(|error| {
        // Half a file system would only take space.
        remove_ours();
        error.while_doing(doing())
    })
}

fn node_paths(dir: &Path, config: &NodeConfig) -> Result<NodePaths> {
    Ok(NodePaths {
        coordination: dir.join("coordination.region"),
        nsds: config.region_paths()?,
    })
}

/// `shale down`, SIGTERM and SIGINT end the daemon; whether by force. Signals can't report `Busy`, so they force.
async fn wait_for_end(serving: &Serving, signals: &Signals) -> bool {
    tokio::select! {
        biased;
        force = serving.wait_for_shutdown() => force,
        () = serving.wait_for_idle() => false,
        () = signals.told() => true,
    }
}

/// Prints the only line on standard output; its reader closes the pipe afterwards.
fn say(line: &str) {
    let mut out = std::io::stdout();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}
