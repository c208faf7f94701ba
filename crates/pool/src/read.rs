//! Reads segments: only the units needed, hedged when slow, rebuilt when missing.

use crate::Pool;
use crate::members::{Member, Request, is_nsd_failure};
use crate::segment::Recycled;
use crate::suspects::SuspectCause;
use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt};
use futures::stream::{FuturesUnordered, StreamExt};
use model::checksum::crc32c_of_chunks;
use model::{BlobName, Error, ErrorKind, NsdId, Result, SegmentPlace, limits};
use placement::{Groups, codec, layout};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tracing::{debug, warn};
use world::call::Deadline;
use world::{Instant, World};

/// An NSD that hasn't answered a get after this time counts as failed.
const GET_DEADLINE: Duration = Duration::from_secs(30);

impl Pool {
    /// Bytes `at..at + length` of a segment, in order, in as many chunks as pieces were read. Every
    /// byte is proven by its NSD or rebuilt from proven bytes; a whole segment is also checked
    /// against its CRC.
    ///
    /// # Errors
    /// `InvalidArgument` for a range outside the segment; `NotFound` if no piece exists any more (a
    /// stale extent), or its generation has left the map; `Unavailable` while too few NSDs answer, or
    /// if the map with its group doesn't come; `Corrupt` if too much is damaged.
    pub async fn read(&self, place: &SegmentPlace, at: u32, length: u32) -> Result<Vec<Bytes>> {
        let groups = self.groups_with(place.group).await?;
        let inside = at
            .checked_add(length)
            .is_some_and(|end| end <= place.length);
        if !inside || !fits_pool(&groups, place) {
            let text = format!(
                "read {length} bytes at {at} of segment {} of {} bytes ({}) in group {}",
                place.segment, place.length, place.scheme, place.group
            );
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        if length == 0 {
            return Ok(Vec::new());
        }
        let chunks = match self.read_one_piece(&groups, place, at, length).await? {
            Some(bytes) => vec![bytes],
            None => {
                let gather = Gather::new(self, &groups, place, at, length);
                gather.run().await?
            }
        };
        if length == place.length && !fits(place, &chunks) {
            // Boxed because it is rare, and every read's future would contain it otherwise.
            return Box::pin(self.read_around_one(&groups, place)).await;
        }
        Ok(chunks)
    }

    /// A whole segment of which a piece is wrong although it fits its own checksums: the segment's says without which it
    /// is right. If too few others answer for that, they may do so later.
    async fn read_around_one(&self, groups: &Groups, place: &SegmentPlace) -> Result<Vec<Bytes>> {
        for piece in 0..place.scheme.width() as u8 {
            let mut others = Gather::new(self, groups, place, 0, place.length);
            others.failed.push((piece, ErrorKind::Corrupt));
            match others.run().await {
                Ok(chunks) if fits(place, &chunks) => {
                    warn!(segment = %place.segment, piece, "a piece fits its checksums and is wrong");
                    self.suspect(place, None, 1 << piece, SuspectCause::Damaged);
                    return Ok(chunks);
                }
                Err(error) if error.kind() == ErrorKind::Unavailable => {
                    return Err(error.while_doing("find the piece that is wrong"));
                }
                _ => {}
            }
        }
        self.suspect(place, None, 0, SuspectCause::Unreadable);
        let text = format!(
            "the pieces of segment {} match their checksums, but not the segment's checksum",
            place.segment
        );
        Err(Error::new(ErrorKind::Corrupt, text))
    }

    /// The common case: one piece holds the range, and its NSD is healthy and answers in the usual
    /// time. State for asking other NSDs is set up only if it doesn't. `None`: several NSDs must be
    /// asked.
    async fn read_one_piece(
        &self,
        groups: &Groups,
        place: &SegmentPlace,
        at: u32,
        length: u32,
    ) -> Result<Option<Bytes>> {
        let mut parts = layout::data_ranges(place.scheme, place.length, at, length).into_iter();
        let (Some(part), None) = (parts.next(), parts.next()) else {
            return Ok(None);
        };
        let piece = if place.scheme.data_pieces() == 1 {
            let width = place.scheme.width() as u64;
            ((width - rotation(place, at) % width) % width) as u8
        } else {
            part.piece
        };
        let holders = self.holders(groups, place, piece);
        let well = |member: &Arc<Member>| {
            member.state(self.world.now()) == crate::MemberState::Online
                && place.missing & (1 << piece) == 0
        };
        if !holders.first().is_some_and(well) {
            return Ok(None);
        }
        let usual = slowest(holders.iter().map(|member| member.hedge_delay()));
        let hedge_at = self.world.now() + usual;
        let mut asked = start_fetch(self.world.clone(), holders, place, 0, piece, part.range);
        match self.world.timeout(usual, &mut asked).await {
            Ok(Answer {
                result: Ok(bytes), ..
            }) => Ok(Some(bytes)),
            outcome => {
                // Boxed because it is rare, and every read's future would contain it otherwise.
                let rest = Gather::new(self, groups, place, at, length).continue_after_first(
                    piece,
                    hedge_at,
                    outcome.ok(),
                    asked,
                );
                let mut chunks = Box::pin(rest).await?;
                Ok(chunks.pop())
            }
        }
    }

    /// A whole segment, checked against its CRC. Copies once if it has several data pieces.
    ///
    /// # Errors
    /// As for [`Pool::read`].
    pub async fn read_whole(&self, place: &SegmentPlace) -> Result<Bytes> {
        let mut chunks = self.read(place, 0, place.length).await?;
        if chunks.len() == 1 {
            return Ok(chunks.remove(0));
        }
        let mut plain = world::AlignedBuffer::with_any_content(place.length as usize);
        let mut at = 0;
        for chunk in &chunks {
            plain[at..at + chunk.len()].copy_from_slice(chunk);
            at += chunk.len();
        }
        Ok(plain.freeze())
    }

    /// The NSDs that may hold a piece, in the order in which to ask them.
    pub(crate) fn holders(
        &self,
        groups: &Groups,
        place: &SegmentPlace,
        piece: u8,
    ) -> Vec<Arc<Member>> {
        let slot = groups.members(place.group)[usize::from(place.slot_of(piece))];
        slot.in_reading_order()
            .filter_map(|nsd| self.member(nsd))
            .filter(|member| member.is_readable())
            .collect()
    }
}

/// Whether these are a segment's bytes.
fn fits(place: &SegmentPlace, chunks: &[Bytes]) -> bool {
    crc32c_of_chunks(chunks.iter().map(AsRef::as_ref)) == place.crc
}

/// Whether the pool has the group, the group has a slot for each piece, and a segment can be as long.
pub(crate) fn fits_pool(groups: &Groups, place: &SegmentPlace) -> bool {
    let Some(scheme) = groups.scheme_of(place.group) else {
        return false;
    };
    let slots = (1u32 << scheme.width()) - 1;
    let free = (slots & !place.skipped_slots).count_ones() as usize;
    (1..=limits::SEGMENT_BYTES_MAX).contains(&place.length) && place.scheme.width() <= free
}

/// A part of a data piece that the reader needs.
struct Wanted {
    piece: u8,
    range: Range<u32>,
    bytes: Option<Bytes>,
    /// Its NSD failed or is late: rebuild it from other pieces.
    is_given_up: bool,
}

struct InFlight {
    number: usize,
    piece: u8,
    range: Range<u32>,
    is_late: bool,
}

struct Answer {
    number: usize,
    piece: u8,
    range: Range<u32>,
    result: std::result::Result<Bytes, Vec<(NsdId, Error)>>,
}

/// One read under way.
struct Gather<'a> {
    pool: &'a Pool,
    groups: &'a Groups,
    place: &'a SegmentPlace,
    wanted: Vec<Wanted>,
    /// Answers so far, of any piece.
    got: Vec<(u8, Range<u32>, Bytes)>,
    failed: Vec<(u8, ErrorKind)>,
    in_flight: Vec<InFlight>,
    pending: FuturesUnordered<BoxFuture<'static, Answer>>,
    next_number: usize,
}

impl<'a> Gather<'a> {
    fn new(
        pool: &'a Pool,
        groups: &'a Groups,
        place: &'a SegmentPlace,
        at: u32,
        length: u32,
    ) -> Self {
        let mut out = Self {
            pool,
            groups,
            place,
            wanted: Vec::new(),
            got: Vec::new(),
            failed: Vec::new(),
            in_flight: Vec::new(),
            pending: FuturesUnordered::new(),
            next_number: 0,
        };
        for part in layout::data_ranges(place.scheme, place.length, at, length) {
            // Any copy will do; of an erasure-coded segment this piece is needed.
            let piece = if place.scheme.data_pieces() == 1 {
                out.preferred(at)[0]
            } else {
                part.piece
            };
            out.wanted.push(Wanted {
                piece,
                range: part.range,
                bytes: None,
                is_given_up: false,
            });
        }
        out
    }

    async fn run(mut self) -> Result<Vec<Bytes>> {
        for index in 0..self.wanted.len() {
            let (piece, range) = (self.wanted[index].piece, self.wanted[index].range.clone());
            let is_left_out = self.failed.iter().any(|(failed, _)| *failed == piece);
            if !is_left_out {
                self.ask(piece, range);
            }
            // NSDs that had trouble recently are asked, but not waited for.
            self.wanted[index].is_given_up = is_left_out || self.is_suspect(piece);
        }
        let hedge_at = self.pool.world.now() + self.hedge_delay();
        self.finish(hedge_at).await
    }

    /// Continues after the only NSD asked has failed, or is late and hasn't answered yet.
    async fn continue_after_first(
        mut self,
        piece: u8,
        mut hedge_at: Instant,
        failed: Option<Answer>,
        asked: BoxFuture<'static, Answer>,
    ) -> Result<Vec<Bytes>> {
        self.next_number = 1;
        self.wanted[0].piece = piece;
        let range = self.wanted[0].range.clone();
        match failed {
            Some(answer) => self.take(answer),
            None => {
                self.in_flight.push(InFlight {
                    number: 0,
                    piece,
                    range,
                    is_late: false,
                });
                self.pending.push(asked);
                self.give_up_late();
                hedge_at = self.pool.world.now() + self.hedge_delay();
            }
        }
        self.finish(hedge_at).await
    }

    /// NSDs silent past `hedge_at` are late; their pieces are rebuilt.
    async fn finish(mut self, mut hedge_at: Instant) -> Result<Vec<Bytes>> {
        loop {
            self.rebuild()?;
            if self.wanted.iter().all(|wanted| wanted.bytes.is_some()) {
                return Ok(self
                    .wanted
                    .into_iter()
                    .filter_map(|wanted| wanted.bytes)
                    .collect());
            }
            self.ask_others();
            if self.pending.is_empty() {
                return Err(self.lost());
            }
            let now = self.pool.world.now();
            match self
                .pool
                .world
                .timeout(hedge_at - now, self.pending.next())
                .await
            {
                Ok(answer) => self.take(answer.expect("not empty")),
                Err(_) => {
                    self.give_up_late();
                    hedge_at = self.pool.world.now() + self.hedge_delay();
                }
            }
        }
    }

    fn is_suspect(&self, piece: u8) -> bool {
        let now = self.pool.world.now();
        let holders = self.pool.holders(self.groups, self.place, piece);
        holders
            .iter()
            .all(|member| member.state(now) == crate::MemberState::Suspect)
    }

    /// The longest usual answer time of the NSDs asked.
    fn hedge_delay(&self) -> Duration {
        let asked = self.in_flight.iter().filter(|flight| !flight.is_late);
        let members =
            asked.flat_map(|flight| self.pool.holders(self.groups, self.place, flight.piece));
        slowest(members.map(|member| member.hedge_delay()))
    }

    fn ask(&mut self, piece: u8, range: Range<u32>) {
        let number = self.next_number;
        self.next_number += 1;
        self.in_flight.push(InFlight {
            number,
            piece,
            range: range.clone(),
            is_late: false,
        });
        let holders = self.pool.holders(self.groups, self.place, piece);
        let world = self.pool.world.clone();
        let asked = start_fetch(world, holders, self.place, number, piece, range);
        self.pending.push(asked);
    }

    fn take(&mut self, answer: Answer) {
        self.in_flight
            .retain(|flight| flight.number != answer.number);
        match answer.result {
            Ok(bytes) => {
                for wanted in &mut self.wanted {
                    if wanted.piece == answer.piece
                        && wanted.bytes.is_none()
                        && covers(&answer.range, &wanted.range)
                    {
                        wanted.bytes = Some(slice_of(&bytes, &answer.range, &wanted.range));
                    }
                }
                self.got.push((answer.piece, answer.range, bytes));
            }
            Err(errors) => {
                self.note(answer.piece, &errors);
                for wanted in self
                    .wanted
                    .iter_mut()
                    .filter(|wanted| wanted.piece == answer.piece)
                {
                    wanted.is_given_up = true;
                }
            }
        }
    }

    /// Notes failures: NSDs that are in trouble are avoided, and pieces go to the repair queue.
    fn note(&mut self, piece: u8, errors: &[(NsdId, Error)]) {
        for (nsd, error) in errors {
            if let Some(member) = self.pool.member(*nsd).filter(|_| is_nsd_failure(error)) {
                member.avoid(self.pool.world.now());
            }
        }
        let kind = combined_kind(errors);
        let slot = self.groups.members(self.place.group)[usize::from(self.place.slot_of(piece))];
        let is_expected = self.place.missing & (1 << piece) == 0 && slot.next.is_none();
        match kind {
            ErrorKind::Corrupt => {
                warn!(segment = %self.place.segment, piece, "a read found a damaged piece");
                self.pool
                    .suspect(self.place, None, 1 << piece, SuspectCause::Damaged);
            }
            ErrorKind::NotFound if is_expected => {
                self.pool
                    .suspect(self.place, None, 1 << piece, SuspectCause::Absent);
            }
            _ => debug!(segment = %self.place.segment, piece, kind = kind.name(), "piece not read"),
        }
        self.failed.push((piece, kind));
    }

    /// Marks all requests in flight as late: their pieces are rebuilt, and not expected as sources.
    fn give_up_late(&mut self) {
        let now = self.pool.world.now();
        for flight in &mut self.in_flight {
            if !flight.is_late {
                let holders = self.pool.holders(self.groups, self.place, flight.piece);
                holders.iter().for_each(|member| member.note_late(now));
            }
            flight.is_late = true;
        }
        for wanted in self
            .wanted
            .iter_mut()
            .filter(|wanted| wanted.bytes.is_none())
        {
            wanted.is_given_up = true;
        }
    }

    /// The range that covers all parts to be rebuilt.
    fn rebuilt_range(&self) -> Option<Range<u32>> {
        let parts = self
            .wanted
            .iter()
            .filter(|wanted| wanted.is_given_up && wanted.bytes.is_none());
        parts
            .map(|wanted| wanted.range.clone())
            .reduce(|a, b| a.start.min(b.start)..a.end.max(b.end))
    }

    /// Rebuilds parts that were given up, once enough other pieces have arrived.
    fn rebuild(&mut self) -> Result<()> {
        let Some(range) = self.rebuilt_range() else {
            return Ok(());
        };
        let mut have: Vec<(u8, Bytes)> = Vec::new();
        for (piece, got, bytes) in &self.got {
            if covers(got, &range) && have.iter().all(|(other, _)| other != piece) {
                have.push((*piece, slice_of(bytes, got, &range)));
            }
        }
        if have.len() < self.place.scheme.data_pieces() {
            return Ok(());
        }
        let is_open = |wanted: &&mut Wanted| wanted.is_given_up && wanted.bytes.is_none();
        let open: Vec<&mut Wanted> = self.wanted.iter_mut().filter(is_open).collect();
        let pieces: Vec<u8> = open.iter().map(|wanted| wanted.piece).collect();
        let rebuilt = codec::reconstruct_in::<Recycled>(self.place.scheme, &have, &pieces)?;
        for (wanted, bytes) in open.into_iter().zip(rebuilt) {
            wanted.bytes = Some(slice_of(&bytes, &range, &wanted.range));
        }
        Ok(())
    }

    /// Asks for as many further pieces as rebuilding the parts that were given up needs.
    fn ask_others(&mut self) {
        let Some(range) = self.rebuilt_range() else {
            return;
        };
        let is_wanted = |piece: u8| {
            self.wanted
                .iter()
                .any(|w| w.piece == piece && w.is_given_up && w.bytes.is_none())
        };
        let has = |piece: u8| {
            self.got
                .iter()
                .any(|(got, part, _)| *got == piece && covers(part, &range))
        };
        let comes = |piece: u8| {
            self.in_flight
                .iter()
                .any(|flight| flight.piece == piece && covers(&flight.range, &range))
        };
        let in_time = |piece: u8| {
            let mut flights = self.in_flight.iter();
            flights.any(|flight| {
                flight.piece == piece && !flight.is_late && covers(&flight.range, &range)
            })
        };
        let failed = |piece: u8| self.failed.iter().any(|(other, _)| *other == piece);
        let order = self.preferred(range.start);
        let sure = order
            .iter()
            .filter(|piece| !is_wanted(**piece) && (has(**piece) || in_time(**piece)))
            .count();
        let short = self.place.scheme.data_pieces().saturating_sub(sure);
        let others = order.into_iter().filter(|piece| {
            !is_wanted(*piece) && !has(*piece) && !comes(*piece) && !failed(*piece)
        });
        for piece in others.take(short).collect::<Vec<_>>() {
            self.ask(piece, range.clone());
        }
    }

    /// All pieces, those first that are likely to exist and be answered quickly. Equal ones rotate,
    /// so that reads spread over the copies.
    fn preferred(&self, at: u32) -> Vec<u8> {
        let width = self.place.scheme.width() as u8;
        let turn = rotation(self.place, at);
        let mut pieces: Vec<u8> = (0..width).collect();
        pieces.sort_by_cached_key(|piece| {
            let holders = self.pool.holders(self.groups, self.place, *piece);
            let is_suspect = self.is_suspect(*piece);
            let is_missing = self.place.missing & (1 << piece) != 0;
            (
                holders.is_empty(),
                is_missing,
                is_suspect,
                (u64::from(*piece) + turn) % u64::from(width),
            )
        });
        pieces
    }

    /// The error of a read that can't succeed now.
    fn lost(&self) -> Error {
        let kinds = || self.failed.iter().map(|(_, kind)| *kind);
        let kind = if !kinds().all(|kind| matches!(kind, ErrorKind::NotFound | ErrorKind::Corrupt))
        {
            ErrorKind::Unavailable
        } else if kinds().all(|kind| kind == ErrorKind::NotFound) {
            ErrorKind::NotFound
        } else {
            ErrorKind::Corrupt
        };
        let mut failed = self.failed.clone();
        failed.sort_by_key(|(piece, _)| *piece);
        failed.dedup_by_key(|(piece, _)| *piece);
        let list: Vec<String> = failed
            .iter()
            .map(|(piece, kind)| format!("piece {piece} {}", kind.name()))
            .collect();
        let place = self.place;
        // Only its shard knows whether the segment is live; the shard reports the loss if so.
        let pieces = failed.iter().fold(0, |bits, (piece, _)| bits | 1 << piece);
        self.pool
            .suspect(place, None, pieces, SuspectCause::Unreadable);
        let text = format!(
            "read segment {} ({}) in group {}: too few pieces: {}",
            place.segment,
            place.scheme,
            place.group,
            list.join(", ")
        );
        Error::new(kind, text)
    }
}

/// The longest of the given usual answer times.
fn slowest(delays: impl Iterator<Item = Duration>) -> Duration {
    delays.max().unwrap_or(Duration::from_secs(1))
}

/// Decides which of several equal pieces serves this part of a segment.
fn rotation(place: &SegmentPlace, at: u32) -> u64 {
    let stretch = u64::from(at / (256 * 1024));
    place.segment.counter.wrapping_add(stretch)
}

/// Asks the holders of a piece for a part of it.
fn start_fetch(
    world: World,
    holders: Vec<Arc<Member>>,
    place: &SegmentPlace,
    number: usize,
    piece: u8,
    range: Range<u32>,
) -> BoxFuture<'static, Answer> {
    let name = place.blob(piece);
    async move {
        let result = fetch(&world, &holders, name, &range).await;
        Answer {
            number,
            piece,
            range,
            result,
        }
    }
    .boxed()
}

/// Asks the holders of a piece in turn.
async fn fetch(
    world: &World,
    holders: &[Arc<Member>],
    name: BlobName,
    range: &Range<u32>,
) -> std::result::Result<Bytes, Vec<(NsdId, Error)>> {
    let mut errors = Vec::new();
    for member in holders {
        match get_from(world, member, name, range).await {
            Ok(bytes) => return Ok(bytes),
            Err(error) => errors.push((member.nsd.id(), error)),
        }
    }
    if errors.is_empty() {
        errors.push((
            NsdId::NONE,
            Error::new(
                ErrorKind::Unavailable,
                "no NSD that holds the piece is reachable",
            ),
        ));
    }
    Err(errors)
}

/// One get with its deadline.
pub(crate) async fn get_from(
    world: &World,
    member: &Member,
    name: BlobName,
    range: &Range<u32>,
) -> Result<Bytes> {
    let asked = Asked {
        request: Some(member.begin(world)),
    };
    let length = range.end - range.start;
    let deadline = Deadline::after(world, GET_DEADLINE);
    let result = member.nsd.get(name, range.start, length, deadline).await;
    if let (Err(error), Some(request)) = (&result, &asked.request) {
        request.note_failed(error);
    }
    if !matches!(&result, Err(error) if error.kind() == ErrorKind::Unknown) {
        asked.answered();
    }
    if result.is_ok() {
        member.count_read(u64::from(length));
    }
    result
}

/// A read under way on an NSD; recorded even if it is dropped before the answer.
struct Asked<'a> {
    request: Option<Request<'a>>,
}

impl Asked<'_> {
    fn answered(mut self) {
        if let Some(request) = self.request.take() {
            request.note_read();
        }
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if let Some(request) = &self.request {
            request.note_unanswered();
        }
    }
}

/// The error of a piece that none of several NSDs returned: absent only if all of them say so.
fn combined_kind(errors: &[(NsdId, Error)]) -> ErrorKind {
    let has = |kind: ErrorKind| errors.iter().any(|(_, error)| error.kind() == kind);
    if has(ErrorKind::Corrupt) {
        ErrorKind::Corrupt
    } else if errors
        .iter()
        .all(|(_, error)| error.kind() == ErrorKind::NotFound)
    {
        ErrorKind::NotFound
    } else {
        ErrorKind::Unavailable
    }
}

fn covers(outer: &Range<u32>, inner: &Range<u32>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

/// The bytes of `part`, given those of `whole`.
fn slice_of(bytes: &Bytes, whole: &Range<u32>, part: &Range<u32>) -> Bytes {
    bytes.slice((part.start - whole.start) as usize..(part.end - whole.start) as usize)
}
