//! Deletes blobs from NSDs that left the blobs' group: left over if a crash, or an absent NSD, came
//! between moving a slot and deleting its previous pieces.

use crate::background::slots::nsds_away;
use crate::background::survey::{Nsds, Pass, Survey};
use model::{ErrorKind, GroupId, NsdId, Result};
use pool::MemberState;
use std::collections::BTreeSet;

impl Survey {
    /// Deletes blobs of groups from NSDs that aren't members of them, after a full pass that found
    /// nothing missing: until then each may be the last copy. Not while an NSD is away, which may
    /// come back without the pieces moved to it. Returns how many were deleted.
    pub(super) async fn delete_strangers(&self, pass: &Pass) -> Result<u64> {
        // A pass doesn't count as missing the pieces on absent NSDs.
        if !nsds_away(self.host.pool()).is_empty() {
            return Ok(0);
        }
        let mut deleted = 0;
        let mut is_rid = true;
        // A hanging NSD would block the round for every group.
        let mut silent = BTreeSet::new();
        for (nsd, group) in self.strangers().await? {
            if silent.contains(&nsd) {
                continue;
            }
            match self.host.pool().leave_group(nsd, group).await {
                Ok(blobs) => deleted += blobs,
                Err(error) => {
                    is_rid = false;
                    if error.kind() == ErrorKind::Unknown {
                        silent.insert(nsd);
                    }
                    tracing::debug!(%nsd, %group, %error, "blobs of a group that the NSD left stay until the next pass");
                }
            }
        }
        self.progress.lock().rid_of_strangers = is_rid.then(|| pass.nsds.clone());
        Ok(deleted)
    }

    /// Serving NSDs, with the groups whose blobs they hold without being members.
    pub(in crate::background) async fn strangers(&self) -> Result<Vec<(NsdId, GroupId)>> {
        let mut found = Vec::new();
        for state in self.host.pool().nsd_states() {
            let nsd = state.entry.nsd;
            if matches!(state.member, MemberState::Failed | MemberState::Missing) {
                continue;
            }
            let left = self.slots.groups_left_by(nsd).await?;
            found.extend(left.into_iter().map(|group| (nsd, group)));
        }
        Ok(found)
    }

    /// The NSDs and the map over which no strangers should be left, if still unchanged: while slots
    /// move, their previous pieces are being deleted.
    pub(in crate::background) fn rid_of_strangers(&self) -> Option<Nsds> {
        let known = self.progress.lock().rid_of_strangers.clone();
        known.filter(|nsds| *nsds == Nsds::now(self.host.pool()))
    }
}
