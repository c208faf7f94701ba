//! The families whose records a shard holds. Its record in coordination names them, so that no other shard
//! has one of them; the first fileset of each is made by the owner.
//!
//! *A new family*: its number is claimed and written into the shard's record in one step; then a commit
//! makes its first fileset. If the owner ends in between, the next one makes the fileset before it
//! serves.

#[cfg(test)]
mod tests;

use crate::shard::{FETCH_ROUNDS_MAX, too_often_evicted};
use crate::state::Shard;
use model::{Error, ErrorKind, FamilyId, Result};
use namespace::Key;
use std::sync::Arc;

impl Shard {
    /// The families, in order of their numbers. There is at least one.
    #[must_use]
    pub fn families(&self) -> Arc<[FamilyId]> {
        self.families.lock().clone()
    }

    /// Adds a family with an empty fileset: a root directory of mode 0o755, owned by root. Durable when it
    /// returns. May be repeated after an error.
    ///
    /// # Errors
    /// `Exists` if a shard has the family, also if an attempt that failed had added it; `InvalidArgument` if there is no such number; `Unavailable` if the
    /// shard was given up or coordination doesn't answer.
    pub async fn add_family(&self, family: FamilyId) -> Result<()> {
        self.check_alive()?;
        if family.0 >= FamilyId::COUNT {
            let text = format!("families have numbers below {}", FamilyId::COUNT);
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let families = self.log.add_family(family).await?;
        // Before its records: whoever reads them reads all. Another call may have added more since.
        {
            let mut held = self.families.lock();
            if families.len() > held.len() {
                *held = families.into();
            }
        }
        if !self.make_first_fileset(family).await? {
            let text = format!("the shard has family {family} already");
            return Err(Error::new(ErrorKind::Exists, text));
        }
        self.sync().await
    }

    /// Makes the first filesets that an owner before couldn't make any more.
    pub(crate) async fn make_first_filesets(&self) -> Result<()> {
        let mut has_made = false;
        for family in self.families().iter() {
            has_made |= self.make_first_fileset(*family).await?;
        }
        match has_made {
            true => self.sync().await,
            false => Ok(()),
        }
    }

    /// Whom it is for, the creation of the file system has said, if there is one with this family. False if the family has
    /// it.
    async fn make_first_fileset(&self, family: FamilyId) -> Result<bool> {
        let fileset = family.first_fileset();
        let key = Key::Fileset(fileset);
        for _ in 0..FETCH_ROUNDS_MAX {
            if self.record(&key).await?.is_some() {
                return Ok(false);
            }
            let owner = self.log.root_owner_of(family).await?;
            let mut state = self.state.lock();
            state.alive()?;
            match state.records.get(&key) {
                Some(None) => {
                    let (now, mode) = (self.world.wall(), 0o755);
                    let effects = namespace::genesis(fileset, now, owner.uid, owner.gid, mode);
                    state.change(effects, None);
                    tracing::info!(shard = self.shard.0, %family, "empty file system made");
                    return Ok(true);
                }
                // Somebody else has asked for the same.
                Some(Some(_)) => return Ok(false),
                // It was evicted meanwhile: who else asked may have made it.
                None => {}
            }
        }
        Err(too_often_evicted())
    }
}
