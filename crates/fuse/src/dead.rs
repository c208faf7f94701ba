//! What is left of a mount that has ended, or refuses, and that nobody has unmounted.

use crate::copies::Identity;
use crate::mounting;
use crate::replacing;
use crate::table::{self, TableLine};
use model::Result;
use std::path::PathBuf;
use tokio::sync::watch;
use world::World;

/// A mount that has ended, or is about to, and that may be left in the tree of files: whoever comes there gets ENOTCONN, or EIO
/// from one that refuses ([`Mount::leave_refusing`](crate::Mount::leave_refusing)).
/// It keeps nothing of its file system, and dropping it changes nothing.
#[derive(Clone)]
pub struct DeadMount {
    pub(crate) mountpoint: PathBuf,
    pub(crate) identity: Identity,
    /// The kernel's ids of dead mounts below it, which come to light when it is taken away.
    pub(crate) covers: Vec<u64>,
    pub(crate) ended: watch::Receiver<bool>,
    pub(crate) world: World,
}

impl DeadMount {
    /// The kernel's id of it.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.identity.id
    }

    /// Where it is now, even if it was moved (`mount --move`).
    #[must_use]
    pub fn place(&self) -> PathBuf {
        // While that can't be seen, where it was: only who finds it there does anything to it.
        let line = self.identity.line().ok().flatten();
        line.map_or_else(|| self.mountpoint.clone(), |line| line.mountpoint)
    }

    /// Whether it is still in the tree of files. Not while the mount table can't be read: who asks waits then until what was
    /// written through it is stored, as for one that has gone.
    #[must_use]
    pub fn is_left(&self) -> bool {
        self.line().is_ok_and(|line| line.is_some())
    }

    /// Whether it is still in the tree of files, with nothing mounted over it. While the mount table can't be read it
    /// counts as there: one that is given up because of that stays dead.
    #[must_use]
    pub fn is_on_top(&self) -> bool {
        *self.ended.borrow() && !self.identity.is_covered_in(&table::read())
    }

    /// Waits until it has ended or refuses, and no request runs any more.
    pub async fn ended(&self) {
        // An error means that the threads are gone too.
        let _ = self.ended.clone().wait_for(|ended| *ended).await;
    }

    /// Takes it out of the tree of files, if it is there.
    ///
    /// # Errors
    /// `NotPermitted`; `Changed` if another mount covers it; `Unavailable`: nobody knows whether it is there.
    pub async fn detach(&self) -> Result<()> {
        let Some(line) = self.line()? else {
            return Ok(());
        };
        let detach = move || mounting::detach(&line.into());
        self.world.blocking(detach).await?;
        replacing::uncover_soon(&self.world, &self.mountpoint, &self.covers).await;
        Ok(())
    }

    /// Its line of the mount table, once it has ended.
    fn line(&self) -> Result<Option<TableLine>> {
        let has_ended = *self.ended.borrow();
        match has_ended {
            true => self.identity.line(),
            false => Ok(None),
        }
    }
}
