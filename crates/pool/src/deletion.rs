//! Deletes all pieces of segments, wherever they are.

use crate::Pool;
use crate::progress::count;
use crate::read::is_possible;
use futures::future::join_all;
use model::{BlobName, Error, ErrorKind, GroupId, NsdId, Result, SegmentPlace, limits};
use std::collections::BTreeMap;
use std::time::Duration;
use tracing::warn;

/// After this an NSD that has not answered a delete counts as away.
const DELETE_DEADLINE: Duration = Duration::from_secs(30);
/// Blobs that one listing step of [`Pool::leave_group`] takes.
const LIST_STEP: usize = 1000;

impl Pool {
    /// Deletes all pieces of the segments. NSDs that are away keep theirs: they are counted in
    /// [`crate::RepairProgress::undeleted`], and a sweep finds them by their dead names.
    ///
    /// # Errors
    /// None today; the result leaves room for NSDs behind a network.
    pub async fn delete(&self, places: &[SegmentPlace]) -> Result<()> {
        let groups = self.groups();
        let mut names: BTreeMap<NsdId, Vec<BlobName>> = BTreeMap::new();
        for place in places.iter().filter(|place| is_possible(&groups, place)) {
            self.suspects.forget(place.segment);
            for piece in 0..place.scheme.width() as u8 {
                let slot = groups.members(place.group)[usize::from(place.slot_of(piece))];
                for nsd in slot.in_reading_order() {
                    names.entry(nsd).or_default().push(place.blob(piece));
                }
            }
        }
        join_all(
            names
                .iter()
                .map(|(nsd, names)| self.delete_from(*nsd, names)),
        )
        .await;
        self.space.forget();
        Ok(())
    }

    async fn delete_from(&self, nsd: NsdId, names: &[BlobName]) {
        let member = self.member(nsd).filter(|member| member.is_readable());
        for part in names.chunks(limits::DELETE_NAMES_MAX) {
            let result = match &member {
                None => Err(Error::new(ErrorKind::Unavailable, "it is away")),
                Some(member) => match self
                    .world
                    .timeout(DELETE_DEADLINE, member.nsd.delete(part))
                    .await
                {
                    Ok(result) => result,
                    Err(_) => Err(Error::new(ErrorKind::Unknown, "no answer in time")),
                },
            };
            if let Err(error) = result {
                warn!(%nsd, pieces = part.len(), %error, "pieces are left to the sweep");
                count(&self.progress.undeleted, part.len() as u64);
            }
        }
    }

    /// Deletes named blobs on one NSD: what a sweep found to be garbage.
    ///
    /// # Errors
    /// Unavailable if the NSD is away.
    pub async fn delete_blobs(&self, nsd: NsdId, names: &[BlobName]) -> Result<()> {
        let away = || {
            Error::new(
                ErrorKind::Unavailable,
                format!("delete blobs: NSD {nsd} is away"),
            )
        };
        let member = self
            .member(nsd)
            .filter(|member| member.is_readable())
            .ok_or_else(away)?;
        for part in names.chunks(limits::DELETE_NAMES_MAX) {
            member.nsd.delete(part).await?;
        }
        self.space.forget();
        Ok(())
    }

    /// Deletes all blobs of a group from an NSD that is no member of it any more, after its
    /// slot has moved away. Returns how many.
    ///
    /// # Errors
    /// InvalidArgument if it still is a member; Unavailable if it is away.
    pub async fn leave_group(&self, nsd: NsdId, group: GroupId) -> Result<u64> {
        let mut deleted = 0;
        loop {
            if self.groups().is_member(nsd, group) {
                let text = format!("leave group {group}: NSD {nsd} is still a member of it");
                return Err(Error::new(ErrorKind::InvalidArgument, text));
            }
            let away = || {
                Error::new(
                    ErrorKind::Unavailable,
                    format!("leave group {group}: NSD {nsd} is away"),
                )
            };
            let member = self
                .member(nsd)
                .filter(|member| member.is_readable())
                .ok_or_else(away)?;
            let found = member.nsd.list(group, None, LIST_STEP).await?;
            if found.is_empty() {
                return Ok(deleted);
            }
            let names: Vec<BlobName> = found.iter().map(|info| info.name).collect();
            self.delete_blobs(nsd, &names).await?;
            deleted += names.len() as u64;
        }
    }
}
