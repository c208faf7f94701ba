//! Reading: dirty runs take precedence over batches in flight, those over cached bytes, those over
//! extents.

use crate::client::Client;
use crate::inode::{Inner, InodeRef};
use crate::neighbours::{Neighbours, together};
use crate::pages::extents::{Located, Source};
use crate::pages::memory::COPIED_MAX;
use crate::pages::ranges::Gaps;
use crate::session::unexpected_reply;
use crate::types::ReadTraces;
use bytes::Bytes;
use futures::future::try_join_all;
use model::{Error, ErrorKind, FileKind, InodeId, Operation, Reply, Result, SegmentPlace, limits};
use std::collections::VecDeque;
use std::time::Duration;
use tokio::sync::futures::Notified;
use tracing::debug;

/// Most restarts of a read because the file changed meanwhile.
pub(crate) const ROUNDS_MAX: usize = 64;
/// Extents requested at once.
pub(crate) const EXTENTS_AT_ONCE: u32 = 256;
/// The same for callers that need very many.
pub(crate) const EXTENTS_AT_ONCE_MAX: u32 = 4096;
/// After this many rounds a read uses the extents known so far instead of requiring all of them:
/// there may be more than are remembered.
const ROUNDS_WHOLE_MAX: usize = 4;
/// Most ranges of segments that one read fetches concurrently, and their bytes, unless one has more.
/// Each takes some KiB of state, and dozens of reads may run.
const FETCHES_AT_ONCE: usize = 64;
const FETCHED_BYTES_AT_ONCE: u64 = 8 << 20;
/// The cause by which waits for nodes that are away are listed.
const NODES_WAIT: &str = "nodes that hold the data";
/// How often a read looks again for data whose nodes are away.
const NODES_LOOK_EVERY: Duration = Duration::from_millis(100);
/// How far beyond a read extents are requested, so that a stream asks rarely.
pub(crate) const EXTENTS_AHEAD: u64 = 1 << 30;

/// The zeros of all holes.
static ZEROS: [u8; 128 * 1024] = [0; 128 * 1024];

/// Pieces of an answer, unordered.
#[derive(Default)]
struct Answer(Vec<(u64, Bytes)>);

/// What happens to fetched bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Keep {
    /// Not cached: only the reader gets them.
    No,
    /// Cached: they were read.
    Read,
    /// Cached: they will be read.
    Ahead,
}

/// What is missing for an answer.
enum Missing<'a> {
    /// Nothing: the pieces in order.
    Nothing(Vec<Bytes>),
    /// Size, or extents from this offset on, must be requested.
    Extents(u64),
    /// Another task is fetching the data.
    Arrival(Notified<'a>),
    /// The pieces of segments to fetch; and pieces available now, kept because they may be evicted
    /// before the rest arrives.
    Data(Vec<Located>, Vec<(u64, Bytes)>),
}

impl Client {
    /// Reads; shorter than requested only at the end of the file. Pieces are contiguous, and not
    /// copied if the page pool has them.
    ///
    /// # Errors
    /// `Unavailable` or `Corrupt` (both EIO) if data can't be read or verified.
    pub async fn read(&self, inode: InodeId, offset: u64, length: usize) -> Result<Vec<Bytes>> {
        self.read_leaving(inode, offset, length, ReadTraces::default())
            .await
    }

    /// As `read`, with control over its effects on atime and cache.
    ///
    /// # Errors
    /// As `read`.
    pub async fn read_leaving(
        &self,
        inode: InodeId,
        offset: u64,
        length: usize,
        traces: ReadTraces,
    ) -> Result<Vec<Bytes>> {
        self.session.check_open()?;
        let state = self.inodes.get(inode);
        let mut fetched = Vec::new();
        let mut lost_at = None;
        let mut unreadable_since = None;
        // Whether the read still has to be noted, and if so, whether it moves atime.
        let mut unnoted = Some(traces.atime);
        let keep = if traces.cached { Keep::Read } else { Keep::No };
        let mut round = 0;
        let mut in_parts = false;
        while round < ROUNDS_MAX {
            in_parts |= round >= ROUNDS_WHOLE_MAX;
            let have = (&fetched[..], in_parts);
            let missing = self.put_together(&state, offset, length, have, &mut unnoted)?;
            let (wanted, known) = match missing {
                Missing::Nothing(pieces) => return Ok(pieces),
                Missing::Arrival(arrival) => {
                    self.session
                        .wait("data that is being fetched", Some(inode), arrival)
                        .await?;
                    continue;
                }
                Missing::Extents(from) => {
                    let to = from.saturating_add(EXTENTS_AHEAD);
                    let limit = if in_parts {
                        EXTENTS_AT_ONCE_MAX
                    } else {
                        EXTENTS_AT_ONCE
                    };
                    self.ask_extents(&state, from, to, limit).await?;
                    round += 1;
                    continue;
                }
                Missing::Data(wanted, known) => (wanted, known),
            };
            // Each available part makes the rest smaller.
            round = if known.is_empty() { round + 1 } else { 0 };
            fetched.extend(known);
            fetched.sort_unstable_by_key(|(at, _)| *at);
            match self.fetch(&state, &wanted, keep).await {
                Ok(pieces) => {
                    fetched.extend(pieces);
                    fetched.sort_unstable_by_key(|(at, _)| *at);
                    if in_parts {
                        round = 0;
                    }
                }
                // The data may have been folded or cleaned meanwhile; the owner knows the new
                // places. While an NSD is away, a deleted segment can't be distinguished from an
                // unreadable one, so only the same places twice are an error.
                Err(error) if lost_at.as_ref() != Some(&wanted) => {
                    debug!(%inode, %error, "looking up the data's place again");
                    lost_at = Some(wanted);
                    let mut inner = state.lock();
                    inner.extents.forget_all();
                    inner.mapping += 1;
                }
                Err(error) => {
                    let now = self.session.now();
                    let since = *unreadable_since.get_or_insert(now);
                    if !self.session.is_pause(&error, since) {
                        return Err(unreadable(inode, error));
                    }
                    let _listed = self.session.list(NODES_WAIT, Some(inode), since);
                    // Boxed because it is rare: every read's future would be larger.
                    Box::pin(self.session.world().sleep(NODES_LOOK_EVERY)).await;
                    (lost_at, round) = (None, 0);
                }
            }
        }
        let text =
            format!("read of {inode} at {offset}: the file changed {ROUNDS_MAX} times meanwhile");
        Err(Error::new(ErrorKind::Unavailable, text))
    }

    fn put_together<'a>(
        &self,
        state: &'a InodeRef,
        offset: u64,
        length: usize,
        (fetched, in_parts): (&[(u64, Bytes)], bool),
        unnoted: &mut Option<bool>,
    ) -> Result<Missing<'a>> {
        let mut inner = state.lock();
        let (Some(known), Some(size)) = (inner.known, inner.size()) else {
            return Ok(Missing::Extents(offset));
        };
        match known.kind {
            FileKind::File => {}
            FileKind::Directory => return Err(ErrorKind::IsDirectory.into()),
            _ => return Err(ErrorKind::InvalidArgument.into()),
        }
        let end = offset.saturating_add(length as u64).min(size);
        if let Some(moves_atime) = unnoted.take() {
            // POSIX: each read of more than 0 bytes, even at the end of the file.
            if moves_atime && length > 0 {
                self.note_access(state, &mut inner);
            }
            if offset < end {
                self.note_read(state, &mut inner, offset, end, size);
            }
        }
        if offset >= end {
            return Ok(Missing::Nothing(Vec::new()));
        }
        let mut answer = Answer::default();
        let mut gaps = Gaps::new(offset, end);
        self.take_from_memory(&mut inner, &mut gaps, &mut answer);
        answer.take_fetched(&mut gaps, fetched);
        let mut wanted = Vec::new();
        let mut known = Answer::default();
        let mut unknown = None;
        'gaps: for (from, to) in gaps.iter() {
            for piece in inner.extents.locate(from, to) {
                match &piece.source {
                    Source::Zeros => known.add_zeros(piece.from, piece.to),
                    Source::Inline(bytes) => known.0.push((piece.from, bytes.clone())),
                    Source::Segment(..) => wanted.push(piece),
                    Source::Unknown => {
                        unknown = Some(piece.from);
                        break 'gaps;
                    }
                }
            }
        }
        let has_part = in_parts && !(wanted.is_empty() && known.0.is_empty());
        match unknown {
            Some(from) if !has_part => return Ok(Missing::Extents(from)),
            Some(_) => {}
            None if wanted.is_empty() => {
                answer.0.append(&mut known.0);
                return Ok(Missing::Nothing(answer.in_order()));
            }
            None => known.0.clear(),
        }
        let is_coming = |piece: &Located| {
            inner
                .fetches
                .iter()
                .any(|(from, to)| *from < piece.to && piece.from < *to)
        };
        if wanted.iter().any(is_coming) {
            return Ok(Missing::Arrival(state.changed.notified()));
        }
        Ok(Missing::Data(wanted, known.0))
    }

    fn take_from_memory(&self, inner: &mut Inner, gaps: &mut Gaps, answer: &mut Answer) {
        if !inner.dirty.is_empty() {
            gaps.fill(|from, to, found| {
                inner.dirty.visit(from, to, |at, bytes| {
                    answer.0.push((at, Bytes::copy_from_slice(bytes)));
                    found(at, at + bytes.len() as u64);
                });
            });
        }
        for batch in inner.flushing.iter().rev() {
            gaps.fill_from_runs(
                |at| {
                    let run = batch.runs_from(at).first()?;
                    Some((run.offset, run.end(), run))
                },
                |from, to, run| answer.0.push((from, run.slice(from, to))),
            );
        }
        if inner.clean.is_empty() {
            return;
        }
        let mut used_ahead = 0;
        gaps.fill(|from, to, found| {
            used_ahead += inner.clean.visit(from, to, |at, bytes| {
                found(at, at + bytes.len() as u64);
                answer.0.push((at, bytes));
            });
        });
        self.pages.note_ahead(used_ahead, 0);
    }

    /// Requests the extents between `from` and `to`, and size and times, from the owner.
    pub(crate) async fn ask_extents(
        &self,
        state: &InodeRef,
        from: u64,
        to: u64,
        limit: u32,
    ) -> Result<()> {
        self.pages.limit_extents(&self.inodes);
        let inode = state.id;
        let mapping = state.lock().mapping;
        let length = to.min(limits::FILE_BYTES_MAX).saturating_sub(from).max(1);
        let operation = Operation::ReadExtents {
            inode,
            offset: from,
            length,
            limit,
        };
        let reply = match self.session.execute(operation).await {
            Ok(reply) => reply,
            // Not a file: its attributes determine the error.
            Err(error) if error.kind() != ErrorKind::NotFound => {
                let attributes = self.session.attributes(inode).await?;
                if attributes.kind == FileKind::File {
                    return Err(error);
                }
                state.lock().learn(&attributes);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        match reply {
            Reply::Extents {
                extents,
                known_to,
                attributes,
            } => {
                let mut inner = state.lock();
                if inner.mapping != mapping {
                    return Ok(());
                }
                if inner.known.is_none() {
                    inner.learn(&attributes);
                }
                inner.extents.learn(from, known_to.max(from), &extents);
                Ok(())
            }
            other => unexpected_reply(&other),
        }
    }

    /// Fetches pieces of segments; caches them if requested and the file didn't change meanwhile.
    pub(crate) async fn fetch(
        &self,
        state: &InodeRef,
        wanted: &[Located],
        keep: Keep,
    ) -> Result<Vec<(u64, Bytes)>> {
        let mapping = state.lock().mapping;
        let mut pieces = Vec::with_capacity(wanted.len());
        let mut rest: VecDeque<_> = together(wanted).into();
        while !rest.is_empty() {
            let mut bytes = 0;
            let mut some = Vec::new();
            while let Some(next) = rest.front()
                && some.len() < FETCHES_AT_ONCE
                && (some.is_empty() || bytes + next.bytes() <= FETCHED_BYTES_AT_ONCE)
            {
                bytes += next.bytes();
                some.extend(rest.pop_front());
            }
            let reads = some
                .into_iter()
                .map(|neighbours| self.read_together(neighbours, keep));
            for read in try_join_all(reads).await? {
                match read {
                    Neighbours::Read(read) => pieces.extend(read),
                    // With the next ones, under the same limits.
                    Neighbours::Apart(parts) => rest.extend(parts),
                }
            }
        }
        if keep == Keep::No {
            return Ok(pieces);
        }
        {
            let mut inner = state.lock();
            if inner.mapping == mapping {
                for (at, bytes) in &mut pieces {
                    let (counted, memory) = self.blocks.counted(std::mem::take(bytes));
                    bytes.clone_from(&counted);
                    let piece = (counted, memory);
                    let ahead = keep == Keep::Ahead;
                    self.pages.cache(state.id, &mut inner, *at, piece, ahead);
                }
            }
        }
        if self.pages.is_over_budget() {
            self.pages.shrink(&self.inodes, pieces.len());
        }
        Ok(pieces)
    }

    pub(crate) async fn read_segment(
        &self,
        piece: &Located,
        place: SegmentPlace,
        at: u32,
        keep: Keep,
    ) -> Result<Vec<(u64, Bytes)>> {
        let length = u32::try_from(piece.to - piece.from).expect("an extent lies in one segment");
        let _listed = self
            .session
            .list("data from the NSDs", None, self.session.now());
        let mut offset = piece.from;
        let mut out = Vec::new();
        for bytes in self.pool.read(&place, at, length).await? {
            let next = offset + bytes.len() as u64;
            let bytes = if keep != Keep::No && bytes.len() <= COPIED_MAX {
                Bytes::copy_from_slice(&bytes)
            } else {
                bytes
            };
            out.push((offset, bytes));
            offset = next;
        }
        if offset != piece.to {
            let text = format!(
                "a read of segment {} returned {} bytes too few",
                place.segment,
                piece.to - offset
            );
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        Ok(out)
    }
}

impl Answer {
    fn add_zeros(&mut self, from: u64, to: u64) {
        let mut at = from;
        while at < to {
            let length = (to - at).min(ZEROS.len() as u64);
            self.0
                .push((at, Bytes::from_static(&ZEROS[..length as usize])));
            at += length;
        }
    }

    /// `fetched` must be sorted and disjoint.
    fn take_fetched(&mut self, gaps: &mut Gaps, fetched: &[(u64, Bytes)]) {
        let end = |(start, bytes): &(u64, Bytes)| start + bytes.len() as u64;
        gaps.fill_from_runs(
            |at| {
                let piece = fetched.get(fetched.partition_point(|piece| end(piece) <= at))?;
                Some((piece.0, end(piece), piece))
            },
            |from, to, (start, bytes)| {
                let part = bytes.slice((from - start) as usize..(to - start) as usize);
                self.0.push((from, part));
            },
        );
    }

    fn in_order(mut self) -> Vec<Bytes> {
        self.0.sort_by_key(|(at, _)| *at);
        self.0.into_iter().map(|(_, bytes)| bytes).collect()
    }
}

/// The error for unreadable data: EIO, whatever the cause's own errno.
fn unreadable(inode: InodeId, error: Error) -> Error {
    let error = error.while_doing(format!("read of inode {inode}"));
    match error.kind() {
        ErrorKind::Corrupt | ErrorKind::Unavailable | ErrorKind::ShuttingDown => error,
        _ => Error::new(ErrorKind::Unavailable, error.to_string()),
    }
}
