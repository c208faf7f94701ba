//! Blobs on NSDs that left the blobs' group: a crash, or an NSD that was away, came between the
//! move of a slot and the deletion of what it left.

use crate::background::survey::{Nsds, Pass};
use crate::metanode::Metanode;
use model::{ErrorKind, GroupId, NsdId, Result};
use pool::MemberState;
use std::collections::BTreeSet;

impl Metanode {
    /// Deletes what members left behind in groups that they aren't members of, after a whole
    /// pass that found nothing missing: until then it may be the last copy. Nor while an NSD is
    /// away that may come back without what was moved to it. Answers how many.
    pub(super) async fn delete_strangers(&self, pass: &Pass) -> Result<u64> {
        // A pass doesn't call missing what they have.
        if !self.nsds_away().is_empty() {
            return Ok(0);
        }
        let mut deleted = 0;
        let mut is_rid = true;
        // One that hangs would keep the round waiting for every group.
        let mut silent = BTreeSet::new();
        for (nsd, group) in self.strangers().await? {
            if silent.contains(&nsd) {
                continue;
            }
            match self.pool.leave_group(nsd, group).await {
                Ok(blobs) => deleted += blobs,
                Err(error) => {
                    is_rid = false;
                    if error.kind() == ErrorKind::Unknown {
                        silent.insert(nsd);
                    }
                    tracing::debug!(%nsd, %group, %error, "what it left stays until the next pass");
                }
            }
        }
        let mut memory = self.background.memory.lock();
        memory.survey.rid_of_strangers = is_rid.then(|| pass.nsds.clone());
        Ok(deleted)
    }

    /// NSDs that serve, with the groups that they hold blobs of and aren't members of.
    pub(crate) async fn strangers(&self) -> Result<Vec<(NsdId, GroupId)>> {
        let mut found = Vec::new();
        for state in self.pool.nsd_states() {
            let nsd = state.entry.nsd;
            if matches!(state.member, MemberState::Failed | MemberState::Missing) {
                continue;
            }
            let left = self.groups_left_by(nsd).await?;
            found.extend(left.into_iter().map(|group| (nsd, group)));
        }
        Ok(found)
    }

    /// The groups that an NSD holds blobs of and isn't a member of; none if it doesn't serve.
    async fn groups_left_by(&self, nsd: NsdId) -> Result<Vec<GroupId>> {
        let groups = self.pool.groups();
        let mut found = Vec::new();
        for group in (0..groups.count()).map(GroupId) {
            if groups.is_member(nsd, group) {
                continue;
            }
            match self.pool.list(nsd, group, None, 1).await {
                Ok(blobs) if !blobs.is_empty() => found.push(group),
                Err(error) if error.kind() != ErrorKind::Unavailable => return Err(error),
                _ => {}
            }
        }
        Ok(found)
    }

    /// Hands over what an NSD that has no slots any more still holds, and what nobody else may have.
    ///
    /// # Errors
    /// Whoever should have it is away or full.
    pub(super) async fn hand_over_all(&self, nsd: NsdId) -> Result<()> {
        for group in self.groups_left_by(nsd).await? {
            self.pool.leave_group(nsd, group).await?;
        }
        Ok(())
    }

    /// The NSDs and the map over which no stranger should be left, if they are still the same:
    /// while slots move, what they leave is just being deleted.
    pub(crate) fn rid_of_strangers(&self) -> Option<Nsds> {
        let known = self
            .background
            .memory
            .lock()
            .survey
            .rid_of_strangers
            .clone();
        known.filter(|nsds| *nsds == self.nsds_now())
    }
}
