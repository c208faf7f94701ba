//! Deletes all pieces of segments, on whichever NSDs they are.

use crate::Pool;
use crate::members::Member;
use crate::progress::count;
use crate::read::{fits_pool, get_from};
use crate::requests::{delete_on, put_to};
use crate::segment::place_of;
use futures::future::join_all;
use model::nsd::{BlobDelete, BlobInfo, BlobPut, GroupFence};
use model::{BlobName, Error, ErrorKind, GroupId, NsdId, Result, SegmentPlace, limits};
use placement::Groups;
use std::collections::{BTreeMap, BTreeSet};
use tracing::{debug, warn};

/// Blobs listed in one step of [`Pool::leave_group`].
const LIST_STEP: usize = 1000;

/// Most maps that one delete tries, should the map keep changing.
const ROUNDS_MAX: usize = 3;

impl Pool {
    /// Deletes all pieces of the segments. NSDs that are away keep theirs: these pieces are counted
    /// in [`crate::RepairProgress::undeleted`], and a sweep finds them later because their segments
    /// are dead. So it is with NSDs that know a newer map than this node: nobody waits for that.
    ///
    /// # Errors
    /// None yet; the result leaves room for NSDs on other nodes.
    pub async fn delete(&self, places: &[SegmentPlace]) -> Result<()> {
        for round in 1..=ROUNDS_MAX {
            let groups = self.groups();
            let (old, away) = self.delete_by(&groups, places).await;
            // Pieces may be elsewhere under a newer map.
            let again =
                round < ROUNDS_MAX && !old.is_empty() && self.map().epoch != groups.map().epoch;
            if !again {
                let left = away.iter().chain(&old);
                left.for_each(|left| self.note_undeleted(left));
                break;
            }
        }
        self.space.forget();
        Ok(())
    }

    /// As [`Pool::delete`]; if NSDs know a newer map than this node, that is waited for, some seconds at most each time.
    /// For what no sweep finds soon.
    pub(crate) async fn delete_by_newest(&self, places: &[SegmentPlace]) -> Result<()> {
        for _ in 1..ROUNDS_MAX {
            let groups = self.groups();
            let (old, away) = self.delete_by(&groups, places).await;
            if old.is_empty() {
                away.iter().for_each(|left| self.note_undeleted(left));
                self.space.forget();
                return Ok(());
            }
            self.wait_for_map_after(groups.map().epoch).await;
        }
        self.delete(places).await
    }

    /// Deletes by one map. What is left: because NSDs know a newer one, and because they are away.
    async fn delete_by(
        &self,
        groups: &Groups,
        places: &[SegmentPlace],
    ) -> (Vec<Undeleted>, Vec<Undeleted>) {
        let deletes = self.deletes_of(groups, places);
        let deleted = deletes
            .into_iter()
            .map(|(nsd, names)| self.delete_from(groups, nsd, names));
        let left = join_all(deleted).await.into_iter().flatten();
        left.partition(|undeleted| undeleted.error.kind() == ErrorKind::OldEpoch)
    }

    /// The names to delete from each NSD.
    fn deletes_of(
        &self,
        groups: &Groups,
        places: &[SegmentPlace],
    ) -> BTreeMap<NsdId, Vec<BlobName>> {
        let mut names: BTreeMap<NsdId, Vec<BlobName>> = BTreeMap::new();
        for place in places.iter().filter(|place| fits_pool(groups, place)) {
            self.suspects.forget(place.segment);
            for piece in 0..place.scheme.width() as u8 {
                let slot = groups.members(place.group)[usize::from(place.slot_of(piece))];
                for nsd in slot.in_reading_order() {
                    names.entry(nsd).or_default().push(place.blob(piece));
                }
            }
        }
        names
    }

    /// Deletes from one NSD; returns the parts that are left.
    async fn delete_from(
        &self,
        groups: &Groups,
        nsd: NsdId,
        names: Vec<BlobName>,
    ) -> Vec<Undeleted> {
        let member = self.member(nsd).filter(|member| member.is_readable());
        let mut left = Vec::new();
        for part in names.chunks(limits::DELETE_NAMES_MAX) {
            let result = match &member {
                None => Err(Error::new(ErrorKind::Unavailable, "the NSD is away")),
                Some(member) => delete_on(&self.world, member, fenced(groups, part)).await,
            };
            left.extend(result.err().map(|error| Undeleted {
                nsd,
                pieces: part.len(),
                error,
            }));
        }
        left
    }

    fn note_undeleted(&self, left: &Undeleted) {
        let Undeleted { nsd, pieces, error } = left;
        warn!(%nsd, pieces, %error, "pieces are left for a sweep");
        count(&self.progress.undeleted, *pieces as u64);
    }

    /// Deletes blobs on one NSD that a sweep found to be garbage.
    ///
    /// # Errors
    /// `Unavailable` if the NSD is away; `OldEpoch` if it knows a newer map; `Unknown` if it doesn't
    /// answer.
    pub async fn delete_blobs(&self, nsd: NsdId, names: &[BlobName]) -> Result<()> {
        self.delete_blobs_by(&self.groups(), nsd, names).await
    }

    /// As [`Pool::delete_blobs`], decided by the given map.
    async fn delete_blobs_by(&self, groups: &Groups, nsd: NsdId, names: &[BlobName]) -> Result<()> {
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
            delete_on(&self.world, &member, fenced(groups, part)).await?;
        }
        self.space.forget();
        Ok(())
    }

    /// Deletes all blobs of a group from an NSD that is no longer a member of it, after its slot
    /// has moved away. Returns how many. Pieces that a write put only there while the slot was
    /// moving are first copied to the slot's new NSD.
    ///
    /// # Errors
    /// `InvalidArgument` if it is still a member; `Unavailable` if it or the slot's new NSD is
    /// away.
    pub async fn leave_group(&self, nsd: NsdId, group: GroupId) -> Result<u64> {
        let mut deleted = 0;
        loop {
            // Should the slot come back meanwhile, its new version refuses the delete.
            let groups = self.groups();
            if groups.is_member(nsd, group) {
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
            let found = member
                .nsd
                .list(group, None, LIST_STEP, self.list_deadline())
                .await?;
            if found.is_empty() {
                return Ok(deleted);
            }
            for blob in &found {
                self.hand_over(&member, blob).await?;
            }
            let names: Vec<BlobName> = found.iter().map(|info| info.name).collect();
            self.delete_blobs_by(&groups, nsd, &names).await?;
            deleted += names.len() as u64;
        }
    }

    /// After slots were switched: tells NSDs what [`Pool::use_map`] has given, and lets those that slots have left, each named
    /// with the slot's group, delete what they hold of that as in [`Pool::leave_group`]. Each NSD for itself: one that
    /// doesn't answer holds up none of the others.
    pub async fn leave_slots(
        &self,
        fences: &BTreeMap<NsdId, Vec<GroupFence>>,
        left: &[(NsdId, GroupId)],
    ) {
        let mut groups: BTreeMap<NsdId, Vec<GroupId>> = BTreeMap::new();
        for (nsd, group) in left.iter().filter(|(nsd, _)| *nsd != NsdId::NONE) {
            groups.entry(*nsd).or_default().push(*group);
        }
        let nsds: BTreeSet<NsdId> = fences.keys().chain(groups.keys()).copied().collect();
        let each = nsds.into_iter().map(|nsd| {
            let fences = fences.get(&nsd).map(Vec::as_slice).unwrap_or_default();
            let groups = groups.get(&nsd).map(Vec::as_slice).unwrap_or_default();
            self.leave_all(nsd, fences, groups)
        });
        join_all(each).await;
    }

    /// Tells an NSD versions of groups, and has it delete what it holds of those that it has left. It is asked until it fails to
    /// answer.
    async fn leave_all(&self, nsd: NsdId, fences: &[GroupFence], left: &[GroupId]) {
        if !fences.is_empty()
            && let Err(error) = self.fence(nsd, fences).await
        {
            warn!(%nsd, %error, "an NSD doesn't know the new group versions yet; writers will tell it");
            return;
        }
        for group in left {
            if self.handle(nsd).is_none() {
                return;
            }
            if let Err(error) = self.leave_group(nsd, *group).await {
                debug!(%nsd, %group, %error, "moved pieces stay until the NSD is gone");
                if error.kind() == ErrorKind::Unknown {
                    return;
                }
            }
        }
    }

    /// Makes sure that the NSD which now holds a blob's slot has the blob.
    async fn hand_over(&self, from: &Member, blob: &BlobInfo) -> Result<()> {
        let place = place_of(blob.name, &blob.header);
        let groups = self.groups();
        if !fits_pool(&groups, &place) || usize::from(blob.name.piece) >= place.scheme.width() {
            return Ok(());
        }
        let slot = usize::from(place.slot_of(blob.name.piece));
        let holder = groups.members(place.group)[slot].target();
        let to = self.member(holder).filter(|member| member.is_readable());
        let to = to.ok_or_else(|| {
            let text = format!(
                "NSD {holder}, which now has the slot of {}, is away",
                blob.name
            );
            Error::new(ErrorKind::Unavailable, text)
        })?;
        match to.nsd.info(blob.name, self.list_deadline()).await {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let payload = match get_from(&self.world, from, blob.name, &(0..blob.length)).await {
            Ok(bytes) => bytes.into(),
            // A damaged piece is no loss: repair rebuilds it from the others.
            Err(error) if error.kind() == ErrorKind::Corrupt => return Ok(()),
            Err(error) => return Err(error),
        };
        let put = BlobPut {
            name: blob.name,
            nonce: blob.nonce,
            header: blob.header,
            payload,
            fence: self.map().version(place.group),
        };
        let put = put_to(&self.world, &to, put).await;
        put.map_err(|(nsd, error)| error.while_doing(format!("copy {} to NSD {nsd}", blob.name)))
    }
}

/// Pieces that a delete couldn't reach.
struct Undeleted {
    nsd: NsdId,
    pieces: usize,
    error: Error,
}

/// A delete that carries the versions of the map by which it was decided.
pub(crate) fn fenced(groups: &Groups, names: &[BlobName]) -> BlobDelete {
    let named: BTreeSet<GroupId> = names.iter().map(|name| name.group).collect();
    let fences = named.into_iter().map(|group| GroupFence {
        group,
        version: groups.map().version(group),
    });
    BlobDelete {
        names: names.to_vec(),
        fences: fences.collect(),
    }
}
