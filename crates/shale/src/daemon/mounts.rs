//! The mounts of a node: its own, and those added while it runs. Which of them are made again, and when, is in `again`; which
//! stay although the node goes on in another way, in `handing`; who uses them, in `uses`.

mod again;
mod handing;
#[cfg(test)]
mod tests;
mod uses;

pub use again::LeftMount;
pub use handing::{HOLDS, HeldMount};

use super::file_systems::{FileSystems, OpenFileSystem};
use super::watchdog::{Guard, MountNumber};
use crate::{admin::MountLine, options::Options};
use fuse::{
    Door, DoorSettings, HeldBack, Mount, MountOptions, Siblings, Transport, TransportChoice,
    Unmount, WaitingRequest,
};
use model::{Error, ErrorKind, FileSystemName, Result};
use node::FIRST_FILE_SYSTEM;
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::sync::watch;
use world::World;

/// Most mounts of one node.
const MOUNTS_MAX: usize = 64;

/// How long the owner of a file system that is open is asked for what a mount is to show. A client waits longer while its node has
/// no lease; whoever mounts is told.
const ASKING_MAX: Duration = Duration::from_secs(60);
/// By then data written through an ended mount is durable, or can't be made so.
const ENDING_MAX: Duration = Duration::from_secs(60);
/// A mount is made within this time (it waits up to 6 s for the node's other mounts), unless its
/// mount point hangs.
const MAKING_MAX: Duration = Duration::from_secs(15);
/// By then a mount that is attached nowhere and that no program uses has ended, even on a very busy
/// machine.
const GONE_MAX: Duration = Duration::from_secs(5);

/// The mounts of a node.
pub struct Mounts {
    world: World,
    file_systems: Arc<dyn FileSystems>,
    /// The device that `df` and the mount table show.
    source: PathBuf,
    /// Of each file system, the kernels' views of it that must agree.
    siblings: Mutex<BTreeMap<Option<FileSystemName>, Arc<Siblings>>>,
    list: Mutex<Vec<Arc<OneMount>>>,
    /// Held while a mount is made, and while all are ended; not while a file system is opened for one, or its owner is asked.
    making: tokio::sync::Mutex<()>,
    /// Whoever tries to mount has this too.
    attempt: Arc<()>,
    /// No mount may be made: the node is going down.
    closed: AtomicBool,
    /// The same for ever: this run of the node has ended.
    is_over: AtomicBool,
    /// Since when the requests of all are held, or about to be.
    held_since: Mutex<Option<world::Instant>>,
    /// Dead ones that are being made again, and for which nobody waits.
    left: Mutex<Vec<Arc<again::Dead>>>,
    /// A dead one may have been taken away, or isn't to be made again.
    dead_ends: tokio::sync::Notify,
    /// An attempt to mount failed.
    failed: tokio::sync::Notify,
    /// Number of mounts, for those waiting for a change.
    count: watch::Sender<usize>,
    /// What ends them when this daemon can't run.
    guard: Option<Guard>,
}

struct OneMount {
    mount: Arc<Mount>,
    options: Options,
    /// That is mounted, and in use until this mount has ended.
    file_system: Arc<OpenFileSystem>,
    /// By which the watchdog knows it.
    watched: Option<MountNumber>,
    /// Signals that others look after the mount from now on.
    handed_over: tokio::sync::Notify,
}

/// What a mount is to show: a file system, and a door to it that isn't mounted. Dropped with that, it leaves nothing open.
struct Prepared {
    file_system: Arc<OpenFileSystem>,
    door: Option<Arc<Door>>,
}

impl Drop for Prepared {
    fn drop(&mut self) {
        if let Some(door) = self.door.take() {
            fuse::FileSystem::unmounted(&*door);
        }
    }
}

impl Mounts {
    /// A node without mounts.
    pub fn new(
        world: &World,
        file_systems: Arc<dyn FileSystems>,
        source: PathBuf,
        guard: Option<Guard>,
    ) -> Arc<Self> {
        Arc::new(Self {
            world: world.clone(),
            file_systems,
            source,
            siblings: Mutex::default(),
            list: Mutex::default(),
            making: tokio::sync::Mutex::default(),
            attempt: Arc::default(),
            closed: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            held_since: Mutex::default(),
            left: Mutex::default(),
            dead_ends: tokio::sync::Notify::new(),
            failed: tokio::sync::Notify::new(),
            count: watch::Sender::new(0),
            guard,
        })
    }

    /// Opens the file system that these options name, which a mount needs, and has it in use: its owner is waited for as long
    /// as a client does.
    ///
    /// # Errors
    /// `NotFound`: there is none; `Unavailable`: no owner answers.
    pub async fn open(&self, options: &Options) -> Result<Arc<OpenFileSystem>> {
        let file_systems = self.file_systems.clone();
        file_systems.open(options.file_system.as_ref()).await
    }

    /// Mounts. The second mount of a node waits until the kernel no longer trusts what it cached
    /// through the first (6 s).
    ///
    /// # Errors
    /// What is wrong with the mount point or the options, and what to do.
    pub async fn add(self: &Arc<Self>, mountpoint: &Path, options: &Options) -> Result<()> {
        let made = self.make(mountpoint, options).await;
        if made.is_err() {
            self.failed.notify_one();
        }
        made
    }

    async fn make(self: &Arc<Self>, mountpoint: &Path, options: &Options) -> Result<()> {
        let _attempt = self.attempt.clone();
        self.check_mounts()?;
        check_place(&self.source, mountpoint)?;
        // What follows ends soon; this may take as long as a client's patience, and other mounts don't wait for that.
        let prepared = self.prepare(options).await?;
        self.make_prepared(mountpoint, options, prepared, None)
            .await
    }

    /// Makes a mount of what is open. `replaces`: the kernel's id of a dead mount that must still be there.
    async fn make_prepared(
        self: &Arc<Self>,
        mountpoint: &Path,
        options: &Options,
        prepared: Prepared,
        replaces: Option<u64>,
    ) -> Result<()> {
        let _alone = self.making.lock().await;
        self.check_mounts()?;
        self.make_alone(mountpoint, options, prepared, replaces)
            .await
    }

    /// Opens what a mount is to show. Asks the owner.
    async fn prepare(&self, options: &Options) -> Result<Prepared> {
        let settings = DoorSettings {
            // A read-only mount doesn't change access times either.
            no_atime: options.flags.no_atime || options.flags.read_only,
            locks: options.locks,
            no_acl: options.no_acl,
            selinux: fuse::node_has_selinux(),
            ..DoorSettings::default()
        };
        let path = options.subdir.clone().unwrap_or_default();
        // A mount that is refused doesn't use it any more.
        let file_system = self.open(options).await?;
        let siblings = self.siblings_of(options);
        let (client, root) = (file_system.client.clone(), file_system.root);
        let asking = Door::to_directory(client, root, settings, &path, &siblings);
        let asked = self.world.timeout(ASKING_MAX, asking).await;
        let door = asked.unwrap_or_else(|_| {
            let text = format!(
                "the owner of the file system hasn't answered for {} s; `shale waiters` says what it waits for, and \
                 `shale health --all` whether most of the quorum nodes run",
                ASKING_MAX.as_secs()
            );
            Err(Error::new(ErrorKind::Unavailable, text))
        })?;
        Ok(Prepared {
            file_system,
            door: Some(Arc::new(door)),
        })
    }

    /// Whether one more mount may be made.
    fn check_mounts(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) || self.is_over.load(Ordering::Acquire) {
            return Err(Error::new(
                ErrorKind::ShuttingDown,
                "the node is going down",
            ));
        }
        if self.held_for().is_some() {
            return Err(Error::new(ErrorKind::ShuttingDown, handing::GIVES_WAY));
        }
        let is_served = |one: &&Arc<OneMount>| !one.mount.is_ended();
        if self.list.lock().iter().filter(is_served).count() >= MOUNTS_MAX {
            let text = format!("this node has {MOUNTS_MAX} mounts already; unmount one first");
            return Err(Error::new(ErrorKind::Busy, text));
        }
        Ok(())
    }

    /// The caller holds `making`.
    async fn make_alone(
        self: &Arc<Self>,
        mountpoint: &Path,
        options: &Options,
        mut prepared: Prepared,
        replaces: Option<u64>,
    ) -> Result<()> {
        let mut how = MountOptions::new(mountpoint);
        how.name = self.source.display().to_string();
        how.flags = options.flags;
        how.allow_other |= options.allow_other;
        how.transport = options.transport;
        how.locks = options.locks;
        how.no_acl = options.no_acl;
        how.replaces = replaces;
        let door = prepared.door.clone().expect("it isn't mounted yet");
        door.wait_for_siblings().await;
        // The end of the mount is its end from now on.
        prepared.door = None;
        let (world, served) = (self.world.clone(), door.clone());
        let (source, place) = (self.source.clone(), real_path(mountpoint));
        let mount = self
            .world
            .blocking(move || {
                // Before it can be unmounted.
                tell_umount(&source, &place);
                Mount::start(&world, served, &how).inspect_err(|_| forget_ended(&source))
            })
            .await
            .inspect_err(|_| fuse::FileSystem::unmounted(&*door))?;
        if mount.comes_too_late() {
            return self.end_unwanted(mount).await;
        }
        let file_system = prepared.file_system.clone();
        self.look_after(Arc::new(mount), options.clone(), file_system);
        Ok(())
    }

    /// Has a mount on the list until it has ended.
    fn look_after(
        self: &Arc<Self>,
        mount: Arc<Mount>,
        options: Options,
        file_system: Arc<OpenFileSystem>,
    ) {
        let guarded = self.guard.as_ref().zip(mount.id());
        let one = Arc::new(OneMount {
            mount,
            options,
            file_system,
            watched: guarded.map(|(guard, id)| guard.watchdog.watch(id)),
            handed_over: tokio::sync::Notify::new(),
        });
        self.list.lock().push(one.clone());
        self.tell_count();
        let watch = self.clone().watch(one);
        self.world.spawn("end of a mount", watch).detach();
    }

    /// Ends a mount that was made although somebody has taken away what it was to replace. A program may have begun to use it.
    async fn end_unwanted(&self, mount: Mount) -> Result<()> {
        let ended = mount.unmount(Unmount::Forced).await;
        let source = self.source.clone();
        self.world.blocking(move || forget_ended(&source)).await;
        ended?;
        let text = "the dead mount was unmounted while it was being made again";
        Err(Error::new(ErrorKind::NotFound, text))
    }

    fn siblings_of(&self, options: &Options) -> Arc<Siblings> {
        let mut siblings = self.siblings.lock();
        siblings.entry(name_in(options)).or_default().clone()
    }

    /// Takes a mount off the list when it has ended, however that happened. umount(8) promises that
    /// written data is safe.
    async fn watch(self: Arc<Self>, one: Arc<OneMount>) {
        tokio::select! {
            () = one.mount.ended() => {}
            () = one.handed_over.notified() => return,
        }
        one.mount.uncover().await;
        match (&self.guard, one.watched) {
            (Some(guard), Some(watched)) if one.mount.refuses() => {
                self.forget_when_gone(guard, &one.mount, watched);
            }
            (Some(guard), Some(watched)) => {
                if let Some(cause) = guard.watchdog.forget(watched) {
                    // While this daemon couldn't run, others may have changed what programs have mapped.
                    one.mount.drop_pages().await;
                    self.clone().mount_again(&one, guard, &cause).await;
                }
            }
            _ => {}
        }
        // Programs of other mounts are still to hear of what is lost.
        if let Err(error) = one.file_system.client.settle().await
            && error.kind() != ErrorKind::ShuttingDown
        {
            tracing::warn!(%error, "data written through an ended mount isn't all durable yet");
        }
        {
            // The line of a mount that is just being made must stay.
            let _nobody_mounts = self.making.lock().await;
            let source = self.source.clone();
            self.world.blocking(move || forget_ended(&source)).await;
        }
        self.list.lock().retain(|other| !Arc::ptr_eq(other, &one));
        self.tell_count();
    }

    /// Has the watchdog watch over a mount that refuses as long as anybody is answered: its programs mustn't hang with this
    /// daemon either. That may last longer than this run.
    fn forget_when_gone(&self, guard: &Guard, mount: &Mount, watched: MountNumber) {
        let watchdog = Arc::downgrade(&guard.watchdog);
        let (events, place, gone) = (guard.again.events.clone(), mount.place(), mount.gone());
        let forget = async move {
            gone.await;
            // Nobody watches any more when the daemon ends.
            let aborted = watchdog.upgrade().and_then(|it| it.forget(watched));
            if let Some(cause) = aborted {
                again::tell_aborted(&events, &place, &cause);
            }
        };
        let name = "end of a mount that refuses";
        self.world.spawn(name, forget).detach();
    }

    /// For how long the longest request of any mount has been running that doesn't wait for anything.
    pub fn longest_run(&self) -> Duration {
        let list = self.list.lock().clone();
        let runs = list.iter().map(|one| one.mount.longest_run());
        runs.max().unwrap_or_default()
    }

    /// Writes utab lines that are missing: an umount(8) of the same place in another mount namespace
    /// removes the line that both share, and a bind mount gets one when it is all that is left.
    pub async fn remind_umount(&self) {
        let source = self.source.clone();
        let list = self.list.lock().clone();
        let remind = move || {
            // Any process may hold the table's lock: wait for it only once per call.
            for one in &list {
                let place = one.mount.place();
                let is_told = match one.mount.is_attached() {
                    true => fuse::is_told(&source, &place) || tell_umount(&source, &place),
                    false => is_told(&place, one.mount.tell_umount_of_copies(&source)),
                };
                if !is_told {
                    return;
                }
            }
        };
        // Not while a mount ends: its line would come back. The next call will do it.
        let Ok(_nobody_mounts) = self.making.try_lock() else {
            return;
        };
        self.world.blocking(remind).await;
    }

    /// Waits until mounts that are attached nowhere and used by no program have ended and are off
    /// the list, for at most about a minute.
    pub async fn settle(&self) {
        // It may have been a dead one.
        self.dead_ends.notify_waiters();
        let list = self.list.lock().clone();
        let all_ended = async {
            let is_gone = |mount: &Mount| match mount.copies() {
                Ok(copies) => copies.is_empty() && !mount.is_attached(),
                // Nobody knows: it is waited for as well.
                Err(_) => true,
            };
            for one in list.iter().filter(|one| is_gone(&one.mount)) {
                one.mount.ended().await;
            }
        };
        // Programs use the other mounts, so this wasn't the last one.
        let _ = self.world.timeout(GONE_MAX, all_ended).await;
        let mut count = self.count.subscribe();
        // A dead one in its place is to be made again, and may be for long.
        let ends = |mount: &Mount| mount.is_ended() && !mount.is_left_dead();
        let none_ends = |_: &usize| !self.list.lock().iter().any(|one| ends(&one.mount));
        // If data can't be made durable, the caller's next request reports it.
        let _ = self
            .world
            .timeout(ENDING_MAX, count.wait_for(none_ends))
            .await;
    }

    fn tell_count(&self) {
        self.count.send_replace(self.list.lock().len());
    }

    /// Ends a mount. `id`: the kernel's id of the mount meant, if the caller knows it.
    ///
    /// # Errors
    /// `NotFound` if this node has no such mount; `Busy`, naming its users.
    pub async fn remove(&self, mountpoint: &Path, id: Option<u64>, how: Unmount) -> Result<()> {
        let found = match id {
            None => self.find(mountpoint),
            Some(_) => {
                let list = self.list.lock();
                let mut alive = list.iter().filter(|one| one.mount.is_attached());
                alive.find(|one| one.mount.id() == id).cloned()
            }
        };
        let one = found.ok_or_else(|| {
            let text = format!(
                "this node has no mount at {}; `shale status` lists its mounts",
                mountpoint.display()
            );
            Error::new(ErrorKind::NotFound, text)
        })?;
        self.end(&one, how).await
    }

    async fn end(&self, one: &OneMount, how: Unmount) -> Result<()> {
        let refused = match one.mount.unmount(how).await {
            Ok(()) => {
                one.mount.detach_dead().await?;
                self.dead_ends.notify_waiters();
                self.remind_umount().await;
                return Ok(());
            }
            Err(error) => error,
        };
        if refused.kind() != ErrorKind::Busy {
            return Err(refused);
        }
        let mountpoint = &one.mount.place();
        let on_top = fuse::shale_on(mountpoint);
        let is_covered = !on_top.is_ok_and(|top| top.map(|top| top.id) == one.mount.id());
        if is_covered && one.mount.is_attached() {
            return Err(refused);
        }
        let users = self.users_of(mountpoint).await;
        let text = users.unwrap_or_else(|| uses::by_programs(mountpoint, ""));
        Err(Error::new(ErrorKind::Busy, text))
    }

    /// Ends all mounts, or none if one is in use. By force, their bind mounts end too, and one that can't be taken out of
    /// its place stays there, dead. Afterwards no mount can be made. Returns the places that still show the file system and
    /// will be dead.
    ///
    /// # Errors
    /// `Busy`, naming the users; mounts can be made again.
    pub async fn end_all(self: &Arc<Self>, how: Unmount) -> Result<Vec<String>> {
        // Those that were ended come back, so the node is needed although it may have none for a moment.
        let _attempt = self.attempt.clone();
        let mut ended = Vec::new();
        match self.try_to_end_all(how, &mut ended).await {
            Ok(left) => Ok(left),
            Err(refused) => Err(self.make_ended_again(ended, refused).await),
        }
    }

    /// As [`Mounts::end_all`], for a daemon that ends whatever comes of it: if a mount is in use, those that were ended before it
    /// don't come back. Their owner would be waited for, and they would end a moment later.
    ///
    /// # Errors
    /// As those of [`Mounts::end_all`].
    pub async fn end_all_for_good(&self, how: Unmount) -> Result<Vec<String>> {
        self.try_to_end_all(how, &mut Vec::new()).await
    }

    /// Ends mounts until one can't be ended. `ended`: gets those that were.
    async fn try_to_end_all(
        &self,
        how: Unmount,
        ended: &mut Vec<Arc<OneMount>>,
    ) -> Result<Vec<String>> {
        if how != Unmount::Forced && self.held_for().is_some() {
            return Err(Error::new(ErrorKind::Busy, handing::GIVES_WAY));
        }
        // Those waiting for their turn are refused; the one being made ends with the others.
        self.closed.store(true, Ordering::Release);
        let making = self.world.timeout(MAKING_MAX, self.making.lock()).await;
        let all = match &making {
            Err(_) if how != Unmount::Forced => {
                let text = "a mount is still being made; try again when it is done";
                Err(Error::new(ErrorKind::Busy, text))
            }
            _ => {
                // Another attempt may have failed meanwhile and opened it again.
                self.closed.store(true, Ordering::Release);
                self.end_all_alone(how, ended).await
            }
        };
        self.closed.store(all.is_ok(), Ordering::Release);
        all
    }

    /// Makes mounts again that were ended before another one couldn't be. Returns why it was `refused`, and what is missing now.
    async fn make_ended_again(
        self: &Arc<Self>,
        ended: Vec<Arc<OneMount>>,
        mut refused: Error,
    ) -> Error {
        for one in ended.iter().rev() {
            let place = one.mount.mountpoint();
            if let Err(error) = self.make(place, &one.options).await {
                let text = format!(
                    "{refused}; {} was unmounted before, and can't be mounted again: {error}",
                    place.display()
                );
                refused = Error::new(refused.kind(), text);
            }
        }
        refused
    }

    /// The caller holds `making`, unless a mount that hangs does. `ended`: gets those that this ends, also if not all are. Others
    /// may be on the list although somebody has unmounted them, until what was written through them is durable.
    async fn end_all_alone(
        &self,
        how: Unmount,
        ended: &mut Vec<Arc<OneMount>>,
    ) -> Result<Vec<String>> {
        let all: Vec<_> = self.list.lock().iter().rev().cloned().collect();
        let copies = |one: &Arc<OneMount>| match one.mount.is_ended() {
            true => Ok(Vec::new()),
            false => one.mount.copies(),
        };
        if how == Unmount::IfIdle {
            let bound: Result<Vec<_>> = all.iter().map(copies).collect();
            let bound = bound?.concat();
            if !bound.is_empty() {
                return Err(Error::new(ErrorKind::Busy, uses::by_bind_mounts(&bound)));
            }
        }
        let mut left = Vec::new();
        for one in all.iter().filter(|_| how == Unmount::Forced) {
            let shown = |place: &PathBuf| format!("the bind mount at {}", place.display());
            match one.mount.detach_copies().await {
                Ok(places) => left.extend(places.iter().map(shown)),
                Err(error) => {
                    let place = one.mount.mountpoint().display();
                    left.push(format!("any bind mount of {place} ({error})"));
                }
            }
        }
        for one in &all {
            let was_there = one.mount.is_attached() || one.mount.is_left_dead();
            match self.end(one, how).await {
                // Its connection has ended, as those of the others are to.
                Err(error) if how == Unmount::Forced && one.mount.is_ended() => {
                    let place = one.mount.mountpoint().display();
                    left.push(format!("the mount at {place} ({error})"));
                }
                done => done?,
            }
            ended.extend(was_there.then(|| one.clone()));
        }
        self.end_left().await;
        for one in &all {
            let found = self.look_at_processes(one.mount.namespaces_elsewhere());
            for process in found.await.unwrap_or_default() {
                left.push(format!("the mount namespace of process {process}"));
            }
        }
        left.dedup();
        Ok(left)
    }

    /// Whether a mount is attached at this place.
    pub fn has(&self, mountpoint: &Path) -> bool {
        let real = real_path(mountpoint);
        let list = self.list.lock();
        list.iter()
            .any(|one| one.mount.is_attached() && one.mount.place() == real)
    }

    /// Compares paths as the kernel knows them, without a request to the mount itself.
    fn find(&self, mountpoint: &Path) -> Option<Arc<OneMount>> {
        let real = real_path(mountpoint);
        let list = self.list.lock();
        list.iter()
            .rev()
            .find(|one| one.mount.is_attached() && one.mount.place() == real)
            .or_else(|| {
                list.iter()
                    .rev()
                    .find(|one| one.mount.mountpoint() == real && !one.mount.is_ended())
            })
            .cloned()
    }

    /// Waits until there is no mount.
    pub async fn none_left(&self) {
        // The sender lives as long as this, so the wait can't fail.
        let _ = self.count.subscribe().wait_for(|count| *count == 0).await;
    }

    /// Waits until there is a mount, or an attempt to make one has failed.
    pub async fn first_attempt(&self) {
        let mut count = self.count.subscribe();
        tokio::select! {
            _ = count.wait_for(|count| *count > 0) => {}
            () = self.failed.notified() => {}
        }
    }

    /// Refuses mounts from now on, if there is none and nobody tries to make one. Returns whether it does.
    pub async fn close_if_none(&self) -> bool {
        let _alone = self.making.lock().await;
        let is_tried = Arc::strong_count(&self.attempt) > 1;
        let is_unneeded = self.list.lock().is_empty() && !is_tried;
        if is_unneeded {
            self.closed.store(true, Ordering::Release);
        }
        is_unneeded
    }

    /// Lines of `shale status`.
    pub fn lines(&self) -> Vec<MountLine> {
        let list = self.list.lock().clone();
        let lines = list.iter().map(|one| MountLine {
            path: one.mount.place().display().to_string(),
            options: one.options.to_string(),
            transport: match one.mount.transport() {
                Transport::IoUring => "io_uring".into(),
                Transport::Classic { .. } => "/dev/fuse".into(),
            },
            slower_because: match one.mount.transport() {
                Transport::Classic { why } if one.options.transport == TransportChoice::Auto => {
                    Some(why.clone())
                }
                _ => None,
            },
            state: if one.mount.is_ended() {
                "ending".into()
            } else if one.mount.is_attached() {
                "mounted".into()
            } else {
                "detached".into()
            },
        });
        lines.collect()
    }

    /// All requests waiting for an answer, of all mounts.
    pub fn waiting(&self) -> Vec<WaitingRequest> {
        let list = self.list.lock().clone();
        list.iter().flat_map(|one| one.mount.waiting()).collect()
    }

    /// For how long the requests of all have been held, or about to be; `None`: they aren't.
    pub fn held_for(&self) -> Option<Duration> {
        let since = (*self.held_since.lock())?;
        Some(self.world.now() - since)
    }

    /// Requests that the kernel keeps because as many of a mount wait as may, and where that is.
    pub fn held_back(&self) -> Vec<(PathBuf, HeldBack)> {
        let list = self.list.lock().clone();
        let held = list.iter().filter_map(|one| {
            let held = one.mount.held_back()?;
            Some((one.mount.place(), held))
        });
        held.collect()
    }
}

/// The file system that is mounted; the first one has two names.
fn name_in(options: &Options) -> Option<FileSystemName> {
    let name = options.file_system.clone();
    name.filter(|name| name.as_str() != FIRST_FILE_SYSTEM)
}

/// Without this line umount(8) returns before everything is durable; the mount still works. Returns
/// whether the table could be written.
fn tell_umount(source: &Path, place: &Path) -> bool {
    is_told(place, fuse::tell_umount(source, place, &[]))
}

fn is_told(place: &Path, told: std::io::Result<()>) -> bool {
    if let Err(error) = &told {
        tracing::warn!(%error, place = %place.display(), "umount(8) doesn't know that this mount has a helper, and will return before everything is durable");
    }
    told.is_ok()
}

/// Lines left behind are removed at the next start.
fn forget_ended(source: &Path) {
    if let Err(error) = fuse::forget_ended(source) {
        tracing::warn!(%error, "umount(8) still has lines about mounts that ended");
    }
}

/// The device of a node's mounts in the mount table: its directory without symbolic links.
pub fn source_of(dir: &Path) -> PathBuf {
    dir.canonicalize().unwrap_or_else(|_| dir.to_path_buf())
}

/// The mounts of a node according to the mount table, whichever process serves them, newest first.
/// Other users' mounts don't count: they could carry this node's name.
///
/// # Errors
/// `Unavailable`: the table can't be read, or the node's directory not be looked at.
pub fn mounts_of(dir: &Path) -> Result<Vec<fuse::MountedShale>> {
    mounts_in(fuse::mounted_shales(), dir)
}

fn mounts_in(
    table: Result<Vec<fuse::MountedShale>>,
    dir: &Path,
) -> Result<Vec<fuse::MountedShale>> {
    let source = source_of(dir);
    let doing = || format!("looking for the mounts of {}", source.display());
    let mut mounts = table.map_err(|error| error.while_doing(doing()))?;
    let owner = match std::fs::metadata(&source) {
        Ok(found) => found.uid(),
        // Nobody's.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => {
            let error = Error::new(ErrorKind::Unavailable, error.to_string());
            return Err(error.while_doing(doing()));
        }
    };
    mounts.retain(|mount| mount.source == source && mount.user == Some(owner));
    mounts.reverse();
    Ok(mounts)
}

/// The path as the mount table shows it, without symbolic links. Sends no request to a file system
/// mounted there: only links are read, and the root of a mount is none.
pub fn real_path(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    absolute.canonicalize().unwrap_or(absolute)
}

/// Refuses a mount point that would cover the node's directory: nobody could reach the daemon there, and the daemon itself would
/// look for its files in the file system that it serves.
///
/// # Errors
/// `InvalidArgument`, saying what to do.
pub fn check_place(dir: &Path, mountpoint: &Path) -> Result<()> {
    if !real_path(dir).starts_with(real_path(mountpoint)) {
        return Ok(());
    }
    let text = format!(
        "a mount at {} would cover the node's directory {1}; choose another place, for instance {1}/mnt",
        mountpoint.display(),
        dir.display()
    );
    Err(Error::new(ErrorKind::InvalidArgument, text))
}
