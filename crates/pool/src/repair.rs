//! Determines the state of a segment's pieces, and rebuilds missing ones.

use crate::Pool;
use crate::deletion::fenced;
use crate::members::{Member, is_nsd_failure};
use crate::progress::count;
use crate::read::{fits_pool, get_from};
use crate::requests::{delete_on, put_to};
use crate::segment::{Recycled, SegmentOwner, nonce};
use bytes::Bytes;
use model::map::NsdState;
use model::nsd::{BlobHeader, BlobPut};
use model::{Error, ErrorKind, NsdId, Payload, Result, SegmentPlace};
use placement::{Groups, SlotMembers, codec, layout};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tracing::{info, warn};
use world::Point;

/// How thoroughly pieces are examined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Depth {
    /// Only whether the NSDs' indexes list them.
    Index,
    /// Reads all bytes, and checks the whole segment against its CRC.
    Bytes,
}

/// State of a piece.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PieceCondition {
    /// Present.
    Good,
    /// Provably absent.
    Absent,
    /// Present, but damaged.
    Damaged,
    /// Its NSD is away or lost, or its slot has no NSD.
    Unreachable,
}

/// One piece on one NSD. A piece of a moving slot has two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PieceState {
    /// The piece.
    pub piece: u8,
    /// Its slot in the group.
    pub slot: u8,
    /// The NSD; [`NsdId::NONE`] if the slot has none.
    pub nsd: NsdId,
    /// Its state there.
    pub condition: PieceCondition,
    /// Whether the NSD should hold it; false when the slot is moving away from a lost or draining
    /// NSD, or from another one that lacks it when the next one has it.
    pub is_wanted: bool,
}

/// Result of a repair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RepairOutcome {
    /// Pieces written.
    pub rebuilt: u32,
    /// Damaged pieces among them.
    pub mended: u32,
    /// Bytes written.
    pub bytes: u64,
    /// Pieces that no reachable NSD holds now (bit i = piece i), for the extent's record.
    pub missing: u32,
}

impl RepairOutcome {
    /// Whether every piece is where it belongs.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.missing == 0
    }
}

impl Pool {
    /// The state of every piece of a segment, in the order of the pieces.
    ///
    /// # Errors
    /// `InvalidArgument` for a place that can't exist in this pool.
    pub async fn verify(&self, place: &SegmentPlace, depth: Depth) -> Result<Vec<PieceState>> {
        let groups = self.groups();
        if !fits_pool(&groups, place) {
            let text = format!(
                "verify segment {}: the pool has no such place in group {}",
                place.segment, place.group
            );
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let mut out: Vec<PieceState> = Vec::new();
        let mut found: Vec<(usize, Bytes)> = Vec::new();
        for (piece, slot, nsd, is_wanted) in holders(&groups, place) {
            let (condition, bytes) = self.examine(place, piece, nsd, depth).await;
            if let Some(bytes) = bytes {
                found.push((out.len(), bytes));
            }
            // The next NSD of a slot is before the one that the slot leaves, which then needs no copy.
            let has_next = out
                .last()
                .is_some_and(|it| it.piece == piece && it.condition == PieceCondition::Good);
            let is_wanted = is_wanted && !(has_next && condition == PieceCondition::Absent);
            out.push(PieceState {
                piece,
                slot,
                nsd,
                condition,
                is_wanted,
            });
        }
        if depth == Depth::Bytes {
            check_together(place, &mut out, &found);
        }
        Ok(out)
    }

    /// Whether no reachable NSD's index lists a piece of the segment, so that inventories don't
    /// show it.
    pub async fn is_unlisted(&self, place: &SegmentPlace) -> bool {
        match self.verify(place, Depth::Index).await {
            Ok(states) => states
                .iter()
                .all(|state| state.condition != PieceCondition::Good),
            Err(_) => true,
        }
    }

    async fn examine(
        &self,
        place: &SegmentPlace,
        piece: u8,
        nsd: NsdId,
        depth: Depth,
    ) -> (PieceCondition, Option<Bytes>) {
        let Some(member) = self.member(nsd).filter(|member| member.is_readable()) else {
            return (PieceCondition::Unreachable, None);
        };
        let name = place.blob(piece);
        let length = layout::piece_length(place.scheme, place.length);
        let fits = |header: &BlobHeader| {
            (
                header.scheme,
                header.skipped_slots,
                header.segment_bytes,
                header.segment_crc,
            ) == (place.scheme, place.skipped_slots, place.length, place.crc)
        };
        let error = match member.nsd.info(name, self.list_deadline()).await {
            Ok(info) if info.length != length || !fits(&info.header) => {
                return (PieceCondition::Damaged, None);
            }
            Ok(_) if depth == Depth::Index => return (PieceCondition::Good, None),
            Ok(_) => match get_from(&self.world, &member, name, &(0..length)).await {
                Ok(bytes) => return (PieceCondition::Good, Some(bytes)),
                Err(error) => error,
            },
            Err(error) => error,
        };
        let condition = match error.kind() {
            ErrorKind::NotFound => PieceCondition::Absent,
            ErrorKind::Corrupt => PieceCondition::Damaged,
            _ => PieceCondition::Unreachable,
        };
        (condition, None)
    }

    /// Puts every piece of a live segment where it belongs, as far as the NSDs can be reached:
    /// rebuilds absent pieces, replaces damaged ones, copies moving ones. Only for segments that
    /// their shard calls live. Can be repeated safely.
    ///
    /// # Errors
    /// Those of [`Pool::read`] if too few pieces are left; `Unavailable` if an NSD failed a put.
    pub async fn repair_segment(
        &self,
        place: &SegmentPlace,
        depth: Depth,
    ) -> Result<RepairOutcome> {
        count(&self.progress.examined, 1);
        let result = self.repair(place, depth).await;
        if let Err(error) = &result {
            count(&self.progress.failed, 1);
            warn!(segment = %place.segment, %error, "repair of a segment failed");
        }
        result.map_err(|error| error.while_doing(format!("repair segment {}", place.segment)))
    }

    async fn repair(&self, place: &SegmentPlace, depth: Depth) -> Result<RepairOutcome> {
        // A delete of a damaged piece must not meet one that was put after the slot moved.
        let groups = self.groups();
        let states = self.verify(place, depth).await?;
        let mut outcome = RepairOutcome::default();
        let needs = |state: &&PieceState| {
            state.is_wanted
                && matches!(
                    state.condition,
                    PieceCondition::Absent | PieceCondition::Damaged
                )
        };
        let mut good: BTreeSet<u8> = pieces_with(&states, PieceCondition::Good);
        if states.iter().any(|state| needs(&state)) {
            let header = self.header_of(place, &states).await?;
            let mut pieces: Option<Vec<Payload>> = None;
            for state in states.iter().filter(needs) {
                let piece = match self.moving_copy(place, state, &states).await {
                    Some(bytes) => bytes.into(),
                    None => {
                        if pieces.is_none() {
                            pieces = Some(self.all_pieces(place, &states).await?);
                        }
                        pieces.as_ref().expect("just computed")[usize::from(state.piece)].clone()
                    }
                };
                let length = piece.len() as u64;
                self.world.at(Point::PieceRebuilt).await;
                self.replace(&groups, place, state, header, piece).await?;
                good.insert(state.piece);
                outcome.rebuilt += 1;
                outcome.mended += u32::from(state.condition == PieceCondition::Damaged);
                outcome.bytes += length;
                count(&self.progress.rebuilt_pieces, 1);
                count(&self.progress.rebuilt_bytes, length);
                count(
                    &self.progress.mended_pieces,
                    u64::from(state.condition == PieceCondition::Damaged),
                );
            }
            info!(segment = %place.segment, group = %place.group, pieces = outcome.rebuilt, "segment repaired");
        }
        let all = 0..place.scheme.width() as u8;
        outcome.missing = all
            .filter(|piece| !good.contains(piece))
            .fold(0, |bits, piece| bits | 1 << piece);
        self.space.forget();
        Ok(outcome)
    }

    /// A good piece on the other NSD of its moving slot.
    async fn moving_copy(
        &self,
        place: &SegmentPlace,
        wanted: &PieceState,
        states: &[PieceState],
    ) -> Option<Bytes> {
        let is_twin = |state: &&PieceState| {
            state.piece == wanted.piece && state.condition == PieceCondition::Good
        };
        let twin = states.iter().find(is_twin)?;
        let member = self.member(twin.nsd)?;
        let length = layout::piece_length(place.scheme, place.length);
        get_from(&self.world, &member, place.blob(wanted.piece), &(0..length))
            .await
            .ok()
    }

    /// All pieces, computed from the plain data after checking its CRC.
    async fn all_pieces(
        &self,
        place: &SegmentPlace,
        states: &[PieceState],
    ) -> Result<Vec<Payload>> {
        // Pieces known to be absent or damaged needn't be requested again.
        let good = pieces_with(states, PieceCondition::Good);
        let bad = (0..place.scheme.width() as u8).filter(|piece| !good.contains(piece));
        let missing = bad.fold(0, |bits, piece| bits | 1 << piece);
        let plain = self.read_whole(&SegmentPlace { missing, ..*place }).await?;
        Ok(codec::sum_and_encode_in::<Recycled>(place.scheme, plain).1)
    }

    async fn header_of(&self, place: &SegmentPlace, states: &[PieceState]) -> Result<BlobHeader> {
        for state in states
            .iter()
            .filter(|state| state.condition == PieceCondition::Good)
        {
            if let Some(member) = self.member(state.nsd)
                && let Ok(info) = member
                    .nsd
                    .info(place.blob(state.piece), self.list_deadline())
                    .await
            {
                return Ok(SegmentOwner::of_header(&info.header).header(place));
            }
        }
        let list: Vec<String> = states
            .iter()
            .map(|state| format!("piece {} {:?}", state.piece, state.condition))
            .collect();
        let is_away = |state: &PieceState| state.condition == PieceCondition::Unreachable;
        let kind = if states.iter().any(is_away) {
            ErrorKind::Unavailable
        } else {
            ErrorKind::Corrupt
        };
        Err(Error::new(
            kind,
            format!("no piece is good: {}", list.join(", ").to_lowercase()),
        ))
    }

    /// Puts a piece where it belongs. Deletes a damaged piece first, because a put never
    /// overwrites. A crash between the two leaves the piece absent, which the next survey finds.
    async fn replace(
        &self,
        groups: &Groups,
        place: &SegmentPlace,
        state: &PieceState,
        header: BlobHeader,
        payload: Payload,
    ) -> Result<()> {
        let name = place.blob(state.piece);
        let away = || {
            Error::new(
                ErrorKind::Unavailable,
                format!("NSD {} went away", state.nsd),
            )
        };
        let member: Arc<Member> = self.member(state.nsd).ok_or_else(away)?;
        if state.condition == PieceCondition::Damaged {
            delete_on(&self.world, &member, fenced(groups, &[name])).await?;
        }
        let fence = groups.map().version(place.group);
        let put = BlobPut {
            name,
            nonce: nonce(name, place),
            header,
            payload,
            fence,
        };
        put_to(&self.world, &member, put)
            .await
            .map_err(|(nsd, error)| {
                if is_nsd_failure(&error) {
                    member.avoid(self.world.now());
                }
                error.while_doing(format!("put piece {} to NSD {nsd}", state.piece))
            })
    }

    /// Whether a segment is narrower than it would be if written today: rewriting it regains space
    /// or redundancy.
    #[must_use]
    pub fn is_narrow(&self, place: &SegmentPlace) -> bool {
        // Segments of closed generations are rewritten anyway.
        let groups = self.groups();
        let is_closed = groups.map().is_closed(place.group);
        let whole = groups.whole_scheme(place.length).filter(|_| !is_closed);
        whole.is_some_and(|whole| {
            let rank = |scheme: model::Scheme| (scheme.tolerance(), scheme.data_pieces());
            rank(place.scheme) < rank(whole)
        })
    }
}

fn pieces_with(states: &[PieceState], condition: PieceCondition) -> BTreeSet<u8> {
    states
        .iter()
        .filter(|state| state.condition == condition)
        .map(|state| state.piece)
        .collect()
}

/// For each piece: its slot, an NSD, and whether that NSD should hold it. Of a moving slot the next NSD comes first.
pub(crate) fn holders(groups: &Groups, place: &SegmentPlace) -> Vec<(u8, u8, NsdId, bool)> {
    let mut out = Vec::new();
    for piece in 0..place.scheme.width() as u8 {
        let slot = place.slot_of(piece);
        let Some(members) = groups.members(place.group).get(usize::from(slot)) else {
            continue;
        };
        out.push((
            piece,
            slot,
            members.target(),
            is_wanted(groups, *members, members.target()),
        ));
        if members.next.is_some() && members.current != NsdId::NONE {
            out.push((
                piece,
                slot,
                members.current,
                is_wanted(groups, *members, members.current),
            ));
        }
    }
    out
}

fn is_wanted(groups: &Groups, slot: SlotMembers, nsd: NsdId) -> bool {
    match groups.map().nsd(nsd).map(|entry| entry.state) {
        Some(NsdState::Active) => true,
        // Its slot has no other NSD to move to yet, so this NSD is still responsible for it.
        Some(NsdState::Draining) => slot.target() == nsd,
        Some(NsdState::Lost) | None => false,
    }
}

/// Checks what checksums of single pieces can't show: that the data pieces form the segment, and
/// that the other pieces are what encoding it gives.
fn check_together(place: &SegmentPlace, states: &mut [PieceState], found: &[(usize, Bytes)]) {
    let mut pieces: BTreeMap<u8, Bytes> = BTreeMap::new();
    for (index, bytes) in found {
        pieces
            .entry(states[*index].piece)
            .or_insert_with(|| bytes.clone());
    }
    let Some(plain) = plain_of(place, &pieces) else {
        return;
    };
    for (piece, whole) in codec::encode_in::<Recycled>(place.scheme, &plain)
        .iter()
        .enumerate()
    {
        for (index, found) in found {
            if usize::from(states[*index].piece) == piece && found != whole.bytes() {
                states[*index].condition = PieceCondition::Damaged;
            }
        }
    }
}

/// The segment, if it can be proven from these pieces: all of them, or all but one that is wrong.
fn plain_of(place: &SegmentPlace, pieces: &BTreeMap<u8, Bytes>) -> Option<Payload> {
    let one = pieces.keys().map(|piece| Some(*piece));
    let mut left_out = std::iter::once(None).chain(one);
    left_out.find_map(|wrong| {
        let good = pieces.iter().filter(|(piece, _)| Some(**piece) != wrong);
        let good: Vec<(u8, Bytes)> = good.map(|(piece, bytes)| (*piece, bytes.clone())).collect();
        let data_pieces = 0..place.scheme.data_pieces() as u8;
        let is_good = |piece: &u8| good.iter().any(|(it, _)| it == piece);
        let lacking: Vec<u8> = data_pieces.clone().filter(|it| !is_good(it)).collect();
        let mut data: BTreeMap<u8, Bytes> = good
            .iter()
            .filter(|(piece, _)| data_pieces.contains(piece))
            .cloned()
            .collect();
        if !lacking.is_empty() {
            let computed = codec::reconstruct_in::<Recycled>(place.scheme, &good, &lacking);
            data.extend(lacking.into_iter().zip(computed.ok()?));
        }
        let data: Vec<Bytes> = data.into_values().collect();
        let plain = Payload::from(codec::join(place.scheme, place.length, &data));
        (plain.crc() == place.crc).then_some(plain)
    })
}
