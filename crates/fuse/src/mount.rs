//! A mounted file system: starting, watching and ending it.

use crate::abi;
use crate::connection::AbortFile;
use crate::copies::Identity;
use crate::crew::{Crew, CrewSize};
use crate::dead::DeadMount;
use crate::device::{Device, Received};
use crate::file_system::FileSystem;
use crate::gate::{Gate, Held};
use crate::init::{self, Agreement, DATA_BYTES_MAX};
use crate::locks::LockWaits;
use crate::mounting;
use crate::notifier::Notifier;
use crate::options::{MountOptions, Unmount};
use crate::refusing;
use crate::replacing::{self, Numbers, Unattached};
use crate::reply::Reply;
use crate::request::{Incoming, Request};
use crate::ring_crew::RingCrew;
use crate::rings::Rings;
use crate::serving::{Ending, Serving};
use crate::table::{self, TableLine, mount_on};
use crate::transport::{self, Transport, TransportChoice};
use crate::umount_table::{is_told, tell_umount_of_copy};
use crate::waiting::WaitingRequest;
use model::{Error, ErrorKind, InodeId, Result};
use std::any::Any;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use world::World;

/// A mounted file system. Dropping it ends the mount as [`Unmount::Forced`] does.
pub struct Mount {
    mountpoint: PathBuf,
    /// None if something was mounted over it before it could be looked at.
    identity: Option<Identity>,
    /// The kernel's ids of dead mounts below it, which come to light when it ends.
    covers: Vec<u64>,
    /// The one that it was to replace had gone before.
    comes_too_late: bool,
    notifier: Notifier,
    transport: Transport,
    waiting: Box<dyn Fn() -> Vec<WaitingRequest> + Send + Sync>,
    /// How many requests were read that aren't among those that wait, and aren't answered.
    under_way: Box<dyn Fn() -> usize + Send + Sync>,
    threads_max: usize,
    longest_run: Box<dyn Fn() -> Duration + Send + Sync>,
    /// Has requests that wait be looked at again.
    wake_all: Box<dyn Fn() + Send + Sync>,
    /// What programs have open, as [`Serving::take_open`].
    take_open: Box<dyn Fn() -> Vec<InodeId> + Send + Sync>,
    /// Reports its end although its threads go on, as [`Ending::desert`]; false if they have ended.
    desert: Box<dyn Fn() -> bool + Send + Sync>,
    /// What it serves.
    fs: Arc<dyn Any + Send + Sync>,
    gate: Arc<Gate>,
    locks: Arc<LockWaits>,
    ended: watch::Receiver<bool>,
    /// Unmounted by this process, and not lazily.
    is_let_go: AtomicBool,
    world: World,
}

/// What tells the kernel of a mount that refuses what to drop. Nothing more is told when this is dropped.
struct LastNotices(Notifier);

impl Drop for LastNotices {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Requests that the kernel keeps because as many of a mount wait as may.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeldBack {
    /// How many there are.
    pub requests: usize,
    /// For how long as many have waited.
    pub since: Duration,
}

/// A mount that another process detached ends within this time, unless programs still use it.
const DETACHED_MAX: Duration = Duration::from_secs(1);
/// How long an unmount waits for the threads to end before it leaves them running.
const END_MAX: Duration = Duration::from_secs(5);

impl Mount {
    /// Mounts `fs` and serves it. Blocks for a few milliseconds. A dead mount of ours on the same
    /// directory is replaced: if root mounts, nobody gets to the directory below meanwhile.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`: the mountpoint. `NotFound`: what it was to replace isn't there any
    /// more. `Busy`: something is mounted there. `NotSupported`: no /dev/fuse, or the kernel is too
    /// old. `NotPermitted`. Each with a remedy.
    pub fn start<F: FileSystem>(world: &World, fs: Arc<F>, options: &MountOptions) -> Result<Self> {
        assert!(
            options.threads >= 1 && options.threads <= options.threads_max,
            "a mount needs a thread that reads requests"
        );
        let doing = || format!("mount {} on {}", options.name, options.mountpoint.display());
        let place = mounting::prepare(&options.mountpoint, options.replaces)
            .map_err(|error| error.while_doing(doing()))?;
        let mountpoint = &place.path;
        let made = match place.dead.is_empty() {
            true => mounting::mount(mountpoint, options).map(|device| (device, None)),
            false => Unattached::make(options).map(|(device, new)| (device, Some(new))),
        };
        let (device, new) = made.map_err(|error| error.while_doing(doing()))?;
        let device = Arc::new(device);
        let begun = begin(
            world,
            fs.clone(),
            &device,
            options,
            mountpoint,
            new.as_ref(),
        );
        let mut mount = begun.map_err(|error| {
            // The first error counts; the rest of the mount ends with the descriptors. Where one is dead it isn't yet.
            if new.is_none() {
                drop(mounting::unmount(mountpoint, Unmount::Forced, None));
            }
            error.while_doing(doing())
        })?;
        if let Some(new) = &new {
            new.attach(mountpoint)
                .map_err(|error| error.while_doing(doing()))?;
        }
        mount.covers = replacing::uncover(mountpoint, place.dead);
        let not_taken_away = options.replaces.filter(|id| mount.covers.contains(id));
        mount.comes_too_late = not_taken_away.is_some_and(mounting::has_gone);
        fs.mounted(&mount.notifier);
        Ok(mount)
    }

    /// Whether somebody took the dead mount away that this one was to [replace](MountOptions::replaces) while it was being
    /// made. Whoever made it ends it then: nobody wants it.
    #[must_use]
    pub fn comes_too_late(&self) -> bool {
        self.comes_too_late
    }

    /// Where it was mounted.
    #[must_use]
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// The transport in use, and why it isn't io_uring if so.
    #[must_use]
    pub fn transport(&self) -> &Transport {
        &self.transport
    }

    /// Sends notifications that make the kernel drop cached state.
    #[must_use]
    pub fn notifier(&self) -> &Notifier {
        &self.notifier
    }

    /// Requests that wait for something now, longest first.
    #[must_use]
    pub fn waiting(&self) -> Vec<WaitingRequest> {
        (self.waiting)()
    }

    /// Requests that the kernel keeps because as many wait as may; [`Mount::waiting`] doesn't have them. `None` while there
    /// are none, or if the system doesn't tell.
    #[must_use]
    pub fn held_back(&self) -> Option<HeldBack> {
        let waiting = self.waiting();
        if waiting.len() < self.threads_max {
            return None;
        }
        let all = self.connection()?.requests();
        let requests = all.saturating_sub(waiting.len() + (self.under_way)());
        // The last one that began to wait.
        let since = waiting.last()?.since;
        (requests > 0).then_some(HeldBack { requests, since })
    }

    /// The file system that it serves, if it is of this kind.
    #[must_use]
    pub fn file_system<F: FileSystem>(&self) -> Option<Arc<F>> {
        self.fs.clone().downcast().ok()
    }

    /// Lets no request begin until the result is dropped, so that its file system can go on in another way meanwhile, and waits
    /// until none is under way. Programs see a pause. One that waits for another program's lock waits on; the file system is
    /// asked for that anew.
    ///
    /// # Errors
    /// `Busy`: requests are under way still after so long, or they are held already; they go on then.
    pub async fn hold(&self, most: Duration) -> Result<Held> {
        let held = self.gate.hold(&self.locks, &self.world, most).await;
        held.map_err(|error| {
            error.while_doing(format!(
                "pausing the mount at {}",
                self.mountpoint.display()
            ))
        })
    }

    /// For how long the longest request that doesn't wait for anything has been running: at least that long, as calls
    /// of this have seen it. Such a request takes microseconds; seconds mean that its thread can't go on.
    #[must_use]
    pub fn longest_run(&self) -> Duration {
        (self.longest_run)()
    }

    /// Whether the mount has ended, through this process or another (umount), or refuses.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// Whether it is still in the tree of files. After a lazy unmount it isn't, but its users are
    /// served until [`Mount::ended`]. While the mount table can't be read it counts as there: one that is given up because
    /// of that is in use.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        !self.is_ended() && self.is_in_place()
    }

    /// As [`Mount::is_attached`], also if it has ended.
    fn is_in_place(&self) -> bool {
        let identity = self.identity.as_ref();
        identity.is_some_and(|identity| !identity.is_missing_in(&table::read()))
    }

    /// Ends its connection and leaves it in the tree of files, so that programs get errors there instead of the
    /// directory below. Waits a few seconds for requests that run. Takes it away, as [`Unmount::Forced`] does, if it is
    /// only left in copies, or if the system doesn't let this user end the connection. The kernel drops what it keeps of open
    /// files ([`Mount::drop_pages`]).
    ///
    /// # Errors
    /// `NotPermitted`: it can be ended in neither way.
    pub async fn leave_dead(&self) -> Result<()> {
        let ended = self.abort().await;
        self.drop_pages().await;
        ended
    }

    /// What [`Mount::leave_dead`] does with the connection.
    async fn abort(&self) -> Result<()> {
        let connection = self.connection().filter(|_| self.is_in_place());
        let abort = move || {
            let connection = connection.ok_or(ErrorKind::NotFound)?;
            end_connection(&connection)
        };
        if let Err(error) = self.world.blocking(abort).await {
            tracing::debug!(%error, mountpoint = %self.mountpoint.display(), "its connection can't be ended from outside");
            return self.unmount(Unmount::Forced).await;
        }
        if self.world.timeout(END_MAX, self.ended()).await.is_err() {
            tracing::warn!(waiting = ?self.waiting(), mountpoint = %self.mountpoint.display(), "aborted, but operations still wait for something");
        }
        Ok(())
    }

    /// Ends its service as [`Mount::leave_dead`] does, but programs get EIO: each request from now on, and those that wait, as
    /// long as the mount is in its place or a program has something of it. Its file system is asked no more, and what it has is
    /// given up. The kernel drops what it keeps of open files, as far as it can within seconds: who touches a mapped page gets
    /// SIGBUS. If a request doesn't end within seconds, or the system doesn't let this user end the connection should that be
    /// needed, the mount is left dead.
    ///
    /// # Errors
    /// As those of [`Mount::leave_dead`].
    pub async fn leave_refusing(&self) -> Result<()> {
        let known = self.identity.as_ref().zip(self.connection());
        let known = known.filter(|_| !self.is_ended() && self.is_in_place());
        let Some((identity, connection)) = known else {
            return self.leave_dead().await;
        };
        self.gate.refuse();
        // As long as anything is valid that was answered, others may want it, and then the kernel must drop it.
        let (world, last) = (self.world.clone(), LastNotices(self.notifier.clone()));
        let close = async move {
            world.sleep(client::BELIEVED_MAX).await;
            drop(last);
        };
        let name = "notices of a mount that refuses";
        self.world.spawn(name, close).detach();
        (self.wake_all)();
        let emptied = self.world.timeout(END_MAX, self.gate.until_empty());
        if emptied.await.is_err() {
            tracing::warn!(mountpoint = %self.mountpoint.display(), "a request doesn't end: its mount is aborted");
            return self.leave_dead().await;
        }
        // From here on EIO is the answer for each page: none comes back, and what is written back holds up no notice.
        self.drop_pages().await;
        if (self.desert)() {
            let number = identity.number;
            let keep = move || refusing::keep(number, connection);
            self.world.blocking(keep).await;
        }
        Ok(())
    }

    /// Has the kernel drop what it keeps of what programs have open, as far as it can within seconds: others may change that when
    /// it isn't served any more. What was changed in mappings and isn't stored is lost then.
    pub async fn drop_pages(&self) {
        if !self.notifier.drop_pages((self.take_open)()).await {
            tracing::warn!(mountpoint = %self.mountpoint.display(), "the kernel hasn't dropped all pages in time: programs may read what they have mapped as it was");
        }
    }

    /// Whether each request gets an error, or will: see [`Mount::leave_refusing`].
    #[must_use]
    pub fn refuses(&self) -> bool {
        self.gate.refuses()
    }

    /// Waits until the mount has ended, and no request is answered any more, also if it has refused them for a while.
    pub fn gone(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut ended = self.ended.clone();
        async move {
            // Its threads have the other end.
            while ended.changed().await.is_ok() {}
        }
    }

    /// Whether its connection has ended, or it refuses, and it is still in the tree of files: whoever comes there gets an error.
    /// Mounting there again takes it away, or covers it. See [`DeadMount::is_left`].
    #[must_use]
    pub fn is_left_dead(&self) -> bool {
        self.dead().is_some_and(|dead| dead.is_left())
    }

    /// Takes what [is left dead](Mount::is_left_dead) out of the tree of files.
    ///
    /// # Errors
    /// As those of [`DeadMount::detach`].
    pub async fn detach_dead(&self) -> Result<()> {
        match self.dead() {
            Some(dead) => dead.detach().await,
            None => Ok(()),
        }
    }

    /// What will be left of it when it has ended and nobody has unmounted it; `None` if it isn't known in the mount table.
    #[must_use]
    pub fn dead(&self) -> Option<DeadMount> {
        Some(DeadMount {
            mountpoint: self.mountpoint.clone(),
            identity: self.identity.clone()?,
            covers: self.covers.clone(),
            ended: self.ended.clone(),
            world: self.world.clone(),
        })
    }

    /// Takes dead mounts away that it had replaced and could only cover. To be called when it has ended, or is out of
    /// the tree of files; does nothing before.
    pub async fn uncover(&self) {
        replacing::uncover_soon(&self.world, &self.mountpoint, &self.covers).await;
    }

    /// Where it is now, even if it was moved (`mount --move`); where it was mounted, while that can't be seen.
    #[must_use]
    pub fn place(&self) -> PathBuf {
        let identity = self.identity.as_ref();
        let line = identity.and_then(|identity| identity.line().ok().flatten());
        line.map_or_else(|| self.mountpoint.clone(), |line| line.mountpoint)
    }

    /// What ends its connection, and no other one: it was opened while no other one could have its number. That is
    /// another's when the kernel has unmounted it, while operations of it may still run.
    fn connection(&self) -> Option<Arc<AbortFile>> {
        let identity = self.identity.as_ref()?;
        // fusectl may have been mounted since it began.
        let now = || identity.abort_file().ok().map(Arc::new);
        identity.connection.clone().or_else(now)
    }

    /// The kernel's id of this mount; `None` if it isn't known in the mount table.
    #[must_use]
    pub fn id(&self) -> Option<u64> {
        self.identity.as_ref().map(|identity| identity.id)
    }

    /// Other places that show the file system or a part of it (`mount --bind`), as far as this
    /// process sees.
    ///
    /// # Errors
    /// `Unavailable`: nobody knows.
    pub fn copies(&self) -> Result<Vec<PathBuf>> {
        let copies = self.identity.as_ref().map(Identity::copies).transpose()?;
        let places = copies.into_iter().flatten().map(|line| line.mountpoint);
        Ok(places.collect())
    }

    /// Tells umount(8) that the copies have a helper, so that it returns when the last one's data is
    /// durable. For a mount that is only left in them: before that, unmounting one ends nothing.
    ///
    /// # Errors
    /// The system's error; umount(8) of a copy then returns too early.
    pub fn tell_umount_of_copies(&self, source: &Path) -> std::io::Result<()> {
        let copies = self.identity.as_ref().map(Identity::copies).transpose();
        let copies = copies.map_err(std::io::Error::other)?.into_iter().flatten();
        for copy in copies.filter(|copy| !is_told(source, &copy.mountpoint)) {
            tell_umount_of_copy(source, &copy.mountpoint, &copy.root)?;
        }
        Ok(())
    }

    /// Takes the copies out of the tree of files; returns those that couldn't be removed.
    ///
    /// # Errors
    /// `Unavailable`: nobody knows which there are, or are left.
    pub async fn detach_copies(&self) -> Result<Vec<PathBuf>> {
        let identity = self.identity.clone();
        let detach = move || identity.map_or(Ok(Vec::new()), |it| it.detach_copies());
        self.world.blocking(detach).await
    }

    /// One process of each other mount namespace that has the file system. Reads the mount table of
    /// every namespace that this process may read.
    pub async fn namespaces_elsewhere(&self) -> Vec<u32> {
        let identity = self.identity.clone();
        let look = move || identity.map_or(Vec::new(), |it| it.namespaces_elsewhere());
        self.world.blocking(look).await
    }

    /// Waits until the mount has ended, for whatever reason, or refuses, and no request runs any more.
    pub async fn ended(&self) {
        // An error means that the threads are gone too.
        let _ = self.ended.clone().wait_for(|ended| *ended).await;
    }

    /// Ends the mount. After `Lazy` the file system is served until its last user is gone: await
    /// [`Mount::ended`].
    ///
    /// # Errors
    /// `Busy` after `IfIdle`; `NotPermitted`; `Unavailable`: nobody knows what is in its place. By force its connection ends
    /// then, and it stays there, dead.
    pub async fn unmount(&self, how: Unmount) -> Result<()> {
        if self.is_ended() {
            return Ok(());
        }
        if how != Unmount::Forced && self.is_let_go.load(Ordering::Acquire) {
            // Bind mounts, or a mount namespace that was copied meanwhile, may still have it.
            return Ok(());
        }
        if how == Unmount::Forced && !self.is_attached() {
            // It may be ending right now, and another mount may get its device number next.
            let ended = self.world.timeout(DETACHED_MAX, self.ended()).await;
            if ended.is_ok() {
                return Ok(());
            }
        }
        if how == Unmount::IfIdle && !self.is_attached() {
            // Another process unmounted it. The path is no longer ours, so it is left alone.
            let ended = self.world.timeout(DETACHED_MAX, self.ended()).await;
            return ended.map_err(|_| {
                Error::new(
                    ErrorKind::Busy,
                    "it was unmounted lazily, and programs still use files in it; end them, or unmount by force",
                )
                .while_doing(format!("unmount {}", self.mountpoint.display()))
            });
        }
        let is_forced = how == Unmount::Forced;
        let connection = is_forced.then(|| self.connection()).flatten();
        let (mountpoint, identity) = (self.mountpoint.clone(), self.identity.clone());
        let result = self.world.blocking(move || {
            let connection = connection.as_deref();
            let seen = match Seen::of(&mountpoint, identity.as_ref()) {
                Ok(seen) => seen,
                Err(unseen) => return abort_unseen(connection, unseen),
            };
            match seen.other {
                Some(_) if how == Unmount::Lazy && !seen.is_attached => Ok(()),
                Some(other) if how != Unmount::Forced => Err(Error::new(
                    ErrorKind::Busy,
                    format!(
                        "something else is mounted over it ({} from {}); unmount that first",
                        other.fs_type,
                        other.source.display()
                    ),
                )),
                Some(_) => {
                    let _ = connection.map(AbortFile::abort);
                    Ok(())
                }
                None => mounting::unmount(&seen.place, how, connection),
            }
        });
        result
            .await
            .map_err(|error| error.while_doing(format!("unmount {}", self.mountpoint.display())))?;
        self.is_let_go
            .store(how != Unmount::Lazy, Ordering::Release);
        self.uncover().await;
        if how == Unmount::IfIdle && self.copies().is_ok_and(|copies| !copies.is_empty()) {
            // Bind mounts keep it alive, and it is served there.
            tracing::info!(mountpoint = %self.mountpoint.display(), "unmounted; bind mounts of it remain");
            return Ok(());
        }
        if how != Unmount::Lazy && self.world.timeout(END_MAX, self.ended()).await.is_err() {
            tracing::warn!(waiting = ?self.waiting(), "unmounted, but operations still wait for something, or a mount namespace still has a copy");
        }
        tracing::info!(mountpoint = %self.mountpoint.display(), ?how, "unmounted");
        Ok(())
    }
}

impl std::fmt::Debug for Mount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mount")
            .field("mountpoint", &self.mountpoint)
            .field("transport", &self.transport)
            .field("ended", &self.is_ended())
            .finish()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if !self.refuses() {
            self.notifier.close();
        }
        if self.is_ended() {
            return;
        }
        let connection = self.connection();
        let connection = connection.as_deref();
        let done = match Seen::of(&self.mountpoint, self.identity.as_ref()) {
            Ok(seen) if seen.other.is_some() => {
                // Somebody has unmounted it, or mounted something else over it.
                let _ = connection.map(AbortFile::abort);
                Ok(())
            }
            Ok(seen) => mounting::unmount(&seen.place, Unmount::Forced, connection),
            Err(unseen) => abort_unseen(connection, unseen),
        };
        if let Err(error) = done {
            tracing::warn!(%error, mountpoint = %self.mountpoint.display(), "couldn't end the mount");
        }
        replacing::uncover(&self.mountpoint, std::mem::take(&mut self.covers));
    }
}

/// What one look at the table of mounts tells whoever is to unmount a mount.
struct Seen {
    /// Where it is; if it isn't attached, where it was mounted.
    place: PathBuf,
    is_attached: bool,
    /// What umount(2) would take there, the topmost mount, if that is another one.
    other: Option<TableLine>,
}

impl Seen {
    /// Looks for a mount.
    ///
    /// # Errors
    /// `Unavailable`: nobody knows what is there.
    fn of(mountpoint: &Path, identity: Option<&Identity>) -> Result<Self> {
        let lines = table::seen()?;
        let own = identity.and_then(|identity| lines.iter().find(|line| identity.is(line)));
        let id = own.map(|own| own.id);
        let place = own.map_or(mountpoint, |own| &own.mountpoint).to_owned();
        let on_top = lines.into_iter().rev().find(|it| it.mountpoint == place);
        Ok(Self {
            place,
            is_attached: id.is_some(),
            other: on_top.filter(|top| Some(top.id) != id),
        })
    }
}

/// Ends a mount by force, if `connection` is given, of which nobody knows whether it is in its place: umount(2) could take
/// another one.
fn abort_unseen(connection: Option<&AbortFile>, unseen: Error) -> Result<()> {
    let Some(connection) = connection else {
        return Err(unseen);
    };
    end_connection(connection)?;
    let mountpoint = connection.mountpoint().display();
    tracing::warn!(%unseen, %mountpoint, "only its connection was ended: it stays in its place, dead, until somebody unmounts it");
    Ok(())
}

fn end_connection(connection: &AbortFile) -> Result<()> {
    let failed = |error: std::io::Error| Error::new(ErrorKind::Unavailable, error.to_string());
    connection.abort().map_err(failed)
}

/// What identifies a new mount, and what ends its connection, if the system lets this user; nothing if something is mounted
/// over it already. `new`: it, if it isn't in the tree of files yet.
///
/// # Errors
/// `Unavailable`: it can't be seen, or no descriptor is free. Nobody could guard it, or tell it from another one.
fn identity_of(
    mountpoint: &Path,
    name: &str,
    new: Option<&Unattached>,
) -> Result<Option<Identity>> {
    let doing = "looking at the new mount";
    let unseen = |error: std::io::Error| {
        let hint = table::without_descriptor(&error).unwrap_or_default();
        Error::new(ErrorKind::Unavailable, format!("{error}{hint}")).while_doing(doing)
    };
    let (mut identity, opened) = match new {
        Some(new) => {
            let Numbers { id, device } = new.numbers().map_err(unseen)?;
            let identity = Identity::new(id, device, PathBuf::from(name));
            // It has its number as long as it can be asked for it.
            (identity, AbortFile::of_number(device, mountpoint))
        }
        None => {
            let on_top = mount_on(mountpoint)?;
            let Some(line) = on_top.filter(TableLine::is_shale) else {
                return Ok(None);
            };
            (Identity::of(&line), AbortFile::of_line(line))
        }
    };
    identity.connection = match opened {
        Ok(connection) => Some(Arc::new(connection)),
        // Only for now: as long as it lived, nobody could end it while it can't be seen.
        Err(error) if error.kind() == ErrorKind::Unavailable => {
            return Err(error.while_doing(doing));
        }
        Err(error) => {
            tracing::debug!(%error, "its connection can't be ended from outside");
            None
        }
    };
    Ok(Some(identity))
}

/// Serves a new mount. `new`: it, if it isn't in the tree of files yet.
fn begin<F: FileSystem>(
    world: &World,
    fs: Arc<F>,
    device: &Arc<Device>,
    options: &MountOptions,
    mountpoint: &Path,
    new: Option<&Unattached>,
) -> Result<Mount> {
    let rings = match options.transport {
        TransportChoice::Classic => Err("switched off for this mount".to_owned()),
        _ => Rings::prepare(device, options.threads_max),
    };
    let (agreement, offered_minor) = first_request(device, options, rings.is_ok())?;
    let identity = identity_of(mountpoint, &options.name, new)?;
    let connection = identity.as_ref().and_then(|it| it.connection.clone());
    let (ended_sender, ended) = watch::channel(false);
    let serving = Arc::new(Serving::new(world.clone(), fs, agreement));
    let ending = Arc::new(Ending {
        serving: Arc::clone(&serving),
        ended: ended_sender,
    });
    let of_mount = Arc::downgrade(&ending);
    let over_io_uring = match rings {
        Ok(rings) if agreement.has(abi::init::OVER_IO_URING) => {
            let abort = Box::new(move || {
                // Without fusectl nothing can be done; the log already has the reason.
                let _ = connection.as_ref().map(|connection| connection.abort());
            });
            RingCrew::start(&ending, device, rings, options.threads_max, abort).map_err(
                |error| {
                    let why = format!("the kernel neither starts nor gives up io_uring: {error}");
                    Error::new(ErrorKind::NotSupported, why)
                },
            )?
        }
        Ok(_) => Err(transport::why_not_offered(offered_minor)),
        Err(why) => Err(why),
    };
    let transport = match over_io_uring {
        Ok(()) => Transport::IoUring,
        Err(why) if options.transport == TransportChoice::IoUring => {
            let why = format!("no FUSE over io_uring: {why}");
            return Err(Error::new(ErrorKind::NotSupported, why));
        }
        Err(why) => Transport::Classic { why },
    };
    // With io_uring only requests without a reply come here: FORGET, INTERRUPT.
    let readers = if transport.is_io_uring() {
        1
    } else {
        options.threads
    };
    let size = CrewSize {
        readers,
        most: options.threads_max,
    };
    let no_thread = |error| {
        let why = format!("no thread can be started ({error}); see `ulimit -u` and pids.max");
        Error::new(ErrorKind::Unavailable, why)
    };
    let notifier = Notifier::start(world, Arc::clone(device)).map_err(no_thread)?;
    serving.reach_by(&notifier);
    Crew::start(&ending, device, size)
        .inspect_err(|_| notifier.close())
        .map_err(no_thread)?;
    if let Some(identity) = &identity {
        mounting::raise_read_ahead(identity.number, options.read_ahead_bytes);
    }
    serving.watch_programs();
    tracing::info!(mountpoint = %mountpoint.display(), protocol = agreement.minor, %transport, "mounted");
    let is_io_uring = transport.is_io_uring();
    Ok(Mount {
        mountpoint: mountpoint.to_owned(),
        identity,
        covers: Vec::new(),
        comes_too_late: false,
        is_let_go: AtomicBool::new(false),
        notifier,
        transport,
        fs: serving.fs.clone(),
        wake_all: Box::new({
            let serving = Arc::clone(&serving);
            move || serving.waiting.wake_all()
        }),
        take_open: Box::new({
            let serving = Arc::clone(&serving);
            move || serving.take_open()
        }),
        desert: Box::new(move || {
            let ending = of_mount.upgrade();
            ending.inspect(|ending| ending.desert()).is_some()
        }),
        gate: serving.gate.clone(),
        locks: serving.locks.clone(),
        longest_run: Box::new({
            let serving = Arc::clone(&serving);
            move || serving.pulses.longest_run(serving.world.now())
        }),
        under_way: Box::new({
            let serving = Arc::clone(&serving);
            move || {
                // Over io_uring a wait for a lock is among those that wait.
                let locks = if is_io_uring {
                    0
                } else {
                    serving.locks.count()
                };
                serving.pulses.running() + locks
            }
        }),
        threads_max: options.threads_max,
        waiting: Box::new(move || serving.waiting.list(serving.world.now())),
        ended,
        world: world.clone(),
    })
}

/// Answers INIT, the kernel's first request. Also returns the kernel's minor version of the
/// protocol.
fn first_request(
    device: &Device,
    options: &MountOptions,
    over_io_uring: bool,
) -> Result<(Agreement, u32)> {
    let failed = |why: String| Error::new(ErrorKind::NotSupported, why);
    let mut buffer = vec![0; DATA_BYTES_MAX as usize + 4096];
    let length = loop {
        match device.receive(&mut buffer) {
            Ok(Received::Request(length)) => break length,
            Ok(Received::Again) => {}
            Ok(Received::Ended) => {
                return Err(failed("the kernel ended the connection".to_owned()));
            }
            Err(error) => return Err(failed(format!("reading /dev/fuse: {error}"))),
        }
    };
    let incoming = Incoming::from_device(&buffer[..length], true);
    let Ok(Ok(Request::Init(offer))) = incoming.map(|incoming| incoming.parse()) else {
        return Err(failed("the kernel's first request isn't INIT".to_owned()));
    };
    let unique = incoming.map_or(0, |incoming| incoming.header.unique);
    match init::agree(
        &offer,
        options.read_ahead_bytes,
        over_io_uring,
        options.locks,
        options.no_acl,
    ) {
        Ok((agreement, out)) => {
            device
                .reply(unique, &Reply::fixed(&out))
                .map_err(|error| failed(format!("answering INIT: {error}")))?;
            Ok((agreement, offer.minor))
        }
        Err(why) => {
            // The mount ends right after this anyway.
            let _ = device.reply(unique, &Reply::Errno(libc::EPROTO));
            Err(failed(why))
        }
    }
}

#[cfg(test)]
#[path = "../../shale/tests/fixture/noted.rs"]
mod noted;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{MemoryFileSystem, MemorySettings};
    use std::fs;
    use testkit::own_mounts::{Cover, is_among_own_mounts};

    /// Would be broken if a daemon without a free descriptor waited for no bind mount, said of a mount in its place that it was
    /// unmounted, or unmounted what is over it.
    #[test]
    fn a_mount_that_cannot_be_seen_counts_as_there_and_nothing_is_unmounted_for_it() {
        let test = "a_mount_that_cannot_be_seen_counts_as_there_and_nothing_is_unmounted_for_it";
        if !is_among_own_mounts(module_path!(), test) {
            return;
        }
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let world = runtime.block_on(async { World::real() });
        let directory = tempfile::tempdir().expect("a directory");
        let path = fs::canonicalize(directory.path()).expect("it exists");
        let fs = Arc::new(MemoryFileSystem::new(&world, MemorySettings::default()));
        let mount = Mount::start(&world, fs, &MountOptions::new(&path)).expect("a mount");
        assert!(mount.copies().expect("they are seen").is_empty());
        let hides_all = Cover::over(Path::new("/proc"));
        assert!(mount.is_attached());
        let mut refused = vec![mount.copies().map(drop)];
        for how in [Unmount::IfIdle, Unmount::Lazy] {
            refused.push(runtime.block_on(mount.unmount(how)));
        }
        assert!(!mount.is_ended());
        let forced = runtime.block_on(mount.unmount(Unmount::Forced));
        forced.expect("its connection is known");
        assert!(mount.is_ended());
        let dead = mount.dead().expect("it was seen when it began");
        refused.push(runtime.block_on(dead.detach()));
        for refused in refused {
            let refused = refused.expect_err("nobody knows what is there");
            assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
        }
        drop(hides_all);
        assert!(dead.is_left());
        let detached = runtime.block_on(dead.detach());
        detached.expect("it is seen, with nothing over it");
        assert!(!dead.is_left());
    }

    #[test]
    fn a_mount_goes_on_by_the_device_if_registering_with_the_kernel_fails() {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let world = runtime.block_on(async { World::real() });
        let directory = tempfile::tempdir().expect("a directory");
        let path = fs::canonicalize(directory.path()).expect("it exists");
        let options = MountOptions::new(&path);
        let device = Arc::new(mounting::mount(&path, &options).expect("a mount"));
        let rings = Rings::prepare(&device, options.threads_max);
        let (agreement, _) = first_request(&device, &options, rings.is_ok()).expect("INIT");
        match rings {
            Ok(rings) if agreement.has(abi::init::OVER_IO_URING) => {
                rings
                    .refusal
                    .refuse()
                    .expect("the kernel gives up io_uring");
            }
            _ => noted::skipped(
                "a_mount_goes_on_by_the_device_if_registering_with_the_kernel_fails",
                "no FUSE over io_uring here: only the device is tested",
            ),
        }
        let fs = Arc::new(MemoryFileSystem::new(&world, MemorySettings::default()));
        let (ended_sender, ended) = watch::channel(false);
        let ending = Arc::new(Ending {
            serving: Arc::new(Serving::new(world, fs, agreement)),
            ended: ended_sender,
        });
        let size = CrewSize {
            readers: 2,
            most: 4,
        };
        Crew::start(&ending, &device, size).expect("there are threads");
        drop(ending);
        fs::write(path.join("f"), b"served").expect("it is served");
        assert_eq!(fs::read(path.join("f")).expect("it is served"), b"served");
        mounting::unmount(&path, Unmount::Lazy, None).expect("idle");
        let is_ended = async {
            let _ = ended.clone().wait_for(|ended| *ended).await;
        };
        runtime.block_on(is_ended);
    }
}
