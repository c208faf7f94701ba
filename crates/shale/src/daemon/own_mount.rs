//! The node's own mount: made when the daemon starts, and again by `shale up`.
//!
//! A node that is alone doesn't serve without it. A node of a cluster has more to do: others need its NSDs, its vote and
//! its shards, and the owner of its file system may need this very node before it can answer. So there the mount is made
//! in the background, tried again until it is made ([`OwnMount::keep_making`]), and `shale status` and `shale health` say
//! meanwhile why it isn't.

use super::mounts::{Mounts, real_path};
use crate::directory::private;
use crate::options::Options;
use model::{Error, ErrorKind, Result};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use world::World;

/// Pause after the first attempt that failed; after each further one it is twice as long, up to a maximum.
const PAUSE_MIN: Duration = Duration::from_millis(500);
/// The longest pause between two attempts.
pub const PAUSE_MAX: Duration = Duration::from_secs(10);

/// What becomes of the node's own mount.
pub struct OwnMount {
    mounts: Arc<Mounts>,
    /// Held while it is made.
    making: tokio::sync::Mutex<()>,
    /// Why it isn't made yet, while it is being made in the background.
    missing: watch::Sender<Option<String>>,
    /// The daemon ends: nobody waits for the file system's owner any more.
    stops: watch::Sender<bool>,
}

impl OwnMount {
    /// One that nobody makes yet.
    pub fn new(mounts: Arc<Mounts>) -> Self {
        Self {
            mounts,
            making: tokio::sync::Mutex::default(),
            missing: watch::Sender::new(None),
            stops: watch::Sender::new(false),
        }
    }

    /// Why it isn't made yet, while it is tried; `None`: it was made, or nobody makes it.
    pub fn missing(&self) -> Option<String> {
        self.missing.borrow().clone()
    }

    /// An attempt that waits for the owner of the file system ends, and none begins.
    pub fn stop(&self) {
        self.stops.send_replace(true);
    }

    /// The daemon goes on after all.
    pub fn go_on(&self) {
        self.stops.send_replace(false);
    }

    async fn stopped(&self) -> Error {
        // The sender is here.
        let _ = self.stops.subscribe().wait_for(|stops| *stops).await;
        Error::new(ErrorKind::ShuttingDown, "the node is going down")
    }

    /// Makes it; nothing if it is there. Waits for the owner of the file system as long as a client does.
    ///
    /// # Errors
    /// What is wrong with the mount point and what to do; `Unavailable`: no owner answers; `ShuttingDown`.
    pub async fn make(&self, place: &Path, options: &Options) -> Result<()> {
        let _alone = tokio::select! {
            biased;
            error = self.stopped() => return Err(error),
            alone = self.making.lock() => alone,
        };
        if !self.mounts.has(place) {
            make_mount_point(place)?;
            // What follows ends soon; this may take as long as a client's patience, which the daemon's end doesn't wait for.
            let _in_use = tokio::select! {
                biased;
                error = self.stopped() => return Err(error),
                opened = self.mounts.open(options) => opened?,
            };
            self.mounts.add(place, options).await?;
        }
        self.missing.send_replace(None);
        Ok(())
    }

    /// Does `make`, which makes it, until it is made. `tried` is called after the first attempt.
    pub async fn keep_making<F: Future<Output = Result<()>>>(
        &self,
        world: &World,
        make: impl Fn() -> F,
        tried: impl FnOnce(),
    ) {
        self.missing.send_replace(Some("it is being made".into()));
        let (mut tried, mut pause) = (Some(tried), PAUSE_MIN);
        loop {
            let made = make().await;
            if let Err(error) = &made
                && error.kind() != ErrorKind::ShuttingDown
            {
                tracing::warn!(%error, "the node's own mount couldn't be made; it is tried again");
                self.missing.send_replace(Some(error.to_string()));
            }
            if let Some(tried) = tried.take() {
                tried();
            }
            if made.is_ok() {
                return;
            }
            world.sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}

/// Makes a missing mount point. Sends no request to an existing mount: its daemon may be dead or
/// stopped. So it fails while nobody knows whether one is there.
fn make_mount_point(path: &Path) -> Result<()> {
    let real = real_path(path);
    let mounted = fuse::mounted_shales()?;
    if mounted.iter().any(|m| m.mountpoint == real) {
        return Ok(());
    }
    // A dead mount doesn't answer, and a path that isn't a directory is refused by the mount.
    if std::fs::symlink_metadata(path).is_ok() {
        return Ok(());
    }
    private::make_mount_point(path).map_err(|e| {
        Error::new(ErrorKind::Unavailable, e.to_string())
            .while_doing(format!("making the mount point {}", path.display()))
    })
}
