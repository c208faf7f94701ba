//! Writes segments: picks a group, cuts pieces, puts them in parallel; on failure tries another
//! group.

use crate::Pool;
use crate::members::{Member, MemberState, free_share, is_nsd_failure};
use crate::requests::put_to;
use crate::segment::{Recycled, SegmentOwner, SegmentSource, nonce};
use crate::suspects::SuspectCause;
use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt, join_all};
use futures::stream::{FuturesUnordered, StreamExt};
use model::map::NsdState;
use model::nsd::BlobPut;
use model::{
    BlobName, Error, ErrorKind, GroupVersion, NsdId, Payload, Result, SegmentPlace, limits,
};
use placement::{Availability, Groups, Placement, codec, layout};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use tracing::{debug, warn};
use world::Planted;
use world::Point;
use world::World;

/// Most groups that one write tries.
const ATTEMPTS_MAX: u32 = 4;
/// How long a write waits for its turn while too many bytes are in flight.
const TURN_DEADLINE: Duration = Duration::from_secs(120);
/// Bounds of the time that a write waits for stragglers.
const STRAGGLER_WAIT_MIN: Duration = Duration::from_millis(250);
const STRAGGLER_WAIT_MAX: Duration = Duration::from_secs(2);
/// A straggler still under way this much later makes its NSD suspect. A brief spike in load must
/// not: it would make the next segments narrower.
const SUSPECT_AFTER: Duration = Duration::from_secs(2);

/// Parts of this size aren't cut any further: with its header such a part fits into the eight runs
/// of an extent even if each is a single unit.
const PART_BYTES_MIN: usize = 16 * 1024;

/// Semaphore permits for `bytes`: one for each 4 KiB.
pub(crate) fn permits(bytes: u64) -> usize {
    usize::try_from(bytes.div_ceil(u64::from(limits::UNIT_BYTES)))
        .expect("bytes in flight fit into memory")
}

/// A put of one piece to all NSDs of its slot.
type PiecePut = BoxFuture<'static, PieceDone>;

struct PieceDone {
    piece: u8,
    failures: Vec<(NsdId, Error)>,
}

/// How a write treats an NSD without room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WhenFull {
    /// The write is refused rather than made with less redundancy, because nothing has failed.
    Refuse,
    /// The write continues without the NSD, as if it were away.
    WriteWithout,
}

/// NSDs that a write doesn't ask again.
#[derive(Default)]
struct Excluded {
    failed: BTreeSet<NsdId>,
    full: BTreeSet<NsdId>,
}

impl Excluded {
    fn contains(&self, nsd: NsdId) -> bool {
        self.failed.contains(&nsd) || self.full.contains(&nsd)
    }
}

/// An attempt that failed.
struct Failure {
    nsds: Excluded,
    error: Error,
}

/// The pieces of one attempt and their destinations.
struct Attempt {
    place: SegmentPlace,
    version: GroupVersion,
    owner: SegmentOwner,
    /// For each piece, the NSDs that get it.
    targets: Vec<Vec<Arc<Member>>>,
    is_last: bool,
}

impl Pool {
    /// Writes a new segment of 1 byte to 16 MiB. When it returns, all pieces are durable, or all
    /// but those named in `missing`; these are always few enough for one more loss to be survived.
    /// Page-aligned `plain` is written without copies.
    ///
    /// # Errors
    /// `InvalidArgument` for a wrong length; `NoSpace`; `Unavailable` if too few NSDs take pieces, also because they know a
    /// newer map, which didn't come for half a minute ([`Pool::is_behind`]); `Unknown` if too few answer. What NSDs say
    /// beside that is of maps and of themselves: nothing for who has something to be stored.
    pub async fn write(
        &self,
        source: &SegmentSource,
        owner: SegmentOwner,
        plain: Bytes,
    ) -> Result<SegmentPlace> {
        self.write_segment(source, owner, plain, WhenFull::Refuse)
            .await
    }

    async fn write_segment(
        &self,
        source: &SegmentSource,
        owner: SegmentOwner,
        plain: Bytes,
        when_full: WhenFull,
    ) -> Result<SegmentPlace> {
        let length = u32::try_from(plain.len()).unwrap_or(u32::MAX);
        if length == 0 || length > limits::SEGMENT_BYTES_MAX {
            let text = format!(
                "write a segment of {} bytes: it must have 1 byte to 16 MiB",
                plain.len()
            );
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let mut without = Excluded::default();
        for attempt in 1.. {
            let groups = self.groups();
            let placement = self.place(&groups, length, &without, when_full)?;
            let place = SegmentPlace {
                segment: source.next(),
                group: placement.group,
                scheme: placement.scheme,
                skipped_slots: placement.skipped_slots,
                missing: 0,
                length,
                // Computed with the pieces.
                crc: 0,
            };
            self.evenness.lock().note(&groups, &place);
            let is_last = attempt == ATTEMPTS_MAX;
            let targets = self.targets(&groups, &place, &without);
            let attempt = Attempt {
                place,
                version: placement.version,
                owner,
                targets,
                is_last,
            };
            match self.put_pieces(attempt, &plain).await {
                Ok(place) => {
                    self.world.at(Point::PiecesPut).await;
                    return Ok(place);
                }
                Err(failure) => {
                    let is_by_old_map = failure.error.kind() == ErrorKind::OldEpoch;
                    if is_by_old_map {
                        self.note_behind(groups.map().epoch);
                    }
                    if is_last {
                        let tried = format!("write a segment, tried in {ATTEMPTS_MAX} groups");
                        return Err(unstored(failure.error.while_doing(tried)));
                    }
                    warn!(segment = %place.segment, group = %place.group, error = %failure.error, "trying another group for a segment");
                    if is_by_old_map {
                        // The next attempt would be refused as this one.
                        self.wait_for_map_after(groups.map().epoch).await;
                    }
                    without.failed.extend(failure.nsds.failed);
                    without.full.extend(failure.nsds.full);
                }
            }
        }
        unreachable!("the last attempt returns")
    }

    /// Writes bytes as one segment, or as several, in order: of a block each, and of less if the NSDs'
    /// free space is too fragmented. Small segments fit as long as there is any space.
    ///
    /// # Errors
    /// As for [`Pool::write`]; nothing remains written then.
    pub async fn write_parts(
        &self,
        source: &SegmentSource,
        owner: SegmentOwner,
        plain: Bytes,
    ) -> Result<Vec<SegmentPlace>> {
        self.write_all(source, owner, plain, WhenFull::Refuse).await
    }

    /// [`Pool::write_parts`] for tables, which deleting needs. If an NSD is full, writes with the
    /// redundancy that the others provide: refusing would keep the pool full for ever.
    ///
    /// # Errors
    /// As for [`Pool::write_parts`].
    pub async fn write_table_parts(
        &self,
        source: &SegmentSource,
        owner: SegmentOwner,
        plain: Bytes,
    ) -> Result<Vec<SegmentPlace>> {
        match self
            .write_all(source, owner, plain.clone(), WhenFull::Refuse)
            .await
        {
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                self.write_all(source, owner, plain, WhenFull::WriteWithout)
                    .await
            }
            written => written,
        }
    }

    async fn write_all(
        &self,
        source: &SegmentSource,
        owner: SegmentOwner,
        plain: Bytes,
        when_full: WhenFull,
    ) -> Result<Vec<SegmentPlace>> {
        let mut places = Vec::with_capacity(1);
        let block = self
            .block_bytes()
            .map_or(plain.len(), |block| block as usize);
        let mut left: Vec<Bytes> = (0..plain.len())
            .step_by(block.max(1))
            .map(|from| plain.slice(from..plain.len().min(from + block)))
            .rev()
            .collect();
        let mut at = 0;
        while let Some(part) = left.pop() {
            let owner = SegmentOwner {
                file_offset: owner.file_offset + at,
                ..owner
            };
            match self
                .write_segment(source, owner, part.clone(), when_full)
                .await
            {
                Ok(place) => {
                    places.push(place);
                    at += part.len() as u64;
                }
                Err(error) if error.kind() == ErrorKind::NoSpace && part.len() > PART_BYTES_MIN => {
                    let middle = (part.len() / 2).next_multiple_of(PART_BYTES_MIN);
                    left.push(part.slice(middle..));
                    left.push(part.slice(..middle));
                }
                Err(error) => {
                    self.delete(&places).await?;
                    return Err(error);
                }
            }
        }
        Ok(places)
    }

    /// Chooses a group. NSDs that had trouble recently are used only if redundancy needs them.
    /// Redundancy is reduced for NSDs that are away, but not for those that are full.
    fn place(
        &self,
        groups: &Groups,
        length: u32,
        without: &Excluded,
        when_full: WhenFull,
    ) -> Result<Placement> {
        let counter = self.writes.fetch_add(1, Ordering::Relaxed);
        let scheme = groups.whole_scheme(length).unwrap_or(groups.map().scheme());
        let room = u64::from(layout::piece_length(scheme, length));
        let pick = |suspects: bool, room: Option<u64>| {
            // Asked once per NSD, not once per slot: a pick may look at thousands of slots.
            let nsds = groups.map().nsds.iter().map(|entry| entry.nsd);
            let nsds = nsds.filter(|nsd| match room {
                Some(_) => !without.contains(*nsd),
                None => !without.failed.contains(nsd),
            });
            let availabilities: BTreeMap<NsdId, Availability> = nsds
                .map(|nsd| (nsd, self.availability(groups, nsd, suspects, room)))
                .collect();
            groups.pick(counter, length, &|nsd| {
                availabilities.get(&nsd).copied().unwrap_or(NOT_WRITABLE)
            })
        };
        let sure = pick(false, Some(room));
        if sure.is_ok_and(|placement| placement.scheme.tolerance() >= scheme.tolerance()) {
            return Ok(sure.expect("just seen"));
        }
        let any = pick(true, Some(room));
        let tolerance = |pick: &std::result::Result<Placement, _>| {
            pick.map_or(0, |placement: Placement| placement.scheme.tolerance() + 1)
        };
        let best = if tolerance(&any) > tolerance(&sure) {
            any
        } else {
            sure
        };
        let full = || {
            let text = format!("write a segment of {length} bytes: the NSDs are full");
            Error::new(ErrorKind::NoSpace, text)
        };
        if (best.is_err() || when_full == WhenFull::Refuse)
            && tolerance(&pick(true, None)) > tolerance(&best)
        {
            return Err(full());
        }
        best.map_err(|none| {
            if self.any_full(groups) {
                return full();
            }
            let text = format!(
                "write a segment of {length} bytes: at most {} NSDs of a group can take pieces, {} are needed",
                none.live, none.needed
            );
            Error::new(ErrorKind::Unavailable, text)
        })
    }

    fn any_full(&self, groups: &Groups) -> bool {
        let now = self.world.now();
        let members = groups
            .map()
            .nsds
            .iter()
            .filter_map(|entry| self.member(entry.nsd));
        members
            .into_iter()
            .any(|member| member.state(now) == MemberState::Full)
    }

    /// Whether an NSD takes pieces that need `room` bytes; without `room`, even if it is full.
    fn availability(
        &self,
        groups: &Groups,
        nsd: NsdId,
        suspects: bool,
        room: Option<u64>,
    ) -> Availability {
        let active = groups
            .map()
            .nsd(nsd)
            .is_some_and(|entry| entry.state == NsdState::Active);
        let Some(member) = self.member(nsd).filter(|_| active) else {
            return NOT_WRITABLE;
        };
        let has_room = || room.is_none_or(|room| member.has_room(room));
        let writable = match member.state(self.world.now()) {
            MemberState::Online => has_room(),
            MemberState::Suspect => suspects && has_room(),
            MemberState::Full => room.is_none(),
            MemberState::Failed | MemberState::Missing => false,
        };
        Availability {
            writable,
            free: free_share(&member.nsd.usage()),
            put: self.evenness.lock().of(nsd),
        }
    }

    /// The NSDs that get each piece; both NSDs of a moving slot.
    fn targets(
        &self,
        groups: &Groups,
        place: &SegmentPlace,
        without: &Excluded,
    ) -> Vec<Vec<Arc<Member>>> {
        let slots = groups.members(place.group);
        let takes = |nsd: &NsdId| {
            !without.contains(*nsd) && self.availability(groups, *nsd, true, Some(0)).writable
        };
        (0..place.scheme.width() as u8)
            .map(|piece| {
                let members = slots[usize::from(place.slot_of(piece))].in_reading_order();
                members
                    .filter(takes)
                    .filter_map(|nsd| self.member(nsd))
                    .collect()
            })
            .collect()
    }

    async fn put_pieces(
        &self,
        mut attempt: Attempt,
        plain: &Bytes,
    ) -> std::result::Result<SegmentPlace, Failure> {
        let stored = layout::stored_bytes(attempt.place.scheme, attempt.place.length);
        let mut turn = self.wait_for_turn(stored).await.map_err(|error| Failure {
            nsds: Excluded::default(),
            error,
        })?;
        let started = self.world.now();
        let scheme = attempt.place.scheme;
        let (summed, pieces) = codec::sum_and_encode_in::<Recycled>(scheme, plain.clone());
        attempt.place.crc = summed.crc();
        let mut place = attempt.place;
        let mut pending: FuturesUnordered<PiecePut> = FuturesUnordered::new();
        for (piece, payload) in pieces.into_iter().enumerate() {
            pending.push(put_piece(&self.world, &attempt, piece as u8, payload));
        }
        let mut waiting: u32 = (1u32 << place.scheme.width()) - 1;
        if self.world.has_planted(Planted::PublishEarly) {
            self.finish_in_background(&attempt, waiting, pending, &mut turn);
            return Ok(place);
        }
        let stragglers_max = place.scheme.stragglers_max() as u32;
        let mut failed = 0u32;
        let mut straggler_wait = None;
        while !pending.is_empty() {
            let next = if waiting.count_ones() <= stragglers_max {
                let now = self.world.now();
                let until = *straggler_wait.get_or_insert_with(|| {
                    now + ((now - started) * 4).clamp(STRAGGLER_WAIT_MIN, STRAGGLER_WAIT_MAX)
                });
                self.world
                    .timeout(until - now, pending.next())
                    .await
                    .unwrap_or(None)
            } else {
                pending.next().await
            };
            let Some(done) = next else { break };
            if done.failures.is_empty() {
                waiting &= !(1 << done.piece);
                continue;
            }
            self.note_failures(&done.failures);
            failed |= 1 << done.piece;
            if !attempt.is_last || failed.count_ones() > stragglers_max {
                self.clean_up(&attempt, pending, turn);
                return Err(failure(done.failures));
            }
        }
        self.note_stored(place.scheme, place.length);
        if waiting != 0 {
            place.missing = waiting;
            self.finish_in_background(&attempt, waiting, pending, &mut turn);
        }
        Ok(place)
    }

    /// Waits until another `bytes` bytes may be in flight.
    async fn wait_for_turn(&self, bytes: u64) -> Result<OwnedSemaphorePermit> {
        let count =
            u32::try_from(permits(bytes)).expect("a segment's pieces have less than 16 TiB");
        match self
            .world
            .timeout(
                TURN_DEADLINE,
                self.in_flight.clone().acquire_many_owned(count),
            )
            .await
        {
            Ok(permit) => Ok(permit.expect("the semaphore is never closed")),
            Err(_) => Err(Error::new(
                ErrorKind::Unavailable,
                format!(
                    "put {bytes} bytes: couldn't start within {} s because the NSDs are too slow",
                    TURN_DEADLINE.as_secs()
                ),
            )),
        }
    }

    fn note_failures(&self, failures: &[(NsdId, Error)]) {
        for (nsd, error) in failures {
            if let Some(member) = self.member(*nsd).filter(|_| is_nsd_failure(error)) {
                warn!(%nsd, %error, "NSD failed a put");
                member.avoid(self.world.now());
            }
        }
    }

    /// The segment is complete; late puts continue in the background.
    fn finish_in_background(
        &self,
        attempt: &Attempt,
        waiting: u32,
        mut pending: FuturesUnordered<PiecePut>,
        turn: &mut OwnedSemaphorePermit,
    ) {
        let place = SegmentPlace {
            missing: waiting,
            ..attempt.place
        };
        let family = Some(attempt.owner.family);
        self.suspect(&place, family, waiting, SuspectCause::Unfinished);
        let bytes =
            pending.len() as u64 * u64::from(layout::piece_length(place.scheme, place.length));
        let Some(held) = turn.split(permits(bytes).min(turn.num_permits())) else {
            return;
        };
        let targets = attempt.targets.iter().enumerate();
        let late: Vec<Arc<Member>> = targets
            .filter(|(piece, _)| waiting & (1 << piece) != 0)
            .flat_map(|(_, targets)| targets.iter().cloned())
            .collect();
        let world = self.world.clone();
        let stragglers = async move {
            let all = async { while pending.next().await.is_some() {} };
            let mut all = std::pin::pin!(all);
            if world.timeout(SUSPECT_AFTER, &mut all).await.is_err() {
                let now = world.now();
                late.iter().for_each(|member| member.avoid(now));
                all.await;
            }
            drop(held);
        };
        self.world
            .spawn("pool: stragglers of a write", stragglers)
            .detach();
    }

    /// Waits for the puts of a failed attempt, and deletes the pieces that arrived. Best effort: the
    /// name is never used again, so a sweep finds the rest, but not before its session has ended if that
    /// is of an owner.
    fn clean_up(
        &self,
        attempt: &Attempt,
        mut pending: FuturesUnordered<PiecePut>,
        turn: OwnedSemaphorePermit,
    ) {
        let (itself, place) = (self.itself.clone(), attempt.place);
        let cleaning = async move {
            while pending.next().await.is_some() {}
            drop(turn);
            let Some(pool) = itself.upgrade() else { return };
            if let Err(error) = pool.delete_by_newest(&[place]).await {
                debug!(segment = %place.segment, %error, "pieces of a failed write are left for a sweep");
            }
        };
        self.world
            .spawn("pool: clean-up of a failed write", cleaning)
            .detach();
    }
}

const NOT_WRITABLE: Availability = Availability {
    writable: false,
    free: 0,
    put: 0,
};

/// The error of a write that was tried in vain. Its kind becomes the number that a program gets: of a refusal by an NSD, of an
/// old map for instance, that would say something of the program's file.
fn unstored(error: Error) -> Error {
    match error.kind() {
        ErrorKind::NoSpace | ErrorKind::Unavailable | ErrorKind::Unknown => error,
        _ => Error::new(ErrorKind::Unavailable, error.to_string()),
    }
}

fn failure(failures: Vec<(NsdId, Error)>) -> Failure {
    let mut nsds = Excluded::default();
    for (nsd, error) in &failures {
        match error.kind() {
            // An old map isn't the NSD's fault: the next attempt has the newer map, or fails as
            // well.
            ErrorKind::OldEpoch => false,
            ErrorKind::NoSpace => nsds.full.insert(*nsd),
            _ => nsds.failed.insert(*nsd),
        };
    }
    let (nsd, error) = failures
        .into_iter()
        .next()
        .expect("a failed piece names an NSD");
    Failure {
        nsds,
        error: error.while_doing(format!("put a piece to NSD {nsd}")),
    }
}

fn put_piece(world: &World, attempt: &Attempt, piece: u8, payload: Payload) -> PiecePut {
    let name: BlobName = attempt.place.blob(piece);
    let put = BlobPut {
        name,
        nonce: nonce(name, &attempt.place),
        header: attempt.owner.header(&attempt.place),
        payload,
        fence: attempt.version,
    };
    let targets = attempt.targets[usize::from(piece)].clone();
    let world = world.clone();
    async move {
        let puts = targets
            .iter()
            .map(|member| put_to(&world, member, put.clone()));
        let results = join_all(puts).await;
        let mut failures: Vec<_> = results
            .into_iter()
            .filter_map(std::result::Result::err)
            .collect();
        if targets.is_empty() {
            failures.push((
                NsdId::NONE,
                Error::new(ErrorKind::Unavailable, "the NSD went away"),
            ));
        }
        PieceDone { piece, failures }
    }
    .boxed()
}
